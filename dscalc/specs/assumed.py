"""Models of which little is known: a shape for a parameter count, and sizes given one by one."""

from __future__ import annotations

from typing import Any

from dscalc.errors import InputError
from dscalc.frozen import dataclass
from dscalc.specs.shape import MAX_LAYERS, MAX_PARAMS, ModelSpec

HEAD_DIM = 128
DEFAULT_VOCAB = 32_000
# Documented defaults where sizes are given one by one: a Llama-2-like layer.
FFN_MULTIPLE = 256
FAMILY_TOLERANCE = 0.06  # how far a stated count may lie from a known model's and still take its shape
MIN_PARAMS = 1000  # the narrowest assumed shape counts fewer


@dataclass(frozen=True, slots=True)
class _Known:
    name: str
    nominal: int  # parameters the model is named after
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    ffn_hidden: int
    vocab: int
    tied: bool = False


# Dense models that people mean by "a 7B model": name, parameters, layers, hidden, heads, kv heads, MLP, vocabulary.
KNOWN = (
    _Known("Llama-3.2-1B", 1_235_814_400, 16, 2048, 32, 8, 8192, 128_256, True),
    _Known("Llama-3.2-3B", 3_212_749_824, 28, 3072, 24, 8, 8192, 128_256, True),
    _Known("Llama-2-7B", 6_738_415_616, 32, 4096, 32, 32, 11008, 32_000),
    _Known("Llama-3-8B", 8_030_261_248, 32, 4096, 32, 8, 14336, 128_256),
    _Known("Llama-2-13B", 13_015_864_320, 40, 5120, 40, 40, 13824, 32_000),
    _Known("Llama-30B", 32_528_943_616, 60, 6656, 52, 52, 17920, 32_000),
    _Known("Llama-65B", 65_285_660_672, 80, 8192, 64, 64, 22016, 32_000),
    _Known("Llama-2-70B", 68_976_648_192, 80, 8192, 64, 8, 28672, 32_000),
    _Known("Llama-3.1-405B", 405_853_388_800, 126, 16384, 128, 8, 53248, 128_256),
)


def from_params(params: int) -> ModelSpec:
    """A model of which only the number of parameters is known.

    The count stays exactly as given (``stated_params``); the shape only serves activations, FLOPs and the split over
    ranks. A known model of nearly that size lends its shape; otherwise hidden/layers is near 128, hidden a multiple of
    128, heads of 128 features, the MLP gated and 8/3 as wide.

    Args:
        params: number of parameters [parameters], from 1000 to 10^18.

    Raises:
        InputError: not a whole number in that range.
    """
    if isinstance(params, bool) or not isinstance(params, int) or not MIN_PARAMS <= params <= MAX_PARAMS:
        raise InputError(f"must be a whole number of parameters from {MIN_PARAMS} to {MAX_PARAMS}", where="--params")
    near = min(KNOWN, key=lambda known: abs(known.nominal - params))
    if abs(near.nominal - params) <= FAMILY_TOLERANCE * near.nominal:
        return _like(near, params)
    layers, hidden, heads, vocab = _scaled(params)
    return _assumed(
        f"assumed shape: {layers} layers x {hidden}",
        params,
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=heads,
        ffn_hidden=_gated_width(hidden),
        vocab=vocab,
    )


def _like(known: _Known, params: int) -> ModelSpec:
    return _assumed(
        f"assumed shape: {known.name}-like, {known.layers} layers x {known.hidden}",
        params,
        layers=known.layers,
        hidden=known.hidden,
        heads=known.heads,
        kv_heads=known.kv_heads,
        ffn_hidden=known.ffn_hidden,
        vocab=known.vocab,
        tied=known.tied,
    )


def _assumed(name: str, params: int, *, tied: bool = False, **sizes: int) -> ModelSpec:
    head_dim = sizes["hidden"] // sizes["heads"]
    values = {"head_dim": head_dim, "value_head_dim": head_dim, "stated_params": params, "tied_embeddings": tied}
    return ModelSpec.trusted({"name": name, **values, **sizes})


