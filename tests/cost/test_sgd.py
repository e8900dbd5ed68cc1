"""Synchronous SGD run for real on small problems: averaging workers, forgotten divisions, warmup, penalties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dscalc.codes import LR_RULES
from dscalc.cost.averaging import adam_update, reduced_gradient, sgd_update
from dscalc.cost.sgd import (
    data_penalty,
    largest_batch,
    scaled_lr,
    square_root_adam,
    steps_penalty,
    warmup_lr,
)

WEIGHTS = np.array([1.0, -2.0])
GRADIENTS = np.array([[0.4, -0.2], [0.8, 0.6]])
BATCH = st.floats(1.0, 1e9)


# --- two workers, to the bit ---


def test_two_workers_with_the_mean() -> None:
    mean = reduced_gradient(GRADIENTS, divide=True)
    assert mean.tolist() == [(0.4 + 0.8) / 2, (-0.2 + 0.6) / 2]
    np.testing.assert_allclose(mean, [0.6, 0.2], rtol=1e-15)
    after = [sgd_update(WEIGHTS.copy(), mean, 0.1) for _ in GRADIENTS]
    assert after[0].tobytes() == after[1].tobytes()
    assert after[0].tolist() == [1.0 - 0.1 * mean[0], -2.0 - 0.1 * mean[1]]


def test_a_forgotten_division_is_k_times_the_learning_rate_for_sgd() -> None:
    """Factors of two are exact: a sum at half the rate is the mean at the whole one."""
    mean, total = (reduced_gradient(GRADIENTS, divide=divide) for divide in (True, False))
    assert total.tolist() == (2.0 * mean).tolist()
    assert sgd_update(WEIGHTS, total, 0.1).tolist() == sgd_update(WEIGHTS, mean, 0.2).tolist()
    assert sgd_update(WEIGHTS, total, 0.1).tolist() != sgd_update(WEIGHTS, mean, 0.1).tolist()


def test_adam_hides_a_forgotten_division() -> None:
    """Without eps a factor of two cancels to the bit, over many steps; eps of the size of the gradients shows it."""
    for eps, same in ((0.0, True), (0.5, False)):
        ends = []
        for divide in (True, False):
            weights, moments = WEIGHTS, None
            for step in range(20):
                gradients = GRADIENTS * np.cos(step) + weights
                weights, moments = adam_update(weights, reduced_gradient(gradients, divide), 0.1, moments, eps=eps)
            ends.append(weights)
        assert (ends[0].tolist() == ends[1].tolist()) is same


def test_adam_takes_steps_of_the_learning_rate_at_first() -> None:
    after, _ = adam_update(WEIGHTS, np.array([0.6, -1e3]), 0.1, eps=0.0)
    np.testing.assert_allclose(after, [0.9, -1.9], rtol=1e-12)


# --- least squares: rows of data, gradients of batches ---

LARGEST_CURVATURE = 1.0


def _problem(rows: int = 64, width: int = 4) -> tuple[np.ndarray, np.ndarray]:
    """Least squares whose Hessian A'A/rows has eigenvalues 1 (the largest) down to 0.25."""
    random = np.random.default_rng(7)
    left, _ = np.linalg.qr(random.standard_normal((rows, width)))
    right, _ = np.linalg.qr(random.standard_normal((width, width)))
    matrix = left @ np.diag(np.sqrt(rows * np.linspace(LARGEST_CURVATURE, 0.25, width))) @ right
    return matrix, matrix @ random.standard_normal(width)


