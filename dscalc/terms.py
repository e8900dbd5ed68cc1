"""Named terms: a total exists only as the left-to-right sum of the leaves that are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from dscalc.frozen import dataclass
from dscalc.records import Array

Cases = tuple[tuple[tuple[int, ...], Array], ...]  # arrays with the cases (moments of a step) in which each is there
Quantities = Mapping[str, Cases]


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
    """One term of an evaluation at its peak.

    Attributes:
        spec: what it is called, its formula and source.
        array: its value [(n,)].
        inputs: the numbers behind the symbols of the formula [(n,)].
        parts: coefficient, name and value of each quantity that it is the sum of multiples of [(n,)].
    """

    spec: LeafSpec
    array: Array
    inputs: Mapping[str, Array]
    parts: tuple[tuple[Array, str, Array], ...] = ()


class Term(NamedTuple):
    """A leaf as a linear form: the sum of coefficient times quantity.

    A quantity is what a stage holds of something (parameters, layers in flight), case by case; a coefficient says how
    many bytes one of it takes in a layout. So a leaf costs arrays of shape (n,) alone until it is known which stage and
    case count.

    Attributes:
        spec: what the leaf is called.
        parts: coefficient (n,) and name of a quantity; a coefficient of None is 1.
    """

    spec: LeafSpec
    parts: tuple[tuple[Array | None, str], ...]

    def uses(self, quantity: str) -> bool:
        """Whether a part of the leaf is a multiple of a quantity."""
        return any(name == quantity for _, name in self.parts)

    def of(self, quantities: Mapping[str, Array]) -> Array:
        """The leaf of given quantities, parts added left to right."""
        total: Array | None = None
        for coefficient, name in self.parts:
            quantity = quantities[name]
            part = quantity if coefficient is None else coefficient * quantity
            total = part if total is None else total + part
        return np.zeros(1) if total is None else total


def case_totals(terms: Sequence[Term], quantities: Quantities, cases: int) -> list[Array]:
    """The sum of all terms in each case: coefficients of one quantity are added first, then multiplied with it.

    Equal to the sum of the leaves up to rounding: it tells which case and stage is the largest, the leaves how large.
    """
    coefficients: dict[str, Array] = {}
    products: list[tuple[Array | None, str]] = []
    for coefficient, name in (part for term in terms for part in term.parts):
        if coefficient is None:
            products.append((None, name))
        else:
            coefficients[name] = coefficients[name] + coefficient if name in coefficients else coefficient
    products += [(coefficient, name) for name, coefficient in coefficients.items()]
    sums: dict[tuple[int, ...], Array] = {}  # by the cases that share a product
    for factor, name in products:
        for where, quantity in quantities[name]:
            product = quantity if factor is None else factor * quantity
            if where not in sums:
                sums[where] = product
            elif factor is not None and product.shape == sums[where].shape:
                sums[where] = np.add(sums[where], product, out=product)  # nobody else has the product
            else:
                sums[where] = sums[where] + product
    order = sorted(sums, key=lambda where: (-len(where), where))
    partial: dict[tuple[tuple[int, ...], ...], Array] = {}
    totals = []
    for case in range(cases):
        path: tuple[tuple[int, ...], ...] = ()
        total: Array = np.zeros(1)
        for where in order:
            if case in where:
                longer = (*path, where)
                if longer not in partial:
                    partial[longer] = total + sums[where] if path else sums[where]
                path, total = longer, partial[longer]
        totals.append(total)
    return totals


def in_one(quantities: Quantities, case: int) -> dict[str, Array]:
    """Quantities in one case, as far as there are any."""
    return {name: array for name, cases in quantities.items() for where, array in cases if case in where}


def in_case(quantities: Quantities, flags: Sequence[Array]) -> dict[str, Array]:
    """Quantities of one stage in the case that each row is in: ``flags[c]`` is 1 where the row is in case c, else 0."""
    masks: dict[tuple[int, ...], Array] = {}
    picked: dict[str, Array] = {}
    for name, quantity in quantities.items():
        total: Array | None = None
        for cases, array in quantity:
            if len(cases) == len(flags):
                total = array
                break
            if cases not in masks:
                mask = flags[cases[0]]
                for case in cases[1:]:
                    mask = mask + flags[case]
                masks[cases] = mask
            part = array * masks[cases]
            total = part if total is None else total + part
        picked[name] = np.zeros(1) if total is None else total
    return picked
