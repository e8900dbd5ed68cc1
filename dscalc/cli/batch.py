"""``dscalc batch``: what a number of workers does to batch, learning rate and waiting."""

from __future__ import annotations

from typing import Any

import click

from dscalc.cli.options import SharedCommand, collect, shared
from dscalc.cli.output import deliver
from dscalc.errors import InputError
from dscalc.specs.option_table import TABLE

EPILOG = """\b
Examples:
  dscalc batch --workers 256 --local-batch 32 --base-batch 256 --base-lr 0.1
  dscalc batch --model llama-3-8b --cluster dgx-h100 --gpus 64 --ga 4 --tokens 1T --noise-scale 2M"""
NAMES = tuple(o.name for o in TABLE if {"memory", "time", "batch"} & set(o.uses.split()) and o.name != "check")


@click.command("batch", cls=SharedCommand, epilog=EPILOG)
@click.option("--plot", metavar="FILE", help="Also draw the warmup, as .svg or .png (needs matplotlib).")
@shared(only=NAMES)
def command(plot: str | None, **params: Any) -> None:
    """Effective batch, learning rate and warmup, critical batch, accumulation, waiting for the slowest.

    What to change when the number of workers changes, and where more of them stop helping the loss. Needs no model;
    with one, and a GPU, it also sets accumulation against more workers, and data, tensor and pipeline parallelism side
    by side. --workers and --local-batch are other words for --dp and --micro-batch.
    """
    given, output = collect(params)
    from dscalc.answers.batch import answer
    from dscalc.report.batch import render

    form = ""
    if plot is not None:
        from dscalc.report.schedule_chart import chart_form

        try:
            form = chart_form(plot)
        except InputError as error:  # out of range, like any option that cannot be
            raise click.UsageError(str(error)) from None
    found = answer(given)
    if plot is not None:
        from dscalc.report.export import write_file
        from dscalc.report.schedule_chart import schedule_chart

        write_file(plot, schedule_chart(found, form), force=output.get("force", False), option="--plot")
    deliver(
        lambda form, colour: render(
            found, form, explain=output.get("explain", False), quiet=output.get("quiet", False), colour=colour
        ),
        output,
    )
