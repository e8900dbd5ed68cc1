"""Where N does not cancel, and by how much: each effect of a layout on the ratio, with its number."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from typing import NamedTuple

import numpy as np

from dscalc.answers.ratio_setting import Setting, frozen_wire, wire
from dscalc.cost.ratio import (
    break_even_tokens,
    linear_flop_per_token,
    sharded_break_even_tokens,
)
from dscalc.cost.ratio_layout import Traffic, Work, compute_stages, traffic_stages
from dscalc.records import Array
from dscalc.units import format_count, format_flop_rate, format_time


class Effect(NamedTuple):
    """One effect: its factor on the ratio (above 1 helps), and whether it is part of this layout or only what if."""

    name: str
    applies: bool
    factor: float | None
    words: str
    formula: str
    source: str


class Times(NamedTuple):
    """Seconds of one GPU and step: by the closed form, and with every effect."""

    paper_compute_s: float
    compute_s: float
    paper_s: float
    s: float

    @property
    def ratio(self) -> float | None:
        """Computing over communicating with every effect; None where nothing is sent."""
        return self.compute_s / self.s if self.s > 0.0 else None


def _last(stages: dict[str, Array], name: str) -> float:
    return float(np.asarray(stages[name]).reshape(-1)[0])


def many(traffic: Traffic) -> Traffic:
    """The same traffic among so many ranks that (K - 1)/K is 1; shards of a hybrid stay as they are."""
    endless = np.full_like(traffic.ranks, inf)
    hybrid = traffic.replicas > 1.0
    return replace(
        traffic,
        ranks=endless,
        expert_ranks=endless,
        shards=np.where(hybrid, traffic.shards, inf),
        expert_shards=np.where(hybrid, traffic.expert_shards, inf),
        replicas=np.where(hybrid, inf, traffic.replicas),
    )


def times(setting: Setting, *, exact: bool, traffic: Traffic | None = None) -> Times:
    """Seconds with and without the effects.

    Args:
        setting: the question.
        exact: at the given number of ranks; else for many ranks.
        traffic: another traffic than the setting's.
    """
    sent = traffic or setting.traffic
    computing = compute_stages(setting.work)
    sending = traffic_stages(sent if exact else many(sent))
    return Times(
        _last(computing, "paper"), _last(computing, "recompute"), _last(sending, "paper"), _last(sending, "latency")
    )


def _factors(work: Work, traffic: Traffic) -> dict[str, float | None]:
    """Factor of each effect on the ratio; None where nothing is sent."""
    computing, sending = compute_stages(work), traffic_stages(traffic)

    def step(stages: dict[str, Array], name: str) -> float | None:
        names = list(stages)
        now, before = _last(stages, name), _last(stages, names[names.index(name) - 1])
        return now / before if before > 0.0 else None

    found: dict[str, float | None] = {}
    for name in ("experts", "adapters", "attention", "recompute", "sharding", "replicas", "latency"):
        more = step(computing, name) if name in computing else 1.0
        sent = step(sending, name) if name in sending else 1.0
        found[name] = None if more is None or not sent else more / sent
    return found


def effects(setting: Setting) -> list[Effect]:
    """Every effect with its number: those of this layout first, then what would change it.

    Args:
        setting: the question.

    Returns:
        The effects; the factors of those that apply multiply to the quotient of corrected ratio and closed form.
    """
    spec = setting.case.layout.spec
    factors = _factors(setting.work, setting.traffic)
    found = [
        *_model_effects(setting, factors),
        _recompute(setting, factors),
        _sharding(setting, factors),
    ]
    if spec.zero and spec.dp_replicate > 1:
        shards = spec.dp_shard * spec.cp
        words = f"hybrid sharding: between {spec.dp_replicate} replicas travels only 1/{shards} of the gradients"
        source = "[Zhao2023] section 3.2"
        found.append(Effect("replicas", True, factors["replicas"], words, "N / k_shard", source))
    if setting.latency_s is not None and setting.modelled and setting.ranks:
        sending = traffic_stages(setting.traffic)
        spent = _last(sending, "latency") - _last(sending, "replicas")
        words = f"latency: {2 * (setting.ranks - 1)} steps of a ring take {format_time(spent)}, however small the model"
        found.append(Effect("latency", True, factors["latency"], words, "2 (K - 1) alpha", "[Thakur2005]"))
    if spec.grad_accum > 1 and not setting.in_tokens:
        each = spec.tokens_per_rank // spec.grad_accum
        words = (
            f"gradient accumulation: D counts all {spec.grad_accum} micro-batches of {each:,} tokens; "
            "this is already in the ratio"
        )
        found.append(Effect("accumulation", True, None, words, "D = b s m", "[Definition]"))
    return sorted(found, key=lambda e: not e.applies)


def _model_effects(setting: Setting, factors: dict[str, float | None]) -> list[Effect]:
    """What depends on the kind of model."""
    if not setting.modelled:
        words = "attention, experts, adapters: add --model to see by how much each changes the ratio"
        return [Effect("model", False, None, words, "12 L a d_k s; N_a / N; N / N_adapters", "[Chowdhery2022]")]
    case, work, traffic = setting.case, setting.work, setting.traffic
    spec, counts = case.layout.spec, case.counts
    found = []
    if case.model.shape.experts:
        used, stored = format_count(counts.active), format_count(counts.main)
        words = f"experts: a token computes with {used} of {stored} parameters"
        if traffic.expert_parts[0] > traffic.parts[0]:
            share = int(traffic.expert_parts[0])
            words += f"; a GPU reduces only 1/{share} of the experts' gradients (ep {spec.ep})"
        spread = "N_a / (N_dense + N_experts t / (e x))" if "reduces only" in words else "N_a / N"
        found.append(Effect("experts", True, factors["experts"], words, spread, "[Shazeer2017]"))
    if case.adapters is not None:
        sent = float(traffic.trained_dense[0] + traffic.trained_expert[0])
        words = (
            f"adapters: {format_count(sent)} parameters have gradients to send; the frozen base computes 4 N where "
            "training takes 6 N"
        )
        formula = "(4 N_a + 6 N_adapters) / (6 N_a) * N / N_adapters"
        found.append(Effect("adapters", True, factors["adapters"], words, formula, "[Hu2022] section 4"))
    flop = float(work.attention_flop[0])
    rest = float(linear_flop_per_token(work.active_params, work.adapter_params, work.frozen)[0])
    words = (
        f"attention: {_flop(flop)} a token beside {_flop(rest)} with the weights; half of it where a causal kernel "
        "skips masked blocks"
    )
    found.append(Effect("attention", True, factors["attention"], words, "12 L a d_k s", "[Chowdhery2022] appendix B"))
    return found


def _flop(count: float) -> str:
    return format_flop_rate(count).removesuffix("/s")


def _recompute(setting: Setting, factors: dict[str, float | None]) -> Effect:
    """Activation checkpointing: of this layout, or what if."""
    mode = setting.case.layout.spec.recompute
    source = "[Korthikanti2022] section 5"
    if mode != "none":
        words = {
            "full": "full recompute: the forward runs twice; it hides more and makes the step longer",
            "selective": "selective recompute: attention's forward runs twice",
        }[mode]
        return Effect("recompute", True, factors["recompute"], words, "8 N D / P", source)
    work = replace(setting.work, recomputed_share=np.ones_like(setting.work.tokens))
    factor = _factors(work, setting.traffic)["recompute"]
    words = "with --recompute full the forward runs twice; it hides more and makes the step longer"
    return Effect("recompute", False, factor, words, "8 N D / P", source)


def _sharding(setting: Setting, factors: dict[str, float | None]) -> Effect:
    """ZeRO: of this layout, or what stage 3 would do."""
    spec, work, traffic = setting.case.layout.spec, setting.work, setting.traffic
    source = "[Rajbhandari2020] section 7"
    if spec.zero in (1, 2):
        gather, count = f"weights of {setting.weight_bytes:g} bytes are gathered once a step", "once a step"
        if spec.zero == 2:
            count = "once a step" if spec.no_sync else f"in each of {spec.grad_accum} micro-batches"
        words = f"ZeRO-{spec.zero}: gradients are reduced {count}, {gather}"
        formula = "2 b_r / (b_r + b_w)" if spec.zero == 1 else "2 b_r / (m b_r + b_w)"
        return Effect("sharding", True, factors["sharding"], words, formula, source)
    even = spec.cp * sharded_break_even_tokens(
        work.flop_per_s, traffic.bandwidth_bytes_per_s, np.array([setting.weight_bytes]), traffic.gradient_bytes
    )
    formula = "D* = P (2 b_w + b_r) / (6 BW) a micro-batch"
    number = f"D* = {float(even[0]):,.0f} tokens of each micro-batch"
    if spec.zero == 3:
        kept = "" if spec.reshard else "; kept after forward here, so one gather less"
        once = "; reduced once a step here" if spec.no_sync and spec.grad_accum > 1 else ""
        words = f"ZeRO-3: every micro-batch gathers weights twice and reduces gradients: {number}{kept}{once}"
        return Effect("sharding", True, factors["sharding"], words, formula, f"{source}; [Zhao2023] section 3")
    changed = replace(
        traffic,
        wire_bytes=wire(setting.case, setting.gradient_bytes, setting.weight_bytes, zero=3),
        frozen_wire_bytes=frozen_wire(setting.case, zero=3),
    )
    factor = _factors(work, changed)["sharding"]
    plain = spec.cp * break_even_tokens(work.flop_per_s, traffic.bandwidth_bytes_per_s, traffic.gradient_bytes)
    words = f"with --zero 3 (FSDP) weights travel too: {number} where {float(plain[0]):,.0f} of a step do now"
    return Effect("sharding", False, factor, words, formula, f"{source}; [Zhao2023] section 3")
