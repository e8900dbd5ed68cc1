"""Micro-batches in flight against schedules played out operation by operation."""

from __future__ import annotations

import numpy as np
import pytest

from dscalc.cost.schedule import in_flight
from tests.cost.helpers import layouts
from tests.oracles import pipeline


def formula(p: int, m: int, v: int, schedule: str) -> list[float]:
    """In-flight chunks by stage: ``in_flight`` is in units of a stage's layers, a chunk is one v-th of them."""
    stage = np.arange(p, dtype=np.float64)[:, None]
    return [float(x) for x in in_flight(layouts(pp=p, vpp=v, n_micro=m, schedule=schedule), stage)[:, 0] * v]


@pytest.mark.parametrize("p", [1, 2, 3, 4, 7, 8, 16])
@pytest.mark.parametrize("m", [1, 2, 3, 5, 8, 16, 40])
def test_one_chunk_a_stage(p: int, m: int) -> None:
    assert formula(p, m, 1, "1f1b") == pipeline.alive([pipeline.one_f_one_b(p, m, i) for i in range(p)])
    assert formula(p, m, 1, "gpipe") == pipeline.alive([pipeline.gpipe(p, m, i) for i in range(p)])


@pytest.mark.parametrize("p", [2, 3, 4, 8])
@pytest.mark.parametrize("v", [2, 3, 4, 6])
@pytest.mark.parametrize("rounds", [1, 2, 3, 5])
def test_interleaved(p: int, v: int, rounds: int) -> None:
    m = rounds * p
    orders = [pipeline.interleaved(p, m, v, i) for i in range(p)]
    assert formula(p, m, v, "interleaved") == pytest.approx(pipeline.alive(orders, v), rel=1e-12)


@pytest.mark.parametrize("p", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("m", [1, 3, 4, 8, 16, 40])
def test_zero_bubble(p: int, m: int) -> None:
    """Qi et al. 2023, table 1: p on every stage (H1), 2p - 1 (H2); a stage cannot hold more than there are."""
    first = pipeline.alive([pipeline.zero_bubble(p, m, i, False) for i in range(p)], release="W")
    second = pipeline.alive([pipeline.zero_bubble(p, m, i, True) for i in range(p)], release="W")
    assert formula(p, m, 1, "zb-h1") == first == [min(m, p)] * p
    assert formula(p, m, 1, "zb-h2") == second == [min(m, 2 * p - 1)] * p


@pytest.mark.parametrize("p", [2, 4, 8, 16])
def test_tables_of_papers(p: int) -> None:
    """In units of one stage's share L/p of the layers."""
    m = 4 * p
    # Qi et al. 2024, table 1: ZB-V holds p on every stage, whose two chunks of L/(2p) layers make one share
    assert formula(p, m, 1, "zb-v") == [p] * p
    # DeepSeek-V3, table 2: DualPipe holds PP + 1 shares; its stages hold two shares of layers, hence the half
    assert formula(p, m, 1, "dualpipe") == [(p + 1) / 2] * p


@pytest.mark.parametrize(("p", "v"), [(2, 2), (4, 2), (8, 4)])
def test_interleaving_costs_what_korthikanti_says(p: int, v: int) -> None:
    """Korthikanti et al. 2022, section 4.2.3: the first stage stores L (1 + (p - 1)/(p v)) layers' worth."""
    stored = formula(p, 8 * p, v, "interleaved")[0] / v  # in units of a stage's L/p layers
    assert stored / p == pytest.approx(1 + (p - 1) / (p * v), rel=1e-12)


@pytest.mark.parametrize(("p", "v"), [(2, 2), (4, 2), (4, 3), (8, 4)])
def test_interleaved_with_one_round_holds_everything_on_the_first_stage(p: int, v: int) -> None:
    assert formula(p, p, v, "interleaved")[0] == pytest.approx(p * v, rel=1e-12)


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "gpipe", "zb-h1", "zb-h2", "zb-v", "dualpipe"])
def test_never_more_than_there_are_and_never_more_on_later_stages(schedule: str) -> None:
    for p, m in ((2, 4), (4, 8), (8, 16), (8, 64)):
        held = formula(p, m, 1, schedule)
        assert all(0 < x <= m for x in held)
        assert held == sorted(held, reverse=True)


def test_virtual_stages_count_only_when_interleaved() -> None:
    assert formula(4, 8, 1, "1f1b") == [x / 2 for x in formula(4, 8, 2, "1f1b")]