def _gradient(matrix: np.ndarray, target: np.ndarray, weights: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Mean gradient over some rows."""
    return matrix[rows].T @ (matrix[rows] @ weights - target[rows]) / len(rows)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(("workers", "local"), [(2, 8), (4, 4), (8, 2)])
def test_averaging_workers_are_one_worker_with_the_whole_batch(workers: int, local: int, momentum: float) -> None:
    matrix, target = _problem()
    random = np.random.default_rng(1)
    many, one = np.zeros(4), np.zeros(4)
    many_speed, one_speed = np.zeros(4), np.zeros(4)
    for _ in range(200):
        rows = random.permutation(len(matrix))[: workers * local]
        each = [_gradient(matrix, target, many, part) for part in rows.reshape(workers, local)]
        many_speed = momentum * many_speed + reduced_gradient(np.array(each), divide=True)
        one_speed = momentum * one_speed + _gradient(matrix, target, one, rows)
        many, one = sgd_update(many, many_speed, 0.05), sgd_update(one, one_speed, 0.05)
        np.testing.assert_allclose(many, one, rtol=1e-11, atol=1e-12)
    assert np.linalg.norm(matrix @ one - target) < 0.1 * np.linalg.norm(target)  # it did train


@pytest.mark.parametrize("workers", [2, 8])
@pytest.mark.parametrize("share", [0.1, 0.5, 0.9])
def test_between_2_over_k_lambda_and_2_over_lambda_the_mean_converges_and_the_sum_diverges(
    workers: int, share: float
) -> None:
    matrix, target = _problem()
    low, high = 2.0 / (workers * LARGEST_CURVATURE), 2.0 / LARGEST_CURVATURE
    lr = low + share * (high - low)
    curvature = np.linalg.eigvalsh(matrix.T @ matrix / len(matrix))[-1]
    assert low < lr * LARGEST_CURVATURE / curvature < high
    parts = np.arange(len(matrix)).reshape(workers, -1)
    norms = {}
    for divide in (True, False):
        weights = np.zeros(4)
        for _ in range(150):
            each = np.array([_gradient(matrix, target, weights, part) for part in parts])
            weights = sgd_update(weights, reduced_gradient(each, divide), lr)
            if np.abs(weights).max() > 1e9:
                break
        norms[divide] = np.linalg.norm(matrix @ weights - target) / np.linalg.norm(target)
    assert norms[True] < 1e-2
    assert norms[False] > 1e2


# --- rules ---


@given(st.floats(1e-6, 10.0), BATCH, BATCH)
def test_every_rule_keeps_the_rate_at_the_base_batch_and_orders_the_others(
    lr: float, base: float, batch: float
) -> None:
    at_base = {rule: float(scaled_lr(rule, np.array(lr), np.array(base), np.array(base))) for rule in LR_RULES}
    assert set(at_base.values()) == {lr}
    found = {rule: float(scaled_lr(rule, np.array(lr), np.array(base), np.array(batch))) for rule in LR_RULES}
    ordered = [found["none"], found["sqrt"], found["linear"]]
    assert ordered == (sorted(ordered) if batch >= base else sorted(ordered, reverse=True))
    assert found["sqrt"] ** 2 == pytest.approx(found["linear"] * found["none"])


def _spread(samples: int, batch: int, lr: float, betas: tuple[float, float], eps: float) -> float:
    """Standard deviation of weights that Adam moved through pure noise of one a sample, many weights at once."""
    random = np.random.default_rng(11)
    weights, moments = np.zeros(2000), None
    for _ in range(samples // batch):
        gradient = random.standard_normal(weights.size) / np.sqrt(batch)
        weights, moments = adam_update(weights, gradient, lr, moments, betas, eps)
    return float(weights.std())


@pytest.mark.parametrize(("base", "batch"), [(4, 16), (16, 4)])
def test_the_square_root_rule_keeps_what_noise_does_to_adam(base: int, batch: int) -> None:
    """[Malladi2022]: as many samples spread the weights as far; not so with another rate, nor with eps as it was.

    eps is half of the gradients' noise here, so that it counts. Simulated, without the formula's derivation.
    """
    lr, eps = 1e-3, 0.5 / np.sqrt(base)
    one = np.array(1.0)
    rule = square_root_adam(0.9 * one, 0.999 * one, eps * one, base * one, batch * one)
    betas, scaled = (float(rule.beta1), float(rule.beta2)), float(scaled_lr("sqrt", lr * one, base * one, batch * one))
    before = _spread(8_000, base, lr, (0.9, 0.999), eps)
    assert _spread(8_000, batch, scaled, betas, float(rule.eps)) == pytest.approx(before, rel=0.05)
    assert _spread(8_000, batch, lr * batch / base, betas, float(rule.eps)) != pytest.approx(before, rel=0.4)
    assert _spread(8_000, batch, scaled, betas, eps) != pytest.approx(before, rel=0.15)


@pytest.mark.parametrize("kappa", [2.0, 4.0, 0.5])
def test_the_square_root_rule_keeps_the_memory_of_the_moments(kappa: float) -> None:
    """After as many samples a gradient weighs as much in the second moment: beta^n, n/kappa times."""
    found = square_root_adam(np.array(0.9), np.array(0.999), np.array(1e-8), np.array(1.0), np.array(kappa))
    assert float(found.beta2) ** (1000.0 / kappa) == pytest.approx(0.999**1000, rel=5e-3)
    assert float(found.eps) * np.sqrt(kappa) == pytest.approx(1e-8)  # noise of the gradient falls by as much


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ValueError, match="cubic"):
        scaled_lr("cubic", np.ones(1), np.ones(1), np.ones(1))


@given(st.integers(1, 10_000), st.floats(0.0, 1.0), st.floats(1.0, 100.0))
def test_warmup_is_monotone_and_continuous_at_its_end(length: int, start: float, peak: float) -> None:
    steps = np.arange(length + 3, dtype=np.float64)
    found = warmup_lr(steps, np.array(float(length)), np.array(start), np.array(peak))
    assert found[0] == start
    assert np.all(np.diff(found) >= 0.0)
    assert found[length] == found[-1] == peak
    assert np.max(np.diff(found)) <= (peak - start) / length * (1.0 + 1e-9) + 1e-12  # no jump, at the end neither


@given(BATCH, BATCH, st.floats(1.001, 100.0))
def test_penalties_trade_steps_for_data(batch: float, scale: float, penalty: float) -> None:
    b, c = np.array(batch), np.array(scale)
    assert float((steps_penalty(b, c) - 1.0) * (data_penalty(b, c) - 1.0)) == pytest.approx(1.0, rel=1e-6)
    assert float(data_penalty(largest_batch(c, np.array(penalty)), c)) == pytest.approx(penalty)
