"""Times of collectives as they were measured on the cluster itself, where a profile has them.

In its own group and between its smallest and largest message a curve is interpolated, log-log. Elsewhere its time is a
bracket, and the model of tiers and library decides where inside it. Other members: at the fast end the bus bandwidth
stays, at the slow end each further step of a ring costs a hop more. Other sizes: at the fast end only bytes cost, at
the slow end everything costs in proportion.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dscalc.cost.algorithms import Placement
from dscalc.frozen import dataclass
from dscalc.records import Array, Curve, Mask, Network

HOP_S = (4e-6, 10e-6)  # of a further step of a ring at the slow end: inside a domain, across domains
BEYOND = 0.10  # half-width that a bar gains with each doubling of the size outside the measured ones
WIDEST = 0.7  # of a bar outside the measured sizes, in the logarithm: a factor of two
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


def _between(curve: Curve, log_bytes: Array, model_s: Array) -> tuple[Array, Array, Array]:
    """Fast end, most likely and slow end of a call in the curve's own group [log s]."""
    x, y = curve.log_bytes, curve.log_s
    likely, error = np.interp(log_bytes, x, y), np.interp(log_bytes, x, curve.error)
    above, below = np.maximum(log_bytes - x[-1], 0.0), np.maximum(x[0] - log_bytes, 0.0)
    if len(x) > 1:  # seconds a byte of the last two sizes, no more than on average
        step = np.exp(y[-1]) - np.exp(y[-2])
        marginal = np.clip(step / (np.exp(x[-1]) - np.exp(x[-2])), 0.0, np.exp(y[-1] - x[-1]))
        grown = np.log(
            np.exp(y[-1]) + marginal * (np.exp(log_bytes) - np.exp(x[-1])), where=above > 0.0, out=y[-1] + above
        )
    else:
        grown = y[-1] + above
    fast = np.where(above > 0.0, grown, likely - below)
    slow = np.where(above > 0.0, y[-1] + above, likely)
    middle = np.clip(np.log(model_s), fast, slow)
    wider = np.minimum(error + BEYOND / np.log(2.0) * (above + below), WIDEST)
    return fast - wider, middle, slow + wider


def measured_time(op: str, message_bytes: Array, place: Placement, network: Network, model_s: Array) -> Measured:
    """Durations from curves where they reach, else as modelled.

    Args:
        op [name, scalar]: one of ``cost.algorithms.OPS``.
        message_bytes [bytes, (n,)]: the message, as ``collective`` counts it.
        place [ranks, (n,)]: where the groups lie.
        network [tiers, (1,)]: the network with its curves; ``edge`` chooses the end of their bars.
        model_s [s, (n,)]: what tiers and library say.

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
        # the same bus bandwidth in another group: a message that sends as many bytes a rank
        scale = volume(place.group) / volume(np.asarray(curve.group))
        like = np.where(own | (op == "send-recv"), log_bytes, log_bytes + np.log(np.maximum(scale, 1e-9)))
        fast, middle, slow = _between(curve, like, model_s)
        further = passes * (place.group - curve.group) * HOP_S[int(curve.domains > 1.0)]
        further = np.where(own, 0.0, further)
        fast = np.where(
            further < 0.0, np.maximum(fast + np.log(0.5), np.log(np.maximum(np.exp(fast) + further, 1e-9))), fast
        )
        slow = np.log(np.exp(slow) + np.maximum(further, 0.0))
        middle = np.where(own, middle, np.clip(np.log(model_s), fast, slow))
        end = middle if network.edge == 0.0 else slow if network.edge > 0.0 else fast
        seconds = np.exp(end)
        idle = curve.shared < 1.0
        if idle:  # others of the node were silent: no faster than a share of the tier allows
            seconds = np.maximum(seconds, model_s)
        time_s = np.where(mine, seconds, time_s)
        outside = (log_bytes < curve.log_bytes[0] - 1e-9) | (log_bytes > curve.log_bytes[-1] + 1e-9)
        beyond = beyond | (mine & (outside | ~own | idle))
    return Measured(time_s, index, np.asarray(beyond))
