"""Beside a predicted step: warnings with a next step, and what could explain a measured one. Diagnoses, not physics."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dscalc.answers.envelope import Warning
from dscalc.cost.communication import communication
from dscalc.cost.measured import moved_curves
from dscalc.cost.step import Step
from dscalc.cost.stragglers import normal_maximum_factor
from dscalc.records import PaceTable
from dscalc.specs.overlap import HIDES, overlapped
from dscalc.specs.pace import faults
from dscalc.specs.sgd_facts import sgd_facts
from dscalc.units import format_time

if TYPE_CHECKING:
    from dscalc.answers.step import Inputs, StepAnswer

LARGE = 0.1  # of a step: worth a warning
CLOSE = 0.25  # of the measured step: a fault that comes so close is named
WORTH = 0.02  # of the prediction: a change that small explains nothing


class Explanation(NamedTuple):
    """One thing that could explain a measured step: what the step would take with it, and how to find out."""

    what: str
    step_time_s: float
    kind: str  # overlap | kernels | host | hardware | network | straggler | fault | layout
    next_step: str


Change = Callable[["Inputs"], "Inputs"]


def _table(**columns: float) -> Change:
    """The stack's numbers set to others."""

    def changed(inputs: Inputs) -> Inputs:
        table: PaceTable = inputs.table
        whole = {name: np.full_like(getattr(table, name), value) for name, value in columns.items()}
        return replace(inputs, table=replace(table, **whole))

    return changed


def _overlap(*axes: str) -> Change:
    """Communication that hides on these axes, and on no other."""

    def changed(inputs: Inputs) -> Inputs:
        return replace(inputs, table=overlapped(inputs.table, axes))

    return changed


HOST = ("host_layer_s", "host_layer_low_s", "host_moe_layer_s", "host_expert_s")


def _scaled(factor: float, *columns: str) -> Change:
    """Numbers of the stack multiplied."""

    def changed(inputs: Inputs) -> Inputs:
        scaled = {column: getattr(inputs.table, column) * factor for column in columns}
        return replace(inputs, table=replace(inputs.table, **scaled))

    return changed


def _engine(column: str, factor: float) -> Change:
    def changed(inputs: Inputs) -> Inputs:
        return replace(inputs, engine=replace(inputs.engine, **{column: getattr(inputs.engine, column) * factor}))

    return changed


def _slow_network(factor: float) -> Change:
    def changed(inputs: Inputs) -> Inputs:
        network = inputs.network.network
        outer = replace(network.tiers[-1], efficiency=network.tiers[-1].efficiency * factor)
        curves = moved_curves(network.curves, factor, across=True)
        moved = replace(network, tiers=(*network.tiers[:-1], outer), curves=curves)
        lowered = replace(inputs.network, network=moved)
        return replace(inputs, network=lowered)

    return changed


def _layout(column: str, value: float) -> Change:
    def changed(inputs: Inputs) -> Inputs:
        old = getattr(inputs.layouts, column)
        return replace(inputs, layouts=replace(inputs.layouts, **{column: np.full_like(old, value)}))

    return changed


SLOWER: tuple[tuple[str, str, Change, str], ...] = (
    (
        "no communication is hidden",
        "overlap",
        _overlap(),
        "look at a profiler's trace: do NCCL kernels run beside matrix products? switch overlap on",
    ),
    (
        "element-wise kernels and loss are not fused",
        "kernels",
        _table(elementwise=2.0, loss_passes=26.0),
        "count kernels a layer in a trace; switch on fused norms, activation and cross entropy, or compile",
    ),
    (
        "attention runs unfused",
        "kernels",
        _layout("attention", 1.0),
        "look for the attention kernel's name in a trace; install or select a fused one",
    ),
    (
        "the host launches half as fast",
        "host",
        _scaled(2.0, *HOST),
        "time a step at twice the micro-batch: if it takes the same, the host is the limit; try CUDA graphs",
    ),
    (
        "the GPU sustains 15 % less",
        "hardware",
        _engine("gemm_fraction", 0.85),
        "read clocks and power in nvidia-smi during the step; run a large bf16 matmul on every GPU",
    ),
    (
        "the network between nodes gives a quarter",
        "network",
        _slow_network(0.25),
        "run all_reduce_perf of nccl-tests on these nodes; check NCCL_IB_HCA, adaptive routing and GPUDirect",
    ),
    (
        "activations are recomputed in full",
        "layout",
        _layout("recompute", 2.0),
        "check the checkpointing option that the run really used",
    ),
)
FASTER: tuple[tuple[str, str, Change, str], ...] = (
    (
        "all communication is hidden",
        "overlap",
        _overlap(*HIDES),
        "a trace shows whether it is; name the --stack that does",
    ),
    (
        "nothing is recomputed",
        "layout",
        _layout("recompute", 0.0),
        "check the checkpointing option that the run really used",
    ),
    (
        "the host is never waited for",
        "host",
        _scaled(0.0, *HOST),
        "CUDA graphs or a compiled step do that",
    ),
    (
        "the GPU sustains 10 % more",
        "hardware",
        _engine("gemm_fraction", 1.10),
        "measure with --flops from a real matmul",
    ),
    (
        "attention runs at the rate of the newest kernel",
        "kernels",
        lambda i: _scaled(float("nan"), "flash_fraction")(_engine("flash_fraction", 1.5)(i)),
        "compare attention's share in a trace",
    ),
)


