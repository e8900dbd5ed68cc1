"""``dscalc bench``: measure this hardware."""

from __future__ import annotations

import sys
from typing import Any

import click

from dscalc.cli.options import SharedCommand, SharedOption, collect, shared
from dscalc.cli.output import deliver
from dscalc.errors import DscalcError

EPILOG = """\b
Examples:
  torchrun --nproc-per-node 8 -m dscalc bench --output h200.json
  dscalc bench --launch slurm --nodes 4 > bench.sbatch
  dscalc bench --budget 60s"""
BAR = 20  # characters


class Duration(click.ParamType[float]):
    """A time such as ``5m``."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Seconds."""
        from dscalc.answers.bench import seconds

        try:
            return seconds(value, param.opts[0] if param else "--budget")
        except DscalcError as error:
            self.fail(error.message, param, ctx)


def _own(*names: str, shown: str, group: str, **settings: Any) -> Any:
    def decorate(function: Any) -> Any:
        click.option(*names, cls=SharedOption, **settings)(function)
        option = function.__click_params__[-1]
        option.shown, option.group = shown, group
        return function

    return decorate


@click.command("bench", cls=SharedCommand, epilog=EPILOG)
@_own(
    "--launch",
    shown="--launch {torchrun,slurm}",
    group="hardware",
    type=click.Choice(("torchrun", "slurm")),
    help="Print the commands or the batch script that start it, and measure nothing.",
)
@_own("--budget", shown="--budget TIME", group="hardware", type=Duration(), help="How long to measure [5m].")
@_own(
    "--timeout",
    shown="--timeout TIME",
    group="hardware",
    type=Duration(),
    help="How long a rank may say nothing before the run is ended [60s].",
)
@_own("--resume", shown="--resume", group="output", is_flag=True, help="Go on with the raw rows beside --output.")
@_own(
    "--output",
    shown="--output FILE",
    group="output",
    metavar="FILE",
    help="Profile to write; raw rows go beside it as NAME.rows.jsonl [dscalc-bench.json].",
)
@shared(only=("nodes", "gpus_per_node", "format", "force", "quiet"), scenario=False)
def command(
    launch: str | None, budget: float | None, timeout: float | None, resume: bool, output: str | None, **params: Any
) -> None:
    """Measure products, memory and collectives on this hardware, find what is slow, and write a profile.

    Started by torchrun on every node: NCCL on GPUs, gloo on CPUs. Alone it measures one GPU or CPU.
    """
    given, shown = collect(params)
    from dscalc.answers import bench

    if launch is None and given:
        names = " and ".join("--" + name.replace("_", "-") for name in given)
        raise click.UsageError(f"{names}: torchrun says how many there are; with --launch they go into the script")
    words = {"budget": budget, "timeout": timeout, "output": output}
    typed = {name: value for name, value in words.items() if value is not None}
    if launch is not None:
        nodes, inside = int(given.get("nodes", 1)), int(given.get("gpus_per_node", 8))
        sys.stdout.write(bench.script(launch, nodes, inside, resume=resume, force=bool(shown.get("force")), **typed))
        return
    answer = bench.bench(resume=resume, force=bool(shown.get("force")), progress=_progress(), **typed)
    if answer is None:
        return
    from dscalc.report.bench import render

    quiet = shown.get("quiet", False)
    deliver(lambda form, colour: render(answer, form, colour=colour, quiet=quiet), shown)


def _progress() -> Any:
    """Draws one line on stderr, on a terminal only."""
    if not sys.stderr.isatty():
        return None

    def draw(done: int, of: int, words: str, elapsed_s: float) -> None:
        filled = BAR * done // max(of, 1)
        minutes, rest = divmod(int(elapsed_s), 60)
        line = f"[{'#' * filled}{'.' * (BAR - filled)}] {done}/{of}  {minutes}:{rest:02d}  {words}"
        sys.stderr.write("\r" + line[:110].ljust(110) + ("\r" + " " * 110 + "\r" if done == of else ""))
        sys.stderr.flush()

    return draw
