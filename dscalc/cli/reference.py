"""Writes ``docs/reference/cli.md`` from the commands' own --help: ``python -m dscalc.cli.reference [--check] FILE``."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from dscalc.cli.main import COMMANDS, main
from dscalc.specs.option_table import CONSTANTS, OPTIONS, REFUSED, TABLE

WIDTH = 96
INTRO = """# Command line

Written by `python -m dscalc.cli.reference docs/reference/cli.md`; edit the option table and not this page.

Underscores and dashes are equal: `--micro_batch` is `--micro-batch`. Counts are `7B`, `7e9` or `7_000_000_000`; `k` is
1024 in `--seq-len` and `--tokens-per-rank` and 1000 elsewhere. `80GB` and `80GiB` differ, `400Gb/s` are bits and
`50GB/s` bytes.

Exit codes: 0 with an answer (also "does not fit"), 1 for files, profiles and options that contradict each other, 2 for
an option that cannot be read or is out of range, 3 when `--check` is given and the layout does not fit, 130 when
interrupted.
"""


def page() -> str:
    """The whole page."""
    top = click.Context(main, info_name="dscalc", terminal_width=WIDTH, **main.context_settings)
    parts = [INTRO, _help(main, top)]
    for name in COMMANDS:
        command = main.get_command(top, name)
        if command is not None:
            parts.append(_help(command, click.Context(command, info_name=name, parent=top, terminal_width=WIDTH)))
    return "\n".join([*parts, _spellings()])


def _help(command: click.Command, context: click.Context) -> str:
    return f"## {context.command_path}\n\n```text\n{command.get_help(context).strip()}\n```\n"


def _spellings() -> str:
    """Tables of the accepted spellings of other frameworks."""
    lines = ["## Other spellings", "", "| option | also |", "| --- | --- |"]
    lines += [f"| `{o.flag}` | {', '.join(f'`{flag}`' for flag in o.flags[1:])} |" for o in TABLE if o.aliases]
    lines += ["", "| flag | means |", "| --- | --- |"]
    for word, (target, value) in CONSTANTS.items():
        flag = OPTIONS[target].flag
        meaning = (
            {True: flag, False: flag.replace("--", "--no-", 1)}[value] if isinstance(value, bool) else f"{flag} {value}"
        )
        lines.append(f"| `--{word.replace('_', '-')}` | `{meaning}` |")
    lines += ["", "Refused, because they mean different things in different places:", ""]
    lines += [f"- `--{word.replace('_', '-')}` {why}." for word, why in REFUSED.items()]
    return "\n".join(lines) + "\n"


def write(arguments: list[str]) -> int:
    """Write the page, or with ``--check`` say whether the file is up to date."""
    paths = [a for a in arguments if a != "--check"]
    path = Path(paths[0] if paths else "docs/reference/cli.md")
    text = page()
    if "--check" not in arguments:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return 0
    if path.is_file() and path.read_text(encoding="utf-8") == text:
        return 0
    sys.stderr.write(f"{path} is out of date; run python -m dscalc.cli.reference {path}\n")
    return 1


if __name__ == "__main__":
    sys.exit(write(sys.argv[1:]))
