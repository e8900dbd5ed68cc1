"""``dscalc bench``: measurements on this hardware, what is slow among them, and the files they went to."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from dscalc.answers.envelope import VERSION, Warning, envelope
from dscalc.answers.fit_profile import Profiled, profiled
from dscalc.calibrate.bench import Asked, Measured, measure
from dscalc.calibrate.bench_launch import LAUNCHERS, slurm_script, torchrun_script
from dscalc.calibrate.bench_plan import PAIR_SMALL
from dscalc.calibrate.bench_slow import FEWEST, Slow, slow_inside, slow_links, slow_ranks
from dscalc.calibrate.logs import read_log
from dscalc.calibrate.rows import OPS, SCOPES
from dscalc.cost.measured import bus_volume
from dscalc.errors import InputError
from dscalc.frozen import dataclass
from dscalc.specs.given import gather
from dscalc.specs.store import load_cluster
from dscalc.units import DAY, MINUTE, parse_time

OUTPUT = "dscalc-bench.json"
BUDGET_S = 5.0 * MINUTE
SHORTEST_BUDGET_S, LONGEST_BUDGET_S = 5.0, float(DAY)
TIMEOUT_S = float(MINUTE)
SHORTEST_TIMEOUT_S = 5.0
LIKELY_GPUS = 8  # of a node, in a script

Progress = Callable[[int, int, str, float], None]


class Timing(NamedTuple):
    """How long measuring may take, and how long a rank may say nothing [s]."""

    budget_s: float
    timeout_s: float


class Summed(NamedTuple):
    """One operation in one scope."""

    where: str
    op: str
    smallest_bytes: int
    smallest_s: float
    largest_bytes: int
    busbw_bytes_per_s: float
    sizes: int


class Pair(NamedTuple):
    """Two nodes, one way."""

    hosts: tuple[str, str]
    latency_s: float | None
    bandwidth_bytes_per_s: float


@dataclass(frozen=True, slots=True, eq=False)
class BenchAnswer:
    """What was measured, on rank 0.

    Attributes:
        asked: output, budget and the rest.
        measured: the rows and what they were measured on.
        slow: ranks, nodes and links that stand out.
        profiled: fits, and the profile made of them.
    """

    asked: Asked
    measured: Measured
    slow: tuple[Slow, ...]
    profiled: Profiled

    @property
    def profile_path(self) -> str | None:
        """Where the profile goes; None without one."""
        return self.profiled.profile_path

    @property
    def counted(self) -> int:
        """Measurements [count]."""
        return len(self.rows(*TIMED))

    @property
    def run(self) -> dict[str, Any]:
        """The row that says what was measured on."""
        return next(row for row in reversed(self.measured.rows) if row["kind"] == "run")

    def rows(self, *kinds: str) -> list[dict[str, Any]]:
        """Measured rows of some kinds, in the order they were measured."""
        return [row for row in self.measured.rows if row["kind"] in kinds]

    def notes(self, *codes: str) -> list[str]:
        """What was left out and why, each once."""
        return list(dict.fromkeys(row["message"] for row in self.rows("note") if row["code"] in codes))

    @property
    def compared(self) -> str:
        """What was compared to find slow ones, where nothing was found."""
        ranks, nodes = self.run["ranks"], self.run["nodes"]
        if ranks < FEWEST and nodes < FEWEST:
            return f"fewer than {FEWEST} ranks: nothing to compare"
        if nodes < FEWEST:
            across = f"; {nodes} nodes are too few to compare links" if nodes > 1 else ""
            return f"none among {ranks} ranks{across}"
        return f"none among {ranks} ranks and {nodes} nodes"

    @staticmethod
    def where(row: Mapping[str, Any]) -> str:
        """Where a collective ran, in words."""
        return WHERE[row["scope"]].format_map(row)

    def collectives(self) -> list[Summed]:
        """Each operation in each scope: its smallest and its largest message."""
        found: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for row in self.rows("collective"):
            found.setdefault((row["scope"], row["op"]), []).append(row)
        summed = []
        for scope in SCOPES:
            for op in OPS:
                rows = sorted(found.get((scope, op), []), key=lambda row: row["size_bytes"])
                if not rows:
                    continue
                first, last = rows[0], rows[-1]
                volume = float(bus_volume(op.replace("_", "-"), np.array([float(last["ranks"])]))[0])
                rate = volume * last["size_bytes"] / last["time_s"]
                where = self.where(last)
                summed.append(
                    Summed(where, op, first["size_bytes"], first["time_s"], last["size_bytes"], rate, len(rows))
                )
        return summed

    def pairs(self) -> list[Pair]:
        """Each pair of nodes: time of a small message, bandwidth of a large one; the slowest first."""
        times: dict[tuple[int, int], dict[int, float]] = {}
        for row in self.rows("pair"):
            times.setdefault((row["from_node"], row["to_node"]), {})[row["size_bytes"]] = row["time_s"]
        hosts, found = self.measured.hosts, []
        for (a, b), known in times.items():
            large = max(known)
            latency = known.get(PAIR_SMALL) if large != PAIR_SMALL else None
            found.append(Pair((hosts[a], hosts[b]), latency, large / known[large]))
        return sorted(found, key=lambda pair: pair.bandwidth_bytes_per_s)

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
        base = self.profiled.base
        if base is not None and self.run["backend"] == "gloo":
            found.append(
                Warning(
                    "not_that_gpu",
                    f"CPUs and gloo were measured, the profile is made for {base.gpu.id}",
                    "run it where that GPU is",
                )
            )
        if self.profile_path is None:
            found.append(
                Warning(
                    "no_profile",
                    f"no profile was written: no GPU profile is named {self.run['device']!r}",
                    f"dscalc fit {self.measured.path} --gpu ID --output {self.asked.output} makes one",
                )
            )
        return [*found, *self.profiled.warnings]

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
            self.profiled.assumptions,
            self.warnings(),
            {
                **self.profiled.to_json(),
                "rows_path": self.measured.path,
                "measured": self.counted,
                "collectives": self.rows("collective"),
                "pairs": self.rows("pair"),
                "kernels": self.rows("gemm", "memory_copy", "launch"),
                "overlaps": self.rows("overlap"),
                "slow": [each._asdict() for each in self.slow],
                "notes": self.notes("skipped", "unsupported", "budget"),
            },
        )


WHERE = {
    "node": "inside each node, {ranks} ranks",
    "half_node": "two groups at once in each node, {ranks} ranks each",
    "one_a_node": "one rank a node, {ranks} ranks",
    "all": "all {ranks} ranks",
    "one_a_node_each": "{groups} groups at once, each of one rank a node: {ranks} ranks",
}
TIMED = ("collective", "pair", "gemm", "memory_copy", "launch", "overlap")
NEXT = {
    "rank": "compare clocks, temperature, power cap and ECC errors of that GPU with its neighbours'",
    "node": "compare its NIC's rate, cable and PCIe link (ethtool, ibstat, lspci -vv) with another node's",
    "link": "look at the switch ports and the path between these two nodes",
}


def words_of(slow: Slow) -> str:
    """One thing that is slow, in a sentence.

    >>> words_of(Slow("rank", 5, (0,), ("gpu-17",), 0.25, "matrix products of 4 sizes"))
    'rank 5 on node 0 (gpu-17) takes 25 % longer than the median rank: matrix products of 4 sizes'
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
    **options: object,
) -> BenchAnswer | None:
    """Measure this hardware; call it on every rank that torchrun starts.

    Where another rank stops answering, the process is ended after the reason was written to stderr and to the rows:
    its main thread may wait for that rank for ever.

    Args:
        output: where the profile is to be written; its text is ``profiled.text``. Raw rows are written beside it.
        budget: how long measuring may take, such as ``5m``; a number is seconds.
        timeout: how long a rank may say nothing before the run is ended.
        resume: go on with the rows that are there.
        force: replace files that are there.
        progress: called on rank 0 before each item with items done, all items, words and seconds so far.
        options: ``gpu``, ``cluster``, ``interconnect`` and ``profile``: what this is, where the GPU does not say.

    Returns:
        The answer on rank 0, None on the others.

    Raises:
        InputError: no torch, files in the way, a budget out of range, or nodes that differ.
    """
    timing = Timing(seconds(budget, "--budget"), seconds(timeout, "--timeout"))
    return run(output, timing, resume=resume, force=force, given=gather(options), progress=progress)


