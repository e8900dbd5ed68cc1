"""Rows whose layout breaks a rule of the axis table are left out: nobody ran what they say."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dscalc.cost.axes import groups, rules
from dscalc.records import ModelShape
from dscalc.specs.layout_spec import lower
from dscalc.specs.stack import load_books
from dscalc.validation.rows import Row


def broken_rules(rows: Sequence[Row], spare_blocks: int = 0) -> list[str]:
    """The first rule that each row breaks, in words; nothing where it breaks none.

    Args:
        rows: lowered rows.
        spare_blocks: blocks a pipeline may divide over its stages besides the layers.

    Returns:
        One text a row.
    """
    books = load_books()
    found = [""] * len(rows)
    by_shape: dict[ModelShape, list[int]] = defaultdict(list)
    for number, row in enumerate(rows):
        by_shape[row.shape].append(number)
    for shape, members in by_shape.items():
        layouts = lower([rows[i].layout for i in members], books)
        derived = groups(layouts)
        divided = replace(shape, layers=shape.layers + spare_blocks)
        for rule in rules():
            broken = np.broadcast_to(rule.illegal(layouts, derived, divided), (len(members),))
            for at in np.flatnonzero(broken):
                found[members[at]] = found[members[at]] or _columns(rule.message)
    return found


def _columns(message: str) -> str:
    """A rule's message with columns instead of options."""
    return re.sub(r"--([a-z-]+)", lambda option: option[1].replace("-", "_"), message)
