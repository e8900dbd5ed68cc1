"""What communication costs a step, by where it happens: in a layer, at the head, once a micro-batch, once a step."""

from __future__ import annotations

import numpy as np

from dscalc.cost.axes import groups
from dscalc.cost.communication import communication, listed_stage
from dscalc.cost.placement import stage_kinds
from dscalc.cost.rank_parameters import adapter_sums, part_sums, rank_parameters
from dscalc.frozen import dataclass
from dscalc.records import Adapters, Array, Layouts, ModelShape, Network

ONCE_A_STEP = ("dp", "edp")


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """Seconds of communication on the wire, and where the groups lie; arrays (n,)."""

    tp_layer_s: Array  # of one layer and micro-batch
    tp_ends_s: Array  # of embedding, head and loss and one micro-batch
    tp_inside: Array  # members of a tensor-parallel group in one domain
    tp_domains: Array
    cp_layer_s: Array
    cp_hides: Array  # 1: behind the attention of the block before
    ep_layer_s: Array  # of one layer with experts
    pp_s: Array  # of one micro-batch, both directions
    pp_messages: Array
    pp_domains: Array  # domains that the messages of a pipeline cross
    pp_step_s: Array  # tied embeddings, copies of weights: once a step
    dp_s: Array  # a step, gradients and weights, ZeRO-3 apart
    dp_domains: Array
    fsdp_s: Array  # a step, weights gathered and gradients reduced unit by unit
    owned_parameters: Array  # of the busiest rank, for the optimizer
    misaligned: Array  # 1: a group straddles domains


def exchange(model: ModelShape, layouts: Layouts, network: Network, adapters: Adapters | None = None) -> Exchange:
    """Communication of the busiest stage, per layer, micro-batch and step.

    Args:
        model [elements, (1,)]: the model's shape.
        layouts [degrees, (n,)]: the layout columns.
        network [tiers, (1,)]: the network.
        adapters [rank, (1,)]: low-rank adapters on a frozen base, or None.

    Returns:
        Seconds and places [s, (n,)].

    Raises:
        nothing.

    References:
        [Rajbhandari2020] section 7, [Shoeybi2019] section 3, [Zhao2023] section 3.
    """
    derived = groups(layouts)
    kinds = stage_kinds(model, layouts)
    sums = part_sums(model) if adapters is None else adapter_sums(model, adapters)
    held = rank_parameters(model, sums, layouts, kinds)
    total = held.elements + 0.0 * kinds.layers
    listed = listed_stage(model, layouts, adapters)
    layers, experts = listed.layers, listed.moe_layers
    zero = 0.0 * (layouts.tp + layouts.n_micro + layers)
    found: dict[str, Array] = {}
    inside, domains, dp_domains, messages = zero + 1.0, zero + 1.0, zero + 1.0, zero
    pp_domains = zero + 1.0
    cp_hides, misaligned = zero, zero

    def add(name: str, seconds: Array) -> None:
        found[name] = found.get(name, zero) + seconds

    for each in communication(model, layouts, network, adapters):
        transfer = each.transfer
        used = transfer.calls > 0.0
        misaligned = np.maximum(misaligned, each.misaligned * 1.0)
        if transfer.axis in ONCE_A_STEP:
            add("dp", each.time_s)
            dp_domains = np.where(used, np.maximum(dp_domains, each.domains), dp_domains)
        elif transfer.axis == "pp":
            once = transfer.op == "all-reduce"
            add("pp_step" if once else "pp", each.time_s)
            messages = messages if once else messages + transfer.calls
            pp_domains = np.where(used, np.maximum(pp_domains, each.domains), pp_domains)
        elif transfer.axis == "tp":
            add("tp" if transfer.stage == "every" else "tp_ends", each.time_s)
            sent = used & (transfer.group > 1.0)
            inside = np.where(sent, np.maximum(inside, each.inside), inside)
            domains = np.where(sent, np.maximum(domains, each.domains), domains)
        elif transfer.axis == "cp":
            add("cp", each.time_s)
            cp_hides = np.where(used & (transfer.op == "send-recv"), 1.0, cp_hides)
        else:
            add("ep", each.time_s)
    runs = layouts.n_micro
    passes = listed.runs * np.maximum(layers, 1.0)
    three = layouts.zero >= 3.0
    sharded = layouts.zero > 0.0
    dense, expert = held.dense + 0.0 * total, held.expert + 0.0 * total
    owned = dense / np.where(sharded, derived.shard, 1.0) + expert / np.where(sharded, derived.expert_shard, 1.0)
    dp = found.get("dp", zero)
    return Exchange(
        tp_layer_s=found.get("tp", zero) / passes,
        tp_ends_s=found.get("tp_ends", zero) / runs,
        tp_inside=inside,
        tp_domains=domains,
        cp_layer_s=found.get("cp", zero) / passes,
        cp_hides=cp_hides,
        ep_layer_s=found.get("ep", zero) / (listed.runs * np.maximum(experts, 1.0)),
        pp_s=found.get("pp", zero) / runs,
        pp_messages=messages / runs,
        pp_domains=pp_domains,
        pp_step_s=found.get("pp_step", zero),
        dp_s=np.where(three, 0.0, dp),
        dp_domains=dp_domains,
        fsdp_s=np.where(three, dp, 0.0),
        owned_parameters=np.max(owned, axis=0) + zero,
        misaligned=misaligned,
    )
