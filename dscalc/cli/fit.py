"""``dscalc fit``: what logs of benchmarks measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from dscalc.cli.options import SharedCommand, collect, shared
from dscalc.cli.output import deliver

EPILOG = """\b
Examples:
  dscalc fit all_reduce.log --cluster dgx-h100 --compare --output measured.json
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


HARDWARE = ("gpu", "cluster", "gpus_per_node", "interconnect", "profile")
MAX_COUNT = 10**6
_COUNT = click.IntRange(1, MAX_COUNT)


@click.command("fit", cls=SharedCommand, epilog=EPILOG)
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=click.Path())
@click.option("--rows", is_flag=True, help="Every row that was read, not the tables alone.")
@click.option("--op", metavar="NAME", type=Operation(), help="The operation, where a log does not name it.")
@click.option("--ranks", metavar="N", type=_COUNT, help="Ranks of the group, where a log does not say it.")
@click.option("--nodes", metavar="N", type=_COUNT, help="Nodes of the group, where a log does not say it.")
@click.option(
    "--step",
    metavar="FILE.csv",
    type=click.Path(),
    help="Measured steps: options of dscalc step as columns, and step_time_s.",
)
@click.option("--compare", is_flag=True, help="Beside the shipped cluster of that GPU, node and network.")
@click.option("--compare-with", metavar="ID", help="Beside this shipped cluster: what is slow, and why.")
@click.option(
    "--plot", metavar="FILE.svg", type=click.Path(), help="Chart of measured against fitted, as .svg, .png or .pdf."
)
@shared(only=(*HARDWARE, "format", "output", "force", "explain", "quiet"), scenario=False)
def command(
    files: tuple[str, ...],
    rows: bool,
    op: str | None,
    ranks: int | None,
    nodes: int | None,
    step: str | None,
    compare: bool,
    compare_with: str | None,
    plot: str | None,
    **params: Any,
) -> None:
    """Read logs of nccl-tests, rccl-tests, PyTorch benchmarks and dscalc bench; fit them; make a profile of them.

    FILE may be any text in any encoding, with the tags of launchers and other lines inside; - is the standard input.
    --output FILE.json writes the profile that --profile reads; with --format, or another suffix, it takes the answer.
    """
    given, output = collect(params)
    path = output.get("output")
    makes = path if path and "format" not in output and path.lower().endswith(".json") else None
    read = {Path(name).resolve() for name in (*files, *([step] if step else ())) if name != "-"}
    for option, target in (("--output", path), ("--plot", plot)):
        if target and Path(target).resolve() in read:
            raise click.UsageError(f"{option} {target}: is one of the files to read; write to another one")
    from dscalc.answers.fit import fit
    from dscalc.report.export import refuse_target, write_file
    from dscalc.report.fit import render

    found = fit(
        *files,
        rows=rows,
        op=op,
        ranks=ranks,
        nodes=nodes,
        step=step,
        compare=compare,
        compare_with=compare_with,
        output=makes,
        **given,
    )
    force = output.get("force", False)
    if makes:
        refuse_target(makes, force=force)
    if plot is not None:
        from dscalc.report.fit_chart import plot as draw

        draw(plot, found.profiled.drawn(), force=force)
    if makes:
        write_file(makes, found.profiled.text, force=force)
        del output["output"]
    explain, quiet = output.get("explain", False), output.get("quiet", False)
    deliver(lambda form, colour: render(found, form, colour=colour, quiet=quiet, explain=explain), output)
