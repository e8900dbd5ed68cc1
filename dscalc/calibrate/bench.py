"""``dscalc bench``: measure what this machine computes and communicates, row by row, until done or out of budget.

Rank 0 decides, writes and judges; the others do as it says. Rows are on disk as they are measured.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import numpy as np

from dscalc.calibrate.bench_control import Control
from dscalc.calibrate.bench_place import Facts, hosts_of, place_of, to_facts, world_of
from dscalc.calibrate.bench_plan import (
    Calls,
    Item,
    Pace,
    World,
    calls_for,
    groups_of,
    left_to_do,
    pair_rounds,
    plan,
    scopes,
    shape_of,
    share_s,
)
from dscalc.calibrate.fit_line import require_scipy
from dscalc.calibrate.rows import SCHEMA, Row, RowWriter, load_rows, rows_path
from dscalc.errors import DscalcError, InputError
from dscalc.records import Array

Progress = Callable[[int, int, str, float], None]
Say = Callable[[str], None]
LONGEST_MESSAGE = 900  # characters of a note
LOW, HIGH = 10.0, 90.0  # percentiles of a row's spread


class Asked(NamedTuple):
    """What a run was asked to do."""

    output: str  # name of the profile; rows go beside it
    budget_s: float
    timeout_s: float
    resume: bool
    force: bool
    version: str


class Measured(NamedTuple):
    """What a run gave."""

    path: str  # of the rows
    rows: tuple[Row, ...]
    hosts: tuple[str, ...]
    world: World
    out_of_budget: int  # items that the budget left out


def measure(asked: Asked, *, progress: Progress | None = None, complain: Say) -> Measured | None:
    """Run the benchmark on this rank.

    Args:
        asked: what to do.
        progress: called on rank 0 before each item with items done, all items, words and seconds so far.
        complain: says one line to the user where the process must end at once, because a rank does not answer.

    Returns:
        What was measured on rank 0; None on the other ranks.

    Raises:
        InputError: no torch, a launcher that does not say enough, a file in the way, nodes that differ.
    """
    place = place_of(os.environ)
    if place.ranks == 1:
        _refuse_overwriting(asked)  # before torch takes its seconds
    from dscalc.calibrate.bench_torch import Device, need_torch

    need_torch()
    control = Control(place, asked.timeout_s, complain)
    try:
        if place.rank == 0:
            _refuse_overwriting(asked)
            require_scipy()  # the profile needs it: say so before measuring
        device = Device(place)
        facts = _introduce(control, device.facts())
        world, control.hosts = world_of(facts), hosts_of(facts)
        if place.rank == 0:
            return _lead(asked, control, device, world, facts, progress, complain)
        _follow(control, device, world)
    except DscalcError as error:
        if place.rank == 0:
            control.dismiss()
            raise
        control.trouble(error)
    except (RuntimeError, OSError) as error:
        control.trouble(error)
    finally:
        control.close()
    return None


def _refuse_overwriting(asked: Asked) -> None:
    if asked.resume or asked.force:
        return
    for path in (asked.output, rows_path(asked.output)):
        if os.path.lexists(path):
            raise InputError("exists; --resume goes on with it, --force replaces it", where=path)


def _introduce(control: Control, own: Facts) -> list[Facts]:
    """Every rank's facts."""
    control.say(f"facts/{control.place.rank}", own._asdict())
    found = control.hear_all([f"facts/{rank}" for rank in range(control.place.ranks)])
    return [to_facts(data) for data in found]


