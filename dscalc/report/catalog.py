"""Lists of what ships, and single entries, on a screen and as files."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dscalc.report.export import to_csv, to_json, to_markdown
from dscalc.report.screen import QUIET, STRONG, Screen, Span
from dscalc.units import format_bytes, format_count, format_flop_rate, format_rate, format_time

if TYPE_CHECKING:
    from dscalc.answers.catalog import Listing, Shown

_FORMATS: dict[str, Callable[[float], str]] = {
    "bytes": format_bytes,
    "FLOP/s": format_flop_rate,
    "bytes/s": format_rate,
    "s": format_time,
    "parameters": format_count,
}
_SUFFIXES = ("_flop_per_s", "_bytes_per_s", "_bytes", "_params", "_s")
_WRAPPED = ("summary", "source")


def render_listing(found: Listing, form: str, *, colour: bool | None = None, quiet: bool = False) -> str:
    """A list in the form asked for; ``quiet`` gives the ids alone."""
    names = [name for name, _ in found.columns]
    if form == "json":
        return to_json(found.to_json())
    if form == "csv":
        return to_csv((dict(zip(names, row, strict=True)) for row in found.rows), names)
    if quiet:
        return "".join(f"{row[0]}\n" for row in found.rows)
    cells = [[_cell(value, unit) for value, (_, unit) in zip(row, found.columns, strict=True)] for row in found.rows]
    if form == "markdown":
        return to_markdown(
            cells, [_heading(n) for n in names], right=[i for i, (_, unit) in enumerate(found.columns) if unit]
        )
    out = Screen(colour=colour)
    kept = [i for i, name in enumerate(names) if name != "source" or "summary" not in names]  # `show` has it
    columns = [
        (_heading(name), "fill" if name in _WRAPPED else "right" if unit or _numeric(found, i) else "left")
        for i, (name, unit) in enumerate(found.columns)
    ]
    out.table([columns[i] for i in kept], [[row[i] for i in kept] for row in cells])
    return out.text()


def _numeric(found: Listing, column: int) -> bool:
    return all(row[column] is None or isinstance(row[column], (int, float)) for row in found.rows)


def _heading(name: str) -> str:
    for suffix in _SUFFIXES:
        name = name.removesuffix(suffix)
    return name.replace("_", " ")


def _cell(value: Any, unit: str) -> str:
    if value is None:
        return "-"
    return _FORMATS[unit](float(value)) if unit in _FORMATS else str(value)


def render_shown(found: Shown, form: str, *, colour: bool | None = None) -> str:
    """One name in the form asked for."""
    if form == "json":
        return to_json(found.to_json())
    columns = ("entry", "name", "value", "unit", "kind", "source")
    rows = [(f"{e.kind} {e.id}", f.name, f.value, f.unit, f.kind, f.source) for e in found.entries for f in e.facts]
    if form == "csv":
        return to_csv((dict(zip(columns, map(_flat, row), strict=True)) for row in rows), columns)
    if form == "markdown":
        return to_markdown([[str(_flat(cell)) for cell in row] for row in rows], columns)
    out = Screen(colour=colour)
    for i, entry in enumerate(found.entries):
        if i:
            out.say("")
        out.say(f"{entry.kind} {entry.id}", STRONG)
        cells = [
            (f.name, f"{_flat(f.value)} {f.unit}".rstrip(), Span(": ".join(p for p in (f.kind, f.source) if p), QUIET))
            for f in entry.facts
        ]
        out.table((("", "left"), ("", "fill"), ("", "fill")), cells, header=False)
    return out.text()


def _flat(value: Any) -> Any:
    if isinstance(value, dict):
        return ", ".join(f"{k} {v}" for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return ", ".join(str(v) for v in value)
    return f"{value:g}" if isinstance(value, float) else value
