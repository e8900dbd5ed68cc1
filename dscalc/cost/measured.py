"""Times of collectives as they were measured on the cluster itself, where a profile has them.

In its own group and between its smallest and largest message a curve is interpolated, log-log. Elsewhere its time is a
bracket, and what the model of tiers and library says of the difference decides where inside it. More members: at the
fast end the bus bandwidth stays, at the slow end each further step of a ring costs a hop more, but nothing takes longer
than in proportion to the members. Other sizes: at the fast end only bytes cost, at the slow end everything costs in
proportion.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from dscalc.cost.algorithms import Placement, placement
from dscalc.frozen import dataclass
from dscalc.records import Array, Curve, Mask, Network

HOP_S = (4e-6, 10e-6)  # of a further step of a ring at the slow end: inside a domain, across domains
BEYOND = 0.10  # half-width that a bar gains with each doubling of the size outside the measured ones
WIDEST = 0.7  # of a bar outside the measured sizes, in the logarithm: a factor of two
TWO_DOMAINS = 1.8  # slow end from two domains to more: between two, a tree sends half of what it sends among more
SAME_SIZE = 1e-6  # of the logarithm of a size
LEAST_S = 1e-9
Modelled = Callable[[Array, Placement], Array]
_NONE = -1


def _share(group: Array) -> Array:
    return np.asarray((group - 1.0) / np.maximum(group, 1.0))


# bytes that a rank sends for each byte of the message, and steps of a ring: what bus bandwidth is counted with
VOLUME: dict[str, tuple[Callable[[Array], Array], float]] = {
    "all-reduce": (lambda n: 2.0 * _share(n), 2.0),
    "all-gather": (_share, 1.0),
    "reduce-scatter": (_share, 1.0),
    "all-to-all": (_share, 1.0),
    "broadcast": (lambda n: n * 0.0 + 1.0, 1.0),
    "send-recv": (lambda n: n * 0.0 + 1.0, 0.0),
}


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """What curves say of calls; arrays (n,).

    Attributes:
        time_s: duration of the call, as modelled where no curve reaches.
        curve: index into ``Network.curves`` of what was used, -1 where none was.
        extrapolated: outside the sizes or the group of that curve.
    """

    time_s: Array
    curve: NDArray[np.intp]
    extrapolated: Mask


def bus_volume(op: str, group: Array) -> Array:
    """Bytes that a rank sends for each byte of the message, as bus bandwidth counts them.

    Args:
        op [name, scalar]: one of ``cost.algorithms.OPS``.
        group [ranks, (n,)]: members K.

    Returns:
        2(K-1)/K of an all-reduce, (K-1)/K of an all-gather, reduce-scatter and all-to-all, else 1 [1, (n,)].

    Raises:
        KeyError: no such operation.

    References:
        [NcclTests] bus bandwidth.
    """
    return VOLUME[op][0](np.asarray(group, dtype=np.float64))


def moved_curves(
    curves: tuple[Curve, ...], bandwidth: float = 1.0, latency: float = 1.0, across: bool = False
) -> tuple[Curve, ...]:
    """Curves as they would be on a network with other rates: the time of the smallest message counts as latency.

    Args:
        curves [s, (sizes,)]: as measured.
        bandwidth [times, scalar]: factor on what bytes run at.
        latency [times, scalar]: factor on the time of the smallest message.
        across [flag, scalar]: change only groups that cross domains.

    Returns:
        The curves [s, (sizes,)].

    Raises:
        nothing.

    References:
        [Definition].
    """
    found = []
    for curve in curves:
        if across and curve.domains <= 1.0:
            found.append(curve)
            continue
        least = np.exp(np.minimum(curve.log_s, curve.log_s[0]))
        seconds = least * latency + (np.exp(curve.log_s) - least) / bandwidth
        found.append(replace(curve, log_s=np.log(seconds)))
    return tuple(found)


def chosen_curves(op: str, place: Placement, network: Network) -> tuple[NDArray[np.intp], Mask]:
    """The curve that stands for each call: of its own group, else of the nearest group that lies alike.

    Groups lie alike where both stay in one domain, or where both cross domains with as many members in each: bus
    bandwidth says nothing about a group that uses another number of a node's NICs.

    Args:
        op [name, scalar]: one of ``cost.algorithms.OPS``.
        place [ranks, (n,)]: where the groups lie.
        network [tiers, (1,)]: the network with its curves.

    Returns:
        Index into ``network.curves``, -1 where none stands for it; flags of calls in a curve's own group [-, (n,)].

    Raises:
        nothing.

    References:
        [Definition].
    """
    group, inside, domains = place.group, place.members[0], place.domains
    across = domains > 1.0
    best = np.full(group.shape, np.inf)
    found = np.full(group.shape, _NONE, dtype=np.intp)
    paired = op == "send-recv"
    for index, curve in enumerate(network.curves):
        if curve.op != op:
            continue
        alike = across == (curve.domains > 1.0)
        if paired:
            far = group * 0.0 + abs(np.log2(curve.group / 2.0))
        else:
            alike = alike & (~across | (inside == curve.inside))
            larger = np.where(group < curve.group, 1.0, 0.0)  # a smaller measured group before a larger one
            far = np.abs(np.log2(np.maximum(group, 1.0) / curve.group)) + 2.0 * larger
        nearer = alike & (far < best) & (group > 1.0)
        best = np.where(nearer, far, best)
        found = np.where(nearer, index, found)
    return found.astype(np.intp), np.asarray((best == 0.0) | (paired & (found >= 0)))


def _ends(curve: Curve, log_bytes: Array) -> tuple[Array, Array, Array]:
    """Fast end, slow end and half-width of the bar of a call in the curve's own group [log s]."""
    x, y = curve.log_bytes, curve.log_s
    likely, error = np.interp(log_bytes, x, y), np.interp(log_bytes, x, curve.error)
    above, below = np.maximum(log_bytes - x[-1], 0.0), np.maximum(x[0] - log_bytes, 0.0)
    marginal = 1.0  # seconds a byte beyond the last size, over those up to it
    if len(x) > 1:
        marginal = float(np.expm1(y[-1] - y[-2]) / np.expm1(x[-1] - x[-2]) * np.exp(x[-1] - x[-2] - y[-1] + y[-2]))
    marginal = min(max(marginal, 0.0), 1.0)
    fast = np.where(above > 0.0, y[-1] + np.log1p(marginal * np.expm1(above)), likely - below)
    slow = np.where(above > 0.0, y[-1] + above, likely)
    return fast, slow, np.minimum(error + BEYOND / np.log(2.0) * (above + below), WIDEST)


