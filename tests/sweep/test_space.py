"""The space by index arithmetic: numbers and layouts, what rules read, what is counted."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dscalc.answers.sweep_setup import build_setups, divisors, refuse_too_many, spaces_of
from dscalc.cost.axes import groups, rules
from dscalc.errors import InputError
from dscalc.records import Layouts
from dscalc.specs.given import gather
from dscalc.specs.sweep_options import TABLE
from dscalc.sweep.prune import Machine, Problem
from dscalc.sweep.search import search
from dscalc.sweep.space import ORDER, Space, axes_read, checks, column, legal_values

MOE = {"layers": 8, "hidden": 1024, "heads": 16, "experts": 8, "top_k": 2, "moe_ffn_hidden": 1024, "seq_len": 2048}


SMALL = {"layers": 8, "hidden": 1024, "heads": 16, "seq_len": 2048}


def space_of(**words: Any) -> tuple[Space, Machine]:
    given = gather({"cluster": "dgx-h100", "global_batch": 48, **words}, TABLE)
    (setup,) = build_setups(given)
    return spaces_of(setup, given)[0], setup.machine


def test_divisors() -> None:
    assert divisors(1) == (1,)
    assert divisors(36) == (1, 2, 3, 4, 6, 9, 12, 18, 36)
    assert divisors(97) == (1, 97)


def test_numbers_are_mixed_radix() -> None:
    space, _ = space_of(**MOE, gpus=16)
    ids = np.random.default_rng(3).integers(0, space.size, 500)
    layouts = space.layouts(ids)
    number = np.zeros(500, dtype=np.int64)
    for name in ORDER:
        values = column(name, space.values[name])
        digit = np.searchsorted(values, np.broadcast_to(getattr(layouts, name), (500,)))
        number = number * len(values) + digit
    assert np.array_equal(number, ids)
    whole = layouts.tp * layouts.pp * layouts.cp * layouts.dp
    assert np.allclose(whole, 16)
    assert np.allclose(layouts.dp * layouts.micro_batch * layouts.n_micro, 48)


def test_a_prefix_is_the_same_whatever_lies_behind() -> None:
    space, _ = space_of(**MOE, gpus=16)
    level = ORDER.index("micro_batch") + 1
    behind = int(np.prod(space.radices[level:]))
    whole, prefix = (
        space.layouts(np.asarray([7 * behind + 3, 7 * behind + 5])),
        space.layouts(np.asarray([7, 7]), level),
    )
    for name in ORDER[:level]:
        assert np.array_equal(np.broadcast_to(getattr(whole, name), (2,)), np.broadcast_to(getattr(prefix, name), (2,)))


def masks(space: Space, layouts: Layouts) -> list[bool]:
    return [bool(np.any(rule.illegal(layouts, groups(layouts), space.shape))) for rule in rules()]


def test_rules_read_no_more_than_they_are_said_to() -> None:
    """A rule is applied once its axes are decided: no later axis may change it."""
    space, _ = space_of(**MOE, gpus=16)
    space = replace(space, values={**space.values, "cp_comm": (0.0, 1.0, 2.0)})
    rng = np.random.default_rng(5)
    read = [axes_read(rule, space) for rule in rules()]
    for _ in range(150):
        name = ORDER[rng.integers(len(ORDER))]
        if len(space.values[name]) < 2:
            continue
        base = space.layouts(np.asarray([rng.integers(space.size)]))
        other = replace(base, **{name: column(name, [rng.choice(space.values[name])])})
        dp = space.gpus / (other.tp * other.pp * other.cp)
        other = replace(other, dp=dp, n_micro=space.global_batch / (dp * other.micro_batch))
        for axes, before, after in zip(read, masks(space, base), masks(space, other), strict=True):
            assert name in axes or before == after


def test_checks_come_in_the_order_of_the_axes() -> None:
    space, _ = space_of(**MOE, gpus=16)
    levels = [check.level for check in checks(space)]
    assert levels == sorted(levels)
    assert {rule.name for rule in rules()} <= {check.name for check in checks(space)}


def test_values_that_no_layout_can_have_are_not_tried() -> None:
    space, _ = space_of(**MOE | {"heads": 12, "hidden": 1536}, gpus=16)
    assert space.values["tp"] == (1.0, 2.0, 4.0)  # 8 and 16 do not divide 12 heads
    assert space.values["ep"] == (1.0, 2.0, 4.0, 8.0)
    assert legal_values(space, "tp", (1.0, 4.0, 5.0, 8.0)) == (1.0, 4.0)
    asked, _ = space_of(**MOE | {"heads": 12, "hidden": 1536}, gpus=16, tp=[8])
    assert asked.values["tp"] == (8.0,)  # what was asked for is rejected with its reason, not dropped


@pytest.mark.parametrize(
    "words",
    [
        {"gpus": 16},
        {"gpus": 24, "dp": [2, 6], "max_tp": 4},
        {"gpus": 16, "dp_replicate": [1, 2], "schedule": "1f1b,zb-h1,dualpipe", "max_dp": 4},
        {"gpus": 16, "sequence_parallel": True, "recompute_layers": "2", "vpp": "1,2"},
        {"gpus": 16, "tp": [3, 4], "pp": [1, 2, 100]},  # values that are illegal in themselves, or multiply to no job
    ],
)
def test_every_candidate_is_counted_once(words: dict[str, Any]) -> None:
    space, machine = space_of(**MOE, **words, max_micro_batch=8)
    (found,) = search([Problem(space, machine, 3)])
    assert space.candidates == found.feasible + sum(count for _, count in found.rejected)
    assert found.done == space.size
    assert all(count >= 0 for _, count in found.rejected)


def test_nothing_of_the_size_of_the_space_is_stored() -> None:
    """Ten times the candidates in the same memory but for what small tables hold."""
    peaks, sizes = [], []
    for zero, most in (([0, 1], 1), ([0, 1], 1), ([0, 1, 2, 3], 48)):  # the first fills caches
        space, machine = space_of(**SMALL, gpus=4, zero=zero, max_micro_batch=most)
        tracemalloc.start()
        search([Problem(space, machine, 3, chunk_rows=64)])
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        sizes.append(space.candidates)
    assert sizes[2] >= 10 * sizes[1]
    assert peaks[2] < 2 * peaks[1]


def test_too_many_candidates_are_refused_before_they_are_tried() -> None:
    words = {"model": "llama-3-70b", "cluster": "dgx-h100", "gpus": "367567200,735134400", "global_batch": 735134400}
    given = gather(words, TABLE)
    (setup,) = build_setups(given)
    with pytest.raises(InputError, match="narrow them") as error:
        refuse_too_many(spaces_of(setup, given))
    assert "--max-" in str(error.value)
