"""What tensor, pipeline, context and expert parallelism send, layer by layer."""

from __future__ import annotations

import numpy as np

from dscalc.cost.axes import Groups, strides
from dscalc.cost.ledger import FULL
from dscalc.cost.schedule import SCHEDULES
from dscalc.cost.transfers import TWO_COPIES, Stage, Transfer
from dscalc.records import Adapters, Array, Layouts, ModelShape

BLOCKS = 2.0  # column- and row-parallel pairs of a transformer layer: attention and MLP
KV_BACKWARD = 2.0  # ring attention sends key/value and their gradients backward


def model_parallel(shape: ModelShape, layouts: Layouts, stage: Stage) -> list[Transfer]:
    """Tensor-, context-, expert- and pipeline-parallel collectives of every micro-batch.

    Args:
        shape [elements, (1,)]: the model.
        layouts [degrees, (n,)]: the layout columns.
        stage [layers, (n,)]: the stage listed.

    Returns:
        Transfers by axis.

    Raises:
        nothing.

    References:
        [Shoeybi2019] section 3, [Korthikanti2022] section 4.2, [Narayanan2021] sections 2-3, [Liu2023], [Jacobs2023],
        [Shazeer2017].
    """
    tokens = layouts.seq_len * layouts.micro_batch / layouts.cp
    recomputed = (layouts.recompute == FULL) * np.minimum(layouts.recompute_layers, stage.layers)
    share = recomputed / np.maximum(stage.layers, 1.0)
    passes = stage.runs * stage.layers
    transfers = _tensor(shape, layouts, stage, tokens, share)
    transfers += _context(shape, layouts, tokens, passes, passes * share)
    transfers += _experts(shape, layouts, tokens, stage.runs * stage.moe_layers, share)
    return [*transfers, _messages(shape, layouts, stage, tokens)]


def _messages(shape: ModelShape, layouts: Layouts, stage: Stage, tokens: Array) -> Transfer:
    message = 2.0 * shape.hidden * tokens * np.where(layouts.sequence_parallel > 0.0, 1.0 / layouts.tp, 1.0)
    neighbours = 2.0 * stage.chunks - stage.has_embedding - stage.has_head - 2.0 * stage.turn
    messages = np.where(layouts.pp > 1.0, stage.runs * np.maximum(neighbours, 0.0), 0.0)
    hidden_messages = layouts.books.stacks.message_overlap[layouts.stack] > 0.0
    return Transfer(
        "pp",
        "activations forward and their gradients backward",
        "send-recv",
        "every",
        layouts.pp,
        strides(layouts).stage,
        message,
        messages,
        np.where(hidden_messages, 0.0, messages),
        "2 s b h R / c, once a micro-batch, chunk, direction and neighbour; R = 1/t under sequence parallelism",
        "[Narayanan2021] section 2.2",
    )


def weight_copies(
    shape: ModelShape,
    layouts: Layouts,
    groups: Groups,
    stage: Stage,
    gradient_bytes: Array,
    adapters: Adapters | None,
) -> list[Transfer]:
    """Gradients of weights that two stages of a pipeline hold, summed once a step.

    Args:
        shape [elements, (1,)]: the model.
        layouts [degrees, (n,)]: the layout columns.
        groups [ranks, (n,)]: derived groups.
        stage [layers, (n,)]: the stage listed.
        gradient_bytes [bytes/element, (n,)]: b_r on the wire.
        adapters [rank, (1,)]: a frozen base has no tied-embedding gradient.

    Returns:
        Transfers, none where no weights are held twice.

    Raises:
        nothing.

    References:
        [Narayanan2021] section 2.3, [DeepSeekV3] section 3.2.1.
    """
    transfers: list[Transfer] = []
    piped = layouts.pp > 1.0
    stage_stride = strides(layouts).stage
    twins = np.asarray([1.0 if s.placement == TWO_COPIES else 0.0 for s in SCHEDULES]).take(layouts.schedule)
    if np.any(twins > 0.0):
        sharded = layouts.zero > 0.0
        size = stage.dense_parameters / np.where(sharded, groups.shard, 1.0)
        size = size + stage.expert_parameters / np.where(sharded, groups.expert_shard, 1.0)
        call = np.where(piped & (twins > 0.0), 1.0, 0.0)
        transfers.append(
            Transfer(
                "pp",
                "gradients of the two copies of the stage's weights summed",
                "all-reduce",
                "every",
                np.minimum(layouts.pp, 2.0),
                stage_stride,
                size * gradient_bytes,
                call,
                call,
                "N_r b_r (over k_shard where sharded), over two stages",
                "[DeepSeekV3] section 3.2.1: two copies of the parameters, which one step must leave equal",
                layouts.pp,
            )
        )
    if shape.tied_embeddings and adapters is None:
        # a stage with both ends of the model has one table
        one_end = (stage.has_embedding > 0.0) != (stage.has_head > 0.0)
        call = np.where(piped & one_end, 1.0, 0.0)
        transfers.append(
            Transfer(
                "pp",
                "gradient of the tied embedding",
                "all-reduce",
                "first and last",
                np.minimum(layouts.pp, 2.0),
                stage_stride,
                shape.vocab * (shape.embedding_width or shape.hidden) / layouts.tp * gradient_bytes,
                call,
                call,
                "V h b_r / t, over two ranks",
                "[Narayanan2021] section 2.3",
                layouts.pp,
            )
        )
    return transfers


