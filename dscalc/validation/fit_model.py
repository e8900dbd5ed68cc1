"""What a fit of the step's constants works on: constants with priors, their tables, all rows lowered once."""

from __future__ import annotations

import copy
import tomllib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

from dscalc.cost.exchange import Exchange
from dscalc.cost.step import timed_step
from dscalc.records import Array, Engine, Mask, PaceTable
from dscalc.specs.pace import FAULT_COLUMNS, engine, generation_of, pace_constants, pace_table, shipped, with_faults
from dscalc.validation.step import POOLED_UNDER, Batch, batches
from dscalc.validation.step_rows import StepRow, faulty_sources

UNKNOWN = "generic"  # the stack that stands for one nobody has measured
FLASH = "flash_fraction"


class Constant(NamedTuple):
    """One number to fit."""

    paths: tuple[str, ...]
    prior: float
    width: float


class Settings(NamedTuple):
    """``fit.toml``: weights of rows, columns of the unknown stack, constants."""

    weights: dict[str, float]
    centred: tuple[str, ...]
    constants: tuple[Constant, ...]


@lru_cache(maxsize=1)
def settings() -> Settings:
    """What is fitted, and from which prior."""
    data = tomllib.loads((files("dscalc.specs") / "fit.toml").read_text(encoding="utf-8"))
    constants = tuple(Constant(tuple(c["paths"]), c["prior"], c["width"]) for c in data["constant"])
    return Settings(data["weights"], tuple(data["generic"]["columns"]), constants)


def record_at(data: Mapping[str, Any], path: str) -> dict[str, Any]:
    """The record that a dotted path names."""
    found: Any = data
    for key in path.split("."):
        found = found[key]
    record: dict[str, Any] = found
    return record


def family(stack: str) -> str:
    """The stack whose fitted numbers a stack has: itself, or the one that it is ``like`` where it adds none."""
    own = shipped()["stack"].get(stack, {})
    prefix = f"stack.{stack}."
    adds = any(path.startswith(prefix) for constant in settings().constants for path in constant.paths)
    return family(own["like"]) if "like" in own and not adds else stack


# ------------------------------------------------------------------------------------------- the stack nobody measured
def _place(stack: str, column: str, kind: str) -> str:
    """Where a stack has the number of a column from; ``kind``: GPU generation, of an attention kernel."""
    own = shipped()["stack"].get(stack, {})
    if column in own and (not kind or kind in own[column]):
        return f"stack.{stack}.{column}" + (f".{kind}" if kind else "")
    if column == FLASH and kind in shipped()["kernel"].get(own.get("kernel", ""), {}):
        return f"kernel.{own['kernel']}.{kind}"
    if "like" in own:
        return _place(own["like"], column, kind)
    if not kind:
        return f"default.{column}"
    return f"{column}.{kind}" if kind in shipped()[column] else f"{column}.other"


def voters(rows: Sequence[StepRow]) -> dict[str, tuple[str, ...]]:
    """What the unknown stack is the centre of: by column, the places of the numbers that measured stacks have.

    A stack with ten rows or more has a voice where it has a fitted number of its own (or of the one that it is
    ``like``). The default has one only where nobody else has: it stands for vendors' own stacks, which a stack that
    nobody measured is not. An attention kernel is asked on the generations of GPUs that it was measured on.
    """
    fitted = {path for constant in settings().constants for path in constant.paths}
    stacks = Counter(family(row.row.layout.stack) for row in rows if row.row.layout.stack != UNKNOWN)
    on = Counter((family(row.row.layout.stack), generation_of(row.gpu)) for row in rows)
    asked: dict[str, tuple[str, ...]] = {}
    for column in settings().centred:
        for kind in sorted({kind for _, kind in on}) if column == FLASH else ("",):
            heard = [s for s in sorted(stacks) if (on[s, kind] if kind else stacks[s]) >= POOLED_UNDER]
            places = [_place(s, column, kind) for s in heard]
            own = tuple(p for p in places if p in fitted and p.startswith("stack."))
            asked[f"{column}.{kind}" if kind else column] = own or (_place("", column, kind),)
    return asked


