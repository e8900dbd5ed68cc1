"""The sweep: every layout of a model on some GPUs, the best of them, the scaling curve and its ceiling."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dscalc.answers.case import inputs_of
from dscalc.answers.envelope import Assumption, Warning, envelope
from dscalc.answers.sweep_rows import Row, rows_of
from dscalc.answers.sweep_setup import Setup, build_setups, refuse_too_many, spaces_of
from dscalc.frozen import dataclass
from dscalc.specs.given import gather
from dscalc.specs.sweep_options import TABLE
from dscalc.sweep.ceiling import Ceiling, ceiling, stocks
from dscalc.sweep.prune import Found, Problem, Progress
from dscalc.sweep.rank import front_of
from dscalc.sweep.search import search
from dscalc.sweep.space import Space

if TYPE_CHECKING:
    from pandas import DataFrame

DEFAULT_TOP = 5
DEFAULT_MARGINAL = 0.5  # of its ideal that one more GPU must give
STOCK = 32  # layouts kept of each number of GPUs: with something changed, another may be best


Places = Sequence[tuple[Setup, Space]]


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The best layout of one machine at one number of GPUs; ``row`` is None where nothing fits.

    Attributes:
        efficiency: tokens/s of a GPU over those at the smallest number of GPUs that fits.
        marginal: tokens/s that each further GPU since the point before adds, over the same.
    """

    setup: str
    gpus: int
    global_batch: int
    row: Row | None
    efficiency: float | None
    marginal: float | None

    def to_dict(self) -> dict[str, Any]:
        """Flat: its own columns, then those of the row."""
        own = {"setup": self.setup, "gpus": self.gpus, "global_batch": self.global_batch}
        shares = {"efficiency": self.efficiency, "marginal": self.marginal, "fits": self.row is not None}
        row = {} if self.row is None else self.row.to_dict() | {"exposed_share": self.row.exposed_share}
        return {**own, **shares, **{k: v for k, v in row.items() if k not in own and k not in ("rank", "pareto")}}


@dataclass(frozen=True, slots=True)
class SweepAnswer:
    """The answer; ``frame, ceiling = dscalc.sweep(...)`` takes its two main parts."""

    setups: tuple[Setup, ...]
    given: Mapping[str, Any]
    rows: tuple[Row, ...]
    curve: tuple[CurvePoint, ...]
    ceilings: Mapping[str, Ceiling]  # by the name of the machine
    candidates: int
    evaluated: int
    feasible: int
    rejected: Mapping[str, int]
    elapsed_s: float
    complete: bool
    assumptions: tuple[Assumption, ...]
    warnings: tuple[Warning, ...]

    def __iter__(self) -> Iterator[Any]:
        yield self.frame()
        yield self.ceiling

    @property
    def ceiling(self) -> Ceiling:
        """That of the first machine."""
        return self.ceilings[self.setups[0].name]

    @property
    def layouts_per_s(self) -> float:
        """Candidates decided in a second, all processes together."""
        return self.candidates / self.elapsed_s if self.elapsed_s > 0.0 else 0.0

    def frame(self) -> DataFrame:
        """The rows as a table: a column for each value of a layout, its step and its memory."""
        import pandas as pd

        return pd.DataFrame([row.to_dict() for row in self.rows])

    def to_json(self) -> dict[str, Any]:
        """The answer as the JSON object that the documentation freezes."""
        result = {
            "rows": [row.to_dict() for row in self.rows],
            "curve": [point.to_dict() for point in self.curve],
            "ceiling": ceiling_json(self.ceiling),
            "ceilings": {name: ceiling_json(found) for name, found in self.ceilings.items()},
            "candidates": self.candidates,
            "evaluated": self.evaluated,
            "feasible": self.feasible,
            "rejected": dict(self.rejected),
            "layouts_per_s": self.layouts_per_s,
            "complete": self.complete,
        }
        return envelope("sweep", inputs_of(self.setups[0].case), self.assumptions, self.warnings, result)


def sweep(*, progress: Progress | None = None, **options: object) -> SweepAnswer:
    """Every layout of a model on some GPUs, as ``dscalc sweep`` answers it.

    Args:
        progress: called now and then with the layouts decided and those there are.
        options: the words of the command line, e.g. ``model="llama-3-8b", cluster="dgx-h100", gpus="8..64"``; lists and
            ranges as text or as Python lists.

    Returns:
        The answer, which unpacks into a table and a ceiling: ``frame, ceiling = dscalc.sweep(...)``.

    Raises:
        DscalcError: an unknown name, an unreadable file, a value out of range, options that contradict each other, or
            more candidates than can be tried.
    """
    given = {name: value for name, value in gather(options, TABLE).items() if TABLE[name].group != "output"}
    return answer(given, progress)


