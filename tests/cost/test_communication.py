"""What a layout sends: volumes against a step counted call by call, times against the closed forms, what must hold."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from dscalc import codes
from dscalc.cost.communication import Collective, communication, listed_stage
from dscalc.cost.model_transfers import model_parallel
from dscalc.cost.trace import example_gradients, ring_trace
from dscalc.records import Adapters, Books, ModelShape
from dscalc.specs import store
from dscalc.specs.network import lower_network, plain_network
from tests.cost.helpers import LLAMA_3_8B, SEVEN_BILLION, books, layouts, llama
from tests.oracles.ring import Ring
from tests.oracles.sharding import Grid, Model
from tests.oracles.step_traffic import Step, held_by, traffic

ROUNDING = 1e-13
PLAIN = plain_network(50e9)
WHOLE_BUCKET = 1e15
DENSE = Model(layers=16, h=64, a=8, g=8, d_k=8, f=128, vocab=512)
GROUPED = replace(DENSE, g=2)
TIED = replace(DENSE, tied=True)
EXPERTS = replace(DENSE, experts=8, f_e=32, moe=(False, True) * 8)
SHARED = replace(EXPERTS, f_s=64, moe=(True,) * 16)


def shape_of(model: Model, top_k: int = 0) -> ModelShape:
    """The same model as the library's record."""
    moe: dict[str, Any] = {}
    if model.experts:
        moe = {"experts": model.experts, "top_k": top_k, "moe_ffn_hidden": model.f_e, "shared_ffn_hidden": model.f_s}
        moe["moe_layer"] = model.moe
    return llama(model.layers, model.h, model.a, model.g, model.f, model.vocab, tied_embeddings=model.tied, **moe)


def some_books(step: Step, **features: Any) -> Books:
    """Books of a stack that does what the step does, and reduces in one bucket."""
    found = books(
        unit_reduce=step.units,
        reshard_in_pipeline=step.reshard_in_pipeline,
        reduce_bucket_bytes=WHOLE_BUCKET,
        **features,
    )
    recipes = replace(
        found.recipes,
        gather=np.full_like(found.recipes.gather, step.b_w),
        reduce=np.full_like(found.recipes.reduce, step.b_r),
    )
    return replace(found, recipes=recipes)


def calculated(step: Step, network: Any = PLAIN, **features: Any) -> tuple[Collective, ...]:
    """The library's answer to the same question."""
    g = step.grid
    columns = layouts(
        some_books(step, **features),
        tp=g.tp,
        pp=g.pp,
        cp=g.cp,
        dp=g.dp_shard * g.dp_replicate,
        dp_replicate=g.dp_replicate,
        ep=g.ep,
        etp=g.etp,
        vpp=step.vpp,
        zero=step.zero,
        sequence_parallel=step.sp,
        micro_batch=step.micro,
        n_micro=step.n_micro,
        seq_len=step.seq,
        reshard=step.reshard,
        no_sync=step.no_sync,
        schedule=step.schedule,
        recompute="full" if step.full_recompute else "none",
        cp_comm=step.cp_comm,
    )
    return communication(shape_of(step.model, step.top_k), columns, network)


def by_axis(found: tuple[Collective, ...]) -> dict[tuple[str, str], float]:
    sums: dict[tuple[str, str], float] = defaultdict(float)
    for collective in found:
        sums[collective.transfer.axis, collective.transfer.op] += float(collective.traffic_bytes[0])
    return {key: value for key, value in sums.items() if value}


def compare(step: Step) -> None:
    """Every axis and operation of the fullest stage, the same as counted; first and last rank of the stage alike."""
    stages = range(step.grid.pp)
    fullest = max(stages, key=lambda i: (sum(held_by(step, i, 0)), -i))
    got = by_axis(calculated(step))
    for q in {0, step.grid.stage_ranks - 1}:
        want = {key: value for key, value in traffic(step, fullest, q).items() if value}
        assert set(got) == set(want), step
        for key, value in want.items():
            assert abs(Fraction(got[key]) - value) <= Fraction(ROUNDING) * value, (step, key, got[key], float(value))


