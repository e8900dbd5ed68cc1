"""Hugging Face configurations: exact counts of reference classes and published files, and refusals in one line."""

from __future__ import annotations

import copy
import csv
import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dscalc.cost.inventory import parameter_counts
from dscalc.errors import ConfigError
from dscalc.specs.config_reader import MAX_FILE_BYTES, parse_config, read_config
from dscalc.specs.huggingface import FAMILIES, count_config, family_defaults, known_families, spec_from_config
from dscalc.specs.model import load_model

EVIDENCE = Path(__file__).parents[1] / "evidence" / "parameter_counts.csv"
HYBRIDS = {"Qwen3-Next-80B-A3B": "linear-attention", "gemma-4-26B-A4B": "head size"}

LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 500,
    "tie_word_embeddings": False,
}


def evidence() -> list[dict[str, str]]:
    with EVIDENCE.open(encoding="utf-8", newline="") as handle:
        return list(csv.DictReader(handle))


def main_count(config: dict[str, Any]) -> int:
    return parameter_counts(spec_from_config(config, "config.json")[0].lower()).main


def one_line(error: ConfigError) -> None:
    assert "\n" not in str(error)


def refusal(config: dict[str, Any]) -> str:
    with pytest.raises(ConfigError) as caught:
        spec_from_config(config, "config.json")
    assert "\n" not in str(caught.value)
    assert (caught.value.where or "").startswith("config.json")
    return caught.value.message


def test_evidence_is_broad() -> None:
    rows = evidence()
    real = {row["model"] for row in rows if not row["model"].startswith("small ")}
    assert len(real) >= 100
    families = {json.loads(row["config"])["model_type"] for row in rows}
    assert len(families) >= 80
    assert all(row["source"] for row in rows)


@pytest.mark.parametrize("row", evidence(), ids=lambda row: f"{row['model']}-{row['part']}".replace(" ", "-"))
def test_counts_equal_evidence_to_the_last_digit(row: dict[str, str]) -> None:
    spec, _ = spec_from_config(json.loads(row["config"]), row["model"])
    assert getattr(parameter_counts(spec.lower()), row["part"]) == int(row["expected"]), row["source"]


@pytest.mark.shared
def test_every_public_configuration_file(shared_data: Path) -> None:
    folder = shared_data / "hf_configs"
    checked = 0
    with (folder / "INDEX.csv").open(encoding="utf-8", newline="") as handle:
        for row in csv.DictReader(handle):
            path = folder / f"{row['name']}.json"
            if not path.exists():
                continue
            if row["name"] in HYBRIDS:
                with pytest.raises(ConfigError, match=f"{HYBRIDS[row['name']]}.*not modelled"):
                    load_model(str(path))
                continue
            counts = parameter_counts(load_model(str(path)).spec.lower())
            assert counts.main == int(row["exact_total_params"]), row["name"]
            if row["active_params"]:
                assert counts.active == int(row["active_params"]), row["name"]
            checked += 1
    assert checked == 73


def test_every_family_has_a_rule_and_names_itself() -> None:
    assert len(FAMILIES) >= 85
    assert set(family_defaults()) <= {*known_families(), "gpt_neox_japanese"}


def test_architecture_name_stands_in_for_model_type() -> None:
    without = {k: v for k, v in LLAMA.items() if k != "model_type"}
    assert main_count(without) == main_count(LLAMA)


def test_what_a_file_leaves_out_is_named_as_assumed() -> None:
    counted = count_config({"model_type": "mistral", **{k: v for k, v in LLAMA.items() if "kv" not in k}}, "x")
    assert counted.assumed == {}
    shorter = {k: v for k, v in LLAMA.items() if k not in ("num_key_value_heads",)} | {"model_type": "mistral"}
    shorter |= {"num_attention_heads": 8, "architectures": None}
    assert count_config(shorter, "x").assumed["num_key_value_heads"] == 8


