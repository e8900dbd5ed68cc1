"""What a knob says to type: typed after the options of the question, it gives exactly the layout that was shown."""

from __future__ import annotations

import random
import re
import shlex
from typing import Any

import pytest

import dscalc
from dscalc.answers.memory import MemoryAnswer, memory
from dscalc.errors import DscalcError

FLAG = "drop --no-sync"


def parsed(text: str) -> dict[str, Any]:
    """The options of a knob's text by name, as a call takes them."""
    options: dict[str, Any] = {}
    words = text.removeprefix(FLAG).split()
    while words:
        word = words.pop(0)
        name = word[2:].replace("-", "_")
        if words and not words[0].startswith("--"):
            options[name] = words.pop(0)
        elif name in ("no_sequence_parallel", "no_reshard"):
            options[name[3:]] = False
        else:
            options[name] = True
    return options


def check(options: dict[str, Any], answer: MemoryAnswer, count: int, rng: random.Random) -> None:
    """Ask again with some knobs turned."""
    for knob in rng.sample(answer.knobs, min(count, len(answer.knobs))):
        base = {name: value for name, value in options.items() if name != "no_sync" or FLAG not in knob.option}
        again = memory(**{**base, **parsed(knob.option)})
        assert again.total_bytes == knob.total_bytes, (options, knob.option)
        assert again.fits == knob.fits
        assert again.case.layout.spec.gpus == knob.gpus


def layouts(rng: random.Random) -> dict[str, Any]:
    """One random question, said in one of the ways that people say it."""
    tp, pp, dp = rng.choice([1, 2, 4]), rng.choice([1, 2, 4]), rng.choice([1, 2, 8, 32])
    micro, accum = rng.choice([1, 2, 4]), rng.choice([1, 4, 8])
    options: dict[str, Any] = {"model": rng.choice(["llama-2-7b", "llama-2-70b", "mixtral-8x7b"])}
    options |= rng.choice([{"gpu": "H100"}, {"gpu": "A100-SXM4-80GB"}, {"cluster": "dgx-h100"}, {}])
    options |= {"tp": tp} if tp > 1 or rng.random() < 0.3 else {}
    options |= {"pp": pp} if pp > 1 or rng.random() < 0.3 else {}
    gpus = tp * pp * dp
    ways: list[dict[str, Any]] = [{"dp": dp}, {"gpus": gpus}, {"gpus": gpus, "dp": dp}]
    ways += [{"nodes": gpus // 8, "gpus_per_node": 8}] if gpus % 8 == 0 else []
    ways += [{"dp_replicate": 2, "dp_shard": dp // 2}, {"dp_shard": dp // 2, "gpus": gpus}] if dp > 1 else []
    options |= rng.choice(ways)
    options |= rng.choice(
        [
            {},
            {"micro_batch": micro},
            {"grad_accum": accum},
            {"micro_batch": micro, "grad_accum": accum},
            {"global_batch": micro * accum * dp, "micro_batch": micro},
            {"global_batch": micro * accum * dp},
            {"tokens_per_rank": 4096 * micro * accum},
        ]
    )
    for name, values in (
        ("zero", [0, 1, 2, 3]),
        ("recompute", ["none", "selective", "full"]),
        ("recompute_layers", [2]),
        ("offload", ["optimizer", "none", "activations"]),
        ("no_sync", [True]),
        ("reshard", [False]),
        ("sequence_parallel", [True, False]),
        ("attention", ["unfused"]),
        ("stack", ["megatron", "fsdp2", "nanotron", "deepspeed", "torchtune"]),
        ("vpp", [2]),
        ("seq_len", [8192]),
        ("cp", [2]),
        ("ep", [2, 4]),
        ("lora_rank", [8]),
    ):
        if rng.random() < 0.25:
            options[name] = rng.choice(values)
    return options


@pytest.mark.slow
def test_any_knob_is_what_to_type() -> None:
    rng = random.Random(7)  # noqa: S311
    asked = 0
    while asked < 60:
        options = layouts(rng)
        try:
            answer = memory(**options)
        except DscalcError:
            continue
        asked += 1
        check(options, answer, 5, rng)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"dp": 64, "global_batch": 256}, "--pp 2 --dp 32"),
        ({"dp": 64, "grad_accum": 4}, "--pp 2 --dp 32 --grad-accum 8"),
        ({"gpus": 1, "dp": 1}, "--gpus 2 --dp 2 --zero 3"),
        ({"nodes": 1, "gpus_per_node": 1}, "--nodes 2 --zero 3"),
        ({"dp": 8, "micro_batch": 4}, "--micro-batch 2 --grad-accum 2"),
        ({"dp": 8, "micro_batch": 4, "global_batch": 32}, "--micro-batch 2"),
        ({"dp": 2, "recompute_layers": 4}, "--recompute-layers 32"),
        ({"dp": 8, "offload": "optimizer", "recompute": "full"}, "--offload optimizer,activations"),
        ({"dp": 2}, "--tp 2 --dp 1 --grad-accum 2"),
    ],
)
def test_a_knob_names_every_option_that_changes(options: dict[str, Any], text: str) -> None:
    options = {"model": "llama-2-7b", "gpu": "A100-SXM4-40GB", **options}
    answer = memory(**options)
    found = [knob.option for knob in answer.knobs]
    assert text in found
    check(options, answer, 99, random.Random(1))  # noqa: S311


def test_the_next_step_can_be_pasted(run_dscalc: Any) -> None:
    words = "memory --model llama-2-70b --gpu H100 --gpus 64 --zero 2 --mbs 2 --gbs 256 --offload activations --quiet"
    ran = run_dscalc(*words.split())
    step = ran.stdout.strip().partition("; next: ")[2]
    assert step
    again = run_dscalc(*words.split(), *shlex.split(step), "--check")
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith("fits")


@pytest.mark.parametrize("stack", ["megatron", "nemo", "nanotron", "megatron-deepspeed"])
def test_a_stack_without_later_stages_offers_none(stack: str) -> None:
    for options in ({"gpus": 8}, {"gpus": 1}, {"gpus": 8, "zero": 1}):
        answer = memory(model="llama-2-70b", gpu="H100", stack=stack, **options)
        words = " ".join(knob.option for knob in answer.knobs)
        assert "--zero 2" not in words
        assert "--zero 3" not in words
    assert "--zero 1" in [k.option for k in memory(model="llama-2-70b", gpu="H100", stack=stack, gpus=8).knobs]


@pytest.mark.parametrize("no_sync", [False, True])
@pytest.mark.parametrize("grad_accum", [1, 4])
def test_the_traffic_of_a_stage_is_that_of_comm(grad_accum: int, no_sync: bool) -> None:
    options: dict[str, Any] = {"model": "llama-2-7b", "cluster": "dgx-h100", "gpus": 64, "grad_accum": grad_accum}
    options |= {"no_sync": True} if no_sync else {}
    plain = dscalc.comm(**options, gradient_bytes=2).total.traffic_bytes
    for knob in memory(**options).knobs:
        if knob.option in ("--zero 1", "--zero 2", "--zero 3"):
            sent = dscalc.comm(**options, **parsed(knob.option), gradient_bytes=2).total.traffic_bytes
            said = re.search(r"([0-9.]+) times the traffic", knob.cost)
            assert sent / plain == pytest.approx(float(said[1]) if said else 1.0, rel=0.01), knob
