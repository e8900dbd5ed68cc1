"""Time of a collective call: bytes through the slowest tier and latencies of the steps, by the fastest algorithm.

The form is that of NCCL's own tuning model, with bandwidths from the cluster's tiers: for each protocol, time = latency
of the steps + bytes / bandwidth. A network without a library's constants gives the closed forms of the textbooks.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from dscalc.codes import LIBRARY_ALGORITHMS, PROTOCOLS
from dscalc.cost.algorithms import ALGORITHMS, OPS, Algorithm, Placement, placement
from dscalc.cost.measured import measured_time
from dscalc.frozen import dataclass
from dscalc.records import Array, Mask, Network, Protocols, Tier

_RING = LIBRARY_ALGORITHMS.index("ring")
_TREES = ("tree",)  # algorithms whose bandwidth a library corrects by message size
_LARGE = len(PROTOCOLS) - 1  # the protocol of large messages, and the only one of a plain network


@dataclass(frozen=True, slots=True, eq=False)
class CollectiveTime:
    """One collective call per row; arrays of shape (n,).

    Attributes:
        time_s: duration of the call.
        traffic_bytes: bytes that one rank sends (the busiest, where ranks differ).
        algorithm: index into ``ALGORITHMS`` of what ran; -1 where the group has one member.
        tier: index of the outermost tier used.
        extrapolated: message or group outside the range of the measurements behind the time: the curve's, where one
            was used, else the published ones behind the constants.
        curve: index into ``Network.curves`` of the measured curve behind the time; -1 where the model says it.
    """

    time_s: Array
    traffic_bytes: Array
    algorithm: NDArray[np.intp]
    tier: NDArray[np.intp]
    extrapolated: Mask
    curve: NDArray[np.intp]


def algorithm_names(op: str) -> tuple[str, ...]:
    """Names by which an algorithm of an operation can be forced, in the order of the registry.

    Args:
        op: one of ``OPS``.

    Returns:
        The names.

    Raises:
        ValueError: no such operation.

    References:
        [Thakur2005], [Nccl].
    """
    if op not in OPS:
        raise ValueError(f"no collective {op!r}; there are {', '.join(OPS)}")
    return tuple(row.name for row in ALGORITHMS if row.op == op)


def _rate(tier: Tier, fan: Array, row: Algorithm, reduces: bool, edge: float) -> Array:
    """Bandwidth of one GPU's share of a tier under an algorithm, at the largest messages; slower at the slow end."""
    wire = np.minimum(tier.bandwidth_bytes_per_s, np.maximum(row.peers(fan), 1.0) * tier.peer_bytes_per_s)
    reached = (tier.reduction_efficiency if reduces else tier.efficiency) * np.exp(-edge * tier.error)
    return np.asarray(wire * reached / tier.oversubscription)


def _hop(tier: Tier, protocols: Protocols, constants: int, used: list[int]) -> Array:
    """Latency of one step, a row a protocol: the library's for that kind of link, moved by how the tier differs."""
    usual = protocols.hop_s[tier.link, _RING, _LARGE]
    faster = np.minimum(tier.latency_s / np.where(usual > 0.0, usual, 1.0), 1.0)
    slower = np.maximum(tier.latency_s - usual, 0.0)
    return np.asarray(protocols.hop_s[tier.link, constants][:, used].T * faster + slower)


def _available(row: Algorithm, network: Network, place: Placement, by_itself: bool) -> Mask:
    """Where an algorithm can run; ``by_itself``: where the library would consider it without being told."""
    found = row.needs(place)
    for wanted, tier in ((row.inner_reduction, network.tiers[0]), (row.outer_reduction, network.tiers[-1])):
        if wanted:
            found = found & (tier.reduction_efficiency > 0.0)
            if by_itself:
                found = found & (tier.reduces > 0.0)
    return found


def _correction(protocols: Protocols, used: list[int], message_bytes: Array) -> Array:
    """Share of its bandwidth that a tree reaches, a row a protocol, between the library's classes of message size."""
    classes = np.arange(float(protocols.correction.shape[1]))
    at = np.log2(np.maximum(message_bytes / protocols.correction_start_bytes, 1.0))
    return np.stack([np.interp(at, classes, protocols.correction[protocol]) for protocol in used])


def _algorithm_time(row: Algorithm, message_bytes: Array, place: Placement, network: Network, op: str) -> Array:
    """Time with the fastest protocol [s]; a forced or automatic choice is the caller's."""
    protocols = network.protocols
    constants = LIBRARY_ALGORITHMS.index(row.constants)
    loads, steps, flat = row.loads(place), row.steps(place, protocols), row.flat(place)
    wire: Array | None = None
    for j, (tier, load, fan) in enumerate(zip(network.tiers, loads, place.fan, strict=True)):
        reduces = (row.inner_reduction and j == 0) or (row.outer_reduction and j == len(loads) - 1)
        rate = _rate(tier, fan, row, reduces, network.edge)
        part = message_bytes * load / rate
        wire = part if wire is None else wire + part if row.serial else np.maximum(wire, part)
    assert wire is not None  # noqa: S101 - a network has a tier
    across = place.domains > 1.0
    bus, bus_across = protocols.bus[constants], protocols.bus_across[constants]
    used = [p for p in range(len(PROTOCOLS)) if bus[p] > 0.0 or bus_across[p] > 0.0]
    if not used:
        return place.group * 0.0 + np.inf
    latency: Array = protocols.base_s[constants, used][:, None] + 0.0 * place.group  # (protocols used, n)
    for tier, count in zip(network.tiers, steps, strict=True):
        latency = latency + count * _hop(tier, protocols, constants, used)
    if row.constants == "sharp":
        latency = latency + 2.0 * protocols.arity_s * (place.fan[0] - 1.0)
    if op == "all-to-all":
        latency = latency + protocols.post_s * (place.group - 1.0)
    if op == "all-reduce" and row.name == "ring" and used[-1] == _LARGE:
        long = across & (message_bytes >= protocols.plateau_bytes * place.group)
        latency[-1] = np.where(long, latency[-1] * protocols.plateau, latency[-1])
    inside, outside = bus[used][:, None], bus_across[used][:, None]
    share = np.where(across, outside, inside)  # of the bus bandwidth; 0: this protocol is not for that
    busy = wire / np.where(share > 0.0, share, 1.0)
    ceilings = protocols.ceiling_bytes_per_s[used][:, :, None]
    if np.isfinite(ceilings).any():
        ceiling = np.where(across, np.where(place.domains > 2.0, ceilings[:, 2], ceilings[:, 1]), ceilings[:, 0])
        busy = np.maximum(busy, message_bytes * flat / ceiling)
    if row.name in _TREES:
        busy = busy / _correction(protocols, used, message_bytes)
    return np.asarray(np.where(share > 0.0, latency + busy, np.inf).min(axis=0))


