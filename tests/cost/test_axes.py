"""Groups from the two grids against ranks counted one by one, and every legality rule with an example on each side."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dscalc.cost.axes import AXES, groups, rules
from dscalc.cost.evaluate import MEMORY_REASON, evaluate
from dscalc.records import ModelShape
from tests.cost.helpers import DEEPSEEK_V3, GEMMA_2_9B, LLAMA_3_8B, MIXTRAL_8X7B, gpu, layouts
from tests.oracles.sharding import Grid

small = st.sampled_from([1, 2, 3, 4])


@settings(max_examples=80)
@given(tp=small, cp=small, dp_shard=small, dp_replicate=small, etp=small, ep=small, pp=small)
def test_group_sizes_are_counts_of_ranks(
    tp: int, cp: int, dp_shard: int, dp_replicate: int, etp: int, ep: int, pp: int
) -> None:
    """Coordinates with strides: dense tp 1, cp t, dp_shard t c, dp_replicate t c dp_shard; experts etp 1, ep etp,
    the rest etp ep.
    """
    assume(tp * cp * dp_shard % (etp * ep) == 0)
    grid = Grid(tp, pp, cp, dp_shard, dp_replicate, etp, ep)
    found = groups(layouts(tp=tp, cp=cp, dp=dp_shard * dp_replicate, dp_replicate=dp_replicate, etp=etp, ep=ep, pp=pp))
    for q in range(grid.stage_ranks):
        assert found.dp_cp[0] == len(grid.same(q, "tp"))
        assert found.shard[0] == len(grid.same(q, "tp", "dp_replicate"))
        assert found.dp_shard[0] == len(grid.same(q, "tp", "cp", "dp_replicate"))
        assert found.edp[0] == len(grid.same(q, "etp", "ep"))
        assert found.expert_shard[0] == len(grid.same(q, "etp", "ep", "dp_replicate"))
    assert found.gpus[0] == grid.stage_ranks * pp


GQA = replace(LLAMA_3_8B, kv_heads=12, heads=24, ffn_hidden=12288)
# rule: (shape, legal, illegal); each illegal example breaks that rule, whatever else it breaks
EXAMPLES: dict[str, list[tuple[ModelShape, dict[str, Any], dict[str, Any]]]] = {
    "tp_heads": [(LLAMA_3_8B, {"tp": 32}, {"tp": 64}), (GQA, {"tp": 12}, {"tp": 16})],
    "tp_kv_heads": [(LLAMA_3_8B, {"tp": 4}, {"tp": 12}), (GQA, {"tp": 6}, {"tp": 8}), (GQA, {"tp": 24}, {"tp": 8})],
    "tp_ffn": [(LLAMA_3_8B, {"tp": 8}, {"tp": 3})],
    "cp_seq_len": [
        (LLAMA_3_8B, {"cp": 8, "seq_len": 4096}, {"cp": 3, "seq_len": 4096}),
        (LLAMA_3_8B, {"cp": 4, "seq_len": 4104}, {"cp": 4, "seq_len": 4100}),  # zigzag halves need 2 * cp
    ],
    "cp_ulysses_heads": [
        (LLAMA_3_8B, {"cp": 8, "tp": 4, "cp_comm": "ulysses"}, {"cp": 16, "tp": 4, "cp_comm": "ulysses"}),
        (LLAMA_3_8B, {"cp": 16, "tp": 4}, {"cp": 64, "cp_comm": "ulysses"}),
    ],
    "dp_replicate": [(LLAMA_3_8B, {"dp": 8, "dp_replicate": 2}, {"dp": 8, "dp_replicate": 3})],
    "pp_layers": [
        (LLAMA_3_8B, {"pp": 32}, {"pp": 33}),
        (LLAMA_3_8B, {"pp": 8, "vpp": 4, "n_micro": 8, "schedule": "interleaved"}, {"pp": 8, "vpp": 5, "n_micro": 8}),
    ],
    "vpp_schedule": [
        (LLAMA_3_8B, {"pp": 2, "vpp": 2, "n_micro": 2, "schedule": "interleaved"}, {"pp": 2, "vpp": 2}),
        (LLAMA_3_8B, {"pp": 2}, {"vpp": 2, "schedule": "interleaved"}),
    ],
    "interleaved_micro_batches": [
        (
            LLAMA_3_8B,
            {"pp": 4, "vpp": 2, "n_micro": 8, "schedule": "interleaved"},
            {"pp": 4, "vpp": 2, "n_micro": 6, "schedule": "interleaved"},
        ),
    ],
    "dualpipe": [
        (LLAMA_3_8B, {"pp": 4, "n_micro": 8, "schedule": "dualpipe"}, {"pp": 3, "n_micro": 8, "schedule": "dualpipe"}),
        (LLAMA_3_8B, {"pp": 3, "n_micro": 3}, {"pp": 4, "n_micro": 7, "schedule": "dualpipe"}),
        (LLAMA_3_8B, {"pp": 4, "n_micro": 10, "schedule": "dualpipe"}, {"pp": 4, "n_micro": 9, "schedule": "dualpipe"}),
    ],
    "zb_v_layers": [(LLAMA_3_8B, {"pp": 16, "schedule": "zb-v"}, {"pp": 17, "schedule": "zb-v"})],
    "ep_experts": [(MIXTRAL_8X7B, {"ep": 8, "dp": 8}, {})],
    "ep_divides": [(MIXTRAL_8X7B, {"ep": 4, "dp": 4}, {"ep": 3, "dp": 3})],
    "expert_grid": [
        (MIXTRAL_8X7B, {"ep": 4, "dp": 2, "tp": 2}, {"ep": 4, "dp": 2}),
        (MIXTRAL_8X7B, {"ep": 2, "etp": 2, "tp": 4}, {"ep": 2, "etp": 4, "tp": 4}),
    ],
    "expert_block": [
        (
            MIXTRAL_8X7B,
            {"ep": 4, "dp": 4, "tp": 4, "pp": 2, "rank_order": "tp-cp-pp-dp"},
            {"ep": 8, "dp": 4, "tp": 4, "pp": 2, "rank_order": "tp-cp-pp-dp"},
        ),
        (MIXTRAL_8X7B, {"ep": 8, "dp": 4, "tp": 4, "pp": 2}, {"ep": 4, "dp": 4, "pp": 2, "rank_order": "tp-cp-pp-dp"}),
    ],
    "expert_replicas": [
        (MIXTRAL_8X7B, {"ep": 2, "dp": 8, "dp_replicate": 2}, {"ep": 2, "dp": 6, "dp_replicate": 2}),
    ],
    "etp_experts": [(MIXTRAL_8X7B, {"etp": 2, "tp": 2}, {})],
    "etp_ffn": [(MIXTRAL_8X7B, {"etp": 2, "tp": 2}, {"etp": 3, "dp": 3})],
    "tp_shared_ffn": [
        (replace(DEEPSEEK_V3, shared_ffn_hidden=2048), {"tp": 8}, {"tp": 3}),
        (replace(DEEPSEEK_V3, shared_ffn_hidden=2052), {"tp": 4}, {"tp": 8}),
    ],
    "sp_seq_len": [
        (LLAMA_3_8B, {"tp": 8, "cp": 2, "sequence_parallel": 1}, {"tp": 8, "seq_len": 4100, "sequence_parallel": 1}),
        (LLAMA_3_8B, {"tp": 8, "seq_len": 4100}, {"tp": 8, "cp": 2, "seq_len": 4104, "sequence_parallel": 1}),
    ],
}


def reasons(shape: ModelShape, usable: float = float("nan"), **given: Any) -> list[str]:
    found = evaluate(shape, layouts(**given), gpu(usable))
    return [n for n, mask in zip(found.reasons.names, found.reasons.masks, strict=True) if mask[0]]


def test_every_rule_has_examples() -> None:
    """A rule without an example fails here, so a new one cannot come untested."""
    assert {rule.name for rule in rules()} <= set(EXAMPLES)


@pytest.mark.parametrize("name", [rule.name for rule in rules()])
def test_rule_on_both_sides(name: str) -> None:
    for shape, legal, illegal in EXAMPLES[name]:
        assert reasons(shape, **legal) == []
        if illegal:
            assert name in reasons(shape, **illegal), illegal


def test_dense_models_have_no_expert_degrees() -> None:
    assert "ep_experts" in reasons(LLAMA_3_8B, ep=2, dp=2)
    assert "etp_experts" in reasons(LLAMA_3_8B, etp=2, tp=2)


def test_rules_say_what_is_right_by_option() -> None:
    assert all("--" in rule.message or "needs" in rule.message or "pp" in rule.message for rule in rules())
    assert len({rule.name for rule in rules()}) == len(rules())
    assert len({axis.name for axis in AXES}) == len(AXES)


def test_first_reason_follows_the_written_order() -> None:
    """The first rule in axis order that a layout breaks; memory comes last; -1 where nothing is wrong."""
    layout = layouts(
        tp=[1, 64, 1, 1, 1, 64],
        cp=[1, 3, 3, 1, 1, 1],
        dp=[1, 4, 4, 4, 1, 1],
        dp_replicate=[1, 3, 3, 3, 1, 1],
        pp=[1, 1, 1, 1, 33, 33],
    )
    small_gpu = gpu(usable_bytes=1e9)
    found = evaluate(LLAMA_3_8B, layout, small_gpu, keep_terms=False)
    names = found.reasons.names
    assert names == (*(rule.name for rule in rules()), MEMORY_REASON)
    assert [names[i] for i in found.reasons.first] == [
        MEMORY_REASON,
        "tp_heads",
        "cp_seq_len",
        "dp_replicate",
        "pp_layers",
        "tp_heads",
    ]
    assert not found.feasible.any()
    first = [min(k for k in range(len(names)) if found.reasons.masks[k][row]) for row in range(6)]
    assert list(found.reasons.first) == first


def test_unknown_memory_rejects_nothing() -> None:
    found = evaluate(GEMMA_2_9B, layouts(tp=[1, 2, 4]), gpu())
    assert found.feasible.all()
    assert (found.reasons.first == -1).all()
    assert np.isnan(found.memory.headroom_bytes).all()


def test_memory_rejects_exactly_what_does_not_fit() -> None:
    total = evaluate(GEMMA_2_9B, layouts(), gpu()).memory.total_bytes[0]
    assert evaluate(GEMMA_2_9B, layouts(), gpu(total)).feasible[0]
    assert not evaluate(GEMMA_2_9B, layouts(), gpu(np.nextafter(total, 0.0))).feasible[0]