def _gated_width(hidden: int) -> int:
    """8/3 of the width, rounded up to a multiple of 256 (of 4 below that), as Llama chooses it."""
    multiple = FFN_MULTIPLE if hidden >= FFN_MULTIPLE else 4
    exact = 8 * hidden // 3
    return -(-exact // multiple) * multiple


WIDTHS = (
    *(4, 8, 16, 32, 64),
    *range(HEAD_DIM, 8 * HEAD_DIM, HEAD_DIM),
    *range(8 * HEAD_DIM, 32 * HEAD_DIM, 4 * HEAD_DIM),
    *range(32 * HEAD_DIM, 16_000 * HEAD_DIM, 8 * HEAD_DIM),
)


def _count(layers: int, hidden: int, vocab: int) -> int:
    """Approximate parameters of the assumed layer: attention, gated MLP, two embedding matrices [parameters]."""
    return layers * (4 * hidden * hidden + 3 * hidden * _gated_width(hidden)) + 2 * vocab * hidden


def _scaled(params: int) -> tuple[int, int, int, int]:
    """Layers, hidden, heads and vocabulary of about ``params`` parameters; wide models divide over 8 ranks."""
    hidden = WIDTHS[0]
    for width in WIDTHS:
        if _count(max(1, width // HEAD_DIM), width, vocabulary(width)) > params:
            break
        hidden = width
    vocab = vocabulary(hidden)
    layers = max(1, (params - 2 * vocab * hidden) // _count(1, hidden, 0))
    multiple = 8 if layers >= 64 else 4 if layers >= 16 else 2 if layers >= 4 else 1
    layers = max(multiple, multiple * round(layers / multiple))
    return layers, hidden, max(1, hidden // HEAD_DIM), vocab


def vocabulary(hidden: int) -> int:
    """The whole vocabulary from width 512; smaller models keep the table in proportion."""
    return DEFAULT_VOCAB if hidden >= 4 * HEAD_DIM else max(1, 16 * hidden)


@dataclass(frozen=True, slots=True)
class Overridden:
    """A model after sizes were given one by one, and where each of them came from."""

    spec: ModelSpec
    origin: dict[str, str]  # option name: given | derived | default


OPTIONS = {
    "layers": "layers",
    "hidden": "hidden",
    "heads": "heads",
    "kv_heads": "kv_heads",
    "head_dim": "head_dim",
    "ffn_hidden": "ffn_hidden",
    "vocab": "vocab",
    "gated_mlp": "gated_mlp",
    "tie_embeddings": "tied_embeddings",
    "experts": "experts",
    "top_k": "top_k",
    "moe_ffn_hidden": "moe_ffn_hidden",
    "shared_experts": "shared_ffn_hidden",
}


def apply_overrides(spec: ModelSpec | None, **given: int | bool | None) -> Overridden:
    """A model with some sizes replaced, or one made of given sizes alone (``spec`` None).

    Without a model ``layers``, ``hidden`` and ``heads`` suffice: kv_heads = heads, head_dim = hidden / heads, a gated
    MLP of 8/3 of the width (4 times where ungated), 32,000 vocabulary rows, untied embeddings, no experts. Changing
    ``hidden`` or ``heads`` of a model derives what follows from them unless given. ``shared_experts`` counts experts of
    ``moe_ffn_hidden``.

    Args:
        spec: the model to change, or None.
        given: `layers, hidden, heads, kv_heads, head_dim, ffn_hidden, vocab, gated_mlp, tie_embeddings, experts, top_k,
            moe_ffn_hidden, shared_experts`; None means not given.

    Raises:
        InputError: an unknown option, a size missing, or sizes that contradict each other.
    """
    unknown = sorted(set(given) - set(OPTIONS))
    if unknown:
        raise InputError(f"unknown model size {unknown[0]!r}; known: {', '.join(OPTIONS)}")
    values: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    for name, value in values.items():
        _check(name, value)
    if spec is not None and not values:
        return Overridden(spec, {})
    fields, origin = _from_nothing(values) if spec is None else _from_spec(spec, values)
    origin = dict.fromkeys(values, "given") | origin
    from pydantic import ValidationError  # costs more than an estimate, so only here

    try:
        return Overridden(ModelSpec.model_validate(fields), origin)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]) if first["loc"] else ""
        message = first["msg"].removeprefix("Value error, ")
        raise InputError(message, where=f"--{name.replace('_', '-')}" if name else "model sizes") from None


def _check(name: str, value: Any) -> None:
    option = f"--{name.replace('_', '-')}"
    if name in ("gated_mlp", "tie_embeddings"):
        if not isinstance(value, bool):
            raise InputError("must be true or false", where=option)
        return
    minimum = 0 if name in ("experts", "shared_experts") else 1
    if isinstance(value, bool) or not isinstance(value, int) or value < minimum:
        raise InputError(f"must be a whole number of at least {minimum}", where=option)
    if name == "layers" and value > MAX_LAYERS:  # before anything is built for each layer
        raise InputError(f"{value} is out of range; at most {MAX_LAYERS:,} layers are right", where=option)


def _head_dim(hidden: int, heads: int) -> int:
    if hidden % heads:
        raise InputError(
            f"hidden {hidden} is not a multiple of {heads} heads; give --head-dim or another number", where="--heads"
        )
    return hidden // heads


def _from_nothing(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    missing = [f"--{name}" for name in ("layers", "hidden", "heads") if name not in values]
    if missing:
        raise InputError(f"a model needs --params, --model, or sizes; missing {', '.join(missing)}")
    hidden, heads, gated = values["hidden"], values["heads"], values.get("gated_mlp", True)
    fields = {"name": f"given shape: {values['layers']} layers x {hidden}", "gated_mlp": True}
    defaults: dict[str, tuple[Any, str]] = {
        "kv_heads": (heads, "derived"),
        "ffn_hidden": (_gated_width(hidden) if gated else 4 * hidden, "derived"),
        "vocab": (DEFAULT_VOCAB, "default"),
        "gated_mlp": (True, "default"),
        "tie_embeddings": (False, "default"),
    }
    if "head_dim" not in values:
        defaults["head_dim"] = (_head_dim(hidden, heads), "derived")
    origin = {}
    for name, (value, kind) in defaults.items():
        if name not in values:
            values = {**values, name: value}
            origin[name] = kind
    fields |= {OPTIONS[name]: value for name, value in values.items() if name not in _EXPERT_OPTIONS}
    fields["value_head_dim"] = fields["head_dim"]
    expert_fields, expert_origin = _expert_fields(fields, values, None)
    return fields | expert_fields, origin | expert_origin


_EXPERT_OPTIONS = ("experts", "top_k", "moe_ffn_hidden", "shared_experts")


def _from_spec(spec: ModelSpec, values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    fields = spec.model_dump()
    origin: dict[str, str] = {}
    fields |= {OPTIONS[name]: value for name, value in values.items() if name not in _EXPERT_OPTIONS}
    if spec.mla and {"head_dim", "kv_heads"} & set(values):
        raise InputError("this model has latent attention; head_dim and kv_heads cannot be changed", where="--head-dim")
    heads_changed = fields["heads"] != spec.heads
    if heads_changed and "kv_heads" not in values:
        fields["kv_heads"] = _kept_groups(spec, fields["heads"])
        origin["kv_heads"] = "derived"
    if not spec.mla:
        _derive_head_dim(spec, values, fields, origin)
    if fields["hidden"] != spec.hidden and "ffn_hidden" not in values and spec.ffn_hidden:
        fields["ffn_hidden"] = max(1, spec.ffn_hidden * fields["hidden"] // spec.hidden)
        origin["ffn_hidden"] = "derived"
    if fields["layers"] != spec.layers and spec.moe_layer:
        fields["moe_layer"] = _stretched(spec.moe_layer, fields["layers"])
        origin["moe_layers"] = "derived"
    expert_fields, expert_origin = _expert_fields(fields, values, spec)
    fields |= expert_fields
    if set(values):  # another shape: a stated count or counted extras of the old one no longer hold
        fields |= {"vision_params": 0} if fields["hidden"] != spec.hidden else {}
        fields["name"] = f"{spec.name} with changed sizes"
    return fields, origin | expert_origin


def _kept_groups(spec: ModelSpec, heads: int) -> int:
    """Key/value heads after the number of heads changed: the same group size where it divides, else one per head."""
    group = spec.heads // spec.kv_heads
    if spec.kv_heads == 1:
        return 1
    return heads // group if heads % group == 0 else heads


def _derive_head_dim(spec: ModelSpec, values: dict[str, Any], fields: dict[str, Any], origin: dict[str, str]) -> None:
    changed = fields["heads"] != spec.heads or fields["hidden"] != spec.hidden
    if changed and "head_dim" not in values:
        fields["head_dim"] = _head_dim(fields["hidden"], fields["heads"])
        origin["head_dim"] = "derived"
    fields["value_head_dim"] = fields["head_dim"]
    for name, heads, old in (
        ("q_norm_elements", fields["heads"], spec.heads),
        ("k_norm_elements", fields["kv_heads"], spec.kv_heads),
    ):
        elements = getattr(spec, name)
        if elements == old * spec.head_dim:
            fields[name] = heads * fields["head_dim"]
        elif elements:
            fields[name] = elements // spec.head_dim * fields["head_dim"]


def _stretched(pattern: tuple[bool, ...], layers: int) -> tuple[bool, ...]:
    """The same start, then the pattern's second half repeated: dense-first and alternating models keep their manner."""
    if layers <= len(pattern):
        return pattern[:layers]
    tail = pattern[len(pattern) // 2 :]
    longer = list(pattern)
    while len(longer) < layers:
        longer.extend(tail)
    return tuple(longer[:layers])


def _expert_fields(
    fields: dict[str, Any], values: dict[str, Any], spec: ModelSpec | None
) -> tuple[dict[str, Any], dict[str, str]]:
    """The expert part: ``experts`` 0 removes it; given on a dense model it makes every layer an expert layer."""
    origin: dict[str, str] = {}
    had = spec is not None and any(spec.moe_layer)
    experts = values.get("experts", spec.experts if spec is not None and had else 0)
    chosen = [name for name in _EXPERT_OPTIONS if name in values]
    if not experts:
        others = [name for name in chosen if name != "experts" and values[name]]
        if others:
            raise InputError("needs --experts", where=f"--{others[0].replace('_', '-')}")
        if had and "experts" in values:
            if not fields["ffn_hidden"]:
                fields["ffn_hidden"] = fields["moe_ffn_hidden"]
            return {**_no_experts(), "ffn_hidden": fields["ffn_hidden"]}, origin
        return {}, origin
    width = values.get("moe_ffn_hidden", spec.moe_ffn_hidden if spec is not None and had else 0)
    if not width:
        width = fields["ffn_hidden"]
        origin["moe_ffn_hidden"] = "derived"
    top_k = values.get("top_k", spec.top_k if spec is not None and had else 0)
    if not top_k or ("top_k" not in values and top_k > experts):
        top_k = min(2, experts)
        origin["top_k"] = "default"
    result: dict[str, Any] = {"experts": experts, "top_k": top_k, "moe_ffn_hidden": width}
    if "shared_experts" in values:
        result["shared_ffn_hidden"] = values["shared_experts"] * width
        if not values["shared_experts"]:
            result["shared_expert_gate"] = False
    if not had:
        result["moe_layer"] = (True,) * fields["layers"]
        origin["moe_layers"] = "default"
    return result, origin


def _no_experts() -> dict[str, Any]:
    return {
        "experts": 0,
        "top_k": 0,
        "moe_ffn_hidden": 0,
        "shared_ffn_hidden": 0,
        "shared_expert_gate": False,
        "router_bias": False,
        "router_correction": False,
        "expert_bias": False,
        "moe_layer": (),
    }
