"""What was published about synchronous SGD at scale: rules with their range, measured points, slow machines, notes."""

from __future__ import annotations

import tomllib
from functools import lru_cache
from math import inf
from typing import NamedTuple

from dscalc.frozen import dataclass
from dscalc.specs.options import Span, read_span
from dscalc.specs.shipped import shipped_text


@dataclass(frozen=True, slots=True)
class Rule:
    """A learning-rate rule: batches between which a source saw it hold [sequences], and the warmup it came with."""

    name: str
    formula: str
    optimizers: str
    low: float
    high: float
    warmup: Span
    held: str
    source: str


class Point(NamedTuple):
    """A published training of ResNet-50 on ImageNet: top-1 validation error and its standard deviation [%]."""

    batch: int
    lr: float
    rule: str
    warmup: str
    error: float
    spread: float
    source: str


class Said(NamedTuple):
    """A sentence with its source."""

    words: str
    source: str


@dataclass(frozen=True, slots=True)
class SgdFacts:
    """The whole file. ``slow_fraction`` of nodes are ``slow_by`` slower where nobody says otherwise."""

    rules: dict[str, Rule]
    warmup_sources: dict[str, str]
    points: tuple[Point, ...]
    fleet: tuple[Said, ...]
    slow_fraction: float
    slow_by: float
    slow_source: str
    notes: tuple[Said, ...]


@lru_cache(maxsize=1)
def sgd_facts() -> SgdFacts:
    """The shipped facts.

    Returns:
        Rules, points, fleet figures and notes.
    """
    data = tomllib.loads(shipped_text("sgd.toml"))
    return SgdFacts(
        rules={
            name: Rule(
                name,
                row["formula"],
                row["optimizers"],
                float(row.get("low", 0.0)),
                float(row.get("high", inf)),
                read_span(row["warmup"]),
                row["held"],
                row["source"],
            )
            for name, row in data["rule"].items()
        },
        warmup_sources={unit: row["source"] for unit, row in data["warmup"].items()},
        points=tuple(Point(**row) for row in data["point"]),
        fleet=tuple(Said(**row) for row in data["fleet"]),
        slow_fraction=float(data["slow"]["fraction"]),
        slow_by=float(data["slow"]["by"]),
        slow_source=data["slow"]["source"],
        notes=tuple(Said(**row) for row in data["note"]),
    )
