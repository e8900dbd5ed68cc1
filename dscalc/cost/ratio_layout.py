"""What a layout does to the paper's ratio: computing and communicating, one effect after another.

Each stage holds all effects before it, so the quotient of two stages is the factor of one effect and their product the
whole difference.
"""

from __future__ import annotations

import numpy as np

from dscalc.cost.ratio import (
    communication_s,
    compute_s,
    linear_flop_per_token,
    recompute_flop_per_token,
    ring_latency_s,
)
from dscalc.frozen import dataclass
from dscalc.records import Array


@dataclass(frozen=True, slots=True)
class Work:
    """What one GPU computes in a step; arrays (n,)."""

    params: Array  # N, stored
    active_params: Array  # parameters a token uses
    adapter_params: Array  # adapter parameters a token uses; 0 without
    frozen: Array  # 1: only adapters are trained
    attention_flop: Array  # per token, forward and backward
    recomputed_share: Array  # of the layers, in full
    recomputed_attention: Array  # 1: only attention
    tokens: Array  # of a data-parallel rank in a step
    gpus: Array  # that share a data-parallel rank: tp * pp * cp
    flop_per_s: Array


@dataclass(frozen=True, slots=True)
class Traffic:
    """What one GPU sends in a step for the data-parallel groups; arrays (n,). Groups may be infinite."""

    params: Array  # N, stored
    dense_params: Array
    expert_params: Array
    trained_dense: Array  # with gradients: the same, or the adapters
    trained_expert: Array
    parts: Array  # tp * pp: GPUs that divide dense parameters
    expert_parts: Array  # pp * ep * etp
    ranks: Array  # that reduce dense gradients
    expert_ranks: Array
    shards: Array  # of them, those that divide the state
    expert_shards: Array
    replicas: Array  # of the shards
    bandwidth_bytes_per_s: Array  # in the whole group
    expert_bandwidth_bytes_per_s: Array
    shard_bandwidth_bytes_per_s: Array
    replica_bandwidth_bytes_per_s: Array
    gradient_bytes: Array
    wire_bytes: Array  # per trained element and step, by ZeRO stage
    frozen_wire_bytes: Array  # per element of a frozen base; 0 without one
    latency_s: Array


def compute_stages(work: Work) -> dict[str, Array]:
    """Seconds of computing of one GPU in a step, one effect after another.

    Args:
        work [counts, (n,)]: what one GPU computes.

    Returns:
        Cumulative times by the effect added last: ``paper`` (6ND/P), ``experts``, ``adapters``, ``attention``,
        ``recompute`` [s, (n,)].

    Raises:
        nothing.

    References:
        [Kaplan2020] section 2.1, [Hu2022] section 4, [Chowdhery2022] appendix B, [Korthikanti2022] section 5.
    """
    tokens = work.tokens / work.gpus
    linear = linear_flop_per_token(work.active_params, work.adapter_params, work.frozen)
    attention = linear + work.attention_flop
    again = recompute_flop_per_token(
        work.active_params + work.adapter_params,
        work.attention_flop,
        work.recomputed_share,
        work.recomputed_attention,
    )
    return {
        "paper": compute_s(work.params, tokens, work.flop_per_s),
        "experts": compute_s(work.active_params, tokens, work.flop_per_s),
        "adapters": linear * tokens / work.flop_per_s,
        "attention": attention * tokens / work.flop_per_s,
        "recompute": (attention + again) * tokens / work.flop_per_s,
    }


def traffic_stages(traffic: Traffic) -> dict[str, Array]:
    """Seconds of communicating of one GPU in a step, one effect after another.

    Args:
        traffic [counts, (n,)]: what one GPU sends.

    Returns:
        Cumulative times by the effect added last: ``paper`` (2Nb/BW with the ring's (K - 1)/K), ``experts``,
        ``adapters``, ``sharding`` (ZeRO), ``replicas`` (hybrid sharding), ``latency`` [s, (n,)].

    Raises:
        nothing.

    References:
        [Patarasuk2009] section 3, [Rajbhandari2020] section 7, [Zhao2023] section 3.
    """
    both = 2.0 * traffic.gradient_bytes

    def reduced(dense: Array, expert: Array, wire: Array) -> Array:
        return communication_s(
            dense / traffic.parts, wire, traffic.bandwidth_bytes_per_s, traffic.ranks
        ) + communication_s(
            expert / traffic.expert_parts, wire, traffic.expert_bandwidth_bytes_per_s, traffic.expert_ranks
        )

    frozen = reduced(traffic.dense_params, traffic.expert_params, traffic.frozen_wire_bytes)
    sharded = reduced(traffic.trained_dense, traffic.trained_expert, traffic.wire_bytes) + frozen
    hybrid = np.where(traffic.replicas > 1.0, _hybrid(traffic, both), sharded)
    latency = np.where(
        np.isfinite(traffic.ranks), ring_latency_s(traffic.latency_s, np.minimum(traffic.ranks, 2.0**53)), 0.0
    )
    return {
        "paper": communication_s(traffic.params / traffic.parts, both, traffic.bandwidth_bytes_per_s, traffic.ranks),
        "experts": reduced(traffic.dense_params, traffic.expert_params, both),
        "adapters": reduced(traffic.trained_dense, traffic.trained_expert, both),
        "sharding": sharded,
        "replicas": hybrid,
        "latency": hybrid + latency,
    }


def _hybrid(traffic: Traffic, both: Array) -> Array:
    """Shards exchange the sharded traffic among themselves, then all-reduce what they own with their replicas."""
    dense, expert = traffic.trained_dense / traffic.parts, traffic.trained_expert / traffic.expert_parts
    inside = communication_s(
        np.ones_like(dense),
        dense * traffic.wire_bytes + traffic.dense_params / traffic.parts * traffic.frozen_wire_bytes,
        traffic.shard_bandwidth_bytes_per_s,
        traffic.shards,
    ) + communication_s(
        np.ones_like(expert),
        expert * traffic.wire_bytes + traffic.expert_params / traffic.expert_parts * traffic.frozen_wire_bytes,
        traffic.expert_bandwidth_bytes_per_s,
        traffic.expert_shards,
    )
    owned = dense / traffic.shards + expert / traffic.expert_shards
    return inside + communication_s(owned, both, traffic.replica_bandwidth_bytes_per_s, traffic.replicas)
