"""Schedules that put weight gradients into the bubble: F forward, B input gradient, W weight gradient.

A step lasts as long as its longest chain of operations. It does all that one stage does, gets to that stage in the
longest of a few ways, and leaves it in the longest of a few. Ways are written as what they take beyond the operations
of the stage that they replace; below, ``to`` are those that lead to a stage and ``away`` those that lead away from it.
"""

from __future__ import annotations

import numpy as np

from dscalc.cost.pipeline_runs import Runs, places, stage_sum
from dscalc.records import Array


def _longest(*ways: Array) -> Array:
    found = ways[0]
    for way in ways[1:]:
        found = np.maximum(found, way)
    return found


def _one_chunk_s(runs: Runs, times: float) -> Array:
    """ZB-H1 (once) and ZB-H2 (twice): stage i begins with once or twice p - i forwards and puts off i or 2 i weight
    gradients. Of ZB-H2 the span of a stage counts, from its own start."""
    m, p, w_share = runs.micro, runs.stages, runs.weight_share
    total_f, total_b = stage_sum(runs.count * runs.forward), stage_sum(runs.count * runs.backward) * (1.0 - w_share)
    last_f, last_b, last_w = runs.forward[-1], runs.backward[-1] * (1.0 - w_share), runs.backward[-1] * w_share
    first_w = runs.backward[0] * w_share
    own_start, held = times > 1.0, np.minimum(p, m)
    best = np.zeros_like(m)
    for place in places(runs.forward, runs.backward, runs.count):
        f, b, w = place.own[0], place.own[1] * (1.0 - w_share), place.own[1] * w_share
        before_f, before_b = place.before[0], place.before[1] * (1.0 - w_share)
        begun = np.minimum(m, times * (p - place.passed) - (times - 1.0))
        put_off = np.minimum(times * place.passed, m - 1.0)
        to = np.maximum(  # with the first forward; with the first backward, or the last before weight gradients begin
            before_f, total_f + total_b - before_b - b - begun * f + put_off * np.maximum(last_f + last_b - f - b, 0.0)
        )
        down = before_b + first_w - (put_off + 1.0) * w  # with the last backward
        if own_start:
            way = to + np.maximum(-before_f, down)
        else:  # or up with the last forward, to stay at the last stage or to come down with the last backward
            up = total_f - before_f - f - begun * b - held * w + np.maximum(last_b + held * last_w, total_b + first_w)
            # where the first backward follows the last forward, a chain that comes with the one has missed the other
            to_last_forward = np.where(begun < m, to, before_f)
            way = np.maximum(to + np.maximum(down, 0.0), to_last_forward + up)
        best = np.where(place.there, np.maximum(best, m * (f + place.own[1]) + way), best)
    return best


def zb_h1_s(runs: Runs) -> Array:
    """ZB-H1; with equal stages (p - 1) max(F, B, F + B - W) over a stage's time, a little more where F is long.

    Args:
        runs [s, (runs, n)]: the stages.

    Returns:
        Time of a step's micro-batches [s, (n,)].

    Raises:
        nothing.

    References:
        [Qi2023] section 2.2; closed form derived, docs/explanation/step-time.md says how far from a played schedule.
    """
    return _one_chunk_s(runs, 1.0)


def zb_h2_s(runs: Runs) -> Array:
    """ZB-H2, from 2 p micro-batches; with equal stages (p - 1) max(B - F, F + B - 2W, 0) over a stage's time.

    Stages begin the next step one after the other.

    Args:
        runs [s, (runs, n)]: the stages.

    Returns:
        Longest time that a stage spends between the start and the end of its part of a step [s, (n,)].

    Raises:
        nothing.

    References:
        [Qi2023] sections 2.3 and 4; closed form derived.
    """
    return _one_chunk_s(runs, 2.0)


def zb_v_s(runs: Runs) -> Array:
    """ZB-V, from 2 p micro-batches: no bubble where forward, input and weight gradient take the same.

    A stage holds a chunk on the way down the pipeline and one on the way up, each taken as half of its time. It begins
    with forwards, has p - i backwards of the upper chunk before the first of the lower one, and puts off 2 i weight
    gradients. Stages begin the next step one after the other.

    Args:
        runs [s, (runs, n)]: the stages.

    Returns:
        Longest time that a stage spends between the start and the end of its part of a step [s, (n,)].

    Raises:
        nothing.

    References:
        [Qi2024] section 3; [PyTorch] torch/distributed/pipelining/schedules.py for the order; closed form derived.
    """
    m, p, w_share = runs.micro, runs.stages, runs.weight_share
    forward, backward = 0.5 * runs.forward, 0.5 * runs.backward
    total_f, total_b = stage_sum(runs.count * forward), stage_sum(runs.count * backward) * (1.0 - w_share)
    (first_f, first), (last_f, last) = ((forward[i], backward[i]) for i in (0, -1))
    first_w, last_b = first * w_share, last * (1.0 - w_share)
    # the last stage has done the forwards and the backward that come before its steady state
    filled = np.maximum(total_f - last_f, 2.0 * total_f + total_b - last_b - 2.0 * p * last_f) + 2.0 * p * last_f + last
    best = np.zeros_like(m)
    from_first: Array | None = None
    for place in places(forward, backward, runs.count):
        f, both_b, i = *place.own, place.passed
        b, w = both_b * (1.0 - w_share), both_b * w_share
        before_f, before_b = place.before[0], place.before[1] * (1.0 - w_share)
        rest_f, rest_b = total_f - before_f - f, total_b - before_b - b
        steady = filled - (3.0 * p - i - 1.0) * f - (p - i) * both_b
        to = _longest(
            before_f,  # with the first forward on its way down, up the other chunks, or back as backward
            total_f + rest_f - (2.0 * (p - i) - 1.0) * f,
            2.0 * (total_f - p * f) + before_b + (p - 1.0 - i) * np.maximum(first_f + first - f - both_b, 0.0),
            steady + last_f + rest_b - f,  # from the last stage's steady state, with a backward or with a forward
            steady + last_f + last + rest_f - f - both_b,
        )
        top = rest_b - (p - i) * both_b - 2.0 * i * w - np.where(i == 0.0, w, 0.0)
        away = _longest(
            -before_f,
            before_b + first_w - (2.0 * i + 1.0) * w,  # with the last backward down
            top + total_b + first_w,  # with the last backward of the upper chunks up to the last stage, and down
            top + last + (2.0 * p - 2.0) * last * w_share - (total_f - last_f),  # or to stay there
        )
        if from_first is None:
            from_first = away
        else:  # with the last forward to the first stage, and away from there
            away = np.maximum(away, before_f + (p + 1.0) * first - (p + 1.0 + i) * both_b + from_first)
        best = np.where(place.there, np.maximum(best, 2.0 * m * (f + both_b) + to + away), best)
    return best