def measured_time(
    op: str, message_bytes: Array, place: Placement, network: Network, model_s: Array, modelled: Modelled
) -> Measured:
    """Durations from curves where they reach, else as modelled.

    Args:
        op [name, scalar]: one of ``cost.algorithms.OPS``.
        message_bytes [bytes, (n,)]: the message, as ``collective`` counts it.
        place [ranks, (n,)]: where the groups lie.
        network [tiers, (1,)]: the network with its curves; ``edge`` chooses the end of their bars.
        model_s [s, (n,)]: what tiers and library say.
        modelled [s, (n,)]: the same for other messages and places.

    Returns:
        Times, curves, and which are extrapolated [s, (n,)].

    Raises:
        nothing.

    References:
        [NcclTests] bus bandwidth; [Nccl] latency of a step; docs/explanation/calibration.md.
    """
    index, own = chosen_curves(op, place, network)
    time_s, beyond = model_s, np.zeros(model_s.shape, dtype=bool)
    volume, passes = VOLUME[op]
    log_bytes = np.log(np.maximum(message_bytes, 1.0))
    for number in np.unique(index[index >= 0]).tolist():
        curve, mine = network.curves[number], index == number
        scale = volume(place.group) / volume(np.asarray(curve.group))
        # the same bus bandwidth in another group: a message of which a rank sends as much
        like = np.where(own, log_bytes, log_bytes + np.log(np.maximum(scale, LEAST_S)))
        fast, slow, bar = _ends(curve, like)
        inside_sizes = np.clip(like, curve.log_bytes[0], curve.log_bytes[-1])
        outside = mine & (np.abs(inside_sizes - like) > SAME_SIZE)
        if curve.domains == 2.0 and op == "all-reduce":
            slow = np.where(own | (place.domains <= 2.0), slow, slow + np.log(TWO_DOMAINS))
        more = place.group / curve.group
        hops = passes * (place.group - curve.group) * HOP_S[int(curve.domains > 1.0)]
        slower = np.minimum(np.log(np.exp(slow) + np.maximum(hops, 0.0)), slow + np.log(np.maximum(more, 1.0)))
        faster = np.maximum(
            np.log(np.maximum(np.exp(fast) + np.minimum(hops, 0.0), LEAST_S)), fast + np.log(np.minimum(more, 1.0))
        )
        fast, slow = np.where(own, fast, faster), np.where(own, slow, slower)
        middle = fast
        if np.any(mine & (~own | outside)):  # what the model says of the difference, within the bracket
            there = np.exp(inside_sizes)
            known = modelled(there, curve_placement(curve, like, len(network.tiers)))
            ratio = np.log(model_s) - np.log(known)
            middle = np.clip(np.interp(inside_sizes, curve.log_bytes, curve.log_s) + ratio, fast, slow)
        seconds = np.exp(middle if network.edge == 0.0 else slow + bar if network.edge > 0.0 else fast - bar)
        idle = curve.shared < 1.0
        if idle:  # others of the node were silent: no faster than a share of the tier allows
            seconds = np.maximum(seconds, model_s)
        time_s = np.where(mine, seconds, time_s)
        beyond = beyond | (mine & (outside | ~own | idle))
    return Measured(time_s, index, np.asarray(beyond))


def curve_placement(curve: Curve, like: Array, tiers: int) -> Placement:
    """Where the group of a curve lies.

    Args:
        curve [ranks, (1,)]: the curve.
        like [-, (n,)]: any column, for its shape.
        tiers [tiers, scalar]: levels of the network.

    Returns:
        The placement [ranks, (n,)].

    Raises:
        ValueError: the curve was lowered for another number of tiers.

    References:
        [Definition].
    """
    zero = 0.0 * like
    return placement(curve.group + zero, curve.members[:, None] + zero, curve.spread[:, None] + zero, tiers)
