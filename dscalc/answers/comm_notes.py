"""Warnings about what a layout sends: groups that straddle, links that wait, numbers that nobody measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import TYPE_CHECKING

from dscalc.answers.comm_network import MEASURE
from dscalc.answers.envelope import Warning
from dscalc.units import format_bytes, format_count, format_time

if TYPE_CHECKING:
    from dscalc.answers.comm import CommAnswer, Row

LEAST_SHARE = 0.3  # of the rate that large messages reach
WORTH_TELLING = 0.02  # of the time of all calls
SMALL_MESSAGES = {
    "dp": "reduce larger buckets (or larger FSDP units), or fewer times a step (gradient accumulation with no-sync)",
    "edp": "reduce larger buckets, or fewer times a step",
    "tp": "raise --micro-batch or --seq-len, lower --tp, or fuse calls",
    "cp": "raise --seq-len or lower --cp",
    "ep": "raise --micro-batch, lower --ep, or fuse the exchange (DeepEP-like kernels)",
    "etp": "raise --micro-batch or lower --etp",
    "pp": "raise --micro-batch",
}


def warnings_of(found: CommAnswer, algorithms: Mapping[str, str], too_large: bool) -> Iterator[Warning]:
    """Warnings about an answer, the gravest first.

    Args:
        found: the answer so far.
        algorithms: what was forced, by operation.
        too_large: the layout does not fit in memory.
    """
    yield from _groups(found)
    yield from _small_messages(found)
    if too_large:
        yield Warning(
            "does_not_fit",
            "this layout does not fit in the memory of the GPU",
            "ask dscalc memory with the same options what would help",
        )
    for row in found.rows:
        if row.measured:
            continue
        wanted = algorithms.get(row.op, row.algorithm)
        if wanted != row.algorithm:
            yield Warning(
                "algorithm_not_possible",
                f"{wanted} cannot run the {row.axis} {row.op} of {row.group} on these links; {row.algorithm} is shown",
                "force another, or leave the choice open",
            )
    beyond = [row for row in found.rows if row.extrapolated and _tells(row, found)]
    yield from _outside([row for row in beyond if row.measured])
    beyond = [row for row in beyond if not row.measured]
    if beyond:
        yield Warning(
            "extrapolated",
            f"{_listed(beyond)}: message or group beyond what published measurements span",
            MEASURE,
        )
    assumed = [n.name for n in (found.network.notes if found.network else ()) if n.kind == "assumed"]
    if assumed and found.rows:
        yield Warning("network_assumed", f"taken for granted, not measured: {', '.join(assumed)}", MEASURE)


def _outside(rows: list[Row]) -> Iterator[Warning]:
    """Calls that a measured curve stands for without having been measured itself."""
    if not rows:
        return
    widest = max(rows, key=lambda row: row.high_s / row.low_s)
    yield Warning(
        "extrapolated",
        f"{_listed(rows)}: no log has this group or size; bracketed from {widest.measured}, "
        f"{format_time(widest.low_s)} to {format_time(widest.high_s)} for {widest.axis} {widest.op}",
        f"run nccl-tests with {widest.group} ranks as this group lies ({widest.members_inside} in a domain) up to "
        f"{format_bytes(widest.bytes)}, and fit its log too",
    )


def _tells(row: Row, found: CommAnswer) -> bool:
    return row.time_s >= WORTH_TELLING * found.total.time_s


def _listed(rows: list[Row]) -> str:
    return ", ".join(dict.fromkeys(f"{row.axis} {row.op}" for row in rows))


def _groups(found: CommAnswer) -> Iterator[Warning]:
    """Groups that lie badly on the domains of the network."""
    if found.network is None or found.case is None:
        return
    tiers, spec = found.network.network.tiers, found.case.layout.spec
    width = float(tiers[0].gpus[0])
    names = {tier.name: level for level, tier in enumerate(tiers)}
    inner = tiers[0].name
    uneven = {row.axis: row for row in found.rows if row.misaligned}
    if uneven:
        listed = ", ".join(f"{r.axis} {r.group} ({r.members_inside} together)" for r in uneven.values())
        yield Warning(
            "misaligned_group",
            f"groups straddle {inner} domains of {width:.0f} unevenly; worst-placed members in one domain: {listed}",
            "choose degrees whose product divides the domain or is its multiple, or leave GPUs of each domain idle "
            "(a profile states such a domain by usable_of)",
        )
    if not isfinite(width):
        return
    across = {row.axis: row for row in reversed(found.rows) if names[row.tier] > 0}
    if "tp" in across:
        yield Warning(
            "tensor_parallel_across_nodes",
            f"--tp {spec.tp} leaves {inner} domains of {width:.0f} GPUs: every layer's collectives cross "
            f"{across['tp'].tier}",
            f"keep --tp at {width:.0f} or below and raise --pp or --dp",
        )
    if "ep" in across:
        yield Warning(
            "expert_parallel_across_domains",
            f"--ep {spec.ep} leaves {inner} domains of {width:.0f} GPUs: its all-to-all crosses {across['ep'].tier}, "
            "where the other GPUs of a domain cannot help as they do in a ring",
            "keep ep x etp inside a domain, or limit the domains that a token may be sent to",
        )
    together = spec.tp * spec.cp * spec.pp
    messages = across.get("pp")
    if messages is not None and messages.op == "send-recv" and together <= width and _tells(messages, found):
        yield Warning(
            "pipeline_over_slow_tier",
            f"stages lie {messages.stride} ranks apart and their messages cross {messages.tier}, though tp x cp x pp = "
            f"{together} GPUs would fit in one {inner} domain",
            "try --rank-order tp-cp-pp-dp, which costs the gradients links (Megatron: --use-tp-pp-dp-mapping)",
        )


def _small_messages(found: CommAnswer) -> Iterator[Warning]:
    """Links at a small share of what they could carry."""
    slow = [row for row in found.rows if row.rate_share < LEAST_SHARE and _tells(row, found)]
    for axis in dict.fromkeys(row.axis for row in slow):
        row = max((r for r in slow if r.axis == axis), key=lambda r: r.time_s)
        yield Warning(
            "small_messages",
            f"{row.axis} {row.op}: {format_count(row.count)} calls of {format_bytes(row.bytes)} reach "
            f"{100 * row.rate_share:.0f} % of the rate of large messages on {row.tier}; the rest is latency",
            SMALL_MESSAGES[row.axis],
        )
