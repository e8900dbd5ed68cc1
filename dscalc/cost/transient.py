"""What lives for a moment only: gathered weights, the live layer, loss, communication buffers; and the fixed costs."""

from __future__ import annotations

import numpy as np

from dscalc import codes
from dscalc.cost import moments
from dscalc.cost.activations import LayerBytes
from dscalc.cost.axes import Groups
from dscalc.cost.columns import Entries
from dscalc.cost.ledger import FULL, NONE, UNFUSED
from dscalc.cost.placement import StageKinds
from dscalc.cost.rank_parameters import PartParameters, RankParameters
from dscalc.frozen import dataclass
from dscalc.records import Adapters, Array, Layouts, ModelShape
from dscalc.terms import Cases, LeafSpec, Term

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

# Quantities. ONE is there at every moment, the next ones at some.
ONE, AT_LOSS, AT_LAST, AT_FIRST, IN_BACKWARD = "one", "at_loss", "at_last", "at_first", "in_backward"
IN_FLIGHT = "in_flight"
GATHERED_BYTES, REDUCED_BYTES = "gathered_bytes", "reduced_bytes"


@dataclass(frozen=True, slots=True)
class Units:
    """Bytes of the units that ZeRO-3 gathers and reduces; columns (n,), zero where nothing is gathered."""

    always: Array  # 1: everything stays gathered
    embedding: Array  # on the stage of the embedding
    head_forward: Array  # on the stage of the head
    head_backward: Array
    layers_forward: Array
    layers_backward: Array
    matrix: Array  # per element of a linear layer's weights
    other: Array  # per element of embeddings, norms and biases
    one: Array  # of one layer
    reduced_embedding: Array
    reduced_head: Array
    reduced_layer: Array


@dataclass(frozen=True, slots=True)
class Transients:
    """Leaves in the order in which they are summed, before and after the activations."""

    before: list[Term]
    after: list[Term]
    units: Units | None  # None where no layout shards its weights
    context: Array  # context and communicators: outside the allocator
    communicators: Array  # count


def transients(
    shape: ModelShape,
    layouts: Layouts,
    entries: Entries,
    groups: Groups,
    base: PartParameters,
    trained: PartParameters,
    layer: LayerBytes,
    adapters: Adapters | None = None,
) -> Transients:
    """Transient and fixed bytes of one rank, as coefficients of what a stage holds.

    Args:
        shape [elements, (1,)]: the model.
        layouts [degrees, (n,)]: the layout columns.
        entries [per layout, (n,)]: what the code books say.
        groups [ranks, (n,)]: derived groups.
        base [elements, (n,)]: parameters of one layer, head and embedding on the rank.
        trained [elements, (n,)]: parameters with gradients.
        layer [bytes, (n,)]: bytes of one layer's saved tensors.
        adapters [rank, (1,)]: low-rank adapters on a frozen base, or None.

    Returns:
        The transients [bytes, (n,)].

    Raises:
        nothing.

    References:
        [Zhao2023] section 3.2, [Chen2016], [Liu2023], [Jacobs2023].
    """
    constants, loss, stack = layouts.books.constants, entries.loss, entries.stack
    by_tp, tokens, residual = 1.0 / layouts.tp, layer.tokens, layer.residual
    element = entries.recipe.activation
    hidden = element * (shape.hidden * tokens)  # one hidden tensor, whole
    normed = hidden * residual
    split = layouts.tp > 1.0
    contexts, staged = layouts.cp > 1.0, layouts.pp > 1.0
    in_use = 1.0 * split + contexts + staged + (groups.dp_cp > 1.0) + (layouts.dp_replicate > 1.0) + (layouts.ep > 1.0)
    context = constants.cuda_context_bytes + stack.eager_kernels_bytes
    communicators = in_use + stack.communicators * (groups.gpus > 1.0)
    nccl = constants.communicator_bytes * communicators
    width = shape.head_dim + shape.value_head_dim
    kv = element * (shape.kv_heads * width) / np.minimum(layouts.tp, float(shape.kv_heads)) * tokens
    query = element * (shape.heads * width) * by_tp * tokens
    exchange = np.where(layouts.cp_comm == 0, 2.0 * kv, np.where(layouts.cp_comm == 1, layouts.cp * kv, query + kv))
    gathers_input = split * layouts.sequence_parallel
    copies = (stack.pipeline_copies * staged) * hidden
    before = [
        Term(CONTEXT, ((context, ONE),)),
        Term(COMMUNICATORS, ((nccl, ONE),)),
        Term(WORKSPACE, ((np.full(1, constants.workspace_bytes), ONE),)),
        Term(TP_BUFFERS, ((stack.tp_buffers * gathers_input * hidden, ONE),) if stack.tp_buffers.any() else ()),
        Term(MESSAGES, ((2.0 * staged * normed, ONE),)),
        Term(PIPELINE_COPIES, ((copies, IN_FLIGHT),) if copies.any() else ()),
        Term(CONTEXT_KV, ((exchange * contexts, ONE),)),
    ]

    # loss
    vocab_split = 1.0 - loss.vocab_parallel + loss.vocab_parallel * by_tp
    per_logit = loss.whole + loss.chunk / loss.chunks
    all_losses = (layouts.schedule == codes.SCHEDULES.index("gpipe")).astype(np.float64)
    held = layouts.n_micro * all_losses + (1.0 - all_losses)
    per_logit = per_logit + loss.saved * (held - 1.0)
    logits = per_logit * vocab_split * (float(shape.vocab) * tokens) + held * (2.0 * normed)
    logits = logits + loss.weight_gradient * (float(shape.vocab) * shape.hidden * by_tp)

    # backward of one layer
    full = (layouts.recompute == FULL).astype(np.float64)
    live_last = (layer.whole - layer.kept_total * (1.0 - full)) * (layouts.recompute != NONE)
    widths = [float(shape.ffn_hidden)] if not shape.experts or not all(shape.moe_layer) else []
    if shape.experts:
        widths.append(float(shape.top_k * shape.moe_ffn_hidden + shape.shared_ffn_hidden))
    matrices = 3.0 if shape.gated_mlp else 2.0
    scores = (layouts.attention == UNFUSED) * (4.0 * shape.heads * layouts.seq_len)
    working = (element * (matrices * max(widths)) + scores) * (by_tp * tokens) + normed + hidden * gathers_input
    units = _units(layouts, entries, groups, base, trained, adapters)
    gathered = (Term(GATHERED, ((None, GATHERED_BYTES),)), Term(REDUCE_INPUT, ((None, REDUCED_BYTES),)))
    return Transients(
        before=before,
        after=[
            *(gathered if units is not None else ()),
            Term(RECOMPUTED, ((live_last, AT_LAST), (layer.whole, AT_FIRST))),
            Term(WORKING, ((working, IN_BACKWARD),)),
            Term(LOGITS, ((logits, AT_LOSS),)),
        ],
        units=units,
        context=context + nccl,
        communicators=communicators,
    )


