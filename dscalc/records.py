"""Plain frozen records that the formulas read. No validation here: ``specs`` validates once, at the edge."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dscalc.frozen import dataclass

Array = NDArray[np.floating[Any]]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One stored parameter tensor of a model (or all of its kind in one layer), as the inventory lists it.

    Attributes:
        name: path in the model, e.g. ``attention/q_proj``.
        part: what holds it: ``embedding`` (tokens, positions, embedding norm), ``layer`` (every layer), ``dense_mlp``
        (layers
            without experts), ``moe_mlp`` (layers with experts), ``final`` (final norm), ``head``, ``mtp``, ``vision``.
        elements: stored elements in one instance of the part (one layer; all experts of that layer together).
        split: what divides it over ranks: ``tp`` (columns or rows over tensor parallelism), ``kv`` (over tensor
        parallelism up to
            the number of key/value heads, then replicated), ``vocab`` (vocabulary rows over tensor parallelism),
            ``expert`` (over ep * etp), ``replicated``.
        matrix: True for a 2-d weight of a linear layer (what Muon treats, NF4 quantises and LoRA adapts).
        rows, cols: output and input features of one matrix (0 where ``matrix`` is False).
        copies: how many matrices of that shape (experts), 1 otherwise.
        target: LoRA target name (``q_proj``, ``down_proj``, ...), empty where none.
    """

    name: str
    part: str
    elements: int
    split: str
    matrix: bool = False
    rows: int = 0
    cols: int = 0
    copies: int = 1
    target: str = ""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Shape of a decoder-only transformer: every number that a parameter, activation or FLOP count needs.

    A layer is attention + MLP; ``moe_layer[i]`` says whether layer i has experts. Zeros mean "has none".
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int  # of query and key (for MLA: nope + rope)
    value_head_dim: int
    ffn_hidden: int  # of the dense MLP
    vocab: int  # rows stored (padded as the checkpoint pads)
    gated_mlp: bool = True
    tied_embeddings: bool = False
    learned_positions: int = 0  # rows of the learned position table
    # normalisation
    norm: str = "rms"  # rms (h elements) | layer (2h) | layer-no-bias (h) | none (0)
    norms_per_layer: int = 2
    final_norm: bool = True
    embedding_norm: bool = False
    embedding_width: int = 0  # of the token embedding where it is not ``hidden`` (then projected in and out); 0: hidden
    q_norm_elements: int = 0
    k_norm_elements: int = 0
    # biases
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    attention_sinks: bool = False
    gated_attention: bool = False  # queries carry an output gate: twice the rows
    # multi-head latent attention (q_lora_rank 0: queries are projected directly)
    mla: bool = False
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    rope_head_dim: int = 0
    # sparse-attention indexer (DeepSeek-V3.2)
    index_heads: int = 0
    index_head_dim: int = 0
    # mixture of experts
    experts: int = 0
    top_k: int = 0
    moe_ffn_hidden: int = 0
    shared_ffn_hidden: int = 0  # total width of the shared experts
    shared_expert_gate: bool = False
    router_bias: bool = False  # bias of the router's linear layer
    router_correction: bool = False  # stored load-balancing correction, one per expert
    expert_bias: bool = False
    moe_layer: tuple[bool, ...] = ()  # per layer; empty: no layer has experts
    # apart from the main model
    mtp_layers: int = 0
    vision_params: int = 0
    stated_params: int = 0  # given by the user (``--params``); 0: the inventory is the count
    extra: tuple[Tensor, ...] = ()  # tensors no rule above produces, each named


@dataclass(frozen=True, slots=True)
class Adapters:
    """Low-rank adapters on a frozen base: only the adapters have gradients and optimizer states."""

    rank: int
    targets: tuple[str, ...]  # names as in ``Tensor.target``
    base_matrix_bytes: float  # bytes per element of the frozen linear weights (2 for bf16, about 0.516 for NF4)
    base_other_bytes: float = 2.0  # embeddings, norms, biases


