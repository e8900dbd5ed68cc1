"""The activation ledger against published per-layer formulas and against sums written out by hand.

Unit of the hand-written sums: u = 2 s b h bytes, one 16-bit hidden tensor; the formulas of Korthikanti et al. 2022
leave out the small ``statistics`` (inverse root mean squares, log-sum-exps), and so do the comparisons with them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dscalc.cost import activations, ledger
from dscalc.cost.activations import full_recompute_layers, layer_bytes, saved
from dscalc.cost.placement import StageKinds
from dscalc.records import Adapters, Books, ModelShape
from tests.cost.helpers import (
    DEEPSEEK_V3,
    GEMMA_2_9B,
    LLAMA_2_7B,
    LLAMA_3_8B,
    MIXTRAL_8X7B,
    QWEN3_8B,
    books,
    gpt,
    layouts,
)

GPT_KERNELS = books(hidden_dropout=1, attention_dropout=1, scores_bytes=2, mlp_saved=3)
FUSED = books()
EAGER = books(norm_saved=3, mlp_saved=4)
REPEATING = books(norm_saved=3, mlp_saved=4, kv_repeat=1)
IN_PLACE_ROTARY = books(mlp_saved=4, rotated_kv_copy=1)
CHOOSING = books(every_second_matmul=1)


def layer(
    shape: ModelShape,
    the_books: Books,
    kind: str = "dense",
    statistics: bool = True,
    adapters: Adapters | None = None,
    **given: object,
) -> float:
    """Bytes one layer keeps for one micro-batch on one rank: a stage of one layer, one micro-batch in flight."""
    layout = layouts(the_books, **given)
    one, none = np.ones((1, 1)), np.zeros((1, 1))
    stage = StageKinds(
        index=none,
        layers=one,
        moe_layers=one if kind == "moe" else none,
        has_embedding=none,
        has_head=none,
        outer_layers=one,
    )
    kept = one - full_recompute_layers(layout, stage)
    leaves = saved(shape, layer_bytes(shape, layout, adapters), layout, stage, kept, one)
    return sum(float(a[0, 0]) for spec, a in leaves if statistics or spec.path != "activations/statistics")


# --- Korthikanti et al. 2022, "Reducing Activation Recomputation in Large Transformer Models" ---

degrees = st.sampled_from([1, 2, 4, 8])


@settings(max_examples=60)
@given(
    t=degrees,
    heads_over_t=st.integers(1, 16),
    d_k=st.sampled_from([32, 64, 80, 128]),
    s_over_t=st.integers(1, 512),
    b=st.integers(1, 16),
)
def test_korthikanti(t: int, heads_over_t: int, d_k: int, s_over_t: int, b: int) -> None:
    a, s = t * heads_over_t, t * s_over_t
    h = a * d_k
    shape = gpt(hidden=h, heads=a)

    def kept(t: int = 1, sp: int = 0, recompute: str = "none") -> float:
        return layer(
            shape,
            GPT_KERNELS,
            statistics=False,
            tp=t,
            sequence_parallel=sp,
            seq_len=s,
            micro_batch=b,
            recompute=recompute,
            attention="unfused",
        )

    sbh = s * b * h
    assert kept() == pytest.approx(sbh * (34 + 5 * a * s / h), rel=1e-12)  # equation 1
    assert kept(t) == pytest.approx(sbh * (10 + 24 / t + 5 * a * s / (h * t)), rel=1e-12)  # equation 2
    assert kept(t, 1) == pytest.approx(sbh / t * (34 + 5 * a * s / h), rel=1e-12)  # equation 4
    assert kept(t, 1, "selective") == pytest.approx(34 * sbh / t, rel=1e-12)  # equation 6
    assert kept(t, 0, "selective") == pytest.approx(sbh * (10 + 24 / t), rel=1e-12)  # table 2
    assert kept(t, 0, "full") == pytest.approx(2 * sbh, rel=1e-12)  # table 2
    assert kept(t, 1, "full") == pytest.approx(2 * sbh / t, rel=1e-12)  # divided where the input is sharded


def test_gpt_3_attention_part_is_eighty() -> None:
    """Korthikanti et al. 2022, section 5: for GPT-3 (a = 96, s = 2048, h = 12288), 5as/h = 80: 70 % of the layer."""
    shape = gpt(96, 12288, 96, 50257)
    whole = layer(shape, GPT_KERNELS, statistics=False, seq_len=2048, attention="unfused")
    left = layer(shape, GPT_KERNELS, statistics=False, seq_len=2048, attention="unfused", recompute="selective")
    assert whole / (2048 * 12288) == pytest.approx(34 + 80, rel=1e-12)
    assert 1 - left / whole == pytest.approx(0.70, abs=0.005)


def test_mt_nlg_attention_part_is_sixty_four() -> None:
    """The same section: MT-NLG (a = 128, s = 2048, h = 20480), 5as/h = 64: 65 % of the layer."""
    shape = gpt(105, 20480, 128, 50257)
    whole = layer(shape, GPT_KERNELS, statistics=False, seq_len=2048, attention="unfused")
    left = layer(shape, GPT_KERNELS, statistics=False, seq_len=2048, attention="unfused", recompute="selective")
    assert whole / (2048 * 20480) == pytest.approx(34 + 64, rel=1e-12)
    assert 1 - left / whole == pytest.approx(0.65, abs=0.005)


# --- blocks counted storage by storage: what autograd keeps of each operation ---
# s = 4096, b = 1; a = 32, h = 4096 unless said otherwise, so u = 2 * 4096 * 4096.

S = 4096
U = 2 * S * 4096


def llama_2_fused() -> float:
    # norm inputs 2, linear inputs behind the norms 2, q, k, v, out 4, gate, up, product 3 f/h: 8 + 3 f/h;
    # 1/rms of two norms, 4 bytes a token each; log-sum-exp, 4 bytes a token and head
    return (8 + 3 * 11008 / 4096) * U + 2 * 4 * S + 32 * 4 * S


def llama_3_fused() -> float:
    # key and value are a quarter wide: 32 heads, 8 key/value heads: 8 - 2 (1 - 1/4)
    return (6.5 + 3 * 14336 / 4096) * U + 2 * 4 * S + 32 * 4 * S


def llama_2_eager() -> float:
    # RMSNorm in Python: fp32 copy 2 + normalised 1 each, the linear inputs 2, q, k, v, out 4; gate, silu(gate), up,
    # product: 12 + 4 f/h; no separate 1/rms rows, log-sum-exp as above
    return (12 + 4 * 11008 / 4096) * U + 32 * 4 * S


def llama_3_eager_repeating() -> float:
    # key and value are repeated to all heads before attention: full width again
    return (12 + 4 * 14336 / 4096) * U + 32 * 4 * S


def llama_2_nanotron() -> float:
    # norm inputs 2, outputs 2, packed qkv 3, rotated k and v 2, out 1, MLP 4 f/h: 10 + 4 f/h
    return (10 + 4 * 11008 / 4096) * U + 2 * 4 * S + 32 * 4 * S


def llama_3_torchtitan_selective() -> float:
    # kept: layer input 1; of the matrix products q, k, v, out, gate, up, down every second one from the first: q 1,
    # v 1/4, gate f/h, down 1; attention output 1 and its log-sum-exp
    return (1 + 1 + 1 / 4 + 14336 / 4096 + 1 + 1) * U + 32 * 4 * S


def qwen_3() -> float:
    # Llama-3 plus the inputs of the query and key norms, 1 and 1/4
    return (6.5 + 1 + 1 / 4 + 3 * 12288 / 4096) * U + 2 * 4 * S + 32 * 4 * S


def gemma_2() -> float:
    # four norm inputs, two linear inputs (the other two norms feed the residual sum): 6 h = 3584;
    # q and out 16 heads of 256 = 4096 each, k and v 8 heads of 256 = 2048 each; gate, up, product 14336 each
    return 2 * S * (6 * 3584 + 2 * 4096 + 2 * 2048 + 3 * 14336) + 4 * 4 * S + 16 * 4 * S


def mixtral() -> float:
    # attention part as Llama-3: 6.5; router logits and probabilities fp32 over 8 experts; each token twice: expert
    # input, gate, up, product, output
    return (6.5 + 2 * (1 + 3 * 14336 / 4096 + 1)) * U + 2 * 8 * 4 * S + 2 * 4 * S + 32 * 4 * S


def deepseek_v3(mlp: float) -> float:
    # h = 7168: two norm inputs, two linear inputs; latents with their norm outputs: query 2 * 1536, key/value 2 *
    # 512 + rotary key 64; up-projected k_nope and v 128 * (128 + 128); q and k with rotary parts 128 * 192 each;
    # attention output 128 * 128
    attention = 4 * 7168 + 2 * 1536 + 2 * 512 + 64 + 128 * 256 + 2 * 128 * 192 + 128 * 128
    return 2 * S * attention + mlp + 2 * 4 * S + 128 * 4 * S


def deepseek_v3_dense() -> float:
    return deepseek_v3(2 * S * 3 * 18432)


def deepseek_v3_experts() -> float:
    # 8 of 256 experts of 2048, one shared expert of 2048; router fp32 logits and probabilities
    return deepseek_v3(2 * S * (8 * (2 * 7168 + 3 * 2048) + 3 * 2048) + 2 * 256 * 4 * S)


def deepseek_v3_experts_eager_mlp() -> float:
    # silu(gate) kept too, in each expert and in the shared one
    return deepseek_v3(2 * S * (8 * (2 * 7168 + 4 * 2048) + 4 * 2048) + 2 * 256 * 4 * S)


def gpt_with_dropout() -> float:
    # Korthikanti et al. 2022, equation 1, plus 4 bytes a token for each of two norms (its log-sum-exp does not
    # exist: unfused)
    return S * 4096 * (34 + 5 * 32 * S / 4096) + 2 * 4 * S


def gated_attention() -> float:
    """Llama-2 fused with a sigmoid gate on the attention output: gate, sigmoid(gate) and product are 3 u more."""
    return llama_2_fused() + 3 * U


EAGER_MLP = books(mlp_saved=4)
LEDGERS: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
    "GPT with dropout, unfused": (gpt_with_dropout, lambda: layer(gpt(32, 4096, 32), GPT_KERNELS, attention="unfused")),
    "Llama-2 fused": (llama_2_fused, lambda: layer(LLAMA_2_7B, FUSED)),
    "Llama-3 fused": (llama_3_fused, lambda: layer(LLAMA_3_8B, FUSED)),
    "Llama-2 eager": (llama_2_eager, lambda: layer(LLAMA_2_7B, EAGER)),
    "Llama-3 eager, kv repeated": (llama_3_eager_repeating, lambda: layer(LLAMA_3_8B, REPEATING)),
    "Llama-2 nanotron": (llama_2_nanotron, lambda: layer(LLAMA_2_7B, IN_PLACE_ROTARY)),
    "Llama-3 torchtitan selective": (
        llama_3_torchtitan_selective,
        lambda: layer(LLAMA_3_8B, CHOOSING, recompute="selective"),
    ),
    "Llama-2 with a gated attention output": (
        gated_attention,
        lambda: layer(replace(LLAMA_2_7B, gated_attention=True), FUSED),
    ),
    "Qwen3": (qwen_3, lambda: layer(QWEN3_8B, FUSED)),
    "Gemma-2": (gemma_2, lambda: layer(GEMMA_2_9B, FUSED)),
    "Mixtral": (mixtral, lambda: layer(MIXTRAL_8X7B, FUSED, "moe")),
    "DeepSeek-V3 dense layer": (deepseek_v3_dense, lambda: layer(DEEPSEEK_V3, FUSED)),
    "DeepSeek-V3 expert layer": (deepseek_v3_experts, lambda: layer(DEEPSEEK_V3, FUSED, "moe")),
    "DeepSeek-V3 expert layer, eager MLP": (
        deepseek_v3_experts_eager_mlp,
        lambda: layer(DEEPSEEK_V3, EAGER_MLP, "moe"),
    ),
}


@pytest.mark.parametrize("name", LEDGERS)
def test_block_written_out_by_hand(name: str) -> None:
    expected, got = LEDGERS[name]
    assert got() == pytest.approx(expected(), rel=1e-12)


def forget() -> None:
    """Empty every cache of the ledger, so that changed rows are read."""
    for module in (ledger, activations):
        for value in vars(module).values():
            if hasattr(value, "cache_clear"):
                value.cache_clear()


@pytest.mark.parametrize("row", ledger.ROWS, ids=lambda row: row.name)
def test_no_row_can_go_missing(row: ledger.Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any one row, at least one hand-written sum no longer agrees."""
    forget()
    monkeypatch.setattr(ledger, "ROWS", tuple(r for r in ledger.ROWS if r is not row))
    try:
        wrong = [name for name, (expected, got) in LEDGERS.items() if got() != pytest.approx(expected(), rel=1e-12)]
    finally:
        forget()
    assert wrong, f"no sum notices that {row.name!r} is gone"


