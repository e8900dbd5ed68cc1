"""How long the command takes from start to end, against what loading its libraries costs.

Run with ``pytest -s tests/benchmarks/test_start_up.py``. Runs of the commands alternate, so that whatever else the
machine does falls on all of them; medians are compared.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import pytest

RUNS = 9
MOST_ESTIMATE, MOST_HELP = 1.6, 0.8  # an estimate over the libraries, --help over an estimate
COMMANDS = {
    "libraries": ("-c", "import click, rich, numpy, pydantic"),
    "estimate": ("-m", "dscalc", "memory", "--params", "7e9"),
    "help": ("-m", "dscalc", "--help"),
}


def seconds(arguments: tuple[str, ...], env: dict[str, str]) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, *arguments], capture_output=True, check=True, env=env)
    return time.perf_counter() - start


def environment(bytecode: str, folder: Path) -> dict[str, str]:
    """``kept``: bytecode as an installed package has it, in a folder of its own; ``as here``: whatever is set here."""
    if bytecode == "as here":
        return dict(os.environ)
    rest = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**rest, "PYTHONPYCACHEPREFIX": str(folder)}


@pytest.mark.parametrize("bytecode", ["kept", "as here"])
def test_start_up(bytecode: str, tmp_path: Path) -> None:
    env = environment(bytecode, tmp_path)
    for arguments in COMMANDS.values():
        seconds(arguments, env)
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(RUNS):
        for name, arguments in COMMANDS.items():
            times[name].append(seconds(arguments, env))
    libraries, estimate, shown = (median(times[name]) for name in COMMANDS)
    print(
        f"\nbytecode {bytecode}: libraries {libraries * 1e3:.0f} ms, estimate {estimate * 1e3:.0f} ms "
        f"({estimate / libraries:.2f} x), --help {shown * 1e3:.0f} ms ({shown / estimate:.2f} of an estimate)"
    )
    assert estimate <= MOST_ESTIMATE * libraries
    assert shown <= MOST_HELP * estimate
