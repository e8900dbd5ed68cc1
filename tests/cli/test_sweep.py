"""``dscalc sweep``: keys, files, the Python twin, and input that cannot be right."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import dscalc
from dscalc.answers import sweep as sweep_module
from dscalc.answers import sweep_budget
from dscalc.answers.sweep import SweepAnswer, sweep
from dscalc.answers.sweep_budget import OLD_DAYS, _age_days, budget_of, reliability_of
from dscalc.answers.sweep_notes import words_of
from dscalc.answers.sweep_rows import layout_words
from dscalc.errors import InputError
from dscalc.report.sweep import render
from dscalc.sweep.prune import Found

SMALL: dict[str, Any] = {"model": "llama-3-8b", "cluster": "dgx-h100", "gpus": "8,16", "global_batch": 64, "cp": 1}
QUICK = ["--model", "llama-3-8b", "--cluster", "dgx-h100", "--gpus", "8", "--gbs", "64", "--cp", "1", "--pp", "1"]
RESULT = {"rows", "curve", "ceiling", "candidates", "evaluated", "feasible", "rejected", "layouts_per_s", "complete"}
LIMITS = {"memory_floor", "ratio_one", "marginal_gain", "throughput_peak", "latency", "critical_batch", "sequences"}


@pytest.fixture(scope="module")
def found() -> SweepAnswer:
    return sweep(**SMALL, tokens="1T", price=2.0)


def test_json_has_the_stable_keys(run_dscalc: Any) -> None:
    ran = run_dscalc("sweep", *QUICK, "--format", "json")
    assert ran.returncode == 0, ran.stderr
    assert ran.stderr == ""  # no progress where nobody watches
    whole = json.loads(ran.stdout)
    result = whole["result"]
    assert set(result) >= RESULT
    assert set(result["ceiling"]) >= {"binding_limit", "gpus", "low_gpus", "high_gpus", "limits", "elasticities"}
    assert set(result["ceiling"]["limits"]) == LIMITS
    assert all({"gpus", "reason"} <= set(limit) for limit in result["ceiling"]["limits"].values())
    assert set(result["ceiling"]["elasticities"]) == {
        "bandwidth_bytes_per_s",
        "tokens_per_rank",
        "gradient_bytes",
        "effective_flop_per_s",
        "latency_s",
    }
    row = result["rows"][0]
    assert {"gpus", "tp", "pp", "zero", "micro_batch", "step_time_s", "mfu", "total_bytes", "headroom_bytes"} <= set(
        row
    )
    assert {"pareto", "rank", "low_s", "high_s", "bubble_share", "communication_s"} <= set(row)
    assert result["complete"] is True
    assert sum(result["rejected"].values()) + result["feasible"] == result["candidates"]
    assert whole["inputs"]["axes"]["tp"] == [1, 2, 4, 8]


def test_csv_is_the_rows(run_dscalc: Any) -> None:
    ran = run_dscalc("sweep", *QUICK, "--top", "3", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(ran.stdout)))
    assert [r["rank"] for r in rows[:3]] == ["1", "2", "3"]
    assert float(rows[0]["step_time_s"]) <= float(rows[1]["step_time_s"])


def test_python_gives_a_table_and_a_ceiling() -> None:
    frame, ceiling = dscalc.sweep(**SMALL)
    assert len(frame) >= 10
    assert frame[frame["rank"] == 1].gpus.tolist() == [8, 16]
    assert ceiling.binding_limit in LIMITS
    empty, _ = dscalc.sweep(**SMALL, tp=3)
    assert len(empty) == 0
    assert list(empty.columns) == list(frame.columns)
    assert frame.step_time_s.is_monotonic_increasing is False  # by number of GPUs, then rank


def test_a_row_is_what_dscalc_step_says(found: SweepAnswer) -> None:
    for row in (found.rows[0], *[r for r in found.rows if r.gpus == 16][:2]):
        words = {"model": "llama-3-8b", "cluster": "dgx-h100"} | words_of(row.layout)
        alone = dscalc.step(**words)
        assert row.step_time_s == alone.step_time_s
        assert row.total_bytes == alone.memory.total_bytes
        assert (row.mfu, row.hfu) == pytest.approx((alone.mfu, alone.hfu))
        assert (row.low_s, row.high_s) == pytest.approx((alone.low_s, alone.high_s))
        parts = row.compute_s + row.host_s + row.communication_s + row.bubble_s + row.optimizer_s
        assert parts == pytest.approx(row.step_time_s)


def test_the_curve_takes_the_best(found: SweepAnswer) -> None:
    for point in found.curve:
        rows = [r for r in found.rows if r.gpus == point.gpus]
        assert point.row is not None
        assert point.row.step_time_s == min(r.step_time_s for r in rows)
    assert found.curve[0].efficiency == 1.0
    assert found.best is found.curve[1]


def test_objectives() -> None:
    narrow = SMALL | {"pp": 1, "tp": "1,2"}
    fast = sweep(**narrow, top=1000)
    for within, words in ((0.05, {}), (0.2, {"within": "20%"})):
        room = sweep(**narrow, objective="headroom", **words)
        for point, other in zip(room.curve, fast.curve, strict=True):
            most = other.row.step_time_s * (1.0 + within)
            near = [r for r in fast.rows if r.gpus == point.gpus and r.step_time_s <= most]
            assert point.row.headroom_bytes == max(r.headroom_bytes for r in near)
            assert point.row.step_time_s <= most
        assert room.best is room.curve[1]
        listed = [r.headroom_bytes for r in room.rows if r.gpus == 16 and r.rank]
        assert listed == sorted(listed, reverse=True)
    few = sweep(**narrow, objective="gpus")
    assert few.best is not None
    assert few.best.gpus == 8
    cheap = sweep(**narrow, objective="cost")
    assert cheap.best is not None
    assert cheap.best.gpus == 8  # efficiency falls with every GPU


def test_constraints_hold() -> None:
    rows = sweep(**SMALL | {"tp": 2, "pp": "1,2"}, zero="1", schedule="1f1b", max_micro_batch=2, max_dp=4).rows
    assert rows
    for row in rows:
        spec = row.layout
        assert (spec.tp, spec.zero, spec.cp, spec.schedule) == (2, 1, 1, "1f1b")
        assert spec.pp in (1, 2)
        assert spec.micro_batch <= 2
        assert spec.dp <= 4


def test_weak_scaling_grows_the_batch() -> None:
    points = sweep(**SMALL | {"pp": 1, "tp": 1}, scaling="weak").curve
    assert [p.global_batch for p in points] == [64, 128]


def test_a_budget_by_hand(found: SweepAnswer) -> None:
    """1e12 tokens in steps of 64 x 4096, 2 USD a GPU-hour, 700 W a board and a PUE of 1.2."""
    budget = found.curve[0].budget
    row = found.curve[0].row
    assert budget is not None
    assert row is not None
    assert budget.steps == 3814698
    assert budget.train_time_s == pytest.approx(3814698 * row.step_time_s)
    assert budget.wall_time_s == pytest.approx(budget.train_time_s / budget.goodput_fraction)
    assert budget.gpu_hours == pytest.approx(8 * budget.wall_time_s / 3600)
    assert budget.usd == pytest.approx(2 * budget.gpu_hours)
    assert budget.energy_j == pytest.approx(8 * 700 * 1.2 * budget.wall_time_s)
    assert budget.failures == pytest.approx(budget.gpu_hours / 50700)
    assert 0.99 < budget.goodput_fraction < 1.0
    rare = budget_of(found.setups[0], row, {**found.given, "mtbf": 3600.0 * 8, "checkpoint_interval": 600.0})
    assert rare.goodput_fraction < 0.85
    assert rare.checkpoint_interval_s == 600.0
    assert reliability_of({"mtbf": 5.0}).mtbf_s == 5.0


def test_prices_age() -> None:
    from datetime import date

    today = date(2026, 11, 29)
    assert _age_days("2026-08-31", today) == OLD_DAYS
    assert _age_days("2026-11", today) == 0  # the end of that month is not over
    assert _age_days("2026-06", today) == 152
    assert _age_days("2025", today) == 333
    assert _age_days(None, today) is None
    answered = sweep(**SMALL | {"cluster": "aws-p5.48xlarge", "pp": 1, "tp": 1}, tokens="1T")
    prices = [a for a in answered.assumptions if a.name.startswith("price.")]
    assert prices
    assert "not included" in prices[0].source
    assert not any(w.code == "no_price" for w in answered.warnings)


def test_machines_are_compared() -> None:
    found = sweep(**SMALL | {"cluster": ["dgx-h100", "dgx-a100-80g"], "pp": 1, "gpus": 8})
    assert [s.name for s in found.setups] == ["dgx-h100", "dgx-a100-80g"]
    fast, slow = (p.row for p in found.curve)
    assert fast is not None
    assert slow is not None
    assert fast.step_time_s < slow.step_time_s
    assert set(found.ceilings) == {"dgx-h100", "dgx-a100-80g"}
    both = sweep(model="llama-3-8b", gpu="H100-SXM5-80GB", interconnect=["ib-ndr", "100Gb/s"], gpus=16, gbs=64, cp=1)
    assert [s.name for s in both.setups] == ["H100-SXM5-80GB + ib-ndr", "H100-SXM5-80GB + 100Gb/s"]


def test_nothing_fits_names_the_nearest(run_dscalc: Any) -> None:
    words = ["sweep", "--model", "llama-3-70b", "--cluster", "dgx-h100", "--gpus", "8", "--gbs", "64", "--max-cp", "1"]
    ran = run_dscalc(*words)
    assert ran.returncode == 0
    text = " ".join(ran.stdout.split())
    assert "nothing fits on dgx-h100; nearest is tp 8" in text
    assert "are missing. Next: more than 8 GPUs" in text
    assert run_dscalc(*words, "--check", "--quiet").returncode == 3


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (["--gpus", "64..8"], 2, ["--gpus", "64..8 holds no value"]),
        (["--gpus", "-8"], 2, ["--gpus", "'-8' is negative; expected e.g. 8 or 1,2,4 or 8..64"]),
        (["--gpus", "8..64:0"], 2, ["--gpus", "0 is out of range"]),
        (["--gpus", "8.."], 2, ["--gpus", "is no range"]),
        (["--gpus", "1..1000000000:1"], 2, ["--gpus", "more than 10,000 values"]),
        (["--gpus", "8", "--tp", "1,x"], 2, ["--tp", "'x' is not a number"]),
        (["--gpus", "8", "--zero", "4"], 2, ["--zero", "'4'"]),
        (["--gpus", "8", "--tp", "4", "--max-tp", "2"], 1, ["--max-tp", "leaves no value"]),
        (["--gpus", "12,16", "--gbs", "10", "--scaling", "weak"], 1, ["--global-batch", "multiple of 12"]),
        (["--gpus", "367567200,735134400", "--gbs", "735134400"], 1, ["candidates", "narrow them"]),
        (["--gpus", "8", "--output", "no/such/folder/x.json"], 1, ["--output", "cannot be written"]),
        (["--gpus", "8", "--format", "parquet"], 1, ["--format", "--output"]),
        (["--gpus", "8", "--marginal", "150%"], 2, ["--marginal"]),
        (["--gpus", "8", "--cluster", "hgx-h100"], 1, ["--cluster", "named twice"]),
        (["--gpus", "8", "--mtbf", "0"], 2, ["--mtbf", "at least 1.00 s"]),
        (["--gpus", "8", "--checkpoint-interval", "0s"], 2, ["--checkpoint-interval", "at least 1.00 s"]),
        (["--gpus", "8", "--pue", "0.5"], 2, ["--pue", "at least 1 "]),
        (["--gpus", "8", "--output", "./x.html", "--report", "x.html"], 1, ["--report", "same file as --output"]),
        ([], 1, ["--gpus", "how many GPUs"]),
        (["--gpus", "8", "--ga", "4"], 2, ["--ga", "follows from --global-batch"]),
        (["--nnodes", "8"], 2, ["--nnodes", "give --gpus, nodes times GPUs a node"]),
        (["--gpus", "8", "--gradient-bytez", "4"], 2, ["--gradient-bytez", "there is no such option"]),
        (["--gpus", "8", "--trace-ring", "4"], 2, ["--trace-ring", "is no option of sweep; comm takes it"]),
        (["--gpus", "8", "--within", "2"], 2, ["--within", "more than 1"]),
    ],
)
def test_bad_input_is_one_line(run_dscalc: Any, more: list[str], code: int, words: list[str]) -> None:
    ran = run_dscalc("sweep", "--model", "llama-3-70b", "--cluster", "dgx-h100", *more)
    assert ran.returncode == code
    assert ran.stdout == ""
    (line,) = ran.stderr.splitlines()
    for word in words:
        assert word in line


@pytest.mark.parametrize(
    ("more", "name", "words"),
    [
        ({"dp": 3}, "dp", "--tp x --pp x --cp x --dp must be the number of GPUs"),
        ({"tp": 16}, "gpus", "--tp x --pp x --cp must divide the number of GPUs"),
        ({"tp": 1, "pp": 1, "gpus": 24}, "global_batch", "--dp x --micro-batch must divide --global-batch"),
        ({"tp": 3, "gpus": 24}, "tp_heads", "--tp must divide the attention heads"),
        ({"pp": 200, "gpus": 400}, "pp_layers", "--pp times --vpp must not exceed the number of layers"),
        ({"vpp": 2, "pp": 1}, "vpp_schedule", "--vpp above 1 needs --schedule interleaved"),
        ({"ep": 4}, "ep_experts", "--ep above 1 needs a model with experts"),
    ],
)
def test_no_legal_layout_says_why(more: dict[str, Any], name: str, words: str) -> None:
    found = sweep(**SMALL | {"gpus": 8} | more)
    assert not found.rows
    assert found.curve[0].lacking == name
    assert found.to_json()["result"]["curve"][0]["fits"] is False
    (warned,) = (w for w in found.warnings if w.code in ("nothing_legal", "nothing_fits"))
    assert words in warned.message
    assert f"no layout is legal: {words}" in render(found, "table", quiet=True)
    assert "nothing fits" not in render(found, "table").lower()
    assert found.ceiling.binding_limit is None


def test_a_number_of_gpus_without_a_legal_layout_is_named() -> None:
    found = sweep(**SMALL | {"gpus": "24,32", "tp": 1, "pp": 1, "global_batch": 512})
    assert [p.lacking for p in found.curve] == ["global_batch", None]
    (warned,) = (w for w in found.warnings if w.code == "nothing_legal")
    assert "on 24 GPUs" in warned.message
    advised = sweep(**SMALL | {"gpus": 24, "tp": 1, "pp": 1, "global_batch": 528})
    assert "e.g. 528" in warned.next_step
    assert advised.rows


def test_what_was_not_searched_is_not_said_not_to_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    real = sweep_module.search

    def cut_short(problems: Any, jobs: int = 1, progress: Any = None) -> list[Found]:
        first, *rest = real(problems, jobs, progress)
        return [first, *(Found(complete=False) for _ in rest)]

    monkeypatch.setattr(sweep_module, "search", cut_short)
    found = sweep(**SMALL)
    assert [p.lacking for p in found.curve] == [None, "not_searched"]
    assert [p["fits"] for p in found.to_json()["result"]["curve"]] == [True, None]
    assert "not searched" in render(found, "table")
    assert "nothing fits" not in render(found, "table").lower()
    assert not [w for w in found.warnings if w.code.startswith("nothing")]
    decided = found.feasible + sum(found.rejected.values())
    assert decided < found.candidates
    assert found.layouts_per_s == pytest.approx(decided / found.elapsed_s)


def test_an_interrupt_while_twice_the_batch_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second search only tells one line of the ceiling: all else is there, and the answer says so."""
    real, calls = sweep_module.search, []

    def cut_short(problems: Any, jobs: int = 1, progress: Any = None) -> list[Found]:
        calls.append(len(problems))
        return real(problems, jobs, progress) if len(calls) == 1 else [Found(complete=False) for _ in problems]

    monkeypatch.setattr(sweep_module, "search", cut_short)
    found = sweep(**SMALL)
    assert calls == [2, 2]
    assert not found.complete
    assert found.ceiling.elasticities["tokens_per_rank"] is None
    assert found.ceiling.elasticities["effective_flop_per_s"] is not None
    assert all(p.row is not None for p in found.curve)
    assert "twice the batch" in next(w.message for w in found.warnings if w.code == "incomplete")
    whole = render(found, "table")
    assert "GPUs twice as fast" in whole
    assert "with twice the batch" not in whole


