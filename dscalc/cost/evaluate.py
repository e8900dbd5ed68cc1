"""The one door to the formulas: one layout or ten million, the same path."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from dscalc.cost.axes import groups, rules
from dscalc.cost.columns import first_of, narrowed, rows
from dscalc.cost.memory import Memory, memory
from dscalc.frozen import dataclass
from dscalc.records import Adapters, Hardware, Layouts, Mask, ModelShape, Timing

if TYPE_CHECKING:
    from dscalc.cost.step import Step

MEMORY_REASON = "memory"

# Rows a call where there are many. A call costs one millisecond without the step and three more with it whatever its
# rows, and larger columns leave the cache. Nanoseconds a row of neighbours in the space of tests/benchmarks, a dense
# model on busy cores, memory alone and with the step: 16,384 rows: 530 and 890; 32,768: 530 and 745; 65,536: 590 and
# 780; memory of layouts with experts from all over the space: 1,100, and 2,300 at 32,768, with more kinds of stages.
CHUNK_ROWS = 16384
TIMED_ROWS = 2 * CHUNK_ROWS  # with the step, of neighbours

# The C library hands freed memory back to the system until it has freed something as large before: endless page faults.
np.empty((1 << 22) - 4096)  # just under 32 MiB, the largest size it learns from


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
    """What is known of each layout; ``step`` is None where nothing says how fast the hardware is."""

    memory: Memory
    step: Step | None
    reasons: Reasons
    feasible: Mask


def evaluate(
    model: ModelShape,
    layouts: Layouts,
    hardware: Hardware,
    adapters: Adapters | None = None,
    keep_terms: bool = True,
    timing: Timing | None = None,
) -> Evaluation:
    """Evaluate layouts of a model on hardware.

    Args:
        model [elements, (1,)]: the model's shape.
        layouts [degrees, (n,)]: the layout columns.
        hardware [bytes, (n,)]: the hardware columns.
        adapters [rank, (1,)]: low-rank adapters on a frozen base, or None.
        keep_terms [flag, (1,)]: keep the leaves of every total.
        timing [s, (n,)]: how fast GPU, stack and network are; None leaves the step out.

    Returns:
        Memory, step, reasons and feasibility, each (n,).

    Raises:
        nothing: rejection is a mask with a reason.

    References:
        [Rajbhandari2020], [Korthikanti2022], [Shoeybi2019].
    """
    narrow = narrowed(layouts, rows(layouts, hardware))
    derived = groups(narrow)
    result = memory(model, narrow, hardware, adapters, keep_terms)
    masks = [rule.illegal(narrow, derived, model) for rule in rules()]
    masks.append(result.total_bytes > result.usable_bytes)  # False where the usable memory is unknown
    timed = None
    if timing is not None:
        from dscalc.cost.step import step  # a question of memory starts without it

        timed = step(model, narrow, timing, adapters, keep_terms)
    shape = result.total_bytes.shape
    found = np.broadcast_to(first_of(masks), shape)
    return Evaluation(
        memory=result,
        step=timed,
        reasons=Reasons(
            names=(*(rule.name for rule in rules()), MEMORY_REASON),
            messages=(*(rule.message for rule in rules()), "does not fit in the memory of the GPU"),
            masks=tuple(mask if mask.shape == shape else np.broadcast_to(mask, shape) for mask in masks),
            first=np.where(found < len(masks), found.astype(np.intp), -1),
        ),
        feasible=found == len(masks),
    )
