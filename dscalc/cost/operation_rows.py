"""The operations of a layer, the embedding, the head and the loss as data: sizes, kernels, formulas."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from dscalc.frozen import dataclass
from dscalc.records import Array, Mask, ModelShape

THIRD = 1.0 / 3.0  # forward's part of forward and backward
SIXTH = 1.0 / 6.0


@dataclass(frozen=True, slots=True)
class Case:
    """Sizes that operations read; arrays (n,)."""

    shape: ModelShape
    tokens: Array  # of the rank in one micro-batch
    seq_len: Array
    tp: Array
    kv_tp: Array  # ranks that divide key and value
    hidden_tokens: Array  # tokens whose hidden vector a rank keeps outside the tensor-parallel regions
    routed: Array  # tokens times experts a token that reach one expert, on the ranks that hold it
    local_experts: Array
    etp: Array
    vocab_tp: Array
    unfused: Mask


Sizes = tuple[Array | float, Array | float, Array | float, Array | float]


class Operation(NamedTuple):
    """One operation.

    Attributes:
        name: path below the part that holds it.
        part: ``layer`` (every layer), ``dense``, ``moe``, ``embedding`` or ``head``.
        kind: ``linear`` (a matrix product that may run in 8 bits), ``product`` (one that does not), ``expert`` (one of
            experts), ``core`` (attention core), ``stream``, ``loss``, ``routing``, ``weights`` (bound by memory, each
            with passes of its own).
        sizes: linear, product: rows, depth, width, how many; core: FLOP of the causal and of the full square, scores,
            1; stream: elements, passes forward, passes backward, 1.
        kernels: launches forward; backward has twice as many.
        formula, source: for ``--explain``.
    """

    name: str
    part: str
    kind: str
    sizes: Callable[[Case], Sizes]
    kernels: float
    formula: str
    source: str


def _gate(c: Case) -> float:
    return 2.0 if c.shape.gated_mlp else 1.0


def _qkv(c: Case) -> Sizes:
    s = c.shape
    queries = s.heads * s.head_dim * (2.0 if s.gated_attention else 1.0) / c.tp
    return c.tokens, s.hidden, queries + s.kv_heads * (s.head_dim + s.value_head_dim) / c.kv_tp, 0.0 if s.mla else 1.0


def _latent_down(c: Case) -> Sizes:
    s = c.shape
    return c.tokens, s.hidden, s.q_lora_rank + s.kv_lora_rank + s.rope_head_dim, 1.0 if s.mla else 0.0


def _latent_query(c: Case) -> Sizes:
    s = c.shape
    return c.tokens, s.q_lora_rank or s.hidden, s.heads * s.head_dim / c.tp, 1.0 if s.mla else 0.0


def _latent_key(c: Case) -> Sizes:
    s = c.shape
    width = s.heads * (s.head_dim - s.rope_head_dim + s.value_head_dim) / c.tp
    return c.tokens, max(s.kv_lora_rank, 1), width, 1.0 if s.mla else 0.0


def _core(c: Case) -> Sizes:
    s = c.shape
    square = 2.0 * c.tokens * c.seq_len * s.heads * (s.head_dim + s.value_head_dim) / c.tp
    return square / 2.0, square, s.heads * c.seq_len * c.tokens / c.tp, 1.0


def _experts(width: Callable[[Case], tuple[Array | float, Array | float]]) -> Callable[[Case], Sizes]:
    def sizes(c: Case) -> Sizes:
        depth, wide = width(c)
        return c.routed, depth, wide, c.local_experts

    return sizes


OPERATIONS: tuple[Operation, ...] = (
    Operation("qkv", "layer", "linear", _qkv, 1, "2 T h (a + 2g) d_k / t", "[Vaswani2017]"),
    Operation("latent_down", "layer", "linear", _latent_down, 2, "2 T h (r_q + r_kv + d_rope)", "[DeepSeekV2]"),
    Operation("latent_query", "layer", "linear", _latent_query, 1, "2 T r_q a d_k / t", "[DeepSeekV2]"),
    Operation("latent_key_value", "layer", "linear", _latent_key, 1, "2 T r_kv a (d_nope + d_v) / t", "[DeepSeekV2]"),
    Operation("attention_core", "layer", "core", _core, 2, "2 T s a d_k / t causal, 4 T s a d_k / t full", "[Dao2023]"),
    Operation(
        "out",
        "layer",
        "linear",
        lambda c: (c.tokens, c.shape.heads * c.shape.value_head_dim / c.tp, c.shape.hidden, 1.0),
        1,
        "2 T a d_v h / t",
        "[Vaswani2017]",
    ),
    Operation(
        "mlp_up",
        "dense",
        "linear",
        lambda c: (c.tokens, c.shape.hidden, _gate(c) * c.shape.ffn_hidden / c.tp, 1.0),
        1,
        "2 T h (1 + gate) f / t",
        "[Shazeer2020]",
    ),
    Operation(
        "mlp_down",
        "dense",
        "linear",
        lambda c: (c.tokens, c.shape.ffn_hidden / c.tp, c.shape.hidden, 1.0),
        1,
        "2 T f h / t",
        "[Shazeer2020]",
    ),
    Operation(
        "router",
        "moe",
        "product",
        lambda c: (c.hidden_tokens, c.shape.hidden, c.shape.experts, 1.0),
        4,
        "2 T h E / t",
        "[Shazeer2017]",
    ),
    Operation(
        "experts_up",
        "moe",
        "expert",
        _experts(lambda c: (c.shape.hidden, _gate(c) * c.shape.moe_ffn_hidden / c.etp)),
        2,
        "2 T top_k h (1 + gate) f_e / t",
        "[Shazeer2017]",
    ),
    Operation(
        "experts_down",
        "moe",
        "expert",
        _experts(lambda c: (c.shape.moe_ffn_hidden / c.etp, c.shape.hidden)),
        2,
        "2 T top_k f_e h / t",
        "[Shazeer2017]",
    ),
    Operation(
        "shared_expert_up",
        "moe",
        "linear",
        lambda c: (c.tokens, c.shape.hidden, _gate(c) * c.shape.shared_ffn_hidden / c.tp, _has(c.shape)),
        1,
        "2 T h (1 + gate) f_s / t",
        "[DeepSeekV2]",
    ),
    Operation(
        "shared_expert_down",
        "moe",
        "linear",
        lambda c: (c.tokens, max(c.shape.shared_ffn_hidden, 1) / c.tp, c.shape.hidden, _has(c.shape)),
        1,
        "2 T f_s h / t",
        "[DeepSeekV2]",
    ),
    Operation(
        "norms",
        "layer",
        "stream",
        lambda c: (c.hidden_tokens * c.shape.hidden * c.shape.norms_per_layer / 2.0, 4.0, 6.0, 1.0),
        2,
        "2 norms: 2 passes over T h forward, 3 backward each",
        "[Definition]",
    ),
    Operation(
        "residuals",
        "layer",
        "stream",
        lambda c: (c.hidden_tokens * c.shape.hidden, 6.0, 4.0, 1.0),
        2,
        "2 sums: 3 passes over T h forward, 2 backward each",
        "[Definition]",
    ),
    Operation(
        "rotary",
        "layer",
        "stream",
        lambda c: (c.tokens * c.shape.heads * c.shape.head_dim / c.tp, 2.0, 4.0, 1.0),
        3,
        "6 passes over T a d_k / t: positions, layout of heads",
        "[Su2021]",
    ),
    Operation(
        "activation",
        "dense",
        "stream",
        lambda c: (c.tokens * (1.0 + c.shape.gated_mlp) * c.shape.ffn_hidden / c.tp, 2.0, 3.0, 1.0),
        1,
        "5 passes over T (1 + gate) f / t",
        "[Shazeer2020]",
    ),
    Operation(
        "expert_activation",
        "moe",
        "stream",
        lambda c: (
            c.routed * c.local_experts * (1.0 + c.shape.gated_mlp) * c.shape.moe_ffn_hidden / c.etp,
            2.0,
            3.0,
            1.0,
        ),
        1,
        "5 passes over T top_k (1 + gate) f_e / t",
        "[Shazeer2020]",
    ),
    Operation(
        "expert_weights",
        "moe",
        "weights",
        lambda c: (
            c.local_experts / c.etp * (1.0 + _gate(c)) * c.shape.hidden * c.shape.moe_ffn_hidden,
            SIXTH,  # read; backward reads once more, and reads and writes a gradient of twice the width
            1.0 - SIXTH,
            1.0,
        ),
        0,
        "passes over the weights and gradients of the rank's experts, (2 + gate) E / e h f_e / x",
        "[MegatronLM] fused weight-gradient accumulation",
    ),
    Operation(
        "routing",
        "moe",
        "routing",
        lambda c: (c.routed * c.local_experts / c.etp * c.shape.hidden, THIRD, 2.0 * THIRD, 1.0),
        8,
        "permutation and weighting of routed tokens, T top_k h / t a pass",
        "[MegatronLM] token_dispatcher.py",
    ),
    Operation(
        "lookup",
        "embedding",
        "stream",
        lambda c: (c.hidden_tokens * c.shape.hidden, 2.0, 3.0, 1.0),
        1,
        "rows read and written, gradient rows added",
        "[Vaswani2017]",
    ),
    Operation(
        "projection",
        "head",
        "product",
        lambda c: (c.tokens, c.shape.hidden, c.shape.vocab / c.vocab_tp, 1.0),
        1,
        "2 T h V / t",
        "[Vaswani2017]",
    ),
    Operation(
        "loss",
        "head",
        "loss",
        lambda c: (c.tokens * c.shape.vocab / c.vocab_tp, THIRD, 2.0 * THIRD, 1.0),
        6,
        "passes over T V / t logits, head and loss together",
        "[MegatronLM] cross_entropy.py",
    ),
)


def _has(shape: ModelShape) -> float:
    return 1.0 if shape.shared_ffn_hidden else 0.0
