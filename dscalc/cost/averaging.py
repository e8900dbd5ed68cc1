"""Two workers, one update: with the mean of their gradients, and with the division forgotten; SGD and Adam."""

from __future__ import annotations

import numpy as np

from dscalc.frozen import dataclass
from dscalc.records import Array


def reduced_gradient(gradients: Array, divide: bool) -> Array:
    """What every worker holds after the all-reduce.

    Args:
        gradients [gradient, (ranks, n)]: one row a worker.
        divide [flag]: divide the sum by the number of workers, as synchronous SGD does; or forget to.

    Returns:
        Mean or sum over workers, added in the order of the ranks [gradient, (n,)].

    Raises:
        nothing.

    References:
        [Goyal2017] sections 2.1 and 2.3: an all-reduce sums, so somebody has to divide.
    """
    total = gradients[0].copy()
    for row in gradients[1:]:
        total = total + row
    return np.asarray(total / gradients.shape[0] if divide else total)


def sgd_update(weights: Array, gradient: Array, lr: float) -> Array:
    """One step of SGD.

    Args:
        weights [weight, (n,)]: before.
        gradient [gradient, (n,)]: reduced over workers.
        lr [1/step]: learning rate.

    Returns:
        weights - lr gradient [weight, (n,)].

    Raises:
        nothing.

    References:
        [Goyal2017] section 2.1.
    """
    return np.asarray(weights - lr * gradient)


@dataclass(frozen=True, slots=True, eq=False)
class Moments:
    """Adam's moments after ``updates`` of them; arrays (n,)."""

    first: Array
    second: Array
    updates: int


def adam_update(
    weights: Array,
    gradient: Array,
    lr: float,
    moments: Moments | None = None,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> tuple[Array, Moments]:
    """One step of Adam.

    Args:
        weights [weight, (n,)]: before.
        gradient [gradient, (n,)]: reduced over workers.
        lr [1/step]: learning rate.
        moments: of the steps before, None at the first.
        betas [-]: decay rates of the moments.
        eps [gradient]: added to the root of the second moment.

    Returns:
        weights - lr m / (sqrt(v) + eps) with bias-corrected moments, and the moments [weight, (n,)].

    Raises:
        nothing.

    References:
        [Kingma2015] algorithm 1: a factor on every gradient cancels between m and sqrt(v), except beside eps.
    """
    before = moments or Moments(0.0 * gradient, 0.0 * gradient, 0)
    done = before.updates + 1
    first = betas[0] * before.first + (1.0 - betas[0]) * gradient
    second = betas[1] * before.second + (1.0 - betas[1]) * gradient * gradient
    mean, spread = first / (1.0 - betas[0] ** done), second / (1.0 - betas[1] ** done)
    return np.asarray(weights - lr * mean / (np.sqrt(spread) + eps)), Moments(first, second, done)
