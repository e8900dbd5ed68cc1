"""Predicted against published step times: errors by source, GPU, stack and kind of layout."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from dscalc.cost.bar import NAMES, Bar, bar
from dscalc.cost.conventions import model_flop
from dscalc.cost.exchange import Exchange, MicroBatchExchange, StepExchange, exchange
from dscalc.cost.step import Step, timed_step
from dscalc.frozen import dataclass
from dscalc.records import Array, Engine, Layouts, ModelShape, Network, PaceConstants, PaceTable
from dscalc.specs.layout_spec import lower
from dscalc.specs.network import compose_network, load_interconnect
from dscalc.specs.pace import engine, error_bars, pace_constants, pace_table
from dscalc.specs.stack import load_books
from dscalc.validation.legal import broken_rules
from dscalc.validation.step_rows import LEAST_MFU, UNHEALTHY, Domain, StepRow, read_step_rows
from dscalc.validation.table import Excluded

HEALTHY_QUALITY = frozenset("AB")
SPARE_BLOCKS = 4  # embedding, norm, head and cast, which some frameworks place on stages as if they were layers
POOLED_UNDER = 10  # rows of a group; smaller groups count as one


@dataclass(frozen=True, slots=True)
class StepPrediction:
    """One row beside its prediction; ``error_fraction`` is predicted / measured - 1."""

    row: StepRow
    predicted_s: float
    lower_s: float
    upper_s: float
    error_fraction: float
    mfu: float
    healthy: bool
    half_width: float  # of the 80 % bar, of the logarithm
    terms: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class GroupErrors:
    """Errors of rows that share something."""

    by: str  # source | split_group | gpu | stack | layout
    name: str
    healthy: bool
    n: int
    median_abs: float
    p90_abs: float
    max_abs: float
    bias: float


@dataclass(frozen=True, slots=True)
class StepValidation:
    """Every prediction, what was left out and why, and the errors by group."""

    predictions: tuple[StepPrediction, ...]
    excluded: tuple[Excluded, ...]
    groups: tuple[GroupErrors, ...]
    average_median: float  # over split groups of healthy rows, those under 10 rows pooled
    median: float  # over all healthy rows
    p90: float


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Rows of one model, lowered; ``numbers`` are their places in the list of rows."""

    numbers: tuple[int, ...]
    shape: ModelShape
    layouts: Layouts
    engine: Engine
    sent: Exchange

    def step(self, table: PaceTable | None = None, constants: PaceConstants | None = None) -> Step:
        """The step of every row."""
        return timed_step(
            self.shape, self.layouts, self.engine, table or pace_table(), constants or pace_constants(), self.sent
        )


def _joined(kind: type[Any], parts: Sequence[Any], sizes: Sequence[int]) -> Any:
    """Records with arrays, one behind the other."""
    return kind(
        **{
            field.name: np.concatenate(
                [np.broadcast_to(getattr(p, field.name), (n,)) for p, n in zip(parts, sizes, strict=True)]
            )
            for field in fields(kind)
        }
    )


def network_of(row: StepRow, known: dict[tuple[str, Domain], Network]) -> Network:
    """The network of a row's GPUs."""
    key = (row.gpu.id, row.domain)
    if key not in known:
        domain = row.domain
        joined = load_interconnect(domain.interconnect).spec
        known[key] = compose_network(row.gpu, domain.gpus, joined, nics_per_node=domain.nics).network
    return known[key]


def batches(rows: Sequence[StepRow]) -> list[Batch]:
    """Rows lowered, one batch a model."""
    books = load_books()
    networks: dict[tuple[str, Domain], Network] = {}
    by_shape: dict[ModelShape, dict[tuple[str, Domain], list[int]]] = defaultdict(lambda: defaultdict(list))
    for number, row in enumerate(rows):
        by_shape[row.row.shape][row.gpu.id, row.domain].append(number)
    found = []
    for shape, places in by_shape.items():
        sent = []
        for members in places.values():
            part = lower([rows[i].row.layout for i in members], books)
            sent.append(exchange(shape, part, network_of(rows[members[0]], networks)))
        sizes = [len(members) for members in places.values()]
        numbers = [i for members in places.values() for i in members]
        engines = [engine(rows[i].gpu, rows[i].precision)[0] for i in numbers]
        found.append(
            Batch(
                tuple(numbers),
                shape,
                lower([rows[i].row.layout for i in numbers], books),
                _joined(Engine, engines, [1] * len(engines)),
                Exchange(
                    _joined(MicroBatchExchange, [s.micro_batch for s in sent], sizes),
                    _joined(StepExchange, [s.step for s in sent], sizes),
                ),
            )
        )
    return found


