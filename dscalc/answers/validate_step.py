"""``dscalc validate --metric step``: predicted against published step times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dscalc.answers.envelope import Warning, envelope
from dscalc.frozen import dataclass
from dscalc.validation.choosing import Choice, average, both_ways
from dscalc.validation.diagnose import Diagnosis, diagnoses, with_floor
from dscalc.validation.step import GroupErrors, StepPrediction, StepValidation, batches, validate_step

WANTED = 0.08  # mean over groups of the median error of healthy rows
TERMS = 4  # largest terms of a row, in words


@dataclass(frozen=True, slots=True)
class StepValidateAnswer:
    """Predictions beside measurements, errors by source, GPU, stack and layout, what was left out with the reason."""

    data: str | None
    found: StepValidation
    diagnoses: tuple[Diagnosis, ...]  # known faults that rows look like
    choices: tuple[Choice, ...]  # how well layouts of one problem are chosen

    def groups(self, by: str, healthy: bool = True) -> list[GroupErrors]:
        """Errors by one property of the rows."""
        return [g for g in self.found.groups if g.by == by and g.healthy == healthy]

    def warnings(self) -> list[Warning]:
        """What a reader should know before trusting the table."""
        notes = []
        if not self.found.predictions:
            notes.append(
                Warning(
                    "no_rows",
                    "no row could be predicted",
                    "fill or correct the columns that the reasons name (JSON: `excluded`)",
                )
            )
        if self.found.average_median > WANTED:
            notes.append(
                Warning(
                    "inaccurate",
                    f"the average over groups of the median error is {self.found.average_median:.1%}",
                    "look at the largest errors and their terms; a stack of its own may need its own numbers",
                )
            )
        notes += [Warning(d.code, f"{d.message} ({_some(d.ids)})", d.next_step) for d in self.diagnoses]
        return notes

    def choosing(self) -> tuple[float, float]:
        """Mean over sources of rank correlation and regret."""
        return average(self.choices)

    def rows(self) -> list[dict[str, Any]]:
        """One row a prediction, base units."""
        return [_row(p) for p in self.found.predictions]

    def worst(self, count: int) -> list[dict[str, Any]]:
        """The healthy rows furthest off, with layout and largest terms in words."""
        healthy = sorted((p for p in self.found.predictions if p.healthy), key=lambda p: -abs(p.error_fraction))
        return [_row(p) | {"layout": _layout(p), "terms": _terms(p)} for p in healthy[:count]]

    def to_json(self) -> dict[str, Any]:
        """The answer with the stable keys of the interface."""
        found = self.found
        return envelope(
            "validate",
            {"metric": "step", "data": self.data},
            [],
            self.warnings(),
            {
                "rows": self.rows(),
                "excluded": [{"id": e.id, "reason": e.reason} for e in found.excluded],
                "summary": [
                    {
                        "by": g.by,
                        "source": g.name,
                        "metric": "step",
                        "healthy": g.healthy,
                        "n": g.n,
                        "median_abs_error_fraction": g.median_abs,
                        "p90_abs_error_fraction": g.p90_abs,
                        "max_abs_error_fraction": g.max_abs,
                        "bias_fraction": g.bias,
                    }
                    for g in found.groups
                ],
                "diagnoses": [
                    {"code": d.code, "ids": d.ids, "message": d.message, "next_step": d.next_step}
                    for d in self.diagnoses
                ],
                "choices": [
                    {
                        "source": c.source,
                        "faults": c.faults,
                        "experts": c.experts,
                        "groups": c.groups,
                        "layouts": c.layouts,
                        "spearman": c.spearman,
                        "regret_fraction": c.regret_fraction,
                    }
                    for c in self.choices
                ],
                "average_median_abs_error_fraction": found.average_median,
                "median_abs_error_fraction": found.median,
                "p90_abs_error_fraction": found.p90,
            },
        )


def _some(ids: Sequence[str], shown: int = 3) -> str:
    return ", ".join(ids[:shown]) + (", ..." if len(ids) > shown else "")


def _layout(p: StepPrediction) -> str:
    layout = p.row.row.layout
    degrees = [
        f"{name} {getattr(layout, name)}" for name in ("tp", "pp", "cp", "ep", "dp") if getattr(layout, name) > 1
    ]
    return ", ".join([*degrees, f"ZeRO-{layout.zero}", f"micro-batch {layout.micro_batch}", layout.stack])


def _terms(p: StepPrediction) -> str:
    largest = sorted(p.terms, key=lambda t: -t[1])[:TERMS]
    return ", ".join(f"{path.partition('/')[2]} {seconds / p.predicted_s:.0%}" for path, seconds in largest)


def _row(p: StepPrediction) -> dict[str, Any]:
    return {
        "id": p.row.row.id,
        "source_key": p.row.row.source,
        "split_group": p.row.row.group,
        "metric": "step",
        "measured": p.row.measured_s,
        "predicted": p.predicted_s,
        "error_fraction": p.error_fraction,
        "low": p.predicted_s * math.exp(-p.half_width),
        "high": p.predicted_s * math.exp(p.half_width),
        "lower": p.lower_s,
        "upper": p.upper_s,
        "healthy": p.healthy,
        "mfu": p.mfu,
        "gpu": p.row.gpu.id,
        "stack": p.row.row.layout.stack,
        "layout": p.row.kind,
    }


def validate_steps(data: str | None = None) -> StepValidateAnswer:
    """Compare predicted with published step times.

    Args:
        data: a CSV file with the columns of the shipped table; None for the shipped rows.

    Returns:
        The answer.

    Raises:
        InputError: a file that cannot be read.
    """
    found = validate_step(None if data is None else Path(data))
    rows = [p.row for p in found.predictions]
    floored = with_floor(batches(rows), len(rows))
    seen = diagnoses(found.predictions, floored)
    return StepValidateAnswer(data, found, seen, tuple(both_ways(found.predictions, floored)))
