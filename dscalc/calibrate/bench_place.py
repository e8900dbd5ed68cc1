"""Where a process of ``dscalc bench`` stands among the others, as its launcher says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dscalc.calibrate.bench_plan import World
from dscalc.errors import InputError

_NEEDED = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Place(NamedTuple):
    """One rank among its peers; ``attempt`` counts restarts by the launcher."""

    rank: int
    ranks: int
    local_rank: int
    ranks_per_node: int
    address: str
    port: int
    attempt: str
    agent_store: bool  # the launcher holds the key-value store

    @property
    def node(self) -> int:
        """Number of its node, from 0."""
        return self.rank // self.ranks_per_node

    @property
    def nodes(self) -> int:
        """Nodes of the run [count]."""
        return self.ranks // self.ranks_per_node


def place_of(environment: Mapping[str, str]) -> Place:
    """Read what torchrun sets; a process that nobody launched is alone.

    Raises:
        InputError: some of it is missing or no number, or Slurm started several processes without torchrun.
    """
    if "RANK" not in environment and "WORLD_SIZE" not in environment:
        tasks = environment.get("SLURM_STEP_NUM_TASKS", "1")
        if tasks.isdecimal() and int(tasks) > 1:
            raise InputError(
                f"srun started {tasks} processes that do not know of each other; start torchrun once a node: "
                "dscalc bench --launch slurm --nodes N prints a script"
            )
        return Place(0, 1, 0, 1, "", 0, "0", False)
    missing = [name for name in _NEEDED if not environment.get(name)]
    if missing:
        raise InputError(f"the launcher does not set {', '.join(missing)}; start with torchrun -m dscalc bench")
    numbers = {}
    for name in _NEEDED:
        if name != "MASTER_ADDR":
            text = environment[name]
            if not text.isdecimal():
                raise InputError(f"{name} is {text!r}, not a whole number; start with torchrun -m dscalc bench")
            numbers[name] = int(text)
    found = Place(
        numbers["RANK"],
        numbers["WORLD_SIZE"],
        numbers["LOCAL_RANK"],
        numbers["LOCAL_WORLD_SIZE"],
        environment["MASTER_ADDR"],
        numbers["MASTER_PORT"],
        environment.get("TORCHELASTIC_RESTART_COUNT", "0"),
        environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )
    if not (found.rank < found.ranks and 0 < found.ranks_per_node <= found.ranks):
        raise InputError(f"rank {found.rank} of {found.ranks} with {found.ranks_per_node} on a node makes no sense")
    return found


class Facts(NamedTuple):
    """What one rank says of itself."""

    host: str
    ranks_per_node: int
    local_rank: int
    device: str
    backend: str
    memory_bytes: int
    dtypes: tuple[str, ...]
    torch: str
    library: str


def world_of(facts: Sequence[Facts]) -> World:
    """The run as one: what every rank can do.

    Raises:
        InputError: nodes hold different numbers of ranks, or some have GPUs and others not.
    """
    inside = facts[0].ranks_per_node
    odd = [rank for rank, fact in enumerate(facts) if fact.ranks_per_node != inside or fact.local_rank != rank % inside]
    if odd:
        fact = facts[odd[0]]
        raise InputError(
            f"{fact.host} holds {fact.ranks_per_node} ranks and {facts[0].host} {inside}; "
            "give every node the same --nproc-per-node"
        )
    other = next((fact for fact in facts if fact.backend != facts[0].backend), None)
    if other is not None:
        raise InputError(f"{facts[0].host} runs on {facts[0].device} and {other.host} on {other.device}")
    common = tuple(d for d in facts[0].dtypes if all(d in fact.dtypes for fact in facts))
    return World(len(facts), len(facts) // inside, facts[0].backend, min(f.memory_bytes for f in facts), common)


def hosts_of(facts: Sequence[Facts]) -> list[str]:
    """Name of each node, told apart by its number where two have one name."""
    names = [fact.host for fact in facts if fact.local_rank == 0]
    return [f"{name}#{node}" if names.count(name) > 1 else name for node, name in enumerate(names)]


# ------------------------------------------------------------------------------------------------------------ verdict
class Beat(NamedTuple):
    """What a rank last said: a counter that goes up while it lives, the item it is at, and whether it is within it."""

    ticks: int
    item: int
    inside: bool


def verdict(
    before: Mapping[int, Beat],
    after: Mapping[int, Beat],
    place: Place,
    hosts: Sequence[str],
    troubles: Mapping[int, str],
) -> tuple[str, list[int]]:
    """Who is at fault, in one sentence, and the ranks it names.

    A rank whose counter stands still is dead or stopped; if all of a node are, it is the node. Where every rank lives,
    those that have not reached the last item are behind; then those that report an error of their own.

    Args:
        before, after: what each rank said, some seconds apart; a rank that never said anything is absent.
        place: of who judges.
        hosts: name of each node.
        troubles: errors that ranks report.

    Returns:
        The sentence, without its end, and the ranks.
    """
    silent = [
        r for r in range(place.ranks) if r not in after or after[r].ticks == before.get(r, Beat(-1, 0, False)).ticks
    ]
    if silent:
        return f"{_who(silent, place, hosts)} stopped answering", silent
    furthest = max((beat.item for beat in after.values()), default=0)
    behind = [r for r in range(place.ranks) if after[r].item < furthest]
    if behind:
        return f"{_who(behind, place, hosts)} hung before the others", behind
    if troubles:
        rank = min(troubles)
        return f"{_who([rank], place, hosts)} failed: {troubles[rank]}", [rank]
    return "every rank still answers, but the operation does not end: look at the network between them", []


def _who(ranks: Sequence[int], place: Place, hosts: Sequence[str]) -> str:
    """Ranks by name: whole nodes where all of a node are among them."""
    inside = place.ranks_per_node
    parts: list[str] = []
    rest = list(ranks)
    for node in range(place.nodes):
        members = list(range(node * inside, (node + 1) * inside))
        if set(members) <= set(ranks):
            span = f"rank {members[0]}" if inside == 1 else f"ranks {members[0]} to {members[-1]}"
            parts.append(f"node {node} ({_host(hosts, node)}, {span})")
            rest = [r for r in rest if r not in members]
    parts += [f"rank {r} on node {r // inside} ({_host(hosts, r // inside)})" for r in rest]
    shown = parts[:4]
    return ", ".join(shown) + (f" and {len(parts) - 4} more" if len(parts) > 4 else "")


def _host(hosts: Sequence[str], node: int) -> str:
    return hosts[node] if node < len(hosts) else "host unknown"


def to_facts(data: Mapping[str, Any]) -> Facts:
    """Facts from the JSON object that a rank published."""
    return Facts(**{**data, "dtypes": tuple(data["dtypes"])})
