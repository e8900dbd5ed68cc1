"""What must hold of memory whatever the model, the layout and the stack."""

from __future__ import annotations

from dataclasses import fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dscalc import codes
from dscalc.cost.activations import full_recompute_layers, layer_bytes, saved
from dscalc.cost.axes import groups
from dscalc.cost.evaluate import evaluate
from dscalc.cost.placement import stage_kinds
from dscalc.cost.schedule import in_flight
from dscalc.records import Adapters, Layouts, ModelShape
from dscalc.specs.stack import load_books
from tests.cost.helpers import (
    DEEPSEEK_V3,
    GEMMA_2_9B,
    LLAMA_2_7B,
    LLAMA_3_8B,
    MIXTRAL_8X7B,
    QWEN3_8B,
    SEVEN_BILLION,
    full_state,
    gpt,
    gpu,
    layouts,
    leaf,
    llama,
    peak,
    rows,
)

BOOKS = load_books()
DENSE = [
    LLAMA_2_7B,
    LLAMA_3_8B,
    QWEN3_8B,
    GEMMA_2_9B,
    SEVEN_BILLION,
    gpt(24, 1024, 16, 50257),
    llama(tied_embeddings=True),
]
EXPERTS = [MIXTRAL_8X7B, DEEPSEEK_V3, replace(DEEPSEEK_V3, moe_layer=tuple(i % 2 == 1 for i in range(61)))]
shapes = st.sampled_from(DENSE + EXPERTS)
power = st.sampled_from([1, 2, 4, 8])
flag = st.sampled_from([0, 1])


@st.composite
def columns(draw: st.DrawFn, size: int = 5) -> dict[str, list[Any]]:
    """Rows of layouts, legal and not."""

    def column(values: st.SearchStrategy[Any]) -> list[Any]:
        return draw(st.lists(values, min_size=size, max_size=size))

    return {
        "dp": column(st.sampled_from([1, 2, 8, 64, 512])),
        "dp_replicate": column(st.sampled_from([1, 1, 2])),
        "tp": column(power),
        "pp": column(st.sampled_from([1, 2, 4, 16])),
        "vpp": column(st.sampled_from([1, 2])),
        "cp": column(st.sampled_from([1, 2, 4])),
        "ep": column(st.sampled_from([1, 2, 8])),
        "etp": column(st.sampled_from([1, 2])),
        "zero": column(st.sampled_from([0, 1, 2, 3])),
        "sequence_parallel": column(flag),
        "micro_batch": column(st.sampled_from([1, 2, 16])),
        "n_micro": column(st.sampled_from([1, 4, 16, 64])),
        "seq_len": column(st.sampled_from([128, 4096, 131072])),
        "recompute_layers": column(st.sampled_from([np.inf, 1, 4])),
        "capacity_factor": column(st.sampled_from([1, 1.5])),
        "reshard": column(flag),
        "no_sync": column(flag),
        "offload_optimizer": column(flag),
        "offload_parameters": column(flag),
        "offload_activations": column(flag),
        "optimizer_in_backward": column(flag),
        "schedule": column(st.sampled_from(codes.SCHEDULES)),
        "recompute": column(st.sampled_from(codes.RECOMPUTES)),
        "attention": column(st.sampled_from(codes.ATTENTIONS)),
        "cp_comm": column(st.sampled_from(codes.CP_COMMS)),
        "recipe": column(st.sampled_from(BOOKS.recipes.names)),
        "optimizer": column(st.sampled_from(BOOKS.optimizers.names)),
        "loss": column(st.sampled_from(BOOKS.losses.names)),
        "stack": column(st.sampled_from(BOOKS.stacks.names)),
    }


adapters = st.sampled_from([None, None, Adapters(8, ("q_proj", "v_proj"), 0.516), Adapters(64, ("down_proj",), 2.0)])
NUMBERS = (
    "total_bytes",
    "state_bytes",
    "activation_bytes",
    "allocated_bytes",
    "reserved_bytes",
    "device_bytes",
    "low_bytes",
    "high_bytes",
    "host_bytes_per_node",
    "peak_stage",
    "peak_moment",
    "in_flight",
    "held_parameters",
)


