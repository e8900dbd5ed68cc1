"""Benchmarks that write records: nccl-tests -J, rccl-tests -Z json or csv, and tables with a header and commas."""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from dscalc.calibrate.log_text import Log, printed, untagged
from dscalc.calibrate.measurements import Read, Table
from dscalc.calibrate.nccl_rows import NO_HALF, NOTHING, OPS, Cell, Half, Row, agree, number
from dscalc.calibrate.table_checks import NOTHING_STATED, Claims, Stated, make_table, verify
from dscalc.units import BITS_PER_BYTE, GB, GIB, GIGA, KIB, KILO, MEGA, MIB

MAX_RECORDS = 2_000_000
LONGEST_HEADING = 2000  # characters
FIXED = 0.95  # of the rows must have as many decimals before one with fewer counts as cut
MAX_DEPTH = 40  # of braces; deeper is no log
TO_US = {"ns": KILO / MEGA, "us": 1.0, "usec": 1.0, "µs": 1.0, "ms": KILO, "msec": KILO, "s": MEGA, "sec": MEGA}
TO_GB = {"gb/s": 1.0, "gbps": 1.0, "mb/s": MEGA / GIGA, "b/s": 1 / GB, "gb/sec": 1.0}
TO_BYTES = {"b": 1, "bytes": 1, "kib": KIB, "mib": MIB, "gib": GIB}
NAMES = {
    "size": "size", "sizebytes": "size", "bytes": "size", "msgsize": "size", "messagesize": "size", "datasize": "size",
    "count": "count", "type": "type", "dtype": "type", "datatype": "type", "redop": "redop", "root": "root",
    "time": "time", "timeus": "time", "latency": "time", "latencyus": "time", "avgtime": "time", "timeavg": "time",
    "cputime": "cputime", "algbw": "algbw", "busbw": "busbw", "wrong": "wrong", "nwrong": "wrong", "errors": "wrong",
    "inplace": "inplace", "name": "op", "op": "op", "collective": "op", "operation": "op", "test": "op",
    "ranks": "ranks", "nranks": "ranks", "worldsize": "ranks", "nodes": "nodes", "nnodes": "nodes", "gpu": "gpu",
    "ranksimplied": "", "gpus": "ranks", "ngpus": "ranks",
}  # fmt: skip
HALF_PREFIXES = (("outofplace", 0), ("oop", 0), ("inplace", 1), ("ip", 1))
_UNIT = re.compile(r"^(.*?)[\s_]*(?:\(([^)]*)\)|\[([^\]]*)\])\s*$")
_RECORDS = re.compile(r'"(?:size|results)"\s*:\s*["\[\d]')
_SIZE = re.compile("size", re.IGNORECASE)
_SIZE_KEY = re.compile(r'"size"\s*:')


class Column(NamedTuple):
    """What a heading of a table of records means."""

    name: str
    half: int | None
    factor: float  # to us, GB/s or bytes


def column(heading: str, seen: int = 0) -> Column | None:
    """The meaning of a heading, or None for one that says nothing here; ``seen``: how often it came before."""
    found = _UNIT.match(heading.strip())
    text, unit = (found[1], (found[2] or found[3] or "").strip()) if found else (heading.strip(), "")
    key = re.sub(r"[^a-z0-9]", "", text.lower())
    half = None
    for prefix, which in HALF_PREFIXES:
        if key.startswith(prefix) and key not in NAMES and NAMES.get(key[len(prefix) :]):
            key, half = key[len(prefix) :], which
            break
    ended = next((u for u in ("ns", "ms", "us") if not unit and key not in NAMES and key.endswith(u)), "")
    if ended:
        key, unit = key[: -len(ended)], ended
    name = NAMES.get(key, "")
    if not name:
        return None
    if name in ("time", "algbw", "busbw", "wrong", "cputime") and half is None and seen:
        half = seen
    table = {"time": TO_US, "cputime": TO_US, "algbw": TO_GB, "busbw": TO_GB, "size": TO_BYTES}.get(name, {})
    factor = table.get(unit.lower(), 1.0)
    if name in ("algbw", "busbw") and unit in ("Gbps", "Gb/s", "Gbit/s"):
        factor = 1 / BITS_PER_BYTE
    return Column(name, half, factor)


