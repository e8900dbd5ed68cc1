"""What must hold of the ratio for any numbers: N cancels, levers pull their way, the exact form nears the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dscalc.cost import ratio as formulas
from dscalc.cost.inventory import parameter_counts
from dscalc.cost.ratio_layout import Traffic, Work, compute_stages, traffic_stages
from dscalc.records import Adapters
from tests.cost.helpers import DEEPSEEK_V3, LLAMA_3_8B, MIXTRAL_8X7B, gpt

POSITIVE = st.floats(1e-3, 1e3)
Columns = np.ndarray[Any, np.dtype[np.float64]]


def column(value: float) -> Columns:
    return np.array([float(value)])


@st.composite
def numbers(draw: st.DrawFn) -> dict[str, Columns]:
    """Plausible rates and batches, columns of one row."""
    return {
        "tokens": column(draw(st.integers(1, 10**8))),
        "flop_per_s": column(draw(POSITIVE) * 1e12),
        "bandwidth_bytes_per_s": column(draw(POSITIVE) * 1e9),
        "gradient_bytes": column(draw(st.sampled_from([1.0, 2.0, 4.0]))),
    }


RANKS = st.integers(2, 10**6).map(column)


@given(numbers(), st.floats(1e6, 1e13).map(column), RANKS)
def test_the_parameters_cancel(given_: dict[str, Columns], params: Columns, ranks: Columns) -> None:
    tokens, rate = given_["tokens"], given_["flop_per_s"]
    link, width = given_["bandwidth_bytes_per_s"], given_["gradient_bytes"]
    compute = formulas.compute_s(params, tokens, rate)
    many = formulas.communication_s(params, 2.0 * width, link, column(np.inf))
    here = formulas.communication_s(params, 2.0 * width, link, ranks)
    asymptotic = formulas.ratio(**given_)
    assert compute / many == pytest.approx(asymptotic, rel=1e-12)
    assert compute / here == pytest.approx(formulas.exact_ratio(asymptotic, ranks), rel=1e-12)


@given(numbers(), st.sampled_from(["tokens", "bandwidth_bytes_per_s", "flop_per_s", "gradient_bytes"]))
def test_each_lever_pulls_in_proportion(given_: dict[str, Columns], lever: str) -> None:
    twice = {**given_, lever: 2.0 * given_[lever]}
    factor = 2.0 if lever in ("tokens", "bandwidth_bytes_per_s") else 0.5
    assert formulas.ratio(**twice) == pytest.approx(factor * formulas.ratio(**given_), rel=1e-12)


@given(numbers())
def test_the_ratio_is_one_at_the_break_even(given_: dict[str, Columns]) -> None:
    rest = {name: value for name, value in given_.items() if name != "tokens"}
    assert formulas.ratio(formulas.break_even_tokens(**rest), **rest) == pytest.approx(1.0, rel=1e-12)


@given(numbers(), st.integers(1, 8).map(column))
def test_the_largest_useful_ranks_break_even(given_: dict[str, Columns], context: Columns) -> None:
    """A batch of G tokens among K* ranks leaves D*; with the ring's (K - 1)/K the exact K* does."""
    rest = {name: value for name, value in given_.items() if name != "tokens"}
    even = context * formulas.break_even_tokens(**rest)
    batch = 1e3 * even
    many = formulas.max_useful_ranks(batch, even)
    assert formulas.ratio(batch / many / context, **rest) == pytest.approx(1.0, rel=1e-12)
    exact = formulas.exact_max_useful_ranks(batch, even, context)
    there = formulas.ratio(batch / exact / context, **rest)
    assert formulas.exact_ratio(there, exact * context) == pytest.approx(1.0, rel=1e-9)


@given(numbers())
def test_the_exact_ratio_falls_to_the_asymptotic_one(given_: dict[str, Columns]) -> None:
    asymptotic = formulas.ratio(**given_)
    sizes = np.array([2.0, 3.0, 8.0, 64.0, 1e4, 1e9])
    exact = formulas.exact_ratio(asymptotic, sizes)
    assert np.all(np.diff(exact) < 0.0)
    assert np.all(exact > asymptotic)
    assert exact[-1] == pytest.approx(asymptotic[0], rel=1e-8)
    assert np.isinf(formulas.exact_ratio(asymptotic, column(1.0)))[0]
    assert formulas.exact_ratio(asymptotic, column(np.inf)) == pytest.approx(asymptotic, rel=1e-15)


@given(numbers(), st.floats(1.0, 4.0).map(column))
def test_sharding_breaks_even_where_its_times_meet(given_: dict[str, Columns], weight: Columns) -> None:
    rate, link, width = given_["flop_per_s"], given_["bandwidth_bytes_per_s"], given_["gradient_bytes"]
    tokens = formulas.sharded_break_even_tokens(rate, link, weight, width)
    zero, one, none = column(3.0), column(1.0), column(0.0)
    wire = formulas.step_wire_bytes(zero, one, weight, width, one, none)
    compute = formulas.compute_s(column(1e9), tokens, rate)
    assert compute == pytest.approx(formulas.communication_s(column(1e9), wire, link, column(np.inf)), rel=1e-12)


