"""Every stored parameter tensor of a model, by rule, and the exact counts that follow from the list.

The list is per instance of a part (one layer, one head); `part_instances` says how often each part occurs. All counts
are Python integers: nothing is rounded anywhere between a configuration file and the number reported.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dscalc.frozen import dataclass
from dscalc.records import ModelShape, Tensor

MAIN_PARTS = ("embedding", "layer", "dense_mlp", "moe_mlp", "final", "head")


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Exact parameter counts of one model [parameters].

    Attributes:
        main: stored parameters of the main model, tied weights once; the number given by the user where one was given.
        listed: sum of the main model's inventory; equals ``main`` unless the user gave a number of parameters.
        mtp: multi-token-prediction modules as checkpoints store them, with their own embedding and head copies.
        vision: vision tower and projector.
        tied_copy: elements of the second copy where tied embeddings are stored twice (pipelines, some checkpoints).
        embedding: token embedding matrix.
        head: output head matrix and its bias; 0 where the head is the embedding matrix.
        active: parameters used for one token: everything except the experts that the router leaves out.
        active_without_embedding: the same without input tables (learned positions always; the token matrix unless it is
            tied, because then it also works as the head).
        active_without_embedding_and_head: the same without input tables and without the head matrix.
    """

    main: int
    listed: int
    mtp: int
    vision: int
    tied_copy: int
    embedding: int
    head: int
    active: int
    active_without_embedding: int
    active_without_embedding_and_head: int


def norm_elements(shape: ModelShape) -> int:
    """Elements of one normalisation over the hidden width.

    Args:
        shape: model shape; reads ``norm`` and ``hidden`` [features].

    Returns:
        Elements [parameters]: h for RMSNorm and LayerNorm without bias, 2h for LayerNorm, 0 without weights.

    Raises:
        ValueError: ``norm`` names no known normalisation.

    References:
        [ZhangSennrich2019], [Ba2016]
    """
    if shape.norm in ("rms", "layer-no-bias"):
        return shape.hidden
    if shape.norm == "layer":
        return 2 * shape.hidden
    if shape.norm == "none":
        return 0
    raise ValueError(f"unknown norm {shape.norm!r}: rms, layer, layer-no-bias or none")


def _linear(
    name: str, part: str, rows: int, cols: int, split: str, target: str = "", *, bias: str = "", copies: int = 1
) -> Iterator[Tensor]:
    """A linear layer's weight and, where ``bias`` names its split, its bias."""
    yield Tensor(name, part, rows * cols * copies, split, True, rows, cols, copies, target)
    if bias:
        yield Tensor(f"{name}_bias", part, rows * copies, bias)


def _vector(name: str, part: str, elements: int) -> Iterator[Tensor]:
    """A replicated vector, left out where it has no elements."""
    if elements:
        yield Tensor(name, part, elements, "replicated")


def _attention(s: ModelShape, part: str) -> Iterator[Tensor]:
    h = s.hidden
    if s.mla:
        yield from _latent_attention(s, part)
    else:
        kv = "kv" if s.qkv_bias else ""
        q_rows = s.heads * s.head_dim * (2 if s.gated_attention else 1)
        yield from _linear("attention/q_proj", part, q_rows, h, "tp", "q_proj", bias="tp" if s.qkv_bias else "")
        yield from _linear("attention/k_proj", part, s.kv_heads * s.head_dim, h, "kv", "k_proj", bias=kv)
        yield from _linear("attention/v_proj", part, s.kv_heads * s.value_head_dim, h, "kv", "v_proj", bias=kv)
    out_bias = "replicated" if s.out_bias else ""
    yield from _linear("attention/o_proj", part, h, s.heads * s.value_head_dim, "tp", "o_proj", bias=out_bias)
    yield from _vector("attention/q_norm", part, s.q_norm_elements)
    yield from _vector("attention/k_norm", part, s.k_norm_elements)
    if s.attention_sinks:
        yield Tensor("attention/sinks", part, s.heads, "tp")