def sniff_json(text: str) -> bool:
    """Whether a text has JSON objects that may be records."""
    return _RECORDS.search(text) is not None


def sniff_csv(text: str) -> bool:
    """Whether some line is a heading of a table with commas, semicolons or tabs."""
    return _heading(text) is not None


def _heading(text: str) -> int | None:
    """Where the heading of a table with such marks begins."""
    at = 0
    while (found := _SIZE.search(text, at)) is not None:
        start, end = text.rfind("\n", at, found.start()) + 1 or at, text.find("\n", found.end())
        at = len(text) if end < 0 else end + 1
        line = text[start : start + LONGEST_HEADING + 1]
        line = line.partition("\n")[0]
        if len(line) <= LONGEST_HEADING and (mark := _separator(line)):
            columns = [column(word.strip().strip('"')) for word in untagged(line).strip().split(mark)]
            names = {c.name for c in columns if c}
            if "size" in names and names & {"time", "busbw", "algbw"}:
                return start
    return None


def _separator(heading: str) -> str:
    """What parts the cells under a heading; empty where nothing does."""
    return next((mark for mark in (";", "\t", ",") if mark in heading), "")


def read_csv(log: Log, stated: Stated = NOTHING_STATED) -> Read:
    """Read a table with commas, semicolons or tabs whose heading names size and time or speed.

    Between semicolons a comma is the point of a number, as spreadsheets write it in much of Europe.

    Args:
        log: the file.
        stated: what the user says of it.

    Returns:
        Its tables.
    """
    start = _heading(log.text)
    if start is None:
        return Read(log.name, "csv", (), (), ())
    first = log.text.count("\n", 0, start) + 1
    lines = [line._replace(text=untagged(line.text).strip()) for line in log.lines if line.number >= first]
    mark = _separator(lines[0].text)
    if mark == ";":
        lines = [line._replace(text=line.text.replace(",", ".")) for line in lines]
    headings = lines[0].text.split(mark)
    names = [heading.strip().strip('"') for heading in headings]
    columns: list[Column | None] = []
    for name in names:
        meant = column(name)
        columns.append(meant and column(name, sum(c is not None and c.name == meant.name for c in columns)))
    cells = [
        (line, next(csv.reader([line.text], delimiter=mark), [])) for line in lines[1 : MAX_RECORDS + 1] if line.text
    ]
    ends = Counter(_decimals(texts[-1]) for _, texts in cells if len(texts) == len(names))
    often = ends.most_common(1)[0] if ends else (0, 0)
    # where numbers have a fixed form: all but one row, or nearly all
    usual = often[0] if often[1] >= max(ends.total() - 1, 2) or often[1] > FIXED * ends.total() else 0
    gathered = _Gathered(log.name, "csv", stated)
    for line, texts in cells:
        whole = len(texts) == len(names) and line.ended
        # the last cell of a cut line may lack digits
        cut = not whole or _decimals(texts[-1]) < usual
        known = texts[:-1] if cut else texts
        values = {(c.name, c.half): (t.strip(), c.factor) for c, t in zip(columns, known, strict=False) if c}
        if any(text.strip()[:1].isdigit() for text in texts):
            gathered.take(values, line.number, whole)
    return gathered.finish()


def _decimals(text: str) -> int:
    return len(text.strip().partition(".")[2])


def read_json(log: Log, stated: Stated = NOTHING_STATED) -> Read:
    """Read nccl-tests' JSON, rccl-tests' JSON, or one record a line; a cut file gives the records that are whole.

    Args:
        log: the file.
        stated: what the user says of it.

    Returns:
        Its tables.
    """
    objects, whole = _objects(log)
    if not objects:
        return Read(log.name, "json", (), (), ("it has parts of JSON, but no object in it is whole",))
    notes = () if whole else ("the file is cut or damaged: only whole records are read",)
    report = next((o for o in objects if isinstance(o.get("results"), list)), None)
    records = [r for r in report["results"] if isinstance(r, dict)] if report else objects
    meta: dict[str, Any] = report or {
        "config": next((o for o in objects if "ngpus" in o), None),
        "devices": [o for o in objects if "hostname" in o and "rank" in o],
    }
    lines = _line_numbers(log.text, len(records))
    gathered = _Gathered(log.name, "nccl-tests-json" if report or "results" in log.text else "json", stated)
    gathered.meta(meta)
    for record, line in zip(records, lines, strict=False):
        gathered.take(_values(record), line, True)
    return gathered.finish()._replace(notes=notes)


