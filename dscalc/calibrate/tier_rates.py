"""From measured collectives to the rates of tiers: the share of the wire at which the model says the same."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dscalc.calibrate.fit import Fit
from dscalc.calibrate.fit_line import robust_spread
from dscalc.cost.collectives import collective
from dscalc.cost.geometry import place
from dscalc.records import Array, Curve, Network
from dscalc.units import MIB

LEAST_BYTES = 1.0 * MIB  # smaller messages tell of latency
HALVINGS = 40
SPAN = (1e-4, 20.0)  # factors tried
RING_ONLY = ("all-gather", "reduce-scatter", "broadcast", "all-to-all", "send-recv")


class TierFit(NamedTuple):
    """One tier: how much faster or slower than described, and by what that is known."""

    level: int
    factor: float
    stderr_fraction: float
    reduces: bool  # learned from all-reduces alone, which a switch may have helped
    source: str
    points: int


def tier_factors(fits: Sequence[Fit], curves: Sequence[Curve], network: Network) -> tuple[TierFit, ...]:
    """What tiers reach, over what the network says, from the largest messages of each measured group.

    Args:
        fits: measured collectives.
        curves: the same, lowered on this network.
        network: the tiers as described.

    Returns:
        One entry for each tier that some group tells of.
    """
    bare = replace(network, curves=())
    found: dict[int, list[tuple[float, float, Fit]]] = {}
    for fit, curve in zip(fits, curves, strict=True):
        size = float(fit.series.size_bytes[-1])
        if size < LEAST_BYTES or not curve.shared:
            continue
        level, factor = _factor(curve, size, float(fit.series.time_s[-1]), bare)
        if factor is not None:
            rate = fit.lines.bandwidth
            known = rate.stderr / rate.value if rate is not None else float(fit.error[-1])
            found.setdefault(level, []).append((factor, known, fit))
    result = []
    for level, entries in sorted(found.items()):
        plain = [e for e in entries if e[2].series.key.op in RING_ONLY]
        chosen = plain or entries
        factors = np.log([e[0] for e in chosen])
        own = float(np.median([e[1] for e in chosen]))
        off = factors - np.median(factors)
        spread = robust_spread(off, 1) if len(off) > 1 else 0.0  # one odd operation is no error of the link
        source = ", ".join(dict.fromkeys(e[2].series.source for e in chosen))
        result.append(
            TierFit(level, float(np.exp(np.median(factors))), max(own, spread), not plain, source, len(chosen))
        )
    return tuple(result)


def placed(curve: Curve, network: Network) -> tuple[Array, Array, Array, int]:
    """Where a benchmark's group lies on tiers.

    Args:
        curve: the benchmark.
        network: the tiers.

    Returns:
        Members, members in one domain and domains of each tier but the outermost, and the outermost tier used.
    """
    group, width = np.array([curve.group]), float(network.tiers[0].gpus[0])
    apart = max(width / curve.inside, 1.0) if curve.domains > 1.0 and np.isfinite(width) else 1.0
    places = [place(group, np.array([apart]), tier.gpus) for tier in network.tiers[:-1]]
    inside = np.stack([p.inside for p in places]) if places else group[None, :]
    domains = np.stack([p.domains for p in places]) if places else np.array([[1.0]])
    return group, inside, domains, max((j + 1 for j, p in enumerate(places) if p.domains[0] > 1.0), default=0)


def _factor(curve: Curve, size: float, seconds: float, network: Network) -> tuple[int, float | None]:
    """The outermost tier that a group uses, and the factor on its share of the wire that gives its time."""
    group, inside, domains, level = placed(curve, network)

    def took(factor: float) -> float:
        tier = network.tiers[level]
        moved = replace(
            tier, efficiency=tier.efficiency * factor, reduction_efficiency=tier.reduction_efficiency * factor
        )
        tiers = tuple(moved if j == level else t for j, t in enumerate(network.tiers))
        call = collective(curve.op, np.array([size]), group, inside, domains, replace(network, tiers=tiers))
        return float(call.time_s[0])

    low, high = np.log(SPAN)
    if not took(float(np.exp(low))) >= seconds >= took(float(np.exp(high))):
        return level, None
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if took(float(np.exp(middle))) > seconds else (low, middle)
    return level, float(np.exp(0.5 * (low + high)))
