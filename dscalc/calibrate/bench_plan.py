"""What ``dscalc bench`` measures, in which order, how often: pure decisions, without torch, clocks or files.

Items come in passes. The first spans the whole range of every operation coarsely, later ones fill in, so that a run
that ends early, by its budget or by a fault, still covers everything. Every rank makes the same plan from the same
facts; only how often an item is called is decided on the way, from what smaller sizes took.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import log
from typing import Any, NamedTuple

from dscalc.calibrate.rows import OPS
from dscalc.units import GIB, MIB, format_size


class Calls(NamedTuple):
    """How often one item is called: warm-up calls, then samples of so many calls."""

    warmups: int
    samples: int
    each: int

    @property
    def total(self) -> int:
        """All calls [count]."""
        return self.warmups + self.samples * self.each


# Sizes of messages by pass, as powers of two: several small ones for the latency, dense from 4 KiB to 8 MiB, where
# libraries change protocols, then up to 8 GiB.
PASSES = (
    (3, 6, 10, 16, 20, 24, 28, 32),
    (5, 8, 13, 18, 22, 26, 30, 33),
    (12, 14, 15, 17, 19, 21, 23),
    (4, 7, 9, 11, 25, 27, 29, 31),
)
LARGEST_MESSAGE = 8 * GIB
PAIR_SMALL = 8  # bytes
PAIR_LARGE = {"nccl": 64 * MIB, "gloo": MIB}
MOST_ROUNDS = 8  # rounds of node pairs; each node meets another partner in each
OVERLAP_BYTES = 64 * MIB
OVERLAP_OPS = ("all_reduce", "all_gather", "reduce_scatter")

HIDDEN = {"nccl": (4096, 8192, 2048, 1536), "gloo": (512, 768)}  # widths of a model, the usual first
TOKENS = {"nccl": 4096, "gloo": 256}  # rows of an activation: one long sequence
HEAD = 32_000  # columns of the output head
COPIES = {"nccl": (256 * MIB, 16 * MIB, GIB, MIB), "gloo": (16 * MIB, MIB, 64 * MIB)}

MEMORY_SHARE = 0.7  # of the free memory that buffers may take
FEWEST_SAMPLES, ENOUGH_SAMPLES, MOST_SAMPLES = 3, 6, 15
MOST_CALLS = 300  # of one item
FIRST_CALLS = Calls(2, 10, 1)  # where nothing is known yet
FIRST_LARGE_CALLS = Calls(1, 5, 1)
SMALL_WORK = 4096.0  # bytes or FLOP
SHORTEST_SHARE_S, LONGEST_SHARE_S = 0.02, 2.0  # of the budget, for one item
DEAREST = 0.05  # of the budget: an item that takes longer, called as seldom as it may be, is left out


class World(NamedTuple):
    """What a run has: as many ranks on each node."""

    ranks: int
    nodes: int
    backend: str  # nccl or gloo
    memory_bytes: int  # free for one rank, on the fullest node
    dtypes: tuple[str, ...]  # of products, the usual first

    @property
    def ranks_per_node(self) -> int:
        """Ranks of one node [count]."""
        return self.ranks // self.nodes


class Item(NamedTuple):
    """One thing to measure; what does not apply is empty or 0."""

    kind: str
    op: str = ""
    scope: str = ""
    size_bytes: int = 0
    dtype: str = ""
    m: int = 0
    n: int = 0
    k: int = 0
    round: int = 0  # of node pairs

    @property
    def words(self) -> str:
        """The item as a person would say it."""
        if self.kind == "collective":
            return f"{self.op} of {format_size(self.size_bytes)}, {SCOPE_WORDS[self.scope]}"
        if self.kind == "gemm":
            return f"{self.dtype} product {self.m} x {self.n} x {self.k}"
        if self.kind == "overlap":
            return f"{self.op} beside a product"
        if self.kind == "pair":
            return f"{format_size(self.size_bytes)} between pairs of nodes"
        return "memory copy of " + format_size(self.size_bytes) if self.kind == "memory_copy" else "kernel launch"


SCOPE_WORDS: Mapping[str, str] = {
    "node": "inside each node",
    "half_node": "two groups at once in each node",
    "one_a_node": "one rank a node",
    "all": "all ranks",
    "one_a_node_each": "one group for each rank of a node, all at once",
}


# ------------------------------------------------------------------------------------------------------------- groups
def scopes(world: World) -> tuple[str, ...]:
    """Where collectives can run; several that would be the same groups are one."""
    inside, nodes = world.ranks_per_node, world.nodes
    found = []
    if inside > 1:
        found.append("node")
    if nodes > 1:
        found.append("one_a_node")
    if nodes > 1 and inside > 1:
        found += ["all", "one_a_node_each"]
    if inside >= 4 and inside % 2 == 0:
        found.append("half_node")
    return tuple(found)


def groups_of(scope: str, world: World) -> list[list[int]]:
    """Ranks of each group of a scope; all groups run at once."""
    inside = world.ranks_per_node
    if scope == "all":
        return [list(range(world.ranks))]
    if scope == "one_a_node":
        return [list(range(0, world.ranks, inside))]
    if scope == "one_a_node_each":
        return [list(range(j, world.ranks, inside)) for j in range(inside)]
    size = inside // 2 if scope == "half_node" else inside
    return [list(range(start, start + size)) for start in range(0, world.ranks, size)]


def shape_of(scope: str, world: World) -> dict[str, int]:
    """``ranks`` and ``nodes`` of one group, and ``groups`` that share the links of a node."""
    inside = world.ranks_per_node
    return {
        "node": {"ranks": inside, "nodes": 1, "groups": 1},
        "half_node": {"ranks": inside // 2, "nodes": 1, "groups": 2},
        "one_a_node": {"ranks": world.nodes, "nodes": world.nodes, "groups": 1},
        "all": {"ranks": world.ranks, "nodes": world.nodes, "groups": 1},
        "one_a_node_each": {"ranks": world.nodes, "nodes": world.nodes, "groups": inside},
    }[scope]


def pair_rounds(nodes: int) -> list[list[tuple[int, int]]]:
    """Rounds of node pairs, disjoint within one; in each round a node meets another partner (the circle method).

    >>> pair_rounds(4)
    [[(0, 3), (1, 2)], [(0, 2), (1, 3)], [(0, 1), (2, 3)]]
    """
    seats = nodes + nodes % 2
    rounds = []
    for turn in range(min(seats - 1, MOST_ROUNDS)):
        moving = [(seat - turn) % (seats - 1) + 1 for seat in range(seats - 1)]
        table = [0, *moving]
        pairs = [tuple(sorted((table[i], table[seats - 1 - i]))) for i in range(seats // 2)]
        rounds.append(sorted((a, b) for a, b in pairs if b < nodes))
    return rounds


# -------------------------------------------------------------------------------------------------------------- sizes
def whole_size(size_bytes: int, op: str, ranks: int) -> int:
    """The size nearest below that every rank can have an equal part of, at least one element for each.

    >>> whole_size(65536, "all_gather", 12), whole_size(8, "reduce_scatter", 8), whole_size(65536, "all_reduce", 12)
    (65532, 32, 65536)
    """
    element = ELEMENT_BYTES[op]
    part = element if op in ("all_reduce", "send_recv") else element * ranks
    return max(size_bytes // part, 1) * part


ELEMENT_BYTES = {"all_reduce": 4, "reduce_scatter": 4, "all_gather": 1, "all_to_all": 1, "send_recv": 1}
DTYPE_OF = {op: "fp32" if size == 4 else "uint8" for op, size in ELEMENT_BYTES.items()}


def largest_message(memory_bytes: int) -> int:
    """The largest power of two of which two buffers fit, at most 8 GiB [bytes]."""
    room = int(memory_bytes * MEMORY_SHARE / 2)
    return min(1 << max(room.bit_length() - 1, 3), int(LARGEST_MESSAGE))


def products(world: World) -> list[tuple[int, str, int, int, int]]:
    """Products of a transformer's layers: pass, type, m, n, k.

    Query, key and value together, their output, both halves of the MLP (width 4h), and the head.
    """
    tokens = TOKENS[world.backend]
    found = []
    for (turn, h), (rank, dtype) in product(enumerate(HIDDEN[world.backend]), enumerate(world.dtypes)):
        layer = ((4 * h, h), (h, 4 * h), (3 * h, h), (h, h))
        for place, (n, k) in enumerate(layer):
            level = min(turn + rank + (place > 0), len(PASSES) - 1)
            found.append((level, dtype, tokens, n, k))
        if rank == 0:
            found.append((min(turn + 1, len(PASSES) - 1), dtype, tokens, HEAD, h))
    return sorted(found, key=lambda row: row[0])  # stable: the usual first


# --------------------------------------------------------------------------------------------------------------- plan
def plan(world: World) -> list[Item]:
    """Every item of a full run, in order."""
    return [item for level in range(len(PASSES)) for item in _pass(level, world)]


def _pass(level: int, world: World) -> Iterator[Item]:
    if level == 0:
        yield Item("launch")
    copies = [size for size in COPIES[world.backend] if size <= largest_message(world.memory_bytes)]
    yield from (Item("memory_copy", size_bytes=size) for size in copies[level : level + 1])
    for at, dtype, m, n, k in products(world):
        if at == level:
            yield Item("gemm", dtype=dtype, m=m, n=n, k=k)
    if level == 0 and world.nodes > 1:
        for number in range(len(pair_rounds(world.nodes))):
            for size in (PAIR_SMALL, PAIR_LARGE[world.backend]):
                yield Item("pair", size_bytes=size, round=number)
    for scope in scopes(world):
        yield from _collectives(level, scope, world)
    if level == 1 and world.backend == "nccl":
        yield from _overlaps(world)


def _collectives(level: int, scope: str, world: World) -> Iterator[Item]:
    limit, ranks = largest_message(world.memory_bytes), shape_of(scope, world)["ranks"]
    for op in OPS:
        before: set[int] = set()
        for earlier in PASSES[:level]:
            before |= {whole_size(1 << power, op, ranks) for power in earlier}
        sizes = {whole_size(1 << power, op, ranks) for power in PASSES[level] if 1 << power <= limit} - before
        for size in sorted(sizes):
            yield Item("collective", op, scope, size, DTYPE_OF[op])


def _overlaps(world: World) -> Iterator[Item]:
    if world.ranks < 2:
        return
    _, dtype, m, n, k = products(world)[0]
    for op, scope in product(OVERLAP_OPS, [s for s in scopes(world) if s in ("node", "all", "one_a_node")]):
        size = whole_size(OVERLAP_BYTES, op, shape_of(scope, world)["ranks"])
        yield Item("overlap", op, scope, size, dtype, m, n, k)


# ------------------------------------------------------------------------------------------------------------- resume
def left_to_do(items: Sequence[Item], rows: Iterable[Mapping[str, Any]], world: World) -> list[Item]:
    """The items of which rows do not hold a measurement yet."""
    done = {_of_row(row) for row in rows}
    return [item for item in items if not set(_of_item(item, world)) <= done]


def _of_row(row: Mapping[str, Any]) -> tuple[Any, ...]:
    if row["kind"] == "pair":
        return "pair", row["from_node"], row["to_node"], row["size_bytes"]
    return tuple(row.get(name, 0 if name in ("size_bytes", "m", "n", "k") else "") for name in _KEY)


def _of_item(item: Item, world: World) -> list[tuple[Any, ...]]:
    if item.kind == "pair":
        return [("pair", a, b, item.size_bytes) for a, b in pair_rounds(world.nodes)[item.round]]
    return [tuple(getattr(item, name) for name in _KEY)]


_KEY = ("kind", "op", "scope", "size_bytes", "dtype", "m", "n", "k")


# ------------------------------------------------------------------------------------------------------------- budget
class Expected(NamedTuple):
    """How long a call should take, and how long it may take at most."""

    likely_s: float
    most_s: float


class Pace:
    """What items took so far, and what that says of the next."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, ...], dict[float, float]] = {}

    def note(self, item: Item, time_s: float) -> None:
        """A call of this item took so long."""
        self._known.setdefault(_series(item), {})[_work(item)] = time_s

    def expect(self, item: Item) -> Expected | None:
        """Time of a call from less work of the same kind; None where nothing is known.

        At most it grows as the work does. Likely it grows as it did between the last two, or with the square root.
        """
        known = self._known.get(_series(item), {})
        work = _work(item)
        below = sorted(done for done in known if done <= work)
        if not below:
            least = min(known.values(), default=None)
            return None if least is None else Expected(least, least)
        last = below[-1]
        grows = 0.5
        if len(below) > 1:
            grows = log(known[last] / known[below[-2]]) / log(last / below[-2])
        likely = known[last] * (work / last) ** min(max(grows, 0.0), 1.0)
        return Expected(likely, known[last] * work / last)


