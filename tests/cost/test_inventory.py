"""The parameter inventory: sums, splits and conventions, against hand calculations and published totals."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dscalc.cost.inventory import (
    MAIN_PARTS,
    active_elements,
    inventory,
    norm_elements,
    parameter_counts,
    part_instances,
)
from dscalc.records import ModelShape
from dscalc.specs.model import load_model, preset_names

SPLITS = {"tp", "kv", "vocab", "expert", "replicated"}
LORA_TARGETS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
LATENT_TARGETS = {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj"}


def tiny(**changes: object) -> ModelShape:
    sizes: dict[str, object] = {
        "name": "tiny",
        "layers": 2,
        "hidden": 8,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 2,
        "value_head_dim": 2,
        "ffn_hidden": 12,
        "vocab": 20,
    }
    return ModelShape(**{**sizes, **changes})  # type: ignore[arg-type]


def elements(shape: ModelShape) -> dict[str, int]:
    return {f"{t.part}/{t.name}": t.elements for t in inventory(shape)}


def test_hand_count_of_a_tiny_model() -> None:
    # embedding 160 + head 160 + final norm 8 + 2 layers of (q 64, k 32, v 32, o 64, norms 16, gate/up/down 3 x 96)
    assert parameter_counts(tiny()).main == 160 + 160 + 8 + 2 * (64 + 32 + 32 + 64 + 16 + 288)


def test_hand_count_with_every_bias() -> None:
    shape = tiny(qkv_bias=True, out_bias=True, mlp_bias=True, head_bias=True, norm="layer", gated_mlp=False)
    got = elements(shape)
    assert got["layer/attention/q_proj_bias"] == 8
    assert got["layer/attention/k_proj_bias"] == got["layer/attention/v_proj_bias"] == 4
    assert got["layer/attention/o_proj_bias"] == 8
    assert got["dense_mlp/mlp/up_proj_bias"] == 12
    assert got["dense_mlp/mlp/down_proj_bias"] == 8
    assert got["head/head_bias"] == 20
    assert got["layer/norm_1"] == 16
    assert "dense_mlp/mlp/gate_proj" not in got


def test_column_biases_are_divided_and_row_biases_replicated() -> None:
    shape = tiny(qkv_bias=True, out_bias=True, mlp_bias=True)
    split = {t.name: t.split for t in inventory(shape)}
    assert split["attention/q_proj"] == split["attention/q_proj_bias"] == "tp"
    assert split["attention/k_proj"] == split["attention/k_proj_bias"] == "kv"
    assert split["attention/o_proj"] == "tp"
    assert split["attention/o_proj_bias"] == "replicated"
    assert split["mlp/up_proj_bias"] == "tp"
    assert split["mlp/down_proj_bias"] == "replicated"
    assert split["tokens"] == split["head"] == "vocab"
    assert split["norm_1"] == "replicated"


def test_tied_embeddings_are_counted_once_and_the_copy_named() -> None:
    tied, untied = parameter_counts(tiny(tied_embeddings=True)), parameter_counts(tiny())
    assert untied.main - tied.main == 160
    assert tied.tied_copy == 160
    assert untied.tied_copy == 0
    assert tied.head == 0


def test_experts_by_hand() -> None:
    shape = tiny(
        experts=4,
        top_k=2,
        moe_ffn_hidden=6,
        shared_ffn_hidden=3,
        shared_expert_gate=True,
        router_bias=True,
        router_correction=True,
        expert_bias=True,
        moe_layer=(False, True),
    )
    got = elements(shape)
    assert got["moe_mlp/router"] == 32
    assert got["moe_mlp/router_bias"] == got["moe_mlp/router_correction"] == 4
    assert got["moe_mlp/experts/up_proj"] == 4 * 48
    assert got["moe_mlp/experts/up_proj_bias"] == 4 * 6
    assert got["moe_mlp/experts/down_proj_bias"] == 4 * 8
    assert got["moe_mlp/shared_experts/gate"] == 8
    assert got["dense_mlp/mlp/up_proj"] == 96
    assert part_instances(shape)["moe_mlp"] == part_instances(shape)["dense_mlp"] == 1
    counts = parameter_counts(shape)
    idle = 2 * (3 * 48 + 2 * 6 + 8)  # two of four experts rest: three matrices, two column biases, one row bias each
    assert counts.main - counts.active == idle


def test_latent_attention_by_hand() -> None:
    latent = {"mla": True, "head_dim": 6, "rope_head_dim": 2, "value_head_dim": 3, "kv_heads": 4, "kv_lora_rank": 5}
    direct, compressed = elements(tiny(**latent)), elements(tiny(**latent, q_lora_rank=7))
    assert direct["layer/attention/q_proj"] == 8 * 4 * 6
    assert direct["layer/attention/kv_a_proj"] == 8 * (5 + 2)
    assert direct["layer/attention/kv_b_proj"] == 5 * 4 * (4 + 3)
    assert direct["layer/attention/o_proj"] == 4 * 3 * 8
    assert compressed["layer/attention/q_a_proj"] == 8 * 7
    assert compressed["layer/attention/q_b_proj"] == 7 * 4 * 6
    assert compressed["layer/attention/q_a_norm"] == 7


def test_indexer_adds_what_deepseek_v32_adds() -> None:
    """Published totals of V3 and V3.2 differ by the indexer of 61 layers."""
    v3, v32 = (parameter_counts(load_model(name).spec.lower()).main for name in ("DeepSeek-V3", "DeepSeek-V3.2"))
    assert v32 - v3 == 61 * (1536 * 64 * 128 + 7168 * 128 + 2 * 128 + 7168 * 64)


def test_a_narrower_embedding_is_projected_in_and_out() -> None:
    counts = parameter_counts(tiny(embedding_width=4, tied_embeddings=True))
    assert counts.embedding == 80
    assert counts.main == parameter_counts(tiny(tied_embeddings=True)).main - 80 + 2 * 32


def test_matrices_state_their_shape() -> None:
    for name in ("Llama-3.1-8B", "Mixtral-8x7B", "DeepSeek-V3", "gpt2", "gpt-oss-120b"):
        targets = set()
        for tensor in inventory(load_model(name).spec.lower()):
            assert tensor.split in SPLITS
            if tensor.matrix:
                assert tensor.rows * tensor.cols * tensor.copies == tensor.elements
                targets.add(tensor.target)
            else:
                assert (tensor.rows, tensor.cols, tensor.copies) == (0, 0, 1)
        assert targets <= LORA_TARGETS | LATENT_TARGETS | {"", "lm_head"}
        assert {"o_proj", "up_proj", "down_proj"} <= targets


def test_stated_parameters_stand() -> None:
    counts = parameter_counts(tiny(stated_params=7_000_000_000))
    assert counts.main == 7_000_000_000
    assert counts.active == 7_000_000_000
    assert counts.listed == parameter_counts(tiny()).main


def test_unknown_norm_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown norm"):
        norm_elements(tiny(norm="batch"))


@pytest.mark.parametrize("name", preset_names())
def test_main_is_the_sum_of_its_parts(name: str) -> None:
    shape = load_model(name).spec.lower()
    tensors, instances, counts = inventory(shape), part_instances(shape), parameter_counts(shape)
    assert len({(t.part, t.name) for t in tensors}) == len(tensors), "names repeat"
    assert counts.main == counts.listed
    assert counts.main == sum(t.elements * instances[t.part] for t in tensors if t.part in MAIN_PARTS)
    assert counts.mtp == sum(t.elements * instances["mtp"] for t in tensors if t.part == "mtp")
    assert counts.vision == sum(t.elements for t in tensors if t.part == "vision")
    assert 0 < counts.active_without_embedding_and_head <= counts.active_without_embedding <= counts.active
    assert counts.active <= counts.main
    dense = not any(shape.moe_layer)
    assert (counts.active == counts.main) == dense


shapes = st.builds(
    tiny,
    layers=st.integers(1, 5),
    hidden=st.integers(1, 64),
    heads=st.sampled_from([2, 4, 8]),
    kv_heads=st.sampled_from([1, 2]),
    ffn_hidden=st.integers(1, 100),
    vocab=st.integers(1, 1000),
    gated_mlp=st.booleans(),
    tied_embeddings=st.booleans(),
    norm=st.sampled_from(["rms", "layer", "layer-no-bias", "none"]),
    norms_per_layer=st.integers(0, 4),
    learned_positions=st.integers(0, 50),
    qkv_bias=st.booleans(),
    out_bias=st.booleans(),
    mlp_bias=st.booleans(),
    mtp_layers=st.integers(0, 2),
    vision_params=st.integers(0, 1000),
)


@given(shapes)
def test_counts_of_any_shape_are_whole_and_consistent(shape: ModelShape) -> None:
    counts, instances = parameter_counts(shape), part_instances(shape)
    tensors = inventory(shape)
    assert all(t.elements > 0 for t in tensors)
    assert counts == parameter_counts(shape)
    assert counts.main == sum(t.elements * instances[t.part] for t in tensors if t.part in MAIN_PARTS)
    assert 0 <= counts.active_without_embedding_and_head <= counts.active_without_embedding
    assert counts.active_without_embedding <= counts.active <= counts.main
    assert all(isinstance(getattr(counts, field), int) for field in type(counts).__slots__)


@given(st.integers(1, 8), st.data())
def test_more_experts_used_means_more_active(experts: int, data: st.DataObject) -> None:
    used = data.draw(st.integers(1, experts))
    shape = tiny(experts=experts, top_k=used, moe_ffn_hidden=5, moe_layer=(True, True))
    counts = parameter_counts(shape)
    assert counts.main - counts.active == 2 * (experts - used) * 3 * 8 * 5
    for tensor in inventory(shape):
        assert active_elements(tensor, shape) <= tensor.elements


@pytest.mark.shared
def test_active_conventions_of_published_models(shared_data: Path) -> None:
    """Everything used; without the input embedding; without embedding and head."""
    checked = 0
    with (shared_data / "models.csv").open(encoding="utf-8", newline="") as handle:
        for row in csv.DictReader(handle):
            if not row["active_all"]:
                continue
            counts = parameter_counts(load_model(row["name"]).spec.lower())
            assert counts.main == int(row["total_params_main"]), row["name"]
            assert counts.active == int(row["active_all"]), row["name"]
            assert counts.active_without_embedding == int(row["active_without_input_embedding"]), row["name"]
            assert counts.active_without_embedding_and_head == int(row["active_without_embedding_and_head"])
            assert counts.embedding == int(row["embedding_params"]), row["name"]
            checked += 1
    assert checked >= 70


# Active parameters by convention, from published shapes: all, without input table, without both.
ACTIVE = [
    ("DeepSeek-V3", 37_552_297_472, 36_625_618_432, 35_698_939_392),
    ("Mixtral-8x7B", 12_879_925_248, 12_748_853_248, 12_617_781_248),
    ("gpt-oss-120b", 5_711_982_912, 5_132_849_472, 4_553_716_032),
    ("GLM-4.5", 33_632_266_144, 32_856_319_904, 32_080_373_664),
    ("Qwen3-235B-A22B", 22_190_763_520, 21_568_433_664, 20_946_103_808),
    ("gpt2", 124_439_808, 123_653_376, 85_056_000),
    ("grok-1", 83_756_587_008, 83_756_587_008, 82_951_280_640),
]


@pytest.mark.parametrize(("name", "everything", "no_input", "neither"), ACTIVE)
def test_three_conventions_of_active(name: str, everything: int, no_input: int, neither: int) -> None:
    counts = parameter_counts(load_model(name).spec.lower())
    got = (counts.active, counts.active_without_embedding, counts.active_without_embedding_and_head)
    assert got == (everything, no_input, neither)
