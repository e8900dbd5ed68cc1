"""How fast and how large a sweep is: GPT-3 175B on 1,024 A100, every axis, a batch of 1,536.

What evaluating takes is told apart from what finding the legal layouts, ranking and the answer take.

Run with ``pytest -s tests/benchmarks/test_sweep_speed.py``. Each sweep runs in a process of its own, on one core, so
that its peak memory is its own; what is asserted is what the docs promise.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

MOST_S, MOST_BYTES = 30.0, 300 * 2**20
MOST_FULL_S = 3.0  # a million layouts with memory and time, generous: machines differ and share their caches
GROWTH = 1.25  # of the peak where the space grows tenfold
WORDS = {"model": "gpt-3-175b", "cluster": "dgx-a100-80g", "gpus": "1024", "global_batch": 1536, "seq_len": 2048}
SCRIPT = """
import json, resource, sys, time
from dscalc.answers.sweep import sweep
from dscalc.sweep.prune import part  # loads the room
prune, spent = sys.modules["dscalc.sweep.prune"], {}
def watch(name):
    function = getattr(prune, name)
    def watched(*args):
        start = time.process_time()
        result = function(*args)
        spent[name] = spent.get(name, 0.0) + time.process_time() - start
        return result
    setattr(prune, name, watched)
for name in ("memory_bytes", "step_time_s"):
    watch(name)
words = json.loads(sys.argv[1])
start = time.process_time()
found = sweep(**words)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({
    "cpu_s": time.process_time() - start, "peak_bytes": peak, "candidates": found.candidates,
    "evaluated": found.evaluated, "feasible": found.feasible, "best_s": found.best.row.step_time_s,
    "memory_us": spent["memory_bytes"] / found.evaluated * 1e6, "time_us": spent["step_time_s"] / found.feasible * 1e6,
}))
"""


def full_us(found: dict[str, Any]) -> float:
    """Microseconds of a layout, seconds of a million: memory and time."""
    return float(found["memory_us"] + found["time_us"])


def measured(**more: Any) -> dict[str, Any]:
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    ran = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(WORDS | more)], capture_output=True, text=True, check=True, env=env
    )
    found: dict[str, Any] = json.loads(ran.stdout)
    print(
        f"\n{found['candidates']:,} candidates, {found['evaluated']:,} with memory in full, {found['feasible']:,} with "
        f"time too, in {found['cpu_s']:.1f} s of one core, peak {found['peak_bytes'] / 2**20:.0f} MiB: "
        f"{found['candidates'] / found['cpu_s'] / 1e6:.1f} million candidates a second, "
        f"{found['cpu_s'] / found['evaluated'] * 1e6:.2f} s a million with memory, "
        f"{found['cpu_s'] / found['feasible'] * 1e6:.2f} s a million with time; evaluating alone: memory "
        f"{found['memory_us']:.2f} s a million, time {found['time_us']:.2f}, both {full_us(found):.2f}"
    )
    return found


def test_every_axis_of_a_large_job() -> None:
    found = measured()
    assert found["cpu_s"] < MOST_S
    assert found["peak_bytes"] < MOST_BYTES
    assert full_us(found) < MOST_FULL_S
    assert found["candidates"] > 11_700_000  # what a peer counts for this job


def test_memory_is_flat() -> None:
    more = {"schedule": "1f1b,interleaved,gpipe,zb-h1,zb-h2,zb-v,dualpipe", "cp_comm": "ring,ulysses,all-gather"}
    small, large = measured(), measured(**more)
    assert large["candidates"] > 10 * small["candidates"]
    assert large["peak_bytes"] < GROWTH * small["peak_bytes"]
