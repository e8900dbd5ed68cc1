"""Counting rules of dense decoder families: what each family stores that its configuration does not say.

A rule reads a configuration through a `Reader` and gives the fields of a `ModelSpec`. Facts that a file states (a bias
flag, tied embeddings) win; what it leaves out comes from the class defaults in ``family_defaults.json``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dscalc.records import Tensor
from dscalc.specs.config_reader import Reader
from dscalc.specs.shape import MAX_HEADS, MAX_LAYERS, MAX_VOCAB

Fields = dict[str, Any]
Rule = Callable[[Reader], Fields]

HIDDEN = ("hidden_size", "n_embd", "n_embed", "d_model")
LAYERS = ("num_hidden_layers", "n_layer", "n_layers", "num_layers")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads")
KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_head_kv")
FFN = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
VOCAB = ("vocab_size", "padded_vocab_size")


def frame(r: Reader, *, ffn: bool = True) -> Fields:
    """Sizes every decoder has; ``head_dim`` is read first, because it is not always hidden / heads."""
    hidden = r.size(*HIDDEN)
    heads = r.size(*HEADS, maximum=MAX_HEADS)
    head_dim = r.count("head_dim", "kv_channels", minimum=1)
    if not head_dim:
        if hidden % heads:
            r.fail(f"hidden size {hidden} must be a multiple of {heads} attention heads where head_dim is not given")
        head_dim = hidden // heads
    fields: Fields = {
        "layers": r.size(*LAYERS, maximum=MAX_LAYERS),
        "hidden": hidden,
        "heads": heads,
        "kv_heads": r.count(*KV_HEADS, default=heads, minimum=1, maximum=MAX_HEADS),
        "head_dim": head_dim,
        "value_head_dim": head_dim,
        "vocab": r.size(*VOCAB, maximum=MAX_VOCAB),
        "tied_embeddings": r.flag("tie_word_embeddings"),
    }
    if ffn:
        fields["ffn_hidden"] = r.size(*FFN)
    return fields


def llama(r: Reader) -> Fields:
    """RMSNorm, gated MLP, one bias flag for the four attention matrices, one for the MLP."""
    bias = r.flag("attention_bias")
    return frame(r) | {"qkv_bias": bias, "out_bias": bias, "mlp_bias": r.flag("mlp_bias")}


def no_bias(r: Reader) -> Fields:
    """As Llama, no biases whatever the file says."""
    return frame(r)


def qkv_bias_only(r: Reader) -> Fields:
    """As Llama, but the bias flag leaves the output projection out (GLM, Helium)."""
    return frame(r) | {"qkv_bias": r.flag("attention_bias"), "mlp_bias": r.flag("mlp_bias")}


def qwen2(r: Reader) -> Fields:
    """Query, key and value always have a bias; no flag says so."""
    return frame(r) | {"qkv_bias": True}


def seed_oss(r: Reader) -> Fields:
    """Separate flags for the query/key/value and output biases."""
    return llama(r) | {"out_bias": r.flag("attention_out_bias")}


def head_norms(fields: Fields) -> Fields:
    """Query and key norms over one head each (Qwen3, Gemma 3)."""
    return fields | {"q_norm_elements": fields["head_dim"], "k_norm_elements": fields["head_dim"]}


def full_norms(fields: Fields) -> Fields:
    """Query and key norms over all heads (OLMo 2, MiniMax M2)."""
    return fields | {
        "q_norm_elements": fields["heads"] * fields["head_dim"],
        "k_norm_elements": fields["kv_heads"] * fields["head_dim"],
    }


def qwen3(r: Reader) -> Fields:
    """Llama with query and key norms per head."""
    return head_norms(llama(r))


def qwen3_plain(r: Reader) -> Fields:
    """Query and key norms per head, never a bias (EXAONE 4)."""
    return head_norms(frame(r))


def gemma2(r: Reader) -> Fields:
    """Norms before and after both blocks."""
    return llama(r) | {"norms_per_layer": 4, "mlp_bias": False}


def gemma3(r: Reader) -> Fields:
    """Gemma 2 with query and key norms."""
    return head_norms(gemma2(r))


def olmo(r: Reader) -> Fields:
    """Norms without weights."""
    return llama(r) | {"norm": "none"}


def olmo2(r: Reader) -> Fields:
    """Query and key norms over the full width."""
    return full_norms(llama(r))


def cohere(r: Reader) -> Fields:
    """One LayerNorm without bias feeds attention and MLP; optional norms of every query and key head."""
    fields = llama(r) | {"norm": "layer-no-bias", "norms_per_layer": 1, "mlp_bias": False}
    return full_norms(fields) if r.flag("use_qk_norm") else fields


def granite_sinks(r: Reader) -> Fields:
    """Llama with one attention sink per head."""
    return llama(r) | {"attention_sinks": True}


def glm4(r: Reader) -> Fields:
    """GLM with norms after both blocks too."""
    return qkv_bias_only(r) | {"norms_per_layer": 4}


def hyperclovax(r: Reader) -> Fields:
    """Llama, with two more norms a layer where the file asks for them."""
    return llama(r) | {"norms_per_layer": 4 if r.flag("use_post_norm") else 2}


def ernie(r: Reader) -> Fields:
    """One flag for every bias, the head's too."""
    bias = r.flag("use_bias")
    return frame(r) | {"qkv_bias": bias, "out_bias": bias, "mlp_bias": bias}


