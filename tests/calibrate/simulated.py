"""Hardware of known latency, bandwidth and speed in place of torch and its store, under the real loop of the benchmark.

Times are computed, none passes: the plan, the budget's refusals, the rows and the answer are the real ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dscalc.calibrate.bench import Asked, Measured, _lead, taking_part
from dscalc.calibrate.bench_place import Facts, hosts_of, world_of
from dscalc.calibrate.bench_plan import Calls, Item, World, groups_of, pair_rounds

PEAK = 700e12  # FLOP/s
COPY = 4e12  # bytes/s, read and written
VOLUME = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0, "all_to_all": 1.0, "send_recv": 1.0}


@dataclass
class Machine:
    """Nodes with GPUs: alpha-beta times with noise, and what is slow among them."""

    nodes: int = 2
    inside: int = 8
    backend: str = "nccl"
    device: str = "NVIDIA H200"
    dtypes: tuple[str, ...] = ("bf16", "fp16", "fp8")
    memory_bytes: int = 140 * 10**9
    inner: tuple[float, float] = (8e-6, 360e9)  # latency of a call, bytes/s of a rank
    outer: tuple[float, float] = (20e-6, 48e9)
    noise: float = 0.01
    slow_ranks: dict[int, float] = field(default_factory=dict)  # factor on the time of kernels
    slow_nodes: dict[int, float] = field(default_factory=dict)  # factor on the time of links outside
    slow_links: dict[tuple[int, int], float] = field(default_factory=dict)
    seed: int = 1
    fails_at: int | None = None  # number of the item at which a rank is lost

    def facts(self) -> list[Facts]:
        """What each rank would say."""
        return [
            Facts(
                f"gpu-{rank // self.inside:02d}",
                self.inside,
                rank % self.inside,
                self.device,
                self.backend,
                self.memory_bytes,
                self.dtypes,
                "2.9.0",
                "nccl 2.27.7" if self.backend == "nccl" else "gloo",
            )
            for rank in range(self.nodes * self.inside)
        ]

    def times(self, item: Item, calls: Calls, world: World, rank: int) -> dict[str, Any]:
        """What a rank would measure."""
        chance = random.Random(f"{self.seed} {item} {rank}")  # noqa: S311 - noise

        def samples(time_s: float) -> list[float]:
            return [time_s * chance.lognormvariate(0.0, self.noise) for _ in range(calls.samples)]

        if rank not in taking_part(item, world):
            return {}
        slower = self.slow_ranks.get(rank, 1.0)
        if item.kind == "gemm":
            peak = PEAK * (2.0 if item.dtype == "fp8" else 1.0)
            short = 1.0 / item.m + 1.0 / item.n + 1.0 / item.k
            return {"t": samples(slower * 2.0 * item.m * item.n * item.k / peak * (1.0 + 64.0 * short))}
        if item.kind == "memory_copy":
            return {"t": samples(slower * 2.0 * item.size_bytes / COPY)}
        if item.kind == "launch":
            return {"t": samples(3e-6)}
        if item.kind == "pair":
            a, b = next(p for p in pair_rounds(world.nodes)[item.round] if rank // self.inside in p)
            factor = max(self.slow_nodes.get(a, 1.0), self.slow_nodes.get(b, 1.0)) * self.slow_links.get((a, b), 1.0)
            return {"t": samples(self.outer[0] + item.size_bytes / self.outer[1] * factor)}
        members = next(g for g in groups_of(item.scope, world) if rank in g)
        across = members[0] // self.inside != members[-1] // self.inside
        latency, rate = self.outer if across else self.inner
        if item.scope in ("all", "one_a_node"):
            rate *= 1.5 if item.scope == "all" else 1.0
        n = len(members)
        volume = VOLUME[item.op] * ((n - 1) / n if item.op != "send_recv" else 1.0)
        time_s = latency * n**0.5 + volume * item.size_bytes / rate
        if item.kind == "overlap":
            alone = 2.0 * item.m * item.n * item.k / PEAK
            return {"overlap": [alone, time_s, 1.08 * alone, 1.3 * time_s]}
        return {"t": samples(time_s), "wrong": 0 if item.size_bytes <= 1 << 24 else None}


class LostError(Exception):
    """A rank is lost: the watch of the real control would end the process here."""


class OneProcess:
    """Stands in for Control and Device of rank 0, and answers for all other ranks."""

    def __init__(self, machine: Machine, world: World) -> None:
        self.machine, self.world = machine, world
        self.place = type("Place", (), {"rank": 0, "ranks": world.ranks})
        self.hosts = hosts_of(machine.facts())
        self.judged: Callable[[str], None] = lambda _: None
        self.store: Any = None
        self.words = ""
        self._now: tuple[Item, Calls] | None = None

    def say(self, key: str, value: Any) -> None:
        """The other ranks learn the plan and what comes next."""
        if key == "plan":
            self._items = [Item(*fields) for fields in value]
        elif value is not None:
            self._now = self._items[int(key.partition("/")[2])], Calls(*value[:3])

    def hear_all(self, keys: list[str]) -> list[Any]:
        """What the other ranks would have said."""
        assert self._now is not None
        item, calls = self._now
        return [self.machine.times(item, calls, self.world, int(key.rpartition("/")[2])) for key in keys]

    def forget(self, keys: list[str]) -> None:
        """Nothing is kept."""

    def enter(self, number: int, words: str, *_: object) -> None:
        """An item begins."""
        self.words = words
        if number == self.machine.fails_at:
            self.judged(f"node 1 (gpu-01, rank 1) stopped answering, in: {words}")
            raise LostError

    def leave(self) -> None:
        """An item ends."""

    def connect(self, store: object, world: World, scopes: object, patience_s: float) -> None:
        """Nothing to connect."""

    def disconnect(self) -> None:
        """Nothing to disconnect."""

    def measure(self, item: Item, calls: Calls, world: World) -> dict[str, Any]:
        """What rank 0 measures."""
        return self.machine.times(item, calls, world, 0)


def run(machine: Machine, asked: Asked, said: list[str] | None = None) -> Measured:
    """The real loop of rank 0 on simulated hardware."""
    facts = machine.facts()
    both = OneProcess(machine, world_of(facts))
    told: list[str] = [] if said is None else said
    return _lead(asked, both, both, both.world, facts, None, told.append)  # type: ignore[arg-type]