def _objects(log: Log) -> tuple[list[dict[str, Any]], bool]:
    """Objects of a JSON document, of JSON lines, or of what is left of one; numbers stay as written."""
    text = log.text.lstrip("\ufeff \t\r\n")
    if not text.startswith(("{", "[")):  # behind tags of a launcher, or between other lines
        text = "\n".join(untagged(line) for line in text.split("\n"))
    decoder = json.JSONDecoder(parse_float=str, parse_int=str, parse_constant=str)
    try:
        top = decoder.decode(text)
    except (ValueError, RecursionError) as error:
        if isinstance(error, RecursionError):
            return [], False
    else:
        items = top if isinstance(top, list) else [top]
        return [o for o in items if isinstance(o, dict)], True
    found: list[dict[str, Any]] = []
    at, failed = 0, 0
    while (at := text.find("{", at)) >= 0 and len(found) < MAX_RECORDS and failed < MAX_DEPTH:
        try:
            item, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at += 1
            failed += 1
            continue
        if isinstance(item, dict):
            found.append(item)
    return found, "\n" in text and failed == 0


def _line_numbers(text: str, count: int) -> Iterator[int]:
    line, at = 1, 0
    for found in _SIZE_KEY.finditer(text):
        line += text.count("\n", at, found.start())
        at = found.start()
        yield line
    for _ in range(count):
        yield line


Values = dict[tuple[str, int | None], tuple[str, float]]


def _values(record: Mapping[str, Any]) -> Values:
    """Cells of a record by name and half."""
    values: Values = {}
    for key, content in record.items():
        half = {"out_of_place": 0, "in_place": 1}.get(key)
        if half is not None and isinstance(content, dict):
            for inner, value in content.items():
                found = column(inner)
                if found:
                    values[found.name, half] = (_text(value), found.factor)
            continue
        found = column(key)
        if found and not isinstance(content, dict | list):
            values[found.name, found.half] = (_text(content), found.factor)
    if "experiment_name" in record:
        values["op", None] = (_text(record["experiment_name"]), 1.0)
    return values


def _text(value: object) -> str:
    if value is None:
        return "N/A"
    return "1" if value is True else "0" if value is False else str(value)[:80].strip()


