"""What a GPU sustains and what a group of GPUs gets from the network: from numbers by hand or from profiles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from statistics import median
from typing import Any, NamedTuple, Protocol

import numpy as np

from dscalc.answers.case import Machine
from dscalc.cost.geometry import place
from dscalc.cost.ratio import ring_bandwidth_bytes_per_s
from dscalc.errors import InputError, UnitError
from dscalc.specs import store
from dscalc.specs.hardware import GpuSpec
from dscalc.units import parse_bandwidth

MEASURE_RATE = "measure: 6 N tokens/s of one GPU in a real step, or a large bf16 matmul"
MEASURE_LINK = "measure: bus bandwidth of nccl-tests' all_reduce_perf at 1 GiB"
LARGEST_GROUP = 2.0**31  # ranks; beyond, no integer arithmetic of places


class Stated(Protocol):
    """One number of a profile."""

    @property
    def base(self) -> float:
        """In base units."""

    @property
    def kind(self) -> str:
        """How it is known."""

    @property
    def source(self) -> str:
        """Where it is from."""


class Rate(NamedTuple):
    """One rate in base units, with its origin. ``kind`` as in profiles, or ``given``."""

    value: float
    kind: str
    source: str
    words: str = ""  # how the number came about, for --explain


@dataclass(frozen=True, slots=True)
class Links:
    """What joins GPUs: inside a domain of ``domain`` GPUs, and between domains; None where nothing says."""

    inner: Rate | None
    outer: Rate | None
    domain: float  # GPUs; nan where nothing says
    direct: Rate | None = None  # a bandwidth given by hand stands for every group


def refuse_zero(given: Mapping[str, Any]) -> None:
    """Refuse rates of nothing: they would divide by zero.

    Raises:
        InputError: names the option.
    """
    for name, right in (("flops", "400TF"), ("bandwidth", "50GB/s"), ("peak_fraction", "0.4")):
        if given.get(name) == 0.0:
            raise InputError(f"0 is out of range; a value above 0 is right, e.g. {right}", where=_flag(name))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


# ------------------------------------------------------------------------------------------------------------ computing
def compute_rate(given: Mapping[str, Any], machine: Machine, precision: str) -> Rate:
    """What one GPU sustains on matrix products.

    Args:
        given: parsed options; reads ``flops`` and ``peak_fraction``.
        machine: the hardware found.
        precision: data type of the matrix products.

    Returns:
        The rate [FLOP/s].

    Raises:
        InputError: nothing says how fast a GPU computes, or two options do.
    """
    fraction = given.get("peak_fraction")
    if "flops" in given:
        if fraction is not None:
            raise InputError(
                "is a share of a GPU's peak, but --flops already is what a GPU sustains; give one of them",
                where="--peak-fraction",
            )
        return Rate(given["flops"], "given", "--flops")
    gpu = machine.gpu
    if gpu is None:
        if fraction is not None:
            raise InputError("is a share of which peak? Add --gpu H100-SXM5-80GB", where="--peak-fraction")
        raise InputError(
            "nothing says how fast a GPU computes; add --flops 400TF or --gpu H100-SXM5-80GB", where="--flops"
        )
    try:
        peak = gpu.peak_flop_per_s(precision)
    except InputError as error:
        raise InputError(error.message, where="--precision") from None
    record = gpu.peak.of(precision)
    printed = record.kind if record else "datasheet"
    if fraction is not None:
        words = f"{fraction:g} of the {precision} peak"
        return Rate(fraction * peak, "given", f"--peak-fraction {fraction:g} of {gpu.id}", words)
    best = gpu.matmul.of(precision)
    if best is not None:
        note = f" ({best.note})" if best.note else ""
        return Rate(best.base, best.kind, f"matmul of {gpu.id}: {best.source}{note}", f"best {precision} matmul")
    share, count = matmul_share(gpu.vendor)
    words = f"{share:.2f} of the {precision} peak"
    source = f"{printed} peak of {gpu.id} times the median share that {count} measured parts reach in a matmul"
    return Rate(share * peak, "assumed", source, words)


@lru_cache(maxsize=8)
def matmul_share(vendor: str) -> tuple[float, int]:
    """The median share of its bf16 peak that a matmul reached on shipped parts, of this vendor where one was measured.

    Args:
        vendor: as the profiles write it.

    Returns:
        The share, and how many parts it is taken from.
    """
    shares: dict[str, list[float]] = {}
    for name in store.gpu_ids():
        spec = store.load_gpu(name).spec
        best, peak = spec.matmul_flop_per_s("bf16"), spec.peak.of("bf16")
        if best and peak and peak.base:
            shares.setdefault(spec.vendor, []).append(best / peak.base)
    same = shares.get(vendor) or [share for group in shares.values() for share in group]
    return float(median(same)), len(same)


# -------------------------------------------------------------------------------------------------------------- network
def links(given: Mapping[str, Any], machine: Machine) -> Links:
    """The links that profiles and options name.

    Args:
        given: parsed options; reads ``bandwidth``, ``interconnect`` and ``gpus_per_node``.
        machine: the hardware found.

    Returns:
        Links, each None where nothing says.

    Raises:
        InputError: an interconnect that is neither an id nor a rate.
    """
    direct = Rate(given["bandwidth"], "given", "--bandwidth") if "bandwidth" in given else None
    named = _interconnect(given["interconnect"], given.get("profile")) if "interconnect" in given else None
    gpu, cluster = machine.gpu, machine.cluster
    domain = float(machine.record.gpus_per_node[0])
    inner = _inside(gpu) if gpu else None
    if cluster is not None:
        if "gpus_per_node" not in given:
            domain = float(max(cluster.gpus_in_node, cluster.gpus_in_scaleup_domain or 1))
        inner = _rate(cluster.intra_bandwidth, f"{cluster.intra_link or 'links'} inside {cluster.id}") or inner
        outer = outer or _rate(
            cluster.scaleout_bandwidth, f"{cluster.network or 'network'} of {cluster.id}, share of one GPU"
        )
    return Links(inner, outer, domain, direct)


def _inside(gpu: GpuSpec) -> Rate | None:
    return _rate(gpu.scaleup_bandwidth, f"{gpu.scaleup_link or 'scale-up links'} of {gpu.id}") or _rate(
        gpu.pcie_bandwidth, f"PCIe of {gpu.id}"
    )


def _rate(record: Stated | None, what: str) -> Rate | None:
    return None if record is None or not record.base else Rate(record.base, record.kind, f"{what}: {record.source}")


def _interconnect(text: str) -> Rate:
    """An interconnect by rate: what one GPU gets, one direction."""
    try:
        value = parse_bandwidth(text)
    except UnitError as error:
        raise InputError(f"{error.message}; it is what one GPU gets in one direction", where="--interconnect") from None
    if not value:
        raise InputError("0 is out of range; a rate above 0 is right, e.g. 400Gb/s", where="--interconnect")
    return Rate(value, "given", f"--interconnect {text}, taken as the share of one GPU")


def group_bandwidth(found: Links, group: float, stride: float) -> Rate | None:
    """What one GPU of a group gets across the slowest tier that the group crosses.

    Args:
        found: the links.
        group: members; infinity for a group of unknown size, which crosses every tier.
        stride: ranks between neighbours of the group.

    Returns:
        The rate [bytes/s], or None where nothing says how fast the links are.
    """
    if found.direct is not None:
        return found.direct
    inner, outer = found.inner, found.outer
    if not np.isfinite(group):
        whole = found.domain if np.isfinite(found.domain) else 1.0
        if outer is None:
            return inner and _remarked(inner, "group taken to stay inside one node")
        inside, domains = max(1.0, whole // stride), 2.0
    elif np.isfinite(found.domain):
        members, step = min(group, LARGEST_GROUP), min(stride, LARGEST_GROUP)
        at = place(np.array([members]), np.array([step]), np.array([found.domain]))
        inside, domains = float(at.inside[0]), float(at.domains[0])
    else:
        inside, domains = 1.0, 1.0 if outer is None else 2.0
    if domains > 1.0 and outer is None:
        return None
    if domains == 1.0:
        return inner or (outer and _remarked(outer, "the network, for want of a link inside the node"))
    assert outer is not None  # noqa: S101 - for the type checker: no outer link was answered above
    limit = inner.value if inner else outer.value
    value = float(ring_bandwidth_bytes_per_s(*(np.array([x]) for x in (limit, outer.value, inside, domains)))[0])
    if inner and value == inner.value:
        return _remarked(inner, "slower than what its GPUs together get from the network")
    words = f"{inside:g} GPUs of the group in a domain share their links outward" if inside > 1 else ""
    return Rate(value, outer.kind, outer.source, words)


def _remarked(rate: Rate, words: str) -> Rate:
    return rate._replace(words=words)
