"""Fits the widths of error bars on rows predicted without their group, and tells how often bars hold on other groups.

``python -m dscalc.validation.fit_bars [--write]`` after ``fit_step --write``. A bar is the square root of a sum of
squares (``dscalc.cost.bar``); its coefficients minimise the score of an 80 % interval (the logarithm of its width, and
four times that of what it misses by), every group counting the same, with priors from ``dscalc/specs/fit.toml``. A
stack that only one group has teaches twice: as the unknown one, and with its own numbers.
"""

from __future__ import annotations

import csv
import re
import sys
import tomllib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dscalc.cost.bar import SORTS
from dscalc.cost.step import Step
from dscalc.frozen import dataclass
from dscalc.records import Array, Mask
from dscalc.specs.pace import pace_table, shipped
from dscalc.validation.fit_model import UNKNOWN, family
from dscalc.validation.step import batches
from dscalc.validation.step_rows import StepRow, read_step_rows

HOLDS = 0.77  # of the rows that bars are to hold; groups that took no part have it between 75 and 85 %
STEPS, PACE, DECAY = 300, 0.05, 200  # of the descent; after DECAY steps it slows down
AT_LEAST = 30  # rows of a group whose share is reported


class LeftOut(NamedTuple):
    """One healthy row as a fit without its group predicts it [s]."""

    left_out_s: float
    known_stack_s: float
    unknown_stack: bool


@dataclass(frozen=True, slots=True, eq=False)
class BarFit:
    """Coefficients of bars, and bars of rows whose group took no part."""

    names: tuple[str, ...]
    values: Array
    rows: tuple[StepRow, ...]
    error: Array  # logarithms of predicted over measured, each row by a fit without its group
    half_width: Array  # by coefficients without its group

    def held(self, mine: Mask | None = None) -> float:
        """Share of rows that lie within their bars."""
        inside = self.inside()
        return float(np.mean(inside if mine is None else inside[mine]))

    def inside(self) -> Mask:
        """Rows that lie within their bars."""
        return np.asarray(np.abs(self.error) <= self.half_width)

    def by_group(self) -> dict[str, float]:
        """The same for each group of enough rows."""
        groups = np.asarray([row.row.group for row in self.rows])
        return {g: self.held(groups == g) for g in sorted(set(groups)) if (groups == g).sum() >= AT_LEAST}


def left_out() -> dict[str, LeftOut]:
    """Rows that ship, predicted without their group, by id."""
    text = (files("dscalc.validation") / "left_out.csv").read_text(encoding="utf-8")
    return {
        r["id"]: LeftOut(float(r["left_out_s"]), float(r["known_stack_s"]), r["unknown_stack"] == "1")
        for r in csv.DictReader(text.splitlines())
    }


def _priors() -> dict[str, float]:
    data = tomllib.loads((files("dscalc.specs") / "fit.toml").read_text(encoding="utf-8"))["bars"]
    found: dict[str, float] = {}
    for name, value in data["prior"].items():
        found |= {f"{name}.{n}": v for n, v in value.items()} if isinstance(value, dict) else {name: value}
    return found


def shares(step: Step) -> Array:
    """Share of the step that each sort of term has; (sorts, n)."""
    seconds = {leaf.spec.path: leaf.exposed_s for leaf in step.terms}
    return np.stack([sum((seconds[p] for p in paths), start=0.0) / step.step_time_s for _, paths in SORTS])


def _squares(names: Sequence[str], parts: Array, unknown: Array, low: Array) -> Array:
    """What each squared coefficient is multiplied by; (n, coefficients)."""
    sorts = [name for name, _ in SORTS]
    columns = []
    for name in names:
        kind, _, sort = name.partition(".")
        if sort:
            columns.append(parts[sorts.index(sort)] * (unknown if kind == "unknown" else 1.0))
        elif name == "low":
            columns.append(parts[sorts.index("linear")] * low)
        elif name == "always_experts":
            columns.append((parts[sorts.index("experts")] > 0.0) * 1.0)
        else:
            columns.append(np.ones(len(low)))
    return np.stack(columns, axis=1) ** 2