@settings(max_examples=40)
@given(shape=shapes, given_=columns(), low_rank=adapters)
def test_terms_are_finite_not_negative_and_add_up_to_the_bit(
    shape: ModelShape, given_: dict[str, list[Any]], low_rank: Adapters | None
) -> None:
    found = peak(shape, layouts(**given_), low_rank)
    total = None
    for term in found.terms:
        assert np.isfinite(term.array).all(), term.spec.path
        assert (term.array >= 0).all(), term.spec.path
        total = term.array if total is None else total + term.array
    assert total is not None
    assert (total == found.total_bytes).all()
    for name in NUMBERS:
        values = getattr(found, name)
        assert values.shape == (5,)
        assert np.isfinite(values).all()
        assert (values >= 0).all()
    assert (found.low_bytes <= found.total_bytes).all()
    assert (found.total_bytes <= found.high_bytes).all()
    assert (found.allocated_bytes <= found.reserved_bytes).all()
    assert (found.reserved_bytes <= found.device_bytes).all()
    assert (found.peak_stage < np.asarray(given_["pp"])).all()
    assert set(found.peak_moment) <= set(range(len(codes.MOMENTS)))


@settings(max_examples=25)
@given(shape=shapes, given_=columns(7), low_rank=adapters, order=st.permutations(range(7)), cut=st.integers(1, 6))
def test_one_row_alone_or_among_others_gives_the_same_bits(
    shape: ModelShape, given_: dict[str, list[Any]], low_rank: Adapters | None, order: list[int], cut: int
) -> None:
    """With or without leaves, in any order, cut into any pieces, or one by one."""
    whole = layouts(**given_)

    def numbers(layout: Layouts, keep: bool = False) -> dict[str, np.ndarray[Any, Any]]:
        found = evaluate(shape, layout, gpu(80e9), low_rank, keep_terms=keep)
        return {**{name: getattr(found.memory, name) for name in NUMBERS}, "first": found.reasons.first}

    with_terms, without = numbers(whole, True), numbers(whole)
    shuffled = numbers(rows(whole, np.asarray(order)))
    head, tail = numbers(rows(whole, slice(0, cut))), numbers(rows(whole, slice(cut, 7)))
    alone = [numbers(rows(whole, slice(i, i + 1)), True) for i in range(7)]
    for name, values in with_terms.items():
        assert np.array_equal(values, without[name]), name
        assert np.array_equal(values[order], shuffled[name]), name
        assert np.array_equal(values, np.concatenate([head[name], tail[name]])), name
        assert np.array_equal(values, np.concatenate([one[name] for one in alone])), name


def test_columns_of_one_entry_stand_for_every_row() -> None:
    many = peak(LLAMA_3_8B, layouts(tp=[1, 2, 4], zero=[0, 1, 2]))
    for row, (t, z) in enumerate(((1, 0), (2, 1), (4, 2))):
        assert many.total_bytes[row] == peak(LLAMA_3_8B, layouts(tp=t, zero=z)).total_bytes[0]


def test_inputs_are_not_changed() -> None:
    layout = layouts(tp=[1, 2], schedule=["1f1b", "gpipe"], pp=2, n_micro=4)
    before = {f.name: getattr(layout, f.name).copy() for f in fields(Layouts) if f.name != "books"}
    peak(LLAMA_3_8B, layout)
    assert all(np.array_equal(getattr(layout, name), value) for name, value in before.items())


def held_state(shape: ModelShape, low_rank: Adapters | None = None, **given: Any) -> np.ndarray[Any, Any]:
    """Weights, gradients as they are after a backward, master and moments, on the stage that holds the most of them."""
    whole = sum(full_state(shape, layouts(**given), low_rank).values())
    return np.asarray(whole).max(axis=0)


