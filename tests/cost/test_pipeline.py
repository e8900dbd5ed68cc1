"""Pipeline times against schedules played operation by operation: equal, heavier at the ends, spread by a fifth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dscalc import codes
from dscalc.cost.pipeline import STEPS, pipeline_s
from dscalc.cost.pipeline_runs import Runs
from tests.oracles import folded_pipeline, pipeline, pipeline_time

Array = NDArray[np.float64]
RATIOS = (1.0, 1.5, 2.0, 2.5, 3.0)  # backward over forward; 3 with everything computed again
ENDS = ((0.5, 0.0), (0.0, 0.5), (0.5, 0.5), (0.5, 0.2), (0.2, 0.5), (0.1, 0.0), (0.0, 0.1), (0.03, 0.05), (0.3, 0.1))
WEIGHT_SHARE = 0.5
ONE_CHUNK = ((2, 2), (2, 4), (3, 9), (4, 8), (8, 8), (8, 40), (16, 32))  # stages, micro-batches
CHUNKS = ((2, 2, 2), (2, 8, 4), (3, 6, 8), (4, 4, 4), (4, 8, 2), (5, 15, 3), (8, 8, 8), (8, 32, 2), (16, 16, 3))
LARGER_GROUPS = ((2, 3, 2), (4, 6, 3), (4, 10, 2), (5, 12, 4), (8, 15, 2), (8, 27, 3))  # p does not divide m
FOLDED = ((2, 4), (4, 8), (4, 20), (6, 12), (8, 24))


def held(schedule: str, p: int, chunk_s: Array) -> Array:
    """Time of a micro-batch on each stage, from that of each chunk of the model."""
    if schedule == "zb-v":
        return np.asarray(chunk_s[:p] + chunk_s[: -p - 1 : -1])
    if schedule == "dualpipe":  # half of the micro-batches go either way
        return np.asarray((chunk_s + chunk_s[::-1]) / 2.0)
    return np.asarray(chunk_s.reshape(-1, p, chunk_s.shape[-1]).sum(axis=0))


def beyond(p: int, chunk_s: Array) -> Array:
    """What the first and the last chunk take beyond another chunk of their stage."""
    if len(chunk_s) == p:
        return np.zeros_like(chunk_s[:2])
    return np.stack([chunk_s[0] - chunk_s[p], chunk_s[-1] - chunk_s[-1 - p]])


def runs(schedule: str, p: int, m: int, forward: Array, backward: Array) -> Runs:
    one = np.ones(forward.shape[-1])
    looped = schedule not in ("zb-v", "dualpipe")
    return Runs(
        forward=held(schedule, p, forward),
        backward=held(schedule, p, backward),
        count=np.ones((p, len(one))),
        micro=m * one,
        chunks=(len(forward) // p if looped else 1) * one,
        weight_share=WEIGHT_SHARE * one,
        ends_forward=beyond(p, forward) if looped else np.zeros((2, len(one))),
        ends_backward=beyond(p, backward) if looped else np.zeros((2, len(one))),
    )


def played(schedule: str, p: int, m: int, forward: Array, backward: Array) -> Array:
    apart = schedule not in ("1f1b", "gpipe", "interleaved")
    duration_s = {
        "F": forward,
        "B": (1.0 - WEIGHT_SHARE) * backward if apart else backward,
        "W": WEIGHT_SHARE * backward,
    }
    if schedule in ("zb-v", "dualpipe"):
        order = folded_pipeline.zb_v if schedule == "zb-v" else folded_pipeline.dualpipe
        found = folded_pipeline.play_folded([order(p, m, i) for i in range(p)], duration_s)
    else:
        v = len(forward) // p
        orders = [
            {
                "1f1b": lambda i: pipeline.one_f_one_b(p, m, i),
                "gpipe": lambda i: pipeline.gpipe(p, m, i),
                "interleaved": lambda i: pipeline.interleaved(p, m, v, i),
                "zb-h1": lambda i: pipeline.zero_bubble(p, m, i, False),
                "zb-h2": lambda i: pipeline.zero_bubble(p, m, i, True),
            }[schedule](i)
            for i in range(p)
        ]
        found = pipeline_time.play_chunks(orders, duration_s)
    own_start = schedule in ("zb-h2", "zb-v")
    return pipeline_time.longest_span(found) if own_start else pipeline_time.makespan(found)


def errors(schedule: str, p: int, m: int, forward: Array, backward: Array) -> Array:
    found = STEPS[schedule](runs(schedule, p, m, forward, backward))
    return np.asarray(found / played(schedule, p, m, forward, backward) - 1.0)


def largest(schedule: str, p: int, m: int, forward: Array, backward: Array) -> float:
    return float(np.max(np.abs(errors(schedule, p, m, forward, backward))))


def equal(chunks: int) -> tuple[Array, Array]:
    forward = np.ones((chunks, len(RATIOS)))
    return forward, np.asarray(RATIOS) * forward


def heavier_ends(p: int, v: int, where: str) -> tuple[Array, Array]:
    """Embedding and head: on a whole stage, or on one chunk by a part of a chunk or by a part of the stage's time."""
    columns = []
    for first, last in ENDS:
        chunk = np.ones((v, p))
        if where == "stage":
            chunk[:, 0] += first
            chunk[:, -1] += last
        else:
            more = v if where == "chunk by a stage" else 1
            chunk[0, 0] += more * first
            chunk[-1, -1] += more * last
        columns.append(chunk.reshape(-1))
    forward = np.repeat(np.stack(columns, axis=1), len(RATIOS), axis=1)
    return forward, np.tile(RATIOS, len(ENDS)) * forward