def _latent_attention(s: ModelShape, part: str) -> Iterator[Tensor]:
    h, bias = s.hidden, "replicated" if s.qkv_bias else ""
    q_rows = s.heads * s.head_dim
    if s.q_lora_rank:
        yield from _linear("attention/q_a_proj", part, s.q_lora_rank, h, "replicated", "q_a_proj", bias=bias)
        yield from _vector("attention/q_a_norm", part, s.q_lora_rank)
        yield from _linear("attention/q_b_proj", part, q_rows, s.q_lora_rank, "tp", "q_b_proj")
    else:
        yield from _linear("attention/q_proj", part, q_rows, h, "tp", "q_proj")
    kv_rows = s.kv_lora_rank + s.rope_head_dim
    yield from _linear("attention/kv_a_proj", part, kv_rows, h, "replicated", "kv_a_proj_with_mqa", bias=bias)
    yield from _vector("attention/kv_a_norm", part, s.kv_lora_rank)
    b_rows = s.heads * (s.head_dim - s.rope_head_dim + s.value_head_dim)
    yield from _linear("attention/kv_b_proj", part, b_rows, s.kv_lora_rank, "tp", "kv_b_proj")
    if s.index_heads:
        index = s.index_heads * s.index_head_dim
        yield from _linear("indexer/wq_b", part, index, s.q_lora_rank or h, "replicated")
        yield from _linear("indexer/wk", part, s.index_head_dim, h, "replicated")
        yield from _vector("indexer/k_norm", part, 2 * s.index_head_dim)
        yield from _linear("indexer/weights_proj", part, s.index_heads, h, "replicated")


def _mlp(
    s: ModelShape, name: str, part: str, width: int, split: str, *, bias: bool, copies: int = 1
) -> Iterator[Tensor]:
    column = (split if split == "expert" else "tp") if bias else ""
    row = (split if split == "expert" else "replicated") if bias else ""
    if s.gated_mlp:
        yield from _linear(f"{name}/gate_proj", part, width, s.hidden, split, "gate_proj", bias=column, copies=copies)
    yield from _linear(f"{name}/up_proj", part, width, s.hidden, split, "up_proj", bias=column, copies=copies)
    yield from _linear(f"{name}/down_proj", part, s.hidden, width, split, "down_proj", bias=row, copies=copies)


def _experts(s: ModelShape, part: str) -> Iterator[Tensor]:
    router_bias = "replicated" if s.router_bias else ""
    yield from _linear("router", part, s.experts, s.hidden, "replicated", bias=router_bias)
    if s.router_correction:
        yield from _vector("router_correction", part, s.experts)
    yield from _mlp(s, "experts", part, s.moe_ffn_hidden, "expert", bias=s.expert_bias, copies=s.experts)
    if s.shared_ffn_hidden:
        yield from _mlp(s, "shared_experts", part, s.shared_ffn_hidden, "tp", bias=s.mlp_bias)
        if s.shared_expert_gate:
            yield from _linear("shared_experts/gate", part, 1, s.hidden, "replicated")


def _norms(s: ModelShape, part: str) -> Iterator[Tensor]:
    each = norm_elements(s)
    for i in range(s.norms_per_layer):
        yield from _vector(f"norm_{i + 1}", part, each)


def _mtp(s: ModelShape) -> Iterator[Tensor]:
    """One depth of multi-token prediction: a decoder layer of the last kind, a joining matrix, and its own copies."""
    last_is_moe = bool(s.moe_layer and s.moe_layer[-1])
    yield from _vector("embedding_norm", "mtp", norm_elements(s))
    yield from _vector("hidden_norm", "mtp", norm_elements(s))
    yield from _linear("join_proj", "mtp", s.hidden, 2 * s.hidden, "replicated")
    yield from _attention(s, "mtp")
    yield from _norms(s, "mtp")
    yield from _experts(s, "mtp") if last_is_moe else _mlp(s, "mlp", "mtp", s.ffn_hidden, "tp", bias=s.mlp_bias)
    yield from _vector("final_norm", "mtp", norm_elements(s))
    yield Tensor("embedding_copy", "mtp", s.vocab * s.hidden, "vocab")
    yield Tensor("head_copy", "mtp", s.vocab * s.hidden, "vocab")


def part_instances(shape: ModelShape) -> dict[str, int]:
    """How often each part of the inventory occurs in the model.

    Args:
        shape: model shape; reads ``layers``, ``moe_layer`` and ``mtp_layers`` [layers].

    Returns:
        Instances by part name [count].

    Raises:
        Nothing; a validated shape is assumed.

    References:
        [Shazeer2017]
    """
    moe = sum(shape.moe_layer)
    return {
        "embedding": 1,
        "layer": shape.layers,
        "dense_mlp": shape.layers - moe,
        "moe_mlp": moe,
        "final": 1,
        "head": 1,
        "mtp": shape.mtp_layers,
        "vision": 1,
    }


