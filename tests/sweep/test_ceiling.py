"""The ceiling: against the closed forms where their assumptions hold, and its parts by hand."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import pytest

from dscalc import ratio
from dscalc.answers.sweep import SweepAnswer, sweep
from dscalc.sweep.ceiling import LIMITS, Limit, _ranged, binding, crossing, limits
from dscalc.sweep.curve import Point

# A wide model, short sequences, one plain network: nearly all that a step does is 6ND and 2N b.
PLAIN = {
    "layers": 4,
    "hidden": 8192,
    "heads": 64,
    "ffn_hidden": 32768,
    "vocab": 1024,
    "gated_mlp": False,
    "seq_len": 512,
    "gpu": "H100-SXM5-80GB",
    "flops": "500TF",
    "tp": 1,
    "pp": 1,
    "cp": 1,
    "zero": 0,
    "recompute": "none",
    "micro_batch": "8",
    "optimizer": "sgd",
}


@pytest.fixture(scope="module")
def flat() -> SweepAnswer:
    return sweep(**PLAIN, bandwidth="25GB/s", latency="0.1us", gpus="8..512", global_batch=4096, stack="generic")


def test_the_sweep_agrees_with_the_closed_form(flat: SweepAnswer) -> None:
    """K* = G/D* and D* = P b_r/(3 BW), where nothing but data parallelism communicates."""
    useful = flat.closed_forms[flat.setups[0].name].max_useful_gpus
    by_hand = 4096 * 512 / (500e12 * 2 / (3 * 25e9))
    assert useful == pytest.approx(by_hand, rel=1e-6)
    limit = flat.ceiling.limits["ratio_one"]
    assert limit.gpus == pytest.approx(by_hand, rel=0.2)  # attention, head and elementwise compute too
    assert limit.low_gpus < limit.gpus < limit.high_gpus


def test_its_two_times_are_those_of_the_closed_form(flat: SweepAnswer) -> None:
    """6ND/P and 2(K-1)/K N b_r/BW at every number of GPUs, and D* where they are equal."""
    params = flat.setups[0].case.counts.main
    searched = [point for point in flat.ceiling.points if point.searched]
    assert [point.gpus for point in searched] == [8, 16, 32, 64, 128, 256, 512]
    for point in searched:
        ring = 2.0 * (point.gpus - 1) / point.gpus * params * 2.0 / 25e9
        paper = 6.0 * params * (4096 * 512 / point.gpus) / 500e12
        assert 1.0 <= point.communication_s / ring < 1.06  # latency of buckets
        assert 1.0 < point.compute_s / paper < 1.3  # attention, norms, loss, products that are not endless
    closed = flat.closed_forms[flat.setups[0].name]
    assert closed.break_even_tokens_per_rank == pytest.approx(500e12 * 2 / (3 * 25e9))
    assert closed.max_useful_data_parallel == pytest.approx(4096 * 512 / closed.break_even_tokens_per_rank)


def test_elasticities_are_those_of_the_closed_form(flat: SweepAnswer) -> None:
    """K* = 3 G BW/(P b_r): the powers are 1, 1, -1 and -1; without latency its power is 0."""
    found = sweep(
        **PLAIN | {"gpus": "8..512"}, bandwidth="25GB/s", latency="0.1us", global_batch=4096, marginal=0.001
    ).ceiling
    assert found.binding_limit == "ratio_one"
    for name, power in (
        ("bandwidth_bytes_per_s", 1.0),
        ("tokens_per_rank", 1.0),
        ("gradient_bytes", -1.0),
        ("effective_flop_per_s", -1.0),
        ("latency_s", 0.0),
    ):
        assert found.elasticities[name] == pytest.approx(power, abs=0.12), name


def test_dscalc_ratio_says_the_same() -> None:
    alone = ratio(flops="500TF", bandwidth="25GB/s", tokens_per_rank=4096, gradient_bytes=2)
    assert alone.value("break_even_tokens_per_rank") == pytest.approx(500e12 * 2 / (3 * 25e9))


def test_latency_binds_where_messages_are_small() -> None:
    slow = sweep(
        **PLAIN | {"layers": 2, "hidden": 512, "heads": 8, "ffn_hidden": 2048},
        bandwidth="400GB/s",
        latency="200us",
        gpus="8..64",
        global_batch=4096,
    ).ceiling
    assert slow.limits["latency"].gpus is not None
    assert slow.limits["latency"].gpus < 128


def point(gpus: int, seconds: float, *, tokens: float = 1e6, compute: float = 1.0, sent: float = 0.1) -> Point:
    return Point(gpus, tokens, seconds, compute, sent, 0.01, 1.0, 64.0, True)


def test_crossing_by_hand() -> None:
    assert crossing([8, 16, 32], [4.0, 2.0, 0.5]) == pytest.approx(16 * 2**0.5)
    assert crossing([8, 16], [4.0, 2.0]) is None
    assert crossing([8, 16], [0.5, 0.4]) == 8
    assert crossing([8, 16, 32], [inf, inf, 0.5]) == 32
    assert crossing([8, 16, 32, 64], [2.0, 0.9, 1.5, 0.5]) == pytest.approx(32 * 2 ** (0.4054651 / 1.0986123), rel=1e-6)


def test_limits_by_hand() -> None:
    """1, 2, 4 and 8 GPUs that give 1, 1.9, 3.2 and 3.0 of one GPU's throughput."""
    curve = [point(n, 1 / s) for n, s in ((1, 1.0), (2, 1.9), (4, 3.2), (8, 3.0))]
    found = limits(curve, 0.5, weak=False, critical=None)
    assert tuple(found) == LIMITS
    assert found["memory_floor"].gpus == 1
    assert found["throughput_peak"].gpus == 4
    assert 2.8 <= found["marginal_gain"].gpus <= 5.7  # 0.65 between 2 and 4, below nothing between 4 and 8
    assert found["sequences"].gpus == 64
    assert found["critical_batch"].gpus is None
    assert binding(found) == found["marginal_gain"]
    for share, least in ((0.9, 1.4), (0.7, 1.4)):
        assert limits(curve, share, weak=False, critical=None)["marginal_gain"].gpus >= least


