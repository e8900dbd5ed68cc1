"""What a layout sends: each collective as data - operation, group, bytes of a call, calls a step, and what cannot
hide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dscalc.cost.axes import Groups
from dscalc.cost.rank_parameters import RankParameters
from dscalc.records import Array, Layouts, ModelShape


@dataclass(frozen=True, slots=True)
class Transfer:
    """One kind of collective of a layout; arrays (n,).

    ``exposed_calls`` are the calls that no compute can hide even when it is long enough.
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


@dataclass(frozen=True, slots=True)
class Stage:
    """The stage whose transfers are listed: the one that holds the most parameters; arrays (n,)."""

    layers: Array
    moe_layers: Array
    dense_parameters: Array
    expert_parameters: Array
    has_embedding: Array
    has_head: Array


def busiest(
    shape: ModelShape, parameters: RankParameters, layers: Array, moe_layers: Array, embedding: Array, head: Array
) -> Stage:
    """The stage kind that holds the most parameters.

    Args:
        shape [elements, (1,)]: the model.
        parameters [elements, (kinds, n)]: parameters with gradients.
        layers [layers, (kinds, n)]: layers of each kind.
        moe_layers [layers, (kinds, n)]: layers with experts.
        embedding [count, (kinds, n)]: embedding tables.
        head [count, (kinds, n)]: heads.

    Returns:
        That stage [counts, (n,)].

    Raises:
        nothing.

    References:
        [Definition].
    """
    dense = parameters.matrix + parameters.other
    expert = parameters.expert + 0.0 * dense if shape.experts else 0.0 * dense
    total = dense + expert
    kind = np.argmax(total, axis=0)
    columns = np.arange(total.shape[1])

    def at(values: Array) -> Array:
        return np.asarray(np.broadcast_to(values, total.shape)[kind, columns])

    return Stage(at(layers), at(moe_layers), at(dense), at(expert), at(embedding), at(head))


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
    transfers = _sharded(
        layouts, groups.dp_cp, groups.shard, layouts.tp, stage.dense_parameters, stage, gradient_bytes, "dp"
    )
    if shape.experts:
        stride = layouts.etp * layouts.ep
        transfers += _sharded(
            layouts, groups.edp, groups.expert_shard, stride, stage.expert_parameters, stage, gradient_bytes, "edp"
        )
    return transfers


def _sharded(
    layouts: Layouts,
    group: Array,
    shard: Array,
    stride: Array,
    parameters: Array,
    stage: Stage,
    gradient_bytes: Array,
    axis: str,
) -> list[Transfer]:
    books = layouts.books
    stacks, stack = books.stacks, layouts.stack
    zero = layouts.zero
    weight_bytes = books.recipes.gather[layouts.recipe]
    gradients, weights = parameters * gradient_bytes, parameters * weight_bytes
    replicas = layouts.dp_replicate
    units = np.maximum(stage.layers + stage.has_embedding + stage.has_head, 1.0)
    bucket = np.maximum(stacks.reduce_bucket_bytes[stack], 1.0)
    pieces = np.maximum(np.ceil(gradients / bucket), 1.0)
    by_unit = stacks.unit_reduce[stack] > 0.0
    three, two, one, none = zero >= 3.0, zero == 2.0, zero == 1.0, zero == 0.0
    staged = (layouts.pp > 1.0) & by_unit & (stacks.reshard_in_pipeline[stack] == 0.0) & three
    once = (layouts.no_sync > 0.0) | staged
    reductions = np.where((three | two) & ~once, layouts.n_micro, 1.0)
    reduce_pieces = np.where(three & by_unit, units, pieces)
    hide = stacks.gradient_overlap[stack] > 0.0
    reduce_calls = np.where(none, 0.0, reductions * reduce_pieces)
    gather_passes = np.where(staged, 1.0, layouts.n_micro * np.where(layouts.reshard > 0.0, 2.0, 1.0))
    unit_calls = np.where(three, gather_passes * units, 0.0)
    ahead = stacks.weight_overlap[stack] > 0.0
    step_calls = np.where(one | two, pieces, 0.0)
    reduce_exposed = np.where(hide, np.where(none, 0.0, 1.0), reduce_calls)
    summed = np.where(none, pieces, 0.0)
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
        ),
        Transfer(
            axis,
            "weights gathered unit by unit",
            "all-gather",
            "every",
            np.where(three, shard, 1.0),
            stride,
            weights / units,
            unit_calls,
            np.where(ahead, np.minimum(unit_calls, 1.0), unit_calls),
            "N_r b_w, forward and again in backward where resharded, every micro-batch",
            "[Zhao2023] section 3.2",
        ),
        Transfer(
            axis,
            "owned gradients summed over replicas of the shards",
            "all-reduce",
            "every",
            np.where(none, 1.0, replicas),
            stride * shard,
            gradients / shard,
            np.where(none | (replicas == 1.0), 0.0, 1.0),
            np.where(none | (replicas == 1.0), 0.0, 1.0),
            "N_r b_r / k_shard, once a step (HSDP)",
            "[Zhao2023] section 3.2.2",
        ),
    ]
