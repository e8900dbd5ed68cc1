"""A step's numbers after a calibration: what a cluster's profile says of its GPU and stack, in place of what ships."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dscalc.errors import InputError
from dscalc.records import Engine, PaceTable
from dscalc.specs.hardware import GpuSpec
from dscalc.specs.measured import NORMAL_80, Sustained
from dscalc.specs.pace import HALF, Noted, generation_of, noted, row_of, shipped
from dscalc.specs.quantity import Quantity
from dscalc.units import format_flop_rate

ABOVE_PEAK = 1.05  # of a data type's peak: clocks may boost a little, more is another GPU or type
_EXPOSED = ("tp_exposed", "dp_exposed", "dp_exposed_sharded", "dp_exposed_pipeline", "pp_exposed", "ep_exposed")
_HOST = ("host_layer_s", "host_layer_low_s", "host_moe_layer_s", "host_expert_s", "step_s")


class Calibrated(NamedTuple):
    """The numbers of a step after a calibration.

    Attributes:
        engine, table: the records.
        notes: the numbers that changed, by name.
        slower: the records once more for each number, with it one 80 % half-width worse: what its error does.
    """

    engine: Engine
    table: PaceTable
    notes: tuple[Noted, ...]
    slower: tuple[tuple[Engine, PaceTable], ...]


def calibrated(gpu: GpuSpec, sustained: Sustained, stack: str, engine: Engine, table: PaceTable) -> Calibrated:
    """What a calibration changes of a GPU's and a stack's numbers.

    A benchmark's matrix products run alone; those of a step share power and clocks with the rest. So a measured rate
    counts by what it is of the best product known of this GPU: steps are taken to reach the same share of both.

    Args:
        gpu: the GPU.
        sustained: what was found, from a cluster's profile.
        stack: name of the stack; factors of another stack's steps do not count.
        engine: as it ships [FLOP/s, (1,)].
        table: as it ships [s, (codes,)].

    Returns:
        The records, what changed, and what each number's error does.

    Raises:
        InputError: products faster than the GPU is at best.
    """
    half = next((d for d in HALF if gpu.peak.of(d) is not None), "bf16")
    changes: list[tuple[str, Quantity, float, float]] = []  # name, record, value, the value when it is worse
    matmul = sustained.matmul.of(half)
    if matmul is not None:
        if matmul.base > ABOVE_PEAK * (peak := gpu.peak_flop_per_s(half)):
            raise InputError(
                f"{format_flop_rate(matmul.base)} is more than the {format_flop_rate(peak)} that {gpu.id} has at best; "
                "look at the unit and the data type",
                where=f"sustained.matmul.{half}",
            )
        fraction, stderr = _share_of_matmul(gpu, half, matmul, float(engine.gemm_fraction[0]))
        changes.append(("gemm_fraction", matmul, fraction, fraction / (1.0 + NORMAL_80 * stderr)))
    copied = sustained.memory_fraction
    if copied is not None:
        worse = copied.base - NORMAL_80 * (copied.base_stderr or 0.0)
        changes.append(("memory_fraction", copied, copied.base, max(worse, 0.1 * copied.base)))
    if sustained.stack is None or sustained.stack == stack:
        for name in ("compute_factor", "attention_factor", "host_factor", "communication_factor"):
            record: Quantity | None = getattr(sustained, name)
            if record is not None:
                changes.append((name, record, record.base, record.base + NORMAL_80 * (record.base_stderr or 0.0)))
    values = {name: value for name, _, value, _ in changes}
    notes = tuple(
        Noted(
            f"{gpu.id}/{name}",
            value,
            "fraction" if name.endswith("fraction") else "times",
            record.kind,
            f"{record.source}, measured on this cluster",
            (record.stderr or 0.0) / record.value if record.value else None,
        )
        for name, record, value, _ in changes
    )
    slower = tuple(
        _changed(engine, table, {**values, name: worse}) for name, _, value, worse in changes if worse != value
    )
    return Calibrated(*_changed(engine, table, values), notes, slower)


def _share_of_matmul(gpu: GpuSpec, dtype: str, measured: Quantity, usual: float) -> tuple[float, float]:
    """Share of the peak that the products of a step sustain, and its relative standard error."""
    best, peak = gpu.matmul_flop_per_s(dtype), gpu.peak_flop_per_s(dtype)
    share = noted("", row_of(shipped()["matmul_share"], generation_of(gpu)))
    own = usual * measured.base / best if best is not None else share.value * measured.base / peak
    return own, (measured.base_stderr or 0.0) / measured.base


def _changed(engine: Engine, table: PaceTable, values: Mapping[str, float]) -> tuple[Engine, PaceTable]:
    """The records with a calibration's numbers in them."""
    computing = values.get("compute_factor", 1.0)
    attending = computing * values.get("attention_factor", 1.0)
    gemm = values.get("gemm_fraction", float(engine.gemm_fraction[0]))
    memory = values.get("memory_fraction", float(engine.memory_fraction[0]))
    host, talking = values.get("host_factor", 1.0), values.get("communication_factor", 1.0)
    columns = {name: getattr(table, name) * host for name in _HOST}
    columns |= {name: getattr(table, name) * talking for name in _EXPOSED}
    return (
        replace(
            engine,
            gemm_fraction=np.asarray([gemm / computing]),
            memory_fraction=np.asarray([memory / computing]),
            flash_fraction=engine.flash_fraction / attending,
        ),
        replace(table, flash_fraction=table.flash_fraction / attending, **columns),
    )
