"""Where an answer goes: the screen, or a file that is replaced at once or not at all."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, Protocol


class Render(Protocol):
    """Form and colour (None: as the terminal has it) to text."""

    def __call__(self, form: str, colour: bool | None) -> str:
        """Render."""


_BY_SUFFIX = {".json": "json", ".csv": "csv", ".md": "markdown"}


def deliver(render: Render, output: Mapping[str, Any]) -> None:
    """Render an answer and write it.

    Args:
        render: form and colour (None: as the terminal has it) to text.
        output: the output options; a file's suffix chooses the form where ``--format`` is silent.
    """
    path = output.get("output")
    form: str = output.get("format") or _BY_SUFFIX.get(_suffix(path), "table")
    if path in (None, "-"):
        sys.stdout.write(render(form, None))
        return
    from dscalc.report.export import write_file

    write_file(path, render(form, False), force=output.get("force", False))


def _suffix(path: str | None) -> str:
    return "." + path.rpartition(".")[2].lower() if path and "." in path else ""
