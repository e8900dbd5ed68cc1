"""The shipped cluster that measurements are set beside: of the same GPU, node and network, and why that one."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dscalc.answers.envelope import Warning
from dscalc.calibrate.compare import Compared, Kernel, compare, compare_gpu
from dscalc.calibrate.fit import Calibration, Fit
from dscalc.calibrate.log_network import SOCKETS, goes_over
from dscalc.calibrate.measurements import Read
from dscalc.calibrate.profile import Base, profile_text
from dscalc.errors import DscalcError, InputError
from dscalc.specs.cluster import ClusterSpec
from dscalc.specs.hardware import GpuSpec
from dscalc.specs.network import lower_network
from dscalc.specs.store import cluster_ids, load_cluster
from dscalc.units import format_rate

USUAL_PROVIDER = "on-prem"  # nobody's cloud: nodes as their maker describes them
STANDARD: dict[str, Any] = {"model": "llama-3-8b", "zero": 3, "seq_len": 4096}  # a layout that most networks see
MOST_NAMED = 6  # clusters that a line names


class Effect(NamedTuple):
    """A standard layout's step on the shipped cluster, and with what was measured."""

    words: str
    gpus: int
    usual_s: float
    measured_s: float


class Beside(NamedTuple):
    """Measurements beside a shipped cluster.

    Attributes:
        cluster: the shipped one.
        why: why that one.
        groups: each collective beside it.
        kernels: products and copies beside what is known of the GPU.
        effect: what the difference does to a step, or why that is not known.
        warnings: what is slow.
    """

    cluster: ClusterSpec
    why: str
    groups: tuple[Compared, ...]
    kernels: tuple[Kernel, ...]
    effect: Effect | str
    warnings: tuple[Warning, ...]


def beside(
    found: Calibration, read: Sequence[Read], base: Base, record: Mapping[str, Any], given: Mapping[str, Any], name: str
) -> Beside:
    """Set measurements beside the shipped cluster of their kind.

    Args:
        found: the fits.
        read: the logs, which may name their network.
        base: what was measured on.
        record: the profile made of it.
        given: parsed options; reads ``cluster`` and ``interconnect``.
        name: a cluster that the user names; empty: the kind says which.

    Returns:
        The comparison.

    Raises:
        InputError: no cluster of that kind ships, or the one named has another GPU.
    """
    others: Sequence[ClusterSpec] = ()
    networks = list(dict.fromkeys(file.network for file in read if file.network))
    if name:
        cluster, why = _named(name, base), "as --compare-with says"
    elif base.cluster is not None and "cluster" in given:
        cluster, why = base.cluster, "as --cluster says"
    else:
        cluster, why, others = _of_the_kind(found.fits, base, networks, sized="gpus_per_node" in given)
    groups = compare(found.fits, cluster, lower_network(cluster).network)
    kernels = compare_gpu(found.gemms, found.copies, base.gpu)
    usual_elsewhere = _elsewhere(found, groups, others)
    warnings = [*_slow_links(groups, cluster, usual_elsewhere), *_slow_kernels(kernels, base.gpu)]
    if SOCKETS in networks and any(each.verdict == "slow" and each.key.nodes > 1 for each in groups):
        text = "the log says that traffic between nodes went over TCP sockets"
        warnings.append(Warning("over_sockets", text, "find out why NCCL did not take the fabric: NCCL_DEBUG=INFO"))
    return Beside(cluster, why, groups, kernels, _effect(cluster, record, found), tuple(warnings))


def _named(name: str, base: Base) -> ClusterSpec:
    try:
        cluster = load_cluster(name).spec
    except DscalcError as error:
        raise InputError(error.message, where="--compare-with") from None
    if cluster.gpu != base.gpu.id:
        raise InputError(
            f"{cluster.id} has {cluster.gpu}, but what was measured is {base.gpu.id}", where="--compare-with"
        )
    if not cluster.tiers:
        raise InputError(f"{cluster.id} says nothing of its links", where="--compare-with")
    return cluster


def _of_the_kind(
    fits: Sequence[Fit], base: Base, networks: Sequence[str], *, sized: bool
) -> tuple[ClusterSpec, str, Sequence[ClusterSpec]]:
    """The shipped cluster with such a GPU, node and network, why, and which others there are."""
    same, nodes = _with_such_nodes(fits, base, sized=sized)
    alone = all(fit.series.key.nodes == 1 for fit in fits)  # one node alone does not use the network
    fabrics = [network for network in networks if network != SOCKETS]
    said, fitting = "", same
    if base.interconnect is not None:
        said = f"{base.interconnect.id}, as --interconnect says"
        fitting = [c for c in same if c.tiers[-1].interconnect == base.interconnect.id]
    elif len(fabrics) == 1:
        said = f"{fabrics[0]}, which the log names"
        fitting = [c for c in same if goes_over(c.tiers[-1].interconnect, fabrics[0])]
    if not fitting and not alone:
        raise InputError(
            f"no shipped cluster has {nodes} on {said}; there are {_listed(same)}; --compare-with names one of them",
            where="--compare",
        )
    left = fitting or same
    slower = [c for c in left if any(e.verdict == "fast" for e in compare(fits, c, lower_network(c).network))]
    if len(slower) == len(left):
        slower = []  # too fast for every one of them: the comparison says so
    left = [c for c in left if c not in slower]
    own = [c for c in left if c.provider.startswith(USUAL_PROVIDER)]
    chosen = own[0] if own else min(left, key=lambda c: (_rate_of(c), c.id))
    others = [c for c in left if c is not chosen]
    kind = nodes + (f" on {said}" if said and fitting else "")
    kind += f" fast enough for what was measured, which {_listed(slower)} {_are(slower)} not" if slower else ""
    if not others:
        return chosen, f"the only shipped cluster with {kind}", ()
    rule = "nobody's cloud" if own else "the one with the slowest network"
    named = f"; the logs name {' and '.join(fabrics)}" if fabrics else "; no log names its network"
    unsaid = "" if said or alone else named
    return chosen, f"{rule}, of {len(left)} shipped clusters with {kind}{unsaid}; others: {_listed(others)}", others


