"""``dscalc fit`` as a process: a profile written at once or not at all, charts, comparison, clear errors."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dscalc.cli import main
from tests.calibrate.benchmark_logs import log_text, noisy, sizes

Within = Callable[..., tuple[int, str, str]]
FIT = {"op", "ranks", "nodes", "pieces"}
PIECE = {
    *("min_bytes", "max_bytes", "latency_s", "bandwidth_bytes_per_s", "latency_stderr_s"),
    *("bandwidth_stderr_bytes_per_s", "points", "median_residual_fraction"),
}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    rng, size = np.random.default_rng(3), sizes(3, 33)
    (tmp_path / "one.log").write_text(log_text("all_reduce", 8, 1, size, noisy(20e-6 + size / 270e9, rng, 0.004)))
    (tmp_path / "two.log").write_text(log_text("all_reduce", 16, 2, size, noisy(60e-6 + size / 60e9, rng, 0.004)))
    return tmp_path


@pytest.fixture
def within(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Within:
    """The command inside this process: exit code, output, errors."""
    monkeypatch.chdir(here)

    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main.run(list(words))
        out = capsys.readouterr()
        return int(left.value.code or 0), out.out, out.err

    return run


def test_from_a_log_to_a_prediction(here: Path, run_dscalc: Any) -> None:
    ran = run_dscalc("fit", "one.log", "two.log", "--cluster", "dgx-h100", "--output", "mine.json", cwd=here)
    assert ran.returncode == 0, ran.stderr
    assert "Fits" in ran.stdout
    assert "mine.json" in ran.stdout
    given = ("--model", "llama-3-8b", "--profile", "mine.json", "--gpus", "16", "--zero", "1", "--format", "json")
    for command in ("memory", "comm", "step"):
        answer = run_dscalc(command, *given, cwd=here)
        assert answer.returncode == 0, answer.stderr
        assert json.loads(answer.stdout)["inputs"]["hardware"]["cluster"] == "mine"


def test_a_profile_is_not_replaced_unasked(here: Path, within: Within) -> None:
    given = ("fit", "one.log", "--cluster", "dgx-h100", "--output", "mine.json")
    assert within(*given)[0] == 0
    code, _, stderr = within(*given)
    assert code == 1
    assert "add --force" in stderr
    assert within(*given, "--force")[0] == 0


def test_the_keys_are_stable(within: Within) -> None:
    _, stdout, _ = within("fit", "one.log", "two.log", "--compare", "--format", "json")
    found = json.loads(stdout)["result"]
    assert {"logs", "fits", "compute", "profile_path"} <= set(found)
    for fit in found["fits"]:
        assert set(fit) >= FIT
        for piece in fit["pieces"]:
            assert set(piece) == PIECE
        for before, after in zip(fit["pieces"], fit["pieces"][1:], strict=False):
            assert before["max_bytes"] < after["min_bytes"]
    assert found["profile_path"] is None
    assert {row["verdict"] for row in found["compared"]} == {"usual", "slow"}


def test_a_slow_link_is_on_the_screen_at_every_width(here: Path, run_dscalc: Any) -> None:
    for columns in (80, 140):
        ran = run_dscalc("fit", "one.log", "two.log", "--compare", "--explain", cwd=here, columns=columns)
        assert ran.returncode == 0, ran.stderr
        assert "of what dgx-h100 gives" in " ".join(ran.stdout.split())
        assert "A step of llama-3-8b with ZeRO-3 on 16 GPUs" in " ".join(ran.stdout.split())
        assert max(map(len, ran.stdout.splitlines())) <= columns
        assert "NET/Socket" in ran.stdout
        assert "@" in ran.stdout  # the chart


def test_a_chart_as_a_file(here: Path, run_dscalc: Any) -> None:
    pytest.importorskip("matplotlib")
    ran = run_dscalc("fit", "one.log", "two.log", "--plot", "chart.svg", cwd=here)
    assert ran.returncode == 0, ran.stderr
    assert (here / "chart.svg").read_text().lstrip().startswith("<?xml")
    assert sorted(p.name for p in here.iterdir()) == ["chart.svg", "one.log", "two.log"]
    assert "add --force" in run_dscalc("fit", "one.log", "--plot", "chart.svg", cwd=here).stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--plot", "chart.bmp"), "--plot chart.bmp: ends in .bmp; name a file that ends in .svg"),
        (("--step", "none.csv"), "none.csv: cannot be read"),
        (("--cluster", "dgx-h100", "--gpu", "A100-SXM4-80GB"), "--gpu: dgx-h100 has H100-SXM5-80GB"),
        (("--cluster", "dgx-h100", "--interconnect", "ib-ndr"), "--interconnect: dgx-h100 says what joins its nodes"),
        (("--cluster", "nowhere"), "nowhere"),
        (("--output", "no/such/folder.json"), "cannot be written"),
    ],
)
def test_errors_are_one_line(here: Path, within: Within, words: tuple[str, ...], message: str) -> None:
    before = sorted(p.name for p in here.iterdir())
    code, stdout, stderr = within("fit", "one.log", *words)
    assert code == 1
    assert message in stderr
    assert len(stderr.splitlines()) == 1
    assert stdout == ""
    assert sorted(p.name for p in here.iterdir()) == before


def test_a_gpu_that_nobody_knows_needs_a_name(here: Path, within: Within) -> None:
    size = sizes()
    (here / "odd.log").write_text(log_text("all_reduce", 8, 1, size, 20e-6 + size / 270e9, gpu="Odd Accelerator 9"))
    code, _, stderr = within("fit", "odd.log", "--output", "odd.json")
    assert code == 1
    assert "the logs name Odd Accelerator 9" in stderr
    assert "add --gpu" in stderr
    assert within("fit", "odd.log", "--gpu", "H100", "--output", "odd.json")[0] == 0


def _without(library: str, here: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """As on a machine without the optional extras: importing it fails."""
    script = f"import sys; sys.modules['{library}'] = None; from dscalc.cli.main import run; run({['fit', *words]!r})"
    return subprocess.run([sys.executable, "-c", script], cwd=here, capture_output=True, text=True, check=False)


NO_SCIPY = "fits need scipy, which is not installed: pip install 'dscalc[fit]'"


@pytest.mark.parametrize(
    ("library", "words", "message"),
    [
        ("scipy", ("--output", "new.json", "--cluster", "dgx-h100"), NO_SCIPY),
        ("scipy", ("--compare",), NO_SCIPY),
        ("scipy", ("--plot", "chart.svg"), NO_SCIPY),
        ("matplotlib", ("--plot", "chart.svg"), "needs matplotlib, which is not installed: pip install 'dscalc[plot]'"),
    ],
)
def test_a_library_that_is_not_there_is_named(here: Path, library: str, words: tuple[str, ...], message: str) -> None:
    before = sorted(here.iterdir())
    ran = _without(library, here, "one.log", *words)
    assert ran.returncode == 1
    assert message in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    assert sorted(here.iterdir()) == before


def test_logs_are_read_and_checked_without_scipy(here: Path) -> None:
    ran = _without("scipy", here, "one.log", "--ranks", "64", "--rows", "--format", "json")
    assert ran.returncode == 0, ran.stderr
    answer = json.loads(ran.stdout)
    (table,) = answer["result"]["logs"][0]["tables"]
    assert (table["ranks"], len(table["rows"])) == (8, 31)
    assert [check["name"] for check in table["checks"] if not check["ok"]] == ["stated", "ranks"]
    assert answer["result"]["fits"] == []
    assert [w["code"] for w in answer["warnings"]] == ["check_stated", "check_ranks", "no_fits"]
    screen = _without("scipy", here, "one.log")
    assert screen.returncode == 0
    assert "! no fits: fits need scipy, which is not installed. Next: pip install 'dscalc[fit]'." in " ".join(
        screen.stdout.split()
    )


def test_a_chart_is_not_drawn_where_the_profile_cannot_be_written(here: Path, within: Within) -> None:
    (here / "mine.json").write_text("mine")
    code, _, stderr = within("fit", "one.log", "--plot", "chart.svg", "--output", "mine.json", "--cluster", "dgx-h100")
    assert (code, stderr) == (1, "Error: --output mine.json: exists; add --force to replace it\n")
    assert not (here / "chart.svg").exists()


def test_a_log_that_is_named_twice_counts_once(within: Within) -> None:
    code, once, _ = within("fit", "one.log", "--format", "json")
    assert code == 0
    code, twice, _ = within("fit", "one.log", "one.log", "--format", "json")
    assert code == 0
    assert json.loads(twice)["result"] == json.loads(once)["result"]
    assert [w["code"] for w in json.loads(twice)["warnings"]] == ["given_twice"]


def test_a_log_of_an_unknown_gpu_is_not_quietly_part_of_another(here: Path, within: Within) -> None:
    size = sizes()
    (here / "odd.log").write_text(log_text("all_gather", 8, 1, size, 20e-6 + size / 270e9, gpu="Odd Accelerator 9"))
    code, out, _ = within("fit", "one.log", "odd.log")
    assert code == 0
    assert "a log names Odd Accelerator 9 (no profile has it), but the profile is made for H100" in " ".join(
        out.split()
    )


def test_runs_that_disagree_are_one_warning(here: Path, within: Within) -> None:
    size = sizes(24, 33)
    for name, rate in (("a", 40e9), ("b", 60e9), ("c", 90e9)):
        (here / f"{name}.log").write_text(log_text("all_reduce", 16, 2, size, 60e-6 + size / rate))
    code, out, _ = within("fit", "b.log", "a.log", "c.log", "--format", "json")
    assert code == 0
    (told,) = [w["message"] for w in json.loads(out)["warnings"] if w["code"] == "conflict"]
    assert "a.log:" in told.split(" took ")[0]
    assert "1.5" in told
    assert "2.2" in told
    assert "as long as b.log" in told
    assert "as long as c.log" in told


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"times": [1.0]}, "sizes, times and error_fractions need one entry each"),
        ({"sizes": [2.0, 1.0]}, "sizes must rise"),
        ({"times": [1.0, 0.0]}, "greater than 0"),
        ({"error_fractions": [5.0, 0.1]}, "not per cent"),
        ({"op": "gossip"}, "collectives.0.op"),
        ({"nodes": 99}, "nodes: 99 for 16 ranks"),
        ({"size_unit": "GB/s"}, "bad.json: collectives.0: size_unit: 'GB/s' measures bandwidth; expected a size"),
        ({"time_unit": "GB"}, "bad.json: collectives.0: time_unit: 'GB' measures bytes; expected a time"),
        ({"times": [20.0, 21.0], "time_unit": "s"}, "times: 20 s for 1 bytes; look at time_unit"),
        ({"sizes": [1.0, 2.0**30], "time_unit": "ns"}, "look at time_unit"),
    ],
)
def test_a_damaged_profile_is_one_line(here: Path, within: Within, change: dict[str, Any], message: str) -> None:
    curve = {
        "op": "all-reduce", "ranks": 16, "nodes": 2, "sizes": [1.0, 2.0], "times": [1.0, 1.1],
        "error_fractions": [0.1, 0.1], "kind": "measured", "source": "a.log:1-2",
    }  # fmt: skip
    count = {"value": 8, "unit": "count", "kind": "assumed", "source": "x"}
    profile = {"profile": "cluster", "id": "x", "provider": "us", "gpu": "H100-SXM5-80GB", "gpus_per_node": count}
    (here / "bad.json").write_text(json.dumps({**profile, "collectives": [{**curve, **change}]}))
    code, _, stderr = within("comm", "--model", "llama-3-8b", "--gpus", "8", "--profile", "bad.json")
    assert code == 1
    assert message in stderr
    assert len(stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"matmul": {"bf16": {"value": 2400, "unit": "TFLOP/s"}}}, "sustained.matmul.bf16: 2.40 PFLOP/s is more than"),
        ({"matmul": {"bf16": {"value": 600, "unit": "GB/s"}}}, "sustained.matmul.bf16: 'GB/s' measures bandwidth"),
        ({"memory_fraction": {"value": 910, "unit": "%"}}, "memory_fraction: a copy reaches"),
    ],
)
def test_rates_that_no_gpu_has_are_refused(here: Path, within: Within, change: dict[str, Any], message: str) -> None:
    assert within("fit", "one.log", "two.log", "--cluster", "dgx-h100", "--output", "mine.json")[0] == 0
    record = json.loads((here / "mine.json").read_text())
    said = {name: {"kind": "fitted", "source": "x", **each} for name, each in change.items() if name != "matmul"}
    said |= {"matmul": {k: {"kind": "fitted", "source": "x", **v} for k, v in change.get("matmul", {}).items()}}
    (here / "mine.json").write_text(json.dumps({**record, "sustained": said}))
    code, out, stderr = within("step", "--model", "llama-3-8b", "--gpus", "8", "--profile", "mine.json")
    assert (code, out) == (1, "")
    assert message in stderr
    assert len(stderr.splitlines()) == 1


def test_a_tier_reaches_no_more_than_its_bandwidth(here: Path, within: Within) -> None:
    assert within("fit", "one.log", "two.log", "--cluster", "dgx-h100", "--output", "mine.json")[0] == 0
    record = json.loads((here / "mine.json").read_text())
    record["tiers"][1]["efficiency"]["value"] = 240
    (here / "mine.json").write_text(json.dumps(record))
    code, _, stderr = within("comm", "--model", "llama-3-8b", "--gpus", "16", "--profile", "mine.json")
    assert code == 1
    assert "efficiency: a tier reaches more than 0 and at most 100 %" in stderr


def _products(rate: float) -> str:
    shapes = [(n, n, n) for n in (4096, 6144, 8192, 12288)]
    lines = []
    for m, n, k in shapes:
        lines.append(f"Elapsed time for {m}x{n}x{k}: {2 * m * n * k / rate / 1e12:.3f}")
        lines += [f"Throughput (in TFLOP/s) for {m}x{n}x{k}: {rate:.3f}", "-" * 80]
    return "\n".join(lines) + "\n"


def test_a_profile_of_products_alone_predicts_one_node(here: Path, within: Within) -> None:
    """The node's links are then those that ship with the GPU."""
    (here / "mm.log").write_text(_products(250.0))
    assert within("fit", "mm.log", "--gpu", "A100-SXM4-80GB", "--output", "mm.json")[0] == 0
    given = ("step", "--model", "llama-3-8b", "--zero", "3", "--format", "json", "--profile", "mm.json", "--gpus")
    code, out, stderr = within(*given, "8")
    assert code == 0, stderr
    assert json.loads(out)["inputs"]["hardware"]["cluster"] == "mm"
    code, _, stderr = within(*given, "16")
    assert code == 1
    assert "add --interconnect" in stderr


