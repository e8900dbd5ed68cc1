"""What the three pictures of a sweep show, whoever draws them: a terminal, a page or a plotting library.

The scaling curve with its ceiling; what the GPUs' time goes for at each number of GPUs; step time against free memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, inf, log, log10
from typing import TYPE_CHECKING, NamedTuple

from dscalc.answers.sweep_detail import times_of
from dscalc.report.screen import Segment
from dscalc.report.step import segments
from dscalc.report.sweep_words import LIMIT_WORDS, gpus_span, limit_gpus
from dscalc.units import GIGA, HOUR

if TYPE_CHECKING:
    from dscalc.answers.step import TimeTerm
    from dscalc.answers.sweep import Ceiling, SweepAnswer
    from dscalc.answers.sweep_rows import Row

BEYOND = 2.0  # times the ceiling: so far a curve is drawn beyond what was searched
DETAILED = 100.0  # from here on no decimals
SLOW = 2.0  # times the fastest: slower layouts are left out of the front


class Mark(NamedTuple):
    """One number of GPUs on a curve; ``low`` and ``high`` are the ends of the error bar."""

    gpus: float
    tokens_per_s: float
    low: float
    high: float
    searched: bool


class Curve(NamedTuple):
    """Throughput of one machine against GPUs, and its ceiling with the range of the error bars."""

    setup: str
    marks: tuple[Mark, ...]
    ideal: float  # tokens/s of one GPU at the smallest number of GPUs
    ceiling: Ceiling

    @property
    def stop(self) -> str:
        """Number of GPUs at the ceiling, in words."""
        return limit_gpus(self.ceiling)

    @property
    def span(self) -> str:
        """Range of the ceiling; empty where it has none."""
        return gpus_span(self.ceiling.low_gpus, self.ceiling.high_gpus)

    @property
    def why(self) -> str:
        """The limit that binds, in few words."""
        return LIMIT_WORDS.get(self.ceiling.binding_limit or "", "")


class Bar(NamedTuple):
    """GPU-hours that a billion tokens take on one machine at one number of GPUs, split by what they go for."""

    setup: str
    gpus: int
    step_time_s: float
    parts: tuple[Segment, ...]  # GPU-hours

    @property
    def total(self) -> float:
        """Length of the bar [GPU-hours]."""
        return sum(part.bytes for part in self.parts)

    @property
    def words(self) -> str:
        """Its length in words."""
        return hours_words(self.total)


class Dot(NamedTuple):
    """One layout: free memory [bytes] against step time [s]."""

    headroom_bytes: float
    step_time_s: float
    low_s: float
    high_s: float
    front: bool  # no layout of as many GPUs is faster with as much free memory
    chosen: bool
    row: Row


class Front(NamedTuple):
    """Layouts of one machine at one number of GPUs."""

    setup: str
    gpus: int
    dots: tuple[Dot, ...]  # the least free memory first
    left_out: int  # layouts too slow to draw


class Figure(NamedTuple):
    """All three pictures."""

    curves: tuple[Curve, ...]
    bars: tuple[Bar, ...]
    front: Front | None


def figure_of(answer: SweepAnswer) -> Figure:
    """The pictures of a sweep.

    Args:
        answer: what ``sweep`` returned.

    Returns:
        What to draw; parts of which nothing fits are empty.
    """
    best = answer.best
    rows = [p.row for p in answer.curve if p.row is not None]
    return Figure(
        curves=tuple(curve for setup in answer.setups if (curve := _curve(answer, setup.name)).marks),
        bars=tuple(map(_bar, rows, times_of(answer, rows))),
        front=None if best is None or best.row is None else _front(answer, best.row),
    )


def _curve(answer: SweepAnswer, setup: str) -> Curve:
    """Best layouts found, then what the ceiling was read off beyond them, as far as it matters."""
    found = answer.ceilings[setup]
    rows = [p.row for p in answer.curve if p.setup == setup and p.row is not None]
    marks = [
        Mark(r.gpus, r.tokens_per_s, r.layout.global_batch * r.layout.seq_len / r.high_s, _high(r), True) for r in rows
    ]
    if rows:
        last = rows[-1]
        far = BEYOND * max(found.high_gpus or 0.0, found.gpus or 0.0)
        for point in found.points:
            if point.gpus > last.gpus and (point.gpus <= far or marks[-1].gpus < far):
                tokens, share = point.tokens_per_s, last.high_s / last.step_time_s
                marks.append(Mark(point.gpus, tokens, tokens / share, tokens * share, False))
    return Curve(
        setup=setup,
        marks=tuple(marks),
        ideal=rows[0].tokens_per_s_per_gpu if rows else 0.0,
        ceiling=found,
    )


def _high(row: Row) -> float:
    return row.layout.global_batch * row.layout.seq_len / row.low_s


def _bar(row: Row, terms: Sequence[TimeTerm]) -> Bar:
    factor = row.gpus / HOUR * GIGA / (row.layout.global_batch * row.layout.seq_len)
    parts = tuple(part._replace(bytes=part.bytes * factor) for part in segments(terms))
    return Bar(row.setup, row.gpus, row.step_time_s, parts)


def _front(answer: SweepAnswer, best: Row) -> Front | None:
    known = [r for r in answer.rows if (r.setup, r.gpus) == (best.setup, best.gpus) and r.headroom_bytes is not None]
    rows = [r for r in known if r.step_time_s <= SLOW * best.step_time_s]
    rows = sorted(rows, key=lambda r: (r.headroom_bytes, -r.step_time_s))
    fastest, dots = inf, []
    for row in reversed(rows):  # the most free memory first: on the front where nothing so far is as fast
        front = row.step_time_s < fastest
        fastest = min(fastest, row.step_time_s)
        room = float(row.headroom_bytes or 0.0)
        dots.append(Dot(room, row.step_time_s, row.low_s, row.high_s, front, row.number == best.number, row))
    return Front(best.setup, best.gpus, tuple(reversed(dots)), len(known) - len(rows)) if dots else None


def hours_words(hours: float) -> str:
    """GPU-hours in three digits.

    >>> hours_words(27.96), hours_words(1294.2)
    ('28.0', '1,294')
    """
    return f"{hours:,.0f}" if hours >= DETAILED else f"{hours:.1f}"


def ceiling_range(curve: Curve) -> str:
    """Where scaling stops, between what, and why, in few words."""
    if curve.ceiling.gpus is None:
        return "not reached"
    return f"{curve.stop} GPUs{f' ({curve.span})' if curve.span else ''}: {curve.why}"


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers within a range for a logarithmic axis, at most so many.

    >>> log_ticks(7.0, 300.0, 6)
    [10.0, 20.0, 50.0, 100.0, 200.0]
    >>> log_ticks(7.0, 30000.0, 4)
    [10.0, 100.0, 1000.0, 10000.0]
    """
    powers = range(floor(log10(low)), ceil(log10(high)) + 1)
    for step, digits in ((1, (1, 2, 5)), (1, (1, 3)), (1, (1,)), (2, (1,)), (4, (1,))):
        found = [float(f"{digit}e{power}") for power in powers if power % step == 0 for digit in digits]
        found = [tick for tick in found if low <= tick <= high]
        if len(found) <= most:
            return found
    return found[:most]


def linear_ticks(low: float, high: float, most: int) -> list[float]:
    """Round numbers within a range, at most so many.

    >>> linear_ticks(0.0, 24.0, 6)
    [0.0, 5.0, 10.0, 15.0, 20.0]
    """
    span = max(high - low, 1e-12)
    power = floor(log10(span / most))
    for digits in ((1, power), (2, power), (5, power), (1, power + 1), (2, power + 1)):
        step = float("{}e{}".format(*digits))
        found = [n * step for n in range(ceil(low / step - 1e-9), floor(high / step + 1e-9) + 1)]
        if len(found) <= most:
            return found
    return found


def spread_out(marks: Sequence[Mark], most: int) -> list[float]:
    """Numbers of GPUs for a logarithmic axis: those of the curve, from the largest down, none too near another."""
    every = sorted({mark.gpus for mark in marks}, reverse=True)
    apart = log(every[0] / every[-1]) / most
    kept = every[:1]
    for gpus in every[1:]:
        if log(kept[-1] / gpus) >= apart:
            kept.append(gpus)
    return kept[::-1]
