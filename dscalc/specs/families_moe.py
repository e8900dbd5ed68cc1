"""Counting rules of mixture-of-experts decoder families; see `families` for the manner of a rule."""

from __future__ import annotations

from dscalc.records import Tensor
from dscalc.specs.config_reader import Reader
from dscalc.specs.families import (
    Fields,
    Rule,
    cohere,
    ernie,
    frame,
    full_norms,
    gemma2,
    head_norms,
    llama,
    no_bias,
    qkv_bias_only,
    qwen3,
)
from dscalc.specs.shape import MAX_EXPERTS, MAX_HEADS

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
TOP_K = ("num_experts_per_tok", "experts_per_token", "num_experts_per_token", "moe_topk", "moe_k", "moe_top_k")
SHARED = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert")


def experts(r: Reader) -> Fields:
    """Number of experts and how many a token uses."""
    return {"experts": r.size_or_class(*EXPERTS, maximum=MAX_EXPERTS), "top_k": r.size_or_class(*TOP_K)}


def every_layer(fields: Fields) -> Fields:
    """Experts in every layer."""
    return fields | {"moe_layer": (True,) * fields["layers"]}


def first_dense(r: Reader, fields: Fields) -> Fields:
    """The first layers dense, then experts (in every ``moe_layer_freq``-th layer); a list of layer kinds wins."""
    kinds = r.listed("mlp_layer_types", str)
    if kinds is not None:
        unknown = sorted({k for k in kinds if k not in ("dense", "sparse")})
        if unknown:
            r.fail(f"mlp_layer_types {unknown[0]!r} is not modelled; dense and sparse are")
        return fields | {"moe_layer": tuple(k == "sparse" for k in kinds)}
    first = r.count("first_k_dense_replace")
    every = 1
    if isinstance(r.config.get("moe_layer_freq"), list):
        flags = r.listed("moe_layer_freq", int) or []
        return fields | {"moe_layer": tuple(bool(f) for f in flags)}
    every = r.count("moe_layer_freq", default=1, minimum=1)
    return fields | {"moe_layer": tuple(i >= first and i % every == 0 for i in range(fields["layers"]))}


def shared(r: Reader, width: int) -> Fields:
    """Shared experts, stored as one MLP of their total width."""
    return {"shared_ffn_hidden": r.count(*SHARED) * width}


def drop_experts_if_dense(fields: Fields) -> Fields:
    """Without any layer of experts the expert fields mean nothing."""
    if any(fields["moe_layer"]):
        return fields
    unused = ("experts", "top_k", "moe_ffn_hidden", "shared_ffn_hidden", "router_correction", "shared_expert_gate")
    return {k: v for k, v in fields.items() if k not in (*unused, "moe_layer")}


def mixtral(r: Reader) -> Fields:
    """``intermediate_size`` is the width of one expert; no dense layers."""
    fields = no_bias(r) | experts(r)
    return every_layer(fields | {"moe_ffn_hidden": fields["ffn_hidden"]})


def with_expert_width(base: Rule) -> Rule:
    """A dense family whose MLP became experts of ``intermediate_size`` in every layer."""

    def rule(r: Reader) -> Fields:
        fields = base(r) | experts(r)
        return every_layer(fields | {"moe_ffn_hidden": fields["ffn_hidden"], "mlp_bias": False})

    return rule


def olmoe(r: Reader) -> Fields:
    """Query and key norms over the full width."""
    return full_norms(with_expert_width(llama)(r))


def phimoe(r: Reader) -> Fields:
    """LayerNorm; one flag for the attention biases, one for the head's."""
    return with_expert_width(llama)(r) | {"norm": "layer", "head_bias": r.flag("lm_head_bias")}


def minimax_m2(r: Reader) -> Fields:
    """Query and key norms over the full width; stored routing correction."""
    return full_norms(mixtral(r)) | {"router_correction": True}


def granite_moe(r: Reader) -> Fields:
    """Experts in every layer and, in the shared variant, one MLP that all tokens use."""
    return with_expert_width(llama)(r) | {"shared_ffn_hidden": r.count("shared_intermediate_size")}