@settings(max_examples=40)
@given(
    shape=shapes,
    dp=st.sampled_from([1, 2, 8, 64]),
    t=power,
    pp=st.sampled_from([1, 2, 4]),
    ep=st.sampled_from([1, 2, 8]),
    recipe=st.sampled_from(BOOKS.recipes.names),
    stack=st.sampled_from(BOOKS.stacks.names),
    optimizer=st.sampled_from(BOOKS.optimizers.names),
    low_rank=adapters,
)
def test_more_zero_never_needs_more_state(
    shape: ModelShape,
    dp: int,
    t: int,
    pp: int,
    ep: int,
    recipe: str,
    stack: str,
    optimizer: str,
    low_rank: Adapters | None,
) -> None:
    held = held_state(
        shape,
        low_rank,
        dp=dp,
        tp=t,
        pp=pp,
        n_micro=pp,
        ep=ep if shape.experts else 1,
        zero=[0, 1, 2, 3],
        recipe=recipe,
        stack=stack,
        optimizer=optimizer,
    )
    assert (np.diff(held) <= 1e-12 * held[:-1]).all(), held


@settings(max_examples=40)
@given(
    shape=shapes,
    axis=st.sampled_from(["tp", "cp", "dp"]),
    zero=st.sampled_from([0, 1, 2, 3]),
    dp=power,
    recipe=st.sampled_from(["bf16-mixed", "megatron", "fsdp"]),
    low_rank=adapters,
)
def test_more_parallelism_never_needs_more_state(
    shape: ModelShape, axis: str, zero: int, dp: int, recipe: str, low_rank: Adapters | None
) -> None:
    held = held_state(shape, low_rank, **{"zero": zero, "dp": dp, "recipe": recipe, axis: [1, 2, 4, 8]})
    assert (np.diff(held) <= 1e-12 * held[:-1]).all(), held


@pytest.mark.parametrize(
    "shape", DENSE + EXPERTS, ids=lambda shape: f"{shape.name}-{shape.hidden}-{sum(shape.moe_layer)}"
)
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_more_stages_never_need_more_state(shape: ModelShape, zero: int) -> None:
    """Layers on the fullest stage only get fewer; a second copy of a tied table comes with half the layers or less."""
    stages = [p for p in (1, 2, 4, 8, 16) if p <= shape.layers]
    held = [held_state(shape, pp=p, n_micro=p, dp=8, zero=zero)[0] for p in stages]
    assert all(after <= before * (1 + 1e-12) for before, after in pairwise(held)), held


def activations(shape: ModelShape, layout: Layouts) -> dict[str, np.ndarray[Any, Any]]:
    """Saved activations of every stage kind, by leaf."""
    kinds = stage_kinds(shape, layout)
    kept = kinds.layers - full_recompute_layers(layout, kinds)
    leaves = saved(shape, layer_bytes(shape, layout), layout, kinds, kept, in_flight(layout, kinds.index))
    return {spec.path: array for spec, array in leaves}


@settings(max_examples=40)
@given(
    shape=shapes,
    stack=st.sampled_from(BOOKS.stacks.names),
    attention=st.sampled_from(codes.ATTENTIONS),
    tp=power,
    sp=flag,
    seq_len=st.sampled_from([256, 4096, 32768]),
    layers=st.sampled_from([np.inf, 1, 4]),
)
def test_recompute_saves(
    shape: ModelShape, stack: str, attention: str, tp: int, sp: int, seq_len: int, layers: float
) -> None:
    """Full keeps no more than selective, selective no more than nothing recomputed; recomputing k layers lies
    between.
    """
    layout = layouts(
        tp=tp,
        sequence_parallel=sp,
        seq_len=seq_len,
        attention=attention,
        stack=stack,
        pp=4,
        n_micro=8,
        recompute=["full", "selective", "none", "full"],
        recompute_layers=[np.inf, np.inf, np.inf, layers],
    )
    kept = sum(activations(shape, layout).values())
    assert (kept[:, 0] <= kept[:, 1]).all()
    assert (kept[:, 1] <= kept[:, 2]).all()
    assert (kept[:, 0] <= kept[:, 3]).all()
    assert (kept[:, 3] <= kept[:, 2]).all()