def _fastest(
    op: str, message: Array, place: Placement, network: Network, algorithm: str | None
) -> tuple[Array, Array, NDArray[np.intp]]:
    """Time, bytes sent and code of the fastest algorithm, or of the forced one where it can run."""
    time_s, sent, code = message * 0.0 + np.inf, message * 0.0, np.full(message.shape, -1, dtype=np.intp)
    ours = [(i, row) for i, row in enumerate(ALGORITHMS) if row.op == op]
    rest = [entry for entry in ours if len(ours) == 1 or entry[1].name in network.protocols.algorithms]
    wanted = [entry for entry in ours if entry[1].name == algorithm]
    for by_itself, rows in ((False, wanted), (True, rest)):
        open_ = time_s == np.inf  # a forced algorithm that ran is not overtaken
        for i, row in rows:
            may = _available(row, network, place, by_itself) & open_
            if not np.any(may):
                continue
            took = np.where(may, _algorithm_time(row, message, place, network, op), np.inf)
            better = took < time_s
            time_s = np.where(better, took, time_s)
            sent = np.where(better, message * row.volume(place), sent)
            code = np.where(better, i, code)
    return time_s, sent, code


def collective(
    op: str,
    message_bytes: Array,
    group: Array,
    inside: Array,
    domains: Array,
    network: Network,
    algorithm: str | None = None,
) -> CollectiveTime:
    """Duration and traffic of one call of a collective, by the algorithm that is fastest or forced.

    A ring over domains runs at min(BW_in n_in/(n_in - 1), n_in BW_out): every GPU of a domain brings its own share
    of the network, and one hop in n_in leaves the links inside alone. All-to-all and messages between two ranks get
    no such help. Where a forced algorithm cannot run (NVLS across domains, halving-doubling among 12 ranks), the
    fastest one runs instead and is named in the result. Where the network has measured curves they win, unless an
    algorithm is forced.

    Args:
        op: one of ``OPS``.
        message_bytes [bytes, (n,)]: n. All-reduce, broadcast, send-recv: the tensor; all-gather, reduce-scatter: the
            full tensor; all-to-all: one rank's send buffer.
        group [ranks, (n,)]: members K; one member sends nothing.
        inside [ranks, (n,)]: members of the worst-placed group inside one domain of the first tier; (tiers - 1, n)
            where there are more than two tiers. A network of one tier does not look at it.
        domains [domains, (n,)]: domains that the group crosses, 1: it lies in one; shaped as ``inside``.
        network: tiers and library.
        algorithm: name to force, one of :func:`algorithm_names`; None: the fastest of those the library chooses from.

    Returns:
        Time, traffic, algorithm, tier and whether that is extrapolated [s and bytes, (n,)].

    Raises:
        ValueError: no such operation or algorithm; ``inside`` does not fit the tiers.

    References:
        [Nccl] time model; [Thakur2005], [Patarasuk2009], [Sanders2009] volumes and steps; [NcclTests] bus bandwidth.
    """
    names = algorithm_names(op)
    if algorithm is not None and algorithm not in names:
        raise ValueError(f"no algorithm {algorithm!r} for {op}; there are {', '.join(names)}")
    protocols = network.protocols
    message, ranks, held, spread = (np.asarray(x, dtype=np.float64) for x in (message_bytes, group, inside, domains))
    shape = np.broadcast_shapes(message.shape, ranks.shape, held.shape[-1:], spread.shape[-1:])
    message, ranks = message + np.zeros(shape), ranks + np.zeros(shape)
    place = placement(ranks, held, spread, len(network.tiers))
    alone = ranks <= 1.0
    time_s, sent, code = _fastest(op, message, place, network, algorithm)
    beyond = (message < protocols.min_message_bytes) | (message > protocols.max_message_bytes)
    beyond = beyond | (ranks > protocols.max_ranks)
    curve = np.full(shape, -1, dtype=np.intp)
    if network.curves and algorithm is None:
        found = measured_time(
            op, message, place, network, time_s, lambda size, there: _fastest(op, size, there, network, None)[0]
        )
        time_s, curve = np.asarray(found.time_s, dtype=np.float64), found.curve
        beyond = np.where(curve >= 0, found.extrapolated, beyond)
    return CollectiveTime(
        time_s=np.where(alone, 0.0, time_s),
        traffic_bytes=np.where(alone, 0.0, sent),
        algorithm=np.where(alone, -1, code).astype(np.intp),
        tier=np.where(alone, 0, place.last).astype(np.intp),
        extrapolated=np.asarray(~alone & beyond),
        curve=np.where(alone, -1, curve).astype(np.intp),
    )
