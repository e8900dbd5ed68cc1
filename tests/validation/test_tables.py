"""Files of measurements: nonsense is left out with its column, what is no table is refused with its line."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from dscalc.errors import InputError
from dscalc.validation.memory import validate_memory
from dscalc.validation.step import validate_step
from dscalc.validation.table import plain, read_table

GOOD = {
    "id": "a",
    "source_key": "mine",
    "quality": "A",
    "n_layers": "32",
    "hidden": "4096",
    "n_heads": "32",
    "ffn_hidden": "11008",
    "vocab": "32000",
    "seq_len": "4096",
    "gpu": "H100-SXM5-80GB",
    "n_gpus": "8",
    "tp": "2",
    "pp": "2",
    "cp": "1",
    "dp": "2",
    "micro_batch": "1",
    "global_batch": "8",
    "peak_mem_gib": "60",
    "step_time_s": "",
}


def table(tmp_path: Path, *changes: dict[str, str]) -> Path:
    rows = [GOOD | change for change in changes]
    path = tmp_path / "rows.csv"
    lines = [",".join(GOOD), *(",".join(row.values()) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"peak_mem_gib": "0"}, "peak_mem_gib is not positive"),
        ({"peak_mem_gib": "-3"}, "peak_mem_gib is not positive"),
        ({"peak_mem_gib": "1e300"}, "peak_mem_gib is out of range"),
        ({"peak_mem_gib": ""}, "peak_mem_gib not stated"),
        ({"peak_mem_gib": "１"}, "peak_mem_gib is not a number"),
        ({"tp": "3", "n_gpus": "12"}, "tp must divide the attention heads"),
        ({"pp": "64", "n_gpus": "256"}, "pp times vpp must not exceed the number of layers"),
        ({"seq_len": "4095", "cp": "2", "n_gpus": "16"}, "cp above 1 needs a seq_len"),
        ({"n_gpus": "16"}, "tp * pp * cp * dp = 8 is not n_gpus 16"),
        ({"dp": "", "n_gpus": "10"}, "n_gpus 10 is no multiple"),
        ({"tp": "0"}, "tp is out of range"),
        ({"dp": "-2"}, "dp is out of range"),
        ({"tp": "1.5"}, "tp is not a whole number"),
        ({"n_layers": "1e9"}, "n_layers is out of range"),
        ({"hidden": "-4096"}, "hidden is out of range"),
        ({"vocab": "0"}, "vocab is out of range"),
        ({"seq_len": "0"}, "seq_len is out of range"),
        ({"ffn_hidden": "-1"}, "ffn_hidden is out of range"),
        ({"micro_batch": "0"}, "micro_batch is not positive"),
        ({"global_batch": "-8"}, "global_batch is not positive"),
        ({"hidden": "900000000"}, "hidden: "),
        ({"n_heads": "30000000", "tp": "1", "dp": "4"}, "n_heads: "),
    ],
)
def test_what_cannot_be_is_left_out_with_its_column(tmp_path: Path, change: dict[str, str], words: str) -> None:
    found = validate_memory(table(tmp_path, {}, change | {"id": "b"}))
    assert [p.row.id for p in found.predictions] == ["a"]
    assert [e.id for e in found.excluded] == ["b"]
    assert words in found.excluded[0].reason


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"n_layers": "many"}, "n_layers is not a number"),
        ({"n_layers": "nan"}, "n_layers is not finite"),
        ({"step_time_s": ""}, "not stated"),
        ({"tp": "3", "n_gpus": "12"}, "tp must divide the attention heads"),
        ({"pp": "64", "n_gpus": "256"}, "pp times vpp"),
    ],
)
def test_step_times_likewise(tmp_path: Path, change: dict[str, str], words: str) -> None:
    found = validate_step(table(tmp_path, {"step_time_s": "2"}, {"step_time_s": "2", "id": "b"} | change))
    assert [p.row.row.id for p in found.predictions] == ["a"]
    assert words in found.excluded[0].reason


HEAD = "id,tp"


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        (f"{HEAD},tp\na,1,1\n", ":1", "'tp' stands twice"),
        (f'{HEAD}\na,1\n"b,1\nc,1\n', ":3", "quote is never closed"),
        (f"{HEAD}\na,1\nb,1,7\n", ":3", "3 cells for 2 columns"),
        (f"{HEAD}\na,{'x' * 140_000}\n", ":2", "131,072"),
        (f"{'x' * 140_000},{HEAD}\n", ":1", "131,072"),
        ("id\na\n", "", "lacks the column 'tp'"),
    ],
)
def test_what_is_no_table(tmp_path: Path, text: str, where: str, words: str) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=words) as told:
        list(read_table(path, "", ("id", "tp")))
    assert told.value.where == f"{path}{where}"


def test_text_that_a_terminal_would_obey() -> None:
    assert plain(" \x1b[31mred\x1b[0m\x07 \x1b]0;title\x07x\u202ey ") == "red  x y"


# --- as a process ---
def refused(ran: subprocess.CompletedProcess[str], *words: str) -> None:
    assert (ran.returncode, ran.stdout) == (1, ""), ran.stderr
    assert len(ran.stderr.splitlines()) == 1
    assert all(word in ran.stderr for word in words), ran.stderr


@pytest.mark.parametrize("metric", ["memory", "step"])
def test_pipes_devices_and_huge_files(run_dscalc: Any, tmp_path: Path, metric: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    with (tmp_path / "huge.csv").open("wb") as file:
        file.truncate((64 << 20) + 1)
    args = ("validate", "--metric", metric, "--data")
    refused(run_dscalc(*args, "pipe", cwd=tmp_path, timeout=30), "pipe", "not a regular file")
    refused(run_dscalc(*args, "/dev/zero", timeout=30), "/dev/zero", "not a regular file")
    refused(run_dscalc(*args, "huge.csv", cwd=tmp_path, timeout=30), "huge.csv", "too large")


@pytest.mark.parametrize("metric", ["memory", "step"])
def test_no_row_that_can_be_predicted(run_dscalc: Any, tmp_path: Path, metric: str) -> None:
    change = {"tp": "\x1b[31m3\x1b[0m", "n_gpus": "12", "id": "\x1b[2Jevil", "step_time_s": "1"}
    path = str(table(tmp_path, change))
    for more in ((), ("--quiet",), ("--format", "markdown"), ("--format", "csv"), ("--format", "json")):
        ran = run_dscalc("validate", "--metric", metric, "--data", path, *more)
        assert (ran.returncode, ran.stderr) == (0, "")
        assert "\x1b" not in ran.stdout
        assert "u001b" not in ran.stdout
        if more != ("--format", "csv"):
            assert "o row could be predicted" in ran.stdout
            assert "verage over" not in ran.stdout
        if not more or more[-1] in ("markdown", "json"):
            assert "tp must divide the attention heads" in ran.stdout


def test_an_empty_table_says_so(run_dscalc: Any, tmp_path: Path) -> None:
    ran = run_dscalc("validate", "--data", str(table(tmp_path)))
    assert ran.returncode == 0
    assert "No row could be predicted: there is none." in ran.stdout