def test_explicit_null_is_not_a_missing_key() -> None:
    """Mistral's class default is 8 key/value heads; null in a file means one per head."""
    config = LLAMA | {"model_type": "mistral", "num_attention_heads": 16, "num_key_value_heads": None}
    assert spec_from_config(config, "x")[0].kv_heads == 16


def test_nested_text_configuration_takes_class_defaults() -> None:
    """A published wrapper file states only what differs from the class."""
    wrapper = {
        "model_type": "gemma3",
        "text_config": {
            "model_type": "gemma3_text",
            "hidden_size": 2560,
            "intermediate_size": 10240,
            "num_hidden_layers": 34,
        },
    }
    counted = count_config(wrapper, "x")
    assert parameter_counts(counted.spec.lower()).main == 3_880_263_168
    assert {"num_attention_heads", "vocab_size", "head_dim"} <= set(counted.assumed)


def test_outer_file_must_state_its_sizes() -> None:
    for key in ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size"):
        assert repr(key) in refusal({k: v for k, v in LLAMA.items() if k != key})


def test_tied_embeddings_of_a_wrapper_reach_the_text_model() -> None:
    text = {k: v for k, v in LLAMA.items() if k != "tie_word_embeddings"}
    tied = main_count({"model_type": "llava", "tie_word_embeddings": True, "text_config": text})
    assert main_count(LLAMA) - tied == 500 * 64


def test_uncounted_towers_are_said() -> None:
    tower = {"model_type": "siglip_vision_model"}
    _, warnings = spec_from_config({"model_type": "llava", "text_config": LLAMA, "vision_config": tower}, "x")
    assert any("vision_config" in warning for warning in warnings)


def test_unknown_plain_decoder_is_counted_with_a_warning() -> None:
    spec, warnings = spec_from_config(LLAMA | {"model_type": "newcomer", "architectures": None}, "x")
    assert parameter_counts(spec.lower()).main == main_count(LLAMA)
    assert "'newcomer'" in warnings[0]
    assert "Llama-like" in warnings[0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model_type": "newcomer", "num_experts": 8}, "expert layout"),
        ({"model_type": "newcomer", "mamba_expand": 2}, "mamba_expand"),
        ({"model_type": "newcomer", "intermediate_size": None}, "intermediate_size"),
        ({"model_type": "qwen3_next"}, "linear-attention layers"),
        ({"linear_num_key_heads": 4}, "linear-attention layers"),
        ({"model_type": "jamba"}, "state-space layers (mamba)"),
        ({"ssm_cfg": {"layer": "Mamba2"}}, "state-space layers (mamba)"),
        ({"layer_types": ["full_attention", "linear_attention", "full_attention"]}, "'linear_attention'"),
        ({"model_type": "t5"}, "encoder-decoder"),
        ({"is_encoder_decoder": True}, "encoder-decoder"),
        ({"model_type": "bert"}, "encoder models"),
        ({"add_cross_attention": True}, "cross-attention"),
        ({"model_type": "gemma3n"}, "not modelled"),
        ({"model_type": "openelm"}, "differ in width"),
        ({"block_configs": [{}]}, "differ in width"),
        ({"hidden_size_per_layer_input": 256}, "per-layer embeddings"),
    ],
)
def test_unmodelled_layers_are_refused_by_name(changes: dict[str, Any], words: str) -> None:
    assert words in refusal({**LLAMA, "architectures": None, **changes})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_hidden_layers", "32"),
        ("num_hidden_layers", True),
        ("num_hidden_layers", 32.5),
        ("num_hidden_layers", -3),
        ("num_hidden_layers", 0),
        ("num_hidden_layers", 1e30),
        ("num_hidden_layers", 10**30),
        ("num_hidden_layers", [3]),
        ("hidden_size", {"a": 1}),
        ("vocab_size", "many"),
        ("num_key_value_heads", 3),
        ("tie_word_embeddings", "false"),
        ("tie_word_embeddings", 0),
        ("attention_bias", 1),
        ("head_dim", -1),
        ("hidden_size", 65),
        ("model_type", 7),
        ("architectures", "LlamaForCausalLM"),
        ("layer_types", "full_attention"),
        ("text_config", []),
        ("text_config", "x"),
    ],
)
def test_wrong_values_are_one_clear_line(key: str, value: Any) -> None:
    config = {**LLAMA, key: value}
    if key == "architectures":
        config.pop("model_type")
    assert len(refusal(config)) < 300


