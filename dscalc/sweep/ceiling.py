"""Where adding GPUs stops paying: limits on a scaling curve, what they are made of, and what would move them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import exp, inf, log, sqrt

from dscalc.frozen import dataclass
from dscalc.sweep.change import LEVERS, Change
from dscalc.sweep.curve import Point, Stock, curve
from dscalc.sweep.prune import Machine
from dscalc.sweep.space import Space

LIMITS = ("memory_floor", "ratio_one", "marginal_gain", "throughput_peak", "latency", "critical_batch", "sequences")
UPPER = LIMITS[1:]  # those that adding GPUs runs into
NO_LAW = "give --tokens, --noise-scale or --batch-law to ask the laws of the batch"
Critical = tuple[float, str]  # tokens of a step, and the law that says so


@dataclass(frozen=True, slots=True)
class Limit:
    """One limit: GPUs, None where it is not reached, with the range of the error bars and the reason in words."""

    name: str
    gpus: float | None
    reason: str
    low_gpus: float | None = None
    high_gpus: float | None = None


@dataclass(frozen=True, slots=True)
class Ceiling:
    """Where scaling stops, by each limit; the binding one is reached first.

    Attributes:
        binding_limit: its name, None where none is reached.
        gpus, low_gpus, high_gpus: where, with the range of the error bars; None: beyond what was looked at.
        limits: by name.
        elasticities: d log K / d log x of the binding limit, by re-running; None where one of the two is not reached.
        points: the curve that the limits were read off, searched and beyond.
        beyond: the limit lies beyond the largest number of GPUs searched.
    """

    binding_limit: str | None
    gpus: float | None
    low_gpus: float | None
    high_gpus: float | None
    limits: Mapping[str, Limit]
    elasticities: Mapping[str, float | None]
    points: tuple[Point, ...]
    beyond: bool


def crossing(gpus: Sequence[float], values: Sequence[float], level: float = 1.0) -> float | None:
    """Where values that fall along a curve reach a level for good, between points by power laws.

    >>> crossing([8, 16, 32], [4.0, 2.0, 0.5])
    22.6...
    """
    above = [v >= level for v in values]
    if not above or above[-1]:
        return None
    if not any(above):
        return float(gpus[0])
    i = max(n for n, is_above in enumerate(above) if is_above)
    first, second = values[i], max(values[i + 1], 1e-12)
    if not first < inf:
        return float(gpus[i + 1])
    share = log(first / level) / log(first / second)
    return float(exp(log(gpus[i]) + share * (log(gpus[i + 1]) - log(gpus[i]))))


def _marginals(points: Sequence[Point]) -> Iterator[tuple[float, float]]:
    """GPUs in the middle of each stretch of the curve, and what one GPU adds there over the first point's share."""
    ideal = points[0].tokens_per_s / points[0].gpus
    for a, b in pairwise(points):
        yield sqrt(a.gpus * b.gpus), (b.tokens_per_s - a.tokens_per_s) / (b.gpus - a.gpus) / ideal


def limits(points: Sequence[Point], share: float, weak: bool, critical: Critical | None) -> dict[str, Limit]:
    """The limits of a curve.

    Args:
        points: the curve, ascending.
        share: of its ideal that one more GPU must give.
        weak: the batch grows with the GPUs.
        critical: tokens of a step above which a larger batch helps little, and the law that says so; None: unknown.

    Returns:
        By name, in the order of ``LIMITS``.
    """
    if not points:
        nothing = "nothing fits at any number of GPUs"
        return {name: Limit(name, None, nothing) for name in LIMITS}
    first, last = points[0], points[-1]
    gpus = [float(p.gpus) for p in points]
    found: dict[str, Limit] = {}

    def put(name: str, at: float | None, reached: str, beyond: str) -> None:
        found[name] = Limit(name, at, reached if at is not None else beyond)

    put("memory_floor", float(first.gpus), "the smallest number looked at on which a layout fits", "")
    ratios = [p.compute_s / p.communication_s if p.communication_s > 0.0 else inf for p in points]
    put(
        "ratio_one",
        crossing(gpus, ratios),
        "communication takes as long as computing and cannot all hide behind it",
        f"computing still takes {ratios[-1]:.1f} times as long as communication on {last.gpus:,} GPUs",
    )
    stretches = [(g, m) for g, m in _marginals(points)]
    at = crossing([g for g, _ in stretches], [max(m, 1e-12) for _, m in stretches], share) if stretches else None
    last_gain = (
        f"; it gives {stretches[-1][1]:.0%} at {last.gpus:,} GPUs" if stretches else ": there is only one number"
    )
    put(
        "marginal_gain",
        at,
        f"one more GPU gives less than {share:.0%} of what each gives on {first.gpus:,}",
        f"one more GPU gives at least {share:.0%} of its ideal{last_gain}",
    )
    peak = max(points, key=lambda p: p.tokens_per_s)
    put(
        "throughput_peak",
        float(peak.gpus) if peak is not last and len(points) > 1 else None,
        "more GPUs make fewer tokens a second" + ("" if peak.searched else " with the layouts found on fewer"),
        f"throughput still grows at {last.gpus:,} GPUs",
    )
    shares = [(p.communication_s - p.latency_s) / p.latency_s if p.latency_s > 0.0 else inf for p in points]
    put(
        "latency",
        crossing(gpus, shares),
        "collectives wait longer for their latency than for their bytes",
        f"bytes still take longer than latency on {last.gpus:,} GPUs",
    )
    found["critical_batch"] = _critical(points, weak, critical)
    put(
        "sequences",
        None if weak else first.sequences * last.model_parallel,
        f"{first.sequences:,.0f} sequences a step, one a data-parallel rank; one is {last.model_parallel:g} GPUs",
        "the batch grows with the GPUs",
    )
    return found