@st.composite
def steps(draw: st.DrawFn) -> Step:
    model = draw(st.sampled_from([DENSE, GROUPED, TIED, EXPERTS, SHARED]))
    tp = draw(st.sampled_from([1, 2, 4]))
    cp, shard = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2, 3, 4]))
    grid = Grid(tp, draw(st.sampled_from([1, 2, 4])), cp, shard, draw(st.sampled_from([1, 2])))
    zero = draw(st.integers(0, 3))
    if model.experts:
        ep, etp = draw(st.sampled_from([1, 2, 4, 8])), draw(st.sampled_from([1, 2]))
        assume((tp * cp * shard) % (ep * etp) == 0)
        grid = replace(grid, ep=ep, etp=etp)
    schedule = draw(st.sampled_from(codes.SCHEDULES))
    n_micro = draw(st.integers(1, 3))
    if schedule == "dualpipe":
        assume(grid.pp > 1)
        n_micro = 2 * grid.pp
    if schedule == "interleaved":
        n_micro = grid.pp * draw(st.integers(1, 2))
    vpp = draw(st.sampled_from([1, 2])) if schedule == "interleaved" and grid.pp > 1 else 1
    assume(not (schedule == "zb-v" and grid.pp == 1))
    return Step(
        model,
        grid,
        seq=64,
        micro=draw(st.integers(1, 2)),
        n_micro=n_micro,
        zero=zero,
        b_r=draw(st.sampled_from([2, 4])),
        b_w=draw(st.sampled_from([2, 4])),
        sp=draw(st.booleans()) and tp > 1,
        full_recompute=draw(st.booleans()),
        reshard=draw(st.booleans()),
        no_sync=draw(st.booleans()),
        units=draw(st.booleans()),
        reshard_in_pipeline=draw(st.booleans()),
        cp_comm=draw(st.sampled_from(codes.CP_COMMS)),
        schedule=schedule,
        vpp=vpp,
        top_k=2 if model.experts else 1,
    )


@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])
@given(step=steps())
def test_a_step_counted_call_by_call(step: Step) -> None:
    compare(step)


BASE = Step(DENSE, Grid(dp_shard=4), seq=64)


@pytest.mark.parametrize(
    "step",
    [
        *(replace(BASE, zero=zero, n_micro=3) for zero in range(4)),
        replace(BASE, zero=3, n_micro=3, reshard=False),
        replace(BASE, zero=3, n_micro=3, no_sync=True),
        replace(BASE, zero=3, n_micro=3, grid=Grid(dp_shard=4, dp_replicate=2)),
        replace(BASE, zero=1, b_r=4, n_micro=2),
        *(replace(BASE, grid=Grid(tp=4), sp=sp, full_recompute=full) for sp in (False, True) for full in (False, True)),
        *(
            replace(BASE, grid=Grid(pp=4), n_micro=8, schedule=s, vpp=2 if s == "interleaved" else 1)
            for s in codes.SCHEDULES
        ),
        *(replace(BASE, grid=Grid(cp=4, tp=2), cp_comm=kind) for kind in codes.CP_COMMS),
        *(replace(BASE, model=EXPERTS, grid=Grid(tp=2, dp_shard=4, ep=4, etp=etp), sp=True, top_k=2) for etp in (1, 2)),
        *(replace(BASE, model=TIED, grid=Grid(pp=pp, tp=2)) for pp in (1, 2)),
    ],
    ids=repr,
)
def test_the_cases_of_the_design_one_by_one(step: Step) -> None:
    compare(step)


# ------------------------------------------------------------------------------------------ the design's own formulas
def sent(found: tuple[Collective, ...], axis: str, *, stage: str = "every") -> float:
    return sum(float(c.traffic_bytes[0]) for c in found if c.transfer.axis == axis and c.transfer.stage == stage)


