"""What the benchmark decides: groups, sizes, order, calls, resume; nothing here needs torch."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dscalc.calibrate.bench_plan import (
    PASSES,
    Expected,
    Item,
    Pace,
    World,
    calls_for,
    groups_of,
    largest_message,
    left_to_do,
    pair_rounds,
    plan,
    scopes,
    shape_of,
    share_s,
    whole_size,
)
from dscalc.calibrate.rows import OPS
from dscalc.units import GIB

H200 = ("bf16", "fp16", "fp8")


def world(nodes: int, inside: int, backend: str = "nccl", memory: int = 140 * GIB) -> World:
    return World(nodes * inside, nodes, backend, memory, H200 if backend == "nccl" else ("fp32", "bf16"))


@pytest.mark.parametrize(
    ("nodes", "inside", "expected"),
    [
        (1, 1, ()),
        (1, 2, ("node",)),
        (1, 8, ("node", "half_node")),
        (3, 1, ("one_a_node",)),
        (2, 8, ("node", "one_a_node", "all", "one_a_node_each", "half_node")),
    ],
)
def test_scopes_that_would_be_the_same_groups_are_one(nodes: int, inside: int, expected: tuple[str, ...]) -> None:
    assert scopes(world(nodes, inside)) == expected


def test_groups_of_a_layout_with_tp_inside_nodes() -> None:
    two_by_four = world(2, 4)
    assert groups_of("node", two_by_four) == [[0, 1, 2, 3], [4, 5, 6, 7]]  # tensor parallel
    assert groups_of("one_a_node_each", two_by_four) == [[0, 4], [1, 5], [2, 6], [3, 7]]  # data parallel, all at once
    assert groups_of("one_a_node", two_by_four) == [[0, 4]]
    assert groups_of("half_node", two_by_four) == [[0, 1], [2, 3], [4, 5], [6, 7]]


@given(nodes=st.integers(1, 9), inside=st.sampled_from([1, 2, 3, 4, 8]))
def test_groups_are_disjoint_and_as_large_as_said(nodes: int, inside: int) -> None:
    w = world(nodes, inside)
    for scope in scopes(w):
        groups, shape = groups_of(scope, w), shape_of(scope, w)
        members = [rank for group in groups for rank in group]
        assert len(members) == len(set(members))
        assert set(members) <= set(range(w.ranks))
        for group in groups:
            assert len(group) == shape["ranks"] > 1
            assert len({rank // inside for rank in group}) == shape["nodes"]
        of_one_node = sum(any(rank // inside == 0 for rank in group) for group in groups)
        assert of_one_node == shape["groups"]  # those that share the links of a node


@given(nodes=st.integers(2, 8))
def test_every_two_nodes_meet_once(nodes: int) -> None:
    rounds = pair_rounds(nodes)
    met = [pair for pairs in rounds for pair in pairs]
    assert sorted(met) == [(a, b) for a in range(nodes) for b in range(a + 1, nodes)]
    for pairs in rounds:
        ends = [node for pair in pairs for node in pair]
        assert len(ends) == len(set(ends))


def test_many_nodes_meet_eight_others_each() -> None:
    rounds = pair_rounds(64)
    met = [pair for pairs in rounds for pair in pairs]
    assert len(met) == len(set(met)) == 8 * 32


def test_passes_cover_powers_of_two_once_from_8_bytes_to_8_gib() -> None:
    assert sorted(power for level in PASSES for power in level) == list(range(3, 34))
    assert (min(PASSES[0]), max(PASSES[0])) == (3, 32)


@pytest.mark.parametrize(("nodes", "inside"), [(2, 8), (4, 3), (1, 2)])
def test_the_first_pass_spans_every_operation(nodes: int, inside: int) -> None:
    w = world(nodes, inside)
    items = [item for item in plan(w) if item.kind == "collective"]
    first = items[: len(scopes(w)) * len(OPS) * len(PASSES[0])]
    for scope in scopes(w):
        for op in OPS:
            sizes = [item.size_bytes for item in first if (item.scope, item.op) == (scope, op)]
            assert min(sizes) <= 64
            assert max(sizes) > GIB
            assert all(b / a <= 65 for a, b in pairwise(sorted(sizes)))
            every = sorted(item.size_bytes for item in items if (item.scope, item.op) == (scope, op))
            assert len(every) == len(set(every)) >= 27
            switch = [size for size in every if 4096 * 0.9 <= size <= 1 << 23]
            assert all(b / a < 2.1 for a, b in pairwise(switch))  # dense where protocols change


def test_messages_fit_into_memory_twice() -> None:
    assert largest_message(140 * GIB) == 8 * GIB
    assert largest_message(10 * GIB) == 2 * GIB  # two buffers of 2 GiB: 4 of the 7 that may be taken
    assert max(item.size_bytes for item in plan(world(2, 1, memory=10 * GIB))) <= 2 * GIB


@given(size=st.integers(1, 1 << 33), op=st.sampled_from(OPS), ranks=st.integers(2, 2048))
def test_every_rank_gets_an_equal_part(size: int, op: str, ranks: int) -> None:
    whole = whole_size(size, op, ranks)
    element = 4 if op in ("all_reduce", "reduce_scatter") else 1
    assert whole > 0
    assert whole % (element if op in ("all_reduce", "send_recv") else element * ranks) == 0
    assert whole <= max(size, element * ranks)


def test_one_gpu_measures_itself_only() -> None:
    assert {item.kind for item in plan(world(1, 1))} == {"launch", "memory_copy", "gemm"}


def test_products_are_those_of_a_layer() -> None:
    products = [item for item in plan(world(1, 1)) if item.kind == "gemm" and item.dtype == "bf16"]
    shapes = {(item.n, item.k) for item in products}
    assert {(4 * 4096, 4096), (4096, 4 * 4096), (3 * 4096, 4096), (4096, 4096)} <= shapes
    assert (products[0].n, products[0].k) == (4 * 4096, 4096)  # the usual one first
    assert {item.dtype for item in plan(world(1, 1)) if item.kind == "gemm"} == set(H200)


def test_overlap_is_for_gpus() -> None:
    assert any(item.kind == "overlap" for item in plan(world(2, 8)))
    assert not any(item.kind == "overlap" for item in plan(world(2, 8, "gloo")))


# --------------------------------------------------------------------------------------------------------------- pace
def test_pace_expects_no_less_than_what_grows_with_the_work() -> None:
    pace = Pace()
    item = Item("collective", "all_reduce", "all", 1 << 20, "fp32")
    assert pace.expect(item) is None
    pace.note(item._replace(size_bytes=1 << 10), 1e-5)
    expected = pace.expect(item)
    assert expected is not None
    assert expected.most_s == pytest.approx(1e-5 * 1024)
    assert 1e-5 < expected.likely_s < expected.most_s
    pace.note(item._replace(size_bytes=1 << 16), 1e-5)  # no growth yet: likely the latency again
    assert pace.expect(item) == Expected(pytest.approx(1e-5), pytest.approx(16e-5))
    assert pace.expect(item._replace(scope="node")) is None  # other groups are another matter


@given(
    likely=st.floats(1e-7, 100.0),
    grows=st.floats(1.0, 64.0),
    budget=st.floats(5.0, 3600.0),
    left=st.floats(0.001, 1.0),
    items=st.integers(1, 2000),
)
def test_an_item_costs_what_it_may(likely: float, grows: float, budget: float, left: float, items: int) -> None:
    share = share_s(budget, items)
    calls = calls_for(Item("memory_copy"), Expected(likely, likely * grows), share, budget, left * budget)
    if calls is None:
        assert likely * grows * 4 > min(left * budget, budget / 20)
    else:
        assert calls.samples >= 3
        # its share and the warm-up, or the fewest samples there can be
        assert likely * calls.total <= max(2.5 * share, likely * 4) * 1.001


def test_an_exhausted_budget_calls_nothing() -> None:
    assert calls_for(Item("launch"), None, 0.1, 60.0, 0.0) is None
    assert calls_for(Item("launch"), None, 0.1, 60.0, -1.0) is None


# ------------------------------------------------------------------------------------------------------------- resume
def test_resume_leaves_out_what_rows_hold() -> None:
    w = world(3, 1, "gloo")
    items = plan(w)
    rows = [
        {"kind": "run"},
        {"kind": "launch"},
        {"kind": "collective", "op": "all_reduce", "scope": "one_a_node", "size_bytes": 1024, "dtype": "fp32"},
        {"kind": "pair", "from_node": 1, "to_node": 2, "size_bytes": 8},
        {"kind": "note"},
    ]
    left = left_to_do(items, rows, w)
    gone = set(items) - set(left)
    assert {(item.kind, item.size_bytes) for item in gone} == {("launch", 0), ("collective", 1024), ("pair", 8)}
    assert len(gone) == 3
    assert left_to_do(items, [], w) == items


def test_a_round_of_pairs_is_done_when_all_are() -> None:
    w = world(4, 1, "gloo")
    one = {"kind": "pair", "from_node": 0, "to_node": 3, "size_bytes": 8}
    other = {"kind": "pair", "from_node": 1, "to_node": 2, "size_bytes": 8}
    assert left_to_do(plan(w), [one], w) == plan(w)
    assert len(left_to_do(plan(w), [one, other], w)) == len(plan(w)) - 1
