"""Parameters of vision towers and their projectors, where the configuration decides them."""

from __future__ import annotations

from dscalc.specs.config_reader import Reader
from dscalc.specs.shape import ModelSpec

OTHER_TOWERS = ("vision_config", "audio_config", "visual", "vision_tower_config", "mm_vision_tower", "embd_layer")


def vision_parameters(outer: Reader, spec: ModelSpec) -> tuple[int, tuple[str, ...]]:
    """Parameters of the vision tower and projector [parameters], and a note for each tower left out."""
    kind = outer.text("model_type")
    rule = {"gemma3": gemma3_vision, "llama4": llama4_vision}.get(kind)
    if rule is not None:
        vision = outer.nested("vision_config")
        return (0, ()) if vision is None else (rule(vision, spec), ())
    left_out = [key for key in OTHER_TOWERS if outer.config.get(key)]
    return 0, tuple(
        f"{key}: this tower is not counted; the numbers are those of the language model" for key in left_out
    )


def _block(hidden: int, width: int) -> int:
    """One encoder layer with biases and two LayerNorms."""
    attention = 4 * (hidden * hidden + hidden)
    mlp = hidden * width + width + width * hidden + hidden
    return attention + mlp + 4 * hidden


def gemma3_vision(v: Reader, spec: ModelSpec) -> int:
    """SigLIP without pooling head, then an RMSNorm and a projection to the language model's width."""
    hidden = v.count("hidden_size", default=768, minimum=1)
    layers = v.count("num_hidden_layers", default=12, minimum=1)
    width = v.count("intermediate_size", default=3072, minimum=1)
    patch, image = v.count("patch_size", default=16, minimum=1), v.count("image_size", default=224, minimum=1)
    patches = 3 * patch * patch * hidden + hidden
    positions = (image // patch) ** 2 * hidden
    head = v.flag("vision_use_head", default=True)
    tower = patches + positions + layers * _block(hidden, width) + 2 * hidden
    if head:  # pooling by attention to one learned query
        tower += hidden + 4 * (hidden * hidden + hidden) + 2 * hidden + 2 * hidden * width + width + hidden
    return tower + hidden * spec.hidden + hidden


def llama4_vision(v: Reader, spec: ModelSpec) -> int:
    """Llama 4's tower with class and position embeddings, pixel-shuffle adapter and projection."""
    hidden = v.count("hidden_size", default=768, minimum=1)
    layers = v.count("num_hidden_layers", default=34, minimum=1)
    width = v.count("intermediate_size", default=5632, minimum=1)
    patch, image = v.count("patch_size", default=14, minimum=1), v.count("image_size", default=448, minimum=1)
    inner = v.count("projector_input_dim", default=4096, minimum=1)
    out = v.count("projector_output_dim", default=4096, minimum=1)
    last = v.count("vision_output_dim", default=7680, minimum=1)
    embeddings = 3 * patch * patch * hidden + hidden + ((image // patch) ** 2 + 1) * hidden
    adapter = width * inner + inner * out
    return embeddings + layers * _block(hidden, width) + 4 * hidden + adapter + last * spec.hidden