def spread(p: int, v: int, seed: int, n: int = 60) -> tuple[Array, Array]:
    """Stages that differ by up to a fifth either way; a stage's chunks are alike."""
    random = np.random.default_rng([p, v, seed])
    forward = np.tile(1.0 + 0.2 * random.uniform(-1.0, 1.0, (p, n)), (v, 1))
    return forward, random.uniform(1.0, 3.0, n) * forward


@pytest.mark.parametrize(("p", "m"), ONE_CHUNK)
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "zb-h2"])
def test_equal_stages(schedule: str, p: int, m: int) -> None:
    if schedule == "zb-h2" and m < 2 * p:
        pytest.skip("too few micro-batches to fill it")
    assert largest(schedule, p, m, *equal(p)) < 1e-12


@pytest.mark.parametrize(("p", "m", "v"), CHUNKS)
def test_equal_stages_interleaved(p: int, m: int, v: int) -> None:
    assert largest("interleaved", p, m, *equal(p * v)) < 1e-12


@pytest.mark.parametrize(("p", "m"), FOLDED)
@pytest.mark.parametrize("schedule", ["zb-v", "dualpipe"])
def test_equal_stages_that_hold_both_sides_of_the_model(schedule: str, p: int, m: int) -> None:
    assert largest(schedule, p, m, *equal(2 * p if schedule == "zb-v" else p)) < 1e-12


@pytest.mark.parametrize(("p", "m"), ONE_CHUNK)
def test_heavier_end_stages(p: int, m: int) -> None:
    stages = heavier_ends(p, 1, "stage")
    for schedule in ("1f1b", "gpipe", "zb-h1"):
        assert largest(schedule, p, m, *stages) < 1e-12, schedule
    if m >= 2 * p:
        assert largest("zb-h2", p, m, *stages) < 1e-12


@pytest.mark.parametrize("where", ["stage", "chunk by a chunk", "chunk by a stage"])
@pytest.mark.parametrize(("p", "m", "v"), [*CHUNKS, *LARGER_GROUPS])
def test_heavier_end_stages_interleaved(p: int, m: int, v: int, where: str) -> None:
    assert largest("interleaved", p, m, *heavier_ends(p, v, where)) < 1e-12