@pytest.mark.parametrize("m", [1, 4])
@pytest.mark.parametrize(("b_r", "b_w"), [(2, 2), (4, 2)])
def test_data_parallel_formulas(m: int, b_r: int, b_w: int) -> None:
    """ZeRO-0 2r N b_r, ZeRO-1 r N (b_r + b_w), ZeRO-2 r N (m b_r + b_w), ZeRO-3 r N (m b_w (1 + rho) + m_r b_r)."""
    k, n = 8, SEVEN_BILLION.stated_params
    r = (k - 1) / k

    def of(zero: int, **more: Any) -> float:
        step = replace(BASE, b_r=b_r, b_w=b_w)
        columns = layouts(some_books(step), dp=k, zero=zero, n_micro=m, **more)
        return sent(communication(SEVEN_BILLION, columns, PLAIN), "dp")

    assert of(0) == pytest.approx(2 * r * n * b_r, rel=ROUNDING)
    assert of(1) == pytest.approx(r * n * (b_r + b_w), rel=ROUNDING)
    assert of(2) == pytest.approx(r * n * (m * b_r + b_w), rel=ROUNDING)
    assert of(3) == pytest.approx(r * n * (2 * m * b_w + m * b_r), rel=ROUNDING)
    assert of(3, reshard=0) == pytest.approx(r * n * (m * b_w + m * b_r), rel=ROUNDING)
    assert of(3, no_sync=1) == pytest.approx(r * n * (2 * m * b_w + b_r), rel=ROUNDING)
    shard = replace(BASE, b_r=b_r, b_w=b_w)
    hybrid = layouts(some_books(shard), dp=k, dp_replicate=2, zero=3, n_micro=m)
    inside = 3 / 4 * n * (2 * m * b_w + m * b_r)
    found = sent(communication(SEVEN_BILLION, hybrid, PLAIN), "dp")
    assert found == pytest.approx(inside + 2 * (1 / 2) * n / 4 * b_r, rel=ROUNDING)
    # "1.5 times DDP" is a statement about b_w = b_r and one micro-batch
    assert (of(3) == pytest.approx(1.5 * of(0), rel=ROUNDING)) == (b_w == b_r and m == 1)


@pytest.mark.parametrize(("sp", "full", "units"), [(0, 0, 8), (1, 0, 10), (0, 1, 12), (1, 1, 14)])
def test_tensor_parallel_formulas(sp: int, full: int, units: int) -> None:
    """8u a layer and micro-batch without sequence parallelism, 10u with, +4u under full recompute."""
    t, m, s, b, h = 4, 3, 64, 2, 64
    u = (t - 1) / t * s * b * h * 2
    columns = layouts(
        books(tp_hidden_backward=1),
        tp=t,
        n_micro=m,
        seq_len=s,
        micro_batch=b,
        sequence_parallel=sp,
        recompute="full" if full else "none",
    )
    found = communication(shape_of(DENSE), columns, PLAIN)
    assert sent(found, "tp") == units * u * m * DENSE.layers
    exposed = sum(
        float(c.traffic_bytes[0] * (c.transfer.exposed_calls[0] / c.transfer.calls[0]))
        for c in found
        if c.transfer.axis == "tp" and c.transfer.stage == "every" and c.transfer.calls[0]
    )
    assert exposed == (6 if sp else 4) * u * m * DENSE.layers + 4 * u * m * DENSE.layers * full


def test_pipeline_messages_add_up() -> None:
    """pv - 1 transfers a micro-batch and direction, over all stages."""
    for schedule, chunks in (("1f1b", 1), ("interleaved", 2), ("zb-v", 2), ("dualpipe", 1)):
        step = replace(BASE, grid=Grid(pp=4), n_micro=8, schedule=schedule, vpp=2 if schedule == "interleaved" else 1)
        total = sum(traffic(step, i, 0).get(("pp", "send-recv"), Fraction(0)) for i in range(4))
        local = 1 if schedule == "zb-v" else 0  # the V turns on one stage
        assert total == 2 * 8 * (4 * chunks - 1 - local) * 2 * 64 * 64


