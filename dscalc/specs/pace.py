"""What GPUs sustain and how stacks spend time: ``pace.toml`` read once and lowered into the records of a step."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

import numpy as np

from dscalc.errors import InputError
from dscalc.records import Engine, ErrorBars, PaceConstants, PaceTable
from dscalc.specs.hardware import GpuSpec
from dscalc.specs.stack import stack_names
from dscalc.units import to_base, unit_dimension

HALF = ("bf16", "fp16")
_COLUMNS = tuple(f for f in PaceTable.__dataclass_fields__ if f not in ("names", "flash_fraction"))


class Noted(NamedTuple):
    """One number that a prediction rests on, in base units, as answers list it."""

    name: str
    value: float
    unit: str
    kind: str
    source: str
    stderr: float | None = None  # relative


Data = Mapping[str, Any]


@lru_cache(maxsize=1)
def shipped() -> dict[str, Any]:
    """The tables of ``pace.toml`` as they ship; a fit changes a copy."""
    return tomllib.loads((files("dscalc.specs") / "pace.toml").read_text(encoding="utf-8"))


def _base(record: Mapping[str, Any]) -> float:
    value, unit = float(record["value"]), record["unit"]
    return to_base(value, unit, unit_dimension(unit)) if unit in ("s", "ms", "us") else value


def noted(name: str, record: Mapping[str, Any]) -> Noted:
    unit = "s" if record["unit"] in ("s", "ms", "us") else record["unit"]
    return Noted(name, _base(record), unit, record["kind"], record["source"], record.get("stderr"))


def _stack(name: str, data: Data) -> dict[str, Any]:
    own = data["stack"].get(name, {})
    like = _stack(own["like"], data) if "like" in own else data["default"]
    kernel = {"flash_fraction": data["kernel"][own["kernel"]]} if "kernel" in own else {}
    return {**like, **kernel, **{k: v for k, v in own.items() if k not in ("like", "kernel")}}


def pace_table(data: Data | None = None) -> PaceTable:
    """How stacks spend time, one entry a stack code.

    Args:
        data: tables like those that ship; None for those.

    Returns:
        The table [s, (codes,)].
    """
    tables = data or shipped()
    order = tables["generations"]["order"]
    stacks = [_stack(name, tables) for name in stack_names()]
    flash = [
        [_base(row["flash_fraction"][g]) if g in row.get("flash_fraction", {}) else np.nan for g in order]
        for row in stacks
    ]
    return PaceTable(
        names=stack_names(),
        flash_fraction=np.asarray(flash),
        **{name: np.asarray([_base(row[name]) for row in stacks]) for name in _COLUMNS},
    )


def pace_constants(data: Data | None = None) -> PaceConstants:
    """What is the same for every GPU and stack.

    Args:
        data: tables like those that ship; None for those.

    Returns:
        The constants [s].
    """
    return PaceConstants(**{name: _base(record) for name, record in (data or shipped())["constants"].items()})


def faults() -> dict[str, Noted]:
    """Known faults of clusters, for diagnoses; never part of a prediction.

    Returns:
        Records by name [s].
    """
    return {name: noted(f"faults/{name}", record) for name, record in shipped()["faults"].items()}


FAULT_COLUMNS = {"floor": ("floor_s", "floor_tp_s")}  # by the name that a cluster's profile switches on


def with_faults(table: PaceTable, names: Sequence[str]) -> PaceTable:
    """The paces of stacks on a cluster whose profile says that it has faults.

    Args:
        table: how stacks spend time [s].
        names: of the faults.

    Returns:
        The table with them.

    Raises:
        InputError: no such fault.
    """
    known = faults()
    for name in names:
        if name not in FAULT_COLUMNS:
            raise InputError(f"no fault {name!r}; there are {', '.join(FAULT_COLUMNS)}", where="--cluster")
        columns = {column: np.full_like(getattr(table, column), known[column].value) for column in FAULT_COLUMNS[name]}
        table = replace(table, **columns)
    return table


def generation_of(gpu: GpuSpec) -> str:
    """Architecture by which attention kernels and gains of low precision are known."""
    first = gpu.arch.split()[0]
    return first if first in shipped()["generations"]["order"] else "other"


def row_of(rows: Data, generation: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = rows.get(generation) or rows["other"]
    return found


def engine(gpu: GpuSpec, precision: str, data: Data | None = None) -> tuple[Engine, tuple[Noted, ...]]:
    """What one GPU sustains in a training step.

    Args:
        gpu: its profile.
        precision: of the linear layers: ``bf16``, ``fp16``, ``fp8``, ``fp4`` or ``fp32``.
        data: tables like those that ship; None for those.

    Returns:
        The record [FLOP/s, (1,)] and the numbers it rests on.

    Raises:
        InputError: the profile says too little, or the part has no such precision.
    """
    tables = data or shipped()
    half = next((d for d in HALF if gpu.peak.of(d) is not None), None)
    if half is None:
        raise InputError(f"{gpu.id} states no 16-bit peak; give --flops", where="--gpu")
    if gpu.memory_bandwidth_bytes_per_s is None:
        raise InputError(f"{gpu.id} states no memory bandwidth; give a --profile that does", where="--gpu")
    peak = gpu.peak_flop_per_s(half)
    generation = generation_of(gpu)
    own = next((row for row in tables["gpu"].values() if gpu.id in row["ids"]), None)
    best = gpu.matmul_flop_per_s(half)
    if own is not None:
        fraction = noted(f"{gpu.id}/gemm_fraction", own)
    elif best is not None:
        share = noted(f"{gpu.id}/gemm_fraction", row_of(tables["matmul_share"], generation))
        fraction = share._replace(
            value=share.value * best / peak, kind="assumed", source=f"{share.source}, of its best matmul"
        )
    else:
        fraction = noted(f"{gpu.id}/gemm_fraction", row_of(tables["peak_share"], generation))
    gain, nominal = _gain(gpu, precision, generation, peak, tables)
    flash = noted(f"{gpu.id}/flash_fraction", row_of(tables["flash_fraction"], generation))
    memory = noted(f"{gpu.id}/memory_fraction", row_of(tables["memory_fraction"], generation))
    order = tables["generations"]["order"]

    def one(value: float) -> Any:
        return np.asarray([value], dtype=np.float64)

    record = Engine(
        peak_flop_per_s=one(peak),
        nominal_flop_per_s=one(nominal),
        gemm_fraction=one(fraction.value),
        linear_gain=one(gain.value),
        flash_fraction=one(flash.value),
        memory_bytes_per_s=one(gpu.memory_bandwidth_bytes_per_s),
        memory_fraction=one(memory.value),
        generation=np.asarray([order.index(generation)], dtype=np.intp),
    )
    return record, (fraction, flash, memory, *((gain,) if gain.value != 1.0 else ()))


def _gain(gpu: GpuSpec, precision: str, generation: str, peak: float, tables: Data) -> tuple[Noted, float]:
    """Speed of linear layers over 16 bits, and the peak that utilisation is measured against."""
    name = f"{gpu.id}/linear_gain"
    if precision in HALF:
        return Noted(name, 1.0, "times", "datasheet", "16-bit products"), peak
    if precision == "fp32":
        record = gpu.peak.tf32 or gpu.peak.fp32
        if record is None:
            raise InputError(f"{gpu.id} has no fp32 rate", where="--precision")
        return Noted(
            name, record.base / peak, "times", record.kind, "peak of 32-bit products over 16-bit ones"
        ), record.base
    nominal = gpu.peak.of(precision)
    if nominal is None:
        raise InputError(f"{gpu.id} has no {precision} rate; it has {', '.join(gpu.dtypes)}", where="--precision")
    rows = tables["low_gain"]
    return noted(name, rows.get(f"{precision} {generation}") or rows[f"{precision} other"]), nominal.base


def notes_of(stack: str, generation: str) -> tuple[Noted, ...]:
    """What a stack's pace rests on.

    Args:
        stack: a name of ``stack_names``.
        generation: of the GPU, see ``generation_of``.

    Returns:
        Its records, and that of its attention kernel where it is another one than the GPU has by default.
    """
    row = _stack(stack, shipped())
    flash = row.get("flash_fraction", {})
    return (
        *(noted(f"{stack}/{name}", row[name]) for name in _COLUMNS),
        *(noted(f"{stack}/flash_fraction", record) for g, record in flash.items() if g == generation),
    )


def constant_notes() -> tuple[Noted, ...]:
    """What every step rests on: the numbers that no GPU and no stack changes."""
    return tuple(noted(f"constants/{name}", record) for name, record in shipped()["constants"].items())


EIGHTY = 1.28  # standard errors that hold four in five of a normal distribution
RATE_OF = {  # whose standard error a sort of term takes from a profile
    "linear": "matmul",
    "recompute": "matmul",
    "experts": "matmul",
    "head": "matmul",
    "attention": "matmul",
    "elementwise": "memory",
    "once": "memory",
    "tensor": "network",
    "context": "network",
    "gather": "network",
    "pipeline": "network",
    "data": "network",
}


def error_bars(gpu: str, sorts: Sequence[str], stated: Mapping[str, float] | None = None) -> ErrorBars:
    """How well a step is known.

    Args:
        gpu: id of the GPU.
        sorts: of terms, ``cost.bar.NAMES``.
        stated: relative standard errors that a profile states of ``matmul``, ``memory`` and ``network`` rates.

    Returns:
        The widths [fraction].
    """
    tables = shipped()
    error, own = tables["error"], stated or {}

    def column(name: str) -> Any:
        return np.asarray([_base(error[name][s]) if s in error[name] else 0.0 for s in sorts])

    return ErrorBars(
        known=column("known"),
        unknown=column("unknown"),
        profile=np.asarray([EIGHTY * own.get(RATE_OF.get(s, ""), 0.0) for s in sorts]),
        always=_base(error["always"]),
        always_new_gpu=_base(error["always_new_gpu"]),
        always_experts=_base(error["always_experts"]),
        low=_base(error["low"]),
        unmeasured=np.asarray([0.0 if is_measured(name) else 1.0 for name in stack_names()]),
        unmeasured_gpu=0.0 if any(gpu in row["ids"] for row in tables["gpu"].values()) else 1.0,
    )


def bar_notes() -> tuple[Noted, ...]:
    """What error bars rest on."""
    error = shipped()["error"]
    plain = [noted(f"error/{name}", record) for name, record in error.items() if "value" in record]
    parts = [(kind, sort, record) for kind in ("known", "unknown") for sort, record in error[kind].items()]
    return (*plain, *(noted(f"error/{kind}/{sort}", record) for kind, sort, record in parts))


def between_layouts() -> Noted:
    """How well the times of two layouts of one model on the same GPUs are known to one another."""
    return noted("choice/between_layouts", shipped()["choice"]["between_layouts"])


@lru_cache(maxsize=64)
def is_measured(stack: str) -> bool:
    """Whether published runs of a stack, or of the one that it is ``like``, took part in the fit."""
    like = shipped()["stack"].get(stack, {}).get("like")
    return stack in shipped()["measured"]["stacks"] or (like is not None and is_measured(like))
