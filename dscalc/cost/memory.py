"""Memory of one GPU: terms summed at each moment of a step on each kind of stage, and the fullest of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dscalc.cost import activations, state, transient
from dscalc.cost.axes import groups
from dscalc.cost.host import host_terms
from dscalc.cost.placement import StageKinds, stage_kinds
from dscalc.cost.rank_parameters import adapter_sums, part_sums, rank_parameters
from dscalc.cost.schedule import in_flight
from dscalc.cost.symbols import symbols
from dscalc.records import Adapters, Array, Hardware, Layouts, ModelShape
from dscalc.terms import Leaf, LeafSpec, TermSum

FORWARD_END, LOSS = range(2)  # codes.MOMENTS
PINNED = 0.1  # of allocated: what waiting buffers pin under pressure, from a replay of the allocator (tests/oracles)
FORWARD_MOMENT, LAST_MOMENT, FIRST_MOMENT, STEP_MOMENT = range(4)  # moments that are summed apart


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
    moments;
    ``device`` is reserved + context + communicators.
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
class _Sums:
    moments: list[TermSum]
    state_persistent: Array


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
    derived = groups(layouts)
    kinds = stage_kinds(shape, layouts)
    base = rank_parameters(shape, part_sums(shape), layouts, kinds)
    trained = base if adapters is None else rank_parameters(shape, adapter_sums(shape, adapters), layouts, kinds)
    flying = in_flight(layouts, kinds.index)
    layer = activations.layer_bytes(shape, layouts, adapters)
    held_state = state.state(shape, layouts, derived, base, trained, adapters, flying)
    passing = transient.transients(shape, layouts, derived, base, trained, layer, kinds, flying, adapters)
    slack = layouts.books.stacks.slack_fraction[layouts.stack]
    sums = _moment_sums(shape, layouts, kinds, flying, layer, held_state, passing, slack, keep_terms)

    best, code = _fullest(sums.moments)
    count = kinds.index.shape[0]
    n = best.shape[-1]
    moment = code // count
    flat = (code - moment * count) * n + np.arange(n)

    def pick(values: Array) -> Array:
        picked: Array = np.take(np.broadcast_to(values, (count, n)).reshape(-1), flat)
        return picked

    peak = StageKinds(*(pick(getattr(kinds, field)) for field in kinds.__dataclass_fields__))
    peak_flying = pick(flying)
    held = np.where(
        moment == STEP_MOMENT, 0.0, np.where(moment == FIRST_MOMENT, np.maximum(peak_flying - 1.0, 0.0), peak_flying)
    )
    kept_layers = peak.layers - activations.full_recompute_layers(layouts, peak)
    activation_bytes = np.where(moment == FORWARD_MOMENT, pick(passing.logits), 0.0)
    forward_activation_bytes = pick(passing.logits)
    for _, array in activations.saved(shape, layer, layouts, peak, kept_layers, held):
        activation_bytes = activation_bytes + array
    for _, array in activations.saved(shape, layer, layouts, peak, kept_layers, peak_flying):
        forward_activation_bytes = forward_activation_bytes + array
    gradients = np.where(moment <= LAST_MOMENT, pick(held_state.forward_gradients), pick(held_state.full_gradients))
    gradients = np.where(moment == STEP_MOMENT, pick(held_state.step_gradients), gradients)

    moved = activations.offloaded_checkpoints(layer, layouts, kinds, flying)
    host = host_terms(shape, layouts, hardware, held_state, moved)
    host_total = 0.0 * best
    for _, array in host:
        host_total = host_total + array
    error = layouts.books.constants.error_fraction
    slack_bytes = pick(sums.moments[0].sum() * 0.0)
    for number, terms in enumerate(sums.moments):
        slack_bytes = np.where(moment == number, pick(terms.last()), slack_bytes)
    allocated = best - passing.context - slack_bytes
    pending = pending_buffers(shape, layouts, hardware, layer, flying)
    usable = hardware.usable_bytes + 0.0 * best
    room = usable - passing.context
    pools = layouts.books.stacks.stream_pools[layouts.stack]
    elsewhere = [_kept_elsewhere(number, held_state, passing, pending, pools) for number in range(len(sums.moments))]
    kept = pick(elsewhere[0])
    for number in range(1, len(elsewhere)):
        kept = np.where(moment == number, pick(elsewhere[number]), kept)
    reserved = reserved_bytes(best - passing.context, kept, room)
    at_loss = (moment == FORWARD_MOMENT) & (peak.has_head > 0.0)
    return Memory(
        total_bytes=best,
        state_bytes=pick(sums.state_persistent) + gradients,
        activation_bytes=activation_bytes,
        forward_activation_bytes=forward_activation_bytes,
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        device_bytes=reserved + passing.context,
        pending_bytes=pick(pending),
        low_bytes=best * (1.0 - error),
        high_bytes=best * (1.0 + error) + PINNED * np.where(pick(pending) > 0.0, allocated, 0.0),
        usable_bytes=usable,
        headroom_bytes=usable - best,
        host_bytes_per_node=host_total,
        host_terms=tuple(Leaf(spec, array + 0.0 * best, {}) for spec, array in host) if keep_terms else (),
        peak_stage=peak.index,
        peak_moment=np.where(at_loss, LOSS, np.where(moment == FORWARD_MOMENT, FORWARD_END, moment + 1)),
        in_flight=peak_flying,
        held_parameters=pick(held_state.held),
        stages=_stage_rows(sums.moments, kinds, n, elsewhere, passing.context, room) if keep_terms else (),
        terms=_peak_terms(
            sums.moments,
            moment,
            pick,
            n,
            symbols(shape, layouts, derived, layer, held_state, passing.communicators, peak, peak_flying, pick),
        )
        if keep_terms
        else (),
    )


def _kept_elsewhere(
    number: int, held: state.State, passing: transient.Transients, pending: Array, pools: Array
) -> Array:
    """What the allocator keeps while the need peaks at moment ``number``: blocks that only other moments can use.

    A flat copy needs one contiguous block, which freed tensors do not leave. A communication stream has a pool of its
    own, so
    gradients and their reduction do not move into what activations left.
    """
    flat = held.step[0][1] + held.step[1][1]
    present = (held.forward_gradients, held.forward_gradients, held.full_gradients, held.step_gradients)[number]
    reduction = passing.reduce_input if number in (FORWARD_MOMENT, STEP_MOMENT) else 0.0
    own_pool = pools * (np.maximum(held.full_gradients - present, 0.0) + reduction)
    return pending + own_pool + (flat if number != STEP_MOMENT else 0.0)


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
    reserved = needed + kept
    return np.where(np.isnan(room), reserved, np.maximum(np.minimum(reserved, room), needed))


def pending_buffers(
    shape: ModelShape, layouts: Layouts, hardware: Hardware, layer: activations.LayerBytes, flying: Array
) -> Array:
    """Freed full-size collective tensors that wait for the GPU when the host runs ahead by a full launch queue.

    PyTorch marks the tensors of collectives with the communication stream; a freed one becomes usable again only when
    the GPU has
    passed it. With a queue of Q launches and one such tensor every l launches, Q / l of them wait. The host gets that
    far ahead
    without a pipeline, or while a stage issues at least four forward passes before its first receive; it does not
    where tensor
    parallelism spans more than two nodes.

    Args:
        shape [elements, (1,)]: the model.
        layouts [degrees, (n,)]: the layout columns.
        hardware [GPUs, (n,)]: GPUs per node.
        layer [tokens, (n,)]: tokens of the rank.
        flying [micro-batches, (kinds, n)]: micro-batches a stage holds.

    Returns:
        Bytes that the allocator holds besides what is allocated [bytes, (kinds, n)].

    Raises:
        nothing.

    References:
        [PyTorch] CUDACachingAllocator record_stream, [CUDA].
    """
    stacks, constants = layouts.books.stacks, layouts.books.constants
    between = stacks.launches_per_pending[layouts.stack]
    waits = (stacks.record_stream[layouts.stack] > 0.0) & (between > 0.0) & (layouts.tp > 1.0)
    node = np.where(np.isnan(hardware.gpus_per_node), np.inf, hardware.gpus_per_node)
    ahead = waits & ((layouts.pp == 1.0) | ((flying >= 4.0) & (layouts.tp <= 2.0 * node)))
    waiting: Array = ahead * (constants.launch_queue / np.maximum(between, 1.0) * (2.0 * shape.hidden * layer.tokens))
    return waiting


def _moment_sums(
    shape: ModelShape,
    layouts: Layouts,
    kinds: StageKinds,
    flying: Array,
    layer: activations.LayerBytes,
    held: state.State,
    passing: transient.Transients,
    slack: Array,
    keep: bool,
) -> _Sums:
    prefix = TermSum(keep)
    for spec, array in held.persistent:
        prefix.add(spec, array)
    state_persistent = prefix.sum()
    for spec, array in (*passing.fixed, *passing.always, *held.buckets):
        prefix.add(spec, array)
    kept_layers = kinds.layers - activations.full_recompute_layers(layouts, kinds)
    saved = activations.saved(shape, layer, layouts, kinds, kept_layers, flying)
    remaining = activations.saved(shape, layer, layouts, kinds, kept_layers, np.maximum(flying - 1.0, 0.0))
    casts = held.compute_copy.any()
    holds = held.unsharded_backward.any()
    sharded = passing.gathered_forward.any()

    forward = prefix.fork()
    forward.add(state.GRADIENTS, held.forward_gradients)
    if holds:
        forward.add(state.UNSHARDED, held.unsharded_forward)
    if casts:
        forward.add(state.COMPUTE_COPY, held.compute_copy)
    for spec, array in saved:
        forward.add(spec, array)
    backward_last = forward.fork()
    if sharded:
        forward.add(transient.GATHERED, passing.gathered_forward)
        backward_last.add(transient.GATHERED, passing.gathered_backward)
        backward_last.add(transient.REDUCE_INPUT, passing.reduce_input)
    forward.add(transient.LOGITS, passing.logits)
    backward_last.add(transient.RECOMPUTED, passing.live_last)
    backward_last.add(transient.WORKING, passing.working)

    backward_first = prefix.fork()
    backward_first.add(state.GRADIENTS, held.full_gradients)
    if holds:
        backward_first.add(state.UNSHARDED, held.unsharded_backward)
    if casts:
        backward_first.add(state.COMPUTE_COPY, held.compute_copy)
    for spec, array in remaining:
        backward_first.add(spec, array)
    if sharded:
        backward_first.add(transient.GATHERED, passing.gathered_backward)
        backward_first.add(transient.REDUCE_INPUT, passing.reduce_input)
    backward_first.add(transient.RECOMPUTED, passing.live_first)
    backward_first.add(transient.WORKING, passing.working)

    step = prefix.fork()
    step.add(state.GRADIENTS, held.step_gradients)
    for spec, array in held.step:
        step.add(spec, array)
    moments = [forward, backward_last, backward_first, step]
    for terms in moments:
        terms.add(transient.SLACK, slack * (terms.sum() - passing.context))
    return _Sums(moments, state_persistent)


def _fullest(moments: list[TermSum]) -> tuple[Array, NDArray[np.intp]]:
    """Largest total over moments and stage kinds, and its code: moment * kinds + kind (the first one on a tie)."""
    best: Array | None = None
    code: NDArray[np.float64] | None = None
    for number, terms in enumerate(moments):
        total = terms.sum()
        for kind, value in enumerate(total):
            if best is None or code is None:
                best, code = value, np.zeros_like(value)
            else:
                code = np.where(value > best, float(number * len(total) + kind), code)
                best = np.maximum(best, value)
    if best is None or code is None:
        raise ValueError("no moments")
    return best, code.astype(np.intp)


def _stage_rows(
    moments: list[TermSum], kinds: StageKinds, n: int, elsewhere: list[Array], context: Array, room: Array
) -> tuple[StageRow, ...]:
    """Each stage kind at its fullest moment, in the order of the stages."""
    rows = []
    for kind in range(kinds.index.shape[0]):
        totals = [np.broadcast_to(terms.sum()[kind], (n,)) for terms in moments]
        best = np.maximum.reduce(totals)
        when = np.argmax(np.stack(totals), axis=0)
        head = np.broadcast_to(kinds.has_head[kind], (n,)) > 0.0
        names = np.where(when == FORWARD_MOMENT, np.where(head, LOSS, FORWARD_END), when + 1)
        kept = np.zeros(n)
        for number, array in enumerate(elsewhere):
            kept = np.where(when == number, array[kind], kept)
        reserved = reserved_bytes(best - context, kept, room)
        slack = np.zeros(n)
        for number, terms in enumerate(moments):
            slack = np.where(when == number, terms.last()[kind], slack)
        index = np.broadcast_to(kinds.index[kind], (n,))
        rows.append(StageRow(index, names, best, best - context - slack, reserved, reserved + context))
    return tuple(rows)


def _peak_terms(
    moments: list[TermSum], moment: Array, pick: Callable[[Array], Array], n: int, symbols: dict[str, Array]
) -> tuple[Leaf, ...]:
    """Every leaf at the peak of each layout, in the order in which they were added; zero where the peak has no such
    leaf.
    """
    specs: list[LeafSpec] = []
    arrays: dict[LeafSpec, Array] = {}
    for number, terms in enumerate(moments):
        position = 0
        for spec, array in terms.kept or []:
            if spec not in arrays:
                specs.insert(position, spec)
                arrays[spec] = np.zeros(n)
            position = specs.index(spec) + 1
            arrays[spec] = np.where(moment == number, pick(array), arrays[spec])
    return tuple(Leaf(spec, arrays[spec], symbols) for spec in specs)