def ungated(r: Reader) -> Fields:
    """Two MLP matrices instead of three, Llama's flags otherwise."""
    return llama(r) | {"gated_mlp": False}


def ungated_layer_norm(r: Reader) -> Fields:
    """LayerNorm and an ungated MLP (Nemotron, Jais 2)."""
    return ungated(r) | {"norm": "layer"}


def apertus(r: Reader) -> Fields:
    """Ungated MLP whose activation has two weights."""
    slopes = Tensor("mlp/activation", "layer", 2, "replicated")
    return head_norms(ungated(r)) | {"extra": (slopes,), "mlp_bias": False}


def bitnet(r: Reader) -> Fields:
    """A norm inside attention and one inside the MLP."""
    fields = llama(r) | {"mlp_bias": False}
    inner = (
        Tensor("attention/inner_norm", "layer", fields["hidden"], "replicated"),
        Tensor("mlp/inner_norm", "layer", fields["ffn_hidden"], "replicated"),
    )
    return fields | {"extra": inner}


def nanochat(r: Reader) -> Fields:
    """Ungated MLP, norms without weights."""
    return ungated(r) | {"norm": "none", "mlp_bias": False}


def stablelm(r: Reader) -> Fields:
    """LayerNorm, one per layer where the two blocks run in parallel; optional norms of every head, without bias."""
    fields = frame(r) | {
        "norm": "layer",
        "norms_per_layer": 1 if r.flag("use_parallel_residual") else 2,
        "qkv_bias": r.flag("use_qkv_bias"),
    }
    return full_norms(fields) if r.flag("qk_layernorm") else fields


def biased(r: Reader, *, flag: str = "", ffn: int = 0) -> Fields:
    """GPT-style layer: LayerNorm, ungated MLP, biases on every matrix unless ``flag`` turns them off."""
    fields = frame(r, ffn=not ffn)
    bias = r.flag(flag, default=True) if flag else True
    if ffn:
        fields["ffn_hidden"] = r.count(*FFN, minimum=1) or ffn * fields["hidden"]
    return fields | {"norm": "layer", "gated_mlp": False, "qkv_bias": bias, "out_bias": bias, "mlp_bias": bias}


def gpt2(r: Reader) -> Fields:
    """Learned positions, MLP four times as wide unless said otherwise."""
    return biased(r, ffn=4) | {"learned_positions": r.size("n_positions", "n_ctx", "max_position_embeddings")}


def openai_gpt(r: Reader) -> Fields:
    """GPT-1: as GPT-2 without a final norm; the MLP is always four times as wide."""
    fields = gpt2(r)
    return fields | {"final_norm": False, "ffn_hidden": 4 * fields["hidden"]}


def gpt_bigcode(r: Reader) -> Fields:
    """GPT-2 with one key/value head unless multi-query attention is off."""
    fields = gpt2(r)
    return fields | {"kv_heads": 1 if r.flag("multi_query", default=True) else fields["heads"]}


def gpt_neo(r: Reader) -> Fields:
    """GPT-2 without biases on query, key and value."""
    positions = r.size("max_position_embeddings")
    return biased(r, ffn=4) | {"qkv_bias": False, "learned_positions": positions}


