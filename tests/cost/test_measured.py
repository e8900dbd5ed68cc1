"""Measured curves win where they reach, are a bracket where they do not, and leave everything else as it was."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dscalc.cost.collectives import collective
from dscalc.records import Curve, Network
from dscalc.specs.measured import CurveSpec, lower_curves
from dscalc.specs.network import lower_network
from dscalc.specs.store import load_cluster

SIZES = 2.0 ** np.arange(10, 31)


def network() -> Network:
    return lower_network(load_cluster("dgx-h100").spec).network


def curve(group: float = 16.0, domains: float = 2.0, op: str = "all-reduce", shared: float = 1.0) -> Curve:
    inside = group / domains
    return Curve(
        op=op,
        group=group,
        inside=inside,
        domains=domains,
        members=np.array([inside]),
        spread=np.array([domains]),
        shared=shared,
        log_bytes=np.log(SIZES),
        log_s=np.log(60e-6 + SIZES / 200e9),
        error=np.full(len(SIZES), 0.05),
        source="a.log:1-21",
    )


def measured(*curves: Curve, edge: float = 0.0) -> Network:
    return replace(network(), curves=curves, edge=edge)


def seconds(
    net: Network, size: float, group: float = 16.0, domains: float = 2.0, op: str = "all-reduce", **more: str
) -> tuple[float, int, bool]:
    one = np.array([1.0])
    found = collective(op, size * one, group * one, group / domains * one, domains * one, net, **more)
    return float(found.time_s[0]), int(found.curve[0]), bool(found.extrapolated[0])


def test_a_measured_size_is_what_was_measured() -> None:
    assert seconds(measured(curve()), 2.0**20) == (pytest.approx(60e-6 + 2.0**20 / 200e9), 0, False)


def test_between_sizes_it_is_log_log() -> None:
    low, high = (60e-6 + 2.0**k / 200e9 for k in (20, 21))
    assert seconds(measured(curve()), 2.0**20.5)[0] == pytest.approx((low * high) ** 0.5)


def test_the_bar_reaches_both_ways() -> None:
    centre = seconds(measured(curve()), 2.0**20)[0]
    assert seconds(measured(curve(), edge=1.0), 2.0**20)[0] == pytest.approx(centre * np.exp(0.05))
    assert seconds(measured(curve(), edge=-1.0), 2.0**20)[0] == pytest.approx(centre / np.exp(0.05))


@pytest.mark.parametrize(
    ("group", "domains", "op", "more"),
    [
        (8.0, 1.0, "all-reduce", {}),  # inside a domain: the curve crosses two
        (4.0, 2.0, "all-reduce", {}),  # two of a node: other NICs than those of eight
        (16.0, 2.0, "all-gather", {}),  # another operation
        (16.0, 2.0, "all-reduce", {"algorithm": "tree"}),  # forced: a curve does not say what ran
    ],
)
def test_what_a_curve_says_nothing_of_stays_modelled(
    group: float, domains: float, op: str, more: dict[str, str]
) -> None:
    asked = seconds(measured(curve()), 2.0**26, group, domains, op, **more)
    assert asked == seconds(network(), 2.0**26, group, domains, op, **more)
    assert asked[1] == -1


@settings(max_examples=40)
@given(st.sampled_from([24.0, 32.0, 64.0, 512.0]), st.floats(8.0, 34.0))
def test_more_ranks_are_a_bracket(group: float, exponent: float) -> None:
    """Same bus bandwidth at the fast end; at the slow end a hop a step more, but no more than in proportion."""
    size, domains = 2.0**exponent, group / 8.0
    fast, centre, slow = (seconds(measured(curve(), edge=e), size, group, domains)[0] for e in (-1.0, 0.0, 1.0))
    assert fast <= centre <= slow
    assert seconds(measured(curve()), size, group, domains)[2]
    same = seconds(measured(curve()), size)[0] * (2 * (group - 1) / group) / (2 * 15 / 16)
    if SIZES[0] <= size <= SIZES[-1] / 2.0:
        assert fast <= same <= slow
        assert slow <= same * 1.8 * (group / 16.0) * np.exp(0.08)


@settings(max_examples=40)
@given(st.floats(30.1, 36.0))
def test_beyond_the_largest_message_the_bar_grows(exponent: float) -> None:
    low, centre, high = (seconds(measured(curve(), edge=e), 2.0**exponent)[0] for e in (-1.0, 0.0, 1.0))
    truth = 60e-6 + 2.0**exponent / 200e9
    assert low <= truth <= high
    assert low <= centre <= high
    assert high / low >= np.exp(0.1)


def test_a_group_that_left_gpus_idle_is_no_faster_than_its_share() -> None:
    """One rank a node had every NIC to itself; in a layout eight groups share them."""
    quick = replace(curve(2.0, 2.0, shared=0.0), log_s=np.log(1e-9 * SIZES**0.5))
    net = measured(quick)
    found, _, beyond = seconds(net, 2.0**26, 2.0, 2.0)
    assert found == seconds(network(), 2.0**26, 2.0, 2.0)[0]
    assert beyond


def test_the_nearest_group_speaks() -> None:
    near, far = curve(32.0, 4.0), replace(curve(128.0, 16.0), log_s=np.log(1.0 + SIZES))
    assert seconds(measured(far, near), 2.0**24, 48.0, 6.0)[1] == 1
    assert seconds(measured(far, near), 2.0**24, 128.0, 16.0)[1] == 0


def test_columns_equal_rows() -> None:
    net = measured(curve(), curve(64.0, 8.0))
    size = np.array([1e3, 1e6, 1e9, 1e10, 5e6])
    group = np.array([16.0, 64.0, 24.0, 512.0, 8.0])
    domains = np.array([2.0, 8.0, 3.0, 64.0, 1.0])
    whole = collective("all-reduce", size, group, group / domains, domains, net).time_s
    for i in range(len(size)):
        assert seconds(net, size[i], group[i], domains[i])[0] == whole[i]


def test_the_error_of_a_tier_reaches_what_the_model_says() -> None:
    net = network()
    outer = replace(net.tiers[-1], error=0.1)
    net = replace(net, tiers=(*net.tiers[:-1], outer))
    assert net.measured
    assert not network().measured
    times = [seconds(replace(net, edge=edge), 2.0**33, 64.0, 8.0, "all-gather")[0] for edge in (-1.0, 0.0, 1.0)]
    assert times[1] == seconds(network(), 2.0**33, 64.0, 8.0, "all-gather")[0]
    assert times[2] / times[1] == pytest.approx(np.exp(0.1), rel=0.01)  # bytes alone at such a size
    assert times[1] / times[0] == pytest.approx(np.exp(0.1), rel=0.01)


def test_a_column_may_hold_groups_of_one_and_empty_messages() -> None:
    """Layouts without an axis have groups of one in the same column; nothing of them may disturb the others."""
    net = measured(curve(), curve(8.0, 1.0))
    group, domains = np.array([1.0, 16.0, 1.0, 8.0, 16.0]), np.array([1.0, 2.0, 1.0, 1.0, 2.0])
    size = np.array([1e6, 1e6, 0.0, 0.0, 0.0])
    found = collective("all-reduce", size, group, group / domains, domains, net)
    assert np.isfinite(found.time_s).all()
    assert (found.time_s[group == 1.0] == 0.0).all()
    assert (found.curve[group == 1.0] == -1).all()
    assert found.time_s[1] == seconds(net, 1e6)[0]


def test_groups_that_ran_at_once_speak_before_one_that_ran_alone() -> None:
    """Eight groups of one rank a node share the NICs as those of a layout do; one alone had them to itself."""
    plain = {"op": "all-reduce", "ranks": 2, "nodes": 2, "sizes": (1e6, 1e9), "error_fractions": (0.1, 0.1)}
    specs = [
        CurveSpec.trusted(
            {**plain, "times": times, "groups": groups, "kind": "measured", "source": f"{groups} at once"}
        )
        for times, groups in (((1e-4, 1e-2), 1), ((2e-4, 4e-2), 8))
    ]
    curves = lower_curves(specs, network().tiers, 8)
    assert [c.source for c in curves] == ["8 at once", "1 at once"]
    assert [c.shared for c in curves] == [1.0, 0.0]
    assert seconds(measured(*curves), 1e9, 2.0, 2.0)[0] == pytest.approx(4e-2)
