"""A stated number of parameters beside sizes: a shape that has both, or one line that says what would be right."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dscalc
from dscalc.answers.case import build_case
from dscalc.answers.memory import memory
from dscalc.answers.stated import TOLERANCE, stated_model
from dscalc.cost.inventory import parameter_counts, part_instances
from dscalc.cost.rank_parameters import part_sums
from dscalc.errors import DscalcError, InputError

SIZES = st.fixed_dictionaries(
    {},
    optional={
        "layers": st.integers(1, 200),
        "hidden": st.sampled_from([8, 96, 128, 1000, 2048, 4096, 8192, 12288]),
        "heads": st.sampled_from([1, 2, 8, 12, 32, 64]),
        "kv_heads": st.sampled_from([1, 2, 8]),
        "ffn_hidden": st.integers(1, 50_000),
        "vocab": st.sampled_from([16, 32_000, 256_000]),
        "gated_mlp": st.booleans(),
        "tie_embeddings": st.booleans(),
        "experts": st.sampled_from([1, 8, 64, 256]),
        "moe_ffn_hidden": st.integers(1, 5_000),
        "shared_experts": st.integers(0, 2),
    },
)
PARAMS = st.floats(3.0, 14.0).map(lambda power: int(10**power))
LAYOUTS = st.sampled_from([{}, {"dp": 8, "zero": 3}, {"dp": 4, "tp": 2, "pp": 2}, {"dp": 8, "zero": 1}])


def test_experts_beside_params_divide_them() -> None:
    """The reported case: 8 experts in 7e9 parameters held -349 GB."""
    answer = memory(params=7e9, experts=8, ep=8, dp=8, gpu="H100")
    assert answer.case.counts.main == 7_000_000_000
    assert abs(answer.case.counts.listed - 7e9) <= TOLERANCE * 7e9
    assert answer.case.counts.active < 4e9
    assert answer.state_bytes > 0
    assert all(term.bytes >= 0 for term in answer.terms)


@pytest.mark.parametrize("sizes", [{"layers": 4}, {"hidden": 8192}, {"experts": 64, "layers": 10}, {"heads": 12}])
def test_sizes_not_given_follow_the_count(sizes: dict[str, int]) -> None:
    shape, origin = stated_model(7_000_000_000, sizes)
    assert abs(parameter_counts(shape).listed - 7e9) <= TOLERANCE * 7e9
    for name, value in sizes.items():
        assert getattr(shape, name) == value
        assert origin[name] == "given"
    assert "given" not in {mark for name, mark in origin.items() if name not in sizes}


def test_a_contradiction_is_refused_with_what_would_be_right() -> None:
    with pytest.raises(InputError, match=r"--params: 7,000,000,000 .*--layers 80, --hidden 8192.* 65,285,660,672"):
        stated_model(7_000_000_000, {"layers": 80, "hidden": 8192})
    near = stated_model(66_000_000_000, {"layers": 80, "hidden": 8192})[0]  # within a tenth: kept as stated
    assert parameter_counts(near).main == 66_000_000_000


@settings(max_examples=200)
@given(PARAMS, SIZES)
def test_following_the_advice_succeeds(params: int, sizes: dict[str, Any]) -> None:
    try:
        shape = stated_model(params, sizes)[0]
    except InputError as error:
        advice = re.search(r"write --params (\d+)", str(error))
        if advice is None or int(advice[1]) < 1000:
            return
        shape = stated_model(int(advice[1]), sizes)[0]
        params = int(advice[1])
    assert abs(parameter_counts(shape).listed - params) <= TOLERANCE * params or not sizes
    sums, times = part_sums(shape), part_instances(shape)
    held = sum(times[part] * sum(side[part].values()) for side in (sums.matrix, sums.other) for part in side)
    assert held == (params if params < 1e13 else pytest.approx(params))
    for side in (sums.matrix, sums.other):
        assert all(elements >= 0 for splits in side.values() for elements in splits.values())


@settings(max_examples=150)
@given(PARAMS, SIZES, LAYOUTS)
def test_no_term_is_negative(params: int, sizes: dict[str, Any], layout: dict[str, Any]) -> None:
    options = {"params": params, **sizes, **layout}
    try:
        answer = memory(**options, gpu="H100")
    except DscalcError:
        return
    assert all(term.bytes >= 0 for term in answer.terms), options
    sent = dscalc.comm(**options, cluster="dgx-h100")
    assert all(row.bytes >= 0 and row.time_s >= 0 for row in sent.rows), options
    ratio = dscalc.ratio(**options, flops="400TF", bandwidth="50GB/s")
    assert all(row.value is None or row.value >= 0 for row in ratio.rows), options


def test_layers_are_bounded_before_anything_is_built() -> None:
    with pytest.raises(DscalcError, match=r"--layers: .*100,000"):
        memory(layers=10**9, hidden=128, heads=1, experts=8)
    with pytest.raises(DscalcError, match=r"--params: .*1000"):
        build_case({"params": 100})
