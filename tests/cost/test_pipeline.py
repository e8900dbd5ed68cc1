"""Pipeline times against schedules played operation by operation: equal, heavier at the ends, spread by a fifth."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dscalc import codes
from dscalc.cost.pipeline import STEPS, Runs, pipeline_s
from tests.oracles import pipeline, pipeline_time
from tests.oracles.greedy_pipeline import greedy_makespan

Stages = tuple[list[float], list[float]]
SHAPES = ((2, 4), (4, 8), (8, 8), (8, 40), (16, 64))


def runs(stages: Stages, m: int, v: int = 1) -> Runs:
    forward, backward = (np.asarray(x)[:, None] for x in stages)
    one = np.ones(1)
    return Runs(forward, backward, np.ones_like(forward), m * one, v * one, 0.5 * one)


def played(schedule: str, stages: Stages, m: int, v: int = 1) -> float:
    forward, backward = stages
    p = len(forward)
    orders: dict[str, Any] = {
        "1f1b": lambda i: pipeline.one_f_one_b(p, m, i),
        "gpipe": lambda i: pipeline.gpipe(p, m, i),
        "interleaved": lambda i: pipeline.interleaved(p, m, v, i),
        "zb-h1": lambda i: pipeline.zero_bubble(p, m, i, False),
        "zb-h2": lambda i: pipeline.zero_bubble(p, m, i, True),
    }
    apart = schedule.startswith("zb")
    share = 0.5 if apart else 1.0
    duration = {
        "F": [[f / v] * v for f in forward],
        "B": [[share * b / v] * v for b in backward],
        "W": [[0.5 * b / v] * v for b in backward],
    }
    measure = pipeline_time.longest_span if schedule == "zb-h2" else pipeline_time.makespan
    return measure([orders[schedule](i) for i in range(p)], duration)


def stages_of(kind: str, p: int, seed: int) -> Stages:
    random = np.random.default_rng(seed)
    size = np.ones(p)
    if kind == "ends":
        size[0] *= 1.0 + 0.5 * random.random() * (seed % 2)
        size[-1] *= 1.0 + 0.5 * random.random()
    if kind == "spread":
        size *= 1.0 + 0.2 * random.uniform(-1.0, 1.0, p)
    return size.tolist(), (2.0 * size).tolist()


def error(schedule: str, stages: Stages, m: int, v: int = 1) -> float:
    return float(STEPS[schedule](runs(stages, m, v))[0]) / played(schedule, stages, m, v) - 1.0


@pytest.mark.parametrize(("p", "m"), SHAPES)
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "zb-h2"])
def test_equal_stages(schedule: str, p: int, m: int) -> None:
    if schedule == "zb-h2" and m < 2 * p:
        pytest.skip("too few micro-batches to fill it")
    assert error(schedule, stages_of("equal", p, 0), m) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(("p", "m"), SHAPES)
@pytest.mark.parametrize("v", [2, 3])
def test_equal_stages_interleaved(p: int, m: int, v: int) -> None:
    assert error("interleaved", stages_of("equal", p, 0), m, v) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize(("p", "m"), SHAPES)
@pytest.mark.parametrize("seed", range(4))
def test_heavier_end_stages(p: int, m: int, seed: int) -> None:
    stages = stages_of("ends", p, seed)
    assert abs(error("1f1b", stages, m)) < 0.001
    assert error("gpipe", stages, m) == pytest.approx(0.0, abs=1e-12)
    assert abs(error("interleaved", stages, m, 2)) < 0.01


@pytest.mark.parametrize(("p", "m"), SHAPES)
@pytest.mark.parametrize("seed", range(4))
def test_stages_spread_by_a_fifth(p: int, m: int, seed: int) -> None:
    stages = stages_of("spread", p, seed)
    assert abs(error("1f1b", stages, m)) < 0.01
    assert error("gpipe", stages, m) == pytest.approx(0.0, abs=1e-12)
    assert abs(error("interleaved", stages, m, 2)) < 0.05


@pytest.mark.parametrize("kind", ["ends", "spread"])
@pytest.mark.parametrize(("p", "m"), [(4, 16), (8, 40), (16, 64)])
@pytest.mark.parametrize("seed", range(4))
def test_zero_bubble_is_close_and_never_below(kind: str, p: int, m: int, seed: int) -> None:
    stages = stages_of(kind, p, seed)
    for schedule in ("zb-h1", "zb-h2"):
        assert -1e-12 <= error(schedule, stages, m) < 0.05, schedule


@pytest.mark.parametrize("kind", ["equal", "ends", "spread"])
@pytest.mark.parametrize(("p", "m"), [(4, 16), (4, 32), (8, 40)])
@pytest.mark.parametrize("schedule", ["zb-v", "dualpipe"])
def test_chunks_on_both_sides_of_the_model(schedule: str, kind: str, p: int, m: int) -> None:
    """Near a schedule that can be run, and never below what the slowest stage has to do."""
    forward = np.asarray(stages_of(kind, p, 1)[0])
    stages = Runs(forward[:, None], 2.0 * forward[:, None], np.ones((p, 1)), np.full(1, m), np.ones(1), np.full(1, 0.5))
    found = float(STEPS[schedule](stages)[0])
    assert found >= 3.0 * m * forward.max() * (1.0 - 1e-12)
    assert abs(found / greedy_makespan(schedule, forward, forward, forward, m) - 1.0) < 0.05


def test_runs_of_equal_neighbours_are_the_stages_they_stand_for() -> None:
    one = np.ones(1)
    forward = np.asarray([[1.2], [1.0], [0.9], [1.5]])
    short = Runs(forward, 2.0 * forward, np.asarray([[1.0], [3.0], [2.0], [1.0]]), 16 * one, 2 * one, 0.5 * one)
    every = [1.2, 1.0, 1.0, 1.0, 0.9, 0.9, 1.5]
    long = runs((every, [2.0 * x for x in every]), 16, 2)
    for name, step in STEPS.items():
        assert step(short)[0] == pytest.approx(step(long)[0], rel=1e-12), name


def test_one_stage_has_no_bubble_and_each_row_its_own_schedule() -> None:
    alone = runs(([1.0], [2.0]), 5)
    names = codes.SCHEDULES
    for code in range(len(names)):
        assert pipeline_s(alone, np.asarray([code]))[0] == 15.0
    p, m = 4, 8
    both = np.ones((p, 2))
    pair = Runs(both, 2.0 * both, both, np.full(2, m), np.ones(2), np.full(2, 0.5))
    found = pipeline_s(pair, np.asarray([names.index("1f1b"), names.index("zb-h1")]))
    # Narayanan et al. 2021: (p-1)/m over the ideal; Qi et al. 2023: (p-1)(F + B - W)
    assert found.tolist() == pytest.approx([3.0 * (m + p - 1), 3.0 * m + (p - 1) * 1.0])
