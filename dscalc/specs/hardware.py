"""Hardware profiles: frozen models of one GPU or one cluster, each number with its unit, kind and source.

A profile keeps the number as its source prints it (81559 MiB, 400 Gb/s); properties give base units, converted by
:mod:`dscalc.units`. Links are per GPU and one direction; compute rates are dense and per device the framework sees,
unless ``counted_as`` says what else one "GPU" of the profile is.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, model_validator

from dscalc import units
from dscalc.errors import InputError, UnitError

if TYPE_CHECKING:
    from dscalc.records import Hardware

DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")
_DISAGREE = 0.02  # two statements of one rate may differ by rounding, not by more
_Name = Annotated[str, StringConstraints(min_length=1, max_length=80, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
_Text = Annotated[str, StringConstraints(min_length=1, max_length=2000, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
_Finite = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]


class _Profile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class Quantity(_Profile):
    """One number of a profile with where it comes from.

    ``kind``: ``datasheet`` (the maker or operator prints it), ``measured`` (read or timed on the part), ``fitted``
    (estimated from many measurements), ``assumed`` (derived, copied from a sister part, disputed or unverified).
    """

    value: _Finite
    unit: _Name
    kind: Literal["datasheet", "measured", "fitted", "assumed"]
    source: _Text
    stderr: _Finite | None = None  # same unit as value
    n: Annotated[int, Field(ge=1, strict=True)] | None = None  # measurements behind the value
    note: _Text | None = None

    @property
    def base(self) -> float:
        """The value [base unit of its dimension]."""
        return units.to_base(self.value, self.unit, units.unit_dimension(self.unit))

    @property
    def base_stderr(self) -> float | None:
        """The standard error [base unit of its dimension], None where not given."""
        if self.stderr is None:
            return None
        return units.to_base(self.stderr, self.unit, units.unit_dimension(self.unit))


def _measures(dimension: str, *, whole: bool = False) -> AfterValidator:
    """Validator of a :class:`Quantity` field that must have a unit of ``dimension``."""

    def check(quantity: Quantity) -> Quantity:
        try:
            base = units.to_base(quantity.value, quantity.unit, dimension)
        except UnitError as error:
            raise ValueError(error.message) from None
        if whole and (base < 1 or base != int(base)):
            raise ValueError(f"{quantity.value:g} is not a whole number of 1 or more")
        return quantity

    return AfterValidator(check)


_Bytes = Annotated[Quantity, _measures("bytes")]
_Bandwidth = Annotated[Quantity, _measures("bandwidth")]
_FlopRate = Annotated[Quantity, _measures("flop_rate")]
_Time = Annotated[Quantity, _measures("time")]
_Power = Annotated[Quantity, _measures("power")]
_Price = Annotated[Quantity, _measures("price")]
_Count = Annotated[Quantity, _measures("count", whole=True)]


def _base(quantity: Quantity | None) -> float | None:
    return None if quantity is None else quantity.base


class Alias(_Profile):
    """Another name of a profile, with what is taken for granted by using it."""

    name: _Name
    assumption: _Text


class Rates(_Profile):
    """A compute rate for each data type the part has."""

    fp32: _FlopRate | None = None
    tf32: _FlopRate | None = None
    fp16: _FlopRate | None = None
    bf16: _FlopRate | None = None
    fp8: _FlopRate | None = None
    fp4: _FlopRate | None = None

    def of(self, dtype: str) -> Quantity | None:
        """The record of one data type, None where the part has none.

        Args:
            dtype: one of ``DTYPES`` [text].
        """
        return getattr(self, dtype) if dtype in DTYPES else None


class GpuSpec(_Profile):
    """One accelerator."""

    profile: Literal["gpu"]
    id: _Name
    vendor: _Name
    arch: _Name
    form: _Name | None = None
    compute_capability: _Name | None = None
    counted_as: _Text = "one device"
    aliases: tuple[Alias, ...] = ()
    availability: _Name | None = None
    peak: Rates = Rates()  # dense, accumulating in fp32; fp32 is the vector rate
    matmul: Rates = Rates()  # best matrix product seen on the part
    marketing_memory: _Bytes | None = None  # what the box says; never used to decide a fit
    usable_memory: _Bytes | None = None  # what the driver shows; absent: a fit cannot be decided
    torch_memory: _Bytes | None = None  # what PyTorch reports as total
    memory_bandwidth: _Bandwidth | None = None
    scaleup_link: _Text | None = None
    scaleup_bandwidth: _Bandwidth | None = None  # all scale-up links of one GPU, one direction
    p2p_bandwidth: _Bandwidth | None = None  # to one peer, one direction
    pcie_generation: Annotated[int, Field(ge=1, le=9, strict=True)] | None = None
    pcie_bandwidth: _Bandwidth | None = None  # one direction
    tdp: _Power | None = None
    gpus_per_node: _Count | None = None  # of the usual host
    source: _Text | None = None
    checked: _Text | None = None
    notes: tuple[_Text, ...] = ()

    @property
    def usable_bytes(self) -> float | None:
        """Memory a program can use [bytes]; None where the profile does not say."""
        return _base(self.usable_memory)

    @property
    def marketing_bytes(self) -> float | None:
        """Memory as advertised [bytes]; for display only."""
        return _base(self.marketing_memory)

    @property
    def torch_total_bytes(self) -> float | None:
        """Total memory that PyTorch reports [bytes]."""
        return _base(self.torch_memory)

    @property
    def memory_bandwidth_bytes_per_s(self) -> float | None:
        """Peak bandwidth of the device memory [bytes/s]."""
        return _base(self.memory_bandwidth)

    @property
    def scaleup_bytes_per_s(self) -> float | None:
        """All scale-up links of one GPU together, one direction [bytes/s]; None where it has none."""
        return _base(self.scaleup_bandwidth)

    @property
    def p2p_bytes_per_s(self) -> float | None:
        """Scale-up bandwidth to one peer, one direction [bytes/s]."""
        return _base(self.p2p_bandwidth)

    @property
    def pcie_bytes_per_s(self) -> float | None:
        """Host link, one direction [bytes/s]."""
        return _base(self.pcie_bandwidth)

    @property
    def tdp_w(self) -> float | None:
        """Power limit [W]."""
        return _base(self.tdp)

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
        return _base(self.matmul.of(dtype))

    def lower(self, *, gpus_per_node: int | None = None, host_bytes: float | None = None) -> "Hardware":
        """The record that formulas read, for this GPU in its usual host.

        Args:
            gpus_per_node: GPUs that share one host [count]; default: the profile's.
            host_bytes: memory of one host [bytes]; default: unknown.

        Returns:
            Arrays of shape (1,), nan where unknown.
        """
        gpus = gpus_per_node if gpus_per_node is not None else _base(self.gpus_per_node)
        return _record(self.usable_bytes, gpus, host_bytes)


class BusBandwidth(_Profile):
    """A published bus bandwidth of a collective, in the convention of nccl-tests."""

    op: _Name = "all-reduce"
    algorithm: _Name | None = None
    nodes: Annotated[int, Field(ge=1, strict=True)] | None = None
    gpus: Annotated[int, Field(ge=1, strict=True)] | None = None
    message: _Bytes | None = None
    pass_limit: bool = False  # an operator's acceptance threshold: healthy hardware reads higher
    busbw: _Bandwidth
    conditions: _Text | None = None

    @property
    def busbw_bytes_per_s(self) -> float:
        """Bus bandwidth [bytes/s]."""
        return self.busbw.base


class SmallMessage(_Profile):
    """A published time of a collective on a message too small for bandwidth to matter."""

    op: _Name = "all-reduce"
    message: _Bytes
    nodes: Annotated[int, Field(ge=1, strict=True)] | None = None
    gpus: Annotated[int, Field(ge=1, strict=True)] | None = None
    latency: _Time
    conditions: _Text | None = None

    @property
    def latency_s(self) -> float:
        """Time of one call [s]."""
        return self.latency.base


class Price(_Profile):
    """A list price; prices age, so each has a date as exact as its source gives."""

    per_hour: _Price
    per: Literal["node", "GPU", "chip"]
    date: Annotated[str, StringConstraints(pattern=r"^\d{4}(-\d{2}){0,2}$")] | None = None
    terms: _Text | None = None

    @property
    def usd_per_hour(self) -> float:
        """Price of one node, GPU or chip [USD/h]."""
        return self.per_hour.base


class ClusterSpec(_Profile):
    """Nodes of one kind and the networks between them."""

    profile: Literal["cluster"]
    id: _Name
    provider: _Name
    gpu: _Name  # id of a GPU profile
    aliases: tuple[Alias, ...] = ()
    gpus_per_node: _Count
    nics_per_node: _Count | None = None
    nic_bandwidth: _Bandwidth | None = None  # one NIC
    node_scaleout_bandwidth: _Bandwidth | None = None  # all NICs of a node, one direction
    scaleout_bandwidth: _Bandwidth | None = None  # share of one GPU, one direction
    network: _Text | None = None
    intra_link: _Text | None = None
    intra_bandwidth: _Bandwidth | None = None  # of one GPU, one direction
    scaleup_domain_gpus: _Count | None = None  # GPUs joined by the scale-up link; may span nodes
    host_memory: _Bytes | None = None
    busbw: tuple[BusBandwidth, ...] = ()
    small_messages: tuple[SmallMessage, ...] = ()
    prices: tuple[Price, ...] = ()
    topology: _Text | None = None
    source: _Text | None = None
    checked: _Text | None = None
    notes: tuple[_Text, ...] = ()

    @model_validator(mode="after")
    def _rates_agree(self) -> "ClusterSpec":
        """A rate per GPU written where a rate per node belongs (or bits for bytes) is off by a factor of 4 or more."""
        node, share, nic = (
            _base(q) for q in (self.node_scaleout_bandwidth, self.scaleout_bandwidth, self.nic_bandwidth)
        )
        if node and share and abs(share * self.gpus_in_node / node - 1) > _DISAGREE:
            raise ValueError("scaleout_bandwidth (of one GPU) times gpus_per_node is not node_scaleout_bandwidth")
        if node and nic and self.nics_per_node and abs(nic * self.nics_per_node.base / node - 1) > _DISAGREE:
            raise ValueError("nic_bandwidth times nics_per_node is not node_scaleout_bandwidth")
        return self

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
        return _base(self.nic_bandwidth)

    @property
    def node_scaleout_bytes_per_s(self) -> float | None:
        """All NICs of a node, one direction [bytes/s]."""
        return _base(self.node_scaleout_bandwidth)

    @property
    def scaleout_bytes_per_s(self) -> float | None:
        """One GPU's share of its node's NICs, one direction [bytes/s]."""
        return _base(self.scaleout_bandwidth)

    @property
    def intra_bytes_per_s(self) -> float | None:
        """One GPU's links inside the scale-up domain, one direction [bytes/s]."""
        return _base(self.intra_bandwidth)

    @property
    def host_bytes(self) -> float | None:
        """Memory of one host [bytes]."""
        return _base(self.host_memory)

    def usd_per_gpu_hour(self, price: Price) -> float:
        """Turn a price into one of a single GPU.

        Args:
            price: one of ``prices`` [USD/h per node, GPU or chip].

        Returns:
            Price of one GPU [USD/h].
        """
        return price.usd_per_hour / (self.gpus_in_node if price.per == "node" else 1)

    def lower(self, gpu: GpuSpec, *, host_bytes: float | None = None) -> "Hardware":
        """The record that formulas read, for this cluster's nodes.

        Args:
            gpu: profile of the cluster's GPU [profile].
            host_bytes: memory of one host [bytes]; default: the profile's.

        Returns:
            Arrays of shape (1,), nan where unknown.
        """
        return _record(gpu.usable_bytes, self.gpus_in_node, host_bytes if host_bytes is not None else self.host_bytes)


def _record(usable_bytes: float | None, gpus_per_node: float | None, host_bytes: float | None) -> "Hardware":
    import numpy as np  # numpy costs more than everything else here: only who computes pays

    from dscalc.records import Hardware

    column: Callable[[float | None], np.ndarray] = lambda x: np.array([np.nan if x is None else x], dtype=np.float64)  # noqa: E731
    return Hardware(column(usable_bytes), column(gpus_per_node), column(host_bytes))