def test_products_faster_than_the_gpu_are_left_out(here: Path, within: Within) -> None:
    (here / "mm.log").write_text(_products(700.0))
    code, out, _ = within("fit", "mm.log", "--gpu", "A100-SXM4-80GB", "--output", "mm.json")
    assert code == 0
    assert "700 TFLOP/s in bf16 is more than A100-SXM4-80GB has at best; left out" in " ".join(out.split())
    assert "matmul" not in json.loads((here / "mm.json").read_text()).get("sustained", {})


def test_a_column_of_steps_that_stands_twice_is_refused(here: Path, within: Within) -> None:
    (here / "steps.csv").write_text("model,micro_batch,micro-batch,step_time_s\nllama-3-8b,1,2,0.5\n")
    code, _, stderr = within("fit", "one.log", "--cluster", "dgx-h100", "--step", "steps.csv")
    assert (code, stderr) == (1, "Error: steps.csv:1: column 'micro_batch' stands twice; keep one\n")


def test_valleys_are_one_warning(here: Path, within: Within) -> None:
    size = sizes(20, 33)
    for op, fall in (("all_gather", 3.0), ("all_reduce", 2.0)):
        times = 60e-6 + size / 50e9
        times[4:] *= fall
        (here / f"{op}.log").write_text(log_text(op, 16, 2, size, times))
    code, out, _ = within("fit", "one.log", "all_gather.log", "all_reduce.log", "--format", "json")
    assert code == 0
    (told,) = [w["message"] for w in json.loads(out)["warnings"] if w["code"] == "not_monotone"]
    assert told.startswith("all-gather of 16 ranks on 2 nodes: bus bandwidth falls by ")
    assert told.endswith(" at 16 MiB; 1 more fall too, by less")


