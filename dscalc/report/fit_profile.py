"""Fits, what a GPU sustains, the shipped cluster beside it, and measured steps: the later parts of ``dscalc fit``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dscalc.report.fit_chart import BOTH, FITTED, MEASURED, chart
from dscalc.report.screen import BAD, GOOD, QUIET, STRONG, Cell, Screen, Span
from dscalc.units import format_flop_rate, format_rate, format_size, format_time

if TYPE_CHECKING:
    from dscalc.answers.fit_compare import Beside
    from dscalc.answers.fit_profile import Profiled

MOST_CHARTS = 2
WIDE = 0.3  # of a rate: a standard error beyond it says that products were too small to tell what large ones reach
WORDS = {
    "compute_factor": "all that the GPU computes",
    "attention_factor": "attention, on top of that",
    "host_factor": "the host's launches",
    "communication_factor": "communication that is not hidden",
}


def sections(out: Screen, answer: Profiled, *, explain: bool = False) -> None:
    """Add everything that fits say to a screen.

    Args:
        out: the screen.
        answer: what ``profiled`` returned.
        explain: pieces and sources under each fit, and a chart of every one.
    """
    _fits(out, answer, explain)
    _charts(out, answer, explain)
    sustained(out, answer)
    _compared(out, answer)
    _steps(out, answer)
    if answer.profile_path:
        out.head("Profile", f"{answer.profile_path}, for --profile of memory, comm, step and sweep")


def _within(value: str, stderr: str) -> str:
    return f"{value} ± {stderr}"


FIT_HEADINGS = (
    *(("", "left"), ("ranks", "right"), ("nodes", "right"), ("latency", "right"), ("bus bandwidth", "right")),
    *(("bar", "right"), ("pieces", "right"), ("measured", "left")),
)


def fit_cells(answer: Profiled) -> list[tuple[str, ...]]:
    """The fits under ``FIT_HEADINGS``."""
    rows: list[tuple[str, ...]] = []
    for fit in answer.fits:
        rate, latency = fit["busbw_bytes_per_s"], fit["latency_s"]
        share = fit["bandwidth_stderr_bytes_per_s"] / fit["bandwidth_bytes_per_s"] if rate else 0.0
        rows.append(
            (
                fit["op"],
                f"{fit['ranks']:,}",
                f"{fit['nodes']:,}",
                _within(format_time(latency), format_time(fit["latency_stderr_s"])) if latency else "not identified",
                _within(format_rate(rate), f"{share:.1%}") if rate else "not identified",
                f"{fit['median_error_fraction']:.1%}",
                f"{len(fit['pieces'])}",
                " to ".join(dict.fromkeys(format_size(fit["sizes_bytes"][end]) for end in (0, -1))),
            )
        )
    return rows


def _fits(out: Screen, answer: Profiled, explain: bool) -> None:
    rows = fit_cells(answer)
    if not rows:
        return
    out.head("Fits", "± one standard error; bar: 80 % of a size left out lies within")
    out.table(FIT_HEADINGS, rows)
    if not explain:
        return
    for fit in answer.fits:
        out.say(f"{fit['op']} of {fit['ranks']} ranks: {fit['source']}, {fit['n']} times", QUIET, hang=2)
        for piece in fit["pieces"]:
            out.say(
                f"  {format_size(piece['min_bytes'])} to {format_size(piece['max_bytes'])}: "
                f"{format_time(piece['latency_s'])} + size / {format_rate(piece['bandwidth_bytes_per_s'])}, "
                f"{piece['points']} sizes, {piece['median_residual_fraction']:.1%} off in the median",
                QUIET,
                hang=4,
            )


def _charts(out: Screen, answer: Profiled, explain: bool) -> None:
    drawn = answer.charts
    shown = drawn if explain else drawn[:MOST_CHARTS]
    for each in shown:
        out.head(f"Bus bandwidth, {each.title}", f"{MEASURED} measured  {FITTED} pieces  {BOTH} both")
        out.add(*chart(each, out.width))
    if len(drawn) > len(shown):
        out.say(f"{len(drawn) - len(shown)} more with --explain, or all in a file with --plot.", QUIET)


def sustained_cells(answer: Profiled) -> list[tuple[str, ...]]:
    """What one GPU sustains: of what, the rate, rows behind it, a remark."""
    rows: list[tuple[str, ...]] = []
    for each in answer.compute:
        if each["kind"] == "gemm":
            share = each["flop_per_s_stderr"] / each["flop_per_s"]
            ramp = f"half of a tile lost at {each['ramp']:.0f}" if each["ramp"] else "too few or too like for a ramp"
            what = f"{each['dtype'] or ''} matrix products".strip()
            rate = _within(format_flop_rate(each["flop_per_s"]), f"{share:.1%}")
            if share > WIDE:
                rate, ramp = "not identified", f"best {format_flop_rate(each['best_flop_per_s'])}"
            rows.append((what, rate, f"{each['points']}", ramp))
            for part in each["classes"]:
                ends = dict.fromkeys(f"{part[end]:.0e}" for end in ("least_flop", "most_flop"))
                span = f"  of {' to '.join(ends)} FLOP"
                rates = (format_flop_rate(part[end]) for end in ("low_flop_per_s", "high_flop_per_s"))
                spread = " to ".join(dict.fromkeys(rates))
                rows.append((span, format_flop_rate(part["median_flop_per_s"]), f"{part['points']}", spread))
        elif each["kind"] == "memory_copy":
            share = each["bytes_per_s_stderr"] / each["bytes_per_s"]
            rows.append(("memory", _within(format_rate(each["bytes_per_s"]), f"{share:.1%}"), f"{each['points']}", ""))
        else:
            rows.append(("a launch", format_time(each["time_s"]), f"{each['points']}", ""))
    return rows


def sustained(out: Screen, answer: Profiled) -> None:
    """Add what one GPU sustains."""
    rows = sustained_cells(answer)
    if rows:
        out.head("What one GPU sustains", "large products; spread: the middle 80 %")
        out.table([("", "left"), ("", "right"), ("rows", "right"), ("", "left")], rows)


COMPARED_HEADINGS = (
    *(("", "left"), ("measured", "right"), ("usual", "right"), ("share", "right"), ("published", "right")),
    ("small: measured / usual", "right"),
)


def compared_cells(answer: Profiled) -> list[tuple[Cell, ...]]:
    """Measured beside the shipped cluster, under ``COMPARED_HEADINGS``."""
    rows: list[tuple[Cell, ...]] = []
    if answer.beside is None:
        return rows
    for each in answer.beside.groups:
        style = BAD if each.verdict == "slow" else GOOD if each.verdict == "usual" else STRONG
        published = format_rate(each.published_busbw_bytes_per_s) if each.published_busbw_bytes_per_s else ""
        small = ""
        if each.latency_s is not None and each.usual_latency_s is not None:
            small = f"{format_time(each.latency_s)} / {format_time(each.usual_latency_s)}"
        rows.append(
            (
                each.key.words,
                format_rate(each.busbw_bytes_per_s),
                format_rate(each.usual_busbw_bytes_per_s),
                Span(f"{each.fraction:.0%}", style),
                published,
                small,
            )
        )
    for kernel in answer.beside.kernels:
        rate = format_rate if kernel.what == "memory" else format_flop_rate
        style = BAD if kernel.verdict == "slow" else GOOD
        share = Span(f"{kernel.fraction:.0%}", style)
        rows.append((f"{kernel.what} of one GPU", rate(kernel.measured), rate(kernel.usual), share, "", ""))
    return rows


def _compared(out: Screen, answer: Profiled) -> None:
    found = answer.beside
    if found is None:
        return
    usual = found.cluster.id
    out.head(f"Beside {usual}", "bus bandwidth of the largest message, and a small one's time")
    out.say(why_words(found), QUIET)
    rows = compared_cells(answer)
    if rows:
        out.table(COMPARED_HEADINGS, rows)
    else:
        out.say("Nothing is known of that kind to compare with.", QUIET)
    slow: dict[tuple[str, ...], list[str]] = {}
    for each in found.groups:
        slow.setdefault(each.causes, []).append(f"{each.key.op} of {each.key.ranks}")
    for kernel in found.kernels:
        slow.setdefault(kernel.causes, []).append(kernel.what)
    for causes, names in slow.items():
        if causes:
            out.say(f"What usually slows {', '.join(names)}:")
            for cause in causes:
                out.say(f"- {cause}", hang=2)
    out.say(effect_words(found), QUIET if isinstance(found.effect, str) else STRONG)


def effect_words(found: Beside) -> str:
    """What the difference does to a step, or why that is not known."""
    effect = found.effect
    if isinstance(effect, str):
        return effect
    return (
        f"A step of {effect.words}: {format_time(effect.usual_s)} as {found.cluster.id} is described, "
        f"{format_time(effect.measured_s)} as measured ({effect.measured_s / effect.usual_s:.2f} times)."
    )


def why_words(found: Beside) -> str:
    """Why that cluster is set beside, as a sentence."""
    return f"{found.why[0].upper()}{found.why[1:]}."


def _steps(out: Screen, answer: Profiled) -> None:
    steps = answer.steps
    if steps is None:
        return
    out.head(f"Measured steps of {steps.stack}", f"{len(steps.rows)} of {steps.file}")
    rows: list[tuple[Cell, ...]] = [
        (name.replace("_", " "), f"{v.value:.3f} ± {v.stderr:.3f}", WORDS[name]) for name, v in steps.fit.values.items()
    ]
    rows += [(name.replace("_", " "), "not identified", WORDS[name]) for name in steps.fit.unknown]
    out.table([("", "left"), ("", "right"), ("time of", "left")], rows)
    if steps.fit.unknown:
        out.say("What is not identified stays as it ships.", QUIET)
    alone = len(steps.rows) == 1
    left_out = "" if alone else f", {steps.error('left_out_s'):.1%} for a step left out"
    out.say(
        f"{'Error' if alone else 'Median error'} {steps.error('before_s'):.1%} before, "
        f"{steps.error('after_s'):.1%} after{left_out}.",
        STRONG,
    )
    worst = sorted(steps.rows, key=lambda row: -abs(row.left_out_s / row.measured_s - 1.0))[:5]
    cells: list[tuple[Cell, ...]] = [
        (f"{row.line}", format_time(row.measured_s), format_time(row.after_s), format_time(row.left_out_s), row.words)
        for row in worst
    ]
    heads = [("line", "right"), ("measured", "right"), ("fitted", "right"), ("left out", "right")]
    out.table([*heads, ("furthest off", "fill")], cells)
