"""Waiting for the slowest: expected maxima over ranks, slow nodes, and what leaving the slowest out saves."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import erfc, sqrt

import numpy as np

from dscalc.cost.step import Step
from dscalc.cost.step_terms import TimeLeaf
from dscalc.records import Array
from dscalc.terms import LeafSpec

REACH, NODES = 10.0, 401  # standard deviations and points of the quadrature
EULER = 0.5772156649015329  # Euler's constant
SHIFT = 8  # terms of a harmonic number taken one by one
STRAGGLER = LeafSpec(
    "overhead/straggler",
    "s",
    "jitter c(K) step: everyone waits for the slowest of K GPUs; jitter is the sigma of a GPU's whole step",
    "[David2003] chapter 3",
)


@lru_cache(maxsize=1)
def _points() -> tuple[Array, Array, Array]:
    """Quadrature points, the logarithm of the normal distribution there, and the tail beyond each."""
    x = np.linspace(-REACH, REACH, NODES)
    below = np.array([0.5 * erfc(-value / sqrt(2.0)) for value in x])
    above = np.array([0.5 * erfc(value / sqrt(2.0)) for value in x])
    return x, np.where(x > 0.0, np.log1p(-np.minimum(above, 0.5)), np.log(below)), above


def _integral(values: Array) -> Array:
    """Trapezium rule over the last axis: exact to rounding for functions that are flat at both ends."""
    step = 2.0 * REACH / (NODES - 1)
    return np.asarray(step * (np.sum(values, axis=-1) - 0.5 * (values[..., 0] + values[..., -1])))


def _by_count(ranks: Array, second: bool) -> Array:
    """Mean of the largest, or second largest, of so many standard normals; evaluated once for each count."""
    x, log_below, above = _points()
    counts, where = np.unique(np.asarray(ranks, dtype=np.float64), return_inverse=True)
    rest = np.maximum(counts - 1.0, 0.0)[:, None]
    share = np.exp(rest * log_below) * (1.0 + rest * above) if second else np.exp(counts[:, None] * log_below)
    found = x[-1] - _integral(share)
    return np.asarray(found[where].reshape(np.shape(ranks)))


def normal_maximum_factor(ranks: Array) -> Array:
    """Expected maximum of K independent normal deviates, in standard deviations above their mean.

    Args:
        ranks [ranks, (n,)]: K, 1 to 1e12.

    Returns:
        c(K), the integral of x over the distribution Phi(x)^K [-, (n,)].

    Raises:
        nothing.

    References:
        [David2003] chapter 3.
    """
    return _by_count(ranks, second=False)


def second_maximum_factor(ranks: Array) -> Array:
    """Expected second largest of K independent normal deviates: what is waited for once the slowest is left out.

    Args:
        ranks [ranks, (n,)]: K, 2 or more.

    Returns:
        The mean of the distribution Phi^(K-1) (1 + (K - 1)(1 - Phi)), in standard deviations above the mean [-, (n,)].

    Raises:
        nothing.

    References:
        [David2003] chapter 3.
    """
    return _by_count(ranks, second=True)


def exponential_maximum_factor(ranks: Array) -> Array:
    """Expected maximum of K independent exponential delays, in means of one of them.

    Args:
        ranks [ranks, (n,)]: K.

    Returns:
        The harmonic number H_K [-, (n,)].

    Raises:
        nothing.

    References:
        [David2003] chapter 3.
    """
    far = np.asarray(ranks, dtype=np.float64) + SHIFT
    grown = np.log(far) + EULER + 0.5 / far
    grown = grown - 1.0 / (12.0 * far**2) + 1.0 / (120.0 * far**4) - 1.0 / (252.0 * far**6)
    for less in range(SHIFT):
        grown = grown - 1.0 / (far - less)
    return np.asarray(grown)


def straggler_s(step_time_s: Array, jitter_fraction: Array, gpus: Array) -> Array:
    """Time in which everyone waits for the slowest GPU.

    Args:
        step_time_s [s, (n,)]: a step of an average GPU.
        jitter_fraction [-, (n,)]: standard deviation between GPUs of the time of a step, as a share of it. The sigma of
            a step: a GPU that is slow stays slow in all of its layers, so that tensor and context groups, which meet in
            every layer, and data-parallel ranks, which meet once a step, wait for the same slowest one.
        gpus [GPUs, (n,)]: K, all of the job.

    Returns:
        jitter c(K) step [s, (n,)].

    Raises:
        nothing.

    References:
        [David2003] chapter 3, [Jiang2024] section 6.
    """
    return np.asarray(jitter_fraction * normal_maximum_factor(gpus) * step_time_s)


def fresh_wait_fraction(jitter_fraction: Array, group: Array, meetings: Array) -> Array:
    """Waiting of a group that meets many times in a step, where the spread comes anew between meetings.

    Args:
        jitter_fraction [-, (n,)]: standard deviation of a rank's whole step, as a share of it.
        group [ranks, (n,)]: k, ranks that meet.
        meetings [calls, (n,)]: n, equal pieces of a step between which they meet.

    Returns:
        sqrt(n) c(k) jitter: each piece has sigma/sqrt(n), and n maxima add up [-, (n,)].

    Raises:
        nothing.

    References:
        [David2003] chapter 3; [Definition] variances of independent pieces add.
    """
    return np.asarray(np.sqrt(meetings) * normal_maximum_factor(group) * jitter_fraction)


def with_straggler(step: Step, jitter_fraction: Array, gpus: Array) -> Step:
    """A step in which everyone waits for the slowest GPU, as one more term.

    Args:
        step [s, (n,)]: without it.
        jitter_fraction [-, (n,)]: standard deviation between GPUs of the time of a step, as a share of it.
        gpus [GPUs, (n,)]: all of the job.

    Returns:
        The step, its brackets and its terms [s, (n,)].

    Raises:
        nothing.

    References:
        [David2003] chapter 3.
    """
    waits = straggler_s(step.step_time_s, jitter_fraction, gpus) + 0.0 * step.step_time_s
    return replace(
        step,
        step_time_s=step.step_time_s + waits,
        lower_s=step.lower_s + waits,
        upper_s=step.upper_s + waits,
        terms=(*step.terms, TimeLeaf(STRAGGLER, waits, waits)),
    )


def slow_node_probability(slow_fraction: Array, nodes: Array) -> Array:
    """Probability that at least one node of a job is a slow one.

    Args:
        slow_fraction [-, (n,)]: q, share of slow nodes in the fleet.
        nodes [nodes, (n,)]: of the job, drawn at random.

    Returns:
        1 - (1 - q)^nodes [-, (n,)].

    Raises:
        nothing.

    References:
        [Definition] none of independent draws is slow with probability (1 - q)^nodes.
    """
    with np.errstate(divide="ignore"):  # every node slow: log 0
        return np.asarray(-np.expm1(nodes * np.log1p(-slow_fraction)))
