"""Time of a pipeline from the forward and backward times of its stages, one row of a registry a schedule.

Stages come as runs of equal neighbours: (runs, n) arrays of forward time, backward time and how many stages a run has.
A step lasts as long as its longest chain of operations that wait for each other. Each closed form is the longest of a
few chains; within a run all of them are longest at one of its ends, so that runs suffice.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dscalc import codes
from dscalc.cost.columns import used
from dscalc.cost.pipeline_runs import Runs, places, stage_sum
from dscalc.cost.zero_bubble import dualpipe_s, zb_h1_s, zb_h2_s, zb_v_s
from dscalc.frozen import dataclass
from dscalc.records import Array


def one_forward_one_backward_s(runs: Runs) -> Array:
    """1F1B with stages of any size.

    A stage waits for the first micro-batch, then for the first backward to come back or for earlier stages that are
    slower in going forward, and the same the other way round after its last forward; the one for which its work and all
    that take longest sets the pace. With no more micro-batches than stages after it, the first backward follows the
    last forward.

    Args:
        runs [s, (runs, n)]: the stages.

    Returns:
        Time of a step's micro-batches [s, (n,)].

    Raises:
        nothing.

    References:
        [Narayanan2021] section 2.2; closed form derived, equal to a simulation where the end stages are heavier.
    """
    total, m, p = stage_sum(runs.count * runs.both), runs.micro, runs.stages
    best, most_f, most_b = (np.zeros_like(total) for _ in range(3))
    listed = list(places(runs.forward, runs.backward, runs.count))
    for number, place in enumerate(listed):
        (f, b), pair, before = place.own, place.own[0] + place.own[1], place.before[0] + place.before[1]
        rest, later = total - before - pair, p - 1.0 - place.passed
        ahead = np.minimum(later, m - 1.0)  # forwards while the first backward is on its way, backwards after the last
        most_f, most_b = (
            np.where(place.there, np.maximum(most, one), most) for most, one in ((most_f, f), (most_b, b))
        )
        first = np.maximum(np.maximum(rest, ahead * most_f) - ahead * f, 0.0)
        last = np.maximum(np.maximum(rest, ahead * most_b) - ahead * b, 0.0)
        for other in listed[number + 1 : -1]:  # on from a stage before the last one, where those behind it are light
            steps = np.minimum(other.passed - place.passed, m - 1.0)
            there = sum(other.before) + sum(other.own) - before - pair
            first, last = (
                np.where(other.there, np.maximum(idle, there - steps * own), idle)
                for idle, own in ((first, f), (last, b))
            )
        idle = np.where(later < m - 1.0, first + last, np.maximum(first, last))
        best = np.where(place.there, np.maximum(best, before + m * pair + idle), best)
    return best


def gpipe_s(runs: Runs) -> Array:
    """All forwards, then all backwards.

    Args:
        runs [s, (runs, n)]: the stages.

    Returns:
        Time of a step's micro-batches [s, (n,)].

    Raises:
        nothing.

    References:
        [Huang2019] section 2.3; exact.
    """
    there = runs.count > 0.0
    most = np.where(there, runs.forward, 0.0).max(axis=0) + np.where(there, runs.backward, 0.0).max(axis=0)
    return np.asarray(stage_sum(runs.count * runs.both) + (runs.micro - 1.0) * most)


@dataclass(frozen=True, slots=True, eq=False)
class _Way:
    """Forward or backward of an interleaved schedule, of one micro-batch through one chunk of each stage.

    Attributes:
        chunk: a chunk of a stage, on the end stages one that is not the model's first or last [s, (runs, n)].
        embedding, head: what the model's first and last chunk take beyond that [s, (n,)].
        whole: one such chunk on every stage [s, (n,)].
        arrival: until the first micro-batch has come through all chunks but the last [s, (n,)].
    """

    chunk: Array
    embedding: Array
    head: Array
    whole: Array
    arrival: Array


def _way(runs: Runs, stage: Array, ends: Array, group: Array) -> _Way:
    v = runs.chunks
    embedding, head = np.where(v > 1.0, ends, 0.0)
    chunk = np.stack([stage[0] - embedding, *stage[1:-1], stage[-1] - head]) / v
    whole = stage_sum(runs.count * chunk)
    later = np.where(runs.count[1:] > 0.0, chunk[1:], 0.0).max(axis=0)
    most = np.maximum(later, chunk[0])
    first = (group - 1.0) * (chunk[0] + embedding)  # the first stage does its first chunk of the other micro-batches
    wait = np.maximum(
        (v - 1.0) * np.maximum(group * later, whole), first + (v - 2.0) * np.maximum(group * most, whole) + most
    )
    return _Way(chunk, embedding, head, whole, whole + embedding - chunk[-1] + wait)


def interleaved_s(runs: Runs) -> Array:
    """Interleaved 1F1B with stages of any size.

    Micro-batches go through a chunk of the model in groups of p. An operation waits for its stage and for another
    operation, so a step lasts as long as its longest chain of operations. That chain follows one stage through most of
    the step. It gets to the last stage as soon as the others let it, and to another one in the longest of these ways:

    - with the first forward, perhaps behind the first stage's first chunk of the first group;
    - up to the last stage, and down with the first backward or with the last backward of the first group there;
    - up to the last stage, through the first group there, and round to the second chunk of the second group.

    It leaves in one of the same ways with forward and backward swapped, the end of the step being its mirrored start.

    Args:
        runs [s, (runs, n)]: the stages; the first and the last run are one stage each.

    Returns:
        Time of a step's micro-batches [s, (n,)].

    Raises:
        nothing.

    References:
        [Narayanan2021] section 2.2; [MegatronLM] pipeline_parallel/schedules.py for the order; closed form derived,
        docs/explanation/step-time.md says how far from a played schedule.
    """
    m, v, p = runs.micro, runs.chunks, runs.stages
    group = m / np.maximum(np.floor(m / p), 1.0)
    again, but_one, warm_up, two_groups = m > group, group - 1.0, (v - 1.0) * group, (v + 1.0) * group
    ways = (_way(runs, runs.forward, runs.ends_forward, group), _way(runs, runs.backward, runs.ends_backward, group))
    turn = ways[0].chunk[-1] + ways[0].head + ways[1].chunk[-1] + ways[1].head  # of the model's last chunk
    back = [way.arrival + turn + other.whole - other.chunk[-1] for way, other in zip(ways, ways[::-1], strict=True)]
    second = [np.where(again, way.arrival + group * turn + way.chunk[-1], -np.inf) for way in ways]
    best: Array = m * runs.both[-1]
    for way in ways:
        best = best + (way.arrival - warm_up * way.chunk[-1])
    for number, place in enumerate(places(ways[0].chunk[:-1], ways[1].chunk[:-1], runs.count[:-1])):
        pair, later = place.own[0] + place.own[1], 2.0 * (p - 1.0 - place.passed)
        done = np.minimum(warm_up + later + 1.0, m * v)  # forwards before the first backward, with it
        third = 2.0 * group - later  # backwards before the second chunk of the second group
        more = np.where(again, but_one, 0.0) * (turn - pair)  # with the last backward of the group, not the first
        time_s = m * runs.both[0] if number == 0 else m * v * pair
        detours = []
        for way, to_back, to_second, one, other, before, before_other in zip(
            ways, back, second, place.own, place.own[::-1], place.before, place.before[::-1], strict=True
        ):
            with_back = to_back - before_other - other - done * one
            with_second = to_second + before - two_groups * one - third * other
            if number == 0:  # its first chunk is among what it has done by then, of the second group in part
                begun = np.maximum(2.0 * p - 1.0 - group, 0.0)
                with_back = with_back - way.embedding * (group + np.where(again, begun, 0.0))
                rest = np.where(again, np.minimum(2.0 * (p - 1.0), group) - begun, 0.0)
                with_back = with_back + np.maximum(more - rest * way.embedding, 0.0)
                detours.append(np.maximum(np.maximum(with_back, with_second - 2.0 * group * way.embedding), 0.0))
            else:
                straight = np.maximum(way.chunk[0] + way.embedding - one, 0.0) * but_one + before + way.embedding
                with_back = with_back + np.maximum(more, 0.0)
                detours.append(np.maximum(np.maximum(with_back, with_second) - straight, 0.0))
                time_s = time_s + straight
        # with one group the detours there and back would overlap
        time_s = time_s + np.where(again, detours[0] + detours[1], np.maximum(detours[0], detours[1]))
        best = np.where(place.there, np.maximum(best, time_s), best)
    return best


STEPS: dict[str, Callable[[Runs], Array]] = {
    "1f1b": one_forward_one_backward_s,
    "interleaved": interleaved_s,
    "gpipe": gpipe_s,
    "zb-h1": zb_h1_s,
    "zb-h2": zb_h2_s,
    "zb-v": zb_v_s,
    "dualpipe": dualpipe_s,
}


def pipeline_s(runs: Runs, schedule: NDArray[np.intp]) -> Array:
    """Time of a step's micro-batches under the schedule of each layout.

    Args:
        runs [s, (runs, n)]: the stages.
        schedule [code, (n,)]: index into ``codes.SCHEDULES``.

    Returns:
        Time [s, (n,)]; with one stage the micro-batches follow each other.

    Raises:
        nothing.

    References:
        [Narayanan2021] section 2.2, [Huang2019] section 2.3, [Qi2023] section 2, [Qi2024], [DeepSeekV3] table 2.
    """
    found = runs.micro * runs.slowest
    several = runs.stages > 1.0
    for code in used(schedule, len(codes.SCHEDULES)).tolist():
        rows = np.flatnonzero((schedule == code) & several)
        if rows.size:
            every = rows.size == found.size
            part = runs if every else Runs(*(getattr(runs, name).take(rows, axis=-1) for name in Runs.__match_args__))
            found[rows] = STEPS[codes.SCHEDULES[code]](part)
    return found
