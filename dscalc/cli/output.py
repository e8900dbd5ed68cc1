"""Where an answer goes: the screen, or a file that is replaced at once or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

Render = Callable[[str, bool | None], str]
_BY_SUFFIX = {".json": "json", ".csv": "csv", ".md": "markdown"}


def deliver(render: Render, output: Mapping[str, Any]) -> None:
    """Render an answer and write it.

    Args:
        render: form and colour (None: as the terminal has it) to text.
        output: the output options; a file's suffix chooses the form where ``--format`` is silent.
    """
    path = output.get("output")
    form = output.get("format") or _BY_SUFFIX.get(_suffix(path), "table")
    if path is None:
        click.get_text_stream("stdout").write(render(form, None))
        return
    from dscalc.report.export import write_file

    write_file(path, render(form, False), force=output.get("force", False))


def _suffix(path: str | None) -> str:
    return "." + path.rpartition(".")[2].lower() if path and "." in path else ""
