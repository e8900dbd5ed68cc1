"""The sweep: every layout of a model on some GPUs, the best of them, the scaling curve and its ceiling."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from dscalc.answers.case import inputs_of
from dscalc.answers.envelope import Assumption, Warning, envelope
from dscalc.answers.sweep_budget import Budget, budget_of, price_of, rates_of, usd_per_token
from dscalc.answers.sweep_ceiling import ceiling_json, ceilings, closed_forms
from dscalc.answers.sweep_closed import ClosedForm
from dscalc.answers.sweep_lacking import NOT_SEARCHED, lacking, reasons_of
from dscalc.answers.sweep_notes import Nearest, Places, assumptions_of, nearest_of, warnings_of
from dscalc.answers.sweep_rows import COLUMNS, Row, rows_of
from dscalc.answers.sweep_setup import Setup, build_setups, doubled, refuse_too_many, spaces_of
from dscalc.errors import InputError
from dscalc.frozen import dataclass
from dscalc.specs.given import gather
from dscalc.specs.options import canonical
from dscalc.specs.pace import between_layouts
from dscalc.specs.sweep_options import LEFT_OUT, TABLE
from dscalc.sweep.ceiling import Ceiling as Ceiling
from dscalc.sweep.ceiling import Limit as Limit
from dscalc.sweep.change import moves
from dscalc.sweep.prune import MEMORY, Found, Problem, Progress
from dscalc.sweep.rank import front_of, roomiest
from dscalc.sweep.search import search
from dscalc.sweep.space import ORDER, Space

if TYPE_CHECKING:
    from pandas import DataFrame

DEFAULT_TOP = 5
DEFAULT_WITHIN = 0.05  # slower than the fastest, for more free memory
STOCK = 32  # layouts kept of each number of GPUs: a little slower or faster, another may be best


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """The best layout of one machine at one number of GPUs; ``row`` is None where there is none.

    Attributes:
        lacking: why there is none: ``not_searched`` after an interrupt, ``memory``, or the name of the rule that no
            layout keeps, a key of ``SweepAnswer.reasons``.
        efficiency: tokens/s of a GPU over those at the smallest number of GPUs that fits.
        marginal: tokens/s that each further GPU since the point before adds, over the same.
        budget: a whole training by this layout, where ``tokens`` says how long it is.
    """

    setup: str
    gpus: int
    global_batch: int
    row: Row | None
    efficiency: float | None
    marginal: float | None
    budget: Budget | None
    lacking: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Flat: its own columns, then those of the row and of the budget."""
        fits = None if self.lacking == NOT_SEARCHED else self.row is not None
        own = {"setup": self.setup, "gpus": self.gpus, "global_batch": self.global_batch, "fits": fits}
        found = own | {"lacking": self.lacking, "efficiency": self.efficiency, "marginal": self.marginal}
        if self.row is not None:
            row = self.row.to_dict() | {"exposed_share": self.row.exposed_share}
            found |= {k: v for k, v in row.items() if k not in own and k not in ("rank", "pareto")}
        return found | {"budget": None if self.budget is None else self.budget._asdict()}