@pytest.mark.parametrize(("p", "m"), [(4, 1), (4, 3), (8, 5), (16, 2)])
def test_1f1b_with_fewer_micro_batches_than_stages(p: int, m: int) -> None:
    assert largest("1f1b", p, m, *equal(p)) < 1e-12
    assert largest("1f1b", p, m, *heavier_ends(p, 1, "stage")) < 1e-12
    assert largest("zb-h1", p, m, *equal(p)) < 1e-12
    assert largest("zb-h1", p, m, *heavier_ends(p, 1, "stage")) < 0.1


@pytest.mark.parametrize(("p", "m", "v"), [(4, 1, 2), (4, 3, 3), (8, 5, 2), (8, 7, 4)])
def test_interleaved_with_fewer_micro_batches_than_stages(p: int, m: int, v: int) -> None:
    """No framework but PyTorch runs that, and nobody on purpose."""
    assert largest("interleaved", p, m, *equal(p * v)) < 1e-12
    assert largest("interleaved", p, m, *heavier_ends(p, v, "chunk by a stage")) < 0.1


@pytest.mark.parametrize(("p", "m"), ONE_CHUNK)
def test_stages_spread_by_a_fifth(p: int, m: int) -> None:
    stages = spread(p, 1, m)
    assert largest("1f1b", p, m, *stages) < 0.01
    assert largest("gpipe", p, m, *stages) < 1e-12
    assert largest("zb-h1", p, m, *stages) < 0.05
    if m >= 2 * p:
        assert largest("zb-h2", p, m, *stages) < 0.05


@pytest.mark.parametrize(("p", "m", "v"), CHUNKS)
def test_stages_spread_by_a_fifth_interleaved(p: int, m: int, v: int) -> None:
    assert largest("interleaved", p, m, *spread(p, v, m)) < 0.05


@pytest.mark.parametrize(("p", "m"), FOLDED)
@pytest.mark.parametrize("schedule", ["zb-v", "dualpipe"])
def test_stages_that_hold_both_sides_of_the_model(schedule: str, p: int, m: int) -> None:
    """Head and embedding on one chunk each, and chunks that all differ."""
    chunks = 2 * p if schedule == "zb-v" else p
    assert largest(schedule, p, m, *heavier_ends(chunks, 1, "stage")) < 0.05
    assert largest(schedule, p, m, *spread(chunks, 1, m)) < 0.05


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_interleaved_with_an_embedding_and_a_head_of_any_size(data: st.DataObject) -> None:
    p, v = data.draw(st.integers(2, 12)), data.draw(st.integers(2, 8))
    m = p * data.draw(st.integers(1, 3))
    assume(p * m * v <= 1500)
    more = [data.draw(st.floats(0.0, 0.5)) for _ in range(2)]
    ratio = data.draw(st.floats(1.0, 3.0))
    chunk = np.ones(p * v)
    chunk[0] += v * more[0]
    chunk[-1] += v * more[1]
    assert largest("interleaved", p, m, chunk[:, None], ratio * chunk[:, None]) < 1e-12


def test_equal_stages_as_the_papers_say() -> None:
    """Narayanan et al. 2021: bubble over ideal (p-1)/m, with chunks (p-1)/(mv). Qi et al. 2023: (p-1)(F+B-W) and
    (p-1)(F+B-2W). Qi et al. 2024: ZB-V has none. DeepSeek-V3: (p/2-1)(F&B+B-3W), B of both gradients."""
    p, m, v = 4, 12, 3
    forward, both = 1.0, 2.0  # F = B = W = 1
    expected = {
        "1f1b": (p - 1) * 3.0,
        "gpipe": (p - 1) * 3.0,
        "interleaved": (p - 1) * 3.0 / v,
        "zb-h1": (p - 1) * 1.0,
        "zb-h2": 0.0,
        "zb-v": 0.0,
        "dualpipe": (p / 2 - 1) * (3.0 + 2.0 - 3.0),
    }
    for schedule, bubble in expected.items():
        chunks = {"interleaved": v, "zb-v": 2}.get(schedule, 1)
        chunk = np.full((chunks * p, 1), forward / chunks)
        found = STEPS[schedule](runs(schedule, p, m, chunk, both * chunk))[0]
        assert found == pytest.approx(3.0 * m + bubble, rel=1e-12), schedule


