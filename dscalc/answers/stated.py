"""A stated number of parameters beside sizes given one by one: a shape that has both, or a refusal."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import lcm
from typing import Any

from dscalc.cost.inventory import parameter_counts
from dscalc.errors import InputError
from dscalc.records import ModelShape
from dscalc.specs.assumed import HEAD_DIM, WIDTHS, Overridden, apply_overrides, from_params, vocabulary
from dscalc.specs.shape import MAX_LAYERS, MAX_WIDTH

TOLERANCE = 0.1  # how far the count of the sizes may lie from the stated one
NARROW = sum(width < HEAD_DIM for width in WIDTHS)
LAYER_MULTIPLES = (8, 4, 2, 1)  # the most even number of layers that is near enough


def stated_model(params: int, changes: Mapping[str, Any]) -> tuple[ModelShape, Mapping[str, str]]:
    """The shape of a stated number of parameters with some sizes given; the count stands exactly as stated.

    The assumed shape of that many parameters takes the sizes given. Where that makes a model of another size, the sizes
    not given (layers, width, heads) are chosen anew.

    Args:
        params: the stated count [parameters].
        changes: sizes by option name.

    Returns:
        The shape, and where each size comes from.

    Raises:
        InputError: the sizes given count something else.
    """
    first: InputError | None = None
    made: Overridden | None = None
    try:
        made = apply_overrides(from_params(params), **changes)
        if not changes or _near(params, _listed(made)):
            return replace(made.spec.lower(), stated_params=params), made.origin
    except InputError as error:
        if not changes:
            raise
        first = error
    fitted = _fitted(params, changes)
    if fitted is not None and _near(params, _listed(fitted)):
        origin = {name: mark for name, mark in fitted.origin.items() if name in changes or mark == "derived"}
        shape = fitted.spec.lower()
        name = f"assumed shape: {shape.layers} layers x {shape.hidden}"
        return replace(shape, name=name, stated_params=params), origin
    if fitted is None and first is not None:
        raise first
    nearest = fitted or made
    listed = _listed(nearest) if nearest else 0
    sizes = ", ".join(f"--{name.replace('_', '-')} {value}" for name, value in changes.items())
    leave = ", or leave --params out" if {"layers", "hidden", "heads"} <= set(changes) else ""
    raise InputError(
        f"{params:,} parameters contradict {sizes}, which make a model of {listed:,}; write --params {listed}{leave}",
        where="--params",
    )


def _near(params: int, listed: int) -> bool:
    return abs(listed - params) <= TOLERANCE * params


def _listed(made: Overridden) -> int:
    return parameter_counts(made.spec.lower()).listed


def _fitted(params: int, changes: Mapping[str, Any]) -> Overridden | None:
    """Sizes given, and a width and a depth for the rest that come near; None where no legal ones exist."""

    def at(width: int, layers: int) -> Overridden:
        heads = next((width // d for d in (HEAD_DIM, HEAD_DIM // 2) if width % d == 0), 1)
        return apply_overrides(
            None, **{"layers": layers, "hidden": width, "heads": heads, "vocab": vocabulary(width), **changes}
        )

    def depth(width: int) -> int:
        return changes.get("layers") or min(MAX_LAYERS, max(1, width // HEAD_DIM))

    try:
        widths = _widths(changes)
        above = bisect_right(widths, params, key=lambda w: _listed(at(w, depth(w))))
        width = widths[max(0, above - 1)]
        if "layers" in changes:
            around = [at(w, depth(w)) for w in widths[max(0, above - 1) : above + 1]]
            return min(around, key=lambda made: abs(_listed(made) - params))
        one, two = _listed(at(width, 1)), _listed(at(width, 2))
        best = min(MAX_LAYERS, max(1, 1 + round((params - one) / (two - one))))
        for multiple in LAYER_MULTIPLES:
            made = at(width, max(1, round(best / multiple) * multiple))
            if _near(params, _listed(made)):
                break
        return made
    except InputError:
        return None


def _widths(changes: Mapping[str, Any]) -> Sequence[int]:
    """Widths to choose from; heads divide them."""
    if "hidden" in changes:
        return (changes["hidden"],)
    if "heads" in changes:
        unit = changes["heads"] if "head_dim" in changes else lcm(changes["heads"], 8)
    elif "kv_heads" in changes:
        unit = changes["kv_heads"] * HEAD_DIM
    else:
        return (*WIDTHS[:NARROW], *range(HEAD_DIM, WIDTHS[-1], HEAD_DIM)) if "layers" in changes else WIDTHS
    return range(unit, max(unit, MAX_WIDTH // 64) + 1, unit)
