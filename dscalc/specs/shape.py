"""The validated model specification, which lowers into the plain `ModelShape` record that the formulas read."""

from __future__ import annotations

from typing import Annotated, Literal

from dscalc.records import ModelShape, Tensor
from dscalc.specs.checked import Checked, Limit

# Limits far above any model known, so that a typing error cannot ask for more memory or time than a planner has.
MAX_LAYERS = 100_000
MAX_WIDTH = 100_000_000
MAX_HEADS = 1_000_000
MAX_VOCAB = 1_000_000_000
MAX_EXPERTS = 1_000_000
MAX_PARAMS = 10**18

Width = Annotated[int, Limit(strict=True, ge=1, le=MAX_WIDTH)]
OptionalWidth = Annotated[int, Limit(strict=True, ge=0, le=MAX_WIDTH)]
Heads = Annotated[int, Limit(strict=True, ge=1, le=MAX_HEADS)]
OptionalHeads = Annotated[int, Limit(strict=True, ge=0, le=MAX_HEADS)]
Layers = Annotated[int, Limit(strict=True, ge=1, le=MAX_LAYERS)]
OptionalLayers = Annotated[int, Limit(strict=True, ge=0, le=MAX_LAYERS)]
Experts = Annotated[int, Limit(strict=True, ge=0, le=MAX_EXPERTS)]
Vocab = Annotated[int, Limit(strict=True, ge=1, le=MAX_VOCAB)]
Positions = Annotated[int, Limit(strict=True, ge=0, le=MAX_VOCAB)]
Params = Annotated[int, Limit(strict=True, ge=0, le=MAX_PARAMS)]
Flag = Annotated[bool, Limit(strict=True)]


class ModelSpec(Checked):
    """Shape of one decoder-only transformer, checked; field meanings are those of `ModelShape`."""

    name: Annotated[str, Limit(min_length=1, max_length=300)]
    layers: Layers
    hidden: Width
    heads: Heads
    kv_heads: Heads
    head_dim: Width
    value_head_dim: Width
    ffn_hidden: OptionalWidth
    vocab: Vocab
    gated_mlp: Flag = True
    tied_embeddings: Flag = False
    learned_positions: Positions = 0
    norm: Literal["rms", "layer", "layer-no-bias", "none"] = "rms"
    norms_per_layer: Annotated[int, Limit(strict=True, ge=0, le=16)] = 2
    final_norm: Flag = True
    embedding_norm: Flag = False
    embedding_width: OptionalWidth = 0
    q_norm_elements: OptionalWidth = 0
    k_norm_elements: OptionalWidth = 0
    qkv_bias: Flag = False
    out_bias: Flag = False
    mlp_bias: Flag = False
    head_bias: Flag = False
    attention_sinks: Flag = False
    gated_attention: Flag = False
    mla: Flag = False
    q_lora_rank: OptionalWidth = 0
    kv_lora_rank: OptionalWidth = 0
    rope_head_dim: OptionalWidth = 0
    index_heads: OptionalHeads = 0
    index_head_dim: OptionalWidth = 0
    experts: Experts = 0
    top_k: Experts = 0
    moe_ffn_hidden: OptionalWidth = 0
    shared_ffn_hidden: OptionalWidth = 0
    shared_expert_gate: Flag = False
    router_bias: Flag = False
    router_correction: Flag = False
    expert_bias: Flag = False
    moe_layer: Annotated[tuple[bool, ...], Limit(max_length=MAX_LAYERS)] = ()
    mtp_layers: OptionalLayers = 0
    vision_params: Params = 0
    stated_params: Params = 0
    extra: Annotated[tuple[Tensor, ...], Limit(max_length=64)] = ()

    def consistent(self) -> None:
        """Sizes go together."""
        if self.heads % self.kv_heads:
            raise ValueError(f"heads {self.heads} must be a multiple of kv_heads {self.kv_heads}")
        if self.moe_layer and len(self.moe_layer) != self.layers:
            raise ValueError(f"moe_layer says {len(self.moe_layer)} layers, layers {self.layers}")
        if any(self.moe_layer):
            self._consistent_experts()
        elif self.experts:
            raise ValueError(f"{self.experts} experts, but no layer has them")
        if not all(self.moe_layer or (False,)) and not self.ffn_hidden:
            raise ValueError("ffn_hidden must be at least 1 where layers without experts exist")
        if self.mla:
            self._consistent_latent()
        elif self.index_heads:
            raise ValueError("a sparse-attention indexer needs multi-head latent attention")
        if bool(self.index_heads) != bool(self.index_head_dim):
            raise ValueError("index_heads and index_head_dim go together")

    def _consistent_experts(self) -> None:
        if not 1 <= self.top_k <= self.experts:
            raise ValueError(f"top_k {self.top_k} must lie between 1 and experts {self.experts}")
        if not self.moe_ffn_hidden:
            raise ValueError("moe_ffn_hidden must be at least 1 where layers have experts")

    def _consistent_latent(self) -> None:
        if not self.kv_lora_rank:
            raise ValueError("kv_lora_rank must be at least 1 for multi-head latent attention")
        if self.rope_head_dim >= self.head_dim:
            raise ValueError(f"rope_head_dim {self.rope_head_dim} must be below head_dim {self.head_dim}")

    def lower(self) -> ModelShape:
        """The plain record of the same shape."""
        return ModelShape(**self.model_dump())

    def with_changes(self, **changes: object) -> ModelSpec:
        """A copy with some fields replaced, checked again (``model_copy`` does not check)."""
        return ModelSpec.model_validate({**self.model_dump(), **changes})