def centre(values: Sequence[float]) -> float:
    """Median of the logarithms."""
    ordered = sorted(values)
    low, high = ordered[(len(ordered) - 1) // 2], ordered[len(ordered) // 2]
    return float(np.sqrt(low * high))


def tables(log_values: Array, asked: Mapping[str, Sequence[str]], as_unknown: Sequence[str] = ()) -> dict[str, Any]:
    """The shipped tables with other values.

    Args:
        log_values: logarithms of the fitted constants.
        asked: what the unknown stack is the centre of, see ``voters``.
        as_unknown: stacks that are taken as one nobody measured.

    Returns:
        Tables as in ``pace.toml``.
    """
    data = copy.deepcopy(shipped())
    for constant, value in zip(settings().constants, np.exp(log_values).tolist(), strict=True):
        for path in constant.paths:
            record = record_at(data, path)
            record["value"] = min(value, 1.0) if record["unit"] == "fraction" else value
    unknown: dict[str, Any] = {}
    for column, paths in asked.items():
        records = [record_at(data, path) for path in paths]
        found = {**records[0], "value": centre([r["value"] for r in records])}
        name, _, kind = column.partition(".")
        if kind:
            unknown.setdefault(name, {})[kind] = found
        else:
            unknown[name] = found
    data["stack"][UNKNOWN] = unknown
    for name in as_unknown:
        data["stack"][name] = {"like": UNKNOWN}
    return data


# ----------------------------------------------------------------------------------------------------- rows and trials
def _tiled(record: Any, times: int, rows: int) -> Any:
    """A record with its columns of ``rows`` entries repeated."""
    columns = {
        f.name: np.tile(getattr(record, f.name), times)
        for f in fields(record)
        if isinstance(getattr(record, f.name), np.ndarray) and getattr(record, f.name).shape == (rows,)
    }
    return replace(record, **columns)


def _repeated(batch: Batch, times: int) -> Batch:
    """A batch in which every trial has a copy of every row, and of every entry of the stack table."""
    rows = len(batch.numbers)
    stacks = batch.layouts.books.stacks
    codes = len(stacks.names)
    columns = {f.name: np.tile(getattr(stacks, f.name), times) for f in fields(stacks) if f.name != "names"}
    layouts = _tiled(batch.layouts, times, rows)
    layouts = replace(
        layouts,
        stack=layouts.stack + np.repeat(np.arange(times) * codes, rows),
        books=replace(layouts.books, stacks=replace(stacks, names=stacks.names * times, **columns)),
    )
    sent = Exchange(_tiled(batch.sent.micro_batch, times, rows), _tiled(batch.sent.step, times, rows))
    return replace(batch, layouts=layouts, sent=sent)


def _beside(tables_of: Sequence[PaceTable]) -> PaceTable:
    columns = {
        f.name: np.concatenate([getattr(t, f.name) for t in tables_of]) for f in fields(PaceTable) if f.name != "names"
    }
    return PaceTable(names=tables_of[0].names * len(tables_of), **columns)


class FitModel:
    """Rows lowered once. Trials of other constants are more rows of one evaluation, so that many cost little."""

    def __init__(self, rows: Sequence[StepRow], faults: bool = False) -> None:
        """Lower rows.

        Args:
            rows: what to predict.
            faults: runs of a cluster whose faults are known are predicted with them, so that no constant makes up for
                a fault.
        """
        self.rows = tuple(rows)
        faulty = faulty_sources() if faults else frozenset()
        self.batches, self.faulty = [], []
        for ill in (False, True):
            mine = [i for i, row in enumerate(rows) if (row.row.source in faulty) == ill]
            found = batches([rows[i] for i in mine])
            self.batches += [replace(b, numbers=tuple(mine[n] for n in b.numbers)) for b in found]
            self.faulty += [ill] * len(found)
        self.keys = sorted({(row.gpu.id, row.precision) for row in rows})
        self.gpus = {row.gpu.id: row.gpu for row in rows}
        self._copies: dict[tuple[int, int], Batch] = {}

    def predict(self, data: Mapping[str, Any]) -> Array:
        """Seconds of every row."""
        return np.asarray(self.predict_many([data])[0])

    def predict_many(self, trials: Sequence[Mapping[str, Any]], known: Mask | None = None) -> Array:
        """Seconds of every row under each of several tables.

        Args:
            trials: the tables.
            known: where a trial is known to give a batch what the first trial gives it, (trials, batches).

        Returns:
            Seconds [s, (trials, rows)].
        """
        found = np.empty((len(trials), len(self.rows)))
        alike: dict[tuple[float, ...], list[int]] = defaultdict(list)
        for number, data in enumerate(trials):
            constants = pace_constants(data)
            alike[tuple(getattr(constants, f.name) for f in fields(constants))].append(number)
        for members in alike.values():
            skipped = [known is not None and bool(known[members, b].all()) for b in range(len(self.batches))]
            found[members] = found[0] if 0 not in members else 0.0
            self._same_constants([trials[i] for i in members], members, skipped, found)
        return found

    def unmoved(self, predicted: Array) -> Mask:
        """Batches in which a trial moved no row; (trials, batches)."""
        found = np.empty((len(predicted), len(self.batches)), dtype=bool)
        for number, batch in enumerate(self.batches):
            mine = predicted[:, list(batch.numbers)]
            found[:, number] = np.all(mine == mine[0], axis=1)
        return found

    def _same_constants(
        self, trials: Sequence[Mapping[str, Any]], members: Sequence[int], skipped: Sequence[bool], found: Array
    ) -> None:
        count = len(trials)
        table, constants = _beside([pace_table(data) for data in trials]), pace_constants(trials[0])
        floored = with_faults(table, tuple(FAULT_COLUMNS))
        engines = [[engine(self.gpus[gpu], precision, data)[0] for gpu, precision in self.keys] for data in trials]
        columns = {f.name: np.concatenate([getattr(e, f.name) for es in engines for e in es]) for f in fields(Engine)}
        place = {key: i for i, key in enumerate(self.keys)}
        for number, batch in enumerate(self.batches):
            if skipped[number]:
                continue
            at = np.asarray([place[self.rows[i].gpu.id, self.rows[i].precision] for i in batch.numbers])
            at = (np.arange(count)[:, None] * len(self.keys) + at).ravel()
            own = Engine(**{name: column[at] for name, column in columns.items()})
            if (number, count) not in self._copies:
                self._copies[number, count] = batch if count == 1 else _repeated(batch, count)
            many = self._copies[number, count]
            paces = floored if self.faulty[number] else table
            step = timed_step(many.shape, many.layouts, own, paces, constants, many.sent)
            found[np.ix_(members, batch.numbers)] = step.step_time_s.reshape(count, -1)
