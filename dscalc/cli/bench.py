"""``dscalc bench``: measure this hardware."""

from __future__ import annotations

import sys
from shutil import get_terminal_size
from typing import Any

import click

from dscalc.cli.options import SharedCommand, collect, shared
from dscalc.cli.output import deliver
from dscalc.errors import DscalcError

EPILOG = """\b
Examples:
  torchrun --nproc-per-node 8 -m dscalc bench --output h200.json
  dscalc bench --launch slurm --nodes 4 > bench.sbatch
  dscalc bench --budget 60s"""
HARDWARE = ("gpu", "cluster", "interconnect", "profile")
BAR, LINE = 20, 100  # characters


class Duration(click.ParamType[float]):
    """A time such as ``5m``, within the range of its option."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds."""
        from dscalc.answers.bench import seconds

        try:
            return seconds(value, param.opts[0] if param else "--budget")
        except DscalcError as error:
            self.fail(error.message, param, ctx)


@click.command("bench", cls=SharedCommand, epilog=EPILOG)
@click.option(
    "--launch",
    type=click.Choice(("torchrun", "slurm"), case_sensitive=False),
    help="Print the commands or the batch script that start it on --nodes, and measure nothing.",
)
@click.option("--budget", metavar="TIME", type=Duration(), help="How long measuring may take [5m].")
@click.option("--timeout", metavar="TIME", type=Duration(), help="How long a rank may say nothing [60s].")
@click.option("--resume", is_flag=True, help="Go on with the rows that an earlier run left beside --output.")
@shared(only=(*HARDWARE, "nodes", "gpus_per_node", "format", "output", "force", "quiet"), scenario=False)
def command(launch: str | None, budget: float | None, timeout: float | None, resume: bool, **params: Any) -> None:
    """Measure products, memory and collectives on this hardware, find what is slow, and write a profile.

    Started by torchrun on every node: NCCL on GPUs, gloo on CPUs. By itself it measures one GPU or the CPU.
    --output FILE.json is the profile that --profile reads [dscalc-bench.json]; raw rows go beside it, as
    FILE.rows.jsonl, one line a measurement.
    """
    given, output = collect(params)
    from dscalc.answers import bench

    path = str(output.pop("output", None) or bench.OUTPUT)
    timing = bench.Timing(budget or bench.BUDGET_S, timeout or bench.TIMEOUT_S)
    force = bool(output.pop("force", False))
    if launch is not None:
        nodes, inside = given.pop("nodes", 1), given.pop("gpus_per_node", None) or bench.likely_gpus(given)
        sys.stdout.write(bench.script(launch, nodes, inside, timing, path, resume=resume, force=force, options=given))
        return
    for name in ("nodes", "gpus_per_node"):
        if name in given:
            flag = "--" + name.replace("_", "-")
            raise click.UsageError(f"{flag}: torchrun says how many there are; with --launch it goes into the script")
    found = bench.run(path, timing, resume=resume, force=force, given=given, progress=_progress())
    if found is None:  # every rank but the first
        return
    from dscalc.report.bench import render
    from dscalc.report.export import write_file

    if found.profile_path is not None:
        write_file(found.profile_path, found.profiled.text, force=force or resume)
    quiet = output.get("quiet", False)
    deliver(lambda form, colour: render(found, form, colour=colour, quiet=quiet), output)


def _progress() -> Any:
    """Draws one line on stderr, on a terminal only."""
    if not sys.stderr.isatty():
        return None

    def draw(done: int, of: int, words: str, elapsed_s: float) -> None:
        filled = BAR * done // max(of, 1)
        minutes, rest = divmod(int(elapsed_s), 60)
        line = f"[{'#' * filled}{'.' * (BAR - filled)}] {done}/{of}  {minutes}:{rest:02d}  {words}"
        width = min(get_terminal_size().columns - 1, LINE)
        sys.stderr.write("\r" + (" " * width + "\r" if done == of else line[:width].ljust(width)))
        sys.stderr.flush()

    return draw
