"""Screens: one column of calm text that reads at 80 columns, in a pipe and without colour.

Lines are spans of text with a style; rich turns styles into colour and is loaded only where a terminal shows them.
"""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from dscalc.units import GB, KB, KILO, MB, TB

WIDEST = 140  # columns; longer lines are hard to read
NARROWEST = 60
_USUAL = 80
GAP = 2  # blanks between columns
LEAST_FILL = 18  # characters of a wrapping column
ONE_DECIMAL = KILO  # from here on one decimal suffices
GOOD, BAD, QUIET, STRONG, HEAD = "green", "red", "dim", "bold", "bold cyan"


class Span(NamedTuple):
    """Text in one style, in the words of rich (``bold red``); empty for plain text."""

    text: str
    style: str = ""


Cell = str | Span
Line = list[Span]


class Scale(NamedTuple):
    """One unit for a whole table, so that its numbers compare by eye."""

    factor: float
    unit: str

    def of(self, size_bytes: float) -> str:
        """A size in this unit with two decimals (one above a thousand)."""
        value = size_bytes / self.factor
        return f"{value:,.1f}" if abs(value) >= ONE_DECIMAL else f"{value:.2f}"


def scale_of(largest_bytes: float) -> Scale:
    """The unit for a table whose largest entry is this; GB up to many thousands of them."""
    steps = ((ONE_DECIMAL * TB, TB, "TB"), (GB, GB, "GB"), (MB, MB, "MB"))
    factor, unit = next(((f, u) for least, f, u in steps if largest_bytes >= least), (KB, "kB"))
    return Scale(float(factor), unit)


class Segment(NamedTuple):
    """A part of a stacked bar: a letter, a name, a size and a colour."""

    letter: str
    name: str
    bytes: float
    colour: str


def bar(segments: Sequence[Segment], capacity: float | None, width: int) -> Line:
    """A stacked bar whose parts read by letter as well as by colour; ``|`` marks the capacity, dots what is free.

    Args:
        segments: parts, in order.
        capacity: size of the whole where there is one [bytes].
        width: characters.

    Returns:
        A line of exactly ``width`` characters, empty where there is nothing to show.
    """
    total = sum(s.bytes for s in segments)
    full = max(total, capacity or 0.0)
    if full <= 0:
        return []
    cells = width - (1 if capacity else 0)
    marks: list[Span] = []
    done = 0.0
    for segment in segments:
        done += segment.bytes
        marks += [Span(segment.letter, f"black on {segment.colour}")] * (round(cells * done / full) - len(marks))
    marks += [Span(".", QUIET)] * (cells - len(marks))
    if capacity:
        marks.insert(round(cells * capacity / full), Span("|", STRONG))
    return [Span(letter * len(list(run)), style) for (letter, style), run in groupby(marks)]


def legend(segments: Sequence[Segment], scale: Scale, width: int, *, capacity: float | None = None) -> list[Line]:
    """Letters, names and sizes of a bar, on as many lines as they need."""
    lines: list[Line] = [[]]
    used = 0
    marks = [(Span(s.letter, f"black on {s.colour}"), f" {s.name} {scale.of(s.bytes)}") for s in segments]
    if capacity:
        marks.append((Span("|", STRONG), f" usable {scale.of(capacity)}"))
    for letter, words in marks:
        if used and used + GAP + 1 + len(words) > width:
            lines.append([])
            used = 0
        blank = " " * (GAP if used else 0)
        lines[-1] += [Span(blank), letter, Span(words)]
        used += len(blank) + 1 + len(words)
    return lines


def grid(
    columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[Cell]], width: int, *, header: bool = True
) -> list[list[Line]]:
    """A table without rules; columns that do not fit are left out from the right, the first always stays.

    Args:
        columns: heading and manner of each: ``left``, ``right``, or ``fill`` for those that share the rest and wrap.
        rows: cells.
        width: characters.
        header: show the headings.

    Returns:
        The lines of each row, the headings first.
    """
    cells = [[cell if isinstance(cell, Span) else Span(cell) for cell in row] for row in rows]
    if header:
        cells = [[Span(heading, QUIET) for heading, _ in columns], *cells]
    widths = _widths([how for _, how in columns], cells, width)
    return [_row(row, columns, widths) for row in cells]