@dataclass(frozen=True, slots=True, eq=False)
class RecipeTable:
    """Bytes per parameter by precision recipe, one entry a code; see ``specs/recipes.toml`` for the sources."""

    names: tuple[str, ...]
    weights: Array
    gradients: Array
    main_gradients: Array  # separate fp32 accumulation buffer
    master: Array
    moment: Array  # bytes of one optimizer-moment element
    persistent_gradients: Array  # 1: buffers live throughout; 0: from backward to the step
    transient_gradients: Array  # 1: ``gradients`` are freed after each micro-batch is added to ``main_gradients``
    compute_copy: Array  # bytes of a 16-bit working copy cast for the matmuls (ddp-amp), all of the stage
    activation: Array  # bytes of one element of an activation
    gather: Array  # bytes per element gathered by ZeRO-3 / FSDP
    reduce: Array  # bytes per element of the reduce-scatter input
    ddp_buckets: Array  # ZeRO-0, more than one rank: bytes per parameter of the bucket copies
    flat_gather: Array  # ZeRO-1/2: bytes per parameter of a flat copy at the parameter all-gather
    step_cast: Array  # bytes per owned parameter cast at the optimizer step


@dataclass(frozen=True, slots=True, eq=False)
class OptimizerTable:
    """Optimizer states per parameter, one entry a code: elements of each moment and bytes of one, by kind of tensor."""

    names: tuple[str, ...]
    moments: tuple[tuple[str, ...], ...]  # names of the states, e.g. ("adam_m", "adam_v")
    first_matrix: Array  # first state, bytes per matrix element in units of the recipe's moment bytes / 4
    first_other: Array
    second_matrix: Array
    second_other: Array
    factored: Array  # 1: the states are row and column sums (Adafactor)
    fixed_width: Array  # 1: the bytes stand as given whatever the recipe's moment width
    head_as_matrix: Array  # 1: an untied head is treated as the other matrices are


@dataclass(frozen=True, slots=True, eq=False)
class LossTable:
    """Bytes per logit (s*b*V/(t*c)) alive at the peak of the loss, one entry a code."""

    names: tuple[str, ...]
    whole: Array  # bytes per logit of tensors that span all tokens
    saved: Array  # bytes per logit that stay until backward, of the micro-batches whose loss came before
    chunk: Array  # bytes per logit of tensors that span one chunk of tokens
    chunks: Array  # number of chunks
    weight_gradient: Array  # bytes per element of a V*h head gradient accumulated by the loss
    vocab_parallel: Array  # 1: logits stay divided over tensor parallelism


@dataclass(frozen=True, slots=True, eq=False)
class StackTable:
    """What a framework keeps, one entry a code; see ``specs/stacks.toml`` for the sources."""

    names: tuple[str, ...]
    norm_saved: Array  # 16-bit hidden-size tensors one norm keeps besides its output (1 fused, 3 written in Python)
    mlp_saved: Array  # ffn-size tensors a gated MLP keeps (3: gate, up, product; 4: also silu(gate))
    rotated_kv_copy: Array  # 1: unrotated and rotated key/value are both kept
    kv_repeat: Array  # 1: key and value are repeated to the number of heads before attention
    expert_output_saved: Array  # 1: expert outputs are kept to weight them by the router afterwards
    hidden_dropout: Array  # 1: dropout with a byte mask after attention and MLP (models without gated MLPs)
    attention_dropout: Array  # 1: unfused attention keeps a mask and the dropped-out probabilities
    scores_bytes: Array  # bytes per attention score kept by unfused attention without dropout
    every_second_matmul: Array  # 1: selective recompute keeps attention and every second matmul output
    placement: Array  # 0 even; 1 by cost including the head; 2 embedding and head count as a layer
    gather_forward: Array  # gathered ZeRO-3 units alive in forward
    gather_backward: Array
    head_unit_kept: Array  # 1: the last unit (norm + head) stays gathered from forward to the end of backward
    embedding_unit_kept: Array  # 1: so does the unit that holds the embedding
    unit_reduce: Array  # 1: gradients are reduce-scattered unit by unit (FSDP), not through fixed buckets
    reshard_in_pipeline: Array  # 1: units are resharded between micro-batches of a pipeline
    stream_pools: Array  # 1: gradients and their reduction live in a communication stream's own allocator pool
    bucket_elements: Array  # elements of one communication bucket (ZeRO-1/2/3)
    bucket_count: Array
    pipeline_copies: Array  # whole hidden tensors that the pipeline engine holds for each micro-batch in flight
    tp_buffers: Array  # persistent full-size gather buffers, in units of 2*s*b*h
    step_temporaries: Array  # bytes per owned parameter of unfused optimizer temporaries
    record_stream: Array  # 1: freed collective inputs stay pending until the GPU has passed them
    launches_per_layer: Array  # kernel launches of one layer's forward pass
    launches_per_pending: Array  # kernel launches between two full-size freed collective tensors
    slack_fraction: Array  # allocator rounding and splitting, of allocated
    reduce_bucket_bytes: Array  # gradients reduced in one call where they are not reduced unit by unit
    gradient_overlap: Array  # 1: buckets are reduced behind backward, only the last one is exposed
    weight_overlap: Array  # 1: units are gathered one ahead, only the first one is exposed
    tp_hidden_backward: Array  # 1: a backward collective of each column-parallel layer hides behind its weights'
    message_overlap: Array  # 1: pipeline messages hide behind the next micro-batch
    eager_kernels_bytes: Array  # context beyond the usual one where every kernel is loaded at start
    dispatch_once: Array  # 1: a routed token crosses to a node (inside one: to a rank) once, not once an expert
    communicators: Array  # NCCL communicators beyond one per parallel group in use


