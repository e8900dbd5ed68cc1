"""Whether the model chooses well: the order of layouts of one model on the same GPUs, and what its choice costs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from dscalc.frozen import dataclass
from dscalc.records import Array
from dscalc.validation.diagnose import stalled
from dscalc.validation.step import HEALTHY_QUALITY, StepPrediction

LEAST = 5  # layouts of a group
SPOILED = ("slow_outlier", "proxy_layers", "layout_")  # flags of runs that a cluster or a misprint spoiled


@dataclass(frozen=True, slots=True)
class Choice:
    """Groups of one source: rank correlation, and how much longer the layout predicted best takes than the best one."""

    source: str
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
    return any(flag.startswith(bad) for flag in p.row.row.flags for bad in SPOILED) or stalled(p)


def usual(rows: Iterable[StepPrediction]) -> list[StepPrediction]:
    """Runs that people make on purpose and record in full, whatever MFU they reach."""
    return [
        p for p in rows if p.row.task in ("pretrain", "") and p.row.row.quality in HEALTHY_QUALITY and not spoiled(p)
    ]


def _key(p: StepPrediction) -> tuple[object, ...]:
    row, layout, shape = p.row, p.row.row.layout, p.row.row.shape
    model = (row.model, shape.layers, shape.hidden, shape.heads)
    return (row.row.source, model, row.gpu.id, layout.gpus, layout.global_batch, layout.seq_len, row.precision)


def groups(rows: Iterable[StepPrediction], least: int = LEAST) -> list[list[StepPrediction]]:
    """Rows that differ in their layout only; of a layout measured more than once, the median."""
    found: dict[tuple[object, ...], dict[object, list[StepPrediction]]] = defaultdict(lambda: defaultdict(list))
    for p in rows:
        found[_key(p)][p.row.row.layout].append(p)
    whole = []
    for layouts in found.values():
        if len(layouts) >= least:
            middle = [sorted(ps, key=lambda p: p.row.measured_s)[len(ps) // 2] for ps in layouts.values()]
            whole.append(middle)
    return whole


def choices(
    rows: Iterable[StepPrediction], seconds: Callable[[StepPrediction], float] = lambda p: p.predicted_s
) -> list[Choice]:
    """How well layouts are chosen, by source.

    Args:
        rows: predictions, see ``usual``.
        seconds: the predicted time of a row.

    Returns:
        One entry a source with groups.
    """
    by_source: dict[str, list[tuple[int, float, float]]] = defaultdict(list)
    for members in groups(rows):
        measured, predicted = [p.row.measured_s for p in members], [seconds(p) for p in members]
        found = spearman(measured, predicted)
        if found == found:
            lost = measured[int(np.argmin(predicted))] / min(measured) - 1.0
            by_source[members[0].row.row.source].append((len(members), found, lost))
    return [
        Choice(
            source,
            len(each),
            sum(n for n, _, _ in each),
            float(np.mean([r for _, r, _ in each])),
            float(np.mean([x for _, _, x in each])),
        )
        for source, each in sorted(by_source.items())
    ]