def run(
    output: str,
    timing: Timing,
    *,
    resume: bool,
    force: bool,
    given: Mapping[str, Any],
    progress: Progress | None = None,
) -> BenchAnswer | None:
    """:func:`bench` with options that are read already."""
    if resume and force:
        raise InputError("goes on with a file and --force replaces it; give one of them", where="--resume")
    asked = Asked(output, timing.budget_s, timing.timeout_s, resume, force, VERSION)
    measured = measure(asked, progress=progress, complain=_complain)
    return None if measured is None else answer(asked, measured, given)


def answer(asked: Asked, measured: Measured, given: Mapping[str, Any]) -> BenchAnswer:
    """The answer to what was measured; ``given`` are parsed options of the hardware."""
    hosts, inside = measured.hosts, measured.world.ranks_per_node
    slow = [
        *slow_ranks(measured.rows, inside, hosts),
        *slow_links(measured.rows, hosts),
        *slow_inside(measured.rows, hosts),
    ]
    return BenchAnswer(asked, measured, tuple(slow), _profiled(measured.path, asked.output, given))


def _profiled(rows: str, output: str, given: Mapping[str, Any]) -> Profiled:
    """What ``dscalc fit`` makes of the rows; no profile where no GPU is known."""
    read = [read_log(rows)]
    try:
        return profiled(read, given, output=output)
    except InputError as error:
        if error.where != "--gpu":
            raise
        return profiled(read, given)


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


