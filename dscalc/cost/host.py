"""Host memory of one node: what is offloaded to it, and one copy of the model to load or save."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dscalc.cost.activations import INPUTS_ON_HOST
from dscalc.cost.leaves import Columns
from dscalc.cost.moments import AT_FORWARD
from dscalc.cost.rank_parameters import stored_parameters
from dscalc.records import Array, Hardware
from dscalc.terms import LeafSpec, Term, case_totals

GRADIENT_BYTES = 4.0  # the host steps on fp32 gradients
COPY_BYTES = 2.0

OPTIMIZER = LeafSpec(
    "host/offloaded_optimizer", "bytes", "ranks * (master + moments of a rank)", "[Ren2021] section 4.1"
)
GRADIENTS = LeafSpec("host/offloaded_gradients", "bytes", "ranks * 4 * owned parameters", "[Ren2021] section 4.1")
WEIGHTS = LeafSpec("host/offloaded_weights", "bytes", "ranks * w * N_r / k_shard", "[Rajbhandari2021] section 5")
ACTIVATIONS = LeafSpec(
    "host/offloaded_activations", "bytes", "ranks * k * (L_i - 2) * 2 s b h R / c", "[torchtune] activation offloading"
)
COPY = LeafSpec(
    "host/model_copy",
    "bytes",
    "2 N, one 16-bit copy to load or save",
    "[PyTorchFSDP] full state dict on rank 0; [accelerate] low-memory loading",
)


def host_terms(columns: Columns, hardware: Hardware, held: Mapping[str, Array]) -> list[tuple[LeafSpec, Array]]:
    """Host memory of a node, term by term, for the stage that needs most.

    Args:
        columns [coefficients, (n,)]: from ``layout_columns``.
        hardware [GPUs, (n,)]: GPUs per node; where unknown the usual number is assumed.
        held [elements, (kinds, n)]: what the stages hold at the end of forward.

    Returns:
        (leaf, bytes); their sum is the host memory of a node [bytes, (n,)].

    Raises:
        nothing.

    References:
        [Ren2021] section 4.1, [Rajbhandari2021] section 5.
    """
    layouts, state = columns.layouts, columns.held
    usual, none = layouts.books.constants.gpus_per_node, np.zeros(1)
    ranks = np.minimum(np.where(np.isnan(hardware.gpus_per_node), usual, hardware.gpus_per_node), columns.groups.gpus)
    gradients = checkpoints = none
    forward = {name: ((AT_FORWARD, array),) for name, array in held.items()}

    def most(term: Term) -> Array:
        return _most(case_totals([term], forward, 1)[0])

    if state.offloaded_optimizer.parts:
        gradients = (GRADIENT_BYTES * layouts.offload_optimizer) * state.owned.of(held)
    if INPUTS_ON_HOST in held and "checkpoint" in columns.layer.kept:
        checkpoints = columns.layer.kept["checkpoint"] * held[INPUTS_ON_HOST]
    return [
        (OPTIMIZER, ranks * most(state.offloaded_optimizer)),
        (GRADIENTS, ranks * _most(gradients)),
        (WEIGHTS, ranks * most(state.offloaded_weights)),
        (ACTIVATIONS, ranks * _most(checkpoints)),
        (COPY, np.full(1, COPY_BYTES * stored_parameters(columns.shape))),
    ]


def _most(values: Array) -> Array:
    most: Array = values.max(axis=0) if values.ndim > 1 else values
    return most
