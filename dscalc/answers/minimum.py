"""The smallest number of GPUs that holds a layout, for each ZeRO stage and GPU, through the same evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

from dscalc.cost.evaluate import evaluate
from dscalc.frozen import dataclass
from dscalc.records import Adapters, Array, Hardware, Layouts, Mask, ModelShape
from dscalc.specs.layout_spec import LayoutSpec
from dscalc.units import format_bytes

DOUBLINGS = 20  # data-parallel ranks are tried up to 2**20 groups
_POINTS = 16  # sub-intervals of one refinement


@dataclass(frozen=True, slots=True)
class MinimumGpus:
    """Smallest count for one GPU and ZeRO stage; None where no count suffices."""

    gpu: str
    usable_bytes: float
    zero_stage: int
    gpus: int | None
    reason: str


def minimum_gpus(
    shape: ModelShape,
    layouts: Layouts,
    spec: LayoutSpec,
    gpus: Sequence[tuple[str, float, float]],
    adapters: Adapters | None,
    stages: Sequence[int] = (0, 1, 2, 3),
) -> list[MinimumGpus]:
    """Smallest GPU count per GPU kind and ZeRO stage, other degrees and the micro-batch unchanged.

    Memory falls with the data-parallel degree, so the first power of two that fits brackets the answer, which is then
    narrowed; every count reported has been evaluated, and so has the next smaller one.

    Args:
        shape: the model.
        layouts: the present layout, one row.
        spec: the same layout, for the degrees.
        gpus: id, usable memory [bytes] and GPUs of one node [count] of each kind.
        adapters: low-rank adapters, or None.
        stages: ZeRO stages to try.

    Returns:
        One entry a GPU and stage, in that order.
    """
    grid = spec.ep * spec.etp
    unit = lcm(grid // gcd(grid, spec.tp * spec.cp), spec.dp_replicate)  # data-parallel ranks come in such groups
    cases = [(name, usable, node, stage) for name, usable, node in gpus for stage in stages]
    usable = np.array([case[1] for case in cases])
    node = np.array([case[2] for case in cases])
    zero = np.array([float(case[3]) for case in cases])

    def fits(which: NDArray[np.intp], groups: Array) -> tuple[Mask, Array]:
        """Whether these cases fit at these numbers of groups, and their bytes; all (cases, counts)."""
        n, k = groups.shape
        each = np.repeat(which, k)
        rows = replace(
            layouts, dp=groups.ravel() * unit, dp_replicate=np.full(n * k, float(spec.dp_replicate)), zero=zero[each]
        )
        found = evaluate(
            shape, rows, Hardware(usable[each], node[each], np.full(n * k, np.nan)), adapters, keep_terms=False
        )
        return found.feasible.reshape(n, k), found.memory.total_bytes.reshape(n, k)

    everyone = np.arange(len(cases))
    powers = np.tile(2.0 ** np.arange(DOUBLINGS + 1), (len(cases), 1))
    ok, total = fits(everyone, powers)
    high = np.where(ok.any(axis=1), 2.0 ** ok.argmax(axis=1), np.nan)
    low = np.floor(high / 2)  # does not fit, or no ranks at all
    while (open_ := everyone[high - low > 1]).size:
        span = high[open_, None] - low[open_, None]
        steps = np.ceil(low[open_, None] + span * np.arange(1, _POINTS + 1) / _POINTS)  # the last one is known to fit
        at = fits(open_, steps)[0].argmax(axis=1)
        high[open_] = steps[np.arange(open_.size), at]
        low[open_] = np.where(at > 0, steps[np.arange(open_.size), at - 1], low[open_])
    return [
        _entry(case, high[i], float(total[i].min()), spec.tp * spec.pp * spec.cp * unit) for i, case in enumerate(cases)
    ]


def _entry(case: tuple[str, float, float, int], groups: float, least: float, each: int) -> MinimumGpus:
    name, usable, _, stage = case
    if np.isnan(groups):
        left = {
            0: "nothing is sharded",
            1: "weights, gradients and activations",
            2: "weights and activations",
            3: "activations and gathered weights",
        }
        stays = left[stage] if stage == 0 else f"{left[stage]} stay"
        return MinimumGpus(
            name, usable, stage, None, f"needs at least {format_bytes(least)} of {format_bytes(usable)}: {stays}"
        )
    return MinimumGpus(name, usable, stage, int(groups) * each, "")
