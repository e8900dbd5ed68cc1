"""The figure of a sweep in a file: what is written in it, where its error bars end; and one line without matplotlib."""

from __future__ import annotations

import importlib.util
import struct
import sys
import xml.etree.ElementTree as ET

import pytest

from dscalc.answers.sweep import SweepAnswer
from dscalc.errors import InputError
from dscalc.report import sweep_plot as plot
from dscalc.report.sweep_figure import ceiling_range, figure_of

here = pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed")


@here
def test_svg_is_readable_and_says_what_it_shows(plain: SweepAnswer) -> None:
    drawn = plot.sweep_plot(figure_of(plain), "svg", "A <title> & more")
    assert b"<dc:date>" not in drawn  # the same sweep gives the same file
    root = ET.fromstring(drawn)  # noqa: S314 - written a moment ago
    texts = {"".join(node.itertext()).strip() for node in root.iter("{http://www.w3.org/2000/svg}text")}
    wanted = (
        "A <title> & more",
        "GPUs",
        "throughput [tokens/s]",
        "dgx-h100",
        "ideal",
        "not searched",
        "compute",
        "data",
    )
    assert set(wanted) <= texts
    assert f"ceiling {ceiling_range(figure_of(plain).curves[0])}" in texts
    assert {"8", "16", "32", "64", "128"} <= texts
    assert any("GPU-hours" in text for text in texts)
    assert "free memory of the fullest GPU [GB]" in texts


@here
def test_error_bars_end_where_the_rows_say(plain: SweepAnswer) -> None:
    from matplotlib.figure import Figure

    axes = Figure().subplots()
    drawn = figure_of(plain)
    plot._scaling(axes, drawn.curves)
    ends = []
    for container in axes.containers:
        for (_, low), (_, high) in container.lines[2][0].get_segments():
            ends.append((low, high))
    marks = sorted(drawn.curves[0].marks, key=lambda m: m.gpus)
    assert sorted(ends) == [pytest.approx((m.low, m.high)) for m in sorted(marks, key=lambda m: m.low)]


@here
def test_png_is_a_picture(plain: SweepAnswer) -> None:
    drawn = plot.sweep_plot(figure_of(plain), "png", "one machine")
    assert drawn.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", drawn[16:24])
    assert 900 < width < 2000
    assert 1000 < height < 3000


@here
def test_nothing_to_draw(nothing: SweepAnswer) -> None:
    with pytest.raises(InputError, match="no layout was found"):
        plot.sweep_plot(figure_of(nothing), "svg", "")


def test_without_matplotlib_one_line_says_how_to_get_it(plain: SweepAnswer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(InputError, match=r"pip install 'dscalc\[plot\]'"):
        plot.form_of("a.svg")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"pip install 'dscalc\[plot\]'"):
        plot.sweep_plot(figure_of(plain), "svg", "")


@pytest.mark.parametrize("name", ["curve.pdf", "curve", "curve.svg.gz"])
def test_only_two_forms(name: str) -> None:
    with pytest.raises(InputError, match=r"neither \.svg nor \.png"):
        plot.form_of(name)