def inventory(shape: ModelShape) -> tuple[Tensor, ...]:
    """Every stored parameter tensor of the model, once per kind of part.

    Args:
        shape: model shape [layers, features, heads, tokens, experts].

    Returns:
        Tensors with their elements [parameters] in one instance of their part; parts that do not occur are left out.

    Raises:
        ValueError: ``norm`` names no known normalisation.

    References:
        [Vaswani2017], [Shazeer2017], [Shazeer2020], [Ainslie2023], [DeepSeekV2], [DeepSeekV3]
    """
    return tuple(_all_tensors(shape))


def _all_tensors(s: ModelShape) -> Iterator[Tensor]:
    instances = part_instances(s)
    width = s.embedding_width or s.hidden
    yield Tensor("tokens", "embedding", s.vocab * width, "vocab")
    if width != s.hidden:
        yield from _linear("project_in", "embedding", s.hidden, width, "replicated")
    if s.learned_positions:
        yield Tensor("positions", "embedding", s.learned_positions * s.hidden, "replicated")
    if s.embedding_norm:
        yield from _vector("norm", "embedding", norm_elements(s))
    yield from _attention(s, "layer")
    yield from _norms(s, "layer")
    if instances["dense_mlp"]:
        yield from _mlp(s, "mlp", "dense_mlp", s.ffn_hidden, "tp", bias=s.mlp_bias)
    if instances["moe_mlp"]:
        yield from _experts(s, "moe_mlp")
    if s.final_norm:
        yield from _vector("norm", "final", norm_elements(s))
    if width != s.hidden:
        yield from _linear("project_out", "final", width, s.hidden, "replicated")
    if not s.tied_embeddings:
        yield Tensor("head", "head", s.vocab * width, "vocab", True, s.vocab, width, 1, "lm_head")
    if s.head_bias:
        yield Tensor("head_bias", "head", s.vocab, "vocab")
    yield from s.extra
    if s.mtp_layers:
        yield from (replace(t, name=f"mtp/{t.name}") for t in _mtp(s))
    yield from _vector("vision", "vision", s.vision_params)


def active_elements(tensor: Tensor, shape: ModelShape) -> int:
    """Elements of a tensor that one token uses.

    Args:
        tensor: a row of the inventory [parameters].
        shape: the same model's shape; reads ``experts`` and ``top_k`` [experts].

    Returns:
        Elements [parameters]: top_k of the experts for routed experts, all elements otherwise.

    Raises:
        ZeroDivisionError: an expert tensor of a shape without experts.

    References:
        [Shazeer2017]
    """
    if tensor.split != "expert":
        return tensor.elements
    return tensor.elements // shape.experts * shape.top_k


def parameter_counts(shape: ModelShape) -> ParameterCounts:
    """Exact parameter counts: stored, active, and the parts that published totals include or leave out.

    Args:
        shape: model shape [layers, features, heads, tokens, experts].

    Returns:
        Counts as Python integers [parameters].

    Raises:
        ValueError: ``norm`` names no known normalisation.

    References:
        [Shazeer2017], [DeepSeekV3], [Kaplan2020]
    """
    instances = part_instances(shape)
    stored = dict.fromkeys(instances, 0)
    active = 0
    tables = {"tokens": 0, "positions": 0}
    for tensor in inventory(shape):
        stored[tensor.part] += tensor.elements * instances[tensor.part]
        if tensor.part in MAIN_PARTS:
            active += active_elements(tensor, shape) * instances[tensor.part]
        if tensor.part == "embedding" and tensor.name in tables:
            tables[tensor.name] += tensor.elements
    listed = sum(stored[part] for part in MAIN_PARTS)
    main = listed
    if shape.stated_params:  # the user's number stands; the shape only says how it is divided
        main = shape.stated_params
        active = main * active // listed
    tokens, positions = tables["tokens"], tables["positions"]
    without_input = active - positions - (0 if shape.tied_embeddings else tokens)
    head = stored["head"]
    without_both = active - positions - tokens - head
    return ParameterCounts(
        main=main,
        listed=listed,
        mtp=stored["mtp"],
        vision=stored["vision"],
        tied_copy=tokens if shape.tied_embeddings else 0,
        embedding=tokens,
        head=head,
        active=active,
        active_without_embedding=max(0, without_input),
        active_without_embedding_and_head=max(0, without_both),
    )
