"""``dscalc list`` and ``dscalc show``: what ships, and where each number comes from."""

from __future__ import annotations

from typing import Any

import click

from dscalc.cli.options import SharedCommand, collect, shared
from dscalc.cli.output import deliver

_KINDS = ("gpus", "clusters", "interconnects", "models", "recipes", "stacks", "optimizers", "losses", "schedules")


def _profiles(given: dict[str, Any]) -> tuple[str, ...]:
    return (given["profile"],) if "profile" in given else ()


def _ids(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    from dscalc.cli.complete import every_name, starting

    return starting(every_name(), incomplete)


@click.command("list", cls=SharedCommand, epilog="Example: dscalc list gpus")
@click.argument("kind", metavar="KIND", type=click.Choice(_KINDS, case_sensitive=False))
@shared(only=("profile", "format", "output", "force", "quiet"), scenario=False)
def list_command(kind: str, **params: Any) -> None:
    """What ships of one KIND: gpus, clusters, interconnects, models, recipes, stacks, optimizers and more."""
    given, output = collect(params)
    from dscalc.answers.catalog import listing
    from dscalc.report.catalog import render_listing

    found = listing(kind, _profiles(given))
    deliver(lambda form, colour: render_listing(found, form, colour=colour, quiet=output.get("quiet", False)), output)


@click.command("show", cls=SharedCommand, epilog="Example: dscalc show H100-SXM5-80GB")
@click.argument("name", metavar="ID", shell_complete=_ids)
@shared(only=("profile", "format", "output", "force"), scenario=False)
def show_command(name: str, **params: Any) -> None:
    """Everything named ID, each value with its unit, kind and source."""
    given, output = collect(params)
    from dscalc.answers.catalog import show
    from dscalc.report.catalog import render_shown

    found = show(name, _profiles(given))
    deliver(lambda form, colour: render_shown(found, form, colour=colour), output)
