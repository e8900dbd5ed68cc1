"""The error table of ``dscalc validate`` on a screen and as files."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dscalc.report.export import to_csv, to_json, to_markdown
from dscalc.report.screen import Screen
from dscalc.units import format_bytes

if TYPE_CHECKING:
    from dscalc.answers.validate import ValidateAnswer

WORST = 8
HEADINGS = ("source", "rows", "median", "90 %", "largest", "bias", "compared")


def render(found: ValidateAnswer, form: str, *, colour: bool | None = None, quiet: bool = False) -> str:
    """The answer in the form asked for."""
    if form == "json":
        return to_json(found.to_json())
    if form == "csv":
        rows = found.rows()
        return to_csv(rows, list(rows[0]) if rows else ["id"])
    if quiet and not found.found.sources:
        return f"{_none(found)}\n"
    if quiet:
        return f"average over sources of the median error {_percent(found.found.average_median)}\n"
    if form == "markdown" and not found.found.predictions:
        return f"{_none(found)}\n\n" + to_markdown(_reasons(found), ("rows", "reason"), right=(0,))
    if form == "markdown":
        return (
            to_markdown(_sources(found), HEADINGS, right=range(1, 6)) + "\n" + "".join(f"{t}\n" for t in _notes(found))
        )
    out = Screen(colour=colour)
    out.say("Peak memory: predicted against published; error is |predicted / measured - 1| of healthy rows")
    if found.found.sources:
        out.head("By source", "each source weighs the same")
        out.table([(h, "right" if 0 < i < 6 else "left") for i, h in enumerate(HEADINGS)], _sources(found))
    out.add([])
    for text in _notes(found):
        out.say(text)
    worst = found.worst(WORST)
    if worst:
        out.head("Largest errors", "--format csv lists every row")
        numbers = [(name, "right") for name in ("measured", "predicted", "error")]
        columns = [("row", "left"), *numbers, ("layout", "fill")]
        out.table(columns, [_worst(row) for row in worst])
    if found.found.excluded:
        out.head("Left out")
        out.table([("rows", "right"), ("reason", "fill")], _reasons(found))
    for warning in found.warnings():
        out.add([])
        out.say(f"! {warning.message}. Next: {warning.next_step}.", hang=2)
    return out.text()


def _none(found: ValidateAnswer) -> str:
    """Why there is no error to show."""
    if found.found.predictions:
        return "No healthy row has a measurement, so there is no error to show."
    left = len(found.found.excluded)
    return f"No row could be predicted: {left} left out." if left else "No row could be predicted: there is none."


def _reasons(found: ValidateAnswer) -> list[tuple[str, str]]:
    return [(str(n), reason) for reason, n in Counter(e.reason for e in found.found.excluded).most_common()]


def _percent(value: float, *, signed: bool = False) -> str:
    return "-" if value != value else f"{value:+.1%}" if signed else f"{value:.1%}"


def _sources(found: ValidateAnswer) -> list[tuple[str, ...]]:
    quantity = {p.row.source: p.row.meaning.quantity for p in found.found.predictions}
    return [
        (
            s.source,
            str(s.n),
            _percent(s.median_abs),
            _percent(s.p90_abs),
            _percent(s.max_abs),
            _percent(s.bias, signed=True),
            quantity.get(s.source, ""),
        )
        for s in found.found.sources
    ]


def _notes(found: ValidateAnswer) -> list[str]:
    result = found.found
    average = f"Average over sources of the median error: {_percent(result.average_median)}."
    notes = [average if result.sources else _none(found)]
    for what, should, (right, of) in (
        ("measured", "to fit", result.fits_right),
        ("out-of-memory", "not to fit", result.oom_right),
    ):
        if of:
            notes.append(f"{right} of {of} {what} rows are predicted {should}.")
    return notes


def _worst(row: Mapping[str, Any]) -> tuple[str, ...]:
    error = _percent(row["error_fraction"], signed=True)
    return row["id"], format_bytes(row["measured"]), format_bytes(row["predicted"]), error, row["layout"]
