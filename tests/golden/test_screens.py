"""Screens as people see them, at 80 and 140 columns: a change of words or numbers shows in a diff.

Run with ``DSCALC_GOLDEN=write`` to write them again, and read the difference before committing it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
SCREENS = {
    "memory-params": "memory --params 7e9",
    "memory-misfit": "memory --model llama-2-70b --gpu H100-SXM5-80GB --gpus 16 --zero 1 --micro-batch 2",
    "memory-megatron": (
        "memory --model llama-2-70b --gpu H100-SXM5-80GB --gpus 64 --tp 4 --pp 4 --stack megatron --zero 1 --gbs 128 "
        "--explain"
    ),
    "memory-lora": "memory --model llama-3-8b --gpu RTX-4090 --lora-rank 16 --base-precision nf4 --seq-len 2k",
    "memory-experts": (
        "memory --model deepseek-v3 --cluster dgx-h200 --gpus 2048 --pp 16 --ep 64 --zero 1 --recompute full --ga 64 "
        "--schedule dualpipe"
    ),
    "step-fsdp": "step --model llama-3-8b --cluster dgx-h100 --gpus 16 --zero 3 --stack fsdp --micro-batch 2 --explain",
    "step-measured": (
        "step --model llama-2-70b --cluster dgx-h100 --gpus 64 --tp 4 --pp 4 --gbs 128 --stack nanotron --measured 38s"
    ),
    "step-experts": (
        "step --model deepseek-v3 --cluster dgx-h200 --gpus 2048 --pp 16 --ep 64 --zero 1 --recompute full --ga 64 "
        "--schedule dualpipe --stack megatron --precision fp8"
    ),
    "comm_megatron": (
        "comm --model llama-3-70b --cluster dgx-h100 --gpus 256 --tp 8 --pp 4 --zero 1 --stack megatron --gbs 256"
    ),
    "comm_hand": "comm --params 7e9 --dp 32 --bandwidth 50GB/s --latency 5us --explain",
    "comm_experts": "comm --model deepseek-v3 --cluster gb200-nvl72 --gpus 2048 --pp 16 --ep 64 --zero 1 --ga 64",
    "comm_composed": (
        "comm --model llama-3-8b --gpu H100-SXM5-80GB --gpus-per-node 8 --interconnect 400Gb/s --gpus 32 --tp 16 --fsdp"
    ),
    "comm_ring": "comm --trace-ring 4",
    "ratio_hand": "ratio --flops 400TF --bandwidth 50GB/s --tokens-per-rank 8k --gradient-bytes 2",
    "ratio_waits": "ratio --model llama-3-8b --flops 400TF --bandwidth 20GB/s --dp 32 --gradient-bytes 4 --explain",
    "ratio_profile": "ratio --model llama-2-70b --cluster dgx-h100 --gpus 256 --tp 8 --stack megatron --gbs 64",
    "ratio_sharded": (
        "ratio --model llama-2-70b --gpu A100-SXM4-80GB --bandwidth 20GB/s --stack fsdp2 --dp-shard 8 --dp-replicate 4"
    ),
    "ratio_experts": "ratio --model deepseek-v3 --flops 400TF --bandwidth 40GB/s --dp 128 --ep 64 --pp 16 --ga 64",
    "batch-paper": "batch --workers 256 --local-batch 32 --base-batch 256 --base-lr 0.1 --dataset-samples 1281167",
    "batch-explain": (
        "batch --workers 2 --local-batch 8 --seq-len 2k --optimizer adamw --base-batch 8 --base-lr 1e-4 "
        "--warmup 500steps --train-loss 3 --jitter 3% --explain"
    ),
    "batch-model": (
        "batch --model llama-3-70b --cluster dgx-h100 --gpus 256 --tp 8 --pp 4 --zero 1 --ga 16 --stack megatron "
        "--tokens 1T --noise-scale 2M --base-batch 1k --base-lr 1.5e-4"
    ),
    "fit-compare": (
        "fit tests/golden/logs/one-node.log tests/golden/logs/two-nodes.log --cluster dgx-h100 --compare --explain"
    ),
    "sweep": "sweep --model llama-3-8b --cluster dgx-h100 --gpus 8..64 --gbs 512 --max-cp 1 --max-pp 2 --tokens 2T",
    "sweep-machines": (
        "sweep --model llama-3-70b --cluster dgx-h100,dgx-a100-80g --gpus 64 --gbs 256 --tp 4,8 --pp 2,4 --cp 1 "
        "--zero 1 --top 3 --price 2.5 --tokens 1T --explain"
    ),
    "sweep-nothing": "sweep --model llama-3-70b --cluster dgx-h100 --gpus 4,8 --gbs 64 --max-cp 1",
    "list-gpus": "list gpus",
    "list-stacks": "list stacks",
    "show-gpu": "show H100-SXM5-80GB",
}
TOOK = re.compile(r"^Took .*\n", re.MULTILINE)  # a sweep says how long it worked
FORMS = {
    "sweep-quiet.txt": "sweep --params 7e9 --cluster dgx-h100 --gpus 8 --gbs 64 --cp 1 --quiet",
    "sweep.csv": "sweep --params 7e9 --cluster dgx-h100 --gpus 8 --gbs 64 --cp 1 --pp 1 --zero 1 --top 3 --format csv",
    "sweep.md": (
        "sweep --params 7e9 --cluster dgx-h100 --gpus 8,16 --gbs 64 --cp 1 --pp 1 --zero 1 --top 3 --format markdown"
    ),
    "memory-quiet.txt": "memory --params 7e9 --gpu H100-SXM5-80GB --quiet",
    "memory.csv": "memory --params 7e9 --format csv",
    "memory.md": "memory --params 7e9 --format markdown",
    "step-quiet.txt": "step --params 7e9 --gpu H100-SXM5-80GB --gpus 8 --tp 8 --quiet",
    "step.csv": "step --params 7e9 --gpu H100-SXM5-80GB --gpus 8 --tp 8 --format csv",
    "step.md": "step --params 7e9 --gpu H100-SXM5-80GB --gpus 8 --tp 8 --format markdown",
    "batch-quiet.txt": "batch --workers 256 --local-batch 32 --base-batch 256 --base-lr 0.1 --quiet",
    "batch.csv": "batch --workers 64 --local-batch 32 --base-batch 256 --base-lr 0.1 --format csv",
    "batch.md": "batch --workers 64 --local-batch 32 --base-batch 256 --base-lr 0.1 --format markdown",
    "step-jitter.md": "step --params 7e9 --gpu H100-SXM5-80GB --gpus 8 --tp 8 --jitter 2% --format markdown",
    "memory.json": "memory --params 7e9 --gpu H100-SXM5-80GB --gpus 8 --zero 3 --format json",
}


@pytest.mark.parametrize("columns", [80, 140])
@pytest.mark.parametrize("name", SCREENS)
def test_screen(run_dscalc: Any, name: str, columns: int) -> None:
    ran = run_dscalc(*SCREENS[name].split(), columns=columns)
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""
    assert "\x1b" not in ran.stdout
    too_long = [line for line in ran.stdout.splitlines() if len(line) > columns]
    assert not too_long
    assert all(line == line.rstrip() for line in ran.stdout.splitlines())
    compare(HERE / f"{name}-{columns}.txt", TOOK.sub("", ran.stdout))


@pytest.mark.parametrize("name", FORMS)
def test_form(run_dscalc: Any, name: str) -> None:
    ran = run_dscalc(*FORMS[name].split())
    assert ran.returncode == 0, ran.stderr
    compare(HERE / name, ran.stdout)


def compare(path: Path, text: str) -> None:
    if os.environ.get("DSCALC_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"{path.name} is missing; run with DSCALC_GOLDEN=write"
    assert text == path.read_text(encoding="utf-8")


def test_colour_only_adds_colour(run_dscalc: Any) -> None:
    """The same words with colour; letters tell the parts of the bar apart without it."""
    from dscalc.answers.memory import memory
    from dscalc.report.memory import screen

    answer = memory(params=7e9, gpu="H100-SXM5-80GB")
    plain, coloured = screen(answer, colour=False), screen(answer, colour=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain
    assert "W weights" in plain


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    from dscalc.answers.memory import memory
    from dscalc.report.memory import screen

    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in screen(memory(params=7e9), colour=True)
