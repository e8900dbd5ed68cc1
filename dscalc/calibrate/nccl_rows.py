"""One row of nccl-tests or rccl-tests: what its tokens mean, and whether its cells agree with each other."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import NamedTuple

from dscalc.units import GIGA, KILO, MICRO

ELEMENT_BYTES = {
    "int8": 1, "char": 1, "uint8": 1, "int32": 4, "int": 4, "uint32": 4, "int64": 8, "uint64": 8,
    "half": 2, "float16": 2, "fp16": 2, "float": 4, "float32": 4, "fp32": 4, "double": 8, "float64": 8, "fp64": 8,
    "bfloat16": 2, "bf16": 2, "fp8_e4m3": 1, "fp8_e5m2": 1, "f8e4m3": 1, "f8e5m2": 1,
    "float8_e4m3": 1, "float8_e5m2": 1, "fp8": 1, "bool": 1,
}  # fmt: skip
OPS = {
    "all_reduce": "all_reduce", "allreduce": "all_reduce", "all_gather": "all_gather", "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter", "reducescatter": "reduce_scatter", "alltoall": "all_to_all",
    "all_to_all": "all_to_all", "broadcast": "broadcast", "reduce": "reduce", "gather": "gather", "scatter": "scatter",
    "sendrecv": "send_recv", "send_recv": "send_recv", "hypercube": "hypercube",
}  # fmt: skip
USUAL_HALF = ("time", "algbw", "busbw", "wrong")
STATED = frozenset(USUAL_HALF)
MAX_DIGITS = 15
MOST_BUS = 2.01  # busbw over algbw, of an all-reduce over very many ranks
MOST_WORDS = 24  # that are looked at in a row
INFORMATIVE = 0.3  # half-width of a printed speed over the speed: coarser than this it proves nothing

_ANCHOR = re.compile(r"(?<![\w.])(\d{1,15})\s+(\d{1,15})\s+([A-Za-z][A-Za-z0-9_]{1,15})(?![A-Za-z0-9_:=/@])")
_GLUED = re.compile(r"(?<![\w.])(\d{14,30})\s+([A-Za-z][A-Za-z0-9_]{1,15})(?![A-Za-z0-9_:=/@])")
_NUMBER = re.compile(r"-?(?:\d+(?:\.\d*)?|\.\d+)(?:e[+-]?\d+)?|-?nan|-?inf", re.IGNORECASE | re.ASCII)
_WORD = re.compile(r"[A-Za-z][A-Za-z_]*")
_COMMA = re.compile(r"\d{1,15},\d{1,2}")  # as a shell of another locale prints it
_FIRST_YEARS = re.compile(r"\bbytes\s+N\s+type\s+op\s+(?:root\s+)?time\b")


class Cell(NamedTuple):
    """A printed number and half of its last digit; NaN where the log says N/A."""

    value: float
    half: float
    text: str = ""


class Half(NamedTuple):
    """One half of a row, out-of-place or in-place, as printed."""

    time: Cell  # us
    algbw: Cell  # GB/s
    busbw: Cell  # GB/s
    wrong: Cell


class Layout(NamedTuple):
    """Columns of a table as its header names them."""

    root: bool
    half: tuple[str, ...]  # columns of a half, in order
    cpu_time: bool
    error: bool  # the last column is a deviation, not a count
    milliseconds: bool = False  # as in the first years, when columns were bytes, N, type, op, res


class Row(NamedTuple):
    """A row with its two halves."""

    line: int
    size: int
    elements: int
    dtype: str
    redop: str
    root: int | None
    halves: tuple[Half, Half]
    rejoined: bool = False  # put together from several lines
    cut: bool = False  # its end is lost


class Piece(NamedTuple):
    """The start of a row found in a line, and what follows it."""

    start: int
    size: int
    elements: int
    dtype: str
    rest: str  # after the type


NOTHING = Cell(math.nan, 0.0)
NO_HALF = Half(NOTHING, NOTHING, NOTHING, NOTHING)


def find_piece(text: str) -> Piece | None:
    """The start of a row, ``size count type``, anywhere in a line.

    Args:
        text: the line.

    Returns:
        What was found, or None.
    """
    unknown = None
    for found in _ANCHOR.finditer(text):
        piece = Piece(found.start(), int(found[1]), int(found[2]), found[3].lower(), text[found.end() :])
        if piece.dtype in ELEMENT_BYTES:
            return piece
        unknown = unknown or piece
    glued = _GLUED.search(text)
    if glued and glued[2].lower() in ELEMENT_BYTES:
        return _unglued(glued, text)
    if unknown and _looks_like_cells(unknown.rest):
        return unknown
    return None


def _unglued(found: re.Match[str], text: str) -> Piece | None:
    """A size and a count that ran together, where only one way to part them makes sense."""
    digits, dtype = found[1], found[2].lower()
    ways = []
    for cut in range(1, len(digits)):
        size, count = int(digits[:cut]), int(digits[cut:])
        if digits[cut] != "0" and count and len(digits[:cut]) <= MAX_DIGITS and size == count * ELEMENT_BYTES[dtype]:
            ways.append((size, count))
    if len(ways) != 1:
        return None
    return Piece(found.start(), *ways[0], dtype, text[found.end() :])


def _looks_like_cells(rest: str) -> bool:
    _, cells = tokens(rest, 0)
    return len(cells) >= 2 * len(USUAL_HALF) and all(c.text.count(".") == 1 for c in (cells[-3], cells[-2]))


def number(text: str) -> Cell | None:
    """A printed number with half of its last digit, NaN for N/A, None for anything else."""
    if text in ("N/A", "n/a", "NA", "-"):
        return Cell(math.nan, 0.0, text)
    if _NUMBER.fullmatch(text) is None:
        return None
    value = float(text)
    if not math.isfinite(value):
        return Cell(math.nan, 0.0, text)
    mantissa, _, exponent = text.lower().partition("e")
    decimals = len(mantissa.partition(".")[2])
    return Cell(value, 0.5 * 10.0 ** (int(exponent or 0) - decimals), text)


def tokens(rest: str, size: int) -> tuple[str, list[Cell]]:
    """The reduction's name and the numbers that follow the type, up to the first thing that is no number."""
    words = rest.split(None, MOST_WORDS)[:MOST_WORDS]
    redop = ""
    if words and _WORD.fullmatch(words[0]) and number(words[0]) is None:
        redop, words = words[0].lower(), words[1:]
    cells: list[Cell] = []
    for word in words:
        if "," in word and _COMMA.fullmatch(word):
            word = word.replace(",", ".")
        cell = number(word)
        if cell is not None:
            cells.append(cell)
        elif parted := _parted(word, size):
            cells += parted
        else:
            break
    return redop, cells


