"""Charts of a terminal against drawings by hand and against the Braille table of Unicode."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dscalc.report.chart import ASCII, UNICODE, Axis, Chart, glyphs
from dscalc.report.screen import Line


def text(lines: list[Line]) -> list[str]:
    return ["".join(span.text for span in line).rstrip() for line in lines]


def axis(high: float) -> Axis:
    return Axis(0.0, high, [0.0, high], lambda v: f"{v:g}", float)


def test_line_and_marks_as_drawn_by_hand() -> None:
    """An even slope over 5 columns and 5 rows goes through every corner."""
    chart = Chart(axis(4.0), axis(4.0), 8, 5, ASCII)
    chart.line([(0.0, 0.0), (4.0, 4.0)], "")
    chart.mark(0.0, 0.0, "o", "")
    chart.mark(2.0, 2.0, "o", "")
    assert text(chart.lines()) == [
        "4 +    *",
        "  |   *",
        "  |  o",
        "  | *",
        "0 +o",
        "  ++---+",
        "   0   4",
    ]


def test_band_and_upright_line_as_drawn_by_hand() -> None:
    chart = Chart(axis(4.0), axis(1.0), 8, 2, ASCII)
    chart.band(1.0, 3.0, "")
    chart.band(5.0, 9.0, "")
    chart.vertical(2.0, "|", "")
    chart.vertical(9.0, "|", "")
    assert text(chart.lines())[:2] == ["1 + :|:", "0 + :|:"]


def test_braille_dots_are_those_of_unicode() -> None:
    """Dots 1, 5 of the upper left, and so on down a diagonal: U+2811 is dots 1 and 5, U+28A4 is dots 3, 6 and 8."""
    chart = Chart(axis(1.0), axis(1.0), 4, 1, UNICODE)
    chart.line([(0.0, 1.0), (0.0, 0.0)], "")  # the left column of a letter: dots 1, 2, 3 and 7
    assert chart.cells[0, 0].text == "\u2847"
    chart.line([(1.0, 1.0), (1.0, 0.0)], "")  # its right column too: all eight
    assert chart.cells[0, 0].text == "\u28ff"


@given(
    points=st.lists(st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)), min_size=1, max_size=6),
    width=st.integers(12, 60),
    height=st.integers(1, 12),
    letters=st.sampled_from([ASCII, UNICODE]),
)
def test_nothing_leaves_the_canvas(points: list[tuple[float, float]], width: int, height: int, letters: object) -> None:
    assert letters in (ASCII, UNICODE)
    chart = Chart(axis(1.0), axis(1.0), width, height, letters)  # type: ignore[arg-type]
    chart.band(*sorted((points[0][0], points[-1][0])), "")
    chart.dotted(points, "")
    chart.line(points, "")
    for x, y in points:
        chart.mark(x, y, "x", "")
    lines = text(chart.lines())
    assert len(lines) == height + 2
    assert max(map(len, lines)) <= width
    assert all(0 <= c < chart.width and 0 <= r < chart.height for c, r in chart.cells)


@pytest.mark.parametrize(
    ("encoding", "term", "found"),
    [("utf-8", "xterm", UNICODE), ("latin-1", "xterm", ASCII), ("cp1252", "xterm", ASCII), ("utf-8", "linux", ASCII)],
)
def test_letters_that_the_screen_lacks_are_not_used(
    encoding: str, term: str, found: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    import io
    import sys

    monkeypatch.setenv("TERM", term)
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(io.BytesIO(), encoding=encoding))
    assert glyphs() is found


def test_plain_letters_are_ascii() -> None:
    assert "".join(ASCII).isascii()
