"""Counting rules of families with multi-head latent attention; see `families` for the manner of a rule."""

from __future__ import annotations

from dscalc.records import Tensor
from dscalc.specs.config_reader import Reader
from dscalc.specs.families import Fields, Rule, frame, llama
from dscalc.specs.families_moe import drop_experts_if_dense, experts, first_dense, mtp, shared
from dscalc.specs.shape import MAX_HEADS


def latent(r: Reader) -> Fields:
    """Multi-head latent attention; without ``q_lora_rank`` queries are projected directly."""
    nope, rope = r.size_or_class("qk_nope_head_dim"), r.size_or_class("qk_rope_head_dim")
    heads = r.size("num_attention_heads", maximum=MAX_HEADS)
    direct = "q_lora_rank" in r.config and r.config["q_lora_rank"] is None
    bias = r.flag("attention_bias")
    return {
        "mla": True,
        "kv_heads": heads,
        "head_dim": nope + rope,
        "rope_head_dim": rope,
        "value_head_dim": r.size_or_class("v_head_dim"),
        "q_lora_rank": 0 if direct else r.count("q_lora_rank"),
        "kv_lora_rank": r.size_or_class("kv_lora_rank"),
        "qkv_bias": bias,
        "out_bias": bias,
    }


def minicpm3(r: Reader) -> Fields:
    """Latent attention with a dense MLP."""
    return llama(r) | latent(r) | {"mlp_bias": False}


def deepseek_v2(r: Reader) -> Fields:
    """Latent attention, first layers dense, shared and routed experts."""
    fields = llama_sizes(r) | latent(r) | experts(r) | {"mlp_bias": r.flag("mlp_bias")}
    width = r.size_or_class("moe_intermediate_size")
    fields |= {"moe_ffn_hidden": width, "router_correction": r.text("topk_method") == "noaux_tc"}
    return drop_experts_if_dense(first_dense(r, fields | shared(r, width)))


def llama_sizes(r: Reader) -> Fields:
    """The frame without the divisibility of hidden by heads: latent attention has its own head sizes."""
    relaxed = Reader({**r.config, "head_dim": 1}, r.where, r.defaults, strict=r.strict)
    fields = frame(relaxed)
    r.assumed |= relaxed.assumed
    return fields


def deepseek_v3(r: Reader) -> Fields:
    """DeepSeek-V2 with a stored routing correction and multi-token-prediction layers."""
    fields = deepseek_v2(r) | {"mlp_bias": False}
    if fields.get("experts"):
        fields["router_correction"] = True
    return fields | mtp(r)


def deepseek_v32(r: Reader) -> Fields:
    """DeepSeek-V3 with the indexer of sparse attention in every layer."""
    kinds = r.listed("indexer_types", str)
    if kinds and any(k != "full" for k in kinds):
        r.fail("layers that share an indexer (indexer_types other than full) are not modelled")
    return deepseek_v3(r) | {
        "index_heads": r.size_or_class("index_n_heads"),
        "index_head_dim": r.size_or_class("index_head_dim"),
    }


def axk1(r: Reader) -> Fields:
    """DeepSeek-V3 with a norm after the experts."""
    fields = deepseek_v3(r)
    return fields | {"extra": (Tensor("post_norm", "moe_mlp", fields["hidden"], "replicated"),)}


LATENT: dict[str, Rule] = {
    "minicpm3": minicpm3,
    "deepseek_v2": deepseek_v2,
    "deepseek_v3": deepseek_v3,
    "kimi_k2": deepseek_v3,
    "sarvam_mla": deepseek_v3,
    "youtu": minicpm3,
    "glm4_moe_lite": deepseek_v3,
    "deepseek_v32": deepseek_v32,
    "glm_moe_dsa": deepseek_v32,
    "axk1": axk1,
    "mistral4": deepseek_v2,
}
