"""State memory against the paper's arithmetic and against every rank and tensor added up one by one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dscalc.cost import memory as memory_module
from dscalc.cost.inventory import parameter_counts
from dscalc.cost.memory import Memory
from dscalc.cost.placement import StageKinds, stage_kinds
from dscalc.cost.rank_parameters import adapter_sums, rank_parameters
from dscalc.records import Adapters, Layouts, ModelShape
from dscalc.specs.model import load_model, preset_names
from tests.cost.helpers import LLAMA_2_7B, LLAMA_3_8B, SEVEN_BILLION, books, full_state, gpt, layouts, leaf, llama, peak
from tests.oracles import sharding

PARTS = ("weights", "gradients", "main_gradients", "master_weights", "adam_m", "adam_v")


def parts(result: Memory) -> dict[str, float]:
    return {name: float(leaf(result, f"state/{name}")[0]) for name in PARTS}


def test_sixteen_bytes_a_parameter() -> None:
    """Rajbhandari et al. 2020, section 3.1: 2 + 2 + 4 + 4 + 4 bytes; 7e9 parameters take 14 + 14 + 28 + 28 + 28 =
    112 GB.
    """
    found = peak(SEVEN_BILLION, layouts())
    assert parts(found) == {
        "weights": 14e9,
        "gradients": 14e9,
        "main_gradients": 0.0,
        "master_weights": 28e9,
        "adam_m": 28e9,
        "adam_v": 28e9,
    }
    assert found.state_bytes[0] == 112e9


# Bytes per parameter without sharding, and with ZeRO-1 over k ranks as (replicated, over k).
RECIPES = {
    "bf16-mixed": (16, 4, 12),  # Rajbhandari et al. 2020
    "fp16-mixed": (16, 4, 12),  # Micikevicius et al. 2018
    "megatron": (18, 6, 12),  # Megatron-LM documentation of the distributed optimizer: 18 and 6 + 12/d
    "deepspeed-bf16": (16, 4, 12),
    "deepspeed-fp16": (16, 4, 12),
    "deepspeed-bf16-fp32-accumulation": (20, 8, 12),  # an fp32 accumulator beside the 16-bit gradients
    "fsdp": (16, 8, 8),  # fp32 weights and gradients, two moments, no separate master
    "ddp-amp": (16, 8, 8),
    "fp32": (16, 8, 8),
    "bf16-pure": (8, 4, 4),
}


def at_the_end_of_backward(shape: ModelShape, layout: Layouts) -> float:
    """State with gradients of the only stage."""
    return float(sum(array[0, 0] for array in full_state(shape, layout).values()))


@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe_table(recipe: str) -> None:
    total, replicated, divided = RECIPES[recipe]
    n = 7_000_000_000
    short = {"recipe": recipe}
    assert at_the_end_of_backward(SEVEN_BILLION, layouts(books(), **short)) == total * n
    sharded = at_the_end_of_backward(SEVEN_BILLION, layouts(books(), dp=64, zero=1, **short))
    assert sharded == pytest.approx((replicated + divided / 64) * n, rel=1e-12)


def test_nanotron_keeps_the_16_bit_gradients_of_one_micro_batch() -> None:
    """2 + 4 (fp32 accumulator) + 12 throughout, and 2 more at the end of each backward: 20 there, 18 at the step."""
    found = at_the_end_of_backward(SEVEN_BILLION, layouts(books(), recipe="nanotron"))
    assert found == 20 * 7e9


def test_three_stages_of_zero_at_64_ranks() -> None:
    """Rajbhandari et al. 2020, figure 1: 7.5e9 parameters on 64 ranks take 120, 31.4, 16.6 and 1.9 GB."""
    shape = replace(SEVEN_BILLION, stated_params=7_500_000_000)
    got = [at_the_end_of_backward(shape, layouts(books(), dp=64, zero=z)) / 1e9 for z in range(4)]
    assert got == pytest.approx([120, 31.4, 16.6, 1.9], abs=0.06)
    assert got == pytest.approx([16 * 7.5, (4 + 12 / 64) * 7.5, (2 + 14 / 64) * 7.5, 16 * 7.5 / 64], rel=1e-12)


# --- every rank and every tensor, one by one ---


def shape_of(model: sharding.Model) -> ModelShape:
    return llama(
        model.layers,
        model.h,
        model.a,
        model.g,
        model.f,
        model.vocab,
        head_dim=model.d_k,
        tied_embeddings=model.tied,
        experts=model.experts,
        top_k=min(2, model.experts),
        moe_ffn_hidden=model.f_e,
        shared_ffn_hidden=model.f_s,
        moe_layer=model.moe,
    )


def only(stage: int) -> Any:
    """A ``stage_kinds`` that knows one stage alone, of the even placement of layers that divide."""

    def kinds(shape: ModelShape, layout: Layouts) -> StageKinds:
        p = int(layout.pp[0])
        each = shape.layers // p
        mine = range(stage * each, (stage + 1) * each)
        experts = sum(shape.moe_layer[i] for i in mine) if shape.moe_layer else 0
        row = [stage, each, experts, stage == 0, stage == p - 1, each]
        return StageKinds(*(np.asarray([[float(x)]]) for x in row))

    return kinds


def cases() -> Iterator[tuple[sharding.Model, sharding.Grid, int]]:
    rng = random.Random(20)  # noqa: S311
    while True:
        g = rng.choice([1, 2, 4, 8])
        moe = rng.random() < 0.5
        layers = rng.choice([4, 8])
        pattern = rng.choice([(False,) + (True,) * (layers - 1), (True,) * layers, (False, True) * (layers // 2)])
        model = sharding.Model(
            layers,
            96,
            8,
            g,
            12,
            240,
            1024,
            tied=rng.random() < 0.5,
            experts=8 if moe else 0,
            f_e=48 if moe else 0,
            f_s=rng.choice([0, 24]) if moe else 0,
            moe=pattern if moe else (),
        )
        grid = sharding.Grid(
            tp=rng.choice([1, 2, 4, 8]),
            pp=rng.choice([1, 2, 4]),
            cp=rng.choice([1, 2]),
            dp_shard=rng.choice([1, 2, 3]),
            dp_replicate=rng.choice([1, 2]),
            etp=rng.choice([1, 2]) if moe else 1,
            ep=rng.choice([1, 2, 4]) if moe else 1,
        )
        if grid.tp * grid.cp * grid.dp_shard % (grid.etp * grid.ep) == 0:
            yield model, grid, rng.choice([0, 1, 2, 3])


EACH = {
    "bf16-mixed": {"weights": 2, "gradients": 2, "master_weights": 4, "adam_m": 4, "adam_v": 4},
    "megatron": {"weights": 2, "main_gradients": 4, "master_weights": 4, "adam_m": 4, "adam_v": 4},
    "deepspeed-bf16-fp32-accumulation": {
        "weights": 2,
        "gradients": 2,
        "main_gradients": 4,
        "master_weights": 4,
        "adam_m": 4,
        "adam_v": 4,
    },
}


def test_every_rank_and_tensor_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights, gradients, master and moments of every rank of every stage: dense and expert grids, key/value heads
    fewer than tensor-parallel ranks, tied tables on two stages, hybrid sharding.
    """
    source = cases()
    for number in range(60):
        model, grid, zero = next(source)
        recipe = list(EACH)[number % len(EACH)]
        layout = layouts(
            books(),
            tp=grid.tp,
            pp=grid.pp,
            cp=grid.cp,
            dp=grid.dp_shard * grid.dp_replicate,
            dp_replicate=grid.dp_replicate,
            etp=grid.etp,
            ep=grid.ep,
            zero=zero,
            recipe=recipe,
            seq_len=grid.cp,
            n_micro=grid.pp,
        )
        for stage in range(grid.pp):
            monkeypatch.setattr(memory_module, "stage_kinds", only(stage))
            got = parts(peak(shape_of(model), layout))
            for q in range(grid.stage_ranks):
                want = sharding.state(model, grid, stage, q, zero, EACH[recipe])
                for name in PARTS:
                    assert got[name] == pytest.approx(float(want.get(name, 0)), rel=1e-12), (
                        model,
                        grid,
                        zero,
                        stage,
                        q,
                        name,
                    )


