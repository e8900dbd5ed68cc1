"""Time of a training step: stages, pipeline, communication that stays exposed, optimizer; named terms that add up."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from dscalc.cost.columns import COLUMNS, largest_of, row_of
from dscalc.cost.exchange import (
    PER_MICRO_BATCH,
    PER_STEP,
    Exchange,
    MicroBatchExchange,
    exchange,
    micro_batch_exchange,
    step_exchange,
    varies,
)
from dscalc.cost.factors import Coded, Distinct, alike, distinct, some_rows
from dscalc.cost.layer_time import GROUPS, EndTime, LayerTime, layer_times, soft_maximum
from dscalc.cost.once_a_step import OnceAStep, once_a_step
from dscalc.cost.operations import pace_of
from dscalc.cost.pipeline import pipeline_s
from dscalc.cost.pipeline_runs import Runs
from dscalc.cost.placement import StageKinds, stage_kinds
from dscalc.cost.schedule import SCHEDULES, chunks_per_stage
from dscalc.cost.step_terms import SPECS, TimeLeaf
from dscalc.frozen import dataclass
from dscalc.records import Adapters, Array, Engine, Layouts, ModelShape, PaceConstants, PaceTable, Timing

WEIGHT_SHARE = 0.5  # of a backward: input and weight gradients are products of the same size
LAYER = (*PER_MICRO_BATCH, "attention")  # the columns on which the time of a layer and of a micro-batch depends
ALL = frozenset((*LAYER, *PER_STEP))
NOTHING = np.zeros(1)  # a term that no layout has
ALIKE = 0.7  # of the layouts: with fewer combinations than that, each is worked out once


@dataclass(frozen=True, slots=True, eq=False)
class Step:
    """Time of a step; arrays (n,).

    ``step_time_s`` is the left-to-right sum of the exposed seconds of ``terms``. ``lower_s`` hides all communication
    that compute is long enough for, ``upper_s`` none.
    """

    step_time_s: Array
    lower_s: Array
    upper_s: Array
    bubble_over_ideal: Array
    executed_flop: Array  # of one GPU, on average over stages
    micro_batch_s: Array  # of the slowest stage, one micro-batch
    communication_s: Array  # exposed
    misaligned: Array  # 1: a group straddles domains
    terms: tuple[TimeLeaf, ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Stages:
    """Runs of equal stages: layers, layers with experts, ends; (runs, n), four at most."""

    count: Array
    dense: Array
    moe: Array
    embedding: Array
    head: Array
    outer: Array  # part of the layers of the first and of the last stage that their outermost chunk holds; (2, n)


def _stages(shape: ModelShape, layouts: Layouts, kinds: StageKinds) -> _Stages:
    """First stage, the fuller middle ones, the emptier middle ones, last stage."""
    copies = np.asarray([2.0 if s.placement == "both" else 1.0 for s in SCHEDULES]).take(layouts.schedule)
    p = np.minimum(layouts.pp, float(shape.layers)) + 0.0 * kinds.layers[0]
    zero = 0.0 * p
    first, last = kinds.layers[0] + zero, kinds.layers[-1] + zero
    first_moe, last_moe = kinds.moe_layers[0] + zero, kinds.moe_layers[-1] + zero
    alone = p == 1.0
    middle = np.maximum(p - 2.0, 0.0)
    there = np.maximum(middle, 1.0)
    rest = np.where(middle > 0.0, copies * shape.layers - first - last, 0.0)
    rest_moe = np.where(middle > 0.0, copies * float(sum(shape.moe_layer)) - first_moe - last_moe, 0.0)
    most = np.ceil(rest / there)
    full = np.where(middle > 0.0, np.clip(rest - middle * (most - 1.0), 1.0, there), 0.0)
    empty = np.maximum(middle - full, 0.0)
    least = np.where(empty > 0.0, (rest - full * most) / np.maximum(empty, 1.0), 0.0)
    moe_share = rest_moe / np.maximum(rest, 1.0)
    count = [1.0 + zero, full, empty, np.where(alone, 0.0, 1.0)]
    layers = [first, np.where(full > 0.0, most, 0.0), least, last]
    moe = [first_moe, most * moe_share, least * moe_share, last_moe]

    def has(values: Array, kind: int) -> Array:
        return np.asarray((values[kind] > 0.0) * 1.0 + zero)

    embedding = [has(kinds.has_embedding, 0), zero, zero, has(kinds.has_embedding, -1)]
    head = [has(kinds.has_head, 0), zero, zero, has(kinds.has_head, -1)]
    used = [run for run in range(len(count)) if count[run].any()]  # a run that no layout has costs nothing
    held, experts, tables, ends, sizes = (
        np.stack([runs[run] for run in used]) for runs in (layers, moe, embedding, head, count)
    )
    return _Stages(
        count=sizes,
        dense=(held - experts) / copies,
        moe=experts / copies,
        embedding=tables / copies,
        head=ends / copies,
        outer=kinds.outer_layers[[0, -1]] / np.maximum(kinds.layers[[0, -1]], 1.0) + zero,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _MicroBatch:
    """One micro-batch on each stage before gathering of weights adds to it; (runs, n) a stage, (n,) elsewhere."""

    misaligned: Array
    stages: _Stages
    fullest: Array  # layers of the stage that holds most
    dense: LayerTime
    moe: LayerTime
    ends: EndTime
    dense_s: Array
    moe_s: Array
    tp_ends_busy_s: Array
    tp_ends_s: Array  # exposed, of a stage with an end of the model
    ends_s: Array  # exposed and computed at the ends of the model
    pp_busy_s: Array
    pp_s: Array  # exposed
    flop: Array  # of the whole model, executed


def _micro_batch(
    shape: ModelShape,
    layouts: Layouts,
    engine: Engine,
    table: PaceTable,
    constants: PaceConstants,
    sent: MicroBatchExchange,
    frozen: bool,
) -> _MicroBatch:
    pace = pace_of(table, layouts, engine)
    stages = _stages(shape, layouts, stage_kinds(shape, layouts))
    fullest = np.max(stages.dense + stages.moe, axis=0)
    recomputed = np.minimum(layouts.recompute_layers / np.maximum(fullest, 1.0), 1.0)
    dense, moe, ends = layer_times(shape, layouts, engine, pace, constants, sent, recomputed, frozen)
    tp_ends = sent.tp_ends_s * pace.tp_exposed
    waits = sent.pp_messages * pace.message_s
    ends_s = stages.embedding * ends.embedding + stages.head * (ends.head + ends.loss)
    layers = float(sum(shape.moe_layer))
    dense_s = dense.whole
    return _MicroBatch(
        misaligned=sent.misaligned,
        stages=stages,
        fullest=fullest,
        dense=dense,
        moe=moe,
        ends=ends,
        dense_s=dense_s,
        moe_s=dense_s if moe is dense else moe.whole,
        tp_ends_busy_s=sent.tp_ends_s,
        tp_ends_s=tp_ends,
        ends_s=ends_s + np.where(stages.embedding + stages.head > 0.0, tp_ends, 0.0),
        pp_busy_s=sent.pp_s + waits,
        pp_s=sent.pp_s * pace.pp_exposed + waits,
        flop=dense.flop * (shape.layers - layers) + moe.flop * layers + ends.flop,
    )


def _spread(record: Any, table: Distinct, known: dict[int, Any] | None = None) -> Any:
    """A record with one entry a combination as one with an entry a row; what stands twice is spread once."""
    if table.place is None:
        return record
    if isinstance(record, tuple):
        return tuple(table.spread(each) for each in record)
    known = {} if known is None else known
    columns = {}
    for name in record.__match_args__:
        value = getattr(record, name)
        if id(value) not in known:
            known[id(value)] = table.spread(value) if isinstance(value, np.ndarray) else _spread(value, table, known)
        columns[name] = known[id(value)]
    return type(record)(**columns)


def step(
    shape: ModelShape, layouts: Layouts, timing: Timing, adapters: Adapters | None = None, keep_terms: bool = True
) -> Step:
    """Time of a step for each layout.

    What one micro-batch takes and what is exchanged once a step depend on a part of the columns each: both are worked
    out once for each combination that occurs.

    Args:
        shape [elements, (1,)]: the model.
        layouts [degrees, (n,)]: the layout columns.
        timing [s, (n,)]: how fast GPU, stack and network are.
        adapters [rank, (1,)]: low-rank adapters on a frozen base, or None.
        keep_terms [flag, (1,)]: keep the terms of the total.

    Returns:
        The step [s, (n,)].

    Raises:
        nothing: an illegal layout has numbers too.

    References:
        [Narayanan2021] sections 2-3, [Korthikanti2022] section 5; fitted, see docs/explanation/step-time.md.
    """
    known = (timing.engine, timing.table, timing.constants)
    if _varies(timing):
        return timed_step(shape, layouts, *known, exchange(shape, layouts, timing.network, adapters), adapters)
    codes: dict[str, Coded] = {}
    by_layer, by_step = alike(layouts, LAYER, codes), alike(layouts, PER_STEP, codes)
    lengths = {name: getattr(layouts, name).shape[0] for name in COLUMNS}
    count = max(lengths.values())
    some = by_layer.rows(layouts)
    sent = micro_batch_exchange(shape, some, timing.network, adapters)
    one = _micro_batch(shape, some, *known, sent, adapters is not None)
    some = by_step.rows(layouts)
    once = once_a_step(some, *known, step_exchange(shape, some, timing.network, adapters))
    if any(length > 1 and name not in ALL for name, length in lengths.items()):  # else all differ in what counts
        whole = distinct([Coded(t.place, len(t.first)) for t in (by_layer, by_step) if t.place is not None])
        if whole.place is not None and len(whole.first) < ALIKE * count:
            part = some_rows(layouts, whole.first)
            one, once = _spread(one, _at(by_layer, whole.first)), _spread(once, _at(by_step, whole.first))
            return _widened(_whole_step(part, timing.table, one, once, keep_terms), whole, count)
    one, once = _spread(one, by_layer), _spread(once, by_step)
    return _widened(_whole_step(layouts, timing.table, one, once, keep_terms), None, count)


def _at(table: Distinct, rows: NDArray[np.intp]) -> Distinct:
    return table if table.place is None else Distinct(table.first, table.place.take(rows))


def _varies(timing: Timing) -> bool:
    """Whether GPU or network differ from layout to layout."""
    engine = timing.engine
    return varies(timing.network) or any(np.size(getattr(engine, name)) > 1 for name in engine.__match_args__)


def _widened(found: Step, table: Distinct | None, count: int) -> Step:
    """Totals with one entry a layout."""

    def wide(column: Array) -> Array:
        column = column if table is None else table.spread(column)
        return column if column.shape[-1] == count else np.repeat(column, count, axis=-1)

    return Step(
        step_time_s=wide(found.step_time_s),
        lower_s=wide(found.lower_s),
        upper_s=wide(found.upper_s),
        bubble_over_ideal=wide(found.bubble_over_ideal),
        executed_flop=wide(found.executed_flop),
        micro_batch_s=wide(found.micro_batch_s),
        communication_s=wide(found.communication_s),
        misaligned=wide(found.misaligned),
        terms=tuple(TimeLeaf(t.spec, wide(t.exposed_s), wide(t.busy_s)) for t in found.terms),
    )


def timed_step(
    shape: ModelShape,
    layouts: Layouts,
    engine: Engine,
    table: PaceTable,
    constants: PaceConstants,
    sent: Exchange,
    adapters: Adapters | None = None,
) -> Step:
    """The same where communication is already known, as a fit of the other constants has it.

    Args:
        shape [elements, (1,)]: the model.
        layouts [degrees, (n,)]: the layout columns.
        engine [FLOP/s, (n,)]: what the GPU sustains.
        table [per code, (codes,)]: how stacks spend time.
        constants [-, (1,)]: what is the same everywhere.
        sent [s, (n,)]: communication.
        adapters [rank, (1,)]: low-rank adapters on a frozen base, or None.

    Returns:
        The step [s, (n,)].

    Raises:
        nothing.

    References:
        [Narayanan2021] sections 2-3, [Korthikanti2022] section 5; fitted, see docs/explanation/step-time.md.
    """
    one = _micro_batch(shape, layouts, engine, table, constants, sent.micro_batch, adapters is not None)
    once = once_a_step(layouts, engine, table, constants, sent.step)
    return _whole_step(layouts, table, one, once, keep_terms=True)


def _whole_step(
    layouts: Layouts,
    table: PaceTable,
    one: _MicroBatch,
    once: OnceAStep,
    keep_terms: bool,
) -> Step:
    stages, dense, moe, ends, m = one.stages, one.dense, one.moe, one.ends, layouts.n_micro
    power = table.overlap_power[layouts.stack]
    per_layer = once.gathered_s / (m * np.maximum(one.fullest, 1.0))
    dense_waits = _waits(one.dense_s, per_layer, power)
    dense_s = one.dense_s + dense_waits
    whole, forward = stages.dense * dense_s, stages.dense * (dense_s * dense.forward)
    moe_waits = dense_waits
    if moe is not dense:
        moe_waits = _waits(one.moe_s, per_layer, power)
        moe_s = one.moe_s + moe_waits
        whole, forward = whole + stages.moe * moe_s, forward + stages.moe * (moe_s * moe.forward)
    whole, forward = whole + one.ends_s + one.pp_s, forward + (one.ends_s + one.pp_s) / 3.0
    zero = 0.0 * (whole[0] + m + once.update_s)
    backward = whole - forward
    chunks = chunks_per_stage(layouts)
    outer_s = one.ends_s[[0, -1]]  # what the outermost chunk alone has, and its layers where they are not as many
    more = stages.outer - 1.0 / chunks
    ends_forward, ends_backward = outer_s / 3.0, outer_s * (2.0 / 3.0)
    runs = Runs(
        forward=forward + zero,
        backward=backward + zero,
        count=stages.count + zero,
        micro=m + zero,
        chunks=chunks + zero,
        weight_share=WEIGHT_SHARE + zero,
        ends_forward=ends_forward + more * (forward[[0, -1]] - ends_forward) + zero,
        ends_backward=ends_backward + more * (backward[[0, -1]] - ends_backward) + zero,
    )
    pipeline = pipeline_s(runs, np.broadcast_to(layouts.schedule, zero.shape))
    slowest = runs.slowest
    there = row_of(largest_of(np.where(runs.count > 0.0, runs.both, -1.0)))
    n_dense = m * there(stages.dense)
    n_moe = n_dense if moe is dense else m * there(stages.moe)
    embeddings, heads = there(stages.embedding), there(stages.head)
    n_embedding, n_head = m * embeddings, m * heads
    at_ends = m * (embeddings + heads > 0.0)

    def layers(a: Array, b: Array) -> Array:
        if moe is dense:
            return n_dense * a if a.any() else NOTHING
        return n_dense * a + n_moe * b if a.any() or b.any() else NOTHING

    # behind the last micro-batch's backward and the first one's forward, in a pipeline while it fills and drains
    reduced = np.maximum(once.exposed_s, once.behind_s - layouts.pp * slowest)
    dp = reduced + once.skew_s + once.broadcast_s + once.copies_s
    fsdp = layers(dense_waits, moe_waits)
    tp = layers(dense.tp, moe.tp) + at_ends * one.tp_ends_busy_s
    tp_exposed = layers(dense.tp_exposed, moe.tp_exposed) + at_ends * one.tp_ends_s
    bubble = np.maximum(pipeline - m * slowest, 0.0)
    terms: list[tuple[str, Array, Array | None]] = [  # what runs whether hidden or not, where that is another time
        *((path, layers(dense.compute[i], moe.compute[i]), None) for i, (path, _) in enumerate(GROUPS)),
        ("compute/recompute", layers(dense.again, moe.again), None),
        ("compute/embedding", n_embedding * ends.embedding, None),
        ("compute/head", n_head * ends.head, None),
        ("compute/loss", n_head * ends.loss, None),
        ("overhead/host", layers(dense.waits, moe.waits), None),
        ("communication/tp", tp_exposed, tp),
        ("communication/cp", layers(dense.cp_exposed, moe.cp_exposed), layers(dense.cp, moe.cp)),
        ("communication/ep", layers(dense.ep_exposed, moe.ep_exposed), layers(dense.ep, moe.ep)),
        ("communication/fsdp", fsdp, np.maximum(once.gathered_s, fsdp)),
        ("communication/pp", m * one.pp_s, m * one.pp_busy_s),
        ("pipeline/bubble", bubble, None),
        ("communication/dp", dp, np.maximum(once.busy_s, dp)),
        ("optimizer/update", once.update_s, None),
        ("overhead/step", table.step_s[layouts.stack], None),
    ]
    total, talked, shown, stage_talked, stage_shown = (zero,) * 5
    leaves = []
    for path, seconds, hidden_too in terms:
        busy = seconds if hidden_too is None else hidden_too
        if seconds is not NOTHING:
            total = total + seconds
        if path.startswith("communication/") and busy is not NOTHING:
            talked, shown = talked + busy, shown + seconds
            if path != "communication/dp":
                stage_talked, stage_shown = stage_talked + busy, stage_shown + seconds
        if keep_terms:
            leaves.append(TimeLeaf(SPECS[path], seconds + zero, busy + zero))
    waits = bubble / (m * slowest)  # a bubble is as long as what a stage does in it, communication included
    return Step(
        step_time_s=total,
        lower_s=np.minimum(np.maximum(total - shown - waits * stage_shown, talked), total),
        upper_s=np.maximum(total - shown + talked + waits * (stage_talked - stage_shown), total),
        bubble_over_ideal=waits,
        executed_flop=one.flop * m / layouts.pp + zero,
        micro_batch_s=slowest,
        communication_s=shown,
        misaligned=np.maximum(one.misaligned, once.misaligned) + zero,
        terms=tuple(leaves),
    )


def _waits(layer_s: Array, gather_s: Array, power: Array) -> Array:
    """How much longer a layer takes while its weights are gathered; nothing where nothing is."""
    gathers = np.flatnonzero(gather_s > 0.0)
    if not gathers.size:
        return 0.0 * gather_s
    columns = np.broadcast_arrays(layer_s, gather_s, power)
    if gathers.size == columns[1].size:
        return soft_maximum(layer_s, gather_s, power) - layer_s
    layer, gather, exponent = (column.take(gathers) for column in columns)
    waits = 0.0 * columns[1]
    waits[gathers] = soft_maximum(layer, gather, exponent) - layer
    return waits