def _parted(word: str, size: int) -> tuple[Cell, ...]:
    """Two numbers that ran together: a time and a speed that agree, or two speeds of two decimals each."""
    ways = []
    for found in (re.match(rf"\d+\.\d{{{decimals}}}(?=\d+\.)", word) for decimals in (1, 2)):
        both = (number(found[0]), number(word[found.end() :])) if found else (None, None)
        if both[0] is not None and both[1] is not None:
            ways.append((both[0], both[1]))
    timed = [way for way in ways if agree(size, *way) and proves(way[1])]
    if len(timed) == 1:
        return timed[0]
    return ways[-1] if ways and not timed and len(ways) == 2 else ()


def agree(size: int, time: Cell, algbw: Cell) -> bool | None:
    """Whether size over time is the printed speed, given what rounding hides; None where a cell is not there."""
    if math.isnan(time.value) or math.isnan(algbw.value):
        return None
    fast = size / max(time.value - time.half, 1e-9) / (GIGA * MICRO)
    slow = size / max(time.value + time.half, 1e-9) / (GIGA * MICRO)
    slack = 1e-9 + 2e-4 * abs(algbw.value)  # a speed computed from a time of single precision
    return bool(slow - algbw.half - slack <= algbw.value <= fast + algbw.half + slack)


