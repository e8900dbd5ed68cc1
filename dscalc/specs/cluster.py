"""Cluster profiles: frozen models of nodes of one kind and the networks between them, and what was measured there.

A file of its own, so that a question about GPUs alone loads none of it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal

from dscalc.specs.checked import Limit
from dscalc.specs.hardware import GpuSpec, lower_node
from dscalc.specs.links import TierSpec
from dscalc.specs.measured import CurveSpec, Sustained
from dscalc.specs.quantity import (
    Alias,
    Bandwidth,
    Bytes,
    Count,
    Name,
    PricePerHour,
    Profile,
    Text,
    Time,
    base_of,
)

if TYPE_CHECKING:
    from dscalc.records import Hardware

_DISAGREE = 0.02  # two statements of one rate may differ by rounding, not by more


class BusBandwidth(Profile):
    """A published bus bandwidth of a collective, in the convention of nccl-tests."""

    op: Name = "all-reduce"
    algorithm: Name | None = None
    nodes: Annotated[int, Limit(ge=1, strict=True)] | None = None
    gpus: Annotated[int, Limit(ge=1, strict=True)] | None = None
    message: Bytes | None = None
    pass_limit: bool = False  # an operator's acceptance threshold: healthy hardware reads higher
    busbw: Bandwidth
    conditions: Text | None = None

    @property
    def busbw_bytes_per_s(self) -> float:
        """Bus bandwidth [bytes/s]."""
        return self.busbw.base


class SmallMessage(Profile):
    """A published time of a collective on a message too small for bandwidth to matter."""

    op: Name = "all-reduce"
    message: Bytes
    nodes: Annotated[int, Limit(ge=1, strict=True)] | None = None
    gpus: Annotated[int, Limit(ge=1, strict=True)] | None = None
    latency: Time
    conditions: Text | None = None

    @property
    def latency_s(self) -> float:
        """Time of one call [s]."""
        return self.latency.base


class Price(Profile):
    """A list price; prices age, so each has a date as exact as its source gives."""

    per_hour: PricePerHour
    per: Literal["node", "GPU", "chip"]
    date: Annotated[str, Limit(pattern=r"^\d{4}(-\d{2}){0,2}$")] | None = None
    terms: Text | None = None

    @property
    def usd_per_hour(self) -> float:
        """Price of one node, GPU or chip [USD/h]."""
        return self.per_hour.base


class ClusterSpec(Profile):
    """Nodes of one kind and the networks between them."""

    profile: Literal["cluster"]
    id: Name
    provider: Name
    gpu: Name  # id of a GPU profile
    aliases: tuple[Alias, ...] = ()
    gpus_per_node: Count
    nics_per_node: Count | None = None
    nic_bandwidth: Bandwidth | None = None  # one NIC
    node_scaleout_bandwidth: Bandwidth | None = None  # all NICs of a node, one direction
    scaleout_bandwidth: Bandwidth | None = None  # share of one GPU, one direction
    network: Text | None = None
    intra_link: Text | None = None
    intra_bandwidth: Bandwidth | None = None  # of one GPU, one direction
    scaleup_domain_gpus: Count | None = None  # GPUs joined by the scale-up link; may span nodes
    tiers: tuple[TierSpec, ...] = ()  # of the network, inner first; the last joins all nodes
    faults: tuple[Name, ...] = ()  # known faults that this cluster has: predictions for it contain them, see pace.toml
    rails: Annotated[int, Limit(ge=1, strict=True)] | None = None  # separate planes: NIC i of every node on leaf i
    host_memory: Bytes | None = None
    busbw: tuple[BusBandwidth, ...] = ()
    small_messages: tuple[SmallMessage, ...] = ()
    collectives: tuple[CurveSpec, ...] = ()  # measured here: predictions take them where they reach
    sustained: Sustained = Sustained.trusted({})
    prices: tuple[Price, ...] = ()
    topology: Text | None = None
    source: Text | None = None
    checked: Text | None = None
    notes: tuple[Text, ...] = ()

    def consistent(self) -> None:
        """Rates agree, and tiers nest."""
        self._rates_agree()
        self._tiers_nest()
        keys = [(curve.op, curve.ranks, curve.nodes, curve.groups) for curve in self.collectives]
        twice = next((key for key in keys if keys.count(key) > 1), None)
        if twice is not None:
            raise ValueError(f"collectives: {twice[0]} of {twice[1]} ranks on {twice[2]} nodes stands twice; keep one")

    def _rates_agree(self) -> None:
        """A rate per GPU written where a rate per node belongs (or bits for bytes) is off by a factor of 4 or more."""
        node, share, nic = (
            base_of(q) for q in (self.node_scaleout_bandwidth, self.scaleout_bandwidth, self.nic_bandwidth)
        )
        if node and share and abs(share * self.gpus_in_node / node - 1) > _DISAGREE:
            raise ValueError("scaleout_bandwidth (of one GPU) times gpus_per_node is not node_scaleout_bandwidth")
        if node and nic and self.nics_per_node and abs(nic * self.nics_per_node.base / node - 1) > _DISAGREE:
            raise ValueError("nic_bandwidth times nics_per_node is not node_scaleout_bandwidth")

    def _tiers_nest(self) -> None:
        """Each tier joins whole domains of the one below, the last joins all; rates agree with the flat fields."""
        sizes = [tier.gpus_in_domain for tier in self.tiers]
        if self.tiers and (sizes[-1] is not None or None in sizes[:-1]):
            raise ValueError("tiers: each but the last has gpus, the last (between all nodes) has none")
        inner = [size for size in sizes if size is not None]
        for small, large in pairwise(inner):
            if large <= small or large % small:
                raise ValueError(f"tiers: {large} GPUs do not join whole domains of {small}")
        named = self.gpus_in_scaleup_domain
        if inner and named is not None and named > 1 and inner[0] != named and self.tiers[0].usable_of is None:
            raise ValueError(f"tiers: the first joins {inner[0]} GPUs, scaleup_domain_gpus says {named}")
        for tier, flat, name in (
            (self.tiers[-1:], self.scaleout_bandwidth, "scaleout_bandwidth"),
            (self.tiers[:1] if named and named > 1 else (), self.intra_bandwidth, "intra_bandwidth"),
        ):
            if tier and flat and abs(tier[0].bandwidth.base / flat.base - 1) > _DISAGREE and tier[0].usable_of is None:
                if name == "intra_bandwidth" and len(self.tiers) > 2:
                    continue  # a bridge below the node's own link
                raise ValueError(f"tiers: bandwidth of {tier[0].name} is not {name}")

    @property
    def gpus_in_node(self) -> int:
        """GPUs of one node [count]."""
        return int(self.gpus_per_node.base)

    @property
    def gpus_in_scaleup_domain(self) -> int | None:
        """GPUs that the scale-up link joins [count]; None where unknown."""
        return None if self.scaleup_domain_gpus is None else int(self.scaleup_domain_gpus.base)

    @property
    def nic_bytes_per_s(self) -> float | None:
        """One NIC, one direction [bytes/s]."""
        return base_of(self.nic_bandwidth)

    @property
    def node_scaleout_bytes_per_s(self) -> float | None:
        """All NICs of a node, one direction [bytes/s]."""
        return base_of(self.node_scaleout_bandwidth)

    @property
    def scaleout_bytes_per_s(self) -> float | None:
        """One GPU's share of its node's NICs, one direction [bytes/s]."""
        return base_of(self.scaleout_bandwidth)

    @property
    def intra_bytes_per_s(self) -> float | None:
        """One GPU's links inside the scale-up domain, one direction [bytes/s]."""
        return base_of(self.intra_bandwidth)

    @property
    def host_bytes(self) -> float | None:
        """Memory of one host [bytes]."""
        return base_of(self.host_memory)

    def usd_per_gpu_hour(self, price: Price) -> float:
        """Turn a price into one of a single GPU.

        Args:
            price: one of ``prices`` [USD/h per node, GPU or chip].

        Returns:
            Price of one GPU [USD/h].
        """
        return price.usd_per_hour / (self.gpus_in_node if price.per == "node" else 1)

    def lower(self, gpu: GpuSpec, *, host_bytes: float | None = None) -> Hardware:
        """The record that formulas read, for this cluster's nodes.

        Args:
            gpu: profile of the cluster's GPU [profile].
            host_bytes: memory of one host [bytes]; default: the profile's.

        Returns:
            Arrays of shape (1,), nan where unknown.
        """
        host = self.host_bytes if host_bytes is None else host_bytes
        return lower_node(gpu.usable_bytes, self.gpus_in_node, host)