@dataclass(frozen=True, slots=True)
class SweepAnswer:
    """The answer; ``frame, ceiling = dscalc.sweep(...)`` takes its two main parts.

    Attributes:
        setups: the machines compared.
        rows: by machine and number of GPUs: the best layouts in order, then others on the Pareto front.
        curve: the best layout of each machine at each number of GPUs.
        ceilings, closed_forms: by the name of the machine.
        nearest: by the name of a machine on which nothing fits.
        candidates: layouts there are; ``rejected`` counts each once, at its first reason.
        elapsed_s, again_s: seconds of the search, and of the one with twice the batch.
        evaluated: layouts whose memory was computed in full; ``feasible`` of them fit and were timed.
        complete: False after an interrupt.
    """

    setups: tuple[Setup, ...]
    spaces: tuple[Space, ...]
    given: Mapping[str, Any]
    rows: tuple[Row, ...]
    curve: tuple[CurvePoint, ...]
    ceilings: Mapping[str, Ceiling]
    closed_forms: Mapping[str, ClosedForm]
    nearest: Mapping[str, Nearest | None]
    candidates: int
    evaluated: int
    feasible: int
    rejected: Mapping[str, int]
    elapsed_s: float
    again_s: float
    complete: bool
    assumptions: tuple[Assumption, ...]
    warnings: tuple[Warning, ...]

    def __iter__(self) -> Iterator[Any]:
        yield self.frame
        yield self.ceiling

    @property
    def frame(self) -> DataFrame:
        """The rows as a table: a column for each value of a layout, its step and its memory."""
        import pandas as pd

        return pd.DataFrame([row.to_dict() for row in self.rows], columns=list(COLUMNS))

    @property
    def ceiling(self) -> Ceiling:
        """That of the first machine."""
        return self.ceilings[self.setups[0].name]

    @property
    def layouts_per_s(self) -> float:
        """Candidates decided in a second, all processes together."""
        decided = self.feasible + sum(self.rejected.values())
        return decided / self.elapsed_s if self.elapsed_s > 0.0 else 0.0

    @property
    def level(self) -> float:
        """Relative difference of two steps from which on two layouts can be told apart."""
        return between_layouts().value

    @property
    def reasons(self) -> dict[str, str]:
        """What each name of ``rejected`` means."""
        return reasons_of(self.spaces)

    @property
    def best(self) -> CurvePoint | None:
        """The best point of the curve by the objective; None where nothing fits."""
        return min((p for p in self.curve if p.row is not None), key=self._goodness, default=None)

    def _goodness(self, point: CurvePoint) -> tuple[float, ...]:
        row = point.row
        assert row is not None  # noqa: S101 - of points that fit
        objective = self.given.get("objective", "time")
        each_token = row.step_time_s / point.global_batch
        cost = each_token * row.gpus * rates_of(self.setups)[point.setup]
        first = {"time": each_token, "cost": cost, "headroom": each_token, "gpus": float(row.gpus)}[objective]
        return (first, each_token, float(row.gpus))

    def to_json(self) -> dict[str, Any]:
        """The answer as the JSON object that the documentation freezes."""
        result = {
            "rows": [row.to_dict() for row in self.rows],
            "curve": [point.to_dict() for point in self.curve],
            "ceiling": ceiling_json(self.ceiling),
            "ceilings": {name: ceiling_json(found) for name, found in self.ceilings.items()},
            "closed_forms": {name: found._asdict() for name, found in self.closed_forms.items()},
            "candidates": self.candidates,
            "evaluated": self.evaluated,
            "feasible": self.feasible,
            "rejected": dict(self.rejected),
            "layouts_per_s": self.layouts_per_s,
            "elapsed_s": self.elapsed_s,
            "again_s": self.again_s,
            "complete": self.complete,
            "nearest": {
                name: None
                if found is None
                else found.row.to_dict() | {"missing_bytes": found.missing_bytes, "next_step": found.next_step}
                for name, found in self.nearest.items()
            },
        }
        return envelope("sweep", self._inputs(), self.assumptions, self.warnings, result)

    def _inputs(self) -> dict[str, Any]:
        """The inputs that layouts share, and the values tried of each axis."""
        found = inputs_of(self.setups[0].case)
        shared = {name: value for name, value in found["layout"].items() if name in _SHARED}
        for name in ("micro_batch", "grad_accum", "global_batch", "tokens_per_rank", "recompute", "recompute_layers"):
            found["training"].pop(name)
        widest: dict[str, set[float]] = {name: set() for name in ORDER}
        for space in self.spaces:
            for name in ORDER:
                widest[name] |= set(space.values[name])
        found["layout"] = shared
        found["setups"] = [
            {"name": s.name, **dict(s.words), "gpus": list(s.gpus), "global_batch": list(s.batches)}
            | ({"hardware": inputs_of(s.case)["hardware"]} if len(self.setups) > 1 else {})
            for s in self.setups
        ]
        found["axes"] = {name: [_shown(name, v) for v in sorted(values)] for name, values in widest.items()}
        found["sweep"] = {name: self.given.get(name) for name in _OWN}
        return found


