"""The part of the benchmark that needs torch, on CPUs; skipped where torch is not installed."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("torch is not installed: pip install 'dscalc[bench]'", allow_module_level=True)

from dscalc.calibrate.bench_place import Place
from dscalc.calibrate.bench_plan import Calls, Item, World
from dscalc.calibrate.bench_torch import CannotError, Device
from dscalc.calibrate.rows import load_rows

pytestmark = pytest.mark.slow
REPOSITORY = Path(__file__).parents[2]


def environment(**given: str) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "DSCALC_PROFILES")}
    fixed = {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "COLUMNS": "100", "PYTHONPATH": str(REPOSITORY)}
    return {**kept, **fixed, **given}


def bench(folder: Path, ranks: int, *words: str, timeout: float = 240.0) -> subprocess.CompletedProcess[str]:
    """``dscalc bench`` under torchrun on this machine."""
    start = [sys.executable, "-m"]
    if ranks > 1:
        start += ["torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", "-m"]
    return subprocess.run(
        [*start, "dscalc", "bench", "--output", "lab.json", *words],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def rows(folder: Path) -> list[dict[str, Any]]:
    return [row for _, row in load_rows(str(folder / "lab.rows.jsonl"))[0]]


def test_two_ranks_measure_resume_and_keep_files(tmp_path: Path) -> None:
    first = bench(tmp_path, 2, "--budget", "5s", "--format", "json")
    assert first.returncode == 0, first.stderr
    found = json.loads(first.stdout)["result"]
    assert {row["op"] for row in found["collectives"]} == {
        *("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"),
    }
    assert all(row["wrong"] in (0, None) for row in found["collectives"])
    assert any(row["wrong"] == 0 for row in found["collectives"])
    assert "\r" not in first.stderr  # progress is for terminals
    before = rows(tmp_path)
    refused = bench(tmp_path, 2, "--budget", "5s")
    assert refused.returncode == 1
    assert "Error: lab.rows.jsonl: exists; --resume goes on with it, --force replaces it" in refused.stderr
    assert refused.stderr.count("exists; --resume") == 1  # one rank speaks
    assert rows(tmp_path) == before
    again = bench(tmp_path, 2, "--budget", "5s", "--resume", "--quiet")
    assert again.returncode == 0, again.stderr
    after = rows(tmp_path)
    assert after[: len(before)] == before
    assert len(after) > len(before) + 5
    assert again.stdout.endswith("nothing slow\n")


def test_one_process_measures_itself(tmp_path: Path) -> None:
    ran = bench(tmp_path, 1, "--budget", "5s")
    assert ran.returncode == 0, ran.stderr
    assert "one rank: no collectives" in ran.stdout
    assert {row["kind"] for row in rows(tmp_path)} == {"run", "note", "launch", "memory_copy", "gemm", "end"}


def test_a_killed_rank_ends_the_run_and_is_named(tmp_path: Path) -> None:
    """Without a launcher's agent: rank 0 holds the store, and nothing but the benchmark notices."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started = []
    for rank in range(3):
        said = {"RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
        started.append(
            subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "dscalc",
                    "bench",
                    "--output",
                    "lab.json",
                    "--timeout",
                    "10s",
                    "--budget",
                    "120s",
                ],
                cwd=tmp_path,
                env=environment(**said, MASTER_ADDR="127.0.0.1", MASTER_PORT=port),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        path = tmp_path / "lab.rows.jsonl"
        until = time.monotonic() + 180.0
        while not path.exists() or path.read_bytes().count(b"\n") < 20:
            assert time.monotonic() < until, "nothing was measured"
            time.sleep(0.1)
        started[1].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        _, complaint = started[0].communicate(timeout=90.0)
        took = time.monotonic() - killed
        assert started[0].returncode == 1
        assert "Error: node 1 (" in complaint
        assert ", rank 1) stopped answering, in: " in complaint
        assert complaint.strip().endswith("measurements are kept in lab.rows.jsonl; --resume goes on")
        assert took < 45.0
        assert started[2].wait(timeout=45.0) == 1
        assert rows(tmp_path)[-1]["kind"] == "failure"
        assert sum("time_s" in row for row in rows(tmp_path)) >= 10
    finally:
        for process in started:
            process.kill()
            process.communicate()


class FakeCuda:
    """A GPU's events and streams by the clock, so that their code at least runs where there is no GPU."""

    class Event:
        def __init__(self, **_: bool) -> None:
            self.at = 0.0

        def record(self) -> None:
            self.at = time.perf_counter()

        def elapsed_time(self, other: FakeCuda.Event) -> float:
            return (other.at - self.at) * 1e3

    @staticmethod
    def synchronize(_: object) -> None: ...

    @staticmethod
    def Stream(_: object) -> None: ...  # noqa: N802 - torch's name

    @staticmethod
    def stream(_: object) -> Any:
        return nullcontext()

    @staticmethod
    def empty_cache() -> None: ...


class FakeTorch:
    """torch, but for ``cuda``."""

    cuda = FakeCuda

    def __getattr__(self, name: str) -> Any:
        import torch

        return getattr(torch, name)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Device:
    device = Device(Place(0, 1, 0, 1, "", 0, "0", False))
    device.cuda, device.torch = True, FakeTorch()
    monkeypatch.setattr(device, "_operation", lambda *_: (lambda: time.sleep(2e-3), lambda: 0))
    monkeypatch.setattr(device, "_members", lambda *_: [0])
    return device


def test_device_events_count_milliseconds(gpu: Device) -> None:
    world = World(2, 1, "nccl", 10**9, ("bf16",))
    found = gpu.measure(Item("collective", "all_reduce", "node", 64, "fp32"), Calls(1, 5, 2), world)
    assert found["wrong"] == 0
    assert len(found["t"]) == 5
    assert all(2e-3 < t < 0.1 for t in found["t"])


@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16", "fp8"])
def test_products_run_in_every_type_or_say_why_not(dtype: str) -> None:
    device = Device(Place(0, 1, 0, 1, "", 0, "0", False))
    item = Item("gemm", dtype=dtype, m=32, n=64, k=16)
    try:
        found = device.measure(item, Calls(1, 3, 1), World(1, 1, "gloo", 10**9, (dtype,)))
    except CannotError as error:
        pytest.skip(str(error))
    assert len(found["t"]) == 3


def test_overlap_gives_each_alone_and_beside(gpu: Device) -> None:
    world = World(2, 1, "nccl", 10**9, ("bf16",))
    item = Item("overlap", "all_reduce", "node", 64, "fp32", 64, 64, 64)
    compute, communication, compute_beside, communication_beside = gpu.measure(item, Calls(1, 3, 1), world)["overlap"]
    assert 2e-3 < communication < 0.1
    assert 2e-3 < communication_beside < 0.1
    assert 0.0 < compute < 0.1
    assert 0.0 < compute_beside < 0.1
