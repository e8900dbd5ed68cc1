"""``dscalc validate``: the model against published measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dscalc.answers.envelope import Warning, envelope
from dscalc.errors import InputError
from dscalc.frozen import dataclass
from dscalc.validation.memory import Prediction, Validation, validate_memory

ENOUGH = 0.95  # of measured rows should be predicted to fit, of failed ones not to


@dataclass(frozen=True, slots=True)
class ValidateAnswer:
    """Predictions beside measurements, errors by source, and what was left out with the reason."""

    metric: str
    data: str | None
    found: Validation

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
        for what, (right, of) in (("measured", self.found.fits_right), ("out-of-memory", self.found.oom_right)):
            if of and right < ENOUGH * of:
                notes.append(
                    Warning(
                        "fits_disagrees",
                        f"{of - right} of {of} {what} rows are predicted on the other side of the limit",
                        "look at their rows with --format csv; memory near the limit depends on allocator and driver",
                    )
                )
        return notes

    def rows(self) -> list[dict[str, Any]]:
        """One row a prediction, base units."""
        return [_row(self.metric, p) for p in self.found.predictions]

    def worst(self, count: int) -> list[dict[str, Any]]:
        """The healthy rows furthest off, with their layout in words."""
        measured = [p for p in self.found.predictions if p.healthy and p.error_fraction is not None]
        measured.sort(key=lambda p: -abs(p.error_fraction or 0.0))
        return [_row(self.metric, p) | {"layout": _words(p)} for p in measured[:count]]

    def to_json(self) -> dict[str, Any]:
        """The answer with the stable keys of the interface."""
        return envelope(
            "validate",
            {"metric": self.metric, "data": self.data},
            [],
            self.warnings(),
            {
                "rows": self.rows(),
                "excluded": [{"id": e.id, "reason": e.reason} for e in self.found.excluded],
                "summary": [
                    {
                        "source": s.source,
                        "metric": self.metric,
                        "n": s.n,
                        "median_abs_error_fraction": s.median_abs,
                        "p90_abs_error_fraction": s.p90_abs,
                        "max_abs_error_fraction": s.max_abs,
                        "bias_fraction": s.bias,
                    }
                    for s in self.found.sources
                ],
                "average_median_abs_error_fraction": self.found.average_median,
                "fits": {
                    "measured_predicted_to_fit": self.found.fits_right[0],
                    "measured": self.found.fits_right[1],
                    "out_of_memory_predicted_not_to_fit": self.found.oom_right[0],
                    "out_of_memory": self.found.oom_right[1],
                },
            },
        )


def _words(p: Prediction) -> str:
    layout = p.row.layout
    return f"tp {layout.tp}, pp {layout.pp}, dp {layout.dp}, ZeRO-{layout.zero}, micro-batch {layout.micro_batch}"


def _row(metric: str, p: Prediction) -> dict[str, Any]:
    return {
        "id": p.row.id,
        "source_key": p.row.source,
        "split_group": p.row.group,
        "metric": metric,
        "measured": p.row.measured_bytes,
        "predicted": p.predicted_bytes,
        "error_fraction": p.error_fraction,
        "low": p.low_bytes,
        "high": p.high_bytes,
        "healthy": p.healthy,
        "fits": p.fits,
        "quantity": p.row.meaning.quantity,
        "stack": p.row.layout.stack,
    }


def validate(metric: str = "memory", data: str | None = None) -> ValidateAnswer:
    """Compare the model with published measurements.

    Args:
        metric: ``memory``; step times have ``dscalc.answers.validate_step``.
        data: a CSV file with the columns of the shipped table; None for the shipped rows.

    Returns:
        The answer.

    Raises:
        InputError: an unknown metric, or a file that cannot be read.
    """
    if metric != "memory":
        raise InputError(f"{metric!r} is not memory; step times have validate_steps", where="--metric")
    return ValidateAnswer(metric, data, validate_memory(None if data is None else Path(data)))