def test_critical_batch_binds_only_where_the_batch_grows() -> None:
    curve = [replace(point(n, 1.0), tokens=1e5 * n) for n in (1, 2, 4, 8)]
    weak = limits(curve, 0.5, weak=True, critical=(3e5, "kaplan"))["critical_batch"]
    assert weak.gpus == pytest.approx(3.0)
    same = [point(n, 1.0) for n in (1, 2)]
    assert limits(same, 0.5, weak=False, critical=(3e6, "kaplan"))["critical_batch"].gpus is None
    assert limits(same, 0.5, weak=False, critical=(3e5, "kaplan"))["critical_batch"].gpus == 1


def test_ranges_add_as_squares() -> None:
    """Two parameters that move a limit of 100 to 110 and 90.9 each: sqrt(2) times the move, in the logarithm."""
    limit = Limit("ratio_one", 100.0, "")
    moved = [replace(limit, gpus=g) for g in (110.0, 100 / 1.1, 110.0, 100 / 1.1)]
    found = _ranged(limit, moved)
    assert found.high_gpus == pytest.approx(100 * 1.1 ** (2**0.5))
    assert found.low_gpus == pytest.approx(100 / 1.1 ** (2**0.5))
    assert _ranged(limit, [replace(limit, gpus=None), *moved[1:]]).high_gpus is None


def test_one_layout_alone_goes_on_only_as_far_as_it_is_legal() -> None:
    """A single layout kept: beyond the searched number it must not lose its last micro-batch."""
    found = sweep(
        **PLAIN | {"recompute": "none", "gpus": "64", "dp": "64", "vpp": 1},
        bandwidth="25GB/s",
        latency="1us",
        global_batch=1024,
    ).ceiling
    assert [p.gpus for p in found.points] == [64, 128, 256, 512, 1024]
    assert found.limits["sequences"].gpus == 1024
