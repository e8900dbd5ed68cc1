"""FLOP, bytes and time of operations.

A matrix product takes its FLOP at the rate large ones sustain, times 1 + K0 (1/depth + 1/width + 1/rows); the attention
core runs at its kernel's own rate; what only moves data takes its bytes at the share of the memory's rate that
streaming reaches. What the host needs to launch it all is a floor under their sum, see :mod:`dscalc.cost.layer_time`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from dscalc.cost.ledger import FULL, SELECTIVE, UNFUSED
from dscalc.cost.operation_rows import OPERATIONS, THIRD, Case, Operation
from dscalc.frozen import dataclass
from dscalc.records import Array, Engine, Layouts, ModelShape, PaceConstants, PaceTable

ELEMENT_BYTES = 2.0
PRODUCTS = ("linear", "product", "expert")  # kinds of operations that are matrix products
FLOP_PER_PRODUCT = 2.0  # a multiplication and an addition
RAMP_FLOP_PER_S = 989.4e12  # the peak at which ``gemm_ramp`` is stated: a faster unit spends more of a tile on filling
FLASH_BACKWARD = 2.5  # five products of the forward's two: scores are made again


@dataclass(frozen=True, slots=True, eq=False)
class Pace:
    """How the stack of each layout spends time: entries of ``records.PaceTable``, and the attention rate; (n,)."""

    flash_fraction: Array
    elementwise: Array
    host_layer_s: Array
    host_moe_layer_s: Array
    host_expert_s: Array
    loss_passes: Array
    tp_exposed: Array
    dp_exposed: Array
    pp_exposed: Array
    routing_passes: Array
    ep_exposed: Array
    overlap_power: Array
    message_s: Array
    gather_slowdown: Array
    owner_broadcast_s: Array
    step_s: Array
    floor_s: Array
    floor_tp_s: Array


def pace_of(table: PaceTable, layouts: Layouts, engine: Engine) -> Pace:
    """What the stack of each layout does, on its GPU, at its precision and ZeRO stage.

    Args:
        table [per code, (codes,)]: how stacks spend time.
        layouts [codes, (n,)]: the layout columns.
        engine [FLOP/s, (n,)]: what the GPU sustains.

    Returns:
        Columns [s, (n,)].

    Raises:
        nothing.

    References:
        [Definition].
    """
    code = layouts.stack
    own = table.flash_fraction[code, engine.generation]
    low = engine.linear_gain > 1.0
    exposed = np.where(layouts.zero > 0.0, table.dp_exposed_sharded[code], table.dp_exposed[code])
    in_pipeline = (layouts.pp > 1.0) & (layouts.n_micro > 1.0)
    return Pace(
        flash_fraction=np.where(np.isnan(own), engine.flash_fraction, own),
        elementwise=table.elementwise[code],
        host_layer_s=np.where(low, table.host_layer_low_s[code], table.host_layer_s[code]),
        host_moe_layer_s=table.host_moe_layer_s[code],
        host_expert_s=table.host_expert_s[code],
        loss_passes=table.loss_passes[code],
        tp_exposed=table.tp_exposed[code],
        dp_exposed=np.maximum(exposed, np.where(in_pipeline, table.dp_exposed_pipeline[code], 0.0)),
        pp_exposed=table.pp_exposed[code],
        routing_passes=table.routing_passes[code],
        ep_exposed=table.ep_exposed[code],
        overlap_power=table.overlap_power[code],
        message_s=table.message_s[code],
        gather_slowdown=table.gather_slowdown[code],
        owner_broadcast_s=table.owner_broadcast_s[code],
        step_s=table.step_s[code],
        floor_s=table.floor_s[code],
        floor_tp_s=table.floor_tp_s[code],
    )


class Time(NamedTuple):
    """Seconds of an operation in one micro-batch on one rank; arrays (n,)."""

    forward: Array
    backward: Array
    again: Array  # forward once more where its result was not kept


@dataclass(frozen=True, slots=True)
class Work:
    """One operation of one micro-batch on one rank, hardware apart; arrays (n,) or (1,).

    Attributes:
        operation: what it is.
        forward_flop, backward_flop: FLOP executed.
        forward_bytes, backward_bytes: memory traffic.
        again: share of the forward that backward repeats.
        shortness: 1/depth + 1/width + 1/rows of a matrix product, 1/tokens of an attention core.
    """

    operation: Operation
    forward_flop: Array
    backward_flop: Array
    forward_bytes: Array
    backward_bytes: Array
    again: Array
    shortness: Array


def case_of(shape: ModelShape, layouts: Layouts) -> Case:
    """Sizes of one micro-batch on one rank.

    Args:
        shape [elements, (1,)]: the model.
        layouts [degrees, (n,)]: the layout columns.

    Returns:
        The sizes [tokens and ranks, (n,)].

    Raises:
        nothing.

    References:
        [Shoeybi2019] section 3, [Korthikanti2022] section 4.2, [Shazeer2017].
    """
    tokens = layouts.seq_len * layouts.micro_batch / layouts.cp
    split = layouts.sequence_parallel > 0.0
    experts = float(max(shape.experts, 1))
    group = layouts.ep * layouts.etp
    routed = tokens / layouts.tp * group * shape.top_k * layouts.capacity_factor / experts
    parallel_loss = layouts.books.losses.vocab_parallel[layouts.loss] > 0.0
    return Case(
        shape=shape,
        tokens=tokens,
        seq_len=layouts.seq_len,
        tp=layouts.tp,
        kv_tp=np.minimum(layouts.tp, float(shape.kv_heads)),
        hidden_tokens=tokens / np.where(split, layouts.tp, 1.0),
        routed=routed,
        local_experts=experts / layouts.ep,
        etp=layouts.etp,
        vocab_tp=np.where(parallel_loss, layouts.tp, 1.0),
        unfused=layouts.attention == UNFUSED,
    )


def works(shape: ModelShape, layouts: Layouts, frozen: bool = False) -> tuple[Work, ...]:
    """FLOP and bytes of every operation that the model has.

    Args:
        shape [elements, (1,)]: the model.
        layouts [degrees, (n,)]: the layout columns.
        frozen [flag, (1,)]: products make no weight gradients, as under low-rank adapters.

    Returns:
        The operations in the order of the table, of one layer, embedding or head and one micro-batch [FLOP, (n,)].

    Raises:
        nothing.

    References:
        [Korthikanti2022] appendix A, [Dao2023] section 3, [Chowdhery2022] appendix B.
    """
    case = case_of(shape, layouts)
    backward_products = 1.0 if frozen else 2.0  # of the input, and of the weight
    full = (layouts.recompute == FULL) * 1.0
    chosen = layouts.recompute == SELECTIVE
    second = chosen & (layouts.books.stacks.every_second_matmul[layouts.stack] > 0.0)
    has_experts = bool(shape.moe_layer) and any(shape.moe_layer)
    found = []
    for operation in OPERATIONS:
        if operation.part == "moe" and not has_experts:
            continue
        if operation.part == "dense" and has_experts and all(shape.moe_layer):
            continue
        sizes = operation.sizes(case)
        if isinstance(sizes[3], float) and sizes[3] == 0.0:
            continue
        first, middle, last, count = (np.asarray(x, dtype=np.float64) + 0.0 * case.tokens for x in sizes)
        again = full if operation.part in ("layer", "dense", "moe") else 0.0 * full
        zero = 0.0 * case.tokens
        if operation.kind in PRODUCTS:
            flop = FLOP_PER_PRODUCT * first * middle * last * count
            short = 1.0 / np.maximum(middle, 1.0) + 1.0 / np.maximum(last, 1.0) + 1.0 / np.maximum(first, 1.0)
            again = np.where(second & (operation.kind == "linear"), 0.5, again)
            found.append(Work(operation, flop, backward_products * flop, zero, zero, again, short))
        elif operation.kind == "core":
            flop = np.where(case.unfused, middle, first)
            backward = np.where(case.unfused, 2.0, FLASH_BACKWARD) * flop
            scores = np.where(case.unfused, ELEMENT_BYTES * last, 0.0)
            again = np.where(chosen & ~second, 1.0, again)
            short = 1.0 / case.seq_len + zero
            found.append(Work(operation, flop, backward, scores * THIRD, scores * 2.0 / 3.0, again, short))
        else:
            bytes_ = ELEMENT_BYTES * first
            found.append(Work(operation, zero, zero, bytes_ * middle, bytes_ * last, again, zero))
    return tuple(found)


def operation_seconds(work: Work, engine: Engine, pace: Pace, constants: PaceConstants, unaligned: bool) -> Time:
    """Time of one operation on the GPU, launches apart.

    Args:
        work [FLOP, (n,)]: the operation.
        engine [FLOP/s, (n,)]: what the GPU sustains.
        pace [passes, (n,)]: how the stack of each layout spends time.
        constants [-, (1,)]: what is the same everywhere.
        unaligned: the head size is no multiple of what tensor cores want.

    Returns:
        Forward, backward and what is computed again [s, (n,)].

    Raises:
        nothing.

    References:
        [Dao2023] section 4, [Korthikanti2022] section 5; fitted, see docs/explanation/step-time.md.
    """
    kind = work.operation.kind
    memory = engine.memory_bytes_per_s * engine.memory_fraction
    if kind in PRODUCTS:
        speed, slowdown = engine.peak_flop_per_s, 1.0
        if kind == "linear":
            speed = speed * engine.linear_gain
        elif kind == "expert":
            speed = speed * np.power(engine.linear_gain, constants.expert_low_power)
            slowdown = constants.expert_slowdown
        ramp = constants.gemm_ramp * np.sqrt(speed / RAMP_FLOP_PER_S)
        each = slowdown * (1.0 + ramp * work.shortness) / (speed * engine.gemm_fraction)
        forward, backward = work.forward_flop * each, work.backward_flop * each
    elif kind == "core":
        unfused = work.forward_bytes > 0.0
        slow = (constants.unaligned_slowdown if unaligned else 1.0) / constants.unfused_fraction
        fused = (1.0 + constants.flash_ramp * work.shortness) / pace.flash_fraction
        each = np.where(unfused, slow, fused) / engine.peak_flop_per_s
        moved = constants.score_passes / memory
        forward = work.forward_flop * each + work.forward_bytes * moved
        backward = work.backward_flop * each + work.backward_bytes * moved
    else:
        passes: dict[str, Array | float] = {
            "loss": pace.loss_passes,
            "routing": pace.routing_passes,
            "weights": constants.expert_weight_passes,
        }
        each = passes.get(kind, pace.elementwise) / memory
        forward, backward = work.forward_bytes * each, work.backward_bytes * each
    return Time(forward, backward, forward * work.again)