def _descended(squares: Array, error: Array, weight: Array, counted: Mask, prior: Array, pull: float) -> Array:
    """Coefficients that score best."""
    logs = prior.copy()
    first, second = np.zeros(len(prior)), np.zeros(len(prior))
    for number in range(1, STEPS + 1):
        values = np.exp(logs)
        width = np.sqrt(squares @ values**2)
        missed = (np.abs(error) > width) / (1.0 - HOLDS)
        gradient = (squares * values**2).T @ (weight * (1.0 - missed) / width**2) + pull * (logs - prior)
        first, second = 0.9 * first + 0.1 * gradient, 0.99 * second + 0.01 * gradient**2
        step = PACE * (1.0 if number < DECAY else 0.2)
        logs = logs - step * (first / (1.0 - 0.9**number)) / (np.sqrt(second / (1.0 - 0.99**number)) + 1e-9)
    values = np.exp(logs)
    ratio = np.abs(error) / np.sqrt(squares @ values**2)
    return np.asarray(values * np.quantile(ratio[counted], HOLDS))  # at last as many rows as wanted are held


def fit_bars() -> BarFit:
    """Fit the widths.

    Returns:
        Coefficients, and how bars without each group do on it.

    Raises:
        InputError: the shipped rows cannot be read.
    """
    priors = _priors()
    names, prior = tuple(priors), np.log(list(priors.values()))
    pull = float(tomllib.loads((files("dscalc.specs") / "fit.toml").read_text(encoding="utf-8"))["bars"]["pull"])
    known = left_out()
    rows = [row for row in read_step_rows()[0] if row.row.id in known]
    found = [known[row.row.id] for row in rows]
    unknown = np.asarray([r.unknown_stack for r in found])
    as_unknown: dict[str, Any] = dict(shipped())
    hidden = {family(row.row.layout.stack) for row, r in zip(rows, found, strict=True) if r.unknown_stack}
    as_unknown["stack"] = shipped()["stack"] | {name: {"like": UNKNOWN} for name in hidden}
    usual, others = np.empty((len(SORTS), len(rows))), np.empty((len(SORTS), len(rows)))
    low = np.zeros(len(rows))
    for batch in batches(rows):
        at = list(batch.numbers)
        usual[:, at], others[:, at] = shares(batch.step()), shares(batch.step(pace_table(as_unknown)))
        low[at] = batch.engine.linear_gain > 1.0
    measured = np.log([row.measured_s for row in rows])
    groups = np.asarray([row.row.group for row in rows])
    error = np.log([r.left_out_s for r in found]) - measured
    scored = _squares(names, np.where(unknown, others, usual), unknown * 1.0, low)
    taught = np.vstack([scored, _squares(names, usual, np.zeros(len(rows)), low)[unknown]])
    taught_error = np.concatenate([error, (np.log([r.known_stack_s for r in found]) - measured)[unknown]])
    from_group = np.concatenate([groups, groups[unknown]])
    as_what = np.char.add(from_group, np.where(np.arange(len(from_group)) >= len(rows), " known", ""))
    weight = np.asarray([float((as_what == name).sum()) ** -1.0 for name in as_what])
    counted = np.arange(len(from_group)) < len(rows)
    half_width = np.empty(len(rows))
    for group in sorted(set(groups)):
        rest = from_group != group
        part = weight[rest] / weight[rest].sum()
        values = _descended(taught[rest], taught_error[rest], part, counted[rest], prior, pull)
        mine = groups == group
        half_width[mine] = np.sqrt(scored[mine] @ values**2)
    values = _descended(taught, taught_error, weight / weight.sum(), counted, prior, pull)
    return BarFit(names, values, tuple(rows), error, half_width)


def report(found: BarFit) -> str:
    """Coefficients, and how often bars hold."""
    lines = [f"{name:28} {value:7.3f}" for name, value in zip(found.names, found.values, strict=True)]
    lines += ["", "held by bars that never saw the group:"]
    lines += [f"{group:24} {held:6.0%}" for group, held in found.by_group().items()]
    half, off = float(np.median(found.half_width)), float(np.median(np.abs(found.error)))
    lines.append(f"{'all':24} {found.held():6.0%}; median half-width {half:.1%}, {half / off:.2f} of the median error")
    return "\n".join(lines) + "\n"


def rewritten(text: str, found: BarFit) -> str:
    """``pace.toml`` with the coefficients."""
    start = text.index("\n[error]")
    section = text[start:]
    for name, value in zip(found.names, found.values, strict=True):
        kind, _, sort = name.partition(".")
        header = section.index(f"[error.{kind}]") if sort else 0
        pattern = rf"(\n{sort or kind} = {{ value = )[0-9.e-]+"
        section = section[:header] + re.sub(pattern, rf"\g<1>{value:.3g}", section[header:], count=1)
    return text[:start] + section


def main(words: Sequence[str]) -> None:
    """Fit, print, and write the values into ``pace.toml`` where asked to."""
    found = fit_bars()
    sys.stdout.write(report(found))
    if "--write" in words:
        path = Path(str(files("dscalc.specs") / "pace.toml"))
        path.write_text(rewritten(path.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
