"""A sweep as one page to pass on: the answer first, then what it rests on, and how to get it again."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import PurePath
from typing import TYPE_CHECKING

from dscalc.answers.envelope import VERSION, Warning
from dscalc.answers.sweep_detail import in_full, paying
from dscalc.answers.sweep_rows import layout_words
from dscalc.report import sweep_appendix as appendix
from dscalc.report import sweep_sections as sections
from dscalc.report.html import Cell, Html, contents, embedded, number, page, section, tag
from dscalc.report.sweep_figure import figure_of
from dscalc.report.sweep_words import LIMIT_WORDS, ceiling_words, ends, gpus_span, lacking_words, limit_gpus, wall_words
from dscalc.units import format_bytes, format_count, format_time

if TYPE_CHECKING:
    from dscalc.answers.step import StepAnswer
    from dscalc.answers.sweep import CurvePoint, SweepAnswer
    from dscalc.answers.sweep_budget import Budget
    from dscalc.answers.sweep_rows import Row


def sweep_page(answer: SweepAnswer, today: date | None = None) -> str:
    """The page.

    Args:
        answer: what ``sweep`` returned.
        today: date of the page; None: today.

    Returns:
        HTML, complete in itself.
    """
    best = answer.best
    row = best.row if best is not None else None
    full = in_full(answer, row) if row is not None else None
    drawn = figure_of(answer)
    parts = [
        ("warnings", "Warnings", appendix.warnings(answer)),
        ("curve", "Scaling", sections.scaling(answer, drawn)),
        ("ceiling", "Ceiling", sections.ceilings(answer)),
        ("machines", "Machines compared", sections.machines(answer)),
        ("training", "Time, money and energy", sections.training(answer)),
        ("layouts", "Best layouts", sections.layouts(answer, best)),
        ("time", "Where the GPUs' time goes", sections.time(drawn, full)),
        ("memory", "Memory of the best layout", sections.memory(full)),
        ("tradeoff", "Speed against free memory", sections.tradeoff(drawn)),
        ("left-out", "What is not included", appendix.left_out(answer)),
        ("inputs", "Inputs", appendix.inputs(answer)),
        ("assumptions", "Assumptions", appendix.assumptions(answer)),
        ("words", "Words", appendix.words(answer)),
        ("again", "To get this again", appendix.again(answer, row)),
    ]
    shown = [(anchor, title, inner) for anchor, title, inner in parts if inner]
    title = title_of(answer)
    body = [_head(answer, title, today or date.today()), *_answer(answer, best, full)]
    body.append(contents((anchor, heading) for anchor, heading, _ in shown))
    body += [section(anchor, heading, *inner) for anchor, heading, inner in shown]
    return page(title, [*body, _foot(answer), embedded(answer.to_json())])


def title_of(answer: SweepAnswer) -> str:
    """Model and machines in one line."""
    names = [setup.name for setup in answer.setups]
    where = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
    name = PurePath(answer.setups[0].case.model.shape.name).name  # of a folder, its own name alone
    return f"{name[:1].upper()}{name[1:]} on {where}"


def _head(answer: SweepAnswer, title: str, today: date) -> Html:
    case = answer.setups[0].case
    counts = sorted({g for s in answer.setups for g in s.gpus})
    sizes = f"{counts[0]:,}" if len(counts) == 1 else f"{counts[0]:,} to {counts[-1]:,}"
    batches = sorted({b for s in answer.setups for b in s.batches})
    batch = f"{batches[0]:,}" if len(batches) == 1 else f"{batches[0]:,} to {batches[-1]:,}"
    which = "" if len(answer.setups) == 1 else "which machine and "
    question = (
        f"A model of {format_count(case.counts.main)} parameters, trained with {batch} sequences of "
        f"{case.layout.spec.seq_len:,} tokens a step on {sizes} GPUs: {which}which layout is best, and where does "
        "adding GPUs stop paying?"
    )
    kicker = tag("p", f"Capacity plan, {today.isoformat()}, dscalc {VERSION}", class_="kicker")
    return Html(
        f"<header>{kicker.markup}{tag('h1', title).markup}{tag('p', question, class_='question').markup}</header>"
    )


def _answer(answer: SweepAnswer, best: CurvePoint | None, full: StepAnswer | None) -> Iterator[Html]:
    """The answer in two sentences, a third where the fastest lies beyond the ceiling, then in figures."""
    if best is None or best.row is None or full is None:
        why = "".join(tag("p", _sentence(w)).markup for w in answer.warnings[:1])
        words = lacking_words(answer)
        yield Html(f'<div class="answer stopped">{why or tag("p", f"{words[0].upper()}{words[1:]}.").markup}</div>')
        return
    row, budget = best.row, best.budget
    on = f" of {row.setup}" if len(answer.setups) > 1 else ""
    first = (
        f" on {row.gpus:,} GPUs{on}: a step takes {format_time(row.step_time_s)} (between {format_time(row.low_s)} and "
        f"{format_time(row.high_s)}), which is {format_count(row.tokens_per_s)} tokens/s at {row.mfu:.0%} MFU"
    )
    if budget is not None:
        money = f" and {format_count(budget.usd)} USD" if budget.usd is not None else ""
        takes = f"take {format_time(budget.wall_time_s)}{money}" if ends(budget) else "never end, for failures"
        first += f"; {format_count(budget.tokens)} tokens {takes}"
    sentences = [tag("p", "Best is ", tag("b", layout_words(row.layout)), f"{first}."), tag("p", _stops(answer, row))]
    pays = paying(answer, row.setup)
    if pays is not None and pays.row is not None and pays.gpus < row.gpus:
        still = f"Of the sizes tried, the largest that still pays is {pays.gpus:,} GPUs: "
        sentences.append(
            tag("p", still, tag("b", layout_words(pays.row.layout)), f", {format_time(pays.row.step_time_s)} a step.")
        )
    cut_short = [] if answer.complete else [tag("p", "The sweep was interrupted: this is the best so far.")]
    inner = "".join(words.markup for words in [*cut_short, *sentences])
    class_ = "answer stopped" if cut_short else "answer"
    yield Html(f'<div class="{class_}">{inner}</div>')
    yield _tiles(answer, row, budget)


def _sentence(warning: Warning) -> str:
    return f"{warning.message[:1].upper()}{warning.message[1:]}. Next: {warning.next_step}."


def _stops(answer: SweepAnswer, row: Row) -> str:
    words = ceiling_words(answer, row.setup)
    if answer.ceilings[row.setup].gpus is None:
        return words
    return f"Adding GPUs stops paying at {words[0].lower()}{words[1:]}"


def _tiles(answer: SweepAnswer, row: Row, budget: Budget | None) -> Html:
    found = answer.ceilings[row.setup]
    usable = "" if row.usable_bytes is None else f"of {format_bytes(row.usable_bytes)} usable"
    tiles: list[tuple[str, Cell, str]] = [
        ("GPUs", number(f"{row.gpus:,}", row.gpus), row.setup),
        (
            "Step",
            number(format_time(row.step_time_s), row.step_time_s),
            f"{format_time(row.low_s)} – {format_time(row.high_s)}",
        ),
        (
            "Throughput",
            number(f"{format_count(row.tokens_per_s)}", row.tokens_per_s),
            f"tokens/s, {row.tokens_per_s_per_gpu:,.0f} a GPU",
        ),
        ("MFU", number(f"{row.mfu:.1%}", row.mfu), f"bound by {row.bound_by}"),
        ("Memory", number(format_bytes(row.total_bytes), row.total_bytes), usable),
    ]
    if found.gpus is not None and found.binding_limit is not None:
        span = gpus_span(found.low_gpus, found.high_gpus)
        words = f"GPUs{f', {span}' if span else ''}: {LIMIT_WORDS[found.binding_limit]}"
        tiles.append(("Ceiling", number(limit_gpus(found), found.gpus), words))
    if budget is not None:
        tiles.append(
            (
                "Time to train",
                number(wall_words(budget), budget.wall_time_s),
                f"{format_count(budget.tokens)} tokens, goodput {budget.goodput_fraction:.1%}",
            )
        )
        if budget.usd is not None and ends(budget):
            each = f"USD, at {budget.usd_per_gpu_hour:,.2f} a GPU-hour"
            tiles.append(("Cost", number(format_count(budget.usd), budget.usd), each))
    inner = "".join(
        f'<div class="tile">{tag("dt", name).markup}{tag("dd", value, tag("small", note)).markup}</div>'
        for name, value, note in tiles
    )
    columns = "three" if len(tiles) % 3 == 0 else "four"
    return Html(f'<dl class="tiles {columns}">{inner}</dl>')


def _foot(answer: SweepAnswer) -> Html:
    took = f"{format_count(answer.candidates)} candidates in {format_time(answer.elapsed_s)}"
    words = f"Made with dscalc {VERSION}, {took}. All numbers in full precision are in this file, as JSON."
    return tag("footer", words)
