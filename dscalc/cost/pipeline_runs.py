"""Stages of a pipeline as runs of equal neighbours, and the places of a run that closed forms look at."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from dscalc.frozen import dataclass
from dscalc.records import Array


def stage_sum(runs: Array) -> Array:
    """Sum over runs, first to last: the order of a library's sum depends on how many columns there are.

    Args:
        runs [any, (runs, n)]: what is added up.

    Returns:
        The sum [any, (n,)].

    Raises:
        nothing.

    References:
        [Definition] of a sum.
    """
    total: Array = runs[0]
    for row in runs[1:]:
        total = total + row
    return total


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """Stages of a pipeline in order, equal neighbours together.

    Attributes:
        forward, backward: seconds of one micro-batch on one stage, all its chunks [s, (runs, n)].
        count: stages of the run, 0 where there are none [stages, (runs, n)].
        micro: micro-batches [micro-batches, (n,)].
        chunks: virtual stages of a stage [chunks, (n,)].
        weight_share: part of the backward that makes weight gradients [fraction, (n,)].
        ends_forward, ends_backward: what of the first and of the last stage only its outermost chunk does, embedding
            and head [s, (2, n)]. Where that is not nothing, the first and the last run are one stage each.
    """

    forward: Array
    backward: Array
    count: Array
    micro: Array
    chunks: Array
    weight_share: Array
    ends_forward: Array
    ends_backward: Array

    @property
    def both(self) -> Array:
        """Forward and backward [s, (runs, n)]."""
        return self.forward + self.backward

    @property
    def stages(self) -> Array:
        """Stages in all [stages, (n,)]."""
        return stage_sum(self.count)

    @property
    def slowest(self) -> Array:
        """Time of the slowest stage [s, (n,)]."""
        return np.asarray(np.max(np.where(self.count > 0.0, self.both, 0.0), axis=0))


@dataclass(frozen=True, slots=True, eq=False)
class Place:
    """The first or the last stage of a run.

    Attributes:
        own, before: forward and backward of a micro-batch there, and of all stages before it [s, (n,)].
        passed: stages before it [stages, (n,)].
        there: whether the layout has it [flag, (n,)].
    """

    own: tuple[Array, Array]
    before: tuple[Array, Array]
    passed: Array
    there: NDArray[np.bool_]


def places(forward: Array, backward: Array, count: Array) -> Iterator[Place]:
    """First and last stage of each run, in order; nothing of a run that nobody has.

    Args:
        forward, backward [s, (runs, n)]: of one micro-batch on a stage.
        count [stages, (runs, n)]: stages of a run.

    Yields:
        The places.

    Raises:
        nothing.

    References:
        [Definition] of a run.
    """
    before_f, before_b, passed = (np.zeros_like(count[0]) for _ in range(3))
    for f, b, stages in zip(forward, backward, count, strict=True):
        there, most = stages > 0.0, stages.max(initial=0.0)
        if most > 0.0:
            yield Place((f, b), (before_f, before_b), passed, there)
        if most > 1.0:
            ahead = np.maximum(stages - 1.0, 0.0)
            yield Place((f, b), (before_f + ahead * f, before_b + ahead * b), passed + ahead, there)
        before_f, before_b, passed = before_f + stages * f, before_b + stages * b, passed + stages
