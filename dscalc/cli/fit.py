"""``dscalc fit``: what logs of benchmarks measured."""

from __future__ import annotations

from typing import Any

import click

from dscalc.cli.options import SharedCommand, collect, shared
from dscalc.cli.output import deliver

EPILOG = """\b
Examples:
  dscalc fit all_reduce.log
  dscalc fit run1.txt run2.txt --rows --format csv --output rows.csv"""


class Operation(click.ParamType[str]):
    """A collective, with dashes or underscores."""

    name = "operation"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """The operation's name."""
        from dscalc.answers.fit import OPS

        name: str = str(value).strip().lower().replace("-", "_")
        if name not in OPS:
            self.fail(f"{value!r} is no operation; there are {', '.join(OPS)}", param, ctx)
        return name


_COUNT = click.IntRange(1, 10**6)


@click.command("fit", cls=SharedCommand, epilog=EPILOG)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--rows", is_flag=True, help="Every row that was read, not the tables alone.")
@click.option("--op", metavar="NAME", type=Operation(), help="The operation, where a log does not name it.")
@click.option("--ranks", metavar="N", type=_COUNT, help="Ranks of the group, where a log does not say it.")
@click.option("--nodes", metavar="N", type=_COUNT, help="Nodes of the group, where a log does not say it.")
@shared(only=("format", "output", "force", "quiet"), scenario=False)
def command(
    files: tuple[str, ...], rows: bool, op: str | None, ranks: int | None, nodes: int | None, **params: Any
) -> None:
    """Read logs of nccl-tests, rccl-tests, PyTorch benchmarks and dscalc bench, and check them against themselves.

    FILE may be any text in any encoding, with the tags of launchers and other lines inside; - is the standard input.
    """
    _, output = collect(params)
    from dscalc.answers.fit import fit
    from dscalc.report.fit import render

    found = fit(*files, rows=rows, op=op, ranks=ranks, nodes=nodes)
    deliver(lambda form, colour: render(found, form, colour=colour, quiet=output.get("quiet", False)), output)
