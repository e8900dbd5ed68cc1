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
from dscalc.specs.overlap import SHARES
from dscalc.specs.pace import HALF, Noted, generation_of, noted, row_of, shipped
from dscalc.specs.quantity import Quantity
from dscalc.units import format_flop_rate

ABOVE_PEAK = 1.05  # of a data type's peak: clocks may boost a little, more is another GPU or type
LOW = ("fp8", "fp4")
LEAST_GAIN = 1.0 + 1e-6  # of such products over 16 bits: above 1 they count as such
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


def calibrated(
    gpu: GpuSpec, sustained: Sustained, stack: str, precision: str, engine: Engine, table: PaceTable
) -> Calibrated:
    """What a calibration changes of a GPU's and a stack's numbers.

    A benchmark's matrix products run alone; those of a step share power and clocks with the rest. So a measured rate
    counts by what it is of the best product known of this GPU: steps are taken to reach the same share of both. So do
    products of another type than 16 bits, in which linear layers run where the precision says so.

    Args:
        gpu: the GPU.
        sustained: what was found, from a cluster's profile.
        stack: name of the stack; factors of another stack's steps do not count.
        precision: of the linear layers.
        engine: as it ships [FLOP/s, (1,)].
        table: as it ships [s, (codes,)].

    Returns:
        The records, what changed, and what each number's error does.

    Raises:
        InputError: products faster than the GPU is at best.
    """
    half = next((d for d in HALF if gpu.peak.of(d) is not None), "bf16")
    changes: list[tuple[str, Quantity, float, float]] = []  # name, record, value, the value when it is worse
    usual = float(engine.gemm_fraction[0])
    fraction = usual
    matmul = _possible(gpu, sustained, half)
    if matmul is not None:
        fraction, stderr = _share_of_matmul(gpu, half, matmul, usual)
        changes.append(("gemm_fraction", matmul, fraction, fraction / (1.0 + NORMAL_80 * stderr)))
    other = _type_of(gpu, precision)
    low = _possible(gpu, sustained, other) if other not in HALF else None
    if low is not None:
        own, stderr = _share_of_matmul(gpu, other, low, usual * float(engine.linear_gain[0]))
        least = LEAST_GAIN if precision in LOW else 0.0  # casts and scales stay even where the products gain nothing
        gain = max(own / fraction, least)
        changes.append(("linear_gain", low, gain, max(gain / (1.0 + NORMAL_80 * stderr), least)))
    copied = sustained.memory_fraction
    if copied is not None:
        worse = copied.base - NORMAL_80 * (copied.base_stderr or 0.0)
        changes.append(("memory_fraction", copied, copied.base, max(worse, 0.1 * copied.base)))
    if sustained.stack is None or sustained.stack == stack:
        for name in ("compute_factor", "attention_factor", "host_factor", "communication_factor"):
            record: Quantity | None = getattr(sustained, name)
            if record is not None:
                changes.append((name, record, record.base, record.base + NORMAL_80 * (record.base_stderr or 0.0)))
    for name, record, _, _ in changes:
        where = f"sustained.{name}"
        if not record.base > 0.0:
            raise InputError(f"{record.value:g} is out of range; a value above 0 is right", where=where)
        if (record.base_stderr or 0.0) > record.base:
            raise InputError("the standard error is larger than the value; measure more, or leave it out", where=where)
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


def _type_of(gpu: GpuSpec, precision: str) -> str:
    """The data type in which products of a precision run."""
    return "tf32" if precision == "fp32" and gpu.peak.tf32 is not None else precision


def _possible(gpu: GpuSpec, sustained: Sustained, dtype: str) -> Quantity | None:
    """The measured rate of products of one data type, where there is one; no GPU is faster than its peak."""
    matmul = sustained.matmul.of(dtype)
    if matmul is not None and not matmul.base > 0.0:
        raise InputError("0 is out of range; a value above 0 is right", where=f"sustained.matmul.{dtype}")
    if matmul is not None and matmul.base > ABOVE_PEAK * (peak := gpu.peak_flop_per_s(dtype)):
        raise InputError(
            f"{format_flop_rate(matmul.base)} is more than the {format_flop_rate(peak)} that {gpu.id} has at best; "
            "look at the unit and the data type",
            where=f"sustained.matmul.{dtype}",
        )
    return matmul


def _share_of_matmul(gpu: GpuSpec, dtype: str, measured: Quantity, usual: float) -> tuple[float, float]:
    """Share of the 16-bit peak that the products of a step sustain, and its relative standard error."""
    best = gpu.matmul_flop_per_s(dtype)
    share = noted("", row_of(shipped()["matmul_share"], generation_of(gpu)))
    half = next((d for d in HALF if gpu.peak.of(d) is not None), "bf16")
    own = usual * measured.base / best if best else share.value * measured.base / gpu.peak_flop_per_s(half)
    return own, (measured.base_stderr or 0.0) / measured.base


def _changed(engine: Engine, table: PaceTable, values: Mapping[str, float]) -> tuple[Engine, PaceTable]:
    """The records with a calibration's numbers in them."""
    computing = values.get("compute_factor", 1.0)
    attending = computing * values.get("attention_factor", 1.0)
    gemm = values.get("gemm_fraction", float(engine.gemm_fraction[0]))
    memory = values.get("memory_fraction", float(engine.memory_fraction[0]))
    host, talking = values.get("host_factor", 1.0), values.get("communication_factor", 1.0)
    columns = {name: getattr(table, name) * host for name in _HOST}
    columns |= {name: getattr(table, name) * talking for name in SHARES}
    return (
        replace(
            engine,
            gemm_fraction=np.asarray([gemm / computing]),
            linear_gain=np.asarray([values.get("linear_gain", float(engine.linear_gain[0]))]),
            memory_fraction=np.asarray([memory / computing]),
            flash_fraction=engine.flash_fraction / attending,
        ),
        replace(table, flash_fraction=table.flash_fraction / attending, **columns),
    )
