"""What a layout sends: each collective as data - operation, group, bytes of a call, calls a step, and what cannot
hide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dscalc.cost.axes import Groups, strides
from dscalc.cost.columns import largest_of, row_of
from dscalc.cost.placement import StageKinds
from dscalc.cost.rank_parameters import RankParameters
from dscalc.cost.schedule import SCHEDULES, chunks_per_stage
from dscalc.records import Adapters, Array, Layouts, ModelShape

TWO_COPIES = "both"  # a schedule that keeps every chunk on two stages, each for half of the micro-batches


@dataclass(frozen=True, slots=True)
class Transfer:
    """One kind of collective of a layout; arrays (n,).

    ``exposed_calls`` are the calls that no compute can hide even when it is long enough. ``line``: where the group is
    two stages of a pipeline, the stages of that pipeline; 0 elsewhere. Of a group in blocks ``near`` members lie
    ``stride`` apart, and the blocks ``far``.
    """

    axis: str
    what: str
    op: str
    stage: str  # every | first | last | first and last
    group: Array
    stride: Array
    message_bytes: Array
    calls: Array
    exposed_calls: Array
    formula: str
    source: str
    line: Array | float = 0.0
    near: Array | float = np.inf
    far: Array | float = 1.0


@dataclass(frozen=True, slots=True)
class Stage:
    """The stage whose transfers are listed: the one that holds the most parameters; arrays (n,).

    ``runs`` are the micro-batches that each of its chunks sees in a step, ``chunks`` how many chunks it holds.
    """

    index: Array
    runs: Array
    chunks: Array
    turn: Array  # 1: the next chunk lies on the same stage (the turn of a V)
    layers: Array
    moe_layers: Array
    dense_parameters: Array
    expert_parameters: Array
    has_embedding: Array
    has_head: Array
    frozen_dense_bytes: Array | float = 0.0  # of a frozen base, as stored: ZeRO-3 gathers it too
    frozen_expert_bytes: Array | float = 0.0


def busiest(
    layouts: Layouts,
    kinds: StageKinds,
    parameters: RankParameters,
    base: RankParameters | None = None,
    adapters: Adapters | None = None,
) -> Stage:
    """The stage kind that holds the most parameters.

    Args:
        layouts [degrees, (n,)]: the layout columns.
        kinds [counts, (kinds, n)]: the stage kinds.
        parameters [elements, (kinds, n)]: parameters with gradients.
        base [elements, (kinds, n)]: the frozen base under ``adapters``, or None.
        adapters [rank, (1,)]: low-rank adapters on a frozen base, or None.

    Returns:
        That stage [counts, (n,)].

    Raises:
        nothing.

    References:
        [Definition]; [DeepSeekV3] section 3.2.1 for chunks kept on two stages, [Qi2024] for those that form a V.
    """
    zero = 0.0 * (kinds.layers + layouts.pp + layouts.vpp + layouts.schedule + layouts.n_micro + parameters.dense)
    dense, expert = parameters.dense + zero, parameters.expert + zero
    total = dense + expert if base is None else dense + expert + base.dense + base.expert
    pick = row_of(largest_of(total))

    def at(values: Array) -> Array:
        return np.broadcast_to(pick(np.atleast_2d(values)), total.shape[1:])

    frozen: tuple[Array | float, Array | float] = (0.0, 0.0)
    if base is not None and adapters is not None:
        matrices, rest = adapters.base_matrix_bytes, adapters.base_other_bytes
        frozen = (at(base.matrix * matrices + base.other * rest), at(base.expert * matrices))
    copies = np.asarray([2.0 if s.placement == TWO_COPIES else 1.0 for s in SCHEDULES]).take(layouts.schedule)
    folded = np.asarray([0.0 if s.placement == "loop" else 1.0 for s in SCHEDULES]).take(layouts.schedule)
    veed = np.asarray([1.0 if s.placement == "vee" else 0.0 for s in SCHEDULES]).take(layouts.schedule)
    index = at(kinds.index)
    return Stage(
        index=index,
        runs=at(layouts.n_micro / copies),
        chunks=at(np.where(folded > 0.0, 2.0, chunks_per_stage(layouts))),
        turn=at(veed * (index == layouts.pp - 1.0)),
        layers=at(kinds.layers),
        moe_layers=at(kinds.moe_layers),
        dense_parameters=at(dense),
        expert_parameters=at(expert),
        has_embedding=at(kinds.has_embedding),
        has_head=at(kinds.has_head),
        frozen_dense_bytes=frozen[0],
        frozen_expert_bytes=frozen[1],
    )


def data_parallel(
    shape: ModelShape, layouts: Layouts, groups: Groups, stage: Stage, gradient_bytes: Array
) -> list[Transfer]:
    """Gradient and weight collectives of the data-parallel groups, dense and expert.

    Args:
        shape [elements, (1,)]: the model.
        layouts [degrees, (n,)]: the layout columns.
        groups [ranks, (n,)]: derived groups.
        stage [elements, (n,)]: the stage listed.
        gradient_bytes [bytes/element, (n,)]: b_r on the wire.

    Returns:
        Transfers, dense first.

    Raises:
        nothing.

    References:
        [Rajbhandari2020] section 7, [Zhao2023] section 3.
    """
    lie = strides(layouts)
    held = _Held(stage.dense_parameters, stage.frozen_dense_bytes, stage.layers + stage.has_embedding + stage.has_head)
    ranks = _Ranks(groups.dp_cp, groups.shard, layouts.tp, lie.near, lie.far)
    transfers = _sharded(layouts, ranks, held, stage, gradient_bytes, "dp")
    if shape.experts:
        held = _Held(stage.expert_parameters, stage.frozen_expert_bytes, stage.moe_layers)
        ranks = _Ranks(groups.edp, groups.expert_shard, layouts.etp * layouts.ep, lie.expert_near, lie.far)
        transfers += _sharded(layouts, ranks, held, stage, gradient_bytes, "edp")
    return transfers


@dataclass(frozen=True, slots=True)
class _Ranks:
    """A data-parallel group, the part of it that divides the state, and how its ranks lie."""

    group: Array
    shard: Array
    stride: Array
    near: Array
    far: Array

    @property
    def replica_stride(self) -> Array:
        """Ranks between replicas of a shard group."""
        blocks = self.shard / np.minimum(self.near, self.shard)
        return np.where(self.near < self.group, self.far * blocks, self.stride * self.shard)


@dataclass(frozen=True, slots=True)
class _Held:
    """What a rank of a data-parallel group holds, and in how many units FSDP wraps it."""

    parameters: Array
    frozen_bytes: Array | float
    units: Array


def _sharded(
    layouts: Layouts, ranks: _Ranks, held: _Held, stage: Stage, gradient_bytes: Array, axis: str
) -> list[Transfer]:
    group, shard, stride, near, far = ranks.group, ranks.shard, ranks.stride, ranks.near, ranks.far
    books = layouts.books
    stacks, stack = books.stacks, layouts.stack
    zero = layouts.zero
    weight_bytes = books.recipes.gather[layouts.recipe]
    gradients, weights = held.parameters * gradient_bytes, held.parameters * weight_bytes
    trained = held.parameters > 0.0
    gathered = weights + held.frozen_bytes
    replicas = layouts.dp_replicate
    units = np.maximum(held.units, 1.0)
    bucket = np.maximum(stacks.reduce_bucket_bytes[stack], 1.0)
    pieces = np.maximum(np.ceil(gradients / bucket), 1.0)
    by_unit = stacks.unit_reduce[stack] > 0.0
    three, two, one, none = zero >= 3.0, zero == 2.0, zero == 1.0, zero == 0.0
    staged = (layouts.pp > 1.0) & by_unit & (stacks.reshard_in_pipeline[stack] == 0.0) & three
    once = (layouts.no_sync > 0.0) | staged
    reductions = np.where((three | two) & ~once, stage.runs, 1.0)
    reduce_pieces = np.where(three & by_unit, units, pieces)
    hide = stacks.gradient_overlap[stack] > 0.0
    reduce_calls = np.where(none | ~trained, 0.0, reductions * reduce_pieces)
    gather_passes = np.where(staged, 1.0, stage.runs * np.where(layouts.reshard > 0.0, 2.0, 1.0))
    unit_calls = np.where(three & (gathered > 0.0), gather_passes * units, 0.0)
    ahead = stacks.weight_overlap[stack] > 0.0
    step_calls = np.where((one | two) & trained, pieces, 0.0)
    reduce_exposed = np.where(hide, np.where(none, 0.0, 1.0), reduce_calls)
    summed = np.where(none & trained, pieces, 0.0)
    owned = np.where(none | (replicas == 1.0) | ~trained, 0.0, 1.0)
    return [
        Transfer(
            axis,
            "gradients summed over all replicas",
            "all-reduce",
            "every",
            np.where(none, group, 1.0),
            stride,
            gradients / pieces,
            summed,
            np.where(hide, np.minimum(summed, 1.0), summed),
            "N_r b_r in buckets, once a step",
            "[Rajbhandari2020] section 7.1",
            near=near,
            far=far,
        ),
        Transfer(
            axis,
            "gradients reduced to their owners",
            "reduce-scatter",
            "every",
            np.where(none, 1.0, shard),
            stride,
            gradients / reduce_pieces,
            reduce_calls,
            np.minimum(reduce_exposed, reduce_calls),
            "N_r b_r, once a step (ZeRO-1) or a micro-batch (ZeRO-2, 3)",
            "[Rajbhandari2020] section 7.2; [Zhao2023] section 3.2",
            near=near,
            far=far,
        ),
        Transfer(
            axis,
            "updated weights gathered",
            "all-gather",
            "every",
            np.where(one | two, shard, 1.0),
            stride,
            weights / pieces,
            step_calls,
            np.where(ahead, np.minimum(step_calls, 1.0), step_calls),
            "N_r b_w, once a step (ZeRO-1, 2)",
            "[Rajbhandari2020] section 7.2",
            near=near,
            far=far,
        ),
        Transfer(
            axis,
            "weights gathered unit by unit",
            "all-gather",
            "every",
            np.where(three, shard, 1.0),
            stride,
            gathered / units,
            unit_calls,
            np.where(ahead, np.minimum(unit_calls, 1.0), unit_calls),
            "N_r b_w, forward and again in backward where resharded, every micro-batch",
            "[Zhao2023] section 3.2",
            near=near,
            far=far,
        ),
        Transfer(
            axis,
            "owned gradients summed over replicas of the shards",
            "all-reduce",
            "every",
            np.where(none, 1.0, replicas),
            ranks.replica_stride,
            gradients / shard,
            owned,
            owned,
            "N_r b_r / k_shard, once a step (HSDP)",
            "[Zhao2023] section 3.2.2",
        ),
    ]
