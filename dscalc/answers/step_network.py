"""The network of a job for ``dscalc step``: a cluster's, a node composed by hand, or two numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dscalc.answers.case import Case
from dscalc.errors import InputError
from dscalc.specs.network import Lowered, compose_network, load_interconnect, lower_network, plain_network

ANY_NETWORK = "ib-ndr"  # between nodes that the job never leaves


def network_of(given: Mapping[str, Any], case: Case) -> Lowered:
    """The network that the options name.

    Args:
        given: parsed options.
        case: hardware and layout.

    Raises:
        InputError: nothing says how the nodes of the job are joined.
    """
    gpu, cluster, gpus = case.machine.gpu, case.machine.cluster, case.layout.spec.gpus
    if given.get("bandwidth"):
        return Lowered(plain_network(given["bandwidth"], given.get("latency", 0.0)), ())
    profiles = (given["profile"],) if "profile" in given else ()
    named = load_interconnect(given["interconnect"], profiles).spec if "interconnect" in given else None
    if cluster is not None and named is None:
        return lower_network(cluster, profiles)
    if gpu is None:
        raise InputError("nothing says which GPUs are joined; add --gpu or --cluster", where="--gpu")
    inside = given.get("gpus_per_node") or (int(gpu.gpus_per_node.base) if gpu.gpus_per_node is not None else 1)
    if named is None:
        if gpus > inside:
            raise InputError(
                f"{gpus} GPUs leave nodes of {inside}, and nothing says how nodes are joined; add --interconnect "
                "ib-ndr or 400Gb/s, or name a --cluster",
                where="--interconnect",
            )
        found = compose_network(gpu, inside, load_interconnect(ANY_NETWORK, profiles).spec, profiles=profiles)
        return Lowered(found.network, tuple(n for n in found.notes if not n.name.startswith("network/")))
    return compose_network(gpu, inside, named, cluster=cluster, profiles=profiles)
