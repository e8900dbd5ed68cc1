"""Expected maxima against simulations, and against integrals by another formula."""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np
import pytest

from dscalc.cost.stragglers import (
    exponential_maximum_factor,
    fresh_wait_fraction,
    normal_maximum_factor,
    second_maximum_factor,
    slow_node_probability,
    straggler_s,
)

DRAWS = 3000
QUOTED = {8: 1.42, 64: 2.34, 128: 2.59, 1024: 3.25, 16384: 3.97}


@pytest.mark.parametrize("ranks", QUOTED)
def test_normal_maximum_by_simulation_and_by_quantiles(ranks: int) -> None:
    """Maxima of K uniforms are U^(1/K): the normal quantile of that is a maximum of K normals, drawn in one go."""
    found = float(normal_maximum_factor(np.array([float(ranks)]))[0])
    assert found == pytest.approx(QUOTED[ranks], rel=0.01)
    random = np.random.default_rng(ranks)
    draws = DRAWS if ranks <= 1024 else 400
    largest = np.array([random.standard_normal(ranks).max() for _ in range(draws)])
    assert largest.mean() == pytest.approx(found, abs=4.0 * largest.std() / math.sqrt(draws))
    quantile = NormalDist().inv_cdf
    even = [quantile(((i + 0.5) / DRAWS) ** (1.0 / ranks)) for i in range(DRAWS)]  # an integral over u, not over x
    assert float(np.mean(even)) == pytest.approx(found, rel=0.002)


@pytest.mark.parametrize("ranks", [2, 8, 128, 1024])
def test_exponential_maximum_is_a_harmonic_number(ranks: int) -> None:
    found = float(exponential_maximum_factor(np.array([float(ranks)]))[0])
    assert found == pytest.approx(sum(1.0 / i for i in range(1, ranks + 1)), rel=1e-10)
    largest = np.random.default_rng(ranks).exponential(size=(DRAWS, ranks)).max(axis=1)
    assert largest.mean() == pytest.approx(found, abs=4.0 * largest.std() / math.sqrt(DRAWS))


@pytest.mark.parametrize("ranks", [2, 8, 128])
def test_leaving_out_the_slowest(ranks: int) -> None:
    """The mean of the second largest, by simulation and by the recurrence between sample sizes."""
    found = float(second_maximum_factor(np.array([float(ranks)]))[0])
    drawn = np.sort(np.random.default_rng(ranks).standard_normal((DRAWS, ranks)), axis=1)[:, -2]
    assert drawn.mean() == pytest.approx(found, abs=4.0 * drawn.std() / math.sqrt(DRAWS))
    less, all_ = normal_maximum_factor(np.array([ranks - 1.0, float(ranks)]))
    assert found == pytest.approx(ranks * less - (ranks - 1) * all_, abs=1e-9)


def test_waiting_of_a_whole_job_by_simulation() -> None:
    """GPUs that stay slow through a step: tensor groups that meet in every layer wait as data-parallel ranks do."""
    random = np.random.default_rng(3)
    layers, tp, dp, jitter = 16, 4, 8, 0.03
    steps = []
    for _ in range(DRAWS):
        slow = 1.0 + jitter * random.standard_normal((dp, tp))
        layer = np.repeat(slow[:, :, None], layers, axis=2) / layers
        steps.append(layer.max(axis=1).sum(axis=1).max())
    expected = float(straggler_s(np.ones(1), np.array([jitter]), np.array([float(tp * dp)]))[0])
    assert np.mean(steps) - 1.0 == pytest.approx(expected, rel=0.01)


def test_noise_that_comes_anew_in_each_layer_by_simulation() -> None:
    random = np.random.default_rng(4)
    layers, tp, jitter = 25, 8, 0.02
    pieces = 1.0 / layers + jitter / math.sqrt(layers) * random.standard_normal((DRAWS, layers, tp))
    assert pieces.sum(axis=1)[:, 0].std() == pytest.approx(jitter, rel=0.05)  # the sigma of a step is what was given
    waited = pieces.max(axis=2).sum(axis=1).mean() - 1.0
    expected = fresh_wait_fraction(np.array([jitter]), np.array([float(tp)]), np.array([float(layers)]))
    assert waited == pytest.approx(float(expected[0]), rel=0.01)


def test_slow_nodes_by_drawing_them() -> None:
    slow = (np.random.default_rng(5).random((20_000, 64)) < 0.01).any(axis=1).mean()
    assert float(slow_node_probability(np.array([0.01]), np.array([64.0]))[0]) == pytest.approx(slow, abs=0.015)


def test_columns_are_evaluated_once_a_count_and_keep_their_shape() -> None:
    ranks = np.array([[8.0, 1.0], [8.0, 64.0]])
    found = normal_maximum_factor(ranks)
    assert found.shape == ranks.shape
    assert found[0, 0] == found[1, 0]
    assert found[0, 1] == pytest.approx(0.0, abs=1e-12)
    assert np.all(np.diff(normal_maximum_factor(10.0 ** np.arange(10))) > 0.0)
