"""The three pictures of a sweep on a terminal."""

from __future__ import annotations

from itertools import pairwise
from math import log
from textwrap import wrap
from typing import TYPE_CHECKING

from dscalc.report.chart import Axis, Chart, Glyphs, glyphs
from dscalc.report.screen import GAP, GOOD, QUIET, STRONG, Line, Screen, Segment, Span, bar
from dscalc.report.sweep_figure import (
    SLOW,
    Bar,
    Curve,
    Figure,
    Front,
    ceiling_range,
    linear_ticks,
    log_ticks,
    spread_out,
)
from dscalc.units import GB, format_count, format_time

if TYPE_CHECKING:
    pass

WIDEST = 110  # columns of a chart
LOW, HIGH = 13, 17  # rows of a chart on a narrow and on a wide screen
COLOURS = ("cyan", "yellow", "magenta", "green", "blue", "red")
CEILING = "bold red"
ROOM = 1.05  # an axis ends a little beyond its data
STEEP = 3.0  # values that spread wider are laid out by their logarithm


def curve_chart(out: Screen, drawn: Figure, letters: Glyphs | None = None) -> None:
    """Add the scaling curve to a screen, where there is more than one point.

    Args:
        out: the screen.
        drawn: what to draw.
        letters: to draw with; None: those that the terminal has.
    """
    if any(len(curve.marks) > 1 for curve in drawn.curves):
        scaling(out, drawn.curves, letters or glyphs())


def layout_charts(out: Screen, drawn: Figure, letters: Glyphs | None = None) -> None:
    """Add what the time goes for, and step time against free memory, where there is something to see."""
    if drawn.bars:
        breakdown(out, drawn)
    if drawn.front is not None and len(drawn.front.dots) > 1:
        pareto(out, drawn.front, letters or glyphs())


def _size(out: Screen) -> tuple[int, int]:
    width = min(out.width, WIDEST)
    return width, LOW if width < WIDEST else HIGH


