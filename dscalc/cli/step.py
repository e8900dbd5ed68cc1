"""``dscalc step``: how long a training step takes."""

from __future__ import annotations

from typing import Any

import click

from dscalc.cli.options import SharedCommand, collect, shared
from dscalc.cli.output import deliver
from dscalc.errors import InputError

DOES_NOT_FIT = 3  # exit code under --check
EPILOG = """\b
Examples:
  dscalc step --model llama-3-8b --cluster dgx-h100 --gpus 8 --zero 3 --stack fsdp2
  dscalc step --model llama-3-70b --cluster dgx-h100 --gpus 64 --tp 4 --pp 4 --gbs 128 --measured 9.8s"""


@click.command("step", cls=SharedCommand, epilog=EPILOG)
@click.option("--measured", metavar="TIME", help="A measured step, e.g. 1.4s: the gap, and what could explain it.")
@click.option(
    "--mfu-convention",
    metavar="NAME",
    default="palm",
    help="palm, 6n, megatron-2021, megatron-2022 or megatron-core [palm].",
)
@shared("model", "hardware", "layout", "training", "output", uses="time step")
def command(measured: str | None, mfu_convention: str, **params: Any) -> None:
    """How long a training step takes, where the time goes, tokens/s, MFU and HFU.

    With --measured: the gap to a step that was timed, which terms could explain it, and what to measure next.
    """
    given, output = collect(params)
    from dscalc.answers.step import read_measured, step
    from dscalc.report.step import render

    try:
        seconds = read_measured(measured)
    except InputError as error:  # as any option that cannot be read
        raise click.UsageError(str(error)) from None
    found = step(measured=seconds, mfu_convention=mfu_convention, **given)
    deliver(
        lambda form, colour: render(
            found, form, explain=output.get("explain", False), quiet=output.get("quiet", False), colour=colour
        ),
        output,
    )
    if output.get("check") and not found.memory.fits:
        click.get_current_context().exit(DOES_NOT_FIT)
