"""The best layouts of a sweep on a screen, and how layouts and columns of times are written."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from dscalc.answers.sweep_notes import command_words
from dscalc.answers.sweep_rows import layout_words, recompute_words
from dscalc.report.screen import GOOD, QUIET, Cell, Scale, Screen, Span
from dscalc.report.step import scale_of
from dscalc.report.sweep_words import USD, simplest_words, usd_words
from dscalc.units import format_bytes

if TYPE_CHECKING:
    from dscalc.answers.sweep import SweepAnswer
    from dscalc.answers.sweep_rows import Row

MOST_TABLES = 2  # numbers of GPUs of which all layouts are shown; of more, only the best one's
DIGITS = 3  # of the shortest time of a column
NEAR_DIGITS = 4  # of a column of times that hardly differ


class Times(NamedTuple):
    """One unit for a column of times, with as many decimals as the smallest needs for three digits."""

    unit: str
    factor: float
    decimals: int

    def of(self, seconds: float) -> str:
        """A time in this unit."""
        return f"{seconds / self.factor:,.{self.decimals}f}"


def times_of(seconds: Sequence[float], digits: int = DIGITS) -> Times:
    """The unit for a column of times: that of the longest, of which the others are parts.

    >>> times_of([131.8, 0.779]).of(0.779), times_of([0.779]).of(0.779)
    ('0.779', '779')
    """
    largest, smallest = max(seconds, default=1.0), min(seconds, default=1.0)
    scale = scale_of(largest)
    whole = math.floor(math.log10(smallest / scale.factor)) + 1
    return Times(scale.unit, scale.factor, max(0, digits - whole))


def kept_together(words: str) -> str:
    """A layout that wraps between its degrees, and never between a degree and its number."""
    return re.sub(r" (?=\d)", "\u00a0", words)


BEST = (
    ("", "right"),
    ("step", "right"),
    ("MFU", "right"),
    ("memory", "right"),
    ("layout", "fill"),
    ("micro-batch", "right"),
    ("recompute", "left"),
)


def layouts(out: Screen, answer: SweepAnswer, setup: str, name: str) -> None:
    points = [p for p in answer.curve if p.setup == setup and p.row is not None]
    if len(points) > MOST_TABLES:
        best = answer.best
        points = [best if best in points and best is not None else points[-1]]
    for point in points:
        out.head(f"Best layouts on {point.gpus:,} GPUs{name}", "* unbeaten, ~ level with the fastest")
        rows = [r for r in answer.rows if r.setup == setup and r.gpus == point.gpus and r.rank]
        priced = any(r.usd_per_token is not None for r in rows)
        scale = times_of([row.step_time_s for row in rows], NEAR_DIGITS)
        (rank, how), _, *rest = BEST
        columns = [(rank, how), (f"step {scale.unit}", "right"), *rest]
        cells = [layout_cells(r, scale) for r in rows]
        if priced:
            columns.append((USD, "right"))
            cells = [(*c, usd_words(r.usd_per_token)) for r, c in zip(rows, cells, strict=True)]
        out.table(columns, cells)
        out.say(simplest_words(answer, point), hang=2)
        if point is answer.best:
            setup_ = next(s for s in answer.setups if s.name == setup)
            out.say(f"The first: dscalc step {command_words(setup_, rows[0], answer.given)}", QUIET, hang=2)


def layout_cells(row: Row, scale: Times | Scale) -> tuple[Cell, ...]:
    return (
        Span(f"{row.rank}{'*' if row.pareto else ' '}{'~' if row.level else ' '}", GOOD if row.pareto else ""),
        scale.of(row.step_time_s),
        f"{row.mfu:.1%}",
        format_bytes(row.total_bytes),
        kept_together(layout_words(row.layout)),
        f"{row.layout.micro_batch} x {row.layout.grad_accum}",
        recompute_words(row.layout),
    )