def scaling(out: Screen, curves: tuple[Curve, ...], letters: Glyphs) -> None:
    """Tokens a second against GPUs, both by their logarithm."""
    marks = [mark for curve in curves for mark in curve.marks]
    gpus, rates = [m.gpus for m in marks], [m.tokens_per_s for m in marks]
    first = [curve.marks[0] for curve in curves]
    longest = max(curves, key=lambda curve: len(curve.marks))
    width, height = _size(out)
    top = max(rates) * ROOM
    x = Axis(min(gpus), max(gpus), spread_out(longest.marks, width // 9), _whole, log)
    y = Axis(min(rates) / ROOM, top, log_ticks(min(rates) / ROOM, top, height // 2), format_count, log)
    chart = Chart(x, y, width, height, letters)
    for n, curve in enumerate(curves):
        if curve.ceiling.gpus is not None and curve.ceiling.low_gpus is not None:
            high = curve.ceiling.high_gpus or max(gpus)
            if len(curves) == 1 and curve.span:
                chart.band(curve.ceiling.low_gpus, high, QUIET)
            chart.vertical(curve.ceiling.gpus, letters.verticals[n % len(letters.verticals)], CEILING)
    for mark, curve in zip(first, curves, strict=True):
        chart.dotted([(mark.gpus, mark.tokens_per_s), (max(gpus), curve.ideal * max(gpus))], QUIET)
    for n, curve in enumerate(curves):
        chart.line([(m.gpus, m.tokens_per_s) for m in curve.marks], COLOURS[n % len(COLOURS)])
    for n, curve in enumerate(curves):
        for m in curve.marks:
            letter = letters.marks[n % len(letters.marks)] if m.searched else letters.beyond
            chart.mark(m.gpus, m.tokens_per_s, letter, f"bold {COLOURS[n % len(COLOURS)]}")
    out.head("Scaling curve", "tokens/s against GPUs, both on logarithmic axes")
    out.add(*chart.lines())
    for n, curve in enumerate(curves):
        _key(out, letters.marks[n % len(letters.marks)], f"bold {COLOURS[n % len(COLOURS)]}", f"best on {curve.setup}")
        if curve.ceiling.gpus is not None:
            _key(
                out,
                letters.verticals[n % len(letters.verticals)],
                CEILING,
                f"ceiling of {curve.setup} at {ceiling_range(curve)}",
            )
    words = [(letters.ideal, "as if each GPU gave as much as on the fewest")]
    if any(not m.searched for m in marks):
        words.append((letters.beyond, "not searched: the last layouts with more replicas"))
    if len(curves) == 1 and curves[0].span:
        words.append((letters.band, "range of the ceiling"))
    for letter, text in words:
        _key(out, letter, QUIET, text)


def _key(out: Screen, letter: str, style: str, text: str) -> None:
    for n, part in enumerate(wrap(text, out.width - 4)):
        out.add([Span("    " if n else f"  {letter} ", style), Span(part)])


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def breakdown(out: Screen, figure: Figure) -> None:
    """What the GPUs' time goes for: bars as long as what a billion tokens take."""
    bars = figure.bars
    many = len({b.setup for b in bars}) > 1
    out.head("Where the GPUs' time goes", "GPU-hours for a billion tokens")
    longest = max(b.total for b in bars)
    names = {b: f"{b.gpus:,}" for b in bars}
    left = max(len(name) for name in names.values())
    widest = min(out.width, WIDEST) - left - 2 * GAP - max(len(b.words) for b in bars)
    setup = ""
    for b in bars:
        if many and b.setup != setup:
            setup = b.setup
            out.add([Span(setup, STRONG)])
        out.add(_bar_line(b, names[b].rjust(left), round(widest * b.total / longest)))
    out.add(*_letters([b.parts for b in bars], out.width))


def _bar_line(b: Bar, name: str, width: int) -> Line:
    return [Span(name, QUIET), Span(" " * GAP), *bar(b.parts, None, width), Span(f"  {b.words}")]


def _letters(bars: list[tuple[Segment, ...]], width: int) -> list[Line]:
    """Letter and name of each part that any bar has."""
    known = {part.name: part for parts in bars for part in parts}
    order = list(dict.fromkeys(p.name for parts in sorted(bars, key=len, reverse=True) for p in parts))
    lines: list[Line] = [[]]
    used = 0
    for part in (known[name] for name in order):
        if used and used + GAP + 2 + len(part.name) > width:
            lines.append([])
            used = 0
        blank = " " * (GAP if used else 0)
        lines[-1] += [Span(blank), Span(part.letter, f"black on {part.colour}"), Span(f" {part.name}")]
        used += len(blank) + 2 + len(part.name)
    return lines


def pareto(out: Screen, front: Front, letters: Glyphs) -> None:
    """Step time against free memory at one number of GPUs."""
    rooms, times = [d.headroom_bytes / GB for d in front.dots], [d.step_time_s for d in front.dots]
    width, height = _size(out)
    steep = max(times) > STEEP * min(times)
    low, high = min(times) / (ROOM if steep else 1.0), max(times) * (ROOM if steep else 1.0)
    ticks = (log_ticks if steep else linear_ticks)(low, high, height // 3)
    y = Axis(low, high, ticks, format_time, log if steep else float)
    left = max(0.0, min(rooms) - 1.0)
    x = Axis(left, max(rooms) + 1.0, linear_ticks(left, max(rooms) + 1.0, width // 9), lambda v: f"{v:g}", float)
    chart = Chart(x, y, width, height, letters)
    best = [d for d in front.dots if d.front]
    steps = []
    for a, b in pairwise(best):
        steps += [(a.headroom_bytes / GB, a.step_time_s), (a.headroom_bytes / GB, b.step_time_s)]
    chart.line([*steps, *((d.headroom_bytes / GB, d.step_time_s) for d in best[-1:])], COLOURS[0])
    for d in front.dots:
        letter, style = (letters.marks[0], f"bold {COLOURS[0]}") if d.front else (letters.beyond, QUIET)
        chart.mark(d.headroom_bytes / GB, d.step_time_s, letter, style)
    for d in front.dots:
        if d.chosen:
            chart.mark(d.headroom_bytes / GB, d.step_time_s, letters.marks[3], f"bold {GOOD}")
    out.head("Step time against free memory", "GB; down and right is best")
    out.add(*chart.lines())
    _key(out, letters.marks[3], f"bold {GOOD}", f"the best layout on {front.gpus:,} GPUs of {front.setup}")
    _key(out, letters.marks[0], f"bold {COLOURS[0]}", "nothing is faster with as much free memory")
    if any(not d.front for d in front.dots):
        _key(out, letters.beyond, QUIET, "others of the best")
    if front.left_out:
        out.say(f"    {front.left_out} with more free memory take over {SLOW:g} times as long and are not drawn", QUIET)
