"""The pictures of a sweep as inline SVG."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from itertools import pairwise
from math import log
from typing import TYPE_CHECKING

from dscalc.answers.sweep_rows import layout_words
from dscalc.report.screen import Segment
from dscalc.report.svg import Scale, axes, element, picture, text, width_of
from dscalc.report.sweep_figure import (
    SLOW,
    Bar,
    Curve,
    Front,
    ceiling_range,
    hours_words,
    linear_ticks,
    log_ticks,
    spread_out,
)
from dscalc.report.sweep_words import LIMIT_WORDS, about, limit_gpus
from dscalc.units import GB, format_bytes, format_count, format_time

if TYPE_CHECKING:
    from dscalc.answers.sweep import Ceiling

WIDTH, HEIGHT = 760.0, 400.0
LEFT, RIGHT, TOP, BOTTOM = 64.0, 20.0, 28.0, 48.0
SMALL = 12.0  # size of letters
ROOM = 1.12  # an axis ends a little beyond its data
SERIES = 6  # colours of curves
BAR, GAP = 24.0, 8.0
LEGIBLE = 34.0  # width of a part that has room for its share
STEEP = 3.0  # values that spread wider are laid out by their logarithm


def slug(name: str) -> str:
    """The class of a part by its name."""
    return "part-" + "".join(c if c.isalnum() else "-" for c in name)


def scaling(curves: Sequence[Curve]) -> str:
    """Tokens a second against GPUs, both by their logarithm, with error bars, the ideal and the ceiling."""
    marks = [mark for curve in curves for mark in curve.marks]
    gpus = [m.gpus for m in marks]
    low, high = min(m.low for m in marks) / ROOM, max(m.high for m in marks) * ROOM
    x = Scale(min(gpus) / ROOM, max(gpus) * ROOM, LEFT, WIDTH - RIGHT, log)
    y = Scale(low, high, HEIGHT - BOTTOM, TOP, log)
    longest = max(curves, key=lambda curve: len(curve.marks))
    titles = ("GPUs (logarithmic)", "tokens/s (logarithmic)")
    parts = [_band(curve, x, y, max(gpus), n, len(curves)) for n, curve in enumerate(curves)]
    parts += axes(x, y, spread_out(longest.marks, 12), log_ticks(low, high, 9), _whole, format_count, titles)
    for n, curve in enumerate(curves):
        parts.append(_one(curve, x, y, n))
    for n, curve in enumerate(curves):
        parts += _ceiling(curve, x, y, n, len(curves))
    words = "; ".join(f"{c.setup}: {_spoken(c)}" for c in curves)
    return picture("scaling", "Scaling curve: tokens per second against GPUs", words, WIDTH, HEIGHT, parts)


def _whole(value: float) -> str:
    return f"{value:,.0f}"


def _spoken(curve: Curve) -> str:
    found = ", ".join(f"{m.gpus:,.0f} GPUs {format_count(m.tokens_per_s)} tokens/s" for m in curve.marks if m.searched)
    return f"{found}; ceiling {ceiling_range(curve)}"


def _one(curve: Curve, x: Scale, y: Scale, n: int) -> str:
    first, last = curve.marks[0], curve.marks[-1]
    end = min(last.gpus, y.high / curve.ideal)
    parts = [
        element(
            "line",
            x1=x.at(first.gpus),
            y1=y.at(first.tokens_per_s),
            x2=x.at(end),
            y2=y.at(curve.ideal * end),
            class_="ideal",
        )
    ]
    for searched, class_ in ((True, "line"), (False, "line beyond")):
        points = [m for i, m in enumerate(curve.marks) if m.searched == searched or _joins(curve, i, searched)]
        at = " ".join(f"{x.at(m.gpus):.1f},{y.at(m.tokens_per_s):.1f}" for m in points)
        if len(points) > 1:
            parts.append(element("polyline", points=at, class_=class_))
    for m in curve.marks:
        place = x.at(m.gpus)
        top, bottom = y.at(m.high), y.at(m.low)
        bars = [element("line", x1=place, x2=place, y1=top, y2=bottom, class_="error")]
        bars += [element("line", x1=place - 4, x2=place + 4, y1=at, y2=at, class_="error") for at in (top, bottom)]
        where = "" if m.searched else ", not searched"
        hover = (
            f"{m.gpus:,.0f} GPUs of {curve.setup}: {format_count(m.tokens_per_s)} tokens/s "
            f"({format_count(m.low)} - {format_count(m.high)}){where}"
        )
        dot = element("circle", cx=place, cy=y.at(m.tokens_per_s), r=4.5, class_="dot" if m.searched else "dot beyond")
        parts.append(element("g", element("title", escape(hover)), *bars, dot))
    return element("g", *parts, class_=f"series s{n % SERIES}")


def _joins(curve: Curve, i: int, searched: bool) -> bool:
    """The last point searched also begins the line beyond it."""
    return not searched and i + 1 < len(curve.marks) and not curve.marks[i + 1].searched


def _band(curve: Curve, x: Scale, y: Scale, end: float, n: int, many: int) -> str:
    if curve.ceiling.gpus is None or curve.ceiling.low_gpus is None or curve.ceiling.gpus > x.high:
        return ""
    left, right = x.at(curve.ceiling.low_gpus), x.at(curve.ceiling.high_gpus or end * ROOM)
    return element(
        "rect",
        x=left,
        y=y.end,
        width=max(1.0, right - left),
        height=y.start - y.end,
        class_=f"range s{n % SERIES}" if many > 1 else "range",
    )


def _ceiling(curve: Curve, x: Scale, y: Scale, n: int, many: int) -> list[str]:
    """The upright line of a ceiling with its words, on the side where there is room."""
    if curve.ceiling.gpus is None or curve.ceiling.gpus > x.high:
        return []
    place, series = x.at(curve.ceiling.gpus), f" s{n % SERIES}" if many > 1 else ""
    head = f"{curve.setup}: " if many > 1 else ""
    lines = [f"{head}ceiling {curve.stop} GPUs", f"{curve.span}{': ' * bool(curve.span)}{curve.why}"]
    wide = max(width_of(line, SMALL) for line in lines)
    left = place - wide - 10 > x.start
    low = place > (x.start + x.end) / 2  # where a rising curve leaves room
    down = y.start - 24.0 - 36.0 * (many - 1 - n) if low else y.end + 14.0 + 36.0 * n
    parts = [element("line", x1=place, x2=place, y1=y.start, y2=y.end, class_=f"ceiling{series}")]
    for i, line in enumerate(lines):
        at = place - 8 if left else place + 8
        parts.append(text(line, at, down + 15 * i, f"note{' strong' if i == 0 else ''}", "end" if left else None))
    return parts


def breakdown(bars: Sequence[Bar]) -> str:
    """Stacked bars: GPU-hours that a billion tokens take, by what they go for."""
    longest = max(b.total for b in bars)
    setups = list(dict.fromkeys(b.setup for b in bars))
    left = 24.0 + max(width_of(f"{b.gpus:,} GPUs", SMALL) for b in bars)
    right = WIDTH - 24.0 - max(width_of(b.words, SMALL) for b in bars)
    parts, y = [], 8.0
    for setup in setups:
        if len(setups) > 1:
            parts.append(text(setup, 0.0, y + 12, "label strong"))
            y += 24.0
        for b in (b for b in bars if b.setup == setup):
            parts += _bar(b, left, (right - left) / longest, y)
            y += BAR + GAP
        y += GAP
    words = "; ".join(
        f"{b.gpus:,} GPUs of {b.setup}: " + ", ".join(f"{part.name} {part.bytes / b.total:.0%}" for part in b.parts)
        for b in bars
    )
    return picture("breakdown", "GPU-hours for a billion tokens, by what they go for", words, WIDTH, y, parts)


def _bar(b: Bar, left: float, scale: float, y: float) -> list[str]:
    parts = [text(f"{b.gpus:,} GPUs", left - 10, y + BAR * 0.68, "tick", "end")]
    parts += stacked(b.parts, left, scale, y, b.total, f"{b.gpus:,} GPUs of {b.setup}: ", hours_words, " GPU-hours")
    parts.append(text(b.words, left + b.total * scale + 8, y + BAR * 0.68, "tick strong"))
    return parts


def stacked(
    segments: Sequence[Segment],
    left: float,
    scale: float,
    y: float,
    total: float,
    head: str,
    write: Callable[[float], str],
    unit: str,
) -> list[str]:
    """One stacked bar; a part that is wide enough shows its share."""
    parts, x = [], left
    for part in segments:
        wide, share = part.bytes * scale, part.bytes / total
        hover = f"{head}{part.name} {write(part.bytes)}{unit}, {share:.1%}"
        inner = [element("title", escape(hover))]
        inner.append(element("rect", x=x, y=y, width=max(wide, 0.5), height=BAR, class_=slug(part.name)))
        if wide > LEGIBLE:
            inner.append(text(f"{share:.0%}", x + wide / 2, y + BAR * 0.68, f"share {slug(part.name)}-text", "middle"))
        parts.append(element("g", *inner))
        x += wide
    return parts


def held(segments: Sequence[Segment], total: float, usable: float | None) -> str:
    """One stacked bar: the memory of the fullest GPU against what is usable."""
    full = max(total, usable or 0.0)
    left, scale = 1.0, (WIDTH - 2.0) / full
    parts = [element("rect", x=left, y=24.0, width=full * scale, height=BAR, class_="empty")]
    parts += stacked(segments, left, scale, 24.0, total, "", format_bytes, "")
    parts.append(text(f"{format_bytes(total)} used", left, 14.0, "tick strong"))
    if usable is not None:
        at = left + usable * scale
        parts.append(element("line", x1=at, x2=at, y1=18.0, y2=24.0 + BAR + 6.0, class_="ceiling"))
        parts.append(text(f"{format_bytes(usable)} usable", at, 14.0, "tick", "end"))
    words = ", ".join(f"{part.name} {format_bytes(part.bytes)}" for part in segments)
    return picture("held", "Memory of the fullest GPU", words, WIDTH, 24.0 + BAR + 8.0, parts)


def pareto(front: Front) -> str:
    """Step time against free memory at one number of GPUs; the staircase joins what nothing beats."""
    rooms = [d.headroom_bytes / GB for d in front.dots]
    times = [d.step_time_s for d in front.dots]
    steep = max(times) > STEEP * min(times)
    spread = (max(times) - min(times)) or 0.1 * max(times)
    low, high = (
        (min(times) / ROOM, max(times) * ROOM) if steep else (min(times) - 0.1 * spread, max(times) + 0.1 * spread)
    )
    x = Scale(max(0.0, min(rooms) - 1.5), max(rooms) + 1.5, LEFT, WIDTH - RIGHT, float)
    y = Scale(low, high, HEIGHT - BOTTOM, TOP, log if steep else float)
    ticks = log_ticks(low, high, 7) if steep else linear_ticks(low, high, 7)
    titles = ("free memory of the fullest GPU, GB", f"step time{' (logarithmic)' if steep else ''}")
    parts = axes(x, y, linear_ticks(x.low, x.high, 12), ticks, lambda v: f"{v:g}", format_time, titles)
    best = [d for d in front.dots if d.front]
    steps: list[str] = []
    for a, b in pairwise(best):
        steps += [f"{x.at(a.headroom_bytes / GB):.1f},{y.at(t):.1f}" for t in (a.step_time_s, b.step_time_s)]
    steps += [f"{x.at(d.headroom_bytes / GB):.1f},{y.at(d.step_time_s):.1f}" for d in best[-1:]]
    if len(best) > 1:
        parts.append(element("polyline", points=" ".join(steps), class_="line s0 series"))
    for d in sorted(front.dots, key=lambda d: (d.front, d.chosen)):
        parts.append(_dot(d.headroom_bytes, d.step_time_s, layout_words(d.row.layout), d.front, d.chosen, x, y))
    chosen = next((d for d in front.dots if d.chosen), None)
    if chosen is not None:
        at, up = x.at(chosen.headroom_bytes / GB), y.at(chosen.step_time_s)
        right = at < (x.start + x.end) / 2
        words = f"best: {format_time(chosen.step_time_s)}, {format_bytes(chosen.headroom_bytes)} free"
        parts.append(text(words, at + (10 if right else -10), up - 10, "note strong", None if right else "end"))
    words = f"{len(best)} layouts of {len(front.dots)} on {front.gpus:,} GPUs of {front.setup} are beaten by none."
    if front.left_out:
        words += f" {front.left_out} that take over {SLOW:g} times as long are not drawn."
    title = f"Step time against free memory on {front.gpus:,} GPUs"
    return picture("pareto", title, words, WIDTH, HEIGHT, parts)


def _dot(room: float, seconds: float, layout: str, front: bool, chosen: bool, x: Scale, y: Scale) -> str:
    class_ = "dot chosen" if chosen else "dot front" if front else "dot other"
    words = f"{layout}: {format_time(seconds)}, {format_bytes(room)} free"
    circle = element("circle", cx=x.at(room / GB), cy=y.at(seconds), r=6.5 if chosen else 3.5, class_=class_)
    return element("g", element("title", escape(words)), circle, class_="series s0")


def limits(name: str, found: Ceiling, moved: Mapping[str, float]) -> str:
    """Each limit that is reached as a dot with its range, then where the ceiling goes with something changed."""
    reached = [limit for limit in found.limits.values() if limit.gpus is not None]
    ends = [v for limit in reached for v in (limit.gpus, limit.low_gpus, limit.high_gpus) if v] + list(moved.values())
    left = 16.0 + max(width_of(w, SMALL) for w in [*(LIMIT_WORDS[r.name] for r in reached), *moved])
    x = Scale(min(ends) / ROOM, max(ends) * ROOM, left, WIDTH - LEFT, log)
    y, parts = 16.0, []
    if found.gpus is not None:
        foot = 16.0 + 28.0 * (len(reached) + len(moved) + bool(moved)) - 8.0
        at = x.at(found.gpus)
        parts.append(element("line", x1=at, x2=at, y1=4.0, y2=foot, class_="ceiling"))
    for limit in reached:
        gpus = limit.gpus or 0.0
        binding = limit.name == found.binding_limit
        low, high = limit.low_gpus or gpus, limit.high_gpus or x.high
        parts.append(text(LIMIT_WORDS[limit.name], left - 12, y + 4, "tick strong" if binding else "tick", "end"))
        parts.append(element("line", x1=x.at(low), x2=x.at(high), y1=y, y2=y, class_="whisker"))
        words = element("title", escape(f"{limit_gpus(limit)} GPUs: {limit.reason}"))
        dot = element("circle", cx=x.at(gpus), cy=y, r=6.0 if binding else 4.5, class_="bind" if binding else "limit")
        parts.append(element("g", words, dot))
        beyond = x.at(high) + 10 + width_of(limit_gpus(limit), SMALL) > WIDTH
        parts.append(
            text(
                limit_gpus(limit),
                x.at(low if beyond else high) + (-10 if beyond else 10),
                y + 4,
                "tick",
                "end" if beyond else None,
            )
        )
        y += 28.0
    if moved:
        parts.append(text("the ceiling with", left - 12, y + 4, "label strong", "end"))
        y += 28.0
        for words_, gpus in moved.items():
            parts.append(text(words_, left - 12, y + 4, "tick", "end"))
            parts.append(element("line", x1=x.at(found.gpus or gpus), x2=x.at(gpus), y1=y, y2=y, class_="arrow"))
            parts.append(element("circle", cx=x.at(gpus), cy=y, r=4.5, class_="limit"))
            up = gpus >= (found.gpus or gpus)
            parts.append(text(about(gpus), x.at(gpus) + (10 if up else -10), y + 4, "tick", None if up else "end"))
            y += 28.0
    words = "; ".join(f"{LIMIT_WORDS[r.name]} at {about(r.gpus)} GPUs" for r in reached)
    return picture(name, "What the ceiling is made of, in GPUs (logarithmic)", words, WIDTH, y, parts)
