"""What a sweep says beside its numbers: what fits least badly, what was assumed, and what to do next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Any

import numpy as np

from dscalc.answers.envelope import Assumption, Warning
from dscalc.answers.memory import answer as memory_answer
from dscalc.answers.step import jitter_assumption, rate_assumptions
from dscalc.answers.sweep_budget import Budget, budget_assumptions, budget_warnings, price_assumptions
from dscalc.answers.sweep_lacking import reasons_of, what_would_be_legal
from dscalc.answers.sweep_rows import Row, layout_words, recompute_words, rows_of
from dscalc.answers.sweep_setup import Setup, base_words, default_batch
from dscalc.frozen import dataclass
from dscalc.specs.layout_spec import LayoutSpec
from dscalc.specs.pace import bar_notes, between_layouts
from dscalc.sweep.prune import Problem
from dscalc.sweep.search import search
from dscalc.sweep.space import Space
from dscalc.units import format_bytes

Places = Sequence[tuple[Setup, Space]]


@dataclass(frozen=True, slots=True)
class Nearest:
    """The layout that lacks the least memory, where nothing fits; ``next_step`` is what to try."""

    row: Row
    missing_bytes: float
    next_step: str


def nearest_of(setup: Setup, places: Places, given: Mapping[str, Any]) -> Nearest | None:
    """The legal layout of a machine that comes nearest to fitting; None where no layout is legal.

    Args:
        setup: the machine.
        places: machines with their spaces.
        given: parsed options.

    Returns:
        The layout, what is missing, and what to try.
    """
    spaces = [space for other, space in places if other is setup]
    found = search([Problem(space, setup.machine, 1, fits_anyway=True) for space in spaces])
    rows = [row for space, part in zip(spaces, found, strict=True) for row in rows_of(setup, space, part.top.ids, [0])]
    if not rows:
        return None
    row = min(rows, key=lambda r: r.total_bytes)
    missing = row.total_bytes - (row.usable_bytes or row.total_bytes)
    return Nearest(row, missing, _remedy(setup, row, given))


def _remedy(setup: Setup, row: Row, given: Mapping[str, Any]) -> str:
    """What to try where even the leanest layout of a sweep does not fit."""
    words = base_words(given, setup.words) | words_of(row.layout)
    knob = memory_answer(words).next_knob
    more = f"more than {row.gpus} GPUs, GPUs with more memory"
    return f"{more}, or {knob.option} ({knob.cost})" if knob is not None else f"{more}, or a shorter --seq-len"


def words_of(spec: LayoutSpec) -> dict[str, Any]:
    """A layout as options that lead to it."""
    axes = ("gpus", "tp", "pp", "vpp", "cp", "ep", "etp", "dp_replicate", "zero", "schedule", "sequence_parallel")
    found = {name: getattr(spec, name) for name in (*axes, "micro_batch", "global_batch", "recompute")}
    if spec.dp_replicate == 1:
        found.pop("dp_replicate")
    if spec.cp > 1:
        found["cp_comm"] = spec.cp_comm
    if spec.recompute_layers is not None:
        found["recompute_layers"] = spec.recompute_layers
    return found


def command_words(setup: Setup, row: Row, given: Mapping[str, Any]) -> str:
    """The options that lead ``dscalc step`` and ``dscalc memory`` to a layout."""
    parts, spec = [], row.layout
    for name, value in (base_words(given, setup.words) | words_of(spec)).items():
        flag = "--" + name.replace("_", "-")
        if value is True or value is False:
            flag, value = (flag if value else "--no-" + name.replace("_", "-")), None
        if (name in ("tp", "pp", "vpp", "cp", "ep", "etp") and value == 1) or (name == "schedule" and spec.pp == 1):
            continue
        if name == "sequence_parallel" and spec.tp == 1:
            continue
        if isinstance(value, tuple):
            value = ",".join(value)
        parts.append(flag if value is None else f"{flag} {value}")
    return " ".join(parts)


def assumptions_of(setups: Sequence[Setup], given: Mapping[str, Any]) -> tuple[Assumption, ...]:
    """What nobody typed, of every machine; what machines share is said once."""
    found: dict[tuple[str, Any], Assumption] = {}
    for setup in setups:
        case = setup.case
        every = [a for a in case.assumptions if a.name not in SWEPT]
        every += rate_assumptions((*setup.notes, *bar_notes(), between_layouts()), setup.inputs.network)
        for one in every:
            key = (one.name, str(one.value))
            other = next((a for (name, _), a in found.items() if name == one.name), None)
            named = (
                one
                if other is None or str(other.value) == str(one.value)
                else replace(one, name=f"{setup.name}.{one.name}")
            )
            found.setdefault(key, named)
    listed = list(found.values())
    if "global_batch" not in given:
        seq = setups[0].spec.seq_len
        source = "a step of 4 Mi tokens, as [Touvron2023] trained with; give --global-batch"
        listed.append(Assumption("global_batch", default_batch(seq), "sequences", "default", source))
    listed += jitter_assumption(setups[0].machine.jitter_fraction)
    if "tokens" in given:
        listed += budget_assumptions(given)
    listed += price_assumptions(tuple(setups))
    return tuple(listed)


SWEPT = frozenset(
    {
        *("dp", "dp_replicate", "dp_shard", "tp", "pp", "vpp", "cp", "ep", "etp", "zero", "schedule"),
        *("sequence_parallel", "micro_batch", "grad_accum", "global_batch", "tokens_per_rank", "recompute"),
        "recompute_layers",
    }
)


def warnings_of(
    places: Places,
    complete: bool,
    moved: bool,
    nearest: Mapping[str, Nearest | None],
    illegal: Mapping[tuple[str, int], str],
    rows: Sequence[Row],
    budgets: Sequence[Budget],
    given: Mapping[str, Any],
) -> Iterator[Warning]:
    """What the reader should know, the gravest first.

    Args:
        places: machines with their spaces.
        complete: no interrupt ended the search.
        moved: nor the one with twice the batch.
        nearest: of each machine on which nothing fits.
        illegal: by machine and number of GPUs, the rule that no layout keeps there.
        rows: the layouts found.
        budgets: whole trainings, where asked for.
        given: parsed options.

    Yields:
        Warnings.
    """
    setups = tuple(dict.fromkeys(setup for setup, _ in places))
    if not complete:
        yield Warning(
            "incomplete", "interrupted: this is the best of what was looked at so far", "let it run to the end"
        )
    elif not moved:
        yield Warning(
            "incomplete",
            "interrupted before it was known what twice the batch does to the ceiling; all else is complete",
            "let it run to the end",
        )
    yield from _illegal(places, illegal)
    for setup in setups:
        least = nearest.get(setup.name)
        if least is not None:
            yield _nothing(setup, least)
        gpu = setup.case.machine.gpu
        if gpu is not None and np.isnan(setup.case.machine.record.usable_bytes[0]):
            yield Warning(
                "memory_unknown",
                f"the profile of {gpu.id} does not say how much memory a program can use: no layout was left out",
                "name the exact variant, or add usable_memory to a profile and pass --profile",
            )
    narrow = [r for r in rows if r.rank == 1 and r.headroom_bytes is not None and _is_narrow(r)]
    if narrow:
        counts = ", ".join(f"{gpus:,}" for gpus in dict.fromkeys(row.gpus for row in narrow))
        yield Warning(
            "narrow_fit",
            f"the best layout on {counts} GPUs has less memory to spare than the uncertainty of the estimate",
            f"{_roomy(narrow[-1], rows)}measure one step before reserving the machines",
        )
    if "tokens" in given or given.get("objective") == "cost":
        yield from budget_warnings(setups, budgets, date.today())
    yield from dict.fromkeys(w for setup in setups for w in setup.case.warnings)


def _is_narrow(row: Row) -> bool:
    return (row.headroom_bytes or 0.0) < row.high_bytes - row.total_bytes


def _roomy(narrow: Row, rows: Sequence[Row]) -> str:
    """The fastest layout that leaves more free than the estimate may err, as what to do."""
    same = [r for r in rows if (r.setup, r.gpus) == (narrow.setup, narrow.gpus)]
    room = [r for r in same if r.headroom_bytes is not None and not _is_narrow(r)]
    best = min(room, key=lambda r: r.step_time_s, default=None)
    if best is None:
        return ""
    slower = best.step_time_s / narrow.step_time_s - 1.0
    again = "" if best.layout.recompute == "none" else f", recompute {recompute_words(best.layout)}"
    on = f"{best.gpus:,} of {best.setup}" if any(r.setup != best.setup for r in rows) else f"{best.gpus:,}"
    return (
        f"on {on} take {layout_words(best.layout)}, micro-batch {best.layout.micro_batch}{again}, "
        f"{slower:.1%} slower with {format_bytes(best.headroom_bytes or 0.0)} free, or "
    )


def _nothing(setup: Setup, nearest: Nearest) -> Warning:
    row = nearest.row
    needs = f"needs {format_bytes(row.total_bytes)} of {format_bytes(row.usable_bytes or 0.0)}"
    return Warning(
        "nothing_fits",
        f"nothing fits on {setup.name}; nearest is {layout_words(row.layout)} on {row.gpus} GPUs, which {needs}: "
        f"{format_bytes(nearest.missing_bytes)} are missing",
        nearest.next_step,
    )


def _illegal(places: Places, illegal: Mapping[tuple[str, int], str]) -> Iterator[Warning]:
    """One warning for each rule that all layouts of some numbers of GPUs break."""
    found: dict[str, list[tuple[Setup, Space]]] = {}
    for setup, space in places:
        name = illegal.get((setup.name, space.gpus))
        if name is not None:
            found.setdefault(name, []).append((setup, space))
    for name, broken in found.items():
        counts = ", ".join(f"{gpus:,}" for gpus in dict.fromkeys(space.gpus for _, space in broken))
        reason = reasons_of(tuple(space for _, space in broken))[name]
        yield Warning(
            "nothing_legal", f"no layout is legal on {counts} GPUs: {reason}", what_would_be_legal(name, broken[0][1])
        )