@dataclass(frozen=True, slots=True, eq=False)
class Constants:
    """Fixed per-process costs and limits of the CUDA software, each an assumption the user can replace."""

    cuda_context_bytes: float
    communicator_bytes: float
    workspace_bytes: float
    launch_queue: float  # launches the host may run ahead
    gpus_per_node: float  # where nothing says how many
    error_fraction: float  # half-width of the error bar, from the spread of the validation


@dataclass(frozen=True, slots=True, eq=False)
class Books:
    """The code books that the integer columns of ``Layouts`` index."""

    recipes: RecipeTable
    optimizers: OptimizerTable
    losses: LossTable
    stacks: StackTable
    constants: Constants


@dataclass(frozen=True, slots=True)
class Layouts:
    """Layouts as columns: float64 degrees and integer codes, each of shape (n,) or (1,), broadcast together."""

    dp: Array
    dp_replicate: Array
    tp: Array
    pp: Array
    vpp: Array
    cp: Array
    ep: Array
    etp: Array
    zero: Array
    sequence_parallel: Array  # 0 | 1
    micro_batch: Array  # sequences
    n_micro: Array  # micro-batches per step and data-parallel rank
    seq_len: Array  # tokens
    recompute_layers: Array  # layers a stage recomputes in full when recompute is full; inf: all
    capacity_factor: Array  # routed tokens per expert over the balanced share
    reshard: Array  # 0 | 1: ZeRO-3 frees gathered weights after forward
    no_sync: Array  # 0 | 1: gradients are reduced once a step, held unsharded until then
    offload_optimizer: Array  # 0 | 1
    offload_parameters: Array
    offload_activations: Array
    optimizer_in_backward: Array  # 0 | 1: each parameter steps as soon as its gradient is ready
    schedule: NDArray[np.intp]  # codes
    recompute: NDArray[np.intp]  # 0 none, 1 selective, 2 full
    attention: NDArray[np.intp]  # 0 flash, 1 unfused
    cp_comm: NDArray[np.intp]  # 0 ring, 1 all-gather, 2 ulysses
    recipe: NDArray[np.intp]
    optimizer: NDArray[np.intp]
    loss: NDArray[np.intp]
    stack: NDArray[np.intp]
    books: Books


@dataclass(frozen=True, slots=True)
class Hardware:
    """What the memory formulas read of the machines: one row per machine kind, arrays of shape (1,) or (n,).

    Attributes:
        usable_bytes: memory of one GPU that a program can use [bytes], nan where unknown (a fit is then unknown too).
        gpus_per_node: GPUs that share one host [count], nan where unknown.
        host_bytes: memory of one host [bytes], nan where unknown.
    """

    usable_bytes: Array
    gpus_per_node: Array
    host_bytes: Array


@dataclass(frozen=True, slots=True, eq=False)
class Tier:
    """One level of the network; arrays (n,) or (1,). Bandwidth: per GPU, one direction, while a whole domain sends."""

    name: str
    gpus: Array  # GPUs of one domain at this level; inf for the outermost
    bandwidth_bytes_per_s: Array  # wire rate
    latency_s: Array  # of one step of a large-message ring
    efficiency: Array  # share of the wire rate that rings of the largest messages reach
    oversubscription: Array  # >= 1, divides the bandwidth
    peer_bytes_per_s: Array  # to one peer of a mesh; inf where a switch gives one peer everything
    reduction_efficiency: Array  # share of the wire rate of a reduction in the switch; nan: it does not reduce
    reduces: Array  # 1: the library uses the switch's reduction by itself, 0: only where asked
    link: NDArray[np.intp]  # code of codes.LINKS: which row of a library's latencies it has
    error: float = 0.0  # half-width of the 80 % bar of the logarithm of what it reaches, where that was measured


