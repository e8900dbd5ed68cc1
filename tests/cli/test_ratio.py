"""``dscalc ratio``: numbers as on paper, stable keys, levers that do what they say, screens, bad input."""

from __future__ import annotations

import csv
import io
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dscalc
from dscalc.answers.ratio import HIDES, ONE_RANK, WAITS, RatioAnswer, ratio
from dscalc.errors import DscalcError
from dscalc.specs.option_table import OPTIONS

GOLDEN = Path(__file__).parents[1] / "golden"
HAND = {"flops": "400TF", "bandwidth": "50GB/s", "tokens_per_rank": "8k", "gradient_bytes": 2}
HAND_WORDS = ("ratio", "--flops", "400TF", "--bandwidth", "50GB/s", "--tokens-per-rank", "8k", "--gradient-bytes", "2")
RESULT = {
    "compute_time_s",
    "communication_time_s",
    "communication_time_exact_s",
    "ratio",
    "ratio_exact",
    "break_even_tokens_per_rank",
    "max_useful_data_parallel",
    "max_useful_data_parallel_exact",
    "max_useful_gpus",
    "tokens_per_rank",
    "global_batch_tokens",
    "effective_flop_per_s",
    "bandwidth_bytes_per_s",
    "gradient_bytes",
    "data_parallel",
    "reducing_ranks",
    "verdict",
    "effects",
    "levers",
    "notes",
}
CASES: list[dict[str, Any]] = [
    HAND,
    {**HAND, "dp": 32},
    {**HAND, "dp": 1},
    {"flops": 4e14, "bandwidth": 5e10, "global_batch": 1024},
    {"params": 7e9, **HAND, "dp": 32},
    {"params": 7e9, "gpu": "H100-SXM5-80GB", "peak_fraction": 0.4, "gpus": 8},
    {"model": "llama-3-8b", "cluster": "dgx-h100", "gpus": 64},
    {"model": "llama-3-8b", "gpu": "RTX-4090", "gpus": 8, "lora_rank": 16, "zero": 3, "base_precision": "nf4"},
    {"model": "llama-2-70b", "cluster": "dgx-a100-80g", "gpus": 256, "stack": "fsdp2", "dp_shard": 8},
    {"model": "deepseek-v3", "cluster": "dgx-h200", "gpus": 2048, "pp": 16, "ep": 64, "zero": 1, "ga": 64},
    {"model": "llama-2-70b", "gpu": "H100", "interconnect": "400Gb/s", "gpus": 64, "tp": 8, "latency": "5us"},
    {"model": "llama-3-8b", "gpu": "H100", "interconnect": "ib-ndr", "gpus": 64, "cp": 4, "recompute": "selective"},
]


def result(**options: Any) -> dict[str, Any]:
    found: dict[str, Any] = ratio(**options).to_json()["result"]
    return found


# ------------------------------------------------------------------------------------------------------------- on paper
def test_numbers_by_hand_need_no_model() -> None:
    found = result(**HAND)
    assert found["ratio"] == 3 * 8192 * 50e9 / (400e12 * 2) == 1.536
    assert found["break_even_tokens_per_rank"] == pytest.approx(5333.333333333333, rel=1e-14)
    assert found["ratio_exact"] is None
    assert found["compute_time_s"] is None  # of how many parameters, nobody said
    assert found["max_useful_data_parallel"] is None
    assert found["verdict"] == HIDES


def test_the_exact_factor_at_a_given_k() -> None:
    found = result(**HAND, dp=32)
    assert found["ratio"] == 1.536
    assert found["ratio_exact"] == pytest.approx(1.536 * 32 / 31, rel=1e-14)
    assert found["global_batch_tokens"] == 8192 * 32
    assert found["max_useful_data_parallel"] == pytest.approx(32 * 1.536, rel=1e-14)  # 49.152
    assert found["max_useful_data_parallel_exact"] == pytest.approx(1 + 32 * 1.536, rel=1e-14)


def test_with_parameters_the_times_are_the_papers() -> None:
    """6 x 7e9 x 8192 / 400e12 = 0.86016 s; 2 x 7e9 x 2 / 50e9 = 0.56 s, at K = 32 times 31/32."""
    found = result(params=7e9, **HAND, dp=32)
    assert found["compute_time_s"] == pytest.approx(0.86016, rel=1e-12)
    assert found["communication_time_s"] == pytest.approx(0.56, rel=1e-12)
    assert found["communication_time_exact_s"] == pytest.approx(0.5425, rel=1e-12)
    assert found["ratio"] == 1.536


