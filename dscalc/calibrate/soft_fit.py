"""One step of a fit of logarithms with priors, in which large errors count linearly."""

from __future__ import annotations

import numpy as np

from dscalc.records import Array

REWEIGHTINGS = 8


def soft_step(
    start: Array, prior: Array, width: Array, error: Array, slope: Array, weight: Array, *, scale: float, corner: float
) -> tuple[Array, Array]:
    """The best change of the logarithms where errors are linear in them, and their information matrix.

    Args:
        start: where the logarithms are [1, (k,)].
        prior: where they were believed to be [1, (k,)].
        width: standard deviations of that belief [1, (k,)].
        error: logarithm of predicted over measured [1, (n,)].
        slope: its derivative by each logarithm [1, (n, k)].
        weight: of each row [1, (n,)].
        scale: relative error of one row.
        corner: beyond it an error counts linearly.

    Returns:
        Change [1, (k,)], and the information matrix at its end [1, (k, k)].
    """
    change: Array = np.zeros(len(start))
    information: Array = np.diag(1.0 / width**2)
    for _ in range(REWEIGHTINGS):
        left = error + slope @ change
        soft = weight / np.sqrt(1.0 + (left / corner) ** 2) / scale**2
        information = (slope.T * soft) @ slope + np.diag(1.0 / width**2)
        change = -np.linalg.solve(information, slope.T @ (soft * error) + (start - prior) / width**2)
    return change, information
