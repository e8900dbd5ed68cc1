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
import time
from collections.abc import Callable
from typing import Any

from dscalc.answers.sweep_setup import build_setups, spaces_of
from dscalc.cost.columns import narrowed
from dscalc.specs.given import gather
from dscalc.specs.sweep_options import TABLE
from dscalc.sweep.prune import Problem, Pruner, chunks, memory_bytes, timed

MOST_S, MOST_BYTES = 30.0, 300 * 2**20
MOST_FULL_S = 3.0  # a million layouts with memory and time; generous: machines differ and share their caches
ROUNDS = 5  # of each chunk, of which the fastest counts
GROWTH = 1.25  # of the peak where the space grows tenfold
WORDS = {"model": "gpt-3-175b", "cluster": "dgx-a100-80g", "gpus": "1024", "global_batch": 1536, "seq_len": 2048}
SCRIPT = """
import json, resource, sys, time
from dscalc.answers.sweep import sweep
words = json.loads(sys.argv[1])
start = time.process_time()
found = sweep(**words)
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({
    "cpu_s": time.process_time() - start, "peak_bytes": peak, "candidates": found.candidates,
    "evaluated": found.evaluated, "feasible": found.feasible, "best_s": found.best.row.step_time_s,
}))
"""


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
        f"{found['cpu_s'] / found['feasible'] * 1e6:.2f} s a million with time"
    )
    return found


def test_every_axis_of_a_large_job() -> None:
    found = measured()
    assert found["cpu_s"] < MOST_S
    assert found["peak_bytes"] < MOST_BYTES
    assert found["candidates"] > 11_700_000  # what a peer counts for this job


def fastest(work: Callable[[], Any]) -> tuple[float, Any]:
    """Seconds of the fastest of some rounds, and what it gives."""
    most, result = float("inf"), None
    for _ in range(ROUNDS):
        start = time.process_time()
        result = work()
        most = min(most, time.process_time() - start)
    return most, result


def test_a_million_in_full() -> None:
    """Evaluating alone: the legal layouts are found beforehand, nothing is ranked."""
    given = gather(WORDS, TABLE)
    setup = build_setups(given)[0]
    problem = Problem(next(iter(spaces_of(setup, given))), setup.machine, top=1)
    held = feasible = memory_s = time_s = 0.0
    for ids in chunks(Pruner(problem), 0, 0, 1, {}):
        seconds, (_, fits) = fastest(lambda ids=ids: memory_bytes(problem, ids))  # type: ignore[misc]
        held, memory_s = held + ids.size, memory_s + seconds
        some = ids[fits]
        if not some.size:
            continue
        layouts = narrowed(problem.space.layouts(some), some.size)
        args = (problem.space.shape, problem.machine, layouts, some.size)
        seconds, _ = fastest(lambda args=args: timed(*args))  # type: ignore[misc]
        feasible, time_s = feasible + some.size, time_s + seconds
    memory_us, time_us = memory_s / held * 1e6, time_s / feasible * 1e6
    rate = held / (memory_s + time_s) / 1e6
    print(
        f"\n{held:,.0f} layouts with memory, {memory_us:.2f} s a million; {feasible:,.0f} with time, {time_us:.2f} s a "
        f"million; memory of all and time of those that fit {rate:.2f} million a second on one core; both of all "
        f"{1.0 / (memory_us + time_us):.2f}"
    )
    assert memory_us + time_us < MOST_FULL_S


def test_memory_is_flat() -> None:
    more = {"schedule": "1f1b,interleaved,gpipe,zb-h1,zb-h2,zb-v,dualpipe", "cp_comm": "ring,ulysses,all-gather"}
    small, large = measured(), measured(**more)
    assert large["candidates"] > 10 * small["candidates"]
    assert large["peak_bytes"] < GROWTH * small["peak_bytes"]
