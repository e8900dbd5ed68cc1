"""Ceilings of the machines of a sweep, and the closed forms beside them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import numpy as np

from dscalc.answers.batch_limits import law_params
from dscalc.answers.batch_limits import limits as batch_limits
from dscalc.answers.sweep_closed import ClosedForm, closed_form
from dscalc.answers.sweep_setup import Setup
from dscalc.cost.batch_laws import OPTIMAL
from dscalc.specs.sweep_options import OF_BATCH
from dscalc.sweep.ceiling import Ceiling, ceiling
from dscalc.sweep.curve import stocks
from dscalc.sweep.prune import Found, Problem
from dscalc.sweep.space import Ids

if TYPE_CHECKING:
    from dscalc.answers.sweep import CurvePoint
    from dscalc.answers.sweep_notes import Places

DEFAULT_MARGINAL = 0.5  # of its ideal that one more GPU must give


def ceilings(
    given: Mapping[str, Any],
    places: Places,
    results: Sequence[Found],
    twice: Sequence[tuple[Problem, Found]],
    curve: Sequence[CurvePoint],
) -> dict[str, Ceiling]:
    """The ceiling of each machine, by its name; the widest error bar of its curve says how far it may lie."""
    weak = given.get("scaling") == "weak"
    ceilings = {}
    for setup in dict.fromkeys(setup for setup, _ in places):
        mine = [(space, found) for (other, space), found in zip(places, results, strict=True) if other is setup]
        more = [(problem.space, found) for problem, found in twice if problem.machine is setup.machine]
        held, doubled = (
            stocks([space for space, _ in part], [_kept(found) for _, found in part], setup.machine, weak)
            for part in (mine, more)
        )
        ceilings[setup.name] = ceiling(
            mine[0][0],
            held,
            doubled,
            setup.machine,
            error=max(
                (r.high_s / r.step_time_s - 1.0 for p in curve if p.setup == setup.name and (r := p.row)), default=0.0
            ),
            share=given.get("marginal", DEFAULT_MARGINAL),
            weak=weak,
            critical=_critical(setup, given),
        )
    return ceilings


def _kept(found: Found) -> Ids:
    """All layouts that a search kept."""
    return np.unique(np.concatenate([kept.ids for kept in (found.top, found.front, *found.moved)]))


def _critical(setup: Setup, given: Mapping[str, Any]) -> tuple[float, str] | None:
    """The smallest critical batch that a law can tell from what was given, in tokens, and what it is called.

    Laws of the optimal batch tell no critical one.
    """
    if not any(name in given for name in OF_BATCH):
        return None
    step_tokens = float(setup.batches[0] * setup.spec.seq_len)
    laws = batch_limits(given, step_tokens, step_tokens, "tokens", law_params(setup.case.counts), [], [])
    known = [(law.critical_batch, law.law) for law in laws if law.critical_batch is not None and law.kind != OPTIMAL]
    least, law = min(known, default=(None, ""))
    return None if least is None else (least, "--noise-scale" if law == "given" else f"law {law}")


def closed_forms(
    setups: Sequence[Setup], curve: Sequence[CurvePoint], given: Mapping[str, Any]
) -> dict[str, ClosedForm]:
    """D* and K* of the best layout of the largest job of each machine."""
    found = {}
    for setup in setups:
        row = next((p.row for p in reversed(curve) if p.setup == setup.name and p.row is not None), None)
        closed = closed_form(setup, row, given) if row is not None else None
        if closed is not None:
            found[setup.name] = closed
    return found


def ceiling_json(found: Ceiling) -> dict[str, Any]:
    """A ceiling as the JSON object that the documentation freezes."""
    return {
        "binding_limit": found.binding_limit,
        "gpus": found.gpus,
        "low_gpus": found.low_gpus,
        "high_gpus": found.high_gpus,
        "beyond": found.beyond,
        "limits": {
            name: {"gpus": limit.gpus, "low_gpus": limit.low_gpus, "high_gpus": limit.high_gpus, "reason": limit.reason}
            for name, limit in found.limits.items()
        },
        "elasticities": dict(found.elasticities),
        "points": [
            {field.name: getattr(point, field.name) for field in fields(point)} | {"tokens_per_s": point.tokens_per_s}
            for point in found.points
        ],
    }