def explanations(inputs: Inputs, answer: StepAnswer, measured_s: float) -> tuple[str, tuple[Explanation, ...]]:
    """What a measured step says: a verdict, and what could explain a gap, nearest first.

    Args:
        inputs: what the prediction was made from.
        answer: the prediction.
        measured_s: the measured step [s].

    Returns:
        The verdict in words, and the explanations.
    """
    predicted = answer.step_time_s
    if answer.low_s <= measured_s <= answer.high_s:
        return "agrees within the error bar", ()
    slower = measured_s > predicted
    found = []
    for what, kind, change, then in SLOWER if slower else FASTER:
        seconds = float(change(inputs).run().step_time_s[0])
        if (seconds / predicted - 1.0) * (1.0 if slower else -1.0) > WORTH:
            found.append(Explanation(what, seconds, kind, then))
    if slower:
        found += [*_slow_gpu(answer, measured_s), *_faults(inputs, predicted, measured_s)]
    found.sort(key=lambda e: (e.kind != "fault", abs(np.log(e.step_time_s / measured_s))))
    way = "slower" if slower else "faster"
    factor = measured_s / predicted if slower else predicted / measured_s
    words = f"{factor - 1.0:.0%} {way}" if factor < 2.0 else f"{factor:.1f} times as {'long' if slower else 'fast'}"
    return f"{words} than predicted" if factor < 2.0 else f"{words} as predicted", tuple(found)


def _slow_gpu(answer: StepAnswer, measured_s: float) -> Iterator[Explanation]:
    """One GPU as slow as slow machines are, for which all others wait; and what the whole gap would take."""
    gpus, alike_s = answer.case.layout.spec.gpus, answer.step_time_s - answer.straggler_s
    gap = measured_s / alike_s - 1.0
    seconds = alike_s * (1.0 + min(gap, sgd_facts().slow_by))
    if gpus == 1 or seconds < answer.step_time_s * (1.0 + WORTH):
        return
    jitter = gap / float(normal_maximum_factor(np.array([float(gpus)]))[0])
    slow = f"{gap:.0%} slower" if gap < 1.0 else f"{1.0 + gap:.3g} times as slow"
    spread = f", or --jitter {jitter:.1%}" if jitter < 1.0 else ""
    yield Explanation(
        f"one GPU is {seconds / alike_s - 1.0:.0%} slower, and all wait for it",
        seconds,
        "straggler",
        f"time each rank up to its first collective; run `dscalc bench` on each node. The whole gap takes one GPU "
        f"{slow}{spread}",
    )


def _faults(inputs: Inputs, predicted: float, measured_s: float) -> list[Explanation]:
    """Known faults of clusters that come close to the measured step."""
    spec = inputs.case.layout.spec
    known = faults()
    node = float(inputs.network.network.tiers[0].gpus[0])
    found = []
    if spec.pp > 1 and spec.gpus > node:
        floored = _table(floor_s=known["floor_s"].value, floor_tp_s=known["floor_tp_s"].value)(inputs)
        seconds = float(floored.run().step_time_s[0])
        if seconds > predicted * (1.0 + WORTH) and abs(seconds / measured_s - 1.0) < CLOSE:
            found.append(
                Explanation(
                    "a floor a layer, seen where tensor and pipeline parallelism leave the node",
                    seconds,
                    "fault",
                    "halve the micro-batch: if the time a micro-batch stays, it is one; try another NCCL plugin",
                )
            )
        stalled = known["stall_s"].value * spec.grad_accum + known["stall_stage_s"].value * (spec.pp - 1)
        if stalled > predicted * (1.0 + WORTH) and abs(stalled / measured_s - 1.0) < CLOSE:
            found.append(
                Explanation(
                    "a stall of about a second for each micro-batch, whatever the model",
                    stalled,
                    "fault",
                    "run with NCCL_DEBUG=INFO and look for retries and time-outs of pipeline messages between nodes",
                )
            )
    room = inputs.case.machine.record.usable_bytes[0]
    if measured_s > 2.0 * predicted and spec.grad_accum == 1 and spec.micro_batch >= 16 and room == room:
        found.append(
            Explanation(
                "allocator retries: one large micro-batch close to the memory's limit",
                measured_s,
                "fault",
                "read torch.cuda.memory_stats()['num_alloc_retries']; set expandable_segments",
            )
        )
    return found


