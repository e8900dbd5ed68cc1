"""One sweep for all tests of its charts, figures and pages."""

from __future__ import annotations

import pytest

from dscalc.answers.sweep import SweepAnswer, sweep


@pytest.fixture(scope="session")
def answer() -> SweepAnswer:
    """Two machines, a training with a price: every part of a page is there."""
    return sweep(
        model="llama-3-8b",
        cluster="dgx-h100,dgx-a100",
        gpus="8..64",
        global_batch=128,
        max_tp=2,
        max_pp=2,
        cp=1,
        tokens="1T",
        price=2.5,
    )


@pytest.fixture(scope="session")
def plain() -> SweepAnswer:
    """One machine, nothing else given."""
    return sweep(model="llama-3-8b", cluster="dgx-h100", gpus="8..128", global_batch=128, tp="1,2", pp=1, cp=1)


@pytest.fixture(scope="session")
def nothing() -> SweepAnswer:
    """A model that fits nowhere."""
    return sweep(model="llama-3-70b", cluster="dgx-h100", gpus="8", global_batch=8, tp=1, pp=1, cp=1, zero=0)
