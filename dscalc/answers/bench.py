"""``dscalc bench``: measurements on this hardware, what is slow among them, and the files they went to."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from dscalc.answers.envelope import VERSION, Warning, envelope
from dscalc.calibrate.bench import Asked, Measured, measure
from dscalc.calibrate.bench_launch import LAUNCHERS, slurm_script, torchrun_script
from dscalc.calibrate.bench_slow import Slow, slow_inside, slow_links, slow_ranks
from dscalc.errors import InputError
from dscalc.frozen import dataclass
from dscalc.units import DAY, MINUTE, parse_time

OUTPUT = "dscalc-bench.json"
BUDGET_S = 5.0 * MINUTE
SHORTEST_BUDGET_S, LONGEST_BUDGET_S = 5.0, float(DAY)
TIMEOUT_S = float(MINUTE)
SHORTEST_TIMEOUT_S = 5.0

Progress = Callable[[int, int, str, float], None]


@dataclass(frozen=True, slots=True, eq=False)
class BenchAnswer:
    """What was measured, on rank 0.

    Attributes:
        asked: output, budget and the rest.
        measured: the rows and what they were measured on.
        slow: ranks, nodes and links that stand out.
        profile_path: the profile that was written; None where none was.
    """

    asked: Asked
    measured: Measured
    slow: tuple[Slow, ...]
    profile_path: str | None

    @property
    def run(self) -> dict[str, Any]:
        """The row that says what was measured on."""
        return next(row for row in reversed(self.measured.rows) if row["kind"] == "run")

    def rows(self, *kinds: str) -> list[dict[str, Any]]:
        """Measured rows of some kinds, in the order they were measured."""
        return [row for row in self.measured.rows if row["kind"] in kinds]

    def warnings(self) -> list[Warning]:
        """What stands out, is wrong or was left out."""
        found = [Warning(f"slow_{each.what}", words_of(each), NEXT[each.what]) for each in self.slow]
        wrong = [row for row in self.rows("collective") if row["wrong"]]
        if wrong:
            ops = ", ".join(sorted({row["op"] for row in wrong}))
            found.append(
                Warning(
                    "wrong_results",
                    f"{len(wrong)} measurements had wrong results ({ops}): the speed of a wrong answer",
                    "look for faulty links or memory; do not use these rows",
                )
            )
        if self.measured.out_of_budget:
            found.append(
                Warning(
                    "budget",
                    f"{self.measured.out_of_budget} items did not fit into the budget",
                    "go on with --resume and a larger --budget",
                )
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """The answer with the stable keys of the interface."""
        run = self.run
        return envelope(
            "bench",
            {
                "budget_s": self.asked.budget_s,
                "timeout_s": self.asked.timeout_s,
                "hardware": {name: run[name] for name in ("device", "ranks", "nodes", "ranks_per_node", "hosts")},
                "backend": run["backend"],
                "library": run["library"],
                "torch": run["torch"],
            },
            [],
            self.warnings(),
            {
                "profile_path": self.profile_path,
                "rows_path": self.measured.path,
                "measured": len(self.rows(*TIMED)),
                "collectives": self.rows("collective"),
                "pairs": self.rows("pair"),
                "kernels": self.rows("gemm", "memory_copy", "launch"),
                "overlaps": self.rows("overlap"),
                "slow": [each._asdict() for each in self.slow],
                "notes": [row["message"] for row in self.rows("note")],
            },
        )


TIMED = ("collective", "pair", "gemm", "memory_copy", "launch", "overlap")
NEXT = {
    "rank": "compare clocks, temperature, power cap and ECC errors of that GPU with its neighbours'",
    "node": "compare its NIC's rate, cable and PCIe link (ethtool, ibstat, lspci -vv) with another node's",
    "link": "look at the switch ports and the path between these two nodes",
}


def words_of(slow: Slow) -> str:
    """One thing that is slow, in a sentence.

    >>> words_of(Slow("rank", 5, (0,), ("gpu-17",), 0.25, "matrix products, 4 sizes on 8 ranks"))
    'rank 5 on node 0 (gpu-17) takes 25 % longer than the median rank: matrix products, 4 sizes on 8 ranks'
    """
    if slow.what == "rank":
        who = f"rank {slow.rank} on node {slow.nodes[0]} ({slow.hosts[0]})"
    elif slow.what == "node":
        who = f"node {slow.nodes[0]} ({slow.hosts[0]})"
    else:
        ends = " and ".join(f"node {n} ({host})" for n, host in zip(slow.nodes, slow.hosts, strict=True))
        who = f"the link between {ends}"
    return f"{who} takes {100.0 * slow.by_fraction:.0f} % longer than the median {slow.what}: {slow.evidence}"


def bench(
    *,
    output: str = OUTPUT,
    budget: str | float = BUDGET_S,
    timeout: str | float = TIMEOUT_S,
    resume: bool = False,
    force: bool = False,
    progress: Progress | None = None,
) -> BenchAnswer | None:
    """Measure this hardware; call it on every rank that torchrun starts.

    Where another rank stops answering, the process is ended after the reason was written to stderr and to the rows:
    its own thread may wait for that rank for ever.

    Args:
        output: the profile to write; raw rows go beside it, as ``NAME.rows.jsonl``.
        budget: how long measuring may take, such as ``5m``; a number is seconds.
        timeout: how long a rank may say nothing before the run is ended.
        resume: go on with the rows that are there.
        force: replace files that are there.
        progress: called on rank 0 before each item with items done, all items, words and seconds so far.

    Returns:
        The answer on rank 0, None on the others.

    Raises:
        InputError: no torch, files in the way, a budget out of range, or nodes that differ.
    """
    if resume and force:
        raise InputError("--resume goes on with a file and --force replaces it; give one of them")
    asked = Asked(output, seconds(budget, "--budget"), seconds(timeout, "--timeout"), resume, force, VERSION)
    measured = measure(asked, progress=progress, complain=_complain)
    if measured is None:
        return None
    hosts, inside = measured.hosts, measured.world.ranks_per_node
    slow = [
        *slow_ranks(measured.rows, inside, hosts),
        *slow_links(measured.rows, hosts),
        *slow_inside(measured.rows, hosts),
    ]
    return BenchAnswer(asked, measured, tuple(slow), None)


def seconds(value: str | float, flag: str) -> float:
    """A budget or a timeout [s].

    Raises:
        InputError: out of range.
    """
    found = parse_time(value) if isinstance(value, str) else float(value)
    least = SHORTEST_BUDGET_S if flag == "--budget" else SHORTEST_TIMEOUT_S
    if not least <= found <= LONGEST_BUDGET_S:
        raise InputError(f"{value} is out of range: from {least:g}s to 1d", where=flag)
    return found


def script(
    launcher: str,
    nodes: int,
    gpus_per_node: int,
    *,
    output: str = OUTPUT,
    budget: str | float = BUDGET_S,
    timeout: str | float = TIMEOUT_S,
    resume: bool = False,
    force: bool = False,
) -> str:
    """The script that starts a benchmark on several nodes.

    Args:
        launcher: ``slurm`` or ``torchrun``.
        nodes: nodes of the run [count].
        gpus_per_node: ranks of one node [count].
        output, budget, timeout, resume, force: as for :func:`bench`.

    Returns:
        Text to save or to type.

    Raises:
        InputError: no such launcher, or a time out of range.
    """
    if launcher not in LAUNCHERS:
        raise InputError(f"{launcher!r} is not one of {', '.join(LAUNCHERS)}", where="--launch")
    budget_s, timeout_s = seconds(budget, "--budget"), seconds(timeout, "--timeout")
    words = ["--budget", f"{budget_s:g}s", "--output", output]
    if timeout_s != TIMEOUT_S:
        words += ["--timeout", f"{timeout_s:g}s"]
    words += ["--resume"] * resume + ["--force"] * force
    if launcher == "slurm":
        return slurm_script(nodes, gpus_per_node, budget_s, words)
    return torchrun_script(nodes, gpus_per_node, words)


def _complain(text: str) -> None:
    print(f"Error: {text}", file=sys.stderr, flush=True)
