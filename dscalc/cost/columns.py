"""From code books to columns: the entries of a table that the codes of the layouts name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from dscalc.frozen import dataclass
from dscalc.records import Array, Hardware, Layouts, LossTable, Mask, RecipeTable, StackTable

Table = TypeVar("Table", RecipeTable, LossTable, StackTable)


COLUMNS = tuple(field.name for field in fields(Layouts) if field.name != "books")


@dataclass(frozen=True, slots=True)
class Entries:
    """What the code books say of each layout; columns (n,), or (1,) where every code has the same value."""

    recipe: RecipeTable
    loss: LossTable
    stack: StackTable


@lru_cache(maxsize=64)
def _split(table: Any) -> tuple[dict[str, Any], tuple[str, ...], Array]:
    """Names and fields with one value for every code as they are, the other fields as rows of one array."""
    same: dict[str, Any] = {"names": table.names}
    varying: list[str] = []
    for field in fields(table):
        if field.name != "names":
            values = getattr(table, field.name)
            if (values == values[0]).all():
                same[field.name] = values[:1]
            else:
                varying.append(field.name)
    rows = np.asarray([getattr(table, name) for name in varying]) if varying else np.zeros((0, len(table.names)))
    return same, tuple(varying), rows


def by_code(table: Table, code: NDArray[np.intp]) -> Table:
    """A table with one entry a layout in place of one entry a code.

    Args:
        table [per code, (codes,)]: a code book.
        code [index, (n,)]: which entry each layout takes.

    Returns:
        The same record with columns (n,), or (1,) where every code has the same value.

    Raises:
        nothing.

    References:
        [Definition].
    """
    same, varying, rows = _split(table)
    return type(table)(**same, **dict(zip(varying, rows.take(code, axis=1), strict=True)))


def entries(layouts: Layouts) -> Entries:
    """What the code books say of each layout.

    Args:
        layouts [codes, (n,)]: the layout columns.

    Returns:
        The entries, in columns [per layout, (n,)].

    Raises:
        nothing.

    References:
        [Definition].
    """
    books = layouts.books
    return Entries(
        recipe=by_code(books.recipes, layouts.recipe),
        loss=by_code(books.losses, layouts.loss),
        stack=by_code(books.stacks, layouts.stack),
    )


def rows(layouts: Layouts, hardware: Hardware) -> int:
    """Layouts there are.

    Args:
        layouts [degrees, (n,)]: the layout columns; a column of one entry stands for every layout.
        hardware [bytes, (n,)]: the hardware columns.

    Returns:
        The number of layouts [layouts].

    Raises:
        nothing.

    References:
        [Definition].
    """
    columns: list[Array] = [getattr(layouts, name) for name in COLUMNS]
    columns += [hardware.usable_bytes, hardware.gpus_per_node, hardware.host_bytes]
    lengths = [len(column) for column in columns]
    return max(lengths) if all(lengths) else 0


def narrowed(layouts: Layouts, count: int) -> Layouts:
    """Layouts with one entry in place of a column that has the same value in every row: less work, the same bits.

    Args:
        layouts [degrees, (n,)]: the layout columns.
        count [layouts]: how many layouts there are.

    Returns:
        The columns, at least one of them as long as before [degrees, (n,) or (1,)].

    Raises:
        nothing.

    References:
        [Definition].
    """
    same: dict[str, Any] = {}
    longest = 1
    for name in COLUMNS:
        column = getattr(layouts, name)
        if column.shape[0] > 1 and column[0] == column[-1] and (column == column[0]).all():
            same[name] = column[:1]
        else:
            longest = max(longest, column.shape[0])
    if same and longest < count:
        same.popitem()
    return replace(layouts, **same) if same else layouts


def first_of(masks: Sequence[Mask]) -> NDArray[np.uint8]:
    """Which mask holds first.

    Args:
        masks [flags, (n,)]: fewer than 255 masks.

    Returns:
        Position of the first that holds, the number of masks where none does [index, (n,)].

    Raises:
        nothing.

    References:
        [Definition].
    """
    found = np.zeros(1, dtype=np.uint8)
    for mask in reversed(masks):
        found = (found + np.uint8(1)) * ~mask
    return found


def largest_of(values: Array) -> NDArray[np.intp]:
    """Which row is the largest in each column, the first one on a tie.

    Args:
        values [-, (kinds, n)]: a row a kind, few of them.

    Returns:
        Number of the row [index, (n,)].

    Raises:
        nothing.

    References:
        [Definition].
    """
    found, most = np.zeros(values.shape[1], dtype=np.intp), values[0]
    for number in range(1, len(values)):
        found = np.maximum(found, (values[number] > most) * number)
        most = np.maximum(most, values[number])
    return found


def row_of(kind: NDArray[np.intp]) -> Callable[[Array], Array]:
    """Takes one entry of each column of arrays (kinds, n): the one in row ``kind`` of that column.

    Args:
        kind [index, (n,)]: which row.

    Returns:
        A function from an array of shape (kinds, n), or (kinds, 1) or (1, n) where the others are the same, to the
        entries, which are fewer than n where it has one row of one entry [-, (n,)].

    Raises:
        nothing.

    References:
        [Definition].
    """
    places = {1: kind}  # by the width of an array

    def pick(values: Array) -> Array:
        count, n = values.shape
        if count == 1:
            return np.asarray(values[0])
        if n not in places:
            places[n] = kind * n + np.arange(n)
        picked: Array = values.reshape(-1).take(places[n])
        return picked

    return pick


def used(code: NDArray[np.intp], count: int) -> NDArray[np.intp]:
    """The codes that occur.

    Args:
        code [index, (n,)]: codes from 0.
        count [codes]: how many codes there can be.

    Returns:
        The codes that occur, ascending [index, (used,)].

    Raises:
        nothing.

    References:
        [Definition].
    """
    if code.shape[0] == 1:
        return code
    if count > 16 * code.shape[0]:
        return np.unique(code)
    seen = np.zeros(count, dtype=np.bool_)
    seen[code] = True
    return np.flatnonzero(seen)
