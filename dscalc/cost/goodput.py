"""What failures cost: the best time between checkpoints, and the share of the time that is training kept."""

from __future__ import annotations

import numpy as np

from dscalc.records import Array


def young_interval_s(checkpoint_s: Array, job_mttf_s: Array) -> Array:
    """Time between checkpoints that loses least, to first order: sqrt(2 delta M).

    Args:
        checkpoint_s [s, (...)]: time delta that a checkpoint stops training.
        job_mttf_s [s, (...)]: mean time M between failures of the job.

    Returns:
        Time of training between two checkpoints [s, (...)].

    Raises:
        nothing.

    References:
        [Young1974].
    """
    return np.asarray(np.sqrt(2.0 * checkpoint_s * job_mttf_s))


def daly_interval_s(checkpoint_s: Array, job_mttf_s: Array) -> Array:
    """The same to higher order: sqrt(2 delta M) (1 + sqrt(delta/2M)/3 + (delta/2M)/9) - delta, M where delta is 2M.

    Args:
        checkpoint_s [s, (...)]: time delta that a checkpoint stops training.
        job_mttf_s [s, (...)]: mean time M between failures of the job.

    Returns:
        Time of training between two checkpoints [s, (...)].

    Raises:
        nothing.

    References:
        [Daly2006] equation 37.
    """
    share = np.asarray(checkpoint_s / (2.0 * job_mttf_s))
    series = young_interval_s(checkpoint_s, job_mttf_s) * (1.0 + np.sqrt(share) / 3.0 + share / 9.0) - checkpoint_s
    return np.where(share < 1.0, series, job_mttf_s)


def goodput_fraction(interval_s: Array, checkpoint_s: Array, restart_s: Array, job_mttf_s: Array) -> Array:
    """Share of the time that is training kept: tau / (M e^(R/M) (e^((tau + delta)/M) - 1)).

    Failures come at random with a constant rate, during checkpoints and restarts too.

    Args:
        interval_s [s, (...)]: time tau of training between two checkpoints.
        checkpoint_s [s, (...)]: time delta that a checkpoint stops training.
        restart_s [s, (...)]: time R from a failure until training goes on from the last checkpoint.
        job_mttf_s [s, (...)]: mean time M between failures of the job; infinity: it never fails.

    Returns:
        Kept training over all time [fraction, (...)].

    Raises:
        nothing.

    References:
        [Daly2006] equation 20.
    """
    cycle = np.asarray((interval_s + checkpoint_s) / job_mttf_s)
    with np.errstate(invalid="ignore", over="ignore"):  # more failures than training: nothing is kept
        lost = np.exp(restart_s / job_mttf_s) * np.expm1(cycle) * job_mttf_s
        return np.where(np.isinf(job_mttf_s), interval_s / (interval_s + checkpoint_s), interval_s / lost)