def _tensor(shape: ModelShape, layouts: Layouts, stage: Stage, tokens: Array, share: Array) -> list[Transfer]:
    hides = layouts.books.stacks.tp_hidden_backward[layouts.stack] > 0.0
    parallel = layouts.sequence_parallel > 0.0
    plain = ~parallel
    one = np.ones_like(layouts.tp)
    hidden = 2.0 * shape.hidden * tokens
    # experts take the tokens that a sequence-parallel rank holds: only a shared expert gathers and scatters them
    alone = 1.0 if shape.shared_ffn_hidden == 0 else 0.0
    blocks = stage.runs * (BLOCKS * stage.layers - np.where(parallel, alone * stage.moe_layers, 0.0))
    again = blocks * share
    summed = np.where(plain, 2.0 * blocks + again, 0.0)
    summed_exposed = np.where(plain, np.where(hides, blocks, 2.0 * blocks) + again, 0.0)
    # sequence parallelism gathers inputs forward and again for the weight gradient, and gathers gradients of row-
    # parallel outputs
    gathered = np.where(parallel, 3.0 * blocks + again, 0.0)
    scattered = np.where(parallel, 2.0 * blocks + again, 0.0)
    hidden_half = np.where(parallel & hides, blocks, 0.0)
    first, last = (stage.has_embedding > 0.0) * stage.runs, (stage.has_head > 0.0) * stage.runs
    ends_summed = np.where(plain, first + last, 0.0)
    ends_gathered, ends_scattered = (np.where(parallel, x, 0.0) for x in (first + 2.0 * last, first + last))
    vocabulary = layouts.books.losses.vocab_parallel[layouts.loss] > 0.0
    loss_calls = np.where(vocabulary, 3.0 * last, 0.0)
    source = "[Shoeybi2019] section 3"
    split = "[Korthikanti2022] section 4.2.2"
    ends = "[MegatronLM] tensor_parallel/layers.py: embedding scattered to the sequence, head as column-parallel"
    return [
        Transfer(
            "tp",
            "layer outputs and input gradients summed",
            "all-reduce",
            "every",
            np.where(plain, layouts.tp, 1.0),
            one,
            hidden,
            summed,
            summed_exposed,
            "2 s b h / c, two forward and two backward a layer and micro-batch, two more under full recompute",
            source,
        ),
        Transfer(
            "tp",
            "sequence-parallel inputs gathered",
            "all-gather",
            "every",
            np.where(parallel, layouts.tp, 1.0),
            one,
            hidden,
            gathered,
            gathered - hidden_half,
            "2 s b h / c, two forward and four backward a layer and micro-batch, two more under full recompute",
            split,
        ),
        Transfer(
            "tp",
            "sequence-parallel outputs scattered",
            "reduce-scatter",
            "every",
            np.where(parallel, layouts.tp, 1.0),
            one,
            hidden,
            scattered,
            scattered - hidden_half,
            "2 s b h / c, two forward and two backward a layer and micro-batch, two more under full recompute",
            split,
        ),
        Transfer(
            "tp",
            "embedding output and head input gradient summed",
            "all-reduce",
            "first and last",
            np.where(plain, layouts.tp, 1.0),
            one,
            hidden,
            ends_summed,
            ends_summed,
            "2 s b h / c, once a micro-batch on each end",
            source,
        ),
        Transfer(
            "tp",
            "embedding gradient and head input gathered",
            "all-gather",
            "first and last",
            np.where(parallel, layouts.tp, 1.0),
            one,
            hidden,
            ends_gathered,
            ends_gathered,
            "2 s b h / c, once backward of the embedding, once forward and once backward of the head, each micro-batch",
            ends,
        ),
        Transfer(
            "tp",
            "embedding output and head input gradient scattered",
            "reduce-scatter",
            "first and last",
            np.where(parallel, layouts.tp, 1.0),
            one,
            hidden,
            ends_scattered,
            ends_scattered,
            "2 s b h / c, once a micro-batch on each end",
            ends,
        ),
        Transfer(
            "tp",
            "vocabulary-parallel loss: maximum, target logit, sum",
            "all-reduce",
            "last",
            np.where(vocabulary, layouts.tp, 1.0),
            one,
            4.0 * tokens,
            loss_calls,
            loss_calls,
            "4 s b / c, three a micro-batch",
            "[MegatronLM] cross_entropy.py",
        ),
    ]


