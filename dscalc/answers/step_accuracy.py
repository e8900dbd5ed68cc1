"""How far predicted steps are off on sources outside the fit, how often bars hold, where constants are from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from dscalc.frozen import dataclass
from dscalc.records import Array
from dscalc.specs.pace import shipped
from dscalc.validation.fit_bars import BarFit, fit_bars, left_out
from dscalc.validation.step import POOLED_UNDER, StepPrediction, StepValidation, validate_step

NARAYANAN_TABLE_1 = 10  # rows; what follows in that source are other tables
EVERYBODY = (  # sets that other tools are compared on
    ("Korthikanti et al. 2022, table 5", "korthikanti2022", 0),
    ("Narayanan et al. 2021, table 1", "narayanan2021", NARAYANAN_TABLE_1),
    ("vTrain, one node", "vtrain-single", 0),
)


class Errors(NamedTuple):
    """Errors of some rows."""

    median: float
    p90: float
    bias: float


class GroupAccuracy(NamedTuple):
    """Errors of one group of sources: with it in the fit, without it, and without it but with its stack's numbers."""

    name: str
    rows: int
    in_sample: Errors
    left_out: Errors
    known_stack: Errors
    held: float  # share of left-out rows within error bars that never saw the group


class SetAccuracy(NamedTuple):
    """Mean absolute error of a set that everybody is compared on, with the group in the fit and without."""

    name: str
    rows: int
    in_sample: float
    left_out: float  # of its healthy rows


class FittedNumber(NamedTuple):
    """One fitted number: its place in ``pace.toml``, relative standard error, relative move when a source leaves."""

    path: str
    value: float
    unit: str
    kind: str
    stderr: float | None
    spread: float | None
    rows: str


@dataclass(frozen=True, slots=True)
class StepAccuracy:
    """What the page on step time shows."""

    groups: tuple[GroupAccuracy, ...]
    all: GroupAccuracy
    averages: tuple[float, float, float]  # mean of group medians: in sample, left out, stack known
    sets: tuple[SetAccuracy, ...]
    numbers: tuple[FittedNumber, ...]
    half_width: float  # median over rows
    half_width_ratio: float  # to the median error


def _errors(logs: Array) -> Errors:
    error = np.expm1(logs)
    return Errors(float(np.median(np.abs(error))), float(np.quantile(np.abs(error), 0.9)), float(np.median(error)))


def _average(groups: Array, logs: Array) -> float:
    """Mean over groups of the median error; small groups count as one."""
    error = np.abs(np.expm1(logs))
    counts = {g: int((groups == g).sum()) for g in sorted(set(groups))}
    medians = [float(np.median(error[groups == g])) for g, n in counts.items() if n >= POOLED_UNDER]
    pooled = np.isin(groups, [g for g, n in counts.items() if n < POOLED_UNDER])
    return float(np.mean([*medians, *([float(np.median(error[pooled]))] if pooled.any() else [])]))


def fitted_numbers(data: Mapping[str, Any] | None = None, path: str = "") -> Iterator[FittedNumber]:
    """Every number of ``pace.toml`` that was fitted, in its order."""
    for name, value in (shipped() if data is None else data).items():
        if isinstance(value, dict) and "kind" in value:
            if value["kind"] == "fitted":
                place = (f"{path}{name}", value["value"], value["unit"], value["kind"])
                yield FittedNumber(
                    *place, value.get("stderr"), value.get("spread"), str(value.get("rows", value["source"]))
                )
        elif isinstance(value, dict):
            yield from fitted_numbers(value, f"{path}{name}.")


def step_accuracy(validation: StepValidation | None = None, bars: BarFit | None = None) -> StepAccuracy:
    """Accuracy on rows that ship.

    Args:
        validation: what ``validate_step`` found, where it is known.
        bars: what ``fit_bars`` found, where it is known.

    Returns:
        The tables of the page on step time.
    """
    found, bars = validation or validate_step(), bars or fit_bars()
    known = left_out()
    rows = [p for p in found.predictions if p.row.row.id in known]
    measured = np.log([p.row.measured_s for p in rows])
    here = np.log([p.predicted_s for p in rows]) - measured
    left = np.log([known[p.row.row.id].left_out_s for p in rows]) - measured
    stack = np.log([known[p.row.row.id].known_stack_s for p in rows]) - measured
    within = dict(zip((r.row.id for r in bars.rows), bars.inside(), strict=True))
    held = np.asarray([within[p.row.row.id] for p in rows])
    groups = np.asarray([p.row.row.group for p in rows])

    def one(name: str, mine: Any) -> GroupAccuracy:
        errors = (_errors(here[mine]), _errors(left[mine]), _errors(stack[mine]))
        return GroupAccuracy(name, len(here[mine]), *errors, float(np.mean(held[mine])))

    half = float(np.median(bars.half_width))
    return StepAccuracy(
        groups=tuple(one(g, groups == g) for g in sorted(set(groups))),
        all=one("all", np.ones(len(rows), dtype=bool)),
        averages=(_average(groups, here), _average(groups, left), _average(groups, stack)),
        sets=tuple(_set(title, _of(found, source, most), known) for title, source, most in EVERYBODY),
        numbers=tuple(fitted_numbers()),
        half_width=half,
        half_width_ratio=half / float(np.median(np.abs(bars.error))),
    )


def _of(found: StepValidation, source: str, most: int) -> list[StepPrediction]:
    rows = [p for p in found.predictions if p.row.row.source == source]
    return sorted(rows, key=lambda p: p.row.row.id)[: most or None]


def _set(title: str, rows: list[StepPrediction], known: Mapping[str, Any]) -> SetAccuracy:
    left = [known[p.row.row.id].left_out_s / p.row.measured_s - 1.0 for p in rows if p.row.row.id in known]
    return SetAccuracy(
        title, len(rows), float(np.mean([abs(p.error_fraction) for p in rows])), float(np.mean(np.abs(left)))
    )
