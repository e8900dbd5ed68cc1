"""Synchronous SGD on paper: effective batch, updates, learning-rate rules, warmup, what a larger batch costs."""

from __future__ import annotations

import numpy as np

from dscalc.codes import LR_RULES
from dscalc.frozen import dataclass
from dscalc.records import Array, Mask


def effective_batch(workers: Array, local_batch: Array, accumulation: Array) -> Array:
    """Sequences behind one update of the weights.

    Args:
        workers [ranks, (n,)]: data-parallel ranks k.
        local_batch [sequences, (n,)]: of one forward pass of a worker, b.
        accumulation [micro-batches, (n,)]: a worker's forward passes in one update, a.

    Returns:
        B = k b a [sequences, (n,)].

    Raises:
        nothing.

    References:
        [Goyal2017] section 2.1.
    """
    return np.asarray(workers * local_batch * accumulation)


def updates(samples: Array, batch: Array) -> Array:
    """Updates of the weights while the samples pass once; the last may see fewer.

    Args:
        samples [sequences, (n,)]: of an epoch, or of the whole training.
        batch [sequences, (n,)]: effective batch B.

    Returns:
        ceil(samples / B) [updates, (n,)].

    Raises:
        nothing.

    References:
        [Definition] k workers see k times the samples an update, and so do 1/k of the updates.
    """
    return np.ceil(samples / batch)


def scaled_lr(rule: str, base_lr: Array, base_batch: Array, batch: Array) -> Array:
    """Learning rate for a batch from one that was tuned at another.

    Args:
        rule: ``linear`` (SGD, momentum), ``sqrt`` (Adam and its like), ``lamb`` (square root too), ``none``.
        base_lr [1/step, (n,)]: learning rate lr0 tuned at the base batch.
        base_batch [sequences, (n,)]: B0.
        batch [sequences, (n,)]: B.

    Returns:
        lr0 B/B0, lr0 sqrt(B/B0), or lr0 [1/step, (n,)].

    Raises:
        ValueError: no such rule.

    References:
        [Goyal2017] section 2.1 (linear), [Malladi2022] section 5 (square root), [You2020] section 4 (LAMB).
    """
    if rule not in LR_RULES:
        raise ValueError(f"no rule {rule!r}")
    kappa = np.asarray(batch / base_batch)
    return np.asarray(base_lr * {"linear": kappa, "none": 0.0 * kappa + 1.0}.get(rule, np.sqrt(kappa)))


@dataclass(frozen=True, slots=True, eq=False)
class AdamScaled:
    """Adam's other constants after the batch grew; arrays (n,). ``out_of_range`` marks a decay rate that would be
    negative: the rule then has no answer.
    """

    beta1: Array
    beta2: Array
    eps: Array
    out_of_range: Mask


def square_root_adam(beta1: Array, beta2: Array, eps: Array, base_batch: Array, batch: Array) -> AdamScaled:
    """What the square-root rule does to Adam beside the learning rate.

    Args:
        beta1, beta2 [-, (n,)]: decay rates of the moments at the base batch.
        eps [gradient, (n,)]: added to the root of the second moment at the base batch.
        base_batch [sequences, (n,)]: B0.
        batch [sequences, (n,)]: B, kappa = B/B0.

    Returns:
        1 - kappa (1 - beta1), 1 - kappa (1 - beta2), eps / sqrt(kappa) [-, (n,)].

    Raises:
        nothing: a decay rate that would be negative is 0 and marked.

    References:
        [Malladi2022] section 5.
    """
    kappa = np.asarray(batch / base_batch)
    first, second = 1.0 - kappa * (1.0 - beta1), 1.0 - kappa * (1.0 - beta2)
    return AdamScaled(
        beta1=np.maximum(first, 0.0),
        beta2=np.maximum(second, 0.0),
        eps=np.asarray(eps / np.sqrt(kappa)),
        out_of_range=np.asarray((first < 0.0) | (second < 0.0)),
    )


def warmup_lr(progress: Array, length: Array, start_lr: Array, peak_lr: Array) -> Array:
    """Learning rate during gradual warmup and after it, before any decay.

    Args:
        progress [steps, (n,)]: updates done, or epochs; in the unit of ``length``.
        length [steps, (n,)]: when warmup ends; 0: there is none.
        start_lr [1/step, (n,)]: where it begins.
        peak_lr [1/step, (n,)]: where it ends and stays.

    Returns:
        start + (peak - start) min(progress / length, 1) [1/step, (n,)].

    Raises:
        nothing.

    References:
        [Goyal2017] section 2.2: a constant amount each iteration, from the base to the scaled rate.
    """
    share = np.where(length > 0.0, np.minimum(progress / np.where(length > 0.0, length, 1.0), 1.0), 1.0)
    return np.asarray(np.where(share >= 1.0, peak_lr, start_lr + (peak_lr - start_lr) * share))


def steps_penalty(batch: Array, noise_scale: Array) -> Array:
    """Updates to a given loss, over the fewest that any batch needs.

    Args:
        batch [tokens, (n,)]: effective batch B.
        noise_scale [tokens, (n,)]: critical batch B_crit, a gradient noise scale.

    Returns:
        S/S_min = 1 + B_crit/B [-, (n,)].

    Raises:
        nothing.

    References:
        [McCandlish2018] section 2.3, [Kaplan2020] section 5.1.
    """
    return np.asarray(1.0 + noise_scale / batch)


def data_penalty(batch: Array, noise_scale: Array) -> Array:
    """Data, and so compute, to a given loss, over the least that any batch needs.

    Args:
        batch [tokens, (n,)]: effective batch B.
        noise_scale [tokens, (n,)]: critical batch B_crit, a gradient noise scale.

    Returns:
        E/E_min = 1 + B/B_crit [-, (n,)].

    Raises:
        nothing.

    References:
        [McCandlish2018] section 2.3, [Kaplan2020] section 5.1.
    """
    return np.asarray(1.0 + batch / noise_scale)


def largest_batch(noise_scale: Array, penalty: Array) -> Array:
    """The largest batch that needs no more data than a chosen penalty allows.

    Args:
        noise_scale [tokens, (n,)]: critical batch B_crit, a gradient noise scale.
        penalty [-, (n,)]: largest E/E_min accepted, above 1.

    Returns:
        (penalty - 1) B_crit [tokens, (n,)].

    Raises:
        nothing.

    References:
        [McCandlish2018] section 2.3, solved for B.
    """
    return np.asarray((penalty - 1.0) * noise_scale)