def test_expert_outputs_may_be_left_out() -> None:
    """Where the router's weights are applied before the down projection, the experts' outputs need not be kept: k u
    less.
    """
    lean = books(expert_output_saved=0)
    assert layer(MIXTRAL_8X7B, FUSED, "moe") - layer(MIXTRAL_8X7B, lean, "moe") == pytest.approx(2 * U, rel=1e-12)


def test_frozen_linear_layers_keep_their_input_only_for_an_adapter() -> None:
    """A weight that does not train needs no input for its gradient; q, k, v and the norms' own inputs stay.

    Adapters on q and v: the input of the MLP (1 u) and of the down projection (f/h u) go. Without any adapter inside
    the block the input of q, k and v goes too.
    """
    whole = layer(LLAMA_2_7B, FUSED)
    attention = layer(LLAMA_2_7B, FUSED, adapters=Adapters(8, ("q_proj", "v_proj"), 2.0))
    assert whole - attention == pytest.approx((1 + 11008 / 4096) * U, rel=1e-12)
    everything = Adapters(8, ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), 2.0)
    assert layer(LLAMA_2_7B, FUSED, adapters=everything) == whole
    head = layer(LLAMA_2_7B, FUSED, adapters=Adapters(8, ("lm_head",), 2.0))
    assert whole - head == pytest.approx((2 + 11008 / 4096) * U, rel=1e-12)


