"""Files and streams that are not what they seem, as a process: pipes, devices, huge or nested text, closed stdout."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.cli.helpers import CONFIG

BASE = ("memory", "--params", "7e9")


def refused(ran: subprocess.CompletedProcess[str], *words: str, code: int = 1) -> None:
    assert (ran.returncode, ran.stdout) == (code, ""), ran.stderr
    assert len(ran.stderr.splitlines()) == 1, ran.stderr
    for word in ("Error: ", *words):
        assert word in ran.stderr
    assert "set_int_max_str_digits" not in ran.stderr


@pytest.mark.parametrize(
    "args",
    [
        ("memory", "--scenario", "pipe"),
        ("memory", "--model", "pipe"),
        (*BASE, "--profile", "pipe"),
        (*BASE, "--output", "pipe", "--force"),
    ],
)
def test_a_pipe_is_refused_and_nobody_waits_for_it(run_dscalc: Any, tmp_path: Path, args: tuple[str, ...]) -> None:
    os.mkfifo(tmp_path / "pipe")
    refused(run_dscalc(*args, cwd=tmp_path, timeout=30), "pipe", "not a regular file")
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("params = " + "[" * 5000 + "]" * 5000, "nested too deeply"),
        ("params = " + "9" * 6000, "too many digits"),
        ("params = 0x" + "9" * 6000, "out of range"),
        ("# " + "x" * (1 << 20), "too large"),
    ],
)
def test_scenarios_beyond_measure(run_dscalc: Any, tmp_path: Path, text: str, word: str) -> None:
    (tmp_path / "s.toml").write_text(text, encoding="utf-8")
    refused(run_dscalc("memory", "--scenario", "s.toml", cwd=tmp_path), "s.toml", word)


@pytest.mark.parametrize("option", ["--model", "--profile"])
def test_a_number_of_too_many_digits(run_dscalc: Any, tmp_path: Path, option: str) -> None:
    (tmp_path / "big.json").write_text('{"a": ' + "9" * 6000 + "}", encoding="utf-8")
    args = ("memory", option, "big.json") if option == "--model" else (*BASE, option, "big.json")
    refused(run_dscalc(*args, cwd=tmp_path), "big.json", "digits")


def test_a_scenario_may_begin_with_a_mark_and_name_files_beside_it(run_dscalc: Any, tmp_path: Path) -> None:
    folder = tmp_path / "sub"
    folder.mkdir()
    (folder / "x.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    (folder / "llama-2-7b").mkdir()  # the name of a model that ships stays one
    (folder / "s.toml").write_bytes(b'\xef\xbb\xbfmodel = "x.json"\nformat = "json"\n')
    ran = run_dscalc("memory", "--scenario", "sub/s.toml", cwd=tmp_path)
    assert json.loads(ran.stdout)["inputs"]["model"]["layers"] == 2
    (folder / "s.toml").write_text('model = "llama-2-7b"\nformat = "json"\n', encoding="utf-8")
    ran = run_dscalc("memory", "--scenario", "sub/s.toml", cwd=tmp_path)
    assert json.loads(ran.stdout)["inputs"]["model"]["layers"] == 32


def test_a_path_that_is_no_text_here(run_dscalc: Any, tmp_path: Path) -> None:
    (tmp_path / "é").mkdir()
    (tmp_path / "é" / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    plain = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    refused(run_dscalc("memory", "--model", "é", cwd=tmp_path, env=plain), "--model", "LC_ALL=C.UTF-8", code=2)


def test_digits_of_other_scripts_are_no_numbers(run_dscalc: Any) -> None:
    refused(run_dscalc(*BASE, "--capacity-factor", "１"), "--capacity-factor", "not a number", code=2)
    refused(run_dscalc("comm", "--params", "7e9", "--gradient-bytes", "２"), "--gradient-bytes", code=2)


def test_a_hint_names_a_command_that_exists(run_dscalc: Any) -> None:
    ran = run_dscalc("show", "")
    refused(ran, "`dscalc list ")
    kind = ran.stderr.partition("`dscalc list ")[2].partition("`")[0]
    assert run_dscalc("list", kind).returncode == 0


@pytest.mark.parametrize("args", [BASE, (*BASE, "--format", "json"), ("--help",), ("--version",), ("list", "gpus")])
def test_a_closed_stdout_is_no_fault(repository: Path, args: tuple[str, ...]) -> None:
    line = [sys.executable, "-m", "dscalc", *args]
    ran = subprocess.run(
        ["sh", "-c", '"$@" >&-', "sh", *line], cwd=repository, stderr=subprocess.PIPE, check=False, timeout=60
    )
    assert (ran.returncode, ran.stderr) == (0, b"")


def test_of_four_who_write_one_file_one_does(repository: Path, tmp_path: Path) -> None:
    line = [sys.executable, "-m", "dscalc", *BASE, "--output", str(tmp_path / "new.txt")]
    running = [subprocess.Popen(line, cwd=repository, stderr=subprocess.PIPE, text=True) for _ in range(4)]
    told = [process.communicate(timeout=60)[1] for process in running]
    assert sorted(process.returncode for process in running) == [0, 1, 1, 1]
    assert sum("exists; add --force" in text for text in told) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["new.txt"]


@pytest.mark.slow
def test_an_interrupt_while_it_loads_is_quiet(repository: Path) -> None:
    for delay in (0.05, 0.08, 0.11, 0.14, 0.17, 0.2):
        script = "import dscalc.__main__ as m; print('up', flush=True); m.run()"
        with subprocess.Popen(
            [sys.executable, "-c", script, *BASE], cwd=repository, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()  # what comes before is Python's own
            time.sleep(delay - 0.05)
            process.send_signal(signal.SIGINT)
            _, told = process.communicate(timeout=60)
        assert told == b""
        assert process.returncode in (0, 130)
