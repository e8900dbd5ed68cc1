"""Charts for a terminal: lines in Braille dots, marks and axes, or plain letters where an encoding lacks them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from dscalc.report.screen import QUIET, Line, Span

DOTS_ACROSS, DOTS_DOWN = 2, 4  # of one Braille letter
BRAILLE = 0x2800
BITS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # [down][across]


class Glyphs(NamedTuple):
    """Letters that a chart is made of."""

    marks: str  # one for each series
    beyond: str  # what was not searched
    ideal: str
    verticals: str  # one for each series
    band: str
    axis: str  # upright, corner, along, tick upright, tick along
    stroke: str  # of a line; empty where Braille dots draw it


UNICODE = Glyphs("●■▲◆▼★", "○", "·", "│┆║╎╏┊", "░", "│└─┤┬", "")
ASCII = Glyphs("ox+#%&", ".", "'", "|!;[]/", ":", "|+-++", "*")


def glyphs() -> Glyphs:
    """Letters that the screen can show: a text console has few in its font, and an encoding may lack them."""
    if os.environ.get("TERM") == "linux":
        return ASCII
    try:
        ("".join(UNICODE) + chr(BRAILLE)).encode(sys.stdout.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return UNICODE


class Axis(NamedTuple):
    """One axis: range, ticks, how a tick is written, and how a value is laid out (``log`` or as it is)."""

    low: float
    high: float
    ticks: Sequence[float]
    write: Callable[[float], str]
    place: Callable[[float], float]

    def at(self, value: float) -> float:
        """Where a value lies, 0 to 1."""
        low, high = self.place(self.low), self.place(self.high)
        return (self.place(value) - low) / (high - low) if high > low else 0.5


class Chart:
    """A canvas of letters; what is drawn later covers what was drawn before, and lines cover shades."""

    def __init__(self, x: Axis, y: Axis, width: int, height: int, letters: Glyphs) -> None:
        self.x, self.y, self.letters = x, y, letters
        self.margin = max(len(y.write(tick)) for tick in y.ticks) if y.ticks else 0
        self.width, self.height = width - self.margin - 2, height
        self.across, self.down = (1, 1) if letters.stroke else (DOTS_ACROSS, DOTS_DOWN)
        self.cells: dict[tuple[int, int], Span] = {}
        self.dots: dict[tuple[int, int], int] = {}

    def _column(self, x: float) -> int:
        """The column of a value, the nearest one for what lies outside."""
        return round(min(1.0, max(0.0, self.x.at(x))) * (self.width * self.across - 1)) // self.across

    def _row(self, y: float) -> int:
        return round((1.0 - min(1.0, max(0.0, self.y.at(y)))) * (self.height * self.down - 1)) // self.down

    def band(self, low: float, high: float, style: str) -> None:
        """Shade a range of x, as far as it is on the canvas."""
        if low > self.x.high or high < self.x.low:
            return
        for column in range(self._column(low), self._column(high) + 1):
            for row in range(self.height):
                self.cells[column, row] = Span(self.letters.band, style)

    def vertical(self, x: float, letter: str, style: str) -> None:
        """An upright line; outside the canvas there is none."""
        if 0.0 <= self.x.at(x) <= 1.0:
            for row in range(self.height):
                self.cells[self._column(x), row] = Span(letter, style)

    def dotted(self, points: Sequence[tuple[float, float]], style: str) -> None:
        """A line of single letters, one in each column."""
        found = {c // self.across: r // self.down for c, r in self._raster(points)}
        for column, row in found.items():
            self.cells[column, row] = Span(self.letters.ideal, style)

    def line(self, points: Sequence[tuple[float, float]], style: str) -> None:
        """A line through points."""
        for column, row in self._raster(points):
            cell = column // self.across, row // self.down
            letter = self.letters.stroke
            if not letter:
                self.dots[cell] = self.dots.get(cell, 0) | BITS[row % self.down][column % self.across]
                letter = chr(BRAILLE + self.dots[cell])
            self.cells[cell] = Span(letter, style)

    def mark(self, x: float, y: float, letter: str, style: str) -> None:
        """One point."""
        self.cells[self._column(x), self._row(y)] = Span(letter, style)

    def _raster(self, points: Sequence[tuple[float, float]]) -> list[tuple[int, int]]:
        """Dots of a line, without gaps; outside the canvas there are none."""
        wide, high = self.width * self.across, self.height * self.down
        ends = [(self.x.at(x) * (wide - 1), (1.0 - self.y.at(y)) * (high - 1)) for x, y in points]
        found: dict[tuple[int, int], None] = {}
        for (x0, y0), (x1, y1) in pairwise(ends):
            steps = max(1, round(abs(x1 - x0)), round(abs(y1 - y0)))
            for n in range(steps + 1):
                column, row = round(x0 + (x1 - x0) * n / steps), round(y0 + (y1 - y0) * n / steps)
                if 0 <= column < wide and 0 <= row < high:
                    found[column, row] = None
        return list(found)

    def lines(self) -> list[Line]:
        """The chart with its axes."""
        upright, corner, along, side, foot = tuple(self.letters.axis)
        labels = {self._row(tick): self.y.write(tick) for tick in self.y.ticks}
        found: list[Line] = []
        for row in range(self.height):
            edge = f"{labels.get(row, ''):>{self.margin}} {side if row in labels else upright}"
            found.append([Span(edge, QUIET), *(self.cells.get((c, row), Span(" ")) for c in range(self.width))])
        base, names = [along] * self.width, [" "] * (self.width + self.margin + 2)
        free = 0
        for value in self.x.ticks:
            column, text = self._column(value), self.x.write(value)
            start = max(0, min(len(names) - len(text), column + self.margin + 2 - len(text) // 2))
            base[column] = foot
            if start >= free:
                names[start : start + len(text)] = text
                free = start + len(text) + 1
        found.append([Span(" " * (self.margin + 1) + corner + "".join(base), QUIET)])
        found.append([Span("".join(names), QUIET)])
        return found