def answer(given: Mapping[str, Any], progress: Progress | None = None) -> SweepAnswer:
    """The same from options that ``gather`` has read."""
    setups = build_setups(given)
    places = [(setup, space) for setup in setups for space in spaces_of(setup, given)]
    refuse_too_many([space for _, space in places])
    top = given.get("top", DEFAULT_TOP)
    by = "headroom" if given.get("objective") == "headroom" else "time"
    problems = [Problem(space, setup.machine, max(top, STOCK), by) for setup, space in places]
    start = time.perf_counter()
    results = search(problems, given.get("jobs", 1), progress)
    elapsed = time.perf_counter() - start
    rows = _rows(places, results, top)
    rejected: dict[str, int] = {}
    for found in results:
        for name, count in found.rejected:
            rejected[name] = rejected.get(name, 0) + count
    return SweepAnswer(
        setups=setups,
        given=dict(given),
        rows=tuple(rows),
        curve=tuple(point for setup in setups for point in _curve(setup, rows)),
        ceilings=_ceilings(given, places, results),
        candidates=sum(space.candidates for _, space in places),
        evaluated=sum(found.evaluated for found in results),
        feasible=sum(found.feasible for found in results),
        rejected=dict(sorted(rejected.items(), key=lambda item: -item[1])),
        elapsed_s=elapsed,
        complete=all(found.complete for found in results),
        assumptions=setups[0].case.assumptions,
        warnings=setups[0].case.warnings,
    )


def _ceilings(given: Mapping[str, Any], places: Places, results: Sequence[Found]) -> dict[str, Ceiling]:
    """The ceiling of each machine, by its name."""
    weak = given.get("scaling") == "weak"
    ceilings = {}
    for setup in dict.fromkeys(setup for setup, _ in places):
        mine = [(space, found) for (other, space), found in zip(places, results, strict=True) if other is setup]
        kept = [np.union1d(found.top.ids, found.front.ids) for _, found in mine]
        held = stocks([space for space, _ in mine], kept, setup.machine, weak)
        ceilings[setup.name] = ceiling(
            mine[0][0],
            held,
            setup.machine,
            error=setup.error.value,
            share=given.get("marginal", DEFAULT_MARGINAL),
            weak=weak,
        )
    return ceilings


def _rows(places: Places, results: Sequence[Found], top: int) -> list[Row]:
    """The best layouts of each place, then what else is on the front; marked where nothing beats them."""
    rows: list[Row] = []
    for (setup, space), found in zip(places, results, strict=True):
        first = found.top.ids[:top]
        rows += rows_of(setup, space, first, range(1, len(first) + 1))
        more = found.front.ids[~np.isin(found.front.ids, first)]
        rows += rows_of(setup, space, more, [0] * len(more))
    if not rows:
        return rows
    room = [-(row.headroom_bytes if row.headroom_bytes is not None else -row.total_bytes) for row in rows]
    columns = [[row.step_time_s for row in rows], room, [float(row.gpus) for row in rows]]
    pareto = front_of([np.asarray(c) for c in columns])
    return [replace(row, pareto=bool(p)) for row, p in zip(rows, pareto.tolist(), strict=True) if row.rank or p]


def _curve(setup: Setup, rows: Sequence[Row]) -> Iterator[CurvePoint]:
    """The best layout at each number of GPUs, against the smallest number that fits."""
    base: Row | None = None
    before: Row | None = None
    for gpus, batch in zip(setup.gpus, setup.batches, strict=True):
        row = next((r for r in rows if r.setup == setup.name and r.gpus == gpus and r.rank == 1), None)
        if row is None:
            yield CurvePoint(setup.name, gpus, batch, None, None, None)
            continue
        base = base or row
        marginal = None
        if before is not None:
            added = (row.tokens_per_s - before.tokens_per_s) / (row.gpus - before.gpus)
            marginal = added / base.tokens_per_s_per_gpu
        yield CurvePoint(setup.name, gpus, batch, row, row.tokens_per_s_per_gpu / base.tokens_per_s_per_gpu, marginal)
        before = row


def ceiling_json(found: Ceiling) -> dict[str, Any]:
    """A ceiling as the JSON object that the documentation freezes."""
    return {
        "binding_limit": found.binding_limit,
        "gpus": found.gpus,
        "low_gpus": found.low_gpus,
        "high_gpus": found.high_gpus,
        "beyond": found.beyond,
        "limits": {
            name: {"gpus": limit.gpus, "low_gpus": limit.low_gpus, "high_gpus": limit.high_gpus, "reason": limit.reason}
            for name, limit in found.limits.items()
        },
        "elasticities": dict(found.elasticities),
        "points": [
            {field.name: getattr(point, field.name) for field in fields(point)} | {"tokens_per_s": point.tokens_per_s}
            for point in found.points
        ],
    }
