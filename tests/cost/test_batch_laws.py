"""The published laws: their worked points, their kinds and units, and where they stop."""

from __future__ import annotations

import numpy as np
import pytest

from dscalc.codes import BATCH_LAWS
from dscalc.cost.batch_laws import (
    LAWS,
    NOISE_SCALE,
    OPTIMAL,
    LawInputs,
    critical_batch_tokens,
    largest_batch_tokens,
    law_batch_tokens,
    outside,
)

UNKNOWN = np.array([np.nan])


def inputs(**known: float) -> LawInputs:
    names = ("train_loss", "tokens", "params", "training_flop", "noise_scale")
    return LawInputs(**{name: np.array([known[name]]) if name in known else UNKNOWN for name in names})


@pytest.mark.parametrize(
    ("law", "known", "tokens"),
    [
        ("kaplan", {"train_loss": 4.0}, 0.27e6),
        ("kaplan", {"train_loss": 3.0}, 1.07e6),
        ("kaplan", {"train_loss": 2.5}, 2.5e6),
        ("kaplan", {"train_loss": 2.0}, 7.4e6),
        ("step", {"tokens": 1e11}, 1.1e6),
        ("step", {"tokens": 2e12}, 6.1e6),
        ("step", {"tokens": 1.5e13}, 19e6),
        ("deepseek", {"training_flop": 8.4e22}, 9.2e6),
        ("deepseek", {"training_flop": 3.8e25}, 68e6),
        ("zhang", {"params": 302e6}, 1365 * 512),
        ("given", {"noise_scale": 3e6}, 3e6),
    ],
)
def test_worked_points(law: str, known: dict[str, float], tokens: float) -> None:
    """Computed by hand from the printed constants, within 2 %."""
    assert float(law_batch_tokens(law, inputs(**known))[0]) == pytest.approx(tokens, rel=0.02)


def test_learning_rates_that_belong_to_them() -> None:
    """1.79 * 7e9^-0.713 * 2e12^0.307 and 0.3118 * 8.4e22^-0.125, with logarithms by hand."""
    step, deepseek = LAWS["step"].lr, LAWS["deepseek"].lr
    assert step is not None
    assert deepseek is not None
    by_hand = 10 ** (0.25285 - 0.713 * 9.84510 + 0.307 * 12.30103)
    assert float(step(inputs(tokens=2e12, params=7e9))[0]) == pytest.approx(by_hand, rel=1e-3)
    by_hand = 10 ** (-0.50612 - 0.125 * 22.92428)
    assert float(deepseek(inputs(training_flop=8.4e22))[0]) == pytest.approx(by_hand, rel=1e-3)


def test_only_a_noise_scale_enters_the_penalties() -> None:
    known = inputs(train_loss=3.0, tokens=1e11, params=3e8, training_flop=1e18, noise_scale=1e6)
    for name, law in LAWS.items():
        named, critical = law_batch_tokens(name, known), critical_batch_tokens(name, known)
        most = largest_batch_tokens(name, known, np.array([1.2]))
        if law.kind == NOISE_SCALE:
            assert critical == named
            assert most == pytest.approx(0.2 * critical)
        elif law.kind == OPTIMAL:
            assert most == critical == named
        else:  # its own batch costs 20 % more data
            assert critical == pytest.approx(5.0 * named)
            assert most == pytest.approx(named)


def test_ranges_are_marked_and_the_unknown_is_not() -> None:
    assert bool(outside("kaplan", inputs(train_loss=2.0))["train_loss"][0])
    assert not bool(outside("kaplan", inputs(train_loss=3.0))["train_loss"][0])
    assert not bool(outside("kaplan", inputs(train_loss=3.0))["params"][0])
    assert bool(outside("deepseek", inputs(training_flop=8.4e22))["training_flop"][0])
    assert bool(outside("step", inputs(tokens=2e12))["tokens"][0])
    assert bool(outside("zhang", inputs(params=7e9))["params"][0])


def test_the_registry_is_complete() -> None:
    assert tuple(LAWS) == BATCH_LAWS
    for law in LAWS.values():
        assert law.source.startswith("[")
        assert all(0 < within.low < within.high for within in law.within)
        assert {*law.needs, *(within.name for within in law.within)} <= set(LawInputs.__dataclass_fields__)
        assert np.isnan(law_batch_tokens(law.name, inputs())[0])  # nothing known, nothing said
