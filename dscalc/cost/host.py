"""Host memory of one node: what is offloaded to it, and one copy of the model to load or save."""

from __future__ import annotations

import numpy as np

from dscalc.cost.axes import groups
from dscalc.cost.rank_parameters import stored_parameters
from dscalc.cost.state import State
from dscalc.records import Array, Hardware, Layouts, ModelShape
from dscalc.terms import LeafSpec

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


def host_terms(
    shape: ModelShape, layouts: Layouts, hardware: Hardware, held: State, checkpoints: Array
) -> list[tuple[LeafSpec, Array]]:
    """Host memory of a node, term by term, for the stage that needs most.

    Args:
        shape [elements, (1,)]: the model.
        layouts [flags, (n,)]: the layout columns.
        hardware [GPUs, (n,)]: GPUs per node; where unknown the usual number is assumed.
        held [bytes, (kinds, n)]: state of a rank.
        checkpoints [bytes, (kinds, n)]: activations of a rank that live on the host.

    Returns:
        (leaf, bytes); their sum is the host memory of a node [bytes, (n,)].

    Raises:
        nothing.

    References:
        [Ren2021] section 4.1, [Rajbhandari2021] section 5.
    """
    usual = layouts.books.constants.gpus_per_node
    ranks = np.minimum(np.where(np.isnan(hardware.gpus_per_node), usual, hardware.gpus_per_node), groups(layouts).gpus)
    gradients = layouts.offload_optimizer * (GRADIENT_BYTES * held.owned)
    return [
        (OPTIMIZER, ranks * _most(held.offloaded_optimizer)),
        (GRADIENTS, ranks * _most(gradients)),
        (WEIGHTS, ranks * _most(held.offloaded_weights)),
        (ACTIVATIONS, ranks * _most(checkpoints)),
        (COPY, COPY_BYTES * stored_parameters(shape) + 0.0 * ranks),
    ]


def _most(values: Array) -> Array:
    most: Array = values.max(axis=0) if values.ndim > 1 else values
    return most