# --------------------------------------------------------------------------------------------------------------- times
@pytest.mark.parametrize("k", [2, 3, 8, 32, 1000])
@pytest.mark.parametrize("b_r", [2.0, 4.0])
def test_one_tier_gives_the_closed_form(k: int, b_r: float) -> None:
    """2(K-1)/K N b_r / BW."""
    columns = layouts(dp=k)
    found = communication(SEVEN_BILLION, columns, PLAIN, gradient_bytes=np.array([b_r]))
    time_s = sum(float(c.time_s[0]) for c in found)
    assert time_s == pytest.approx(2 * (k - 1) / k * 7e9 * b_r / 50e9, rel=1e-12)
    naive = sum(float(c.naive_time_s[0]) for c in found)
    assert naive == pytest.approx(2 * (k - 1) * 7e9 * b_r / 50e9, rel=1e-12)  # K times the ring's


def test_latency_grows_with_the_ring() -> None:
    """2(K-1) alpha a call."""
    columns = layouts(some_books(BASE), dp=[2, 8, 64])
    slow, quick = (communication(SEVEN_BILLION, columns, plain_network(50e9, a))[0] for a in (1e-3, 0.0))
    np.testing.assert_allclose(slow.time_s - quick.time_s, 2e-3 * np.array([1.0, 7.0, 63.0]), rtol=1e-9)


def test_a_ring_over_nodes_uses_the_links_of_all_its_gpus() -> None:
    """64 GPUs on nodes of 8: each sends over its own NIC; a group of one GPU a node has one NIC, eight times slower."""
    dgx = lower_network(store.load_cluster("dgx-h100").spec).network
    big = replace(LLAMA_3_8B, stated_params=70_000_000_000)
    dense = communication(big, layouts(some_books(BASE), dp=64), dgx, algorithms={"all-reduce": "ring"})[0]
    sparse = communication(big, layouts(some_books(BASE), dp=8, tp=8), dgx, algorithms={"all-reduce": "ring"})[0]
    assert (dense.inside[0], sparse.inside[0]) == (8.0, 1.0)
    rate = [float(c.traffic_bytes[0] / c.time_s[0]) for c in (dense, sparse)]
    assert 7.5 < rate[0] / rate[1] < 8.5


# -------------------------------------------------------------------------------------------------- what must hold
MODELS = [shape_of(DENSE), shape_of(GROUPED), shape_of(TIED), shape_of(EXPERTS, 2), LLAMA_3_8B]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_one_gpu_sends_nothing(model: ModelShape, zero: int) -> None:
    for c in communication(model, layouts(zero=zero, n_micro=4, recompute="full"), PLAIN):
        assert c.traffic_bytes[0] == c.time_s[0] == c.exposed_s[0] == c.naive_time_s[0] == 0.0
        assert c.algorithm[0] == -1


@settings(max_examples=150, deadline=None)
@given(
    model=st.sampled_from(MODELS),
    degrees=st.fixed_dictionaries(
        {name: st.sampled_from([1, 2, 3, 4, 8, 64]) for name in ("tp", "cp", "dp", "pp", "n_micro", "ep", "etp", "vpp")}
    ),
    zero=st.integers(0, 3),
    sp=st.booleans(),
    rank=st.sampled_from([0, 8]),
    schedule=st.sampled_from(codes.SCHEDULES),
    cluster=st.sampled_from(["dgx-h100", "gb200-nvl72", "a100-pcie-8x", "alps-gh200"]),
)
def test_nothing_negative_and_no_nan(
    model: ModelShape, degrees: dict[str, int], zero: int, sp: bool, rank: int, schedule: str, cluster: str
) -> None:
    """Legal or not: rejection is a mask, and the formulas go on."""
    adapters = Adapters(rank, ("q_proj", "v_proj"), 2.0) if rank else None
    columns = layouts(zero=zero, sequence_parallel=sp, schedule=schedule, **degrees)
    for c in communication(model, columns, lower_network(store.load_cluster(cluster).spec).network, adapters):
        for values in (c.traffic_bytes, c.time_s, c.naive_time_s, c.exposed_s):
            assert np.all(np.isfinite(values))
            assert np.all(values >= 0.0)
        assert np.all(c.exposed_s <= c.time_s * (1 + 1e-12))
        assert np.all(c.inside <= c.transfer.group)


