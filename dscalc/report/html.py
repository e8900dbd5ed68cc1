"""Pieces of a page that needs nothing beside itself: everything that comes from outside is escaped here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from typing import Any, NamedTuple

# Nothing is loaded, sent or run, whatever a name may hold.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


class Html(NamedTuple):
    """Text that is markup already."""

    markup: str


Cell = str | Html


def safe(cell: Cell) -> str:
    """Markup as it is, text escaped."""
    return cell.markup if isinstance(cell, Html) else escape(cell)


def number(words: str, value: float | None) -> Cell:
    """A number as people read it, with its full value for machines."""
    return words if value is None else Html(f'<data value="{value!r}">{escape(words)}</data>')


def tag(name: str, *inner: Cell, class_: str = "") -> Html:
    """An element around text or markup.

    >>> tag("p", "a < b", class_="lead").markup
    '<p class="lead">a &lt; b</p>'
    """
    words = f' class="{class_}"' if class_ else ""
    return Html(f"<{name}{words}>{''.join(map(safe, inner))}</{name}>")


def table(
    caption: str,
    columns: Sequence[tuple[str, str]],
    rows: Iterable[Sequence[Cell]],
    *,
    marked: Sequence[int] = (),
) -> Html:
    """A table with a caption; columns are heading and manner (``left`` or ``right``), marked rows stand out.

    The first cell of each row is its heading.
    """
    heads = "".join(f'<th scope="col" class="{how}">{escape(heading)}</th>' for heading, how in columns)
    lines = []
    for n, row in enumerate(rows):
        cells = []
        for i, (cell, (_, how)) in enumerate(zip(row, columns, strict=True)):
            name, scope = ("td", "") if i else ("th", ' scope="row"')
            cells.append(f'<{name}{scope} class="{how}">{safe(cell)}</{name}>')
        mark = ' class="marked"' if n in marked else ""
        lines.append(f"<tr{mark}>{''.join(cells)}</tr>")
    label = escape(caption, quote=True)
    return Html(
        f'<div class="scroll" role="region" tabindex="0" aria-label="{label}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
    )


def figure(drawing: str, caption: str, *below: Cell) -> Html:
    """A picture with its caption; wide ones scroll on a narrow screen."""
    inside = "".join(map(safe, below))
    return Html(
        f'<figure><div class="scroll">{drawing}</div>{inside}<figcaption>{escape(caption)}</figcaption></figure>'
    )


def section(anchor: str, title: str, *inner: Cell) -> Html:
    """A part of the page with its heading."""
    inside = "".join(map(safe, inner))
    return Html(f'<section aria-labelledby="{anchor}"><h2 id="{anchor}">{escape(title)}</h2>{inside}</section>')


def legend(entries: Iterable[tuple[str, str]]) -> Html:
    """Swatches, by their class, and what they stand for."""
    items = "".join(f'<li><i class="{class_}"></i>{escape(words)}</li>' for class_, words in entries)
    return Html(f'<ul class="legend">{items}</ul>')


def embedded(answer: dict[str, Any]) -> Html:
    """The answer as JSON for machines; no text in it can end the element."""
    words = json.dumps(answer, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for letter in "<>&":
        words = words.replace(letter, f"\\u{ord(letter):04x}")
    return Html(f'<script type="application/json" id="answer">{words}</script>')


def contents(links: Iterable[tuple[str, str]]) -> Html:
    """Links to the sections of the page."""
    inside = "".join(f'<a href="#{anchor}">{escape(words)}</a>' for anchor, words in links)
    return Html(f'<nav aria-label="Contents">{inside}</nav>')


def page(title: str, body: Iterable[Html]) -> str:
    """The whole page: one file, no script that runs, nothing from elsewhere."""
    style = (files("dscalc.report") / "page.css").read_text(encoding="utf-8")
    inside = "\n".join(part.markup for part in body)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f'<a class="skip" href="#main">Skip to the answer</a>\n<main id="main">\n{inside}\n</main>\n</body>\n</html>\n'
    )