def test_one_gpu_holds_exactly_the_model() -> None:
    """Without parallelism the rank's parameters are the model's stored parameters."""
    for shape in (LLAMA_2_7B, LLAMA_3_8B, gpt(), gpt(tied_embeddings=True), llama(embedding_norm=True, qkv_bias=True)):
        assert peak(shape, layouts()).held_parameters[0] == parameter_counts(shape).main


@pytest.mark.parametrize("name", preset_names())
def test_one_gpu_holds_exactly_the_preset(name: str) -> None:
    shape = load_model(name).spec.lower()
    assert peak(shape, layouts(), keep_terms=False).held_parameters[0] == parameter_counts(shape).main


def test_narrow_embeddings_keep_their_projections() -> None:
    """OPT-350M: tables of 512 columns, projected to 1024 and back: 2 x 512 x 1024 more parameters."""
    shape = gpt(24, 1024, 16, 50272, embedding_width=512)
    assert peak(shape, layouts()).held_parameters[0] == parameter_counts(shape).main


def test_hybrid_sharding_divides_by_the_shard_group_alone() -> None:
    """Zhao et al. 2023, section 3.2.2: FULL within a group of F ranks, replicated over W/F groups."""
    hybrid = parts(peak(LLAMA_3_8B, layouts(books(), dp=64, dp_replicate=8, zero=3)))
    alone = parts(peak(LLAMA_3_8B, layouts(books(), dp=8, zero=3)))
    assert hybrid == alone


