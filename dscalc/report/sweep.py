"""The sweep answer on a screen, as a table of layouts, and in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dscalc.report.export import to_csv, to_json, to_markdown
from dscalc.report.screen import BAD, GOOD, STRONG, Cell, Screen, Span
from dscalc.units import format_bytes, format_count, format_time

if TYPE_CHECKING:
    from dscalc.answers.sweep import CurvePoint, SweepAnswer
    from dscalc.answers.sweep_rows import Row


def render(
    answer: SweepAnswer, form: str, *, explain: bool = False, quiet: bool = False, colour: bool | None = None
) -> str:
    """The answer in the form asked for.

    Args:
        answer: what ``sweep`` returned.
        form: ``table``, ``json``, ``csv`` or ``markdown``.
        explain: what each column means and where it comes from.
        quiet: one line (of a table).
        colour: colour or not; None lets the terminal decide.

    Returns:
        Text that ends with a newline.
    """
    if form == "json":
        return to_json(answer.to_json())
    if form == "csv":
        rows = [row.to_dict() for row in answer.rows]
        return to_csv(rows, list(rows[0]) if rows else [])
    if form == "markdown":
        return _markdown(answer)
    return line(answer) + "\n" if quiet else screen(answer, explain=explain, colour=colour)


def layout_words(row: Row) -> str:
    """The layout in the words of the options, defaults left out."""
    spec = row.layout
    words = [f"{n} {getattr(spec, n)}" for n in ("tp", "pp", "vpp", "cp", "ep") if getattr(spec, n) > 1]
    words += [f"dp {spec.dp}"] + ([f"({spec.dp_replicate} replicas)"] if spec.dp_replicate > 1 else [])
    words += [f"ZeRO-{spec.zero}"] if spec.zero else []
    words += ["SP"] if spec.sequence_parallel else []
    return " ".join(words)


def recompute_words(row: Row) -> str:
    """What is computed again."""
    spec = row.layout
    return spec.recompute if spec.recompute_layers is None else f"{spec.recompute} {spec.recompute_layers}"


def line(answer: SweepAnswer) -> str:
    """The answer in one line."""
    if not answer.rows:
        return "nothing fits"
    best = min((p.row for p in answer.curve if p.row), key=lambda r: r.step_time_s)
    return f"{format_time(best.step_time_s)} a step on {best.gpus} GPUs: {layout_words(best)}, MFU {best.mfu:.1%}"


def screen(answer: SweepAnswer, *, explain: bool = False, colour: bool | None = None) -> str:  # noqa: ARG001
    """The whole screen."""
    out = Screen(colour=colour)
    case = answer.setups[0].case
    out.say(f"{format_count(case.counts.main)} parameters ({case.model.shape.name}), stack {case.layout.spec.stack}")
    out.say(
        f"{format_count(answer.candidates)} candidates, {format_count(answer.feasible)} of them legal and in memory, "
        f"in {format_time(answer.elapsed_s)}"
    )
    if not answer.complete:
        out.say("Interrupted: the best so far.", BAD)
    for setup in answer.setups:
        name = f" on {setup.name}" if len(answer.setups) > 1 else ""
        out.head(f"Scaling{name}", "the best layout for each number of GPUs")
        points = [p for p in answer.curve if p.setup == setup.name]
        out.table(_CURVE, [_point(p) for p in points])
        for point in points:
            if point.row is None:
                continue
            out.head(f"Best layouts on {point.gpus} GPUs{name}")
            rows = [r for r in answer.rows if r.setup == setup.name and r.gpus == point.gpus and r.rank]
            out.table(_BEST, [_row(r) for r in rows])
    return out.text()


_CURVE = (
    ("GPUs", "right"),
    ("step", "right"),
    ("tokens/s", "right"),
    ("MFU", "right"),
    ("efficiency", "right"),
    ("layout", "left"),
    ("exposed", "right"),
    ("bubble", "right"),
    ("free", "right"),
)


def _point(point: CurvePoint) -> tuple[Cell, ...]:
    row = point.row
    if row is None:
        return (str(point.gpus), Span("does not fit", BAD), "", "", "", "", "", "", "")
    return (
        Span(str(point.gpus), STRONG),
        format_time(row.step_time_s),
        format_count(row.tokens_per_s),
        f"{row.mfu:.1%}",
        f"{point.efficiency:.0%}" if point.efficiency is not None else "",
        layout_words(row),
        f"{row.exposed_share:.1%}",
        f"{row.bubble_share:.1%}",
        "" if row.headroom_bytes is None else format_bytes(row.headroom_bytes),
    )


_BEST = (
    ("", "right"),
    ("step", "right"),
    ("layout", "left"),
    ("micro-batch", "right"),
    ("recompute", "left"),
    ("memory", "right"),
    ("MFU", "right"),
)


def _row(row: Row) -> tuple[Cell, ...]:
    return (
        Span(str(row.rank), GOOD if row.pareto else ""),
        format_time(row.step_time_s),
        layout_words(row),
        f"{row.layout.micro_batch} x {row.layout.grad_accum}",
        recompute_words(row),
        format_bytes(row.total_bytes),
        f"{row.mfu:.1%}",
    )


def _markdown(answer: SweepAnswer) -> str:
    header = [heading or "rank" for heading, _ in _BEST]
    rows = [[cell.text if isinstance(cell, Span) else cell for cell in _row(row)] for row in answer.rows if row.rank]
    return f"{line(answer)}\n\n" + to_markdown(rows, header, right=(0, 1, 3, 5, 6))
