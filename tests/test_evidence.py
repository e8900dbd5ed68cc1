"""Evidence: values that come from outside this code (a paper's table, a hand calculation, another tool), one row each.

``tests/evidence/*.csv`` with the header ``quantity,inputs,expected,tolerance,source[,note]`` is read here; files with
another header belong to a test of their own.

- ``quantity``: dotted path of a function of dscalc, with ``:field`` (or ``:0``) where one part of its result is meant.
- ``inputs``: JSON object of keyword arguments. Numbers and lists of numbers become float64 arrays of shape (n,), unless
  the argument is annotated as a plain number. ``{"new": "dscalc.records.ModelShape", ...}`` builds a record.
- ``expected``: a number or JSON list. ``tolerance``: relative; 0 means equal to the last bit.
- ``source``: where the expected value comes from; never this code.
"""

from __future__ import annotations

import csv
import dataclasses
import importlib
import inspect
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

FOLDER = Path(__file__).parent / "evidence"
HEADER = ["quantity", "inputs", "expected", "tolerance", "source"]
PLAIN = re.compile(r"^(int|float|str|bool|None|complex)( \| (int|float|str|bool|None))*$")


class Row(NamedTuple):
    place: str
    quantity: str
    inputs: str
    expected: str
    tolerance: str
    source: str


def rows(folder: Path) -> Iterator[Row]:
    """Every evidence row of a folder, with its file and line."""
    for path in sorted(folder.glob("*.csv")):
        with path.open(encoding="utf-8", newline="") as handle:
            reader = csv.reader(handle)
            header = [name.strip() for name in next(reader, [])]
            if header not in (HEADER, [*HEADER, "note"]):
                continue
            for cells in reader:
                if not cells or not "".join(cells).strip():
                    continue
                place = f"{path.stem}:{reader.line_num}"
                if len(cells) != len(header):
                    raise ValueError(
                        f"{place}: {len(cells)} cells, the header has {len(header)}; quote JSON with doubled quotes"
                    )
                yield Row(place, *(cell.strip() for cell in cells[: len(HEADER)]))


def _resolve(dotted: str) -> Any:
    """The object at a dotted path: the longest importable module, then attributes."""
    parts = dotted.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        name = ".".join(parts[:cut])
        try:
            found = importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{name}.".startswith(f"{error.name}."):
                raise
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise LookupError(f"{dotted}: no such module")


def _argument(value: Any, annotation: str) -> Any:
    if isinstance(value, dict) and "new" in value:
        return _record(value)
    numeric = isinstance(value, int | float) and not isinstance(value, bool)
    listed = isinstance(value, list) and all(isinstance(v, int | float) for v in value)
    if (numeric or listed) and not PLAIN.match(annotation):
        kind = np.intp if "intp" in annotation or "int64" in annotation else np.float64
        return np.atleast_1d(np.asarray(value, dtype=kind))
    return value


def _record(value: dict[str, Any]) -> Any:
    kind = _resolve(value["new"])
    annotations = {f.name: str(f.type) for f in dataclasses.fields(kind)}
    fields = {k: v for k, v in value.items() if k != "new"}
    made = {}
    for name, given in fields.items():
        annotation = annotations[name]
        made[name] = tuple(given) if annotation.startswith("tuple") else _argument(given, annotation)
    return kind(**made)


def _arguments(function: Callable[..., Any], inputs: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    unknown = set(inputs) - set(parameters)
    assert not unknown, f"{function.__name__} has no argument {', '.join(sorted(unknown))}"
    return {name: _argument(value, str(parameters[name].annotation)) for name, value in inputs.items()}


def _part(result: Any, field: str) -> Any:
    for name in filter(None, field.split(":")):
        if name.lstrip("-").isdigit():
            result = result[int(name)]
        elif isinstance(result, dict):
            result = result[name]
        else:
            result = getattr(result, name)
    return result


def check(row: Row) -> None:
    """Compare one row's value with what the function gives."""
    assert row.source, f"{row.place}: evidence needs a source"
    tolerance = float(row.tolerance)
    assert 0.0 <= tolerance < 1.0, f"{row.place}: tolerance is a fraction, 0 for exact"
    dotted, _, field = row.quantity.partition(":")
    function = _resolve(dotted)
    inputs = json.loads(row.inputs or "{}")
    result = _part(function(**_arguments(function, inputs)), field)
    got = np.atleast_1d(np.asarray(result))
    want = np.atleast_1d(np.asarray(json.loads(row.expected)))
    assert got.size, f"{row.place}: {row.quantity} gave nothing"
    if want.size == 1:
        want = np.broadcast_to(want, got.shape)
    assert got.size == want.size, f"{row.place}: {got.size} values, {want.size} expected"
    got, want = got.ravel().astype(np.float64), want.ravel().astype(np.float64)
    message = f"{row.place}: {row.quantity} gave {got.tolist()}, expected {want.tolist()} ({row.source})"
    if tolerance == 0.0:
        assert np.array_equal(got, want), message
    else:
        assert bool(np.all(np.abs(got - want) <= tolerance * np.abs(want))), message


ROWS = list(rows(FOLDER))


def _label(row: Row) -> str:
    return f"{row.place}-{'.'.join(row.quantity.split('.')[-2:])}"


@pytest.mark.parametrize("row", ROWS, ids=[_label(row) for row in ROWS])
def test_evidence(row: Row) -> None:
    check(row)


# --- the checker checked, on numpy functions ---

GOOD = Row("made-up:2", "numpy.cumsum", '{"a": [1, 2, 3]}', "[1, 3, 6]", "0", "counted by hand")


def test_checker_accepts_a_true_row() -> None:
    check(GOOD)
    check(GOOD._replace(expected="[1.001, 3, 6]", tolerance="0.01"))
    check(GOOD._replace(quantity="numpy.cumsum:-1", expected="6"))


@pytest.mark.parametrize(
    "change",
    [
        {"expected": "[1, 3, 7]"},
        {"expected": "[1, 3]"},
        {"expected": "[1.1, 3, 6]", "tolerance": "0.01"},
        {"source": ""},
        {"tolerance": "1.5"},
        {"inputs": '{"b": 1}'},
    ],
)
def test_checker_refuses_a_false_row(change: dict[str, str]) -> None:
    with pytest.raises(AssertionError):
        check(GOOD._replace(**change))


def test_reader_skips_other_headers_and_wants_whole_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("model,params\nx,1\n", encoding="utf-8")
    (tmp_path / "b.csv").write_text(f'{",".join(HEADER)},note\nf,"{{""x"": 1}}",1,0,hand,\n', encoding="utf-8")
    assert list(rows(tmp_path)) == [Row("b:2", "f", '{"x": 1}', "1", "0", "hand")]
    (tmp_path / "b.csv").write_text(f"{','.join(HEADER)}\nf,1,0\n", encoding="utf-8")
    with pytest.raises(ValueError, match="cells"):
        list(rows(tmp_path))
