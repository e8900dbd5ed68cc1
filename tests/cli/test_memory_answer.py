"""The memory answer: stable JSON keys, terms that add up, the Python twin, knobs and counts that hold."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

import dscalc
from dscalc.answers.envelope import VERSION
from dscalc.answers.memory import memory

TOP = {"schema", "command", "version", "inputs", "assumptions", "warnings", "result"}
RESULT = {
    "total_bytes",
    "state_bytes",
    "activation_bytes",
    "allocated_bytes",
    "reserved_bytes",
    "device_bytes",
    "usable_bytes",
    "headroom_bytes",
    "low_bytes",
    "high_bytes",
    "fits",
    "regime",
    "peak_stage",
    "peak_moment",
    "terms",
    "stages",
    "knobs",
    "minimum_gpus",
    "activations",
    "host_bytes_per_node",
    "host_terms",
    "pending_bytes",
}
CASES: list[dict[str, Any]] = [
    {"params": "7e9"},
    {"params": 7e9, "gpu": "H100-SXM5-80GB"},
    {"model": "llama-2-70b", "gpu": "H100", "gpus": 64, "tp": 4, "pp": 4, "zero": 1, "stack": "megatron", "gbs": 64},
    {"model": "llama-3-8b", "gpu": "RTX-4090", "lora_rank": 16, "base_precision": "nf4", "seq": "2k"},
    {"model": "deepseek-v3", "gpu": "H200-SXM5-141GB", "ep": 64, "pp": 16, "schedule": "dualpipe", "ga": 64},
    {"layers": 4, "hidden": 512, "heads": 8, "dp": 8, "fsdp": True, "recompute": "full", "mbs": 2},
]


@pytest.mark.parametrize("options", CASES)
def test_json_keys_and_sums(options: dict[str, Any]) -> None:
    answer = memory(**options).to_json()
    json.dumps(answer, allow_nan=False)
    assert set(answer) == TOP
    assert set(answer["result"]) == RESULT
    assert set(answer["inputs"]) == {"model", "hardware", "layout", "training", "marks"}
    assert {"params", "active_params", "mtp_params", "vision_params"} <= set(answer["inputs"]["model"])
    assert {"given", "derived", "default"} >= set(answer["inputs"]["marks"].values())
    for a in answer["assumptions"]:
        assert set(a) == {"name", "value", "unit", "kind", "source"}
        assert a["source"]
    for w in answer["warnings"]:
        assert set(w) == {"code", "message", "next_step"}
    result = answer["result"]
    total = 0.0
    for term in result["terms"]:
        assert set(term) == {"path", "bytes", "formula", "source"}
        assert term["bytes"] >= 0
        assert term["formula"]
        assert term["source"]
        total += term["bytes"]
    assert total == result["total_bytes"]
    assert max(s["bytes"] for s in result["stages"]) == result["total_bytes"]
    assert {"option", "saves_bytes", "cost"} <= set(result["knobs"][0])
    assert {"gpu", "zero_stage", "gpus", "reason"} == set(result["minimum_gpus"][0])
    assert (result["fits"] is None) == (result["usable_bytes"] is None)


def test_seven_billion_parameters_by_hand() -> None:
    """16 N = 112 GB: 14 + 14 + 28 + 28 + 28 [Rajbhandari2020] section 3.1."""
    answer = memory(params="7e9")
    state = {t.path: t.bytes for t in answer.terms if t.path.startswith("state/") and t.bytes}
    assert state == {
        "state/weights": 14e9,
        "state/gradients": 14e9,
        "state/master_weights": 28e9,
        "state/adam_m": 28e9,
        "state/adam_v": 28e9,
    }
    assert answer.state_bytes == 112e9
    kept, recomputed = answer.activations
    assert (kept.recompute, recomputed.recompute) == ("none", "full")
    assert recomputed.bytes < kept.bytes / 4
    gpus = {m.gpu for m in answer.minimum_gpus}
    assert {"A100-SXM4-40GB", "H100-SXM5-80GB", "H200-SXM5-141GB", "MI300X"} <= gpus
    assert answer.fits is None


@pytest.mark.parametrize("gpu", ["H100-SXM5-80GB", "RTX-4090", "H200-SXM5-141GB"])
@pytest.mark.parametrize("options", [{"params": 7e9}, {"params": 30e9, "tp": 4}, {"model": "llama-3-8b", "pp": 2}])
def test_minimum_gpus_is_the_smallest(gpu: str, options: dict[str, Any]) -> None:
    answer = memory(**options, gpu=gpu)
    spec = answer.case.layout.spec
    each = spec.tp * spec.pp
    for entry in answer.minimum_gpus:
        if entry.gpus is None:
            assert "GB" in entry.reason
            continue
        rest = {"grad_accum": spec.grad_accum, "zero": entry.zero_stage, "gpu": gpu}
        assert memory(**options, gpus=entry.gpus, **rest).fits
        if entry.gpus > each:
            assert not memory(**options, gpus=entry.gpus - each, **rest).fits


def test_every_knob_does_what_it_says() -> None:
    options: dict[str, Any] = {"model": "llama-2-13b", "gpu": "H100-SXM5-80GB", "gpus": 8, "zero": 1, "micro_batch": 4}
    answer = memory(**options)
    assert len(answer.knobs) >= 5
    assert answer.fits is False
    for knob in answer.knobs:
        words = knob.option.split()
        changes: dict[str, Any] = {}
        for i, word in enumerate(words):
            if word.startswith("--"):
                value = words[i + 1] if i + 1 < len(words) and not words[i + 1].startswith("--") else True
                changes[word[2:].replace("-", "_")] = value
        again = memory(**{**options, **changes})
        assert again.total_bytes == knob.total_bytes, knob.option
        assert knob.saves_bytes == answer.total_bytes - again.total_bytes
        assert again.fits == knob.fits


def test_the_python_twin_equals_the_command(run_dscalc: Any) -> None:
    words = "memory --model llama-2-70b --gpu H100-SXM5-80GB --gpus 64 --tp 4 --pp 4 --zero 1 --gbs 64 --format json"
    ran = run_dscalc(*words.split())
    twin = memory(model="llama-2-70b", gpu="H100-SXM5-80GB", gpus=64, tp=4, pp=4, zero=1, global_batch=64).to_json()
    assert json.loads(ran.stdout) == json.loads(json.dumps(twin))


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ({"tensor-model-parallel-size": 2, "num_gpus": 8}, {"tp": 2, "gpus": 8}),
        ({"per_device_train_batch_size": "2", "gradient_accumulation_steps": 4}, {"micro_batch": 2, "grad_accum": 4}),
        ({"nnodes": 2, "nproc_per_node": 8, "fsdp": True}, {"gpus": 16, "gpus_per_node": 8, "zero": 3}),
        ({"use_distributed_optimizer": True, "dp": 4}, {"zero": 1, "dp": 4}),
        ({"gradient_checkpointing": True, "seq_length": "8k"}, {"recompute": "full", "seq_len": 8192}),
        ({"recompute_activations": True}, {"recompute": "selective"}),
    ],
)
def test_spellings_of_other_frameworks(words: dict[str, Any], options: dict[str, Any]) -> None:
    assert memory(params=7e9, **words).total_bytes == memory(params=7e9, **options).total_bytes


def test_what_the_warnings_say() -> None:
    def codes(**options: Any) -> set[str]:
        return {w.code for w in memory(**options).warnings}

    assert "does_not_fit" in codes(params=7e9, gpu="H100-SXM5-80GB")
    assert "zero_without_dp" in codes(model="llama-3-8b", zero=1)
    assert "tp_across_nodes" in codes(model="llama-2-70b", tp=16, gpu="H100-SXM5-80GB")
    assert "assumed_shape" in codes(params=7e9)
    assert "assumed_shape" not in codes(model="llama-3-8b")
    assert "memory_unknown" in codes(params=7e9, gpu="A100")
    assert memory(params=7e9, gpu="A100").fits is None


def test_the_face_is_lazy_and_has_one_version() -> None:
    assert dscalc.__version__ == VERSION
    assert dscalc.memory is memory
    assert set(dir(dscalc)) >= {"memory", "evaluate", "load_model", "load_gpu", "DscalcError"}
    with pytest.raises(AttributeError):
        _ = dscalc.nothing


def test_numbers_are_finite() -> None:
    def walk(value: Any) -> None:
        if isinstance(value, dict):
            for inner in value.values():
                walk(inner)
        elif isinstance(value, list):
            for inner in value:
                walk(inner)
        elif isinstance(value, float):
            assert math.isfinite(value)

    for options in CASES:
        walk(memory(**options).to_json())
