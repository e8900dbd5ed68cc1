"""``dscalc bench`` as a command where there is no torch: scripts, refusals, one clear line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import dscalc
from tests.conftest import RunDscalc


@pytest.fixture
def no_torch(tmp_path: Path) -> dict[str, str]:
    """An environment in which torch cannot be imported, whatever is installed."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").write_text("raise ImportError('hidden')\n")
    return {"PYTHONPATH": f"{Path(dscalc.__file__).parents[1]}:{tmp_path}"}


def test_without_torch_it_says_how_to_install_it(
    run_dscalc: RunDscalc, no_torch: dict[str, str], tmp_path: Path
) -> None:
    ran = run_dscalc("bench", "--output", str(tmp_path / "lab.json"), env=no_torch)
    assert ran.returncode == 1
    assert ran.stderr == "Error: measuring needs PyTorch; install it with: pip install 'dscalc[bench]'\n"
    assert not ran.stdout
    assert not list(tmp_path.glob("lab*"))


def test_slurm_script_is_ready(run_dscalc: RunDscalc) -> None:
    ran = run_dscalc("bench", "--launch", "slurm", "--nodes", "4", "--budget", "10m", "--output", "h200.json")
    assert ran.returncode == 0
    assert not ran.stderr
    assert ran.stdout.startswith("#!/bin/bash\n#SBATCH --job-name=dscalc-bench\n#SBATCH --nodes=4\n")
    assert "--nproc-per-node=8 " in ran.stdout
    assert "-m dscalc bench --budget 600s --output h200.json'" in ran.stdout
    assert "#SBATCH --time=00:20:00" in ran.stdout


def test_options_of_the_hardware_go_into_the_script(run_dscalc: RunDscalc) -> None:
    words = ("--gpus-per-node", "4", "--cluster", "dgx-h200", "--timeout", "2m", "--force")
    ran = run_dscalc("bench", "--launch", "torchrun", *words)
    assert ran.stdout == (
        "torchrun --nproc-per-node=4 -m dscalc bench --budget 300s --output dscalc-bench.json --timeout 120s --force "
        "--cluster dgx-h200\n"
    )


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--nodes", "2"), 2, "--nodes: torchrun says how many there are; with --launch it goes into the script"),
        (("--budget", "1s"), 2, "--budget: 1s is out of range: from 5s to 1d"),
        (("--budget", "soon"), 2, "--budget: 'soon' is not a number; expected a time, e.g. 5us, 90ms or 1.4s"),
        (("--timeout", "2d"), 2, "--timeout: 2d is out of range: from 5s to 1d"),
        (("--launch", "mpi"), 2, "--launch: 'mpi' is not one of 'torchrun', 'slurm'."),
        (("--resume", "--force"), 1, "--resume: goes on with a file and --force replaces it; give one of them"),
    ],
)
def test_bad_options(run_dscalc: RunDscalc, words: tuple[str, ...], code: int, message: str) -> None:
    ran = run_dscalc("bench", *words)
    assert (ran.returncode, ran.stderr, ran.stdout) == (code, f"Error: {message}\n", "")


@pytest.mark.parametrize("name", ["lab.json", "lab.rows.jsonl"])
def test_files_in_the_way_are_kept(run_dscalc: RunDscalc, tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("precious")
    ran = run_dscalc("bench", "--output", "lab.json", cwd=tmp_path)
    assert ran.returncode == 1
    assert ran.stderr == f"Error: {name}: exists; --resume goes on with it, --force replaces it\n"
    assert (tmp_path / name).read_text() == "precious"


def test_a_launcher_that_says_half_is_refused(run_dscalc: RunDscalc) -> None:
    ran = run_dscalc("bench", env={"RANK": "0"})
    assert ran.returncode == 1
    assert ran.stderr.startswith("Error: the launcher does not set WORLD_SIZE, LOCAL_RANK, ")
    assert json.dumps(ran.stdout) == '""'
