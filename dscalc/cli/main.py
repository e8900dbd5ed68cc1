"""The command group: commands are loaded when they run, errors become one line on stderr."""

from __future__ import annotations

import gc
import io
import os
import sys
from contextlib import suppress
from importlib import import_module

import click

from dscalc.errors import DscalcError

# name: (module:object, one line for --help); add a command here
COMMANDS: dict[str, tuple[str, str]] = {
    "memory": ("dscalc.cli.memory:command", "What one GPU holds, term by term; does it fit; which knob next."),
    "ratio": ("dscalc.cli.ratio:command", "Computing against communicating; break-even batch, largest useful K."),
    "comm": ("dscalc.cli.comm:command", "Each collective of a layout: group, tier, bytes, time; ring against naive."),
    "step": (
        "dscalc.cli.step:command",
        "How long a training step takes, where the time goes, MFU; beside a measured one.",
    ),
    "sweep": (
        "dscalc.cli.sweep:command",
        "Every layout on so many GPUs: the best, the scaling curve, where it stops paying.",
    ),
    "batch": (
        "dscalc.cli.batch:command",
        "Batch, learning rate and warmup for more workers; critical batch, stragglers.",
    ),
    "bench": ("dscalc.cli.bench:command", "Measure this hardware under torchrun or Slurm, and write a profile."),
    "fit": ("dscalc.cli.fit:command", "What logs of benchmarks measured, checked against themselves."),
    "validate": ("dscalc.cli.validate:command", "The model against published measurements, source by source."),
    "list": ("dscalc.cli.catalog:list_command", "What ships: GPUs, clusters, models, recipes, stacks and more."),
    "show": ("dscalc.cli.catalog:show_command", "One shipped thing, each number with its kind and source."),
}
INTERRUPTED = 130
RARELY = 100_000  # allocations between garbage collections: a command is short


class LazyGroup(click.Group):
    """A group whose commands are imported when they are asked for, so that start-up stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        """Names in the order of the table."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        """Import one command."""
        entry = COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module, _, name = entry[0].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Suggest the nearest command for an unknown one."""
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            from difflib import get_close_matches

            near = get_close_matches(args[0], list(COMMANDS), n=2)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(COMMANDS)}."
            raise click.UsageError(f"no command {args[0]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        """One line a command, without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        from dscalc import __version__

        click.echo(f"dscalc {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
        "token_normalize_func": lambda word: word.replace("_", "-"),  # --micro_batch is --micro-batch
    },
    epilog="Start with: dscalc memory --params 7e9",
    invoke_without_command=True,
)
@click.option("--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Show the version.")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Plan the capacity of distributed deep-learning training.

    Does it fit, what fills the memory, how fast will it be, and where does scaling stop.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def run(args: list[str] | None = None) -> None:
    """Entry point of the ``dscalc`` script: runs one command and exits with its code."""
    code = 0
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looking for them takes longer than an estimate
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # no formula multiplies matrices; threads take time to start
    gc.set_threshold(RARELY)
    _open_streams()
    try:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(errors="replace")  # a terminal that lacks a letter still gets the rest
        if "_DSCALC_COMPLETE" in os.environ:  # the shell asks for completions
            main.main(prog_name="dscalc")
        with main.make_context("dscalc", list(sys.argv[1:] if args is None else args)) as context:
            main.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as done:
        code = _flushed(done.exit_code)
    except click.ClickException as error:
        code = complain(_usage(error), error.exit_code)
    except DscalcError as error:
        code = complain(str(error), 1)
    except BrokenPipeError:
        _abandon_stdout()
    except (KeyboardInterrupt, click.Abort):
        code = INTERRUPTED
    except OSError as error:
        code = complain(f"{error.filename or 'system'}: {error.strerror or error}", 1)
    except MemoryError:
        code = complain("out of host memory; ask for fewer rows or a smaller file", 1)
    if args is None and sys.gettrace() is None and sys.getprofile() is None and not sys.flags.inspect:
        _leave(int(code))
    sys.exit(int(code))


def _open_streams() -> None:
    """A caller may have closed a stream (``>&-``): what is written there goes nowhere."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - open until the end
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115


def _leave(code: int) -> None:
    """End the process at once: taking the interpreter down piece by piece takes as long as the formulas."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


def _flushed(code: int) -> int:
    """The exit code, after everything written has reached its reader (who may have gone)."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _abandon_stdout()
    return code


def complain(text: str, code: int) -> int:
    """One red line on stderr (plain when piped or under NO_COLOR); returns the exit code."""
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    coloured = sys.stderr.isatty() and not os.environ.get("NO_COLOR")
    try:
        click.echo(click.style(f"Error: {line}", fg="red") if coloured else f"Error: {line}", err=True, color=coloured)
    except BrokenPipeError:
        _abandon_stdout()
    return code


def _usage(error: click.ClickException) -> str:
    """Click's complaint as one line, with the nearest option where there is one."""
    from dscalc.specs.option_table import REFUSED
    from dscalc.specs.options import nearest

    if isinstance(error, click.exceptions.NoSuchOption):
        word = error.option_name.lstrip("-").replace("-", "_")
        if word in REFUSED:
            return f"{error.option_name}: {REFUSED[word]}"
        elsewhere = _elsewhere(word, error.ctx.info_name if error.ctx else None)
        if elsewhere:
            return f"{error.option_name}: {elsewhere}"
        known = [o.lstrip("-") for p in (error.ctx.command.params if error.ctx else ()) for o in p.opts]
        return f"{error.option_name}: there is no such option{nearest(word.replace('_', '-'), known)}"
    if isinstance(error, click.exceptions.MissingParameter) and error.param is not None:
        choices = getattr(error.param.type, "choices", ())
        hint = f"; one of {', '.join(map(str, choices))}" if choices else ""
        place = error.ctx.command_path if error.ctx else "dscalc"
        return f"{place}: {error.param.human_readable_name} is missing{hint}"
    if isinstance(error, click.BadParameter) and error.param is not None:
        flag = error.param.opts[0]
        return error.message if error.message.startswith(flag) else f"{flag}: {error.message}"
    return str(error.format_message())


def _elsewhere(word: str, here: str | None) -> str:
    """What to say of an option that other commands have; empty where none has it."""
    from dscalc.specs.options import canonical
    from dscalc.specs.sweep_options import LEFT_OUT

    if here == "sweep" and canonical(word) in LEFT_OUT:
        return LEFT_OUT[canonical(word)]
    flag = "--" + word.replace("_", "-")
    having = []
    for name, (place, _) in COMMANDS.items():
        module, _, command = place.partition(":")
        if any(flag in param.opts for param in getattr(import_module(module), command).params):
            having.append(name)
    return f"is no option of {here}; {', '.join(having)} {'takes' if len(having) == 1 else 'take'} it" if having else ""


def _abandon_stdout() -> None:
    """The reader has gone: nothing more to say, and no complaint at interpreter exit."""
    null = os.open(os.devnull, os.O_WRONLY)
    for stream in (sys.stdout, sys.stderr):
        try:
            os.dup2(null, stream.fileno())
        except (OSError, ValueError, AttributeError):  # no real stream behind it
            continue
