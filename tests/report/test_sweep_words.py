"""Words of a sweep: numbers of GPUs no finer than they are known, ranges only where they say something."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dscalc.answers.sweep import SweepAnswer
from dscalc.report.sweep_words import about, ceiling_words, gpus_span, signed


@pytest.mark.parametrize(
    ("gpus", "words"),
    [(7.2, "7"), (986.0, "990"), (12_345.0, "12,000"), (99_400.0, "99,000"), (234_567.0, "230 k"), (1.13e6, "1.1 M")],
)
def test_two_digits(gpus: float, words: str) -> None:
    assert about(gpus) == words


def test_a_range_that_rounds_to_one_number_is_none() -> None:
    assert gpus_span(5790.0, 5810.0) == ""
    assert gpus_span(5790.0, 5990.0) == "5,800 - 6,000"
    assert gpus_span(5790.0, None) == "5,800 or more"


@pytest.mark.parametrize(
    ("low", "high", "words"),
    [
        (580.0, 620.0, "About 600 GPUs, between 580 and 620"),
        (580.0, None, "About 600 GPUs, at least 580"),
        (599.0, 601.0, "About 600 GPUs"),
        (600.0, 600.0, "600 GPUs"),
    ],
)
def test_a_ceiling_in_a_sentence(plain: SweepAnswer, low: float, high: float | None, words: str) -> None:
    moved = replace(plain.ceiling, gpus=600.0, low_gpus=low, high_gpus=high, beyond=False)
    said = ceiling_words(replace(plain, ceilings={"dgx-h100": moved}), "dgx-h100")
    assert said.startswith(f"{words}. Binding limit: sequences (128 sequences a step")


def test_nothing_is_not_negative() -> None:
    assert signed(-0.001) == "+0.00"
    assert signed(-0.252) == "-0.25"