def test_more_zero_with_accumulation_sends_more() -> None:
    def total(zero: int) -> float:
        return sum(
            float(c.traffic_bytes[0]) for c in communication(LLAMA_3_8B, layouts(dp=8, n_micro=4, zero=zero), PLAIN)
        )

    assert total(0) == total(1) < total(2) < total(3)  # b_w = b_r


def test_rows_are_independent() -> None:
    """A column gives what its rows give one by one."""
    degrees = {
        "tp": [1, 2, 4, 8],
        "dp": [8, 4, 2, 1],
        "pp": [1, 2, 2, 4],
        "zero": [3, 1, 0, 2],
        "n_micro": [1, 2, 4, 8],
    }
    dgx = lower_network(store.load_cluster("dgx-h100").spec).network
    whole = communication(LLAMA_3_8B, layouts(**degrees), dgx)
    for row in range(4):
        alone = communication(LLAMA_3_8B, layouts(**{name: values[row] for name, values in degrees.items()}), dgx)
        for a, b in zip(whole, alone, strict=True):
            assert a.traffic_bytes[row] == b.traffic_bytes[0]
            assert a.time_s[row] == b.time_s[0]
            assert a.exposed_s[row] == b.exposed_s[0]


def test_adapters_send_little_but_a_sharded_base_is_gathered() -> None:
    """LoRA reduces the gradients of the adapters alone; ZeRO-3 gathers the frozen base too, as it is stored."""
    adapters = Adapters(16, ("q_proj", "v_proj"), 2.0)
    small = adapters.rank * 32 * (4096 + 4096 + 4096 + 1024)
    plain = communication(LLAMA_3_8B, layouts(some_books(BASE), dp=8), PLAIN, adapters)
    assert sent(plain, "dp") == pytest.approx(2 * 7 / 8 * small * 2)
    sharded = communication(LLAMA_3_8B, layouts(some_books(BASE), dp=8, zero=3), PLAIN, adapters)
    whole = 8_030_261_248
    assert sent(sharded, "dp") == pytest.approx(7 / 8 * (2 * 2 * (whole + small) + small * 2))


def test_a_small_job_in_a_large_domain_leaves_it_for_nothing() -> None:
    """16 GPUs of a rack of 72 lie in it, although 16 does not divide 72."""
    rack = lower_network(store.load_cluster("gb200-nvl72").spec).network
    c = communication(LLAMA_3_8B, layouts(dp=16), rack)[0]
    assert (c.inside[0], c.domains[0], c.tier[0], bool(c.misaligned[0])) == (16.0, 1.0, 0, False)
    c = communication(LLAMA_3_8B, layouts(dp=144), rack)[0]
    assert (c.inside[0], c.domains[0], c.tier[0], bool(c.misaligned[0])) == (72.0, 2.0, 1, False)


def test_neighbouring_stages_meet_across_a_domain_border() -> None:
    """Stages 1 and 2 of four sit in different nodes even where 0 and 1 share one."""
    dgx = lower_network(store.load_cluster("dgx-h100").spec).network
    pp = next(c for c in communication(LLAMA_3_8B, layouts(pp=4, tp=4), dgx) if c.transfer.axis == "pp")
    assert pp.tier[0] == 1
    pp = next(c for c in communication(LLAMA_3_8B, layouts(pp=2, tp=4), dgx) if c.transfer.axis == "pp")
    assert pp.tier[0] == 0


