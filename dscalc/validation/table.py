"""Tables of measurements: a bounded, strict reading of CSV text, cells as numbers, and why a row is left out."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

from pydantic import ValidationError

from dscalc.errors import InputError
from dscalc.frozen import dataclass
from dscalc.specs.bounded_file import read_bounded
from dscalc.units import MIB

LARGEST_FILE_BYTES = 64 * MIB
LARGEST = 10**9  # of any whole number in a cell
ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\^_])")
COLUMNS = {  # fields of records whose column has another name
    "name": "model",
    "layers": "n_layers",
    "heads": "n_heads",
    "kv_heads": "n_kv_heads",
    "experts": "moe_experts",
    "top_k": "moe_topk",
    "moe_ffn_hidden": "moe_ffn",
    "shared_ffn_hidden": "moe_shared_ffn",
    "learned_positions": "seq_len",
    "gpus": "n_gpus",
}


class UnusableRowError(Exception):
    """A row that says too little, or what cannot be."""


@dataclass(frozen=True, slots=True)
class Excluded:
    """A row that is not predicted, and why."""

    id: str
    reason: str


def read_table(path: Path | None, shipped: str, needed: tuple[str, ...]) -> Iterator[dict[str, str]]:
    """The rows of a table, cells by column, free of control characters.

    Args:
        path: a CSV file; None for the shipped table.
        shipped: name of the shipped table.
        needed: columns that must be there.

    Yields:
        One row after another.

    Raises:
        InputError: the file cannot be read, is too large, is no CSV table or lacks a column; names file and line.
    """
    text = (files("dscalc.validation") / shipped).read_text(encoding="utf-8") if path is None else _text(path)
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    line = 1
    try:
        header = [plain(name) for name in next(reader, [])]
        missing = [name for name in needed if name not in header]
        if missing:
            raise InputError(f"lacks the column {missing[0]!r}; needed: {', '.join(needed)}", where=str(path))
        twice = [name for name in header if name and header.count(name) > 1]
        if twice:
            raise InputError(f"the column {twice[0]!r} stands twice; keep one", where=f"{path}:1")
        line = reader.line_num + 1
        for cells in reader:
            if len(cells) > len(header):
                raise InputError(
                    f"has {len(cells)} cells for {len(header)} columns; a comma inside a cell needs quotes",
                    where=f"{path}:{line}",
                )
            if any(cells):
                yield dict.fromkeys(header, "") | {n: plain(c) for n, c in zip(header, cells, strict=False)}
            line = reader.line_num + 1
    except csv.Error as error:
        words = {"unexpected end": "a quote is never closed", "larger than": "a cell has more than 131,072 characters"}
        said = next((meant for start, meant in words.items() if start in str(error)), str(error))
        raise InputError(f"not a CSV table: {said}", where=f"{path}:{line}") from None


def _text(path: Path) -> str:
    try:
        return read_bounded(path, LARGEST_FILE_BYTES).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"cannot be read as a CSV file: {error}", where=str(path)) from None
    except OSError as error:
        raise InputError(f"cannot be read as a CSV file: {error.strerror or error}", where=str(path)) from None


def plain(text: str) -> str:
    """Text without escape sequences and control characters, which a terminal would obey."""
    text = text.strip()
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " for c in ESCAPES.sub("", text)).strip()


def reason_of(error: Exception) -> str:
    """Why a row is left out, in the names of its columns."""
    if not isinstance(error, ValidationError):
        return str(error)
    found = []
    for fault in error.errors(include_url=False, include_input=False, include_context=False):
        words = fault["msg"].removeprefix("Value error, ")
        place = str(fault["loc"][0]) if fault["loc"] else ""
        if place:
            found.append(f"{COLUMNS.get(place, place)}: {words}")
        else:
            found.append(re.sub(r"[a-z_]+", lambda word: COLUMNS.get(word[0], word[0]), words))
    return "; ".join(found)


def number(cells: dict[str, str], name: str, *, above: float | None = None, most: float = math.inf) -> float | None:
    """The number in a cell; None where it is empty.

    Raises:
        UnusableRowError: no finite number, or out of range.
    """
    text = cells.get(name, "")
    if not text:
        return None
    try:
        value = float(text if text.isascii() and "_" not in text else "?")
    except ValueError:
        raise UnusableRowError(f"{name} is not a number: {text[:40]!r}") from None
    if not math.isfinite(value):
        raise UnusableRowError(f"{name} is not finite")
    if above is not None and not value > above:
        raise UnusableRowError(f"{name} is not {'positive' if above == 0.0 else f'above {above:g}'}: {text[:40]}")
    if value > most:
        raise UnusableRowError(f"{name} is out of range: {text[:40]}")
    return value


def whole(cells: dict[str, str], name: str, default: int | None = None, *, least: int = 1, most: int = LARGEST) -> int:
    """The whole number in a cell; the default where it is empty.

    Raises:
        UnusableRowError: empty without a default, no whole number, or out of range.
    """
    value = number(cells, name)
    if value is None:
        if default is None:
            raise UnusableRowError(f"{name} not stated")
        return default
    if value != math.floor(value):
        raise UnusableRowError(f"{name} is not a whole number: {cells[name][:40]}")
    if not least <= value <= most:
        raise UnusableRowError(f"{name} is out of range, {least} to {most:,}: {cells[name][:40]}")
    return int(value)
