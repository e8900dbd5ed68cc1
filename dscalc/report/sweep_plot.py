"""The pictures of a sweep as one figure in a file; matplotlib is an extra, loaded here where it is used."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from dscalc.errors import InputError
from dscalc.report.sweep_figure import Bar, Curve, Figure, Front, ceiling_range, log_ticks, spread_out
from dscalc.units import GB, format_bytes, format_count, format_time

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FORMS = ("svg", "png")
INK = (
    "#0072b2",
    "#d55e00",
    "#009e73",
    "#b5558c",
    "#7a6a00",
    "#4a5568",
)  # apart for most who see few colours
SHAPES = ("o", "s", "^", "D", "v", "*")
PARTS = {
    "compute": "#0b7a5a",
    "host": "#c8102e",
    "tensor": "#0072b2",
    "context": "#56b4e9",
    "expert": "#a84e80",
    "data": "#e69f00",
    "messages": "#756700",
    "bubble": "#8c95a3",
    "optimizer": "#5b4ba3",
    "waiting for the slowest": "#8a3b12",
}
CEILING, QUIET = "#b3261e", "#5a6678"
INSTALL = "needs matplotlib; install it with: pip install 'dscalc[plot]'"


def form_of(path: str) -> str:
    """The form of a picture by the ending of its name.

    Raises:
        InputError: neither ``.svg`` nor ``.png``, or matplotlib is not installed.
    """
    from importlib.util import find_spec

    form = path.rpartition(".")[2].lower()
    if form not in FORMS:
        raise InputError("ends in neither .svg nor .png", where=f"--plot {path}")
    if find_spec("matplotlib") is None:
        raise InputError(INSTALL, where="--plot")
    return form


def sweep_plot(drawn: Figure, form: str, title: str) -> bytes:
    """Draw a sweep.

    Args:
        drawn: what to draw.
        form: ``svg`` or ``png``.
        title: over the whole figure.

    Returns:
        The bytes of the picture.

    Raises:
        InputError: matplotlib is not installed, or there is nothing to draw.
    """
    try:
        import matplotlib
        from matplotlib.figure import Figure as Canvas
    except ImportError:
        raise InputError(INSTALL, where="--plot") from None
    if not drawn.curves or not drawn.bars:
        raise InputError("has nothing to draw: no layout was found", where="--plot")
    front = drawn.front if drawn.front is not None and len(drawn.front.dots) > 1 else None
    rows = 0.34 * len(drawn.bars) + 1.6
    style: dict[Any, Any] = {
        "svg.hashsalt": "dscalc",
        "svg.fonttype": "none",
        "font.size": 10,
        "axes.spines.top": False,
    }
    with matplotlib.rc_context({**style, "axes.spines.right": False, "axes.axisbelow": True}):
        canvas = Canvas(figsize=(9.0, 4.6 + rows + (4.0 if front else 0.0)), layout="constrained")
        places: Any = canvas.subplots(3 if front else 2, 1, height_ratios=[4.6, rows, *([4.0] if front else [])])
        _scaling(places[0], drawn.curves)
        _breakdown(places[1], drawn.bars)
        if front is not None:
            _pareto(places[2], front)
        canvas.suptitle(title, fontsize=13, fontweight="bold")
        file = io.BytesIO()
        canvas.savefig(file, format=form, dpi=150, metadata={"Date": None} if form == "svg" else None)
    return file.getvalue()


def _scaling(axes: Axes, curves: Sequence[Curve]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    longest = max(curves, key=lambda curve: len(curve.marks))
    ends = [m.gpus for c in curves for m in c.marks]
    rates = [rate for c in curves for m in c.marks for rate in (m.low, m.high)]
    for n, curve in enumerate(curves):
        ink, shape = INK[n % len(INK)], SHAPES[n % len(SHAPES)]
        for searched in (True, False):
            marks = [m for m in curve.marks if m.searched == searched]
            if not marks:
                continue
            x, y = [m.gpus for m in marks], [m.tokens_per_s for m in marks]
            bars = [[m.tokens_per_s - m.low for m in marks], [m.high - m.tokens_per_s for m in marks]]
            fill = ink if searched else "white"
            label = curve.setup if searched else "not searched" if n == 0 else None
            axes.errorbar(x, y, yerr=bars, fmt=shape, color=ink, mfc=fill, capsize=3, label=label, zorder=3)
        x, y = [m.gpus for m in curve.marks], [m.tokens_per_s for m in curve.marks]
        known = sum(m.searched for m in curve.marks)
        axes.plot(x[:known], y[:known], color=ink)
        axes.plot(x[known - 1 :], y[known - 1 :], color=ink, linestyle="--")
        first = curve.marks[0]
        ideal = [first.tokens_per_s, curve.ideal * max(ends)]
        axes.plot([first.gpus, max(ends)], ideal, ":", color=QUIET, label="ideal" if n == 0 else None)
    axes.set_xlim(min(ends) / 1.15, max(ends) * 1.15)
    axes.set_ylim(min(rates) / 1.25, max(rates) * 1.25)
    for n, curve in enumerate(curves):
        _ceiling(axes, curve, n, len(curves))
    axes.set_xticks(spread_out(longest.marks, 12))
    axes.set_yticks(log_ticks(*axes.get_ylim(), 9))
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.yaxis.set_major_formatter(lambda value, _: format_count(value))
    axes.minorticks_off()
    axes.grid(alpha=0.3)
    axes.set_xlabel("GPUs")
    axes.set_ylabel("throughput [tokens/s]")
    axes.set_title("Scaling curve", loc="left")
    axes.legend(loc="upper left", frameon=False)


def _ceiling(axes: Axes, curve: Curve, n: int, many: int) -> None:
    if curve.ceiling.gpus is None:
        return
    ink = CEILING if many == 1 else INK[n % len(INK)]
    right = axes.get_xlim()[1]
    if curve.ceiling.gpus > right:
        return
    if curve.ceiling.low_gpus is not None and curve.ceiling.low_gpus != curve.ceiling.high_gpus:
        axes.axvspan(
            curve.ceiling.low_gpus, min(right, curve.ceiling.high_gpus or right), color=ink, alpha=0.12, linewidth=0
        )
    axes.axvline(curve.ceiling.gpus, color=ink, linestyle="--")
    words = f"{curve.setup}: " * (many > 1) + f"ceiling {ceiling_range(curve)}"
    axes.annotate(  # below the curve, where nothing else is
        words,
        (0.99, 0.04 + 0.07 * (many - 1 - n)),
        xycoords="axes fraction",
        ha="right",
        color=ink,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1.5},
    )


def _breakdown(axes: Axes, bars: Sequence[Bar]) -> None:
    many = len({b.setup for b in bars}) > 1
    names = [f"{b.setup}, {b.gpus:,}" if many else f"{b.gpus:,}" for b in bars]
    starts = [0.0] * len(bars)
    for part in PARTS:
        sizes = [sum(p.bytes for p in b.parts if p.name == part) for b in bars]
        if not any(sizes):
            continue
        axes.barh(range(len(bars)), sizes, left=starts, color=PARTS[part], label=part, edgecolor="white", linewidth=0.6)
        starts = [start + size for start, size in zip(starts, sizes, strict=True)]
    for n, b in enumerate(bars):
        axes.annotate(b.words, (b.total, n), xytext=(4, 0), textcoords="offset points", va="center")
    axes.set_yticks(range(len(bars)), names)
    axes.invert_yaxis()
    axes.margins(x=0.08)
    axes.set_ylabel("machine, GPUs" if many else "GPUs")
    axes.set_xlabel("GPU-hours for a billion tokens; communication counts where nothing hides it")
    axes.set_title("Where the GPUs' time goes", loc="left")
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)


def _pareto(axes: Axes, front: Front) -> None:
    best = [d for d in front.dots if d.front]
    rest = [d for d in front.dots if not d.front]
    axes.step([d.headroom_bytes / GB for d in best], [d.step_time_s for d in best], where="pre", color=INK[0])
    if rest:
        x, y = [d.headroom_bytes / GB for d in rest], [d.step_time_s for d in rest]
        axes.plot(x, y, "o", color=QUIET, mfc="white", label="others of the best", markersize=5)
    x, y = [d.headroom_bytes / GB for d in best], [d.step_time_s for d in best]
    axes.plot(x, y, "o", color=INK[0], label="nothing is faster with as much free", markersize=4)
    for d in front.dots:
        if d.chosen:
            x, y = [d.headroom_bytes / GB], [d.step_time_s]
            bars = [[d.step_time_s - d.low_s], [d.high_s - d.step_time_s]]
            words = f"best: {format_time(d.step_time_s)}, {format_bytes(d.headroom_bytes)} free"
            axes.errorbar(x, y, yerr=bars, fmt="D", color=PARTS["compute"], capsize=3, label=words, zorder=4)
    axes.yaxis.set_major_formatter(lambda value, _: format_time(value))
    axes.grid(alpha=0.3)
    axes.set_xlabel("free memory of the fullest GPU [GB]")
    axes.set_ylabel("step time")
    axes.set_title(f"Step time against free memory on {front.gpus:,} GPUs of {front.setup}", loc="left")
    axes.legend(loc="upper left", frameon=False)
