"""The sweep answer on a screen, as a table of layouts, and in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dscalc.answers.sweep_detail import paying
from dscalc.answers.sweep_rows import COLUMNS, layout_words, recompute_words
from dscalc.errors import InputError
from dscalc.report.asides import warned
from dscalc.report.export import to_csv, to_json, to_markdown
from dscalc.report.screen import BAD, GOOD, QUIET, STRONG, Cell, Scale, Screen, Span
from dscalc.report.sweep_charts import curve_chart, layout_charts
from dscalc.report.sweep_figure import figure_of
from dscalc.report.sweep_layouts import BEST, Times, kept_together, layout_cells, layouts, times_of
from dscalc.report.sweep_words import (
    LEVER_WORDS,
    LIMIT_WORDS,
    about,
    ceiling_words,
    closed_words,
    ends,
    gpus_span,
    lacking_words,
    point_words,
    signed,
    wall_words,
)
from dscalc.units import format_bytes, format_count, format_energy, format_time

if TYPE_CHECKING:
    from dscalc.answers.sweep import CurvePoint, Limit, SweepAnswer
    from dscalc.answers.sweep_rows import Row

REASONS = 6  # of rejections shown
WAITS = 4  # place of the column that only --jitter brings
NO_PARQUET = "parquet needs pyarrow; pip install 'dscalc[parquet]'"
SECONDS = Scale(1.0, "s")


def render(
    answer: SweepAnswer, form: str, *, explain: bool = False, quiet: bool = False, colour: bool | None = None
) -> str:
    """The answer in the form asked for.

    Args:
        answer: what ``sweep`` returned.
        form: ``table``, ``json``, ``csv`` or ``markdown``.
        explain: what each limit means and how it is found.
        quiet: one line (of a table).
        colour: colour or not; None lets the terminal decide.

    Returns:
        Text that ends with a newline.
    """
    if form == "json":
        return to_json(answer.to_json())
    if form == "csv":
        return to_csv([row.to_dict() for row in answer.rows], COLUMNS)
    if form == "markdown":
        return _markdown(answer)
    return line(answer) + "\n" if quiet else screen(answer, explain=explain, colour=colour)


def refuse_parquet(path: str | None) -> None:
    """Refuse a Parquet file that cannot be written, before anything is worked out.

    Raises:
        InputError: no file is named, or pyarrow is not installed.
    """
    from importlib.util import find_spec

    if path in (None, "-"):
        raise InputError("parquet is no text; name a file with --output", where="--format")
    if find_spec("pyarrow") is None:
        raise InputError(NO_PARQUET, where="--format")


def parquet(answer: SweepAnswer) -> bytes:
    """The rows as a Parquet file.

    Raises:
        InputError: pyarrow is not installed.
    """
    import io

    file = io.BytesIO()
    try:
        answer.frame.to_parquet(file, engine="pyarrow", index=False)
    except ImportError:
        raise InputError(NO_PARQUET, where="--format") from None
    return file.getvalue()


def line(answer: SweepAnswer) -> str:
    """The answer in one line."""
    best = answer.best
    if best is None or best.row is None:
        return lacking_words(answer)
    row = best.row
    on = f" on {row.setup}" if len(answer.setups) > 1 else ""
    return (
        f"{format_time(row.step_time_s)} a step on {row.gpus} GPUs{on}: {layout_words(row.layout)}, micro-batch "
        f"{row.layout.micro_batch}, recompute {recompute_words(row.layout)}, MFU {row.mfu:.1%}"
    )


def screen(answer: SweepAnswer, *, explain: bool = False, colour: bool | None = None) -> str:
    """The whole screen."""
    out = Screen(colour=colour)
    _headline(out, answer)
    many = len(answer.setups) > 1
    for setup in answer.setups:
        name = f" on {setup.name}" if many else ""
        _curve(out, answer, [p for p in answer.curve if p.setup == setup.name], name)
    for setup in answer.setups:
        chosen = answer.best is not None and setup.name == answer.best.setup  # of several machines, the answer's
        name = f" on {setup.name}" if many else ""
        _ceiling(out, answer, setup.name, name, explain, whole=explain or chosen or not many)
    drawn = figure_of(answer)
    curve_chart(out, drawn)
    layout_charts(out, drawn)
    _budgets(out, answer)
    for setup in answer.setups:
        name = f" on {setup.name}" if len(answer.setups) > 1 else ""
        layouts(out, answer, setup.name, name)
    _rejected(out, answer, explain)
    _assumed(out, answer)
    warned(out, answer.warnings)
    return out.text()


def _headline(out: Screen, answer: SweepAnswer) -> None:
    case = answer.setups[0].case
    batches = sorted({b for s in answer.setups for b in s.batches})
    batch = f"{batches[0]:,}" if len(batches) == 1 else f"{batches[0]:,} to {batches[-1]:,}"
    machine = answer.setups[0].name if len(answer.setups) == 1 else f"{len(answer.setups)} machines"
    out.say(
        f"{format_count(case.counts.main)} parameters ({case.model.shape.name}) on {machine}, stack "
        f"{case.layout.spec.stack}, {batch} sequences of {case.layout.spec.seq_len:,} tokens a step"
    )
    best = answer.best
    if best is not None and best.row is not None:
        row = best.row
        on = f" of {row.setup}" if len(answer.setups) > 1 else ""
        out.say(
            f"{format_time(row.step_time_s)} a step ({format_time(row.low_s)} - {format_time(row.high_s)}) on "
            f"{row.gpus:,} GPUs{on}: {layout_words(row.layout)}, micro-batch {row.layout.micro_batch} x "
            f"{row.layout.grad_accum}, recompute {recompute_words(row.layout)}",
            STRONG,
        )
        _last_that_pays(out, answer, row)
    else:
        words = lacking_words(answer)
        out.say(f"{words[0].upper()}{words[1:]}.", BAD)
    out.say(
        f"Of {format_count(answer.candidates)} candidates {format_count(answer.evaluated)} had their memory worked "
        f"out; {format_count(answer.feasible)} fit and were timed."
    )
    more = f"; {format_time(answer.again_s)} more with twice the batch" if answer.rows and answer.complete else ""
    rate = format_count(answer.layouts_per_s)
    out.say(f"Took {format_time(answer.elapsed_s)}, {rate} candidates a second{more}.", QUIET)
    if not answer.complete:
        out.say("Interrupted: the best so far.", BAD)


def _last_that_pays(out: Screen, answer: SweepAnswer, best: Row) -> None:
    """Where the fastest lies beyond the ceiling: the largest job that does not."""
    pays = paying(answer, best.setup)
    if pays is not None and pays.row is not None and pays.gpus < best.gpus:
        out.say(
            f"The largest that still pays is {pays.gpus:,} GPUs: {format_time(pays.row.step_time_s)} a step with "
            f"{layout_words(pays.row.layout)}."
        )


_CURVE = (
    ("GPUs", "right"),
    ("step", "right"),
    ("tokens/s", "right"),
    ("per GPU", "right"),
    ("MFU", "right"),
    ("free", "right"),
    ("layout", "fill"),
    ("comm.", "right"),
    ("bubble", "right"),
)


def _curve(out: Screen, answer: SweepAnswer, points: list[CurvePoint], name: str) -> None:
    rows = [p.row for p in points if p.row is not None]
    kept = "the batch grows with the GPUs" if answer.given.get("scaling") == "weak" else "the batch stays"
    bars = sorted(row.high_s / row.step_time_s - 1.0 for row in rows)
    known = f"; steps within {_between(bars[0], bars[-1])} by measured runs" if bars else ""
    out.head(f"Scaling{name}", kept + known)
    scale = times_of([row.step_time_s for row in rows])
    (gpus, how), _, *rest = _CURVE
    best = answer.best
    cells = [_point(answer, p, scale, chosen=p is best) for p in points]
    columns = [(gpus, how), (f"step {scale.unit}", "right"), *rest]
    if any(row.straggler_s for row in rows):
        columns.insert(WAITS, ("waits", "right"))
        cells = [(*r[:WAITS], _waits(p), *r[WAITS:]) for p, r in zip(points, cells, strict=True)]
    out.table(columns, cells)


def _waits(point: CurvePoint) -> str:
    """Share of the step in which GPUs wait for the slowest."""
    return "" if point.row is None else f"{point.row.straggler_s / point.row.step_time_s:.1%}"


def _between(low: float, high: float) -> str:
    return f"{high:.0%}" if f"{low:.0%}" == f"{high:.0%}" else f"{low:.0%} to {high:.0%}"


def _point(answer: SweepAnswer, point: CurvePoint, scale: Times, *, chosen: bool) -> tuple[Cell, ...]:
    row = point.row
    if row is None or point.efficiency is None:
        return (f"{point.gpus:,}", Span("-", BAD), "", "", "", "", Span(point_words(answer, point), BAD), "", "")
    again = "" if row.layout.recompute == "none" else f", recompute {recompute_words(row.layout)}"
    return (
        Span(f"> {point.gpus:,}" if chosen else f"{point.gpus:,}", f"{STRONG} {GOOD}" if chosen else STRONG),
        Span(scale.of(row.step_time_s), STRONG if chosen else ""),
        format_count(row.tokens_per_s),
        f"{point.efficiency:.0%}",
        f"{row.mfu:.1%}",
        "" if row.headroom_bytes is None else format_bytes(row.headroom_bytes),
        f"{kept_together(layout_words(row.layout))}, mb\u00a0{row.layout.micro_batch}{again}",
        f"{row.exposed_share:.1%}",
        f"{row.bubble_share:.1%}",
    )


def _ceiling(out: Screen, answer: SweepAnswer, setup: str, name: str, explain: bool, whole: bool) -> None:
    found = answer.ceilings[setup]
    out.head(f"Ceiling{name}", "where adding GPUs stops paying")
    out.say(ceiling_words(answer, setup), STRONG)
    if not found.points or not whole:
        return
    rows = [_limit(limit, found.binding_limit) for limit in found.limits.values()]
    out.table((("limit", "left"), ("GPUs", "right"), ("range", "left"), ("reason", "fill")), rows)
    moved: list[tuple[Cell, ...]] = []
    for lever, elasticity in found.elasticities.items():
        words, factor = LEVER_WORDS[lever]
        if elasticity is not None and found.gpus is not None:
            moved.append((words, about(found.gpus * factor**elasticity), signed(elasticity)))
        elif found.gpus is not None and answer.complete:
            moved.append((words, Span("none", QUIET), ""))
    if moved:
        out.say("")
        out.table((("with", "left"), ("ceiling", "right"), ("elasticity", "right")), moved)
    closed = answer.closed_forms.get(setup)
    if closed is not None:
        out.say("")
        out.say(closed_words(closed))
    if explain:
        out.say("")
        for text in EXPLAINED:
            out.say(text, QUIET, hang=2)


EXPLAINED = (
    "per GPU: tokens/s of a GPU over those at the smallest number; comm.: share of the step in which communication "
    "is exposed; free: memory that is left; mb: micro-batch; SP: sequence parallelism.",
    "USD/Gtok: what a billion tokens cost in GPU-hours at the price, without failures.",
    "> best by the objective; * unbeaten: no other layout is as good in step time, memory, GPUs and cost, and better "
    "in one.",
    "A limit is read off the curve between its points, by power laws; beyond the largest number of GPUs searched the "
    "layouts go on with more data-parallel ranks, and a sweep to there may find better ones. The range comes from the "
    "error of the prediction, put on the rate of computing and on that of the network in turn: moves add as squares.",
    "communication = computing: all communication, hidden or not, against all computing: what `dscalc ratio` says of "
    "6ND/P and 2N b_r/BW, with everything else that a step has.",
    "marginal GPU: tokens/s that one more GPU adds, over tokens/s of a GPU at the smallest number.",
    "latency: what of communication stays when latency doubles, against the rest.",
    "sequences: one sequence for each data-parallel rank of the last point's model-parallel degrees.",
    "elasticity: d log ceiling / d log x; the search looks for the best layout after each change of x too, and once "
    "more with twice the batch.",
    "~ level with the fastest: published runs that differ in their layout alone tell two apart from about that on. "
    "Simplest: fewest stages, then lowest degrees in the order tp, cp, dp-replicate.",
)


def _limit(limit: Limit, binding: str | None) -> tuple[Cell, ...]:
    style = STRONG if limit.name == binding else ""
    if limit.gpus is None:
        return (Span(LIMIT_WORDS[limit.name], QUIET), Span("-", QUIET), "", Span(limit.reason, QUIET))
    name = Span(LIMIT_WORDS[limit.name], style)
    if limit.low_gpus == limit.high_gpus:
        return (name, Span(f"{limit.gpus:,.0f}", style), "", Span(limit.reason, style))
    return (
        name,
        Span(about(limit.gpus), style),
        Span(gpus_span(limit.low_gpus, limit.high_gpus), style),
        Span(limit.reason, style),
    )


_BUDGET = (
    ("machine", "left"),
    ("GPUs", "right"),
    ("time", "right"),
    ("GPU-hours", "right"),
    ("USD", "right"),
    ("energy", "right"),
    ("goodput", "right"),
    ("checkpoint every", "right"),
)


def _budgets(out: Screen, answer: SweepAnswer) -> None:
    budgets = [p.budget for p in answer.curve if p.budget is not None]
    if not budgets:
        return
    out.head(f"Training {format_count(budgets[0].tokens)} tokens", "with checkpoints and failures")
    many = len(answer.setups) > 1
    priced = any(b.usd is not None for b in budgets)
    rows: list[tuple[Cell, ...]] = [
        (
            *([b.setup] if many else []),
            f"{b.gpus:,}",
            wall_words(b),
            format_count(b.gpu_hours) if ends(b) else "",
            *(["" if b.usd is None or not ends(b) else format_count(b.usd)] if priced else []),
            "" if b.energy_j is None or not ends(b) else format_energy(b.energy_j),
            f"{b.goodput_fraction:.1%}",
            format_time(b.checkpoint_interval_s),
        )
        for b in budgets
    ]
    left_out = {*([] if many else ["machine"]), *([] if priced else ["USD"])}
    out.table([column for column in _BUDGET if column[0] not in left_out], rows)


def _rejected(out: Screen, answer: SweepAnswer, explain: bool) -> None:
    if not answer.rejected:
        return
    out.head("Rejected", "each candidate at its first reason")
    shown = list(answer.rejected.items())[: None if explain else REASONS]
    rows: list[tuple[Cell, ...]] = [(format_count(count), answer.reasons[name]) for name, count in shown]
    rest = sum(answer.rejected.values()) - sum(count for _, count in shown)
    if rest:
        rows.append((format_count(rest), "other reasons; --explain lists them"))
    out.table((("", "right"), ("", "fill")), rows, header=False)


def _assumed(out: Screen, answer: SweepAnswer) -> None:
    plain = [a for a in answer.assumptions if a.kind == "default" and a.value not in (None, False, "none")]
    out.head("Not given, so assumed *", "change any by its option; --format json lists all")
    out.say("* " + ", ".join(f"{a.name.replace('_', '-')}\u00a0{a.value}" for a in plain), hang=2)
    for a in answer.assumptions:
        if a.name in ("mtbf", "checkpoint_time", "restart_time", "pue", "power") or a.name.startswith("price."):
            value = "" if a.value is None else format_time(a.value) if a.unit == "s" else f"{a.value:.3g} {a.unit}"
            value = f" {value}".rstrip()
            out.say(f"* {a.name.replace('_', '-')}{value} ({a.kind}): {a.source}", hang=2)


def _markdown(answer: SweepAnswer) -> str:
    header = ["GPUs", "rank", "step s", *(heading for heading, _ in BEST[2:])]
    rows = []
    for row in answer.rows:
        cells = [cell.text if isinstance(cell, Span) else cell for cell in layout_cells(row, SECONDS)]
        if row.rank:
            rows.append([str(row.gpus), *(cell.strip().replace("\u00a0", " ") for cell in cells)])
    return f"{line(answer)}\n\n" + to_markdown(rows, header, right=(0, 1, 2, 3, 4, 6))
