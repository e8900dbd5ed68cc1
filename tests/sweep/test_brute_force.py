"""The search against a plain loop over every layout, each evaluated alone: same best, same front, same counts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dscalc.answers.sweep_setup import Setup, build_setups, spaces_of
from dscalc.cost.evaluate import evaluate
from dscalc.specs.given import gather
from dscalc.specs.layout_spec import LayoutSpec, lower
from dscalc.specs.sweep_options import TABLE
from dscalc.sweep.prune import Found, Problem
from dscalc.sweep.search import search
from dscalc.sweep.space import ORDER, Space

DENSE = {"layers": 8, "hidden": 1024, "heads": 16, "kv_heads": 4, "ffn_hidden": 4096, "vocab": 32000}
EXPERTS = DENSE | {"experts": 8, "top_k": 2, "moe_ffn_hidden": 1024}
TALL = DENSE | {"layers": 12, "heads": 12, "hidden": 1536, "kv_heads": 12}


class Point(NamedTuple):
    """What the loop knows of one layout that fits."""

    step_time_s: float
    total_bytes: float
    spec: LayoutSpec


def plain_values(name: str, given_: Mapping[str, Any], usual: list[Any]) -> list[Any]:
    found = list(given_.get(name, usual))
    most = given_.get(f"max_{name}")
    return [v for v in found if most is None or v <= most]


def divisors(number: int) -> list[int]:
    return [d for d in range(1, number + 1) if number % d == 0]


def layouts(setup: Setup, words: Mapping[str, Any], gpus: int, batch: int) -> Iterator[LayoutSpec]:
    """Every layout that a person could write down, in plain loops: no index arithmetic, no numpy."""
    base, shape = setup.spec, setup.case.model.shape
    layers, every = shape.layers, divisors(gpus)
    again: list[tuple[str, int | None]] = [("none", None), ("selective", None), ("full", None)]
    again += [("full", 2**power) for power in range(12) if 2**power < layers]
    again = [a for a in again if a[0] in words.get("recompute", ("none", "selective", "full"))]
    axes = {
        "pp": plain_values("pp", words, [p for p in every if p <= layers]),
        "tp": plain_values("tp", words, every),
        "cp": plain_values("cp", words, every),
        "dp_replicate": plain_values("dp_replicate", words, every),
        "schedule": plain_values("schedule", words, ["1f1b", "interleaved"]),
        "vpp": plain_values("vpp", words, divisors(layers)),
        "micro_batch": plain_values("micro_batch", words, divisors(batch)),
        "ep": plain_values("ep", words, [e for e in every if shape.experts and shape.experts % e == 0] or [1]),
        "etp": plain_values("etp", words, every if shape.experts else [1]),
        "sequence_parallel": [False, True],
        "zero": plain_values("zero", words, [0, 1, 2, 3]),
    }
    for values in product(*axes.values()):
        one = dict(zip(axes, values, strict=True))
        grid = one["pp"] * one["tp"] * one["cp"]
        if gpus % grid:
            continue
        dp = gpus // grid
        if dp % one["dp_replicate"] or batch % (dp * one["micro_batch"]):
            continue
        if "dp" in words and dp not in words["dp"]:
            continue
        if "dp_replicate" not in words and one["dp_replicate"] > 1 and one["zero"] < 3:
            continue  # hybrid sharding belongs to ZeRO-3
        if "dp_replicate" not in words and one["dp_replicate"] > 1 and dp * one["cp"] == one["dp_replicate"]:
            continue  # nothing is sharded
        if "vpp" not in words and one["vpp"] > 1 and layers % (one["pp"] * one["vpp"]):
            continue  # equal chunks
        if "etp" not in words and one["etp"] not in (1, one["tp"]):
            continue  # experts as the other layers, or whole
        if (one["vpp"] > 1) != (one["schedule"] == "interleaved") or (one["pp"] == 1 and one["vpp"] > 1):
            continue  # one chunk a stage is not interleaved
        for recompute, some in again:
            yield LayoutSpec.trusted(
                base.model_dump()
                | one
                | {
                    "gpus": gpus,
                    "dp": dp,
                    "dp_shard": dp // one["dp_replicate"],
                    "grad_accum": batch // (dp * one["micro_batch"]),
                    "global_batch": batch,
                    "recompute": recompute,
                    "recompute_layers": some,
                }
            )


def loop(setup: Setup, words: Mapping[str, Any], gpus: int, batch: int, *, alone: bool) -> list[Point]:
    """Every layout that is legal and fits; ``alone``: each in a call of its own."""
    specs = list(layouts(setup, words, gpus, batch))
    machine, shape, books = setup.machine, setup.case.model.shape, setup.case.books
    parts = [[spec] for spec in specs] if alone else [specs[i : i + 4096] for i in range(0, len(specs), 4096)]
    found = []
    for part in parts:
        result = evaluate(
            shape, lower(part, books), machine.hardware, machine.adapters, keep_terms=False, timing=machine.timing
        )
        assert result.step is not None
        seconds = np.broadcast_to(result.step.step_time_s, (len(part),))
        found += [
            Point(float(seconds[i]), float(result.memory.total_bytes[i]), spec)
            for i, spec in enumerate(part)
            if result.feasible[i]
        ]
    return found


def front(points: list[Point]) -> set[tuple[float, float]]:
    pairs = {(p.step_time_s, p.total_bytes) for p in points}
    return {(t, m) for t, m in pairs if not any((a <= t and b <= m) and (a < t or b < m) for a, b in pairs)}


def searched(words: Mapping[str, Any], **more: Any) -> tuple[Setup, Space, Found]:
    given_ = gather(words, TABLE)
    (setup,) = build_setups(given_)
    (space,) = spaces_of(setup, given_)
    (found,) = search([Problem(space, setup.machine, 5, **more)])
    return setup, space, found


def compare(words: Mapping[str, Any], *, alone: bool) -> int:
    """Search and loop agree; returns how many layouts the loop had."""
    setup, space, found = searched(words)
    given_ = gather(words, TABLE)
    points = loop(setup, given_, space.gpus, space.global_batch, alone=alone)
    assert found.complete
    assert sum(count for _, count in found.rejected) + found.feasible == space.candidates
    if not points:
        assert not len(found.top)
        assert not found.feasible
        return 0
    times = np.sort(np.unique([p.step_time_s for p in points]))
    assert found.top.step_time_s[0] == times[0]
    least = min(p.total_bytes for p in points if p.step_time_s == times[0])
    assert found.top.total_bytes[0] == least
    mine = set(zip(found.front.step_time_s.tolist(), found.front.total_bytes.tolist(), strict=True))
    assert mine == front(points)
    assert {(t, m) for t, m in zip(found.top.step_time_s, found.top.total_bytes, strict=True)} <= {
        (p.step_time_s, p.total_bytes) for p in points
    }
    return len(points)


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    """A small space: a random model on a random machine with random constraints."""
    model = draw(st.sampled_from([DENSE, EXPERTS, TALL]))
    gpus = draw(st.sampled_from([2, 4, 6, 8, 16]))
    words: dict[str, Any] = dict(model) | {
        "gpus": gpus,
        "global_batch": draw(st.sampled_from([4, 6, 16, 24])),
        "seq_len": draw(st.sampled_from([1024, 2048])),
        "cluster": draw(st.sampled_from(["dgx-h100", "dgx-a100-80g", "azure-nd40rs_v2"])),
        "recompute": [draw(st.sampled_from(["none", "selective", "full"]))],
        "zero": draw(st.sampled_from([[0, 1], [1, 3], [3], [0, 2]])),
        "max_cp": draw(st.sampled_from([1, 2])),
        "max_micro_batch": draw(st.sampled_from([1, 2, 3])),
        "max_tp": draw(st.sampled_from([2, 4])),
        "max_pp": draw(st.sampled_from([2, 4])),
    }
    if model is EXPERTS:
        words["max_ep"], words["max_etp"] = 2, 2
    if draw(st.booleans()):
        words["vpp"] = [1, 2]
    if draw(st.booleans()):
        words["dp_replicate"] = draw(st.sampled_from([[1], [1, 2], [2]]))
    if draw(st.integers(0, 3)) == 0:
        words["dp"] = [draw(st.sampled_from([1, 2, 4]))]
    return words


@settings(max_examples=6, suppress_health_check=[HealthCheck.too_slow])
@given(problems())
def test_search_equals_a_loop_of_single_layouts(words: dict[str, Any]) -> None:
    compare(words, alone=True)


@pytest.mark.parametrize(("model", "gpus", "most"), [(DENSE, 12, 4), (EXPERTS, 8, 2)], ids=["dense", "experts"])
def test_search_equals_a_loop_over_a_whole_space(model: dict[str, int], gpus: int, most: int) -> None:
    """All axes as they are by default: up to a hundred thousand layouts."""
    words = model | {"gpus": gpus, "global_batch": 24, "seq_len": 1024, "cluster": "dgx-h100", "max_micro_batch": most}
    assert compare(words, alone=False) > 1000


def test_a_shard_group_of_one_is_not_the_same_for_every_stage() -> None:
    """ZeRO-3 over one rank still reduces unit by unit between its replicas: found by the test above."""
    words = DENSE | {"gpus": 2, "global_batch": 4, "seq_len": 1024, "cluster": "dgx-h100", "recompute": ["none"]}
    words |= {"zero": [1, 3], "max_cp": 1, "max_micro_batch": 1, "dp_replicate": [2]}
    assert compare(words, alone=True) > 1


def test_tight_memory_and_nothing_that_fits() -> None:
    words = {"model": "llama-3-8b", "gpu": "H100-SXM5-80GB", "gpus": 1, "global_batch": 2, "seq_len": 4096}
    assert compare(words, alone=False) == 0
    assert compare(words | {"gpus": 4, "global_batch": 8, "max_cp": 1}, alone=False) > 0


def test_order_of_axes_names_columns_of_a_layout() -> None:
    assert set(ORDER) <= set(LayoutSpec.model_fields)