_SHARED = ("reshard", "no_sync")
_OF_PRICE = ("price", "pue", "mtbf", "checkpoint_interval", "checkpoint_time", "restart_time")
_OWN = ("top", "objective", "within", "scaling", "marginal", "tokens", *_OF_PRICE)


def sweep(*, progress: Progress | None = None, **options: object) -> SweepAnswer:
    """Every layout of a model on some GPUs, as ``dscalc sweep`` answers it.

    Args:
        progress: called now and then with how much is done of how much.
        options: the words of the command line, e.g. ``model="llama-3-8b", cluster="dgx-h100", gpus="8..64"``; lists and
            ranges as text or as Python lists.

    Returns:
        The answer, which unpacks into a table and a ceiling: ``frame, ceiling = dscalc.sweep(...)``.

    Raises:
        DscalcError: an unknown name, an unreadable file, a value out of range, options that contradict each other, or
            more candidates than can be tried.
    """
    for word in options:
        if canonical(word) in LEFT_OUT:
            raise InputError(LEFT_OUT[canonical(word)], where="--" + canonical(word).replace("_", "-"))
    given = {name: value for name, value in gather(options, TABLE).items() if TABLE[name].group != "output"}
    return answer(given, progress)


def answer(given: Mapping[str, Any], progress: Progress | None = None) -> SweepAnswer:
    """The same from options that ``gather`` has read."""
    setups = build_setups(given)
    places = [(setup, space) for setup in setups for space in spaces_of(setup, given)]
    refuse_too_many([space for _, space in places])
    most, level = max(given.get("top", DEFAULT_TOP), STOCK), between_layouts().value
    problems = [
        Problem(space, setup.machine, most, level, moves(setup.machine, space.base.books)) for setup, space in places
    ]
    twice = [Problem(space, setup.machine, STOCK) for setup in setups for space in spaces_of(doubled(setup), given)]
    told = [_counted(progress, [], twice), _counted(progress, problems, [])]
    jobs = given.get("jobs", 1)
    start = time.perf_counter()
    results = search(problems, jobs, told[0])
    elapsed = time.perf_counter() - start
    rows = _rows(places, results, given, level)
    complete = all(found.complete for found in results)
    again = search(twice, jobs, told[1]) if complete and rows else [Found() for _ in twice]
    again_s = time.perf_counter() - start - elapsed
    moved = complete and all(found.complete for found in again)
    fitting = {row.setup for row in rows}
    nearest = {s.name: nearest_of(s, places, given) for s in setups if complete and s.name not in fitting}
    rejected: dict[str, int] = {}
    for found in results:
        for name, count in found.rejected:
            rejected[name] = rejected.get(name, 0) + count
    curve = [point for setup in setups for point in _curve(setup, places, results, rows, given)]
    illegal = {(p.setup, p.gpus): p.lacking for p in curve if p.lacking and p.lacking not in (NOT_SEARCHED, MEMORY)}
    budgets = [point.budget for point in curve if point.budget is not None]
    return SweepAnswer(
        setups=setups,
        spaces=tuple(space for _, space in places),
        given=dict(given),
        rows=tuple(rows),
        curve=tuple(curve),
        ceilings=ceilings(given, places, results, list(zip(twice, again, strict=True)) if moved else [], curve),
        closed_forms=closed_forms(setups, curve, given),
        nearest=nearest,
        candidates=sum(space.candidates for _, space in places),
        evaluated=sum(found.evaluated for found in results),
        feasible=sum(found.feasible for found in results),
        rejected=dict(sorted(((n, c) for n, c in rejected.items() if c), key=lambda item: (-item[1], item[0]))),
        elapsed_s=elapsed,
        again_s=again_s,
        complete=complete and moved,
        assumptions=assumptions_of(setups, given),
        warnings=tuple(warnings_of(places, complete, moved, nearest, illegal, rows, budgets, given)),
    )


