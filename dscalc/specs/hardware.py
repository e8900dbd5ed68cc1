"""Hardware profiles: frozen models of one GPU or one cluster, each number with its unit, kind and source.

A profile keeps the number as its source prints it (81559 MiB, 400 Gb/s); properties give base units, converted by
:mod:`dscalc.units`. Links are per GPU and one direction; compute rates are dense and per device the framework sees,
unless ``counted_as`` says what else one "GPU" of the profile is.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Literal

from dscalc.errors import InputError
from dscalc.specs.checked import Limit
from dscalc.specs.links import TierSpec
from dscalc.specs.measured import CurveSpec, Sustained
from dscalc.specs.quantity import (
    Alias,
    Bandwidth,
    Bytes,
    Count,
    FlopRate,
    Name,
    Power,
    PricePerHour,
    Profile,
    Quantity,
    Text,
    Time,
    base_of,
)
from dscalc.units import TIB

if TYPE_CHECKING:
    from dscalc.records import Hardware

DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")
_LARGEST_MEMORY = 10 * TIB
_DISAGREE = 0.02  # two statements of one rate may differ by rounding, not by more


class Rates(Profile):
    """A compute rate for each data type the part has."""

    fp32: FlopRate | None = None
    tf32: FlopRate | None = None
    fp16: FlopRate | None = None
    bf16: FlopRate | None = None
    fp8: FlopRate | None = None
    fp4: FlopRate | None = None

    def of(self, dtype: str) -> Quantity | None:
        """The record of one data type, None where the part has none.

        Args:
            dtype: one of ``DTYPES`` [text].
        """
        return getattr(self, dtype) if dtype in DTYPES else None


class GpuSpec(Profile):
    """One accelerator."""

    profile: Literal["gpu"]
    id: Name
    vendor: Name
    arch: Name
    form: Name | None = None
    compute_capability: Name | None = None
    counted_as: Text = "one device"
    aliases: tuple[Alias, ...] = ()
    availability: Name | None = None
    peak: Rates = Rates.trusted({})  # dense, accumulating in fp32; fp32 is the vector rate
    matmul: Rates = Rates.trusted({})  # best matrix product seen on the part
    marketing_memory: Bytes | None = None  # what the box says; never used to decide a fit
    usable_memory: Bytes | None = None  # total that the driver shows; absent: a fit cannot be decided
    torch_memory: Bytes | None = None  # total that PyTorch reports: what a process can get
    memory_bandwidth: Bandwidth | None = None
    scaleup_link: Text | None = None
    scaleup_bandwidth: Bandwidth | None = None  # all scale-up links of one GPU, one direction
    p2p_bandwidth: Bandwidth | None = None  # to one peer, one direction
    pcie_generation: Annotated[int, Limit(ge=1, le=9, strict=True)] | None = None
    pcie_bandwidth: Bandwidth | None = None  # one direction
    tdp: Power | None = None
    gpus_per_node: Count | None = None  # of the usual host
    source: Text | None = None
    checked: Text | None = None
    notes: tuple[Text, ...] = ()

    def consistent(self) -> None:
        """A memory that no GPU has is a slip of the unit."""
        for name in ("usable_memory", "torch_memory"):
            size = base_of(getattr(self, name))
            if size is not None and not 0.0 < size <= _LARGEST_MEMORY:
                raise ValueError(
                    f"{name}: {getattr(self, name).value:g} {getattr(self, name).unit} is out of range; "
                    "a GPU has more than 0 and at most 10 TiB"
                )

    @property
    def usable_bytes(self) -> float | None:
        """Memory a program can use [bytes]: the smaller of ``usable_memory`` and ``torch_memory``; None: not stated."""
        return base_of(self.usable_record[1])

    @property
    def usable_record(self) -> tuple[str, Quantity | None]:
        """The field that decides a fit: the driver's total counts what it keeps back, PyTorch's does not."""
        driver, torch = self.usable_memory, self.torch_memory
        if driver is not None and torch is not None and torch.base < driver.base:
            return "torch_memory", torch
        return "usable_memory", driver

    @property
    def marketing_bytes(self) -> float | None:
        """Memory as advertised [bytes]; for display only."""
        return base_of(self.marketing_memory)

    @property
    def torch_total_bytes(self) -> float | None:
        """Total memory that PyTorch reports [bytes]."""
        return base_of(self.torch_memory)

    @property
    def memory_bandwidth_bytes_per_s(self) -> float | None:
        """Peak bandwidth of the device memory [bytes/s]."""
        return base_of(self.memory_bandwidth)

    @property
    def scaleup_bytes_per_s(self) -> float | None:
        """All scale-up links of one GPU together, one direction [bytes/s]; None where it has none."""
        return base_of(self.scaleup_bandwidth)

    @property
    def p2p_bytes_per_s(self) -> float | None:
        """Scale-up bandwidth to one peer, one direction [bytes/s]."""
        return base_of(self.p2p_bandwidth)

    @property
    def pcie_bytes_per_s(self) -> float | None:
        """Host link, one direction [bytes/s]."""
        return base_of(self.pcie_bandwidth)

    @property
    def tdp_w(self) -> float | None:
        """Power limit [W]."""
        return base_of(self.tdp)

    @property
    def dtypes(self) -> tuple[str, ...]:
        """Data types that have a peak rate."""
        return tuple(dtype for dtype in DTYPES if self.peak.of(dtype) is not None)

    def peak_flop_per_s(self, dtype: str) -> float:
        """Peak dense rate of matrix products (fp32: of the vector units).

        Args:
            dtype: ``fp32``, ``tf32``, ``fp16``, ``bf16``, ``fp8`` or ``fp4`` [text].

        Returns:
            Rate [FLOP/s].

        Raises:
            InputError: the part has no rate for that data type; names those it has.
        """
        record = self.peak.of(dtype)
        if record is None:
            raise InputError(f"{self.id} has no {dtype} rate; it has {', '.join(self.dtypes) or 'none'}")
        return record.base

    def matmul_flop_per_s(self, dtype: str) -> float | None:
        """Best rate of a matrix product measured on the part.

        Args:
            dtype: as for :meth:`peak_flop_per_s` [text].

        Returns:
            Rate [FLOP/s], None where nobody measured it.
        """
        return base_of(self.matmul.of(dtype))

    def lower(self, *, gpus_per_node: int | None = None, host_bytes: float | None = None) -> Hardware:
        """The record that formulas read, for this GPU in its usual host.

        Args:
            gpus_per_node: GPUs that share one host [count]; default: the profile's.
            host_bytes: memory of one host [bytes]; default: unknown.

        Returns:
            Arrays of shape (1,), nan where unknown.
        """
        gpus = gpus_per_node if gpus_per_node is not None else base_of(self.gpus_per_node)
        return _record(self.usable_bytes, gpus, host_bytes)


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
        return _record(gpu.usable_bytes, self.gpus_in_node, host_bytes if host_bytes is not None else self.host_bytes)


def _record(usable_bytes: float | None, gpus_per_node: float | None, host_bytes: float | None) -> Hardware:
    import numpy as np  # numpy costs more than everything else here: only who computes pays

    from dscalc.records import Hardware

    column: Callable[[float | None], np.ndarray] = lambda x: np.array([np.nan if x is None else x], dtype=np.float64)  # noqa: E731
    return Hardware(column(usable_bytes), column(gpus_per_node), column(host_bytes))