def granite_moe_sinks(r: Reader) -> Fields:
    """Granite experts with one attention sink per head."""
    return granite_moe(r) | {"attention_sinks": True}


def granite_hybrid(r: Reader) -> Fields:
    """The hybrid class without any state-space layer: an always-used MLP, with or without experts beside it."""
    kinds = r.listed("layer_types", str) or r.listed("layers_block_type", str) or []
    if not kinds or any(k not in ("attention", "full_attention") for k in kinds):
        r.fail("state-space layers (mamba) are not modelled")
    width = r.size("shared_intermediate_size")
    if not r.count(*EXPERTS):
        return llama(r) | {"ffn_hidden": width, "mlp_bias": False}
    return granite_moe(r)


def sparse_steps(r: Reader, fields: Fields) -> Fields:
    """Qwen: experts in every ``decoder_sparse_step``-th layer except those listed as dense."""
    step = r.count("decoder_sparse_step", default=1, minimum=1)
    dense = set(r.listed("mlp_only_layers", int) or ())
    pattern = tuple(i not in dense and (i + 1) % step == 0 for i in range(fields["layers"]))
    return drop_experts_if_dense(fields | {"moe_layer": pattern})


def qwen2_moe(r: Reader) -> Fields:
    """Bias on query, key and value; a shared expert with its own gate."""
    fields = frame(r) | experts(r) | {"qkv_bias": r.flag("qkv_bias", default=True)}
    fields["moe_ffn_hidden"] = r.size_or_class("moe_intermediate_size")
    fields["shared_ffn_hidden"] = r.count("shared_expert_intermediate_size")
    return sparse_steps(r, fields | {"shared_expert_gate": bool(fields["shared_ffn_hidden"])})


def qwen3_moe(r: Reader) -> Fields:
    """Qwen 3 with experts, none shared."""
    fields = qwen3(r) | experts(r)
    return sparse_steps(r, fields | {"moe_ffn_hidden": r.size_or_class("moe_intermediate_size")})


def mellum(r: Reader) -> Fields:
    """Qwen 3 with experts, dense layers by list."""
    fields = qwen3(r) | experts(r) | {"mlp_bias": False, "moe_ffn_hidden": r.size_or_class("moe_intermediate_size")}
    return drop_experts_if_dense(first_dense(r, fields))


def gpt_oss(r: Reader) -> Fields:
    """Biases on attention, router and experts; one sink per head."""
    fields = with_expert_width(llama)(r)
    return fields | {"attention_sinks": True, "router_bias": True, "expert_bias": True}


def llama4(r: Reader) -> Fields:
    """Experts in listed layers or every n-th, each with one shared expert; dense layers have their own width."""
    fields = llama(r) | experts(r) | {"mlp_bias": False}
    width = fields["ffn_hidden"]
    fields |= {
        "moe_ffn_hidden": width,
        "shared_ffn_hidden": width,
        "ffn_hidden": r.size_or_class("intermediate_size_mlp"),
    }
    listed = r.listed("moe_layers", int)
    if listed is None:
        step = r.count("interleave_moe_layer_step", default=1, minimum=1)
        listed = list(range(step - 1, fields["layers"], step))
    chosen = set(listed)
    return drop_experts_if_dense(fields | {"moe_layer": tuple(i in chosen for i in range(fields["layers"]))})


def mtp(r: Reader) -> Fields:
    """Multi-token-prediction layers that the file itself states; a class default is not evidence of any."""
    stated = r.config.get("num_nextn_predict_layers") is not None
    return {"mtp_layers": r.count("num_nextn_predict_layers") if stated else 0}


def glm4_moe(r: Reader) -> Fields:
    """Bias on query, key and value by flag, optional norms per head, stored routing correction."""
    fields = qkv_bias_only(r) | experts(r) | {"mlp_bias": False, "router_correction": True}
    width = r.size_or_class("moe_intermediate_size")
    fields = drop_experts_if_dense(first_dense(r, fields | {"moe_ffn_hidden": width} | shared(r, width)))
    return (head_norms(fields) if r.flag("use_qk_norm") else fields) | mtp(r)


