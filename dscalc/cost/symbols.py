"""The numbers put into the formulas, for ``--explain``."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dscalc.cost.activations import full_recompute_layers
from dscalc.cost.leaves import Columns, Stages
from dscalc.records import Array

EXPERT_NAMES = {"mlp": "shared"}  # what an expert layer keeps in its dense part belongs to the shared experts


def symbols(columns: Columns, peak: Stages, quantities: Mapping[str, Array]) -> dict[str, Array]:
    """The numbers behind the symbols of the formulas, at the peak.

    Args:
        columns [coefficients, (n,)]: from ``layout_columns``.
        peak [quantities, (n,)]: the fullest stage.
        quantities [quantities, (n,)]: what it holds at its fullest moment.

    Returns:
        Numbers by symbol [mixed, (n,)].

    Raises:
        nothing.

    References:
        [Definition]: docs/nomenclature.md.
    """
    shape, layouts, layer, constants = columns.shape, columns.layouts, columns.layer, columns.layouts.books.constants
    recipe, loss, stack = columns.entries.recipe, columns.entries.loss, columns.entries.stack
    numbers = {
        "h": shape.hidden,
        "f": shape.ffn_hidden,
        "a": shape.heads,
        "V": shape.vocab,
        "communicator_bytes": constants.communicator_bytes,
    }
    return {
        "N_r": peak.elements,
        "N_owned": columns.held.owned.of(quantities),
        "k_shard": columns.groups.shard,
        "k_expert": columns.groups.expert_shard,
        "w": recipe.weights,
        "g": recipe.gradients,
        "L_i": peak.kinds.layers,
        "L_kept": peak.kinds.layers - full_recompute_layers(layouts, peak.kinds),
        "k": peak.flying,
        "T": layer.tokens,
        "R": layer.residual,
        "b": layouts.micro_batch,
        "s": layouts.seq_len,
        "t": layouts.tp,
        "c": layouts.cp,
        "context_bytes": constants.cuda_context_bytes + stack.eager_kernels_bytes,
        "communicators": columns.passing.communicators,
        "slack_fraction": stack.slack_fraction,
        "tp_buffers": stack.tp_buffers,
        "logit_bytes": loss.whole + loss.chunk / loss.chunks,
        **{symbol: np.full(1, float(value)) for symbol, value in numbers.items()},
        **{f"A_{name}": array for name, array in layer.kept.items()},
        **{f"A_{EXPERT_NAMES.get(name, name)}": array for name, array in layer.kept_moe.items()},
    }
