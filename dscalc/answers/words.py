"""Words that the command line shows before anything heavy is loaded."""

from __future__ import annotations

from dscalc.cost.axes import AXES


def axis_help(name: str) -> str:
    """What a degree means, from the axis table; empty for other names."""
    return next((axis.help for axis in AXES if axis.name == name), "")


def count_noun(count: float, noun: str) -> str:
    """A count with its noun: 1 layer, 2 layers."""
    return f"{count:g} {noun}" if count == 1 else f"{int(count)} {noun}s"
