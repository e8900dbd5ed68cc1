"""Pipeline schedules played with durations: when does the last operation end?

Each stage runs its written order one after the other; a block of operations starts when the stage is free and what it
needs has ended, and its results are there when all of it has ended. Durations are arrays, so that one play serves many
pipelines of the same shape. Nothing here knows a closed form.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from tests.oracles.pipeline import Op, _needs

Times = NDArray[np.float64]
T = TypeVar("T", bound=Hashable)


def play(
    orders: Sequence[Sequence[tuple[T, ...]]],
    needs: Callable[[T], Iterable[T]],
    duration_s: Callable[[T], Times],
) -> tuple[Times, Times]:
    """First start and last end of each stage, (stages, n)."""
    ended: dict[T, Times] = {}
    free: list[Times | None] = [None] * len(orders)
    began: list[Times | None] = [None] * len(orders)
    position = [0] * len(orders)
    progress = True
    while progress:
        progress = False
        for stage, order in enumerate(orders):
            while position[stage] < len(order):
                block = order[position[stage]]
                before = {need for op in block for need in needs(op)}.difference(block)
                if not all(need in ended for need in before):
                    break
                durations = [duration_s(op) for op in block]
                start = np.zeros_like(durations[0])
                for at in (free[stage], *(ended[need] for need in before)):
                    start = start if at is None else np.maximum(start, at)
                end = start + np.sum(durations, axis=0)
                ended.update(dict.fromkeys(block, end))
                began[stage] = start if began[stage] is None else began[stage]
                free[stage] = end
                position[stage] += 1
                progress = True
    assert [len(order) for order in orders] == position, "the schedule waits for itself"
    return np.asarray(began), np.asarray(free)


def makespan(began_and_ended: tuple[Times, Times]) -> Times:
    """Time from the first start to the last end."""
    began, ended = began_and_ended
    return np.max(ended, axis=0) - np.min(began, axis=0)


def longest_span(began_and_ended: tuple[Times, Times]) -> Times:
    """The longest time that a stage spends between its first start and its last end: what a step costs where stages
    need not start the next step together (Qi et al. 2023, section 4)."""
    began, ended = began_and_ended
    return np.max(ended - began, axis=0)


def play_chunks(orders: list[list[Op]], duration_s: dict[str, Times]) -> tuple[Times, Times]:
    """As ``play``, where chunk c of stage i is model chunk c p + i.

    Args:
        orders: operations of each stage, in order.
        duration_s: by kind (F, B, W), seconds of each chunk of the model, (chunks, n).
    """
    p, places = len(orders), len(duration_s["F"])
    blocks = [[((kind, k, chunk * p + i),) for kind, k, chunk in order] for i, order in enumerate(orders)]
    return play(blocks, lambda op: _needs(*op, places), lambda op: duration_s[op[0]][op[2]])
