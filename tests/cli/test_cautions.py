"""Options that do nothing or do not go together are said so."""

from __future__ import annotations

from typing import Any

import pytest

from dscalc.answers.memory import memory
from dscalc.report.memory import _fewest


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"model": "deepseek-v3"}, "mtp_left_out"),
        ({"model": "llama-2-7b", "pp": 4, "recompute_layers": 9}, "recompute_layers_above_stage"),
        ({"model": "llama-2-7b", "dp": 8, "zero": 1, "no_sync": True}, "no_sync_does_nothing"),
        ({"model": "llama-2-7b", "capacity_factor": 1.5}, "capacity_factor_without_experts"),
        ({"model": "llama-2-7b", "offload": "parameters", "dp": 8}, "offload_parameters_below_zero3"),
        ({"model": "llama-2-7b", "optimizer_in_backward": True, "grad_accum": 2}, "no_accumulation_in_backward"),
        ({"model": "llama-2-7b", "gpu": "T4"}, "precision_not_supported"),
        ({"model": "llama-2-7b", "gpu": "A100-SXM4-80GB", "precision": "fp8"}, "precision_not_supported"),
        ({"model": "llama-2-7b", "cluster": "dgx-h100", "gpus_per_node": 4}, "gpus_per_node_differs"),
    ],
)
def test_a_caution_where_due_and_nowhere_else(options: dict[str, Any], code: str) -> None:
    assert code in {warning.code for warning in memory(**options).warnings}
    assert code not in {warning.code for warning in memory(model="llama-2-7b", dp=8, zero=3).warnings}


def test_a_count_beyond_reason_is_said_as_a_bound() -> None:
    assert [_fewest(count) for count in (None, 1, 10_000, 10_001)] == ["never", "1", "10,000", "> 10,000"]
