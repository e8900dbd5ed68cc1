"""One batch in several layouts: accumulation beside more workers; data, tensor, pipeline parallelism side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dscalc.answers.case import Case
from dscalc.answers.comm_network import network_of
from dscalc.answers.knobs import changed
from dscalc.answers.step import step_inputs
from dscalc.cost.communication import communication
from dscalc.cost.evaluate import MEMORY_REASON, evaluate
from dscalc.cost.step import step as step_of
from dscalc.errors import InputError
from dscalc.frozen import dataclass
from dscalc.records import Network, Timing
from dscalc.specs.layout_spec import LayoutSpec, lower

OTHERS = ("tp", "cp", "ep", "etp", "pp")
FEWER = 8  # times fewer workers, at most
FSDP = 3  # ZeRO stage that gathers weights
EACH = "each micro"  # batch


class Variant(NamedTuple):
    """One layout that makes the same batch. Bytes and seconds of one GPU in one step; None where unknown."""

    what: str
    gpus: int
    dp: int
    tp: int
    pp: int
    zero: int
    micro_batch: int
    grad_accum: int
    global_batch: int
    memory_bytes: float
    fits: bool | None
    step_time_s: float | None
    samples_per_s: float | None
    gpu_s_per_sample: float | None
    bubble_share: float | None
    sent_bytes: float | None
    data_bytes: float | None
    data_calls: float | None
    reduced: str

    @property
    def sends_each_micro_batch(self) -> bool:
        """Gradients or, under ZeRO-3, weights cross the network in every micro-batch."""
        return self.data_calls != 0.0 and (self.reduced == EACH or (self.zero == FSDP and self.dp > 1))


class Parallelism(NamedTuple):
    """One way to divide a model over the GPUs of a node, in words, and as evaluated."""

    axis: str
    divides: str
    synchronises: str
    when: str
    layout: Variant


@dataclass(frozen=True, slots=True)
class Layouts:
    """What could be evaluated; ``reason`` says what is missing for more."""

    accumulation: tuple[Variant, ...]
    parallelism: tuple[Parallelism, ...]
    meetings: float  # calls of a step in which tensor- and context-parallel ranks meet
    reason: str


def layouts_of(given: Mapping[str, Any], case: Case) -> Layouts:
    """The same batch in other layouts, evaluated as every layout is.

    Args:
        given: parsed options.
        case: model, hardware and layout.

    Returns:
        The variants, the given layout first.
    """
    spec = case.layout.spec
    tried = [("this layout", spec), *_accumulated(spec, bool(case.model.shape.experts))]
    ground = _ground(given, case, max(s.gpus for _, s in tried))
    reason = ground.reason
    if ground.network is None and any(s.gpus > spec.gpus for _, s in tried):
        ground = _ground(given, case, spec.gpus)
        if ground.network is not None:
            tried = [(what, s) for what, s in tried if s.gpus <= spec.gpus]
            reason = f"layouts of more GPUs: {reason}"
    if ground.network is None:
        reason = f"times and bytes sent: {ground.reason}"
    elif case.machine.gpu is None:
        reason = "times: nothing says which GPU computes; add --gpu or --cluster"
    rows, meetings = _evaluated(case, [s for _, s in tried], [what for what, _ in tried], ground)
    return Layouts(
        accumulation=tuple(row for row in rows if row is not None),
        parallelism=tuple(_side_by_side(given, case)),
        meetings=meetings,
        reason=reason,
    )


def _accumulated(spec: LayoutSpec, experts: bool) -> Iterator[tuple[str, LayoutSpec]]:
    """Layouts with the same batch from other numbers of workers and micro-batches."""
    times, local, workers = spec.grad_accum, spec.micro_batch, spec.dp
    if times > 1:
        yield f"{times:,} x the workers", changed(spec, experts=experts, dp=workers * times, grad_accum=1)
        yield (
            f"{times:,} x local batch",
            changed(spec, experts=experts, dp=workers, micro_batch=local * times, grad_accum=1),
        )
    elif local > 1 and local % 2 == 0:
        yield (
            "1/2 local batch",
            changed(spec, experts=experts, dp=workers, micro_batch=local // 2, grad_accum=2),
        )
    for fewer, words in ((2, "1/2 the workers"), (FEWER, f"1/{FEWER} the workers")):
        if workers % fewer == 0:
            yield words, changed(spec, experts=experts, dp=workers // fewer, grad_accum=times * fewer)


class _Ground(NamedTuple):
    """What layouts run on, as far as it is known; ``reason`` says what is missing."""

    network: Network | None
    timing: Timing | None
    reason: str


def _ground(given: Mapping[str, Any], case: Case, gpus: int) -> _Ground:
    """Network and pace for a job of so many GPUs."""
    sized = replace(case, layout=replace(case.layout, spec=case.layout.spec.model_copy(update={"gpus": gpus})))
    try:
        if case.machine.gpu is None:
            return _Ground(network_of(given, sized).network, None, "")
        inputs, _ = step_inputs(given, sized)
    except InputError as error:
        return _Ground(None, None, str(error))
    network = inputs.network.network
    return _Ground(network, Timing(inputs.engine, inputs.table, inputs.constants, network), "")


def _evaluated(
    case: Case, specs: Sequence[LayoutSpec], names: Sequence[str], ground: _Ground
) -> tuple[list[Variant | None], float]:
    """Layouts as rows of one evaluation; None for those that break a rule. And the meetings of the first."""
    rows = lower(specs, case.books)
    network = ground.network
    step = None if ground.timing is None else step_of(case.model.shape, rows, ground.timing, case.adapters)
    found = evaluate(case.model.shape, rows, case.machine.record, case.adapters, keep_terms=False)
    legal = np.ones(len(specs), dtype=bool)
    for name, mask in zip(found.reasons.names, found.reasons.masks, strict=True):
        if name != MEMORY_REASON:
            legal &= ~np.broadcast_to(mask, legal.shape)
    known = not np.isnan(case.machine.record.usable_bytes[0])
    over = np.broadcast_to(found.reasons.masks[found.reasons.names.index(MEMORY_REASON)], legal.shape)
    sent, data, calls, meetings = (np.zeros(len(specs)) for _ in range(4))
    if network is not None:
        for each in communication(case.model.shape, rows, network, case.adapters):
            sent = sent + each.traffic_bytes
            if each.transfer.axis in ("dp", "edp"):
                data, calls = data + each.traffic_bytes, calls + each.transfer.calls * (each.transfer.group > 1.0)
            if each.transfer.axis in ("tp", "cp"):
                meetings = meetings + each.transfer.calls
    seconds = None if step is None else np.broadcast_to(step.step_time_s, legal.shape)
    over_ideal = None if step is None else np.broadcast_to(step.bubble_over_ideal, legal.shape)
    total = np.broadcast_to(found.memory.total_bytes, legal.shape)
    made: list[Variant | None] = []
    for i, (spec, name) in enumerate(zip(specs, names, strict=True)):
        if not legal[i]:
            made.append(None)
            continue
        took = None if seconds is None else float(seconds[i])
        bubble = None if over_ideal is None else float(over_ideal[i] / (1.0 + over_ideal[i]))
        made.append(
            Variant(
                what=name,
                gpus=spec.gpus,
                dp=spec.dp,
                tp=spec.tp,
                pp=spec.pp,
                zero=spec.zero,
                micro_batch=spec.micro_batch,
                grad_accum=spec.grad_accum,
                global_batch=spec.global_batch,
                memory_bytes=float(total[i]),
                fits=bool(not over[i]) if known else None,
                step_time_s=took,
                samples_per_s=None if took is None else spec.global_batch / took,
                gpu_s_per_sample=None if took is None else spec.gpus * took / spec.global_batch,
                bubble_share=bubble,
                sent_bytes=None if network is None else float(sent[i]),
                data_bytes=None if network is None else float(data[i]),
                data_calls=None if network is None else float(calls[i]),
                reduced=_reduced(spec),
            )
        )
    return made, float(meetings[0])


def _reduced(spec: LayoutSpec) -> str:
    """When gradients are reduced."""
    if spec.dp * spec.cp == 1:
        return "never"
    often = spec.zero >= 2 and not spec.no_sync and spec.grad_accum > 1
    return EACH if often else "once"


WORDS = (
    ("dp", 0, "the batch", "gradients", "once a step"),
    (
        "fsdp",
        3,
        "the batch; weights, gradients and optimizer states",
        "weights before a layer runs, gradients after",
        "each layer, each micro-batch",
    ),
    ("tp", 0, "every matrix product, with its weights", "activations", "in each layer, forward and backward"),
    ("pp", 0, "layers into stages", "activations where stages meet", "each micro-batch; stages idle at both ends"),
)


def _side_by_side(given: Mapping[str, Any], case: Case) -> Iterator[Parallelism]:
    """Each kind of parallelism alone on the GPUs of one node, with the same batch."""
    spec, shape = case.layout.spec, case.model.shape
    inside = float(case.machine.record.gpus_per_node[0])
    node = int(inside if inside == inside else case.books.constants.gpus_per_node)
    gpus = spec.gpus if 1 < spec.gpus <= node else node
    if gpus < 2:
        return
    ground = _ground(given, case, gpus)
    alone: dict[str, Any] = dict.fromkeys(OTHERS, 1) | {
        "dp": gpus,
        "vpp": 1,
        "schedule": "1f1b",
        "sequence_parallel": False,
        "no_sync": False,
        "grad_accum": spec.grad_accum,
    }
    base = changed(spec, **alone).model_copy(update={"dp_replicate": 1, "dp_shard": gpus})
    degrees = [d for d in range(gpus, 1, -1) if gpus % d == 0]
    for axis, zero, divides, synchronises, when in WORDS:
        if axis in ("dp", "fsdp"):
            tried = [base.model_copy(update={"zero": zero})]
        else:
            tried = [
                changed(
                    base,
                    experts=bool(shape.experts),
                    **{axis: d, "dp": gpus // d, "zero": 0, "grad_accum": base.grad_accum * d},
                )
                for d in degrees
            ]
        rows, _ = _evaluated(case, tried, [axis] * len(tried), ground)
        row = next((row for row in rows if row is not None), None)
        if row is not None:
            yield Parallelism(axis, divides, synchronises, when, row)
