"""Layouts that a sweep keeps, evaluated once more with their terms: the rows that answers, tables and charts show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np

from dscalc.answers.step import DEFAULT_CONVENTION, KINDS, step_bar
from dscalc.answers.sweep_setup import Setup, spec_of
from dscalc.cost.conventions import model_flop
from dscalc.cost.memory import memory
from dscalc.cost.step import Step
from dscalc.frozen import dataclass
from dscalc.records import Array, Layouts
from dscalc.specs.layout_spec import LayoutSpec
from dscalc.sweep.prune import timed_on
from dscalc.sweep.space import Ids, Space


@dataclass(frozen=True, slots=True)
class Row:
    """One layout. Seconds of a step, bytes of the fullest GPU.

    Attributes:
        setup: name of the machine, as ``Setup.name``.
        number: the layout's number in its space.
        layout: every value of the layout.
        rank: place among the layouts of its machine and number of GPUs, from 1; 0: only on the Pareto front.
        pareto: no other layout is better in step time, headroom, GPUs and cost together.
        low_s, high_s: the error bar; ``lower_s``, ``upper_s``: all communication hidden, none.
        compute_s, host_s, communication_s, bubble_s, optimizer_s, straggler_s: exposed seconds, they add up to the
            step; the last is the waiting for the slowest GPU, by ``--jitter``.
        hidden_s: communication behind compute.
        usable_bytes, headroom_bytes: None where the GPU's memory is unknown.
        usd_per_token: None where no price of a GPU-hour is known.
    """

    setup: str
    number: int
    layout: LayoutSpec
    rank: int
    pareto: bool
    step_time_s: float
    low_s: float
    high_s: float
    lower_s: float
    upper_s: float
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    samples_per_s: float
    mfu: float
    hfu: float
    model_flop_per_s_per_gpu: float
    bubble_share: float
    bubble_over_ideal: float
    compute_s: float
    host_s: float
    communication_s: float
    bubble_s: float
    optimizer_s: float
    straggler_s: float
    hidden_s: float
    bound_by: str
    total_bytes: float
    low_bytes: float
    high_bytes: float
    state_bytes: float
    activation_bytes: float
    device_bytes: float
    usable_bytes: float | None
    headroom_bytes: float | None
    usd_per_token: float | None = None

    @property
    def gpus(self) -> int:
        """GPUs of the job."""
        return self.layout.gpus

    @property
    def exposed_share(self) -> float:
        """Share of the step that exposed communication takes."""
        return self.communication_s / self.step_time_s

    def to_dict(self) -> dict[str, Any]:
        """Flat: the layout's columns, then everything else."""
        own = {f.name: getattr(self, f.name) for f in fields(Row) if f.name not in ("layout", "number")}
        head = {name: own.pop(name) for name in ("setup", "rank", "pareto")}
        layout = self.layout.model_dump()
        layout["offload"] = ",".join(layout["offload"]) or "none"
        return {**head, **layout, **own}


HEAD = ("setup", "rank", "pareto")
COLUMNS = (
    *HEAD,
    *LayoutSpec.model_fields,
    *(f.name for f in fields(Row) if f.name not in (*HEAD, "layout", "number")),
)  # of ``Row.to_dict``, for tables without a row too


