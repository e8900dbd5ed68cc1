"""Weights, gradients, master copies and moments, and the copies that frameworks keep of them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dscalc.cost.axes import Groups
from dscalc.cost.columns import Entries
from dscalc.cost.moments import ALWAYS, AT_FIRST, AT_STEP, BEFORE_STEP, FORWARD_AND_LAST
from dscalc.cost.rank_parameters import RankParameters, factored_ratios
from dscalc.frozen import dataclass
from dscalc.records import Adapters, Array, Layouts, ModelShape, OptimizerTable, RecipeTable
from dscalc.terms import Cases, LeafSpec, Term

WEIGHTS = LeafSpec(
    "state/weights",
    "bytes",
    "w * (N_r / k_shard and experts by k_expert where ZeRO-3 else N_r)",
    "[Rajbhandari2020] section 5",
)
MASTER = LeafSpec(
    "state/master_weights",
    "bytes",
    "4 * (N_r / k_shard and experts by k_expert where ZeRO >= 1 else N_r)",
    "[Micikevicius2018]; [Rajbhandari2020] section 5",
)
MAIN_GRADIENTS = LeafSpec(
    "state/main_gradients",
    "bytes",
    "4 * (N_r / k_shard and experts by k_expert where ZeRO >= 2 else N_r)",
    "[MegatronLM] param_and_grad_buffer.py; [DeepSpeed] bf16_optimizer.py; [nanotron] gradient_accumulator.py",
)
GRADIENTS = LeafSpec(
    "state/gradients",
    "bytes",
    "g * (N_r / k_shard and experts by k_expert where ZeRO >= 2 else N_r)",
    "[Rajbhandari2020] section 5",
)
FIRST = LeafSpec(
    "state/adam_m",
    "bytes",
    "m_1 * (N_r / k_shard and experts by k_expert where ZeRO >= 1 else N_r)",
    "[Loshchilov2019]; [Rajbhandari2020] section 5",
)
SECOND = LeafSpec(
    "state/adam_v",
    "bytes",
    "m_2 * (N_r / k_shard and experts by k_expert where ZeRO >= 1 else N_r)",
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


# Quantities: parameters of the rank on a stage, before the data-parallel ranks divide them.
DENSE, MATRIX, OTHER, EXPERT = "dense", "matrix", "other", "expert"  # trained; dense: matrix and other
HEAD = "head"  # an untied head, part of other
LARGEST = "largest"  # of all of them, no more than the largest layer has
FROZEN_MATRIX, FROZEN_OTHER, FROZEN_EXPERT = "frozen_matrix", "frozen_other", "frozen_expert"  # under adapters
BUCKET = "bucket"  # no more than a bucket's elements
UNREDUCED, LIVE_DENSE, LIVE_EXPERT = "unreduced", "live_dense", "live_expert"  # while a micro-batch runs
STEP_DENSE, STEP_EXPERT = "step_dense", "step_expert"  # at the optimizer step
GRADIENT_BYTES = "gradient_bytes"

FIRST_STATE = 2  # of ``State.persistent``

Parts = tuple[tuple[Array | None, str], ...]


@dataclass(frozen=True, slots=True)
class State:
    """State leaves as coefficients of what a stage holds; columns (n,)."""

    persistent: list[Term]
    gradients: Term  # the leaf, of the bytes that are there at a moment
    full_gradients: Term  # bytes at the end of backward
    always: Array  # 1: gradients live throughout
    after_first: Array  # 1: they live from the first backward to the step
    at_step: Array  # 1: they live until the step
    unsharded: Term
    buckets: list[Term]
    bucket_elements: Array
    compute_copy: Term
    step: list[Term]
    owned: Term  # parameters the rank's optimizer owns
    offloaded_optimizer: Term  # bytes moved to the host: master weights and moments
    offloaded_weights: Term


@lru_cache(maxsize=64)
def _moment_bytes(recipes: RecipeTable, optimizers: OptimizerTable, ratios: tuple[float, float]) -> Array:
    """Bytes per parameter of the optimizer's states by recipe and optimizer: first, second; matrices, the rest."""
    by_rows, by_columns = ratios
    moment = (recipes.moment / 4.0)[:, None]
    scale = np.where(optimizers.fixed_width > 0.0, 1.0, moment)
    factored = optimizers.factored > 0.0
    first_matrix, first_other = optimizers.first_matrix * scale, optimizers.first_other * scale
    second_matrix, second_other = optimizers.second_matrix * scale, optimizers.second_other * scale
    second_factored = second_matrix * by_columns
    states = (
        np.where(factored, first_matrix * by_rows, first_matrix),
        np.where(factored, first_other * by_rows, first_other),
        np.where(factored, second_factored, second_matrix),
        np.where(factored, second_factored, second_other),
    )
    return np.stack([values.ravel() for values in states])


