"""Every collective of a layout on a network: where its group lies, bytes, calls, traffic and time."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dscalc.cost.axes import groups
from dscalc.cost.collectives import algorithm_names, collective
from dscalc.cost.geometry import Place, place, place_in_blocks
from dscalc.cost.model_transfers import model_parallel, weight_copies
from dscalc.cost.placement import stage_kinds
from dscalc.cost.rank_parameters import adapter_sums, part_sums, rank_parameters
from dscalc.cost.transfers import Stage, Transfer, busiest, data_parallel
from dscalc.records import Adapters, Array, Layouts, Mask, ModelShape, Network


@dataclass(frozen=True, slots=True, eq=False)
class Collective:
    """One kind of collective of a layout; arrays (n,).

    Attributes:
        transfer: what is sent, by which axis, and the formula behind it.
        inside: members of the worst-placed group inside one domain of the first tier.
        domains: domains of the first tier that the group crosses.
        misaligned: groups straddle domains unevenly.
        traffic_bytes: bytes one GPU sends in a step.
        time_s: all calls of a step, one after the other.
        naive_time_s: the same by gathering to one root and broadcasting, for sums; equal to ``time_s`` elsewhere.
        exposed_s: calls that no compute can hide even when it is long enough.
        algorithm: index into the registry of algorithms, -1 where nothing is sent.
        tier: outermost tier used.
        extrapolated: outside the range behind the constants, or of the curve.
        curve: index into ``Network.curves`` of the measured curve behind the time, -1 where the model says it.
    """

    transfer: Transfer
    inside: Array
    domains: Array
    misaligned: Mask
    traffic_bytes: Array
    time_s: Array
    naive_time_s: Array
    exposed_s: Array
    algorithm: NDArray[np.intp]
    tier: NDArray[np.intp]
    extrapolated: Mask
    curve: NDArray[np.intp]


def communication(
    model: ModelShape,
    layouts: Layouts,
    network: Network,
    adapters: Adapters | None = None,
    gradient_bytes: Array | None = None,
    algorithms: dict[str, str] | None = None,
) -> tuple[Collective, ...]:
    """What one GPU of the busiest stage sends in a step.

    Args:
        model [elements, (1,)]: the model's shape.
        layouts [degrees, (n,)]: the layout columns.
        network [tiers, (1,)]: the network.
        adapters [rank, (1,)]: low-rank adapters on a frozen base, or None.
        gradient_bytes [bytes/element, (n,)]: b_r on the wire; None: as the recipe reduces.
        algorithms [names, (1,)]: an algorithm to force, by operation; None: the fastest that the library considers.

    Returns:
        The collectives, in the order of the axes [bytes and s, (n,)].

    Raises:
        ValueError: no such algorithm for an operation.

    References:
        [Rajbhandari2020] section 7, [Shoeybi2019] section 3, [Korthikanti2022] section 4.2, [Narayanan2021] section 3.
    """
    derived = groups(layouts)
    stage = listed_stage(model, layouts, adapters)
    wire = layouts.books.recipes.reduce[layouts.recipe] if gradient_bytes is None else gradient_bytes
    transfers = data_parallel(model, layouts, derived, stage, wire)
    transfers += model_parallel(model, layouts, stage)
    transfers += weight_copies(model, layouts, derived, stage, wire, adapters)
    return tuple(timed(transfer, derived.gpus, network, (algorithms or {}).get(transfer.op)) for transfer in transfers)


def listed_stage(model: ModelShape, layouts: Layouts, adapters: Adapters | None = None) -> Stage:
    """The stage whose collectives are listed: the one with the most parameters.

    Args:
        model [elements, (1,)]: the model's shape.
        layouts [degrees, (n,)]: the layout columns.
        adapters [rank, (1,)]: low-rank adapters on a frozen base, or None.

    Returns:
        The stage [counts, (n,)].

    Raises:
        nothing.

    References:
        [Definition].
    """
    kinds = stage_kinds(model, layouts)
    whole = rank_parameters(model, part_sums(model), layouts, kinds)
    if adapters is None:
        return busiest(layouts, kinds, whole)
    trained = rank_parameters(model, adapter_sums(model, adapters), layouts, kinds)
    return busiest(layouts, kinds, trained, whole, adapters)


def timed(transfer: Transfer, gpus: Array, network: Network, algorithm: str | None = None) -> Collective:
    """Where a transfer's group lies on a network, and how long its calls take.

    Args:
        transfer [bytes, (n,)]: the transfer.
        gpus [GPUs, (n,)]: GPUs of the job: they fill domains in the order of their ranks, so that a job no larger than
            a domain lies in one whatever its groups.
        network [tiers, (1,)]: the network.
        algorithm [name, (1,)]: the algorithm to force; None: the fastest that the library considers.

    Returns:
        The collective [bytes and s, (n,)].

    Raises:
        ValueError: no such algorithm for the operation.

    References:
        [Narayanan2021] section 3.2; [Nccl].
    """
    zero = transfer.calls * 0.0
    group, stride, line = transfer.group + zero, transfer.stride + zero, transfer.line + zero
    message = transfer.message_bytes + zero
    lies = located(group, stride, line, gpus + zero, network, (transfer.near + zero, transfer.far + zero))
    found = collective(transfer.op, message, group, lies.inside, lies.domains, network, algorithm)
    sent = (group > 1.0) & (transfer.calls > 0.0)
    time_s = found.time_s * transfer.calls
    naive = time_s
    if "naive" in algorithm_names(transfer.op):
        slow = collective(transfer.op, message, group, lies.inside, lies.domains, network, "naive")
        naive = slow.time_s * transfer.calls
    return Collective(
        transfer=transfer,
        inside=lies.inside[0],
        domains=lies.domains[0],
        misaligned=np.asarray(lies.misaligned & sent),
        traffic_bytes=found.traffic_bytes * transfer.calls,
        time_s=time_s,
        naive_time_s=naive,
        exposed_s=found.time_s * transfer.exposed_calls,
        algorithm=np.where(sent, found.algorithm, -1),
        tier=found.tier,
        extrapolated=np.asarray(found.extrapolated & sent),
        curve=np.where(sent, found.curve, -1),
    )


def located(
    group: Array,
    stride: Array,
    line: Array,
    gpus: Array,
    network: Network,
    blocks: tuple[Array, Array] | None = None,
) -> Place:
    """Where groups lie on a network, tier by tier.

    Args:
        group [ranks, (n,)]: members.
        stride [ranks, (n,)]: distance between neighbours.
        line [stages, (n,)]: stages of the pipeline of which the group is two; 0: the group is no part of a line.
        gpus [GPUs, (n,)]: GPUs of the job.
        network [tiers, (1,)]: the network.
        blocks [ranks, (n,)]: members of a block, and the distance of blocks; None: groups have none.

    Returns:
        Members inside and domains crossed [ranks, (tiers - 1, n)], one row where there is one tier.

    Raises:
        nothing.

    References:
        [Narayanan2021] section 3.2.
    """
    paired = np.asarray(line > 1.0)
    length = np.where(paired, line, group)
    domains = [np.where(gpus <= tier.gpus, np.inf, tier.gpus + 0.0 * gpus) for tier in network.tiers[:-1]]
    if blocks is None or np.all(blocks[0] >= length):
        places = [place(length, stride, domain) for domain in domains]
    else:
        places = [place_in_blocks(length, stride, *blocks, domain) for domain in domains]
    if np.any(paired):
        places = [_two_ends(found, group, paired) for found in places]
    if not places:
        return Place(group[None, :], group[None, :] * 0.0 + 1.0, np.zeros(group.shape, dtype=bool))
    misaligned = np.logical_or.reduce([p.misaligned for p in places])
    return Place(np.stack([p.inside for p in places]), np.stack([p.domains for p in places]), np.asarray(misaligned))


def _two_ends(found: Place, group: Array, paired: Mask) -> Place:
    """Two stages of a pipeline: in one domain where the whole pipeline is, else in two."""
    apart = paired & (found.domains > 1.0)
    inside = np.where(apart, 1.0, np.where(paired, group, found.inside))
    return Place(inside, np.where(apart, 2.0, found.domains), np.asarray(found.misaligned & ~paired))