@pytest.mark.parametrize("params", [1e8, 7e9, 1e12])
def test_parameters_cancel(params: float) -> None:
    assert result(params=params, **HAND)["ratio"] == result(**HAND)["ratio"]


def test_one_rank_sends_nothing() -> None:
    answer = ratio(**HAND, dp=1)
    found = answer.to_json()["result"]
    assert (answer.verdict, found["ratio"], found["ratio_exact"], found["levers"]) == (ONE_RANK, None, None, [])
    assert result(params=7e9, **HAND, dp=1)["communication_time_s"] == 0.0
    assert ratio(params=7e9, flops="400TF", gpus=1).verdict == ONE_RANK  # not even a network is needed


def test_tensor_and_pipeline_parallelism_cancel_and_multiply_gpus() -> None:
    plain, split = result(params=7e9, **HAND, dp=32), result(params=7e9, **HAND, dp=32, tp=4, pp=2)
    assert split["ratio"] == plain["ratio"]
    assert split["compute_time_s"] == pytest.approx(plain["compute_time_s"] / 8, rel=1e-12)
    assert split["communication_time_s"] == pytest.approx(plain["communication_time_s"] / 8, rel=1e-12)
    assert split["max_useful_gpus"] == pytest.approx(8 * plain["max_useful_data_parallel"], rel=1e-12)


def test_context_parallel_gpus_share_the_tokens_and_join_the_ring() -> None:
    plain, split = result(params=7e9, **HAND, dp=32), result(params=7e9, **HAND, dp=32, cp=4)
    assert split["ratio"] == pytest.approx(plain["ratio"] / 4, rel=1e-12)
    assert split["reducing_ranks"] == 128
    assert split["ratio_exact"] == pytest.approx(split["ratio"] * 128 / 127, rel=1e-12)
    assert split["break_even_tokens_per_rank"] == pytest.approx(4 * plain["break_even_tokens_per_rank"], rel=1e-12)


# --------------------------------------------------------------------------------------------- where N does not cancel
def effect(answer: RatioAnswer, name: str) -> Any:
    return next(e for e in answer.effects if e.name == name)


@pytest.mark.parametrize("options", CASES)
def test_the_factors_multiply_to_the_whole_difference(options: dict[str, Any]) -> None:
    answer = ratio(**options)
    exact = "ratio" if answer.setting.ranks is None else "ratio_exact"
    before, after = answer.value(exact), answer.corrected(exact)
    if before is None or after is None:
        return
    product = before
    for e in answer.effects:
        if e.applies and e.factor is not None:
            product *= e.factor
    assert product == pytest.approx(after, rel=1e-12)
    assert answer.deciding == after


def test_experts_cost_the_share_of_active_parameters() -> None:
    answer = ratio(model="Mixtral-8x7B", cluster="dgx-h100", gpus=64)
    counts = answer.setting.case.counts
    assert effect(answer, "experts").factor == pytest.approx(counts.active / counts.main, rel=1e-12)  # 12.9 / 46.7
    assert 0.275 < counts.active / counts.main < 0.277
    divided = ratio(model="Mixtral-8x7B", cluster="dgx-h100", gpus=64, ep=8)
    assert effect(divided, "experts").factor > effect(answer, "experts").factor  # each GPU reduces fewer experts


def test_only_adapters_travel() -> None:
    """Rank 16 on every linear layer of Llama-3-8B: 41.9 M of 8.03 B; the frozen base computes 4 N of 6 N."""
    answer = ratio(model="llama-3-8b", gpu="H100", gpus=8, lora_rank=16)
    counts, adapters = answer.setting.case.counts, 41_943_040
    expected = (4 * counts.main + 6 * adapters) / (6 * counts.main) * counts.main / adapters
    assert effect(answer, "adapters").factor == pytest.approx(expected, rel=1e-12)


