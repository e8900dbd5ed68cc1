"""``dscalc sweep --plot --report`` as a process: refused before the work, written whole at its end."""

from __future__ import annotations

import html
import importlib.util
import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from dscalc.cli.sweep import command
from dscalc.errors import InputError
from dscalc.report import sweep_files

SMALL = "sweep --model llama-3-8b --cluster dgx-h100 --gpus 8,16 --global-batch 64 --tp 1 --pp 1 --cp 1"
HUGE = "sweep --model llama-3-70b --cluster dgx-h100 --gpus 8..4096 --global-batch 4096"  # minutes of work


def test_files_are_written_beside_the_answer(run_dscalc: Callable[..., Any], tmp_path: Path) -> None:
    plots = ["--plot", "curve.svg"] if importlib.util.find_spec("matplotlib") else []
    ran = run_dscalc(*SMALL.split(), "--quiet", "--report", "plan.html", *plots, cwd=tmp_path)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(["plan.html", *(["curve.svg"] if plots else [])])
    page = (tmp_path / "plan.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert page.endswith("</html>\n")
    if plots:
        assert "</svg>" in (tmp_path / "curve.svg").read_text(encoding="utf-8")
    _, command = re.findall(r"<code>dscalc (.*?)</code>", page)  # the sweep, then its best layout
    again = run_dscalc(*shlex.split(html.unescape(command)), "--format", "json")
    answered = re.findall(r'<script type="application/json" id="answer">(.*)</script>', page)
    best = min(json.loads(answered[0])["result"]["curve"], key=lambda point: point["step_time_s"])
    assert json.loads(again.stdout)["result"]["step_time_s"] == pytest.approx(best["step_time_s"], rel=1e-12)
    (tmp_path / "plan.html").write_text("mine", encoding="utf-8")
    ran = run_dscalc(*SMALL.split(), "--quiet", "--report", "plan.html", "--force", cwd=tmp_path)
    assert ran.returncode == 0
    assert (tmp_path / "plan.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ("--report there.html", "--report there.html: exists; add --force to replace it"),
        ("--plot there.svg", "--plot there.svg: exists; add --force to replace it"),
        ("--report folder.html", "--report folder.html: is a folder; name a file"),
        ("--report nowhere/plan.html", "--report nowhere/plan.html: cannot be written"),
        ("--report plan.pdf", "--report plan.pdf: does not end in .html"),
        ("--plot curve.gif", "--plot curve.gif: ends in neither .svg nor .png"),
        ("--output plan.html --report plan.html", "--report plan.html: names the same file as --output"),
    ],
)
def test_refused_before_the_sweep(options: str, said: str, run_dscalc: Callable[..., Any], tmp_path: Path) -> None:
    """One line, at once, and every file as it was; the sweep itself would take minutes."""
    if "--plot there" in options:
        pytest.importorskip("matplotlib")
    for name in ("there.html", "there.svg"):
        (tmp_path / name).write_text("mine", encoding="utf-8")
    (tmp_path / "folder.html").mkdir()
    ran = run_dscalc(*HUGE.split(), *options.split(), cwd=tmp_path, timeout=30.0)
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert ran.stderr.startswith(f"Error: {said}")
    assert ran.stderr.count("\n") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder.html", "there.html", "there.svg"]
    assert (tmp_path / "there.html").read_text(encoding="utf-8") == "mine"


def test_pipe_without_unicode_gets_plain_letters(run_dscalc: Callable[..., Any]) -> None:
    ran = run_dscalc(*SMALL.split(), env={"PYTHONIOENCODING": "ascii"})
    assert ran.returncode == 0
    assert "Scaling curve" in ran.stdout
    assert "?" not in ran.stdout.partition("Scaling curve")[2].partition("Where the GPUs")[0]


def test_a_report_that_fails_at_the_end_loses_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise InputError("cannot be written (No space left on device)", where="--report plan.html")

    monkeypatch.setattr(sweep_files, "write_files", full)
    ran = CliRunner().invoke(command, [*SMALL.split()[1:], "--quiet"])
    assert "a step on 16 GPUs" in ran.stdout
    assert isinstance(ran.exception, InputError)
