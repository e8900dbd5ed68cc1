"""Whether the model chooses well: the order of layouts of one model on the same GPUs, and what its choice costs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from dscalc.frozen import dataclass
from dscalc.records import Array
from dscalc.validation.diagnose import retried, stalled
from dscalc.validation.step import HEALTHY_QUALITY, StepPrediction
from dscalc.validation.step_rows import faulty_sources

LEAST = 5  # layouts of a group
TWIN_SLOWER = 1.5  # times the same layout with sharded optimizer states, which exchanges as much and updates less
SPOILED = ("slow_outlier", "proxy_layers", "layout_")  # flags of runs that a cluster or a misprint spoiled


@dataclass(frozen=True, slots=True)
class Choice:
    """Groups of one source: rank correlation, and how much longer the layout predicted best takes than the best one."""

    source: str
    faults: bool  # predicted with the faults that its cluster is known to have
    experts: bool
    groups: int
    layouts: int
    spearman: float  # mean over groups
    regret_fraction: float


def ranks(values: Sequence[float]) -> Array:
    """Ranks, ties sharing their mean."""
    array = np.asarray(values)
    return np.asarray([np.mean(np.flatnonzero(np.sort(array) == v)) for v in array])


def spearman(first: Sequence[float], second: Sequence[float]) -> float:
    """Rank correlation; nan where one is constant."""
    a, b = ranks(first), ranks(second)
    if a.std() == 0.0 or b.std() == 0.0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def spoiled(p: StepPrediction) -> bool:
    """Whether a fault of a cluster, or of the record, decides the time."""
    return any(flag.startswith(bad) for flag in p.row.row.flags for bad in SPOILED) or stalled(p) or retried(p)


def slow_twins(rows: Iterable[StepPrediction]) -> set[str]:
    """Runs without sharded states that took much longer than the same layout with them: something else slowed them.

    Args:
        rows: predictions beside measurements.

    Returns:
        Their ids.
    """
    found: dict[tuple[object, ...], dict[int, list[StepPrediction]]] = defaultdict(lambda: defaultdict(list))
    for p in rows:
        layout = p.row.row.layout
        found[(*_key(p), layout.model_copy(update={"zero": 0}))][layout.zero].append(p)
    slow = set()
    for by_stage in found.values():
        if 0 in by_stage and 1 in by_stage:
            sharded = float(np.median([p.row.measured_s for p in by_stage[1]]))
            slow |= {p.row.row.id for p in by_stage[0] if p.row.measured_s > TWIN_SLOWER * sharded}
    return slow


def usual(rows: Iterable[StepPrediction]) -> list[StepPrediction]:
    """Runs that people make on purpose and record in full, whatever MFU they reach."""
    kept = [
        p for p in rows if p.row.task in ("pretrain", "") and p.row.row.quality in HEALTHY_QUALITY and not spoiled(p)
    ]
    slow = slow_twins(kept)
    return [p for p in kept if p.row.row.id not in slow]


def _key(p: StepPrediction) -> tuple[object, ...]:
    row, layout, shape = p.row, p.row.row.layout, p.row.row.shape
    model = (row.model, shape.layers, shape.hidden, shape.heads)
    return (row.row.source, model, row.gpu.id, layout.gpus, layout.global_batch, layout.seq_len, row.precision)


def _middle(runs: Sequence[StepPrediction]) -> StepPrediction:
    """Runs of one layout as one that took their median."""
    if len(runs) == 1:
        return runs[0]
    return replace(runs[0], row=replace(runs[0].row, measured_s=float(np.median([p.row.measured_s for p in runs]))))


def groups(rows: Iterable[StepPrediction], least: int = LEAST) -> list[list[StepPrediction]]:
    """Rows that differ in their layout only; of a layout measured more than once, the median."""
    found: dict[tuple[object, ...], dict[object, list[StepPrediction]]] = defaultdict(lambda: defaultdict(list))
    for p in rows:
        found[_key(p)][p.row.row.layout].append(p)
    return [[_middle(runs) for runs in layouts.values()] for layouts in found.values() if len(layouts) >= least]


def choices(
    rows: Iterable[StepPrediction], seconds: Mapping[str, float] | None = None, faults: bool = False
) -> list[Choice]:
    """How well layouts are chosen, by source.

    Args:
        rows: predictions, see ``usual``.
        seconds: predicted times by id, where they are not those of the rows.
        faults: these are of clusters with known faults.

    Returns:
        One entry a source with groups.
    """
    by_source: dict[str, list[tuple[int, float, float, bool]]] = defaultdict(list)
    other = seconds or {}
    for members in groups(rows):
        measured = [p.row.measured_s for p in members]
        predicted = [other.get(p.row.row.id, p.predicted_s) for p in members]
        found = spearman(measured, predicted)
        if found == found:
            lost = measured[int(np.argmin(predicted))] / min(measured) - 1.0
            one = members[0].row.row
            by_source[one.source].append((len(members), found, lost, bool(one.shape.experts)))
    return [
        Choice(
            source,
            faults,
            any(e for _, _, _, e in each),
            len(each),
            sum(n for n, _, _, _ in each),
            float(np.mean([r for _, r, _, _ in each])),
            float(np.mean([x for _, _, x, _ in each])),
        )
        for source, each in sorted(by_source.items())
    ]


def both_ways(rows: Sequence[StepPrediction], floored_s: Sequence[float]) -> list[Choice]:
    """Choices by source, and once more by the faults that a source's cluster is known to have.

    Args:
        rows: predictions.
        floored_s: each row's time with a floor a layer, nan where it has none.

    Returns:
        One entry a source, and one more where a cluster has faults.
    """
    faulty = faulty_sources()
    floored = {p.row.row.id: s for p, s in zip(rows, floored_s, strict=True) if s == s}
    kept = usual(rows)
    found = choices(kept)
    found += choices([p for p in kept if p.row.row.source in faulty], floored, faults=True)
    return sorted(found, key=lambda c: (c.source, c.faults))


def average(found: Iterable[Choice]) -> tuple[float, float]:
    """Mean over sources of dense models of rank correlation and regret, a faulty cluster's with its faults."""
    dense = {c.source: c for c in sorted(found, key=lambda c: c.faults) if not c.experts}
    if not dense:
        return float("nan"), float("nan")
    each = dense.values()
    return float(np.mean([c.spearman for c in each])), float(np.mean([c.regret_fraction for c in each]))
