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
    """As Llama, but the bias flag leaves the output projection out (GLM); no flag for the MLP."""
    return frame(r) | {"qkv_bias": r.flag("attention_bias")}


def helium(r: Reader) -> Fields:
    """GLM's attention, Llama's MLP flag."""
    return qkv_bias_only(r) | {"mlp_bias": r.flag("mlp_bias")}


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


LLAMA_LIKE: dict[str, Rule] = {
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
    "helium": helium,
    "ernie4_5": ernie,
    "arcee": ungated,
    "nemotron": ungated_layer_norm,
    "jais2": ungated_layer_norm,
    "apertus": apertus,
    "bitnet": bitnet,
    "nanochat": nanochat,
    "stablelm": stablelm,
}
