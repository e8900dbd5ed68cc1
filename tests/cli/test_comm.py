"""``dscalc comm``: stable keys, numbers by hand, tiers, forced algorithms, warnings, screens, bad input."""

from __future__ import annotations

import csv
import io
import json
import math
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dscalc
from dscalc.answers.comm import CommAnswer, comm
from dscalc.cli.main import main
from dscalc.errors import DscalcError
from dscalc.specs.option_table import OPTIONS
from tests.cli.helpers import LAYOUT

GOLDEN = Path(__file__).parents[1] / "golden"
ROW = {
    "axis",
    "op",
    "algorithm",
    "group",
    "members_inside",
    "tier",
    "bytes",
    "count",
    "traffic_bytes",
    "time_s",
    "naive_time_s",
    "exposed_s",
    "what",
    "stage",
    "domains",
    "misaligned",
    "extrapolated",
    "rate_share",
    "low_s",
    "high_s",
    "measured",
    "formula",
    "source",
}
RESULT = {
    "collectives",
    "totals",
    "traffic_bytes",
    "time_s",
    "naive_time_s",
    "exposed_s",
    "binding_axis",
    "stage",
    "tiers",
    "trace",
}
BIG = {"model": "llama-3-70b", "cluster": "dgx-h100", "gpus": 256, "tp": 8, "pp": 4, "zero": 1, "stack": "megatron"}
HAND = {"params": 7e9, "dp": 32, "bandwidth": "50GB/s"}
CASES: list[dict[str, Any]] = [
    BIG,
    HAND,
    {"trace_ring": 4},
    {**HAND, "trace_ring": 2, "latency": "5us", "gradient_bytes": 4},
    {"params": 7e9},
    {"model": "llama-3-8b", "gpu": "H100", "gpus_per_node": 8, "interconnect": "ib-ndr", "gpus": 64, "fsdp": True},
    {"model": "llama-3-8b", "gpu": "H100", "gpus": 8, "dp_shard": 4, "dp_replicate": 2},
    {"model": "mixtral-8x7b", "cluster": "dgx-h100", "gpus": 64, "tp": 2, "ep": 8, "etp": 1, "zero": 1},
    {"model": "deepseek-v3", "cluster": "gb200-nvl72", "pp": 16, "ep": 64, "schedule": "dualpipe", "ga": 64, "zero": 1},
    {"model": "llama-3-8b", "cluster": "dgx-a100-80g", "gpus": 64, "cp": 4, "cp_comm": "ulysses", "recompute": "full"},
    {"model": "llama-3-8b", "gpu": "RTX-4090", "gpus_per_node": 8, "gpus": 8, "lora_rank": 16, "zero": 3},
    {"model": "gemma-2-9b", "cluster": "hgx-mi300x-roce", "gpus": 32, "pp": 2, "schedule": "zb-v"},
]


def result(**options: Any) -> dict[str, Any]:
    found: dict[str, Any] = comm(**options).to_json()["result"]
    return found


def codes(**options: Any) -> set[str]:
    return {w.code for w in comm(**options).warnings}


# ----------------------------------------------------------------------------------------------------------- contract
@pytest.mark.parametrize("options", CASES)
def test_keys_are_stable_and_numbers_add_up(options: dict[str, Any]) -> None:
    answer = comm(**options).to_json()
    json.dumps(answer, allow_nan=False)
    assert answer["command"] == "comm"
    found = answer["result"]
    assert set(found) == RESULT
    for row in found["collectives"]:
        assert set(row) == ROW
        assert row["traffic_bytes"] > 0.0
        assert 0.0 <= row["exposed_s"] <= row["time_s"] * (1 + 1e-12)
        assert 1 <= row["members_inside"] <= row["group"]
        assert 0.0 < row["rate_share"] <= 1.0
        assert row["formula"]
        assert row["source"].startswith("[")
        assert row["tier"] in {tier["name"] for tier in found["tiers"]}
    for key in ("traffic_bytes", "time_s", "naive_time_s", "exposed_s"):
        total = 0.0
        for row in found["collectives"]:
            total += row[key]
        assert total == found[key]
        for axis in found["totals"]:
            assert axis[key] == pytest.approx(sum(r[key] for r in found["collectives"] if r["axis"] == axis["axis"]))
    for a in answer["assumptions"]:
        assert set(a) == {"name", "value", "unit", "kind", "source"}
        assert a["source"]
    for w in answer["warnings"]:
        assert w["message"]
        assert w["next_step"]