def test_progress_counts_both_searches() -> None:
    told: list[tuple[int, int]] = []
    sweep(**SMALL, progress=lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert len({total for _, total in told}) == 1
    assert told[-1][0] == told[-1][1]


def test_layouts_that_are_level_with_the_fastest(found: SweepAnswer) -> None:
    assert found.level == 0.05
    for gpus in (8, 16):
        rows = [r for r in found.rows if r.gpus == gpus]
        fastest = min(r.step_time_s for r in rows)
        assert all(r.level == (r.step_time_s <= 1.05 * fastest) for r in rows)
        (simplest,) = (r for r in rows if r.simplest)
        assert simplest.level
        assert simplest.number == min(r.number for r in rows if r.level)
        assert layout_words(simplest.layout) in " ".join(render(found, "table").replace("\u00a0", " ").split())
    frame = found.frame
    assert frame[frame.simplest].gpus.tolist() == [8, 16]


def test_rows_hold_what_a_token_costs(found: SweepAnswer) -> None:
    for row in found.rows:
        hours = row.gpus * row.step_time_s / 3600.0
        assert row.usd_per_token == pytest.approx(2.0 * hours / (row.layout.global_batch * row.layout.seq_len))
    screen = render(found, "table")
    assert "USD/Gtok" in screen
    assert "price.dgx-h100 2 USD/GPU-hour (given)" in screen
    free = sweep(**SMALL | {"gpus": 8, "pp": 1})
    assert free.rows[0].usd_per_token is None
    assert "USD" not in render(free, "table")
    assert "price.dgx-h100" in render(sweep(**SMALL | {"gpus": 8, "pp": 1}, price=3.0), "table")


def test_a_narrow_fit_names_one_with_room() -> None:
    found = sweep(model="llama-3-8b", cluster="dgx-h100", gpus=32, global_batch=960, cp=1, tp=1, pp=1)
    best = found.rows[0]
    (warned,) = (w for w in found.warnings if w.code == "narrow_fit")
    room = [r for r in found.rows if (r.headroom_bytes or 0.0) >= r.high_bytes - r.total_bytes]
    roomy = min(room, key=lambda r: r.step_time_s)
    assert best not in room
    assert f"on 32 take {layout_words(roomy.layout)}, micro-batch {roomy.layout.micro_batch}" in warned.next_step
    assert f"{roomy.step_time_s / best.step_time_s - 1.0:.1%} slower" in warned.next_step


def test_each_machine_has_its_price() -> None:
    words: dict[str, Any] = SMALL | {"gpus": 8, "pp": 1, "tp": 1, "cluster": "dgx-h100,dgx-a100-80g"}
    found = sweep(**words, price="3,1", objective="cost")
    fast, slow = (p.row for p in found.curve)
    assert fast is not None
    assert slow is not None
    assert fast.usd_per_token is not None
    assert slow.usd_per_token is not None
    assert fast.usd_per_token / slow.usd_per_token == pytest.approx(3.0 * fast.step_time_s / slow.step_time_s)
    assert found.best is not None
    assert found.best.setup == "dgx-a100-80g"
    same = sweep(**words, price=[2, 2], objective="cost")
    assert same.best is not None
    assert same.best.setup == "dgx-h100"
    with pytest.raises(InputError, match="gives 3 prices for 2 machines"):
        sweep(**words, price="1,2,3")


def test_money_and_hours_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    real = sweep_budget.price_of
    only = "dgx-h100"
    monkeypatch.setattr(sweep_budget, "price_of", lambda setup: real(setup) if setup.name == only else None)
    words: dict[str, Any] = SMALL | {"gpus": 8, "pp": 1, "tp": 1, "cluster": "dgx-h100,dgx-a100-80g"}
    found = sweep(**words, price=100.0, objective="cost")
    assert found.best is not None
    assert found.best.setup == "dgx-h100"  # by GPU-hours, not 100 USD against 1
    assert [w.code for w in found.warnings if w.code == "no_price"]


def test_a_training_that_failures_eat_never_ends() -> None:
    found = sweep(**SMALL | {"gpus": 8, "pp": 1}, tokens="1T", price=2.0, mtbf="1s")
    assert "never ends" in render(found, "table")
    assert "inf" not in render(found, "table").split("Training", 1)[1].split("Best layouts")[0]
    assert [w.next_step for w in found.warnings if w.code == "failures"]
    assert found.to_json()["result"]["curve"][0]["budget"]["goodput_fraction"] == 0.0


def test_a_closed_pipe_loses_no_report(tmp_path: Path) -> None:
    page = tmp_path / "plan.html"
    words = [sys.executable, "-m", "dscalc", "sweep", *QUICK, "--format", "json", "--report", str(page)]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        subprocess.run(words, stdout=writer, stderr=subprocess.DEVNULL, timeout=60, check=False)
    finally:
        os.close(writer)
    assert page.read_text(encoding="utf-8").endswith("</html>\n")


def test_an_existing_file_stays_without_force(run_dscalc: Any, tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("mine", encoding="utf-8")
    ran = run_dscalc("sweep", *QUICK, "--output", str(path))
    assert ran.returncode == 1
    assert path.read_text(encoding="utf-8") == "mine"
    assert run_dscalc("sweep", *QUICK, "--output", str(path), "--force").returncode == 0
    assert path.read_text(encoding="utf-8").startswith("setup,rank,pareto,level,simplest,gpus")


def test_a_model_cannot_command_the_terminal(run_dscalc: Any, tmp_path: Path) -> None:
    folder = tmp_path / "a\x1b[31m\x9bred\x07"
    folder.mkdir()
    shape = {"hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4, "num_attention_heads": 8}
    config = {"model_type": "llama", "vocab_size": 32000, **shape}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    words = ["--cluster", "dgx-h100", "--gpus", "8", "--gbs", "64", "--tp", "1", "--pp", "1", "--cp", "1"]
    page = tmp_path / "plan.html"
    ran = run_dscalc("sweep", "--model", str(folder), *words, "--report", str(page))
    assert ran.returncode == 0, ran.stderr
    assert "red" in ran.stdout
    assert not set(ran.stdout) & {"\x1b", "\x9b", "\x07"}
    title = page.read_text(encoding="utf-8").split("<h1>")[1].split("</h1>")[0]
    assert "red" in title
    assert tmp_path.name not in title


def test_parquet(tmp_path: Path, run_dscalc: Any) -> None:
    pytest.importorskip("pyarrow")
    import pandas as pd

    path = tmp_path / "rows.parquet"
    ran = run_dscalc("sweep", *QUICK, "--output", str(path))
    assert ran.returncode == 0, ran.stderr
    assert pd.read_parquet(path)["rank"].iloc[0] == 1


def test_parquet_without_pyarrow_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from dscalc.report.sweep import refuse_parquet

    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"dscalc\[parquet\]"):
        refuse_parquet("x.parquet")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_killed_half_way_it_gives_the_best_so_far(tmp_path: Path, number: int, repository: Path) -> None:
    path = tmp_path / "best.json"
    words = ["--model", "deepseek-v3", "--cluster", "dgx-h100", "--gpus", "2048,4096", "--gbs", "8192"]
    command = [sys.executable, "-m", "dscalc", "sweep", *words, "--output", str(path)]
    env = {**os.environ, "PYTHONPATH": str(repository)}
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE) as process:
        time.sleep(3.0)
        assert process.poll() is None
        process.send_signal(number)
        _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130, stderr
    whole = json.loads(path.read_text(encoding="utf-8"))
    assert whole["result"]["complete"] is False
    assert any(w["code"] == "incomplete" for w in whole["warnings"])
    assert [p.name for p in tmp_path.iterdir()] == ["best.json"]


def test_a_scenario_holds_lists(run_dscalc: Any, tmp_path: Path) -> None:
    file = tmp_path / "plan.toml"
    file.write_text(
        'model = "llama-3-8b"\ncluster = "dgx-h100"\ngpus = "8,16"\ntp = [1, 2]\npp = 1\ncp = 1\ngbs = 64\n'
    )
    ran = run_dscalc("sweep", "--scenario", str(file), "--format", "json")
    assert ran.returncode == 0, ran.stderr
    whole = json.loads(ran.stdout)
    assert whole["inputs"]["axes"]["tp"] == [1, 2]
    assert {p["gpus"] for p in whole["result"]["curve"]} == {8, 16}
