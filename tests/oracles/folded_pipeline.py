"""Pipelines whose stages hold two chunks of the model, played in the order that their authors wrote down.

ZB-V (Qi et al. 2024; PyTorch, ``ScheduleZBVZeroBubble``): stage i holds model chunks i and 2p-1-i. DualPipe
(DeepSeek-V3 2024, section 3.2.1; ``dualpipe.py`` of its repository): stage i holds chunks i and p-1-i, and half of the
micro-batches enter at either end. Nothing here knows a closed form.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.oracles.pipeline_time import Times, play


class Op(NamedTuple):
    """F, B (input gradient) or W (weight gradient) of a micro-batch of one direction at a place of its route."""

    kind: str
    direction: int
    k: int
    place: int


Block = tuple[Op, ...]  # starts when all it needs has ended, and its results are there when all of it has ended


def zb_v(p: int, m: int, stage: int) -> list[Block]:
    """Chunk 0 goes down the pipeline, chunk 1 comes back up; W follows its B but for the last ones.

    The order is written for 2p - 1 micro-batches or more; what a smaller number lacks is left out.
    """
    order: list[Block] = []
    done = {(kind, chunk): 0 for kind in "FBW" for chunk in (0, 1)}

    def add(*ops: str) -> None:
        for op in ops:
            key = op[0], int(op[1])
            order.append((Op(op[0], 0, done[key], stage if op[1] == "0" else 2 * p - 1 - stage),))
            done[key] += 1

    most = max(2 * p - 1, m)
    add(*["F0"] * (2 * (p - stage) - 1))
    add(*["F1", "F0"] * stage)
    add(*["F1", "B1", "W1"] * (p - stage))
    while done["F", 1] < done["F", 0] or done["F", 0] < most:
        if done["F", 0] < most:
            add("F0")
        add("B0", "W0", "F1", "B1", "W1")
    add(*["B0", "B1"] * stage)
    add(*["B0", "W0"] * (p - stage))
    add(*["W1"] * (done["B", 1] - done["W", 1]))
    add(*["W0"] * (done["B", 0] - done["W", 0]))
    return [block for block in order if block[0].k < m]


def dualpipe(p: int, m: int, stage: int) -> list[Block]:
    """The eight steps of the repository; 0 is the direction that enters at the nearer end of the pipeline.

    A forward and a backward that overlap are one block, as is a backward with both of its gradients.
    """
    half, near = p // 2, min(stage, p - 1 - stage)
    far_side = stage >= half
    order: list[Block] = []
    done = {(kind, phase): 0 for kind in "FB" for phase in (0, 1)}
    put_off: list[Op] = []

    def one(kind: str, phase: int) -> Op:
        direction = phase ^ far_side
        op = Op(kind, direction, done[kind, phase], p - 1 - stage if direction else stage)
        done[kind, phase] += 1
        return op

    def backward(phase: int, apart: bool = False) -> Block:
        op = one("B", phase)
        weight = op._replace(kind="W")
        if apart:
            put_off.append(weight)
            return (op,)
        return (op, weight)

    order += [(one("F", 0),) for _ in range(2 * (half - near - 1))]
    for _ in range(near + 1):
        order += [(one("F", 0),), (one("F", 1),)]
    for _ in range(half - near - 1):
        order += [backward(1, apart=True), (put_off.pop(0),), (one("F", 1),)]
    for i in range(m // 2 - p + near + 1):
        if i == 0 and near == half - 1:
            order += [(one("F", 0),), backward(1)]
        else:
            order += [(one("F", 0), *backward(1))]
        order += [(one("F", 1), *backward(0))]
    for _ in range(half - near - 1):
        order += [backward(1), (one("F", 1), *backward(0))]
    apart = False
    for i in range(near + 1):
        apart = apart or (i == (near + 1) // 2 and near % 2 == 1)
        order.append(backward(1, apart))
        apart = apart or (i == (near + 1) // 2 and near % 2 == 0)
        order.append(backward(0, apart))
    for _ in range(half - near - 1):
        order += [(put_off.pop(0),), backward(0, apart=True)]
    return order + [(op,) for op in put_off]


def play_folded(orders: list[list[Block]], duration_s: dict[str, Times]) -> tuple[Times, Times]:
    """First start and last end of each stage; durations by kind (F, B, W) of each place of the route, (places, n)."""
    last = len(duration_s["F"]) - 1
    return play(orders, lambda op: _needs(op, last), lambda op: duration_s[op.kind][op.place])


def _needs(op: Op, last: int) -> list[Op]:
    if op.kind == "W":
        return [op._replace(kind="B")]
    if op.kind == "F":
        return [op._replace(place=op.place - 1)] if op.place > 0 else []
    behind = [op._replace(place=op.place + 1)] if op.place < last else []
    return [op._replace(kind="F"), *behind]
