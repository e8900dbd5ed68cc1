"""Computing against communicating: 6ND/P beside 2Nb/BW, where N cancels, and the terms that keep it from cancelling.

Every function broadcasts. ``ranks`` is the size of the group that reduces; infinity gives the asymptotic forms.
"""

from __future__ import annotations

import numpy as np

from dscalc.cost.inventory import part_instances
from dscalc.cost.rank_parameters import adapter_sums, part_sums
from dscalc.records import Adapters, Array, ModelShape

FORWARD_FLOP = 2.0  # per parameter and token: a multiply and an add
TRAINED_FLOP = 6.0  # forward, gradient of the input, gradient of the weight
FROZEN_FLOP = 4.0  # the same without the gradient of the weight
SCORE_FLOP = 6.0  # per key and feature of a query: forward and backward of one of attention's two products


def compute_s(params: Array, tokens: Array, flop_per_s: Array) -> Array:
    """Time to compute on the tokens of one step: 6 N D / P.

    Args:
        params [parameters, (...)]: parameters N that a token uses.
        tokens [tokens, (...)]: tokens D of one rank in a step.
        flop_per_s [FLOP/s, (...)]: what the rank sustains, P.

    Returns:
        6 N D / P [s, (...)].

    Raises:
        nothing.

    References:
        [Kaplan2020] section 2.1.
    """
    return TRAINED_FLOP * params * tokens / flop_per_s


def ring_fraction(ranks: Array) -> Array:
    """Share of a tensor that one rank sends in one pass around a ring: (K - 1)/K.

    Args:
        ranks [ranks, (...)]: members K of the ring; infinity for the asymptote.

    Returns:
        (K - 1)/K, 0 for one rank [fraction, (...)].

    Raises:
        nothing.

    References:
        [Patarasuk2009] section 3, [NcclTests].
    """
    return 1.0 - 1.0 / ranks


def communication_s(params: Array, wire_bytes: Array, bandwidth_bytes_per_s: Array, ranks: Array) -> Array:
    """Time to send what one step reduces and gathers: (K - 1)/K N w / BW; a plain all-reduce has w = 2 b_r.

    Args:
        params [parameters, (...)]: elements N that travel.
        wire_bytes [bytes/element, (...)]: bytes w that one rank sends for each element, as ``step_wire_bytes`` gives.
        bandwidth_bytes_per_s [bytes/s, (...)]: what one GPU gets, one direction.
        ranks [ranks, (...)]: members K; infinity for 2 N b_r / BW.

    Returns:
        Time without latency [s, (...)].

    Raises:
        nothing.

    References:
        [Patarasuk2009] section 3.
    """
    return ring_fraction(ranks) * params * wire_bytes / bandwidth_bytes_per_s


def ring_latency_s(latency_s: Array, ranks: Array) -> Array:
    """Time that the steps of a ring all-reduce take without payload: 2 (K - 1) alpha.

    Args:
        latency_s [s, (...)]: time alpha of one step.
        ranks [ranks, (...)]: members K.

    Returns:
        Latency of one all-reduce [s, (...)].

    Raises:
        nothing.

    References:
        [Patarasuk2009] section 3, [Thakur2005].
    """
    return 2.0 * (ranks - 1.0) * latency_s


def ratio(tokens: Array, flop_per_s: Array, bandwidth_bytes_per_s: Array, gradient_bytes: Array) -> Array:
    """Computing over communicating for many ranks: 3 D BW / (P b_r). The parameters cancel.

    Args:
        tokens [tokens, (...)]: tokens D of one rank in a step.
        flop_per_s [FLOP/s, (...)]: what a rank sustains, P.
        bandwidth_bytes_per_s [bytes/s, (...)]: what a rank gets, BW.
        gradient_bytes [bytes/element, (...)]: bytes b_r of one reduced gradient.

    Returns:
        Above 1 communication can hide, below 1 it cannot [-, (...)].

    Raises:
        nothing.

    References:
        [Kaplan2020] section 2.1, [Patarasuk2009] section 3; their quotient.
    """
    return TRAINED_FLOP / 2.0 * tokens * bandwidth_bytes_per_s / (flop_per_s * gradient_bytes)


