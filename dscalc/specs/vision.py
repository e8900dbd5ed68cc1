"""Parameters of vision towers and their projectors, where the configuration decides them.

Rules are keyed by the wrapper's ``model_type`` and get the wrapper, its ``vision_config`` and the language model.
"""

from __future__ import annotations

from collections.abc import Callable

from dscalc.specs.config_reader import Reader
from dscalc.specs.shape import ModelSpec

TOWERS = ("vision_config", "audio_config", "visual", "vision_tower_config", "mm_vision_tower", "embd_layer")
VisionRule = Callable[[Reader, Reader, ModelSpec], int | None]


def vision_parameters(outer: Reader, spec: ModelSpec) -> tuple[int, tuple[str, ...]]:
    """Parameters of the vision tower and projector [parameters], and a note for each tower left out."""
    rule = RULES.get(outer.text("model_type"))
    vision = outer.nested("vision_config") if rule is not None else None
    count = rule(outer, vision, spec) if rule is not None and vision is not None else None
    left_out = [key for key in TOWERS if outer.config.get(key) and not (key == "vision_config" and count is not None)]
    notes = tuple(f"{key}: not counted; the numbers are those of the language model alone" for key in left_out)
    return count or 0, notes


def _attention(hidden: int, *, bias: bool = True) -> int:
    return 4 * hidden * hidden + (4 * hidden if bias else 0)


def _mlp(hidden: int, width: int, *, gated: bool = False, bias: bool = True) -> int:
    matrices = 3 if gated else 2
    return matrices * hidden * width + ((matrices - 1) * width + hidden if bias else 0)


def _block(hidden: int, width: int) -> int:
    """One encoder layer with biases and two LayerNorms."""
    return _attention(hidden) + _mlp(hidden, width) + 4 * hidden


def _sizes(
    v: Reader, *, hidden: int, layers: int, width: int, patch: int = 1, image: int = 1
) -> tuple[int, int, int, int, int]:
    return (
        v.count("hidden_size", default=hidden, minimum=1),
        v.count("num_hidden_layers", "depth", default=layers, minimum=1),
        v.count("intermediate_size", default=width, minimum=1),
        v.count("patch_size", default=patch, minimum=1),
        v.count("image_size", default=image, minimum=1),
    )


