"""Time of a pipeline from the forward and backward times of its stages, one row of a registry a schedule.

Stages come as runs of equal neighbours: (runs, n) arrays of forward time, backward time and how many stages a run has.
Within a run every closed form below is largest at one of its ends, so that runs suffice.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dscalc import codes
from dscalc.frozen import dataclass
from dscalc.records import Array

PLAYED_ROUNDS = 3  # groups of p micro-batches that are played one by one; the rest repeat the slowest stage


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
        for ahead in (np.zeros_like(count), np.maximum(count - 1.0, 0.0)):
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
    """Interleaved 1F1B: closed where the last stage is a slowest one, else played event by event.

    Args:
        runs [s, (runs, n)]: the stages.

    Returns:
        Time of a step's micro-batches [s, (n,)].

    Raises:
        nothing.

    References:
        [Narayanan2021] section 2.2; [MegatronLM] pipeline_parallel/schedules.py.
    """
    slowest, m, v, p = runs.slowest, runs.micro, runs.chunks, runs.stages
    closed = m * slowest + (_sum(runs.count * runs.both) - slowest) / v
    position = np.cumsum(runs.count, axis=0)
    last = np.max(np.where((position >= p) & (runs.count > 0.0), runs.both, 0.0), axis=0)
    played = (last < slowest * (1.0 - 1e-12)) & (np.floor(m / p) * p == m) & (p > 1.0)
    found = np.array(closed)
    for key in sorted(
        {(int(a), int(b), int(c)) for a, b, c in np.stack([p, v, np.minimum(m, PLAYED_ROUNDS * p)]).T[played]}
    ):
        rows = np.flatnonzero(played & (p == key[0]) & (v == key[1]) & (np.minimum(m, PLAYED_ROUNDS * p) == key[2]))
        stage = np.arange(key[0], dtype=np.float64)[:, None]
        place = (stage[:, :, None] >= position[:, rows].T[None, :, :]).sum(axis=2)
        forward = np.take_along_axis(runs.forward[:, rows], place, axis=0) / key[1]
        backward = np.take_along_axis(runs.backward[:, rows], place, axis=0) / key[1]
        found[rows] = _played(forward, backward, key[2], key[1]) + (m[rows] - key[2]) * slowest[rows]
    return found


def _played(forward: Array, backward: Array, m: int, v: int) -> Array:
    """Interleaved 1F1B played with chunk times (p, n): each stage keeps its written order."""
    p = forward.shape[0]
    total = m * v
    orders: list[list[tuple[bool, int, int]]] = []
    for stage in range(p):
        warm = min(total, 2 * (p - 1 - stage) + (v - 1) * p)

        def one(k: int, ahead: bool) -> tuple[bool, int, int]:
            round_, place = divmod(k, p * v)
            chunk = place // p
            return ahead, round_ * p + place % p, chunk if ahead else v - 1 - chunk

        order = [one(k, True) for k in range(warm)]
        for k in range(warm, total):
            order += [one(k, True), one(k - warm, False)]
        orders.append(order + [one(k, False) for k in range(total - warm, total)])
    ended: dict[tuple[bool, int, int], Array] = {}
    free = [np.zeros(forward.shape[1]) for _ in range(p)]
    position = [0] * p
    waiting = True
    while waiting:
        waiting = False
        for stage, order in enumerate(orders):
            while position[stage] < len(order):
                ahead, k, chunk = order[position[stage]]
                place = chunk * p + stage
                if ahead:
                    needs = [(True, k, place - 1)] if place else []
                else:
                    needs = [(True, k, place)] + ([(False, k, place + 1)] if place < p * v - 1 else [])
                if any(need not in ended for need in needs):
                    break
                start = free[stage]
                for need in needs:
                    start = np.maximum(start, ended[need])
                free[stage] = ended[ahead, k, place] = start + (forward if ahead else backward)[stage]
                position[stage] += 1
                waiting = True
    last = free[0]
    for time_s in free[1:]:
        last = np.maximum(last, time_s)
    return last


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
        Time of a step's micro-batches, a lower bound [s, (n,)].

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
        Time of a step's micro-batches, a lower bound [s, (n,)].

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
    for code in np.unique(schedule).tolist():
        rows = np.flatnonzero((schedule == code) & (runs.stages > 1.0))
        if rows.size:
            part = Runs(
                runs.forward[:, rows],
                runs.backward[:, rows],
                runs.count[:, rows],
                runs.micro[rows],
                runs.chunks[rows],
                runs.weight_share[rows],
            )
            found[rows] = STEPS[codes.SCHEDULES[code]](part)
    return found