# --- adapters ---


def adapter_parameters(shape: ModelShape, rank: int, *targets: str) -> int:
    layout = layouts()
    sums = adapter_sums(shape, Adapters(rank, targets, 2.0))
    found = rank_parameters(shape, sums, layout, stage_kinds(shape, layout))
    return int((found.matrix + found.other + found.expert)[0, 0])


def test_lora_counts() -> None:
    """Hu et al. 2022: r (inputs + outputs) a matrix. Llama-2-7B, r = 8 on q and v: 32 * 2 * 8 * 8192 = 4,194,304,
    the number PEFT prints; on all seven matrices 19,988,480; Llama-3-8B, r = 8 on q and v: 32 * 8 * (8192 + 5120) =
    3,407,872.
    """
    assert adapter_parameters(LLAMA_2_7B, 8, "q_proj", "v_proj") == 4_194_304
    attention = ("q_proj", "k_proj", "v_proj", "o_proj")
    mlp = ("gate_proj", "up_proj", "down_proj")
    assert adapter_parameters(LLAMA_2_7B, 8, *attention, *mlp) == 32 * 8 * (4 * 8192 + 3 * (4096 + 11008)) == 19_988_480
    assert adapter_parameters(LLAMA_3_8B, 8, "q_proj", "v_proj") == 3_407_872


def test_lora_state() -> None:
    """A frozen 16-bit base and the full recipe on the adapters alone: 2 N + 16 n."""
    adapters = Adapters(8, ("q_proj", "v_proj"), 2.0)
    found = parts(peak(LLAMA_2_7B, layouts(books()), adapters))
    n, total = 4_194_304, parameter_counts(LLAMA_2_7B).main
    assert total == 6_738_415_616
    assert found["weights"] == 2 * total + 2 * n
    assert found["gradients"] == 2 * n
    assert found["master_weights"] == found["adam_m"] == found["adam_v"] == 4 * n


def test_qlora_state() -> None:
    """Dettmers et al. 2023: NF4 with double quantisation is 4.127 bits = 0.516 bytes a parameter of the linear layers;
    embeddings,
    head and norms stay in 16 bits: Llama-2-7B has 32 * (4 * 4096^2 + 3 * 4096 * 11008) = 6,476,005,376 parameters in
    linear layers.
    """
    nf4 = (4 + 8 / 64 + 32 / (64 * 256)) / 8
    assert nf4 == pytest.approx(0.516, abs=5e-4)
    found = parts(peak(LLAMA_2_7B, layouts(books()), Adapters(64, ("q_proj",), nf4)))
    linear = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    rest = 6_738_415_616 - linear
    assert linear == 6_476_005_376
    adapter = 32 * 64 * 8192
    assert found["weights"] == pytest.approx(nf4 * linear + 2 * rest + 2 * adapter, rel=1e-12)
    assert found["gradients"] == 2 * adapter


@pytest.mark.parametrize("t", [1, 2, 8, 32])
def test_adapters_under_tensor_parallelism(t: int) -> None:
    """A of a column-parallel matrix and B of a row-parallel one are whole on every rank; key/value rows stop at the
    8 heads.
    """
    layout = layouts(tp=t)
    sums = adapter_sums(LLAMA_3_8B, Adapters(16, ("q_proj", "v_proj", "o_proj"), 2.0))
    found = rank_parameters(LLAMA_3_8B, sums, layout, stage_kinds(LLAMA_3_8B, layout))
    query = 16 * (4096 + 4096 / t)
    value = 16 * (4096 + 1024 / min(t, 8))
    out = 16 * (4096 / t + 4096)
    assert float(found.matrix[0, 0]) == pytest.approx(32 * (query + value + out), rel=1e-12)


