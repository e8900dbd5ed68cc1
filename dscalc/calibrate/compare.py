"""Measured collectives beside what a described cluster of that kind should give."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dscalc.calibrate.fit import Fit
from dscalc.calibrate.series import Key
from dscalc.calibrate.tier_rates import placed
from dscalc.cost.collectives import collective
from dscalc.cost.measured import bus_volume
from dscalc.records import Network
from dscalc.specs.hardware import ClusterSpec
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
            | {"groups_at_once": key.groups > 1}
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