def test_the_python_twin_equals_the_command(run_dscalc: Any) -> None:
    words = "comm --model llama-3-70b --cluster dgx-h100 --gpus 256 --tp 8 --pp 4 --zero 1 --stack megatron"
    ran = run_dscalc(*words.split(), "--format", "json")
    assert json.loads(ran.stdout) == json.loads(json.dumps(dscalc.comm(**BIG).to_json()))


def test_no_flag_disappears() -> None:
    """Add new flags to the list; removing or renaming one breaks somebody's script."""
    context = main.make_context("dscalc", ["comm", "--help"], resilient_parsing=True)
    command = main.get_command(context, "comm")
    assert command is not None
    sub = command.make_context("comm", [], parent=context, resilient_parsing=True)
    flags = {flag for p in command.get_params(sub) for flag in (*p.opts, *p.secondary_opts) if flag.startswith("-")}
    path = GOLDEN / "comm-flags.txt"
    if os.environ.get("DSCALC_GOLDEN") == "write":
        path.write_text("".join(f"{flag}\n" for flag in sorted(flags)), encoding="utf-8")
    assert flags == set(path.read_text(encoding="utf-8").split())


def test_csv_holds_the_collectives(run_dscalc: Any) -> None:
    words = "comm --model llama-3-8b --cluster dgx-h100 --gpus 16 --tp 2 --zero 1"
    ran = run_dscalc(*words.split(), "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(ran.stdout)))
    wanted = comm(model="llama-3-8b", cluster="dgx-h100", gpus=16, tp=2, zero=1).rows
    assert set(rows[0]) == ROW
    assert [float(r["traffic_bytes"]) for r in rows] == [r.traffic_bytes for r in wanted]


def test_quiet_is_one_line(run_dscalc: Any) -> None:
    for words in (
        "--params 7e9",
        "--params 7e9 --dp 4 --bandwidth 1GB/s",
        "--trace-ring 3",
        "--params 7e9 --gpu H100 --gpus 8 --trace-ring 3",
    ):
        ran = run_dscalc("comm", *words.split(), "--quiet")
        assert ran.returncode == 0, ran.stderr
        assert len(ran.stdout.splitlines()) == 1


def test_a_scenario_file_holds_the_options(run_dscalc: Any, tmp_path: Path) -> None:
    text = 'params = 7e9\n[hardware]\nbandwidth = "50GB/s"\nalgorithm = ["all-reduce=ring"]\n[layout]\ndp = 32\n'
    (tmp_path / "s.toml").write_text(text, encoding="utf-8")
    ran = run_dscalc("comm", "--scenario", "s.toml", "--format", "json", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["result"]["collectives"][0]["algorithm"] == "ring"


# -------------------------------------------------------------------------------------------------------------- numbers
def test_the_line_on_paper() -> None:
    """2(K-1)/K N b_r / BW: 7e9 parameters, 32 ranks, 2 bytes, 50 GB/s."""
    answer = comm(**HAND)
    assert answer.total.traffic_bytes == pytest.approx(2 * 31 / 32 * 7e9 * 2, rel=1e-12)
    assert answer.total.time_s == pytest.approx(1.9375 * 7e9 * 2 / 50e9, rel=1e-12)
    assert answer.total.naive_time_s == pytest.approx(2 * 31 * 7e9 * 2 / 50e9, rel=1e-12)
    wide = comm(**HAND, gradient_bytes=4)
    assert wide.total.time_s == pytest.approx(2 * answer.total.time_s, rel=1e-12)


def test_one_gpu_sends_nothing() -> None:
    answer = comm(params=7e9, zero=3, grad_accum=4)
    assert answer.rows == ()
    assert answer.binding is None
    assert answer.total.time_s == 0.0


def test_an_axis_of_one_is_not_listed() -> None:
    assert {t.axis for t in comm(**BIG).totals} == {"dp", "tp", "pp"}
    assert {t.axis for t in comm(**HAND).totals} == {"dp"}


def test_zero_three_is_half_more_than_ddp_only_for_equal_bytes() -> None:
    """[Rajbhandari2020] section 7.2: 3N for ZeRO-3 beside 2N, where weights and gradients are as wide."""
    plain, sharded = (comm(params=7e9, dp=32, bandwidth="50GB/s", zero=z).total.traffic_bytes for z in (0, 3))
    assert sharded == pytest.approx(1.5 * plain, rel=1e-12)
    plain, sharded = (
        comm(params=7e9, dp=32, bandwidth="50GB/s", zero=z, gradient_bytes=4).total.traffic_bytes for z in (0, 3)
    )
    assert sharded == pytest.approx(plain, rel=1e-12)  # 2 x 2 + 4 beside 2 x 4


def test_megatron_hides_one_backward_operation_of_a_block() -> None:
    """Exposed 6u of 10u with sequence parallelism: 4 of 6 gathers and 2 of 4 scatters a layer."""
    rows = {(r.axis, r.op, r.stage): r for r in comm(**BIG).rows}
    gather, scatter = rows["tp", "all-gather", "every"], rows["tp", "reduce-scatter", "every"]
    assert gather.exposed_s / gather.time_s == pytest.approx(4 / 6)
    assert scatter.exposed_s / scatter.time_s == pytest.approx(2 / 4)
    bare = {(r.axis, r.op, r.stage): r for r in comm(**{**BIG, "stack": "torchtitan", "zero": 3}).rows}
    assert bare["tp", "all-gather", "every"].exposed_s == bare["tp", "all-gather", "every"].time_s


def test_tiers_follow_the_groups() -> None:
    rows = {(r.axis, r.op): r for r in comm(**BIG).rows}
    assert (rows["tp", "reduce-scatter"].tier, rows["tp", "reduce-scatter"].members_inside) == ("scale-up", 8)
    assert (rows["dp", "reduce-scatter"].tier, rows["dp", "reduce-scatter"].members_inside) == ("network", 1)
    assert rows["pp", "send-recv"].tier == "network"


def test_hardware_composed_by_hand_is_starred() -> None:
    answer = comm(model="llama-3-8b", gpu="H100-SXM5-80GB", gpus_per_node=4, interconnect="400Gb/s", gpus=16)
    starred = {a.name for a in answer.assumptions if a.kind == "assumed"}
    assert {"network.node.bandwidth", "network.network.latency", "network.network.efficiency"} <= starred
    assert answer.rows[0].members_inside == 4
    assert "network_assumed" in {w.code for w in answer.warnings}
    assert "network_assumed" not in codes(**BIG)


def test_one_node_needs_no_network() -> None:
    answer = comm(model="llama-3-8b", gpu="H100-SXM5-80GB", gpus=8)
    assert {row.tier for row in answer.rows} == {"node"}
    assert not any(a.name.startswith("network.network") for a in answer.assumptions)


@pytest.mark.parametrize("name", ["ring", "tree", "hierarchical", "halving-doubling", "naive"])
def test_algorithms_are_forced_by_name(name: str) -> None:
    answer = comm(**HAND, algorithm=f"all_reduce={name}")
    assert {row.algorithm for row in answer.rows} == {name}
    free = comm(**HAND)
    assert answer.total.time_s >= free.total.time_s * (1 - 1e-12)


def test_an_algorithm_that_cannot_run_is_said() -> None:
    options = {"model": "llama-3-8b", "cluster": "dgx-a100-80g", "gpus": 16}
    assert "algorithm_not_possible" in codes(**options, algorithm="nvls")
    assert "algorithm_not_possible" not in codes(**options, algorithm="tree")
    alone = comm(**options, algorithm=["tree", "all-gather=ring"])
    assert {row.algorithm for row in alone.rows} == {"tree"}


# ------------------------------------------------------------------------------------------------------------- warnings
def test_what_the_warnings_say() -> None:
    wide = {"model": "llama-3-8b", "cluster": "dgx-h100", "gpus": 64}
    assert "tensor_parallel_across_nodes" in codes(**wide, tp=16)
    assert "tensor_parallel_across_nodes" not in codes(**wide, tp=8)
    mixtral = {"model": "mixtral-8x7b", "cluster": "dgx-h100", "gpus": 64}
    assert "expert_parallel_across_domains" in codes(**mixtral, tp=4, ep=8)
    assert "expert_parallel_across_domains" not in codes(**mixtral, ep=8)
    assert "misaligned_group" in codes(model="llama-3-8b", cluster="dgx-h100", gpus=48, dp=12, pp=4)
    assert "misaligned_group" not in codes(**wide)
    assert "pipeline_over_slow_tier" in codes(**wide, pp=8, zero=1, gradient_bytes=2, mbs=8, ga=64)
    assert "small_messages" in codes(**{**wide, "gpus": 512}, stack="generic", zero=1)
    assert "extrapolated" in codes(params=70e9, cluster="dgx-h100", gpus=65536)
    assert "does_not_fit" in codes(params=70e9, cluster="dgx-h100", gpus=16)
    assert codes(**HAND) == {"assumed_shape"}


def test_larger_messages_silence_the_latency_warning() -> None:
    small = {"model": "llama-3-8b", "cluster": "dgx-h100", "gpus": 512, "zero": 1}
    shares = [comm(**small, stack=stack).rows[0].rate_share for stack in ("generic", "deepspeed")]
    assert shares[0] < 0.3 < shares[1]  # buckets of 25 MiB, of 1 GB


# ----------------------------------------------------------------------------------------------------------------- ring
def test_the_ring_is_shown_step_by_step(run_dscalc: Any) -> None:
    ran = run_dscalc("comm", "--trace-ring", "2")
    assert ran.returncode == 0, ran.stderr
    assert "[0.6, 0.2]" in ran.stdout
    assert "[1.2, 0.4]" in ran.stdout
    trace = result(trace_ring=4)["trace"]
    assert len(trace["steps"]) == 6
    assert trace["sent_bytes"] == [2 * 3 / 4 * 4 * 4] * 4
    for step in trace["steps"]:
        assert sum(s["bytes"] for s in step["sends"]) == 16
        assert {s["to"] for s in step["sends"]} == {0, 1, 2, 3}
    assert trace["steps"][-1]["tensors"] == [trace["sum"]] * 4


# -------------------------------------------------------------------------------------------------------------- screens
def test_colour_only_adds_colour() -> None:
    from dscalc.report.comm import screen

    answer = comm(**BIG)
    plain, coloured = screen(answer, colour=False), screen(answer, colour=True)
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_markdown_is_a_table(run_dscalc: Any) -> None:
    ran = run_dscalc("comm", "--params", "7e9", "--dp", "4", "--bandwidth", "1GB/s", "--format", "markdown")
    assert ran.returncode == 0
    assert "| dp " in ran.stdout
    assert "**total**" in ran.stdout


def test_interconnects_are_listed_and_shown(run_dscalc: Any) -> None:
    ran = run_dscalc("list", "interconnects")
    assert ran.returncode == 0
    assert "ib-ndr" in ran.stdout
    ran = run_dscalc("show", "nvlink4", "--format", "json")
    entry = json.loads(ran.stdout)["result"]["entries"][0]
    assert entry["kind"] == "interconnect"
    bandwidth = next(v for v in entry["values"] if v["name"] == "bandwidth")
    assert (bandwidth["value"], bandwidth["unit"], bandwidth["kind"]) == (450, "GB/s", "datasheet")
    assert bandwidth["source"]


def test_latency_not_given_is_starred() -> None:
    from dscalc.answers.comm import comm

    def names(**options: Any) -> dict[str, float]:
        found = comm(params=7e9, dp=4, bandwidth="50GB/s", **options)
        return {a.name: a.value for a in found.assumptions if a.name == "network.network.latency"}

    assert names() == {"network.network.latency": 0.0}
    assert names(latency="5us") == {}


# ------------------------------------------------------------------------------------------------------------ bad input
P = ("--params", "7e9")


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        ((), 1, ["--model", "--params 7e9"]),
        ((*P, "--dp", "4"), 1, ["--cluster", "--interconnect ib-ndr", "--bandwidth 50GB/s"]),
        ((*P, "--dp", "16", "--gpu", "H100"), 1, ["--interconnect", "nodes of 8"]),
        ((*P, "--dp", "4", "--gpu", "RTX-4090"), 1, ["--gpus-per-node"]),
        ((*P, "--dp", "4", "--interconnect", "ib-ndr"), 1, ["--gpu"]),
        ((*P, "--dp", "4", "--gpu", "H100", "--interconnect", "ib-nrd"), 1, ["ib-ndr"]),
        ((*P, "--dp", "16", "--gpu", "H100", "--interconnect", "nvlink4"), 1, ["--interconnect", "ib-ndr"]),
        ((*P, "--dp", "4", "--gpu", "H100", "--latency", "5us"), 1, ["--latency", "--bandwidth 50GB/s"]),
        ((*P, "--dp", "4", "--bandwidth", "0"), 1, ["--bandwidth", "50GB/s"]),
        ((*P, "--dp", "4", "--bandwidth", "fast"), 2, ["--bandwidth"]),
        ((*P, "--dp", "4", "--bandwidth", "1GB/s", "--interconnect", "ib-ndr"), 1, ["--bandwidth", "--interconnect"]),
        ((*P, "--dp", "4", "--bandwidth", "1GB/s", "--cluster", "dgx-h100"), 1, ["--bandwidth", "--cluster"]),
        ((*P, "--gpus", "8", "--cluster", "dgx-h100", "--gpus-per-node", "4"), 1, ["--gpus-per-node", "nodes of 8"]),
        ((*P, "--algorithm", "ring"), 2, ["--algorithm", "all-gather", "all-reduce=ring"]),
        ((*P, "--algorithm", "all-reduce=rign"), 2, ["--algorithm", "'rign'", "ring"]),
        ((*P, "--algorithm", "all-redce=ring"), 2, ["--algorithm", "all-reduce"]),
        ((*P, "--algorithm", "tree", "--algorithm", "nvls"), 2, ["--algorithm", "tree", "nvls"]),
        ((*P, "--algorithm", "="), 2, ["--algorithm"]),
        ((*P, "--trace-ring", "17"), 2, ["--trace-ring", "16"]),
        ((*P, "--trace-ring", "0"), 2, ["--trace-ring"]),
        (("--trace-ring", "4", "--tp", "2"), 1, ["--tp", "--model"]),
        ((*P, "--tp", "3", "--bandwidth", "1GB/s"), 1, ["--tp", "attention heads: 32"]),
        ((*P, "--gradient-bytes", "0"), 2, ["--gradient-bytes"]),
        ((*P, "--flops", "400TF"), 2, ["--flops"]),
    ],
)
def test_one_clear_line(run_dscalc: Any, args: tuple[str, ...], code: int, words: list[str]) -> None:
    ran = run_dscalc("comm", *args)
    assert ran.returncode == code, ran.stderr
    assert ran.stdout == ""
    lines = ran.stderr.splitlines()
    assert len(lines) == 1, ran.stderr
    assert lines[0].startswith("Error: ")
    for word in words:
        assert word in lines[0], lines[0]


