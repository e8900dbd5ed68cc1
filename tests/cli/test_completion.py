"""Completion as a shell asks for it: a process with ``_DSCALC_COMPLETE`` and the words so far."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

Offer = Callable[[str], list[str]]


@pytest.fixture
def offered(repository: Path) -> Offer:
    """What is offered for the last word of a line: ``type,value`` of each."""

    def ask(line: str) -> list[str]:
        words = {"_DSCALC_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(len(line.split(" ")) - 1)}
        env = {**os.environ, "PYTHONPATH": str(repository), **words}
        command = [sys.executable, "-c", "from dscalc.cli.main import run; run()"]
        ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert ran.returncode in (0, 1), ran.stderr  # click itself leaves with 1
        assert ran.stderr == ""
        return ran.stdout.split()

    return ask


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("dscalc step --cluster dgx-h", ["plain,dgx-h100", "plain,dgx-h200"]),
        ("dscalc memory --gpu h100-sxm", ["plain,H100-SXM5-80GB", "plain,H100-SXM5-96GB"]),
        ("dscalc comm --interconnect ib-n", ["plain,ib-ndr"]),
        ("dscalc memory --model llama-3-", ["plain,Llama-3-70B", "plain,Llama-3-8B"]),
        ("dscalc memory --stack megatron-deeps", ["plain,megatron-deepspeed"]),
        ("dscalc memory --schedule zb-", ["plain,zb-h1", "plain,zb-h2", "plain,zb-v"]),
        ("dscalc step --rank-order tp-cp-p", ["plain,tp-cp-pp-dp"]),
        ("dscalc step --recompute s", ["plain,selective"]),
        ("dscalc sweep --cluster dgx-h100,dgx-h", ["plain,dgx-h100,dgx-h200"]),
        ("dscalc step --overlap tp,", ["plain,tp,dp", "plain,tp,pp", "plain,tp,ep"]),
        ("dscalc step --scenario pla", ["file,pla"]),
        ("dscalc memory --profile x/", ["file,x/"]),
        ("dscalc memory --model no-such-", ["file,no-such-"]),
        ("dscalc memory --gpus 8", []),
        ("dscalc fit nccl", ["file,nccl"]),
        ("dscalc validate --data my", ["file,my"]),
        ("dscalc list gp", ["plain,gpus"]),
        ("dscalc show H100-SXM", ["plain,H100-SXM5-80GB", "plain,H100-SXM5-96GB"]),
        ("dscalc sweep --rank", ["plain,--rank-order"]),
        ("dscalc swe", ["plain,sweep"]),
    ],
)
def test_the_tab_key_offers(offered: Offer, line: str, words: list[str]) -> None:
    assert offered(line) == words


def test_start_up_does_not_pay_for_it() -> None:
    code = "import sys, dscalc.cli.memory; sys.exit('dscalc.cli.complete' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
