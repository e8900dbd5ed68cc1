"""Measured collectives beside what a described cluster of that kind should give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dscalc.calibrate.fit import Fit
from dscalc.calibrate.fit_compute import Gemm, Memory
from dscalc.calibrate.profile import UNSAID
from dscalc.calibrate.series import Key
from dscalc.calibrate.tier_rates import placed
from dscalc.cost.collectives import collective
from dscalc.cost.measured import bus_volume
from dscalc.records import Network
from dscalc.specs.cluster import ClusterSpec
from dscalc.specs.hardware import GpuSpec
from dscalc.specs.measured import CurveSpec, lower_curves
from dscalc.units import KIB

SLOW = 0.70  # of the usual rate: below, something is wrong
FAST = 1.30  # above, the log is of other hardware, or of fewer ranks at a time
SMALL_BYTES = 4.0 * KIB  # where latency is looked at


class Compared(NamedTuple):
    """One collective and group: bus bandwidth and small-message time beside the usual ones."""

    key: Key
    size_bytes: float
    busbw_bytes_per_s: float
    usual_busbw_bytes_per_s: float
    fraction: float  # measured over usual
    published_busbw_bytes_per_s: float | None  # of the same op and nodes, where the described cluster has one
    latency_s: float | None
    usual_latency_s: float | None
    verdict: str  # usual | slow | fast
    causes: tuple[str, ...]


class Kernel(NamedTuple):
    """What one GPU sustains beside what is known of its kind."""

    what: str
    measured: float  # FLOP/s or bytes/s
    usual: float
    fraction: float
    verdict: str  # usual | slow
    causes: tuple[str, ...]


SLOW_GPU = 0.85  # of the best product known, or of the rate that copies reach
SLOW_GPU_CAUSES = (
    "clocks are held down by power or heat: nvidia-smi -q -d PERFORMANCE,CLOCK under load",
    "another process uses the GPU, or it is a part of one (MIG)",
    "shapes that the library does not like: sizes that are no multiple of 64, or too few rows",
)
COPIES = 0.90  # of the datasheet bandwidth: what a large copy reaches


def compare_gpu(gemms: Sequence[Gemm], copies: Sequence[Memory], gpu: GpuSpec) -> tuple[Kernel, ...]:
    """Products and copies beside the best product known of a GPU and the rate of its memory.

    Args:
        gemms: what products reach.
        copies: what copies reach.
        gpu: the GPU as it ships.

    Returns:
        One entry for each that something is known of.
    """
    pairs = []
    for gemm in gemms:
        best = gpu.matmul_flop_per_s(gemm.dtype or UNSAID)
        if best and gemm.large:
            pairs.append((f"{gemm.dtype or UNSAID} matrix products", gemm.reached_flop_per_s, best))
    peak = gpu.memory_bandwidth_bytes_per_s
    pairs += [("memory", copy.bytes_per_s, COPIES * peak) for copy in copies if peak]
    return tuple(
        Kernel(what, measured, usual, measured / usual, *_verdict(measured / usual)) for what, measured, usual in pairs
    )


def _verdict(fraction: float) -> tuple[str, tuple[str, ...]]:
    return ("slow", SLOW_GPU_CAUSES) if fraction < SLOW_GPU else ("usual", ())


INSIDE = (
    "peer-to-peer is off (NCCL_P2P_DISABLE, IOMMU or PCIe ACS on): NCCL_DEBUG=INFO then shows channels via SHM",
    "fewer links are up than the board has: nvidia-smi nvlink -s on every GPU",
    "the switch does not reduce (fabric manager down, NCCL_NVLS_ENABLE=0): run with NCCL_DEBUG_SUBSYS=TUNING",
    "another job uses the GPUs",
)
SOCKETS = (
    "traffic goes over TCP sockets instead of RDMA (seen: 4 times slower without the fabric's plugin, 60 times over "
    "IPoIB): NCCL_DEBUG=INFO must say NET/IB or the plugin's name, not NET/Socket",
    "the wrong interface carries it: NCCL_SOCKET_IFNAME and NCCL_IB_HCA, exact with a leading =",
    "the plugin does not match the library: the wheel's own libnccl wins over a module's",
)
HALF = (
    "part of a node's NICs is idle or down: NCCL_IB_HCA, ibstat, and a pair test of every two nodes",
    "GPUDirect RDMA is off (nvidia_peermem not loaded, ACS on): NCCL_DEBUG=INFO must say GDRDMA",
    "one bad NIC, cable or node slows the whole ring: halve the nodes and test again",
    "congestion: PFC, ECN and adaptive routing of the fabric; other jobs on the same leaf",
)
PAIRS = (
    "a pair of ranks uses few channels by default: try NCCL_NCHANNELS_PER_NET_PEER and NCCL_P2P_NET_CHUNKSIZE",
    "both ends are far from their NIC (PXN off, wrong affinity): nvidia-smi topo -m",
)
SOCKET_SHARE = 0.3  # of the usual: less is another transport


def compare(fits: Sequence[Fit], cluster: ClusterSpec, network: Network) -> tuple[Compared, ...]:
    """Every measured group beside the same on a described cluster.

    Args:
        fits: what was measured.
        cluster: the cluster as it ships.
        network: its network, without curves.

    Returns:
        One entry a group, in the order of the fits.
    """
    bare = replace(network, curves=())
    found = []
    for fit in fits:
        key, size = fit.series.key, float(fit.series.size_bytes[-1])
        spec = CurveSpec.trusted(
            {"op": key.op, "ranks": key.ranks, "nodes": key.nodes, "sizes": (size,), "times": (1.0,)}
            | {"error_fractions": (0.0,), "kind": "measured", "source": fit.series.source}
            | {"groups": key.groups}
        )
        curve = lower_curves([spec], bare.tiers, cluster.gpus_in_node)[0]
        group, inside, domains, _ = placed(curve, bare)
        sizes = np.array([size, SMALL_BYTES])
        usual = collective(key.op, sizes, np.repeat(group, 2), np.repeat(inside, 2, 1), np.repeat(domains, 2, 1), bare)
        volume = float(bus_volume(key.op, group)[0])
        measured = volume * size / float(fit.series.time_s[-1])
        modelled = volume * size / float(usual.time_s[0])
        fraction = measured / modelled
        verdict = "slow" if fraction < SLOW else "fast" if fraction > FAST else "usual"
        latency = fit.lines.latency_s
        found.append(
            Compared(
                key,
                size,
                measured,
                modelled,
                fraction,
                _published(cluster, key),
                latency.value if latency else None,
                float(usual.time_s[1]) if latency else None,
                verdict,
                _causes(key, fraction) if verdict == "slow" else (),
            )
        )
    return tuple(found)


def _published(cluster: ClusterSpec, key: Key) -> float | None:
    """The best published bus bandwidth of the same collective on as many nodes; acceptance thresholds do not count."""
    rates = [
        row.busbw_bytes_per_s
        for row in cluster.busbw
        if row.op == key.op and row.nodes == key.nodes and not row.pass_limit and row.gpus in (None, key.ranks)
    ]
    return max(rates, default=None)


def _causes(key: Key, fraction: float) -> tuple[str, ...]:
    if key.nodes == 1:
        return INSIDE
    if key.op == "send-recv" and fraction >= SOCKET_SHARE:
        return (*PAIRS, *HALF[:2])
    return SOCKETS if fraction < SOCKET_SHARE else HALF