# ------------------------------------------------------------------------------------------------------------- rank 0
def _lead(
    asked: Asked,
    control: Control,
    device: Any,
    world: World,
    facts: Sequence[Facts],
    progress: Progress | None,
    complain: Say,
) -> Measured:
    path, started = rows_path(asked.output), time.monotonic()
    run = _run_row(asked, world, facts, control.hosts)
    known = _resumed(path, run) if asked.resume else []
    writer = RowWriter(path, resume=asked.resume, force=asked.force)
    rows = [*known]

    def keep(row: Row) -> None:
        writer.write(row)
        rows.append(row)

    def judged(text: str) -> None:
        # From the thread that watches: the main one may never return. A line is written whole.
        with suppress(OSError):
            writer.write({"kind": "failure", "message": _plain(text)})
        complain(f"{text}; {_count(rows)} measurements are kept in {path}; --resume goes on")

    control.judged = judged
    keep(run)
    for code, message in _absent(world):
        keep({"kind": "note", "code": code, "message": message})
    items = left_to_do(plan(world), known, world)
    control.say("plan", [list(item) for item in items])
    device.connect(control.store, world, scopes(world), asked.timeout_s + 2.0 * asked.budget_s)
    pace = _pace_of(known)
    cannot: set[tuple[str, str]] = set()
    share, dear = share_s(asked.budget_s, len(items)), 0
    for number, item in enumerate(items):
        elapsed = time.monotonic() - started
        expected = pace.expect(item)
        most = 0.0 if expected is None else expected.most_s
        calls = calls_for(item, expected, share, asked.budget_s, asked.budget_s - elapsed)
        if (item.kind, item.dtype) in cannot and item.kind == "gemm":
            calls = None
        elif calls is None:
            dear += 1
        control.say(f"order/{number}", None if calls is None else [*calls, most])
        if calls is None:
            continue
        if progress is not None:
            progress(number, len(items), item.words, elapsed)
        own = _obey(control, device, world, number, item, calls, most)
        found = _gather(control, number, own, world, item)
        fault = next((data["cannot"] for data in found.values() if "cannot" in data), None)
        if fault is not None:
            cannot.add((item.kind, item.dtype))
            keep({"kind": "note", "code": "unsupported", "message": _plain(fault)})
            continue
        for row in combine(item, world, found, calls):
            keep(row)
            if "time_s" in row:
                pace.note(item, row["time_s"])
    if dear:
        words = f"{dear} of {len(items)} items left out: the budget of {asked.budget_s:g} s is too small for them"
        keep({"kind": "note", "code": "budget", "message": words})
    control.say(f"order/{len(items)}", None)
    device.disconnect()
    keep({"kind": "end", "elapsed_s": time.monotonic() - started, "measured": len(items) - dear, "left_out": dear})
    writer.close()
    if progress is not None:
        progress(len(items), len(items), "done", time.monotonic() - started)
    return Measured(path, tuple(rows), tuple(control.hosts), world, dear)


def _run_row(asked: Asked, world: World, facts: Sequence[Facts], hosts: Sequence[str]) -> Row:
    first = facts[0]
    return {
        "kind": "run",
        "schema": SCHEMA,
        "version": asked.version,
        "torch": first.torch,
        "backend": first.backend,
        "library": first.library,
        "device": first.device,
        "memory_bytes": world.memory_bytes,
        "ranks": world.ranks,
        "nodes": world.nodes,
        "ranks_per_node": world.ranks_per_node,
        "hosts": list(hosts),
    }


def _resumed(path: str, run: Row) -> list[Row]:
    """Rows of an earlier run on the same machines.

    Raises:
        InputError: the file is of other machines, or unreadable.
    """
    if not os.path.lexists(path):
        return []
    rows = [row for _, row in load_rows(path)[0]]
    for name in ("backend", "device", "ranks", "nodes", "ranks_per_node", "hosts"):
        if rows[0][name] != run[name]:
            raise InputError(
                f"was measured with {name} {rows[0][name]}, this run has {run[name]}; name another --output", where=path
            )
    return rows


def _absent(world: World) -> list[tuple[str, str]]:
    """What cannot be measured here at all, in words."""
    found = []
    if world.ranks == 1:
        found.append(("skipped", "one rank: no collectives; start several with torchrun --nproc-per-node N"))
    elif world.nodes == 1:
        found.append(("skipped", "one node: nothing between nodes was measured"))
    if world.backend == "gloo":
        found.append(("skipped", "no GPU: CPUs were measured, and gloo; no slowdown of products beside collectives"))
    return found


def _pace_of(rows: Iterable[Row]) -> Pace:
    pace = Pace()
    for row in rows:
        if "time_s" in row:
            names = {name: row[name] for name in Item._fields if name in row}
            pace.note(Item(**names), row["time_s"])
    return pace


def _count(rows: Iterable[Row]) -> int:
    return sum("time_s" in row or row["kind"] == "overlap" for row in rows)


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)[:LONGEST_MESSAGE]


def _gather(control: Control, number: int, own: Mapping[str, Any], world: World, item: Item) -> dict[int, Any]:
    """What each rank that took part has measured."""
    ranks = [rank for rank in taking_part(item, world) if rank != 0]
    keys = [f"sample/{number}/{rank}" for rank in ranks]
    heard = control.hear_all(keys) if keys else []
    control.forget(keys)
    control.leave()
    found = dict(zip(ranks, heard, strict=True))
    return {**({0: own} if own else {}), **{rank: data for rank, data in found.items() if data}}