def rows_of(setup: Setup, space: Space, ids: Ids, ranks: Sequence[int]) -> list[Row]:
    """Evaluate layouts by number, with their terms.

    Args:
        setup: the machine and the model.
        space: the space of one number of GPUs.
        ids: numbers of layouts.
        ranks: the rank of each.

    Returns:
        One row each.
    """
    if not len(ids):
        return []
    n = len(ids)
    layouts = space.layouts(ids)
    layouts = replace(layouts, pp=np.broadcast_to(layouts.pp, (n,)))
    machine = setup.machine
    held = memory(space.shape, layouts, machine.hardware, machine.adapters, keep_terms=False)
    timed = timed_on(machine, space.shape, layouts)

    def column(values: Array) -> list[float]:
        return [float(v) for v in np.broadcast_to(values, (n,))]

    flop = column(model_flop(DEFAULT_CONVENTION, space.shape, layouts))
    nominal = float(setup.inputs.engine.nominal_flop_per_s[0])
    half = bar_of(setup, space, layouts, timed)
    low, high = np.exp(-half).tolist(), np.exp(half).tolist()
    groups = {name: _sums(timed, prefixes, n) for name, prefixes in KINDS}
    hidden = [max(0.0, v) for v in column(_hidden(timed))]
    columns = {
        name: column(getattr(held, name))
        for name in ("total_bytes", "low_bytes", "high_bytes", "state_bytes", "activation_bytes", "device_bytes")
    }
    usable, headroom = column(held.usable_bytes), column(held.headroom_bytes)
    seconds, lower, upper = (column(v) for v in (timed.step_time_s, timed.lower_s, timed.upper_s))
    over, executed = column(timed.bubble_over_ideal), column(timed.executed_flop)
    found = []
    for i in range(n):
        spec = spec_of(setup, space, int(ids[i]))
        tokens = spec.global_batch * spec.seq_len
        parts = {name: values[i] for name, values in groups.items()}
        found.append(
            Row(
                setup=setup.name,
                number=int(ids[i]),
                layout=spec,
                rank=ranks[i],
                pareto=False,
                step_time_s=seconds[i],
                low_s=seconds[i] * low[i],
                high_s=seconds[i] * high[i],
                lower_s=lower[i],
                upper_s=upper[i],
                tokens_per_s=tokens / seconds[i],
                tokens_per_s_per_gpu=tokens / seconds[i] / spec.gpus,
                samples_per_s=spec.global_batch / seconds[i],
                mfu=flop[i] / seconds[i] / nominal,
                hfu=executed[i] / seconds[i] / nominal,
                model_flop_per_s_per_gpu=flop[i] / seconds[i],
                bubble_share=over[i] / (1.0 + over[i]),
                bubble_over_ideal=over[i],
                compute_s=parts["compute"],
                host_s=parts["host"],
                communication_s=parts["communication"],
                bubble_s=parts["bubble"],
                optimizer_s=parts["optimizer"],
                straggler_s=parts["stragglers"],
                hidden_s=hidden[i],
                bound_by=max(parts, key=lambda name: parts[name]),
                usable_bytes=usable[i] if usable[i] == usable[i] else None,
                headroom_bytes=headroom[i] if headroom[i] == headroom[i] else None,
                **{name: values[i] for name, values in columns.items()},
            )
        )
    return found


def bar_of(setup: Setup, space: Space, layouts: Layouts, timed: Step) -> Array:
    """Half-width of the error bar of each row's logarithm: the one place where a sweep asks for it."""
    found = step_bar(setup.inputs, timed, layouts)[0]
    shape = (len(timed.step_time_s),)
    half = np.broadcast_to(found.half_width_fraction, shape)
    if setup.inputs.network.network.measured or setup.inputs.slower:
        half = np.hypot(half, _measured_error(setup, space, layouts, timed))
    return np.asarray(half)


def _measured_error(setup: Setup, space: Space, layouts: Layouts, timed: Step) -> Array:
    """What the errors of numbers measured on the cluster do to each row: root of the sum of squares."""
    machine, timing = setup.machine, setup.machine.timing
    worse = [replace(timing, engine=e, table=t) for e, t in setup.inputs.slower]
    if timing.network.measured:
        worse.append(replace(timing, network=replace(timing.network, edge=1.0)))
    total = np.zeros(len(timed.step_time_s))
    for each in worse:
        moved = timed_on(replace(machine, timing=each), space.shape, layouts, keep_terms=False)
        total = total + (moved.step_time_s / timed.step_time_s - 1.0) ** 2
    return np.asarray(np.sqrt(total))


def _sums(timed: Step, prefixes: tuple[str, ...], n: int) -> list[float]:
    total = np.zeros(n)
    for leaf in timed.terms:
        if leaf.spec.path.startswith(prefixes):
            total = total + leaf.exposed_s
    return [float(v) for v in total]


def _hidden(timed: Step) -> Array:
    total = np.zeros(1)
    for leaf in timed.terms:
        if leaf.spec.path.startswith("communication/"):
            total = total + (leaf.busy_s - leaf.exposed_s)
    return total


def layout_words(spec: LayoutSpec) -> str:
    """A layout in the words of its options; degrees of 1 are left out."""
    words = [f"{n} {getattr(spec, n)}" for n in ("tp", "pp", "vpp", "cp", "ep") if getattr(spec, n) > 1]
    words += [f"etp {spec.etp}"] if spec.ep > 1 and spec.etp > 1 else []
    words += [f"dp {spec.dp}"] + ([f"in {spec.dp_replicate} replicas"] if spec.dp_replicate > 1 else [])
    words += [f"ZeRO-{spec.zero}"] if spec.zero else []
    words += ["SP"] if spec.sequence_parallel and spec.tp > 1 else []
    words += [spec.schedule] if spec.pp > 1 and spec.schedule not in ("1f1b", "interleaved") else []
    return " ".join(words)


def recompute_words(spec: LayoutSpec) -> str:
    """What is computed again."""
    return spec.recompute if spec.recompute_layers is None else f"{spec.recompute} {spec.recompute_layers}"