def exact_ratio(asymptotic: Array, ranks: Array) -> Array:
    """The ratio at a given number of ranks: K/(K - 1) times the asymptotic one.

    Args:
        asymptotic [-, (...)]: what ``ratio`` gives.
        ranks [ranks, (...)]: members K of the ring.

    Returns:
        Ratio at K; infinity for one rank, which sends nothing [-, (...)].

    Raises:
        nothing.

    References:
        [Patarasuk2009] section 3.
    """
    with np.errstate(divide="ignore"):
        return asymptotic / ring_fraction(ranks)


def break_even_tokens(flop_per_s: Array, bandwidth_bytes_per_s: Array, gradient_bytes: Array) -> Array:
    """Tokens of a rank at which computing takes as long as communicating: D* = P b_r / (3 BW).

    Args:
        flop_per_s [FLOP/s, (...)]: what a rank sustains, P.
        bandwidth_bytes_per_s [bytes/s, (...)]: what a rank gets, BW.
        gradient_bytes [bytes/element, (...)]: bytes b_r of one reduced gradient.

    Returns:
        D* [tokens, (...)].

    Raises:
        nothing.

    References:
        [Kaplan2020] section 2.1, [Patarasuk2009] section 3; solved for the tokens.
    """
    return flop_per_s * gradient_bytes / (TRAINED_FLOP / 2.0 * bandwidth_bytes_per_s)


def sharded_break_even_tokens(
    flop_per_s: Array, bandwidth_bytes_per_s: Array, weight_bytes: Array, gradient_bytes: Array
) -> Array:
    """Tokens of one micro-batch at which ZeRO-3 or FSDP breaks even: D* = P (2 b_w + b_r) / (6 BW).

    Weights are gathered forward and backward and gradients reduced in every micro-batch: its tokens count.

    Args:
        flop_per_s [FLOP/s, (...)]: what a rank sustains, P.
        bandwidth_bytes_per_s [bytes/s, (...)]: what a rank gets, BW.
        weight_bytes [bytes/element, (...)]: bytes b_w of one gathered weight.
        gradient_bytes [bytes/element, (...)]: bytes b_r of one reduced gradient.

    Returns:
        D* of a micro-batch [tokens, (...)].

    Raises:
        nothing.

    References:
        [Rajbhandari2020] section 7.2, [Zhao2023] section 3.
    """
    return flop_per_s * (2.0 * weight_bytes + gradient_bytes) / (TRAINED_FLOP * bandwidth_bytes_per_s)


def max_useful_ranks(batch_tokens: Array, break_even: Array) -> Array:
    """Data-parallel ranks among which a global batch can be divided before they wait: K* = G / D*.

    Args:
        batch_tokens [tokens, (...)]: tokens G of one optimizer step.
        break_even [tokens, (...)]: break-even tokens D* of a rank.

    Returns:
        K* by the asymptotic form [ranks, (...)].

    Raises:
        nothing.

    References:
        [Definition] G = K D at D = D*.
    """
    return batch_tokens / break_even


def exact_max_useful_ranks(batch_tokens: Array, break_even: Array, context: Array) -> Array:
    """The same with the ring's (K - 1)/K: K* = 1 + G / D*. The c context-parallel GPUs of a rank join its ring.

    Args:
        batch_tokens [tokens, (...)]: tokens G of one optimizer step.
        break_even [tokens, (...)]: break-even tokens D* of a rank.
        context [ranks, (...)]: context-parallel degree c.

    Returns:
        1/c + G / D* [ranks, (...)].

    Raises:
        nothing.

    References:
        [Definition] G/(K c) = (D*/c) (K c - 1)/(K c), solved for K.
    """
    return 1.0 / context + batch_tokens / break_even