@settings(max_examples=40)
@given(shape=shapes, given_=columns(1))
def test_sequence_parallelism_never_keeps_more(shape: ModelShape, given_: dict[str, list[Any]]) -> None:
    given_["sequence_parallel"] = [0, 1]
    for name, array in activations(shape, layouts(**given_)).items():
        both = np.broadcast_to(array, (array.shape[0], 2))
        assert (both[:, 1] <= both[:, 0]).all(), name


@settings(max_examples=40)
@given(shape=shapes, given_=columns(1), low_rank=adapters)
def test_larger_micro_batches_never_need_less(
    shape: ModelShape, given_: dict[str, list[Any]], low_rank: Adapters | None
) -> None:
    given_["micro_batch"] = [1, 2, 4, 8]
    found = peak(shape, layouts(**given_), low_rank, keep_terms=False)
    assert (np.diff(found.total_bytes) >= 0).all()


@settings(max_examples=40)
@given(shape=shapes, given_=columns(1), low_rank=adapters)
def test_longer_sequences_never_need_less(
    shape: ModelShape, given_: dict[str, list[Any]], low_rank: Adapters | None
) -> None:
    given_["seq_len"] = [1024, 2048, 8192]
    found = peak(shape, layouts(**given_), low_rank, keep_terms=False)
    assert (np.diff(found.total_bytes) >= 0).all()


@settings(max_examples=30)
@given(
    shape=shapes,
    stack=st.sampled_from(BOOKS.stacks.names),
    recipe=st.sampled_from(BOOKS.recipes.names),
    zero=st.sampled_from([0, 1, 2, 3]),
    sp=flag,
    loss=st.sampled_from(BOOKS.losses.names),
)
def test_one_gpu_communicates_nothing(
    shape: ModelShape, stack: str, recipe: str, zero: int, sp: int, loss: str
) -> None:
    """All degrees one: no buffers of tensor, pipeline, context or data parallelism, no gathered weights, whatever
    ZeRO says.
    """
    found = peak(
        shape, layouts(stack=stack, recipe=recipe, zero=zero, sequence_parallel=sp, loss=loss, no_sync=1, n_micro=4)
    )
    for path in (
        "fixed/nccl_buffers", "transient/tensor_parallel_buffers", "transient/pipeline_messages",
        "transient/context_parallel_buffers", "transient/gathered_weights", "transient/reduce_scatter_input",
        "transient/ddp_buckets", "transient/communication_buckets", "transient/flat_parameter_gather",
        "transient/unsharded_gradients",
    ):  # fmt: skip
        assert leaf(found, path)[0] == 0, path
    assert found.pending_bytes[0] == 0


@settings(max_examples=30)
@given(shape=shapes, given_=columns(1))
def test_group_sizes_never_fall_below_one(shape: ModelShape, given_: dict[str, list[Any]]) -> None:
    found = groups(layouts(**given_))
    for field in fields(found):
        if field.name != "dp_shard":
            assert (getattr(found, field.name) >= 1).all(), field.name


def test_activations_are_linear_in_depth_batch_and_tokens() -> None:
    """L * b * s * h: linear in each; the layers of one micro-batch are all that counts without a pipeline."""

    def kept(layers: int = 8, **given: Any) -> float:
        return float(leaf(peak(llama(layers, 1024, 8, 8, 4096), layouts(**given)), "activations")[0])

    def layers_only(layers: int = 8, **given: Any) -> float:
        return float(sum(activations(llama(layers, 1024, 8, 8, 4096), layouts(**given)).values())[0, 0])

    assert layers_only(16) == pytest.approx(2 * layers_only(8), rel=1e-12)
    assert layers_only(micro_batch=4) == pytest.approx(4 * layers_only(), rel=1e-12)
    assert layers_only(seq_len=8192) == pytest.approx(2 * layers_only(seq_len=4096), rel=1e-12)
    assert layers_only(cp=4) == pytest.approx(layers_only() / 4, rel=1e-12)
    assert kept(micro_batch=4) == pytest.approx(4 * kept(), rel=1e-12)
