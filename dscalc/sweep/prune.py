"""One space, or a part of it: prune prefixes in the written order, evaluate the rest in chunks, keep the best ones.

Written order: legality by the axis that decides it, then a lower bound on memory, then memory, then time. A layout is
counted once, at its first reason. Results do not depend on the size of chunks or the number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from math import prod

import numpy as np

from dscalc.cost.axes import groups
from dscalc.cost.columns import COLUMNS, narrowed
from dscalc.cost.evaluate import CHUNK_ROWS, TIMED_ROWS
from dscalc.cost.memory import memory
from dscalc.cost.memory_floor import state_floor_bytes
from dscalc.cost.step import Step, step
from dscalc.cost.stragglers import with_straggler
from dscalc.frozen import dataclass
from dscalc.records import Adapters, Array, Books, Hardware, Layouts, Mask, ModelShape, Timing
from dscalc.sweep.rank import NONE_KEPT, Kept, beaten, best, front, joined, simpler
from dscalc.sweep.space import ORDER, STATE_AXES, Check, Ids, Space, checks

FLOOR, MEMORY = "memory_floor", "memory"
FLOOR_LEVEL = ORDER.index(STATE_AXES) + 1
FIRST_MOVED = 32  # layouts timed after each move before any other: a good bound for those to come


@dataclass(frozen=True, slots=True, eq=False)
class Machine:
    """What layouts of one setup are evaluated on."""

    hardware: Hardware
    timing: Timing
    adapters: Adapters | None = None
    jitter_fraction: float = 0.0  # of a step, between GPUs: everyone waits for the slowest


@dataclass(frozen=True, slots=True, eq=False)
class Move:
    """A machine with one rate changed, for which the best layout is looked for too.

    No step may get faster by more than ``gain``, and where ``quiet`` nothing but communication may get faster: a layout
    that this cannot bring to the front is not timed again.
    """

    machine: Machine
    books: Books
    gain: float
    quiet: bool


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """One space on one machine, and what to keep of it."""

    space: Space
    machine: Machine
    top: int
    level: float = 0.0  # relative difference of two times that does not tell which layout is faster
    moves: tuple[Move, ...] = ()
    fits_anyway: bool = False  # memory does not reject: to find the layout that is nearest to fitting
    chunk_rows: int = 2 * TIMED_ROWS  # neighbours share what the step works out once; more rows leave the cache


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What a search of one space, or of a part of it, has found."""

    top: Kept = NONE_KEPT
    front: Kept = NONE_KEPT
    simple: Kept = NONE_KEPT  # of rank.simpler
    moved: tuple[Kept, ...] = ()  # the best layout of each move, with the seconds of its step after it
    evaluated: int = 0  # memory computed in full
    feasible: int = 0  # of these, fit and were timed
    rejected: tuple[tuple[str, int], ...] = ()  # by first reason
    done: int = 0  # numbers of the space that are decided
    complete: bool = True


Progress = Callable[[int, int], None]  # numbers decided, numbers in all


def merged(first: Found, second: Found, problem: Problem) -> Found:
    """Two parts of one space together."""
    counts = dict(first.rejected)
    for name, count in second.rejected:
        counts[name] = counts.get(name, 0) + count
    return Found(
        top=best(joined([first.top, second.top]), problem.top, "memory" if problem.fits_anyway else "time"),
        front=front(joined([first.front, second.front])),
        simple=simpler(joined([first.simple, second.simple]), problem.level),
        moved=tuple(best(joined(pair), 1) for pair in zip(first.moved, second.moved, strict=True))
        if first.moved and second.moved
        else first.moved or second.moved,
        evaluated=first.evaluated + second.evaluated,
        feasible=first.feasible + second.feasible,
        rejected=tuple(sorted(counts.items())),
        done=first.done + second.done,
        complete=first.complete and second.complete,
    )


def taken(layouts: Layouts, mask: Mask) -> Layouts:
    """The rows of a mask; columns that stand for every row stay."""
    rows = np.flatnonzero(mask)  # positions gather several times as fast as a mask
    long = {name: getattr(layouts, name) for name in COLUMNS}
    return replace(layouts, **{name: c.take(rows) for name, c in long.items() if c.shape == mask.shape})


