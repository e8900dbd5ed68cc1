"""The step: closed forms of an ideal machine, terms that add up, one row as many."""

from __future__ import annotations

from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dscalc.cost.conventions import NAMES, model_flop
from dscalc.cost.exchange import exchange, once
from dscalc.cost.inventory import inventory, part_instances
from dscalc.cost.layer_time import soft_maximum
from dscalc.cost.operations import works
from dscalc.cost.step import Step, step
from dscalc.records import Engine, Layouts, ModelShape, PaceConstants, PaceTable, Timing
from dscalc.specs.network import compose_network, load_interconnect, plain_network
from dscalc.specs.pace import engine, pace_constants, pace_table
from dscalc.specs.stack import stack_names
from dscalc.specs.store import load_gpu
from tests.cost.helpers import DEEPSEEK_V3, LLAMA_2_7B, LLAMA_3_8B, MIXTRAL_8X7B, gpt, layouts, rows

PEAK, RATE = 1e15, 5e10
H100 = load_gpu("H100-SXM5-80GB").spec
NETWORK = compose_network(H100, 8, load_interconnect("ib-ndr").spec, nics_per_node=8).network
TIMING = Timing(engine(H100, "bf16")[0], pace_table(), pace_constants(), NETWORK)


def ideal_engine(**changed: float) -> Engine:
    values = dict.fromkeys((f.name for f in fields(Engine)), 1.0)
    values |= {"peak_flop_per_s": PEAK, "nominal_flop_per_s": PEAK, "memory_bytes_per_s": np.inf, **changed}
    columns = {name: np.asarray([value]) for name, value in values.items() if name != "generation"}
    return Engine(**columns, generation=np.zeros(1, dtype=np.intp))


def ideal_pace() -> tuple[PaceTable, PaceConstants]:
    """Nothing overlaps, nothing is launched, nothing waits."""
    count = len(stack_names())
    ones = (
        "tp_exposed",
        "dp_exposed",
        "dp_exposed_sharded",
        "dp_exposed_pipeline",
        "pp_exposed",
        "ep_exposed",
        "overlap_power",
        "gather_slowdown",
    )
    columns = {
        f.name: np.full(count, 1.0 if f.name in ones else 0.0)
        for f in fields(PaceTable)
        if f.name not in ("names", "flash_fraction")
    }
    table = PaceTable(names=stack_names(), flash_fraction=np.full((count, 5), np.nan), **columns)
    constants = {f.name: 0.0 for f in fields(PaceConstants)}
    constants |= {
        "aligned_to": 1.0,
        "unfused_fraction": 1.0,
        "unaligned_slowdown": 1.0,
        "expert_slowdown": 1.0,
        "floor_power": 6.0,
    }
    return table, PaceConstants(**constants)


def real(shape: ModelShape, layout: Layouts) -> Step:
    return step(shape, layout, TIMING)


def matmul_parameters(shape: ModelShape) -> int:
    times = part_instances(shape)
    matrices = (t for t in inventory(shape) if t.matrix or t.part == "head")
    return sum(t.elements * times[t.part] for t in matrices)


@pytest.mark.parametrize("shape", [LLAMA_2_7B, LLAMA_3_8B])
@pytest.mark.parametrize("dp", [1, 8, 64])
def test_ideal_machine_gives_the_closed_forms(shape: ModelShape, dp: int) -> None:
    """6 N D / P and 2(K-1)/K N b_r / BW, one after the other; the attention core apart (infinitely fast here)."""
    layout = layouts(dp=dp, micro_batch=2, n_micro=4, seq_len=2048, recipe="bf16-mixed")
    found = step(shape, layout, Timing(ideal_engine(flash_fraction=np.inf), *ideal_pace(), plain_network(RATE)))
    tokens = 2048.0 * 2 * 4
    compute = 6.0 * matmul_parameters(shape) * tokens / PEAK
    stored = sum(t.elements * part_instances(shape)[t.part] for t in inventory(shape))
    sent = 2.0 * (dp - 1) / dp * stored * 2.0 / RATE
    assert found.step_time_s[0] == pytest.approx(compute + sent, rel=1e-9)


