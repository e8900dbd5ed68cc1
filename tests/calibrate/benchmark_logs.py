"""Logs of nccl-tests with a known truth: a line with noise, printed as the program prints it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

H100 = "NVIDIA H100 80GB HBM3"
VOLUMES = {
    "all_reduce": lambda n: 2.0 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "broadcast": lambda _: 1.0,
    "send_recv": lambda _: 1.0,
}
SPIKES, SPIKE = 0.03, 0.15  # share of rows that something disturbed, and by how much in the logarithm


def sizes(least: int = 3, most: int = 33) -> NDArray[np.float64]:
    """Powers of two from 2^least to 2^most bytes."""
    return 2.0 ** np.arange(least, most + 1)


def noisy(times_s: NDArray[np.float64], rng: np.random.Generator, sigma: float = 0.018) -> NDArray[np.float64]:
    """Times as a benchmark sees them: 1.2 % in the median, and now and then something in the way."""
    off = rng.normal(0.0, sigma, len(times_s))
    spikes = np.where(rng.random(len(times_s)) < SPIKES, np.abs(rng.normal(SPIKE, 0.1, len(times_s))), 0.0)
    return np.asarray(times_s * np.exp(off + spikes))


def log_text(
    op: str,
    ranks: int,
    nodes: int,
    size_bytes: Sequence[float] | NDArray[np.float64],
    time_s: Sequence[float] | NDArray[np.float64],
    gpu: str = H100,
    wrong: Sequence[int] = (),
) -> str:
    """The log of one run."""
    lines = [
        "# nccl-tests version 2.17.6 nccl-headers=22809 nccl-library=22809",
        f"# Collective test starting: {op}_perf",
        f"# nThread 1 nGpus 1 minBytes {size_bytes[0]:.0f} maxBytes {size_bytes[-1]:.0f} step: 2(factor) "
        "warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0",
        "#",
        "# Using devices",
    ]
    each = ranks // nodes
    lines += [
        f"#  Rank {rank:2d} Group  0 Pid {1000 + rank} on node{rank // each:03d} device {rank % each:2d} "
        f"[0000:{16 + rank % each:02x}:00] {gpu}"
        for rank in range(ranks)
    ]
    lines += [
        "#",
        "#                                                              out-of-place                       in-place",
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw"
        " #wrong",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)",
    ]
    rates = []
    for number, (size, seconds) in enumerate(zip(size_bytes, time_s, strict=True)):
        cells = []
        for twin in (1.0, 1.01):
            algbw = size / (seconds * twin) / 1e9
            busbw = algbw * VOLUMES[op](ranks)
            rates.append(busbw)
            cells.append(f"{seconds * twin * 1e6:8.2f} {algbw:7.2f} {busbw:7.2f} {7 if number in wrong else 0:6d}")
        lines.append(f"{size:12.0f} {size / 4:13.0f}     float     sum      -1 {cells[0]} {cells[1]}")
    lines += [f"# Out of bounds values : {len(wrong)} OK", f"# Avg bus bandwidth    : {np.mean(rates):g}", "#"]
    return "\n".join(lines) + "\n"