def gpt_j(r: Reader) -> Fields:
    """One norm, rotary positions, biases on the MLP and the head only."""
    return biased(r, ffn=4) | {"qkv_bias": False, "out_bias": False, "norms_per_layer": 1, "head_bias": True}


def gpt_neox(r: Reader) -> Fields:
    """Biases everywhere; the flag covers attention only. Two norms whether or not the blocks run in parallel."""
    bias = r.flag("attention_bias", default=True)
    return biased(r) | {"qkv_bias": bias, "out_bias": bias}


def phi(r: Reader) -> Fields:
    """One norm, biases everywhere, the head too; optional norms of one query and one key head."""
    fields = biased(r) | {"norms_per_layer": 1, "head_bias": True}
    if r.flag("qk_layernorm"):
        size = 2 * fields["head_dim"]
        fields |= {"q_norm_elements": size, "k_norm_elements": size}
    return fields


def persimmon(r: Reader) -> Fields:
    """Biases everywhere, norms of one query and one key head."""
    fields = biased(r)
    size = 2 * fields["head_dim"] if r.flag("qk_layernorm", default=True) else 0
    return fields | {"q_norm_elements": size, "k_norm_elements": size}


def starcoder2(r: Reader) -> Fields:
    """One flag for every bias."""
    return biased(r, flag="use_bias")


def bloom(r: Reader) -> Fields:
    """A norm after the embedding; the MLP is always four times as wide."""
    fields = biased(r, ffn=4)
    return fields | {"embedding_norm": True, "ffn_hidden": 4 * fields["hidden"]}


def opt(r: Reader) -> Fields:
    """Two more position rows than positions; narrower embeddings are projected in and out (OPT-350M)."""
    fields = biased(r, flag="enable_bias")
    if not r.flag("layer_norm_elementwise_affine", default=True):
        fields["norm"] = "none"
    removed = r.flag("_remove_final_layer_norm")
    fields["final_norm"] = r.flag("do_layer_norm_before", default=True) and not removed
    fields["learned_positions"] = r.size("max_position_embeddings") + 2
    narrow = r.count("word_embed_proj_dim", default=fields["hidden"], minimum=1)
    if narrow != fields["hidden"]:
        fields["embedding_width"] = narrow
    return fields


def xglm(r: Reader) -> Fields:
    """Biases everywhere; positions are computed, not learned."""
    return biased(r)


def biogpt(r: Reader) -> Fields:
    """OPT's two extra position rows."""
    return biased(r) | {"learned_positions": r.size("max_position_embeddings") + 2}


def mpt(r: Reader) -> Fields:
    """Norms without bias, linear layers without bias, ALiBi positions unless switched off."""
    if not r.flag("no_bias", default=True):
        r.fail("MPT with biases (no_bias false) is not modelled")
    attention = r.nested("attn_config")
    fields = frame(r, ffn=False)
    if attention is not None:
        if attention.flag("qk_ln"):
            r.fail("MPT with query/key norms (qk_ln) is not modelled")
        fields["kv_heads"] = attention.count("kv_n_heads", default=fields["heads"], minimum=1)
        if attention.text("attn_type", "multihead_attention") == "multiquery_attention":
            fields["kv_heads"] = 1
        if not attention.flag("alibi", default=True) and r.flag("learned_pos_emb", default=True):
            fields["learned_positions"] = r.size("max_seq_len")
    width = r.count("expansion_ratio", default=4, minimum=1) * fields["hidden"]
    return fields | {
        "norm": "layer-no-bias",
        "gated_mlp": False,
        "ffn_hidden": width,
        "tied_embeddings": r.flag("tie_word_embeddings", default=True),
    }


def falcon(r: Reader) -> Fields:
    """Old layout: one key/value head with multi-query; new layout: grouped heads and two norms in parallel."""
    new = r.flag("new_decoder_architecture") or r.text("model_type") == "RefinedWeb"
    fields = biased(r, flag="bias", ffn=4)
    if not r.given("bias"):
        fields |= {"qkv_bias": False, "out_bias": False, "mlp_bias": False}
    if not new:
        fields["kv_heads"] = 1 if r.flag("multi_query", default=True) else fields["heads"]
    parallel = r.flag("parallel_attn", default=True)
    parallel_norms = r.count("num_ln_in_parallel_attn", default=2 if new else 1)
    fields["norms_per_layer"] = (2 if parallel_norms == 2 else 1) if parallel else 2
    fields["tied_embeddings"] = r.flag("tie_word_embeddings", default=True)
    return fields