def dualpipe_s(runs: Runs) -> Array:
    """DualPipe: (p/2 - 1)(F&B + B - 3W) with equal stages, F&B taken as F + B and B of both gradients.

    Half of the micro-batches enter at either end; stages i and p-1-i hold the same two chunks of the model, so that the
    first half of the pipeline is as the second. Of a run, the stage nearest to the middle waits longest.

    Args:
        runs [s, (runs, n)]: the stages.

    Returns:
        Time of a step's micro-batches [s, (n,)].

    Raises:
        nothing.

    References:
        [DeepSeekV3] table 2; [DualPipe] dualpipe.py for the order; closed form derived.
    """
    m, p, half, w_share = runs.micro, runs.stages, runs.stages / 2.0, runs.weight_share
    half_f, half_b = 0.5 * stage_sum(runs.count * runs.forward), 0.5 * stage_sum(runs.count * runs.backward)
    end, end_b = runs.backward[0], runs.backward[0] * (1.0 - w_share)
    back = (1.0 - w_share) * half_b
    arrives = np.maximum(p * runs.forward[0], 2.0 * half_f)  # the first forward at the far end
    middle_f, middle = _middle(runs)
    filled = np.maximum(half_f - middle_f, arrives + back - (1.0 - w_share) * middle - (p + 1.0) * middle_f)
    filled = filled + (p + 1.0) * middle_f + middle
    # from the end's last forward on: its own backwards, or with the last one to the middle and back
    after = np.maximum((half + 1.0) * end, 2.0 * (end + back - end_b))
    best, before_f, before_b, passed = (np.zeros_like(m) for _ in range(4))
    for f, b_and_w, count in zip(runs.forward, runs.backward, runs.count, strict=True):
        at = np.minimum(np.maximum(half - 1.0, passed), passed + np.maximum(count - 1.0, 0.0))
        ahead, near, first_half = at - passed, np.minimum(at, p - 1.0 - at), at < half
        outer_f = before_f + ahead * f
        outer_b = before_b + ahead * b_and_w
        outer_f = np.where(first_half, outer_f, 2.0 * half_f - outer_f - f)
        outer_b = np.where(first_half, outer_b, 2.0 * half_b - outer_b - b_and_w)
        outer, pair = outer_f + outer_b, f + b_and_w
        back_outer, b, w = (1.0 - w_share) * outer_b, (1.0 - w_share) * b_and_w, w_share * b_and_w
        inner = half_f + half_b - outer - pair
        to = _longest(
            outer_f,  # with the first forward from the near end, or with the first backward of the other direction
            arrives + back_outer - (p + np.where(near >= half - 1.0, 1.0, 0.0)) * f,
            filled + inner - (3.0 * half - near) * f - (half - near) * b_and_w,  # from the filled middle
        )
        behind = (half + near + 1.0) * b_and_w
        away = _longest(
            np.zeros_like(m),
            outer + after - behind,  # with the last forward to the end
            outer + end + back_outer - end_b + (half - near + 1.0) * b + half * w - behind,  # and back
            inner + half_f + half_b + after - (half - near) * f - (3.0 * half - near) * b_and_w,  # by the middle
        )
        best = np.where(count > 0.0, np.maximum(best, m * pair + to + away), best)
        before_f, before_b, passed = before_f + count * f, before_b + count * b_and_w, passed + count
    return best


def _middle(runs: Runs) -> tuple[Array, Array]:
    """Forward and backward of the last stage of the pipeline's first half."""
    forward, backward, passed = runs.forward[0], runs.backward[0], np.zeros_like(runs.micro)
    for f, b, count in zip(runs.forward, runs.backward, runs.count, strict=True):
        here = (passed <= runs.stages / 2.0 - 1.0) & (count > 0.0)
        forward, backward, passed = np.where(here, f, forward), np.where(here, b, backward), passed + count
    return forward, backward
