"""From rows of a log to one clean series a collective and group: medians, no wrong results, noise."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from dscalc.calibrate.measurements import Table
from dscalc.frozen import dataclass
from dscalc.records import Array

OPS = {  # names of benchmarks to those of the formulas
    "all_reduce": "all-reduce",
    "all_gather": "all-gather",
    "reduce_scatter": "reduce-scatter",
    "all_to_all": "all-to-all",
    "send_recv": "send-recv",
    "broadcast": "broadcast",
}
LIKELY_NODE = 8  # ranks of one node where a log does not say
AGREE = 0.10  # in the median over shared sizes: runs that differ more are not one measurement


class Key(NamedTuple):
    """What one series is of."""

    op: str
    ranks: int
    nodes: int
    groups: int = 1  # that ran the same call at the same time

    @property
    def words(self) -> str:
        """For people."""
        node = "node" if self.nodes == 1 else "nodes"
        at_once = f", {self.groups} groups at once" if self.groups > 1 else ""
        return f"{self.op} of {self.ranks} ranks on {self.nodes} {node}{at_once}"


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """Times of one collective in one group.

    Attributes:
        key: what it is of.
        gpu: the GPU as the log names it.
        size_bytes: ascending, each once [bytes, (n,)].
        time_s: median over repetitions, out of place where the log has it [s, (n,)].
        noise: how far repetitions and the in-place twin lie apart, half the logarithm of their ratio [1, (n,)].
        cells: times behind it [count, scalar].
        source: files and lines.
        dropped: rows left out, and why.
    """

    key: Key
    gpu: str
    size_bytes: Array
    time_s: Array
    noise: Array
    cells: int
    source: str
    dropped: tuple[str, ...]


class Conflict(NamedTuple):
    """Two runs of one thing that do not agree; the slower is kept."""

    key: Key
    kept: str
    left: str
    ratio: float  # median time of the kept one over the other's, at the sizes that both have


def series_of(table: Table, nodes: int | None = None, gpus_per_node: int | None = None) -> Series | str:
    """The series of a table.

    Args:
        table: as a reader found it.
        nodes: nodes of the group where the log does not say [count].
        gpus_per_node: the same, from ranks [count].

    Returns:
        The series, or why there is none.
    """
    op = OPS.get(table.op)
    if op is None:
        return f"{table.op.replace('_', ' ')} is not modelled" if table.op else "the log does not name the operation"
    if table.ranks is None:
        return "the number of ranks is neither stated nor implied"
    if table.ranks < 2:
        return "one rank talks to nobody"
    spread = table.nodes or nodes or -(-table.ranks // (gpus_per_node or LIKELY_NODE))
    outside, inside = table.time_s
    wrong = np.nan_to_num(table.wrong, nan=0.0) > 0.0
    out = np.where(wrong[0] | ~(outside > 0.0), np.nan, outside)
    twin = np.where(wrong[1] | ~(inside > 0.0), np.nan, inside)
    usable = (table.size_bytes > 0.0) & ((out > 0.0) | (twin > 0.0))
    dropped = []
    if bad := int(np.sum(wrong[0] & (outside > 0.0))):
        dropped.append(f"{bad} cells with wrong results: the speed of a wrong answer")
    best = np.where(out > 0.0, out, twin)
    sizes = np.unique(table.size_bytes[usable])
    if not len(sizes):
        return "no row has a size and a time"
    times, noise = np.empty(len(sizes)), np.full(len(sizes), np.nan)
    for i, size in enumerate(sizes):
        mine = usable & (table.size_bytes == size)
        times[i] = np.median(best[mine])
        twins = np.abs(np.log(twin[mine] / out[mine]))
        spans = [float(np.median(twins[np.isfinite(twins)])) / 2.0] if np.isfinite(twins).any() else []
        if mine.sum() > 1:
            spans.append(float(np.median(np.abs(np.log(best[mine] / times[i])))))
        noise[i] = max(spans) if spans else np.nan
    return Series(
        Key(op, table.ranks, spread, table.groups),
        table.gpu,
        sizes,
        times,
        noise,
        int(usable.sum()),
        f"{table.file}:{table.first_line}-{table.last_line}",
        tuple(dropped),
    )


def merged(found: Iterable[Series]) -> tuple[tuple[Series, ...], tuple[Conflict, ...]]:
    """One series a collective and group; runs that agree are samples of one, of others the slower stays.

    Args:
        found: series in the order of the files.

    Returns:
        The series, and where runs contradict each other.
    """
    by_key: dict[Key, list[Series]] = {}
    for series in found:
        by_key.setdefault(series.key, []).append(series)
    kept, conflicts = [], []
    for key, runs in by_key.items():
        best = runs[0]
        for other in runs[1:]:
            ratio = _ratio(best, other)
            if ratio is None or abs(np.log(ratio)) <= AGREE:
                best = _joined([best, other])
                continue
            slow, fast = (best, other) if ratio > 1.0 else (other, best)
            conflicts.append(Conflict(key, slow.source, fast.source, max(ratio, 1.0 / ratio)))
            best = slow
        kept.append(best)
    return tuple(kept), tuple(conflicts)


def _ratio(one: Series, other: Series) -> float | None:
    """Median time of one over the other's at the sizes that both have, large ones alone where there are some."""
    shared, at, to = np.intersect1d(one.size_bytes, other.size_bytes, return_indices=True)
    if not len(shared):
        return None
    ratios = np.log(one.time_s[at] / other.time_s[to])
    return float(np.exp(np.median(ratios[len(ratios) // 2 :])))


def _joined(runs: Sequence[Series]) -> Series:
    sizes = np.unique(np.concatenate([run.size_bytes for run in runs]))
    times, noise = np.empty(len(sizes)), np.full(len(sizes), np.nan)
    for i, size in enumerate(sizes):
        there = [(run.time_s[run.size_bytes == size], run.noise[run.size_bytes == size]) for run in runs]
        samples = np.concatenate([t for t, _ in there])
        own = np.concatenate([n for _, n in there])
        times[i] = np.median(samples)
        spans = [*own[np.isfinite(own)], *([float(np.std(np.log(samples)))] if len(samples) > 1 else [])]
        noise[i] = max(spans) if spans else np.nan
    return Series(
        runs[0].key,
        next((run.gpu for run in runs if run.gpu), ""),
        sizes,
        times,
        noise,
        sum(run.cells for run in runs),
        ", ".join(dict.fromkeys(run.source for run in runs)),
        tuple(dict.fromkeys(text for run in runs for text in run.dropped)),
    )
