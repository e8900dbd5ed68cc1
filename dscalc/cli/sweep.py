"""``dscalc sweep``: every layout, the best of them, the scaling curve and its ceiling."""

from __future__ import annotations

from typing import Any

import click

from dscalc.cli.options import SharedCommand, collect, shared
from dscalc.cli.output import deliver
from dscalc.cli.progress import watched
from dscalc.errors import DscalcError
from dscalc.specs.sweep_options import TABLE

DOES_NOT_FIT, INTERRUPTED = 3, 130
EPILOG = """\b
Examples:
  dscalc sweep --model llama-3-8b --cluster dgx-h100 --gpus 8..64 --global-batch 512
  dscalc sweep --model llama-3-70b --cluster dgx-h100,dgx-h200 --gpus 64..1024 --gbs 1024 --max-tp 8 --tokens 15T

\b
Lists and ranges: 1,2,4 or 8..4096 (doubling) or 8..64:8."""


@click.command("sweep", cls=SharedCommand, epilog=EPILOG)
@shared("model", "hardware", "layout", "training", "sweep", "output", uses="time", table=TABLE)
def command(**params: Any) -> None:
    """Every layout of a model on some GPUs: the best, the scaling curve, and where adding GPUs stops paying.

    Axes that are not given take every value that the model and the number of GPUs allow.
    """
    given, output = collect(params, table=TABLE)
    from dscalc.report.export import refuse_target, write_file
    from dscalc.report.sweep import parquet, refuse_parquet, render
    from dscalc.report.sweep_files import refuse_files, write_files

    path, force = output.get("output"), output.get("force", False)
    in_parquet = output.get("format") == "parquet" or ("format" not in output and str(path).endswith(".parquet"))
    if in_parquet:
        refuse_parquet(path)
    if path not in (None, "-"):
        refuse_target(path, force=force)
    refuse_files(output)
    from dscalc.answers.sweep import answer

    with watched() as progress:
        found = answer(given, progress)
    fault = None
    try:
        write_files(found, output)  # first: a reader who closes the pipe early gets them all the same
    except DscalcError as error:
        fault = error  # the answer is not lost with a file
    if in_parquet:
        write_file(str(path), parquet(found), force=force)
    else:
        deliver(
            lambda form, colour: render(
                found, form, explain=output.get("explain", False), quiet=output.get("quiet", False), colour=colour
            ),
            output,
        )
    if fault is not None:
        raise fault
    if not found.complete:
        click.get_current_context().exit(INTERRUPTED)
    if output.get("check") and not found.rows:
        click.get_current_context().exit(DOES_NOT_FIT)