@given(st.integers(1, 1000).map(column), st.floats(0.5, 4.0).map(column), st.floats(0.5, 4.0).map(column))
def test_more_sharding_never_sends_less_where_widths_agree(m: Columns, weight: Columns, width: Columns) -> None:
    one, none = column(1.0), column(0.0)
    first, second, third = (
        formulas.step_wire_bytes(column(stage), m, weight, width, one, none)[0] for stage in (1.0, 2.0, 3.0)
    )
    assert first <= second <= third
    assert (
        formulas.step_wire_bytes(none, m, width, width, one, none)[0]
        == formulas.step_wire_bytes(one, m, width, width, one, none)[0]
    )


@pytest.mark.parametrize("shape", [LLAMA_3_8B, MIXTRAL_8X7B, DEEPSEEK_V3, gpt()])
def test_every_parameter_is_reduced_once(shape: Any) -> None:
    assert sum(formulas.reduced_parameters(shape, None)) == parameter_counts(shape).main


def test_adapters_counted_by_hand() -> None:
    """Rank 16 on q (4096 x 4096) and v (1024 x 4096) of 32 layers: 16 x (8192 + 5120) x 32."""
    adapters = Adapters(16, ("q_proj", "v_proj"), 2.0)
    assert formulas.reduced_parameters(LLAMA_3_8B, adapters) == (16 * (8192 + 5120) * 32, 0)


def work(**changes: float) -> Work:
    plain = {
        "params": 1e9,
        "active_params": 1e9,
        "adapter_params": 0,
        "frozen": 0,
        "attention_flop": 0,
        "recomputed_share": 0,
        "recomputed_attention": 0,
        "tokens": 8192,
        "gpus": 1,
        "flop_per_s": 4e14,
    }
    return Work(**{name: column(value) for name, value in (plain | changes).items()})


def traffic(**changes: float) -> Traffic:
    plain = {
        "params": 1e9,
        "dense_params": 1e9,
        "expert_params": 0,
        "trained_dense": 1e9,
        "trained_expert": 0,
        "parts": 1,
        "expert_parts": 1,
        "ranks": 32,
        "expert_ranks": 32,
        "shards": 32,
        "expert_shards": 32,
        "replicas": 1,
        "gradient_bytes": 2,
        "wire_bytes": 4,
        "frozen_wire_bytes": 0,
        "latency_s": 0,
    }
    plain |= {f"{name}bandwidth_bytes_per_s": 5e10 for name in ("", "expert_", "shard_", "replica_")}
    return Traffic(**{name: column(value) for name, value in (plain | changes).items()})


def test_a_plain_layout_is_the_paper() -> None:
    """Without any effect every stage is the closed form, to the bit."""
    assert {float(v[0]) for v in compute_stages(work()).values()} == {6e9 * 8192 / 4e14}
    assert len({float(v[0]) for v in traffic_stages(traffic()).values()}) == 1


@pytest.mark.parametrize(
    ("changes", "stage", "factor"),
    [
        ({"active_params": 2.5e8}, "experts", 0.25),
        ({"frozen": 1}, "adapters", 4 / 6),
        ({"attention_flop": 6e8}, "attention", 1.1),
        ({"recomputed_share": 1}, "recompute", 4 / 3),
        ({"recomputed_share": 1, "attention_flop": 6e8}, "recompute", 1.1 * 4 / 3),
        ({"recomputed_share": 0.5}, "recompute", 7 / 6),
        ({"recomputed_attention": 1, "attention_flop": 6e8}, "recompute", 1.1 + 0.1 / 3),
    ],
)
def test_what_changes_computing(changes: dict[str, float], stage: str, factor: float) -> None:
    stages = compute_stages(work(**changes))
    assert stages[stage] / stages["paper"] == pytest.approx(factor, rel=1e-12)


def test_hybrid_sharding_sends_shards_across() -> None:
    """8 shards, 4 replicas, ZeRO-3 in one micro-batch: 6 bytes an element inside, 4 bytes of an eighth across."""
    plain = traffic(shards=8, replicas=4, wire_bytes=6, shard_bandwidth_bytes_per_s=4e11)
    found = traffic_stages(plain)
    inside, across = 7 / 8 * 1e9 * 6 / 4e11, 3 / 4 * 1e9 / 8 * 4 / 5e10
    assert found["replicas"] == pytest.approx(inside + across, rel=1e-12)
    assert found["latency"] == found["replicas"]
    with_latency = replace(plain, latency_s=column(1e-5))
    assert traffic_stages(with_latency)["latency"] - found["replicas"] == pytest.approx(62e-5, rel=1e-9)


def test_columns_and_scalars_agree_to_the_bit() -> None:
    rng = np.random.default_rng(7)
    many = {name: rng.uniform(1.0, 9.0, 50) for name in Work.__dataclass_fields__}
    together = compute_stages(Work(**many))
    for i in range(50):
        alone = compute_stages(Work(**{name: values[i : i + 1] for name, values in many.items()}))
        assert all(alone[stage][0] == together[stage][i] for stage in alone)
