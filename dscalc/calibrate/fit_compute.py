"""What one GPU sustains: the rate that matrix products approach as they grow, and the share of its memory's rate."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dscalc.calibrate.fit_line import LEAST_PIECE, TO_SIGMA, require_scipy, robust_spread, small_sample
from dscalc.calibrate.measurements import Compute
from dscalc.frozen import dataclass
from dscalc.records import Array
from dscalc.units import MIB

FLOP_PER_PRODUCT = 2.0  # a multiplication and an addition
LARGE_COPY_BYTES = 256.0 * MIB  # past every cache
LARGE_FLOP = FLOP_PER_PRODUCT * 4096.0**3  # of a product that tells what large ones reach
CORNER = 0.05
WIDEST_RAMP = 8192.0  # rows at which half a tile's time would be lost: more is no ramp


class Class(NamedTuple):
    """Products of one order of magnitude."""

    least_flop: float
    most_flop: float
    median_flop_per_s: float
    low_flop_per_s: float  # of ten products, one is slower
    high_flop_per_s: float
    points: int


@dataclass(frozen=True, slots=True, eq=False)
class Gemm:
    """Matrix products of one data type: FLOP / time = rate / (1 + ramp (1/m + 1/n + 1/k)).

    Attributes:
        gpu, dtype: as the log says.
        flop_per_s, stderr_flop_per_s: rate that products approach as they grow, with its standard error.
        ramp, ramp_stderr: rows, columns or depth at which half of a tile's time is lost; None where sizes do not tell.
        best_flop_per_s: of the fastest row.
        least_shortness: 1/m + 1/n + 1/k of the product that loses least to its edges.
        median_residual_fraction: how far rows lie from the formula.
        classes: rate as a function of size.
        points: rows behind it.
        source: files and lines.
    """

    gpu: str
    dtype: str
    flop_per_s: float
    stderr_flop_per_s: float
    ramp: float | None
    ramp_stderr: float | None
    best_flop_per_s: float
    least_shortness: float
    median_residual_fraction: float
    classes: tuple[Class, ...]
    points: int
    source: str

    @property
    def reached_flop_per_s(self) -> float:
        """Rate of the product that loses least, as the fit has it: what other benchmarks call the best of a part."""
        return self.flop_per_s / (1.0 + (self.ramp or 0.0) * self.least_shortness)

    @property
    def large(self) -> bool:
        """Whether products were large enough to tell what large ones reach."""
        return self.classes[-1].most_flop >= LARGE_FLOP


@dataclass(frozen=True, slots=True, eq=False)
class Memory:
    """Copies in the device memory: bytes read and written a second, past every cache."""

    gpu: str
    bytes_per_s: float
    stderr_bytes_per_s: float
    points: int
    source: str


@dataclass(frozen=True, slots=True, eq=False)
class Launch:
    """Time in which the host launches one kernel."""

    gpu: str
    time_s: float
    stderr_s: float
    points: int
    source: str


def fit_compute(found: Iterable[Compute]) -> tuple[tuple[Gemm, ...], tuple[Memory, ...], tuple[Launch, ...]]:
    """Fit every GPU and data type of some logs.

    Args:
        found: kernels as readers found them.

    Returns:
        Products, copies and launches.

    Raises:
        MissingLibraryError: scipy is not installed.
    """
    groups: dict[tuple[str, str, str], list[Compute]] = {}
    for each in found:
        groups.setdefault((each.kind, each.gpu, each.dtype if each.kind == "gemm" else ""), []).append(each)
    gemms: list[Gemm] = []
    copies: list[Memory] = []
    launches: list[Launch] = []
    for (kind, gpu, dtype), members in groups.items():
        source = ", ".join(dict.fromkeys(f"{m.file}:{m.first_line}-{m.last_line}" for m in members))
        columns: dict[str, Array] = {
            name: np.concatenate([getattr(m, name) for m in members]) for name in ("m", "n", "k", "time_s", "rate")
        }
        if kind == "gemm" and (fit := _gemm(gpu, dtype, columns, source)) is not None:
            gemms.append(fit)
        elif kind == "memory_copy":
            copies += _copies(gpu, columns, source)
        elif kind == "launch":
            launches += _launches(gpu, columns, source)
    return tuple(gemms), tuple(copies), tuple(launches)


def _gemm(gpu: str, dtype: str, columns: dict[str, Array], source: str) -> Gemm | None:
    m, n, k, rate = (columns[name] for name in ("m", "n", "k", "rate"))
    flop = FLOP_PER_PRODUCT * m * n * k
    rate = np.where(np.isfinite(rate), rate, flop / columns["time_s"])  # an elapsed time may be rounded to nothing
    usable = np.isfinite(flop) & (flop > 0.0) & np.isfinite(rate) & (rate > 0.0)
    if not usable.any():
        return None
    flop, rate = flop[usable], rate[usable]
    short = (1.0 / m + 1.0 / n + 1.0 / k)[usable]
    best = float(rate.max())
    count = len(rate)
    ramp, ramp_stderr = None, None
    if count >= LEAST_PIECE and short.max() > 2.0 * short.min():
        fitted, stderr, residual = _ramped(short, rate)
        value, value_stderr = float(np.exp(fitted[0])), float(stderr[0] * np.exp(fitted[0]))
        ramp, ramp_stderr = float(fitted[1]), float(stderr[1])
    else:  # sizes too alike: the upper half of the rates
        upper = rate[rate >= np.median(rate)]
        value = float(np.median(upper))
        residual = np.log(rate / value)
        spread = robust_spread(np.log(upper / value), 1) if len(upper) > 1 else CORNER
        value_stderr = value * spread / np.sqrt(len(upper)) * small_sample(len(upper), 1)
    return Gemm(
        gpu,
        dtype,
        value,
        float(value_stderr),
        ramp,
        ramp_stderr,
        best,
        float(short.min()),
        float(np.median(np.abs(np.expm1(residual)))),
        tuple(_classes(flop, rate)),
        count,
        source,
    )


def _ramped(short: Array, rate: Array) -> tuple[Array, Array, Array]:
    """Logarithm of the rate and the ramp, their standard errors, and residuals; robust."""
    least_squares, _ = require_scipy()

    def off(x: Array) -> Array:
        return np.asarray(x[0] - np.log1p(x[1] * short) - np.log(rate))

    start = np.array([np.log(rate.max()), 64.0])
    bounds = ([-np.inf, 0.0], [np.inf, WIDEST_RAMP])
    found: Any = least_squares(off, start, bounds=bounds, loss="huber", f_scale=CORNER, x_scale=[0.1, 64.0])
    slope = np.stack([np.ones(len(short)), -short / (1.0 + found.x[1] * short)], axis=1)
    residual = off(found.x)
    sigma = robust_spread(residual, 2)
    stretch = small_sample(len(rate), 2)
    stderr = np.sqrt(np.maximum(np.diag(np.linalg.pinv(slope.T @ slope)), 0.0)) * sigma * stretch
    return np.asarray(found.x), np.asarray(stderr), residual


def _classes(flop: Array, rate: Array) -> list[Class]:
    """Rates by power of ten of FLOP."""
    found = []
    power = np.floor(np.log10(flop))
    for each in np.unique(power):
        mine = power == each
        low, middle, high = np.quantile(rate[mine], (0.1, 0.5, 0.9))
        least, most = float(flop[mine].min()), float(flop[mine].max())
        found.append(Class(least, most, float(middle), float(low), float(high), int(mine.sum())))
    return found


def _copies(gpu: str, columns: dict[str, Array], source: str) -> Sequence[Memory]:
    rate, size = columns["rate"], columns["n"]
    usable = np.isfinite(rate) & (rate > 0.0)
    large = usable & (np.nan_to_num(size, nan=np.inf) >= LARGE_COPY_BYTES)
    chosen = rate[large] if large.any() else rate[usable][-1:]
    if not len(chosen):
        return ()
    value = float(np.median(chosen))
    return (Memory(gpu, value, _median_stderr(chosen, value), len(chosen), source),)


def _launches(gpu: str, columns: dict[str, Array], source: str) -> Sequence[Launch]:
    times = np.where(np.isfinite(columns["time_s"]), columns["time_s"], 1.0 / columns["rate"])
    times = times[np.isfinite(times) & (times > 0.0)]
    if not len(times):
        return ()
    value = float(np.median(times))
    return (Launch(gpu, value, _median_stderr(times, value), len(times), source),)


def _median_stderr(values: Array, middle: float) -> float:
    if len(values) < 2:
        return CORNER * middle
    spread = TO_SIGMA * float(np.median(np.abs(values - middle)))
    return max(1.2533 * spread / float(np.sqrt(len(values))), 1e-3 * middle)
