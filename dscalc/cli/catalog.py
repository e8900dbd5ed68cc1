"""``dscalc list`` and ``dscalc show``: what ships, and where each number comes from."""

from __future__ import annotations

from typing import Any

import click

from dscalc.cli.options import SharedCommand, collect, shared
from dscalc.cli.output import deliver

_KINDS = ("gpus", "clusters", "models", "recipes", "stacks", "optimizers", "losses", "schedules")


@click.command("list", cls=SharedCommand, epilog="Example: dscalc list gpus")
@click.argument("kind", type=click.Choice(_KINDS, case_sensitive=False))
@click.option("--profile", metavar="FILE", help="Profile file or folder to list as well.")
@shared("output", uses="output")
def list_command(kind: str, profile: str | None, **params: Any) -> None:
    """What ships of one KIND: gpus, clusters, models, recipes, stacks, optimizers, losses or schedules."""
    _, output = collect(params)
    from dscalc.answers.catalog import listing
    from dscalc.report.catalog import render_listing

    found = listing(kind, (profile,) if profile else ())
    deliver(lambda form, colour: render_listing(found, form, colour=colour, quiet=output.get("quiet", False)), output)


@click.command("show", cls=SharedCommand, epilog="Example: dscalc show H100-SXM5-80GB")
@click.argument("name", metavar="ID")
@click.option("--profile", metavar="FILE", help="Profile file or folder to search first.")
@shared("output", uses="output")
def show_command(name: str, profile: str | None, **params: Any) -> None:
    """Everything named ID, each value with its unit, kind and source."""
    _, output = collect(params)
    from dscalc.answers.catalog import show
    from dscalc.report.catalog import render_shown

    found = show(name, (profile,) if profile else ())
    deliver(lambda form, colour: render_shown(found, form, colour=colour), output)
