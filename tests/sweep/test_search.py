"""The search: the same whatever its chunks and processes, interrupted without loss, and its parts."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from dscalc.answers.sweep_setup import build_setups, spaces_of
from dscalc.cost.memory import memory
from dscalc.cost.memory_floor import state_floor_bytes
from dscalc.specs.given import gather
from dscalc.specs.sweep_options import TABLE
from dscalc.sweep.change import moves
from dscalc.sweep.prune import Found, Problem, merged, part
from dscalc.sweep.rank import Kept, beaten, best, front, front_of, roomiest
from dscalc.sweep.search import search

WORDS = {"model": "llama-3-8b", "cluster": "dgx-h100", "gpus": "8,12", "global_batch": 48, "max_cp": 2, "max_pp": 4}


def problems(**more: Any) -> list[Problem]:
    given_ = gather(WORDS, TABLE)
    (setup,) = build_setups(given_)
    return [
        Problem(space, setup.machine, 4, 0.05, moves(setup.machine, space.base.books), **more)
        for space in spaces_of(setup, given_)
    ]


def same(first: list[Found], second: list[Found]) -> None:
    for a, b in zip(first, second, strict=True):
        assert len(a.moved) == len(b.moved)
        for kept, other in zip((a.top, a.front, a.simple, *a.moved), (b.top, b.front, b.simple, *b.moved), strict=True):
            assert np.array_equal(kept.ids, other.ids)
            assert np.array_equal(kept.step_time_s, other.step_time_s)
            assert np.array_equal(kept.total_bytes, other.total_bytes)
        assert (a.evaluated, a.feasible, a.rejected, a.done) == (b.evaluated, b.feasible, b.rejected, b.done)


@pytest.fixture(scope="module")
def whole() -> list[Found]:
    return search(problems())


@pytest.mark.parametrize("rows", [257, 3000])
def test_chunk_size_does_not_matter(whole: list[Found], rows: int) -> None:
    same(whole, search(problems(chunk_rows=rows)))


def test_number_of_processes_does_not_matter(whole: list[Found]) -> None:
    told: list[tuple[int, int]] = []
    same(whole, search(problems(), jobs=2, progress=lambda done, total: told.append((done, total)), every_s=0.0))
    assert told[-1][0] == told[-1][1]


def test_progress_grows_to_the_end() -> None:
    told: list[tuple[int, int]] = []
    search(problems(chunk_rows=512), progress=lambda done, total: told.append((done, total)), every_s=0.0)
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1] == sum(p.space.size for p in problems())


def test_an_interrupt_keeps_the_best_so_far(whole: list[Found]) -> None:
    calls = 0

    def stop(_done: int, _total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt

    found = search(problems(chunk_rows=512), progress=stop, every_s=0.0)
    assert not any(f.complete for f in found)
    assert 0 < found[0].feasible < whole[0].feasible
    assert len(found[0].top)
    assert found[0].top.step_time_s[0] >= whole[0].top.step_time_s[0]


@pytest.mark.parametrize("level", [1, 3, 5, 12, 14])
def test_parts_add_up(level: int) -> None:
    """Pieces that begin behind any axis make the checks of the axes before it too."""
    given_ = gather(WORDS | {"gpus": 12, "tp": "1,2,3,5", "schedule": "1f1b", "vpp": 1, "max_micro_batch": 2}, TABLE)
    (setup,) = build_setups(given_)
    (space,) = spaces_of(setup, given_)
    problem = Problem(space, setup.machine, 4)
    prefixes = prod(space.radices[:level])
    cuts = sorted({0, prefixes // 3, prefixes // 2, prefixes})
    found = Found()
    for first, last in pairwise(cuts):
        found = merged(found, part(problem, level, first, last), problem)
    same([found], search([problem]))
    assert {"tp_heads", "memory"} <= dict(found.rejected).keys()


def test_the_lower_bound_of_memory_is_one() -> None:
    for problem in problems():
        space, machine = problem.space, problem.machine
        ids = np.random.default_rng(1).integers(0, space.size, 4000)
        layouts = space.layouts(ids)
        floor = state_floor_bytes(space.shape, layouts)
        total = memory(space.shape, layouts, machine.hardware, keep_terms=False).total_bytes
        assert np.all(floor <= total)
        assert np.median(floor / total) > 0.2  # and not an empty one


def test_nearest_to_fitting_needs_least() -> None:
    problem = problems(fits_anyway=True)[0]
    (found,) = search([problem])
    (usual,) = search(problems()[:1])
    assert found.top.total_bytes[0] == usual.front.total_bytes[-1]
    assert found.evaluated >= usual.evaluated


@pytest.mark.parametrize("rows", [257, 8000])
def test_the_best_after_each_move_is_that_of_a_search_of_its_own(rows: int) -> None:
    """A search that leaves out what cannot be best after a move, against one on the changed machine that times all."""
    for problem in problems(chunk_rows=rows):
        assert len(problem.moves) == 4
        (found,) = search([problem])
        others = set()
        for move, kept in zip(problem.moves, found.moved, strict=True):
            space = replace(problem.space, base=replace(problem.space.base, books=move.books))
            (alone,) = search([replace(problem, space=space, machine=move.machine, moves=())])
            assert kept.ids.tolist() == alone.top.ids[:1].tolist()
            assert kept.step_time_s.tolist() == alone.top.step_time_s[:1].tolist()
            others |= {*kept.ids.tolist()}
        assert len(others - {*found.top.ids[:1].tolist()}) >= 1  # another layout is best after some move


def test_the_simplest_of_those_that_are_level() -> None:
    for problem in problems():
        (found,) = search([replace(problem, top=100_000, level=0.03)])
        near = found.top.take(found.top.step_time_s <= found.top.step_time_s[0] * 1.03)
        assert len(near) > 3
        assert found.simple.ids[-1] == near.ids.min()
        assert np.all(np.diff(found.simple.step_time_s) > 0.0)


def test_room_among_nearly_as_fast_layouts() -> None:
    (found,) = search([replace(problems()[0], top=100_000)])
    near = found.top.take(found.top.step_time_s <= found.top.step_time_s[0] * 1.05)
    room = roomiest(found.front, 0.05)
    assert room.total_bytes[0] == near.total_bytes.min()
    assert np.all(np.diff(room.total_bytes) > 0.0)
    assert room.ids[-1] == found.top.ids[0]


rows = st.integers(1, 40).flatmap(
    lambda n: st.tuples(
        hnp.arrays(np.float64, n, elements=st.integers(1, 6).map(float)),
        hnp.arrays(np.float64, n, elements=st.integers(1, 6).map(float)),
    )
)


@settings(max_examples=60)
@given(rows, st.integers(1, 5))
def test_ranking_by_definition(columns: tuple[Any, Any], count: int) -> None:
    seconds, memory_ = columns
    kept = Kept(np.arange(len(seconds), dtype=np.int64)[::-1].copy(), seconds, memory_)
    order = sorted(zip(seconds, memory_, kept.ids, strict=True))
    found = best(kept, count)
    assert list(zip(found.step_time_s, found.total_bytes, found.ids, strict=True)) == order[:count]
    unbeaten = [
        row for row in order if not any((a <= row[0] and b <= row[1]) and (a, b) != row[:2] for a, b, _ in order)
    ]
    first = {row[:2]: row for row in reversed(unbeaten)}
    edge = front(kept)
    assert sorted(zip(edge.step_time_s, edge.total_bytes, edge.ids, strict=True)) == sorted(first.values())
    assert beaten(kept, edge).all()
    on_front = [any((s, m) == row[:2] for row in unbeaten) for s, m in zip(*columns, strict=True)]
    assert np.array_equal(front_of([seconds, memory_]), on_front)
