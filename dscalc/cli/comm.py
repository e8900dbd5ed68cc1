"""``dscalc comm``: every collective of a layout."""

from __future__ import annotations

from typing import Any

import click

from dscalc.cli.options import SharedCommand, collect, shared
from dscalc.cli.output import deliver
from dscalc.errors import InputError
from dscalc.specs.option_table import TABLE

EPILOG = """\b
Examples:
  dscalc comm --model llama-3-70b --cluster dgx-h100 --gpus 256 --tp 8 --pp 4 --zero 1 --stack megatron
  dscalc comm --params 7e9 --dp 32 --bandwidth 50GB/s --latency 5us
  dscalc comm --trace-ring 4"""
COMPUTE = ("flops", "peak_fraction", "check")  # how fast a GPU computes, and whether it fits, is not asked here
NAMES = tuple(o.name for o in TABLE if ({"time", "comm"} & set(o.uses.split())) and o.name not in COMPUTE)


@click.command("comm", cls=SharedCommand, epilog=EPILOG)
@shared(only=NAMES)
def command(**params: Any) -> None:
    """What a layout sends: each collective with its group, tier, bytes, calls and time; ring against naive.

    On a cluster that ships (--cluster), on nodes composed by hand (--gpu, --gpus-per-node, --interconnect), or on one
    tier given by two numbers (--bandwidth, --latency).
    """
    given, output = collect(params)
    from dscalc.answers.comm import answer, forced
    from dscalc.report.comm import render

    try:
        forced(given)
    except InputError as error:  # out of range, like any option that cannot be
        raise click.UsageError(str(error)) from None
    found = answer(given)
    deliver(
        lambda form, colour: render(
            found, form, explain=output.get("explain", False), quiet=output.get("quiet", False), colour=colour
        ),
        output,
    )
