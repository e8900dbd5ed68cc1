"""Composite quantities that evidence rows name: plain numbers and names in, one number out, every formula dscalc's own.

They only put records together; no formula is written here.
"""

from __future__ import annotations

import numpy as np

from dscalc.cost.activations import full_recompute_layers, layer_bytes, saved
from dscalc.cost.placement import StageKinds, chunk_layers
from dscalc.cost.rank_parameters import adapter_sums, rank_parameters
from dscalc.cost.schedule import in_flight
from dscalc.records import Adapters, ModelShape
from dscalc.specs.model import load_model
from tests.cost import helpers


def _model(params: float, model: str) -> ModelShape:
    if model:
        return load_model(model).spec.lower()
    return helpers.llama(32, 4096, 32, 32, 11008, 32000, stated_params=int(params))


def state_bytes(
    params: float = 0,
    model: str = "",
    recipe: str = "bf16-mixed",
    optimizer: str = "adamw",
    zero: int = 0,
    dp: int = 1,
    dp_replicate: int = 1,
    tp: int = 1,
    part: str = "",
) -> float:
    """State of one GPU at the end of a backward, whole or one part of it [bytes]."""
    layout = helpers.layouts(
        helpers.books(),
        dp=dp,
        dp_replicate=dp_replicate,
        tp=tp,
        zero=zero,
        seq_len=1,
        recipe=recipe,
        optimizer=optimizer,
    )
    found = helpers.full_state(_model(params, model), layout)
    return float(sum(array[0, 0] for path, array in found.items() if not part or path == f"state/{part}"))


def state_saving_bytes(
    params: float = 0,
    model: str = "",
    recipe: str = "bf16-mixed",
    zero: int = 0,
    dp: int = 1,
    zero_to: int = 0,
    dp_to: int = 1,
) -> float:
    """What going from one sharding to another saves on each GPU [bytes]."""
    before = state_bytes(params, model, recipe, zero=zero, dp=dp)
    return before - state_bytes(params, model, recipe, zero=zero_to, dp=dp_to)


def gpt_layer_bytes(
    hidden: int,
    heads: int,
    seq_len: int,
    micro_batch: int,
    tp: int = 1,
    sequence_parallel: int = 0,
    recompute: str = "none",
) -> float:
    """Activations of one GPT layer with dropout and unfused attention, without the small statistics [bytes]."""
    kernels = helpers.books(hidden_dropout=1, attention_dropout=1, scores_bytes=2)
    layout = helpers.layouts(
        kernels,
        tp=tp,
        sequence_parallel=sequence_parallel,
        seq_len=seq_len,
        micro_batch=micro_batch,
        recompute=recompute,
        attention="unfused",
    )
    shape = helpers.gpt(hidden=hidden, heads=heads)
    one, none = np.ones((1, 1)), np.zeros((1, 1))
    stage = StageKinds(index=none, layers=one, moe_layers=none, has_embedding=none, has_head=none, outer_layers=one)
    leaves = saved(shape, layer_bytes(shape, layout), layout, stage, one - full_recompute_layers(layout, stage), one)
    return sum(float(array[0, 0]) for spec, array in leaves if spec.path != "activations/statistics")


def micro_batches_in_flight(schedule: str, pp: int, n_micro: int, stage: int = 0, vpp: int = 1) -> float:
    """Micro-batches in flight on one stage, in units of the stage's layers."""
    layout = helpers.layouts(pp=pp, n_micro=n_micro, vpp=vpp, schedule=schedule)
    return float(in_flight(layout, np.asarray([[float(stage)]]))[0, 0])


def stored_layers_ratio(schedule: str, pp: int, n_micro: int, vpp: int = 1) -> float:
    """Layers' worth of activations on the first stage over the model's layers."""
    return micro_batches_in_flight(schedule, pp, n_micro, 0, vpp) / pp


def lora_parameters(model: str, rank: int, targets: str) -> float:
    """Trainable parameters of adapters on the comma-separated targets."""
    shape, layout = _model(0, model), helpers.layouts()
    one = np.ones((1, 1))
    stage = StageKinds(0 * one, shape.layers * one, sum(shape.moe_layer) * one, one, one, shape.layers * one)
    found = rank_parameters(shape, adapter_sums(shape, Adapters(rank, tuple(targets.split(",")), 2.0)), layout, stage)
    return float((found.matrix + found.other + found.expert)[0, 0])


def layers_per_stage(
    layers: int, pp: int, placement: int, hidden: int = 64, ffn_hidden: int = 176, vocab: int = 1000
) -> list[int]:
    """Layers of each stage."""
    return chunk_layers(helpers.llama(layers, hidden, 8, 8, ffn_hidden, vocab), pp, placement)


def held_parameters(model: str, tp: int = 1) -> float:
    """Parameters one GPU holds before data-parallel ranks divide them."""
    return float(helpers.peak(_model(0, model), helpers.layouts(tp=tp), keep_terms=False).held_parameters[0])
