"""Raw rows of ``dscalc bench``: JSON Lines, one measurement a line, written as it goes and read by ``dscalc fit``.

Every line is one object with a ``kind``; ``FIELDS`` says which other keys it has, all of them and no others:

- ``run`` opens a file, and again each ``--resume``: what was measured on.
- ``collective``: one operation at one size in one scope (see ``bench_plan``). ``size_bytes`` follows nccl-tests: the
  whole buffer for all-gather, reduce-scatter and all-to-all. ``time_s`` is the median over samples of a call, where a
  call lasts as long as its slowest rank and, with several groups, of the median group; ``low_s`` and ``high_s`` are the
  10th and 90th percentile; ``group_time_s`` has the median of each group.
- ``pair``: two nodes that answer each other, one way, in their leading ranks.
- ``gemm``: C (m, n) = A (m, k) B (k, n) on every rank; ``time_s`` is that of the median rank, ``rank_time_s`` and
  ``rank_low_s`` each rank's median and best tenth.
- ``memory_copy`` (``size_bytes`` are read and as many written) and ``launch``: likewise.
- ``overlap``: a product and a collective, each alone and both at once.
- ``note``: what was left out, and why. ``failure``: what ended the run early. ``end``: the run ended by itself.

Times are seconds, sizes bytes. A last line that is torn, as a killed run leaves it, is left out and said.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

import numpy as np

from dscalc.calibrate.measurements import HALVES, Check, Compute, Read, Table
from dscalc.cost.measured import bus_volume
from dscalc.errors import InputError
from dscalc.records import Array
from dscalc.specs.bounded_file import fault, read_bounded
from dscalc.units import MIB

SCHEMA = "dscalc-rows/1"
FORMAT = "dscalc-bench"
SUFFIX = ".rows.jsonl"  # after the name of the profile without its own
MAX_FILE_BYTES = 256 * MIB
MAX_LINE_BYTES = 4 * MIB  # a row holds one time for each rank
MAX_RANKS = 1_000_000
MAX_TEXT = 2000  # characters

OPS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv")
SCOPES = ("node", "half_node", "one_a_node", "all", "one_a_node_each")
DTYPES = ("bf16", "fp16", "fp8", "fp32", "uint8")
IN_PLACE = ("all_reduce",)

Row = dict[str, Any]


# ------------------------------------------------------------------------------------------------------------- fields
def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT and value.isprintable()


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value <= 2**62


def _is_positive(value: object) -> bool:
    return type(value) is int and 1 <= value <= 2**62


def _is_ranks(value: object) -> bool:
    return type(value) is int and 1 <= value <= MAX_RANKS


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and 0.0 < value < MAX_RANKS  # type: ignore[arg-type, operator]


def _is_list(inside: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and len(value) <= MAX_RANKS and all(map(inside, value))


def _or_none(inside: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or inside(value)


def _one_of(words: Sequence[str]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, str) and value in words


class Field(NamedTuple):
    """What a key of a row must hold, as a check and in words."""

    holds: Callable[[object], bool]
    words: str


_TEXT = Field(_is_text, "a short text")
_COUNT = Field(_is_count, "a whole number from 0")
_POSITIVE = Field(_is_positive, "a whole number from 1")
_RANKS = Field(_is_ranks, "a whole number from 1 to a million")
_TIME = Field(_is_time, "seconds above 0")
_TIMES = Field(_is_list(_is_time), "a list of seconds above 0")
_TEXTS = Field(_is_list(_is_text), "a list of short texts")
_MAYBE = Field(_or_none(_is_count), "a whole number from 0, or null")
_DTYPE = Field(_one_of(DTYPES), f"one of {', '.join(DTYPES)}")

_SPREAD = {"time_s": _TIME, "low_s": _TIME, "high_s": _TIME, "calls": _POSITIVE}
_EACH_RANK = {"rank_time_s": _TIMES, "rank_low_s": _TIMES}
_GROUP = {
    "op": Field(_one_of(OPS), f"one of {', '.join(OPS)}"),
    "scope": Field(_one_of(SCOPES), f"one of {', '.join(SCOPES)}"),
    "ranks": _RANKS,
    "nodes": _RANKS,
    "groups": _RANKS,
    "size_bytes": _POSITIVE,
    "dtype": _DTYPE,
}
_PRODUCT = {"dtype": _DTYPE, "m": _POSITIVE, "n": _POSITIVE, "k": _POSITIVE}

FIELDS: Mapping[str, Mapping[str, Field]] = {
    "run": {
        "schema": Field(_one_of((SCHEMA,)), f"{SCHEMA!r}"),
        "version": _TEXT,
        "torch": _TEXT,
        "backend": Field(_one_of(("nccl", "gloo")), "nccl or gloo"),
        "library": _TEXT,
        "device": _TEXT,
        "memory_bytes": _POSITIVE,
        "ranks": _RANKS,
        "nodes": _RANKS,
        "ranks_per_node": _RANKS,
        "hosts": _TEXTS,
    },
    "collective": {**_GROUP, **_SPREAD, "group_time_s": _TIMES, "wrong": _MAYBE},
    "pair": {"from_node": _COUNT, "to_node": _COUNT, "size_bytes": _POSITIVE, **_SPREAD},
    "gemm": {**_PRODUCT, **_SPREAD, **_EACH_RANK},
    "memory_copy": {"size_bytes": _POSITIVE, **_SPREAD, **_EACH_RANK},
    "launch": {**_SPREAD, **_EACH_RANK},
    "overlap": {
        **_GROUP,
        **_PRODUCT,
        "compute_s": _TIME,
        "communication_s": _TIME,
        "compute_beside_s": _TIME,
        "communication_beside_s": _TIME,
        "calls": _POSITIVE,
    },
    "note": {"code": _TEXT, "message": _TEXT},
    "failure": {"message": _TEXT},
    "end": {"elapsed_s": _TIME, "measured": _COUNT, "left_out": _COUNT},
}


def check_row(row: object) -> str | None:
    """What is wrong with a row, in words; None where nothing is."""
    if not isinstance(row, dict):
        return "is not an object"
    kind = row.get("kind")
    fields = FIELDS.get(kind) if isinstance(kind, str) else None
    if fields is None:
        return f"kind: is not one of {', '.join(FIELDS)}"
    for name in fields:
        if name not in row:
            return f"{name}: is missing from a row of kind {kind}"
    for name, value in row.items():
        if name == "kind":
            continue
        if name not in fields:
            return f"{name[:80]!r}: is not a key of a row of kind {kind}"
        if not fields[name].holds(value):
            return f"{name}: must be {fields[name].words}"
    if "low_s" in row and not row["low_s"] <= row["time_s"] <= row["high_s"]:
        return "time_s: must lie between low_s and high_s"
    return None


def rows_path(profile: str) -> str:
    """The file of raw rows beside a profile.

    >>> rows_path("lab/h200.json")
    'lab/h200.rows.jsonl'
    """
    return profile.removesuffix(".json") + SUFFIX


# ------------------------------------------------------------------------------------------------------------ writing
class RowWriter:
    """Appends rows to a file; the system has each when ``write`` returns, so a killed run keeps what it measured."""

    def __init__(self, path: str, *, resume: bool = False, force: bool = False) -> None:
        """Open the file.

        Args:
            path: the file.
            resume: go on with a file that exists; a torn last line is cut off first.
            force: replace a file that exists.

        Raises:
            InputError: it exists and neither is set, or it cannot be written.
        """
        self.path = path
        try:
            if resume and os.path.lexists(path):
                _cut_torn_line(path)
                flags = os.O_WRONLY | os.O_APPEND
            elif force:
                flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
            else:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND
            self._handle = os.open(path, flags, 0o666)
        except FileExistsError:
            raise InputError("exists; --resume goes on with it, --force replaces it", where=path) from None
        except (OSError, ValueError) as error:
            raise InputError(f"cannot be written ({getattr(error, 'strerror', None) or error})", where=path) from None

    def write(self, row: Row) -> None:
        """Add one row, whole or not at all.

        Raises:
            ValueError: the row is not one of ``FIELDS``.
            OSError: the disk is full or gone.
        """
        if wrong := check_row(row):
            raise ValueError(wrong)
        line = (json.dumps(row, ensure_ascii=True, allow_nan=False, separators=(",", ":")) + "\n").encode()
        while line:  # one call but for a full disk
            line = line[os.write(self._handle, line) :]

    def close(self) -> None:
        """Put everything on the disk and close the file."""
        os.fsync(self._handle)
        os.close(self._handle)


def _cut_torn_line(path: str) -> None:
    data = read_bounded(path, MAX_FILE_BYTES)
    whole = data.rfind(b"\n") + 1
    if whole != len(data):
        os.truncate(path, whole)


# ------------------------------------------------------------------------------------------------------------ reading
def sniff_rows(head: str) -> bool:
    """Whether a text begins like raw rows of ``dscalc bench``."""
    first = head.lstrip("\ufeff").partition("\n")[0]
    return first.startswith("{") and '"schema"' in first and '"dscalc-rows/' in first


def parse_rows(data: bytes, path: str) -> tuple[list[tuple[int, Row]], tuple[str, ...]]:
    """Every row with its line, from 1, and notes.

    Args:
        data: content of the file.
        path: its name, for messages.

    Returns:
        Lines and rows, and what was left out.

    Raises:
        InputError: a line that is no row (but a torn last one), or no ``run`` at the start; names the line.
    """
    rows: list[tuple[int, Row]] = []
    notes: list[str] = []
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        last = number == len(lines)  # without its end: the writer was killed within it
        if len(line) > MAX_LINE_BYTES:
            raise InputError(f"is longer than {MAX_LINE_BYTES // MIB} MiB", where=f"{path}:{number}")
        try:
            row = json.loads(line)
        except (ArithmeticError, ValueError, RecursionError) as error:
            if last:
                notes.append(f"line {number} is torn and left out")
                continue
            raise InputError(f"is not a row: {fault(error)}", where=f"{path}:{number}") from None
        if wrong := check_row(row):
            raise InputError(wrong, where=f"{path}:{number}")
        if not rows and row["kind"] != "run":
            raise InputError(
                f'the first row must be {{"kind": "run", "schema": "{SCHEMA}", ...}}', where=f"{path}:{number}"
            )
        rows.append((number, row))
    if not rows:
        raise InputError("holds no row", where=path)
    return rows, tuple(notes)


def load_rows(path: str) -> tuple[list[tuple[int, Row]], tuple[str, ...]]:
    """The rows of a file, as ``parse_rows`` gives them.

    Raises:
        InputError: no readable file, or a bad line.
    """
    try:
        data = read_bounded(path, MAX_FILE_BYTES)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=path) from None
    return parse_rows(data, path)


def read_rows(data: bytes, path: str) -> Read:
    """Raw rows in the columns that every log reader yields.

    A table is one operation among so many ranks on so many nodes, with so many groups at once; ``one_a_node_each`` is
    that with as many groups as a node has ranks. All-reduce runs in place, the others do not.

    Args:
        data: content of the file.
        path: its name as the user gave it.

    Returns:
        Tables of collectives, kernels, and notes (skipped, failed, torn).

    Raises:
        InputError: as ``parse_rows``.
    """
    rows, notes = parse_rows(data, path)
    run = rows[0][1]
    gpu = "" if run["backend"] == "gloo" else run["device"]
    told = [*notes]
    told += [row["message"] for _, row in rows if row["kind"] in ("note", "failure")]
    ended = rows[-1][1]["kind"] == "end"
    complete = Check("complete", ended, "the run ended by itself" if ended else "the run did not reach its end")
    collectives = [entry for entry in rows if entry[1]["kind"] == "collective"]
    tables = [_table(path, gpu, members, complete) for members in _by(collectives, _same_table)]
    kernels = [entry for entry in rows if entry[1]["kind"] in ("gemm", "memory_copy", "launch")]
    compute = [_compute(path, gpu, members) for members in _by(kernels, _same_kernel)]
    return Read(path, FORMAT, tuple(tables), tuple(compute), tuple(told))


def _same_table(row: Row) -> tuple[Any, ...]:
    return OPS.index(row["op"]), row["nodes"], row["ranks"], row["groups"]


def _same_kernel(row: Row) -> tuple[Any, ...]:
    return row["kind"], row.get("dtype", "")


def _by(entries: Iterable[tuple[int, Row]], key: Callable[[Row], tuple[Any, ...]]) -> list[list[tuple[int, Row]]]:
    """Rows of one table together, by size and then by line."""
    ordered = sorted(entries, key=lambda e: (key(e[1]), e[1].get("size_bytes", 0), e[0]))
    return [list(members) for _, members in groupby(ordered, key=lambda e: key(e[1]))]


def _floats(entries: Iterable[tuple[int, Row]], name: str) -> Array:
    values = (row.get(name) for _, row in entries)
    return np.array([math.nan if value is None else float(value) for value in values], dtype=np.float64)


def _table(path: str, gpu: str, entries: list[tuple[int, Row]], complete: Check) -> Table:
    first = entries[0][1]
    size, time = _floats(entries, "size_bytes"), _floats(entries, "time_s")
    volume = bus_volume(first["op"].replace("_", "-"), np.array([float(first["ranks"])]))
    half = HALVES.index("in_place" if first["op"] in IN_PLACE else "out_of_place")
    lines = [line for line, _ in entries]

    def placed(values: Array) -> Array:
        both = np.full((len(HALVES), len(values)), np.nan)
        both[half] = values
        return both

    return Table(
        file=path,
        format=FORMAT,
        op=first["op"],
        ranks=first["ranks"],
        nodes=first["nodes"],
        gpu=gpu,
        first_line=min(lines),
        last_line=max(lines),
        size_bytes=size,
        time_s=placed(time),
        algbw_bytes_per_s=placed(size / time),
        busbw_bytes_per_s=placed(size / time * volume),
        wrong=placed(_floats(entries, "wrong")),
        line=np.array(lines, dtype=np.intp),
        rows_torn=0,
        rows_zero=0,
        checks=(complete,),
        groups=first["groups"],
    )


def _compute(path: str, gpu: str, entries: list[tuple[int, Row]]) -> Compute:
    first = entries[0][1]
    kind = first["kind"]
    lines = [line for line, _ in entries]
    m, n, k, time = (_floats(entries, name) for name in ("m", "n", "k", "time_s"))
    if kind == "memory_copy":
        n = _floats(entries, "size_bytes")
    rate = {"gemm": 2.0 * m * n * k, "memory_copy": 2.0 * n}.get(kind, np.ones(len(entries))) / time
    return Compute(
        file=path,
        format=FORMAT,
        gpu=gpu,
        first_line=min(lines),
        last_line=max(lines),
        kind=kind,
        dtype=first.get("dtype", ""),
        m=m,
        n=n,
        k=k,
        time_s=time,
        rate=rate,
        line=np.array(lines, dtype=np.intp),
    )
