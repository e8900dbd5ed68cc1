"""Saved activations of the micro-batches in flight, from the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dscalc.cost.ledger import FULL, NONE, SELECTIVE, coefficients
from dscalc.cost.ledger_rows import COMPONENTS, DIVISORS
from dscalc.cost.placement import StageKinds
from dscalc.records import Adapters, Array, Layouts, ModelShape, StackTable
from dscalc.terms import LeafSpec

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


@dataclass(frozen=True, slots=True)
class _Table:
    """Bytes per token over codes: (divisor, values) by component, and summed over all but checkpoints and scores."""

    components: dict[str, tuple[tuple[int, Array], ...]]
    total: tuple[tuple[int, Array], ...]


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """Bytes that one layer keeps for one micro-batch on one rank; arrays (n,). ``None`` where the model or stack has
    none.
    """

    kept: dict[str, Array | None]  # by component, dense layers (and what all layers share)
    kept_moe: dict[str, Array | None]  # by component, where a layer with experts differs
    whole: Array  # everything the largest layer keeps without recompute, layer input apart
    kept_total: Array  # what that layer keeps under the chosen recompute, layer input apart
    tokens: Array  # tokens of the rank
    residual: Array  # 1/t under sequence parallelism, else 1


@lru_cache(maxsize=256)
def _tables(
    shape: ModelShape, stacks: StackTable, codes: tuple[int, ...], trained: tuple[str, ...] | None
) -> tuple[_Table, ...]:
    """Ledger sums over the codes in use: kept and whole, for dense layers and for layers with experts."""
    return tuple(
        _table(
            [
                coefficients(shape, stacks, code // 4, NONE if whole else code % 2, code // 2 % 2, kind, trained)
                for code in codes
            ]
        )
        for kind in (DENSE, MOE)
        for whole in (False, True)
    )


def _table(rows: list[tuple[tuple[float, ...], ...]]) -> _Table:
    sums = np.asarray(rows)  # (codes, components, divisors)
    per_component = {
        name: tuple((d, np.ascontiguousarray(sums[:, c, d])) for d in range(len(DIVISORS)) if sums[:, c, d].any())
        for c, name in enumerate(COMPONENTS)
    }
    linear = sums[:, [c for c, name in enumerate(COMPONENTS) if name not in ("checkpoint", "scores")]].sum(axis=1)
    total = tuple((d, np.ascontiguousarray(linear[:, d])) for d in range(len(DIVISORS)) if linear[:, d].any())
    return _Table(per_component, total)


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
    residual = np.where(layouts.sequence_parallel > 0.0, by_tp, 1.0)
    routed = layouts.capacity_factor * by_tp
    inverse = (residual, by_tp, 1.0 / np.minimum(layouts.tp, float(shape.kv_heads)), routed, routed * layouts.etp)
    tokens = layouts.seq_len * layouts.micro_batch / layouts.cp
    recipes = layouts.books.recipes
    wide = tokens * (recipes.activation[layouts.recipe] * 0.5)  # the ledger lists 16-bit elements
    pairs = wide * layouts.seq_len
    code = (layouts.stack * 2 + layouts.attention) * 2 + (layouts.recompute == SELECTIVE)
    unique = np.unique(code)
    where = np.searchsorted(unique, code)
    trained = None if adapters is None else adapters.targets
    dense_kept, dense_whole, moe_kept, moe_whole = _tables(
        shape, layouts.books.stacks, tuple(int(u) for u in unique), trained
    )

    def spread(parts: tuple[tuple[int, Array], ...]) -> Array | None:
        total: Array | None = None
        for d, values in parts:
            part = values[where] * inverse[d]
            total = part if total is None else total + part
        return total

    def component(table: _Table, name: str) -> Array | None:
        total = spread(table.components[name])
        return (
            None
            if total is None
            else total * (pairs if name == "scores" else tokens if name in BYTES_AS_LISTED else wide)
        )

    def everything(table: _Table) -> Array:
        linear, scores = spread(table.total), spread(table.components["scores"])
        total = np.zeros_like(tokens) if linear is None else linear * wide
        return total if scores is None else total + scores * pairs

    kept = {name: component(dense_kept, name) for name in COMPONENTS}
    kept_moe: dict[str, Array | None] = {}
    whole, kept_total = everything(dense_whole), everything(dense_kept)
    if shape.experts:
        kept_moe = {name: component(moe_kept, name) for name in BY_KIND}
        whole_moe, kept_total_moe = everything(moe_whole), everything(moe_kept)
        all_moe = all(shape.moe_layer)
        whole = whole_moe if all_moe else np.maximum(whole, whole_moe)
        kept_total = kept_total_moe if all_moe else np.maximum(kept_total, kept_total_moe)
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
    return np.where(layouts.recompute == FULL, np.minimum(layouts.recompute_layers, kinds.layers), 0.0)


def offloaded_checkpoints(layer: LayerBytes, layouts: Layouts, kinds: StageKinds, micro_batches: Array) -> Array:
    """Layer inputs that live on the host: all but those of two layers.

    Args:
        layer [bytes, (n,)]: bytes of one layer.
        layouts [flags, (n,)]: the layout columns.
        kinds [layers, (kinds, n)]: the stage kinds.
        micro_batches [micro-batches, (kinds, n)]: micro-batches in flight.

    Returns:
        Bytes on the host [bytes, (kinds, n)].

    Raises:
        nothing.

    References:
        [torchtune] activation offloading.
    """
    held = micro_batches * kinds.layers
    checkpoint = layer.kept["checkpoint"]
    moved = np.maximum(held - 2.0, 0.0) * (layouts.offload_activations > 0.0)
    return moved * checkpoint if checkpoint is not None else moved * 0.0


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
    leaves: list[tuple[LeafSpec, Array]] = []
    checkpoint = layer.kept["checkpoint"]
    if checkpoint is not None:
        held = micro_batches * kinds.layers
        on_gpu = np.where(layouts.offload_activations > 0.0, np.minimum(held, 2.0), held)
        leaves.append((SPECS["checkpoint"], on_gpu * checkpoint))
    live = micro_batches * kept_layers
    moe_live = live * (kinds.moe_layers / np.maximum(kinds.layers, 1.0)) if shape.experts else None
    dense_live = live - moe_live if moe_live is not None else live
    for name in COMPONENTS[1:]:
        if name in BY_KIND:
            dense, moe = layer.kept[name], layer.kept_moe.get(name)
            if dense is None and moe is None:
                continue
            part = dense_live * dense if dense is not None else None
            if moe is not None and moe_live is not None:
                part = moe_live * moe if part is None else part + moe_live * moe
            if part is not None:
                leaves.append((SPECS[name], part))
        else:
            shared = layer.kept[name]
            if shared is not None:
                leaves.append((SPECS[name], live * shared))
    return leaves
