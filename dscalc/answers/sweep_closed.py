"""The closed forms beside a sweep: D* and K* of ``dscalc ratio`` for the best layout of the largest job."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from dscalc.answers.ratio import answer as ratio_answer
from dscalc.answers.sweep_notes import words_of
from dscalc.answers.sweep_rows import Row
from dscalc.answers.sweep_setup import Setup, base_words
from dscalc.errors import DscalcError


class ClosedForm(NamedTuple):
    """What 6ND/P against 2Nb/BW says; None where it does not exist.

    ``max_useful_gpus`` is K* times the GPUs of a data-parallel rank; the values of ``corrected`` hold what this layout
    adds to the closed form (attention, recompute, sharding, overlap).
    """

    setup: str
    gpus: int
    tokens_per_rank: float
    break_even_tokens_per_rank: float | None
    max_useful_data_parallel: float | None
    max_useful_gpus: float | None
    corrected: Mapping[str, float | None]


NAMES = ("break_even_tokens_per_rank", "max_useful_data_parallel", "max_useful_gpus")


def closed_form(setup: Setup, row: Row, given: Mapping[str, Any]) -> ClosedForm | None:
    """D* and K* for one layout.

    Args:
        setup: the machine.
        row: the layout.
        given: parsed options.

    Returns:
        The closed forms; None where ``dscalc ratio`` has no answer for these options.
    """
    words = base_words(given, setup.words) | words_of(row.layout)
    try:
        found = ratio_answer(words)
    except DscalcError:
        return None
    break_even, ranks, gpus = (found.value(name) for name in NAMES)
    return ClosedForm(
        setup=setup.name,
        gpus=row.gpus,
        tokens_per_rank=float(row.layout.tokens_per_rank),
        break_even_tokens_per_rank=break_even,
        max_useful_data_parallel=ranks,
        max_useful_gpus=gpus,
        corrected={name: found.corrected(name) for name in NAMES},
    )
