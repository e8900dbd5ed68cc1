"""Layouts, books and shapes from keywords, for tests of the formulas: one line where the library wants a record of
columns.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np

from dscalc import codes
from dscalc.cost import leaves
from dscalc.cost import memory as memory_module
from dscalc.cost.columns import rows as rows_of
from dscalc.cost.memory import Memory, memory
from dscalc.cost.moments import FIRST_MOMENT
from dscalc.records import Adapters, Books, Hardware, Layouts, ModelShape, StackTable
from dscalc.specs.stack import load_books
from dscalc.terms import in_one

Columns = np.ndarray[Any, np.dtype[np.float64]]

DEGREES: dict[str, float] = {
    "dp": 1,
    "dp_replicate": 1,
    "tp": 1,
    "pp": 1,
    "vpp": 1,
    "cp": 1,
    "ep": 1,
    "etp": 1,
    "zero": 0,
    "sequence_parallel": 0,
    "micro_batch": 1,
    "n_micro": 1,
    "seq_len": 4096,
    "recompute_layers": np.inf,
    "capacity_factor": 1,
    "reshard": 1,
    "no_sync": 0,
    "offload_optimizer": 0,
    "offload_parameters": 0,
    "offload_activations": 0,
    "optimizer_in_backward": 0,
}
CHOICES: dict[str, str] = {
    "schedule": "1f1b",
    "recompute": "none",
    "attention": "flash",
    "cp_comm": "ring",
    "rank_order": "tp-cp-dp-pp",
    "recipe": "bf16-mixed",
    "optimizer": "adamw",
    "loss": "eager",
    "stack": "generic",
}


def books(**features: Any) -> Books:
    """The shipped books with one stack, ``made-up``, that has the given features and no others.

    Tests of physics name the features they are about; the shipped stacks may change with every measurement.
    """
    given = {
        "norm_saved": 1,
        "mlp_saved": 3,
        "scores_bytes": 6,
        "gather_forward": 2,
        "gather_backward": 2,
        "expert_output_saved": 1,
        **features,
    }
    placement = given.pop("placement", "even")
    columns = {f.name: np.asarray([float(given.pop(f.name, 0.0))]) for f in fields(StackTable) if f.name != "names"}
    columns["placement"] = np.asarray([float(codes.PLACEMENTS.index(placement))])
    assert not given, f"no such feature: {sorted(given)}"
    return replace(load_books(), stacks=StackTable(names=("made-up",), **columns))


def layouts(the_books: Books | None = None, /, **given: Any) -> Layouts:
    """Layouts from keywords: numbers, lists of numbers, names of codes; everything else is one GPU, one micro-batch."""
    found = the_books or load_books()
    choices = dict(CHOICES)
    if the_books is not None and the_books.stacks.names == ("made-up",):
        choices["stack"] = "made-up"
    names = {
        "schedule": codes.SCHEDULES,
        "recompute": codes.RECOMPUTES,
        "attention": codes.ATTENTIONS,
        "cp_comm": codes.CP_COMMS,
        "rank_order": codes.RANK_ORDERS,
        "recipe": found.recipes.names,
        "optimizer": found.optimizers.names,
        "loss": found.losses.names,
        "stack": found.stacks.names,
    }
    unknown = set(given) - set(DEGREES) - set(choices)
    assert not unknown, f"no such column: {sorted(unknown)}"
    columns: dict[str, Any] = {
        name: np.atleast_1d(np.asarray(given.get(name, default), dtype=np.float64)) for name, default in DEGREES.items()
    }
    for name, default in choices.items():
        values = given.get(name, default)
        listed = [values] if isinstance(values, str | int) else list(values)
        columns[name] = np.asarray(
            [names[name].index(v) if isinstance(v, str) else int(v) for v in listed], dtype=np.intp
        )
    return Layouts(books=found, **columns)


def rows(layout: Layouts, index: Any) -> Layouts:
    """Some rows of layouts; columns of one entry stand for every row."""
    columns = {}
    for field in fields(Layouts):
        value = getattr(layout, field.name)
        columns[field.name] = value if field.name == "books" or value.shape == (1,) else value[index]
    return Layouts(**columns)


def gpu(usable_bytes: float = float("nan"), gpus_per_node: float = 8.0) -> Hardware:
    """One kind of GPU."""
    return Hardware(np.asarray([usable_bytes]), np.asarray([gpus_per_node]), np.asarray([np.nan]))


def peak(shape: ModelShape, layout: Layouts, adapters: Adapters | None = None, keep_terms: bool = True) -> Memory:
    """Memory of one GPU, whatever fits."""
    return memory(shape, layout, gpu(), adapters, keep_terms)


def leaf(result: Memory, path: str) -> Columns:
    """Sum of the leaves whose path is, or begins with, ``path``; zero where there is none."""
    total = np.zeros_like(result.total_bytes)
    for term in result.terms:
        if term.spec.path == path or term.spec.path.startswith(f"{path}/"):
            total = total + term.array
    return total


def full_state(shape: ModelShape, layout: Layouts, adapters: Adapters | None = None) -> dict[str, Columns]:
    """State as it is after a backward (gradients exist), part by part, for every stage kind: arrays (kinds, n)."""
    columns = leaves.layout_columns(shape, layout, adapters)
    kinds = memory_module.stage_kinds(shape, layout)
    stages = leaves.on_stages(columns, kinds, *leaves.loads(columns, kinds))
    now = in_one(stages.quantities, FIRST_MOMENT)
    parts = {term.spec.path: term.of(now) for term in (*columns.held.persistent, columns.held.gradients)}
    count, n = stages.kinds.index.shape[0], rows_of(layout, gpu())
    return {path: np.broadcast_to(array, (count, n)) for path, array in parts.items()}


def gpt(layers: int = 4, hidden: int = 64, heads: int = 4, vocab: int = 1000, **more: Any) -> ModelShape:
    """A GPT block: LayerNorm, biases, an MLP of 4h without a gate."""
    given = {
        "ffn_hidden": 4 * hidden,
        "gated_mlp": False,
        "norm": "layer",
        "qkv_bias": True,
        "out_bias": True,
        "mlp_bias": True,
        "learned_positions": 128,
        **more,
    }
    return ModelShape("gpt", layers, hidden, heads, heads, hidden // heads, hidden // heads, vocab=vocab, **given)


def llama(
    layers: int = 4,
    hidden: int = 64,
    heads: int = 8,
    kv_heads: int = 8,
    ffn_hidden: int = 176,
    vocab: int = 1000,
    **more: Any,
) -> ModelShape:
    """A Llama block: RMSNorm, gated MLP, no biases."""
    width = more.pop("head_dim", hidden // heads)
    return ModelShape(
        "llama", layers, hidden, heads, kv_heads, width, more.pop("value_head_dim", width), ffn_hidden, vocab, **more
    )


LLAMA_2_7B = llama(32, 4096, 32, 32, 11008, 32000)
LLAMA_3_8B = llama(32, 4096, 32, 8, 14336, 128256)
QWEN3_8B = llama(36, 4096, 32, 8, 12288, 151936, head_dim=128, q_norm_elements=128, k_norm_elements=128)
GEMMA_2_9B = llama(42, 3584, 16, 8, 14336, 256000, head_dim=256, norms_per_layer=4, tied_embeddings=True)
MIXTRAL_8X7B = llama(32, 4096, 32, 8, 14336, 32000, experts=8, top_k=2, moe_ffn_hidden=14336, moe_layer=(True,) * 32)
DEEPSEEK_V3 = llama(
    61,
    7168,
    128,
    128,
    18432,
    129280,
    head_dim=192,
    value_head_dim=128,
    mla=True,
    q_lora_rank=1536,
    kv_lora_rank=512,
    rope_head_dim=64,
    experts=256,
    top_k=8,
    moe_ffn_hidden=2048,
    shared_ffn_hidden=2048,
    router_correction=True,
    moe_layer=(False,) * 3 + (True,) * 58,
)
SEVEN_BILLION = llama(32, 4096, 32, 32, 11008, 32000, stated_params=7_000_000_000)
