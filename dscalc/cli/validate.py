"""``dscalc validate``: the model against published measurements."""

from __future__ import annotations

from typing import Any

import click

from dscalc.cli.options import SharedCommand, collect, shared
from dscalc.cli.output import deliver


@click.command("validate", cls=SharedCommand, epilog="Example: dscalc validate --metric memory --data rows.csv")
@click.option(
    "--metric",
    type=click.Choice(("memory", "step"), case_sensitive=False),
    default="memory",
    help="What to compare, memory or step time [memory].",
)
@click.option(
    "--data",
    metavar="FILE.csv",
    type=click.Path(),
    help="Rows with the columns of the shipped table, instead of those rows.",
)
@shared(only=("format", "output", "force", "quiet"), scenario=False)
def command(metric: str, data: str | None, **params: Any) -> None:
    """Predict published runs and show how far off the model is, source by source."""
    _, output = collect(params)
    quiet = output.get("quiet", False)
    if metric == "step":
        from dscalc.answers.validate_step import validate_steps
        from dscalc.report.validate_step import render as render_steps

        steps = validate_steps(data)
        deliver(lambda form, colour: render_steps(steps, form, colour=colour, quiet=quiet), output)
        return
    from dscalc.answers.validate import validate
    from dscalc.report.validate import render

    found = validate(metric, data)
    deliver(lambda form, colour: render(found, form, colour=colour, quiet=quiet), output)