def test_full_recompute_is_a_third_more_of_the_layers() -> None:
    plain = layouts(seq_len=2048)
    again = layouts(seq_len=2048, recompute="full")
    timing = Timing(ideal_engine(flash_fraction=np.inf), *ideal_pace(), plain_network(RATE))
    head = 6.0 * 2048 * LLAMA_2_7B.vocab * LLAMA_2_7B.hidden / PEAK
    first, second = (float(step(LLAMA_2_7B, x, timing).step_time_s[0]) for x in (plain, again))
    assert second - head == pytest.approx((first - head) * 4.0 / 3.0, rel=1e-9)


def test_attention_runs_half_the_square_forward_and_two_and_a_half_of_it_backward() -> None:
    layout = layouts(seq_len=4096, micro_batch=1)
    core = next(w for w in works(LLAMA_2_7B, layout) if w.operation.name == "attention_core")
    assert core.forward_flop[0] == 2.0 * 4096 * 4096 * 4096
    assert core.backward_flop[0] == 2.5 * core.forward_flop[0]


def test_flop_of_the_layers_are_two_a_matmul_parameter() -> None:
    """Dense and with experts: what a token uses, divided over tensor ranks."""
    for shape, active in ((LLAMA_3_8B, 1.0), (MIXTRAL_8X7B, 2.0 / 8.0)):
        for tp in (1, 4):
            layout = layouts(tp=tp, seq_len=1024, sequence_parallel=1)
            counted = sum(
                float(w.forward_flop[0])
                for w in works(shape, layout)
                if w.operation.kind in ("linear", "product", "expert") and w.operation.part != "head"
            )
            wanted = sum(
                t.elements * (active if t.split == "expert" else 1.0)
                for t in inventory(shape)
                if t.matrix
                and t.part in ("layer", "dense_mlp", "moe_mlp")
                and (t.part != "dense_mlp" or not shape.experts)
            )
            assert counted == pytest.approx(2.0 * 1024 * wanted / tp, rel=1e-12)


def test_conventions_agree_with_their_papers() -> None:
    """Narayanan et al. 2021, table 1, 1.7 B: 137 TFLOP/s on 32 GPUs at 512 sequences makes 3.53 s a step."""
    shape = gpt(24, 2304, 24, 51200)
    layout = layouts(dp=32, micro_batch=16, seq_len=2048)
    assert model_flop("megatron-2021", shape, layout)[0] / 3.528 == pytest.approx(137e12, rel=0.005)
    found = {name: float(model_flop(name, shape, layout)[0]) for name in NAMES}
    again = 24 * 16 * 2048 * 24 * 2304.0**2 * (1 + 2048 / (6 * 2304))  # a forward of the layers, not of the head
    assert found["megatron-2021"] - found["megatron-2022"] == pytest.approx(again, rel=1e-9)
    assert found["6n"] < found["palm"]


# --- properties ---
CASES = st.fixed_dictionaries(
    {
        "dp": st.sampled_from([1, 2, 8]),
        "tp": st.sampled_from([1, 2, 8]),
        "pp": st.sampled_from([1, 2, 4]),
        "n_micro": st.sampled_from([4, 8, 32]),
        "micro_batch": st.sampled_from([1, 4]),
        "zero": st.sampled_from([0, 1, 2, 3]),
        "seq_len": st.sampled_from([2048, 8192]),
        "recompute": st.sampled_from(["none", "selective", "full"]),
        "attention": st.sampled_from(["flash", "unfused"]),
        "stack": st.sampled_from(list(stack_names())),
        "schedule": st.sampled_from(["1f1b", "interleaved", "gpipe", "zb-h1", "dualpipe"]),
        "sequence_parallel": st.sampled_from([0, 1]),
    }
)


