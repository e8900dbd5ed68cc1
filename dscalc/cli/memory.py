"""``dscalc memory``: what one GPU holds."""

from __future__ import annotations

from typing import Any

import click

from dscalc.cli.options import SharedCommand, collect, shared
from dscalc.cli.output import deliver
from dscalc.errors import InputError

DOES_NOT_FIT = 3  # exit code under --check
EPILOG = """\b
Examples:
  dscalc memory --params 7e9
  dscalc memory --model llama-3-8b --gpu H100-SXM5-80GB --gpus 8 --zero 3

The spellings of Megatron-LM, Hugging Face, DeepSpeed and torchrun are accepted too, such as
--tensor-model-parallel-size or --per-device-train-batch-size; docs/reference/cli.md lists them."""
EPILOG = """\b
Examples:
  dscalc memory --params 7e9
  dscalc memory --model llama-3-8b --gpu H100-SXM5-80GB --gpus 8 --zero 3

The spellings of Megatron-LM, Hugging Face, DeepSpeed and torchrun are accepted too, such as
--tensor-model-parallel-size or --per-device-train-batch-size; docs/reference/cli.md lists them."""


@click.command(cls=SharedCommand, epilog=EPILOG)
@shared("model", "hardware", "layout", "training", "output", uses="memory")
def command(**params: Any) -> None:
    """What one GPU holds, term by term; whether it fits; which knob to turn next.

    With only --params: the split of the 16 bytes a parameter, activations with and without checkpointing, and the
    fewest GPUs for each ZeRO stage.
    """
    given, output = collect(params)
    from dscalc.answers.memory import answer
    from dscalc.report.memory import render

    found = answer(given)
    deliver(
        lambda form, colour: render(
            found, form, explain=output.get("explain", False), quiet=output.get("quiet", False), colour=colour
        ),
        output,
    )
    if output.get("check") and found.fits is None:
        raise InputError(
            "cannot be answered: no memory of the GPU is known; name a --gpu that states it", where="--check"
        )
    if output.get("check") and not found.fits:
        click.get_current_context().exit(DOES_NOT_FIT)
