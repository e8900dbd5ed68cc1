"""One rate of a machine changed: what would happen with twice the bandwidth, and how far an error bar reaches."""

from __future__ import annotations

from dataclasses import replace

from dscalc.cost.measured import moved_curves
from dscalc.frozen import dataclass
from dscalc.records import Books, Engine, Network, Timing
from dscalc.sweep.prune import Machine, Move


@dataclass(frozen=True, slots=True)
class Change:
    """Factors on the rates that a step is made from; 1 leaves it as it is."""

    name: str
    compute: float = 1.0  # P: rate of all that the GPU computes and streams
    bandwidth: float = 1.0  # BW
    latency: float = 1.0  # alpha
    gradient_bytes: float = 1.0  # b_r


BASE = Change("base")


def changed(machine: Machine, books: Books, change: Change) -> tuple[Machine, Books]:
    """A machine and the code books with factors on their rates."""
    timing = machine.timing
    engine, network = _engine(timing.engine, change.compute), _network(timing.network, change)
    recipes = replace(books.recipes, reduce=books.recipes.reduce * change.gradient_bytes)
    timed = Timing(engine, timing.table, timing.constants, network)
    return replace(machine, timing=timed), replace(books, recipes=recipes)


def _engine(engine: Engine, factor: float) -> Engine:
    if factor == 1.0:
        return engine
    return replace(
        engine,
        peak_flop_per_s=engine.peak_flop_per_s * factor,
        nominal_flop_per_s=engine.nominal_flop_per_s * factor,
        memory_bytes_per_s=engine.memory_bytes_per_s * factor,
    )


def _network(network: Network, change: Change) -> Network:
    bandwidth, latency = change.bandwidth, change.latency
    if bandwidth == latency == 1.0:
        return network
    tiers = tuple(
        replace(
            tier,
            bandwidth_bytes_per_s=tier.bandwidth_bytes_per_s * bandwidth,
            peer_bytes_per_s=tier.peer_bytes_per_s * bandwidth,
            latency_s=tier.latency_s * latency,
        )
        for tier in network.tiers
    )
    library = network.protocols
    protocols = replace(
        library,
        base_s=library.base_s * latency,
        hop_s=library.hop_s * latency,
        post_s=library.post_s * latency,
        arity_s=library.arity_s * latency,
        ceiling_bytes_per_s=library.ceiling_bytes_per_s * bandwidth,
    )
    curves = moved_curves(network.curves, bandwidth, latency)
    return replace(network, tiers=tiers, protocols=protocols, curves=curves)


TOKENS = "tokens_per_rank"  # D: the one lever that is no rate; a search of its own with twice the batch tells
DOUBLED = 2.0
LEVERS: tuple[tuple[str, Change | None, float], ...] = (  # name, what is changed, by which factor
    ("bandwidth_bytes_per_s", Change("bandwidth_bytes_per_s", bandwidth=2.0), 2.0),
    (TOKENS, None, DOUBLED),
    ("gradient_bytes", Change("gradient_bytes", gradient_bytes=0.5), 0.5),
    ("effective_flop_per_s", Change("effective_flop_per_s", compute=2.0), 2.0),
    ("latency_s", Change("latency_s", latency=0.5), 0.5),
)


def moves(machine: Machine, books: Books) -> tuple[Move, ...]:
    """The levers that are rates, for a search to look for the best layout after each.

    A step is made of times that each fall by the factor at most, so no step falls by more.
    """
    found = []
    for _, change, factor in LEVERS:
        if change is not None:
            run, read = changed(machine, books, change)
            found.append(Move(run, read, max(factor, 1.0 / factor), quiet=change.compute == 1.0))
    return tuple(found)
