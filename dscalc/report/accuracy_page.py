"""Writes the tables of the pages on step time: ``python -m dscalc.report.accuracy_page [--check]``.

Tables stand between ``<!-- begin NAME -->`` and ``<!-- end NAME -->`` in ``docs/explanation/step-time.md``; the page of
fitted numbers is written whole.
"""

from __future__ import annotations

import sys
from pathlib import Path

from dscalc.answers.step_accuracy import Errors, StepAccuracy, step_accuracy
from dscalc.answers.validate_step import StepValidateAnswer, validate_steps
from dscalc.report.export import to_markdown
from dscalc.report.validate_step import render

PAGE = "docs/explanation/step-time.md"
NUMBERS = "docs/reference/fitted-numbers.md"
INTRO = """# Fitted numbers of the step

Written by `python -m dscalc.report.accuracy_page`; edit `dscalc/specs/pace.toml` by its fit and not this page.

Every number was fitted to published step times and stands in `dscalc/specs/pace.toml` under its path. Standard errors
are relative; *moves* is how far the number goes when a whole source group leaves the fit. Rows are those in which the
number is felt: of each source group, runs whose time would change by a hundredth of the number's own change or more.
Priors stand in `dscalc/specs/fit.toml`. Widths of error bars come from rows predicted without their group.

"""


def _percent(value: float | None, signed: bool = False) -> str:
    return "" if value is None else f"{value:+.1%}" if signed else f"{value:.1%}"


def _two(errors: Errors) -> str:
    return f"{errors.median:.1%} / {errors.p90:.1%}"


def cross_validation(found: StepAccuracy) -> str:
    """Errors by group, in sample and left out, and how often bars hold."""
    rows = [
        (
            g.name,
            str(g.rows),
            _two(g.in_sample),
            _two(g.left_out),
            _percent(g.left_out.bias, signed=True),
            _two(g.known_stack),
            f"{g.held:.0%}",
        )
        for g in (*found.groups, found.all)
    ]
    here, left, known = found.averages
    rows.append(("mean of group medians", "", f"{here:.1%}", f"{left:.1%}", "", f"{known:.1%}", ""))
    header = ("group", "rows", "in sample", "left out", "bias", "stack known", "within bars")
    return to_markdown(rows, header, right=range(1, 7))


def bars(found: StepAccuracy) -> str:
    """How often bars hold, in a sentence."""
    return (
        f"Bars of 80 % hold {found.all.held:.0%} of left-out healthy rows. Their median half-width is "
        f"{found.half_width:.1%}, {found.half_width_ratio:.1f} times the median error.\n"
    )


def sets(found: StepAccuracy) -> str:
    """Sets that everybody is compared on."""
    rows = [(s.name, str(s.rows), _percent(s.in_sample), _percent(s.left_out)) for s in found.sets]
    return to_markdown(rows, ("set", "rows", "mean error", "left out"), right=(1, 2, 3))


def numbers(found: StepAccuracy) -> str:
    """The page of fitted numbers."""
    rows = [
        (
            f"`{n.path}`",
            f"{n.value:.4g}",
            n.unit,
            n.kind,
            "" if n.stderr is None else f"{n.stderr:.1%}",
            "" if n.spread is None else f"{n.spread:.1%}",
            n.rows,
        )
        for n in found.numbers
    ]
    header = ("number", "value", "unit", "kind", "standard error", "moves", "rows")
    return INTRO + to_markdown(rows, header, right=(1, 4, 5))


def pages(root: Path, accuracy: StepAccuracy, answer: StepValidateAnswer) -> dict[Path, str]:
    """What each page should hold."""
    text = (root / PAGE).read_text(encoding="utf-8")
    blocks = {
        "cross-validation": cross_validation(accuracy),
        "bars": bars(accuracy),
        "sets": sets(accuracy),
        "tables": render(answer, "markdown"),
    }
    for name, block in blocks.items():
        before, start, rest = text.partition(f"<!-- begin {name} -->\n")
        _, end, after = rest.partition(f"<!-- end {name} -->")
        text = f"{before}{start}\n{block.strip()}\n\n{end}{after}"
    return {root / PAGE: text, root / NUMBERS: numbers(accuracy)}


def write(arguments: list[str]) -> int:
    """Write the pages, or with ``--check`` say which are out of date."""
    answer = validate_steps()
    late = 0
    for path, text in pages(Path(), step_accuracy(answer.found), answer).items():
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            sys.stderr.write(f"{path} is out of date; run python -m dscalc.report.accuracy_page\n")
            late = 1
    return late


if __name__ == "__main__":
    sys.exit(write(sys.argv[1:]))
