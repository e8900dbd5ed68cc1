"""The few factors of a stack that a user's own steps identify: what they do not tell of stays as it ships.

All factors are fitted at once, each with a belief of how far it may be off. So the error of one holds what the others
may be, and a single slow step, which any of them would explain, identifies none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from dscalc.calibrate.fit_line import Value, small_sample
from dscalc.calibrate.soft_fit import soft_step
from dscalc.frozen import dataclass
from dscalc.records import Array

NUDGE = 0.02  # of a logarithm, for derivatives
FARTHEST = 0.5  # a round moves no logarithm by more
ROUNDS = 8
SCALE = 0.05  # relative error of one step that a model with the right factors predicts: the median of published sources
BELIEF = 4  # steps that this counts for beside those measured
CORNERS = 2.0  # such errors, beyond which one counts linearly
TELLS = 0.6  # of a belief's width: a factor known no better than that is not identified
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
    count, width = len(measured_s), np.array([f.width for f in FACTORS])
    before = predict({})
    here, values, scale = before, np.zeros(len(FACTORS)), SCALE
    slope: Array = np.zeros((count, len(FACTORS)))
    information: Array = np.diag(1.0 / width**2)
    for _ in range(ROUNDS):
        nudged = [predict(_named(values + NUDGE * nudge)) for nudge in np.eye(len(FACTORS))]
        slope = np.stack([np.log(trial / here) / NUDGE for trial in nudged], axis=1)
        error = np.log(here / measured_s)
        change, information = _step(values, width, error, slope, scale)
        left = error + slope @ change
        scale = float(np.sqrt((BELIEF * SCALE**2 + np.sum(left**2)) / (BELIEF + max(count - len(FACTORS), 0))))
        change = np.clip(change, -FARTHEST, FARTHEST)
        values = values + change
        here = predict(_named(values))
        if np.abs(change).max() < SETTLED:
            break
    stderr = np.sqrt(np.diag(np.linalg.inv(information))) * small_sample(BELIEF + max(count - len(FACTORS), 0), 0)
    known = stderr <= TELLS * width
    found = {
        f.name: Value(float(np.exp(v)), float(np.exp(v) * s), count)
        for f, v, s, told in zip(FACTORS, values, stderr, known, strict=True)
        if told
    }
    if not found:
        return Factors({}, tuple(f.name for f in FACTORS), before, before, before)
    after = predict({name: value.value for name, value in found.items()})
    moved = np.stack(list(_without_each(values, width, np.log(here / measured_s), slope, scale)))
    left_out = after * np.exp(np.sum(slope[:, known] * moved[:, known], axis=1))
    return Factors(found, tuple(f.name for f in FACTORS if f.name not in found), before, after, left_out)


def _named(log_values: Array) -> dict[str, float]:
    return {f.name: float(np.exp(v)) for f, v in zip(FACTORS, log_values, strict=True)}


def _step(values: Array, width: Array, error: Array, slope: Array, scale: float) -> tuple[Array, Array]:
    """The best change of the logarithms, to first order, and their information."""
    weight, corner = np.ones(len(error)), CORNERS * scale
    return soft_step(values, np.zeros(len(values)), width, error, slope, weight, scale=scale, corner=corner)


def _without_each(values: Array, width: Array, error: Array, slope: Array, scale: float) -> Iterator[Array]:
    """How the logarithms change without each of the steps, to first order."""
    for i in range(len(error)):
        others = np.arange(len(error)) != i
        yield _step(values, width, error[others], slope[others], scale)[0]