def state(shape: ModelShape, layouts: Layouts, entries: Entries, groups: Groups, adapters: Adapters | None) -> State:
    """State bytes of one rank, as coefficients of the parameters it holds.

    Args:
        shape [elements, (1,)]: the model.
        layouts [degrees, (n,)]: the layout columns.
        entries [per layout, (n,)]: what the code books say.
        groups [ranks, (n,)]: derived groups.
        adapters [rank, (1,)]: low-rank adapters on a frozen base, or None.

    Returns:
        The state [bytes per parameter, (n,)].

    Raises:
        nothing.

    References:
        [Rajbhandari2020] section 5, [Micikevicius2018], [Hu2022], [Dettmers2023].
    """
    books, experts = layouts.books, bool(shape.experts)
    recipe, stack = entries.recipe, entries.stack
    moments = _moment_bytes(books.recipes, books.optimizers, factored_ratios(shape))
    first_matrix, first_other, second_matrix, second_other = moments.take(
        layouts.recipe * len(books.optimizers.names) + layouts.optimizer, axis=1
    )
    by_shard, by_expert_shard = 1.0 / groups.shard, 1.0 / groups.expert_shard

    def held_from(zero_stage: float) -> tuple[Array, Array]:
        """The share of dense and of expert parameters that is held, where ZeRO shards from a stage on."""
        sharded = (layouts.zero >= zero_stage).astype(np.float64)
        whole = 1.0 - sharded
        return by_shard * sharded + whole, by_expert_shard * sharded + whole if experts else whole

    def on(share: tuple[Array, Array], bytes_each: Array) -> Parts:
        """Bytes of each parameter, dense and expert alike; nothing where no layout has any."""
        if not bytes_each.any():
            return ()
        parts = ((bytes_each * share[0], DENSE), (bytes_each * share[1], EXPERT))
        return parts if experts else parts[:1]

    as_matrix = books.optimizers.head_as_matrix[layouts.optimizer]
    any_as_matrix = bool(as_matrix.any())

    def on_tensors(share: tuple[Array, Array], matrix: Array, other: Array) -> Parts:
        parts: Parts = ((matrix * share[0], MATRIX), (other * share[0], OTHER))
        if any_as_matrix:
            parts = (*parts, ((matrix - other) * as_matrix * share[0], HEAD))
        return (*parts, (matrix * share[1], EXPERT)) if experts else parts

    optimizer, gradient, weight = held_from(1.0), held_from(2.0), held_from(3.0)
    everything = (np.ones(1), np.ones(1))
    three = (layouts.zero >= 3.0).astype(np.float64)
    moved, kept = layouts.offload_optimizer, 1.0 - layouts.offload_optimizer
    weights_moved = layouts.offload_parameters * three
    weights_kept = 1.0 - weights_moved

    def weights(factor: Array) -> Parts:
        trained = on(weight, recipe.weights * factor)
        if adapters is None:
            return trained
        matrix, other = adapters.base_matrix_bytes * factor, adapters.base_other_bytes * factor
        frozen = ((matrix * weight[0], FROZEN_MATRIX), (other * weight[0], FROZEN_OTHER))
        return (*frozen, *(((matrix * weight[1], FROZEN_EXPERT),) if experts else ()), *trained)

    def states(factor: Array) -> tuple[Parts, Parts, Parts]:
        return (
            on(optimizer, recipe.master * factor),
            on_tensors(optimizer, first_matrix * factor, first_other * factor),
            on_tensors(optimizer, second_matrix * factor, second_other * factor),
        )

    master, first, second = states(kept)
    persistent = [
        Term(WEIGHTS, weights(weights_kept)),
        Term(MASTER, master),
        Term(FIRST, first),
        Term(SECOND, second),
        Term(MAIN_GRADIENTS, on(gradient, recipe.main_gradients)),
    ]
    moved_states = tuple(part for parts in states(moved) for part in parts) if moved.any() else ()

    # 16-bit or fp32 .grad: there throughout, from backward to the step, or only within one micro-batch
    in_backward = layouts.optimizer_in_backward
    not_fused = 1.0 - in_backward
    full = on(gradient, recipe.gradients * not_fused)
    if in_backward.any():
        full = (*full, (recipe.gradients * in_backward, LARGEST))
    not_freed = (1.0 - recipe.transient_gradients) * not_fused
    stays = recipe.persistent_gradients * not_freed

    # reduced once a step, or after the last backward of a pipeline
    in_pipeline = (layouts.pp > 1.0) & (stack.unit_reduce > 0.0) & (stack.reshard_in_pipeline == 0.0)
    in_pipeline = in_pipeline & (layouts.zero >= 3.0)
    hold = ((layouts.no_sync > 0.0) | in_pipeline) & (layouts.zero >= 2.0)
    hold = hold & (layouts.n_micro > 1.0) & (groups.shard > 1.0)

    together = (groups.dp_cp != 1.0).astype(np.float64)
    sharded = (layouts.zero >= 1.0) * together
    bucketed, flat = recipe.ddp_buckets, recipe.flat_gather
    bucketed = bucketed * (together - sharded) if bucketed.any() else bucketed
    flat = flat * (sharded * (1.0 - three)) if flat.any() else flat
    at_step = kept * not_fused

    def at_the_step(bytes_each: Array, share: tuple[Array, Array]) -> Parts:
        if not bytes_each.any():
            return ()
        parts = ((bytes_each * share[0], STEP_DENSE), (bytes_each * share[1], STEP_EXPERT))
        return parts if experts else parts[:1]

    unreduced = recipe.reduce * hold
    buckets = stack.bucket_count * 2.0 * sharded
    copies = ((recipe.compute_copy, LIVE_DENSE), (recipe.compute_copy, LIVE_EXPERT))
    return State(
        persistent=persistent,
        gradients=Term(GRADIENTS, ((None, GRADIENT_BYTES),)),
        full_gradients=Term(GRADIENTS, full),
        always=stays,
        after_first=not_freed - stays,
        at_step=not_freed,
        unsharded=Term(UNSHARDED, ((unreduced, UNREDUCED),) if hold.any() else ()),
        buckets=[
            Term(DDP_BUCKETS, on(everything, bucketed)),
            Term(BUCKETS, ((buckets, BUCKET),) if buckets.any() else ()),
        ],
        bucket_elements=stack.bucket_elements,
        compute_copy=Term(COMPUTE_COPY, (copies if experts else copies[:1]) if recipe.compute_copy.any() else ()),
        step=[
            Term(FLAT_GATHER, at_the_step(flat, everything)),
            Term(STEP_CAST, at_the_step(recipe.step_cast * at_step, optimizer)),
            Term(STEP_TEMPORARIES, at_the_step(stack.step_temporaries * at_step, optimizer)),
        ],
        owned=Term(MASTER, on(optimizer, np.ones(1))),
        offloaded_optimizer=Term(MASTER, moved_states),
        offloaded_weights=Term(WEIGHTS, weights(weights_moved) if weights_moved.any() else ()),
    )


