"""Named terms: a total exists only as the left-to-right sum of the leaves that are shown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dscalc.records import Array


@dataclass(frozen=True, slots=True)
class LeafSpec:
    """What a leaf is called and where its formula comes from.

    Attributes:
        path: ``state/weights``; the first part is the group.
        unit: base unit, ``bytes`` or ``s``.
        formula: the formula in the symbols of the nomenclature page.
        source: bibliography keys.
    """

    path: str
    unit: str
    formula: str
    source: str


@dataclass(frozen=True, slots=True)
class Leaf:
    """One term of an evaluation at its peak: ``array`` has shape (n,); ``inputs`` are the numbers put into the
    formula.
    """

    spec: LeafSpec
    array: Array
    inputs: Mapping[str, Array]


class TermSum:
    """Adds leaves left to right; keeps them only when asked, so that a sweep costs totals alone.

    The same adds in the same order with and without leaves: totals agree to the bit.
    """

    __slots__ = ("final", "kept", "total")

    def __init__(self, keep: bool) -> None:
        self.total: Array | None = None
        self.final: Array | None = None
        self.kept: list[tuple[LeafSpec, Array]] | None = [] if keep else None

    def add(self, spec: LeafSpec, array: Array) -> None:
        """Add one leaf."""
        self.total = array if self.total is None else self.total + array
        self.final = array
        if self.kept is not None:
            self.kept.append((spec, array))

    def sum(self) -> Array:
        """The sum of the leaves added so far."""
        if self.total is None:
            raise ValueError("nothing was added")
        return self.total

    def last(self) -> Array:
        """The leaf added last."""
        if self.final is None:
            raise ValueError("nothing was added")
        return self.final

    def fork(self) -> TermSum:
        """A sum that starts from this one (a shared prefix of leaves)."""
        other = TermSum(self.kept is not None)
        other.total = self.total
        if self.kept is not None:
            other.kept = list(self.kept)
        return other