def test_sharded_weights_travel_in_every_micro_batch() -> None:
    once, twice = (ratio(model="llama-3-8b", **HAND, dp=8, zero=3, seq="4k", mbs=b) for b in (2, 1))
    assert effect(once, "sharding").factor == pytest.approx(2 * 2 / (2 * 2 + 2), rel=1e-12)
    assert effect(twice, "sharding").factor == pytest.approx(2 * 2 / (2 * (2 * 2 + 2)), rel=1e-12)
    assert "8,000 tokens" in effect(once, "sharding").words
    plain = ratio(model="llama-3-8b", **HAND, dp=8, seq="4k", mbs=2)
    assert not effect(plain, "sharding").applies
    assert effect(plain, "sharding").factor == effect(once, "sharding").factor


def test_attention_and_recompute_by_hand() -> None:
    """Llama-2-7B, 4096 tokens: 12 x 32 x 32 x 128 x 4096 FLOP beside 6 N; full recompute is 4/3 of everything."""
    answer = ratio(model="llama-2-7b", **HAND, dp=8, recompute="full")
    main = answer.setting.case.counts.main
    assert effect(answer, "attention").factor == pytest.approx(1 + 12 * 32 * 32 * 128 * 4096 / (6 * main), rel=1e-12)
    assert effect(answer, "recompute").factor == pytest.approx(4 / 3, rel=1e-12)


def test_latency_counts_where_it_can() -> None:
    answer = ratio(model="llama-2-7b", **HAND, dp=32, latency="5us")
    assert effect(answer, "latency").factor < 1.0
    assert "310 us" in effect(answer, "latency").words
    assert {w.code for w in ratio(**HAND, dp=32, latency="5us").warnings} == {"latency_unused"}


# --------------------------------------------------------------------------------------------------------------- rates
def test_rates_come_from_the_profile_and_are_starred() -> None:
    answer = ratio(model="llama-3-8b", gpu="H100-SXM5-80GB", gpus=8)
    found = {a.name: a for a in answer.assumptions}
    assert answer.value("effective_flop_per_s") == 794.5e12
    assert found["effective_flop_per_s"].kind == "measured"
    assert "measure" in found["effective_flop_per_s"].source
    assert "nccl-tests" in found["bandwidth_bytes_per_s"].source
    assert ratio(model="llama-3-8b", gpu="H100", gpus=8, peak_fraction=0.4).value(
        "effective_flop_per_s"
    ) == pytest.approx(0.4 * 989e12)
    assert ratio(params=7e9, gpu="L40S", bandwidth="10GB/s").assumptions  # no matmul measured: a share of the peak


def test_the_group_shares_the_links_of_its_node() -> None:
    """One GPU a node in the group gets its own link; eight of them get eight links together, at most NVLink."""
    alone = result(model="llama-2-70b", cluster="dgx-h100", gpus=64, tp=8)["bandwidth_bytes_per_s"]
    pairs = result(model="llama-2-70b", cluster="dgx-h100", gpus=64, tp=4)["bandwidth_bytes_per_s"]
    inside = result(model="llama-2-70b", cluster="dgx-h100", gpus=8)["bandwidth_bytes_per_s"]
    whole = result(model="llama-2-70b", cluster="dgx-h100", gpus=64)["bandwidth_bytes_per_s"]
    assert pairs == pytest.approx(2 * alone, rel=1e-12)
    assert whole == pytest.approx(min(8 * alone, inside), rel=1e-12)
    assert alone < 50e9 < inside < 450e9
    rack = result(params=7e9, cluster="gb200-nvl72", gpus=64)["bandwidth_bytes_per_s"]
    assert rack == result(params=7e9, cluster="gb200-nvl72", gpus=72)["bandwidth_bytes_per_s"]  # all fit into one


def test_gradient_bytes_follow_the_stack_and_the_option_wins() -> None:
    plain = {"model": "llama-3-8b", "gpu": "H100", "gpus": 8}
    assert result(**plain)["gradient_bytes"] == 2.0
    assert result(**plain, stack="megatron")["gradient_bytes"] == 4.0
    assert result(**plain, stack="megatron", gradient_bytes=2)["gradient_bytes"] == 2.0


# -------------------------------------------------------------------------------------------------------------- levers
SLOW = {"model": "llama-3-8b", "flops": "400TF", "bandwidth": "20GB/s", "gradient_bytes": 4, "dp": 32}