def _are(clusters: Sequence[ClusterSpec]) -> str:
    return "is" if len(clusters) == 1 else "are"


def _with_such_nodes(fits: Sequence[Fit], base: Base, *, sized: bool) -> tuple[list[ClusterSpec], str]:
    """Shipped clusters with such nodes, and what such nodes are."""
    kinds = [load_cluster(name).spec for name in cluster_ids()]
    kinds = [c for c in kinds if c.gpu == base.gpu.id and c.tiers and not c.faults]
    same = [c for c in kinds if c.gpus_in_node == base.gpus_per_node]
    if same:
        return same, f"nodes of {base.gpus_per_node} {base.gpu.id}"
    used = max((-(-fit.series.key.ranks // fit.series.key.nodes) for fit in fits), default=1)
    hold = [] if sized else sorted((c for c in kinds if c.gpus_in_node >= used), key=lambda c: c.gpus_in_node)
    if not hold:
        hint = f" ({_listed(kinds)} have another number of them)" if kinds else ""
        raise InputError(
            f"no shipped cluster has nodes of {base.gpus_per_node} {base.gpu.id}{hint}; --compare-with names one",
            where="--compare",
        )
    count = hold[0].gpus_in_node  # nobody said how many GPUs a node has
    return [c for c in hold if c.gpus_in_node == count], f"nodes of {count} {base.gpu.id}"


def _rate_of(cluster: ClusterSpec) -> float:
    return cluster.tiers[-1].bandwidth.base


def _listed(clusters: Sequence[ClusterSpec]) -> str:
    names = [f"{c.id} ({c.tiers[-1].interconnect})" for c in clusters[:MOST_NAMED]]
    more = f" and {len(clusters) - MOST_NAMED} more" if len(clusters) > MOST_NAMED else ""
    return ", ".join(names) + more


def _elsewhere(
    found: Calibration, groups: Sequence[Compared], others: Sequence[ClusterSpec]
) -> dict[int, list[tuple[str, float]]]:
    """For groups that are slow: clusters of that kind for which they would be usual."""
    slow = [i for i, each in enumerate(groups) if each.verdict == "slow"]
    usual: dict[int, list[tuple[str, float]]] = {i: [] for i in slow}
    for cluster in others if slow else ():
        there = compare([found.fits[i] for i in slow], cluster, lower_network(cluster).network)
        for i, each in zip(slow, there, strict=True):
            if each.verdict == "usual":
                usual[i].append((cluster.id, each.fraction))
    return usual


def _slow_links(
    groups: Sequence[Compared], cluster: ClusterSpec, elsewhere: Mapping[int, Sequence[tuple[str, float]]]
) -> Iterator[Warning]:
    for i, each in enumerate(groups):
        if each.verdict != "slow":
            continue
        there = elsewhere.get(i, ())
        also = ", ".join(f"{fraction:.0%} for {name}" for name, fraction in there[:MOST_NAMED])
        yield Warning(
            "slow_link",
            f"{each.key.words} reaches {format_rate(each.busbw_bytes_per_s)} of bus bandwidth, "
            f"{each.fraction:.0%} of what {cluster.id} gives ({format_rate(each.usual_busbw_bytes_per_s)})"
            + (f"; it would be {also}" if also else ""),
            f"{each.causes[0]}; or name what it is with --compare-with {there[0][0]}" if there else each.causes[0],
        )


def _slow_kernels(kernels: Sequence[Kernel], gpu: GpuSpec) -> Iterator[Warning]:
    for each in kernels:
        if each.verdict == "slow":
            yield Warning(
                "slow_gpu", f"{each.what} reach {each.fraction:.0%} of what is usual on {gpu.id}", each.causes[0]
            )


def _effect(usual: ClusterSpec, record: Mapping[str, Any], found: Calibration) -> Effect | str:
    """A standard layout's step with and without what was measured; why there is none."""
    from dscalc.answers.step import step

    ranks = [fit.series.key.ranks for fit in found.fits if fit.series.key.nodes > 1]
    gpus = max(ranks, default=usual.gpus_in_node)
    gpus = max(usual.gpus_in_node, gpus // usual.gpus_in_node * usual.gpus_in_node)
    measured = {gemm.dtype for gemm in found.gemms if gemm.large}
    standard = STANDARD | ({"precision": "fp8"} if measured == {"fp8"} else {})
    in_fp8 = " in fp8" if measured == {"fp8"} else ""
    words = f"{STANDARD['model']} with ZeRO-{STANDARD['zero']}{in_fp8} on {gpus} GPUs"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "measured.json"
        file.write_text(profile_text(record), encoding="utf-8")
        try:
            before = step(**standard, cluster=usual.id, gpus=gpus)
            after = step(**standard, profile=str(file), gpus=gpus)
        except DscalcError as error:  # a part that no step is predicted for
            return f"A step of {words} is not predicted: {error.message.replace(str(file), 'the profile')}."
    return Effect(words, gpus, before.step_time_s, after.step_time_s)
