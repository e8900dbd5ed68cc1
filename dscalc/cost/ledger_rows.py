"""The rows of the activation ledger: every tensor that one layer keeps for its backward pass.

A row lists shape, bytes per element and what divides it; all sums are derived from the rows. The same rows give the
GPT ledger of
[Korthikanti2022], the Llama ledger, mixture-of-experts and latent-attention layers: a row applies where ``when`` holds.
"""

from __future__ import annotations

from collections.abc import Callable

from dscalc.frozen import dataclass
from dscalc.records import ModelShape

# What divides a row, besides context parallelism, which divides the tokens of every row.
HIDDEN = "hidden"  # 1/t under sequence parallelism, else whole
TENSOR = "tensor"  # 1/t
KEY_VALUE = "key-value"  # 1/min(t, g): replicated once t exceeds the key/value heads
ROUTED = "routed"  # routed tokens of the rank: top_k * capacity / t, expert width whole or over etp alike
GATHERED = "routed, gathered over etp"  # routed tokens times etp / t
DIVISORS = (HIDDEN, TENSOR, KEY_VALUE, ROUTED, GATHERED)

COMPONENTS = ("checkpoint", "norms", "attention", "scores", "dropout", "mlp", "router", "experts", "statistics")


@dataclass(frozen=True, slots=True)
class Case:
    """What decides whether a row applies."""

    shape: ModelShape
    unfused: bool
    norm_saved: float
    mlp_saved: float
    rotated_kv_copy: bool
    kv_repeat: bool
    expert_output_saved: bool
    hidden_dropout: bool
    attention_dropout: bool
    scores_bytes: float
    trained: tuple[str, ...] | None = None  # adapter targets; None where every weight trains

    @property
    def norms(self) -> int:
        """Normalisations a layer runs (a non-parametric norm stores no parameters but runs all the same)."""
        return max(self.shape.norms_per_layer, 0 if self.shape.norm != "none" else 2)

    @property
    def python_norm(self) -> bool:
        """RMSNorm written in Python keeps fp32 and 16-bit copies; LayerNorm is one kernel everywhere."""
        return self.norm_saved > 1 and self.shape.norm == "rms"


@dataclass(frozen=True, slots=True)
class Row:
    """One saved tensor of one layer: ``width(case)`` elements per token (per token and key for ``scores``)."""

    name: str
    component: str
    shape: str
    width: Callable[[Case], float]
    element_bytes: float | Callable[[Case], float]
    divisor: str
    when: Callable[[Case], bool] = lambda _: True
    core: bool = False  # inside the attention core: recomputed by selective recompute
    every_second: bool = False  # kept where selective recompute keeps attention and every second matmul output
    layer_kind: str = "both"  # both | dense | moe
    input_of: tuple[str, ...] = ()  # linear layers that need it only for their own weight gradient
    selective_only: bool = False  # exists only because selective recompute stores an operation's output


def _q(c: Case) -> float:
    return float(c.shape.heads * c.shape.head_dim)


def _out(c: Case) -> float:
    return float(c.shape.heads * c.shape.value_head_dim)


def _k(c: Case) -> float:
    return float(c.shape.kv_heads * c.shape.head_dim)


def _v(c: Case) -> float:
    return float(c.shape.kv_heads * c.shape.value_head_dim)


def _plain(c: Case) -> bool:
    return not c.shape.mla


