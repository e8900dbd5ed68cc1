"""What a GPU sustains and what a group of GPUs gets from the network: from numbers by hand or from profiles."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import inf, isfinite, nan
from statistics import median
from typing import Any, NamedTuple

import numpy as np

from dscalc.answers.case import Machine
from dscalc.cost.geometry import place
from dscalc.errors import InputError
from dscalc.frozen import dataclass
from dscalc.specs import store
from dscalc.specs.links import InterconnectSpec
from dscalc.specs.network import Lowered, compose_network, load_interconnect, lower_network
from dscalc.specs.options import BitRate
from dscalc.units import format_rate

MEASURE_RATE = "measure: 6 N tokens/s of one GPU in a real step, or a large bf16 matmul"
MEASURE_LINK = "measure: bus bandwidth of nccl-tests' all_reduce_perf at 1 GiB"
LARGEST_GROUP = 2.0**31  # ranks; beyond, no integer arithmetic of places


class Rate(NamedTuple):
    """One rate in base units, with its origin. ``kind`` as in profiles, or ``given``."""

    value: float
    kind: str
    source: str
    words: str = ""  # how the number came about, for --explain
    wire: float = nan  # of one GPU, before what rings reach of it [bytes/s]


class Level(NamedTuple):
    """One tier of a network: GPUs of a domain (infinity for all), and what one GPU gets inside it."""

    gpus: float
    rate: Rate


@dataclass(frozen=True, slots=True)
class Links:
    """The tiers that join GPUs, inner first; a bandwidth given by hand (``direct``) stands for every group."""

    levels: tuple[Level, ...]
    direct: Rate | None = None
    gpus: float = inf  # of the job: where all fit into a domain, so does every group

    @property
    def node(self) -> float:
        """GPUs of the innermost domain; nan where nothing says."""
        return self.levels[0].gpus if self.levels and isfinite(self.levels[0].gpus) else nan

    @property
    def reach(self) -> float:
        """GPUs of the outermost tier that is known; infinity where all are joined."""
        return self.levels[-1].gpus if self.levels else nan


def refuse_zero(given: Mapping[str, Any]) -> None:
    """Refuse rates of nothing: they would divide by zero.

    Raises:
        InputError: names the option.
    """
    for name, right in (("flops", "400TF"), ("bandwidth", "50GB/s"), ("peak_fraction", "0.4")):
        if given.get(name) == 0.0:
            raise InputError(f"0 is out of range; a value above 0 is right, e.g. {right}", where=_flag(name))


def as_read(rate: float) -> str:
    """How a rate in small letters was understood; nothing to say of any other."""
    return f"{rate.text} is read as bits, b: {format_rate(rate)}; bytes are B" if isinstance(rate, BitRate) else ""


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
    own = machine.cluster.sustained.matmul.of(precision) if machine.cluster is not None else None
    best = own or gpu.matmul.of(precision)
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
def links(given: Mapping[str, Any], machine: Machine, gpus: int) -> Links:
    """The links that profiles and options name.

    Args:
        given: parsed options; reads ``bandwidth``, ``interconnect``, ``gpus_per_node`` and ``profile``.
        machine: the hardware found.
        gpus: GPUs of the job, for a node whose size nobody says.

    Returns:
        The tiers, none where nothing says.

    Raises:
        UnknownNameError: an interconnect that is neither an id nor a rate.
        InputError: an interconnect that does not leave the node.
    """
    if "bandwidth" in given:
        return Links((), Rate(given["bandwidth"], "given", "--bandwidth", as_read(given["bandwidth"])))
    profiles = (given["profile"],) if "profile" in given else ()
    gpu, cluster = machine.gpu, machine.cluster
    named = load_interconnect(given["interconnect"], profiles).spec if "interconnect" in given else None
    if gpu is None:
        return Links(() if named is None else (_alone(named),))
    whole = cluster is not None and named is None and "gpus_per_node" not in given
    if cluster is not None and whole and (cluster.tiers or cluster.scaleout_bytes_per_s):
        return _lowered(lower_network(cluster, profiles))
    if cluster is not None and named is None and cluster.tiers:
        named = load_interconnect(cluster.tiers[-1].interconnect, profiles).spec
    if named is not None:
        return _lowered(compose_network(gpu, given.get("gpus_per_node"), named, cluster=cluster, profiles=profiles))
    domain = float(machine.record.gpus_per_node[0])
    inside = int(domain) if isfinite(domain) else max(2, gpus)
    if inside < 2:
        return Links(())
    # any network will do: only the tier inside the node is kept
    found = _lowered(compose_network(gpu, inside, load_interconnect("ib-ndr", profiles).spec, profiles=profiles))
    return Links((found.levels[0]._replace(gpus=domain if isfinite(domain) else inf),))


def _alone(link: InterconnectSpec) -> Level:
    """A network that GPUs of no profile are on: one NIC for each."""
    value = link.bytes_per_s * link.efficiency.base
    return Level(inf, Rate(value, "assumed", f"{link.id}, one NIC for each GPU: {_share(link.efficiency.base)}"))


def _share(efficiency: float) -> str:
    return f"{efficiency:.3g} of the wire rate"


def _lowered(found: Lowered) -> Links:
    """What rings of the largest messages get on each tier."""
    notes = {note.name: note for note in found.notes}
    levels = []
    for tier in found.network.tiers:
        gpus = float(tier.gpus[0])
        if gpus <= 1.0:
            continue
        wire, share = float(tier.bandwidth_bytes_per_s[0]), float(tier.efficiency[0])
        over = float(tier.oversubscription[0])
        rated, reached = notes[f"{tier.name}/bandwidth"], notes[f"{tier.name}/efficiency"]
        kinds = {rated.kind, reached.kind}
        kind = "assumed" if "assumed" in kinds else rated.kind
        words = f"{tier.name} of {found.network.name}: {rated.source}; {_share(share)}: {reached.source}"
        words += f"; oversubscribed {over:g} times" if over > 1.0 else ""
        levels.append(Level(gpus, Rate(wire * share / over, kind, words, wire=wire)))
    return Links(tuple(levels))


def group_bandwidth(found: Links, group: float, stride: float) -> Rate | None:
    """What one GPU of a group gets across the slowest tier that the group crosses.

    In a ring the members inside a domain share their links outward, so each tier counts once for every member below it.

    Args:
        found: the links.
        group: members; infinity for a group of unknown size, which crosses every tier.
        stride: ranks between neighbours of the group.

    Returns:
        The rate [bytes/s], or None where nothing says how fast the links are.
    """
    if found.direct is not None:
        return found.direct
    slowest: Rate | None = None
    below, left = 1.0, group
    for level in found.levels:
        share = level.rate.value * below
        if slowest is None or share < slowest.value:
            words = ring_words(below, level.rate) if below > 1.0 else ""
            slowest = level.rate._replace(value=share, words=words)
        below, left = _members(group, stride, level.gpus, found.gpus)
        if left <= 1.0:
            return slowest
    if isfinite(group) or slowest is None:
        return None
    return slowest._replace(words="the group is taken to stay inside one node")


def ring_words(members: float, rate: Rate) -> str:
    """How a ring over nodes comes to more than one NIC: the members inside a node share their links outward."""
    wire = (
        f"{format_rate(rate.wire)} x {rate.value / rate.wire:.3g}" if isfinite(rate.wire) else format_rate(rate.value)
    )
    return f"ring over nodes: {members:g} GPUs x {wire}"


def _members(group: float, stride: float, domain: float, gpus: float) -> tuple[float, float]:
    """Members of a group inside one domain, and domains crossed."""
    if not isfinite(domain) or (isfinite(group) and gpus <= domain):
        return group, 1.0
    if not isfinite(group):
        return max(1.0, domain // stride), inf
    at = place(*(np.array([min(x, LARGEST_GROUP)]) for x in (group, stride, domain)))
    return float(at.inside[0]), float(at.domains[0])
