"""The error tables of ``dscalc validate --metric step`` on a screen and as files."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from dscalc.report.export import to_csv, to_json, to_markdown
from dscalc.report.screen import Screen
from dscalc.units import format_time

if TYPE_CHECKING:
    from dscalc.answers.validate_step import StepValidateAnswer

WORST = 8
TITLES = (("source", "source"), ("gpu", "GPU"), ("stack", "stack"), ("layout", "layout"))
CHOICES = ("choosing", "groups", "layouts", "rank correlation", "regret")
HEADINGS = ("rows", "median", "90 %", "bias", "all rows", "median")


def render(found: StepValidateAnswer, form: str, *, colour: bool | None = None, quiet: bool = False) -> str:
    """The answer in the form asked for."""
    if form == "json":
        return to_json(found.to_json())
    if form == "csv":
        rows = found.rows()
        return to_csv(rows, list(rows[0]) if rows else ["id"])
    if quiet:
        return f"{_average(found)}\n"
    if form == "markdown" and not found.found.predictions:
        return f"{_average(found)}\n\n" + to_markdown(_reasons(found), ("rows", "reason"), right=(0,))
    if form == "markdown":
        parts = [to_markdown(_rows(found, by), (title, *HEADINGS), right=range(1, 7)) for by, title in TITLES]
        if found.choices:
            parts.append(to_markdown(_choices(found), CHOICES, right=range(1, 5)))
        return "\n".join([*parts, _average(found)]) + "\n"
    out = Screen(colour=colour)
    out.say("Step time: predicted against published; error is |predicted / measured - 1|, first of healthy rows")
    for by, title in TITLES if found.found.predictions else ():
        out.head(f"By {title}")
        out.table([(h, "right" if i else "left") for i, h in enumerate((title, *HEADINGS))], _rows(found, by))
    out.add([])
    out.say(_average(found))
    if found.choices:
        out.head("Choosing a layout", "same model, GPUs, batch; regret: what the layout predicted best costs")
        out.table([(h, "right" if i else "left") for i, h in enumerate(CHOICES)], _choices(found))
    worst = found.worst(WORST)
    if worst:
        out.head("Largest errors of healthy rows", "--format csv lists every row")
        columns = [
            ("row", "left"),
            ("measured", "right"),
            ("predicted", "right"),
            ("error", "right"),
            ("layout", "fill"),
        ]
        columns.append(("largest terms", "fill"))
        out.table(
            columns,
            [
                (
                    r["id"],
                    format_time(r["measured"]),
                    format_time(r["predicted"]),
                    _percent(r["error_fraction"], signed=True),
                    r["layout"],
                    r["terms"],
                )
                for r in worst
            ],
        )
    if found.found.excluded:
        out.head("Left out")
        out.table([("rows", "right"), ("reason", "fill")], _reasons(found))
    for warning in found.warnings():
        out.add([])
        out.say(f"! {warning.message}. Next: {warning.next_step}.", hang=2)
    return out.text()


def _choices(found: StepValidateAnswer) -> list[tuple[str, ...]]:
    rows = [
        (c.source, str(c.groups), str(c.layouts), f"{c.spearman:.2f}", _percent(c.regret_fraction))
        for c in found.choices
    ]
    count = len(found.choices)
    mean = sum(c.spearman for c in found.choices) / count, sum(c.regret_fraction for c in found.choices) / count
    return [*rows, ("mean of sources", "", "", f"{mean[0]:.2f}", _percent(mean[1]))]


def _reasons(found: StepValidateAnswer) -> list[tuple[str, str]]:
    return [(str(n), reason) for reason, n in Counter(e.reason for e in found.found.excluded).most_common()]


def _percent(value: float, *, signed: bool = False) -> str:
    return "-" if value != value else f"{value:+.1%}" if signed else f"{value:.1%}"


def _rows(found: StepValidateAnswer, by: str) -> list[tuple[str, ...]]:
    healthy = {g.name: g for g in found.groups(by)}
    rows: list[tuple[str, ...]] = []
    for g in found.groups(by, healthy=False):
        h = healthy.get(g.name)
        first = (
            (str(h.n), _percent(h.median_abs), _percent(h.p90_abs), _percent(h.bias, signed=True)) if h else ("",) * 4
        )
        rows.append((g.name, *first, str(g.n), _percent(g.median_abs)))
    return rows


def _average(found: StepValidateAnswer) -> str:
    result = found.found
    if not result.predictions:
        left = len(result.excluded)
        return f"No row could be predicted: {left} left out." if left else "No row could be predicted: there is none."
    if not any(p.healthy for p in result.predictions):
        return "No row is healthy, so there is no error to show."
    return (
        f"Healthy rows: median error {_percent(result.median)}, 90 % under {_percent(result.p90)}, "
        f"average over groups of the median {_percent(result.average_median)}."
    )
