"""Algorithms of collectives, one row each: bytes that a rank sends, the load on each tier of the network, the steps.

Loads are per byte of the message and fall on one GPU's share of a tier's bandwidth. What a library adds (latencies,
protocols) comes with the network record, never from here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dscalc.frozen import dataclass
from dscalc.records import Array, Mask, Protocols

OPS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send-recv", "broadcast")


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the members of a group sit; one array (n,) a tier, inner first.

    Attributes:
        group: members of the group.
        members: members of the worst-placed group inside one domain of the tier; the whole group at the last.
        fan: domains of the tier below (GPUs, at the first tier) that one domain joins for this group.
        below: members inside one domain of the tier below, 1 at the first tier.
        crossed: number of domains of the tier below over which the group spreads, the group itself at the first.
        leaves: whether the group goes on beyond this tier.
        domains: domains of the first tier that hold members.
        last: index of the outermost tier that the group uses.
    """

    group: Array
    members: tuple[Array, ...]
    fan: tuple[Array, ...]
    below: tuple[Array, ...]
    crossed: tuple[Array, ...]
    leaves: tuple[Mask, ...]
    domains: Array
    last: NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One way to run one collective.

    Attributes:
        op: one of ``OPS``.
        name: as it is forced on the command line.
        constants: which row of the library's constants holds its latency.
        volume: bytes that one rank sends, per byte of the message (of the busiest rank where ranks differ).
        steps: sequential steps on each tier.
        loads: bytes that one GPU's share of each tier carries, per byte of the message; the slowest tier sets the pace.
        flat: load where everything is one tier, which is what a library's ceilings of a protocol refer to.
        serial: the tiers work one after another; otherwise pieces of the message keep all of them busy at once.
        inner_reduction, outer_reduction: the first or the last tier reduces inside its switch.
        peers: how many peers one GPU talks to at once in a mesh of ``fan`` members.
        needs: where it can run at all.
    """

    op: str
    name: str
    constants: str
    volume: Callable[[Placement], Array]
    steps: Callable[[Placement, Protocols], Sequence[Array]]
    loads: Callable[[Placement], Sequence[Array]]
    flat: Callable[[Placement], Array]
    serial: bool = False
    inner_reduction: bool = False
    outer_reduction: bool = False
    peers: Callable[[Array], Array] = lambda fan: fan - 1.0
    needs: Callable[[Placement], Mask] = lambda place: place.group > 1.0


# ---------------------------------------------------------------------------------------------------- volumes and loads
def _across(place: Placement) -> Mask:
    return (place.domains > 1.0) & (place.group > 1.0)


def _one_domain(place: Placement) -> Mask:
    return (place.domains <= 1.0) & (place.group > 1.0)


def _share(place: Placement) -> Array:
    """(K-1)/K: what does not stay with the rank that owns it."""
    return (place.group - 1.0) / place.group


def _ring(op: str, passes: float, whole: bool = False) -> Algorithm:
    """A ring through all members, domain by domain, one ring a GPU of a domain so that every link outside works.

    In a domain that the ring enters and leaves, one of its members sends outward, the others inward.
    """

    def volume(place: Placement) -> Array:
        return place.group * 0.0 + 1.0 if whole else passes * _share(place)

    def loads(place: Placement) -> list[Array]:
        bytes_sent = volume(place)
        found: list[Array] = []
        for fan, below, leaves in zip(place.fan, place.below, place.leaves, strict=True):
            hops = np.where(leaves, fan - 1.0, np.where(fan > 1.0, fan, 0.0))
            found.append(bytes_sent * (hops / fan) / below)
        return found

    def steps(place: Placement, _: Protocols) -> list[Array]:
        after = (*place.crossed[1:], place.group * 0.0 + 1.0)
        return [passes * (before - beyond) for before, beyond in zip(place.crossed, after, strict=True)]

    return Algorithm(op, "ring", "ring", volume, steps, loads, volume)


def _log2(count: Array) -> Array:
    return np.asarray(np.log2(np.maximum(count, 1.0)), dtype=np.float64)


def _tree_outside(place: Placement, found: list[Array]) -> list[Array]:
    """A double binary tree: a domain passes the message up and down once among two, at its busiest twice among more."""
    for fan, below in zip(place.fan[1:], place.below[1:], strict=True):
        found.append(np.where(fan > 2.0, 2.0, np.where(fan > 1.0, 1.0, 0.0)) / below)
    return found


def _tree_loads(place: Placement) -> list[Array]:
    return _tree_outside(place, [np.where(place.fan[0] > 1.0, 2.0, 0.0)])


def _tree_steps(place: Placement, protocols: Protocols) -> list[Array]:
    inside = protocols.fused * (place.fan[0] - 1.0) + (1.0 - protocols.fused) * _log2(place.fan[0])
    return [2.0 * inside, *(2.0 * _log2(fan) for fan in place.fan[1:])]


def _multicast(members: Array) -> Array:
    """Reduction in the switch: each GPU hands over the message once, and its own share of the result once."""
    return 1.0 + 1.0 / members


def _nvls_loads(place: Placement) -> list[Array]:
    return _tree_outside(place, [_multicast(place.fan[0])])


def _nvls_steps(place: Placement, _: Protocols) -> list[Array]:
    return [place.group * 0.0 + 1.0, *(2.0 * _log2(fan) for fan in place.fan[1:])]


def _hierarchical_loads(place: Placement) -> list[Array]:
    """Reduce-scatter inside, all-reduce of the shards outside, all-gather inside."""
    return [2.0 * ((fan - 1.0) / fan) / below for fan, below in zip(place.fan, place.below, strict=True)]


def _hierarchical_volume(place: Placement) -> Array:
    return 2.0 * _share(place)


def _sharp(op: str, passes: float) -> Algorithm:
    """Reduction in the network's switches: as measured, the ring's bytes outside without the ring's steps."""

    def loads(place: Placement) -> list[Array]:
        inside = passes * (place.fan[0] - 1.0) / place.fan[0]
        outside = [
            np.where(fan > 1.0, passes * _share(place), 0.0) / below
            for fan, below in zip(place.fan[1:], place.below[1:], strict=True)
        ]
        return [inside, *outside]

    def steps(place: Placement, _: Protocols) -> list[Array]:
        outside = [np.where(fan > 1.0, 1.0, 0.0) for fan in place.fan[1:]]
        return [2.0 * np.minimum(1.0, place.fan[0] - 1.0), *outside]

    def volume(place: Placement) -> Array:
        return passes * _share(place)

    return Algorithm(op, "sharp", "sharp", volume, steps, loads, volume, outer_reduction=True, needs=_across)


