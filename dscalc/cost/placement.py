"""Which layers lie on which pipeline stage, and the few kinds of stages that can hold the most memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dscalc.codes import PLACEMENTS
from dscalc.cost.schedule import SCHEDULES, chunks_per_stage
from dscalc.records import Array, Layouts, ModelShape

EVEN, BY_COST, EMBEDDING_AS_LAYER = range(3)
KINDS = 7
Stage = tuple[float, float, float, float, float]


@dataclass(frozen=True, slots=True)
class StageKinds:
    """The stages among which the fullest one lies; arrays of shape (kinds, n), the same stage may appear twice."""

    index: Array
    layers: Array
    moe_layers: Array
    has_embedding: Array
    has_head: Array


def chunk_layers(shape: ModelShape, chunks: int, placement: int) -> list[int]:
    """Layers of each chunk of a model that is cut in order.

    ``even``: the first chunks take the remainder, but where the layers do not divide and layers + 2 do, embedding and
    head count
    as a layer each (Llama 3 405B: 126 layers on 16 stages). ``embedding-as-layer``: embedding and head count as one
    layer each.
    ``by-cost``: blocks are placed in order and the next chunk begins once the running cost has reached its share of
    the total; a layer costs 4h^2 + 3hf, the head Vh, the embedding nothing.

    Args:
        shape [layers, (1,)]: the model.
        chunks [count, (1,)]: pipeline stages times virtual stages.
        placement [code, (1,)]: index into ``codes.PLACEMENTS``.

    Returns:
        Layers per chunk [layers, (chunks,)].

    Raises:
        nothing.

    References:
        [MegatronLM] transformer block layer offsets, [nanotron] pipeline block placement by cost, [LeScao2022] section
        3.2, [Dubey2024].
    """
    if placement == BY_COST and chunks > 1:
        matrices = 3 if shape.gated_mlp else 2
        costs = [4 * shape.hidden**2 + matrices * shape.ffn_hidden * shape.hidden] * shape.layers
        total = sum(costs) + shape.vocab * shape.hidden
        counts = [0] * chunks
        chunk, running = 0, 0
        for cost in costs:
            counts[chunk] += 1
            running += cost
            if chunk < chunks - 1 and running * chunks >= total * (chunk + 1):
                chunk += 1
        return counts
    uneven = shape.layers % chunks != 0 and (shape.layers + 2) % chunks == 0
    if chunks > 1 and (placement == EMBEDDING_AS_LAYER or uneven):
        base, rest = divmod(shape.layers + 2, chunks)
        counts = [base + (c < rest) for c in range(chunks)]
        counts[0] -= 1
        counts[-1] -= 1
        return counts
    base, rest = divmod(shape.layers, chunks)
    return [base + (c < rest) for c in range(chunks)]


@lru_cache(maxsize=64)
def _memo(_: ModelShape) -> dict[int, tuple[Stage, ...]]:
    """Stage kinds of one model by key: a model is hashed once an evaluation, not once a layout."""
    return {}


def _stages(shape: ModelShape, pp: int, chunks: int, schedule: str, placement: int) -> tuple[Stage, ...]:
    """Per kind: index, layers, layers with experts, embedding tables, heads."""
    loop = schedule == "loop"
    total = pp * chunks if loop else 2 * pp if schedule == "vee" else pp
    counts = chunk_layers(shape, total, placement)
    starts = np.concatenate(([0], np.cumsum(counts)))
    is_moe = np.zeros(shape.layers + 1)
    if shape.moe_layer:
        is_moe[1:] = np.cumsum(np.asarray(shape.moe_layer, dtype=np.float64))
    moe = [float(is_moe[min(starts[c + 1], shape.layers)] - is_moe[min(starts[c], shape.layers)]) for c in range(total)]
    held: list[tuple[int, ...]] = []
    for i in range(pp):
        if loop:
            held.append(tuple(range(i, total, pp)))
        elif schedule == "vee":
            held.append((i, 2 * pp - 1 - i))
        else:
            held.append((i, pp - 1 - i))
    rows = [
        (
            float(i),
            float(sum(counts[c] for c in chunk)),
            float(sum(moe[c] for c in chunk)),
            float(sum(c == 0 for c in chunk)),
            float(sum(c == total - 1 for c in chunk)),
        )
        for i, chunk in enumerate(held)
    ]
    middle = rows[1:-1] or [rows[-1]]
    most_layers = max(middle, key=lambda r: (r[1], r[2], -r[0]))
    most_experts = max(middle, key=lambda r: (r[2], r[1], -r[0]))
    most_dense = max(middle, key=lambda r: (r[1] - r[2], r[2], -r[0]))
    fewest_experts = max(middle, key=lambda r: (r[1], -r[2], -r[0]))
    return (rows[0], middle[0], most_layers, most_experts, most_dense, fewest_experts, rows[-1])


def stage_kinds(shape: ModelShape, layouts: Layouts) -> StageKinds:
    """The stage kinds of each layout: first, the middle ones that can be fullest, last.

    Args:
        shape [layers, (1,)]: the model.
        layouts [degrees, (n,)]: the layout columns.

    Returns:
        Stage kinds [index, layers, counts; (kinds, n)].

    Raises:
        nothing: stages beyond the layers hold none.

    References:
        [Narayanan2021] section 2.2, [Qi2024], [DeepSeekV3] section 3.2.1.
    """
    chunks = np.minimum(np.floor(chunks_per_stage(layouts)), float(min(shape.layers, 4095)))
    stages = np.minimum(np.floor(layouts.pp), float(shape.layers))
    placement = layouts.books.stacks.placement[layouts.stack]
    key = ((stages * 4096.0 + chunks) * len(SCHEDULES) + layouts.schedule) * len(PLACEMENTS) + placement
    unique = np.unique(key)
    memo = _memo(shape)
    rows = []
    for value in unique.astype(np.int64).tolist():
        if value not in memo:
            rest, place = divmod(value, len(PLACEMENTS))
            rest, code = divmod(rest, len(SCHEDULES))
            pp, v = divmod(rest, 4096)
            memo[value] = _stages(shape, pp, v, SCHEDULES[code].placement, place)
        rows.append(memo[value])
    table = np.asarray(rows)  # (unique, kinds, fields)
    where = np.searchsorted(unique, key)
    fields = table[:, _worth_keeping(table), :].transpose(2, 1, 0)
    return StageKinds(*(np.ascontiguousarray(field)[:, where] for field in fields))


def _worth_keeping(table: Array) -> list[int]:
    """Kinds that can be the fullest: a middle stage is not where an earlier one holds as many layers of each sort.

    Fewer micro-batches are in flight on a later stage, so an earlier middle stage with the same layers needs no less
    memory.
    """
    first, middle, last = 0, range(1, KINDS - 1), KINDS - 1
    kept: list[int] = []
    for kind in middle:
        layers, experts, index = table[:, kind, 1], table[:, kind, 2], table[:, kind, 0]
        beaten = any(
            (table[:, k, 1] - table[:, k, 2] >= layers - experts).all()
            and (table[:, k, 2] >= experts).all()
            and (table[:, k, 0] <= index).all()
            for k in kept
        )
        if not beaten:
            kept.append(kind)
    return [first, *kept, last]
