"""Factor tables: what depends on a few columns is worked out once for each combination that occurs, then spread."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dscalc.cost.columns import COLUMNS
from dscalc.frozen import dataclass
from dscalc.records import Array, Layouts

WIDEST = 1 << 16  # combinations that a look-up table may have


@dataclass(frozen=True, slots=True)
class Coded:
    """A column as small numbers: the code of each row, and how many there can be."""

    codes: NDArray[np.intp]
    count: int


@dataclass(frozen=True, slots=True)
class Distinct:
    """The combinations that occur: a row of each, and which one each row is; ``place`` None: all rows are alike."""

    first: NDArray[np.intp]
    place: NDArray[np.intp] | None

    def spread(self, column: Array) -> Array:
        """A column with one entry a combination, as a column with one entry a row.

        Args:
            column [-, (...)]: one entry a combination on the last axis, or one for all.

        Returns:
            One entry a row on the last axis [-, (...)].

        Raises:
            nothing.

        References:
            [Definition].
        """
        if self.place is None or column.shape[-1] == 1:
            return column
        return column.take(self.place, axis=-1)

    def rows(self, layouts: Layouts) -> Layouts:
        """The layouts of the combinations.

        Args:
            layouts [degrees, (n,)]: the layout columns.

        Returns:
            One row a combination [degrees, (combinations,)].

        Raises:
            nothing.

        References:
            [Definition].
        """
        return some_rows(layouts, self.first)


def some_rows(layouts: Layouts, rows: NDArray[np.intp]) -> Layouts:
    """Some of the layouts; columns of one entry stay as they are.

    Args:
        layouts [degrees, (n,)]: the layout columns.
        rows [index, (m,)]: which.

    Returns:
        The columns [degrees, (m,) or (1,)].

    Raises:
        nothing.

    References:
        [Definition].
    """
    varying: dict[str, Any] = {}
    for name in COLUMNS:
        column = getattr(layouts, name)
        if column.shape[0] > 1:
            varying[name] = column.take(rows)
    return replace(layouts, **varying)


def coded(column: Array) -> Coded:
    """A column as small numbers.

    Args:
        column [-, (n,)]: degrees, sizes or codes.

    Returns:
        The codes [index, (n,)].

    Raises:
        nothing.

    References:
        [Definition].
    """
    low, high = column.min(), column.max()
    if low >= 0 and high == np.inf:  # all layers: that takes the place of zero
        column = np.where(column == np.inf, -1.0, column) + 1.0
        high = column.max()
    if low >= 0 and high < WIDEST:
        whole = column.astype(np.intp)
        if column.dtype == np.intp or (whole == column).all():
            return Coded(whole, int(high) + 1)
    values, codes = np.unique(column, return_inverse=True)
    return Coded(codes.reshape(-1).astype(np.intp), len(values))


def _compressed(found: Coded) -> Coded:
    """The same with numbers without gaps."""
    if found.count > WIDEST:
        values, codes = np.unique(found.codes, return_inverse=True)
        return Coded(codes.reshape(-1).astype(np.intp), len(values))
    seen = np.zeros(found.count, dtype=np.bool_)
    seen[found.codes] = True
    number = np.cumsum(seen) - 1
    return Coded(number.take(found.codes), int(number[-1]) + 1)


def combined(parts: Sequence[Coded]) -> Coded:
    """One code for the combination of several.

    Args:
        parts [index, (n,)]: codes, all of the same length.

    Returns:
        Codes without gaps [index, (n,)].

    Raises:
        nothing.

    References:
        [Definition].
    """
    found = parts[0]
    for part in parts[1:]:
        if found.count * part.count > WIDEST:
            found = _compressed(found)
            if found.count * part.count > WIDEST:
                part = _compressed(part)
        found = Coded(found.codes * part.count + part.codes, found.count * part.count)
    return _compressed(found)


def distinct(parts: Sequence[Coded]) -> Distinct:
    """The combinations of several codes that occur.

    Args:
        parts [index, (n,)]: codes, all of the same length; none: there is one combination.

    Returns:
        A row of each combination, and the combination of each row [index, (n,)].

    Raises:
        nothing.

    References:
        [Definition].
    """
    if not parts:
        return Distinct(np.zeros(1, dtype=np.intp), None)
    found = combined(parts)
    first = np.zeros(found.count, dtype=np.intp)
    first[found.codes[::-1]] = np.arange(len(found.codes) - 1, -1, -1)
    return Distinct(first, found.codes)


def alike(layouts: Layouts, names: Sequence[str], known: dict[str, Coded] | None = None) -> Distinct:
    """The combinations of some columns that occur.

    Args:
        layouts [degrees, (n,)]: the layout columns.
        names: the columns that count.
        known [index, (n,)]: codes of columns that have been made; more are added.

    Returns:
        A row of each combination, and the combination of each row [index, (n,)].

    Raises:
        nothing.

    References:
        [Definition].
    """
    codes = {} if known is None else known
    parts = []
    for name in names:
        column = getattr(layouts, name)
        if column.shape[0] > 1:
            if name not in codes:
                codes[name] = coded(column)
            parts.append(codes[name])
    return distinct(parts)
