"""Pipelines whose schedule has no written order, played greedily: a free stage takes the backward that is ready, else a
forward, else a weight gradient.

ZB-V (Qi et al. 2024): stage i holds model chunks i and 2p-1-i, each of half its time. DualPipe (DeepSeek-V3 2024,
section 3.2.1): stage i holds chunks i and p-1-i, and half of the micro-batches enter at either end. A greedy schedule
can be run, so its time is one that the best schedule does not exceed. Nothing here knows a closed form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class Op(NamedTuple):
    """F, B (input gradient) or W (weight gradient) of a micro-batch of one direction at a place of its route."""

    kind: str
    direction: int
    k: int
    place: int


def greedy_makespan(
    schedule: str, forward: Sequence[float], backward: Sequence[float], weight: Sequence[float], m: int
) -> float:
    """Time from the first start to the last end; times are of a stage and micro-batch, all its chunks."""
    p = len(forward)
    folded = schedule == "zb-v"
    routes = [[*range(p), *reversed(range(p))]] if folded else [list(range(p)), list(reversed(range(p)))]
    each = m if folded else m // 2
    limit = 2 * p if folded else p + 2  # chunks alive on a stage
    share = 0.5 if folded else 1.0
    duration = {"F": forward, "B": backward, "W": weight}
    ready: list[list[tuple[float, Op]]] = [[] for _ in range(p)]
    for direction, route in enumerate(routes):
        ready[route[0]] += [(0.0, Op("F", direction, k, 0)) for k in range(each)]
    free, held = [0.0] * p, [0] * p
    left = 3 * each * sum(len(route) for route in routes)

    def may(stage: int, op: Op) -> bool:
        room = limit - 1 if folded and op.place < p else limit  # a second chunk always finds a place
        return op.kind != "F" or held[stage] < room

    def order(op: Op) -> tuple[int, int, int]:
        return ("BFW".index(op.kind), op.k, -op.place) if op.kind != "F" or not folded else (1, -op.place, op.k)

    while left:
        starts = [(max(at, free[s]), s, op) for s in range(p) for at, op in ready[s] if may(s, op)]
        first = min(start for start, _, _ in starts)
        start, stage, op = min((x for x in starts if x[0] <= first + 1e-12), key=lambda x: (x[1], order(x[2])))
        ready[stage] = [x for x in ready[stage] if x[1] != op]
        end = free[stage] = start + share * duration[op.kind][stage]
        left -= 1
        route = routes[op.direction]
        if op.kind == "F":
            held[stage] += 1
            last = op.place + 1 == len(route)
            then = op._replace(kind="B") if last else op._replace(place=op.place + 1)
            ready[route[then.place]].append((end, then))
        elif op.kind == "B":
            if op.place > 0:
                ready[route[op.place - 1]].append((end, op._replace(place=op.place - 1)))
            ready[stage].append((end, op._replace(kind="W")))
        else:
            held[stage] -= 1
    return max(free)
