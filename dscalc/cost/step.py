"""Time of a training step: stages, pipeline, communication that stays exposed, optimizer; named terms that add up."""

from __future__ import annotations

import numpy as np

from dscalc.cost.axes import groups
from dscalc.cost.exchange import Exchange, exchange
from dscalc.cost.layer_time import GROUPS, layer_times, soft_maximum
from dscalc.cost.operations import pace_of
from dscalc.cost.pipeline import Runs, pipeline_s
from dscalc.cost.placement import StageKinds, stage_kinds
from dscalc.cost.schedule import SCHEDULES, chunks_per_stage
from dscalc.frozen import dataclass
from dscalc.records import Adapters, Array, Engine, Layouts, ModelShape, PaceConstants, PaceTable, Timing
from dscalc.terms import LeafSpec

WEIGHT_SHARE = 0.5  # of a backward: input and weight gradients are products of the same size
FROZEN_BACKWARD = 0.5  # of a backward: a frozen base has no weight gradients
FITTED = "docs/explanation/step-time.md"


@dataclass(frozen=True, slots=True, eq=False)
class TimeLeaf:
    """One term of a step; arrays (n,). ``exposed_s`` add up to the step, ``busy_s`` runs whether hidden or not."""

    spec: LeafSpec
    exposed_s: Array
    busy_s: Array


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
    terms: tuple[TimeLeaf, ...]
    sent: Exchange


def _spec(path: str, formula: str, source: str) -> LeafSpec:
    return LeafSpec(path, "s", formula, source)


SPECS: dict[str, LeafSpec] = {
    spec.path: spec
    for spec in (
        _spec(
            "compute/linear_layers",
            "m L_i sum of 3 * 2 T K N / (P_16 e F8) * (1 + K0 (1/K + 1/N + 1/T))",
            f"[Shoeybi2019]; {FITTED}",
        ),
        _spec("compute/attention", "m L_i 3.5 * 2 T s a d_k / t / (P_16 e_fa), causal", f"[Dao2023]; {FITTED}"),
        _spec(
            "compute/experts",
            "m L_i 3 * 2 T top_k h f_e / t at the rate of experts, and routing",
            f"[Shazeer2017]; {FITTED}",
        ),
        _spec("compute/elementwise", "m L_i k_el * 2 bytes * passes / (e_m HBM)", f"[Korthikanti2022]; {FITTED}"),
        _spec("compute/recompute", "m L_i forward once more of what was not kept", "[Korthikanti2022] section 5"),
        _spec("compute/embedding", "m 5 passes over T h", "[Definition]"),
        _spec("compute/head", "m 3 * 2 T h V / t / (P_16 e)", "[Chowdhery2022] appendix B"),
        _spec("compute/loss", "m ce * 2 T V / t / (e_m HBM)", FITTED),
        _spec("overhead/host", "m L_i ((gpu^6 + host^6)^(1/6) - gpu): the GPU waits for launches", FITTED),
        _spec("communication/tp", "m L_i x_tp (collectives of a layer and their skew)", "[Shoeybi2019] section 3"),
        _spec(
            "communication/cp", "m L_i key and value around the ring, less the attention that hides them", "[Liu2023]"
        ),
        _spec("communication/ep", "m L_i x_ep (dispatch and combine)", "[Shazeer2017]"),
        _spec("communication/fsdp", "m L_i ((layer^q + gather^q)^(1/q) - layer)", f"[Zhao2023]; {FITTED}"),
        _spec("communication/pp", "m x_pp (messages to the neighbours)", "[Narayanan2021] section 2.2"),
        _spec("pipeline/bubble", "pipeline time less m times its slowest stage", "[Narayanan2021] section 2.2"),
        _spec(
            "communication/dp",
            "x_dp (gradients and weights), at least what outlasts p micro-batches; skew per doubling of nodes",
            "[Rajbhandari2020] section 7",
        ),
        _spec("optimizer/update", "30 bytes * owned parameters / (e_m HBM)", f"[PyTorch]; {FITTED}"),
        _spec("overhead/step", "launches of optimizer, clipping, logging", FITTED),
    )
}


