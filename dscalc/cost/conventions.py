"""Model FLOP of a step under the conventions that papers and logs use, always by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dscalc.cost.inventory import parameter_counts
from dscalc.frozen import dataclass
from dscalc.records import Array, Layouts, ModelShape


@dataclass(frozen=True, slots=True)
class Convention:
    """One way to count: FLOP of a token at a sequence length, and what it counts in words."""

    name: str
    per_token: Callable[[ModelShape, Array], Array]
    words: str
    source: str


def _attention(shape: ModelShape, seq_len: Array, full: float) -> Array:
    """Products of the attention core, forward and backward: 12 L a d_k s with ``full`` 12."""
    width = shape.heads * (shape.head_dim + shape.value_head_dim) / 2.0
    return np.asarray(full * shape.layers * width * seq_len)


def _active(shape: ModelShape) -> float:
    return float(parameter_counts(shape).active)


def _palm(shape: ModelShape, seq_len: Array) -> Array:
    return 6.0 * _active(shape) + _attention(shape, seq_len, 12.0)


def _six_n(shape: ModelShape, seq_len: Array) -> Array:
    return 6.0 * _active(shape) + 0.0 * seq_len


def _gpt(factor: float, head: float) -> Callable[[ModelShape, Array], Array]:
    """factor L h^2 (1 + s/6h + V/(head L h)) a token."""

    def per_token(shape: ModelShape, seq_len: Array) -> Array:
        h = float(shape.hidden)
        return np.asarray(
            factor * shape.layers * h * h * (1.0 + seq_len / (6.0 * h) + shape.vocab / (head * shape.layers * h))
        )

    return per_token


def _core(shape: ModelShape, seq_len: Array) -> Array:
    embedding = float(shape.vocab * (shape.embedding_width or shape.hidden)) * (0.0 if shape.tied_embeddings else 1.0)
    return 6.0 * (_active(shape) - embedding) + _attention(shape, seq_len, 6.0)


CONVENTIONS: tuple[Convention, ...] = (
    Convention(
        "palm", _palm, "6 N + 12 L a d_k s a token, N all stored (active) parameters", "[Chowdhery2022] appendix B"
    ),
    Convention("6n", _six_n, "6 N a token", "[Kaplan2020] section 2.1"),
    Convention(
        "megatron-2021",
        _gpt(96.0, 16.0),
        "96 L h^2 (1 + s/6h + V/16Lh) a token, full recompute counted",
        "[Narayanan2021] appendix",
    ),
    Convention(
        "megatron-2022", _gpt(72.0, 12.0), "72 L h^2 (1 + s/6h + V/12Lh) a token", "[Korthikanti2022] appendix A"
    ),
    Convention(
        "megatron-core",
        _core,
        "6 N without the input embedding + 6 L a d_k s a token, causal",
        "[MegatronLM] training.py",
    ),
)
NAMES = tuple(convention.name for convention in CONVENTIONS)


def model_flop(convention: str, shape: ModelShape, layouts: Layouts) -> Array:
    """Model FLOP of one GPU in a step: all tokens of the step, over all GPUs.

    Args:
        convention: one of ``NAMES``.
        shape [elements, (1,)]: the model.
        layouts [degrees, (n,)]: the layout columns.

    Returns:
        FLOP of a step and GPU [FLOP, (n,)].

    Raises:
        StopIteration: no such convention.

    References:
        [Chowdhery2022] appendix B, [Narayanan2021], [Korthikanti2022] appendix A.
    """
    found = next(c for c in CONVENTIONS if c.name == convention)
    tokens = layouts.seq_len * layouts.micro_batch * layouts.n_micro / (layouts.tp * layouts.cp * layouts.pp)
    return np.asarray(found.per_token(shape, layouts.seq_len) * tokens)