def likely_gpus(given: Mapping[str, Any]) -> int:
    """GPUs of a node where nobody says: those of the named cluster, else eight.

    Args:
        given: options.

    Returns:
        How many.

    Raises:
        InputError: no such cluster.
    """
    if "cluster" not in given:
        return LIKELY_GPUS
    return int(load_cluster(given["cluster"], given.get("profile", ())).spec.gpus_per_node.base)


def script(
    launcher: str,
    nodes: int,
    gpus_per_node: int,
    timing: Timing,
    output: str = OUTPUT,
    *,
    resume: bool = False,
    force: bool = False,
    options: Mapping[str, object] | None = None,
) -> str:
    """The script that starts a benchmark on several nodes.

    Args:
        launcher: ``slurm`` or ``torchrun``.
        nodes: nodes of the run [count].
        gpus_per_node: ranks of one node [count].
        timing, output, resume, force, options: as for :func:`bench`.

    Returns:
        Text to save or to type.

    Raises:
        InputError: no such launcher.
    """
    words = ["--budget", f"{timing.budget_s:g}s", "--output", output]
    if timing.timeout_s != TIMEOUT_S:
        words += ["--timeout", f"{timing.timeout_s:g}s"]
    words += ["--resume"] * resume + ["--force"] * force
    for name, value in (options or {}).items():
        words += ["--" + name.replace("_", "-"), str(value)]
    if launcher == "slurm":
        return slurm_script(nodes, gpus_per_node, timing.budget_s, words)
    if launcher == "torchrun":
        return torchrun_script(nodes, gpus_per_node, words)
    raise InputError(f"{launcher!r} is not one of {', '.join(LAUNCHERS)}", where="--launch")


def _complain(text: str) -> None:
    print(f"Error: {text}", file=sys.stderr, flush=True)
