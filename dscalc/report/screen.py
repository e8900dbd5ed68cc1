"""Screens: one column of calm text that reads at 80 columns, in a pipe and without colour."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.console import Console, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from dscalc.units import GB, KB, MB, TB

WIDEST = 140  # columns; longer lines are hard to read
NARROWEST = 60
GOOD, BAD, QUIET, STRONG, HEAD = "green", "red", "dim", "bold", "bold cyan"


@dataclass(frozen=True, slots=True)
class Scale:
    """One unit for a whole table, so that its numbers compare by eye."""

    factor: float
    unit: str

    def of(self, size_bytes: float) -> str:
        """A size in this unit with two decimals (one above a thousand)."""
        value = size_bytes / self.factor
        return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.2f}"  # noqa: PLR2004


def scale_of(largest_bytes: float) -> Scale:
    """The unit for a table whose largest entry is this."""
    steps = ((TB, "TB"), (GB, "GB"), (MB, "MB"), (KB, "kB"))
    factor, unit = next((step for step in steps[1:] if largest_bytes >= step[0]), steps[-1])
    return Scale(float(factor), unit)


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of a stacked bar: a letter, a name, a size and a colour."""

    letter: str
    name: str
    bytes: float
    colour: str


def bar(segments: Sequence[Segment], capacity: float | None, width: int) -> Text:
    """A stacked bar whose parts read by letter as well as by colour; ``|`` marks the capacity, dots what is free.

    Args:
        segments: parts, in order.
        capacity: size of the whole where there is one [bytes].
        width: characters.

    Returns:
        Text of exactly ``width`` characters.
    """
    total = sum(s.bytes for s in segments)
    full = max(total, capacity or 0.0)
    if full <= 0:
        return Text("")
    cells = width - (1 if capacity else 0)
    text = Text()
    done, at = 0.0, 0
    for segment in segments:
        done += segment.bytes
        end = round(cells * done / full)
        text.append(segment.letter * (end - at), style=f"black on {segment.colour}")
        at = end
    text.append("." * (cells - at), style=QUIET)
    if capacity:
        edge = round(cells * capacity / full)
        text = text[:edge] + Text("|", style=STRONG) + text[edge:]
    return text


def legend(segments: Sequence[Segment], scale: Scale) -> Text:
    """Letters, names and sizes of a bar."""
    text = Text()
    for i, s in enumerate(segments):
        text.append("  " if i else "")
        text.append(s.letter, style=f"black on {s.colour}")
        text.append(f" {s.name} {scale.of(s.bytes)}".replace(" ", "\u00a0"))
    return text


def grid(columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[str | Text]], *, header: bool = True, gap: int = 2) -> Table:
    """A table without lines.

    Args:
        columns: heading and justification (``left``, ``right``, ``fill`` for the one that wraps) of each.
        rows: cells.
        header: show the headings.
        gap: blanks between columns.
    """
    table = Table(box=None, show_header=header, pad_edge=False, padding=(0, gap, 0, 0), header_style=QUIET, collapse_padding=True)
    for heading, how in columns:
        table.add_column(heading, justify="right" if how == "right" else "left", no_wrap=how != "fill", overflow="fold")
    for row in rows:
        table.add_row(*[cell if isinstance(cell, Text) else Text(cell) for cell in row])
    return table


class Screen:
    """Collects blocks and writes them at once, with colour on a terminal only."""

    def __init__(self, *, colour: bool | None = None, width: int | None = None) -> None:
        found = width or shutil.get_terminal_size((80, 24)).columns
        self.width = max(NARROWEST, min(WIDEST, found))
        terminal = sys.stdout.isatty() if colour is None else colour
        plain = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
        self.file = io.StringIO()
        self.console = Console(
            file=self.file, width=self.width, force_terminal=terminal and not plain, no_color=plain or not terminal,
            highlight=False, markup=False, emoji=False, legacy_windows=False,
        )

    def add(self, block: RenderableType, *, indent: int = 0) -> None:
        """Add a block below the last one."""
        self.console.print(Padding(block, (0, 0, 0, indent)) if indent else block)

    def head(self, text: str, note: str = "") -> None:
        """A heading after a blank line."""
        line = Text(f"\n{text}", style=HEAD)
        if note:
            line.append(f"  {note}", style="not bold dim")
        self.console.print(line)

    def text(self) -> str:
        """Everything so far, without blanks at line ends."""
        return "\n".join(line.rstrip() for line in self.file.getvalue().replace("\u00a0", " ").splitlines()) + "\n"