def _beyond(place: Placement) -> list[Array]:
    """Members reached through each tier and not already inside it."""
    return [members - below for members, below in zip(place.members, place.below, strict=True)]


def _all_to_all_loads(place: Placement) -> list[Array]:
    """What goes to members outside a domain leaves through this GPU's own share: no other GPU helps."""
    return [count / place.group for count in _beyond(place)]


def _posted_steps(place: Placement, protocols: Protocols) -> list[Array]:
    return [
        protocols.fused * np.where(fan > 1.0, 1.0, 0.0) + (1.0 - protocols.fused) * count
        for fan, count in zip(place.fan, _beyond(place), strict=True)
    ]


def _farthest(place: Placement) -> list[Array]:
    """1 at the outermost tier that the group uses: some pair of neighbours sits on both sides of it."""
    return [np.where(place.last == j, 1.0, 0.0) for j in range(len(place.fan))]


def _naive_loads(place: Placement) -> list[Array]:
    """One root receives every tensor, then sends the result to everyone: what its own links carry."""
    return [2.0 * count for count in _beyond(place)]


def _power_of_two(place: Placement) -> Mask:
    exponent = np.log2(np.maximum(place.group, 1.0))
    return np.asarray((np.floor(exponent) == exponent) & (place.group > 1.0))


def _two(place: Placement) -> Array:
    return place.group * 0.0 + 2.0