def _context(shape: ModelShape, layouts: Layouts, tokens: Array, passes: Array, again: Array) -> list[Transfer]:
    heads = np.maximum((shape.heads if shape.mla else shape.kv_heads) / layouts.tp, 1.0)
    width = shape.head_dim + shape.value_head_dim
    block = 2.0 * heads * width * tokens  # key and value of the rank's tokens
    query = 2.0 * shape.heads / layouts.tp * width * tokens  # query in, output back
    used = layouts.cp > 1.0
    ring, gather, ulysses = ((layouts.cp_comm == code) & used for code in range(3))
    steps = np.maximum(layouts.cp - 1.0, 0.0)
    ring_calls = np.where(ring, steps * (passes * (1.0 + KV_BACKWARD) + again), 0.0)
    gather_calls = np.where(gather, 2.0 * passes + again, 0.0)
    scatter_calls = np.where(gather, passes, 0.0)
    exchange_calls = np.where(ulysses, 2.0 * (2.0 * passes + again), 0.0)
    stride = layouts.tp
    exchange = "forward and backward, again under full recompute"
    return [
        Transfer(
            "cp",
            "key and value passed around the ring",
            "send-recv",
            "every",
            np.where(ring, layouts.cp, 1.0),
            stride,
            block,
            ring_calls,
            0.0 * ring_calls,  # each step is sent while the block before it is attended to
            "4 s b max(g/t, 1) d_k / c, c - 1 steps forward, twice as much backward",
            "[Liu2023] section 3",
        ),
        Transfer(
            "cp",
            "key and value gathered",
            "all-gather",
            "every",
            np.where(gather, layouts.cp, 1.0),
            stride,
            block * layouts.cp,
            gather_calls,
            gather_calls,
            "4 s b max(g/t, 1) d_k, once forward and once backward a layer",
            "[Dubey2024] section 3.3.2",
        ),
        Transfer(
            "cp",
            "key and value gradients scattered",
            "reduce-scatter",
            "every",
            np.where(gather, layouts.cp, 1.0),
            stride,
            block * layouts.cp,
            scatter_calls,
            scatter_calls,
            "4 s b max(g/t, 1) d_k, once a layer",
            "[Dubey2024] section 3.3.2",
        ),
        Transfer(
            "cp",
            "query and output exchanged between sequence and heads",
            "all-to-all",
            "every",
            np.where(ulysses, layouts.cp, 1.0),
            stride,
            query / 2.0,
            exchange_calls,
            exchange_calls,
            f"2 s b a d_k / (c t), query in and output back, {exchange}",
            "[Jacobs2023] section 3.2",
        ),
        Transfer(
            "cp",
            "key and value exchanged between sequence and heads",
            "all-to-all",
            "every",
            np.where(ulysses, layouts.cp, 1.0),
            stride,
            block / 2.0,
            exchange_calls,
            exchange_calls,
            f"2 s b max(g/t, 1) d_k / c, key and value, {exchange}",
            "[Jacobs2023] section 3.2",
        ),
    ]


def _experts(shape: ModelShape, layouts: Layouts, tokens: Array, passes: Array, share: Array) -> list[Transfer]:
    if not shape.experts:
        return []
    routed = 2.0 * shape.hidden * shape.top_k * tokens / layouts.tp * layouts.capacity_factor
    again = passes * share
    calls = np.where(layouts.ep > 1.0, 4.0 * passes + 2.0 * again, 0.0)
    etp_calls = np.where(layouts.etp > 1.0, 2.0 * passes + again, 0.0)
    gathered = routed * layouts.etp
    return [
        Transfer(
            "ep",
            "tokens dispatched to experts and combined",
            "all-to-all",
            "every",
            layouts.ep,
            layouts.etp,
            routed,
            calls,
            calls,
            "2 T top_k h, dispatch and combine, forward and backward a layer with experts",
            "[Shazeer2017]; [MegatronLM] token_dispatcher.py",
        ),
        Transfer(
            "etp",
            "routed tokens gathered over the parts of an expert",
            "all-gather",
            "every",
            layouts.etp,
            np.ones_like(layouts.etp),
            gathered,
            etp_calls,
            etp_calls,
            "2 T top_k h x, once forward and once backward a layer with experts",
            "[MegatronLM] token_dispatcher.py",
        ),
        Transfer(
            "etp",
            "expert outputs scattered",
            "reduce-scatter",
            "every",
            layouts.etp,
            np.ones_like(layouts.etp),
            gathered,
            etp_calls,
            etp_calls,
            "2 T top_k h x, once forward and once backward a layer with experts",
            "[MegatronLM] token_dispatcher.py",
        ),
    ]
