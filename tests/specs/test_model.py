"""Models by name, from a parameter count and from sizes given one by one."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from dscalc.cost.inventory import parameter_counts
from dscalc.errors import ConfigError, InputError, UnknownNameError
from dscalc.records import ModelShape
from dscalc.specs.model import ModelSpec, apply_overrides, from_params, load_model, preset_names, preset_source


def one_line(error: InputError) -> None:
    assert "\n" not in str(error)


def count(spec: ModelSpec) -> int:
    return parameter_counts(spec.lower()).main


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("llama-3.1-8b", "Llama-3.1-8B"),
        ("meta-llama/Llama-3.1-8B", "Llama-3.1-8B"),
        ("LLAMA_3.1_8B", "Llama-3.1-8B"),
        ("gpt-2", "gpt2"),
        ("GPT2", "gpt2"),
        ("gpt3-175b", "gpt3-175B"),
        ("gpt-3", "gpt3-175B"),
        ("gpt3-1.3b", "gpt3-1.3B"),
        ("gpt3-13b", "gpt3-13B"),
        ("opt-1.3b", "opt-1.3b"),
        ("opt-13b", "opt-13b"),
        ("deepseek-v3", "DeepSeek-V3"),
        ("deepseek-ai/DeepSeek-R1", "DeepSeek-R1"),
        ("grok-1", "grok-1"),
        ("mixtral", "Mixtral-8x7B"),
        ("Qwen/Qwen2.5-7B-Instruct", "Qwen2.5-7B"),
    ],
)
def test_names_forgive_case_and_punctuation(spelling: str, name: str) -> None:
    assert load_model(spelling).spec.name == name


@pytest.mark.parametrize("spelling", ["lama-3.1-8b", "gpt5", "llama", "", "\0", "x" * 5000, "opt-1000b"])
def test_unknown_names_suggest_the_nearest(spelling: str) -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_model(spelling)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_a_typing_error_is_put_right() -> None:
    with pytest.raises(UnknownNameError, match=r"Llama-3\.1-8B"):
        load_model("lama-3.1-8b")


def test_published_totals_of_presets() -> None:
    totals = {
        "Llama-2-7B": 6_738_415_616,
        "Llama-3-8B": 8_030_261_248,
        "Llama-3.1-405B": 405_853_388_800,
        "Mixtral-8x7B": 46_702_792_704,
        "gpt2": 124_439_808,
        "bloom-176b": 176_247_271_424,
        "DeepSeek-V3": 671_026_419_200,
        "DeepSeek-V3.2": 671_877_944_064,
        "Kimi-K2-Instruct": 1_026_408_232_448,
        "gpt-oss-20b": 20_914_757_184,
        "falcon-40b": 41_303_293_952,
        "grok-1": 315_684_820_992,
        "Phi-4": 14_659_507_200,
    }
    for name, total in totals.items():
        assert count(load_model(name).spec) == total, name


def test_every_preset_builds_and_names_its_source() -> None:
    assert len(preset_names()) >= 110
    for name in preset_names():
        assert load_model(name).spec.name == name
        assert preset_source(name)


def test_a_file_and_its_folder_give_the_same_model(tmp_path: Path) -> None:
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 100}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2", **sizes, "n_positions": 16}))
    by_file, by_folder = load_model(str(tmp_path / "config.json")), load_model(str(tmp_path))
    assert count(by_file.spec) == count(by_folder.spec) > 0
    assert {a.name for a in by_file.assumptions} == {"tie_word_embeddings"}
    with pytest.raises(ConfigError, match="no such file"):
        load_model(str(tmp_path / "absent.json"))


def test_specifications_lower_into_the_record() -> None:
    spec = load_model("DeepSeek-V3").spec
    shape = spec.lower()
    assert isinstance(shape, ModelShape)
    assert sum(shape.moe_layer) == 58
    assert set(ModelSpec.model_fields) == set(ModelShape.__slots__)


SMALL: dict[str, Any] = {
    "name": "small",
    "layers": 2,
    "hidden": 8,
    "heads": 4,
    "kv_heads": 2,
    "head_dim": 2,
    "value_head_dim": 2,
    "ffn_hidden": 16,
    "vocab": 10,
}


@pytest.mark.parametrize(
    "wrong",
    [
        {"layers": 0},
        {"layers": 1_000_000},
        {"layers": "2"},
        {"layers": 2.0},
        {"layers": True},
        {"hidden": -8},
        {"kv_heads": 3},
        {"ffn_hidden": 0},
        {"experts": 4},
        {"moe_layer": (True,)},
        {"moe_layer": (True, True), "experts": 4, "top_k": 5, "moe_ffn_hidden": 4},
        {"moe_layer": (True, True), "experts": 4, "top_k": 2},
        {"mla": True},
        {"mla": True, "kv_lora_rank": 4, "rope_head_dim": 2},
        {"index_heads": 2, "index_head_dim": 2},
        {"norm": "batch"},
        {"colour": "red"},
    ],
)
def test_impossible_shapes_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ModelSpec(**{**SMALL, **wrong})


def test_specifications_are_frozen() -> None:
    spec = ModelSpec(**SMALL)
    with pytest.raises(AttributeError):
        spec.layers = 3  # type: ignore[misc]
    assert spec.with_changes(layers=3).layers == 3
    with pytest.raises(ValidationError):
        spec.with_changes(layers=0)


def test_shapes_that_ship_or_are_assumed_pass_the_check() -> None:
    """They are read without it, because it costs more than an estimate."""
    counts = [*range(1_000, 3_000, 7), *(int(10 ** (k / 40)) for k in range(120, 721))]
    for spec in (*(load_model(name).spec for name in preset_names()), *map(from_params, counts)):
        checked = ModelSpec.model_validate(spec.model_dump())
        assert checked == spec
        assert hash(spec.lower()) == hash(checked.lower())


# From a parameter count


@pytest.mark.parametrize(
    ("params", "layers", "hidden", "words"),
    [
        (7_000_000_000, 32, 4096, "Llama-2-7B-like, 32 layers x 4096"),
        (8_000_000_000, 32, 4096, "Llama-3-8B-like"),
        (13_000_000_000, 40, 5120, "Llama-2-13B-like"),
        (70_000_000_000, 80, 8192, "Llama-2-70B-like"),
        (405_000_000_000, 126, 16384, "Llama-3.1-405B-like"),
        (175_000_000_000, 96, 12288, "96 layers x 12288"),
    ],
)
def test_familiar_sizes_take_familiar_shapes(params: int, layers: int, hidden: int, words: str) -> None:
    spec = from_params(params)
    assert (spec.layers, spec.hidden) == (layers, hidden)
    assert words in spec.name
    assert count(spec) == params


@given(st.integers(1_000, 10**15))
def test_any_count_gives_a_legal_shape_and_stands_exactly(params: int) -> None:
    spec = from_params(params)
    assert count(spec) == params
    assert spec == from_params(params)
    assert spec.heads * spec.head_dim == spec.hidden
    listed = parameter_counts(spec.lower()).listed
    assert 0.55 * params <= listed <= 1.25 * params
    if params >= 10**9:
        assert 0.85 * params <= listed <= 1.1 * params
        assert spec.hidden % 128 == 0
        assert spec.head_dim in (64, 128)
        assert 64 <= spec.hidden / spec.layers <= 140


def test_larger_counts_do_not_take_narrower_shapes() -> None:
    """Between known models the rule takes over, so a step back of one known shape is allowed, not more."""
    sizes = [from_params(int(10 ** (3 + i / 20))).hidden for i in range(240)]
    assert all(later >= 0.7 * earlier for earlier, later in pairwise(sizes))


@pytest.mark.parametrize("params", [0, -1, 1, 100, 999, 10**19, 7e9, "7B", True, None])
def test_impossible_counts_are_refused(params: Any) -> None:
    with pytest.raises(InputError, match="--params"):
        from_params(params)


# Sizes one by one


def test_three_sizes_make_a_model() -> None:
    made = apply_overrides(None, layers=32, hidden=4096, heads=32)
    assert count(made.spec) == 6_738_415_616
    assert made.origin["layers"] == "given"
    assert made.origin["ffn_hidden"] == made.origin["kv_heads"] == made.origin["head_dim"] == "derived"
    assert made.origin["vocab"] == "default"


@pytest.mark.parametrize("missing", ["layers", "hidden", "heads"])
def test_fewer_sizes_are_refused_by_name(missing: str) -> None:
    sizes = {"layers": 2, "hidden": 8, "heads": 4}
    del sizes[missing]
    with pytest.raises(InputError, match=f"--{missing}"):
        apply_overrides(None, **sizes)


def test_no_override_changes_nothing() -> None:
    spec = load_model("Qwen3-30B-A3B").spec
    assert apply_overrides(spec, layers=None).spec is spec


def test_each_override_takes_effect() -> None:
    spec = load_model("Llama-3.1-8B").spec
    got = apply_overrides(spec, layers=16, vocab=1000, ffn_hidden=100, tie_embeddings=True, gated_mlp=False).spec
    assert (got.layers, got.vocab, got.ffn_hidden, got.tied_embeddings, got.gated_mlp) == (16, 1000, 100, True, False)
    assert apply_overrides(spec, kv_heads=4).spec.kv_heads == 4
    wider = apply_overrides(spec, hidden=8192)
    assert (wider.spec.head_dim, wider.spec.ffn_hidden) == (256, 28672)
    assert wider.origin == {"hidden": "given", "head_dim": "derived", "ffn_hidden": "derived"}
    more = apply_overrides(spec, heads=64)
    assert (more.spec.kv_heads, more.spec.head_dim) == (16, 64)
    assert apply_overrides(spec, head_dim=64).spec.value_head_dim == 64


def test_query_and_key_norms_follow_the_heads() -> None:
    each = apply_overrides(load_model("Qwen3-8B").spec, head_dim=64).spec
    assert (each.q_norm_elements, each.k_norm_elements) == (64, 64)
    full = apply_overrides(load_model("OLMo-2-7B").spec, heads=16).spec
    assert full.q_norm_elements == full.heads * full.head_dim


def test_experts_come_change_and_go() -> None:
    dense = load_model("Llama-3.1-8B").spec
    made = apply_overrides(dense, experts=8, top_k=2, shared_experts=1, moe_ffn_hidden=512)
    assert all(made.spec.moe_layer)
    assert (made.spec.experts, made.spec.top_k, made.spec.shared_ffn_hidden) == (8, 2, 512)
    assert apply_overrides(dense, experts=1).spec.top_k == 1
    v3 = load_model("DeepSeek-V3").spec
    assert apply_overrides(v3, experts=64).spec.moe_layer == v3.moe_layer
    fewer = apply_overrides(v3, layers=10).spec
    assert fewer.moe_layer == (False,) * 3 + (True,) * 7
    assert apply_overrides(v3, layers=100).spec.moe_layer[:3] == (False,) * 3
    assert apply_overrides(v3, experts=0).spec.moe_layer == ()


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("Llama-3.1-8B", {"top_k": 2}, "--experts"),
        ("Llama-3.1-8B", {"experts": 4, "top_k": 8}, "top_k 8"),
        ("Llama-3.1-8B", {"kv_heads": 5}, "multiple of kv_heads"),
        ("Llama-3.1-8B", {"heads": 7}, "--head-dim"),
        ("Llama-3.1-8B", {"layers": 0}, "--layers"),
        ("Llama-3.1-8B", {"layers": True}, "--layers"),
        ("Llama-3.1-8B", {"hidden": 10**12}, "--hidden"),
        ("Llama-3.1-8B", {"gated_mlp": 1}, "--gated-mlp"),
        ("Llama-3.1-8B", {"depth": 3}, "depth"),
        ("DeepSeek-V3", {"head_dim": 64}, "latent attention"),
    ],
)
def test_contradictions_are_one_line(name: str, given: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        apply_overrides(load_model(name).spec, **given)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_overrides_of_a_stated_count_keep_the_count() -> None:
    assert count(apply_overrides(from_params(7_000_000_000), layers=16).spec) == 7_000_000_000


sizes = st.fixed_dictionaries(
    {},
    optional={
        "layers": st.integers(-1, 200),
        "hidden": st.integers(-1, 20_000),
        "heads": st.integers(-1, 200),
        "kv_heads": st.integers(-1, 64),
        "head_dim": st.integers(-1, 256),
        "ffn_hidden": st.integers(-1, 50_000),
        "vocab": st.integers(-1, 300_000),
        "gated_mlp": st.booleans(),
        "tie_embeddings": st.booleans(),
        "experts": st.integers(-1, 300),
        "top_k": st.integers(-1, 20),
        "moe_ffn_hidden": st.integers(-1, 5_000),
        "shared_experts": st.integers(-1, 4),
    },
)


@given(sizes, st.sampled_from([None, *preset_names()]))
def test_any_overrides_give_a_model_or_one_line(given_sizes: dict[str, Any], name: str | None) -> None:
    spec = load_model(name).spec if name else None
    try:
        made = apply_overrides(spec, **given_sizes)
    except InputError as error:
        one_line(error)
        return
    for option, value in given_sizes.items():
        assert made.origin[option] == "given"
        field = {"tie_embeddings": "tied_embeddings"}.get(option, option)
        if option != "shared_experts" and not (option != "experts" and made.spec.experts == 0 and option in _EXPERT):
            assert getattr(made.spec, field) == value
    counts = parameter_counts(made.spec.lower())
    assert 0 < counts.active <= counts.main


_EXPERT = ("top_k", "moe_ffn_hidden", "shared_experts")


def test_a_named_model_loads_without_heavy_libraries() -> None:
    code = (
        "import sys; from dscalc.specs.model import load_model; load_model('llama-3.1-8b');"
        "bad = {'pandas', 'rich', 'scipy', 'dscalc.specs.huggingface'} & set(sys.modules); assert not bad, bad"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
