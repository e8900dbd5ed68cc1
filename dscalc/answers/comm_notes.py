"""Warnings about what a layout sends: groups that straddle, links that wait, numbers that nobody measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import TYPE_CHECKING

from dscalc.answers.comm_network import MEASURE
from dscalc.answers.envelope import Warning
from dscalc.units import format_bytes, format_count

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
        wanted = algorithms.get(row.op, row.algorithm)
        if wanted != row.algorithm:
            yield Warning(
                "algorithm_not_possible",
                f"{wanted} cannot run the {row.axis} {row.op} of {row.group} on these links; {row.algorithm} is shown",
                "force another, or leave the choice open",
            )
    beyond = [row for row in found.rows if row.extrapolated and _tells(row, found)]
    if beyond:
        yield Warning(
            "extrapolated",
            f"{_listed(beyond)}: message or group beyond what published measurements span",
            MEASURE,
        )
    assumed = [n.name for n in (found.network.notes if found.network else ()) if n.kind == "assumed"]
    if assumed and found.rows:
        yield Warning("network_assumed", f"taken for granted, not measured: {', '.join(assumed)}", MEASURE)


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
    told: set[str] = set()
    for row in found.rows:
        level = names[row.tier]
        if row.misaligned and row.axis not in told:
            told.add(row.axis)
            yield Warning(
                "misaligned_group",
                f"{row.axis} groups of {row.group} at stride {row.stride} straddle domains unevenly; the worst-placed "
                f"keeps {row.members_inside} together in one {inner} of {width:.0f}",
                "choose degrees whose product with those inside them divides the domain, or is a multiple of it",
            )
        if level == 0 or not isfinite(width):
            continue
        if row.axis == "tp" and "across-tp" not in told:
            told.add("across-tp")
            yield Warning(
                "tensor_parallel_across_nodes",
                f"--tp {spec.tp} leaves {inner} of {width:.0f} GPUs: collectives in every layer cross {row.tier}",
                f"keep --tp at {width:.0f} or below and raise --pp or --dp",
            )
        if row.axis == "ep" and "across-ep" not in told:
            told.add("across-ep")
            yield Warning(
                "expert_parallel_across_domains",
                f"--ep {spec.ep} leaves {inner} of {width:.0f} GPUs: its all-to-all crosses {row.tier}, where the "
                "other GPUs of a domain cannot help as they do in a ring",
                "keep ep x etp inside a domain, or limit the nodes a token may be sent to",
            )
        if (
            row.axis == "pp"
            and row.op == "send-recv"
            and spec.tp * spec.cp * spec.pp <= width
            and _tells(row, found)
            and "across-pp" not in told
        ):
            told.add("across-pp")
            yield Warning(
                "pipeline_over_slow_tier",
                f"stages lie {row.stride} ranks apart and their messages cross {row.tier}, though tp x cp x pp = "
                f"{spec.tp * spec.cp * spec.pp} GPUs would fit in one {inner}",
                "order ranks with pp inside dp where gradients can spare the links (Megatron: --use-tp-pp-dp-mapping)",
            )


def _small_messages(found: CommAnswer) -> Iterator[Warning]:
    """Links at a small share of what they could carry."""
    for row in found.rows:
        if row.rate_share < LEAST_SHARE and _tells(row, found):
            yield Warning(
                "small_messages",
                f"{row.axis} {row.op}: {format_count(row.count)} calls of {format_bytes(row.bytes)} reach "
                f"{100 * row.rate_share:.0f} % of the rate of large messages on {row.tier}; the rest is latency",
                SMALL_MESSAGES[row.axis],
            )
