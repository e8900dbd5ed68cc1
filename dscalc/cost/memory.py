"""Memory of one GPU: terms summed at each moment of a step on each kind of stage, and the fullest of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields

import numpy as np
from numpy.typing import NDArray

from dscalc.cost import state, transient
from dscalc.cost.columns import first_of, row_of, rows
from dscalc.cost.host import host_terms
from dscalc.cost.leaves import Columns, Stages, layout_columns, loads, on_stages
from dscalc.cost.moments import AT_FORWARD, FIRST_MOMENT, FORWARD_MOMENT, MOMENTS, STEP_MOMENT
from dscalc.cost.placement import StageKinds, stage_kinds
from dscalc.cost.symbols import symbols
from dscalc.frozen import dataclass
from dscalc.records import Adapters, Array, Hardware, Layouts, ModelShape, StackTable
from dscalc.terms import Leaf, LeafSpec, case_totals, in_case, in_one

FORWARD_END, LOSS = range(2)  # codes.MOMENTS
PINNED = 0.1  # of allocated: what waiting buffers pin under pressure, from a replay of the allocator (tests/oracles)
Moments = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class StageRow:
    """Bytes of one stage kind at its fullest moment; arrays (n,)."""

    index: Array
    moment: Array
    bytes: Array
    allocated_bytes: Array
    reserved_bytes: Array
    device_bytes: Array


@dataclass(frozen=True, slots=True)
class Memory:
    """Memory of one GPU at its peak; arrays of shape (n,) in bytes unless said otherwise.

    ``total_bytes`` is the left-to-right sum of ``terms``: what the GPU must hold. ``allocated`` leaves out context,
    communicators and the allocator's slack; ``reserved`` is allocated, slack and what the allocator keeps for other
    moments; ``device`` is reserved + context + communicators.
    """

    total_bytes: Array
    state_bytes: Array
    activation_bytes: Array
    forward_activation_bytes: Array  # saved activations and loss at the end of forward, on the peak stage
    allocated_bytes: Array
    reserved_bytes: Array
    device_bytes: Array
    pending_bytes: (
        Array  # freed collective buffers that still wait for the GPU, part of reserved when the host runs ahead
    )
    low_bytes: Array
    high_bytes: Array
    usable_bytes: Array
    headroom_bytes: Array
    host_bytes_per_node: Array
    host_terms: tuple[Leaf, ...]  # their sum is host_bytes_per_node
    peak_stage: Array  # stage index
    peak_moment: Array  # codes.MOMENTS
    in_flight: Array  # micro-batches in flight on the peak stage
    held_parameters: Array  # parameters on the peak stage's rank
    stages: tuple[StageRow, ...]
    terms: tuple[Leaf, ...]


@dataclass(frozen=True, slots=True)
class _Peak:
    """One stage of each layout at one moment; arrays (n,)."""

    stage: Stages
    moment: Array  # codes.MOMENTS
    quantities: Mapping[str, Array]
    total: Array
    allocated: Array
    reserved: Array
    device: Array
    pending: Array
    state: Array
    activations: Array
    leaves: list[tuple[LeafSpec, Array]]


def memory(
    shape: ModelShape, layouts: Layouts, hardware: Hardware, adapters: Adapters | None = None, keep_terms: bool = True
) -> Memory:
    """Memory of one GPU for each layout.

    Args:
        shape [elements, (1,)]: the model.
        layouts [degrees, (n,)]: the layout columns.
        hardware [bytes, (n,)]: usable memory, GPUs per node.
        adapters [rank, (1,)]: low-rank adapters on a frozen base, or None.
        keep_terms [flag, (1,)]: keep the leaves; totals are the same to the bit without them.

    Returns:
        The memory at its peak over stages and moments [bytes, (n,)].

    Raises:
        nothing: an illegal layout has numbers too.

    References:
        [Rajbhandari2020] sections 3 and 5, [Korthikanti2022] section 4, [Zhao2023] section 3.
    """
    columns = layout_columns(shape, layouts, adapters)
    kinds = stage_kinds(shape, layouts)
    load = loads(columns, kinds)
    stages = on_stages(columns, kinds, *load)
    totals = case_totals(columns.terms, stages.quantities, MOMENTS)
    n = rows(layouts, hardware)
    moment, kind = _fullest(totals)
    fullest = on_stages(columns, *_pick(kinds, load, kind))
    peak = _peak(columns, hardware, fullest, moment, keep_terms)
    forward = {name: ((AT_FORWARD, held),) for name, held in in_one(fullest.quantities, FORWARD_MOMENT).items()}
    saved = [term for term in columns.terms if term.spec.path.startswith("activations/")]
    host = host_terms(columns, hardware, in_one(stages.quantities, FORWARD_MOMENT))
    usable, error = hardware.usable_bytes, layouts.books.constants.error_fraction

    def whole(values: Array) -> Array:
        return values if values.shape == (n,) else np.broadcast_to(values, (n,))

    return Memory(
        total_bytes=whole(peak.total),
        state_bytes=whole(peak.state),
        activation_bytes=whole(peak.activations),
        forward_activation_bytes=whole(case_totals(saved, forward, 1)[0]),
        allocated_bytes=whole(peak.allocated),
        reserved_bytes=whole(peak.reserved),
        device_bytes=whole(peak.device),
        pending_bytes=whole(peak.pending),
        low_bytes=whole(peak.total * (1.0 - error)),
        high_bytes=whole(peak.total * (1.0 + error) + PINNED * (peak.allocated * (peak.pending > 0.0))),
        usable_bytes=whole(usable),
        headroom_bytes=whole(usable - peak.total),
        host_bytes_per_node=whole(sum((array for _, array in host), start=np.zeros(1))),
        host_terms=tuple(Leaf(spec, whole(array), {}) for spec, array in host) if keep_terms else (),
        peak_stage=whole(peak.stage.kinds.index),
        peak_moment=whole(peak.moment),
        in_flight=whole(peak.stage.flying),
        held_parameters=whole(peak.stage.elements),
        stages=_stage_rows(columns, hardware, kinds, load, totals, whole) if keep_terms else (),
        terms=_leaves(columns, peak, whole) if keep_terms else (),
    )


def _peak(columns: Columns, hardware: Hardware, stage: Stages, moment: Moments, keep: bool) -> _Peak:
    """The leaves of one stage of each layout at one moment, added left to right."""
    stack, context = columns.entries.stack, columns.passing.context
    flags = [(moment == number).astype(np.float64) for number in range(MOMENTS)]
    quantities = in_case(stage.quantities, flags)
    total = held = saved = np.zeros(1)
    leaves: list[tuple[LeafSpec, Array]] = []
    for term in columns.terms:
        if term.parts:
            leaf = term.of(quantities)
            total = total + leaf
            held = held + leaf if term.spec.path.startswith("state/") else held
            saved = saved + leaf if term.spec.path.startswith("activations/") else saved
        if keep:
            leaves.append((term.spec, leaf if term.parts else np.zeros(1)))
    slack = stack.slack_fraction * (total - context)
    leaves.append((transient.SLACK, slack))
    total = total + slack
    needed = total - context
    issued = stage.flying * stage.kinds.layers
    pending = pending_buffers(columns.shape, columns.layouts, stack, hardware, columns.layer.tokens, issued)
    kept = pending + _kept_elsewhere(columns, stage, quantities, flags)
    reserved = reserved_bytes(needed, kept, hardware.usable_bytes - context)
    at_loss = (moment == FORWARD_MOMENT) & (stage.kinds.has_head > 0.0)
    return _Peak(
        stage=stage,
        moment=moment.astype(np.intp) + (moment > FORWARD_MOMENT) + at_loss,  # FORWARD_END, LOSS, then the others
        quantities=quantities,
        total=total,
        allocated=needed - slack,
        reserved=reserved,
        device=reserved + context,
        pending=pending,
        state=held,
        activations=saved,
        leaves=leaves,
    )


def _kept_elsewhere(columns: Columns, stage: Stages, now: Mapping[str, Array], flags: Sequence[Array]) -> Array:
    """What the allocator keeps while the need peaks: blocks that only other moments can use.

    A flat copy needs one contiguous block, which freed tensors do not leave. A communication stream has a pool of its
    own, so gradients and their reduction do not move into what activations left.
    """
    at_step, most = in_one(stage.quantities, STEP_MOMENT), in_one(stage.quantities, FIRST_MOMENT)
    flat, cast = (term.of(at_step) for term in columns.held.step[:2])
    partitions = columns.entries.stack.bucket_count > 0.0  # casts whole partitions, others tensor by tensor
    kept = (flat + cast * partitions) * (1.0 - flags[STEP_MOMENT])
    pools = columns.entries.stack.stream_pools
    if not pools.any():
        return kept
    waiting: Array = np.maximum(most[state.GRADIENT_BYTES] - now[state.GRADIENT_BYTES], 0.0)
    if transient.REDUCED_BYTES in most:
        waiting = waiting + most[transient.REDUCED_BYTES] * (flags[FORWARD_MOMENT] + flags[STEP_MOMENT])
    return kept + pools * waiting


def reserved_bytes(needed: Array, kept: Array, room: Array) -> Array:
    """What the caching allocator holds: live tensors, rounded and split blocks, and what it keeps for other moments.

    ``kept`` is given back under pressure, so reserved memory passes the room there is only where the need does.

    Args:
        needed [bytes, (n,)]: live tensors at the peak and the allocator's slack.
        kept [bytes, (n,)]: contiguous blocks of other moments, freed buffers that wait for the GPU.
        room [bytes, (n,)]: memory that context and communicators leave; NaN where the GPU is unknown.

    Returns:
        Reserved memory [bytes, (n,)].

    Raises:
        nothing.

    References:
        [PyTorch] CUDACachingAllocator.
    """
    return np.maximum(np.fmin(needed + kept, room), needed)  # fmin: the room if it is known


def pending_buffers(
    shape: ModelShape, layouts: Layouts, stack: StackTable, hardware: Hardware, tokens: Array, issued: Array
) -> Array:
    """Freed full-size collective tensors that wait for the GPU when the host runs ahead of it.

    PyTorch marks the tensors of collectives with the communication stream; a freed one becomes usable again only when
    the GPU has passed it. With Q launches ahead and one such tensor every l launches, Q / l of them wait. Q is the
    depth of the launch queue, or, on a stage of a pipeline, what the forward passes before its first receive launch if
    that is less. The host stays behind the GPU in a pipeline whose tensor-parallel groups span more than two nodes, and
    in one of two stages with more than four tensor-parallel ranks: read off the H100 grid, not derived.

    Args:
        shape [elements, (1,)]: the model.
        layouts [degrees, (n,)]: the layout columns.
        stack [per layout, (n,)]: what the framework of each layout does.
        hardware [GPUs, (n,)]: GPUs per node.
        tokens [tokens, (n,)]: tokens of the rank.
        issued [layers, (kinds, n)]: forward passes of a layer that a stage issues before its first receive.

    Returns:
        Bytes that the allocator holds besides what is allocated [bytes, (kinds, n)].

    Raises:
        nothing.

    References:
        [PyTorch] CUDACachingAllocator record_stream, [CUDA].
    """
    between, queue = stack.launches_per_pending, layouts.books.constants.launch_queue
    waits = (stack.record_stream > 0.0) & (between > 0.0) & (layouts.tp > 1.0)
    node = np.where(np.isnan(hardware.gpus_per_node), np.inf, hardware.gpus_per_node)
    alone = layouts.pp == 1.0
    ahead = waits & (alone | (layouts.tp <= 4.0) | ((layouts.pp > 2.0) & (layouts.tp <= 2.0 * node)))
    launches = np.where(alone, queue, np.minimum(queue, stack.launches_per_layer * issued))
    waiting: Array = launches / np.maximum(between, 1.0) * (2.0 * shape.hidden) * tokens * ahead
    return waiting


def _fullest(totals: Sequence[Array]) -> tuple[Moments, Moments]:
    """Moment and stage kind of the largest total, the first ones on a tie."""
    kinds = range(max(total.shape[0] for total in totals))
    most = []
    for total in totals:
        largest = total[0]
        for row in total[1:]:
            largest = np.maximum(largest, row)
        most.append(largest)
    best = np.maximum(np.maximum(most[0], most[1]), np.maximum(most[2], most[3]))
    moment = first_of([largest == best for largest in most[:-1]])
    at = [moment == number for number in range(MOMENTS)]
    hits = []
    for kind in kinds:
        hit = at[0] & (totals[0][kind] == best)
        for number in range(1, MOMENTS):
            hit = hit | (at[number] & (totals[number][kind] == best))
        hits.append(hit)
    return moment, first_of(hits[:-1])


def _pick(kinds: StageKinds, load: tuple[Array, Array], kind: Moments) -> tuple[StageKinds, Array, Array]:
    """One stage of each layout, its micro-batches in flight, and whether a backward has run when it is fullest."""
    pick = row_of(kind.astype(np.intp))
    flying, accumulated = load
    stage = StageKinds(*(pick(getattr(kinds, field.name)) for field in fields(StageKinds)))
    return stage, pick(flying), pick(accumulated)


def _stage_rows(
    columns: Columns,
    hardware: Hardware,
    kinds: StageKinds,
    load: tuple[Array, Array],
    totals: Sequence[Array],
    whole: Callable[[Array], Array],
) -> tuple[StageRow, ...]:
    """Each stage kind at its fullest moment, in the order of the stages."""
    found = []
    for number in range(kinds.index.shape[0]):
        moment, _ = _fullest([total[number : number + 1] for total in totals])
        only = StageKinds(*(getattr(kinds, field.name)[number] for field in fields(StageKinds)))
        at = _peak(
            columns, hardware, on_stages(columns, only, *(values[number] for values in load)), moment, keep=False
        )
        row = (only.index, at.moment, at.total, at.allocated, at.reserved, at.device)
        found.append(StageRow(*(whole(values) for values in row)))
    return tuple(found)


def _leaves(columns: Columns, peak: _Peak, whole: Callable[[Array], Array]) -> tuple[Leaf, ...]:
    """Every leaf at the peak with the numbers behind the symbols of the formulas."""
    numbers = symbols(columns, peak.stage, peak.quantities)
    inputs = {symbol: whole(values) for symbol, values in numbers.items()}
    parts = {
        term.spec: tuple(
            (whole(np.ones(1) if factor is None else factor), name, whole(peak.quantities[name]))
            for factor, name in term.parts
        )
        for term in columns.terms
    }
    return tuple(Leaf(spec, whole(array), inputs, parts.get(spec, ())) for spec, array in peak.leaves)
