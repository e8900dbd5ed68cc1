"""One question about the ratio, resolved: model or none, layout, rates, and the columns that the formulas read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import inf, isfinite, isinf, nan
from typing import Any

import numpy as np

from dscalc.answers.case import SHAPE_WORDS, Case, build_case, inputs_of
from dscalc.answers.envelope import Assumption, Warning
from dscalc.answers.notes import refuse_illegal
from dscalc.answers.rates import (
    MEASURE_LINK,
    MEASURE_RATE,
    Lie,
    Links,
    Rate,
    compute_rate,
    group_bandwidth,
    links,
    refuse_zero,
)
from dscalc.codes import RANK_ORDERS
from dscalc.cost.evaluate import evaluate
from dscalc.cost.ratio import attention_flop_per_token, reduced_parameters, step_wire_bytes
from dscalc.cost.ratio_layout import Traffic, Work
from dscalc.errors import InputError
from dscalc.frozen import dataclass
from dscalc.records import Array
from dscalc.specs.layout import LONGEST_DEFAULT
from dscalc.specs.layout_spec import LayoutSpec, lower
from dscalc.units import GIGA

STAND_IN = GIGA  # parameters where none are given: N cancels, and times are shown for so many
MODEL_WORDS = ("model", "params", *SHAPE_WORDS)
BATCH_WORDS = ("micro_batch", "grad_accum", "seq_len", "global_batch")
ALWAYS = ("gpu", "cluster")
ON_THE_WIRE = ("stack", "recipe")  # where the bytes of a gradient are not given
OF_A_LAYOUT = ("precision", "zero", "recompute", "tp", "pp", "cp", *ON_THE_WIRE)


@dataclass(frozen=True, slots=True)
class Setting:
    """Everything the answer is made from. ``ranks`` is the size of the group that reduces; None where nobody said."""

    case: Case
    modelled: bool
    in_tokens: bool  # the batch is given in tokens, not in sequences
    rate: Rate
    bandwidth: Rate | None
    gradient_bytes: float
    weight_bytes: float
    latency_s: float | None
    ranks: int | None
    batch_known: bool
    work: Work
    traffic: Traffic
    assumptions: tuple[Assumption, ...]
    warnings: tuple[Warning, ...]


def build_setting(given: Mapping[str, Any]) -> Setting:
    """Resolve parsed options.

    Args:
        given: canonical option names to parsed values.

    Returns:
        The setting.

    Raises:
        DscalcError: unknown names, contradictions, or nothing that says how fast a GPU or the network is.
    """
    refuse_zero(given)
    modelled = any(name in given for name in MODEL_WORDS)
    in_tokens = not modelled and "tokens_per_rank" in given and not any(name in given for name in BATCH_WORDS)
    case = _case(given, modelled, in_tokens)
    spec = case.layout.spec
    rate = compute_rate(given, case.machine, spec.precision)
    known = case.layout.marks["dp"] != "default"
    ranks = spec.dp * spec.cp if known else None
    found = replace(links(given, case.machine, spec.gpus), gpus=float(spec.gpus))
    bandwidth = group_bandwidth(found, inf if ranks is None else float(ranks), _lie(spec, spec.tp, spec.cp))
    if bandwidth is None and ranks != 1:
        raise InputError(_no_network(found, ranks), where="--bandwidth")
    code = case.books.recipes.names.index(spec.recipe)
    reduced = float(case.books.recipes.reduce[code])
    weight = float(case.books.recipes.gather[code])
    gradient = float(given.get("gradient_bytes", reduced))
    latency = given.get("latency")
    work = _work(case, modelled, rate)
    traffic = _traffic(case, found, bandwidth, ranks, gradient, weight, latency if modelled and latency else 0.0)
    too_large = False
    if modelled:
        fit = evaluate(
            case.model.shape, lower([spec], case.books), case.machine.record, case.adapters, keep_terms=False
        )
        refuse_illegal(fit, case)
        too_large = known and not bool(fit.feasible[0])
    return Setting(
        case=case,
        modelled=modelled,
        in_tokens=in_tokens,
        rate=rate,
        bandwidth=bandwidth,
        gradient_bytes=gradient,
        weight_bytes=weight,
        latency_s=latency,
        ranks=ranks,
        batch_known=known or "global_batch" in given,
        work=work,
        traffic=traffic,
        assumptions=tuple(_assumptions(given, case, modelled, in_tokens, rate, bandwidth, gradient)),
        warnings=tuple(_warnings(given, case, modelled, found, ranks, bandwidth, too_large)),
    )


def _no_network(found: Links, ranks: int | None) -> str:
    if not found.levels:
        return "nothing says what a GPU gets from the network; add --bandwidth 50GB/s, --interconnect or --cluster"
    return (
        f"{ranks} data-parallel ranks cross nodes of {found.node:g} GPUs and nothing says how fast; "
        "add --interconnect 400Gb/s, --bandwidth or --cluster"
    )


def _case(given: Mapping[str, Any], modelled: bool, in_tokens: bool) -> Case:
    """The case; without a model one of STAND_IN parameters stands in, because N cancels."""
    if modelled:
        return build_case(given)
    for name in ("lora_rank", "lora_targets", "base_precision", "ep", "etp"):
        if name in given:
            raise InputError("needs a model; add --model NAME or a config.json", where="--" + name.replace("_", "-"))
    length = given["tokens_per_rank"] if in_tokens else LONGEST_DEFAULT
    changes = {"params": STAND_IN} | ({} if "seq_len" in given else {"seq_len": length})
    case = build_case({**given, **changes})
    marks: dict[str, Any] = dict(case.layout.marks)
    if "seq_len" not in given:
        marks["seq_len"] = "derived" if in_tokens else "default"
    return replace(case, layout=replace(case.layout, marks=marks))


def _column(value: float) -> Array:
    return np.array([float(value)])


def _work(case: Case, modelled: bool, rate: Rate) -> Work:
    spec, shape, adapters = case.layout.spec, case.model.shape, case.adapters
    trained_dense, trained_expert = reduced_parameters(shape, adapters) if adapters else (0, 0)
    routed = shape.top_k / shape.experts if shape.experts else 0.0
    full = spec.recompute == "full"
    layers = shape.layers if spec.recompute_layers is None else spec.recompute_layers * spec.pp
    return Work(
        params=_column(case.counts.main),
        active_params=_column(case.counts.active),
        adapter_params=_column(trained_dense + routed * trained_expert),
        frozen=_column(adapters is not None),
        attention_flop=attention_flop_per_token(shape, _column(spec.seq_len if modelled else 0)),
        recomputed_share=_column(min(1.0, layers / shape.layers) if full else 0.0),
        recomputed_attention=_column(spec.recompute == "selective"),
        tokens=_column(spec.tokens_per_rank),
        gpus=_column(spec.tp * spec.pp * spec.cp),
        flop_per_s=_column(rate.value),
    )


def _lie(spec: LayoutSpec, stride: float, block: float) -> Lie:
    """How a data-parallel group lies, of which ``block`` ranks are neighbours where a pipeline lies between others."""
    if spec.rank_order == RANK_ORDERS[0] or spec.pp == 1:
        return Lie(float(stride))
    return Lie(float(stride), max(1.0, float(block)), float(spec.tp * spec.cp * spec.pp))


def _traffic(
    case: Case,
    found: Links,
    bandwidth: Rate | None,
    ranks: int | None,
    gradient: float,
    weight: float,
    latency: float,
) -> Traffic:
    spec, shape = case.layout.spec, case.model.shape
    dense, expert = reduced_parameters(shape, None)
    trained = reduced_parameters(shape, case.adapters)
    whole = nan if bandwidth is None else bandwidth.value
    expert_parts = spec.ep * spec.etp
    replicas = spec.dp_replicate if spec.zero else 1
    group = inf if ranks is None else float(ranks)
    expert_group = inf if ranks is None else max(1.0, spec.tp * group / expert_parts)
    shards = group if replicas == 1 else float(spec.dp_shard * spec.cp)

    def reached(size: float, lie: Lie) -> float:
        at = group_bandwidth(found, size, lie) if size > 1.0 else None
        return at.value if at else whole

    apart = _lie(spec, spec.tp, spec.cp)
    spread = _lie(spec, expert_parts, spec.tp * spec.cp / expert_parts)
    owners = spec.tp * shards if apart.near == inf else apart.far * spec.dp_shard

    return Traffic(
        params=_column(case.counts.main),
        dense_params=_column(dense),
        expert_params=_column(expert),
        trained_dense=_column(trained[0]),
        trained_expert=_column(trained[1]),
        parts=_column(spec.tp * spec.pp),
        expert_parts=_column(spec.pp * expert_parts),
        ranks=_column(group),
        expert_ranks=_column(expert_group),
        shards=_column(shards),
        expert_shards=_column(max(1.0, expert_group / replicas)),
        replicas=_column(replicas),
        bandwidth_bytes_per_s=_column(whole),
        expert_bandwidth_bytes_per_s=_column(reached(expert_group, spread)),
        shard_bandwidth_bytes_per_s=_column(reached(shards, apart)),
        replica_bandwidth_bytes_per_s=_column(reached(replicas, Lie(owners))),
        gradient_bytes=_column(gradient),
        wire_bytes=wire(case, gradient, weight),
        frozen_wire_bytes=frozen_wire(case),
        latency_s=_column(latency),
    )


def wire(case: Case, gradient: float, weight: float, zero: int | None = None) -> Array:
    """Bytes a rank sends for each element in a step of this layout, or of it at another ZeRO stage."""
    spec = case.layout.spec
    return step_wire_bytes(
        _column(spec.zero if zero is None else zero),
        _column(spec.grad_accum),
        _column(weight),
        _column(gradient),
        _column(spec.reshard),
        _column(spec.no_sync),
    )


def frozen_wire(case: Case, zero: int | None = None) -> Array:
    """Bytes a rank sends for each element of a frozen base: ZeRO-3 gathers it too, in the bytes it is stored in."""
    stage = case.layout.spec.zero if zero is None else zero
    if case.adapters is None or stage < 3:
        return _column(0.0)
    return wire(case, 0.0, case.adapters.base_matrix_bytes, stage)


def _assumptions(
    given: Mapping[str, Any],
    case: Case,
    modelled: bool,
    in_tokens: bool,
    rate: Rate,
    bandwidth: Rate | None,
    gradient: float,
) -> list[Assumption]:
    """What bears on the ratio and nobody typed."""
    spec = case.layout.spec
    bearing = {*ALWAYS, *(OF_A_LAYOUT if modelled else () if "gradient_bytes" in given else ON_THE_WIRE)}
    bearing |= {"dp"} if "global_batch" in given else set()
    bearing |= set() if in_tokens else set(BATCH_WORDS)
    bearing |= {"reshard"} if spec.zero == 3 else set()
    found = [
        a
        for a in case.assumptions
        if (a.name in bearing and (modelled or a.name != "seq_len"))
        or (modelled and a.name.startswith("model."))  # no memory, kernels or schedules
    ]
    if not modelled and not in_tokens and "seq_len" not in given:
        found.append(Assumption("seq_len", spec.seq_len, "tokens", "default", "default of --seq-len"))
    if rate.kind != "given":
        found.append(
            Assumption("effective_flop_per_s", rate.value, "FLOP/s", rate.kind, f"{rate.source}; {MEASURE_RATE}")
        )
    elif rate.words:
        source = f"{rate.source}; {MEASURE_RATE}"
        found.append(Assumption("effective_flop_per_s", rate.value, "FLOP/s", "assumed", source))
    if bandwidth is not None and (bandwidth.kind != "given" or bandwidth.source != "--bandwidth" or bandwidth.words):
        words = f"{bandwidth.source}{f' ({bandwidth.words})' if bandwidth.words else ''}; {MEASURE_LINK}"
        kind = "assumed" if bandwidth.kind == "given" else bandwidth.kind
        found.append(Assumption("bandwidth_bytes_per_s", bandwidth.value, "bytes/s", kind, words))
    if "gradient_bytes" not in given:
        found.append(
            Assumption("gradient_bytes", gradient, "bytes", "default", f"what recipe {spec.recipe} puts on the wire")
        )
    return found


def _warnings(
    given: Mapping[str, Any],
    case: Case,
    modelled: bool,
    found: Links,
    ranks: int | None,
    bandwidth: Rate | None,
    too_large: bool,
) -> list[Warning]:
    warnings = [w for w in case.warnings if modelled and w.code != "assumed_shape"]
    if "params" in given and not {"layers", "hidden"} <= set(given):
        warnings.append(
            Warning(
                "assumed_shape",
                "only the number of parameters is known; the share of attention is that of an assumed shape",
                "give --model NAME, a config.json, or --layers, --hidden and --heads",
            )
        )
    if too_large:
        warnings.append(
            Warning(
                "does_not_fit",
                "this layout does not fit in the memory of the GPU",
                "ask dscalc memory with the same options what would help",
            )
        )
    if ranks is None and found.direct is None and bandwidth is not None and isfinite(found.reach):
        warnings.append(
            Warning(
                "network_unknown",
                "nothing says how fast nodes are joined; the data-parallel ranks are taken to share one node",
                "add --interconnect 400Gb/s, --bandwidth or --cluster to ask about more nodes",
            )
        )
    if case.machine.gpu is not None and "interconnect" in given and found.levels and isinf(found.levels[0].gpus):
        warnings.append(
            Warning(
                "node_size_unknown",
                "nothing says how many GPUs share a node; each is taken to stand alone on the network",
                "add --gpus-per-node 8",
            )
        )
    if case.layout.spec.tp > found.node:
        warnings.append(
            Warning(
                "tp_across_nodes",
                f"--tp {case.layout.spec.tp} reaches over nodes of {found.node:g} GPUs; its traffic is not counted",
                f"keep --tp at {found.node:g} or below",
            )
        )
    if given.get("latency") is not None and (not modelled or ranks is None):
        warnings.append(
            Warning(
                "latency_unused",
                "latency does not cancel against N and needs the number of ranks",
                "add --params and --dp to count 2 (K - 1) latencies",
            )
        )
    return warnings


def inputs_of_setting(setting: Setting, given: Mapping[str, Any]) -> dict[str, Any]:
    """The resolved inputs by group; what a stand-in model would say is null."""
    inputs = inputs_of(setting.case)
    inputs["hardware"] |= {name: given.get(name) for name in ("interconnect", "peak_fraction")}
    inputs["hardware"]["latency_s"] = setting.latency_s
    if setting.modelled:
        return inputs
    inputs["model"] = dict.fromkeys(inputs["model"])
    if setting.in_tokens:
        inputs["training"] |= {"seq_len": None, "micro_batch": None, "grad_accum": None, "global_batch": None}
    hidden = {"params", *SHAPE_WORDS, *(BATCH_WORDS if setting.in_tokens else ())}
    inputs["marks"] = {name: mark for name, mark in inputs["marks"].items() if name not in hidden}
    return inputs