@dataclass(frozen=True, slots=True, eq=False)
class Protocols:
    """How a communication library spends time (``specs/nccl.toml``). A, P: LIBRARY_ALGORITHMS, PROTOCOLS of ``codes``.

    A library with one protocol and no constants of its own leaves latency to the tiers (the closed forms).
    """

    name: str
    base_s: Array  # (A, P) once a call
    hop_s: Array  # (links, A, P) each step
    bus: Array  # (A, P) share of the bus bandwidth, one domain; 0: the protocol is not used
    bus_across: Array  # (A, P) the same across domains
    ceiling_bytes_per_s: Array  # (P, 3) bus bandwidth that a protocol cannot exceed: in one domain, in two, in more
    correction: Array  # (P, classes) share of the bandwidth a tree reaches by message size
    correction_start_bytes: float  # message of the first class; each further class is twice as large
    plateau: float  # factor on the latency of a ring's last protocol across domains, for messages above:
    plateau_bytes: float  # bytes a rank
    fused: float  # 1: one kernel a call: a tree is a chain in a domain, messages leave together; 0: textbook
    post_s: float  # seconds to post a message to one more peer
    arity_s: float  # seconds a GPU in a domain adds to an in-network reduction
    algorithms: tuple[str, ...]  # those it chooses from by itself
    min_message_bytes: float  # what published measurements span
    max_message_bytes: float
    max_ranks: float


@dataclass(frozen=True, slots=True, eq=False)
class Curve:
    """Measured times of one collective in one group, by message size; log-log between the sizes.

    Attributes:
        op: one of ``cost.algorithms.OPS``.
        group, inside, domains: members, members in one domain of the first tier, domains of it, as the benchmark ran.
        members, spread: the last two for each tier but the outermost [ranks, (tiers - 1,)].
        shared: 1: all GPUs of a domain sent at the same time, as the groups of a layout do; 0: some were idle.
        log_bytes: natural logarithm of the message sizes, ascending [log bytes, (sizes,)].
        log_s: natural logarithm of the times [log s, (sizes,)].
        error: half-width of the 80 % bar of the logarithm of a time [1, (sizes,)].
        source: file and lines.
    """

    op: str
    group: float
    inside: float
    domains: float
    members: Array
    spread: Array
    shared: float
    log_bytes: Array
    log_s: Array
    error: Array
    source: str


@dataclass(frozen=True, slots=True, eq=False)
class Network:
    """The network of a cluster: nested tiers, inner first, and the library that runs on it.

    Measured curves win over the model of tiers and library where they reach. ``edge`` moves what was measured within
    its bar: 0 the most likely, 1 the slow end, -1 the fast end.
    """

    name: str
    tiers: tuple[Tier, ...]
    protocols: Protocols
    curves: tuple[Curve, ...] = ()
    edge: float = 0.0

    @property
    def measured(self) -> bool:
        """Whether something of it was measured, with an error that predictions carry."""
        return bool(self.curves) or any(tier.error > 0.0 for tier in self.tiers)


@dataclass(frozen=True, slots=True, eq=False)
class Engine:
    """What one GPU sustains, layout by layout; arrays (n,) or (1,). See ``specs/pace.toml`` for the sources."""

    peak_flop_per_s: Array  # dense 16-bit peak
    nominal_flop_per_s: Array  # dense peak of the precision of the linear layers, what utilisation is measured against
    gemm_fraction: Array  # share of it that large 16-bit matrix products of a step sustain
    linear_gain: Array  # speed of the linear layers' products over 16-bit ones: 1 for bf16, 1.7 for fp8 on Hopper
    flash_fraction: Array  # share of the peak that a fused attention kernel sustains on causal work
    memory_bytes_per_s: Array  # datasheet bandwidth of the device memory
    memory_fraction: Array  # share of it that streaming kernels sustain
    generation: NDArray[np.intp]  # column of PaceTable.flash_fraction