# --- optimizers, by hand on a two-layer model ---

TINY = llama(2, 64, 4, 4, 128, 512)
LINEAR = 2 * (4 * 64 * 64 + 3 * 64 * 128)  # 81,920 elements in linear layers
TABLES = 2 * 512 * 64  # embedding and head
NORMS = 2 * 2 * 64 + 64


def moments(optimizer: str, recipe: str = "bf16-mixed") -> float:
    """Everything the optimizer keeps apart from the master copy."""
    found = peak(TINY, layouts(books(), optimizer=optimizer, recipe=recipe))
    known = ("weights", "gradients", "main_gradients", "master_weights")
    return float((leaf(found, "state") - sum(leaf(found, f"state/{name}") for name in known))[0])


def test_the_tiny_model() -> None:
    assert parameter_counts(TINY).main == LINEAR + TABLES + NORMS == 147_776


def test_optimizer_states_by_hand() -> None:
    n = LINEAR + TABLES + NORMS
    assert moments("adamw") == 8 * n
    assert moments("sgd") == 0
    assert moments("momentum") == moments("lion") == 4 * n
    assert moments("adamw", "bf16-pure") == 4 * n  # both moments in bf16
    # Jordan et al. 2024: momentum on hidden matrices; embedding, head and vectors keep AdamW
    assert moments("muon") == 4 * LINEAR + 8 * (TABLES + NORMS)


def test_adafactor_keeps_row_and_column_sums() -> None:
    """Shazeer and Stern 2018, section 3: rows + columns of each matrix in fp32, a full second moment of each vector."""
    rows_and_columns = 2 * (4 * (64 + 64) + 3 * (64 + 128)) + 2 * (512 + 64)
    assert moments("adafactor") == pytest.approx(4 * (rows_and_columns + NORMS), rel=0.01)


def test_eight_bit_adam() -> None:
    """Dettmers et al. 2022: one byte and an fp32 scale for each block of 256 elements a state; the embedding stays
    32-bit.
    """
    one = 1 + 4 / 256
    low = 2 * (one * (LINEAR + TABLES / 2 + NORMS)) + 8 * TABLES / 2
    high = 2 * one * LINEAR + 8 * (TABLES + NORMS)  # head and norms in 32 bits too
    assert low <= moments("adamw-8bit") <= high


def test_eight_bit_moments_do_not_shrink_further_in_16_bit_recipes() -> None:
    assert moments("adamw-8bit", "bf16-pure") == moments("adamw-8bit")


# --- offload ---


def test_offload_moves_the_optimizer_to_the_host() -> None:
    """Rajbhandari et al. 2021 (ZeRO-Offload): master and moments leave the GPU; the 8 ranks of a node fill its host."""
    kept = peak(SEVEN_BILLION, layouts(books(), dp=8, zero=2))
    moved = peak(SEVEN_BILLION, layouts(books(), dp=8, zero=2, offload_optimizer=1))
    assert [parts(moved)[name] for name in ("master_weights", "adam_m", "adam_v")] == [0, 0, 0]
    assert parts(moved)["weights"] == parts(kept)["weights"] == 14e9
    host = {leaf.spec.path: leaf.array[0] for leaf in moved.host_terms}
    assert host["host/offloaded_optimizer"] == pytest.approx(12 * 7e9, rel=1e-12)
    assert host["host/offloaded_gradients"] == pytest.approx(4 * 7e9, rel=1e-12)  # the host steps on fp32 gradients
    assert sum(host.values()) == moved.host_bytes_per_node[0]
    assert moved.host_bytes_per_node[0] - kept.host_bytes_per_node[0] == pytest.approx(16 * 7e9, rel=1e-12)


def test_offloaded_parameters_need_zero_3() -> None:
    moved = peak(SEVEN_BILLION, layouts(books(), dp=8, zero=3, offload_optimizer=1, offload_parameters=1))
    assert parts(moved)["weights"] == 0
    stays = peak(SEVEN_BILLION, layouts(books(), dp=8, zero=2, offload_optimizer=1, offload_parameters=1))
    assert parts(stays)["weights"] == 14e9
