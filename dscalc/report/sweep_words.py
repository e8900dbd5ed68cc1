"""Words for the ceiling of a sweep, as tables, charts and reports use them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from dscalc.answers.sweep_lacking import MEMORY, NOT_SEARCHED
from dscalc.units import GIGA, KILO, MEGA, format_time

if TYPE_CHECKING:
    from dscalc.answers.sweep import Ceiling, CurvePoint, Limit, SweepAnswer
    from dscalc.answers.sweep_budget import Budget

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
    beyond = f"; beyond the {last:,} searched" if found.beyond else ""
    reason = found.limits[found.binding_limit].reason
    if found.low_gpus == found.high_gpus:
        return f"{found.gpus:,.0f} GPUs{beyond}: {reason}."
    words, low = f"About {about(found.gpus)} GPUs", about(found.low_gpus)
    if found.high_gpus is None:
        return f"{words}, at least {low}{beyond}: {reason}."
    high = about(found.high_gpus)
    return f"{words}{beyond}: {reason}." if low == high else f"{words}, between {low} and {high}{beyond}: {reason}."


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
