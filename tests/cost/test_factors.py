"""Combinations of columns: a table with one row each gives every row back."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dscalc.cost.factors import coded, distinct, some_rows
from tests.cost.helpers import layouts

VALUES = st.sampled_from([0.0, 1.0, 2.0, 3.0, 8.0, 1.25, 0.5, 32768.0, 1e9, np.inf, -1.0])


@settings(max_examples=60)
@given(rows=st.lists(st.tuples(VALUES, VALUES, st.integers(0, 6)), min_size=1, max_size=30))
def test_a_table_of_combinations_gives_every_row_back(rows: list[tuple[float, float, int]]) -> None:
    kinds = (np.float64, np.float64, np.intp)
    columns = [np.asarray(c, dtype=kind) for c, kind in zip(zip(*rows, strict=True), kinds, strict=True)]
    table = distinct([coded(column) for column in columns])
    assert len(table.first) == len(set(rows))
    for column in columns:
        assert (table.spread(column[table.first]) == column).all()  # one entry stands for every row


def test_wide_combinations_do_not_collide() -> None:
    """More combinations than a look-up table holds, of which few occur."""
    random = np.random.default_rng(0)
    columns = [random.integers(0, 60_000, 500).astype(float) for _ in range(4)]
    table = distinct([coded(column) for column in columns])
    assert len(table.first) == len(set(zip(*columns, strict=True)))
    for column in columns:
        assert np.array_equal(table.spread(column[table.first]), column)


def test_nothing_that_differs_is_one_combination() -> None:
    table = distinct([])
    assert table.place is None
    assert table.spread(np.ones(1)).tolist() == [1.0]


def test_some_rows_leave_columns_of_one_entry() -> None:
    found = some_rows(layouts(tp=[1, 2, 4], dp=8), np.asarray([2, 0]))
    assert found.tp.tolist() == [4.0, 1.0]
    assert found.dp.tolist() in ([8.0], [8.0, 8.0])
