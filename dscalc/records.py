"""Plain frozen records that the formulas read. No validation here: ``specs`` validates once, at the edge."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Tensor:
    """One stored parameter tensor of a model (or all of its kind in one layer), as the inventory lists it.

    Attributes:
        name: path in the model, e.g. ``attention/q_proj``.
        part: what holds it: ``embedding`` (tokens, positions, embedding norm), ``layer`` (every layer), ``dense_mlp`` (layers
            without experts), ``moe_mlp`` (layers with experts), ``final`` (final norm), ``head``, ``mtp``, ``vision``.
        elements: stored elements in one instance of the part (one layer; all experts of that layer together).
        split: what divides it over ranks: ``tp`` (columns or rows over tensor parallelism), ``kv`` (over tensor parallelism up to
            the number of key/value heads, then replicated), ``vocab`` (vocabulary rows over tensor parallelism),
            ``expert`` (over ep * etp), ``replicated``.
        matrix: True for a 2-d weight of a linear layer (what Muon treats, NF4 quantises and LoRA adapts).
        rows, cols: output and input features of one matrix (0 where ``matrix`` is False).
        copies: how many matrices of that shape (experts), 1 otherwise.
        target: LoRA target name (``q_proj``, ``down_proj``, ...), empty where none.
    """

    name: str
    part: str
    elements: int
    split: str
    matrix: bool = False
    rows: int = 0
    cols: int = 0
    copies: int = 1
    target: str = ""


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Shape of a decoder-only transformer: every number that a parameter, activation or FLOP count needs.

    A layer is attention + MLP; ``moe_layer[i]`` says whether layer i has experts. Zeros mean "has none".
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int  # of query and key (for MLA: nope + rope)
    value_head_dim: int
    ffn_hidden: int  # of the dense MLP
    vocab: int  # rows stored (padded as the checkpoint pads)
    gated_mlp: bool = True
    tied_embeddings: bool = False
    learned_positions: int = 0  # rows of the learned position table
    # normalisation
    norm: str = "rms"  # rms (h elements) | layer (2h) | layer-no-bias (h) | none (0)
    norms_per_layer: int = 2
    final_norm: bool = True
    embedding_norm: bool = False
    q_norm_elements: int = 0
    k_norm_elements: int = 0
    # biases
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    head_bias: bool = False
    attention_sinks: bool = False
    # multi-head latent attention (q_lora_rank 0: queries are projected directly)
    mla: bool = False
    q_lora_rank: int = 0
    kv_lora_rank: int = 0
    rope_head_dim: int = 0
    # sparse-attention indexer (DeepSeek-V3.2)
    index_heads: int = 0
    index_head_dim: int = 0
    # mixture of experts
    experts: int = 0
    top_k: int = 0
    moe_ffn_hidden: int = 0
    shared_ffn_hidden: int = 0  # total width of the shared experts
    shared_expert_gate: bool = False
    router_bias: bool = False  # bias of the router's linear layer
    router_correction: bool = False  # stored load-balancing correction, one per expert
    expert_bias: bool = False
    moe_layer: tuple[bool, ...] = ()  # per layer; empty: no layer has experts
    # apart from the main model
    mtp_layers: int = 0
    vision_params: int = 0
    stated_params: int = 0  # given by the user (``--params``); 0: the inventory is the count
    extra: tuple[Tensor, ...] = field(default=())  # tensors no rule above produces, each named
