"""Which layouts to keep: the best ones, and those that no other beats in everything; ties by a written key order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dscalc.frozen import dataclass
from dscalc.records import Array
from dscalc.sweep.space import Ids

KEYS = {  # what decides, first to last; the number of a layout decides last: simpler layouts have smaller ones
    "time": ("time", "memory"),
    "memory": ("memory", "time"),
    "simple": ("time",),
}


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """Layouts of one space by number, with the seconds of their step and the bytes of a GPU; arrays (n,)."""

    ids: Ids
    step_time_s: Array
    total_bytes: Array

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, chosen: NDArray[np.intp] | NDArray[np.bool_] | slice) -> Kept:
        """Some of them."""
        return Kept(self.ids[chosen], self.step_time_s[chosen], self.total_bytes[chosen])


NONE_KEPT = Kept(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0))


def joined(parts: Sequence[Kept]) -> Kept:
    """One behind the other."""
    return Kept(
        np.concatenate([p.ids for p in parts]),
        np.concatenate([p.step_time_s for p in parts]),
        np.concatenate([p.total_bytes for p in parts]),
    )


def _order(rows: Kept, by: str) -> NDArray[np.intp]:
    columns = {"time": rows.step_time_s, "memory": rows.total_bytes}
    keys = [columns[name] for name in KEYS[by]]
    return np.lexsort((rows.ids, *reversed(keys)))


def best(rows: Kept, count: int, by: str = "time") -> Kept:
    """The first rows in order.

    Args:
        rows: layouts [s, bytes].
        count: how many to keep.
        by: a name of ``KEYS``.

    Returns:
        At most ``count`` rows, the best first.
    """
    leading = rows.step_time_s if KEYS[by][0] == "time" else rows.total_bytes
    if len(rows) > 4 * count:
        bound = np.partition(leading, count - 1)[count - 1]
        rows = rows.take(leading <= bound)
    return rows.take(_order(rows, by)[:count])


def front(rows: Kept) -> Kept:
    """Rows that no other row beats: none is as fast in less memory, or faster in as much.

    Of rows that are equal in both, the one with the smallest number stays.

    Args:
        rows: layouts [s, bytes].

    Returns:
        The front, the fastest first.
    """
    ordered = rows.take(_order(rows, "time"))
    return ordered.take(_falling(ordered.total_bytes))


def simpler(rows: Kept, level: float) -> Kept:
    """Rows as fast as the first but for ``level``, of which none that is as fast has a smaller number.

    Args:
        rows: layouts [s, bytes].
        level: relative difference of time that does not count.

    Returns:
        The fastest first; the last one is the simplest of all that are level with the first.
    """
    if not len(rows):
        return rows
    near = rows.take(rows.step_time_s <= rows.step_time_s.min() * (1.0 + level))
    ordered = near.take(_order(near, "simple"))
    return ordered.take(_falling(ordered.ids))


def roomiest(edge: Kept, within: float) -> Kept:
    """Rows of a front in order of free memory, those slower than the fastest by more than ``within`` left out.

    Args:
        edge: a front, the fastest first [s, bytes].
        within: relative difference of time that is accepted.

    Returns:
        The row with the most free memory first.
    """
    if not len(edge):
        return edge
    return edge.take(edge.step_time_s <= edge.step_time_s[0] * (1.0 + within)).take(slice(None, None, -1))


def _falling(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Where a value is below all before it."""
    keep = np.ones(len(values), dtype=bool)
    keep[1:] = values[1:] < np.minimum.accumulate(values)[:-1]
    return keep


def beaten(rows: Kept, by: Kept) -> NDArray[np.bool_]:
    """Rows that a front, the fastest first, beats or equals in both."""
    if not len(by):
        return np.zeros(len(rows), dtype=bool)
    place = np.searchsorted(by.step_time_s, rows.step_time_s, side="right") - 1
    return (place >= 0) & (by.total_bytes[np.maximum(place, 0)] <= rows.total_bytes)


def front_of(columns: Sequence[Array]) -> NDArray[np.bool_]:
    """Rows that no other beats, of few rows in any number of columns, each the smaller the better.

    Args:
        columns: what counts, each (n,).

    Returns:
        Where no other row is as good in all columns and better in one [flags, (n,)].
    """
    table = np.stack([np.asarray(c, dtype=np.float64) for c in columns], axis=1)
    keep = np.ones(len(table), dtype=bool)
    for number, row in enumerate(table):
        better = (table <= row).all(axis=1) & (table < row).any(axis=1)
        keep[number] = not better.any()
    return keep