def _row(row: Sequence[Span], columns: Sequence[tuple[str, str]], widths: Sequence[int]) -> list[Line]:
    wrapped = [_wrap(cell.text, w) for cell, w in zip(row, widths, strict=False)]
    lines: list[Line] = []
    for number in range(max(len(parts) for parts in wrapped)):
        line: Line = []
        for cell, parts, w, (_, how) in zip(row, wrapped, widths, columns, strict=False):
            part = parts[number] if number < len(parts) else ""
            line += [Span(part.rjust(w) if how == "right" else part.ljust(w), cell.style), Span(" " * GAP)]
        lines.append(line)
    return lines


def _widths(manners: Sequence[str], cells: Sequence[Sequence[Span]], width: int) -> list[int]:
    """Width of each column that fits; wrapping columns share what the others leave."""
    natural = [max((len(row[i].text) for row in cells), default=0) for i in range(len(manners))]
    while len(natural) > 1:
        least = sum(min(n, LEAST_FILL) if how == "fill" else n for n, how in zip(natural, manners, strict=False))
        if least + GAP * (len(natural) - 1) <= width:
            break
        natural.pop()
    rest = width - GAP * (len(natural) - 1) - sum(n for n, how in zip(natural, manners, strict=False) if how != "fill")
    fills = sorted((n, i) for i, n in enumerate(natural) if manners[i] == "fill")
    for left, (n, i) in zip(range(len(fills), 0, -1), fills, strict=True):
        natural[i] = max(1, min(n, rest // left))
        rest -= natural[i]
    return natural


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_on_hyphens=False) if len(text) > width else [text]


def _columns() -> int:
    """Width of the terminal: ``COLUMNS``, else what the terminal says, else 80."""
    given = os.environ.get("COLUMNS", "")
    if given.isdecimal() and int(given):
        return int(given)
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or _USUAL  # type: ignore[union-attr]
    except (AttributeError, OSError, ValueError):  # not a terminal
        return _USUAL


class Screen:
    """Collects lines and gives them at once, with colour on a terminal only."""

    def __init__(self, *, colour: bool | None = None, width: int | None = None) -> None:
        found = width or _columns()
        self.width = max(NARROWEST, min(WIDEST, found))
        terminal = sys.stdout.isatty() if colour is None else colour
        self.colour = terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        self.lines: list[Line] = []

    def add(self, *lines: Line) -> None:
        """Add lines as they are."""
        self.lines += lines

    def say(self, text: str, style: str = "", *, hang: int = 0) -> None:
        """Add a paragraph, wrapped; later lines hang in by some blanks. A no-break space keeps words together."""
        parts = textwrap.wrap(text, self.width, subsequent_indent=" " * hang, break_on_hyphens=False) or [""]
        self.add(*([Span(part, style)] for part in parts))

    def table(self, columns: Sequence[tuple[str, str]], rows: Iterable[Sequence[Cell]], *, header: bool = True) -> None:
        """Add a table as wide as the screen."""
        self.add(*(line for row in grid(columns, rows, self.width, header=header) for line in row))

    def head(self, text: str, note: str = "") -> None:
        """A heading after a blank line."""
        self.add([], [Span(text, HEAD), Span(f"  {note}" if note else "", QUIET)])

    def text(self) -> str:
        """Everything so far, without blanks at line ends."""
        lines = [_trimmed(line) for line in self.lines]
        if self.colour:
            return _coloured(lines, self.width)
        return "".join("".join(span.text for span in line) + "\n" for line in lines)


# A name from a file may hold what a terminal obeys, or what turns text around: only letters reach it.
_TURNS = (*range(0x200B, 0x2010), *range(0x2028, 0x202F), *range(0x2060, 0x2070), 0xFEFF)
_PLAIN = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0), *_TURNS), "\N{REPLACEMENT CHARACTER}") | {0xA0: " "}


def _trimmed(line: Line) -> Line:
    """The line with plain blanks for no-break ones, none at its end, and no control characters."""
    spans = [Span(span.text.translate(_PLAIN), span.style) for span in line]
    while spans and not spans[-1].text.rstrip():
        spans.pop()
    return [*spans[:-1], Span(spans[-1].text.rstrip(), spans[-1].style)] if spans else []


def _coloured(lines: Iterable[Line], width: int) -> str:
    import io

    from rich.console import Console
    from rich.text import Text

    file = io.StringIO()
    console = Console(file=file, width=width, force_terminal=True, highlight=False, markup=False, emoji=False)
    for line in lines:
        console.print(Text.assemble(*((span.text, span.style) for span in line)), soft_wrap=True)
    return file.getvalue()