@pytest.mark.parametrize("more", [{}, {"zero": 1}, {"zero": 3}, {"latency": "5us"}, {"tp": 2}])
def test_each_lever_reaches_the_ratio_it_says(more: dict[str, Any]) -> None:
    answer = ratio(**SLOW, **more)
    assert answer.verdict == WAITS
    assert {lever.lever for lever in answer.levers} == {"D", "BW", "b_r"}
    for lever in answer.levers:
        if not lever.option:
            continue
        name, value = lever.option.split()
        changed = {**SLOW, **more, name[2:].replace("-", "_"): value}
        then = ratio(**changed).deciding
        assert then == pytest.approx(lever.ratio_then, rel=0.006), lever
        if lever.lever == "D":
            assert then >= 1.0
            assert lever.unit in ("sequences", "micro-batches")
        if lever.lever == "BW":
            assert then == pytest.approx(1.0, rel=0.006)
    assert any("flatters" in note for note in answer.notes)


def test_accumulation_is_no_lever_where_every_micro_batch_communicates() -> None:
    options = [lever.option.split()[0] for lever in ratio(**SLOW, zero=3).levers if lever.option]
    assert "--grad-accum" not in options
    assert "--micro-batch" in options


# ------------------------------------------------------------------------------------------------------ forms and keys
@pytest.mark.parametrize("options", CASES)
def test_keys_are_stable_and_numbers_finite(options: dict[str, Any]) -> None:
    answer = ratio(**options).to_json()
    json.dumps(answer, allow_nan=False)
    assert answer["command"] == "ratio"
    assert set(answer["inputs"]) == {"model", "hardware", "layout", "training", "marks"}
    extra = {name for name in answer["result"] if not name.endswith("_corrected")}
    assert extra == RESULT
    assert {name.removesuffix("_corrected") for name in answer["result"]} == RESULT
    for e in answer["result"]["effects"]:
        assert set(e) == {"name", "applies", "factor", "words", "formula", "source"}
        assert e["words"]
        assert e["source"]
    for lever in answer["result"]["levers"]:
        assert set(lever) == {"lever", "now", "needed", "unit", "option", "ratio_then", "words"}
    for a in answer["assumptions"]:
        assert a["source"]


def test_the_python_twin_equals_the_command(run_dscalc: Any) -> None:
    words = "ratio --model llama-2-70b --cluster dgx-h100 --gpus 64 --tp 4 --zero 1 --gbs 64 --format json"
    ran = run_dscalc(*words.split())
    twin = dscalc.ratio(model="llama-2-70b", cluster="dgx-h100", gpus=64, tp=4, zero=1, global_batch=64).to_json()
    assert json.loads(ran.stdout) == json.loads(json.dumps(twin))


def test_csv_and_markdown_hold_the_list(run_dscalc: Any) -> None:
    rows = list(csv.DictReader(io.StringIO(run_dscalc(*HAND_WORDS, "--dp", "32", "--format", "csv").stdout)))
    values = {row["name"]: row["value"] for row in rows}
    assert float(values["ratio"]) == 1.536
    assert {"name", "value", "corrected", "unit", "formula", "source"} == set(rows[0])
    text = run_dscalc(*HAND_WORDS, "--format", "markdown").stdout
    assert "| ratio " in text
    assert "1.54" in text


def test_quiet_is_one_line(run_dscalc: Any) -> None:
    for words in (HAND_WORDS, (*HAND_WORDS, "--dp", "1"), (*HAND_WORDS, "--dp", "32")):
        ran = run_dscalc(*words, "--quiet")
        assert ran.returncode == 0
        assert len(ran.stdout.splitlines()) == 1


def test_a_scenario_file_holds_the_options(run_dscalc: Any, tmp_path: Path) -> None:
    file = tmp_path / "case.toml"
    file.write_text('flops = "400TF"\nbandwidth = "50GB/s"\ntokens_per_rank = "8k"\ncheck = true\n', encoding="utf-8")
    ran = run_dscalc("ratio", "--scenario", str(file), "--gradient-bytes", "4", "--format", "json")
    assert json.loads(ran.stdout)["result"]["ratio"] == 0.768


