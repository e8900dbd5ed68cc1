"""The leaves of a memory total in order, and the quantities of which they are multiples."""

from __future__ import annotations

import numpy as np

from dscalc.cost import activations, state, transient
from dscalc.cost.axes import Groups, groups
from dscalc.cost.columns import Entries, entries
from dscalc.cost.placement import StageKinds
from dscalc.cost.rank_parameters import (
    PartParameters,
    adapter_sums,
    part_parameters,
    part_sums,
    stage_parameters,
)
from dscalc.cost.schedule import in_flight
from dscalc.frozen import dataclass
from dscalc.records import Adapters, Array, Layouts, ModelShape
from dscalc.terms import Quantities, Term


@dataclass(frozen=True, slots=True)
class Columns:
    """Everything about the layouts that does not depend on the stage."""

    shape: ModelShape
    layouts: Layouts
    adapters: Adapters | None
    entries: Entries
    groups: Groups
    base: PartParameters
    trained: PartParameters
    layer: activations.LayerBytes
    held: state.State
    passing: transient.Transients
    terms: list[Term]  # in the order in which they are summed


@dataclass(frozen=True, slots=True)
class Stages:
    """What stages hold; arrays (kinds, n), or (n,) where one stage of each layout is looked at."""

    kinds: StageKinds
    flying: Array  # micro-batches in flight
    elements: Array  # trained parameters
    quantities: Quantities


def layout_columns(shape: ModelShape, layouts: Layouts, adapters: Adapters | None) -> Columns:
    """Everything about the layouts that does not depend on the stage, and the leaves in the order of their sum.

    Args:
        shape [elements, (1,)]: the model.
        layouts [degrees, (n,)]: the layout columns.
        adapters [rank, (1,)]: low-rank adapters on a frozen base, or None.

    Returns:
        The columns [(n,)].

    Raises:
        nothing.

    References:
        [Rajbhandari2020] sections 3 and 5, [Korthikanti2022] section 4.
    """
    found, derived = entries(layouts), groups(layouts)
    base = part_parameters(shape, part_sums(shape), layouts)
    trained = base if adapters is None else part_parameters(shape, adapter_sums(shape, adapters), layouts)
    layer = activations.layer_bytes(shape, layouts, adapters)
    held = state.state(shape, layouts, found, derived, adapters)
    passing = transient.transients(shape, layouts, found, derived, base, trained, layer, adapters)
    terms = [
        *held.persistent,
        *passing.before,
        *held.buckets,
        held.gradients,
        *held.step,
        *(term for term in (held.unsharded, held.compute_copy) if term.parts),
        *activations.saved_terms(shape, layer),
        *passing.after,
    ]
    return Columns(shape, layouts, adapters, found, derived, base, trained, layer, held, passing, terms)


def loads(columns: Columns, kinds: StageKinds) -> tuple[Array, Array]:
    """Micro-batches in flight on each stage, and where a backward has already run when it is fullest.

    The last stage stands for the middle ones, of which one has run a backward when the last one has.

    Args:
        columns [coefficients, (n,)]: from ``layout_columns``.
        kinds [counts, (kinds, n)]: the stage kinds.

    Returns:
        Micro-batches; flags, 1 or 0 [micro-batches, (kinds, n)].

    Raises:
        nothing.

    References:
        [Narayanan2021] section 2.2.
    """
    flying = in_flight(columns.layouts, kinds.index)
    ends = flying if len(flying) == 1 else flying[[0, -1]]
    flags = (columns.layouts.n_micro > ends).astype(np.float64)
    return flying, flags[[0, *[-1] * (len(flying) - 1)]]


def on_stages(columns: Columns, kinds: StageKinds, flying: Array, accumulated: Array) -> Stages:
    """What stages hold of everything that the leaves are multiples of.

    Args:
        columns [coefficients, (n,)]: from ``layout_columns``.
        kinds [counts, (kinds, n)]: the stages: the kinds of each layout, or one of them alone, then (n,).
        flying [micro-batches, (kinds, n)]: micro-batches in flight, from ``loads``.
        accumulated [flags, (kinds, n)]: 1 where a backward has already run when the stage is fullest.

    Returns:
        The quantities by moment [(kinds, n)].

    Raises:
        nothing.

    References:
        [Narayanan2021] section 2.2, [Korthikanti2022] section 4.
    """
    shape, layouts, adapters = columns.shape, columns.layouts, columns.adapters
    base = stage_parameters(shape, columns.base, kinds)
    trained = base if adapters is None else stage_parameters(shape, columns.trained, kinds)
    own = state.state_quantities(columns.held, base, trained, adapters, accumulated)
    quantities = {
        **own,
        **activations.activation_quantities(shape, layouts, kinds, flying),
        **transient.transient_quantities(columns.passing, kinds, base, adapters, flying),
    }
    return Stages(kinds, flying, trained.elements, quantities)
