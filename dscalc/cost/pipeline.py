"""Time of a pipeline from the forward and backward times of its stages, one row of a registry a schedule.

Stages come as runs of equal neighbours: (runs, n) arrays of forward time, backward time and how many stages a run has.
Within a run every closed form below is largest at one of its ends, so that runs suffice.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from dscalc import codes
from dscalc.cost.columns import used
from dscalc.frozen import dataclass
from dscalc.records import Array

AMONG_FEW = 0.35  # interleaved with no more micro-batches than stages: where between its two bounds, from played ones


def _sum(runs: Array) -> Array:
    """Sum over runs, first to last: the order of a library's sum depends on how many columns there are."""
    total: Array = runs[0]
    for row in runs[1:]:
        total = total + row
    return total


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Stages of a pipeline in order, equal neighbours together.

    Attributes:
        forward, backward: seconds of one micro-batch on one stage, all its chunks [s, (runs, n)].
        count: stages of the run, 0 where there are none [stages, (runs, n)].
        micro: micro-batches [micro-batches, (n,)].
        chunks: virtual stages of a stage [chunks, (n,)].
        weight_share: part of the backward that makes weight gradients [fraction, (n,)].
    """

    forward: Array
    backward: Array
    count: Array
    micro: Array
    chunks: Array
    weight_share: Array

    @property
    def both(self) -> Array:
        """Forward and backward [s, (runs, n)]."""
        return self.forward + self.backward

    @property
    def stages(self) -> Array:
        """Stages in all [stages, (n,)]."""
        return _sum(self.count)

    @property
    def slowest(self) -> Array:
        """Time of the slowest stage [s, (n,)]."""
        return np.asarray(np.max(np.where(self.count > 0.0, self.both, 0.0), axis=0))


def _ends(count: Array) -> list[Array]:
    """Stages of a run before its first and before its last one; nothing of a run that nobody has."""
    most = count.max(initial=0.0)
    ends = [np.zeros_like(count), np.maximum(count - 1.0, 0.0)]
    return ends if most > 1.0 else ends[:1] if most > 0.0 else []


def one_forward_one_backward_s(runs: Runs) -> Array:
    """1F1B with stages of any size; where there are fewer micro-batches than stages, as GPipe.

    Args:
        runs [s, (runs, n)]: the stages.

    Returns:
        Time of a step's micro-batches [s, (n,)].

    Raises:
        nothing.

    References:
        [Narayanan2021] section 2.2; closed form derived, equal to a simulation where the end stages are heavier.
    """
    both, m = runs.both, runs.micro
    whole = runs.count * both
    total = _sum(whole)
    before = np.zeros_like(total)
    passed = np.zeros_like(total)
    best = np.zeros_like(total)
    p = runs.stages
    for f, b, t, count in zip(runs.forward, runs.backward, both, runs.count, strict=True):
        for ahead in _ends(count):
            rest = total - before - (ahead + 1.0) * t
            later = p - 1.0 - passed - ahead
            idle = np.maximum(rest - later * f, 0.0) + np.maximum(rest - later * b, 0.0)
            time_s = before + ahead * t + m * t + idle
            best = np.where(count > 0.0, np.maximum(best, time_s), best)
        before, passed = before + count * t, passed + count
    return np.where(m < p, gpipe_s(runs), best)


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
    return np.asarray(_sum(runs.count * runs.both) + (runs.micro - 1.0) * most)


def interleaved_s(runs: Runs) -> Array:
    """Interleaved 1F1B with stages of any size.

    A stage waits for the first micro-batch, works through its share, and waits in two more places, forward and again
    backward where all goes the other way round. Its warm-up is w = 2(p-1-i) + (v-1)p chunks; once that is done, the
    first backward may not have come back yet. And the second group of p micro-batches comes round to it only after
    the last stage has done p pairs of forward and backward. The stage for which all that is longest sets the pace.
    With no more micro-batches than stages others get in its way, up to a bound: every bubble as long as the slowest
    stage's.

    Args:
        runs [s, (runs, n)]: the stages.

    Returns:
        Time of a step's micro-batches [s, (n,)].

    Raises:
        nothing.

    References:
        [Narayanan2021] section 2.2; [MegatronLM] pipeline_parallel/schedules.py for the order; closed form derived,
        within 1.5 % of a played schedule with heavier end stages (3 % with m = p), 5 % where all differ by up to 20 %.
    """
    both, m, v, p = runs.both, runs.micro, runs.chunks, runs.stages
    total, slowest = _sum(runs.count * both), runs.slowest
    there, rounds = runs.count > 0.0, (v - 1.0) * p
    last = both[0]
    for pair, is_there in zip(both[1:], there[1:], strict=True):
        last = np.where(is_there, pair, last)
    round_s = [  # until the last stage has done p pairs, less what the stage itself does in that time
        _sum(runs.count * way) + rounds * np.where(there, way, 0.0).max(axis=0) + p * last
        for way in (runs.forward, runs.backward)
    ]
    again = m > p
    before, passed, best = np.zeros_like(total), np.zeros_like(total), np.zeros_like(total)
    for f, b, t, count in zip(runs.forward, runs.backward, both, runs.count, strict=True):
        for ahead in _ends(count):
            rest, place = total - before - (ahead + 1.0) * t, passed + ahead
            warm = np.minimum(m * v - rounds - 1.0, 2.0 * (p - 1.0 - place))
            idle = np.zeros_like(total)
            for way, comes in zip((f, b), round_s, strict=True):
                first = np.maximum(rest - warm * way, 0.0)
                second = comes - (warm + rounds) * way - first - 2.0 * (place + 1.0) * t
                idle = idle + first + np.where(again, np.maximum(second, 0.0), 0.0)
            time_s = m * t + (before + ahead * t + idle) / v
            best = np.where(count > 0.0, np.maximum(best, time_s), best)
        before, passed = before + count * t, passed + count
    bound = m * slowest + (total - slowest) / v
    return np.where(again, best, best + AMONG_FEW * np.maximum(bound - best, 0.0))


def _bubble(runs: Runs, weight: float) -> Array:
    """Slowest stage throughout, and (p - 1) times what F + B - weight W is on average, never under nothing."""
    p = runs.stages
    w = runs.weight_share * runs.backward
    each = _sum(runs.count * (runs.forward + runs.backward - w - weight * w)) / np.maximum(p, 1.0)
    return np.asarray(runs.micro * runs.slowest + (p - 1.0) * np.maximum(each, 0.0))


def zb_h1_s(runs: Runs) -> Array:
    """ZB-H1: (p - 1)(F + B - W) over the slowest stage's time, B the input and W the weight gradient.

    Args:
        runs [s, (runs, n)]: the stages.

    Returns:
        Time of a step's micro-batches, up to 5 % above a played schedule where stages differ [s, (n,)].

    Raises:
        nothing.

    References:
        [Qi2023] section 2.2.
    """
    return _bubble(runs, 1.0)


def zb_h2_s(runs: Runs) -> Array:
    """ZB-H2: (p - 1)(F + B - 2W) over the slowest stage's time; stages begin the next step one after the other.

    Args:
        runs [s, (runs, n)]: the stages.

    Returns:
        Time that the slowest stage spends on a step's micro-batches [s, (n,)].

    Raises:
        nothing.

    References:
        [Qi2023] sections 2.3 and 4.
    """
    return _bubble(runs, 2.0)


def zb_v_s(runs: Runs) -> Array:
    """ZB-V: no bubble where forward, input and weight gradient take the same, else what they differ by.

    Args:
        runs [s, (runs, n)]: the stages.

    Returns:
        Time of a step's micro-batches, within 5 % of a greedy schedule with 4 p micro-batches [s, (n,)].

    Raises:
        nothing.

    References:
        [Qi2024] section 3.
    """
    p = np.maximum(runs.stages, 1.0)
    w = runs.weight_share * runs.backward
    each = _sum(runs.count * np.maximum(runs.forward + runs.backward - 3.0 * w, 0.0)) / p
    return np.asarray(runs.micro * runs.slowest + (p - 1.0) * each)


def dualpipe_s(runs: Runs) -> Array:
    """DualPipe: (p/2 - 1)(F&B + B - 3W), F&B taken as F + B.

    Args:
        runs [s, (runs, n)]: the stages.

    Returns:
        Time of a step's micro-batches, within 5 % of a greedy schedule with 4 p micro-batches [s, (n,)].

    Raises:
        nothing.

    References:
        [DeepSeekV3] table 2.
    """
    p = np.maximum(runs.stages, 1.0)
    w = runs.weight_share * runs.backward
    each = _sum(runs.count * (runs.forward + 2.0 * runs.backward - 3.0 * w)) / p
    return np.asarray(runs.micro * runs.slowest + np.maximum(p / 2.0 - 1.0, 0.0) * np.maximum(each, 0.0))


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
    in_pipeline = runs.stages > 1.0
    for code in used(schedule, len(codes.SCHEDULES)).tolist():
        rows = np.flatnonzero((schedule == code) & in_pipeline)
        if rows.size:
            # take keeps a run's stages side by side in memory, an index in brackets would not: it is far slower
            part = Runs(*(getattr(runs, field.name).take(rows, axis=-1) for field in fields(Runs)))
            found[rows] = STEPS[codes.SCHEDULES[code]](part)
    return found
