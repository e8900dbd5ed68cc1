"""What ``dscalc fit`` read, on a screen and as files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dscalc.report.asides import warned
from dscalc.report.export import to_csv, to_json, to_markdown
from dscalc.report.fit_profile import (
    COMPARED_HEADINGS,
    FIT_HEADINGS,
    compared_cells,
    effect_words,
    fit_cells,
    sections,
    sustained_cells,
    why_words,
)
from dscalc.report.screen import BAD, GOOD, QUIET, Cell, Screen, Span
from dscalc.units import format_count, format_flop_rate, format_rate, format_size, format_time

if TYPE_CHECKING:
    from dscalc.answers.fit import FitAnswer

TABLE_COLUMNS = (
    *("file", "format", "op", "ranks", "nodes", "gpu", "groups", "rows_read", "rows_zero", "rows_torn"),
    *("size_min_bytes", "size_max_bytes", "max_busbw_bytes_per_s", "mean_busbw_bytes_per_s"),
    *("printed_mean_busbw_bytes_per_s", "first_line", "last_line"),
)
ROW_COLUMNS = (
    *("file", "op", "ranks", "nodes", "line", "size_bytes", "time_s", "algbw_bytes_per_s", "busbw_bytes_per_s"),
    *("wrong", "in_place_time_s", "in_place_algbw_bytes_per_s", "in_place_busbw_bytes_per_s", "in_place_wrong"),
)
KERNEL_COLUMNS = ("file", "kind", "dtype", "gpu", "line", "m", "n", "k", "time_s", "rate")
HEADINGS = (
    *(("operation", "left"), ("ranks", "right"), ("nodes", "right"), ("rows", "right"), ("sizes", "left")),
    *(("busbw max", "right"), ("checks", "left"), ("busbw mean", "right"), ("torn", "right")),
)
ROW_HEADINGS = (
    *(("line", "right"), ("size", "right"), ("time", "right"), ("algbw", "right"), ("busbw", "right")),
    *(("in-place time", "right"), ("busbw", "right")),
)
KINDS = {"gemm": "matrix product", "batched_gemm": "batched product", "memory_copy": "memory copy"}
UNKNOWN = "?"
NONE = "-"


def render(
    found: FitAnswer, form: str, *, colour: bool | None = None, quiet: bool = False, explain: bool = False
) -> str:
    """The answer in the form asked for."""
    if form == "json":
        return to_json(found.to_json())
    if form == "csv":
        return _csv(found)
    if quiet:
        return "".join(f"{' '.join(line)}\n" for line in _quiet(found))
    if form == "markdown":
        return _markdown(found)
    out = Screen(colour=colour)
    out.say(_summary(found))
    for log in found.logs:
        out.head(log.file, log.format)
        gpus = sorted({t.gpu for t in log.tables if t.gpu} | {c.gpu for c in log.compute if c.gpu})
        if gpus:
            out.add([Span(", ".join(gpus), QUIET)])
        tables = found.to_json_tables(log)
        if tables:
            out.table(HEADINGS, [_table(one) for one in tables])
        for table, one in zip(log.tables, tables, strict=True):
            if found.with_rows:
                out.add([])
                out.add([Span(f"{_op(one)}, lines {table.first_line}-{table.last_line}", QUIET)])
                out.table(ROW_HEADINGS, [_row(row) for row in one["rows"]])
        if log.compute:
            out.table(
                [("kernel", "left"), ("dtype", "left"), ("rows", "right"), ("best", "right"), ("median", "right")],
                [_kernel(one) for one in found.to_json_compute(log)],
            )
        for note in log.notes:
            out.say(f"  {note}", QUIET, hang=2)
    sections(out, found.profiled, explain=explain)
    warned(out, found.warnings())
    return out.text()


def _csv(found: FitAnswer) -> str:
    """The tables, or with --rows every row; kernels where the logs hold nothing else."""
    if not any(log.tables for log in found.logs):
        return to_csv(found.kernels(), KERNEL_COLUMNS)
    return to_csv(found.rows(), ROW_COLUMNS) if found.with_rows else to_csv(found.tables(), TABLE_COLUMNS)


def _summary(found: FitAnswer) -> str:
    tables = [one for log in found.logs for one in found.to_json_tables(log)]
    kernels = sum(len(one.line) for log in found.logs for one in log.compute)
    torn = sum(one["rows_torn"] for one in tables)
    parts = [_plural(len(found.logs), "log"), _plural(len(tables), "table")]
    parts.append(_plural(sum(one["rows_read"] for one in tables), "row"))
    parts += [_plural(kernels, "kernel")] if kernels else []
    parts += [f"{_plural(torn, 'row')} torn"] if torn else []
    failed = sum(not c["ok"] for one in tables for c in one["checks"])
    parts.append(f"{_plural(failed, 'check')} failed" if failed else "every check holds")
    if found.left_out:
        parts.append(f"{_plural(len(found.left_out), 'file')} without a usable row")
    return f"Read {', '.join(parts)}"


def _plural(count: int, word: str) -> str:
    return f"{count:,} {word}{'' if count == 1 else 's'}"


def _quiet(found: FitAnswer) -> list[list[str]]:
    """One line a table: operation, ranks, rows, largest bus bandwidth."""
    lines = []
    for log in found.logs:
        for one in found.to_json_tables(log):
            busbw = _rate(one["max_busbw_bytes_per_s"])
            lines.append([log.file, _op(one), f"{_known(one['ranks'])} ranks", f"{one['rows_read']} rows", busbw])
        lines += [
            [log.file, *_kernel(one)[:2], f"{one['rows_read']} rows", _kernel_rate(one, "max_rate")]
            for one in found.to_json_compute(log)
        ]
    return lines


def _markdown(found: FitAnswer) -> str:
    headings = ["file", *(name for name, _ in HEADINGS)]
    cells = [
        [log.file, *(c.text if isinstance(c, Span) else c for c in _table(one))]
        for log in found.logs
        for one in found.to_json_tables(log)
    ]
    kernels = [[log.file, *_kernel(one)] for log in found.logs for one in found.to_json_compute(log)]
    parts = [to_markdown(cells, headings, right=(2, 3, 4, 6, 8, 9))] if cells else []
    if kernels:
        parts.append(to_markdown(kernels, ["file", "kernel", "dtype", "rows", "best", "median"], right=(3, 4, 5)))
    if fits := fit_cells(found.profiled):
        heads = ["fit", *(name for name, _ in FIT_HEADINGS[1:])]
        parts.append(to_markdown(fits, heads, right=(1, 2, 3, 4, 5, 6)))
    if rates := sustained_cells(found.profiled):
        parts.append(to_markdown(rates, ["one GPU sustains", "rate", "rows", ""], right=(1, 2)))
    set_beside = found.profiled.beside
    if set_beside is not None and (beside := compared_cells(found.profiled)):
        heads = [f"beside {set_beside.cluster.id}", *(name for name, _ in COMPARED_HEADINGS[1:])]
        plain = [[c.text if isinstance(c, Span) else str(c) for c in row] for row in beside]
        parts.append(to_markdown(plain, heads, right=(1, 2, 3, 4, 5)))
        parts.append(f"{why_words(set_beside)} {effect_words(set_beside)}\n")
    parts += ["".join(f"- {w.message}. Next: {w.next_step}.\n" for w in found.warnings())]
    return "\n".join(part for part in parts if part)


def _op(one: dict[str, Any]) -> str:
    return (one["op"] or UNKNOWN).replace("_", "-")


def _known(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def _rate(value: float | None) -> str:
    return NONE if value is None or value != value else format_rate(value)


def _table(one: dict[str, Any]) -> list[Cell]:
    low, high = (format_size(one[f"size_{end}_bytes"]) for end in ("min", "max"))
    failed = sum(not c["ok"] for c in one["checks"])
    return [
        _op(one),
        _known(one["ranks"]),
        _known(one["nodes"]),
        f"{one['rows_read']:,}",
        low if low == high else f"{low} to {high}",
        _rate(one["max_busbw_bytes_per_s"]),
        Span(f"{failed} failed", BAD) if failed else Span("hold", GOOD),
        _rate(one["mean_busbw_bytes_per_s"]),
        f"{one['rows_torn']:,}" if one["rows_torn"] else NONE,
    ]


def _row(row: dict[str, Any]) -> Sequence[Cell]:
    def time(value: float | None) -> str:
        return NONE if value is None else format_time(value)

    return [
        f"{row['line']:,}",
        format_size(row["size_bytes"]),
        time(row["time_s"]),
        _rate(row["algbw_bytes_per_s"]),
        _rate(row["busbw_bytes_per_s"]),
        time(row["in_place_time_s"]),
        _rate(row["in_place_busbw_bytes_per_s"]),
    ]


def _kernel(one: dict[str, Any]) -> list[str]:
    kind = KINDS.get(one["kind"], one["kind"])
    best, median = _kernel_rate(one, "max_rate"), _kernel_rate(one, "median_rate")
    return [kind, one["dtype"] or UNKNOWN, f"{one['rows_read']:,}", best, median]


def _kernel_rate(one: dict[str, Any], key: str) -> str:
    if one["kind"] == "memory_copy":
        return format_rate(one[key])
    return f"{format_count(one[key])}/s" if one["kind"] == "launch" else format_flop_rate(one[key])