def test_the_listed_stage_holds_the_most() -> None:
    stage = listed_stage(LLAMA_3_8B, layouts(pp=4))
    assert stage.index[0] in (0.0, 3.0)
    assert stage.dense_parameters[0] == pytest.approx(
        8_030_261_248 / 4 + 3 * 128256 * 4096 / 4 - 128256 * 4096 / 4, rel=0.01
    )


# ---------------------------------------------------------------------------------------------------------------- ring
def test_two_workers_by_hand() -> None:
    """[0.4, -0.2] and [0.8, 0.6]: the mean is [0.6, 0.2], the undivided sum is not."""
    trace = ring_trace(example_gradients(2), 4.0)
    np.testing.assert_allclose(trace.mean, [0.6, 0.2], rtol=1e-15)
    np.testing.assert_allclose(trace.total, [1.2, 0.4], rtol=1e-15)
    assert trace.sent_bytes.tolist() == [8.0, 8.0]
    assert [s.phase for s in trace.steps] == ["reduce-scatter", "all-gather"]


@pytest.mark.parametrize("ranks", range(1, 17))
@pytest.mark.parametrize("elements", [1, 5, 16, 37])
def test_the_ring_moves_what_another_ring_moves(ranks: int, elements: int) -> None:
    gradients = np.random.default_rng(ranks).normal(size=(ranks, elements))
    trace, other = ring_trace(gradients, 8.0), Ring(list(gradients))
    other.all_reduce(mean=False)
    np.testing.assert_allclose(trace.total, gradients.sum(axis=0), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(trace.mean, gradients.mean(axis=0), rtol=1e-12, atol=1e-12)
    assert trace.sent_bytes.sum() == sum(other.sent_bytes) == 2 * (ranks - 1) * elements * 8
    assert len(trace.steps) == 2 * (ranks - 1)
    if elements % ranks == 0:
        assert set(trace.sent_bytes) == {2 * (ranks - 1) / ranks * elements * 8}
    for step in trace.steps:
        assert sorted(step.chunks) == list(range(ranks))
    if trace.steps:
        assert np.all(trace.steps[-1].tensors == trace.total)  # the same numbers on every rank


def test_the_turn_of_a_v_sends_to_nobody() -> None:
    """The last stage of a V holds two chunks in a row, and passes nothing between them."""
    step = replace(BASE, grid=Grid(pp=4), n_micro=8, schedule="zb-v")
    columns = layouts(pp=4, n_micro=8, schedule="zb-v", seq_len=64)
    shape, zero = shape_of(DENSE), np.zeros(1)
    first = listed_stage(shape, columns)
    for index, turn in ((1, 0.0), (2, 0.0), (3, 1.0)):
        stage = replace(first, index=zero + index, has_embedding=zero, has_head=zero, turn=zero + turn)
        transfers = model_parallel(shape, columns, stage)
        messages = next(t for t in transfers if t.axis == "pp")
        assert messages.calls[0] * messages.message_bytes[0] == float(traffic(step, index, 0)["pp", "send-recv"])


def test_replicas_of_shards_meet_across_nodes() -> None:
    """Hybrid sharding: a shard group fills a node, its replicas are one GPU of every node."""
    dgx = lower_network(store.load_cluster("dgx-h100").spec).network
    found = communication(LLAMA_3_8B, layouts(dp=32, dp_replicate=4, zero=3), dgx)
    gathered, summed = (next(c for c in found if c.transfer.what.startswith(w)) for w in ("weights", "owned"))
    assert (gathered.transfer.group[0], gathered.inside[0], gathered.tier[0]) == (8.0, 8.0, 0)
    assert (summed.transfer.group[0], summed.inside[0], summed.domains[0], summed.tier[0]) == (4.0, 1.0, 4.0, 1)