def bracketed(inputs: Inputs) -> list[Warning]:
    """Collectives that a measured curve stands for without having been measured in that group or size."""
    network = inputs.network.network
    if not network.curves:
        return []
    case = inputs.case
    found = communication(case.model.shape, inputs.layouts, network, case.adapters)
    names = [
        f"{c.transfer.axis} {c.transfer.op} of {float(np.max(c.transfer.group)):.0f}"
        for c in found
        if c.extrapolated[0] and c.curve[0] >= 0 and c.time_s[0] > 0.0
    ]
    if not names:
        return []
    return [
        Warning(
            "extrapolated",
            f"no log has this group or size: {', '.join(dict.fromkeys(names))}; bracketed from the nearest that has",
            "`dscalc comm` says which log; measure that group with nccl-tests and fit its log too",
        )
    ]


def step_warnings(answer: StepAnswer, found: Step) -> list[Warning]:
    """What the reader should know before trusting the number."""
    spec = answer.case.layout.spec
    share = {t.path: t.seconds / answer.step_time_s for t in answer.terms}
    notes = []
    if share["overhead/host"] > LARGE:
        notes.append(
            Warning(
                "host_bound",
                f"the GPU waits for launches {share['overhead/host']:.0%} of the step: too little work a kernel",
                "raise --micro-batch, lower --tp, or capture the step in CUDA graphs",
            )
        )
    if answer.bubble_share > LARGE:
        notes.append(
            Warning(
                "pipeline_bubble",
                f"stages idle {answer.bubble_share:.0%} of the pipeline's time",
                "more micro-batches (--grad-accum), --schedule interleaved with --vpp, or fewer stages",
            )
        )
    talked = sum(value for path, value in share.items() if path.startswith("communication/"))
    if talked > 3.0 * LARGE:
        notes.append(
            Warning(
                "communication_bound",
                f"{talked:.0%} of the step is communication that nothing hides",
                "`dscalc comm` lists it; keep --tp inside a node, raise --micro-batch or --grad-accum",
            )
        )
    if found.misaligned[0] > 0.0:
        notes.append(
            Warning(
                "misaligned_group", "a parallel group straddles nodes unevenly", "choose degrees that divide a node"
            )
        )
    if answer.case.model.shape.experts:
        notes.append(
            Warning(
                "experts",
                "layers with experts are the least certain part: releases of one framework differ by up to a third",
                f"measure one step ({format_time(answer.step_time_s)} predicted) and give it with --measured",
            )
        )
    if answer.case.adapters is not None:
        notes.append(
            Warning(
                "adapters",
                "a frozen base has no weight gradients; MFU counts them, and no published run confirms the time",
                "measure one step and give it with --measured",
            )
        )
    if spec.offload:
        notes.append(
            Warning(
                "offload_not_timed",
                f"copies to the host and its work (--offload {','.join(spec.offload)}) are no part of this time",
                "measure one step and give it with --measured",
            )
        )
    if spec.precision == "fp32":
        notes.append(
            Warning(
                "fp32_in_part",
                "only linear layers are timed in 32 bits; attention, kernels and messages count as 16-bit ones",
                "measure one step and give it with --measured",
            )
        )
    cluster = answer.case.machine.cluster
    if cluster is not None and cluster.faults:
        notes.append(
            Warning(
                "faulty_cluster",
                f"{cluster.id} has a fault by its profile ({', '.join(cluster.faults)}), which is part of this",
                "name a healthy cluster for planning",
            )
        )
    if spec.schedule in ("zb-v", "dualpipe"):
        notes.append(
            Warning(
                "lower_bound",
                f"the bubble of {spec.schedule} is a lower bound: it assumes that forward and backward overlap fully",
                "measure a step, or compare with --schedule zb-h1",
            )
        )
    return notes
