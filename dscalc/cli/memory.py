"""``dscalc memory``: what one GPU holds."""

from __future__ import annotations

from typing import Any

import click

from dscalc.cli.options import SharedCommand, collect, shared
from dscalc.cli.output import deliver

DOES_NOT_FIT = 3  # exit code under --check


@click.command(
    cls=SharedCommand, epilog="Example: dscalc memory --model llama-3-8b --gpu H100-SXM5-80GB --gpus 8 --zero 3"
)
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
    if output.get("check") and found.fits is False:
        click.get_current_context().exit(DOES_NOT_FIT)
