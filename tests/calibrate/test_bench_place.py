"""Who a process is, what ranks make together, who is at fault, and the scripts that start them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from dscalc.calibrate.bench_launch import slurm_script, torchrun_script
from dscalc.calibrate.bench_place import Beat, Facts, Place, hosts_of, place_of, verdict, world_of
from dscalc.errors import InputError

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "10.0.0.1",
    "MASTER_PORT": "29500",
    "TORCHELASTIC_USE_AGENT_STORE": "True",
}


def test_what_torchrun_says_is_read() -> None:
    place = place_of(TORCHRUN)
    assert (place.rank, place.node, place.nodes, place.local_rank, place.agent_store) == (5, 1, 2, 1, True)


def test_a_process_that_nobody_launched_is_alone() -> None:
    assert place_of({})[:4] == (0, 1, 0, 1)
    assert place_of({"SLURM_STEP_NUM_TASKS": "1"}).ranks == 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"MASTER_ADDR": ""}, "does not set MASTER_ADDR; start with torchrun"),
        ({"RANK": "five"}, "RANK is 'five', not a whole number"),
        ({"RANK": "8"}, "rank 8 of 8 with 4 on a node makes no sense"),
    ],
)
def test_a_launcher_that_says_too_little_is_refused(change: dict[str, str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        place_of(TORCHRUN | change)


def test_srun_without_torchrun_is_refused() -> None:
    with pytest.raises(InputError, match="srun started 16 processes that do not know of each other"):
        place_of({"SLURM_STEP_NUM_TASKS": "16"})


def facts(host: str, local: int, inside: int = 2, **given: object) -> Facts:
    return Facts(host, inside, local, "NVIDIA H200", "nccl", 10**11, ("bf16", "fp8"), "2.9.0", "nccl 2.27.7")._replace(
        **given
    )


def test_a_run_is_what_every_rank_can_do() -> None:
    ranks = [facts("a", 0), facts("a", 1, memory_bytes=10**10), facts("b", 0, dtypes=("bf16",)), facts("b", 1)]
    world = world_of(ranks)
    assert (world.ranks, world.nodes, world.memory_bytes, world.dtypes) == (4, 2, 10**10, ("bf16",))
    assert hosts_of(ranks) == ["a", "b"]
    assert hosts_of([facts("vm", 0, 1), facts("vm", 0, 1), facts("c", 0, 1)]) == ["vm#0", "vm#1", "c"]


def test_nodes_that_differ_are_refused() -> None:
    with pytest.raises(InputError, match="b holds 1 ranks and a 2; give every node the same --nproc-per-node"):
        world_of([facts("a", 0), facts("a", 1), facts("b", 0, 1)])
    with pytest.raises(InputError, match="a runs on NVIDIA H200 and b on CPU"):
        world_of([facts("a", 0, 1), facts("b", 0, 1, device="CPU", backend="gloo")])


# ------------------------------------------------------------------------------------------------------------- verdict
PLACE = Place(0, 6, 0, 2, "a", 1, "0", True)
HOSTS = ["a", "b", "c"]


def beats(**changed: Beat) -> tuple[dict[int, Beat], dict[int, Beat]]:
    """What six ranks said in two looks; those named stand still or are elsewhere."""
    before = {rank: Beat(10, 7, True) for rank in range(6)}
    after = {rank: Beat(13, 7, True) for rank in range(6)}
    for name, beat in changed.items():
        after[int(name[1:])] = beat
    return before, after


DEAD, BEHIND = Beat(10, 7, True), Beat(13, 6, False)


@pytest.mark.parametrize(
    ("changed", "troubles", "sentence"),
    [
        ({"r3": DEAD}, {}, "rank 3 on node 1 (b) stopped answering"),
        ({"r2": DEAD, "r3": DEAD}, {}, "node 1 (b, ranks 2 to 3) stopped answering"),
        ({"r2": DEAD, "r3": DEAD, "r5": DEAD}, {}, "node 1 (b, ranks 2 to 3), rank 5 on node 2 (c) stopped answering"),
        ({"r4": BEHIND}, {}, "rank 4 on node 2 (c) hung before the others"),
        ({"r4": BEHIND}, {1: "Connection closed by peer"}, "rank 4 on node 2 (c) hung before the others"),
        # the neighbours of a dead rank report errors: they are its victims
        ({"r3": DEAD}, {2: "Connection closed by peer"}, "rank 3 on node 1 (b) stopped answering"),
        ({}, {1: "CUDA error: uncorrectable ECC"}, "rank 1 on node 0 (a) failed: CUDA error: uncorrectable ECC"),
        ({}, {}, "every rank still answers, but the operation does not end: look at the network between them"),
    ],
)
def test_verdict(changed: dict[str, Beat], troubles: dict[int, str], sentence: str) -> None:
    before, after = beats(**changed)
    assert verdict(before, after, PLACE, HOSTS, troubles)[0] == sentence


def test_a_rank_that_never_said_anything_is_named() -> None:
    before, after = beats()
    del before[4], after[4]
    assert verdict(before, after, PLACE, [], {}) == ("rank 4 on node 2 (host unknown) stopped answering", [4])


# ------------------------------------------------------------------------------------------------------------- scripts
def test_the_batch_script_starts_one_torchrun_a_node(tmp_path: Path) -> None:
    stubs = {
        "scontrol": "echo gpu-07; echo gpu-08; echo gpu-09; echo gpu-10\n",
        # what srun does with one task a node, one after another
        "srun": "while [[ $1 == --* ]]; do shift; done\n"
        'for ((n = 0; n < SLURM_NNODES; n++)); do SLURM_NODEID=$n "$@"; done\n',
        "python3": 'echo "$@"\n',
    }
    for name, text in stubs.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{text}")
        (tmp_path / name).chmod(0o755)
    script = slurm_script(4, 8, 300.0, ["--output", "it's here.json"])
    head = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    assert {"#SBATCH --nodes=4", "#SBATCH --ntasks-per-node=1", "#SBATCH --time=00:15:00"} <= set(head)
    slurm = {"SLURM_JOB_NODELIST": "gpu-[07-10]", "SLURM_JOB_ID": "1234567", "SLURM_NNODES": "4"}
    ran = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", **slurm},
        capture_output=True,
        text=True,
        check=True,
    )
    assert ran.stdout.splitlines() == [
        f"-m torch.distributed.run --nnodes=4 --node-rank={n} --nproc-per-node=8 --master-addr=gpu-07 "
        "--master-port=34567 -m dscalc bench --output it's here.json"
        for n in range(4)
    ]


def test_torchrun_has_one_command_a_node() -> None:
    assert torchrun_script(1, 8, ["--budget", "60s"]) == "torchrun --nproc-per-node=8 -m dscalc bench --budget 60s\n"
    lines = torchrun_script(2, 4, []).splitlines()
    assert [line.startswith(f"torchrun --nnodes=2 --node-rank={n} ") for n, line in enumerate(lines[1:])] == [
        True,
        True,
    ]