class Pruner:
    """Prefixes of one space, rejected as early as they can be."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.space = problem, problem.space
        self.checks = checks(self.space)
        self.radices = self.space.radices
        self.behind = [prod(self.radices[level:]) for level in range(len(ORDER) + 1)]
        self.levels: list[list[Check]] = [[c for c in self.checks if c.level == n] for n in range(len(ORDER) + 1)]

    def walk(self, level: int, ids: Ids, counts: dict[str, int], since: int | None = None) -> Iterator[Ids]:
        """Legal layouts behind prefixes, in ascending order; ``counts`` gathers the others by reason.

        Checks of the levels before ``since`` (of this one, where it is None) have been made.
        """
        for decided in range(level if since is None else since, level + 1):
            ids = self.kept(decided, level, ids, counts)
        if not ids.size:
            return
        if level == len(ORDER):
            yield ids
            return
        radix = self.radices[level]
        step_ = max(1, self.problem.chunk_rows // radix)
        digits = np.arange(radix, dtype=np.int64)
        for start in range(0, ids.size, step_):
            part = ids[start : start + step_]
            yield from self.walk(level + 1, (part[:, None] * radix + digits).reshape(-1), counts)

    def kept(self, decided: int, level: int, ids: Ids, counts: dict[str, int]) -> Ids:
        """Prefixes of ``level`` axes that nothing rejects that the first ``decided`` of them decide."""
        weight = self.behind[level]
        if self.levels[decided] and ids.size:
            layouts = self.space.layouts(ids, level, {name for check in self.levels[decided] for name in check.reads})
            derived = groups(layouts)
            alive = np.ones(ids.size, dtype=bool)
            for check in self.levels[decided]:
                hit = alive & check.rejects(layouts, derived)
                count = int(np.count_nonzero(hit))
                if count:
                    counts[check.name] = counts.get(check.name, 0) + count * weight
                    alive &= ~hit
            ids = ids.take(np.flatnonzero(alive))
        if decided == FLOOR_LEVEL and ids.size and not self.problem.fits_anyway:
            fits = self.fits(ids, level)
            counts[FLOOR] = counts.get(FLOOR, 0) + (ids.size - int(np.count_nonzero(fits))) * weight
            ids = ids[fits]
        return ids

    def fits(self, ids: Ids, level: int) -> Mask:
        """Whether the state alone leaves any room."""
        machine = self.problem.machine
        layouts = narrowed(self.space.layouts(ids, level), ids.size)
        floor = state_floor_bytes(self.space.shape, layouts, machine.adapters)
        return np.broadcast_to(~(floor > machine.hardware.usable_bytes), ids.shape)


def chunks(pruner: Pruner, level: int, first: int, last: int, counts: dict[str, int]) -> Iterator[Ids]:
    """Legal layouts behind the prefixes ``first`` to ``last`` of a level, gathered to full chunks."""
    rows = pruner.problem.chunk_rows
    waiting: list[Ids] = []
    held = 0
    for start in range(first, last, rows):
        prefixes = np.arange(start, min(last, start + rows), dtype=np.int64)
        for ids in pruner.walk(level, prefixes, counts, since=0):
            waiting.append(ids)
            held += ids.size
            if held >= rows:
                whole = np.concatenate(waiting)
                yield whole[:rows]
                waiting, held = [whole[rows:]], whole.size - rows
    if held:
        yield np.concatenate(waiting)


class Moved:
    """The best layout of each move: rows are gathered, and timed again where they may be the best one then."""

    def __init__(self, problem: Problem) -> None:
        self.problem, self.moves = problem, problem.moves
        self.best = [NONE_KEPT] * len(self.moves)
        self.waiting: list[tuple[Kept, Array]] = []
        self.held = 0

    def offer(self, rows: Kept, quiet_s: Array) -> None:
        """Rows with the seconds of their step before any move, and without communication and what it adds elsewhere."""
        if not self.moves or not len(rows):
            return
        if not len(self.best[0]):
            first = best(rows, FIRST_MOVED)
            self._work(first, 0.0 * first.step_time_s)
        near = np.logical_or.reduce([self._may_be_best(n, rows, quiet_s) for n in range(len(self.moves))])
        self.waiting.append((rows.take(near), quiet_s[near]))
        self.held += int(np.count_nonzero(near))
        if self.held >= self.problem.chunk_rows:
            self.flush()

    def flush(self) -> tuple[Kept, ...]:
        """The best layouts of all rows so far."""
        if self.held:
            waiting, self.waiting, self.held = self.waiting, [], 0
            self._work(joined([rows for rows, _ in waiting]), np.concatenate([quiet for _, quiet in waiting]))
        return tuple(self.best)

    def _may_be_best(self, number: int, rows: Kept, quiet_s: Array) -> Mask:
        move, first = self.moves[number], self.best[number].step_time_s
        least = rows.step_time_s / move.gain
        return np.asarray((np.maximum(least, quiet_s) if move.quiet else least) <= (first[0] if len(first) else np.inf))

    def _work(self, rows: Kept, quiet_s: Array) -> None:
        space = self.problem.space
        for number, move in enumerate(self.moves):
            mine = rows.take(self._may_be_best(number, rows, quiet_s))
            if len(mine):
                layouts = replace(narrowed(space.layouts(mine.ids), len(mine)), books=move.books)
                seconds = timed(space.shape, move.machine, layouts, len(mine)).step_time_s
                fastest = best(Kept(mine.ids, seconds, mine.total_bytes), 1)
                self.best[number] = best(joined([self.best[number], fastest]), 1)


def evaluated(problem: Problem, ids: Ids, known: Kept = NONE_KEPT, moved: Moved | None = None) -> Found:
    """One chunk of legal layouts: memory of all, time of those that fit; ``known`` is the front so far."""
    total, fits = memory_bytes(problem, ids)
    if problem.fits_anyway:
        nearest = best(Kept(ids, np.zeros(ids.size), total), problem.top, "memory")
        return Found(top=nearest, evaluated=ids.size, done=ids.size)
    kept = np.flatnonzero(fits)
    missing = ids.size - kept.size
    rejected = ((MEMORY, missing),) if missing else ()
    if not kept.size:
        return Found(evaluated=ids.size, rejected=rejected, done=ids.size)
    feasible = ids.take(kept)
    layouts = narrowed(problem.space.layouts(feasible), feasible.size)
    found = timed(problem.space.shape, problem.machine, layouts, feasible.size)
    rows = Kept(feasible, found.step_time_s, total.take(kept))
    if moved is not None:
        bubble = found.bubble_over_ideal * found.micro_batch_s * layouts.n_micro
        moved.offer(rows, rows.step_time_s - found.communication_s - bubble)
    unbeaten = rows.take(~beaten(rows, known))
    return Found(
        top=best(rows, problem.top),
        front=front(unbeaten),
        simple=simpler(rows, problem.level),
        evaluated=ids.size,
        feasible=feasible.size,
        rejected=rejected,
        done=ids.size,
    )


def memory_bytes(problem: Problem, ids: Ids) -> tuple[Array, Mask]:
    """Bytes of a GPU of each layout, and where they fit; few rows at a time, whose columns stay in the cache."""
    space, machine = problem.space, problem.machine
    totals, fits = [], []
    for start in range(0, ids.size, CHUNK_ROWS):
        part = ids[start : start + CHUNK_ROWS]
        layouts = narrowed(space.layouts(part), part.size)
        held = memory(space.shape, layouts, machine.hardware, machine.adapters, keep_terms=False)
        totals.append(held.total_bytes)
        fits.append(~(held.total_bytes > held.usable_bytes))
    return np.concatenate(totals), np.concatenate(fits)


def timed(shape: ModelShape, machine: Machine, layouts: Layouts, count: int) -> Step:
    """The step of each of ``count`` layouts, without its terms; many at a time, which share what few columns decide."""
    layouts = replace(layouts, pp=np.broadcast_to(layouts.pp, (count,)))
    found = timed_on(machine, shape, layouts, keep_terms=False)
    return replace(found, step_time_s=np.broadcast_to(found.step_time_s, (count,)))


def timed_on(machine: Machine, shape: ModelShape, layouts: Layouts, *, keep_terms: bool = True) -> Step:
    """Steps of layouts on a machine, with the waiting for its slowest GPU."""
    found = step(shape, layouts, machine.timing, machine.adapters, keep_terms=keep_terms)
    if not machine.jitter_fraction:
        return found
    gpus = np.asarray(layouts.tp * layouts.pp * layouts.cp * layouts.dp)
    return with_straggler(found, np.array([machine.jitter_fraction]), gpus)


def part(problem: Problem, level: int, first: int, last: int, told: Progress | None = None) -> Found:
    """Search what lies behind the prefixes ``first`` to ``last`` of a level.

    An interrupt ends it early with what has been found, marked incomplete.
    """
    pruner = Pruner(problem)
    total = (last - first) * pruner.behind[level]
    found, counts = Found(), dict[str, int]()
    moved = Moved(problem)
    try:
        for ids in chunks(pruner, level, first, last, counts):
            found = merged(found, evaluated(problem, ids, found.front, moved), problem)
            if told is not None:
                told(found.done + sum(counts.values()), total)
        found = replace(found, moved=moved.flush())
    except KeyboardInterrupt:
        found = replace(found, complete=False)
    holes = problem.space.holes
    pruned = Found(
        rejected=tuple((name, count) for name, count in counts.items() if name not in holes),
        done=sum(counts.values()),
    )
    return merged(found, pruned, problem)
