"""What a layout sends: each collective as data - operation, group, bytes of a call, calls a step, and what cannot hide."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dscalc.cost.axes import Groups
from dscalc.cost.ledger import FULL
from dscalc.cost.rank_parameters import RankParameters
from dscalc.cost.schedule import chunks_per_stage
from dscalc.records import Adapters, Array, Layouts, ModelShape

FORWARD_PER_LAYER, BACKWARD_PER_LAYER = (
    2.0,
    2.0,
)  # column- and row-parallel pairs of a transformer layer: attention and MLP
KV_BACKWARD = 2.0  # ring attention sends key/value and their gradients backward


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
    transfers = [
        Transfer(
            axis, "gradients summed over all replicas", "all-reduce", "every", np.where(none, group, 1.0), stride,
            gradients / pieces, summed, np.where(hide, np.minimum(summed, 1.0), summed),
            "N_r b_r in buckets, once a step", "[Rajbhandari2020] section 7.1",
        ),
        Transfer(
            axis, "gradients reduced to their owners", "reduce-scatter", "every", np.where(none, 1.0, shard), stride,
            gradients / reduce_pieces, reduce_calls, np.minimum(reduce_exposed, reduce_calls),
            "N_r b_r, once a step (ZeRO-1) or a micro-batch (ZeRO-2, 3)", "[Rajbhandari2020] section 7.2; [Zhao2023] section 3.2",
        ),
        Transfer(
            axis, "updated weights gathered", "all-gather", "every", np.where(one | two, shard, 1.0), stride,
            weights / pieces, step_calls, np.where(ahead, np.minimum(step_calls, 1.0), step_calls),
            "N_r b_w, once a step (ZeRO-1, 2)", "[Rajbhandari2020] section 7.2",
        ),
        Transfer(
            axis, "weights gathered unit by unit", "all-gather", "every", np.where(three, shard, 1.0), stride,
            weights / units, unit_calls, np.where(ahead, np.minimum(unit_calls, 1.0), unit_calls),
            "N_r b_w, forward and again in backward where resharded, every micro-batch", "[Zhao2023] section 3.2",
        ),
        Transfer(
            axis, "owned gradients summed over replicas of the shards", "all-reduce", "every",
            np.where(none, 1.0, replicas), stride * shard, gradients / shard, np.where(none | (replicas == 1.0), 0.0, 1.0),
            np.where(none | (replicas == 1.0), 0.0, 1.0), "N_r b_r / k_shard, once a step (HSDP)", "[Zhao2023] section 3.2.2",
        ),
    ]  # fmt: skip
    return transfers


def model_parallel(
    shape: ModelShape, layouts: Layouts, groups: Groups, stage: Stage, gradient_bytes: Array, adapters: Adapters | None
) -> list[Transfer]:
    """Tensor-, pipeline-, context- and expert-parallel collectives, and those of tied embeddings.

    Args:
        shape [elements, (1,)]: the model.
        layouts [degrees, (n,)]: the layout columns.
        groups [ranks, (n,)]: derived groups.
        stage [layers, (n,)]: the stage listed.
        gradient_bytes [bytes/element, (n,)]: b_r on the wire.
        adapters [rank, (1,)]: a frozen base has no tied-embedding gradient.

    Returns:
        Transfers by axis.

    Raises:
        nothing.

    References:
        [Shoeybi2019] section 3, [Korthikanti2022] section 4.2, [Narayanan2021] sections 2-3, [Liu2023], [Jacobs2023], [Shazeer2017].
    """
    one = np.ones_like(layouts.tp)
    tokens = layouts.seq_len * layouts.micro_batch / layouts.cp
    hidden = 2.0 * shape.hidden * tokens
    parallel = layouts.sequence_parallel > 0.0
    passes = layouts.n_micro * stage.layers
    again = (layouts.recompute == FULL) * np.minimum(layouts.recompute_layers, stage.layers) * layouts.n_micro
    dp_stride = layouts.tp * layouts.cp
    stage_stride = dp_stride * layouts.dp
    transfers = _tensor(shape, layouts, stage, hidden, tokens, parallel, passes, again, one)
    transfers += _context(shape, layouts, tokens, passes, again)
    transfers += _experts(shape, layouts, stage, tokens)
    chunks = chunks_per_stage(layouts)
    message = hidden * np.where(parallel, 1.0 / layouts.tp, 1.0)
    messages = np.where(layouts.pp > 1.0, 2.0 * layouts.n_micro * chunks, 0.0)
    hidden_messages = layouts.books.stacks.message_overlap[layouts.stack] > 0.0
    transfers.append(
        Transfer(
            "pp", "activations forward and their gradients backward", "send-recv", "every",
            np.minimum(layouts.pp, 2.0), stage_stride, message, messages,
            np.where(hidden_messages, 0.0, messages), "2 s b h R / c, once a micro-batch, chunk and direction", "[Narayanan2021] section 2.2",
        )
    )  # fmt: skip
    if shape.tied_embeddings and adapters is None:
        table = shape.vocab * shape.hidden / layouts.tp * gradient_bytes
        call = np.where(layouts.pp > 1.0, 1.0, 0.0)
        transfers.append(
            Transfer(
                "pp", "gradient of the tied embedding", "all-reduce", "first and last", np.minimum(layouts.pp, 2.0),
                stage_stride * np.maximum(layouts.pp - 1.0, 1.0), table, call, call, "V h b_r / t over two ranks", "[Narayanan2021] section 2.3",
            )
        )  # fmt: skip
    return transfers


def _tensor(
    shape: ModelShape,
    layouts: Layouts,
    stage: Stage,
    hidden: Array,
    tokens: Array,
    parallel: Array,
    passes: Array,
    again: Array,
    one: Array,
) -> list[Transfer]:
    hides = layouts.books.stacks.tp_hidden_backward[layouts.stack] > 0.0
    plain = ~parallel
    summed = np.where(plain, passes * (FORWARD_PER_LAYER + BACKWARD_PER_LAYER) + again * FORWARD_PER_LAYER, 0.0)
    summed_exposed = np.where(hides, summed - np.where(plain, passes * BACKWARD_PER_LAYER, 0.0), summed)
    # sequence parallelism gathers inputs forward and again for the weight gradient, and gathers gradients of row-parallel outputs
    gathered = np.where(
        parallel, passes * (FORWARD_PER_LAYER + 2.0 * BACKWARD_PER_LAYER) + again * FORWARD_PER_LAYER, 0.0
    )
    scattered = np.where(parallel, passes * (FORWARD_PER_LAYER + BACKWARD_PER_LAYER) + again * FORWARD_PER_LAYER, 0.0)
    hidden_half = np.where(parallel & hides, passes * BACKWARD_PER_LAYER, 0.0)
    ends = layouts.n_micro * ((stage.has_embedding > 0.0) * 1.0 + (stage.has_head > 0.0) * 1.0)
    vocabulary = layouts.books.losses.vocab_parallel[layouts.loss] > 0.0
    loss_calls = np.where(vocabulary, 3.0 * layouts.n_micro * (stage.has_head > 0.0), 0.0)
    source = "[Shoeybi2019] section 3"
    return [
        Transfer("tp", "layer outputs and input gradients summed", "all-reduce", "every", np.where(plain, layouts.tp, 1.0), one, hidden, summed, summed_exposed, "2 s b h / c, two forward and two backward a layer and micro-batch (two more under full recompute)", source),
        Transfer("tp", "sequence-parallel inputs gathered", "all-gather", "every", np.where(parallel, layouts.tp, 1.0), one, hidden, gathered, gathered - hidden_half, "2 s b h / c, two forward and four backward a layer", "[Korthikanti2022] section 4.2.2"),
        Transfer("tp", "sequence-parallel outputs scattered", "reduce-scatter", "every", np.where(parallel, layouts.tp, 1.0), one, hidden, scattered, scattered - hidden_half, "2 s b h / c, two forward and two backward a layer", "[Korthikanti2022] section 4.2.2"),
        Transfer("tp", "embedding output and head input gradient summed", "all-reduce", "first and last", layouts.tp, one, hidden, ends, ends, "2 s b h / c, once a micro-batch on each end", source),
        Transfer("tp", "vocabulary-parallel loss: maximum, target logit, sum", "all-reduce", "last", np.where(vocabulary, layouts.tp, 1.0), one, 4.0 * tokens, loss_calls, loss_calls, "4 s b / c, three a micro-batch", "[MegatronLM] cross_entropy.py"),
    ]  # fmt: skip


def _context(shape: ModelShape, layouts: Layouts, tokens: Array, passes: Array, again: Array) -> list[Transfer]:
    heads = np.maximum(shape.kv_heads / layouts.tp, 1.0)
    block = 2.0 * heads * (shape.head_dim + shape.value_head_dim) * tokens  # key and value of the rank's tokens
    if shape.mla:
        block = 2.0 * shape.heads / layouts.tp * (shape.head_dim + shape.value_head_dim) * tokens
    ring, gather, ulysses = layouts.cp_comm == 0, layouts.cp_comm == 1, layouts.cp_comm == 2
    used = layouts.cp > 1.0
    steps = np.maximum(layouts.cp - 1.0, 0.0)
    ring_calls = np.where(ring & used, steps * (passes * (1.0 + KV_BACKWARD) + again), 0.0)
    gather_calls = np.where(gather & used, 2.0 * passes + again, 0.0)
    scatter_calls = np.where(gather & used, passes, 0.0)
    query = 2.0 * shape.heads / layouts.tp * (shape.head_dim + shape.value_head_dim) * tokens
    exchange_calls = np.where(ulysses & used, 2.0 * passes + again, 0.0)
    stride = layouts.tp
    return [
        Transfer("cp", "key and value passed around the ring", "send-recv", "every", np.where(ring, layouts.cp, 1.0), stride, block, ring_calls, np.where(ring & used, passes * (1.0 + KV_BACKWARD), 0.0), "4 s b max(g/t, 1) d_k / c, c - 1 steps forward, twice as much backward", "[Liu2023] section 3"),
        Transfer("cp", "key and value gathered", "all-gather", "every", np.where(gather, layouts.cp, 1.0), stride, block * layouts.cp, gather_calls, gather_calls, "4 s b max(g/t, 1) d_k, once forward and once backward a layer", "[Dubey2024] section 3.3.2"),
        Transfer("cp", "key and value gradients scattered", "reduce-scatter", "every", np.where(gather, layouts.cp, 1.0), stride, block * layouts.cp, scatter_calls, scatter_calls, "4 s b max(g/t, 1) d_k, once a layer", "[Dubey2024] section 3.3.2"),
        Transfer("cp", "heads exchanged for sequence and back", "all-to-all", "every", np.where(ulysses, layouts.cp, 1.0), stride, query + block, exchange_calls, exchange_calls, "query, key, value in and output back (four exchanges, counted as one of their sum), each way a layer", "[Jacobs2023] section 3.2"),
    ]  # fmt: skip


def _experts(shape: ModelShape, layouts: Layouts, stage: Stage, tokens: Array) -> list[Transfer]:
    if not shape.experts:
        return []
    routed = 2.0 * shape.hidden * shape.top_k * tokens / layouts.tp * layouts.capacity_factor
    moe_passes = layouts.n_micro * stage.moe_layers
    again = (layouts.recompute == FULL) * moe_passes
    calls = np.where(layouts.ep > 1.0, 4.0 * moe_passes + 2.0 * again, 0.0)
    etp_calls = np.where(layouts.etp > 1.0, 2.0 * moe_passes + again, 0.0)
    gathered = routed * layouts.etp
    return [
        Transfer("ep", "tokens dispatched to experts and combined", "all-to-all", "every", layouts.ep, layouts.etp, routed, calls, calls, "T top_k h 2 bytes, dispatch and combine, forward and backward a layer with experts", "[Shazeer2017]; [MegatronLM] token_dispatcher.py"),
        Transfer("etp", "routed tokens gathered over the parts of an expert", "all-gather", "every", layouts.etp, np.ones_like(layouts.etp), gathered, etp_calls, etp_calls, "T top_k h 2 bytes * x", "[MegatronLM] token_dispatcher.py"),
        Transfer("etp", "expert outputs scattered", "reduce-scatter", "every", layouts.etp, np.ones_like(layouts.etp), gathered, etp_calls, etp_calls, "T top_k h 2 bytes * x", "[MegatronLM] token_dispatcher.py"),
    ]  # fmt: skip
