"""Latency and bandwidth of a measured table: a robust line for small and large messages, and a few pieces in between.

The line is time = latency + size / bandwidth, fitted to logarithms with Huber's loss: a spike does not drag it along. A
table is no line, so the compact model has up to three of them, as many as Bayes' criterion pays for.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from dscalc.errors import MissingLibraryError
from dscalc.frozen import dataclass
from dscalc.records import Array
from dscalc.specs.measured import NORMAL_80
from dscalc.units import KIB, MIB

SMALL_BYTES = 4.0 * KIB  # up to here latency is all
LARGE_BYTES = 16.0 * MIB  # from here on a line holds: 2.2 % in the median on public logs
LEAST_LARGE = 5  # sizes that identify a bandwidth
LEAST_SMALL = 2
LEAST_PIECE = 4
MOST_PIECES = 3
MOST_CUTS = 48  # places at which a long table may break
CORNER = 0.05  # a residual beyond this counts linearly
BREAK_COST = 2.0  # parameters that a free break counts for beside the two of its line
MEDIAN_COST = 1.2533  # standard error of a median over that of a mean
TO_SIGMA = 1.4826  # of a median absolute deviation
HUBER = 1.345  # standard deviations at which Huber's loss turns linear: 95 % efficient on normal noise
ROUNDS = 8
_TINY = 1e-12


class Line(NamedTuple):
    """time = latency + size / bandwidth between two sizes, with standard errors: 80 % lie within 1.28 of them."""

    min_bytes: float
    max_bytes: float
    latency_s: float
    bandwidth_bytes_per_s: float
    latency_stderr_s: float
    bandwidth_stderr_bytes_per_s: float
    points: int
    median_residual_fraction: float

    def time_s(self, size_bytes: Array) -> Array:
        """What the line says."""
        return self.latency_s + np.asarray(size_bytes, dtype=np.float64) / self.bandwidth_bytes_per_s


class Value(NamedTuple):
    """One fitted number."""

    value: float
    stderr: float
    points: int


@dataclass(frozen=True, slots=True, eq=False)
class Lines:
    """What lines say of a table.

    Attributes:
        latency_s: time of the smallest messages; None where fewer than two are small.
        bandwidth: size over time that large messages approach [bytes/s]; None where fewer than five are large.
        pieces: one to three lines, in the order of sizes; none where fewer than four sizes were measured.
    """

    latency_s: Value | None
    bandwidth: Value | None
    pieces: tuple[Line, ...]


def require_scipy() -> tuple[Any, Any]:
    try:
        from scipy import stats
        from scipy.optimize import least_squares
    except ImportError:
        raise MissingLibraryError(
            "fits need scipy, which is not installed: pip install 'dscalc[fit]'", where="dscalc fit"
        ) from None
    return least_squares, stats


def small_sample(points: int, free: int) -> float:
    """What a standard error from few points is stretched by, so that 80 % lie within 1.28 of it."""
    _, stats = require_scipy()
    return float(stats.t.ppf(0.9, max(points - free, 1))) / NORMAL_80


def huber_line(size_bytes: Array, time_s: Array) -> Line:
    """The robust line through a table, by least squares of logarithms with Huber's loss.

    Args:
        size_bytes: ascending [bytes, (n,)], two or more.
        time_s: their times [s, (n,)].

    Returns:
        The line.

    Raises:
        MissingLibraryError: scipy is not installed.
    """
    least_squares, _ = require_scipy()
    latency, per_byte = (float(x[0]) for x in _lines(size_bytes, time_s, np.ones((1, len(time_s)), dtype=bool)))
    least = float(time_s.min())
    unit = np.array([least, least / float(size_bytes.min())])

    def off(scaled: Array) -> Array:
        a, b = scaled * unit
        return np.asarray(np.log(np.maximum(a + b * size_bytes, _TINY) / time_s))

    start = np.maximum(np.array([latency, per_byte]) / unit, [0.0, _TINY])
    corner = min(CORNER, max(TO_SIGMA * float(np.median(np.abs(off(start)))), 1e-4) * HUBER)
    found = least_squares(
        off, start, bounds=([0.0, _TINY], [np.inf, np.inf]), loss="huber", f_scale=corner, x_scale="jac"
    )
    residual = off(found.x)
    latency, per_byte = found.x * unit
    count = len(size_bytes)
    sigma = robust_spread(residual, 2)
    slope = np.stack([unit[0] / np.exp(residual) / time_s, unit[1] * size_bytes / np.exp(residual) / time_s], axis=1)
    covariance = np.linalg.pinv(slope.T @ slope) * sigma**2 * small_sample(count, 2) ** 2
    stderr = np.sqrt(np.maximum(np.diag(covariance), 0.0)) * unit
    return Line(
        float(size_bytes[0]),
        float(size_bytes[-1]),
        float(latency),
        float(1.0 / per_byte),
        float(stderr[0]),
        float(stderr[1] / per_byte**2),
        count,
        float(np.median(np.abs(np.expm1(residual)))),
    )


def robust_spread(residual: Array, free: int) -> float:
    """Standard deviation of residuals, as robust as few of them allow."""
    count = len(residual)
    if count <= free:
        return CORNER
    capped = np.clip(residual, -3.0 * _mad(residual), 3.0 * _mad(residual))
    return float(np.sqrt(np.sum(capped**2) / (count - free)))


def _mad(residual: Array) -> float:
    return max(TO_SIGMA * float(np.median(np.abs(residual))), _TINY)


def _lines(size_bytes: Array, time_s: Array, inside: Array) -> tuple[Array, Array]:
    """Latency and seconds a byte of many lines by reweighted relative least squares: for a start, and to choose breaks.

    ``inside`` holds one row of flags a line: which sizes it is fitted to.
    """
    one, size = 1.0 / time_s, size_bytes / time_s  # what the two numbers are multiplied with, relative to each time
    soft = inside.astype(np.float64)
    latency = per_byte = np.zeros(len(inside))
    for _ in range(ROUNDS):
        a, b, c = soft @ (one * one), soft @ (one * size), soft @ (size * size)
        u, v = soft @ one, soft @ size
        whole = np.maximum(a * c - b * b, _TINY * a * c)
        latency, per_byte = (u * c - v * b) / whole, (v * a - u * b) / whole
        through, flat = latency < 0.0, per_byte <= 0.0
        per_byte = np.where(through, v / c, np.where(flat, _TINY * u / a, per_byte))
        latency = np.where(through, 0.0, np.where(flat, u / a, latency))
        off = np.where(inside, np.abs(latency[:, None] * one + per_byte[:, None] * size - 1.0), np.nan)
        corner = np.maximum(HUBER * TO_SIGMA * np.nanmedian(off, axis=1), 1e-4)
        soft = np.where(inside, np.minimum(1.0, corner[:, None] / np.maximum(np.nan_to_num(off), _TINY)), 0.0)
    return latency, per_byte


def _costs(size_bytes: Array, time_s: Array, inside: Array) -> Array:
    """Sum of Huber's loss of the logarithms, line by line."""
    latency, per_byte = _lines(size_bytes, time_s, inside)
    off = np.abs(np.log((latency[:, None] + per_byte[:, None] * size_bytes) / time_s))
    return np.asarray(np.sum(np.where(inside, np.where(off <= CORNER, off**2, 2.0 * CORNER * off - CORNER**2), 0.0), 1))


