"""Links and tiers of a network: frozen models of an interconnect and of one level of a cluster.

A bandwidth is one direction: of one GPU with all its links for scale-up interconnects, of one NIC for the others.
"""

from __future__ import annotations

from typing import Annotated, Literal

from dscalc.specs.checked import Limit
from dscalc.specs.quantity import (
    Alias,
    Bandwidth,
    Count,
    Fraction,
    Name,
    Number,
    Profile,
    Quantity,
    Text,
    Time,
    base_of,
)


class Reduction(Profile):
    """Reduction inside the switch (NVLS in a scale-up domain, SHARP in a network).

    ``efficiency`` is the share of the wire rate that the traffic of a reduction reaches. For NVLS that traffic is
    n(1 + 1/K) a GPU; for SHARP it is counted as a ring's, 2(K-1)/K n, the way bus bandwidths are published.
    """

    efficiency: Fraction
    by_itself: bool = True  # the library uses it without being told


class InterconnectSpec(Profile):
    """One kind of link."""

    profile: Literal["interconnect"]
    id: Name
    aliases: tuple[Alias, ...] = ()
    family: Literal[
        "nvlink", "pcie", "xgmi", "infiniband", "ethernet", "efa", "slingshot", "omni-path", "ici", "neuronlink", "rate"
    ]
    scope: Literal["scale-up", "scale-out"]
    per: Literal["GPU", "NIC"]  # what has this bandwidth
    bandwidth: Bandwidth  # one direction
    peer_bandwidth: Bandwidth | None = None  # to one peer of a mesh; absent: a switch gives one peer everything
    latency: Time  # of one step of a large-message ring
    efficiency: Fraction  # share of the bandwidth that rings of the largest messages reach
    reduction: Reduction | None = None  # where a switch of this kind reduces
    gpus: tuple[Name, ...] = ()  # ids of GPU profiles that have this scale-up link
    source: Text | None = None
    notes: tuple[Text, ...] = ()

    @property
    def link(self) -> Literal["nvlink", "pcie", "network"]:
        """Which latencies of a library it takes."""
        if self.scope == "scale-out":
            return "network"
        return "pcie" if self.family == "pcie" else "nvlink"

    @property
    def bytes_per_s(self) -> float:
        """Bandwidth of one GPU (scale-up) or one NIC, one direction [bytes/s]."""
        return self.bandwidth.base


class TierSpec(Profile):
    """One level of a cluster's network; what it does not say is taken from its interconnect."""

    name: Name
    gpus: Count | None = None  # GPUs of one domain; absent in the outermost tier
    interconnect: Name
    bandwidth: Bandwidth  # of one GPU, one direction, when every GPU of the domain sends
    peer_bandwidth: Bandwidth | None = None
    latency: Time | None = None
    efficiency: Fraction | None = None
    oversubscription: Number | None = None  # divides the bandwidth; absent: 1
    reduction: Reduction | None = None  # absent: no reduction in the switch
    usable_of: Annotated[int, Limit(ge=2, strict=True)] | None = (
        None  # GPUs wired, where jobs use only ``gpus`` of them
    )
    notes: tuple[Text, ...] = ()

    def consistent(self) -> None:
        """Ranges that a unit alone does not say."""
        if self.oversubscription is not None and self.oversubscription.base < 1:
            raise ValueError("oversubscription is 1 or more: it divides the bandwidth")
        if self.efficiency is not None and not 0.0 < self.efficiency.base <= 1.0:
            raise ValueError("efficiency: a tier reaches more than 0 and at most 100 % of its bandwidth")
        if self.usable_of is not None and (self.gpus is None or self.usable_of < self.gpus.base):
            raise ValueError("usable_of is the number of GPUs wired, at least gpus")

    @property
    def gpus_in_domain(self) -> int | None:
        """GPUs of one domain [count]; None in the outermost tier."""
        return None if self.gpus is None else int(self.gpus.base)

    @property
    def oversubscription_factor(self) -> float:
        """What divides the bandwidth [1]."""
        return base_of(self.oversubscription) or 1.0

    def records(self) -> tuple[tuple[str, Quantity], ...]:
        """Every number the tier states, by field name."""
        named = {"bandwidth": self.bandwidth, "latency": self.latency, "efficiency": self.efficiency}
        named |= {"peer_bandwidth": self.peer_bandwidth, "oversubscription": self.oversubscription}
        if self.reduction is not None:
            named["reduction_efficiency"] = self.reduction.efficiency
        return tuple((field, record) for field, record in named.items() if record is not None)
