"""Pipeline schedules played with durations: when does the last operation end?

Each stage runs the operations of its written order one after the other; an operation starts when the stage is free and
what it needs has ended. Nothing here knows a closed form.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.oracles.pipeline import Op, _needs


def makespan(orders: list[list[Op]], duration: dict[str, Sequence[Sequence[float]]]) -> float:
    """Time from the first start to the last end.

    Args:
        orders: operations of each stage, in order.
        duration: by kind (F, B, W), seconds of each chunk of each stage: ``duration["F"][stage][chunk]``.
    """
    p = len(orders)
    chunks = len(duration["F"][0])
    ended: dict[tuple[str, int, int], float] = {}
    free, position = [0.0] * p, [0] * p
    progress = True
    while progress:
        progress = False
        for stage, order in enumerate(orders):
            while position[stage] < len(order):
                kind, k, chunk = order[position[stage]]
                place = chunk * p + stage
                needs = list(_needs(kind, k, place, p * chunks))
                if not all(need in ended for need in needs):
                    break
                start = max([free[stage], *(ended[need] for need in needs)])
                free[stage] = ended[kind, k, place] = start + duration[kind][stage][chunk]
                position[stage] += 1
                progress = True
    assert [len(order) for order in orders] == position, "the schedule waits for itself"
    return max(free)


def longest_span(orders: list[list[Op]], duration: dict[str, Sequence[Sequence[float]]]) -> float:
    """The longest time that a stage spends between its first start and its last end: what a step costs where stages
    need not start the next step together (Qi et al. 2023, section 4)."""
    p = len(orders)
    chunks = len(duration["F"][0])
    ended: dict[tuple[str, int, int], float] = {}
    free, position = [0.0] * p, [0] * p
    began: list[float | None] = [None] * p
    progress = True
    while progress:
        progress = False
        for stage, order in enumerate(orders):
            while position[stage] < len(order):
                kind, k, chunk = order[position[stage]]
                place = chunk * p + stage
                needs = list(_needs(kind, k, place, p * chunks))
                if not all(need in ended for need in needs):
                    break
                start = max([free[stage], *(ended[need] for need in needs)])
                began[stage] = start if began[stage] is None else began[stage]
                free[stage] = ended[kind, k, place] = start + duration[kind][stage][chunk]
                position[stage] += 1
                progress = True
    return max(end - (start or 0.0) for end, start in zip(free, began, strict=True))
