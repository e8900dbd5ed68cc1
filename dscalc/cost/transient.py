"""What lives for a moment only: gathered weights, the live layer, loss, communication buffers; and the fixed costs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dscalc import codes
from dscalc.cost.activations import LayerBytes
from dscalc.cost.axes import Groups
from dscalc.cost.ledger import FULL, NONE, UNFUSED
from dscalc.cost.placement import StageKinds
from dscalc.cost.rank_parameters import RankParameters
from dscalc.records import Adapters, Array, Layouts, ModelShape
from dscalc.terms import LeafSpec

CONTEXT = LeafSpec(
    "fixed/cuda_context",
    "bytes",
    "context_bytes, with the kernels loaded at start",
    "assumed: CUDA context and kernels of one process",
)
COMMUNICATORS = LeafSpec(
    "fixed/nccl_buffers",
    "bytes",
    "communicator_bytes * communicators (groups with more than one rank, and those of the framework)",
    "[aiconfigurator]; assumed",
)
WORKSPACE = LeafSpec("fixed/workspaces", "bytes", "constant", "[PyTorch] cuBLAS workspace; assumed")
SLACK = LeafSpec(
    "fixed/allocator_slack",
    "bytes",
    "slack_fraction * everything the allocator serves",
    "[PyTorch] CUDACachingAllocator rounds to 512 B and 2 MiB and splits blocks",
)
TP_BUFFERS = LeafSpec(
    "transient/tensor_parallel_buffers",
    "bytes",
    "tp_buffers * 2 s b h / c, t > 1",
    "[MegatronLM] tensor_parallel/layers.py; [nanotron] tensor_parallel/functional.py",
)
MESSAGES = LeafSpec("transient/pipeline_messages", "bytes", "2 * 2 s b h R / c, p > 1", "[Narayanan2021] section 2.2")
PIPELINE_COPIES = LeafSpec(
    "transient/pipeline_buffers",
    "bytes",
    "k * copies * 2 s b h / c, p > 1",
    "[DeepSpeed] runtime/pipe/engine.py: inputs and outputs of each micro-batch in flight",
)
CONTEXT_KV = LeafSpec(
    "transient/context_parallel_buffers",
    "bytes",
    "ring: the next block of key and value, twice; all-gather: all of them; ulysses: one layer's exchange",
    "[Liu2023]; [Jacobs2023]; [MegatronLM] context_parallel",
)
GATHERED = LeafSpec(
    "transient/gathered_weights",
    "bytes",
    "units * gather bytes * parameters of one unit, ZeRO-3",
    "[PyTorchFSDP2] _fsdp_collectives.py; [PyTorchFSDP] section 4; [Zhao2023] section 3.2",
)
REDUCE_INPUT = LeafSpec(
    "transient/reduce_scatter_input",
    "bytes",
    "(gather + reduce bytes) * parameters of the largest unit: a layer, the head or the embedding",
    "[PyTorchFSDP2] foreach_reduce",
)
LOGITS = LeafSpec(
    "activations/logits_and_loss",
    "bytes",
    "logit_bytes * s b V / (t c), and the inputs of final norm and head",
    "[MegatronLM] cross_entropy.py; [torchtune] chunked loss; [PyTorch] cross_entropy",
)
RECOMPUTED = LeafSpec(
    "transient/live_layer",
    "bytes",
    "one layer's saved tensors, recomputed or not yet freed",
    "[Chen2016]; [Korthikanti2022] section 5",
)
WORKING = LeafSpec(
    "transient/backward_workspace",
    "bytes",
    (
        "gradients of one layer's activations: 2 (3 f / t + h R) T; of unfused scores 4 a s T / "
        "t; of the gathered input 2 h T where t > 1"
    ),
    "[PyTorch] autograd frees a gradient after its last use",
)

KEEP, LAST, FIRST = "forward", "backward_last_layer", "backward_first_layer"


@dataclass(frozen=True, slots=True)
class Transients:
    """Leaves by moment; arrays (kinds, n) or (n,)."""

    fixed: list[tuple[LeafSpec, Array]]
    always: list[tuple[LeafSpec, Array]]
    gathered_forward: Array
    gathered_backward: Array
    reduce_input: Array
    logits: Array
    live_last: Array
    live_first: Array
    working: Array
    context: Array  # context and communicators: outside the allocator
    communicators: Array  # count


def transients(
    shape: ModelShape,
    layouts: Layouts,
    groups: Groups,
    base: RankParameters,
    trained: RankParameters,
    layer: LayerBytes,
    kinds: StageKinds,
    flying: Array,
    adapters: Adapters | None = None,
) -> Transients:
    """Transient and fixed bytes of one rank.

    Args:
        shape [elements, (1,)]: the model.
        layouts [degrees, (n,)]: the layout columns.
        groups [ranks, (n,)]: derived groups.
        base [elements, (kinds, n)]: parameters of the model on the rank.
        trained [elements, (kinds, n)]: parameters with gradients.
        layer [bytes, (n,)]: bytes of one layer's saved tensors.
        kinds [counts, (kinds, n)]: the stage kinds.
        flying [micro-batches, (kinds, n)]: micro-batches a stage holds.
        adapters [rank, (1,)]: low-rank adapters on a frozen base, or None.

    Returns:
        The transients [bytes].

    Raises:
        nothing.

    References:
        [Zhao2023] section 3.2, [Chen2016], [Liu2023], [Jacobs2023].
    """
    books = layouts.books
    stacks, recipes, losses, constants = books.stacks, books.recipes, books.losses, books.constants
    stack, recipe, loss = layouts.stack, layouts.recipe, layouts.loss
    by_tp, tokens, residual = 1.0 / layouts.tp, layer.tokens, layer.residual
    element = recipes.activation[recipe]
    hidden = element * (shape.hidden * tokens)  # one hidden tensor, whole
    whole_tp = layouts.tp > 1.0
    in_use = (
        1.0 * whole_tp
        + (layouts.cp > 1.0)
        + (layouts.pp > 1.0)
        + (groups.dp_cp > 1.0)
        + (layouts.dp_replicate > 1.0)
        + (layouts.ep > 1.0)
    )
    extra = np.where(groups.gpus > 1.0, stacks.communicators[stack], 0.0)
    context = constants.cuda_context_bytes + stacks.eager_kernels_bytes[stack]
    communicators = in_use + extra
    nccl = constants.communicator_bytes * communicators
    fixed = [
        (CONTEXT, context + 0.0 * tokens),
        (COMMUNICATORS, nccl),
        (WORKSPACE, constants.workspace_bytes + 0.0 * tokens),
    ]
    staged = layouts.pp > 1.0
    width = shape.head_dim + shape.value_head_dim
    kv = element * (shape.kv_heads * width) / np.minimum(layouts.tp, float(shape.kv_heads)) * tokens
    query = element * (shape.heads * width) * by_tp * tokens
    exchange = np.where(layouts.cp_comm == 0, 2.0 * kv, np.where(layouts.cp_comm == 1, layouts.cp * kv, query + kv))
    always = [
        (TP_BUFFERS, np.where(whole_tp & (layouts.sequence_parallel > 0.0), stacks.tp_buffers[stack], 0.0) * hidden),
        (MESSAGES, np.where(staged, 2.0, 0.0) * (hidden * residual)),
        (PIPELINE_COPIES, (np.where(staged, stacks.pipeline_copies[stack], 0.0) * hidden) * flying),
        (CONTEXT_KV, np.where(layouts.cp > 1.0, exchange, 0.0)),
    ]

    # gathered weights of ZeRO-3
    three = ((layouts.zero >= 3.0) & (groups.shard > 1.0)) * 1.0
    gather = recipes.gather[recipe]
    if adapters is None:
        unit: Array = gather * base.layer
        head: Array = gather * base.head
        embedding: Array = gather * base.embedding
        everything: Array = gather * (base.matrix + base.other + base.expert)
    else:  # a frozen base is gathered as it is stored
        of_matrix, of_other = adapters.base_matrix_bytes, adapters.base_other_bytes
        unit, head, embedding = of_matrix * base.layer, of_other * base.head, of_other * base.embedding
        everything = of_matrix * (base.matrix + base.expert) + of_other * base.other
    kept_whole = (layouts.reshard == 0.0) | (staged & (stacks.reshard_in_pipeline[stack] == 0.0))
    head_kept, embedding_kept = stacks.head_unit_kept[stack], stacks.embedding_unit_kept[stack]
    roots = kinds.has_head * (head * head_kept) + kinds.has_embedding * (embedding * embedding_kept)
    at_head = kinds.has_head * (head * (1.0 - head_kept))
    forward_units = roots + at_head + stacks.gather_forward[stack] * unit
    backward_units = roots + stacks.gather_backward[stack] * unit
    gathered_forward = three * np.where(kept_whole, everything, np.minimum(forward_units, everything + unit))
    gathered_backward = three * np.where(kept_whole, everything, np.minimum(backward_units, everything + unit))
    unit_reduce = three * (stacks.unit_reduce[stack] * (gather + recipes.reduce[recipe]))
    largest_unit = np.maximum(kinds.has_head * trained.head, kinds.has_embedding * trained.embedding)
    reduce_input = unit_reduce * np.maximum(largest_unit, trained.layer)

    # loss
    logits_tokens = tokens * np.where(losses.vocab_parallel[loss] > 0.0, by_tp, 1.0) * float(shape.vocab)
    per_logit = losses.whole[loss] + losses.chunk[loss] / losses.chunks[loss]
    all_losses = layouts.schedule == codes.SCHEDULES.index("gpipe")
    held = np.where(all_losses, layouts.n_micro, 1.0)
    head_gradient = losses.weight_gradient[loss] * (float(shape.vocab) * shape.hidden * by_tp)
    earlier = losses.saved[loss] * (held - 1.0)
    logits = kinds.has_head * ((per_logit + earlier) * logits_tokens + held * (2.0 * hidden * residual) + head_gradient)

    # backward of one layer
    recomputed = layouts.recompute != NONE
    full = layouts.recompute == FULL
    live_last = np.where(recomputed, layer.whole - np.where(full, 0.0, layer.kept_total), 0.0)
    widths = [float(shape.ffn_hidden)] if not shape.experts or not all(shape.moe_layer) else []
    if shape.experts:
        widths.append(float(shape.top_k * shape.moe_ffn_hidden + shape.shared_ffn_hidden))
    matrices = 3.0 if shape.gated_mlp else 2.0
    gathered_input = np.where(whole_tp & (layouts.sequence_parallel > 0.0), hidden, 0.0)
    scores = np.where(layouts.attention == UNFUSED, 4.0 * shape.heads * layouts.seq_len, 0.0)
    working = (element * (matrices * max(widths)) + scores) * by_tp * tokens + hidden * residual + gathered_input
    return Transients(
        fixed=fixed,
        always=always,
        gathered_forward=gathered_forward,
        gathered_backward=gathered_backward,
        reduce_input=reduce_input,
        logits=logits,
        live_last=live_last,
        live_first=layer.whole,
        working=working,
        context=context + nccl,
        communicators=communicators,
    )