OPTION = st.fixed_dictionaries(
    {"model": st.sampled_from(["llama-2-7b", "llama-3-8b", "deepseek-v3", "gpt2", "Mixtral-8x7B", "gemma-2-9b"])},
    optional={
        **LAYOUT,
        "gradient_bytes": st.sampled_from([1, 2, 4, 1e-6, 1e9]),
        "cluster": st.sampled_from(["dgx-h100", "gb200-nvl72", "a100-pcie-8x", "alps-gh200", "gcp-tpu-v5e"]),
        "gpu": st.sampled_from(["H100-SXM5-80GB", "RTX-4090", "MI300X", "A10"]),
        "gpus_per_node": st.sampled_from([1, 2, 3, 8, 10**9]),
        "interconnect": st.sampled_from(["ib-ndr", "400Gb/s", "1b/s", "nvlink4", "ethernet-10g"]),
        "bandwidth": st.sampled_from(["50GB/s", "1b/s", 1e30]),
        "latency": st.sampled_from(["5us", "0s", "100d"]),
        "algorithm": st.sampled_from(["tree", "all-reduce=ring", "nvls", "all-gather=sharp", "naive", "x=y"]),
        "trace_ring": st.integers(1, 16),
    },
)
HARDWARE = [
    {"cluster": "dgx-h100"},
    {"cluster": "gb200-nvl72"},
    {"cluster": "a100-pcie-8x"},
    {"cluster": "gcp-tpu-v5e"},
    {"gpu": "H100-SXM5-80GB", "gpus_per_node": 3, "interconnect": "ethernet-10g"},
    {"gpu": "MI300X", "interconnect": "1b/s"},
    {"gpu": "RTX-4090", "gpus_per_node": 1, "interconnect": "ib-ndr"},
    {"bandwidth": 1e30},
    {"bandwidth": "1b/s", "latency": "100d"},
]
TWOS = st.sampled_from([1, 2, 4, 8])
SANE = st.builds(
    lambda hardware, options: {**options, **hardware},
    st.sampled_from(HARDWARE),
    st.fixed_dictionaries(
        {
            "model": st.sampled_from(["llama-2-7b", "deepseek-v3", "Mixtral-8x7B", "gemma-2-9b"]),
            "dp": st.sampled_from([1, 3, 8, 64, 1000]),
            "grad_accum": st.sampled_from([8, 16]),
        },
        optional={
            "tp": TWOS,
            "pp": TWOS,
            "cp": TWOS,
            "zero": st.integers(0, 3),
            "schedule": st.sampled_from(OPTIONS["schedule"].choices),
            "cp_comm": st.sampled_from(OPTIONS["cp_comm"].choices),
            "no_sync": st.booleans(),
            "recompute": st.sampled_from(OPTIONS["recompute"].choices),
            "stack": st.sampled_from(["generic", "megatron", "fsdp2", "nanotron", "deepspeed"]),
            "lora_rank": st.sampled_from([1, 16]),
            "gradient_bytes": st.sampled_from([1, 4, 1e-6, 1e9]),
            "micro_batch": st.sampled_from([1, 3, 10**6]),
            "algorithm": st.sampled_from(["tree", "all-reduce=ring", "nvls", "all-gather=sharp", "naive"]),
        },
    ),
)


def _walk(value: Any) -> None:
    if isinstance(value, dict):
        for inner in value.values():
            _walk(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            _walk(inner)
    elif isinstance(value, float):
        assert math.isfinite(value)


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(options=st.one_of(SANE, OPTION))
def test_random_options_give_an_answer_or_one_clear_error(options: dict[str, Any]) -> None:
    from dscalc.report.comm import render

    try:
        answer = comm(**options)
    except DscalcError as error:
        message = str(error)
    else:
        message = ""
    if message:
        assert "\n" not in message
        return
    assert isinstance(answer, CommAnswer)
    for row in answer.rows:
        for value in (row.bytes, row.count, row.traffic_bytes, row.time_s, row.naive_time_s, row.exposed_s):
            assert math.isfinite(value)
            assert value >= 0.0
    _walk(answer.to_json()["result"])
    for form in ("table", "csv", "markdown"):
        text = render(answer, form, explain=True, colour=False)
        assert not re.search(r"\b(nan|inf)\b", text)


def test_the_answer_is_quick() -> None:
    import time

    comm(**BIG)
    start = time.perf_counter()
    comm(**BIG)
    assert time.perf_counter() - start < 0.5
