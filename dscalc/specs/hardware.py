"""GPU profiles: frozen models of one accelerator, each number with its unit, kind and source.

A profile keeps the number as its source prints it (81559 MiB, 400 Gb/s); properties give base units, converted by
:mod:`dscalc.units`. Links are per GPU and one direction; compute rates are dense and per device the framework sees,
unless ``counted_as`` says what else one "GPU" of the profile is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

from dscalc.errors import InputError
from dscalc.specs.checked import Limit
from dscalc.specs.quantity import (
    Alias,
    Bandwidth,
    Bytes,
    Count,
    FlopRate,
    Name,
    Power,
    Profile,
    Quantity,
    Text,
    base_of,
)
from dscalc.units import TIB

if TYPE_CHECKING:
    from dscalc.records import Hardware

DTYPES = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")
_LARGEST_MEMORY = 10 * TIB


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
        return lower_node(self.usable_bytes, gpus, host_bytes)


def lower_node(usable_bytes: float | None, gpus_per_node: float | None, host_bytes: float | None) -> Hardware:
    """The record that formulas read.

    Args:
        usable_bytes: memory of a GPU [bytes]; None: unknown.
        gpus_per_node: GPUs that share one host [count]; None: unknown.
        host_bytes: memory of one host [bytes]; None: unknown.

    Returns:
        Arrays of shape (1,), nan where unknown.
    """
    import numpy as np  # numpy costs more than everything else here: only who computes pays

    from dscalc.records import Hardware

    column: Callable[[float | None], np.ndarray] = lambda x: np.array([np.nan if x is None else x], dtype=np.float64)  # noqa: E731
    return Hardware(column(usable_bytes), column(gpus_per_node), column(host_bytes))
