"""What communication costs a step, by where it happens: in a layer, at the head, once a micro-batch, once a step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dscalc.cost.axes import groups
from dscalc.cost.collectives import collective
from dscalc.cost.columns import COLUMNS
from dscalc.cost.communication import listed_stage, located
from dscalc.cost.factors import Distinct, alike
from dscalc.cost.model_transfers import model_parallel, weight_copies
from dscalc.cost.placement import stage_kinds
from dscalc.cost.rank_parameters import adapter_sums, part_sums, rank_parameters
from dscalc.cost.transfers import Transfer, data_parallel
from dscalc.frozen import dataclass
from dscalc.records import Adapters, Array, Layouts, ModelShape, Network

# the columns of a layout on which each part depends, the stack's and the recipe's entries with them
PER_MICRO_BATCH = (
    "tp",
    "pp",
    "vpp",
    "cp",
    "ep",
    "etp",
    "dp",
    "sequence_parallel",
    "micro_batch",
    "seq_len",
    "recompute",
    "recompute_layers",
    "capacity_factor",
    "schedule",
    "cp_comm",
    "rank_order",
    "loss",
    "stack",
)
# how many calls there are is another matter: their bytes and ranks depend on fewer
PER_MICRO_BATCH_CALL = tuple(name for name in PER_MICRO_BATCH if name not in ("recompute", "recompute_layers"))
PER_STEP = (
    "tp",
    "pp",
    "vpp",
    "cp",
    "ep",
    "etp",
    "dp",
    "dp_replicate",
    "zero",
    "reshard",
    "no_sync",
    "n_micro",
    "schedule",
    "rank_order",
    "stack",
    "recipe",
)
PER_STEP_CALL = tuple(name for name in PER_STEP if name not in ("reshard", "no_sync", "n_micro"))


@dataclass(frozen=True, slots=True, eq=False)
class MicroBatchExchange:
    """Seconds of communication on the wire of one micro-batch, and where the groups lie; arrays (n,)."""

    tp_layer_s: Array  # of one layer
    tp_ends_s: Array  # of embedding, head and loss
    tp_inside: Array  # members of a tensor-parallel group in one domain
    tp_domains: Array
    cp_layer_s: Array
    cp_hides: Array  # 1: behind the attention of the block before
    ep_layer_s: Array  # of one layer with experts
    pp_s: Array  # both directions
    pp_messages: Array
    pp_domains: Array  # domains that the messages of a pipeline cross
    misaligned: Array  # 1: a group straddles domains


@dataclass(frozen=True, slots=True, eq=False)
class StepExchange:
    """Seconds of communication on the wire of a step, and where the groups lie; arrays (n,)."""

    pp_step_s: Array  # tied embeddings, copies of weights
    dp_s: Array  # gradients and weights, ZeRO-3 apart
    dp_domains: Array
    fsdp_s: Array  # weights gathered and gradients reduced unit by unit
    owned_parameters: Array  # of the busiest rank, for the optimizer
    misaligned: Array  # 1: a group straddles domains


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """What communication costs each micro-batch, and once a step."""

    micro_batch: MicroBatchExchange
    step: StepExchange

    @property
    def misaligned(self) -> Array:
        """1: a group straddles domains [-, (n,)]."""
        return np.maximum(self.micro_batch.misaligned, self.step.misaligned)


@dataclass(frozen=True, slots=True, eq=False)
class _Sent:
    """One transfer timed; arrays (n,)."""

    transfer: Transfer
    time_s: Array  # all calls of a step
    inside: Array
    domains: Array
    misaligned: Array


def _timed(transfers: Sequence[Transfer], gpus: Array, network: Network, calls: Distinct) -> list[_Sent]:
    """What is sent at all, timed, in the order of the transfers; those of the same operation in one go.

    ``calls``: rows whose calls are alike, which are timed once.
    """
    ops: dict[str, list[int]] = {}
    for number, transfer in enumerate(transfers):
        if np.any((transfer.group > 1.0) & (transfer.calls > 0.0)):
            ops.setdefault(transfer.op, []).append(number)
    found: dict[int, _Sent] = {}
    count = len(calls.first)
    for op, numbers in ops.items():
        mine = [transfers[number] for number in numbers]

        def stacked(columns: Sequence[Array | float]) -> Array:
            rows = np.empty((len(columns), count))
            for row, column in zip(rows, columns, strict=True):
                row[:] = column.take(calls.first) if isinstance(column, np.ndarray) and len(column) > 1 else column
            return rows.reshape(-1)

        group = stacked([t.group for t in mine])
        stride, line = stacked([t.stride for t in mine]), stacked([t.line for t in mine])
        blocks = (stacked([t.near for t in mine]), stacked([t.far for t in mine]))
        lies = located(group, stride, line, stacked([gpus] * len(mine)), network, blocks)
        message = stacked([t.message_bytes for t in mine])
        call_s = collective(op, message, group, lies.inside, lies.domains, network).time_s
        for at, number in enumerate(numbers):
            transfer, part = transfers[number], slice(at * count, (at + 1) * count)
            used = (transfer.group > 1.0) & (transfer.calls > 0.0)
            found[number] = _Sent(
                transfer,
                calls.spread(call_s[part]) * transfer.calls,
                calls.spread(lies.inside[0, part]),
                calls.spread(lies.domains[0, part]),
                used * calls.spread(lies.misaligned[part] * 1.0),
            )
    return [found[number] for number in sorted(found)]


def _calls(layouts: Layouts, names: Sequence[str], network: Network) -> Distinct:
    """Rows whose calls are alike; each by itself where the network differs from row to row."""
    if varies(network):
        return Distinct(np.arange(max(len(getattr(layouts, name)) for name in COLUMNS)), None)
    return alike(layouts, names)


def varies(network: Network) -> bool:
    """Whether a network differs from layout to layout.

    Args:
        network [tiers, (n,)]: the network.

    Returns:
        True where a column of a tier has more than one entry.

    Raises:
        nothing.

    References:
        [Definition].
    """
    return any(np.size(getattr(tier, name)) > 1 for tier in network.tiers for name in tier.__match_args__)


def once(model: ModelShape, layouts: Layouts, domains: Array) -> Array:
    """Share of a plain dispatch's traffic that is left where a token goes to a node once, or to a rank inside one.

    With top_k experts drawn at random a token has an expert in one of M places with probability 1 - (1 - 1/M)^top_k,
    so that M times that copies are sent instead of top_k.

    Args:
        model [elements, (1,)]: the model's shape.
        layouts [degrees, (n,)]: the layout columns.
        domains [domains, (n,)]: domains that the expert-parallel group crosses.

    Returns:
        The share [fraction, (n,)], 1 where the stack sends a copy for each expert.

    Raises:
        nothing.

    References:
        [DeepSeekV3] section 3.2.2, [DeepEP].
    """
    places = np.where(domains > 1.0, domains, layouts.ep)
    copies = places * (1.0 - np.power(1.0 - 1.0 / places, float(model.top_k)))
    share = np.minimum(copies / float(max(model.top_k, 1)), 1.0)
    return np.where(layouts.books.stacks.dispatch_once[layouts.stack] > 0.0, share, 1.0)


def micro_batch_exchange(
    model: ModelShape, layouts: Layouts, network: Network, adapters: Adapters | None = None
) -> MicroBatchExchange:
    """Communication of the busiest stage in one micro-batch, layer by layer.

    Args:
        model [elements, (1,)]: the model's shape.
        layouts [degrees, (n,)]: the layout columns; how many micro-batches there are does not matter.
        network [tiers, (1,)]: the network.
        adapters [rank, (1,)]: low-rank adapters on a frozen base, or None.

    Returns:
        Seconds and places [s, (n,)].

    Raises:
        nothing.

    References:
        [Shoeybi2019] section 3, [Korthikanti2022] section 4.2, [Narayanan2021] section 2.2, [Liu2023], [Shazeer2017].
    """
    layouts = replace(layouts, n_micro=np.ones(1))
    derived = groups(layouts)
    stage = listed_stage(model, layouts, adapters)
    zero = 0.0 * (derived.gpus + stage.layers)
    tp, ends, cp, ep, pp, messages, cp_hides, misaligned = (zero,) * 8
    inside, domains, pp_domains = (zero + 1.0,) * 3
    calls = _calls(layouts, PER_MICRO_BATCH_CALL, network)
    for each in _timed(model_parallel(model, layouts, stage), derived.gpus, network, calls):
        transfer = each.transfer
        used = transfer.calls > 0.0
        misaligned = np.maximum(misaligned, each.misaligned)
        if transfer.axis == "pp":
            pp, messages = pp + each.time_s, messages + transfer.calls
            pp_domains = np.where(used, np.maximum(pp_domains, each.domains), pp_domains)
        elif transfer.axis == "tp":
            if transfer.stage == "every":
                tp = tp + each.time_s
            else:
                ends = ends + each.time_s
            sent = used & (transfer.group > 1.0)
            inside = np.where(sent, np.maximum(inside, each.inside), inside)
            domains = np.where(sent, np.maximum(domains, each.domains), domains)
        elif transfer.axis == "cp":
            cp = cp + each.time_s
            cp_hides = np.where(used & (transfer.op == "send-recv"), 1.0, cp_hides)
        elif transfer.op == "all-to-all":
            ep = ep + each.time_s * once(model, layouts, each.domains)
        else:
            ep = ep + each.time_s
    passes = stage.runs * np.maximum(stage.layers, 1.0)
    return MicroBatchExchange(
        tp_layer_s=tp / passes,
        tp_ends_s=ends,
        tp_inside=inside,
        tp_domains=domains,
        cp_layer_s=cp / passes,
        cp_hides=cp_hides,
        ep_layer_s=ep / (stage.runs * np.maximum(stage.moe_layers, 1.0)),
        pp_s=pp,
        pp_messages=messages,
        pp_domains=pp_domains,
        misaligned=misaligned,
    )


def step_exchange(
    model: ModelShape, layouts: Layouts, network: Network, adapters: Adapters | None = None
) -> StepExchange:
    """Gradients and weights that the busiest stage exchanges in a step.

    Args:
        model [elements, (1,)]: the model's shape.
        layouts [degrees, (n,)]: the layout columns.
        network [tiers, (1,)]: the network.
        adapters [rank, (1,)]: low-rank adapters on a frozen base, or None.

    Returns:
        Seconds, places and parameters [s and elements, (n,)].

    Raises:
        nothing.

    References:
        [Rajbhandari2020] section 7, [Zhao2023] section 3, [Narayanan2021] section 2.3.
    """
    derived = groups(layouts)
    kinds = stage_kinds(model, layouts)
    sums = part_sums(model) if adapters is None else adapter_sums(model, adapters)
    held = rank_parameters(model, sums, layouts, kinds)
    stage = listed_stage(model, layouts, adapters)
    wire = layouts.books.recipes.reduce[layouts.recipe]
    zero = 0.0 * (derived.gpus + layouts.n_micro + stage.layers)
    dp, copies, misaligned, domains = zero, zero, zero, zero + 1.0
    transfers = data_parallel(model, layouts, derived, stage, wire)
    transfers += weight_copies(model, layouts, derived, stage, wire, adapters)
    for each in _timed(transfers, derived.gpus, network, _calls(layouts, PER_STEP_CALL, network)):
        misaligned = np.maximum(misaligned, each.misaligned)
        if each.transfer.axis == "pp":
            copies = copies + each.time_s
        else:
            dp = dp + each.time_s
            domains = np.where(each.transfer.calls > 0.0, np.maximum(domains, each.domains), domains)
    sharded = layouts.zero > 0.0
    owned = held.dense / np.where(sharded, derived.shard, 1.0)
    owned = owned + held.expert / np.where(sharded, derived.expert_shard, 1.0) + 0.0 * kinds.layers
    three = layouts.zero >= 3.0
    return StepExchange(
        pp_step_s=copies,
        dp_s=np.where(three, 0.0, dp),
        dp_domains=domains,
        fsdp_s=np.where(three, dp, 0.0),
        owned_parameters=np.max(owned, axis=0) + zero,
        misaligned=misaligned,
    )


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
    return Exchange(
        micro_batch_exchange(model, layouts, network, adapters), step_exchange(model, layouts, network, adapters)
    )