def _critical(points: Sequence[Point], weak: bool, critical: Critical | None) -> Limit:
    name = "critical_batch"
    if critical is None:
        return Limit(name, None, NO_LAW)
    most, law = critical
    tokens = points[0].tokens
    if not weak:
        side = "above" if tokens > most else "below"
        words = f"the batch stays at {tokens:,.0f} tokens, {side} the critical {most:,.0f} of {law}"
        return Limit(name, float(points[0].gpus) if tokens > most else None, words)
    at = points[0].gpus * most / tokens
    return Limit(name, at, f"the batch passes the critical {most:,.0f} tokens of {law}")


def binding(found: Mapping[str, Limit]) -> Limit | None:
    """The limit that adding GPUs reaches first, in the order of ``LIMITS`` on a tie."""
    reached = [found[name] for name in UPPER if found[name].gpus is not None]
    return min(reached, key=lambda limit: limit.gpus or inf, default=None)


def ceiling(
    space: Space,
    held: Sequence[Stock],
    doubled: Sequence[Stock],
    machine: Machine,
    *,
    error: float,
    share: float = 0.5,
    weak: bool = False,
    critical: Critical | None = None,
) -> Ceiling:
    """Where scaling stops, with ranges and elasticities.

    Args:
        space: any space of the sweep; says the model.
        held: from ``stocks``, with the best layouts of each move among them.
        doubled: the same of a search with twice the batch.
        machine: what they run on.
        error: relative uncertainty of the rate of computing and of that of the network.
        share: of its ideal that one more GPU must give.
        weak: the batch grows with the GPUs.
        critical: tokens of a step above which a larger batch helps little, and the law that says so; None: unknown.

    Returns:
        The ceiling.
    """

    def limits_with(change: Change) -> dict[str, Limit]:
        return limits(curve(space, held, machine, change), share, weak, critical)

    points = curve(space, held, machine)
    found = limits(points, share, weak, critical)
    nudges = [
        Change("compute", compute=1.0 + error),
        Change("compute", compute=1.0 / (1.0 + error)),
        Change("bandwidth", bandwidth=1.0 + error),
        Change("bandwidth", bandwidth=1.0 / (1.0 + error)),
    ]
    nudged = [limits_with(change) for change in nudges]
    ranged = {name: _ranged(limit, [other[name] for other in nudged]) for name, limit in found.items()}
    first = binding(ranged)
    pulled: dict[str, float | None] = {}
    twice = limits(curve(space, doubled, machine), share, weak, critical)
    for name, change, factor in LEVERS:
        moved = twice if change is None else limits_with(change)
        pulled[name] = _elasticity(first.gpus, moved[first.name].gpus, factor) if first is not None else None
    searched = [p.gpus for p in points if p.searched]
    return Ceiling(
        binding_limit=first.name if first else None,
        gpus=first.gpus if first else None,
        low_gpus=first.low_gpus if first else None,
        high_gpus=first.high_gpus if first else None,
        limits=ranged,
        elasticities=pulled,
        points=points,
        beyond=bool(first and first.gpus and searched and first.gpus > searched[-1]),
    )


def _elasticity(before: float | None, after: float | None, factor: float) -> float | None:
    return log(after / before) / log(factor) if before and after else None


def _ranged(limit: Limit, others: Sequence[Limit]) -> Limit:
    """A limit with its range: each perturbed parameter moves it, and the moves add as squares in the logarithm."""
    if limit.gpus is None:
        return limit
    down = up = 0.0
    beyond = False
    for a, b in zip(others[::2], others[1::2], strict=True):
        moves = [log(o.gpus / limit.gpus) for o in (a, b) if o.gpus]
        beyond |= len(moves) < 2
        down += min(0.0, *moves, 0.0) ** 2 if moves else 0.0
        up += max(0.0, *moves, 0.0) ** 2 if moves else 0.0
    high = None if beyond else limit.gpus * exp(sqrt(up))
    return replace(limit, low_gpus=limit.gpus * exp(-sqrt(down)), high_gpus=high)