def possible(algbw: Cell, busbw: Cell) -> bool:
    """Whether a bus bandwidth can belong to a speed: no operation has more than twice it."""
    if math.isnan(algbw.value) or math.isnan(busbw.value):
        return True
    return 0 <= busbw.value <= MOST_BUS * (algbw.value + algbw.half) + busbw.half


def proves(algbw: Cell) -> bool:
    """Whether a speed is printed finely enough for its agreement to prove something."""
    return algbw.value > 0 and algbw.half / algbw.value <= INFORMATIVE


def halves_of(
    piece: Piece, cells: Sequence[Cell], layout: Layout | None, *, all_there: bool
) -> tuple[int | None, tuple[Half, Half], bool] | None:
    """Give the numbers of a row their meaning.

    Args:
        piece: the row's start.
        cells: its numbers.
        layout: columns as the header says, None without one.
        all_there: require every cell; else halves that are cut become ``NO_HALF``.

    Returns:
        Root, halves, and whether the last column holds deviations; None where the numbers cannot be such a row.
    """
    columns: tuple[str, ...] = layout.half if layout else USUAL_HALF
    n = len(columns)
    options = [layout.root] if layout else [len(cells) > 2 * n, len(cells) <= 2 * n]
    if not layout and len(cells) in (16, 17):  # -I without its header
        columns, n = (*USUAL_HALF, "", "", "", ""), 8
        options = [len(cells) == 17]
    for has_root in options:
        rest = cells[1:] if has_root else cells
        if has_root and (not cells or not cells[0].text.lstrip("-").isdigit()):
            continue
        if all_there and len(rest) < 2 * n:
            continue
        first, second = _half(rest[:n], columns), _half(rest[n : 2 * n], columns)
        if layout and layout.milliseconds:
            first, second = _in_microseconds(first), _in_microseconds(second)
        fits = any(agree(piece.size, half.time, half.algbw) for half in (first, second))
        if fits or len(options) == 1:
            error = layout.error if layout else any(_deviation(h.wrong) for h in (first, second))
            return (int(cells[0].value) if has_root else None), (first, second), error
    return None


def _deviation(cell: Cell) -> bool:
    return "e-" in cell.text or "." in cell.text


def _half(cells: Sequence[Cell], columns: Sequence[str]) -> Half:
    if columns == USUAL_HALF and len(cells) == len(columns):
        return Half(*cells)
    by_name = {name: cell for name, cell in zip(columns, cells, strict=False) if name in STATED}
    return Half(*(by_name.get(name, NOTHING) for name in USUAL_HALF))


def _in_microseconds(half: Half) -> Half:
    time = half.time
    return half._replace(time=Cell(time.value * KILO, time.half * KILO, time.text))


def read_header(text: str) -> Layout | None:
    """The columns that a header line names, or None where the line is no header."""
    first = _FIRST_YEARS.search(text)
    at = first.start() if first else text.find("size")
    if at < 0 or "busbw" not in text or "time" not in text:
        return None
    words = [w.lstrip("#").lower() for w in text[at:].replace("|", " ").split()]
    words = [w for w in words if w]
    if first:
        words = [{"bytes": "size", "n": "count", "op": "redop", "res": "error"}.get(w, w) for w in words]
    if "count" not in words[:4]:
        return None
    starts = [i for i, w in enumerate(words) if w in ("time", "cputime")]
    if len(starts) != 2:
        return None
    width = starts[1] - starts[0]
    half = ["time" if w == "cputime" else "wrong" if w == "error" else w for w in words[starts[0] : starts[1]]]
    if not {"time", "algbw", "busbw"} <= set(half):
        return None
    known = tuple(w if w in STATED else "" for w in half)
    return Layout("root" in words[: starts[0]], known[:width], "cputime" in words, "error" in words, bool(first))