@dataclass(frozen=True, slots=True, eq=False)
class PaceTable:
    """How a software stack spends time, one entry a stack code; see ``specs/pace.toml`` for the sources."""

    names: tuple[str, ...]
    flash_fraction: Array  # (codes, generations): of a stack's own attention kernel; nan: the engine's
    elementwise: Array  # passes over memory of element-wise kernels, over those of fused ones
    host_layer_s: Array  # time in which the host launches forward and backward of a layer
    host_layer_low_s: Array  # the same where linear layers run in 8 bits or fewer
    host_moe_layer_s: Array  # the same of a layer with experts, at any precision
    host_expert_s: Array  # added to a layer by each expert of the rank: products of single experts leave gaps
    loss_passes: Array  # 16-bit passes over the logits, head and loss together
    tp_exposed: Array  # share of tensor-parallel communication that compute does not hide
    dp_exposed: Array  # share of gradient and weight communication exposed without sharded gradients (ZeRO-0)
    dp_exposed_sharded: Array  # the same with ZeRO-1 and 2
    dp_exposed_pipeline: Array  # at least this share in a pipeline with several micro-batches
    pp_exposed: Array
    routing_passes: Array  # 16-bit passes over routed tokens, forward and backward
    ep_exposed: Array
    overlap_power: Array  # q of (compute^q + gather^q)^(1/q), FSDP: 1 adds, infinity takes the larger
    message_s: Array  # of a pipeline message beside its transfer: handshake, and the host that waits for it
    gather_slowdown: Array  # of unit-by-unit gathering: flat collectives lose the node's other NICs
    owner_broadcast_s: Array  # per data-parallel rank: owners broadcast their weights one after the other
    step_s: Array  # once a step: launches of optimizer, clipping, logging
    floor_s: Array  # fault, off unless a profile sets it: a floor a layer where tp and pp leave the node
    floor_tp_s: Array  # the same for each tensor-parallel rank


@dataclass(frozen=True, slots=True, eq=False)
class PaceConstants:
    """What is the same for every GPU and stack; floats."""

    gemm_ramp: float  # rows, columns or depth of a matrix product at which half of a tile's time is lost
    unfused_fraction: float  # share of the peak of the batched products of unfused attention
    unaligned_slowdown: float  # of those products where the head size is no multiple of the tile
    aligned_to: float
    flash_ramp: float  # tokens at which a causal fused kernel runs at half its rate: tiles on the diagonal, filling
    score_passes: float  # 16-bit passes over the scores, forward and backward, of unfused attention
    floor_power: float  # of the soft maximum of GPU and host time
    host_collective_s: float  # host time of one collective
    tp_skew_s: float  # waiting of a tensor-parallel collective, per doubling of its members in a node
    tp_node_skew_s: float  # the same per further node
    dp_skew_s: float  # waiting of the data-parallel exchange, per doubling of nodes
    optimizer_bytes: float  # memory traffic of a fused optimizer per owned parameter
    expert_slowdown: float  # of matrix products of experts
    expert_low_power: float  # of the gain of low precision that they get: 1 all of it, 0 none
    expert_weight_passes: float  # 16-bit passes over the experts of a rank, each micro-batch


@dataclass(frozen=True, slots=True, eq=False)
class ErrorBars:
    """How well a prediction is known: half-widths of 80 % bars, as fractions of what they belong to.

    By sort of term (``cost.bar.SORTS``), arrays (sorts,); ``unmeasured`` is an entry a stack code.
    """

    known: Array  # on a stack that was measured
    unknown: Array  # in addition, on one that was not
    profile: Array  # in addition, from standard errors that a profile states
    always: float  # of the step, whatever it consists of
    always_new_gpu: float  # in addition, on a GPU that was not measured
    always_experts: float  # in addition, of a model with experts: releases of one framework differ by a third
    low: float  # in addition, of linear layers in 8 bits or fewer
    unmeasured: Array  # (codes,): 1 for a stack without measured numbers
    unmeasured_gpu: Array | float  # (n,) or one: 1 where no published run of the GPU took part


@dataclass(frozen=True, slots=True, eq=False)
class Timing:
    """What the formulas of time read beside model and layouts."""

    engine: Engine
    table: PaceTable
    constants: PaceConstants
    network: Network
