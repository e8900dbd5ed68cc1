"""Bad input as a process: one clear line on stderr, the right exit code, nothing on stdout, never a traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.helpers import CONFIG

BASE = ("memory", "--params", "7e9")


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("memory", "--params", "abc"), 2, ["--params", "7e9"]),
        (("memory", "--params", "-5"), 2, ["--params", "negative"]),
        (("memory", "--params", "0"), 2, ["--params", "out of range"]),
        (("memory", "--params", "nan"), 2, ["--params"]),
        (("memory", "--params", "inf"), 2, ["--params"]),
        (("memory", "--params", "7Gb"), 2, ["--params", "write 7B"]),
        (("memory", "--params", "7GB"), 2, ["--params", "write 7B"]),
        (("memory", "--params", "1e40"), 2, ["--params", "range"]),
        (("memory", "--params"), 2, ["--params"]),
        (("memory",), 1, ["--model", "--params 7e9"]),
        ((*BASE, "--tp", "0"), 2, ["--tp", "from 1"]),
        ((*BASE, "--tp", "1.5"), 2, ["--tp", "whole"]),
        ((*BASE, "--tp", "2e9"), 2, ["--tp", "range"]),
        ((*BASE, "--seq-len", "0"), 2, ["--seq-len"]),
        ((*BASE, "--zero", "4"), 2, ["--zero", "0, 1, 2, 3"]),
        ((*BASE, "--recompute", "partial"), 2, ["--recompute", "selective"]),
        ((*BASE, "--stack", "megatrn"), 2, ["--stack", "megatron"]),
        ((*BASE, "--capacity-factor", "nan"), 2, ["--capacity-factor"]),
        ((*BASE, "--offload", "disk"), 2, ["--offload", "activations"]),
        ((*BASE, "--gpu", "64"), 2, ["--gpu takes an id; did you mean --gpus 64?"]),
        ((*BASE, "--tpp", "2"), 2, ["--tpp", "did you mean --tp"]),
        ((*BASE, "--train-batch-size", "8"), 2, ["--global-batch", "--micro-batch"]),
        ((*BASE, "--train_batch_size", "8"), 2, ["--global-batch", "--micro-batch"]),
        ((*BASE, "extra"), 2, ["extra"]),
        (("memry",), 2, ["did you mean memory"]),
        (("list", "gpuz"), 2, ["gpus"]),
        (("list",), 2, ["KIND", "gpus, clusters"]),
        (("show",), 2, ["ID is missing"]),
        (("--nope",), 2, ["--nope"]),
        ((*BASE, "--gpu", "H10"), 1, ["unknown GPU", "H100"]),
        ((*BASE, "--cluster", "moon"), 1, ["unknown cluster"]),
        (("memory", "--model", "lama-2-7b"), 1, ["unknown model", "Llama-2-7B"]),
        (("show", "H10O-SXM5-80GB"), 1, ["H100-SXM5-80GB"]),
        (("memory", "--params", "7e9", "--model", "llama-2-7b"), 1, ["--params", "--model"]),
        (("memory", "--model", "llama-2-7b", "--tp", "3"), 1, ["--tp", "attention heads: 32"]),
        ((*BASE, "--tp", "4", "--pp", "2", "--dp", "3", "--gpus", "16"), 1, ["= 24 GPUs", "--gpus is 16", "--dp 2"]),
        ((*BASE, "--gpus", "10", "--tp", "4"), 1, ["--tp 4", "8 or 12"]),
        ((*BASE, "--pp", "64"), 1, ["--pp is 64", "layers: 32"]),
        ((*BASE, "--ep", "2"), 1, ["--ep", "experts"]),
        ((*BASE, "--ga", "2", "--gbs", "3"), 1, ["--global-batch 3"]),
        ((*BASE, "--fsdp", "--zero", "1"), 1, ["--zero", "--fsdp"]),
        ((*BASE, "--lora-targets", "q_proj"), 1, ["--lora-targets", "--lora-rank"]),
        ((*BASE, "--lora-rank", "8", "--lora-targets", "nope"), 1, ["nope", "q_proj"]),
        ((*BASE, "--recompute-layers", "2", "--recompute", "none"), 1, ["--recompute-layers"]),
        ((*BASE, "--nodes", "2"), 1, ["--gpus-per-node"]),
        ((*BASE, "--profile", "nowhere.json"), 1, ["nowhere.json"]),
        ((*BASE, "--scenario", "nowhere.toml"), 1, ["nowhere.toml"]),
        ((*BASE, "--output", "no/such/folder/x.txt"), 1, ["--output", "cannot be written"]),
        ((*BASE, "--output", "."), 1, ["--output", "folder"]),
    ],
)
def test_one_clear_line(run_dscalc: Any, tmp_path: Path, args: tuple[str, ...], code: int, words: list[str]) -> None:
    ran = run_dscalc(*args, cwd=tmp_path)
    assert_refused(ran, code, words)


def assert_refused(ran: subprocess.CompletedProcess[str], code: int, words: list[str]) -> None:
    assert ran.returncode == code, ran.stderr
    assert ran.stdout == ""
    lines = ran.stderr.splitlines()
    assert len(lines) == 1, ran.stderr
    assert lines[0].startswith("Error: ")
    assert "Traceback" not in ran.stderr
    assert "\x1b" not in ran.stderr
    for word in words:
        assert word in lines[0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (json.dumps(CONFIG)[:60], ["config.json", "JSON"]),
        ("[1, 2]", ["config.json"]),
        ("", ["config.json"]),
        (json.dumps({"model_type": "llama"}), ["config.json"]),
        (json.dumps({**CONFIG, "hidden_size": "wide"}), ["config.json", "hidden_size"]),
        (json.dumps({**CONFIG, "num_hidden_layers": -2}), ["config.json", "num_hidden_layers"]),
        (json.dumps({**CONFIG, "num_attention_heads": None}), ["config.json", "num_attention_heads"]),
        ('{"hidden_size": NaN}', ["config.json"]),
        ("[" * 100_000, ["config.json"]),
    ],
)
def test_broken_model_files(run_dscalc: Any, tmp_path: Path, text: str, words: list[str]) -> None:
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    assert_refused(run_dscalc("memory", "--model", "config.json", cwd=tmp_path), 1, words)


def test_a_good_model_file_is_read(run_dscalc: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
    for name in ("config.json", "."):
        ran = run_dscalc("memory", "--model", name, "--format", "json", cwd=tmp_path)
        assert ran.returncode == 0, ran.stderr
        assert json.loads(ran.stdout)["inputs"]["model"]["layers"] == 2


def test_a_huge_sparse_model_file_is_refused_quickly(run_dscalc: Any, tmp_path: Path) -> None:
    with (tmp_path / "config.json").open("wb") as file:
        file.truncate(2_000_000_000)
    ran = run_dscalc("memory", "--model", "config.json", cwd=tmp_path, timeout=10)
    assert_refused(ran, 1, ["config.json", "large"])


def test_a_profile_with_a_wrong_unit(run_dscalc: Any, tmp_path: Path) -> None:
    number = {"value": 80, "unit": "GB/s", "kind": "datasheet", "source": "test"}
    gpu = {"profile": "gpu", "id": "Mine", "vendor": "x", "arch": "y", "usable_memory": number}
    (tmp_path / "gpu.json").write_text(json.dumps(gpu), encoding="utf-8")
    assert_refused(run_dscalc(*BASE, "--profile", "gpu.json", cwd=tmp_path), 1, ["gpu.json", "usable_memory"])
    number["unit"] = "GB"
    (tmp_path / "gpu.json").write_text(json.dumps(gpu), encoding="utf-8")
    ran = run_dscalc(*BASE, "--profile", "gpu.json", "--format", "json", cwd=tmp_path)
    assert json.loads(ran.stdout)["result"]["usable_bytes"] == 80e9
    # the folder, with a name of it
    ran = run_dscalc(*BASE, "--profile", ".", "--gpu", "Mine", "--format", "json", cwd=tmp_path)
    assert json.loads(ran.stdout)["result"]["usable_bytes"] == 80e9
    assert_refused(run_dscalc(*BASE, "--profile", ".", cwd=tmp_path), 1, ["--profile", "folder", "--gpu"])
    for value in (0, 80e9):
        number["value"] = value
        (tmp_path / "gpu.json").write_text(json.dumps(gpu), encoding="utf-8")
        refused = run_dscalc(*BASE, "--profile", "gpu.json", cwd=tmp_path)
        assert_refused(refused, 1, ["gpu.json", "usable_memory", "out of range"])


@pytest.mark.parametrize(
    ("text", "where", "words"),
    [
        ('model = "llama-3-8b"\n[layout]\ntp = 2\nzeero = 3\n', "s.toml:4", ["did you mean --zero?"]),
        ("params = 7e9\nmbs = 'x'\n", "s.toml:2", ["--micro-batch"]),
        ("params = 7e9\n\n\ntrain_batch_size = 3\n", "s.toml:4", ["--global-batch"]),
        ("params = 7e9\ntp = 2\n[layout]\ntp = 4\n", "s.toml", ["2", "4"]),
        ("params = \n", "s.toml:1", ["TOML"]),
        ("[engine]\ntp = 2\n", "s.toml:1", ["layout"]),
        ("params = 7e9\ntp = [1, 2]\n", "s.toml:2", ["--tp"]),
        ("params = true\n", "s.toml:1", ["--params"]),
    ],
)
def test_scenario_faults_name_file_and_line(
    run_dscalc: Any, tmp_path: Path, text: str, where: str, words: list[str]
) -> None:
    (tmp_path / "s.toml").write_text(text, encoding="utf-8")
    assert_refused(run_dscalc("memory", "--scenario", "s.toml", cwd=tmp_path), 1, [where, *words])


def test_a_scenario_holds_options_and_the_command_line_wins(run_dscalc: Any, tmp_path: Path) -> None:
    text = 'params = "7B"\nformat = "json"\n[layout]\ntensor-model-parallel-size = 2\nzero = 1\n[hardware]\ngpus = 8\n'
    (tmp_path / "s.toml").write_text(text, encoding="utf-8")
    ran = run_dscalc("memory", "--scenario", "s.toml", "--tp", "4", cwd=tmp_path)
    layout = json.loads(ran.stdout)["inputs"]["layout"]
    assert (layout["tp"], layout["dp"], layout["zero"]) == (4, 2, 1)


def test_an_existing_file_stays_until_forced(run_dscalc: Any, tmp_path: Path) -> None:
    out = tmp_path / "answer.json"
    out.write_text("precious", encoding="utf-8")
    assert_refused(run_dscalc(*BASE, "--output", "answer.json", cwd=tmp_path), 1, ["answer.json", "--force"])
    assert out.read_text(encoding="utf-8") == "precious"
    ran = run_dscalc(*BASE, "--output", "answer.json", "--force", cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "")
    assert json.loads(out.read_text(encoding="utf-8"))["command"] == "memory"  # the suffix chose the form
    assert [p.name for p in tmp_path.iterdir()] == ["answer.json"]


def test_a_folder_that_cannot_be_written(run_dscalc: Any, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    tmp_path.chmod(0o500)
    assert_refused(run_dscalc(*BASE, "--output", str(tmp_path / "x")), 1, ["--output"])


@pytest.mark.parametrize(
    "args", [BASE, (*BASE, "--format", "json"), ("list", "gpus"), ("memory", "--help"), ("batch",)]
)
def test_a_closed_pipe_is_no_error(repository: Path, args: tuple[str, ...]) -> None:
    read, write = os.pipe()
    os.close(read)
    try:
        ran = subprocess.run(
            [sys.executable, "-m", "dscalc", *args], cwd=repository, stdout=write, stderr=subprocess.PIPE, check=False
        )
    finally:
        os.close(write)
    assert ran.stderr == b""
    assert ran.returncode == 0


def test_without_a_command_the_help_is_shown(run_dscalc: Any) -> None:
    ran = run_dscalc()
    assert (ran.returncode, ran.stderr) == (0, "")
    assert "memory" in ran.stdout


def test_a_dash_is_the_screen(run_dscalc: Any) -> None:
    assert run_dscalc(*BASE, "--quiet", "--output", "-").stdout == run_dscalc(*BASE, "--quiet").stdout


def test_check_turns_a_misfit_into_exit_3(run_dscalc: Any) -> None:
    assert run_dscalc(*BASE, "--gpu", "H100-SXM5-80GB", "--check", "--quiet").returncode == 3
    assert run_dscalc(*BASE, "--gpu", "H100-SXM5-80GB", "--quiet").returncode == 0
    assert run_dscalc("memory", "--params", "1e9", "--gpu", "H100-SXM5-80GB", "--check", "--quiet").returncode == 0


@pytest.mark.parametrize(
    ("raised", "code", "words"),
    [
        ("KeyboardInterrupt()", 130, ""),
        ("MemoryError()", 1, "memory"),
        ("OSError(28, 'No space left on device', 'x.json')", 1, "x.json: No space left"),
    ],
)
def test_interrupts_and_system_errors_end_quietly(repository: Path, raised: str, code: int, words: str) -> None:
    script = (
        "import dscalc.answers.memory as m\nfrom dscalc.cli.main import run\n"
        f"def stop(*_): raise {raised}\nm.answer = stop\nrun(['memory', '--params', '7e9'])"
    )
    ran = subprocess.run([sys.executable, "-c", script], cwd=repository, capture_output=True, text=True, check=False)
    assert ran.returncode == code
    assert "Traceback" not in ran.stderr
    assert words in ran.stderr
    assert len(ran.stderr.splitlines()) <= 1


def test_control_characters_of_a_name_do_not_reach_the_terminal(run_dscalc: Any) -> None:
    ran = run_dscalc("memory", "--model", "x\x1b[31m\ny")
    assert ran.returncode == 1
    assert "\x1b" not in ran.stderr
    assert len(ran.stderr.splitlines()) == 1