def deepseek_v1(r: Reader) -> Fields:
    """DeepSeekMoE: plain attention, first layers dense, shared and routed experts, no routing correction."""
    fields = llama(r) | experts(r) | {"mlp_bias": False}
    width = r.size("moe_intermediate_size")
    return drop_experts_if_dense(first_dense(r, fields | {"moe_ffn_hidden": width} | shared(r, width)))


def kolibri1(r: Reader) -> Fields:
    """Norms per head and around both blocks, experts in every layer, one shared expert of its own width."""
    width = r.size_or_class("moe_intermediate_size")
    fields = head_norms(frame(r, ffn=False)) | experts(r) | {"ffn_hidden": 0, "norms_per_layer": 4}
    fields["shared_ffn_hidden"] = r.count("shared_expert_intermediate_size")
    return every_layer(fields | {"moe_ffn_hidden": width, "router_correction": True})


def dots1(r: Reader) -> Fields:
    """Norms per head, first layers dense, stored routing correction."""
    fields = head_norms(llama(r)) | experts(r) | {"mlp_bias": False, "router_correction": True}
    width = r.size_or_class("moe_intermediate_size")
    return drop_experts_if_dense(first_dense(r, fields | {"moe_ffn_hidden": width} | shared(r, width)))


def solar_open(r: Reader) -> Fields:
    """Experts in every layer, one stored correction each, attention without norms."""
    width = r.size_or_class("moe_intermediate_size")
    bias = r.flag("attention_bias")
    fields = frame(r, ffn=False) | experts(r) | {"qkv_bias": bias, "ffn_hidden": 0, "moe_ffn_hidden": width}
    return every_layer(fields | shared(r, width) | {"router_correction": True})


def ernie_moe(r: Reader) -> Fields:
    """Experts from a start to an end layer, a stored correction each, shared experts in the same layers."""
    fields = ernie(r) | experts(r) | {"router_correction": True}
    if fields["mlp_bias"]:
        r.fail("ERNIE experts with biases (use_bias true) are not modelled")
    layers = fields["layers"]
    start, every = r.count("moe_layer_start_index", default=1), r.count("moe_layer_interval", default=1, minimum=1)
    end = layers - 1 if r.config.get("moe_layer_end_index") in (None, -1) else r.count("moe_layer_end_index")
    width = r.size_or_class("moe_intermediate_size")
    pattern = tuple((i + 1) % every == 0 and start <= i <= end for i in range(layers))
    fields |= {"moe_ffn_hidden": width, "moe_layer": pattern} | shared(r, width)
    return drop_experts_if_dense(fields)


def afmoe(r: Reader) -> Fields:
    """Norms around both blocks, gated attention, norms per head, first layers dense, stored correction."""
    fields = head_norms(gemma2(r)) | experts(r) | {"gated_attention": True, "router_correction": True}
    width, first = r.size_or_class("moe_intermediate_size"), r.count("num_dense_layers")
    pattern = tuple(i >= first for i in range(fields["layers"]))
    return drop_experts_if_dense(fields | {"moe_ffn_hidden": width, "moe_layer": pattern} | shared(r, width))


def hunyuan_moe(r: Reader) -> Fields:
    """Norms per head, one shared MLP beside the experts; settings given per layer must all be equal."""
    config = dict(r.config)
    for key in (*EXPERTS, *TOP_K, *SHARED, "moe_intermediate_size"):
        values = config.get(key)
        if isinstance(values, list):
            if not values or any(v != values[0] for v in values):
                r.fail(f"key {key!r} differs between layers, which is not modelled")
            config[key] = values[0]
    same = Reader(config, r.where, r.defaults, strict=r.strict)
    fields = head_norms(llama(same)) | experts(same) | {"mlp_bias": False}
    width = same.count("moe_intermediate_size", default=fields["ffn_hidden"], minimum=1)
    shared_width = same.count(*SHARED, default=1) * fields["ffn_hidden"]
    return every_layer(fields | {"moe_ffn_hidden": width, "shared_ffn_hidden": shared_width})


