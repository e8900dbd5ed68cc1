"""What tensor, pipeline, context and expert parallelism send, layer by layer."""

from __future__ import annotations

import numpy as np

from dscalc.cost.ledger import FULL
from dscalc.cost.schedule import chunks_per_stage
from dscalc.cost.transfers import Stage, Transfer
from dscalc.records import Adapters, Array, Layouts, Mask, ModelShape

# column- and row-parallel pairs of a transformer layer: attention and MLP
FORWARD_PER_LAYER, BACKWARD_PER_LAYER = 2.0, 2.0
KV_BACKWARD = 2.0  # ring attention sends key/value and their gradients backward


def model_parallel(
    shape: ModelShape, layouts: Layouts, stage: Stage, gradient_bytes: Array, adapters: Adapters | None
) -> list[Transfer]:
    """Tensor-, pipeline-, context- and expert-parallel collectives, and those of tied embeddings.

    Args:
        shape [elements, (1,)]: the model.
        layouts [degrees, (n,)]: the layout columns.
        stage [layers, (n,)]: the stage listed.
        gradient_bytes [bytes/element, (n,)]: b_r on the wire.
        adapters [rank, (1,)]: a frozen base has no tied-embedding gradient.

    Returns:
        Transfers by axis.

    Raises:
        nothing.

    References:
        [Shoeybi2019] section 3, [Korthikanti2022] section 4.2, [Narayanan2021] sections 2-3, [Liu2023], [Jacobs2023],
        [Shazeer2017].
    """
    one = np.ones_like(layouts.tp)
    tokens = layouts.seq_len * layouts.micro_batch / layouts.cp
    hidden = 2.0 * shape.hidden * tokens
    parallel = layouts.sequence_parallel > 0.0
    passes = layouts.n_micro * stage.layers
    again = (layouts.recompute == FULL) * np.minimum(layouts.recompute_layers, stage.layers) * layouts.n_micro
    dp_stride = layouts.tp * layouts.cp
    stage_stride = dp_stride * layouts.dp
    transfers = _tensor(layouts, stage, hidden, tokens, parallel, passes, again, one)
    transfers += _context(shape, layouts, tokens, passes, again)
    transfers += _experts(shape, layouts, stage, tokens)
    chunks = chunks_per_stage(layouts)
    message = hidden * np.where(parallel, 1.0 / layouts.tp, 1.0)
    messages = np.where(layouts.pp > 1.0, 2.0 * layouts.n_micro * chunks, 0.0)
    hidden_messages = layouts.books.stacks.message_overlap[layouts.stack] > 0.0
    transfers.append(
        Transfer(
            "pp",
            "activations forward and their gradients backward",
            "send-recv",
            "every",
            np.minimum(layouts.pp, 2.0),
            stage_stride,
            message,
            messages,
            np.where(hidden_messages, 0.0, messages),
            "2 s b h R / c, once a micro-batch, chunk and direction",
            "[Narayanan2021] section 2.2",
        )
    )
    if shape.tied_embeddings and adapters is None:
        table = shape.vocab * shape.hidden / layouts.tp * gradient_bytes
        call = np.where(layouts.pp > 1.0, 1.0, 0.0)
        transfers.append(
            Transfer(
                "pp",
                "gradient of the tied embedding",
                "all-reduce",
                "first and last",
                np.minimum(layouts.pp, 2.0),
                stage_stride * np.maximum(layouts.pp - 1.0, 1.0),
                table,
                call,
                call,
                "V h b_r / t over two ranks",
                "[Narayanan2021] section 2.3",
            )
        )
    return transfers


def _tensor(
    layouts: Layouts,
    stage: Stage,
    hidden: Array,
    tokens: Array,
    parallel: Mask,
    passes: Array,
    again: Array,
    one: Array,
) -> list[Transfer]:
    hides = layouts.books.stacks.tp_hidden_backward[layouts.stack] > 0.0
    plain = ~parallel
    summed = np.where(plain, passes * (FORWARD_PER_LAYER + BACKWARD_PER_LAYER) + again * FORWARD_PER_LAYER, 0.0)
    summed_exposed = np.where(hides, summed - np.where(plain, passes * BACKWARD_PER_LAYER, 0.0), summed)
    # sequence parallelism gathers inputs forward and again for the weight gradient, and gathers gradients of row-
    # parallel outputs
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
            "2 s b h / c, two forward and two backward a layer and micro-batch (two more under full recompute)",
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
            "2 s b h / c, two forward and four backward a layer",
            "[Korthikanti2022] section 4.2.2",
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
            "2 s b h / c, two forward and two backward a layer",
            "[Korthikanti2022] section 4.2.2",
        ),
        Transfer(
            "tp",
            "embedding output and head input gradient summed",
            "all-reduce",
            "first and last",
            layouts.tp,
            one,
            hidden,
            ends,
            ends,
            "2 s b h / c, once a micro-batch on each end",
            source,
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
        Transfer(
            "cp",
            "key and value passed around the ring",
            "send-recv",
            "every",
            np.where(ring, layouts.cp, 1.0),
            stride,
            block,
            ring_calls,
            np.where(ring & used, passes * (1.0 + KV_BACKWARD), 0.0),
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
            "heads exchanged for sequence and back",
            "all-to-all",
            "every",
            np.where(ulysses, layouts.cp, 1.0),
            stride,
            query + block,
            exchange_calls,
            exchange_calls,
            "query, key, value in and output back (four exchanges, counted as one of their sum), each way a layer",
            "[Jacobs2023] section 3.2",
        ),
    ]


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
            "T top_k h 2 bytes, dispatch and combine, forward and backward a layer with experts",
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
            "T top_k h 2 bytes * x",
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
            "T top_k h 2 bytes * x",
            "[MegatronLM] token_dispatcher.py",
        ),
    ]