# ------------------------------------------------------------------------------------------------------------- screens
def test_colour_only_adds_colour() -> None:
    from dscalc.report.ratio import screen

    answer = ratio(**HAND, dp=32)
    plain, coloured = screen(answer, colour=False), screen(answer, colour=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


# ----------------------------------------------------------------------------------------------------------- bad input
RATES = ("--flops", "400TF", "--bandwidth", "50GB/s")


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        ((), 1, ["--flops 400TF", "--gpu"]),
        (("--flops", "400TF"), 1, ["--bandwidth 50GB/s", "--interconnect"]),
        (("--bandwidth", "50GB/s"), 1, ["--flops 400TF"]),
        (("--flops", "0", "--bandwidth", "50GB/s"), 2, ["--flops", "above 0"]),
        (("--flops", "400TF", "--bandwidth", "0GB/s"), 2, ["--bandwidth", "above 0"]),
        (("--gpu", "H100", "--peak-fraction", "0", "--bandwidth", "1GB/s"), 2, ["--peak-fraction", "above 0"]),
        (("--flops", "400GB"), 2, ["--flops"]),
        (("--flops", "400", "--bandwidth", "50GB/s"), 2, ["--flops", "400 has no unit", "400TF"]),
        (("--flops", "400TF", "--bandwidth", "50"), 2, ["--bandwidth", "50 has no unit", "50GB/s"]),
        (("--flops", "400TF", "--bandwidth", "50GB"), 2, ["--bandwidth", "per second"]),
        (("--flops", "400TF", "--bandwidth", "-1"), 2, ["--bandwidth", "negative"]),
        ((*RATES, "--gradient-bytes", "0"), 2, ["--gradient-bytes", "above 0"]),
        ((*RATES, "--gradient-bytes", "nan"), 2, ["--gradient-bytes"]),
        ((*RATES, "--tokens-per-rank", "0"), 2, ["--tokens-per-rank"]),
        ((*RATES, "--tokens-per-rank", "8.5"), 2, ["--tokens-per-rank", "whole"]),
        ((*RATES, "--peak-fraction", "1.5"), 2, ["--peak-fraction"]),
        ((*RATES, "--peak-fraction", "0.4"), 1, ["--peak-fraction", "--flops"]),
        (("--peak-fraction", "0.4", "--bandwidth", "1GB/s"), 1, ["--peak-fraction", "--gpu"]),
        ((*RATES, "--latency", "5GB"), 2, ["--latency"]),
        ((*RATES, "--gpu", "64"), 2, ["did you mean --gpus 64?"]),
        ((*RATES, "--lora-rank", "8"), 1, ["--lora-rank", "--model"]),
        ((*RATES, "--ep", "2"), 1, ["--ep", "--model"]),
        ((*RATES, "--check"), 2, ["--check"]),
        ((*RATES, "--params", "7e9", "--model", "llama-2-7b"), 1, ["--params", "--model"]),
        ((*RATES, "--model", "llama-2-7b", "--tp", "3"), 1, ["--tp", "attention heads: 32"]),
        ((*RATES, "--model", "llama-2-7b", "--tokens-per-rank", "5000"), 1, ["--tokens-per-rank", "4096 would do"]),
        ((*RATES, "--gpus", "10", "--tp", "4"), 1, ["--tp 4", "8 or 12"]),
        (("--params", "7e9", "--gpu", "H100", "--gpus", "16"), 1, ["--interconnect", "nodes of 8 GPUs"]),
        (("--params", "7e9", "--gpu", "H100", "--gpus", "16", "--interconnect", "ib-nd"), 1, ["ib-ndr"]),
        (("--params", "7e9", "--gpu", "H100", "--gpus", "16", "--interconnect", "nvlink4"), 1, ["--interconnect"]),
        (("--params", "7e9", "--gpu", "V100", "--bandwidth", "1GB/s"), 1, ["--precision", "fp16"]),
        (("--params", "7e9", "--gpu", "H10", "--bandwidth", "1GB/s"), 1, ["unknown GPU"]),
    ],
)
def test_one_clear_line(run_dscalc: Any, args: tuple[str, ...], code: int, words: list[str]) -> None:
    ran = run_dscalc("ratio", *args)
    assert ran.returncode == code, ran.stderr
    assert ran.stdout == ""
    lines = ran.stderr.splitlines()
    assert len(lines) == 1, ran.stderr
    assert lines[0].startswith("Error: ")
    for word in words:
        assert word in lines[0]


