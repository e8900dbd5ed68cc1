"""Hugging Face ``config.json`` objects to model specifications: finds the family, refuses what is not modelled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from pydantic import ValidationError

from dscalc.errors import ConfigError
from dscalc.specs.config_reader import Reader
from dscalc.specs.families import DENSE, Fields, Rule, llama
from dscalc.specs.families_moe import MOE
from dscalc.specs.shape import ModelSpec

FAMILIES: dict[str, Rule] = {**DENSE, **MOE}

# Families by class name, for files that leave ``model_type`` out.
ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "LLaMAForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen2MoeForCausalLM": "qwen2_moe",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "QWenLMHeadModel": "qwen",
    "GemmaForCausalLM": "gemma",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "GPT2LMHeadModel": "gpt2",
    "GPTNeoForCausalLM": "gpt_neo",
    "GPTNeoXForCausalLM": "gpt_neox",
    "GPTJForCausalLM": "gptj",
    "GPTBigCodeForCausalLM": "gpt_bigcode",
    "Starcoder2ForCausalLM": "starcoder2",
    "CodeGenForCausalLM": "codegen",
    "OPTForCausalLM": "opt",
    "BloomForCausalLM": "bloom",
    "MPTForCausalLM": "mpt",
    "MptForCausalLM": "mpt",
    "FalconForCausalLM": "falcon",
    "PhiForCausalLM": "phi",
    "Phi3ForCausalLM": "phi3",
    "PhiMoEForCausalLM": "phimoe",
    "StableLmForCausalLM": "stablelm",
    "OlmoForCausalLM": "olmo",
    "Olmo2ForCausalLM": "olmo2",
    "Olmo3ForCausalLM": "olmo3",
    "OlmoeForCausalLM": "olmoe",
    "CohereForCausalLM": "cohere",
    "Cohere2ForCausalLM": "cohere2",
    "GraniteForCausalLM": "granite",
    "GraniteMoeForCausalLM": "granitemoe",
    "NemotronForCausalLM": "nemotron",
    "GlmForCausalLM": "glm",
    "Glm4ForCausalLM": "glm4",
    "Glm4MoeForCausalLM": "glm4_moe",
    "DeepseekV2ForCausalLM": "deepseek_v2",
    "DeepseekV3ForCausalLM": "deepseek_v3",
    "DeepseekV32ForCausalLM": "deepseek_v32",
    "GlmMoeDsaForCausalLM": "glm_moe_dsa",
    "GptOssForCausalLM": "gpt_oss",
    "Llama4ForCausalLM": "llama4_text",
    "DbrxForCausalLM": "dbrx",
    "ArcticForCausalLM": "arctic",
    "BaichuanForCausalLM": "baichuan",
    "BaiChuanForCausalLM": "baichuan",
    "InternLMForCausalLM": "internlm",
    "InternLM2ForCausalLM": "internlm2",
    "InternLM3ForCausalLM": "internlm3",
    "ChatGLMModel": "chatglm",
    "ChatGLMForConditionalGeneration": "chatglm",
}
TEXT_KEYS = ("text_config", "llm_config", "language_config")
# What stands where a wrapper's own type says which text family it holds, and the nested object does not.
WRAPPERS = {
    "gemma3": "gemma3_text",
    "llama4": "llama4_text",
    "paligemma": "gemma",
    "llava": "llama",
    "llava_next": "llama",
    "mistral3": "mistral",
    "aria": "aria_text",
}
FLAT_WRAPPERS = {"qwen2_vl": "qwen2", "qwen2_5_vl": "qwen2", "qwen2_vl_text": "qwen2", "qwen2_5_vl_text": "qwen2"}
RENAMED = {
    "qwen3_vl_text": "qwen3",
    "qwen3_vl_moe_text": "qwen3_moe",
    "glm4v_text": "glm4",
    "glm4v_moe_text": "glm4_moe",
    "phi-msft": "phi",
    "mistral_nemo": "mistral",
    "phi3small": "",
    "yi": "llama",
    "Yi": "llama",
    "RefinedWeb": "RefinedWeb",
    **{k: v for k, v in FLAT_WRAPPERS.items() if k.endswith("_text")},
}
LAYERS_KNOWN = {
    "full_attention",
    "sliding_attention",
    "chunked_attention",
    "indexed_attention",
    "attention",
    "global",
    "local",
    "global_attention",
    "local_attention",
    "deepseek_sparse_attention",
}
# Keys of layers or blocks that have no counting rule, and what to call them.
NOT_MODELLED = {
    "linear_num_key_heads": "linear attention (gated delta net)",
    "linear_key_head_dim": "linear attention (gated delta net)",
    "linear_attn_config": "linear attention",
    "linear_attn": "linear attention",
    "attn_type_list": "linear (lightning) attention",
    "ssm_cfg": "state-space layers (mamba)",
    "ssm_state_size": "state-space layers (mamba)",
    "state_size": "state-space layers (mamba)",
    "mamba_d_state": "state-space layers (mamba)",
    "mamba_num_heads": "state-space layers (mamba)",
    "mamba_d_ssm": "state-space layers (mamba)",
    "attn_layer_period": "state-space layers (mamba)",
    "hybrid_override_pattern": "state-space layers (mamba)",
    "conv_L_cache": "convolution layers",
    "lru_width": "recurrent layers",
    "attention_hidden_size": "recurrent layers (RWKV)",
    "block_configs": "layers that differ in width (block_configs)",
    "num_query_heads": "layers that differ in width",
    "enable_moe_block": "layers with dense and expert MLP side by side",
    "global_head_dim": "layers that differ in head size",
    "altup_num_inputs": "alternating updates (AltUp)",
    "cross_attention_layers": "cross-attention layers",
    "num_hash_layers": "hash-routed layers",
    "zero_expert_num": "experts without weights (shortcut-connected layers)",
    "swa_head_dim": "layers that differ in head size",
    "swa_num_key_value_heads": "layers that differ in key/value heads",
}
NOT_MODELLED_IF_POSITIVE = {
    "hidden_size_per_layer_input": "per-layer embeddings",
    "num_kv_shared_layers": "layers that share keys and values",
    "engram_hidden_size": "memory tables",
}
ENCODERS = ["bert", "roberta", "xlm-roberta", "camembert", "deberta", "deberta-v2", "electra", "albert", "distilbert", "mpnet", "modernbert", "ernie", "xlnet", "xlm", "longformer", "big_bird", "nomic_bert", "vit", "clip", "siglip", "siglip_vision_model", "clip_vision_model", "wav2vec2", "hubert"]
ENCODER_DECODERS = ["t5", "mt5", "umt5", "longt5", "bart", "mbart", "pegasus", "marian", "whisper", "blenderbot", "blenderbot-small", "prophetnet", "led", "m2m_100", "nllb-moe", "switch_transformers", "t5gemma", "fsmt", "encoder-decoder", "plbart", "mvp", "bigbird_pegasus", "speech_to_text", "trocr"]


@dataclass(frozen=True, slots=True)
class Counted:
    """A specification read from a file, with what had to be assumed and what to tell the user."""

    spec: ModelSpec
    family: str
    warnings: tuple[str, ...]
    assumed: Mapping[str, Any]


@cache
def family_defaults() -> dict[str, dict[str, Any]]:
    """Class defaults by family: what a configuration file may leave out."""
    text = files("dscalc.specs").joinpath("family_defaults.json").read_text(encoding="utf-8")
    loaded: dict[str, dict[str, Any]] = json.loads(text)
    return loaded


def spec_from_config(config: Mapping[str, Any], source: str) -> tuple[ModelSpec, tuple[str, ...]]:
    """A model specification and warnings from the object in a Hugging Face ``config.json``.

    Args:
        config: the object, as `dscalc.specs.config_reader.read_config` gives it.
        source: file name or other origin, for error messages and as the model's name.

    Raises:
        ConfigError: a key is missing or of the wrong type, or the model has layers without a counting rule.
    """
    counted = count_config(config, source)
    return counted.spec, counted.warnings


def count_config(config: Mapping[str, Any], source: str) -> Counted:
    """As `spec_from_config`, with the family found and the class defaults used."""
    if not isinstance(config, Mapping):
        raise ConfigError("expected a JSON object with the model's keys", where=source)
    outer = Reader(config, source)
    wrapper = _family_name(outer)
    _refuse_encoders(outer, wrapper)
    nested = next((key for key in TEXT_KEYS if config.get(key) is not None), "")
    if not nested:
        return _count_text(outer, _rename(FLAT_WRAPPERS.get(wrapper, wrapper)), outer)
    inner = outer.nested(nested)
    assert inner is not None  # noqa: S101 - the key was found above
    family = _rename(_family_name(inner) or WRAPPERS.get(wrapper, ""))
    if not family or WRAPPERS.get(family):
        family = WRAPPERS.get(wrapper, family)
    return _count_text(inner, family, outer)


def _family_name(r: Reader) -> str:
    name = r.text("model_type")
    if name in FAMILIES or name in RENAMED:
        return name
    for architecture in r.listed("architectures", str) or ():
        if architecture in ARCHITECTURES and (not name or name not in WRAPPERS):
            return ARCHITECTURES[architecture]
    return name


def _rename(name: str) -> str:
    return RENAMED.get(name, name)


def _refuse_encoders(r: Reader, family: str) -> None:
    if r.config.get("is_encoder_decoder") is True or family in ENCODER_DECODERS or r.given("encoder", "decoder"):
        r.fail(f"encoder-decoder models ({family or 'is_encoder_decoder'}) are not modelled; decoder-only ones are")
    if family in ENCODERS:
        r.fail(f"encoder models ({family}) are not modelled; decoder-only ones are")
    if r.config.get("add_cross_attention") is True:
        r.fail("cross-attention layers are not modelled")


def _refuse_unmodelled(r: Reader, family: str) -> None:
    for key, what in NOT_MODELLED.items():
        if r.config.get(key) in (None, False) or (family == "granitemoehybrid" and key.startswith("mamba")):
            continue
        r.fail(f"{what} are not modelled (key {key!r})")
    for key, what in NOT_MODELLED_IF_POSITIVE.items():
        value = r.config.get(key)
        if isinstance(value, int) and value > 0:
            r.fail(f"{what} are not modelled (key {key!r})")
    for key in ("layer_types", "layers_block_type"):
        if family == "granitemoehybrid":
            break
        for kind in r.listed(key, str) or ():
            if kind not in LAYERS_KNOWN:
                r.fail(f"layers of kind {kind!r} (key {key!r}) are not modelled")


def _count_text(r: Reader, family: str, outer: Reader) -> Counted:
    """Count the language model; ``outer`` is the wrapper around it, or the same reader."""
    _refuse_encoders(r, family)
    _refuse_unmodelled(r, family)
    rule = FAMILIES.get(family)
    strict = r is outer
    reader = Reader(_with_outer_tie(r, outer), r.where, family_defaults().get(family), strict=strict)
    if rule is None:
        rule = _unknown(reader, family)
    spec = _build(reader, rule, outer.where)
    vision, notes = _vision(outer, spec)
    warnings = (*reader.warnings, *notes)
    if vision:
        spec = spec.with_changes(vision_params=vision)
    return Counted(spec, family, warnings, dict(reader.assumed))


def _with_outer_tie(r: Reader, outer: Reader) -> Mapping[str, Any]:
    """The text object, with the wrapper's statement on tied embeddings where it makes none itself."""
    key = "tie_word_embeddings"
    if r is outer or r.config.get(key) is not None or outer.config.get(key) is None:
        return r.config
    return {**r.config, key: outer.config[key]}


