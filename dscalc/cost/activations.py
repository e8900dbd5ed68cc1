"""Saved activations of the micro-batches in flight, from the ledger."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dscalc.cost.columns import used
from dscalc.cost.ledger import FULL, NONE, SELECTIVE, coefficients
from dscalc.cost.ledger_rows import COMPONENTS, DIVISORS
from dscalc.cost.moments import AT_FIRST, FORWARD_AND_LAST
from dscalc.cost.placement import StageKinds
from dscalc.frozen import dataclass
from dscalc.records import Adapters, Array, Layouts, ModelShape, StackTable
from dscalc.terms import Cases, LeafSpec, Term

SPECS: dict[str, LeafSpec] = {
    "checkpoint": LeafSpec(
        "activations/layer_inputs", "bytes", "k * L_i * 2 s b h R / c", "[Korthikanti2022] table 2; [Chen2016]"
    ),
    "norms": LeafSpec(
        "activations/norms",
        "bytes",
        "k * L_kept * A_norms, A_norms = T * norm rows * R of a layer",
        "[Korthikanti2022] section 4.1",
    ),
    "attention": LeafSpec(
        "activations/attention",
        "bytes",
        "k * L_kept * A_attention, A_attention = T * (query, key, value and output rows) of a layer",
        "[Korthikanti2022] section 4.1; [Dao2023]; [Ainslie2023]; [DeepSeekV2] section 2.1",
    ),
    "scores": LeafSpec(
        "activations/attention_scores",
        "bytes",
        "k * L_kept * A_scores, A_scores = T * s * a * score bytes / t of a layer",
        "[Korthikanti2022] equation 1",
    ),
    "dropout": LeafSpec(
        "activations/dropout_masks",
        "bytes",
        "k * L_kept * A_dropout, A_dropout = T * 2 h R of a layer",
        "[Korthikanti2022] section 4.1",
    ),
    "mlp": LeafSpec(
        "activations/mlp",
        "bytes",
        (
            "k * (dense L_kept * A_mlp + expert L_kept * A_shared), A_mlp = T * f rows / t of a "
            "layer, A_shared = T * f_s rows / t of an expert layer"
        ),
        "[Korthikanti2022] section 4.1; [Shazeer2020]",
    ),
    "router": LeafSpec(
        "activations/router",
        "bytes",
        "k * expert L_kept * A_router, A_router = T * 8 E R of an expert layer",
        "[Shazeer2017]; [MegatronLM] moe/router.py",
    ),
    "experts": LeafSpec(
        "activations/experts",
        "bytes",
        "k * expert L_kept * A_experts, A_experts = T * top_k * capacity * expert rows / t of an expert layer",
        "[Shazeer2017]; [MegatronLM] moe/token_dispatcher.py",
    ),
    "statistics": LeafSpec(
        "activations/statistics",
        "bytes",
        "k * L_kept * A_statistics, A_statistics = T * (4 norms R + 4 a / t) of a layer",
        "[Dao2023] log-sum-exp; [PyTorch] rms_norm",
    ),
}
DENSE, MOE = "dense", "moe"
BYTES_AS_LISTED = ("dropout", "router", "statistics")  # masks and fp32 numbers, whatever the precision
BY_KIND = ("mlp", "router", "experts")  # components that differ between dense layers and layers with experts


# Quantities: layers times micro-batches that are kept, by kind of layer, and layer inputs on the GPU.
LAYERS, DENSE_LAYERS, MOE_LAYERS, INPUTS = "live_layers", "live_dense_layers", "live_moe_layers", "live_inputs"
INPUTS_ON_HOST = "inputs_on_host"
OFFLOADED_HELD = 2.0  # layer inputs on the GPU while the others are offloaded


@dataclass(frozen=True, slots=True)
class _Ledger:
    """Bytes per token and layer, by component and by divisor, one column a code; zero rows are left out.

    ``rows[r]`` belongs to table ``places[r][0]``, component ``places[r][1]`` and divisor ``places[r][2]``.
    """

    places: tuple[tuple[str, str, int], ...]
    rows: Array


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """Bytes that one layer keeps for one micro-batch on one rank; arrays (n,)."""

    kept: dict[str, Array]  # by component, dense layers (and what all layers share); components it has not are left out
    kept_moe: dict[str, Array]  # by component, where a layer with experts differs
    whole: Array  # everything the largest layer keeps without recompute, layer input apart
    kept_total: Array  # what that layer keeps under the chosen recompute, layer input apart
    tokens: Array  # tokens of the rank
    residual: Array  # 1/t under sequence parallelism, else 1


EVERYTHING, WHOLE = "everything", "whole"  # sums over components: under the chosen recompute, and without recompute


@lru_cache(maxsize=256)
def _ledger(shape: ModelShape, stacks: StackTable, codes: tuple[int, ...], trained: tuple[str, ...] | None) -> _Ledger:
    """Ledger sums of the codes in use."""
    places: list[tuple[str, str, int]] = []
    rows: list[Array] = []
    for kind in (DENSE, MOE) if shape.experts else (DENSE,):
        for total in (EVERYTHING, WHOLE):
            sums = np.zeros((4 * len(stacks.names), len(COMPONENTS), len(DIVISORS)))
            for code in codes:
                recompute = NONE if total == WHOLE else code % 2
                sums[code] = coefficients(shape, stacks, code // 4, recompute, code // 2 % 2, kind, trained)
            linear = [c for c, name in enumerate(COMPONENTS) if name not in ("checkpoint", "scores")]
            found = {total: sums[:, linear].sum(axis=1), f"{total} scores": sums[:, COMPONENTS.index("scores")]}
            if total == EVERYTHING:
                names = COMPONENTS if kind == DENSE else BY_KIND
                found |= {name: sums[:, COMPONENTS.index(name)] for name in names}
            for name, table in found.items():
                for d in range(len(DIVISORS)):
                    if table[:, d].any():
                        places.append((kind, name, d))
                        rows.append(table[:, d])
    return _Ledger(tuple(places), np.asarray(rows).reshape(len(rows), 4 * len(stacks.names)))


def layer_bytes(shape: ModelShape, layouts: Layouts, adapters: Adapters | None = None) -> LayerBytes:
    """Bytes one layer keeps, by component.

    Args:
        shape [elements, (1,)]: the model.
        layouts [degrees, (n,)]: the layout columns.
        adapters [rank, (1,)]: low-rank adapters on a frozen base, or None.

    Returns:
        Bytes of one layer and micro-batch [bytes, (n,)].

    Raises:
        nothing.

    References:
        [Korthikanti2022] section 4.
    """
    by_tp = 1.0 / layouts.tp
    sequence = layouts.sequence_parallel
    residual = by_tp * sequence + (1.0 - sequence)
    tokens = layouts.seq_len * layouts.micro_batch / layouts.cp
    routed = layouts.capacity_factor * (by_tp * tokens)
    by_kv_heads = tokens / np.minimum(layouts.tp, float(shape.kv_heads))
    divided = (residual * tokens, by_tp * tokens, by_kv_heads, routed, routed * layouts.etp)
    wider = layouts.books.recipes.activation[layouts.recipe] * 0.5  # the ledger lists 16-bit elements
    wide = tuple(values * wider for values in divided)
    stacks = layouts.books.stacks
    code = (layouts.stack * 2 + layouts.attention) * 2 + (layouts.recompute == SELECTIVE)
    codes = tuple(used(code, 4 * len(stacks.names)).tolist())
    ledger = _ledger(shape, stacks, codes, None if adapters is None else adapters.targets)

    found: dict[tuple[str, str], Array] = {}
    for (kind, name, divisor), row in zip(ledger.places, ledger.rows.take(code, axis=1), strict=True):
        part = row * (divided if name in BYTES_AS_LISTED else wide)[divisor]
        if name.endswith("scores"):
            part = part * layouts.seq_len
        found[kind, name] = found[kind, name] + part if (kind, name) in found else part

    def total(kind: str, name: str) -> Array:
        linear, scores = found.get((kind, name), np.zeros(1)), found.get((kind, f"{name} scores"))
        return linear if scores is None else linear + scores

    whole, kept_total = total(DENSE, WHOLE), total(DENSE, EVERYTHING)
    if shape.experts:
        whole_moe, kept_total_moe = total(MOE, WHOLE), total(MOE, EVERYTHING)
        all_moe = all(shape.moe_layer)
        whole = whole_moe if all_moe else np.maximum(whole, whole_moe)
        kept_total = kept_total_moe if all_moe else np.maximum(kept_total, kept_total_moe)
    kept, kept_moe = (
        {name: found[kind, name] for name in COMPONENTS if (kind, name) in found} for kind in (DENSE, MOE)
    )
    return LayerBytes(kept, kept_moe, whole, kept_total, tokens, residual)


def full_recompute_layers(layouts: Layouts, kinds: StageKinds) -> Array:
    """Layers of a stage that keep their input alone.

    Args:
        layouts [codes, (n,)]: the layout columns.
        kinds [layers, (kinds, n)]: the stage kinds.

    Returns:
        Layers under full recompute [layers, (kinds, n)].

    Raises:
        nothing.

    References:
        [Chen2016], [MegatronLM] recompute-num-layers.
    """
    full = (layouts.recompute == FULL).astype(np.float64)
    alone: Array = full * np.minimum(layouts.recompute_layers, kinds.layers)
    return alone


def saved_terms(shape: ModelShape, layer: LayerBytes) -> list[Term]:
    """Leaves of the saved activations, as coefficients of layers times micro-batches.

    Args:
        shape [elements, (1,)]: the model.
        layer [bytes, (n,)]: bytes of one layer.

    Returns:
        The leaves in ledger order [bytes per layer and micro-batch, (n,)].

    Raises:
        nothing.

    References:
        [Korthikanti2022] section 4.2.
    """
    terms: list[Term] = []
    for name in COMPONENTS:
        parts = []
        if name in layer.kept:
            by_kind = name in BY_KIND and shape.experts
            parts.append((layer.kept[name], INPUTS if name == "checkpoint" else DENSE_LAYERS if by_kind else LAYERS))
        if name in layer.kept_moe:
            parts.append((layer.kept_moe[name], MOE_LAYERS))
        if parts:
            terms.append(Term(SPECS[name], tuple(parts)))
    return terms


def live_layers(
    shape: ModelShape, layouts: Layouts, kinds: StageKinds, kept_layers: Array, micro_batches: Array
) -> dict[str, Array]:
    """Layers times micro-batches that a stage keeps: what the leaves of saved activations are coefficients of.

    Args:
        shape [elements, (1,)]: the model.
        layouts [codes, (n,)]: the layout columns.
        kinds [layers, (kinds, n)]: the stage kinds.
        kept_layers [layers, (kinds, n)]: layers that keep more than their input.
        micro_batches [micro-batches, (kinds, n)]: micro-batches in flight.

    Returns:
        Quantities by name [layers, (kinds, n)].

    Raises:
        nothing.

    References:
        [Korthikanti2022] section 4.2.
    """
    inputs = micro_batches * kinds.layers
    offload = layouts.offload_activations
    live = micro_batches * kept_layers
    found: dict[str, Array] = {INPUTS: inputs, LAYERS: live}
    if offload.any():
        found[INPUTS_ON_HOST] = offload * np.maximum(inputs - OFFLOADED_HELD, 0.0)
        found[INPUTS] = inputs - found[INPUTS_ON_HOST]
    if shape.experts:
        found[MOE_LAYERS] = live * (kinds.moe_layers / np.maximum(kinds.layers, 1.0))
        found[DENSE_LAYERS] = live - found[MOE_LAYERS]
    return found


def activation_quantities(shape: ModelShape, layouts: Layouts, kinds: StageKinds, flying: Array) -> dict[str, Cases]:
    """Layers times micro-batches that a stage keeps at each moment.

    Args:
        shape [elements, (1,)]: the model.
        layouts [codes, (n,)]: the layout columns.
        kinds [layers, (kinds, n)]: the stage kinds.
        flying [micro-batches, (kinds, n)]: micro-batches a stage holds.

    Returns:
        Quantities by moment: end of forward, backward of the last and of the first layer, step [layers, (kinds, n)].

    Raises:
        nothing.

    References:
        [Korthikanti2022] section 4.2.
    """
    kept_layers = kinds.layers - full_recompute_layers(layouts, kinds)
    most = live_layers(shape, layouts, kinds, kept_layers, flying)
    fewer = live_layers(shape, layouts, kinds, kept_layers, np.maximum(flying - 1.0, 0.0))
    return {name: ((FORWARD_AND_LAST, most[name]), (AT_FIRST, fewer[name])) for name in most}


def saved(
    shape: ModelShape, layer: LayerBytes, layouts: Layouts, kinds: StageKinds, kept_layers: Array, micro_batches: Array
) -> list[tuple[LeafSpec, Array]]:
    """Leaves of the activations that ``micro_batches`` micro-batches keep on each stage.

    Args:
        shape [elements, (1,)]: the model.
        layer [bytes, (n,)]: bytes of one layer.
        layouts [codes, (n,)]: the layout columns.
        kinds [layers, (kinds, n)]: the stage kinds.
        kept_layers [layers, (kinds, n)]: layers that keep more than their input.
        micro_batches [micro-batches, (kinds, n)]: micro-batches in flight.

    Returns:
        (leaf, bytes) in ledger order [bytes, (kinds, n)].

    Raises:
        nothing.

    References:
        [Korthikanti2022] section 4.2.
    """
    live = live_layers(shape, layouts, kinds, kept_layers, micro_batches)
    return [(term.spec, term.of(live)) for term in saved_terms(shape, layer)]