def state_quantities(
    held: State,
    base: RankParameters,
    trained: RankParameters,
    adapters: Adapters | None,
    accumulated: Array,
) -> dict[str, Cases]:
    """What the state leaves are coefficients of, at each moment on each stage.

    Args:
        held [coefficients, (n,)]: from ``state``.
        base [elements, (kinds, n)]: parameters of the model on the rank.
        trained [elements, (kinds, n)]: parameters with gradients (the same, or the adapters').
        adapters [rank, (1,)]: low-rank adapters on a frozen base, or None.
        accumulated [flags, (kinds, n)]: 1 where a backward has already run when the stage is fullest.

    Returns:
        Quantities by moment: end of forward, backward of the last and of the first layer, step [elements, (kinds, n)].

    Raises:
        nothing.

    References:
        [Rajbhandari2020] section 5, [PyTorchFSDP].
    """
    dense, elements = trained.dense, trained.elements
    now: dict[str, Array] = {DENSE: dense, MATRIX: trained.matrix, OTHER: trained.other, EXPERT: trained.expert}
    if held.persistent[FIRST_STATE].uses(HEAD):
        now[HEAD] = trained.head_matrix
    if held.full_gradients.uses(LARGEST):
        now[LARGEST] = np.minimum(elements, trained.layer)
    if held.buckets[1].parts:
        now[BUCKET] = np.minimum(held.bucket_elements, elements)
    if adapters is not None:
        now |= {FROZEN_MATRIX: base.matrix, FROZEN_OTHER: base.other, FROZEN_EXPERT: base.expert}
    gradients = held.full_gradients.of(now)
    before = gradients * (held.always + held.after_first * accumulated)
    found: dict[str, Cases] = {name: ((ALWAYS, array),) for name, array in now.items()}
    found[GRADIENT_BYTES] = ((FORWARD_AND_LAST, before), (AT_FIRST, gradients), (AT_STEP, gradients * held.at_step))
    if held.unsharded.parts:
        found[UNREDUCED] = ((FORWARD_AND_LAST, elements * accumulated), (AT_FIRST, elements))
    if held.compute_copy.parts:
        found |= {LIVE_DENSE: ((BEFORE_STEP, dense),), LIVE_EXPERT: ((BEFORE_STEP, trained.expert),)}
    if any(term.parts for term in held.step):
        found |= {STEP_DENSE: ((AT_STEP, dense),), STEP_EXPERT: ((AT_STEP, trained.expert),)}
    return found
