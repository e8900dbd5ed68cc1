"""The one door to the formulas: one layout or ten million, the same path."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dscalc.cost.axes import groups, rules
from dscalc.cost.memory import Memory, memory
from dscalc.frozen import dataclass
from dscalc.records import Adapters, Hardware, Layouts, Mask, ModelShape

MEMORY_REASON = "memory"


@dataclass(frozen=True, slots=True)
class Reasons:
    """Why layouts are rejected, in the written order: legality first, memory last.

    Attributes:
        names: one per reason.
        messages: what would be right, one per reason.
        masks: where each reason applies [flags, (n,)].
        first: index of the first reason that applies, -1 where none does [index, (n,)].
    """

    names: tuple[str, ...]
    messages: tuple[str, ...]
    masks: tuple[Mask, ...]
    first: NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What is known of each layout."""

    memory: Memory
    reasons: Reasons
    feasible: Mask


def evaluate(
    model: ModelShape, layouts: Layouts, hardware: Hardware, adapters: Adapters | None = None, keep_terms: bool = True
) -> Evaluation:
    """Evaluate layouts of a model on hardware.

    Args:
        model [elements, (1,)]: the model's shape.
        layouts [degrees, (n,)]: the layout columns.
        hardware [bytes, (n,)]: the hardware columns.
        adapters [rank, (1,)]: low-rank adapters on a frozen base, or None.
        keep_terms [flag, (1,)]: keep the leaves of every total.

    Returns:
        Memory, reasons and feasibility, each (n,).

    Raises:
        nothing: rejection is a mask with a reason.

    References:
        [Rajbhandari2020], [Korthikanti2022], [Shoeybi2019].
    """
    derived = groups(layouts)
    result = memory(model, layouts, hardware, adapters, keep_terms)
    n = result.total_bytes.shape[0]
    names, messages, masks = [], [], []
    first = np.full(n, -1, dtype=np.intp)
    for number, rule in enumerate(rules()):
        mask = rule.illegal(layouts, derived, model)
        names.append(rule.name)
        messages.append(rule.message)
        masks.append(np.broadcast_to(mask, (n,)))
        if mask.any():
            first = np.where((first < 0) & mask, number, first)
    over = result.total_bytes > result.usable_bytes  # False where the usable memory is unknown
    names.append(MEMORY_REASON)
    messages.append("does not fit in the memory of the GPU")
    masks.append(over)
    first = np.where((first < 0) & over, len(names) - 1, first)
    return Evaluation(result, Reasons(tuple(names), tuple(messages), tuple(masks), first), first < 0)
