"""What ``dscalc bench`` shows, at 80 and 140 columns and in each form, of simulated hardware with two faults."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from dscalc.answers.bench import BenchAnswer, answer
from dscalc.report.bench import render
from tests.calibrate.simulated import Machine, run
from tests.calibrate.test_bench_run import asked
from tests.golden.test_screens import compare

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> BenchAnswer:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("screen"))
        machine = Machine(nodes=3, inside=4, slow_ranks={6: 1.22}, slow_nodes={2: 1.5})
        want = asked(Path(), budget_s=20.0)._replace(output="lab.json")
        return answer(want, run(machine, want), {})


@pytest.mark.parametrize("columns", [80, 140])
def test_screen(found: BenchAnswer, columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    text = render(found, "table")
    assert max(map(len, text.splitlines())) <= columns
    compare(GOLDEN / f"bench-{columns}.txt", text)


def test_quiet_is_one_line(found: BenchAnswer) -> None:
    assert render(found, "table", quiet=True) == f"{found.counted} measurements in lab.rows.jsonl; 2 slow\n"


def test_json_has_the_stable_keys(found: BenchAnswer) -> None:
    whole = json.loads(render(found, "json"))
    assert {"schema", "command", "version", "inputs", "assumptions", "warnings", "result"} == set(whole)
    result = whole["result"]
    assert {"fits", "compute", "profile_path", "rows_path", "slow", "collectives", "pairs"} <= set(result)
    assert result["profile_path"] == "lab.json"
    first = result["fits"][0]
    assert {"op", "ranks", "nodes", "pieces"} <= set(first)
    named = {"min_bytes", "max_bytes", "latency_s", "bandwidth_bytes_per_s", "latency_stderr_s"}
    assert named | {"bandwidth_stderr_bytes_per_s", "points", "median_residual_fraction"} <= set(first["pieces"][0])
    assert [(s["what"], s["rank"], s["hosts"]) for s in result["slow"]] == [
        ("rank", 6, ["gpu-01"]),
        ("node", None, ["gpu-02"]),
    ]


def test_csv_has_a_line_a_collective(found: BenchAnswer) -> None:
    rows = list(csv.DictReader(io.StringIO(render(found, "csv"))))
    assert len(rows) == len(found.rows("collective"))
    assert float(rows[0]["time_s"]) == found.rows("collective")[0]["time_s"]


def test_markdown_is_a_table(found: BenchAnswer) -> None:
    lines = render(found, "markdown").splitlines()
    assert lines[0].startswith("| where")
    assert {line.count("|") for line in lines} == {8}