class _Gathered:
    """Records put together to rows and rows to tables."""

    def __init__(self, file: str, form: str, stated: Stated) -> None:
        self.file, self.form, self.stated = file, form, stated
        self.groups: dict[tuple[str, int | None, int | None], list[Row]] = {}
        self.zero: list[Row] = []
        self.torn = 0
        self.cpu = False
        self.op, self.ranks_from, self.gpu = "", "", ""
        self.ranks: int | None = None
        self.nodes: int | None = None
        self.mean: Cell | None = None
        self.bounds: int | None = None

    def meta(self, found: Mapping[str, Any]) -> None:
        """What nccl-tests writes beside its results."""
        args = found.get("args")
        if isinstance(args, list) and args:
            self.op = _op(str(args[0]).rpartition("/")[2])
        config: Mapping[str, Any] = found["config"] if isinstance(found.get("config"), dict) else {}
        devices = [d for d in found.get("devices") or config.get("devices") or () if isinstance(d, dict)]
        each = (_count(config.get("ngpus")) or 1) * (_count(config.get("nthreads")) or 1)
        if devices:  # one for each process
            self.ranks, self.ranks_from = len(devices) * each, "the list of devices"
            self.nodes = len({str(d.get("hostname")) for d in devices})
            self.gpu = " ".join(printed(str(devices[0].get("device_info", ""))[:80]).split())
        average, bounds = found.get("average_bus_bandwidth"), found.get("out_of_bounds")
        if isinstance(average, dict):
            self.mean = number(_text(average.get("bandwidth")))
        if isinstance(bounds, dict):
            self.bounds = _count(bounds.get("count"))

    def take(self, values: Values, line: int, whole: bool) -> None:
        """Take one record."""
        size = _number(values.get(("size", None)))
        if size is None or not size.value >= 0:
            self.torn += not whole
            return
        halves = [_half(values, 0), _half(values, 1)]
        loose = _half(values, None)
        if not whole:  # what is left of a cut record counts only where it proves itself
            halves = [half if agree(round(size.value), half.time, half.algbw) else NO_HALF for half in halves]
            loose = loose if agree(round(size.value), loose.time, loose.algbw) else NO_HALF
        self.cpu |= any(name == "cputime" for name, _ in values)
        in_place = values.get(("inplace", None), ("0", 1.0))[0].lower() in ("1", "true", "yes")
        if loose is not NO_HALF:
            halves[in_place] = loose
        if all(half is NO_HALF for half in halves):
            self.torn += not whole
            return
        op = _op(values.get(("op", None), ("", 1.0))[0])
        count = _number(values.get(("count", None)))
        root = _number(values.get(("root", None)))
        row = Row(
            line,
            round(size.value),
            round(count.value) if count and count.value >= 0 else 0,
            values.get(("type", None), ("", 1.0))[0].lower(),
            values.get(("redop", None), ("", 1.0))[0].lower(),
            int(root.value) if root and math.isfinite(root.value) else None,
            (halves[0], halves[1]),
        )
        if not row.size:
            self.zero.append(row)
            return
        ranks = _count(values.get(("ranks", None), ("", 1.0))[0])
        nodes = _count(values.get(("nodes", None), ("", 1.0))[0])
        rows = self.groups.setdefault((op, ranks, nodes), [])
        twin = rows[-1] if rows else None
        other = 1 - in_place
        alike = twin is not None and twin[1:6] == row[1:6] and twin.halves[in_place] is NO_HALF
        if twin is not None and alike and loose is not NO_HALF and twin.halves[other] is not NO_HALF:
            pair = (twin.halves[0], loose) if in_place else (loose, twin.halves[1])
            rows[-1] = twin._replace(halves=pair)
        else:
            rows.append(row)

    def finish(self) -> Read:
        """The tables."""
        return Read(self.file, self.form, tuple(self._tables()), (), ())

    def _tables(self) -> Iterable[Table]:
        torn, zero = self.torn, tuple(self.zero)
        alone = len(self.groups) == 1
        for (op, ranks, nodes), rows in self.groups.items():
            found = verify(rows)
            if not found.rows:
                continue
            claims = Claims(
                self.file,
                self.form,
                op=op or self.op,
                op_from="its records" if op else "the command",
                ranks=ranks or self.ranks,
                ranks_from="its records" if ranks else self.ranks_from,
                nodes=nodes or self.nodes,
                gpu=self.gpu,
                printed_mean=self.mean if alone else None,
                out_of_bounds=self.bounds if alone else None,
                cpu_time=self.cpu,
                rows_torn=torn,
                zero_rows=zero,
            )
            torn, zero = 0, ()
            yield make_table(found, claims, self.stated)


def _op(text: str) -> str:
    key = re.sub(r"_perf(?:_mpi)?$", "", text.strip().lower())
    return OPS.get(key, OPS.get(re.sub(r"[^a-z]", "", key), ""))


def _count(value: object) -> int | None:
    text = str(value).strip()
    return int(text) if text.isdecimal() and 0 < len(text) < 8 and int(text) else None


def _number(found: tuple[str, float] | None) -> Cell | None:
    cell = number(found[0]) if found else None
    return None if cell is None or found is None else Cell(cell.value * found[1], cell.half * found[1], cell.text)


def _half(values: Values, half: int | None) -> Half:
    cells = {name: _number(values.get((name, half))) or NOTHING for name in ("time", "algbw", "busbw", "wrong")}
    if ("cputime", half) in values:
        cells["time"] = _number(values[("cputime", half)]) or NOTHING
    if all(math.isnan(cells[name].value) for name in ("time", "algbw", "busbw")):
        return NO_HALF
    return Half(**cells)
