"""What follows from what in a layout, and which options contradict each other."""

from __future__ import annotations

from typing import Any

import pytest

from dscalc.errors import InputError
from dscalc.specs.layout import LayoutSpec, resolve


def value(name: str, /, **given: Any) -> tuple[Any, str]:
    found = resolve(given, default_stack="paper")
    return getattr(found.spec, name), found.marks[name]


@pytest.mark.parametrize(
    ("given", "name", "expected", "mark"),
    [
        ({}, "dp", 1, "default"),
        ({}, "gpus", 1, "derived"),
        ({"gpus": 16, "tp": 4}, "dp", 4, "derived"),
        ({"gpus": 16, "tp": 4}, "gpus", 16, "given"),
        ({"dp": 3, "pp": 2}, "gpus", 6, "derived"),
        ({"nodes": 4, "gpus_per_node": 8, "tp": 8}, "dp", 4, "derived"),
        ({"dp_replicate": 2, "dp_shard": 8}, "dp", 16, "derived"),
        ({"dp_replicate": 2, "dp_shard": 8}, "zero", 3, "derived"),
        ({"dp": 16, "dp_shard": 8}, "dp_replicate", 2, "derived"),
        ({"gpus": 32, "dp_shard": 8}, "dp_replicate", 4, "derived"),
        ({"dp": 16, "dp_replicate": 2, "zero": 1}, "dp_shard", 8, "derived"),
        ({"global_batch": 64, "micro_batch": 2, "grad_accum": 4}, "dp", 8, "derived"),
        ({"dp": 8, "global_batch": 64, "micro_batch": 2}, "grad_accum", 4, "derived"),
        ({"dp": 8, "global_batch": 64, "grad_accum": 2}, "micro_batch", 4, "derived"),
        ({"dp": 8, "global_batch": 64}, "grad_accum", 8, "derived"),
        ({"dp": 8, "global_batch": 64}, "micro_batch", 1, "default"),
        ({"dp": 8, "micro_batch": 2}, "global_batch", 16, "derived"),
        ({"seq_len": 2048, "tokens_per_rank": 8192}, "grad_accum", 4, "derived"),
        ({"seq_len": 2048, "tokens_per_rank": 8192, "grad_accum": 2}, "micro_batch", 2, "derived"),
        ({"pp": 8}, "grad_accum", 8, "default"),
        ({"pp": 8, "vpp": 2}, "schedule", "interleaved", "default"),
        ({"pp": 8, "grad_accum": 32}, "tokens_per_rank", 32 * 4096, "derived"),
        ({"tp": 2}, "sequence_parallel", True, "default"),
        ({}, "sequence_parallel", False, "default"),
        ({"recompute_layers": 4}, "recompute", "full", "derived"),
        ({"offload": ("none",)}, "offload", (), "given"),
    ],
)
def test_what_follows(given: dict[str, Any], name: str, expected: Any, mark: str) -> None:
    assert value(name, **given) == (expected, mark)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (
            {"tp": 4, "pp": 2, "dp": 3, "gpus": 16},
            ["--tp 4 x --pp 2 x --cp 1 x --dp 3 = 24 GPUs", "--gpus is 16", "--dp 2"],
        ),
        ({"tp": 3, "gpus": 16}, ["--tp 3", "15 or 18"]),
        ({"tp": 32, "gpus": 16}, ["32 GPUs would do"]),
        ({"nodes": 4}, ["--nodes", "--gpus-per-node"]),
        ({"nodes": 4, "gpus_per_node": 8, "gpus": 16}, ["= 32", "--gpus is 16"]),
        ({"dp": 16, "dp_shard": 3}, ["--dp-shard", "does not divide dp = 16"]),
        ({"dp": 16, "dp_shard": 4, "dp_replicate": 2}, ["= 8", "dp is 16"]),
        ({"dp": 8, "global_batch": 100}, ["--global-batch", "96 or 104"]),
        ({"dp": 8, "global_batch": 4}, ["8 would do"]),
        (
            {"dp": 8, "global_batch": 64, "micro_batch": 2, "grad_accum": 2},
            ["--micro-batch 2 x --grad-accum 2 = 4", "= 8"],
        ),
        ({"dp": 8, "global_batch": 64, "micro_batch": 3}, ["--micro-batch", "3 does not divide"]),
        ({"global_batch": 64, "micro_batch": 3, "grad_accum": 2}, ["--micro-batch 3 x --grad-accum 2"]),
        ({"seq_len": 2048, "tokens_per_rank": 3000}, ["--tokens-per-rank", "2048 would do"]),
        ({"seq_len": 1024, "tokens_per_rank": 2048, "dp": 2, "global_batch": 8}, ["2 sequences", "= 4"]),
        ({"recompute": "selective", "recompute_layers": 4}, ["--recompute-layers", "selective"]),
    ],
)
def test_contradictions_name_the_options(given: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        resolve(given)
    for word in words:
        assert word in str(caught.value)


def test_expert_ranks_default_to_the_fewest_that_hold_them() -> None:
    found = resolve({"ep": 64, "tp": 4}, experts=256)
    assert (found.spec.dp, found.marks["dp"]) == (16, "default")
    assert found.spec.etp == 1  # ep x tp would need more ranks than there are


def test_a_short_model_sets_the_sequence_length() -> None:
    assert resolve({}, longest=1024).spec.seq_len == 1024
    assert resolve({}, longest=131072).spec.seq_len == 4096
    assert resolve({"seq_len": 8192}, longest=1024).spec.seq_len == 8192


def test_a_stack_sets_defaults_and_options_win() -> None:
    found = resolve(
        {"stack": "x", "loss": "eager"},
        stack_defaults={"recipe": "fsdp", "loss": "chunked", "zero": 3},
        default_stack="x",
    )
    assert (found.spec.recipe, found.marks["recipe"], found.why["recipe"]) == ("fsdp", "default", "set by --stack x")
    assert (found.spec.loss, found.spec.zero) == ("eager", 3)


@pytest.mark.parametrize(
    ("names", "at_fault"),
    [
        (("tp", "pp", "cp", "dp"), "--gpus"),
        (("micro_batch", "grad_accum", "dp_shard", "dp_replicate"), "--global-batch"),
    ],
)
def test_a_product_beyond_all_reason_is_refused(names: tuple[str, ...], at_fault: str) -> None:
    with pytest.raises(InputError, match=f"{at_fault}: 1e.36 is out of range"):
        resolve(dict.fromkeys(names, 10**9), default_stack="paper")


def test_a_layout_built_by_hand_is_checked() -> None:
    values = resolve({}, default_stack="paper").spec.model_dump()
    assert LayoutSpec(**values).model_dump() == values
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        LayoutSpec(**{**values, "tp": 0})
