"""The error bar of a measured table: how far each size lies from the line through its neighbours."""

from __future__ import annotations

import numpy as np

from dscalc.records import Array

LEAST_SIZES = 5  # that tell of a spread
UNKNOWN = 0.15  # half-width where a table has fewer
BAR = 1.45  # half-width over the blended spread, set on public logs: docs/explanation/calibration.md
LOCAL = 0.5  # share of the nearest sizes in the blend, the rest is the table's median
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
    floor = np.full(count, LEAST) if noise is None else np.maximum(np.nan_to_num(noise, nan=0.0), LEAST)
    if count < LEAST_SIZES:
        return np.asarray(np.maximum(floor, UNKNOWN))
    off = np.abs(left_out(size_bytes, time_s))
    off[0], off[-1] = off[1], off[-2]  # the ends have one neighbour: as the sizes beside them
    around = np.stack([np.roll(off, 1), off, np.roll(off, -1)])
    around[0, 0], around[2, -1] = off[0], off[-1]
    blend = LOCAL * around.mean(axis=0) + (1.0 - LOCAL) * float(np.median(off[1:-1]))
    return np.asarray(np.maximum(floor, BAR * blend))
