"""Charts of measured against fitted: characters on a screen, or a file drawn by matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dscalc.errors import InputError
from dscalc.report.screen import QUIET, Line, Span
from dscalc.units import GB, format_rate, format_size

if TYPE_CHECKING:
    from dscalc.answers.fit_profile import Drawn

HEIGHT = 10  # lines of a chart
MARGIN = 11  # characters of its axis
WIDEST = 96
MEASURED, FITTED, BOTH = "o", "-", "@"
SUFFIXES = (".svg", ".png", ".pdf")
COLUMNS = 2  # of a file with several charts


def chart(drawn: Drawn, width: int) -> list[Line]:
    """One chart as lines of characters: bus bandwidth upwards, both axes logarithmic.

    Args:
        drawn: what to show.
        width: characters of the screen.

    Returns:
        Lines of at most ``width`` characters.
    """
    across = max(20, min(width, WIDEST) - MARGIN - 1)
    values = [*drawn.measured_bytes_per_s, *drawn.fitted_bytes_per_s]
    low, high = math.log(min(values)), math.log(max(values))
    left, right = math.log(drawn.size_bytes[0]), math.log(drawn.size_bytes[-1])
    field = [[" "] * across for _ in range(HEIGHT)]

    def put(size: float, rate: float, mark: str) -> None:
        column = round((math.log(size) - left) / ((right - left) or 1.0) * (across - 1))
        row = HEIGHT - 1 - round((math.log(rate) - low) / ((high - low) or 1.0) * (HEIGHT - 1))
        there = field[row][column]
        field[row][column] = mark if there in (" ", mark) else BOTH

    for size, rate in zip(drawn.fitted_size_bytes, drawn.fitted_bytes_per_s, strict=True):
        put(size, rate, FITTED)
    for size, rate in zip(drawn.size_bytes, drawn.measured_bytes_per_s, strict=True):
        put(size, rate, MEASURED)
    lines: list[Line] = []
    labels = {0: format_rate(max(values)), HEIGHT - 1: format_rate(min(values))}
    for number, cells in enumerate(field):
        lines.append([Span(labels.get(number, "").rjust(MARGIN - 1) + " |", QUIET), Span("".join(cells).rstrip())])
    first, last = format_size(drawn.size_bytes[0]), format_size(drawn.size_bytes[-1])
    lines.append([Span(" " * MARGIN + "+" + "-" * across, QUIET)])
    lines.append([Span(" " * (MARGIN + 1) + first + last.rjust(across - len(first)), QUIET)])
    return lines


def plot(path: str, drawn: Sequence[Drawn], *, force: bool) -> None:
    """Draw all charts into one file.

    Args:
        path: ends in .svg, .png or .pdf.
        drawn: what to show.
        force: replace a file that exists.

    Raises:
        InputError: another suffix, a file that exists, nothing to draw, or matplotlib is not installed.
    """
    target = Path(path).expanduser()
    where = f"--plot {path}"
    if target.suffix.lower() not in SUFFIXES:
        raise InputError(
            f"ends in {target.suffix or 'nothing'}; name a file that ends in {', '.join(SUFFIXES)}", where=where
        )
    if target.exists() and not force:
        raise InputError("exists; add --force to replace it", where=where)
    if not drawn:
        raise InputError("there is nothing to draw: no log has a table with two sizes", where=where)
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("needs matplotlib, which is not installed: pip install 'dscalc[plot]'", where=where) from None
    rows = -(-len(drawn) // COLUMNS)
    columns = min(COLUMNS, len(drawn))
    figure = Figure(figsize=(6.4 * columns, 4.2 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    for axes, each in zip(figure.subplots(rows, columns, squeeze=False).flat, drawn, strict=False):
        rate = [value / GB for value in each.measured_bytes_per_s]
        bar = [
            [r - value / GB for r, value in zip(rate, each.low_bytes_per_s, strict=True)],
            [value / GB - r for r, value in zip(rate, each.high_bytes_per_s, strict=True)],
        ]
        axes.errorbar(each.size_bytes, rate, yerr=bar, fmt="o", markersize=3, capsize=2, label="measured, 80 % bar")
        axes.plot(each.fitted_size_bytes, [v / GB for v in each.fitted_bytes_per_s], label="pieces")
        axes.set(xscale="log", yscale="log", xlabel="message [bytes]", ylabel="bus bandwidth [GB/s]", title=each.title)
        axes.legend()
        axes.grid(visible=True, alpha=0.3)
    for empty in list(figure.axes)[len(drawn) :]:
        empty.set_axis_off()
    part = target.with_name(f".{target.name[:40]}.part{target.suffix.lower()}")
    try:
        figure.savefig(part, metadata={"Date": None} if target.suffix.lower() == ".svg" else None)
        part.replace(target)
    except OSError as error:
        raise InputError(f"cannot be written ({error.strerror or error})", where=where) from None
    finally:
        part.unlink(missing_ok=True)
