"""The few factors of a stack that a user's own steps identify: what they do not tell of stays as it ships."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from dscalc.calibrate.fit_line import Value
from dscalc.calibrate.soft_fit import soft_step
from dscalc.frozen import dataclass
from dscalc.records import Array

NUDGE = 0.02  # of a logarithm, for derivatives
FARTHEST = 0.5  # a round moves no logarithm by more
ROUNDS = 6
SCALE = 0.03  # relative error of one step that a model with the right factors predicts
CORNER = 0.06
TELLS = 0.6  # of a prior's width: a factor known no better than that is not identified
SETTLED = 1e-4


class Factor(NamedTuple):
    """One factor and how far it may be off from 1, as a standard deviation of its logarithm."""

    name: str
    words: str
    width: float


FACTORS = (
    Factor("compute_factor", "all that the GPU computes", 0.15),
    Factor("host_factor", "the host's launches", 0.5),
    Factor("communication_factor", "communication that is not hidden", 0.5),
    Factor("attention_factor", "attention, on top of that", 0.3),
)
Predict = Callable[[dict[str, float]], Array]


@dataclass(frozen=True, slots=True, eq=False)
class Factors:
    """What steps say.

    Attributes:
        values: factors that are identified, with standard errors.
        unknown: names of those that are not.
        before_s, after_s: predictions without and with them [s, (n,)].
        left_out_s: each step predicted by factors that the others say [s, (n,)].
    """

    values: dict[str, Value]
    unknown: tuple[str, ...]
    before_s: Array
    after_s: Array
    left_out_s: Array


def fit_factors(predict: Predict, measured_s: Array) -> Factors:
    """Fit the factors that measured steps identify.

    Args:
        predict: seconds of every step under some factors, 1 where none is named.
        measured_s: measured steps [s, (n,)].

    Returns:
        The factors.
    """
    before = predict({})
    count = len(measured_s)
    free = list(FACTORS)
    log_values: Array = np.zeros(len(free))
    stderr: Array = np.zeros(len(free))
    slope: Array = np.zeros((count, len(free)))
    while free:
        log_values, stderr, slope = _fit(predict, measured_s, free)
        tells = [s <= TELLS * f.width for s, f in zip(stderr, free, strict=True)]
        if all(tells) and len(free) <= count:
            break
        # the one that says least goes first; the others may then say more
        free.pop(int(np.argmax(stderr / np.array([f.width for f in free]))))
        log_values, stderr = np.zeros(len(free)), np.zeros(len(free))
    values = _named(free, log_values)
    after = predict(values) if free else before
    off = np.log(after / measured_s)
    spread = float(np.sqrt(np.sum(off**2) / max(count - len(free), 1))) / SCALE
    stretch = max(1.0, spread)
    known = {
        f.name: Value(float(np.exp(v)), float(np.exp(v) * s * stretch), count)
        for f, v, s in zip(free, log_values, stderr, strict=True)
    }
    unknown = tuple(f.name for f in FACTORS if f.name not in known)
    return Factors(known, unknown, before, after, _left_out(before, after, measured_s, free, log_values, slope))


def _named(free: Sequence[Factor], log_values: Array) -> dict[str, float]:
    return {f.name: float(np.exp(v)) for f, v in zip(free, log_values, strict=True)}


def _fit(predict: Predict, measured_s: Array, free: Sequence[Factor]) -> tuple[Array, Array, Array]:
    """Logarithms, their standard errors, and the last derivatives."""
    prior, width = np.zeros(len(free)), np.array([f.width for f in free])
    values = prior.copy()
    weight = np.ones(len(measured_s))
    slope: Array = np.zeros((len(measured_s), len(free)))
    information: Array = np.eye(len(free))
    for _ in range(ROUNDS):
        here = predict(_named(free, values))
        nudged = [predict(_named(free, values + NUDGE * np.eye(len(free))[k])) for k in range(len(free))]
        slope = np.stack([np.log(trial / here) / NUDGE for trial in nudged], axis=1)
        error = np.log(here / measured_s)
        change, information = soft_step(values, prior, width, error, slope, weight, scale=SCALE, corner=CORNER)
        change = np.clip(change, -FARTHEST, FARTHEST)
        values = values + change
        if np.abs(change).max() < SETTLED:
            break
    return values, np.sqrt(np.diag(np.linalg.inv(information))), slope


def _left_out(
    before: Array, after: Array, measured_s: Array, free: Sequence[Factor], log_values: Array, slope: Array
) -> Array:
    """Each step by the factors of the others, to first order."""
    if not free or len(measured_s) < 2:
        return before
    prior, width = np.zeros(len(free)), np.array([f.width for f in free])
    error = np.log(after / measured_s)
    found = np.empty(len(measured_s))
    for i in range(len(measured_s)):
        others = np.arange(len(measured_s)) != i
        weight = np.ones(int(others.sum()))
        change, _ = soft_step(
            log_values, prior, width, error[others], slope[others], weight, scale=SCALE, corner=CORNER
        )
        found[i] = after[i] * float(np.exp(slope[i] @ change))
    return found