def _counted(progress: Progress | None, before: Sequence[Problem], after: Sequence[Problem]) -> Progress | None:
    """Progress of a search between others, told as that of all."""
    if progress is None:
        return None
    done, rest = (sum(p.space.size for p in problems) for problems in (before, after))
    return lambda now, size: progress(done + now, done + size + rest)


def _rows(places: Places, results: Sequence[Found], given: Mapping[str, Any], level: float) -> list[Row]:
    """The best layouts of each place, then the simplest that is level with the fastest, and what else is on the front.

    Marked where nothing beats them, and where they are level with the fastest.
    """
    rows: list[Row] = []
    within = given.get("within", DEFAULT_WITHIN)
    for (setup, space), found in zip(places, results, strict=True):
        listed = roomiest(found.front, within) if given.get("objective") == "headroom" else found.top
        first = listed.ids[: given.get("top", DEFAULT_TOP)]
        more = np.concatenate([found.simple.ids[-1:], found.front.ids])
        more = more[~np.isin(more, first)]
        more = more[np.sort(np.unique(more, return_index=True)[1])]
        mine = rows_of(setup, space, [*first, *more], [*range(1, len(first) + 1), *[0] * len(more)])
        bound = found.top.step_time_s[0] * (1.0 + level) if mine else 0.0
        simplest = found.simple.ids[-1] if mine else -1
        rows += [replace(r, level=r.step_time_s <= bound, simplest=r.number == simplest) for r in mine]
    if not rows:
        return rows
    room = [-(row.headroom_bytes if row.headroom_bytes is not None else -row.total_bytes) for row in rows]
    prices = {setup.name: price_of(setup) for setup, _ in places}
    rows = [replace(row, usd_per_token=usd_per_token(row, prices[row.setup])) for row in rows]
    each = [row.step_time_s / row.layout.global_batch for row in rows]
    rates = rates_of(setup for setup, _ in places)
    cost = [e * row.gpus * rates[row.setup] for e, row in zip(each, rows, strict=True)]
    pareto = front_of([np.asarray(c) for c in (each, room, [float(row.gpus) for row in rows], cost)])
    marked = [replace(row, pareto=bool(p)) for row, p in zip(rows, pareto.tolist(), strict=True)]
    return [row for row in marked if row.rank or row.pareto or row.simplest]


def _curve(
    setup: Setup, places: Places, results: Sequence[Found], rows: Sequence[Row], given: Mapping[str, Any]
) -> Iterator[CurvePoint]:
    """The best layout at each number of GPUs, against the smallest number that fits."""
    mine = [(space, found) for (other, space), found in zip(places, results, strict=True) if other is setup]
    base: Row | None = None
    before: Row | None = None
    for gpus, batch, (space, found) in zip(setup.gpus, setup.batches, mine, strict=True):
        row = next((r for r in rows if r.setup == setup.name and r.gpus == gpus and r.rank == 1), None)
        if row is None:
            yield CurvePoint(setup.name, gpus, batch, None, None, None, None, lacking(space, found))
            continue
        base = base or row
        marginal = None
        if before is not None:
            added = (row.tokens_per_s - before.tokens_per_s) / (row.gpus - before.gpus)
            marginal = added / base.tokens_per_s_per_gpu
        efficiency = row.tokens_per_s_per_gpu / base.tokens_per_s_per_gpu
        budget = budget_of(setup, row, given) if "tokens" in given else None
        yield CurvePoint(setup.name, gpus, batch, row, efficiency, marginal, budget)
        before = row


def _shown(name: str, value: float) -> Any:
    """A value of an axis as an option has it."""
    from dscalc import codes

    books = {"schedule": codes.SCHEDULES, "recompute": codes.RECOMPUTES, "cp_comm": codes.CP_COMMS}
    if name in books:
        return books[name][int(value)]
    if name == "sequence_parallel":
        return bool(value)
    return int(value) if np.isfinite(value) else None