# --- what divides what ---


@pytest.mark.parametrize("c", [1, 2, 4])
@pytest.mark.parametrize(("t", "kv"), [(1, 1), (2, 2), (8, 8), (16, 8), (32, 8)])
def test_tensor_parallel_llama_3(t: int, kv: int, c: int) -> None:
    """Everything over c; tensor-parallel rows over t; key and value over at most the 8 key/value heads, replicated
    beyond.
    """
    got = layer(LLAMA_3_8B, FUSED, tp=t, cp=c)
    whole = (4 + 2 / t + 2 * (1 / 4) / kv + 3 * 14336 / 4096 / t) * U + 2 * 4 * S + 32 * 4 * S / t
    assert got == pytest.approx(whole / c, rel=1e-12)
    sharded = ((4 + 2) / t + 2 * (1 / 4) / kv + 3 * 14336 / 4096 / t) * U + 2 * 4 * S / t + 32 * 4 * S / t
    assert layer(LLAMA_3_8B, FUSED, tp=t, cp=c, sequence_parallel=1) == pytest.approx(sharded / c, rel=1e-12)


def test_expert_rows_follow_routed_tokens() -> None:
    """Balanced routing: a rank of t ranks receives T k / t tokens; inside an expert-tensor group every rank sees its
    peers' too.

    Mixtral, t = 4: expert input k u etp / t, expert-wide tensors k f_e/h u / t (etp times the tokens, 1/etp of the
    width),
    output k u / t; capacity pads all of them.
    """
    both = layer(MIXTRAL_8X7B, FUSED, "moe", tp=4, sequence_parallel=1)
    dense = layer(replace(MIXTRAL_8X7B, ffn_hidden=0), FUSED, "dense", tp=4, sequence_parallel=1)
    router = 2 * 8 * 4 * S / 4
    assert both - dense == pytest.approx(2 * (1 + 3 * 3.5 + 1) * U / 4 + router, rel=1e-12)
    padded = layer(MIXTRAL_8X7B, FUSED, "moe", tp=4, sequence_parallel=1, capacity_factor=1.25)
    assert padded - dense == pytest.approx(1.25 * 2 * (1 + 3 * 3.5 + 1) * U / 4 + router, rel=1e-12)
    joined = layer(MIXTRAL_8X7B, FUSED, "moe", tp=4, sequence_parallel=1, etp=4)
    assert joined - dense == pytest.approx(2 * (4 + 3 * 3.5 + 1) * U / 4 + router, rel=1e-12)


def test_attention_scores_without_dropout() -> None:
    """Softmax in fp32: fp32 probabilities and their 16-bit copy, 6 bytes a score; no log-sum-exp is kept then."""
    plain = books(scores_bytes=6)
    flash = layer(LLAMA_2_7B, plain)
    unfused = layer(LLAMA_2_7B, plain, attention="unfused")
    assert unfused - flash == pytest.approx(6 * 32 * S * S - 32 * 4 * S, rel=1e-12)


def test_one_norm_a_layer_feeds_both_branches() -> None:
    """Parallel attention and MLP (Falcon-7B) share one norm: one norm input, one linear input, 6 u + 3 f/h."""
    shape = replace(LLAMA_2_7B, norms_per_layer=1)
    assert layer(shape, FUSED) == pytest.approx((6 + 3 * 11008 / 4096) * U + 4 * S + 32 * 4 * S, rel=1e-12)
