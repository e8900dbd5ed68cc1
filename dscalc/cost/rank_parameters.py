"""Parameters one rank holds, by pipeline stage: dense and expert tensors, matrices and the rest."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dscalc.cost.inventory import MAIN_PARTS, inventory, parameter_counts, part_instances
from dscalc.cost.placement import StageKinds
from dscalc.frozen import dataclass
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
    """Parameters of a rank before the data-parallel ranks divide them; arrays (kinds, n), of parts (n,)."""

    matrix: Array  # dense linear-layer weights
    other: Array  # embeddings, norms, biases
    dense: Array  # both
    expert: Array  # expert weights
    elements: Array  # all of them
    layer: Array  # the larger of a dense layer and a layer with experts
    head: Array
    embedding: Array
    head_matrix: Array  # (kinds, n): an untied head, part of ``other``


def _empty() -> dict[str, dict[str, float]]:
    return {part: dict.fromkeys(SPLITS, 0.0) for part in MAIN_PARTS}


def _sum(tensors: tuple[Tensor, ...]) -> PartSums:
    sums = PartSums(_empty(), _empty())
    for tensor in tensors:
        if tensor.part in MAIN_PARTS:
            side = sums.matrix if (tensor.matrix and tensor.part != "head") or tensor.split == "expert" else sums.other
            side[tensor.part][tensor.split] += tensor.elements
    return sums


def _in_proportion(sums: PartSums, shape: ModelShape, listed: int) -> tuple[PartSums, int]:
    """Whole elements, each its share of the stated count rounded down; and what that leaves over."""
    matrix, other = (
        {
            part: {split: float(int(elements) * shape.stated_params // listed) for split, elements in splits.items()}
            for part, splits in side.items()
        }
        for side in (sums.matrix, sums.other)
    )
    instances = part_instances(shape)
    held = sum(instances[part] * int(sum(splits.values())) for side in (matrix, other) for part, splits in side.items())
    return PartSums(matrix, other), shape.stated_params - held


@lru_cache(maxsize=256)
def part_sums(shape: ModelShape) -> PartSums:
    """Elements by part and split; a stated parameter count is met exactly by spreading the difference over the layers,
    or, where more is missing than the layers' own matrices hold, over everything in proportion.

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
        listed = parameter_counts(shape).listed
        more = shape.stated_params - listed
        if sums.matrix["layer"]["tp"] * shape.layers + more < 0.0:
            sums, more = _in_proportion(sums, shape, listed)
        per_layer, rest = divmod(more, shape.layers)
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


@dataclass(frozen=True, slots=True)
class PartParameters:
    """Parameters a rank holds of one instance of each part; arrays (n,), or (1,) where the layouts do not matter."""

    layer_matrix: Array  # of a dense layer
    layer_other: Array
    moe_matrix: Array  # what a layer with experts has beyond a dense one, experts apart
    moe_other: Array
    expert: Array  # experts of one layer
    embedding: Array
    entry: Array  # matrix beside a narrow embedding
    exit: Array  # matrix before a narrow head
    head: Array  # head and final norm
    head_matrix: Array  # an untied head
    tied: Array  # table of tied embeddings, a second time on the stage of the head
    largest: Array  # the larger of a dense layer and a layer with experts


def _held(sums: dict[str, float], inverse: dict[str, Array]) -> Array:
    total: Array | None = None
    for split in SPLITS:
        if split != "expert" and sums[split]:
            part = sums[split] * inverse[split]
            total = part if total is None else total + part
    return np.zeros(1) if total is None else total


