"""What charts and reports of a sweep show beside its rows: one layout in full, the one to recommend, what to type."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dscalc.answers.step import StepAnswer
from dscalc.answers.step import answer as step_answer
from dscalc.specs.option_table import OPTIONS

if TYPE_CHECKING:
    from dscalc.answers.sweep import CurvePoint, SweepAnswer
    from dscalc.answers.sweep_rows import Row

DEGREES = ("tp", "pp", "vpp", "cp", "ep", "dp_replicate")  # those of 1 go without saying
CHOICES = ("zero", "sequence_parallel", "micro_batch", "recompute", "recompute_layers")


def options_of(answer: SweepAnswer, row: Row) -> dict[str, Any]:
    """The options that ask ``dscalc step`` for this layout on its machine.

    Args:
        answer: the sweep.
        row: one of its rows.

    Returns:
        Canonical option names to parsed values.
    """
    case, spec = _setup(answer, row.setup).case, row.layout
    found = {"gpus": spec.gpus, "global_batch": spec.global_batch}
    found |= {name: getattr(spec, name) for name in DEGREES if getattr(spec, name) > 1}
    found |= {name: getattr(spec, name) for name in CHOICES if getattr(spec, name) is not None}
    if spec.pp > 1:
        found["schedule"] = spec.schedule
    if spec.cp > 1:
        found["cp_comm"] = spec.cp_comm
    if case.model.shape.experts:
        found["etp"] = spec.etp
    return {**{k: v for k, v in case.given.items() if k != "dp"}, **found}


def _setup(answer: SweepAnswer, name: str) -> Any:
    return next(setup for setup in answer.setups if setup.name == name)


def in_full(answer: SweepAnswer, row: Row) -> StepAnswer:
    """One layout of a sweep with every term of its step and its memory, as ``dscalc step`` answers it.

    Args:
        answer: the sweep.
        row: one of its rows.

    Returns:
        The answer [s, bytes].
    """
    return step_answer(options_of(answer, row))


def paying(answer: SweepAnswer, setup: str) -> CurvePoint | None:
    """The largest number of GPUs of a machine that still pays: the last point at or below the ceiling.

    Args:
        answer: the sweep.
        setup: name of the machine.

    Returns:
        The point, the smallest that fits where all lie above the ceiling; None where nothing fits.
    """
    points = [p for p in answer.curve if p.setup == setup and p.row is not None]
    limit = answer.ceilings[setup].gpus
    below = [p for p in points if limit is None or p.gpus <= limit]
    return (below or points[:1] or [None])[-1]


def recommended(answer: SweepAnswer) -> Row | None:
    """The layout that a planner would take: of the machines' best points that still pay, by the objective asked for.

    Args:
        answer: the sweep.

    Returns:
        Its row; None where nothing fits.
    """
    objective = answer.given.get("objective", "time")
    rows = [p.row for p in answer.curve if p.row is not None]
    if objective in ("time", None):
        rows = [p.row for setup in answer.setups if (p := paying(answer, setup.name)) and p.row is not None]
    keys = {
        "gpus": lambda row: (row.gpus, row.step_time_s),
        "cost": lambda row: (-row.tokens_per_s_per_gpu, row.step_time_s),
        "headroom": lambda row: (-(row.headroom_bytes or 0.0), row.step_time_s),
    }
    return min(rows, key=keys.get(objective, lambda row: (-row.tokens_per_s, row.gpus)), default=None)


def typed(command: str, given: Mapping[str, Any]) -> str:
    """A command line that gives these options.

    >>> typed("step", {"model": "my model", "gpus": (8, 16), "zero": 3, "sequence_parallel": False})
    "dscalc step --model 'my model' --gpus 8,16 --zero 3 --no-sequence-parallel"
    """
    from dscalc.specs.sweep_options import TABLE

    words = ["dscalc", command]
    for name, value in given.items():
        option = TABLE.get(name) or OPTIONS[name]
        words += _words(option.flag, value)
    return shlex.join(words)


def _words(flag: str, value: Any) -> Sequence[str]:
    if isinstance(value, bool):
        return [flag if value else f"--no-{flag[2:]}"]
    return [flag, ",".join(map(_plain, value)) if isinstance(value, tuple | list) else _plain(value)]


def _plain(value: Any) -> str:
    return f"{value:.0f}" if isinstance(value, float) and value == int(value) else str(value)
