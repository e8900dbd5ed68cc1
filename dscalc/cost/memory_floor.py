"""What a layout's state takes at the least: the persistent leaves of the memory total, without those of its work."""

from __future__ import annotations

import numpy as np

from dscalc.cost import state
from dscalc.cost.axes import groups
from dscalc.cost.columns import entries
from dscalc.cost.moments import MOMENTS
from dscalc.cost.placement import stage_kinds
from dscalc.cost.rank_parameters import adapter_sums, part_parameters, part_sums, stage_parameters
from dscalc.records import Adapters, Array, Layouts, ModelShape
from dscalc.terms import case_totals


def state_floor_bytes(shape: ModelShape, layouts: Layouts, adapters: Adapters | None = None) -> Array:
    """A lower bound on the memory of one GPU: weights, master copies and moments on the fullest stage.

    These are leaves of ``memory``, and no leaf is negative: the bound holds for any micro-batch and recompute.

    Args:
        shape [elements, (1,)]: the model.
        layouts [degrees, (n,)]: the layout columns; micro-batch, recompute and sequence parallelism do not count.
        adapters [rank, (1,)]: low-rank adapters on a frozen base, or None.

    Returns:
        Bytes that the state takes [bytes, (n,)].

    Raises:
        nothing.

    References:
        [Rajbhandari2020] section 3.1.
    """
    found, derived = entries(layouts), groups(layouts)
    base = part_parameters(shape, part_sums(shape), layouts)
    trained = base if adapters is None else part_parameters(shape, adapter_sums(shape, adapters), layouts)
    held = state.state(shape, layouts, found, derived, adapters)
    kinds = stage_kinds(shape, layouts)
    whole = stage_parameters(shape, base, kinds)
    own = whole if adapters is None else stage_parameters(shape, trained, kinds)
    quantities = state.state_quantities(held, whole, own, adapters, np.zeros((1, 1)))
    most = np.zeros(1)
    for total in case_totals(held.persistent, quantities, MOMENTS):
        most = np.maximum(most, np.max(np.atleast_2d(total), axis=0))
    return most
