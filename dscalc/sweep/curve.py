"""A scaling curve: the best layout at each number of GPUs, as it is and with something changed.

A curve is made of few layouts at each number of GPUs: the best ones of a search, and the best one after each move of a
rate that the search was asked about. Beyond the largest number of GPUs that was searched, the same layouts go on with
more data-parallel ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dscalc.cost.axes import groups, rules
from dscalc.cost.columns import COLUMNS
from dscalc.cost.memory import memory
from dscalc.cost.step import Step
from dscalc.frozen import dataclass
from dscalc.records import Array, Layouts
from dscalc.sweep.change import BASE, Change, changed
from dscalc.sweep.prune import Machine, taken, timed_on
from dscalc.sweep.space import Ids, Space

FURTHER = 12  # doublings beyond the largest number of GPUs searched


@dataclass(frozen=True, slots=True)
class Point:
    """The best layout of a curve at one number of GPUs; seconds of a step."""

    gpus: int
    tokens: float  # of a step
    step_time_s: float
    compute_s: float
    communication_s: float  # whether hidden or not
    latency_s: float  # part of communication that stays without payload
    model_parallel: float  # tp x pp x cp
    sequences: float  # of a step
    searched: bool  # False: beyond the largest number searched

    @property
    def tokens_per_s(self) -> float:
        """Throughput."""
        return self.tokens / self.step_time_s


@dataclass(frozen=True, slots=True, eq=False)
class Stock:
    """Layouts of one number of GPUs that may be best."""

    gpus: int
    layouts: Layouts
    searched: bool


def stocks(spaces: Sequence[Space], kept: Sequence[Ids], machine: Machine, weak: bool) -> list[Stock]:
    """Layouts that may be best at each number of GPUs, those beyond the largest searched included.

    Args:
        spaces: by number of GPUs, ascending.
        kept: numbers of the layouts that a search kept in each.
        machine: what they run on.
        weak: the batch grows with the GPUs.

    Returns:
        A stock for each number of GPUs at which something fits.
    """
    found = [
        Stock(space.gpus, _whole(space.layouts(ids), len(ids)), True)
        for space, ids in zip(spaces, kept, strict=True)
        if len(ids)
    ]
    if not found:
        return []
    last, shape = found[-1], spaces[-1].shape
    for doubling in range(1, FURTHER + 1):
        more = _further(last.layouts, 2.0**doubling, weak)
        ok = np.ones(len(more.tp), dtype=bool)
        derived = groups(more)
        for rule in rules():
            ok &= ~rule.illegal(more, derived, shape)
        if ok.any():
            more = taken(more, ok)
            held = memory(shape, more, machine.hardware, machine.adapters, keep_terms=False)
            fits = ~(held.total_bytes > held.usable_bytes)
            ok = fits
            more = taken(more, fits)
        if not ok.any():
            break
        found.append(Stock(last.gpus * 2**doubling, more, False))
    return found


def _whole(layouts: Layouts, count: int) -> Layouts:
    columns: dict[str, Any] = {name: np.broadcast_to(getattr(layouts, name), (count,)) for name in COLUMNS}
    return replace(layouts, **columns)


def _further(layouts: Layouts, factor: float, weak: bool) -> Layouts:
    """The same with more data-parallel ranks, each with fewer micro-batches or smaller ones."""
    rank = layouts.micro_batch * layouts.n_micro / (1.0 if weak else factor)
    parts = []
    for share in (1.0, 2.0, 4.0, 8.0):
        micro = layouts.micro_batch / share
        many = rank / micro
        whole = (micro >= 1.0) & (np.floor(micro) == micro) & (many >= 1.0) & (np.floor(many) == many)
        parts.append(taken(replace(layouts, dp=layouts.dp * factor, micro_batch=micro, n_micro=many), whole))
    return _joined(parts)


def _joined(parts: Sequence[Layouts]) -> Layouts:
    columns: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in COLUMNS}
    return replace(parts[0], **columns)


def curve(shape_of: Space, held: Sequence[Stock], machine: Machine, change: Change = BASE) -> tuple[Point, ...]:
    """The best layout of each stock with something changed.

    Args:
        shape_of: any space of the sweep; says the model.
        held: from ``stocks``.
        machine: what they run on.
        change: factors on rates and bytes.

    Returns:
        A point for each number of GPUs [s].
    """
    if not held:
        return ()
    sizes = [len(stock.layouts.tp) for stock in held]
    columns: dict[str, Any] = {
        name: np.concatenate([getattr(stock.layouts, name) for stock in held]) for name in COLUMNS
    }
    run, books = changed(machine, held[0].layouts.books, change)
    layouts = replace(held[0].layouts, **columns, books=books)
    timed = timed_on(run, shape_of.shape, layouts)
    slower = replace(change, latency=change.latency * 2.0)
    late = timed_on(changed(machine, held[0].layouts.books, slower)[0], shape_of.shape, layouts)
    busy = _sum(timed, "communication/")
    latency = np.maximum(_sum(late, "communication/") - busy, 0.0)
    compute = _sum(timed, "compute/")
    sequences = layouts.micro_batch * layouts.n_micro * layouts.dp
    points, start = [], 0
    for stock, size in zip(held, sizes, strict=True):
        at = start + int(np.argmin(timed.step_time_s[start : start + size]))
        points.append(
            Point(
                gpus=stock.gpus,
                tokens=float(sequences[at] * layouts.seq_len[at]),
                step_time_s=float(timed.step_time_s[at]),
                compute_s=float(compute[at]),
                communication_s=float(busy[at]),
                latency_s=float(min(latency[at], busy[at])),
                model_parallel=float(layouts.tp[at] * layouts.pp[at] * layouts.cp[at]),
                sequences=float(sequences[at]),
                searched=stock.searched,
            )
        )
        start += size
    return tuple(points)


def _sum(timed: Step, prefix: str) -> Array:
    total = np.zeros(1)
    for leaf in timed.terms:
        if leaf.spec.path.startswith(prefix):
            total = total + leaf.busy_s
    return total