def validate_step(path: Path | None = None) -> StepValidation:
    """Predict every row that can be predicted.

    Args:
        path: a CSV file with the columns of the shipped table; None for the shipped rows.

    Returns:
        The validation.

    Raises:
        InputError: the file cannot be read or lacks a column.
    """
    read, excluded = read_step_rows(path)
    broken = broken_rules([row.row for row in read], SPARE_BLOCKS)
    rows = [row for row, reason in zip(read, broken, strict=True) if not reason]
    excluded += [Excluded(row.row.id, reason) for row, reason in zip(read, broken, strict=True) if reason]
    predictions: list[StepPrediction | None] = [None] * len(rows)
    for batch in batches(rows):
        step = batch.step()
        bars = batch_bar(batch, rows, step)
        flop = model_flop("palm", batch.shape, batch.layouts)
        rate = batch.engine.nominal_flop_per_s
        for at, number in enumerate(batch.numbers):
            predictions[number] = _compare(rows[number], step, at, float(flop[at] / rate[at]), bars)
    whole = [p for p in predictions if p is not None]
    healthy = [p for p in whole if p.healthy]
    absolute = np.abs([p.error_fraction for p in healthy]) if healthy else np.array([np.nan])
    groups = tuple(_groups(whole))
    return StepValidation(
        tuple(whole),
        tuple(excluded),
        groups,
        _average(healthy),
        float(np.median(absolute)),
        float(np.quantile(absolute, 0.9)),
    )


def is_healthy(row: StepRow, mfu: float) -> bool:
    """Whether people run this on purpose: pretraining, layout known, no sign of a fault, MFU of at least a fifth."""
    return (
        row.task in ("pretrain", "")
        and row.row.quality in HEALTHY_QUALITY
        and not any(flag.startswith(bad) for flag in row.row.flags for bad in UNHEALTHY)
        and mfu >= LEAST_MFU
    )


def reached_mfu(rows: Sequence[StepRow], lowered: Sequence[Batch]) -> Array:
    """MFU of each row: as reported, else palm FLOP over the dense peak of its precision."""
    found = np.zeros(len(rows))
    for batch in lowered:
        flop = model_flop("palm", batch.shape, batch.layouts) / batch.engine.nominal_flop_per_s
        for at, number in enumerate(batch.numbers):
            stated = rows[number].mfu
            found[number] = stated if stated is not None else float(flop[at]) / rows[number].measured_s
    return found


def batch_bar(batch: Batch, rows: Sequence[StepRow], step: Step) -> Bar:
    """Error bars of a batch of rows."""
    bars = [error_bars(rows[i].gpu.id, NAMES) for i in batch.numbers]
    new = np.asarray([b.unmeasured_gpu for b in bars])
    return bar(step, batch.layouts, (batch.engine.linear_gain > 1.0) * 1.0, replace(bars[0], unmeasured_gpu=new))


def _compare(row: StepRow, step: Step, at: int, ideal_s: float, bars: Bar) -> StepPrediction:
    predicted = float(step.step_time_s[at])
    reached = row.mfu if row.mfu is not None else ideal_s / row.measured_s
    return StepPrediction(
        row=row,
        predicted_s=predicted,
        lower_s=float(step.lower_s[at]),
        upper_s=float(step.upper_s[at]),
        error_fraction=predicted / row.measured_s - 1.0,
        mfu=reached,
        healthy=is_healthy(row, reached),
        half_width=float(bars.half_width_fraction[at]),
        terms=tuple((leaf.spec.path, float(leaf.exposed_s[at])) for leaf in step.terms),
    )


BY: tuple[tuple[str, Callable[[StepPrediction], str]], ...] = (
    ("source", lambda p: p.row.row.source),
    ("split_group", lambda p: p.row.row.group),
    ("gpu", lambda p: p.row.gpu.id),
    ("stack", lambda p: p.row.row.layout.stack),
    ("layout", lambda p: p.row.kind),
)


def _groups(predictions: Sequence[StepPrediction]) -> Iterable[GroupErrors]:
    for by, name_of in BY:
        for healthy in (True, False):
            found: dict[str, list[float]] = defaultdict(list)
            for p in predictions:
                if p.healthy or not healthy:
                    found[name_of(p)].append(p.error_fraction)
            for name, errors in sorted(found.items()):
                absolute = np.abs(errors)
                yield GroupErrors(
                    by,
                    name,
                    healthy,
                    len(errors),
                    float(np.median(absolute)),
                    float(np.quantile(absolute, 0.9)),
                    float(absolute.max()),
                    float(np.median(errors)),
                )


def _average(healthy: Sequence[StepPrediction]) -> float:
    """Mean over groups of the median error; groups of fewer than ten rows count as one."""
    found: dict[str, list[float]] = defaultdict(list)
    for p in healthy:
        found[p.row.row.group].append(abs(p.error_fraction))
    pooled = [e for errors in found.values() if len(errors) < POOLED_UNDER for e in errors]
    medians = [float(np.median(errors)) for errors in found.values() if len(errors) >= POOLED_UNDER]
    medians += [float(np.median(pooled))] if pooled else []
    return float(np.mean(medians)) if medians else float("nan")
