"""What every answer shares: version, assumptions, warnings and the outer JSON object."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from dscalc.frozen import dataclass

SCHEMA = "dscalc/1"
VERSION = "0.1.0"


@dataclass(frozen=True, slots=True)
class Assumption:
    """A value nobody typed. ``kind``: default, assumed, datasheet, measured or fitted; ``why`` may be empty."""

    name: str
    value: Any
    unit: str
    kind: str
    source: str


@dataclass(frozen=True, slots=True)
class Warning:  # the field's word; the builtin is not used here
    """Something the reader should know, with what to do next."""

    code: str
    message: str
    next_step: str


def envelope(
    command: str,
    inputs: dict[str, Any],
    assumptions: Iterable[Assumption],
    warnings: Iterable[Warning],
    result: dict[str, Any],
) -> dict[str, Any]:
    """The outer object of an answer, free of NaN and infinities."""
    whole: dict[str, Any] = plain(
        {
            "schema": SCHEMA,
            "command": command,
            "version": VERSION,
            "inputs": inputs,
            "assumptions": [
                {"name": a.name, "value": a.value, "unit": a.unit, "kind": a.kind, "source": a.source}
                for a in assumptions
            ],
            "warnings": [{"code": w.code, "message": w.message, "next_step": w.next_step} for w in warnings],
            "result": result,
        }
    )
    return whole


def plain(value: Any) -> Any:
    """JSON types only; numbers that do not exist become null, whole floats stay floats."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(inner) for inner in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if hasattr(value, "item"):  # a numpy scalar
        return plain(value.item())
    return str(value)