def taking_part(item: Item, world: World) -> list[int]:
    """Ranks that have something to do in an item."""
    if item.kind in ("collective", "overlap"):
        return sorted(rank for members in groups_of(item.scope, world) for rank in members)
    if item.kind == "pair":
        inside = world.ranks_per_node
        return sorted(node * inside for pair in pair_rounds(world.nodes)[item.round] for node in pair)
    return list(range(world.ranks))


# -------------------------------------------------------------------------------------------------------- other ranks
def _follow(control: Control, device: Any, world: World) -> None:
    items = [Item(*fields) for fields in control.hear("plan")]
    device.connect(control.store, world, scopes(world), control.timeout_s * 2.0 + 3600.0)
    for number, item in enumerate(items):
        order = control.hear(f"order/{number}")
        if order is None:
            continue
        *counts, expected = order
        found = _obey(control, device, world, number, item, Calls(*counts), expected)
        if control.place.rank in taking_part(item, world):
            control.say(f"sample/{number}/{control.place.rank}", found)
        control.leave()
    control.hear(f"order/{len(items)}")
    device.disconnect()


def _obey(
    control: Control, device: Any, world: World, number: int, item: Item, calls: Calls, expected_s: float
) -> dict[str, Any]:
    """Measure one item on this rank."""
    from dscalc.calibrate.bench_torch import CannotError

    takes_part = control.place.rank in taking_part(item, world)
    control.enter(number, item.words, expected_s * calls.total, takes_part)
    if not takes_part:
        return {}
    try:
        found: dict[str, Any] = device.measure(item, calls, world)
    except CannotError as error:
        return {"cannot": _plain(str(error))}
    return found


# ------------------------------------------------------------------------------------------------------------- rows
def combine(item: Item, world: World, found: Mapping[int, Mapping[str, Any]], calls: Calls) -> list[Row]:
    """Rows of an item from what its ranks measured.

    Args:
        item: the item.
        world: the run.
        found: for each rank that took part, ``t`` (seconds of a call in each sample) and what else it reports.
        calls: how often it was called.

    Returns:
        One row; of node pairs one a pair.
    """
    counted = {"calls": calls.samples * calls.each}
    if item.kind == "pair":
        inside = world.ranks_per_node
        return [
            {"kind": "pair", "from_node": a, "to_node": b, "size_bytes": item.size_bytes}
            | _spread(np.array(found[a * inside]["t"]))
            | counted
            for a, b in pair_rounds(world.nodes)[item.round]
        ]
    group = {"op": item.op, "scope": item.scope, **(shape_of(item.scope, world) if item.scope else {})}
    group |= {"size_bytes": item.size_bytes, "dtype": item.dtype}
    if item.kind == "overlap":
        four = np.median([data["overlap"] for data in found.values()], axis=0)
        names = ("compute_s", "communication_s", "compute_beside_s", "communication_beside_s")
        product = {"dtype": item.dtype, "m": item.m, "n": item.n, "k": item.k}
        both = dict(zip(names, map(float, four), strict=True))
        return [{"kind": "overlap", **group, **product, **both, **counted}]
    if item.kind == "collective":
        # a call lasts until its slowest rank is through
        slowest = [np.max([found[r]["t"] for r in members], axis=0) for members in groups_of(item.scope, world)]
        each = [float(np.median(calls_s)) for calls_s in slowest]
        wrong = [data["wrong"] for data in found.values()]
        bad = None if None in wrong else sum(wrong)
        spread = _spread(np.concatenate(slowest), float(np.median(each)))
        return [{"kind": "collective", **group, **spread, **counted, "group_time_s": each, "wrong": bad}]
    times = [np.array(found[rank]["t"]) for rank in range(world.ranks)]
    medians = [float(np.median(t)) for t in times]
    own: Row = {"kind": item.kind}
    if item.kind == "gemm":
        own |= {"dtype": item.dtype, "m": item.m, "n": item.n, "k": item.k}
    elif item.kind == "memory_copy":
        own |= {"size_bytes": item.size_bytes}
    lows = [float(np.percentile(t, LOW)) for t in times]
    spread = _spread(np.concatenate(times), float(np.median(medians)))
    return [{**own, **spread, **counted, "rank_time_s": medians, "rank_low_s": lows}]


def _spread(times: Array, middle: float | None = None) -> Row:
    """Median, tenth and ninetieth percentile."""
    time_s = float(np.median(times)) if middle is None else middle
    low, high = (float(np.percentile(times, q)) for q in (LOW, HIGH))
    return {"time_s": time_s, "low_s": min(low, time_s), "high_s": max(high, time_s)}