ALGORITHMS: tuple[Algorithm, ...] = (
    _ring("all-reduce", 2.0),
    Algorithm("all-reduce", "tree", "tree", _hierarchical_volume, _tree_steps, _tree_loads, _two),
    Algorithm(
        "all-reduce",
        "nvls",
        "nvls",
        lambda place: _multicast(place.group),
        lambda place, _: [place.group * 0.0 + 1.0, *(fan * 0.0 for fan in place.fan[1:])],
        lambda place: [_multicast(place.fan[0]), *(fan * 0.0 for fan in place.fan[1:])],
        _two,
        inner_reduction=True,
        needs=_one_domain,
    ),
    Algorithm(
        "all-reduce",
        "nvls-tree",
        "nvls-tree",
        lambda place: _multicast(place.fan[0]),
        _nvls_steps,
        _nvls_loads,
        _two,
        inner_reduction=True,
        needs=lambda place: _across(place) & (place.fan[0] > 1.0),
    ),
    _sharp("all-reduce", 2.0),
    Algorithm(
        "all-reduce",
        "hierarchical",
        "ring",
        _hierarchical_volume,
        lambda place, _: [2.0 * (fan - 1.0) for fan in place.fan],
        _hierarchical_loads,
        _hierarchical_volume,
    ),
    Algorithm(
        "all-reduce",
        "halving-doubling",
        "ring",
        _hierarchical_volume,
        lambda place, _: [2.0 * _log2(fan) for fan in place.fan],
        _hierarchical_loads,
        _hierarchical_volume,
        serial=True,
        needs=_power_of_two,
    ),
    Algorithm(
        "all-reduce",
        "naive",
        "ring",
        lambda place: place.group - 1.0,
        lambda place, _: [2.0 * count for count in _beyond(place)],
        _naive_loads,
        lambda place: 2.0 * (place.group - 1.0),
        peers=lambda fan: fan * 0.0 + 1.0,
    ),
    _ring("all-gather", 1.0),
    _sharp("all-gather", 1.0),
    _ring("reduce-scatter", 1.0),
    _sharp("reduce-scatter", 1.0),
    _ring("broadcast", 1.0, whole=True),
    Algorithm("all-to-all", "pairwise", "ring", _share, _posted_steps, _all_to_all_loads, _share),
    Algorithm(
        "send-recv",
        "direct",
        "ring",
        lambda place: place.group * 0.0 + 1.0,
        lambda place, _: _farthest(place),
        _farthest,
        lambda place: place.group * 0.0 + 1.0,
        peers=lambda fan: fan * 0.0 + 1.0,
    ),
)


def placement(group: Array, inside: Array, domains: Array, tiers: int) -> Placement:
    """Spread of a group over nested tiers from the members inside a domain and the domains crossed, tier by tier.

    Args:
        group [ranks, (n,)]: members K.
        inside [ranks, (tiers - 1, n)]: members of the worst-placed group in one domain of each tier but the outermost;
            (n,) where there are two tiers.
        domains [domains, (tiers - 1, n)]: domains of that tier with members; 1: it lies in one.
        tiers [tiers]: levels of the network.

    Returns:
        The placement [ranks, (n,)].

    Raises:
        ValueError: not one row of ``inside`` and ``domains`` for each tier but the outermost.

    References:
        [Definition] a domain of tier j joins domains(j-1) / domains(j) domains of the tier below.
    """
    zero = group * 0.0
    if tiers == 1:
        rows: list[tuple[Array, Array]] = []
    else:
        held, spread = (x if np.ndim(x) > 1 else np.reshape(x, (1, -1)) for x in (inside, domains))
        if len(held) != tiers - 1 or len(spread) != tiers - 1:
            raise ValueError(f"{tiers} tiers need {tiers - 1} rows of members inside and domains")
        rows = [(held[j] + zero, spread[j] + zero) for j in range(tiers - 1)]
    members = (*(np.where(count <= 1.0, group, n) for n, count in rows), group + zero)
    spreads = (*(count for _, count in rows), zero + 1.0)
    crossed = (group + zero, *spreads[:-1])
    fan = (members[0], *(before / after for before, after in pairwise(spreads)))
    last = np.zeros(np.shape(members[0]), dtype=np.intp)
    for j, count in enumerate(spreads[:-1]):
        last = np.where(count > 1.0, j + 1, last)
    return Placement(
        group=group + zero,
        members=members,
        fan=fan,
        below=(zero + 1.0, *members[:-1]),
        crossed=crossed,
        leaves=tuple(np.asarray(count > 1.0) for count in spreads),
        domains=spreads[0],
        last=last.astype(np.intp),
    )
