"""The parts of a sweep's page that answer: curves, ceilings, layouts, time and memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from dscalc.answers.sweep_rows import layout_words, recompute_words
from dscalc.report import sweep_svg as draw
from dscalc.report.html import Cell, Html, figure, legend, number, table, tag
from dscalc.report.memory import segments as memory_segments
from dscalc.report.screen import Segment
from dscalc.report.step import segments as time_segments
from dscalc.report.sweep_figure import Figure
from dscalc.report.sweep_layouts import kept_together
from dscalc.report.sweep_words import (
    LEVER_WORDS,
    LIMIT_WORDS,
    USD,
    about,
    ceiling_words,
    closed_words,
    ends,
    gpus_span,
    limit_gpus,
    point_words,
    signed,
    simplest_words,
    usd_words,
    wall_words,
)
from dscalc.units import format_bytes, format_count, format_energy, format_time

if TYPE_CHECKING:
    from dscalc.answers.step import StepAnswer
    from dscalc.answers.sweep import Ceiling, CurvePoint, SweepAnswer
    from dscalc.answers.sweep_rows import Row

LEFT, RIGHT = "left", "right"
PARTS = {
    "host": "waiting for the host",
    "tensor": "tensor-parallel communication",
    "context": "context-parallel communication",
    "expert": "expert-parallel communication",
    "data": "data-parallel communication",
    "messages": "messages between pipeline stages",
    "bubble": "pipeline bubble",
}


def scaling(answer: SweepAnswer, drawn: Figure) -> list[Cell]:
    """The curve, and the best layout at each number of GPUs."""
    if not drawn.curves:
        return []
    many = len(answer.setups) > 1
    weak = answer.given.get("scaling") == "weak"
    kept = "grows with the GPUs (weak scaling)" if weak else "stays the same (strong scaling)"
    caption = (
        f"The best layout at each number of GPUs, with the error seen on measured runs; the batch {kept}. Dotted: as "
        "if each GPU gave as much as on the fewest. Hollow: not searched, the last layouts with more data-parallel "
        "ranks. Dashed upright: the ceiling, shaded: its range."
    )
    keys = [legend((f"series s{n}", c.setup) for n, c in enumerate(drawn.curves))] if many else []
    columns = (
        *(
            (name, RIGHT)
            for name in ("GPUs", "step", "from – to", "tokens/s", "per GPU", "MFU", "comm.", "bubble", "free")
        ),
        ("layout", LEFT),
    )
    parts: list[Cell] = [figure(draw.scaling(drawn.curves), caption, *keys)]
    for setup in answer.setups:
        points = [p for p in answer.curve if p.setup == setup.name]
        marked = [n for n, p in enumerate(points) if p is answer.best]
        parts.append(
            table(
                f"The best layout at each number of GPUs of {setup.name}",
                columns,
                [_point(answer, p) for p in points],
                marked=marked,
            )
        )
    note = (
        "per GPU: throughput of a GPU against the smallest number that fits; comm.: communication that nothing hides, "
        "as a share of the step"
    )
    return [*parts, tag("p", note, class_="note")]


def _point(answer: SweepAnswer, point: CurvePoint) -> list[Cell]:
    row = point.row
    if row is None:
        return [number(f"{point.gpus:,}", point.gpus), *[""] * 8, point_words(answer, point)]
    return [
        number(f"{row.gpus:,}", row.gpus),
        number(format_time(row.step_time_s), row.step_time_s),
        _span(row),
        number(format_count(row.tokens_per_s), row.tokens_per_s),
        "" if point.efficiency is None else number(f"{point.efficiency:.0%}", point.efficiency),
        number(f"{row.mfu:.1%}", row.mfu),
        number(f"{row.exposed_share:.1%}", row.exposed_share),
        number(f"{row.bubble_share:.1%}", row.bubble_share),
        "" if row.headroom_bytes is None else number(format_bytes(row.headroom_bytes), row.headroom_bytes),
        _layout(row),
    ]


def _span(row: Row) -> Html:
    low, high = number(format_time(row.low_s), row.low_s), number(format_time(row.high_s), row.high_s)
    return tag("span", low, " – ", high)


def _layout(row: Row) -> Html:
    """A layout that wraps between its words, and in none of them."""
    words = kept_together(layout_words(row.layout)).split(" ")
    words[-1] += ","
    words.append(f"micro-batch {row.layout.micro_batch} × {row.layout.grad_accum}")
    if row.layout.recompute != "none":
        words[-1] += ","
        words.append(f"recompute {recompute_words(row.layout)}")
    parts = [tag("span", word, class_="word") for word in words]
    return tag("span", *[piece for part in parts for piece in (part, " ")][:-1])


def _moved(found: Ceiling) -> dict[str, float]:
    """Where the ceiling goes with each lever pulled, by the words of the lever."""
    if found.gpus is None:
        return {}
    levers = {name: (LEVER_WORDS[name], e) for name, e in found.elasticities.items() if e is not None}
    return {words: found.gpus * factor**elasticity for (words, factor), elasticity in levers.values()}


def ceilings(answer: SweepAnswer) -> list[Cell]:
    """Where scaling stops on each machine: every limit, and what would move it."""
    parts: list[Cell] = []
    for setup in answer.setups:
        found = answer.ceilings[setup.name]
        if not found.points:
            continue
        parts += [tag("h3", setup.name)] if len(answer.setups) > 1 else []
        parts.append(tag("p", ceiling_words(answer, setup.name)))
        drawing = draw.limits(f"limits-{len(parts)}", found, _moved(found))
        parts.append(
            figure(
                drawing,
                "Each limit that adding GPUs runs into, with its range; the one reached first binds. Below: where it "
                "goes with one thing changed and everything worked out again.",
            )
        )
        rows = []
        for limit in found.limits.values():
            reached = limit.gpus is not None
            span: Cell = ""
            if reached and gpus_span(limit.low_gpus, limit.high_gpus):
                low = number(about(limit.low_gpus), limit.low_gpus)
                more = (
                    [" or more"]
                    if limit.high_gpus is None
                    else [" – ", number(about(limit.high_gpus), limit.high_gpus)]
                )
                span = tag("span", low, *more)
            at = number(limit_gpus(limit), limit.gpus) if reached else "not reached"
            rows.append([LIMIT_WORDS[limit.name], at, span, limit.reason])
        marked = [n for n, name in enumerate(found.limits) if name == found.binding_limit]
        columns = (("limit", LEFT), ("GPUs", RIGHT), ("range", RIGHT), ("reason", LEFT))
        parts.append(table("Every limit; the marked one binds", columns, rows, marked=marked))
        parts += _levers(found)
        closed = answer.closed_forms.get(setup.name)
        if closed is not None:
            parts.append(tag("p", closed_words(closed).replace("`", "")))
    return parts


def _levers(found: Ceiling) -> list[Cell]:
    if found.gpus is None:
        return []
    rows: list[list[Cell]] = []
    for name, elasticity in found.elasticities.items():
        words, factor = LEVER_WORDS[name]
        if elasticity is None:
            rows.append([words, "", "", "no such ceiling any more"])
            continue
        then = found.gpus * factor**elasticity
        change = then / found.gpus - 1.0
        rows.append(
            [
                words,
                number(about(then), then),
                number(f"{change:+.0%}", change),
                number(signed(elasticity), elasticity),
            ]
        )
    columns = (("with", LEFT), ("ceiling", RIGHT), ("change", RIGHT), ("elasticity", RIGHT))
    caption = "What would move the ceiling; elasticity: per cent that it moves for one per cent of the cause"
    return [tag("div", table(caption, columns, rows), class_="narrow")]


def machines(answer: SweepAnswer) -> list[Cell]:
    """The best of each machine side by side; nothing where there is only one."""
    if len(answer.setups) < 2:
        return []
    rows: list[list[Cell]] = []
    marked = []
    for setup in answer.setups:
        points = [p for p in answer.curve if p.setup == setup.name and p.row is not None]
        if not points:
            why = [point_words(answer, p) for p in answer.curve if p.setup == setup.name]
            rows.append([setup.name, why[-1], *[""] * 7])
            continue
        point = (
            answer.best if answer.best in points else max(points, key=lambda p: p.row.tokens_per_s if p.row else 0.0)
        )
        row = point.row if point is not None else None
        if point is None or row is None:
            continue
        if point is answer.best:
            marked.append(len(rows))
        found, budget = answer.ceilings[setup.name], point.budget
        hours, usd = (budget.gpu_hours, budget.usd) if budget is not None and ends(budget) else (None, None)
        rows.append(
            [
                setup.name,
                number(f"{row.gpus:,}", row.gpus),
                number(format_time(row.step_time_s), row.step_time_s),
                number(format_count(row.tokens_per_s), row.tokens_per_s),
                number(f"{row.mfu:.1%}", row.mfu),
                number(limit_gpus(found) or "not reached", found.gpus),
                "" if budget is None else number(wall_words(budget), budget.wall_time_s),
                "" if hours is None else number(format_count(hours), hours),
                "" if usd is None else number(format_count(usd), usd),
            ]
        )
    names = ("GPUs", "step", "tokens/s", "MFU", "ceiling", "to train", "GPU-hours", "USD")
    columns = [("machine", LEFT), *((name, RIGHT) for name in names)]
    return [table("The best of each machine; the marked one is the answer", columns, rows, marked=marked)]


def training(answer: SweepAnswer) -> list[Cell]:
    """A whole training at each number of GPUs; nothing without its tokens."""
    budgets = [(p, p.budget) for p in answer.curve if p.budget is not None]
    if not budgets:
        return []
    many = len(answer.setups) > 1
    rows = [
        [
            *([b.setup] if many else []),
            number(f"{b.gpus:,}", b.gpus),
            number(wall_words(b), b.wall_time_s),
            number(format_count(b.gpu_hours), b.gpu_hours) if ends(b) else "",
            "" if b.usd is None or not ends(b) else number(format_count(b.usd), b.usd),
            "" if b.energy_j is None or not ends(b) else number(format_energy(b.energy_j), b.energy_j),
            number(f"{b.goodput_fraction:.1%}", b.goodput_fraction),
            number(f"{b.failures:,.1f}", b.failures),
            number(format_time(b.checkpoint_interval_s), b.checkpoint_interval_s),
        ]
        for _, b in budgets
    ]
    names = ("GPUs", "time", "GPU-hours", "USD", "energy", "goodput", "failures", "checkpoint every")
    columns = [*([("machine", LEFT)] if many else []), *((name, RIGHT) for name in names)]
    marked = [n for n, (p, _) in enumerate(budgets) if p is answer.best]
    words = f"{format_count(budgets[0][1].tokens)} tokens, with checkpoints and failures"
    return [table(words, columns, rows, marked=marked)]


def layouts(answer: SweepAnswer, best: CurvePoint | None) -> list[Cell]:
    """The best layouts, and why others were rejected."""
    if best is None:
        return []
    rows = [r for r in answer.rows if (r.setup, r.gpus) == (best.setup, best.gpus) and r.rank]
    priced = any(r.usd_per_token is not None for r in rows)
    columns = (
        ("", RIGHT),
        ("step", RIGHT),
        ("from – to", RIGHT),
        ("MFU", RIGHT),
        ("memory", RIGHT),
        ("free", RIGHT),
        *([(USD, RIGHT)] if priced else []),
        ("layout", LEFT),
    )
    cells: list[list[Cell]] = [
        [
            f"{r.rank}{' *' if r.pareto else ''}{' ~' if r.level else ''}",
            number(format_time(r.step_time_s), r.step_time_s),
            _span(r),
            number(f"{r.mfu:.1%}", r.mfu),
            number(format_bytes(r.total_bytes), r.total_bytes),
            "" if r.headroom_bytes is None else number(format_bytes(r.headroom_bytes), r.headroom_bytes),
            *([number(usd_words(r.usd_per_token), r.usd_per_token)] if r.usd_per_token is not None else []),
            _layout(r),
        ]
        for r in rows
    ]
    caption = (
        f"On {best.gpus:,} GPUs of {best.setup}; * nothing beats it in time, memory, GPUs and cost together; ~ level "
        "with the fastest"
    )
    counted = (
        f"{format_count(answer.candidates)} candidates: {format_count(answer.evaluated)} legal ones were worked out, "
        f"{format_count(answer.feasible)} fit. The others were rejected at the first reason that holds:"
    )
    reasons = [[number(f"{count:,}", count), answer.reasons[name]] for name, count in answer.rejected.items()]
    return [
        table(caption, columns, cells, marked=[0]),
        tag("p", simplest_words(answer, best), class_="note"),
        tag("p", counted),
        table("Rejected candidates", (("candidates", RIGHT), ("reason", LEFT)), reasons),
    ]


def time(drawn: Figure, full: StepAnswer | None) -> list[Cell]:
    """What the time goes for."""
    if not drawn.bars or full is None:
        return []
    every = {part.name: part for b in drawn.bars for part in b.parts}
    order = list(dict.fromkeys(p.name for b in sorted(drawn.bars, key=lambda b: -len(b.parts)) for p in b.parts))
    caption = (
        "GPU-hours for a billion tokens; a longer bar costs more. Communication counts only where nothing hides it."
    )
    parts = time_segments(full.terms)
    rows: list[list[Cell]] = [
        [
            PARTS.get(part.name, part.name),
            number(format_time(part.bytes), part.bytes),
            number(f"{part.bytes / full.step_time_s:.1%}", part.bytes / full.step_time_s),
        ]
        for part in parts
    ]
    rows.append(["step", number(format_time(full.step_time_s), full.step_time_s), "100%"])
    spec = full.case.layout.spec
    hidden = sum(t.hidden_s for t in full.terms if t.path.startswith("communication/"))
    words = f"The best layout, on {spec.gpus:,} GPUs; {format_time(hidden)} of communication hide behind computing"
    columns = (("part", LEFT), ("time a step", RIGHT), ("share", RIGHT))
    return [
        figure(draw.breakdown(drawn.bars), caption, _parts([every[name] for name in order])),
        tag("div", table(words, columns, rows, marked=[len(rows) - 1]), class_="narrow"),
    ]


def _parts(segments: Sequence[Segment]) -> Html:
    return legend((draw.slug(part.name), PARTS.get(part.name, part.name)) for part in segments)


def memory(full: StepAnswer | None) -> list[Cell]:
    """What the fullest GPU holds."""
    if full is None:
        return []
    held = full.memory
    parts = memory_segments(held.terms)
    rows: list[list[Cell]] = [
        [
            t.path.replace("/", ": ").replace("_", " "),
            number(format_bytes(t.bytes), t.bytes),
            number(f"{t.bytes / held.total_bytes:.1%}", t.bytes / held.total_bytes),
        ]
        for t in held.terms
        if t.bytes > 0
    ]
    rows.append(["total", number(format_bytes(held.total_bytes), held.total_bytes), "100%"])
    low, high = (
        number(format_bytes(held.low_bytes), held.low_bytes),
        number(format_bytes(held.high_bytes), held.high_bytes),
    )
    words = tag(
        "p", "Of the fullest GPU at its peak, between ", low, " and ", high, " by the error seen on measured runs."
    )
    columns = (("term", LEFT), ("bytes", RIGHT), ("share", RIGHT))
    return [
        words,
        figure(
            draw.held(parts, held.total_bytes, held.usable_bytes),
            held.remedy[:1].upper() + held.remedy[1:] + ".",
            _parts(parts),
        ),
        tag("div", table("Term by term", columns, rows, marked=[len(rows) - 1]), class_="narrow"),
    ]


def tradeoff(drawn: Figure) -> list[Cell]:
    """Step time against free memory."""
    front = drawn.front
    if front is None or len(front.dots) < 2:
        return []
    caption = (
        f"Layouts on {front.gpus:,} GPUs of {front.setup}: down is faster, right leaves more memory free. None is "
        "faster than those on the line with as much free memory."
    )
    return [figure(draw.pareto(front), caption)]
