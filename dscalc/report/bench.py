"""What ``dscalc bench`` measured, on a screen and as files."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from dscalc.report.asides import warned
from dscalc.report.export import to_csv, to_json, to_markdown
from dscalc.report.fit_profile import sustained
from dscalc.report.screen import BAD, GOOD, QUIET, STRONG, Cell, Screen, Span
from dscalc.units import format_flop_rate, format_rate, format_size, format_time

if TYPE_CHECKING:
    from dscalc.answers.bench import BenchAnswer, Summed

COLUMNS = (
    "op",
    "scope",
    "ranks",
    "nodes",
    "groups",
    "size_bytes",
    "dtype",
    "time_s",
    "low_s",
    "high_s",
    "calls",
    "wrong",
)
HEADINGS = (
    *(("operation", "left"), ("smallest", "right"), ("time", "right"), ("largest", "right")),
    *(("bus bandwidth", "right"), ("sizes", "right")),
)
MOST_HOSTS = 4
MOST_PAIRS = 6


def render(found: BenchAnswer, form: str, *, colour: bool | None = None, quiet: bool = False) -> str:
    """The answer in the form asked for."""
    if form == "json":
        return to_json(found.to_json())
    if form == "csv":
        return to_csv(found.rows("collective"), COLUMNS)
    if quiet:
        return f"{found.counted} measurements in {found.measured.path}; {len(found.slow) or 'nothing'} slow\n"
    if form == "markdown":
        cells = [[each.where, *_cells(each)] for each in found.collectives()]
        return to_markdown(cells, ["where", *(name for name, _ in HEADINGS)], right=range(2, 7))
    out = Screen(colour=colour)
    out.say(_summary(found))
    _slow(out, found)
    _collectives_by_place(out, found)
    _pairs(out, found)
    _overlaps(out, found)
    sustained(out, found.profiled)
    files = [(found.measured.path, f"{found.counted} raw rows, for dscalc fit")]
    if found.profile_path is not None:
        files.insert(0, (found.profile_path, "profile, for --profile of memory, comm, step and sweep"))
    out.head("Files")
    out.table([("", "left"), ("", "fill")], files, header=False)
    notes = found.notes("skipped", "unsupported")
    if notes:
        out.head("Not measured")
    for note in notes:
        out.say(f"- {note}", hang=2)
    warned(out, [w for w in found.warnings() if not w.code.startswith("slow_")])
    return out.text()


def _summary(found: BenchAnswer) -> str:
    run = found.run
    nodes, inside, device = run["nodes"], run["ranks_per_node"], run["device"]
    hosts = ", ".join(run["hosts"][:MOST_HOSTS]) + (", ..." if nodes > MOST_HOSTS else "")
    what = (
        f"{nodes} node{'s' if nodes > 1 else ''} ({hosts}) with {inside} {device}{' ranks' if device == 'CPU' else ''}"
    )
    return f"{found.counted} measurements on {what}; {run['library']}, torch {run['torch']}"


def _slow(out: Screen, found: BenchAnswer) -> None:
    """What stands out comes first."""
    warnings = [w for w in found.warnings() if w.code.startswith("slow_")]
    out.head("Slow ranks and links", "beyond 10 % and four deviations of the median peer")
    if not warnings:
        out.add([Span(found.compared, GOOD if found.compared.startswith("none") else QUIET)])
    for warning in warnings:
        out.say(f"! {warning.message}.", BAD, hang=2)
        out.say(f"  Next: {warning.next_step}.", hang=2)


def _collectives_by_place(out: Screen, found: BenchAnswer) -> None:
    for number, (where, members) in enumerate(groupby(found.collectives(), key=lambda each: each.where)):
        if number == 0:
            out.head("Collectives", "medians; a call lasts until its slowest rank is through")
        rows: list[Sequence[Cell]] = [_cells(each) for each in members]
        out.add([Span(where, QUIET)])
        out.table(HEADINGS, rows)


def _cells(each: Summed) -> list[str]:
    return [
        each.op.replace("_", "-"),
        format_size(each.smallest_bytes),
        format_time(each.smallest_s),
        format_size(each.largest_bytes),
        format_rate(each.busbw_bytes_per_s),
        str(each.sizes),
    ]


def _pairs(out: Screen, found: BenchAnswer) -> None:
    pairs = found.pairs()
    if not pairs:
        return
    out.head("Between nodes", "one way, pair by pair; the slowest first")
    rows: list[list[Cell]] = [
        [
            f"{each.hosts[0]} - {each.hosts[1]}",
            format_time(each.latency_s) if each.latency_s else "",
            format_rate(each.bandwidth_bytes_per_s),
        ]
        for each in pairs
    ]
    out.table([("", "left"), ("8 B", "right"), ("bandwidth", "right")], rows[:MOST_PAIRS])
    if len(rows) > MOST_PAIRS:
        out.say(f"{len(rows) - MOST_PAIRS} more in the raw rows.", QUIET)


def _overlaps(out: Screen, found: BenchAnswer) -> None:
    rows = found.rows("overlap")
    if not rows:
        return
    out.head("Products beside collectives", "how many times as long each takes")
    cells: list[list[Cell]] = []
    for row in rows:
        rate = 2.0 * row["m"] * row["n"] * row["k"] / row["compute_s"]
        cells.append(
            [
                row["op"].replace("_", "-"),
                found.where(row),
                format_size(row["size_bytes"]),
                Span(f"{row['compute_beside_s'] / row['compute_s']:.2f}", STRONG),
                Span(f"{row['communication_beside_s'] / row['communication_s']:.2f}", STRONG),
                format_flop_rate(rate),
            ]
        )
    heads = [("", "left"), ("", "fill"), ("size", "right"), ("product", "right"), ("collective", "right")]
    out.table([*heads, ("product alone", "right")], cells)
