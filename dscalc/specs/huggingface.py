"""Hugging Face ``config.json`` objects to model specifications: finds the family, refuses what is not modelled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from pydantic import ValidationError

from dscalc.errors import ConfigError
from dscalc.frozen import dataclass
from dscalc.specs.config_reader import Reader
from dscalc.specs.families import LLAMA_LIKE, Fields, Rule, llama
from dscalc.specs.families_gpt import GPT_LIKE
from dscalc.specs.families_latent import LATENT
from dscalc.specs.families_moe import MOE
from dscalc.specs.family_names import ARCHITECTURES, FLAT_WRAPPERS, RENAMED, TEXT_KEYS, WRAPPERS
from dscalc.specs.not_modelled import (
    ENCODER_DECODERS,
    ENCODERS,
    EXPERT_KEYS,
    LAYERS_KNOWN,
    NOT_MODELLED,
    NOT_MODELLED_IF_POSITIVE,
    NOT_MODELLED_TYPES,
    SUSPECT_PARTS,
)
from dscalc.specs.shape import ModelSpec
from dscalc.specs.vision import vision_parameters

FAMILIES: dict[str, Rule] = {**LLAMA_LIKE, **GPT_LIKE, **MOE, **LATENT}


@dataclass(frozen=True, slots=True)
class Counted:
    """A specification read from a file, with what had to be assumed and what to tell the user."""

    spec: ModelSpec
    family: str
    warnings: tuple[str, ...]
    assumed: Mapping[str, Any]


@cache
def family_defaults() -> dict[str, dict[str, Any]]:
    """Class defaults by family: what a configuration file may leave out."""
    text = files("dscalc.specs").joinpath("family_defaults.json").read_text(encoding="utf-8")
    loaded: dict[str, dict[str, Any]] = json.loads(text)
    return loaded


def spec_from_config(config: Mapping[str, Any], source: str) -> tuple[ModelSpec, tuple[str, ...]]:
    """A model specification and warnings from the object in a Hugging Face ``config.json``.

    Args:
        config: the object, as `dscalc.specs.config_reader.read_config` gives it.
        source: file name or other origin, for error messages and as the model's name.

    Raises:
        ConfigError: a key is missing or of the wrong type, or the model has layers without a counting rule.
    """
    counted = count_config(config, source)
    return counted.spec, counted.warnings


def count_config(config: Mapping[str, Any], source: str) -> Counted:
    """As `spec_from_config`, with the family found and the class defaults used."""
    if not isinstance(config, Mapping):
        raise ConfigError("expected a JSON object with the model's keys", where=source)
    outer = Reader(config, source)
    wrapper = _family_name(outer)
    _refuse_encoders(outer, wrapper)
    nested = next((key for key in TEXT_KEYS if config.get(key) is not None), "")
    if not nested:
        return _count_text(outer, RENAMED.get(wrapper, FLAT_WRAPPERS.get(wrapper, wrapper)), outer)
    inner = outer.nested(nested)
    if inner is None:  # cannot be: the key was found above
        outer.fail(f"key {nested!r} is empty")
    family = _family_name(inner)
    family = WRAPPERS.get(family, RENAMED.get(family, family)) or WRAPPERS.get(wrapper, "")
    return _count_text(inner, family, outer)


def _family_name(r: Reader) -> str:
    name = r.text("model_type")
    if name in FAMILIES or name in RENAMED:
        return name
    for architecture in r.listed("architectures", str) or ():
        if architecture in ARCHITECTURES and (not name or name not in WRAPPERS):
            return ARCHITECTURES[architecture]
    return name


def _refuse_encoders(r: Reader, family: str) -> None:
    if r.config.get("is_encoder_decoder") is True or family in ENCODER_DECODERS or r.given("encoder", "decoder"):
        r.fail(f"encoder-decoder models ({family or 'is_encoder_decoder'}) are not modelled; decoder-only ones are")
    if family in ENCODERS:
        r.fail(f"encoder models ({family}) are not modelled; decoder-only ones are")
    if r.config.get("add_cross_attention") is True:
        r.fail("cross-attention layers are not modelled")


def _refuse_unmodelled(r: Reader, family: str) -> None:
    if family in NOT_MODELLED_TYPES:
        r.fail(f"{NOT_MODELLED_TYPES[family]} are not modelled (model_type {family!r})")
    for key, what in NOT_MODELLED.items():
        if r.config.get(key) in (None, False) or (family == "granitemoehybrid" and key.startswith("mamba")):
            continue
        r.fail(f"{what} are not modelled (key {key!r})")
    for key, what in NOT_MODELLED_IF_POSITIVE.items():
        value = r.config.get(key)
        if isinstance(value, int) and value > 0:
            r.fail(f"{what} are not modelled (key {key!r})")
    for key in ("layer_types", "layers_block_type"):
        if family == "granitemoehybrid":
            break
        for kind in r.listed(key, str) or ():
            if kind not in LAYERS_KNOWN:
                r.fail(f"layers of kind {kind!r} (key {key!r}) are not modelled")


def _count_text(r: Reader, family: str, outer: Reader) -> Counted:
    """Count the language model; ``outer`` is the wrapper around it, or the same reader."""
    _refuse_encoders(r, family)
    _refuse_unmodelled(r, family)
    rule = FAMILIES.get(family)
    strict = r is outer
    reader = Reader(_with_outer_tie(r, outer), r.where, family_defaults().get(family), strict=strict)
    if rule is None:
        rule = _unknown(reader, family)
    spec = _build(reader, rule, outer.where)
    vision, notes = vision_parameters(outer, spec)
    warnings = (*reader.warnings, *notes)
    if vision:
        spec = spec.with_changes(vision_params=vision)
    return Counted(spec, family, warnings, dict(reader.assumed))


def _with_outer_tie(r: Reader, outer: Reader) -> Mapping[str, Any]:
    """The text object, with the wrapper's statement on tied embeddings where it makes none itself."""
    key = "tie_word_embeddings"
    if r is outer or r.config.get(key) is not None or outer.config.get(key) is None:
        return r.config
    return {**r.config, key: outer.config[key]}