ROWS: tuple[Row, ...] = (
    Row("layer input", "checkpoint", "s b h", lambda c: c.shape.hidden, 2, HIDDEN, core=False, every_second=True),
    # normalisation: inputs (the first one is the layer input), outputs (the inputs of the next linear layers)
    Row("norm inputs after the first", "norms", "s b h", lambda c: c.shape.hidden * (c.norms - 1), 2, HIDDEN),
    Row(
        "norm copies of a Python RMSNorm",
        "norms",
        "s b h",
        lambda c: c.shape.hidden * c.norms,
        4,
        HIDDEN,
        when=lambda c: c.python_norm,
    ),
    Row(
        "input of the query, key and value projections",
        "norms",
        "s b h",
        lambda c: c.shape.hidden,
        2,
        HIDDEN,
        input_of=("q_proj", "k_proj", "v_proj"),
    ),
    Row(
        "input of the MLP",
        "norms",
        "s b h",
        lambda c: c.shape.hidden,
        2,
        HIDDEN,
        input_of=("gate_proj", "up_proj"),
        when=lambda c: c.norms >= 2,
    ),
    Row(
        "query norm input",
        "norms",
        "s b a d_k",
        _q,
        2,
        TENSOR,
        when=lambda c: c.shape.q_norm_elements > 0 and _plain(c),
    ),
    Row(
        "key norm input",
        "norms",
        "s b g d_k",
        _k,
        2,
        KEY_VALUE,
        when=lambda c: c.shape.k_norm_elements > 0 and _plain(c),
    ),
    # attention
    Row("query", "attention", "s b a d_k", _q, 2, TENSOR, every_second=True),
    Row("key", "attention", "s b g d_k", _k, 2, KEY_VALUE, when=lambda c: _plain(c) and not c.kv_repeat),
    Row(
        "value",
        "attention",
        "s b g d_v",
        _v,
        2,
        KEY_VALUE,
        when=lambda c: _plain(c) and not c.kv_repeat,
        every_second=True,
    ),
    Row("key repeated to all heads", "attention", "s b a d_k", _q, 2, TENSOR, when=lambda c: _plain(c) and c.kv_repeat),
    Row(
        "value repeated to all heads",
        "attention",
        "s b a d_v",
        _out,
        2,
        TENSOR,
        when=lambda c: _plain(c) and c.kv_repeat,
    ),
    Row(
        "rotated copy of key and value beside the packed projection",
        "attention",
        "2 s b g d_k",
        lambda c: _k(c) + _v(c),
        2,
        KEY_VALUE,
        when=lambda c: _plain(c) and c.rotated_kv_copy,
    ),
    Row("attention output, input of the out projection", "attention", "s b a d_v", _out, 2, TENSOR, every_second=True),
    # attention output gated by a sigmoid: the gate, its sigmoid, and the product that the out projection reads
    Row(
        "gate, its sigmoid and the gated attention output",
        "attention",
        "3 s b a d_v",
        lambda c: 3.0 * _out(c),
        2,
        TENSOR,
        when=lambda c: c.shape.gated_attention,
    ),
    # multi-head latent attention
    Row(
        "query latent and its norm output",
        "attention",
        "2 s b r_q",
        lambda c: 2.0 * c.shape.q_lora_rank,
        2,
        HIDDEN,
        when=lambda c: c.shape.mla and c.shape.q_lora_rank > 0,
    ),
    Row(
        "key/value latent, its norm output and the rotary key",
        "attention",
        "s b (2 r_kv + d_rope)",
        lambda c: 2.0 * c.shape.kv_lora_rank + c.shape.rope_head_dim,
        2,
        HIDDEN,
        when=lambda c: c.shape.mla,
    ),
    Row(
        "key/value up-projection output",
        "attention",
        "s b a (d_nope + d_v)",
        lambda c: c.shape.heads * (c.shape.head_dim - c.shape.rope_head_dim + c.shape.value_head_dim),
        2,
        TENSOR,
        when=lambda c: c.shape.mla,
        every_second=True,
    ),
    Row("key with its rotary part", "attention", "s b a d_k", _q, 2, TENSOR, when=lambda c: c.shape.mla),
    # attention core without a fused kernel: per token and key
    Row(
        "softmax output",
        "scores",
        "a s s b",
        lambda c: c.shape.heads,
        lambda c: c.scores_bytes,
        TENSOR,
        when=lambda c: c.unfused,
        core=True,
    ),
    Row(
        "softmax dropout mask",
        "scores",
        "a s s b",
        lambda c: c.shape.heads,
        1,
        TENSOR,
        when=lambda c: c.unfused and c.attention_dropout,
        core=True,
    ),
    Row(
        "dropped-out probabilities",
        "scores",
        "a s s b",
        lambda c: c.shape.heads,
        2,
        TENSOR,
        when=lambda c: c.unfused and c.attention_dropout,
        core=True,
    ),
    # dropout on the hidden states
    Row(
        "attention dropout mask",
        "dropout",
        "s b h",
        lambda c: c.shape.hidden,
        1,
        HIDDEN,
        when=lambda c: c.hidden_dropout,
    ),
    Row("MLP dropout mask", "dropout", "s b h", lambda c: c.shape.hidden, 1, HIDDEN, when=lambda c: c.hidden_dropout),
    # dense MLP
    Row(
        "activation input (gate)",
        "mlp",
        "s b f",
        lambda c: c.shape.ffn_hidden,
        2,
        TENSOR,
        layer_kind="dense",
        every_second=True,
    ),
    Row(
        "up projection output",
        "mlp",
        "s b f",
        lambda c: c.shape.ffn_hidden,
        2,
        TENSOR,
        layer_kind="dense",
        when=lambda c: c.shape.gated_mlp,
    ),
    Row(
        "activation of the gate",
        "mlp",
        "s b f",
        lambda c: c.shape.ffn_hidden,
        2,
        TENSOR,
        layer_kind="dense",
        when=lambda c: c.shape.gated_mlp and c.mlp_saved >= 4,
    ),
    Row(
        "input of the down projection",
        "mlp",
        "s b f",
        lambda c: c.shape.ffn_hidden,
        2,
        TENSOR,
        input_of=("down_proj",),
        layer_kind="dense",
    ),
    # mixture of experts
    Row(
        "router logits and probabilities",
        "router",
        "2 s b E",
        lambda c: 2.0 * c.shape.experts,
        4,
        HIDDEN,
        layer_kind="moe",
    ),
    Row(
        "dispatched tokens, input of the experts",
        "experts",
        "k s b h",
        lambda c: c.shape.top_k * c.shape.hidden,
        2,
        GATHERED,
        layer_kind="moe",
    ),
    Row(
        "expert activation input (gate)",
        "experts",
        "k s b f_e",
        lambda c: c.shape.top_k * c.shape.moe_ffn_hidden,
        2,
        ROUTED,
        layer_kind="moe",
        every_second=True,
    ),
    Row(
        "expert up projection output",
        "experts",
        "k s b f_e",
        lambda c: c.shape.top_k * c.shape.moe_ffn_hidden,
        2,
        ROUTED,
        layer_kind="moe",
        when=lambda c: c.shape.gated_mlp,
    ),
    Row(
        "activation of the expert gate",
        "experts",
        "k s b f_e",
        lambda c: c.shape.top_k * c.shape.moe_ffn_hidden,
        2,
        ROUTED,
        layer_kind="moe",
        when=lambda c: c.shape.gated_mlp and c.mlp_saved >= 4,
    ),
    Row(
        "input of the expert down projection",
        "experts",
        "k s b f_e",
        lambda c: c.shape.top_k * c.shape.moe_ffn_hidden,
        2,
        ROUTED,
        input_of=("down_proj",),
        layer_kind="moe",
    ),
    Row(
        "expert outputs weighted by the router",
        "experts",
        "k s b h",
        lambda c: c.shape.top_k * c.shape.hidden,
        2,
        ROUTED,
        when=lambda c: c.expert_output_saved,
        layer_kind="moe",
        every_second=True,
    ),
    Row(
        "shared expert activation input (gate)",
        "mlp",
        "s b f_s",
        lambda c: c.shape.shared_ffn_hidden,
        2,
        TENSOR,
        layer_kind="moe",
        every_second=True,
    ),
    Row(
        "shared expert up projection output",
        "mlp",
        "s b f_s",
        lambda c: c.shape.shared_ffn_hidden,
        2,
        TENSOR,
        layer_kind="moe",
        when=lambda c: c.shape.gated_mlp,
    ),
    Row(
        "activation of the shared expert gate",
        "mlp",
        "s b f_s",
        lambda c: c.shape.shared_ffn_hidden,
        2,
        TENSOR,
        layer_kind="moe",
        when=lambda c: c.shape.gated_mlp and c.mlp_saved >= 4,
    ),
    Row(
        "input of the shared expert down projection",
        "mlp",
        "s b f_s",
        lambda c: c.shape.shared_ffn_hidden,
        2,
        TENSOR,
        input_of=("down_proj",),
        layer_kind="moe",
    ),
    Row(
        "output of the down projection, stored by selective recompute",
        "mlp",
        "s b h",
        lambda c: c.shape.hidden,
        2,
        HIDDEN,
        layer_kind="dense",
        every_second=True,
        selective_only=True,
    ),
    # statistics: small, left out of the published per-layer formulas
    Row(
        "inverse root mean square of the norms",
        "statistics",
        "s b",
        lambda c: c.norms,
        4,
        HIDDEN,
        when=lambda c: not c.python_norm,
    ),
    Row(
        "log-sum-exp of the attention core",
        "statistics",
        "s b a",
        lambda c: c.shape.heads,
        4,
        TENSOR,
        when=lambda c: not c.unfused,
        every_second=True,
    ),
)