def dbrx(r: Reader) -> Fields:
    """Sizes in nested objects; norms without bias; a fused matrix for query, key and value."""
    attention, ffn = r.nested("attn_config"), r.nested("ffn_config")
    if attention is None or ffn is None:
        r.fail("keys 'attn_config' and 'ffn_config' are missing")
    fields = frame(r, ffn=False) | {"norm": "layer-no-bias", "ffn_hidden": 0}
    fields["kv_heads"] = attention.count("kv_n_heads", default=1, minimum=1, maximum=MAX_HEADS)
    chosen = {
        "experts": ffn.count("moe_num_experts", default=4, minimum=1, maximum=MAX_EXPERTS),
        "top_k": ffn.count("moe_top_k", default=1, minimum=1),
        "moe_ffn_hidden": ffn.count("ffn_hidden_size", default=3584, minimum=1),
    }
    return every_layer(fields | chosen)


def aria(r: Reader) -> Fields:
    """Experts of ``intermediate_size`` in every layer and shared experts of the same width."""
    fields = with_expert_width(llama)(r)
    return fields | shared(r, fields["ffn_hidden"])


def cohere2_moe(r: Reader) -> Fields:
    """One LayerNorm a layer; experts and shared experts of ``intermediate_size``; first layers may be dense."""
    fields = cohere(r) | experts(r)
    width = fields["ffn_hidden"]
    fields["ffn_hidden"] = r.count("prefix_dense_intermediate_size", default=width, minimum=1)
    return drop_experts_if_dense(first_dense(r, fields | {"moe_ffn_hidden": width} | shared(r, width)))


def grok1(r: Reader) -> Fields:
    """Norms before and after both blocks; gated experts in every layer; tied embeddings."""
    tied = r.flag("tie_word_embeddings", default=True)
    return mixtral(r) | {"norms_per_layer": 4, "tied_embeddings": tied}


def arctic(r: Reader) -> Fields:
    """Experts beside a dense residual MLP as wide as the model, which every token uses."""
    fields = frame(r) | experts(r) | {"moe_ffn_hidden": r.size("intermediate_size")}
    every = r.count("moe_layer_frequency", default=2, minimum=1)
    fields["moe_layer"] = tuple((i + 1) % every == 0 for i in range(fields["layers"]))
    if r.flag("parallel_attn_mlp_res"):
        fields["shared_ffn_hidden"] = fields["hidden"]
        fields["extra"] = (Tensor("residual_norm", "moe_mlp", fields["hidden"], "replicated"),)
    return drop_experts_if_dense(fields)


MOE: dict[str, Rule] = {
    "mixtral": mixtral,
    "olmoe": olmoe,
    "flex_olmo": olmoe,
    "phimoe": phimoe,
    "minimax_m2": minimax_m2,
    "granitemoe": granite_moe,
    "granitemoeshared": granite_moe,
    "granitemoe_swa": granite_moe_sinks,
    "granitemoehybrid": granite_hybrid,
    "qwen2_moe": qwen2_moe,
    "qwen3_moe": qwen3_moe,
    "mellum": mellum,
    "gpt_oss": gpt_oss,
    "llama4_text": llama4,
    "glm4_moe": glm4_moe,
    "sarvam_moe": glm4_moe,
    "deepseek": deepseek_v1,
    "hy_v3": dots1,
    "kolibri1": kolibri1,
    "dots1": dots1,
    "exaone_moe": dots1,
    "solar_open": solar_open,
    "ernie4_5_moe": ernie_moe,
    "afmoe": afmoe,
    "hunyuan_v1_moe": hunyuan_moe,
    "dbrx": dbrx,
    "aria_text": aria,
    "cohere2_moe": cohere2_moe,
    "grok-1": grok1,
    "arctic": arctic,
}
