"""Words that the command line shows before anything heavy is loaded."""

from __future__ import annotations

from dscalc.cost.axes import AXES


def axis_help(name: str) -> str:
    """What a degree means, from the axis table; empty for other names."""
    return next((axis.help for axis in AXES if axis.name == name), "")
