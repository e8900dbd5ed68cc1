"""Which layers lie on which pipeline stage, and the few kinds of stages that can hold the most memory."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dscalc.codes import PLACEMENTS
from dscalc.cost.columns import used
from dscalc.cost.schedule import SCHEDULES, chunks_per_stage
from dscalc.frozen import dataclass
from dscalc.records import Array, Layouts, ModelShape

EVEN, BY_COST, EMBEDDING_AS_LAYER = range(3)
KINDS, FIELDS = 7, 6
MOST_CHUNKS = 4096
Stage = tuple[float, float, float, float, float, float]


@dataclass(frozen=True, slots=True)
class StageKinds:
    """The stages among which the fullest one lies; arrays of shape (kinds, n), the same stage may appear twice.

    ``outer_layers`` are those of the model's first or last chunk, on the stage that holds it.
    """

    index: Array
    layers: Array
    moe_layers: Array
    has_embedding: Array
    has_head: Array
    outer_layers: Array


def chunk_layers(shape: ModelShape, chunks: int, placement: int) -> list[int]:
    """Layers of each chunk of a model that is cut in order.

    ``even``: the first chunks take the remainder, but where the layers do not divide and layers + 2 do, embedding and
    head count as a layer each (Llama 3 405B: 126 layers on 16 stages). ``embedding-as-layer``: embedding and head count
    as one layer each. ``by-cost``: blocks are placed in order and the next chunk begins once the running cost has
    reached its share of the total; a layer costs 4h^2 + 3hf, the head Vh, the embedding nothing.

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


WAYS = ("loop", "vee", "both")  # which chunks a stage holds, see ``Schedule.placement``


class _Known:
    """Stage kinds of one model by key: each placement of its layers is counted once."""

    __slots__ = ("counts", "numbers", "rows", "shape")

    def __init__(self, shape: ModelShape) -> None:
        self.shape = shape
        self.numbers: dict[tuple[int, int], int] = {}
        self.rows: Array = np.zeros((64, KINDS, FIELDS))
        self.counts = np.zeros(64, dtype=np.intp)

    def number(self, stages_and_chunks: int, way_and_placement: int) -> int:
        """Row of a key, counted if it is new."""
        key = (stages_and_chunks, way_and_placement)
        if key not in self.numbers:
            number = self.numbers[key] = len(self.numbers)
            if number == len(self.rows):
                self.rows = np.concatenate([self.rows, np.zeros_like(self.rows)])
                self.counts = np.concatenate([self.counts, np.zeros_like(self.counts)])
            way, place = divmod(way_and_placement, len(PLACEMENTS))
            kept = _worth_keeping(_stages(self.shape, *divmod(stages_and_chunks, MOST_CHUNKS), WAYS[way], place))
            self.counts[number] = len(kept)
            self.rows[number] = [*kept, *[kept[-1]] * (KINDS - len(kept))]
        return self.numbers[key]


@lru_cache(maxsize=64)
def _known(shape: ModelShape) -> _Known:
    return _Known(shape)


def _stages(shape: ModelShape, pp: int, chunks: int, schedule: str, placement: int) -> tuple[Stage, ...]:
    """Per kind: index, layers, layers with experts, embedding tables, heads, layers of the model's end chunk."""
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
            float(counts[0] if 0 in chunk else counts[-1] if total - 1 in chunk else 0),
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
    chunks = np.minimum(np.floor(chunks_per_stage(layouts)), float(min(shape.layers, MOST_CHUNKS - 1)))
    stages = np.minimum(np.floor(layouts.pp), float(shape.layers))
    way = np.asarray([WAYS.index(schedule.placement) for schedule in SCHEDULES]).take(layouts.schedule)
    width = int(chunks.max(initial=0.0)) + 1
    outer = stages * width + chunks
    inner = way * len(PLACEMENTS) + layouts.books.stacks.placement.take(layouts.stack)
    cases = len(WAYS) * len(PLACEMENTS)
    key = (outer * cases + inner).astype(np.intp)
    size = int(key.max(initial=0)) + 1
    keys = used(key, size)
    known = _known(shape)
    numbers = []
    for value in keys.tolist():
        at, rest = divmod(value, cases)
        p, v = divmod(at, width)
        numbers.append(known.number(p * MOST_CHUNKS + v, rest))
    found = np.asarray(numbers, dtype=np.intp)
    kinds = int(known.counts[found].max(initial=1))
    table = known.rows[found, :kinds].transpose(2, 1, 0)  # (fields, kinds, keys)
    flat = table.reshape(FIELDS * kinds, len(numbers))
    if len(numbers) == 1:
        columns = flat
    elif size <= 16 * key.shape[0]:
        place = np.zeros(size, dtype=np.intp)
        place[keys] = np.arange(len(numbers))
        columns = flat.take(place.take(key), axis=1)
    else:
        columns = flat.take(np.searchsorted(keys, key), axis=1)
    return StageKinds(*columns.reshape(FIELDS, kinds, -1))


def _worth_keeping(rows: tuple[Stage, ...]) -> list[Stage]:
    """Stages that can be the fullest: a middle stage is not where an earlier one holds as many layers of each sort.

    Fewer micro-batches are in flight on a later stage, so an earlier middle stage with the same layers needs no less
    memory.
    """
    first, *middle, last = rows
    kept: list[Stage] = []
    for stage in middle:
        index, layers, experts = stage[:3]
        beaten = any(s[1] - s[2] >= layers - experts and s[2] >= experts and s[0] <= index for s in kept)
        if not beaten and stage not in (first, last):
            kept.append(stage)
    ends = [first] if first == last else [first, last]
    return [ends[0], *kept, *ends[1:]]