BAD_FILES = {
    "list": b"[]",
    "number": b"7",
    "null": b"null",
    "empty": b"",
    "broken": b'{"a": ',
    "duplicate": b'{"hidden_size": 1, "hidden_size": 2}',
    "nan": b'{"hidden_size": NaN}',
    "infinity": b'{"hidden_size": -Infinity}',
    "latin1": b'{"name": "\xe9"}',
    "binary": bytes(range(256)),
    "deep": b"[" * 100_000 + b"]" * 100_000,
    "deep object": b'{"a":' * 60 + b"1" + b"}" * 60,
    "long number": b'{"hidden_size": ' + b"9" * 6000 + b"}",
}


@pytest.mark.parametrize("content", BAD_FILES.values(), ids=BAD_FILES.keys())
def test_bad_files_are_refused_in_one_line(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_model(str(path))
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_large_and_sparse_files_are_refused_before_reading(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with path.open("wb") as file:
        file.truncate(2_000_000_000)
    with pytest.raises(ConfigError, match="too large"):
        read_config(path)
    path.write_bytes(b" " * (MAX_FILE_BYTES + 1))
    with pytest.raises(ConfigError, match="too large"):
        read_config(path)


def test_missing_and_special_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_config(tmp_path)
    with pytest.raises(ConfigError, match="no such file"):
        read_config(tmp_path / "config.json")
    pipe = tmp_path / "pipe.json"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match="not a regular file"):
        read_config(pipe)


def test_a_byte_order_mark_is_no_error() -> None:
    assert parse_config(b'\xef\xbb\xbf{"a": 1}', "x") == {"a": 1}


GOOD = [json.loads(row["config"]) for row in evidence() if row["model"].startswith("small ")]
junk = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 50),
    st.sampled_from([10**9, 10**20, 10**40]),
    st.floats(allow_nan=True),
    st.text(max_size=5),
    st.lists(st.integers(0, 4), max_size=4),
    st.lists(st.text(max_size=3), max_size=4),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
)


@given(st.data())
def test_mutated_configurations_give_a_count_or_one_line(data: st.DataObject) -> None:
    config = copy.deepcopy(data.draw(st.sampled_from(GOOD)))
    keys = st.sampled_from(sorted(config))
    for key in data.draw(st.lists(keys, max_size=3)):
        config.pop(key, None)
    extra = ["moe_layer_freq", "mlp_layer_types", "layer_types", "vision_config", "text_config", "quantization_config"]
    for key in data.draw(st.lists(st.one_of(keys, st.sampled_from(extra)), max_size=3)):
        config[key] = data.draw(junk)
    try:
        spec, _ = spec_from_config(config, "config.json")
    except ConfigError as error:
        one_line(error)
        return
    counts = parameter_counts(spec.lower())
    assert 0 < counts.active <= counts.main
    assert spec_from_config(config, "config.json")[0] == spec


@given(st.binary(max_size=200))
def test_any_bytes_give_an_object_or_one_line(data: bytes) -> None:
    try:
        assert isinstance(parse_config(data, "config.json"), dict)
    except ConfigError as error:
        one_line(error)


@given(st.dictionaries(st.text(max_size=10), junk, max_size=6), st.sampled_from(sorted(known_families())))
def test_any_object_gives_a_count_or_one_line(config: dict[str, Any], family: str) -> None:
    with pytest.raises(ConfigError):
        spec_from_config({**config, "model_type": family, "vocab_size": None}, "config.json")