def test_help_lists_a_commands_own_options_first(within: Within) -> None:
    code, out, _ = within("fit", "--help")
    assert code == 0
    own, rest = out.split("\nHardware:\n")
    assert "--rows" in own.split("\nThis command:\n")[1]
    assert "--help" in rest.split("\nHelp:\n")[1]


def test_markdown_holds_fits_and_comparison(within: Within) -> None:
    code, out, _ = within("fit", "one.log", "two.log", "--cluster", "dgx-h100", "--compare", "--format", "markdown")
    assert code == 0
    blocks = [block.splitlines() for block in out.split("\n\n") if block.startswith("|")]
    assert [len(block) - 2 for block in blocks] == [2, 2, 2]  # tables, fits, comparison: a row for each log
    assert blocks[1][0].startswith("| fit ")
    assert blocks[2][0].startswith("| beside dgx-h100 ")
    assert len({line.count(" | ") for line in blocks[1]}) == 1


def test_ranks_that_nobody_says_are_one_warning(here: Path, within: Within) -> None:
    rows = "\n".join(f"{size},{size / 2e4:.3f}" for size in (2**20, 2**22, 2**24, 2**26, 2**28, 2**30))
    (here / "table.csv").write_text(f"size [B],time [us]\n{rows}\n")
    code, out, _ = within("fit", "table.csv", "--op", "all_reduce", "--format", "json")
    assert code == 0
    assert [w["code"] for w in json.loads(out)["warnings"]] == ["check_ranks"]
