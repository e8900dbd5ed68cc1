"""What charts and reports of a sweep show beside its rows: one layout in full, the last size that pays, the command."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dscalc.answers.step import StepAnswer, TimeTerm
from dscalc.answers.step import answer as step_answer
from dscalc.answers.sweep_notes import words_of
from dscalc.answers.sweep_setup import base_words
from dscalc.specs.layout_spec import lower
from dscalc.specs.sweep_options import TABLE
from dscalc.sweep.prune import timed_on

if TYPE_CHECKING:
    from dscalc.answers.sweep import CurvePoint, SweepAnswer
    from dscalc.answers.sweep_rows import Row

UNITS = {"rate": "B/s", "flop_rate": "FLOP/s", "time": "s"}  # of values that need one


def in_full(answer: SweepAnswer, row: Row) -> StepAnswer:
    """One layout of a sweep with every term of its step and its memory, as ``dscalc step`` answers it.

    Args:
        answer: the sweep.
        row: one of its rows.

    Returns:
        The answer [s, bytes].
    """
    setup = next(setup for setup in answer.setups if setup.name == row.setup)
    return step_answer(base_words(answer.given, setup.words) | words_of(row.layout))


def times_of(answer: SweepAnswer, rows: Sequence[Row]) -> list[tuple[TimeTerm, ...]]:
    """The terms of the step of each row, those of one machine worked out together.

    Args:
        answer: the sweep.
        rows: some of its rows.

    Returns:
        The terms [s], in the order of the rows.
    """
    found: dict[int, tuple[TimeTerm, ...]] = {}
    for setup in answer.setups:
        mine = [n for n, row in enumerate(rows) if row.setup == setup.name]
        if not mine:
            continue
        case = setup.case
        layouts = lower([rows[n].layout for n in mine], case.books)
        timed = timed_on(setup.machine, case.model.shape, layouts)
        exposed = [np.broadcast_to(leaf.exposed_s, (len(mine),)) for leaf in timed.terms]
        hidden = [np.broadcast_to(leaf.busy_s, (len(mine),)) - e for leaf, e in zip(timed.terms, exposed, strict=True)]
        for i, n in enumerate(mine):
            found[n] = tuple(
                TimeTerm(leaf.spec.path, float(e[i]), float(h[i]), leaf.spec.formula, leaf.spec.source)
                for leaf, e, h in zip(timed.terms, exposed, hidden, strict=True)
            )
    return [found[n] for n in range(len(rows))]


def paying(answer: SweepAnswer, setup: str) -> CurvePoint | None:
    """The largest number of GPUs of a machine that still pays: the last point at or below the ceiling.

    Args:
        answer: the sweep.
        setup: name of the machine.

    Returns:
        The point; None where nothing fits, or where all that fits lies above the ceiling.
    """
    limit = answer.ceilings[setup].gpus
    points = [p for p in answer.curve if p.setup == setup and p.row is not None]
    return next((p for p in reversed(points) if limit is None or p.gpus <= limit), None)


def typed(given: Mapping[str, Any]) -> str:
    """The command line of a sweep.

    Args:
        given: canonical option names to parsed values.

    Returns:
        Words that a shell reads back as these options.

    >>> typed({"model": "my model", "gpus": (8, 16), "latency": 5e-06, "sequence_parallel": False})
    "dscalc sweep --model 'my model' --gpus 8,16 --latency 5e-06s --no-sequence-parallel"
    """
    words = ["dscalc", "sweep"]
    for name, value in given.items():
        words += _words(TABLE[name].flag, value, UNITS.get(TABLE[name].kind, ""))
    return shlex.join(words)


def _words(flag: str, value: Any, unit: str) -> Sequence[str]:
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    return [flag, ",".join(map(str, value)) if isinstance(value, tuple | list) else f"{value}{unit}"]