def _series(item: Item) -> tuple[str, ...]:
    # two sizes of a pair say nothing of each other: from 8 bytes to a megabyte is no growth
    return item.kind, item.op, item.scope, f"{item.size_bytes}" if item.kind == "pair" else item.dtype


def _work(item: Item) -> float:
    return max(2.0 * item.m * item.n * item.k, float(item.size_bytes), 1.0)


def share_s(budget_s: float, items: int) -> float:
    """Time that one item may use for its calls: half the budget in equal parts, the other half is for what is dear."""
    return min(max(budget_s / 2.0 / max(items, 1), SHORTEST_SHARE_S), LONGEST_SHARE_S)


def calls_for(item: Item, expected: Expected | None, share: float, budget_s: float, left_s: float) -> Calls | None:
    """How often to call an item.

    Args:
        item: the item.
        expected: time of a call, as far as known.
        share: what an item may use [s].
        budget_s: budget of the run [s].
        left_s: what is left of it [s].

    Returns:
        The calls; None where even the fewest would cost too much.

    >>> copy = Item("memory_copy", size_bytes=4096)
    >>> calls_for(copy, Expected(0.001, 0.004), 0.1, 60.0, 50.0), calls_for(copy, Expected(1.0, 2.0), 0.1, 60.0, 50.0)
    (Calls(warmups=5, samples=15, each=6), None)
    """
    if left_s <= 0.0:
        return None
    if expected is None:
        return FIRST_CALLS if _work(item) <= SMALL_WORK else FIRST_LARGE_CALLS
    if expected.most_s * (FEWEST_SAMPLES + 1) > min(left_s, budget_s * DEAREST):
        return None
    fewest = ENOUGH_SAMPLES if expected.likely_s * ENOUGH_SAMPLES < 1.5 * share else FEWEST_SAMPLES
    affordable = min(max(int(share / expected.likely_s), fewest), MOST_CALLS)
    samples = min(affordable, MOST_SAMPLES)
    return Calls(min(1 + affordable // 4, 5), samples, affordable // samples)