def step_wire_bytes(
    zero: Array, n_micro: Array, weight_bytes: Array, gradient_bytes: Array, reshard: Array, no_sync: Array
) -> Array:
    """Bytes one rank sends for each element in a step, as K grows, by ZeRO stage.

    Args:
        zero [stage, (...)]: 0 all-reduces once; 1 reduces and gathers updated weights once; 2 reduces in every
            micro-batch; 3 also gathers weights in every micro-batch.
        n_micro [micro-batches, (...)]: micro-batches m of a step.
        weight_bytes [bytes/element, (...)]: bytes b_w of one gathered weight.
        gradient_bytes [bytes/element, (...)]: bytes b_r of one reduced gradient.
        reshard [flag, (...)]: 1 where ZeRO-3 frees weights after forward and gathers them again.
        no_sync [flag, (...)]: 1 where gradients are reduced once a step.

    Returns:
        2 b_r; b_r + b_w; m b_r + b_w; m b_w (1 + rho) + m b_r [bytes/element, (...)].

    Raises:
        nothing.

    References:
        [Rajbhandari2020] section 7, [Zhao2023] section 3.
    """
    reductions = np.where(no_sync > 0.0, 1.0, n_micro)
    gathers = n_micro * (1.0 + (reshard > 0.0))
    return np.select(
        [zero >= 3.0, zero >= 2.0, zero >= 1.0],
        [
            gathers * weight_bytes + reductions * gradient_bytes,
            reductions * gradient_bytes + weight_bytes,
            gradient_bytes + weight_bytes,
        ],
        2.0 * gradient_bytes,
    )


def attention_flop_per_token(shape: ModelShape, seq_len: Array) -> Array:
    """FLOP of attention's score and value products per token, forward and backward, without skipping masked blocks.

    Args:
        shape [features, (1,)]: layers, heads and their widths.
        seq_len [tokens, (...)]: length s of a sequence.

    Returns:
        12 L a d_k s; 6 L a s (d_qk + d_v) where the widths differ [FLOP/token, (...)].

    Raises:
        nothing.

    References:
        [Chowdhery2022] appendix B.
    """
    return SCORE_FLOP * shape.layers * shape.heads * (shape.head_dim + shape.value_head_dim) * seq_len


def linear_flop_per_token(params: Array, adapter_params: Array, frozen: Array) -> Array:
    """FLOP of the matrix products per token, forward and backward.

    Args:
        params [parameters, (...)]: parameters a token uses.
        adapter_params [parameters, (...)]: parameters of low-rank adapters it uses; 0 without.
        frozen [flag, (...)]: 1 where only the adapters are trained.

    Returns:
        6 N; 4 N + 6 N_adapters on a frozen base, whose weight gradients nobody computes [FLOP/token, (...)].

    Raises:
        nothing.

    References:
        [Kaplan2020] section 2.1, [Hu2022] section 4.
    """
    return np.where(frozen > 0.0, FROZEN_FLOP, TRAINED_FLOP) * params + TRAINED_FLOP * adapter_params


def recompute_flop_per_token(params: Array, attention_flop: Array, share: Array, selective: Array) -> Array:
    """FLOP per token that activation checkpointing computes again.

    Args:
        params [parameters, (...)]: parameters a token uses, adapters included.
        attention_flop [FLOP/token, (...)]: what ``attention_flop_per_token`` gives.
        share [fraction, (...)]: share of the layers recomputed in full.
        selective [flag, (...)]: 1 where only attention is computed again.

    Returns:
        One more forward of the share, or of attention [FLOP/token, (...)].

    Raises:
        nothing.

    References:
        [Korthikanti2022] section 5.
    """
    forward = FORWARD_FLOP * params * share
    return forward + attention_flop * (FORWARD_FLOP / TRAINED_FLOP) * np.maximum(share, selective)


def reduced_parameters(shape: ModelShape, adapters: Adapters | None) -> tuple[int, int]:
    """Parameters of the whole model whose gradients are reduced, those of experts apart: their group is another.

    Args:
        shape [parameters, (1,)]: the model.
        adapters [rank, (1,)]: low-rank adapters on a frozen base, or None.

    Returns:
        Dense and expert parameters [parameters].

    Raises:
        nothing.

    References:
        [Shazeer2017], [Hu2022] section 4.
    """
    sums = part_sums(shape) if adapters is None else adapter_sums(shape, adapters)
    dense = expert = 0.0
    for part, times in part_instances(shape).items():
        for side in (sums.matrix, sums.other):
            for split, elements in side.get(part, {}).items():
                if split == "expert":
                    expert += times * elements
                else:
                    dense += times * elements
    return int(dense), int(expert)
