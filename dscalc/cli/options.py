"""Shared option bundles: the option table of ``specs`` as click decorators."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dscalc.errors import DscalcError
from dscalc.specs.option_table import CONSTANTS, OPTIONS, Option
from dscalc.specs.options import parse

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

F = TypeVar("F", bound=Callable[..., Any])
Given = dict[str, Any]

TITLES = {
    "model": "Model",
    "hardware": "Hardware",
    "layout": "Layout",
    "training": "Training",
    "sweep": "Sweep",
    "output": "Output",
}
OWN, HELP = "This command", "Help"
_CHOICE_METAVAR = {"recipes": "NAME", "stacks": "NAME", "optimizers": "NAME", "losses": "NAME"}


class Value(click.ParamType[Any]):
    """Reads one option's text through the option table; a fault is click's usage error (exit 2)."""

    def __init__(self, option: Option) -> None:
        self.option = option
        self.name = option.kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The parsed value."""
        try:
            return parse(self.option, list(value) if isinstance(value, tuple) else value)
        except DscalcError as error:
            self.fail(error.message, param, ctx)

    def shell_complete(
        self,
        ctx: click.Context,  # noqa: ARG002
        param: click.Parameter,  # noqa: ARG002
        incomplete: str,
    ) -> list[CompletionItem]:
        """Values that begin as typed."""
        from dscalc.cli.complete import completions  # only a shell that completes needs it

        return completions(self.option, incomplete)


class SharedOption(click.Option):
    """An option that shows its canonical spelling in --help; the reference page lists the others."""

    group = ""
    shown = ""

    def get_help_record(self, ctx: click.Context) -> tuple[str, str] | None:  # noqa: ARG002
        """Left and right column of --help."""
        return None if self.hidden else (self.shown, self.help or "")


class SharedCommand(click.Command):
    """A command whose --help lists its options group by group, and that takes underscores for dashes."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the option groups."""
        rows: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and isinstance(param, click.Option):
                own = HELP if "--help" in param.opts else OWN
                rows.setdefault(TITLES.get(getattr(param, "group", ""), own), []).append(record)
        for title in (OWN, *TITLES.values(), HELP):
            if title in rows:
                with formatter.section(title):
                    formatter.write_dl(rows[title])


def shared(
    *groups: str,
    uses: str = "memory",
    only: Sequence[str] | None = None,
    scenario: bool = True,
    table: Mapping[str, Option] = OPTIONS,
) -> Callable[[F], F]:
    """Decorator that adds options of the table to a command.

    Args:
        groups: groups whose options are added, as far as they bear on ``uses``.
        uses: what they bear on, ``memory`` or ``time step``.
        only: names of the options to add, instead of groups.
        scenario: add ``--scenario`` too.
        table: the options there are, by canonical name.
    """

    bearing = set(uses.split())

    def wanted(option: Option) -> bool:
        if only is not None:
            return option.name in only
        return option.group in groups and (option.group == "output" or bool(bearing & set(option.uses.split())))

    def decorate(function: F) -> F:
        rows = [option for option in table.values() if wanted(option)]
        if scenario:
            _add(function, ("--scenario",), "--scenario FILE", "output", help=_SCENARIO, type=click.Path())
        for word, (target, constant) in reversed(list(CONSTANTS.items())):
            if any(o.name == target for o in rows):
                _attach_constant(function, word, target, constant)
        for option in reversed(rows):
            _attach(function, option)
        return function

    return decorate


_SCENARIO = "TOML file that holds any of these by name; the command line wins."
_WELL_KNOWN = ("fsdp", "use_distributed_optimizer", "gradient_checkpointing")  # the others are in the reference


def _add(function: Any, names: Sequence[str], shown: str, group: str, **settings: Any) -> None:
    click.option(*names, cls=SharedOption, **settings)(function)
    parameter = function.__click_params__[-1]
    parameter.shown, parameter.group = shown, group


def _attach(function: Any, option: Option) -> None:
    text = option.help or _axis_help(option.name)
    names = [*option.flags, option.name]
    settings: dict[str, Any] = {"default": None}
    shown = option.flag
    if option.kind == "flag":
        settings |= {"is_flag": True, "flag_value": True}
    elif option.kind == "switch":
        settings |= {"is_flag": True}
        offs = [f"--no-{f[2:]}" for f in option.flags]
        names = [f"{on}/{off}" for on, off in zip(option.flags, offs, strict=True)] + [option.name]
        shown = f"{option.flag} / {offs[0]}"
    else:
        settings |= {"type": Value(option)}
        settings["multiple"] = option.many or option.kind == "names"
        shown = f"{option.flag} {_metavar(option)}"
    _add(function, names, shown, option.group, help=text, **settings)


def _metavar(option: Option) -> str:
    if option.many and option.kind in ("whole", "length"):
        return "LIST"
    if option.metavar:
        return option.metavar
    if option.choices:
        return "{" + ",".join(option.choices) + "}"
    return _CHOICE_METAVAR.get(option.catalog, option.kind.upper())


def _attach_constant(function: Any, word: str, target: str, constant: object) -> None:
    flag = "--" + word.replace("_", "-")
    value = "" if isinstance(constant, bool) else f" {constant}"
    spelled = OPTIONS[target].flag if constant is not False else OPTIONS[target].flag.replace("--", "--no-", 1)

    def note(ctx: click.Context, _: click.Parameter, given: bool) -> None:
        if given:
            ctx.meta.setdefault("dscalc.constants", {})[word] = True

    _add(
        function,
        (flag, word),
        flag,
        OPTIONS[target].group,
        is_flag=True,
        expose_value=False,
        callback=note,
        help=f"Same as {spelled}{value}.",
        hidden=word not in _WELL_KNOWN,
    )


def _axis_help(name: str) -> str:
    from dscalc.answers.words import axis_help

    return axis_help(name)


def collect(params: Given, *, also: Iterable[str] = (), table: Mapping[str, Option] = OPTIONS) -> tuple[Given, Given]:
    """What was given on the command line and in the scenario: the inputs, and the output options.

    Args:
        params: the click parameters of the running command.
        also: parameters of the command itself, which are left out.
        table: the options there are, by canonical name.

    Returns:
        Canonical input options to parsed values, and output options likewise.
    """
    own = set(also)
    words: Given = {k: v for k, v in params.items() if k not in own and v is not None and v != ()}
    for name, value in words.items():
        if name in table and (table[name].many or table[name].kind == "names"):
            words[name] = [word for part in value for word in part]
    words |= click.get_current_context().meta.get("dscalc.constants", {})
    from dscalc.specs.given import gather

    given = gather(words, table)
    output = {name: given.pop(name) for name in list(given) if table[name].group == "output"}
    return given, output
