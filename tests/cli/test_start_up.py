"""What one estimate must not load; how long it takes is for ``tests/benchmarks/test_start_up.py``."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = ("pydantic", "pydantic_core", "rich", "pandas", "scipy", "torch")


@pytest.mark.parametrize(
    "options",
    [
        ("--params", "7e9"),
        ("--model", "llama-3-8b", "--gpu", "H100-SXM5-80GB", "--gpus", "8", "--zero", "3"),
        ("--model", "llama-3-8b", "--cluster", "dgx-h100", "--nodes", "2", "--tp", "8"),
    ],
    ids=["params", "gpu", "cluster"],
)
def test_nothing_heavy_is_loaded(options: tuple[str, ...]) -> None:
    program = (
        "import sys\nfrom dscalc.cli.main import run\n"
        f"try:\n    run(['memory', *{options!r}])\nexcept SystemExit as end:\n    assert not end.code\n"
        f"print(*(name for name in {HEAVY!r} if name in sys.modules), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stderr.split() == []
