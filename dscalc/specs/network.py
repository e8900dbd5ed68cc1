"""From profiles to the network record: tiers of a cluster or of a node composed by hand, and the library on it."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from importlib.resources import files
from typing import Any

import numpy as np

from dscalc.codes import LIBRARY_ALGORITHMS, LINKS, PROTOCOLS
from dscalc.errors import InputError, UnitError
from dscalc.frozen import dataclass
from dscalc.records import Array, Network, Protocols, Tier
from dscalc.specs import store
from dscalc.specs.cluster import ClusterSpec
from dscalc.specs.hardware import GpuSpec
from dscalc.specs.links import InterconnectSpec, TierSpec
from dscalc.specs.measured import NORMAL_80, CurveSpec, lower_curves
from dscalc.specs.quantity import Quantity
from dscalc.specs.scale_up import scale_up_of
from dscalc.units import format_rate, parse_bandwidth, to_base, unit_dimension

_LAST = -1  # the outermost tier; the protocol of large messages


@dataclass(frozen=True, slots=True)
class Note:
    """One number that went into a network, as answers list it: ``kind`` is that of the profile record."""

    name: str
    value: float
    unit: str
    kind: str
    source: str


@dataclass(frozen=True, slots=True, eq=False)
class Lowered:
    """A network record and what it rests on, number by number; those of kind ``assumed`` are to be starred."""

    network: Network
    notes: tuple[Note, ...]


# -------------------------------------------------------------------------------------------------- library constants
@lru_cache(maxsize=1)
def _tables() -> dict[str, Any]:
    return tomllib.loads((files("dscalc.specs") / "nccl.toml").read_text(encoding="utf-8"))


def _value(record: Mapping[str, Any]) -> Any:
    """The number, or list of numbers, of a record in base units."""
    value, unit = record["value"], record["unit"]
    dimension = unit_dimension(unit)
    if isinstance(value, list):
        return [to_base(float(item), unit, dimension) for item in value]
    return to_base(float(value), unit, dimension)


def _grid(table: Mapping[str, Any]) -> Array:
    return np.array([_value(table[name]) for name in LIBRARY_ALGORITHMS])


@lru_cache(maxsize=16)
def _nccl(generation: str) -> Protocols:
    table = _tables()["nccl"]
    hop = np.zeros((len(LINKS), len(LIBRARY_ALGORITHMS), len(PROTOCOLS)))
    for code, link in enumerate(LINKS):
        if link in table["hop"]:
            hop[code] = _grid(table["hop"][link])
    ceilings = table["ll_ceiling"]
    ceiling = np.full((len(PROTOCOLS), 3), np.inf)
    ceiling[PROTOCOLS.index("LL")] = [_value(ceilings[key]) for key in (generation, "two_nodes", "more_nodes")]
    correction, more = table["tree_correction"], table["more"]
    old = generation == "Volta"
    base = _grid(table["base"])
    for name, record in table["fill"].items():
        base[LIBRARY_ALGORITHMS.index(name)] += _value(record)
    return Protocols(
        name="nccl",
        base_s=base,
        hop_s=hop,
        bus=_grid(table["bus"]),
        bus_across=_grid(table["bus_across"]),
        ceiling_bytes_per_s=ceiling,
        correction=np.array([_value(correction[protocol]) for protocol in PROTOCOLS]),
        correction_start_bytes=_value(correction["start"]),
        plateau=_value(more["plateau_before_ampere" if old else "plateau"]),
        plateau_bytes=_value(more["plateau_message"]),
        fused=_value(table["fused"]),
        post_s=_value(more["post"]),
        arity_s=_value(more["arity"]),
        algorithms=tuple(table["algorithms"]),
        min_message_bytes=_value(more["min_message"]),
        max_message_bytes=_value(more["max_message"]),
        max_ranks=_value(more["max_ranks"]),
    )


@lru_cache(maxsize=1)
def plain_protocols() -> Protocols:
    """No library: one protocol that takes nothing, textbook steps, so that the closed forms come out.

    Returns:
        The constants.
    """
    table = _tables()["plain"]
    shape = (len(LIBRARY_ALGORITHMS), len(PROTOCOLS))
    used = np.zeros(shape)
    used[:, _LAST] = 1.0
    return Protocols(
        name="plain",
        base_s=np.zeros(shape),
        hop_s=np.zeros((len(LINKS), *shape)),
        bus=used,
        bus_across=used,
        ceiling_bytes_per_s=np.full((len(PROTOCOLS), 3), np.inf),
        correction=np.ones((len(PROTOCOLS), 1)),
        correction_start_bytes=1.0,
        plateau=1.0,
        plateau_bytes=0.0,
        fused=_value(table["fused"]),
        post_s=0.0,
        arity_s=0.0,
        algorithms=tuple(table["algorithms"]),
        min_message_bytes=0.0,
        max_message_bytes=np.inf,
        max_ranks=np.inf,
    )


def protocols_of(gpu: GpuSpec | None, tiers: Sequence[Tier] = ()) -> tuple[Protocols, Note]:
    """The library's constants for a GPU.

    Args:
        gpu: profile of the GPU; None: closed forms.
        tiers: the network's tiers; LL128 runs only where the first is NVLink.

    Returns:
        Constants, and which table they are.
    """
    tables = _tables()
    maker = gpu.vendor if gpu is not None and gpu.vendor in tables["libraries"] else "other"
    entry = tables["libraries"][maker]
    note = Note("library", 0.0, entry["table"], "datasheet" if maker == "NVIDIA" else "assumed", entry["source"])
    algorithms = tuple(entry["algorithms"])
    if entry["table"] == "plain" or gpu is None:
        return replace(plain_protocols(), algorithms=algorithms), note
    found = _nccl(tables["generation"].get(gpu.arch.split()[0], "Ampere"))
    if tiers and int(tiers[0].link[0]) != LINKS.index("nvlink"):
        ll128 = np.array([1.0 if protocol != "LL128" else 0.0 for protocol in PROTOCOLS])
        found = replace(found, bus=found.bus * ll128, bus_across=found.bus_across * ll128)
    return replace(found, algorithms=algorithms), note


# ---------------------------------------------------------------------------------------------------- interconnects
def load_interconnect(name: str, profiles: Sequence[store.PathLike] = ()) -> store.Resolved[InterconnectSpec]:
    """Find an interconnect by name, or make one from a rate such as ``400Gb/s``.

    Args:
        name: id, alias, or the rate of one NIC in one direction [text].
        profiles: the user's profile files or folders, searched first [paths].

    Returns:
        The profile; a rate gives one with the latency and efficiency of RDMA over Ethernet, both assumed.

    Raises:
        UnknownNameError: neither a name nor a rate; suggests the nearest.
        InputError: a rate of zero.

    >>> load_interconnect("400Gb/s").spec.bytes_per_s
    50000000000.0
    """
    try:
        rate = parse_bandwidth(name) if any(unit in name for unit in ("/s", "ps")) else None
    except UnitError:
        rate = None
    if rate is None:
        return store.load_interconnect(name, profiles)
    if rate <= 0.0:
        raise InputError("is a rate of zero; give e.g. 400Gb/s or a name of `dscalc list`", where="--interconnect")
    found = store.load_interconnect("roce-400g")
    like = found.spec

    def taken(record: Quantity) -> Quantity:
        return record.model_copy(update={"kind": "assumed", "source": f"as {like.id}, for a rate given by hand"})

    spec = like.model_copy(
        update={
            "id": format_rate(rate),
            "family": "rate",
            "aliases": (),
            "bandwidth": Quantity(value=rate, unit="B/s", kind="assumed", source="given by hand"),
            "latency": taken(like.latency),
            "efficiency": taken(like.efficiency),
        }
    )
    return store.Resolved(spec, "a rate by hand; latency and efficiency as RDMA over Ethernet", found.file)


# ------------------------------------------------------------------------------------------------------------ tiers
def _one(value: float) -> Array:
    return np.array([value], dtype=np.float64)


def _tier(spec: TierSpec, link: InterconnectSpec) -> tuple[Tier, list[Note]]:
    peer = spec.peer_bandwidth or link.peer_bandwidth
    latency, efficiency = spec.latency or link.latency, spec.efficiency or link.efficiency
    reduction = spec.reduction
    tier = Tier(
        name=spec.name,
        gpus=_one(np.inf if spec.gpus is None else spec.gpus.base),
        bandwidth_bytes_per_s=_one(spec.bandwidth.base),
        latency_s=_one(latency.base),
        efficiency=_one(efficiency.base),
        oversubscription=_one(spec.oversubscription_factor),
        peer_bytes_per_s=_one(np.inf if peer is None else peer.base),
        reduction_efficiency=_one(np.nan if reduction is None else reduction.efficiency.base),
        reduces=_one(float(reduction is not None and reduction.by_itself)),
        link=np.array([LINKS.index(link.link)], dtype=np.intp),
        error=NORMAL_80 * (efficiency.base_stderr or 0.0) / efficiency.base if spec.efficiency is not None else 0.0,
    )
    records = dict(spec.records())
    records |= {"latency": latency, "efficiency": efficiency} | ({"peer_bandwidth": peer} if peer else {})
    base = {"bandwidth": "bytes/s", "peer_bandwidth": "bytes/s", "latency": "s"}
    notes = [
        Note(f"{spec.name}/{field}", record.base, base.get(field, ""), record.kind, record.source)
        for field, record in records.items()
    ]
    return tier, notes


def _network(name: str, gpu: GpuSpec, pairs: Sequence[tuple[TierSpec, InterconnectSpec]]) -> Lowered:
    tiers, notes = [], []
    for spec, link in pairs:
        tier, more = _tier(spec, link)
        tiers.append(tier)
        notes += more
    if len(tiers) == 1:  # every GPU is a node of its own
        tiers.insert(0, replace(tiers[0], name="GPU", gpus=_one(1.0), reduction_efficiency=_one(np.nan)))
    protocols, library = protocols_of(gpu, tiers)
    return Lowered(Network(name, tuple(tiers), protocols), (*notes, library))


def with_curves(lowered: Lowered, curves: Sequence[CurveSpec], gpus_per_node: int) -> Lowered:
    """A network with what was measured on it.

    Args:
        lowered: the network.
        curves: measured times [profile].
        gpus_per_node: GPUs of one node [count].

    Returns:
        The record, and one more number for each curve: its sizes.
    """
    if not curves:
        return lowered
    network = lowered.network
    found = lower_curves(curves, network.tiers, gpus_per_node)
    notes = [
        Note(
            f"measured/{spec.op}/{spec.ranks}_ranks/{spec.nodes}_nodes",
            float(len(spec.sizes)),
            "sizes",
            spec.kind,
            spec.source,
        )
        for spec in curves
    ]
    return Lowered(replace(network, curves=found), (*lowered.notes, *notes))


def lower_network(cluster: ClusterSpec, profiles: Sequence[store.PathLike] = ()) -> Lowered:
    """The network of a cluster as its profile states it.

    Args:
        cluster: the profile; without ``tiers`` they are made from its flat fields.
        profiles: the user's profile files or folders, searched first [paths].

    Returns:
        The record, and every number with its kind and source.

    Raises:
        UnknownNameError: a tier names an interconnect, or the cluster a GPU, that nothing declares.
        InputError: the profile says nothing of its network.

    >>> rack = lower_network(store.load_cluster("gb200-nvl72").spec).network
    >>> [tier.name for tier in rack.tiers], rack.tiers[0].gpus.tolist()
    (['rack', 'network'], [72.0])
    """
    gpu = store.load_gpu(cluster.gpu, profiles).spec
    if cluster.tiers:
        pairs = [(tier, load_interconnect(tier.interconnect, profiles).spec) for tier in cluster.tiers]
        return with_curves(_network(cluster.id, gpu, pairs), cluster.collectives, cluster.gpus_in_node)
    share = cluster.scaleout_bytes_per_s
    if share is None:
        raise InputError(
            f"{cluster.id} says nothing of its network; add tiers to its profile, or give --interconnect",
            where="--cluster",
        )
    rate = f"{share!r}B/s"
    made = compose_network(
        gpu, cluster.gpus_in_node, load_interconnect(rate).spec, nics_per_node=cluster.gpus_in_node, profiles=profiles
    )
    return with_curves(made, cluster.collectives, cluster.gpus_in_node)


def compose_network(
    gpu: GpuSpec,
    gpus_per_node: int | None,
    interconnect: InterconnectSpec,
    *,
    nics_per_node: int | None = None,
    cluster: ClusterSpec | None = None,
    profiles: Sequence[store.PathLike] = (),
) -> Lowered:
    """A network by hand: nodes of one GPU kind, joined by an interconnect.

    Args:
        gpu: profile of the GPU.
        gpus_per_node: GPUs of one node [count]; None: the usual host of the GPU, else one.
        interconnect: between nodes; a scale-up interconnect is refused.
        nics_per_node: NICs of one node [count]; None: those of ``cluster``, else one for each GPU (assumed).
        cluster: the cluster whose inner tiers and NIC count to keep.
        profiles: the user's profile files or folders, searched first [paths].

    Returns:
        The record, and every number with its kind and source.

    Raises:
        InputError: an interconnect that does not leave the node.
    """
    if interconnect.scope != "scale-out":
        raise InputError(
            f"{interconnect.id} joins the GPUs of one node; give what joins the nodes, e.g. ib-ndr or 400Gb/s",
            where="--interconnect",
        )
    usual = int(gpu.gpus_per_node.base) if gpu.gpus_per_node is not None else 1
    count = gpus_per_node or (cluster.gpus_in_node if cluster is not None else usual)
    inner: list[tuple[TierSpec, InterconnectSpec]] = []
    if cluster is not None and cluster.tiers and count == cluster.gpus_in_node:
        inner = [(t, store.load_interconnect(t.interconnect, profiles).spec) for t in cluster.tiers[:_LAST]]
    elif count > 1:
        inner = [inner_tier(gpu, count, profiles)]
    stated = cluster.nics_per_node if cluster is not None else None
    nics = nics_per_node or (int(stated.base) if stated is not None else count)
    known = nics_per_node is not None or stated is not None
    share = interconnect.bytes_per_s * nics / count
    why = f"{interconnect.id}, {nics} NICs for {count} GPUs" if known else f"{interconnect.id}, one NIC for each GPU"
    kind = interconnect.bandwidth.kind if known else "assumed"
    outer = TierSpec(
        name="network",
        interconnect=interconnect.id,
        bandwidth=Quantity(value=share, unit="B/s", kind=kind, source=why),
        oversubscription=Quantity(value=1, unit="count", kind="assumed", source="full bisection taken for granted"),
        reduction=interconnect.reduction,
    )
    return _network(f"{gpu.id} x{count}, {interconnect.id}", gpu, [*inner, (outer, interconnect)])


def inner_tier(gpu: GpuSpec, count: int, profiles: Sequence[store.PathLike]) -> tuple[TierSpec, InterconnectSpec]:
    """The tier inside a node that nobody described: the GPU's scale-up link, else PCIe.

    Args:
        gpu: profile of the GPU.
        count: GPUs of one node [count].
        profiles: the user's profile files or folders [paths].

    Returns:
        The tier, and its interconnect.
    """
    link = scale_up_of(gpu, profiles)
    bridged = link is not None and "bridge" in (link.id + (gpu.scaleup_link or "")) and count > 2
    if link is None or bridged:
        generation = gpu.pcie_generation or 4
        link = store.load_interconnect(f"pcie{min(max(generation, 3), 6)}", profiles).spec
    own = f", as {gpu.id} states" if link.bytes_per_s == gpu.scaleup_bytes_per_s else ""
    record = link.bandwidth.model_copy(
        update={"kind": "assumed", "source": f"{link.id} inside a node composed by hand{own}"}
    )
    size = Quantity(value=count, unit="count", kind="assumed", source="the node, composed by hand")
    tier = TierSpec(
        name="node",
        gpus=size,
        interconnect=link.id,
        bandwidth=record,
        peer_bandwidth=link.peer_bandwidth,
        reduction=link.reduction,
    )
    return tier, link


def plain_network(bandwidth_bytes_per_s: float, latency_s: float = 0.0) -> Network:
    """One tier given by two numbers: the closed forms.

    Args:
        bandwidth_bytes_per_s: of one GPU, one direction, as a collective sustains it [bytes/s].
        latency_s: of one step [s].

    Returns:
        The record; whatever the group, it lies in one tier.
    """
    tier = Tier(
        name="network",
        gpus=_one(np.inf),
        bandwidth_bytes_per_s=_one(bandwidth_bytes_per_s),
        latency_s=_one(latency_s),
        efficiency=_one(1.0),
        oversubscription=_one(1.0),
        peer_bytes_per_s=_one(np.inf),
        reduction_efficiency=_one(np.nan),
        reduces=_one(0.0),
        link=np.array([LINKS.index("plain")], dtype=np.intp),
    )
    return Network("by hand", (tier,), plain_protocols())
