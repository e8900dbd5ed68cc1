"""What a calibration found, as a cluster's profile holds it: times of collectives, and what a GPU sustains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Literal

from dscalc.errors import UnitError
from dscalc.specs.checked import Limit
from dscalc.specs.quantity import Finite, FlopRate, Fraction, Name, Number, Profile, Quantity, Text
from dscalc.units import to_base

if TYPE_CHECKING:
    from dscalc.records import Curve, Tier

NORMAL_80 = 1.2816  # half-width of 80 % of a normal distribution, in standard errors
MOST_SIZES = 4096
WIDEST_ERROR = 2.0  # of the logarithm of a time: more is no measurement
SMALL_BYTES, SLOWEST_S = 65536.0, 5.0  # no network takes longer for a small message
FASTEST = 1e14  # bytes/s of no link, many times over
Positive = Annotated[float, Limit(gt=0, allow_inf_nan=False, strict=True)]
Members = Annotated[int, Limit(ge=1, strict=True)]


def _unit(unit: str, dimension: str, name: str) -> float:
    try:
        return to_base(1.0, unit, dimension)
    except UnitError as error:
        raise ValueError(f"{name}: {error.message}") from None


class PieceSpec(Profile):
    """One piece of the compact model: time = latency + size / bandwidth between two sizes."""

    min_bytes: Positive
    max_bytes: Positive
    latency_s: Finite
    bandwidth_bytes_per_s: Positive
    latency_stderr_s: Finite | None = None
    bandwidth_stderr_bytes_per_s: Finite | None = None
    points: Members
    median_residual_fraction: Finite


class CurveSpec(Profile):
    """Measured times of one collective in one group, by size in the convention of nccl-tests; log-log in between."""

    op: Literal["all-reduce", "all-gather", "reduce-scatter", "all-to-all", "send-recv", "broadcast"]
    ranks: Annotated[int, Limit(ge=2, strict=True)]
    nodes: Members
    sizes: tuple[Positive, ...]
    size_unit: Name = "B"
    times: tuple[Positive, ...]
    time_unit: Name = "s"
    error_fractions: tuple[Finite, ...]  # half-width of the 80 % bar of each time
    kind: Literal["measured", "fitted"]
    source: Text  # file and lines
    n: Members | None = None  # cells behind it
    groups: Members = 1  # such groups that ran the same call at the same time, sharing the links they cross
    pieces: tuple[PieceSpec, ...] = ()

    def consistent(self) -> None:
        """Columns of one length, sizes that rise, times that are times."""
        count = len(self.sizes)
        if not 1 <= count <= MOST_SIZES:
            raise ValueError(f"sizes: {count} of them; 1 to {MOST_SIZES} are right")
        if len(self.times) != count or len(self.error_fractions) != count:
            raise ValueError("sizes, times and error_fractions need one entry each for every size")
        if any(b <= a for a, b in zip(self.sizes, self.sizes[1:], strict=False)):
            raise ValueError("sizes must rise, each one once")
        if any(e > WIDEST_ERROR for e in self.error_fractions):
            raise ValueError(
                f"error_fractions: above {WIDEST_ERROR:g} there is no measurement; give the fraction, not per cent"
            )
        if self.nodes > self.ranks:
            raise ValueError(f"nodes: {self.nodes} for {self.ranks} ranks; a node has at least one")
        size = self.sizes[0] * _unit(self.size_unit, "bytes", "size_unit")
        largest = self.sizes[-1] * _unit(self.size_unit, "bytes", "size_unit")
        unit = _unit(self.time_unit, "time", "time_unit")
        if size <= SMALL_BYTES and self.times[0] * unit > SLOWEST_S:
            raise ValueError(f"times: {self.times[0]:g} {self.time_unit} for {size:g} bytes; look at time_unit")
        if largest > FASTEST * self.times[-1] * unit:
            raise ValueError(f"times: {self.times[-1]:g} {self.time_unit} for {largest:g} bytes; look at time_unit")


class Matmul(Profile):
    """Rate of large matrix products by data type."""

    fp32: FlopRate | None = None
    tf32: FlopRate | None = None
    fp16: FlopRate | None = None
    bf16: FlopRate | None = None
    fp8: FlopRate | None = None

    def of(self, dtype: str) -> Quantity | None:
        """The record of one data type; the two 16-bit types stand for each other."""
        twin = {"bf16": "fp16", "fp16": "bf16"}.get(dtype, dtype)
        return getattr(self, dtype, None) or getattr(self, twin, None)


class Sustained(Profile):
    """What a calibration found that a GPU and its stack sustain; what it does not say is as it ships."""

    matmul: Matmul = Matmul.trusted({})  # rate of the best-shaped products that were measured
    memory_fraction: Fraction | None = None  # share of the datasheet bandwidth that a copy reaches
    stack: Name | None = None  # whose steps the factors below come from: they hold for it alone
    compute_factor: Number | None = None  # time of everything the GPU computes, over what ships
    attention_factor: Number | None = None  # time of attention on top of that
    host_factor: Number | None = None  # time in which the host launches
    communication_factor: Number | None = None  # time of communication that is not hidden

    def consistent(self) -> None:
        """No copy is faster than the memory."""
        if self.memory_fraction is not None and not 0.0 < self.memory_fraction.base <= 1.0:
            raise ValueError("memory_fraction: a copy reaches more than 0 and at most 100 % of the datasheet's rate")


def lower_curves(curves: Sequence[CurveSpec], tiers: Sequence[Tier], gpus_per_node: int) -> tuple[Curve, ...]:
    """Curves as formulas read them, on the tiers of their cluster.

    Args:
        curves: the profile's [profile].
        tiers: of the network, inner first.
        gpus_per_node: GPUs of one node [count].

    Returns:
        One record a curve [log s, (sizes,)].
    """
    import numpy as np

    from dscalc.records import Curve

    inner = float(tiers[0].gpus[0]) if len(tiers) > 1 else float("inf")
    found = []
    for spec in sorted(curves, key=lambda spec: -spec.groups):  # as a layout has them: of two alike, the busier
        together = spec.ranks / spec.nodes  # on one node
        one = spec.ranks <= inner and (spec.nodes == 1 or inner > gpus_per_node)
        inside = float(spec.ranks) if one else min(max(together, 1.0), inner)
        sizes = np.asarray(spec.sizes) * to_base(1.0, spec.size_unit, "bytes")
        times = np.asarray(spec.times) * to_base(1.0, spec.time_unit, "time")
        whole = one or together * spec.groups >= gpus_per_node
        domains = 1.0 if one else float(np.ceil(spec.ranks / inside))
        held = [inside * float(tier.gpus[0]) / inner if inner < float("inf") else inside for tier in tiers[:-1]]
        members = np.minimum(np.asarray(held), float(spec.ranks))
        found.append(
            Curve(
                op=spec.op,
                group=float(spec.ranks),
                inside=inside,
                domains=domains,
                members=members,
                spread=np.ceil(spec.ranks / members) if not one else np.ones(len(members)),
                shared=1.0 if whole else 0.0,
                log_bytes=np.log(sizes),
                log_s=np.log(times),
                error=np.asarray(spec.error_fractions, dtype=np.float64),
                source=spec.source,
            )
        )
    return tuple(sorted(found, key=lambda curve: -curve.shared))
