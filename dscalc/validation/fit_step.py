"""Fits the constants of the step from the published rows that ship, and prints its own cross-validation.

``python -m dscalc.validation.fit_step [--write]``. Errors are those of the logarithm, beyond a corner they count
linearly; a group of rows weighs less than its number; every constant has a prior from outside evidence
(``dscalc/specs/fit.toml``). Cross-validation leaves whole groups out; a stack that only the left-out group has is then
predicted as the default stack, and once more with its own numbers, to show what knowing a stack is worth.
"""

from __future__ import annotations

import copy
import re
import sys
import tomllib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import fields
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dscalc.calibrate.soft_fit import soft_step
from dscalc.cost.step import timed_step
from dscalc.frozen import dataclass
from dscalc.records import Array, Engine, Mask
from dscalc.specs.pace import engine, pace_constants, pace_table, shipped
from dscalc.validation.step import POOLED_UNDER, Batch, batches, is_healthy, reached_mfu
from dscalc.validation.step_rows import StepRow, read_step_rows

ROUNDS = 6
UNKNOWN = "generic"  # the stack that stands for one nobody has measured
NUDGE = 0.02  # of a logarithm, for derivatives
FARTHEST = 0.3  # a round moves no logarithm by more


class Constant(NamedTuple):
    """One number to fit."""

    paths: tuple[str, ...]
    prior: float
    width: float


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """A fit: logarithms of the constants, their standard errors, and what was predicted with and without each group."""

    constants: tuple[Constant, ...]
    log_values: Array
    stderr: Array
    rows: tuple[StepRow, ...]
    healthy: Mask
    predicted_s: Array
    left_out_s: Array  # each row by a fit without its group, unknown stacks as the default one
    known_stack_s: Array  # the same with the stack's own numbers
    jackknife: Array  # largest move of each logarithm when a group leaves


def _settings() -> tuple[dict[str, float], tuple[Constant, ...]]:
    data = tomllib.loads((files("dscalc.specs") / "fit.toml").read_text(encoding="utf-8"))
    return data["weights"], tuple(Constant(tuple(c["paths"]), c["prior"], c["width"]) for c in data["constant"])


def _record(data: dict[str, Any], path: str) -> dict[str, Any]:
    for key in path.split("."):
        data = data[key]
    return data


def _tables(constants: Sequence[Constant], log_values: Array, as_default: Sequence[str] = ()) -> dict[str, Any]:
    """The shipped tables with other values; stacks of ``as_default`` are those of one nobody measured."""
    data = copy.deepcopy(shipped())
    for constant, value in zip(constants, np.exp(log_values).tolist(), strict=True):
        for path in constant.paths:
            _record(data, path)["value"] = value
    for name in as_default:
        data["stack"][name] = {"like": UNKNOWN}
    return data


class Model:
    """All rows, lowered once, so that a trial of other constants is quick."""

    def __init__(self, rows: Sequence[StepRow], constants: tuple[Constant, ...]) -> None:
        self.rows, self.constants = tuple(rows), constants
        self.batches: list[Batch] = batches(rows)
        self.keys = sorted({(row.gpu.id, row.precision) for row in rows})
        self.gpus = {row.gpu.id: row.gpu for row in rows}

    def predict(self, log_values: Array, as_default: Sequence[str] = ()) -> Array:
        """Seconds of every row."""
        data = _tables(self.constants, log_values, as_default)
        table, constants = pace_table(data), pace_constants(data)
        engines = [engine(self.gpus[gpu], precision, data)[0] for gpu, precision in self.keys]
        columns = {f.name: np.concatenate([getattr(e, f.name) for e in engines]) for f in fields(Engine)}
        place = {key: i for i, key in enumerate(self.keys)}
        found = np.empty(len(self.rows))
        for batch in self.batches:
            at = [place[self.rows[i].gpu.id, self.rows[i].precision] for i in batch.numbers]
            own = Engine(**{name: column[at] for name, column in columns.items()})
            step = timed_step(batch.shape, batch.layouts, own, table, constants, batch.sent)
            found[list(batch.numbers)] = step.step_time_s
        return found


