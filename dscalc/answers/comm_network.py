"""The network of a job as options and profiles say it: a cluster's tiers, a node composed by hand, or two numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import isfinite
from typing import Any

from dscalc.answers.case import Case
from dscalc.answers.envelope import Assumption
from dscalc.answers.rates import as_read
from dscalc.errors import InputError
from dscalc.specs.cluster import ClusterSpec
from dscalc.specs.network import (
    Lowered,
    Note,
    compose_network,
    load_interconnect,
    lower_network,
    plain_network,
    with_curves,
)

MEASURE = "measure with nccl-tests: all_reduce_perf -b 8 -e 8G -f 2 on these GPUs"
ANY_NETWORK = "ib-ndr"  # between nodes that the job never leaves


def network_of(given: Mapping[str, Any], case: Case) -> Lowered:
    """The network that the options name.

    Args:
        given: parsed options; reads ``bandwidth``, ``latency``, ``interconnect``, ``gpus_per_node`` and ``profile``.
        case: hardware and layout.

    Returns:
        The record, and every number with its kind and source.

    Raises:
        InputError: nothing says how fast GPUs are joined, or options that contradict each other.
        UnknownNameError: no such interconnect.
    """
    gpu, cluster, gpus = case.machine.gpu, case.machine.cluster, case.layout.spec.gpus
    if "bandwidth" in given:
        if "interconnect" in given:
            raise InputError("stands for the whole network; leave out --interconnect, or this", where="--bandwidth")
        if not given["bandwidth"]:
            raise InputError("0 is out of range; a rate above 0 is right, e.g. 50GB/s", where="--bandwidth")
        if "cluster" in given:
            raise InputError("stands for the whole network, as --cluster does; leave one out", where="--bandwidth")
        return Lowered(plain_network(given["bandwidth"], given.get("latency", 0.0)), tuple(_by_hand(given)))
    if "latency" in given:
        raise InputError(
            "belongs to a network of one tier, given by two numbers; add --bandwidth 50GB/s", where="--latency"
        )
    profiles = (given["profile"],) if "profile" in given else ()
    if "cluster" in given and cluster is not None and "interconnect" not in given and not _as_it_is(given, cluster):
        raise InputError(
            f"{cluster.id} has nodes of {cluster.gpus_in_node} GPUs; leave this out, or compose nodes with --gpu "
            f"{cluster.gpu}, --gpus-per-node and --interconnect",
            where="--gpus-per-node",
        )
    named = load_interconnect(given["interconnect"], profiles).spec if "interconnect" in given else None
    known = cluster is not None and (cluster.tiers or cluster.scaleout_bytes_per_s)
    if cluster is not None and known and named is None and _as_it_is(given, cluster):
        return lower_network(cluster, profiles)
    if gpu is None:
        if named is None and gpus == 1:
            return Lowered(plain_network(1.0), ())
        words = "says nothing of how GPUs are joined; add --cluster ID, or --gpu with --interconnect ib-ndr"
        raise InputError(f"{words}, or --bandwidth 50GB/s", where="--gpu" if named is not None else "--cluster")
    if cluster is not None and named is None and cluster.tiers:
        named = load_interconnect(cluster.tiers[-1].interconnect, profiles).spec
    usual = cluster.gpus_per_node if cluster is not None else gpu.gpus_per_node
    inside = given.get("gpus_per_node") or (int(usual.base) if usual is not None else None)
    if named is None:
        if gpus > (inside or 1):
            what = f"{gpus} GPUs leave nodes of {inside}, and nothing says how nodes are joined; add"
            if inside is None:
                what = f"nothing says how {gpus} GPUs share nodes or how nodes are joined; add --gpus-per-node 8 and"
            raise InputError(f"{what} --interconnect ib-ndr or 400Gb/s, or --bandwidth", where="--interconnect")
        named = load_interconnect(ANY_NETWORK, profiles).spec
        inner = compose_network(gpu, inside, named, profiles=profiles)
        alone = replace(inner.network, name=f"{gpu.id} x{inside}" if inside else gpu.id)
        found = Lowered(alone, tuple(note for note in inner.notes if not note.name.startswith("network/")))
    else:
        found = compose_network(gpu, given.get("gpus_per_node"), named, cluster=cluster, profiles=profiles)
    if cluster is None or not _as_it_is(given, cluster):
        return found
    inner_curves = [curve for curve in cluster.collectives if curve.nodes == 1]  # the rest ran on another network
    return with_curves(found, inner_curves, cluster.gpus_in_node)


def _by_hand(given: Mapping[str, Any]) -> Iterator[Note]:
    """What two numbers leave open."""
    if words := as_read(given["bandwidth"]):
        yield Note("network/bandwidth", given["bandwidth"], "bytes/s", "assumed", f"--bandwidth {words}")
    if "latency" not in given:
        yield Note("network/latency", 0.0, "s", "default", "no --latency given, so calls cost nothing but their bytes")


def _as_it_is(given: Mapping[str, Any], cluster: ClusterSpec) -> bool:
    return bool(given.get("gpus_per_node", cluster.gpus_in_node) == cluster.gpus_in_node)


def network_assumptions(lowered: Lowered) -> list[Assumption]:
    """Every number that went into a network; those that nobody measured say how to."""
    found = []
    for note in lowered.notes:
        name, source = f"network.{note.name.replace('/', '.')}", note.source
        if note.name == "library":
            found.append(Assumption(name, note.unit, "", note.kind, source))
            continue
        source += "; measure with nccl-tests" if note.kind == "assumed" else ""
        found.append(Assumption(name, note.value, note.unit, note.kind, source))
    return found


def tiers_of(found: Lowered) -> list[dict[str, Any]]:
    """The tiers as JSON objects, inner first."""
    return [
        {
            "name": tier.name,
            "gpus": float(tier.gpus[0]) if isfinite(float(tier.gpus[0])) else None,
            "bandwidth_bytes_per_s": float(tier.bandwidth_bytes_per_s[0]),
            "latency_s": float(tier.latency_s[0]),
            "efficiency": float(tier.efficiency[0]),
            "oversubscription": float(tier.oversubscription[0]),
        }
        for tier in found.network.tiers
    ]
