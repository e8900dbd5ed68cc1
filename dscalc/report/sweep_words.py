"""Words for the ceiling of a sweep, as tables, charts and reports use them."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from dscalc.answers.sweep_lacking import MEMORY, NOT_SEARCHED
from dscalc.answers.sweep_rows import layout_words, recompute_words
from dscalc.units import GIGA, KILO, MEGA, format_bytes, format_count, format_time

if TYPE_CHECKING:
    from dscalc.answers.sweep import Ceiling, CurvePoint, Limit, SweepAnswer
    from dscalc.answers.sweep_budget import Budget
    from dscalc.answers.sweep_closed import ClosedForm

USD = "USD/Gtok"  # for a billion tokens
LEAST_GOODPUT = 1e-3  # with less, a training never ends
LONG = 100_000  # from here on, GPUs are written in thousands
DIGITS = 2  # of a number of GPUs that was not searched
LIMIT_WORDS = {
    "memory_floor": "fits from",
    "ratio_one": "communication = computing",
    "marginal_gain": "marginal GPU",
    "throughput_peak": "throughput peak",
    "latency": "latency",
    "critical_batch": "critical batch",
    "sequences": "sequences",
}
LEVER_WORDS = {
    "bandwidth_bytes_per_s": ("twice the bandwidth", 2.0),
    "tokens_per_rank": ("twice the batch", 2.0),
    "gradient_bytes": ("half the bytes of a gradient", 0.5),
    "effective_flop_per_s": ("GPUs twice as fast", 2.0),
    "latency_s": ("half the latency", 0.5),
}


def about(gpus: float | None) -> str:
    """A number of GPUs to two digits."""
    if gpus is None:
        return ""
    unit = 10 ** max(0, math.floor(math.log10(gpus)) + 1 - DIGITS)
    found = max(1, round(gpus / unit) * unit)
    if found >= MEGA:
        return f"{found / MEGA:,.2g} M" if found < 10 * MEGA else f"{found / MEGA:,.0f} M"
    return f"{found / KILO:,.0f} k" if found >= LONG else f"{found:,}"


def signed(elasticity: float) -> str:
    """An elasticity with its sign; what rounds to nothing has a plus."""
    return f"{round(elasticity, 2) + 0.0:+.2f}"


def wall_words(budget: Budget) -> str:
    """How long a training takes."""
    return format_time(budget.wall_time_s) if ends(budget) else "never ends"


def ends(budget: Budget) -> bool:
    """Whether failures leave a training any time to speak of."""
    return budget.goodput_fraction > LEAST_GOODPUT


def usd_words(usd_per_token: float | None) -> str:
    """What a billion tokens cost; empty where no price is known."""
    return "" if usd_per_token is None else f"{usd_per_token * GIGA:,.0f}"


def gpus_span(low: float | None, high: float | None) -> str:
    """The range of a limit; empty where it has none."""
    if low is None or low == high or (high is not None and about(low) == about(high)):
        return ""
    return f"{about(low)} or more" if high is None else f"{about(low)} - {about(high)}"


def limit_gpus(limit: Limit | Ceiling) -> str:
    """Where a limit lies: exactly where no error bar bears on it, else as well as it is known."""
    if limit.gpus is None:
        return ""
    return f"{limit.gpus:,.0f}" if limit.low_gpus == limit.high_gpus else about(limit.gpus)


def ceiling_words(answer: SweepAnswer, setup: str) -> str:
    """Where scaling stops on a machine, in one sentence."""
    found = answer.ceilings[setup]
    last = max((p.gpus for p in found.points if p.searched), default=0)
    if not found.points:
        return "No layout was found, so there is nothing to scale."
    if found.gpus is None or found.binding_limit is None:
        return f"No limit was reached up to {max(p.gpus for p in found.points):,} GPUs."
    beyond = f", beyond the {last:,} searched" if found.beyond else ""
    reason = found.limits[found.binding_limit].reason
    why = f"{beyond}. Binding limit: {LIMIT_WORDS[found.binding_limit]} ({reason})."
    if found.low_gpus == found.high_gpus:
        return f"{found.gpus:,.0f} GPUs{why}"
    words, low = f"About {about(found.gpus)} GPUs", about(found.low_gpus)
    if found.high_gpus is None:
        return f"{words}, at least {low}{why}"
    high = about(found.high_gpus)
    return f"{words}{why}" if low == high else f"{words}, between {low} and {high}{why}"


def point_words(answer: SweepAnswer, point: CurvePoint) -> str:
    """Why a point of the curve has no layout; empty where it has one."""
    if point.lacking is None:
        return ""
    if point.lacking == MEMORY:
        return "nothing fits"
    reason = answer.reasons[point.lacking]
    return "not searched" if point.lacking == NOT_SEARCHED else f"none is legal: {reason}"


def lacking_words(answer: SweepAnswer) -> str:
    """Why a sweep has no layout at all, in a phrase."""
    if not answer.complete:
        return "interrupted before a layout that fits was found"
    illegal = [p for p in answer.curve if p.lacking not in (None, MEMORY)]
    if illegal and len(illegal) == len(answer.curve):
        return f"no layout is legal: {answer.reasons[str(illegal[0].lacking)]}"
    return "nothing fits"


def closed_words(closed: ClosedForm) -> str:
    """The closed forms of one layout in a sentence, which wraps in no equation and before no unit."""
    if closed.break_even_tokens_per_rank is None:
        return "Closed form: one data-parallel rank, which sends nothing."
    words = (
        f"Closed form (6ND/P against 2N b_r/BW, see `dscalc ratio`) for the best layout on {closed.gpus:,} GPUs: "
        f"D* = {format_count(closed.break_even_tokens_per_rank)} tokens a rank"
    )
    if closed.max_useful_data_parallel is not None and closed.max_useful_gpus is not None:
        ranks, gpus = about(closed.max_useful_data_parallel), about(closed.max_useful_gpus)
        words += f", K* = {ranks} data-parallel ranks, {gpus} GPUs"
    return re.sub(r" (?=[kMBT] )|(?<=\*) (?==)|(?<==) ", "\u00a0", words) + "."


def simplest_words(answer: SweepAnswer, point: CurvePoint) -> str:
    """The simplest of the layouts that are as fast as the fastest, as far as two can be told apart."""
    mine = [r for r in answer.rows if (r.setup, r.gpus) == (point.setup, point.gpus)]
    found = next(r for r in mine if r.simplest)
    fastest = min(mine, key=lambda r: r.step_time_s)
    known = f"~ Two layouts can be told apart from about {answer.level:.0%} on."
    if found.rank == 1:
        return f"{known} The first is also the simplest within that."
    lost = found.step_time_s / fastest.step_time_s - 1.0
    free = "" if found.headroom_bytes is None else f", {format_bytes(found.headroom_bytes)} free"
    again = "" if found.layout.recompute == "none" else f", recompute {recompute_words(found.layout)}"
    return (
        f"{known} The simplest within that: {layout_words(found.layout)}, micro-batch {found.layout.micro_batch} x "
        f"{found.layout.grad_accum}{again}, {lost:.1%} slower than the fastest{free}."
    )