def breaks(size_bytes: Array, time_s: Array) -> list[tuple[int, int]]:
    """The spans of one to three lines that Bayes' criterion prefers.

    Args:
        size_bytes: ascending [bytes, (n,)].
        time_s: their times [s, (n,)].

    Returns:
        First and last index of each span.
    """
    count = len(size_bytes)
    if count < LEAST_PIECE:
        return [(0, count - 1)] if count >= 2 else []
    cuts = np.unique(np.linspace(0, count, min(count, MOST_CUTS) + 1).round().astype(int)).tolist()
    spans = [(a, b) for a in cuts for b in cuts if b - a >= LEAST_PIECE]
    place = np.arange(count)
    inside = np.array([(place >= a) & (place < b) for a, b in spans])
    cost = dict(zip(spans, _costs(size_bytes, time_s, inside).tolist(), strict=True))
    best: list[dict[int, tuple[float, list[int]]]] = [{0: (0.0, [0])}]  # by lines: end to least cost and cuts so far
    for _ in range(MOST_PIECES):
        longer: dict[int, tuple[float, list[int]]] = {}
        for (a, b), each in cost.items():
            if a in best[-1]:
                total = best[-1][a][0] + each
                if b not in longer or total < longer[b][0]:
                    longer[b] = (total, [*best[-1][a][1], b])
        best.append(longer)

    def criterion(lines: int) -> float:
        free = 2.0 * lines + BREAK_COST * (lines - 1)
        return count * float(np.log(max(best[lines][count][0] / count, 1e-6))) + free * float(np.log(count))

    chosen = min((lines for lines in range(1, MOST_PIECES + 1) if count in best[lines]), key=criterion)
    return [(a, b - 1) for a, b in pairwise(best[chosen][count][1])]


