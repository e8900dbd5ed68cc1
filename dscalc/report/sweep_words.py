"""Words for the ceiling of a sweep, as tables, charts and reports use them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dscalc.answers.sweep import Ceiling, Limit, SweepAnswer

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
    return f"{max(1, round(gpus / unit) * unit):,}"


def gpus_span(low: float | None, high: float | None) -> str:
    """The range of a limit; empty where it has none."""
    if low is None or low == high:
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
        return "Nothing fits, so there is nothing to scale."
    if found.gpus is None or found.binding_limit is None:
        return f"No limit was reached up to {max(p.gpus for p in found.points):,} GPUs."
    high = about(found.high_gpus) if found.high_gpus is not None else "more than was looked at"
    beyond = f"; beyond the {last:,} searched" if found.beyond else ""
    reason = found.limits[found.binding_limit].reason
    if found.low_gpus == found.high_gpus:
        return f"{found.gpus:,.0f} GPUs{beyond}: {reason}."
    return f"About {about(found.gpus)} GPUs, between {about(found.low_gpus)} and {high}{beyond}: {reason}."
