"""Counting rules of GPT-style families and of first-generation models published with their own code; see `families`."""

from __future__ import annotations

from dscalc.specs.config_reader import Reader
from dscalc.specs.families import FFN, Fields, Rule, frame
from dscalc.specs.shape import MAX_HEADS


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


def phi_first(r: Reader) -> Fields:
    """Phi-1.5 and Phi-2 as first published, with GPT-2's key names."""
    return biased(r, ffn=4) | {"norms_per_layer": 1, "head_bias": True}


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


def minicpm(r: Reader) -> Fields:
    """As Llama, with embeddings tied unless the file says otherwise."""
    return frame(r) | {"tied_embeddings": r.flag("tie_word_embeddings", default=True)}


def orion(r: Reader) -> Fields:
    """As Llama, with LayerNorm and its bias."""
    return frame(r) | {"norm": "layer"}


def mimo(r: Reader) -> Fields:
    """As Qwen 2; its multi-token-prediction layers have a layout of their own."""
    if r.count("num_nextn_predict_layers"):
        r.warnings.append("the multi-token-prediction layers (num_nextn_predict_layers) are not counted")
    return frame(r) | {"qkv_bias": True}


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


GPT_LIKE: dict[str, Rule] = {
    "gpt2": gpt2,
    "gpt-sw3": gpt2,
    "openai-gpt": openai_gpt,
    "gpt_bigcode": gpt_bigcode,
    "gpt_neo": gpt_neo,
    "gptj": gpt_j,
    "codegen": gpt_j,
    "gpt_neox": gpt_neox,
    "phi": phi,
    "phi-msft": phi_first,
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
    "minicpm": minicpm,
    "orion": orion,
    "mimo": mimo,
    "internlm": internlm,
    "internlm2": internlm2,
    "internlm3": internlm3,
}
