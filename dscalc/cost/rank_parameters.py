"""Parameters one rank holds, by pipeline stage: dense and expert tensors, matrices and the rest."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dscalc.cost.inventory import MAIN_PARTS, inventory, parameter_counts, part_instances
from dscalc.cost.placement import StageKinds
from dscalc.records import Adapters, Array, Layouts, ModelShape, Tensor

SPLITS = ("tp", "kv", "vocab", "replicated", "expert")
ROW_PARALLEL = ("o_proj", "down_proj")  # their input features are divided, not their output features


@dataclass(frozen=True, slots=True)
class PartSums:
    """Elements of one instance of each part by split, matrices of linear layers apart from embeddings, norms and
    biases.
    """

    matrix: dict[str, dict[str, float]]
    other: dict[str, dict[str, float]]


@dataclass(frozen=True, slots=True)
class RankParameters:
    """Parameters of a rank before the data-parallel ranks divide them; arrays (kinds, n), the per-layer ones (n,)."""

    matrix: Array  # dense linear-layer weights
    other: Array  # embeddings, norms, biases
    expert: Array  # expert weights
    layer: Array  # the larger of a dense layer and a layer with experts
    head: Array
    embedding: Array
    head_matrix: Array  # an untied head, part of ``other``


def _empty() -> dict[str, dict[str, float]]:
    return {part: dict.fromkeys(SPLITS, 0.0) for part in MAIN_PARTS}


def _sum(tensors: tuple[Tensor, ...]) -> PartSums:
    sums = PartSums(_empty(), _empty())
    for tensor in tensors:
        if tensor.part in MAIN_PARTS:
            side = sums.matrix if (tensor.matrix and tensor.part != "head") or tensor.split == "expert" else sums.other
            side[tensor.part][tensor.split] += tensor.elements
    return sums


@lru_cache(maxsize=256)
def part_sums(shape: ModelShape) -> PartSums:
    """Elements by part and split; a stated parameter count is met exactly by spreading the difference over the layers.

    Args:
        shape [elements, (1,)]: the model.

    Returns:
        Sums [elements].

    Raises:
        nothing.

    References:
        [Shoeybi2019] section 3.
    """
    sums = _sum(inventory(shape))
    if shape.stated_params:
        per_layer, rest = divmod(shape.stated_params - parameter_counts(shape).listed, shape.layers)
        sums.matrix["layer"]["tp"] += per_layer
        sums.other["embedding"]["vocab"] += rest
    return sums


@lru_cache(maxsize=256)
def stored_parameters(shape: ModelShape) -> int:
    """Stored parameters of the main model.

    Args:
        shape [elements, (1,)]: the model.

    Returns:
        Parameters, tied weights once [elements, (1,)].

    Raises:
        nothing.

    References:
        [Definition].
    """
    return parameter_counts(shape).main


@lru_cache(maxsize=256)
def adapter_sums(shape: ModelShape, adapters: Adapters) -> PartSums:
    """Elements of the low-rank adapters by part and split: A is rank x inputs, B is outputs x rank.

    Args:
        shape [elements, (1,)]: the model.
        adapters [rank, (1,)]: rank and targets.

    Returns:
        Sums [elements].

    Raises:
        nothing: targets that the model lacks add nothing.

    References:
        [Hu2022] section 4.
    """
    rows: list[Tensor] = []
    for tensor in inventory(shape):
        if not tensor.target or tensor.target not in adapters.targets:
            continue
        down, up = adapters.rank * tensor.cols * tensor.copies, adapters.rank * tensor.rows * tensor.copies
        row_parallel = tensor.target in ROW_PARALLEL
        whole = "expert" if tensor.split == "expert" else "replicated"
        rows.append(Tensor(f"{tensor.name}/lora_a", tensor.part, down, tensor.split if row_parallel else whole, True))
        rows.append(Tensor(f"{tensor.name}/lora_b", tensor.part, up, whole if row_parallel else tensor.split, True))
    return _sum(tuple(rows))


@lru_cache(maxsize=256)
def factored_ratios(shape: ModelShape) -> tuple[float, float]:
    """Row sums and column sums per element of the model's matrices, embeddings included.

    Args:
        shape [elements, (1,)]: the model.

    Returns:
        (rows/elements, columns/elements) [fraction].

    Raises:
        nothing.

    References:
        [Shazeer2018] section 3.
    """
    rows = cols = elements = 0
    instances = part_instances(shape)
    for tensor in inventory(shape):
        if tensor.part not in MAIN_PARTS:
            continue
        times = instances[tensor.part]
        elements += tensor.elements * times
        if tensor.matrix:
            rows, cols = rows + tensor.rows * tensor.copies * times, cols + tensor.cols * tensor.copies * times
        elif tensor.part == "embedding":
            width = shape.embedding_width or shape.hidden
            rows, cols = rows + tensor.elements // width, cols + width
        else:
            rows += tensor.elements * times
    return rows / elements, cols / elements


def _held(sums: dict[str, float], inverse: dict[str, Array]) -> Array | float:
    total: Array | float = 0.0
    for split in SPLITS:
        if split != "expert" and sums[split]:
            total = total + sums[split] * inverse[split]
    return total


def rank_parameters(shape: ModelShape, sums: PartSums, layouts: Layouts, kinds: StageKinds) -> RankParameters:
    """Parameters one rank holds on each stage kind.

    Only matrices that tensor parallelism divides are divided; norms, routers and row-parallel biases are replicated;
    key/value
    projections are replicated once tp exceeds the key/value heads. Tied embeddings with more than one stage are held
    twice.

    Args:
        shape [elements, (1,)]: the model.
        sums [elements, (parts,)]: from ``part_sums`` or ``adapter_sums``.
        layouts [degrees, (n,)]: the layout columns.
        kinds [counts, (kinds, n)]: the stage kinds.

    Returns:
        Parameters of the rank [elements, (kinds, n)].

    Raises:
        nothing.

    References:
        [Shoeybi2019] section 3, [Narayanan2021] section 2.3, [Ainslie2023].
    """
    by_tp = 1.0 / layouts.tp
    inverse = {
        "tp": by_tp,
        "vocab": by_tp,
        "kv": 1.0 / np.minimum(layouts.tp, float(shape.kv_heads)),
        "replicated": np.ones_like(by_tp),
    }
    expert = (sums.matrix["moe_mlp"]["expert"]) / (layouts.ep * layouts.etp)
    layer_m, layer_o = _held(sums.matrix["layer"], inverse), _held(sums.other["layer"], inverse)
    dense_m, dense_o = _held(sums.matrix["dense_mlp"], inverse), _held(sums.other["dense_mlp"], inverse)
    moe_m, moe_o = _held(sums.matrix["moe_mlp"], inverse), _held(sums.other["moe_mlp"], inverse)
    embedding = _held(sums.other["embedding"], inverse) + 0.0 * by_tp
    head_matrix = _held(sums.other["head"], inverse) + 0.0 * by_tp
    head = head_matrix + _held(sums.other["final"], inverse)
    entry, exit_ = _held(sums.matrix["embedding"], inverse), _held(sums.matrix["final"], inverse)  # narrow embeddings
    tied = sums.other["embedding"]["vocab"] * by_tp if shape.tied_embeddings else 0.0 * by_tp
    dense_layers = kinds.layers - kinds.moe_layers
    matrix = kinds.layers * layer_m + dense_layers * dense_m
    if sums.matrix["embedding"]["replicated"] or sums.matrix["final"]["replicated"]:
        matrix = matrix + kinds.has_embedding * entry + kinds.has_head * exit_
    other = kinds.layers * layer_o + dense_layers * dense_o
    if shape.experts:
        matrix = matrix + kinds.moe_layers * moe_m
        other = other + kinds.moe_layers * moe_o
    second_table = np.where(kinds.has_embedding > 0.0, 0.0, 1.0) * tied if shape.tied_embeddings else 0.0
    other = other + kinds.has_embedding * embedding + kinds.has_head * (head + second_table)
    dense_layer = layer_m + layer_o + dense_m + dense_o
    moe_layer = layer_m + layer_o + moe_m + moe_o + expert
    has_dense = not shape.moe_layer or not all(shape.moe_layer)
    largest = (
        np.maximum(dense_layer, moe_layer)
        if shape.experts and has_dense
        else moe_layer
        if shape.experts
        else dense_layer
    )
    return RankParameters(
        matrix=matrix,
        other=other,
        expert=kinds.moe_layers * expert if shape.experts else np.zeros_like(matrix[:1]),
        layer=largest + 0.0 * by_tp,
        head=head + tied,
        embedding=embedding,
        head_matrix=kinds.has_head * head_matrix,
    )