@dataclass(frozen=True, slots=True, eq=False)
class _Stages:
    """Runs of equal stages: layers, layers with experts, ends; (4, n)."""

    count: Array
    dense: Array
    moe: Array
    embedding: Array
    head: Array


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
    layers = np.stack([first, np.where(full > 0.0, most, 0.0), least, last])
    moe = np.stack([first_moe, most * moe_share, least * moe_share, last_moe])

    def has(values: Array, kind: int) -> Array:
        return np.asarray((values[kind] > 0.0) * 1.0 + zero)

    return _Stages(
        count=np.stack([1.0 + zero, full, empty, np.where(alone, 0.0, 1.0)]),
        dense=(layers - moe) / copies,
        moe=moe / copies,
        embedding=np.stack([has(kinds.has_embedding, 0), zero, zero, has(kinds.has_embedding, -1)]) / copies,
        head=np.stack([has(kinds.has_head, 0), zero, zero, has(kinds.has_head, -1)]) / copies,
    )


def step(shape: ModelShape, layouts: Layouts, timing: Timing, adapters: Adapters | None = None) -> Step:
    """Time of a step for each layout.

    Args:
        shape [elements, (1,)]: the model.
        layouts [degrees, (n,)]: the layout columns.
        timing [s, (n,)]: how fast GPU, stack and network are.
        adapters [rank, (1,)]: low-rank adapters on a frozen base, or None.

    Returns:
        The step [s, (n,)].

    Raises:
        nothing: an illegal layout has numbers too.

    References:
        [Narayanan2021] sections 2-3, [Korthikanti2022] section 5; fitted, see docs/explanation/step-time.md.
    """
    sent = exchange(shape, layouts, timing.network, adapters)
    return timed_step(shape, layouts, timing.engine, timing.table, timing.constants, sent, adapters)


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
    pace = pace_of(table, layouts, engine)
    kinds = stage_kinds(shape, layouts)
    stages = _stages(shape, layouts, kinds)
    held = stages.dense + stages.moe
    recomputed = np.minimum(layouts.recompute_layers / np.maximum(np.max(held, axis=0), 1.0), 1.0)
    dense, moe, ends = layer_times(shape, layouts, engine, pace, constants, sent, recomputed)
    gathered = sent.fsdp_s * pace.gather_slowdown
    per_layer = gathered / (layouts.n_micro * np.maximum(np.max(held, axis=0), 1.0))
    dense_waits, moe_waits = (soft_maximum(x.whole, per_layer, pace.overlap_power) - x.whole for x in (dense, moe))
    trained = FROZEN_BACKWARD if adapters is not None else 1.0
    dense_s, moe_s = dense.whole + dense_waits, moe.whole + moe_waits
    tp_ends = sent.tp_ends_s * pace.tp_exposed
    pp_busy = sent.pp_s + sent.pp_messages * constants.message_s
    ends_s = stages.embedding * ends.embedding + stages.head * (ends.head + ends.loss)
    ends_s = ends_s + np.where(stages.embedding + stages.head > 0.0, tp_ends, 0.0)
    whole = stages.dense * dense_s + stages.moe * moe_s + ends_s + pp_busy * pace.pp_exposed
    forward = stages.dense * dense_s * dense.forward + stages.moe * moe_s * moe.forward
    forward = forward + (ends_s + pp_busy * pace.pp_exposed) / 3.0
    zero = 0.0 * whole[0]
    runs = Runs(
        forward=forward,
        backward=(whole - forward) * trained,
        count=stages.count,
        micro=layouts.n_micro + zero,
        chunks=chunks_per_stage(layouts) + zero,
        weight_share=WEIGHT_SHARE + zero,
    )
    schedule = np.broadcast_to(layouts.schedule, zero.shape)
    pipeline = pipeline_s(runs, schedule)
    slowest = runs.slowest
    kind = np.argmax(np.where(stages.count > 0.0, runs.both, -1.0), axis=0)
    columns = np.arange(zero.shape[0])
    m = layouts.n_micro
    scale = m * (slowest / whole[kind, columns])  # 1 but for a frozen base
    n_dense, n_moe = scale * stages.dense[kind, columns], scale * stages.moe[kind, columns]
    n_embedding, n_head = scale * stages.embedding[kind, columns], scale * stages.head[kind, columns]
    at_ends = scale * (stages.embedding + stages.head > 0.0)[kind, columns]

    def layers(name: str, index: int | None = None) -> Array:
        a, b = getattr(dense, name), getattr(moe, name)
        return np.asarray(n_dense * (a if index is None else a[index]) + n_moe * (b if index is None else b[index]))

    derived = groups(layouts)
    replicas = (derived.dp_cp > 1.0) & (sent.dp_s > 0.0)
    skew = np.where(replicas, constants.dp_skew_s * np.log2(np.maximum(sent.dp_domains, 1.0)), 0.0)
    broadcast = np.where((layouts.zero > 0.0) & (layouts.dp > 1.0), pace.owner_broadcast_s * derived.dp_shard, 0.0)
    # behind the last micro-batch's backward and the first one's forward, in a pipeline while it fills and drains
    reduced = np.maximum(sent.dp_s * pace.dp_exposed, sent.dp_s - layouts.pp * slowest)
    dp = reduced + skew + broadcast + sent.pp_step_s
    memory = engine.memory_bytes_per_s * engine.memory_fraction
    update = constants.optimizer_bytes * sent.owned_parameters / memory
    fsdp = n_dense * dense_waits + n_moe * moe_waits
    bubble = np.maximum(pipeline - m * slowest, 0.0)
    exposed: list[tuple[str, Array, Array]] = [
        *((path, layers("compute", i), layers("compute", i)) for i, (path, _) in enumerate(GROUPS)),
        ("compute/recompute", layers("again"), layers("again")),
        ("compute/embedding", n_embedding * ends.embedding, n_embedding * ends.embedding),
        ("compute/head", n_head * ends.head, n_head * ends.head),
        ("compute/loss", n_head * ends.loss, n_head * ends.loss),
        ("overhead/host", layers("waits"), layers("waits")),
        ("communication/tp", layers("tp_exposed") + at_ends * tp_ends, layers("tp") + at_ends * sent.tp_ends_s),
        ("communication/cp", layers("cp_exposed"), layers("cp")),
        ("communication/ep", layers("ep_exposed"), layers("ep")),
        ("communication/fsdp", fsdp, np.maximum(gathered + zero, fsdp)),
        ("communication/pp", scale * pp_busy * pace.pp_exposed, scale * pp_busy),
        ("pipeline/bubble", bubble, bubble),
        ("communication/dp", dp, np.maximum(sent.dp_s + skew + broadcast + sent.pp_step_s, dp)),
        ("optimizer/update", update, update),
        ("overhead/step", pace.step_s + zero, pace.step_s + zero),
    ]
    total, talked, shown = zero, zero, zero
    leaves = []
    for path, seconds, busy in exposed:
        total = total + seconds
        if path.startswith("communication/"):
            talked, shown = talked + busy, shown + seconds
        leaves.append(TimeLeaf(SPECS[path], seconds + zero, busy + zero))
    flop = (dense.flop * (shape.layers - sum(shape.moe_layer)) + moe.flop * sum(shape.moe_layer) + ends.flop) * m
    return Step(
        step_time_s=total,
        lower_s=np.minimum(np.maximum(total - shown, talked), total),
        upper_s=np.maximum(total - shown + talked, total),
        bubble_over_ideal=bubble / (m * slowest),
        executed_flop=flop / layouts.pp + zero,
        micro_batch_s=slowest,
        terms=tuple(leaves),
        sent=sent,
    )
