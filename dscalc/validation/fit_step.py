"""Fits the constants of the step from the published rows that ship, and prints its own cross-validation.

``python -m dscalc.validation.fit_step [--write]``. Errors are those of the logarithm, beyond a corner they count
linearly; a group of rows weighs less than its number; every constant has a prior from outside evidence
(``dscalc/specs/fit.toml``). Cross-validation leaves whole groups out: the fit is done again without the group, from the
whole fit until it no longer moves, and the stack that stands for unknown ones is made again from what is left. A stack
that only the left-out group has is predicted as that one, and once more with its own numbers at their priors, to show
what knowing a stack is worth.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

import numpy as np

from dscalc.calibrate.soft_fit import soft_step
from dscalc.frozen import dataclass
from dscalc.records import Array, Mask
from dscalc.validation.fit_model import UNKNOWN, Constant, FitModel, family, settings, tables, voters
from dscalc.validation.fit_write import LEFT_OUT_COLUMNS, left_out_rows, rewritten
from dscalc.validation.step import POOLED_UNDER, is_healthy, reached_mfu
from dscalc.validation.step_rows import StepRow, read_step_rows

MOST_ROUNDS = 15
STILL = 0.1  # of its standard error: a fit that moves no constant by more has converged
NUDGE = 0.02  # of a logarithm, for derivatives
FARTHEST = 0.3  # a round moves no logarithm by more


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """A fit: logarithms of the constants, their standard errors, and what was predicted with and without each group."""

    constants: tuple[Constant, ...]
    log_values: Array
    stderr: Array
    asked: dict[str, tuple[str, ...]]  # what the unknown stack is the centre of
    rows: tuple[StepRow, ...]
    healthy: Mask
    predicted_s: Array
    left_out_s: Array  # each row by a fit without its group, unknown stacks as the default one
    known_stack_s: Array  # the same with the stack's own numbers
    jackknife: Array  # largest move of each logarithm when a group leaves
    counts: tuple[dict[str, int], ...]  # by constant: rows that move with it, by source group
    unknown: Mask  # rows whose stack only their group has


def _weights(rows: Sequence[StepRow], healthy: Mask) -> Array:
    """Weight of each row, 0 where it takes no part."""
    weights = settings().weights
    flags = [row.row.flags for row in rows]
    floors = np.asarray(
        [
            (row.row.layout.pp == 1 or bool(row.row.shape.experts))
            and not any(flag in f for flag in ("slow_outlier", "proxy_layers", "known_regression_in_release"))
            and row.row.quality in "AB"
            and row.task in ("pretrain", "")
            for row, f in zip(rows, flags, strict=True)
        ]
    )
    used = healthy | floors
    weight = np.zeros(len(rows))
    groups = np.asarray([row.row.group for row in rows])
    for group in sorted(set(groups[used])):
        mine = used & (groups == group)
        weight[mine] = float(mine.sum()) ** -weights["group_power"]
    weight[used & ~healthy] *= weights["unhealthy"]
    weight[np.asarray([bool(row.row.shape.experts) for row in rows])] *= weights["experts"]
    return np.asarray(weight / weight[used].mean())


def _move(start: Array, error: Array, slope: Array, weight: Array) -> tuple[Array, Array]:
    """The best change of the logarithms where errors are linear in them, and their information matrix."""
    weights, constants = settings().weights, settings().constants
    prior, width = np.log([c.prior for c in constants]), np.asarray([c.width for c in constants])
    loss = {name: weights[name] for name in ("scale", "corner")}
    return soft_step(start, prior, width, error, slope, weight, **loss)


def _solved(
    model: FitModel, weight: Array, asked: dict[str, tuple[str, ...]], start: Array
) -> tuple[Array, Array, Array]:
    """Logarithms that fit best, their information matrix, and derivatives of the logarithm of each row."""
    values = start
    measured = np.asarray([row.measured_s for row in model.rows])
    steps = np.vstack([np.zeros(len(values)), NUDGE * np.eye(len(values))])
    unmoved = None
    pull: Array = np.ones(len(values))
    before: Array = np.zeros(len(values))
    for _ in range(MOST_ROUNDS):
        seconds = model.predict_many([tables(values + step, asked) for step in steps], unmoved)
        unmoved = model.unmoved(seconds) if unmoved is None else unmoved
        found = np.log(seconds)
        slope = (found[1:] - found[0]).T / NUDGE
        change, information = _move(values, found[0] - np.log(measured), slope, weight)
        pull = np.where(change * before < 0.0, 0.5 * pull, pull)  # what swings is moved by less
        before = change
        values = values + np.clip(pull * change, -FARTHEST, FARTHEST)
        if np.max(np.abs(pull * change) / np.sqrt(np.diag(np.linalg.inv(information)))) < STILL:
            break
    return values, information, slope


class Prepared:
    """Rows that take part, lowered once."""

    def __init__(self, rows: Sequence[StepRow]) -> None:
        self.whole = FitModel(rows)
        reached = reached_mfu(rows, self.whole.batches)
        self.healthy = np.asarray([is_healthy(row, float(mfu)) for row, mfu in zip(rows, reached, strict=True)])
        weight = _weights(rows, self.healthy)
        used = np.flatnonzero(weight > 0.0)
        self.weight = weight[used]
        self.model = FitModel([rows[i] for i in used.tolist()], faults=True)
        self.groups = np.asarray([row.row.group for row in rows])
        self.used_groups = self.groups[used]


class Without(NamedTuple):
    """A fit without a group: logarithms, and what they predict of every row."""

    log_values: Array
    known_stack_s: Array
    left_out_s: Array  # stacks whose fitted numbers only the group determines as the unknown one
    unknown: Mask  # rows of such stacks


def fit_without(prepared: Prepared, group: str, start: Array) -> Without:
    """Fit again without a group of sources.

    Args:
        prepared: the rows.
        group: what to leave out.
        start: logarithms to begin with; the fit goes on until none moves.

    Returns:
        The fit, and its predictions [s].
    """
    model, whole = prepared.model, prepared.whole
    rest = np.where(prepared.used_groups == group, 0.0, prepared.weight)
    others = [row for row in model.rows if row.row.group != group]
    asked = voters(others)
    values, _, _ = _solved(model, rest, asked, start)
    kept = {family(row.row.layout.stack) for row in others}
    own = {family(row.row.layout.stack) for row in model.rows} - kept - {UNKNOWN}
    known, left = whole.predict_many([tables(values, asked), tables(values, asked, sorted(own))])
    return Without(values, known, left, np.asarray([family(row.row.layout.stack) in own for row in whole.rows]))


def fit_step(path: Path | None = None) -> Fit:
    """Fit the constants to published step times.

    Args:
        path: a CSV file with the columns of the shipped table; None for the shipped rows.

    Returns:
        The fit and its cross-validation.

    Raises:
        InputError: the file cannot be read or lacks a column.
    """
    constants = settings().constants
    rows, _ = read_step_rows(path)
    prepared = Prepared(rows)
    asked = voters(prepared.model.rows)
    start = np.log([c.prior for c in constants])
    values, information, slope = _solved(prepared.model, prepared.weight, asked, start)
    predicted = prepared.whole.predict(tables(values, asked))
    left_out, known, moved = predicted.copy(), predicted.copy(), np.zeros(len(values))
    unknown = np.zeros(len(rows), dtype=bool)
    for group in sorted(set(prepared.used_groups)):
        without = fit_without(prepared, group, values)
        mine = prepared.groups == group
        moved = np.maximum(moved, np.abs(without.log_values - values))
        known[mine], left_out[mine] = without.known_stack_s[mine], without.left_out_s[mine]
        unknown |= mine & without.unknown
    return Fit(
        constants=constants,
        log_values=values,
        stderr=np.sqrt(np.diag(np.linalg.inv(information))),
        asked=asked,
        rows=tuple(rows),
        healthy=prepared.healthy,
        predicted_s=predicted,
        left_out_s=left_out,
        known_stack_s=known,
        jackknife=moved,
        counts=tuple(_counted(prepared.model.rows, slope[:, k]) for k in range(len(constants))),
        unknown=unknown,
    )


FELT = 0.01  # a row tells of a constant where doubling it would move the row by more


def _counted(rows: Sequence[StepRow], slope: Array) -> dict[str, int]:
    names = [row.row.group for row, s in zip(rows, np.abs(slope), strict=True) if s > FELT]
    return {name: names.count(name) for name in sorted(set(names))}


def group_errors(found: Fit, seconds: Array) -> tuple[list[tuple[str, Array]], float]:
    """Signed errors of healthy rows by group, and the mean over groups of the median error, small groups pooled."""
    measured = np.asarray([row.measured_s for row in found.rows])
    groups = np.asarray([row.row.group for row in found.rows])
    error = seconds / measured - 1.0
    by_group = [(g, error[found.healthy & (groups == g)]) for g in sorted(set(groups[found.healthy]))]
    medians = [float(np.median(np.abs(e))) for _, e in by_group if len(e) >= POOLED_UNDER]
    pooled = [abs(x) for _, e in by_group if len(e) < POOLED_UNDER for x in e.tolist()]
    medians += [float(np.median(pooled))] if pooled else []
    return by_group, float(np.mean(medians))


def _line(name: str, bias: Array) -> str:
    error = np.abs(bias)
    return f"{name:24} {len(error):5} {np.median(error):7.1%} {np.quantile(error, 0.9):7.1%} {np.median(bias):+7.1%}"


def report(found: Fit) -> str:
    """The constants with their errors, and errors by group: in sample, left out, left out with the stack known."""
    lines = ["constant                                    prior     value  stderr  moves"]
    for constant, value, stderr, move in zip(
        found.constants, np.exp(found.log_values), found.stderr, found.jackknife, strict=True
    ):
        lines.append(f"{constant.paths[0]:40} {constant.prior:8.4g} {value:9.4g} {stderr:7.0%} {move:6.0%}")
    for title, seconds in (
        ("in sample", found.predicted_s),
        ("left out", found.left_out_s),
        ("left out, stack known", found.known_stack_s),
    ):
        lines += ["", f"{title}: healthy rows                  n  median     90 %    bias"]
        by_group, average = group_errors(found, seconds)
        lines += [_line(group, error) for group, error in by_group]
        if by_group:
            lines.append(_line("all", np.concatenate([error for _, error in by_group])))
        lines.append(f"mean of the group medians {average:.1%}")
    return "\n".join(lines) + "\n"


def main(words: Sequence[str]) -> None:
    """Fit, print, and write the values into ``pace.toml`` where asked to."""
    found = fit_step()
    sys.stdout.write(report(found))
    if "--write" in words:
        path = Path(str(files("dscalc.specs") / "pace.toml"))
        path.write_text(rewritten(path.read_text(encoding="utf-8"), found), encoding="utf-8")
        lines = [",".join(line) for line in (LEFT_OUT_COLUMNS, *left_out_rows(found))]
        Path(str(files("dscalc.validation") / "left_out.csv")).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