def _weights(rows: Sequence[StepRow], healthy: Mask, settings: dict[str, float]) -> Array:
    """Weight of each row, 0 where it takes no part."""
    flags = [row.row.flags for row in rows]
    floors = np.asarray(
        [
            row.row.layout.pp == 1
            and "slow_outlier" not in f
            and ("latency_bound" in f or not row.row.shape.experts)
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
        weight[mine] = float(mine.sum()) ** -settings["group_power"]
    weight[used & ~healthy] *= settings["unhealthy"]
    weight[np.asarray([bool(row.row.shape.experts) for row in rows])] *= settings["experts"]
    return np.asarray(weight / weight[used].mean())


def fit_step(path: Path | None = None) -> Fit:
    """Fit the constants to published step times.

    Args:
        path: a CSV file with the columns of the shipped table; None for the shipped rows.

    Returns:
        The fit and its cross-validation.

    Raises:
        InputError: the file cannot be read or lacks a column.
    """
    settings, constants = _settings()
    loss = {name: settings[name] for name in ("scale", "corner")}
    rows, _ = read_step_rows(path)
    model = Model(rows, constants)
    measured = np.asarray([row.measured_s for row in rows])
    reached = reached_mfu(rows, model.batches)
    healthy = np.asarray([is_healthy(row, float(mfu)) for row, mfu in zip(rows, reached, strict=True)])
    weight = _weights(rows, healthy, settings)
    used = weight > 0.0
    prior, width = np.log([c.prior for c in constants]), np.asarray([c.width for c in constants])
    values = prior.copy()
    predicted = model.predict(values)
    slope: Array = np.zeros((len(rows), len(constants)))
    information: Array = np.eye(len(constants))
    for _ in range(ROUNDS):
        nudged = [model.predict(values + NUDGE * np.eye(len(values))[k]) for k in range(len(values))]
        slope = np.stack([np.log(trial / predicted) / NUDGE for trial in nudged], axis=1)
        change, information = soft_step(
            values, prior, width, np.log(predicted / measured)[used], slope[used], weight[used], **loss
        )
        values = values + np.clip(change, -FARTHEST, FARTHEST)
        predicted = model.predict(values)
    groups = np.asarray([row.row.group for row in rows])
    left_out, known, moved = predicted.copy(), predicted.copy(), np.zeros(len(values))
    stacks: dict[str, set[str]] = defaultdict(set)
    for row, uses in zip(rows, used, strict=True):
        if uses:
            stacks[row.row.layout.stack].add(row.row.group)
    for group in sorted(set(groups[used])):
        others = used & (groups != group)
        change, _ = soft_step(
            values, prior, width, np.log(predicted / measured)[others], slope[others], weight[others], **loss
        )
        without = values + np.clip(change, -2.0 * FARTHEST, 2.0 * FARTHEST)
        moved = np.maximum(moved, np.abs(without - values))
        kept = {shipped()["stack"].get(name, {}).get("like") for name, where in stacks.items() if where != {group}}
        unknown = [name for name, where in stacks.items() if where == {group} and name not in {UNKNOWN, *kept}]
        mine = groups == group
        known[mine] = model.predict(without)[mine]
        left_out[mine] = model.predict(without, unknown)[mine]
    stderr = np.sqrt(np.diag(np.linalg.inv(information)))
    return Fit(constants, values, stderr, tuple(rows), healthy, predicted, left_out, known, moved)


def _line(name: str, error: Array, bias: Array) -> str:
    return f"{name:24} {len(error):5} {np.median(error):7.1%} {np.quantile(error, 0.9):7.1%} {np.median(bias):+7.1%}"


def report(found: Fit) -> str:
    """The constants with their errors, and errors by group: in sample, left out, left out with the stack known."""
    lines = ["constant                                    prior     value  stderr  moves"]
    for constant, value, stderr, move in zip(
        found.constants, np.exp(found.log_values), found.stderr, found.jackknife, strict=True
    ):
        lines.append(f"{constant.paths[0]:40} {constant.prior:8.4g} {value:9.4g} {stderr:7.0%} {move:6.0%}")
    measured = np.asarray([row.measured_s for row in found.rows])
    groups = np.asarray([row.row.group for row in found.rows])
    for title, seconds in (
        ("in sample", found.predicted_s),
        ("left out", found.left_out_s),
        ("left out, stack known", found.known_stack_s),
    ):
        bias = seconds / measured - 1.0
        lines += ["", f"{title}: healthy rows                  n  median     90 %    bias"]
        medians: list[float] = []
        pooled: list[float] = []
        for group in sorted(set(groups[found.healthy])):
            mine = found.healthy & (groups == group)
            lines.append(_line(group, np.abs(bias[mine]), bias[mine]))
            if mine.sum() >= POOLED_UNDER:
                medians.append(float(np.median(np.abs(bias[mine]))))
            else:
                pooled += np.abs(bias[mine]).tolist()
        medians += [float(np.median(pooled))] if pooled else []
        lines.append(_line("all", np.abs(bias[found.healthy]), bias[found.healthy]))
        lines.append(f"mean of the group medians {np.mean(medians):.1%}")
    return "\n".join(lines) + "\n"


def rewritten(text: str, found: Fit) -> str:
    """``pace.toml`` with the fitted values, their standard errors and how far they move when a group leaves."""
    for constant, value, stderr, move in zip(
        found.constants, np.exp(found.log_values), found.stderr, found.jackknife, strict=True
    ):
        for path in constant.paths:
            text = _replaced(text, path.split("."), f"{value:.4g}", f"{stderr:.2g}", f"{move:.2g}")
    return text


def _replaced(text: str, keys: list[str], value: str, stderr: str, spread: str) -> str:
    """One record of the file with other numbers; its section is the longest header among the keys."""
    for cut in range(len(keys) - 1, 0, -1):
        header = f"[{'.'.join(keys[:cut])}]"
        if f"\n{header}" in text:
            start = text.index(f"\n{header}") + len(header) + 1
            end = text.find("\n[", start)
            section, rest = (text[start:end], text[end:]) if end >= 0 else (text[start:], "")
            names = keys[cut:]
            pattern = r"((?:^|[\s{,])\"?" + re.escape(names[0]) + r"\"? = \{"
            pattern += "".join(r"[^\n]*?\b" + re.escape(name) + r" = \{" for name in names[1:])
            pattern += (
                r" value = )[0-9.]+(, unit = \"\w+\", kind = \"\w+\")(?:, stderr = [0-9.]+)?(?:, spread = [0-9.]+)?"
            )
            changed, count = re.subn(
                pattern,
                lambda m: f"{m[1]}{value}{m[2]}, stderr = {stderr}, spread = {spread}",
                section,
                count=1,
                flags=re.MULTILINE,
            )
            if count:
                return text[:start] + changed + rest
    raise KeyError(".".join(keys))


def main(words: Sequence[str]) -> None:
    """Fit, print, and write the values into ``pace.toml`` where asked to."""
    found = fit_step()
    sys.stdout.write(report(found))
    if "--write" in words:
        path = Path(str(files("dscalc.specs") / "pace.toml"))
        path.write_text(rewritten(path.read_text(encoding="utf-8"), found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