def _build(r: Reader, rule: Rule, name: str) -> ModelSpec:
    fields: Fields = rule(r)
    try:
        return ModelSpec(name=name[:300] or "model", **{"ffn_hidden": 0, **fields})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        r.fail(f"{field}: {message}" if field else message)


def _unknown(r: Reader, family: str) -> Rule:
    """An architecture nobody listed: a Llama-like reading where the keys are a plain decoder's, else a refusal."""
    name = repr(family) if family else "without model_type"
    experts = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts")
    for key in experts:
        if r.config.get(key) not in (None, 0, 1):
            r.fail(f"unknown architecture {name} with experts (key {key!r}): its expert layout is not modelled")
    for key in r.config:
        if any(part in key for part in ("mamba", "ssm", "rwkv", "conv_kernel", "linear_attn", "lora_rank", "moe_")):
            r.fail(f"unknown architecture {name} with key {key!r}: such layers are not modelled")
    needed = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size")
    absent = [key for key in needed if not r.given(key)]
    if absent:
        r.fail(f"unknown architecture {name}, and keys of a plain decoder are missing: {', '.join(absent)}")
    r.warnings.append(
        f"architecture {name} is not known: counted as Llama-like (gated MLP, two RMSNorms a layer and one at the end, "
        "rotary positions, biases and tied embeddings only where the file says so)"
    )
    return llama


def _vision(outer: Reader, spec: ModelSpec) -> tuple[int, tuple[str, ...]]:
    from dscalc.specs.vision import vision_parameters

    return vision_parameters(outer, spec)


def known_families() -> tuple[str, ...]:
    """Every ``model_type`` that has a counting rule."""
    return tuple(sorted({*FAMILIES, *FLAT_WRAPPERS, *WRAPPERS, *(k for k, v in RENAMED.items() if v)}))
