"""The numbers put into the formulas, for ``--explain``."""

from __future__ import annotations

from collections.abc import Callable

from dscalc.cost.activations import LayerBytes, full_recompute_layers
from dscalc.cost.axes import Groups
from dscalc.cost.placement import StageKinds
from dscalc.cost.state import State
from dscalc.records import Array, Layouts, ModelShape

EXPERT_NAMES = {"mlp": "shared"}  # what an expert layer keeps in its dense part belongs to the shared experts


def symbols(
    shape: ModelShape,
    layouts: Layouts,
    derived: Groups,
    layer: LayerBytes,
    held: State,
    communicators: Array,
    peak: StageKinds,
    flying: Array,
    pick: Callable[[Array], Array],
) -> dict[str, Array]:
    """The numbers behind the symbols of the formulas, at the peak.

    Args:
        shape [elements, (1,)]: the model.
        layouts [degrees, (n,)]: the layout columns.
        derived [ranks, (n,)]: derived groups.
        layer [bytes, (n,)]: bytes of one layer.
        held [bytes, (kinds, n)]: state of a rank.
        communicators [count, (n,)]: communicators of a rank.
        peak [layers, (n,)]: the fullest stage.
        flying [micro-batches, (n,)]: micro-batches in flight on it.
        pick [callable, (1,)]: takes the fullest stage out of (kinds, n).

    Returns:
        Numbers by symbol [mixed, (n,)].

    Raises:
        nothing.

    References:
        [Definition]: docs/nomenclature.md.
    """
    books, like = layouts.books, 0.0 * flying
    return {
        "N_r": pick(held.held),
        "N_owned": pick(held.owned),
        "k_shard": derived.shard + like,
        "k_expert": derived.expert_shard + like,
        "w": books.recipes.weights[layouts.recipe] + like,
        "g": books.recipes.gradients[layouts.recipe] + like,
        "L_i": peak.layers,
        "L_kept": peak.layers - full_recompute_layers(layouts, peak),
        "k": flying,
        "T": layer.tokens + like,
        "R": layer.residual + like,
        "b": layouts.micro_batch + like,
        "s": layouts.seq_len + like,
        "t": layouts.tp + like,
        "c": layouts.cp + like,
        "h": float(shape.hidden) + like,
        "f": float(shape.ffn_hidden) + like,
        "a": float(shape.heads) + like,
        "V": float(shape.vocab) + like,
        "context_bytes": books.constants.cuda_context_bytes + books.stacks.eager_kernels_bytes[layouts.stack] + like,
        "communicator_bytes": books.constants.communicator_bytes + like,
        "communicators": communicators + like,
        "slack_fraction": books.stacks.slack_fraction[layouts.stack] + like,
        "tp_buffers": books.stacks.tp_buffers[layouts.stack] + like,
        "logit_bytes": books.losses.whole[layouts.loss]
        + books.losses.chunk[layouts.loss] / books.losses.chunks[layouts.loss]
        + like,
        **{f"A_{name}": array + like for name, array in layer.kept.items() if array is not None},
        **{
            f"A_{EXPERT_NAMES.get(name, name)}": array + like
            for name, array in layer.kept_moe.items()
            if array is not None
        },
    }