def chatglm(r: Reader) -> Fields:
    """ChatGLM 2 and 3: grouped key/value heads under another name, bias on query, key and value."""
    fields = frame(r, ffn=False)
    if r.flag("multi_query_attention"):
        fields["kv_heads"] = r.size("multi_query_group_num", maximum=MAX_HEADS)
    bias = r.flag("add_bias_linear")
    return fields | {
        "ffn_hidden": r.size("ffn_hidden_size"),
        "norm": "rms" if r.flag("rmsnorm", default=True) else "layer",
        "final_norm": r.flag("post_layer_norm", default=True),
        "qkv_bias": bias or r.flag("add_qkv_bias"),
        "out_bias": bias,
        "mlp_bias": bias,
    }


def qwen1(r: Reader) -> Fields:
    """The first Qwen: ``intermediate_size`` counts the gate and up matrices together; bias on query, key and value."""
    fields = frame(r) | {"qkv_bias": True}
    if fields["ffn_hidden"] % 2:
        r.fail("key 'intermediate_size' must be even: it counts the gate and up matrices together")
    return fields | {"ffn_hidden": fields["ffn_hidden"] // 2, "kv_heads": fields["heads"]}


def baichuan(r: Reader) -> Fields:
    """Llama with one fused matrix for query, key and value, no grouped heads, no biases."""
    fields = frame(r)
    return fields | {"kv_heads": fields["heads"]}


def internlm(r: Reader) -> Fields:
    """The first InternLM: one flag for the four attention biases."""
    bias = r.flag("bias", default=True)
    return frame(r) | {"qkv_bias": bias, "out_bias": bias}


def internlm2(r: Reader) -> Fields:
    """As InternLM with the flag off by default."""
    bias = r.flag("bias")
    return frame(r) | {"qkv_bias": bias, "out_bias": bias}


def internlm3(r: Reader) -> Fields:
    """Separate flags for query/key/value and for the other linear layers."""
    bias = r.flag("bias")
    return frame(r) | {"qkv_bias": r.flag("qkv_bias"), "out_bias": bias, "mlp_bias": bias}


DENSE: dict[str, Rule] = {
    "llama": llama,
    "mistral": no_bias,
    "ministral": no_bias,
    "ministral3": no_bias,
    "phi3": no_bias,
    "gemma": llama,
    "gemma2": gemma2,
    "gemma3_text": gemma3,
    "vaultgemma": lambda r: llama(r) | {"mlp_bias": False},
    "qwen2": qwen2,
    "qwen3": qwen3,
    "seed_oss": seed_oss,
    "smollm3": llama,
    "granite": llama,
    "granite_swa": granite_sinks,
    "cwm": no_bias,
    "exaone": llama,
    "exaone4": qwen3_plain,
    "hunyuan_v1_dense": qwen3,
    "hyperclovax": hyperclovax,
    "iquestcoder": llama,
    "olmo": olmo,
    "olmo2": olmo2,
    "olmo3": olmo2,
    "cohere": cohere,
    "cohere2": cohere,
    "glm": qkv_bias_only,
    "glm4": glm4,
    "helium": qkv_bias_only,
    "ernie4_5": ernie,
    "arcee": ungated,
    "nemotron": ungated_layer_norm,
    "jais2": ungated_layer_norm,
    "apertus": apertus,
    "bitnet": bitnet,
    "nanochat": nanochat,
    "stablelm": stablelm,
    "gpt2": gpt2,
    "gpt-sw3": gpt2,
    "openai-gpt": openai_gpt,
    "gpt_bigcode": gpt_bigcode,
    "gpt_neo": gpt_neo,
    "gptj": gpt_j,
    "codegen": gpt_j,
    "gpt_neox": gpt_neox,
    "phi": phi,
    "persimmon": persimmon,
    "starcoder2": starcoder2,
    "bloom": bloom,
    "opt": opt,
    "xglm": xglm,
    "biogpt": biogpt,
    "mpt": mpt,
    "falcon": falcon,
    "RefinedWeb": falcon,
    "RefinedWebModel": falcon,
    "chatglm": chatglm,
    "qwen": qwen1,
    "baichuan": baichuan,
    "internlm": internlm,
    "internlm2": internlm2,
    "internlm3": internlm3,
}
