"""Slow ranks, nodes and links among many that should be equal, by a robust threshold.

Scores are times over the median of their peers, so 1.25 is a quarter slower. What stands out lies above the median by
more than ``SPREADS`` standard deviations, those estimated from the median absolute deviation, and by more than
``LEAST``: GPUs of one node differ by some 5 % where nothing is wrong. Times are the best tenth of a rank's calls, which
a passing disturbance does not touch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dscalc.calibrate.bench_plan import PAIR_SMALL
from dscalc.records import Array
from dscalc.units import format_size

SPREADS = 4.0  # standard deviations
NORMAL = 1.4826  # standard deviation of a normal distribution over its median absolute deviation
LEAST = 0.10  # slower than the median, at least
FEWEST = 3  # of two that differ nobody can say which is at fault


class Slow(NamedTuple):
    """Something slower than its peers.

    Attributes:
        what: ``rank``, ``node`` or ``link``.
        rank: the rank, None for a node or link.
        nodes: the node, or both ends of the link.
        hosts: their names.
        by_fraction: how much longer it takes than the median peer.
        evidence: what was compared.
    """

    what: str
    rank: int | None
    nodes: tuple[int, ...]
    hosts: tuple[str, ...]
    by_fraction: float
    evidence: str


def outliers(score: Array) -> list[int]:
    """Indices of what takes longer than its peers; NaN is nobody's peer."""
    present = score[~np.isnan(score)]
    if len(present) < FEWEST:
        return []
    middle = float(np.median(present))
    spread = NORMAL * float(np.median(np.abs(present - middle)))
    limit = middle + max(SPREADS * spread, LEAST * middle)
    return [int(i) for i in np.flatnonzero(score > limit)]


def slow_ranks(rows: Iterable[Mapping[str, Any]], ranks_per_node: int, hosts: Sequence[str]) -> list[Slow]:
    """Ranks whose kernels take longer than those of the others, the slowest first."""
    found: dict[int, Slow] = {}
    for kind, words in (("gemm", "matrix products"), ("memory_copy", "memory copies")):
        lows = [np.array(row["rank_low_s"]) for row in rows if row["kind"] == kind and row["rank_low_s"]]
        if not lows:
            continue
        score = np.median([low / np.median(low) for low in lows], axis=0)
        for rank in outliers(score):
            node = rank // ranks_per_node
            by = float(score[rank] / np.median(score) - 1.0)
            evidence = f"{words} of {len(lows)} sizes"
            if rank in found:
                worst = max(by, found[rank].by_fraction)
                found[rank] = found[rank]._replace(by_fraction=worst, evidence=f"{found[rank].evidence}, {evidence}")
            else:
                found[rank] = Slow("rank", rank, (node,), (hosts[node],), by, evidence)
    return sorted(found.values(), key=lambda slow: -slow.by_fraction)


def slow_links(rows: Iterable[Mapping[str, Any]], hosts: Sequence[str]) -> list[Slow]:
    """Nodes that are slow with every partner, and links that are slow between nodes that are not; the slowest first.

    A node is judged by its best partner: a healthy node has one, a node with a slow link has none.
    """
    pairs = [row for row in rows if row["kind"] == "pair" and row["size_bytes"] > PAIR_SMALL]
    largest = max((row["size_bytes"] for row in pairs), default=0)
    times = np.full((len(hosts), len(hosts)), np.nan)
    for row in pairs:
        if row["size_bytes"] == largest:
            a, b = row["from_node"], row["to_node"]
            times[a, b] = times[b, a] = row["low_s"]
    met = ~np.isnan(times).all(axis=1)
    if not met.any():
        return []
    best = np.full(len(hosts), np.nan)
    best[met] = np.nanmin(times[met], axis=1)
    usual = float(np.nanmedian(best))
    slow_nodes = outliers(best)
    evidence = f"{format_size(largest)} to each of its partners"
    found = [Slow("node", None, (n,), (hosts[n],), float(best[n] / usual - 1.0), evidence) for n in slow_nodes]
    healthy = np.array([n not in slow_nodes for n in range(len(hosts))])
    upper = np.where(np.triu(np.outer(healthy, healthy), 1), times, np.nan)
    flat = upper.ravel()
    if np.isnan(flat).all():
        return found
    middle = float(np.nanmedian(flat))
    for index in outliers(flat):
        a, b = divmod(index, len(hosts))
        words = f"{format_size(largest)} between these two, both of which are quick with others"
        found.append(Slow("link", None, (a, b), (hosts[a], hosts[b]), float(flat[index] / middle - 1.0), words))
    return sorted(found, key=lambda slow: -slow.by_fraction)


def slow_inside(rows: Iterable[Mapping[str, Any]], hosts: Sequence[str]) -> list[Slow]:
    """Nodes whose own collectives take longer than those of the others; of the largest messages, the slowest first."""
    inside = [row for row in rows if row["kind"] == "collective" and row["scope"] == "node"]
    largest: dict[str, Mapping[str, Any]] = {}
    for row in inside:
        if row["op"] not in largest or row["size_bytes"] >= largest[row["op"]]["size_bytes"]:
            largest[row["op"]] = row
    if not largest:
        return []
    times = [np.array(row["group_time_s"]) for row in largest.values()]
    score = np.median([each / np.median(each) for each in times], axis=0)
    usual = float(np.median(score))
    evidence = f"collectives inside each node, {len(largest)} operations at their largest message"
    found = [Slow("node", None, (n,), (hosts[n],), float(score[n] / usual - 1.0), evidence) for n in outliers(score)]
    return sorted(found, key=lambda slow: -slow.by_fraction)
