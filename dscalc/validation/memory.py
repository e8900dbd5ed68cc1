"""Predicted against published peak memory: errors by source, each source weighing the same."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import numpy as np

from dscalc.cost.evaluate import evaluate
from dscalc.cost.memory import Memory
from dscalc.errors import DscalcError
from dscalc.frozen import dataclass
from dscalc.records import Hardware
from dscalc.specs.layout_spec import lower
from dscalc.specs.stack import load_books
from dscalc.specs.store import load_gpu
from dscalc.validation.legal import broken_rules
from dscalc.validation.rows import Row, read_rows
from dscalc.validation.table import Excluded

HEALTHY = frozenset("ABM")


@dataclass(frozen=True, slots=True)
class Prediction:
    """One row beside its prediction; ``error_fraction`` is predicted / measured - 1, None for an out-of-memory
    record.
    """

    row: Row
    predicted_bytes: float
    low_bytes: float
    high_bytes: float
    error_fraction: float | None
    fits: bool | None
    healthy: bool


@dataclass(frozen=True, slots=True)
class SourceErrors:
    """Errors of one source's healthy rows."""

    source: str
    n: int
    median_abs: float
    p90_abs: float
    max_abs: float
    bias: float


@dataclass(frozen=True, slots=True)
class Validation:
    """Every prediction, what was left out and why, and the errors by source."""

    predictions: tuple[Prediction, ...]
    excluded: tuple[Excluded, ...]
    sources: tuple[SourceErrors, ...]
    average_median: float
    fits_right: tuple[int, int]  # measured rows predicted to fit, of how many
    oom_right: tuple[int, int]  # out-of-memory rows predicted not to fit, of how many


def validate_memory(path: Path | None = None) -> Validation:
    """Predict every row that can be predicted.

    Args:
        path: a CSV file with the columns of the shipped table; None for the shipped rows.

    Returns:
        The validation.

    Raises:
        InputError: the file cannot be read or lacks a column.
    """
    read, excluded = read_rows(path)
    broken = broken_rules(read)
    rows = [row for row, reason in zip(read, broken, strict=True) if not reason]
    excluded += [Excluded(row.id, reason) for row, reason in zip(read, broken, strict=True) if reason]
    predictions = _predict(rows)
    by_source: dict[str, list[float]] = defaultdict(list)
    for p in predictions:
        if p.healthy and p.error_fraction is not None:
            by_source[p.row.source].append(p.error_fraction)
    sources = tuple(
        SourceErrors(
            source,
            len(errors),
            float(np.median(np.abs(errors))),
            float(np.quantile(np.abs(errors), 0.9)),
            float(np.max(np.abs(errors))),
            float(np.median(errors)),
        )
        for source, errors in sorted(by_source.items())
    )
    measured = [p for p in predictions if p.healthy and p.error_fraction is not None and p.fits is not None]
    failed = [p for p in predictions if p.row.measured_bytes is None and p.fits is not None]
    return Validation(
        tuple(predictions),
        tuple(excluded),
        sources,
        float(np.mean([s.median_abs for s in sources])) if sources else float("nan"),
        (sum(bool(p.fits) for p in measured), len(measured)),
        (sum(not p.fits for p in failed), len(failed)),
    )


def _predict(rows: list[Row]) -> list[Prediction]:
    books = load_books()
    groups: dict[object, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        groups[(row.shape, row.adapters)].append(number)
    result: list[Prediction | None] = [None] * len(rows)
    for members in groups.values():
        batch = [rows[i] for i in members]
        layouts = lower([row.layout for row in batch], books)
        usable = np.asarray([_usable(row.gpu) for row in batch])
        hardware = Hardware(usable_bytes=usable, gpus_per_node=np.asarray([8.0]), host_bytes=np.asarray([np.nan]))
        found = evaluate(batch[0].shape, layouts, hardware, batch[0].adapters).memory
        for position, number in enumerate(members):
            result[number] = _compare(rows[number], found, position)
    return [p for p in result if p is not None]


def _usable(gpu: str) -> float:
    try:
        spec = load_gpu(gpu).spec
    except DscalcError:
        return float("nan")
    return float("nan") if spec.usable_bytes is None else spec.usable_bytes


def _compare(row: Row, found: Memory, i: int) -> Prediction:
    at_peak = {"allocated": found.allocated_bytes, "reserved": found.reserved_bytes, "device": found.device_bytes}
    first = found.stages[0]
    at_first = {"allocated": first.allocated_bytes, "reserved": first.reserved_bytes, "device": first.device_bytes}
    quantities = at_first if row.meaning.rank == "first" else at_peak
    predicted = float(quantities[row.meaning.quantity][i])
    usable = float(found.usable_bytes[i])
    return Prediction(
        row=row,
        predicted_bytes=predicted,
        low_bytes=predicted * float(found.low_bytes[i] / found.total_bytes[i]),
        high_bytes=predicted * float(found.high_bytes[i] / found.total_bytes[i]),
        error_fraction=None if row.measured_bytes is None else predicted / row.measured_bytes - 1.0,
        fits=None if np.isnan(usable) else bool(found.total_bytes[i] <= usable),
        healthy=not row.quality or row.quality in HEALTHY,
    )
