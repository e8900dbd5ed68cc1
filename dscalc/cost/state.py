"""Weights, gradients, master copies and moments, and the copies that frameworks keep of them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dscalc.cost.axes import Groups
from dscalc.cost.rank_parameters import RankParameters, factored_ratios
from dscalc.records import Adapters, Array, Layouts, ModelShape
from dscalc.terms import LeafSpec

WEIGHTS = LeafSpec(
    "state/weights",
    "bytes",
    "w * (N_r / k_shard, experts / k_expert, where ZeRO-3 else N_r)",
    "[Rajbhandari2020] section 5",
)
MASTER = LeafSpec(
    "state/master_weights",
    "bytes",
    "4 * (N_r / k_shard, experts / k_expert, where ZeRO >= 1 else N_r)",
    "[Micikevicius2018]; [Rajbhandari2020] section 5",
)
MAIN_GRADIENTS = LeafSpec(
    "state/main_gradients",
    "bytes",
    "4 * (N_r / k_shard, experts / k_expert, where ZeRO >= 2 else N_r)",
    "[MegatronLM] param_and_grad_buffer.py; [DeepSpeed] bf16_optimizer.py; [nanotron] gradient_accumulator.py",
)
GRADIENTS = LeafSpec(
    "state/gradients",
    "bytes",
    "g * (N_r / k_shard, experts / k_expert, where ZeRO >= 2 else N_r)",
    "[Rajbhandari2020] section 5",
)
FIRST = LeafSpec(
    "state/adam_m",
    "bytes",
    "m_1 * (N_r / k_shard, experts / k_expert, where ZeRO >= 1 else N_r)",
    "[Loshchilov2019]; [Rajbhandari2020] section 5",
)
SECOND = LeafSpec(
    "state/adam_v",
    "bytes",
    "m_2 * (N_r / k_shard, experts / k_expert, where ZeRO >= 1 else N_r)",
    "[Loshchilov2019]; [Rajbhandari2020] section 5",
)
DDP_BUCKETS = LeafSpec(
    "transient/ddp_buckets",
    "bytes",
    "copy of the gradients in buckets, N_r * bytes, only without sharding and k > 1",
    "[PyTorchDDP] reducer buckets without gradient_as_bucket_view",
)
COMPUTE_COPY = LeafSpec(
    "transient/compute_copy", "bytes", "2 * N_r while autocast casts live", "[PyTorchAMP] weight cache"
)
BUCKETS = LeafSpec(
    "transient/communication_buckets",
    "bytes",
    "count * 2 * min(bucket elements, N_r)",
    "[DeepSpeed] zero reduce_bucket_size, allgather_bucket_size; [InternEvo]",
)
FLAT_GATHER = LeafSpec(
    "transient/flat_parameter_gather",
    "bytes",
    "bytes * N_r in one contiguous block at the step, ZeRO-1/2",
    "[nanotron] optim/zero.py coalesced all-gather",
)
STEP_CAST = LeafSpec(
    "transient/gradient_cast",
    "bytes",
    "4 * owned parameters at the step",
    "[DeepSpeed] stage_1_and_2.py; [MegatronLM] optimizer.py",
)
STEP_TEMPORARIES = LeafSpec(
    "transient/optimizer_temporaries", "bytes", "bytes * owned parameters at the step", "[PyTorch] foreach optimizers"
)
UNSHARDED = LeafSpec(
    "transient/unsharded_gradients",
    "bytes",
    "reduce bytes * N_r held between reductions (no_sync, or micro-batches of a pipeline)",
    "[PyTorchFSDP] no_sync; [PyTorchFSDP2] unsharded_accumulated_grad",
)


@dataclass(frozen=True, slots=True)
class State:
    """State leaves and the numbers they are made of; arrays (kinds, n) unless said otherwise."""

    persistent: list[tuple[LeafSpec, Array]]
    forward_gradients: Array  # present while forward runs
    full_gradients: Array  # present at the end of backward
    step_gradients: Array  # present at the optimizer step
    unsharded_forward: Array
    unsharded_backward: Array
    buckets: list[tuple[LeafSpec, Array]]
    compute_copy: Array
    step: list[tuple[LeafSpec, Array]]
    held: Array  # parameters of the rank before sharding
    owned: Array  # parameters the rank's optimizer owns
    offloaded_optimizer: Array  # bytes moved to the host
    offloaded_weights: Array


def _mix(flag: Array, sharded: Array, whole: Array) -> Array:
    """``sharded`` where flag is 1, ``whole`` where it is 0; both are finite."""
    return sharded * flag + whole * (1.0 - flag)


def state(
    shape: ModelShape,
    layouts: Layouts,
    groups: Groups,
    base: RankParameters,
    trained: RankParameters,
    adapters: Adapters | None,
    in_flight: Array,
) -> State:
    """State bytes of one rank.

    Args:
        shape [elements, (1,)]: the model.
        layouts [degrees, (n,)]: the layout columns.
        groups [ranks, (n,)]: derived groups.
        base [elements, (kinds, n)]: parameters of the model on the rank.
        trained [elements, (kinds, n)]: parameters with gradients (the same, or the adapters').
        adapters [rank, (1,)]: low-rank adapters on a frozen base, or None.
        in_flight [micro-batches, (kinds, n)]: micro-batches a stage holds.

    Returns:
        The state [bytes, (kinds, n)].

    Raises:
        nothing.

    References:
        [Rajbhandari2020] section 5, [Micikevicius2018], [Hu2022], [Dettmers2023].
    """
    books = layouts.books
    recipes, optimizers, stacks = books.recipes, books.optimizers, books.stacks
    recipe, optimizer = layouts.recipe, layouts.optimizer
    one = (layouts.zero >= 1.0) * 1.0
    two = (layouts.zero >= 2.0) * 1.0
    three = (layouts.zero >= 3.0) * 1.0
    by_shard, by_expert_shard = 1.0 / groups.shard, 1.0 / groups.expert_shard

    def sharded(dense: Array, expert: Array) -> Array:
        return dense * by_shard + expert * by_expert_shard if shape.experts else dense * by_shard

    def whole(dense: Array, expert: Array) -> Array:
        return dense + expert if shape.experts else dense

    zero_expert = np.zeros_like(trained.other[:1])
    matrix, matrix_s = whole(trained.matrix, trained.expert), sharded(trained.matrix, trained.expert)
    other, other_s = (
        trained.other,
        sharded(trained.other, zero_expert) if not shape.experts else trained.other * by_shard,
    )
    held, held_s = matrix + other, matrix_s + other_s
    weight_bytes = recipes.weights[recipe]
    if adapters is None:
        weights = weight_bytes * _mix(three, held_s, held)
    else:
        base_matrix, base_matrix_s = whole(base.matrix, base.expert), sharded(base.matrix, base.expert)
        weights = (
            adapters.base_matrix_bytes * _mix(three, base_matrix_s, base_matrix)
            + adapters.base_other_bytes * _mix(three, base.other * by_shard, base.other)
            + weight_bytes * _mix(three, held_s, held)
        )
    owned = _mix(one, held_s, held)
    scale = np.where(optimizers.fixed_width[optimizer] > 0.0, 1.0, recipes.moment[recipe] / 4.0)
    first_m, first_o = optimizers.first_matrix[optimizer] * scale, optimizers.first_other[optimizer] * scale
    second_m, second_o = optimizers.second_matrix[optimizer] * scale, optimizers.second_other[optimizer] * scale
    if optimizers.factored[optimizer].any():
        by_rows, by_columns = factored_ratios(shape)
        factored = optimizers.factored[optimizer] > 0.0
        first_m, first_o = (
            np.where(factored, first_m * by_rows, first_m),
            np.where(factored, first_o * by_rows, first_o),
        )
        second_m = np.where(factored, second_m * by_columns, second_m)
        second_o = np.where(factored, second_m, second_o)
    owned_matrix, owned_other = _mix(one, matrix_s, matrix), _mix(one, other_s, other)
    as_matrix = optimizers.head_as_matrix[optimizer] > 0.0
    on_gpu = 1.0 - layouts.offload_optimizer
    master_all = recipes.master[recipe] * owned
    first_all = first_m * owned_matrix + first_o * owned_other
    second_all = second_m * owned_matrix + second_o * owned_other
    if as_matrix.any():
        owned_head = _mix(one, trained.head_matrix * by_shard, trained.head_matrix)
        first_all = first_all + np.where(as_matrix, first_m - first_o, 0.0) * owned_head
        second_all = second_all + np.where(as_matrix, second_m - second_o, 0.0) * owned_head
    weights_on_gpu = 1.0 - layouts.offload_parameters * three
    main = recipes.main_gradients[recipe] * _mix(two, held_s, held)
    persistent = [
        (WEIGHTS, weights * weights_on_gpu),
        (MASTER, master_all * on_gpu),
        (FIRST, first_all * on_gpu),
        (SECOND, second_all * on_gpu),
        (MAIN_GRADIENTS, main),
    ]

    # 16-bit or fp32 .grad: there throughout, from backward to the step, or only within one micro-batch
    gradient_bytes = recipes.gradients[recipe]
    layer_only = np.minimum(held, trained.layer)
    in_backward = layouts.optimizer_in_backward > 0.0
    gradients = gradient_bytes * np.where(in_backward, layer_only, _mix(two, held_s, held))
    stays = (recipes.persistent_gradients[recipe] > 0.0) & (recipes.transient_gradients[recipe] == 0.0)
    freed = recipes.transient_gradients[recipe] > 0.0
    # a backward has already run when the stage is fullest; of the middle stages that the last one stands for, one has
    accumulated = layouts.n_micro > np.concatenate((in_flight[:1], in_flight[-1:].repeat(len(in_flight) - 1, axis=0)))
    in_forward = (stays | (accumulated & ~freed)) & ~in_backward
    forward_gradients = gradients * in_forward
    step_gradients = gradients * ~(freed | in_backward)
    accumulating = layouts.n_micro > 1.0
    in_pipeline = (layouts.pp > 1.0) & (stacks.unit_reduce[layouts.stack] > 0.0)
    in_pipeline = in_pipeline & (stacks.reshard_in_pipeline[layouts.stack] == 0.0) & (layouts.zero >= 3.0)
    hold = ((layouts.no_sync > 0.0) | in_pipeline) & (layouts.zero >= 2.0) & accumulating & (groups.shard > 1.0)
    unsharded = recipes.reduce[recipe] * (held * hold)

    alone = groups.dp_cp == 1.0
    bucketed = np.where((layouts.zero == 0.0) & ~alone, recipes.ddp_buckets[recipe], 0.0)
    bucket_elements, bucket_count = stacks.bucket_elements[layouts.stack], stacks.bucket_count[layouts.stack]
    ranks = np.where((layouts.zero >= 1.0) & ~alone, bucket_count * 2.0, 0.0)
    flat = np.where((layouts.zero >= 1.0) & (layouts.zero < 3.0) & ~alone, recipes.flat_gather[recipe], 0.0)
    not_fused = np.where(in_backward, 0.0, 1.0)
    return State(
        persistent=persistent,
        forward_gradients=forward_gradients,
        full_gradients=gradients,
        step_gradients=step_gradients,
        unsharded_forward=unsharded * accumulated,
        unsharded_backward=unsharded,
        buckets=[
            (DDP_BUCKETS, bucketed * held),
            (BUCKETS, ranks * np.minimum(bucket_elements, held)),
        ],
        compute_copy=recipes.compute_copy[recipe] * held,
        step=[
            (FLAT_GATHER, flat * held),
            (STEP_CAST, (recipes.step_cast[recipe] * on_gpu * not_fused) * owned),
            (STEP_TEMPORARIES, (stacks.step_temporaries[layouts.stack] * on_gpu * not_fused) * owned),
        ],
        held=held,
        owned=owned,
        offloaded_optimizer=(master_all + first_all + second_all) * (1.0 - on_gpu),
        offloaded_weights=weights * (1.0 - weights_on_gpu),
    )