DEGREE = st.sampled_from([1, 1, 2, 3, 8])
OPTION = st.fixed_dictionaries(
    {},
    optional={
        "model": st.sampled_from(["llama-3-8b", "deepseek-v3", "gpt2", "Mixtral-8x7B"]),
        "params": st.sampled_from([1, 10**9, 10**15]),
        "flops": st.sampled_from(["400TF", "1e-9", "1e30"]),
        "peak_fraction": st.sampled_from([1e-12, 0.4, 1.0]),
        "bandwidth": st.sampled_from(["50GB/s", "1e-9", "1e30"]),
        "interconnect": st.sampled_from(["ib-ndr", "400Gb/s", "1b/s"]),
        "latency": st.sampled_from(["5us", "0", "1e20"]),
        "gpu": st.sampled_from(["H100-SXM5-80GB", "RTX-4090", "MI300X", "L4"]),
        "cluster": st.sampled_from(["dgx-h100", "gb200-nvl72", "consumer-8x4090-nop2p"]),
        "gpus_per_node": st.sampled_from([1, 4, 10**9]),
        "gpus": st.sampled_from([1, 8, 64, 10**9]),
        "dp": DEGREE,
        "tp": DEGREE,
        "pp": DEGREE,
        "cp": DEGREE,
        "ep": DEGREE,
        "dp_replicate": DEGREE,
        "dp_shard": DEGREE,
        "zero": st.integers(0, 3),
        "reshard": st.booleans(),
        "no_sync": st.booleans(),
        "seq_len": st.sampled_from([1, 4096, 10**9]),
        "micro_batch": st.sampled_from([1, 3, 10**9]),
        "grad_accum": st.sampled_from([1, 8, 10**9]),
        "global_batch": st.sampled_from([1, 64, 10**9]),
        "tokens_per_rank": st.sampled_from([1, 8192, 10**9]),
        "recompute": st.sampled_from(OPTIONS["recompute"].choices),
        "recompute_layers": st.sampled_from([1, 1000]),
        "gradient_bytes": st.sampled_from([1e-9, 1, 2, 4, 10**9]),
        "lora_rank": st.sampled_from([1, 16]),
        "base_precision": st.sampled_from(["bf16", "nf4"]),
        "stack": st.sampled_from(["generic", "megatron", "fsdp2", "deepspeed"]),
    },
)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(OPTION, st.booleans())
def test_random_options_give_an_answer_or_one_clear_line(options: dict[str, Any], rates: bool) -> None:
    from dscalc.report.ratio import line, screen

    options = {"flops": "400TF", "bandwidth": "50GB/s", **options} if rates else options
    try:
        answer = ratio(**options)
    except DscalcError as error:
        refused = str(error)
    else:
        refused = ""
    if refused:
        assert "\n" not in refused
        return
    json.dumps(answer.to_json(), allow_nan=False)
    assert screen(answer, explain=True, colour=False)
    assert "\n" not in line(answer)
    if answer.deciding is not None:
        assert answer.deciding >= 0.0
        assert (answer.verdict == HIDES) == (answer.deciding >= 1.0)
    for row in answer.rows:
        assert row.value is None or row.value >= 0.0


def test_no_flag_disappears() -> None:
    """Add new flags to the list; removing or renaming one breaks somebody's script."""
    from dscalc.cli.ratio import command

    flags = {flag for p in command.params for flag in (*p.opts, *p.secondary_opts) if flag.startswith("-")}
    path = GOLDEN / "ratio_flags.txt"
    if os.environ.get("DSCALC_GOLDEN") == "write":
        path.write_text("\n".join(sorted(flags)) + "\n", encoding="utf-8")
    assert flags == set(path.read_text(encoding="utf-8").split())


def test_a_rate_in_small_letters_says_how_it_was_read() -> None:
    by_hand = {"flops": 4e14, "tokens_per_rank": "8k"}
    small = ratio(**by_hand, bandwidth="50gb/s")
    read = next(a for a in small.assumptions if a.name == "bandwidth_bytes_per_s")
    assert read.value == 6.25e9
    assert "50gb/s is read as bits" in read.source
    for plain in ("50GB/s", "400Gb/s", 50e9):
        assert "bandwidth_bytes_per_s" not in {a.name for a in ratio(**by_hand, bandwidth=plain).assumptions}


def test_the_rate_of_a_ring_over_nodes_says_what_it_is_made_of() -> None:
    """334 GB/s beside NICs of 50 GB/s: the GPUs of a node share their NICs."""
    found = ratio(model="llama-3-8b", gpu="H100", gpus=16, interconnect="ib-ndr")
    assert found.setting.bandwidth is not None
    assert found.setting.bandwidth.words == "ring over nodes: 8 GPUs x 50.0 GB/s x 0.835"