def fit_bandwidth(size_bytes: Array, time_s: Array) -> Value | None:
    """Size over time that large messages approach.

    Args:
        size_bytes: ascending [bytes, (n,)].
        time_s: their times [s, (n,)].

    Returns:
        The rate [bytes/s]; None where fewer than five sizes of 16 MiB or more were measured.

    Raises:
        MissingLibraryError: scipy is not installed.
    """
    large = size_bytes >= LARGE_BYTES
    if large.sum() < LEAST_LARGE:
        return None
    tail = huber_line(size_bytes[large], time_s[large])
    return Value(tail.bandwidth_bytes_per_s, tail.bandwidth_stderr_bytes_per_s, tail.points)


def fit_latency(size_bytes: Array, time_s: Array, bandwidth_bytes_per_s: float = np.inf) -> Value | None:
    """Time of the smallest messages, less what their bytes take.

    Args:
        size_bytes: ascending [bytes, (n,)].
        time_s: their times [s, (n,)].
        bandwidth_bytes_per_s: of large messages [bytes/s].

    Returns:
        The time [s]; None where fewer than two sizes of 4 KiB or less were measured.

    Raises:
        MissingLibraryError: scipy is not installed.
    """
    small = size_bytes <= SMALL_BYTES
    count = int(small.sum())
    if count < LEAST_SMALL:
        return None
    least = np.maximum(time_s[small] - size_bytes[small] / bandwidth_bytes_per_s, 0.5 * time_s[small])
    middle = float(np.median(least))
    spread = robust_spread(least / middle - 1.0, 1) * middle
    return Value(middle, float(MEDIAN_COST * spread / np.sqrt(count) * small_sample(count, 1)), count)


def fit_lines(size_bytes: Array, time_s: Array) -> Lines:
    """Latency, bandwidth and the compact model of a table.

    Args:
        size_bytes: ascending [bytes, (n,)].
        time_s: their times [s, (n,)].

    Returns:
        The lines.

    Raises:
        MissingLibraryError: scipy is not installed.
    """
    bandwidth = fit_bandwidth(size_bytes, time_s)
    latency = fit_latency(size_bytes, time_s, bandwidth.value if bandwidth is not None else np.inf)
    spans = breaks(size_bytes, time_s)
    return Lines(latency, bandwidth, tuple(huber_line(size_bytes[i : j + 1], time_s[i : j + 1]) for i, j in spans))


def piecewise_time_s(pieces: Sequence[Line], size_bytes: Array) -> Array:
    """What the compact model says; between two pieces, the one whose end is nearer.

    Args:
        pieces: in the order of sizes.
        size_bytes: messages [bytes, (n,)].

    Returns:
        Times [s, (n,)].
    """
    size = np.asarray(size_bytes, dtype=np.float64)
    times = pieces[0].time_s(size)
    for before, piece in pairwise(pieces):
        times = np.where(size * size > before.max_bytes * piece.min_bytes, piece.time_s(size), times)
    return np.asarray(times)