def _siglip(v: Reader) -> tuple[int, int]:
    """Parameters of a SigLIP tower and its width."""
    hidden, layers, width, patch, image = _sizes(v, hidden=768, layers=12, width=3072, patch=16, image=224)
    tower = 3 * patch * patch * hidden + hidden + (image // patch) ** 2 * hidden
    tower += layers * _block(hidden, width) + 2 * hidden
    if v.flag("vision_use_head", default=True):  # pooling by attention to one learned query
        tower += hidden + _attention(hidden) + 2 * hidden + _mlp(hidden, width)
    return tower, hidden


def gemma3_vision(_: Reader, v: Reader, spec: ModelSpec) -> int:
    """SigLIP, then an RMSNorm and a projection to the language model's width."""
    tower, hidden = _siglip(v)
    return tower + hidden * spec.hidden + hidden


def paligemma_vision(outer: Reader, v: Reader, _: ModelSpec) -> int:
    """SigLIP and a projection with bias."""
    tower, hidden = _siglip(v)
    out = v.count("projection_dim", minimum=1) or outer.count("projection_dim", default=2048, minimum=1)
    return tower + hidden * out + out


def llama4_vision(_: Reader, v: Reader, spec: ModelSpec) -> int:
    """Class and position embeddings, encoder, pixel-shuffle adapter and projection."""
    hidden, layers, width, patch, image = _sizes(v, hidden=768, layers=34, width=5632, patch=14, image=448)
    inner = v.count("projector_input_dim", default=4096, minimum=1)
    out = v.count("projector_output_dim", default=4096, minimum=1)
    last = v.count("vision_output_dim", default=7680, minimum=1)
    embeddings = 3 * patch * patch * hidden + hidden + ((image // patch) ** 2 + 1) * hidden
    adapter = width * inner + inner * out
    return embeddings + layers * _block(hidden, width) + 4 * hidden + adapter + last * spec.hidden


def llava_vision(outer: Reader, v: Reader, spec: ModelSpec) -> int | None:
    """A CLIP or Pixtral tower and a projector of two layers; other towers are not counted."""
    kind = v.text("model_type", "clip_vision_model")
    if kind == "pixtral":
        tower, hidden = _pixtral(v)
    elif kind == "clip_vision_model":
        hidden, layers, width, patch, image = _sizes(v, hidden=1024, layers=24, width=4096, patch=14, image=336)
        embeddings = hidden + 3 * patch * patch * hidden + ((image // patch) ** 2 + 1) * hidden
        tower = embeddings + layers * _block(hidden, width) + 4 * hidden
    else:
        return None
    out, bias = spec.hidden, outer.flag("multimodal_projector_bias", default=True)
    projector = hidden * out + out * out + (2 * out if bias else 0)
    newline = out if outer.text("model_type").startswith("llava_next") else 0
    return tower + projector + newline


def _pixtral(v: Reader) -> tuple[int, int]:
    """Parameters of a Pixtral tower (RMSNorm, gated MLP, no biases) and its width."""
    hidden, layers, width, patch, _ = _sizes(v, hidden=1024, layers=24, width=4096, patch=14, image=1540)
    block = _attention(hidden, bias=False) + _mlp(hidden, width, gated=True, bias=False) + 2 * hidden
    return 3 * patch * patch * hidden + hidden + layers * block, hidden


def mistral3_vision(outer: Reader, v: Reader, spec: ModelSpec) -> int:
    """A Pixtral tower, patch merging and a projector of two layers."""
    tower, hidden = _pixtral(v)
    merge, out = outer.count("spatial_merge_size", default=2, minimum=1), spec.hidden
    bias = outer.flag("multimodal_projector_bias")
    projector = hidden + merge * merge * hidden * hidden + hidden * out + out * out + (2 * out if bias else 0)
    return tower + projector


def _merger(hidden: int, merge: int, out: int, norm: int) -> int:
    """A norm and two layers over the features of merge x merge patches."""
    joined = merge * merge * hidden
    return norm + joined * joined + joined + joined * out + out


def _qwen_patches(v: Reader, hidden: int, patch: int) -> int:
    size = v.count("patch_size", default=patch, minimum=1)
    frames = v.count("temporal_patch_size", default=2, minimum=1)
    return v.count("in_channels", "in_chans", default=3, minimum=1) * frames * size * size * hidden


def qwen2_vision(_: Reader, v: Reader, __: ModelSpec) -> int:
    """LayerNorm blocks; here ``hidden_size`` is the output width."""
    hidden = v.count("embed_dim", default=1280, minimum=1)
    width = v.count("mlp_ratio", default=4, minimum=1) * hidden
    out = v.count("hidden_size", default=3584, minimum=1)
    blocks = v.count("depth", default=32, minimum=1) * _block(hidden, width)
    merge = v.count("spatial_merge_size", default=2, minimum=1)
    return _qwen_patches(v, hidden, 14) + blocks + _merger(hidden, merge, out, 2 * hidden)


def qwen25_vision(_: Reader, v: Reader, __: ModelSpec) -> int:
    """RMSNorm blocks with a gated MLP, all with biases."""
    hidden, layers, width = _sizes(v, hidden=3584, layers=32, width=3420)[:3]
    block = _attention(hidden) + _mlp(hidden, width, gated=True) + 2 * hidden
    out = v.count("out_hidden_size", default=3584, minimum=1)
    merge = v.count("spatial_merge_size", default=2, minimum=1)
    return _qwen_patches(v, hidden, 14) + layers * block + _merger(hidden, merge, out, hidden)


def qwen3_vision(_: Reader, v: Reader, __: ModelSpec) -> int:
    """LayerNorm blocks, learned positions, and one more merger for each layer that feeds the language model early."""
    hidden, layers, width = _sizes(v, hidden=1152, layers=27, width=4304)[:3]
    out = v.count("out_hidden_size", default=3584, minimum=1)
    merge = v.count("spatial_merge_size", default=2, minimum=1)
    positions = v.count("num_position_embeddings", default=2304, minimum=1) * hidden
    listed = v.listed("deepstack_visual_indexes", int)
    early = 3 if listed is None else len(listed)
    mergers = _merger(hidden, merge, out, 2 * hidden)
    mergers += early * _merger(hidden, merge, out, 2 * merge * merge * hidden)
    return _qwen_patches(v, hidden, 16) + hidden + positions + layers * _block(hidden, width) + mergers


RULES: dict[str, VisionRule] = {
    "gemma3": gemma3_vision,
    "paligemma": paligemma_vision,
    "llama4": llama4_vision,
    "llava": llava_vision,
    "llava_next": llava_vision,
    "llava_next_video": llava_vision,
    "mistral3": mistral3_vision,
    "qwen2_vl": qwen2_vision,
    "qwen2_5_vl": qwen25_vision,
    "qwen3_vl": qwen3_vision,
    "qwen3_vl_moe": qwen3_vision,
}