def _build(r: Reader, rule: Rule, name: str) -> ModelSpec:
    fields: Fields = rule(r)
    try:
        return ModelSpec(name=name[:300] or "model", **{"ffn_hidden": 0, **fields})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        message = first["msg"].removeprefix("Value error, ")
        r.fail(f"{field}: {message}" if field else message)


def _unknown(r: Reader, family: str) -> Rule:
    """An architecture nobody listed: a Llama-like reading where the keys are a plain decoder's, else a refusal."""
    name = repr(family) if family else "without model_type"
    for key in EXPERT_KEYS:
        if r.config.get(key) not in (None, 0, 1):
            r.fail(f"unknown architecture {name} with experts (key {key!r}): its expert layout is not modelled")
    for key in r.config:
        if r.config[key] not in (None, False, 0) and any(part in key for part in SUSPECT_PARTS):
            r.fail(f"unknown architecture {name} with key {key!r}: such layers are not modelled")
    needed = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size")
    absent = [key for key in needed if not r.given(key)]
    if absent:
        r.fail(f"unknown architecture {name}, and keys of a plain decoder are missing: {', '.join(absent)}")
    r.warnings.append(
        f"architecture {name} is not known: counted as Llama-like (gated MLP, two RMSNorms a layer and one at the end, "
        "rotary positions, biases and tied embeddings only where the file says so)"
    )
    return llama


def known_families() -> tuple[str, ...]:
    """Every ``model_type`` that has a counting rule."""
    return tuple(sorted({*FAMILIES, *FLAT_WRAPPERS, *WRAPPERS, *RENAMED}))
