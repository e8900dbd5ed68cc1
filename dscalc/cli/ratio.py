"""``dscalc ratio``: computing against communicating."""

from __future__ import annotations

from typing import Any

import click

from dscalc.cli.options import SharedCommand, collect, shared
from dscalc.cli.output import deliver
from dscalc.errors import InputError
from dscalc.specs.option_table import TABLE

EPILOG = """\b
Examples:
  dscalc ratio --flops 400TF --bandwidth 50GB/s --tokens-per-rank 8k
  dscalc ratio --model llama-3-8b --cluster dgx-h100 --gpus 64 --micro-batch 1"""
NAMES = tuple(o.name for o in TABLE if "time" in o.uses and o.name != "check")  # there is nothing to fit


@click.command("ratio", cls=SharedCommand, epilog=EPILOG)
@shared(only=NAMES)
def command(**params: Any) -> None:
    """6ND/P against 2Nb/BW: can communication hide, from which batch on, among how many ranks.

    From numbers by hand (--flops, --bandwidth, --tokens-per-rank, --gradient-bytes; no model is needed, because N
    cancels), or from profiles of a GPU or cluster. Says where N does not cancel, and by how much.
    """
    given, output = collect(params)
    from dscalc.answers.rates import refuse_zero
    from dscalc.answers.ratio import answer
    from dscalc.report.ratio import render

    try:
        refuse_zero(given)
    except InputError as error:  # out of range, like any option that cannot be
        raise click.UsageError(str(error)) from None
    found = answer(given)
    deliver(
        lambda form, colour: render(
            found, form, explain=output.get("explain", False), quiet=output.get("quiet", False), colour=colour
        ),
        output,
    )
