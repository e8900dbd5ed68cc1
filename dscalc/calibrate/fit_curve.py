"""The error bar of a measured table: how far each size lies from the line through its neighbours."""

from __future__ import annotations

import numpy as np

from dscalc.records import Array
from dscalc.specs.measured import WIDEST_ERROR

LEAST_SIZES = 5  # that tell of a spread
UNKNOWN = 0.15  # half-width where a table has fewer
# half-widths, set on public logs (docs/explanation/calibration.md):
TYPICAL = 1.35  # over the median distance in the table, where nothing bends
BENT = 0.54  # over the distance of a size itself and the mean of those of its neighbours, where a protocol changes
LEAST = 0.002  # no clock is better


def left_out(size_bytes: Array, time_s: Array) -> Array:
    """How far each time lies from the log-log line through its neighbours; nan at both ends.

    Args:
        size_bytes: ascending [bytes, (n,)].
        time_s: their times [s, (n,)].

    Returns:
        Logarithm of measured over interpolated [1, (n,)].
    """
    x, y = np.log(size_bytes), np.log(time_s)
    found = np.full(len(x), np.nan)
    if len(x) > 2:
        share = (x[1:-1] - x[:-2]) / (x[2:] - x[:-2])
        found[1:-1] = y[1:-1] - (y[:-2] + share * (y[2:] - y[:-2]))
    return found


def error_bars(size_bytes: Array, time_s: Array, noise: Array | None = None) -> Array:
    """Half-width of the 80 % bar of each time, in the logarithm.

    Args:
        size_bytes: ascending [bytes, (n,)].
        time_s: their times [s, (n,)].
        noise: how far repetitions lie apart, nan where unknown [1, (n,)].

    Returns:
        Half-widths [1, (n,)].
    """
    count = len(size_bytes)
    floor = np.full(count, LEAST) if noise is None else np.clip(np.nan_to_num(noise, nan=0.0), LEAST, WIDEST_ERROR)
    if count < LEAST_SIZES:
        return np.asarray(np.maximum(floor, UNKNOWN))
    off = np.abs(left_out(size_bytes, time_s))
    off[0], off[-1] = off[1], off[-2]  # the ends have one neighbour: as the sizes beside them
    padded = np.pad(off, 1, mode="edge")
    beside = 0.5 * (padded[:-2] + padded[2:])
    width = np.maximum(TYPICAL * float(np.median(off[1:-1])), BENT * (off + beside))
    return np.asarray(np.clip(width, floor, WIDEST_ERROR))