@settings(max_examples=40)
@given(given_=st.lists(CASES, min_size=1, max_size=4), shape=st.sampled_from([LLAMA_3_8B, MIXTRAL_8X7B, DEEPSEEK_V3]))
def test_terms_add_up_and_the_bracket_holds(given_: list[dict[str, object]], shape: ModelShape) -> None:
    layout = layouts(**{name: [case[name] for case in given_] for name in given_[0]})
    found = real(shape, layout)
    total = 0.0 * found.step_time_s
    for leaf in found.terms:
        assert (leaf.exposed_s >= 0.0).all(), leaf.spec.path
        assert (leaf.busy_s >= leaf.exposed_s * (1 - 1e-12)).all(), leaf.spec.path
        total = total + leaf.exposed_s
    assert total.tolist() == found.step_time_s.tolist()
    assert (found.lower_s <= found.step_time_s).all()
    assert (found.step_time_s <= found.upper_s).all()
    assert np.isfinite(found.step_time_s).all()


@settings(max_examples=25)
@given(given_=st.lists(CASES, min_size=2, max_size=6), seed=st.integers(0, 100))
def test_each_row_is_what_it_is_alone(given_: list[dict[str, object]], seed: int) -> None:
    layout = layouts(**{name: [case[name] for case in given_] for name in given_[0]})
    whole = real(LLAMA_3_8B, layout)
    order = np.random.default_rng(seed).permutation(len(given_))
    mixed = real(LLAMA_3_8B, rows(layout, order))
    assert mixed.step_time_s.tolist() == whole.step_time_s[order].tolist()
    for at in range(len(given_)):
        alone = real(LLAMA_3_8B, rows(layout, np.asarray([at])))
        assert alone.step_time_s[0] == whole.step_time_s[at]


@settings(max_examples=25)
@given(case=CASES)
def test_a_faster_gpu_or_network_never_makes_a_step_longer(case: dict[str, object]) -> None:
    layout = layouts(**case)
    machine = engine(H100, "bf16")[0]
    usual = real(LLAMA_3_8B, layout).step_time_s[0]
    quick = replace(
        machine, peak_flop_per_s=2.0 * machine.peak_flop_per_s, memory_bytes_per_s=2.0 * machine.memory_bytes_per_s
    )
    assert step(LLAMA_3_8B, layout, replace(TIMING, engine=quick)).step_time_s[0] <= usual * (1 + 1e-12)
    tiers = tuple(replace(t, bandwidth_bytes_per_s=2.0 * t.bandwidth_bytes_per_s) for t in NETWORK.tiers)
    wide = step(LLAMA_3_8B, layout, Timing(machine, pace_table(), pace_constants(), replace(NETWORK, tiers=tiers)))
    assert wide.step_time_s[0] <= usual * (1 + 1e-12)


def test_one_gpu_talks_to_nobody() -> None:
    found = real(LLAMA_3_8B, layouts(n_micro=2))
    sent = {leaf.spec.path: leaf.busy_s[0] for leaf in found.terms if leaf.spec.path.startswith("communication/")}
    assert set(sent.values()) == {0.0}
    assert exchange(LLAMA_3_8B, layouts(), NETWORK).step.dp_s[0] == 0.0


@pytest.mark.parametrize("power", [1.0, 2.0, 6.0])
def test_soft_maximum(power: float) -> None:
    first, second = np.asarray([3.0, 0.0, 1e-9]), np.asarray([4.0, 2.0, 1.0])
    found = soft_maximum(first, second, power)
    assert found.tolist() == pytest.approx(((first**power + second**power) ** (1.0 / power)).tolist())
    assert soft_maximum(np.zeros(1), np.zeros(1), power)[0] == 0.0


