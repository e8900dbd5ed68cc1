"""Half-width of the error bar of a step: what each sort of term is known to, in proportion to its share of the step."""

from __future__ import annotations

import numpy as np

from dscalc.cost.step import Step
from dscalc.frozen import dataclass
from dscalc.records import Array, ErrorBars, Layouts

# sorts of terms that are known about equally well, in the order of ``records.ErrorBars``
SORTS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("linear", ("compute/linear_layers",)),
    ("recompute", ("compute/recompute",)),
    ("attention", ("compute/attention",)),
    ("experts", ("compute/experts", "communication/ep")),
    ("elementwise", ("compute/elementwise", "compute/embedding")),
    ("head", ("compute/head", "compute/loss")),
    ("host", ("overhead/host",)),
    ("tensor", ("communication/tp",)),
    ("context", ("communication/cp",)),
    ("gather", ("communication/fsdp",)),
    ("pipeline", ("pipeline/bubble", "communication/pp")),
    ("data", ("communication/dp",)),
    ("once", ("optimizer/update", "overhead/step")),
)
NAMES = tuple(name for name, _ in SORTS)
ALWAYS = "always"  # what no term explains: software and clocks of the day


@dataclass(frozen=True, slots=True, eq=False)
class Bar:
    """Error bar of the logarithm of time of each layout; arrays (n,).

    ``widths`` add up in squares to ``half_width_fraction``.
    """

    half_width_fraction: Array
    names: tuple[str, ...]
    widths: Array  # (parts, n)


def bar(step: Step, layouts: Layouts, low_precision: Array, bars: ErrorBars) -> Bar:
    """How far a measured step may lie from the predicted one, four times in five.

    A part's width is its share of the step times how well its sort is known: on stacks that were measured, more on a
    stack or a GPU that was not, and more where a profile states standard errors. Parts add in squares.

    Args:
        step [s, (n,)]: the prediction.
        layouts [codes, (n,)]: its layout columns.
        low_precision [flags, (n,)]: 1 where linear layers run in 8 bits or fewer.
        bars [fraction, (sorts,)]: how well each sort is known.

    Returns:
        Half-widths of the logarithm of time [fraction, (n,)].

    Raises:
        nothing.

    References:
        [Definition]; fitted on left-out sources, see docs/explanation/step-time.md.
    """
    seconds = {leaf.spec.path: leaf.exposed_s for leaf in step.terms}
    unknown = bars.unmeasured.take(layouts.stack)
    has_experts = seconds["compute/experts"] > 0.0
    always = bars.always**2 + has_experts * bars.always_experts**2
    parts = [np.sqrt(always + bars.unmeasured_gpu * bars.always_new_gpu**2)]
    for number, (name, paths) in enumerate(SORTS):
        share = seconds[paths[0]]
        for path in paths[1:]:
            share = share + seconds[path]
        share = share / step.step_time_s
        known = bars.known[number] ** 2 + unknown * bars.unknown[number] ** 2 + bars.profile[number] ** 2
        if name == "linear":
            known = known + low_precision * bars.low**2
        parts.append(share * np.sqrt(known))
    widths = np.stack(parts)
    total = widths[0] ** 2
    for part in widths[1:]:
        total = total + part**2
    half = np.sqrt(total)
    return Bar(half, (ALWAYS, *NAMES), widths)
