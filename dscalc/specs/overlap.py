"""What of the communication hides behind computing, where the user says so and not the stack."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from dscalc.frozen import dataclass
from dscalc.records import Books, PaceTable

SHARP = 8.0  # power of a soft maximum that is nearly the larger of the two


@dataclass(frozen=True, slots=True)
class Hides:
    """Columns of one axis: shares that stay exposed, a power that joins two times, flags of a stack."""

    shares: tuple[str, ...]
    powers: tuple[str, ...]
    flags: tuple[str, ...]


HIDES = {
    "tp": Hides(("tp_exposed",), (), ("tp_hidden_backward",)),
    "dp": Hides(
        ("dp_exposed", "dp_exposed_sharded", "dp_exposed_pipeline"),
        ("overlap_power",),
        ("gradient_overlap", "weight_overlap"),
    ),
    "pp": Hides(("pp_exposed",), (), ("message_overlap",)),
    "ep": Hides(("ep_exposed",), (), ()),
}
SHARES = tuple(name for hides in HIDES.values() for name in hides.shares)
COLUMNS = frozenset((*SHARES, *(name for hides in HIDES.values() for name in hides.powers)))


def overlapped(table: PaceTable, axes: Collection[str]) -> PaceTable:
    """The paces of stacks whose communication hides on some axes, as far as computing is long enough, and on no other.

    Args:
        table: the paces.
        axes: names of ``HIDES``.

    Returns:
        The same with other shares [fraction].
    """
    columns: dict[str, Any] = {}
    for axis, hides in HIDES.items():
        columns |= {name: np.full_like(getattr(table, name), axis not in axes) for name in hides.shares}
        columns |= {name: np.full_like(getattr(table, name), SHARP if axis in axes else 1.0) for name in hides.powers}
    return replace(table, **columns)


def overlapped_books(books: Books, axes: Collection[str]) -> Books:
    """The code books with the same, as far as stacks have flags for it."""
    flags: dict[str, Any] = {
        name: np.full_like(getattr(books.stacks, name), axis in axes)
        for axis, hides in HIDES.items()
        for name in hides.flags
    }
    return replace(books, stacks=replace(books.stacks, **flags))
