"""Pictures as inline SVG: text that scales, reads aloud and takes its colours from the page around it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

LETTER = 0.56  # width of a letter over the size of its font, about


def element(name: str, *inner: str, **attributes: object) -> str:
    """One element; attributes are escaped, inner text is not; ``class_`` and ``stroke_width`` are written as SVG does.

    >>> element("text", escape("a < b"), x=1.5, class_="tick")
    '<text x="1.5" class="tick">a &lt; b</text>'
    """
    words = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_number(value), quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{words}>{''.join(inner)}</{name}>" if inner else f"<{name}{words}/>"


def _number(value: object) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".") if isinstance(value, float) else str(value)


def text(words: str, x: float, y: float, class_: str = "", anchor: str | None = None) -> str:
    """A line of text."""
    return element("text", escape(words), x=x, y=y, class_=class_ or None, text_anchor=anchor)


def width_of(words: str, size: float) -> float:
    """Width of a text, about."""
    return len(words) * size * LETTER


class Scale(NamedTuple):
    """Values on one axis to places in the picture; ``place`` is ``log`` or ``float``."""

    low: float
    high: float
    start: float
    end: float
    place: Callable[[float], float]

    def at(self, value: float) -> float:
        """Where a value lies; values outside lie on the edge."""
        low, high = self.place(self.low), self.place(self.high)
        share = (self.place(min(max(value, self.low), self.high)) - low) / (high - low) if high > low else 0.5
        return self.start + share * (self.end - self.start)


def axes(
    x: Scale,
    y: Scale,
    x_ticks: Sequence[float],
    y_ticks: Sequence[float],
    write_x: Callable[[float], str],
    write_y: Callable[[float], str],
    titles: tuple[str, str],
) -> list[str]:
    """Grid lines, ticks and titles with units."""
    parts = []
    for tick in y_ticks:
        parts.append(element("line", x1=x.start, x2=x.end, y1=y.at(tick), y2=y.at(tick), class_="grid"))
        parts.append(text(write_y(tick), x.start - 8, y.at(tick) + 4, "tick", "end"))
    for tick in x_ticks:
        parts.append(element("line", x1=x.at(tick), x2=x.at(tick), y1=y.start, y2=y.start + 5, class_="axis"))
        parts.append(text(write_x(tick), x.at(tick), y.start + 19, "tick", "middle"))
    parts.append(element("line", x1=x.start, x2=x.end, y1=y.start, y2=y.start, class_="axis"))
    parts.append(text(titles[0], (x.start + x.end) / 2, y.start + 40, "label", "middle"))
    parts.append(text(titles[1], x.start, y.end - 12, "label"))
    return parts


def picture(name: str, title: str, words: str, width: float, height: float, parts: Sequence[str]) -> str:
    """A whole picture with a title and a description that are read aloud."""
    return element(
        "svg",
        element("title", escape(title), id=f"{name}-title"),
        element("desc", escape(words), id=f"{name}-words"),
        *parts,
        viewBox=f"0 0 {width:.0f} {height:.0f}",
        role="img",
        aria_labelledby=f"{name}-title {name}-words",
        class_="picture",
    )