def part_parameters(shape: ModelShape, sums: PartSums, layouts: Layouts) -> PartParameters:
    """Parameters one rank holds of one layer, the embedding and the head.

    Only matrices that tensor parallelism divides are divided; norms, routers and row-parallel biases are replicated;
    key/value projections are replicated once tp exceeds the key/value heads.

    Args:
        shape [elements, (1,)]: the model.
        sums [elements, (parts,)]: from ``part_sums`` or ``adapter_sums``.
        layouts [degrees, (n,)]: the layout columns.

    Returns:
        Parameters of the rank [elements, (n,)].

    Raises:
        nothing.

    References:
        [Shoeybi2019] section 3, [Ainslie2023].
    """
    by_tp = 1.0 / layouts.tp
    inverse = {
        "tp": by_tp,
        "vocab": by_tp,
        "kv": 1.0 / np.minimum(layouts.tp, float(shape.kv_heads)),
        "replicated": np.ones(1),
    }
    matrix, other = (
        {part: _held(side[part], inverse) for part in ("layer", "dense_mlp", "moe_mlp", "embedding", "head", "final")}
        for side in (sums.matrix, sums.other)
    )
    expert = sums.matrix["moe_mlp"]["expert"] / (layouts.ep * layouts.etp)
    layer_matrix, layer_other = matrix["layer"] + matrix["dense_mlp"], other["layer"] + other["dense_mlp"]
    largest = layer_matrix + layer_other
    if shape.experts:
        moe_layer = matrix["layer"] + other["layer"] + matrix["moe_mlp"] + other["moe_mlp"] + expert
        largest = moe_layer if shape.moe_layer and all(shape.moe_layer) else np.maximum(largest, moe_layer)
    return PartParameters(
        layer_matrix=layer_matrix,
        layer_other=layer_other,
        moe_matrix=matrix["moe_mlp"] - matrix["dense_mlp"],
        moe_other=other["moe_mlp"] - other["dense_mlp"],
        expert=expert,
        embedding=other["embedding"],
        entry=matrix["embedding"],
        exit=matrix["final"],
        head_matrix=other["head"],
        head=other["head"] + other["final"],
        tied=sums.other["embedding"]["vocab"] * by_tp if shape.tied_embeddings else np.zeros(1),
        largest=largest,
    )


def stage_parameters(shape: ModelShape, parts: PartParameters, kinds: StageKinds) -> RankParameters:
    """Parameters one rank holds on each stage kind. Tied embeddings with more than one stage are held twice.

    Args:
        shape [elements, (1,)]: the model.
        parts [elements, (n,)]: one instance of each part.
        kinds [counts, (kinds, n)]: the stage kinds.

    Returns:
        Parameters of the rank [elements, (kinds, n)].

    Raises:
        nothing.

    References:
        [Shoeybi2019] section 3, [Narayanan2021] section 2.3.
    """
    matrix, other = kinds.layers * parts.layer_matrix, kinds.layers * parts.layer_other
    if parts.entry.any() or parts.exit.any():
        matrix = matrix + kinds.has_embedding * parts.entry + kinds.has_head * parts.exit
    if shape.experts:
        matrix = matrix + kinds.moe_layers * parts.moe_matrix
        other = other + kinds.moe_layers * parts.moe_other
    other = other + kinds.has_embedding * parts.embedding
    if shape.tied_embeddings:
        other = other + kinds.has_head * (parts.head + parts.tied * np.maximum(1.0 - kinds.has_embedding, 0.0))
    else:
        other = other + kinds.has_head * parts.head
    expert = kinds.moe_layers * parts.expert if shape.experts else np.zeros(1)
    dense = matrix + other
    return RankParameters(
        matrix=matrix,
        other=other,
        dense=dense,
        expert=expert,
        elements=dense + expert if shape.experts else dense,
        layer=parts.largest,
        head=parts.head + parts.tied,
        embedding=parts.embedding,
        head_matrix=kinds.has_head * parts.head_matrix,
    )


def rank_parameters(shape: ModelShape, sums: PartSums, layouts: Layouts, kinds: StageKinds) -> RankParameters:
    """Parameters one rank holds on each stage kind.

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
    return stage_parameters(shape, part_parameters(shape, sums, layouts), kinds)