def _units(
    layouts: Layouts,
    entries: Entries,
    groups: Groups,
    base: PartParameters,
    trained: PartParameters,
    adapters: Adapters | None,
) -> Units | None:
    three = (layouts.zero >= 3.0) & (groups.shard > 1.0)
    if not three.any():
        return None
    stack, recipe = entries.stack, entries.recipe
    gather = recipe.gather * three
    matrix: Array = gather
    other: Array = gather
    if adapters is not None:  # a frozen base is gathered as it is stored
        matrix, other = adapters.base_matrix_bytes * three, adapters.base_other_bytes * three
    always = ((layouts.pp > 1.0) & (stack.reshard_in_pipeline == 0.0)) | (layouts.reshard == 0.0)
    freed = 1.0 - always
    one = matrix * base.largest
    unit, freed_other = freed * one, freed * other
    head, embedding = freed_other * (base.head + base.tied), freed_other * base.embedding
    reduce = (gather + recipe.reduce * three) * stack.unit_reduce
    return Units(
        always=1.0 - freed,
        embedding=embedding * stack.embedding_unit_kept,
        head_forward=head,
        head_backward=head * stack.head_unit_kept,
        layers_forward=stack.gather_forward * unit,
        layers_backward=stack.gather_backward * unit,
        matrix=matrix,
        other=other,
        one=one,
        reduced_embedding=reduce * trained.embedding,
        reduced_head=reduce * (trained.head + trained.tied),
        reduced_layer=reduce * trained.largest,
    )


def transient_quantities(
    passing: Transients, kinds: StageKinds, base: RankParameters, adapters: Adapters | None, flying: Array
) -> dict[str, Cases]:
    """What the transient leaves are coefficients of, at each moment on each stage.

    Args:
        passing [coefficients, (n,)]: from ``transients``.
        kinds [counts, (kinds, n)]: the stage kinds.
        base [elements, (kinds, n)]: parameters of the model on the rank.
        adapters [rank, (1,)]: low-rank adapters on a frozen base, or None.
        flying [micro-batches, (kinds, n)]: micro-batches a stage holds.

    Returns:
        Quantities by moment: end of forward, backward of the last and of the first layer, step [bytes, (kinds, n)].

    Raises:
        nothing.

    References:
        [Zhao2023] section 3.2.
    """
    one, units = np.ones(1), passing.units
    found: dict[str, Cases] = {
        ONE: ((moments.ALWAYS, one),),
        IN_FLIGHT: ((moments.ALWAYS, flying),),
        AT_LOSS: ((moments.AT_FORWARD, kinds.has_head),),
        AT_LAST: ((moments.AT_LAST, one),),
        AT_FIRST: ((moments.AT_FIRST, one),),
        IN_BACKWARD: ((moments.BACKWARD, one),),
    }
    if units is not None:
        if adapters is None:
            everything = units.matrix * base.elements
        else:
            everything = units.matrix * (base.matrix + base.expert) + units.other * base.other
        roots = kinds.has_embedding * units.embedding + units.always * everything
        most = everything + units.one
        forward = np.minimum(roots + kinds.has_head * units.head_forward + units.layers_forward, most)
        backward = np.minimum(roots + kinds.has_head * units.head_backward + units.layers_backward, most)
        largest = np.maximum(kinds.has_head * units.reduced_head, kinds.has_embedding * units.reduced_embedding)
        reduced = np.maximum(largest, units.reduced_layer)
        found[GATHERED_BYTES] = ((moments.AT_FORWARD, forward), (moments.BACKWARD, backward))
        found[REDUCED_BYTES] = ((moments.BACKWARD, reduced),)
    return found