@pytest.mark.parametrize("schedule", codes.SCHEDULES)
def test_never_below_what_a_stage_has_to_do(schedule: str) -> None:
    """The first forward comes down to a stage, and then it has its own work; of a schedule whose stages begin the next
    step one after the other only the work counts."""
    p, m = 6, 18
    chunks = {"interleaved": 3, "zb-v": 2}.get(schedule, 1)
    for forward, backward in (spread(p, chunks, 1), heavier_ends(p, chunks, "stage")):
        stages = runs(schedule, p, m, forward, backward)
        work = m * stages.both
        if schedule not in ("zb-h2", "zb-v"):
            first = stages.forward / chunks
            down = np.cumsum(first, axis=0) - first
            work = work + (np.minimum(down, down[::-1]) if schedule == "dualpipe" else down)
        assert np.all(STEPS[schedule](stages) >= work.max(axis=0) * (1.0 - 1e-12))


def test_runs_of_equal_neighbours_are_the_stages_they_stand_for() -> None:
    one = np.ones(1)
    size, count = [1.2, 1.0, 0.9, 1.5], [1, 3, 2, 1]
    forward, each = np.asarray(size)[:, None], np.asarray(count, dtype=np.float64)[:, None]
    ends = np.asarray([[0.1], [0.2]])
    short = Runs(forward, 2.0 * forward, each, 16 * one, 2 * one, 0.5 * one, ends, 2.0 * ends)
    every = np.repeat(forward, count, axis=0)
    long = Runs(every, 2.0 * every, np.ones_like(every), 16 * one, 2 * one, 0.5 * one, ends, 2.0 * ends)
    for name, step in STEPS.items():
        assert step(short)[0] == pytest.approx(step(long)[0], rel=1e-12), name


def test_a_row_alone_has_the_bits_it_has_among_others() -> None:
    """With all schedules and numbers of stages mixed, where some runs of a row are empty."""
    random = np.random.default_rng(3)
    n = 300
    p, codes_of = random.choice([1.0, 2.0, 3.0, 4.0, 8.0], n), random.integers(0, len(codes.SCHEDULES), n)
    full = np.floor(np.maximum(p - 2.0, 0.0) * random.random(n))
    count = np.stack([np.ones(n), full, np.maximum(p - 2.0, 0.0) - full, (p > 1.0) * 1.0])
    forward = random.uniform(0.5, 1.5, (4, n))
    ends = 0.2 * forward[[0, -1]]
    columns = [forward, 1.7 * forward, count, p * random.integers(1, 5, n), random.choice([1.0, 2.0, 4.0], n)]
    columns += [np.full(n, 0.5), ends, 1.7 * ends]
    together = pipeline_s(Runs(*columns), codes_of)
    for i in range(n):
        alone = pipeline_s(Runs(*(column[..., i : i + 1] for column in columns)), codes_of[i : i + 1])
        assert alone[0] == together[i]


def test_one_stage_has_no_bubble_and_each_row_its_own_schedule() -> None:
    names = codes.SCHEDULES
    alone = runs("1f1b", 1, 5, np.ones((1, 1)), np.full((1, 1), 2.0))
    for code in range(len(names)):
        assert pipeline_s(alone, np.asarray([code]))[0] == 15.0
    p, m = 4, 8
    both = np.ones((p, 2))
    pair = runs("1f1b", p, m, both, 2.0 * both)
    found = pipeline_s(pair, np.asarray([names.index("1f1b"), names.index("zb-h1")]))
    # Narayanan et al. 2021: (p-1)/m over the ideal; Qi et al. 2023: (p-1)(F + B - W)
    assert found.tolist() == pytest.approx([3.0 * (m + p - 1), 3.0 * m + (p - 1) * 1.0])