# --- layers with experts ---
def test_weights_of_experts_are_read_and_their_gradients_written_each_micro_batch() -> None:
    """Mixtral-8x7B on 8 ranks: one expert of 3 * 4096 * 14336 weights a layer, six passes of two bytes at 1 TB/s."""
    table, plain = ideal_pace()
    layout = layouts(dp=8, ep=8, seq_len=1024, n_micro=3)
    machine = ideal_engine(flash_fraction=np.inf, memory_bytes_per_s=1e12)
    passes = replace(plain, expert_weight_passes=6.0)
    without, found = (
        step(MIXTRAL_8X7B, layout, Timing(machine, table, constants, plain_network(RATE))).step_time_s[0]
        for constants in (plain, passes)
    )
    assert found - without == pytest.approx(3 * 32 * 6.0 * 2.0 * 3 * 4096 * 14336 / 1e12, rel=1e-9)


def test_every_expert_of_a_rank_costs_launches_that_nothing_hides() -> None:
    """DeepSeek-V3 has 58 layers of 256 experts: 32 of them on one of 8 ranks, 8 on one of 32."""
    table, constants = ideal_pace()
    gaps = replace(table, host_expert_s=np.full(len(table.names), 1e-3))
    for ep, local in ((8, 32), (32, 8)):
        layout = layouts(dp=32, ep=ep, seq_len=1024, n_micro=2)
        without, found = (
            step(DEEPSEEK_V3, layout, Timing(ideal_engine(), pace, constants, plain_network(RATE))).step_time_s[0]
            for pace in (table, gaps)
        )
        assert found - without == pytest.approx(2 * 58 * local * 1e-3, rel=1e-9)


def test_a_layer_with_experts_is_no_faster_than_its_launches() -> None:
    """Whatever the precision: 3 dense layers of 2 ms, 58 with experts of 9 ms, and nothing to compute."""
    table, constants = ideal_pace()
    columns = {"host_layer_s": 2e-3, "host_layer_low_s": 2e-3, "host_moe_layer_s": 9e-3}
    host = replace(table, **{name: np.full(len(table.names), value) for name, value in columns.items()})
    machine = ideal_engine(flash_fraction=np.inf, peak_flop_per_s=1e30)
    found = step(DEEPSEEK_V3, layouts(seq_len=1), Timing(machine, host, constants, plain_network(RATE)))
    waits = {leaf.spec.path: leaf.exposed_s[0] for leaf in found.terms}["overhead/host"]
    assert waits == pytest.approx(3 * 2e-3 + 58 * 9e-3, rel=1e-6)


@pytest.mark.parametrize(("domains", "ep"), [(1, 8), (4, 32), (8, 64)])
def test_a_token_goes_once_to_each_place_that_has_one_of_its_experts(domains: int, ep: int) -> None:
    """Against drawing: 20,000 tokens with 8 of 256 experts each, places counted."""
    places = domains if domains > 1 else ep
    generator = np.random.default_rng(7)
    drawn = np.argpartition(generator.random((20_000, 256)), 8, axis=1)[:, :8] // (256 // places)
    held = np.mean([len(set(row)) for row in drawn.tolist()])
    layout = layouts(dp=64, ep=ep, stack=["megatron-deepep", "megatron"])
    share = once(DEEPSEEK_V3, layout, np.full(2, float(domains)))
    assert share[0] == pytest.approx(held / 8.0, rel=0.02)
    assert share[1] == 1.0


def test_dispatch_between_nodes_is_that_much_shorter() -> None:
    """Four nodes, 8 experts a token: 4 (1 - (3/4)^8) = 3.6 copies instead of 8."""
    layout = layouts(dp=32, ep=32, seq_len=4096, stack=["megatron", "megatron-deepep"])
    plain, short = exchange(DEEPSEEK_V3, layout, NETWORK).micro_batch.ep_layer_s
    assert short / plain == pytest.approx(4.0 * (1.0 - 0.75**8) / 8.0, rel=1e-12)
