"""The step answer on a screen, as a table of terms, and in one line."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

from dscalc.report.asides import assumed, defaults_of, warned
from dscalc.report.export import to_csv, to_json, to_markdown
from dscalc.report.screen import BAD, GOOD, QUIET, STRONG, Cell, Scale, Screen, Segment, Span, bar, grid, legend
from dscalc.units import MICRO, MILLI, format_bytes, format_count, format_flop_rate, format_time

if TYPE_CHECKING:
    from dscalc.answers.step import StepAnswer, TimeTerm

COLUMNS = ("path", "seconds", "hidden_s", "formula", "source")
_BAR = (
    ("C", "compute", "green", ("compute/",)),
    ("H", "host", "red", ("overhead/host",)),
    ("T", "tensor", "blue", ("communication/tp",)),
    ("X", "context", "cyan", ("communication/cp",)),
    ("E", "expert", "magenta", ("communication/ep",)),
    ("D", "data", "yellow", ("communication/dp", "communication/fsdp")),
    ("P", "messages", "white", ("communication/pp",)),
    ("B", "bubble", "bright_black", ("pipeline/",)),
    ("O", "optimizer", "bright_blue", ("optimizer/", "overhead/step")),
    ("W", "waiting for the slowest", "bright_red", ("overhead/straggler",)),
)
SHOWN = 6  # explanations of a measured step
LEAST = 0.0005  # of the step: terms under it are not worth a line


def render(
    answer: StepAnswer, form: str, *, explain: bool = False, quiet: bool = False, colour: bool | None = None
) -> str:
    """The answer in the form asked for.

    Args:
        answer: what ``step`` returned.
        form: ``table``, ``json``, ``csv`` or ``markdown``.
        explain: formula and source under each term.
        quiet: one line (of a table).
        colour: colour or not; None lets the terminal decide.

    Returns:
        Text that ends with a newline.
    """
    if form == "json":
        return to_json(answer.to_json())
    if form == "csv":
        return to_csv([t._asdict() for t in answer.terms], COLUMNS)
    if form == "markdown":
        return _markdown(answer, explain)
    return line(answer) + "\n" if quiet else screen(answer, explain=explain, colour=colour)


def scale_of(seconds: float) -> Scale:
    """The unit for a table of times."""
    steps = ((1.0, "s"), (MILLI, "ms"))
    factor, unit = next(((f, u) for f, u in steps if seconds >= f), (MICRO, "us"))
    return Scale(float(factor), unit)


def line(answer: StepAnswer) -> str:
    """The answer in one line."""
    gpu = answer.case.machine.gpu
    rate = f"{format_count(answer.tokens_per_s)} tokens/s, MFU {answer.mfu:.1%} ({answer.mfu_convention})"
    on = f" on {answer.case.layout.spec.gpus} x {gpu.id}" if gpu else ""
    return f"{format_time(answer.step_time_s)} a step{on}, {rate}, bound by {answer.bound_by}"


def screen(answer: StepAnswer, *, explain: bool = False, colour: bool | None = None) -> str:
    """The whole screen."""
    out = Screen(colour=colour)
    scale = scale_of(answer.step_time_s)
    _headline(out, answer, scale)
    _terms(out, answer, scale, explain)
    _rates(out, answer)
    _measured(out, answer, scale)
    _assumed(out, answer)
    warned(out, answer.warnings)
    return out.text()


def _headline(out: Screen, answer: StepAnswer, scale: Scale) -> None:
    case, spec = answer.case, answer.case.layout.spec
    degrees = [f"{name} {getattr(spec, name)}" for name in ("tp", "pp", "cp", "ep", "dp") if getattr(spec, name) > 1]
    degrees += [f"ZeRO-{spec.zero}"] if spec.zero else []
    gpus = f"{spec.gpus} GPU" + ("s" if spec.gpus > 1 else "")
    words = f" ({', '.join(degrees)})" if degrees else ""
    out.say(f"{format_count(case.counts.main)} parameters ({case.model.shape.name}), {gpus}{words}, stack {spec.stack}")
    bars = f"{scale.of(answer.low_s)} - {scale.of(answer.high_s)}"
    out.say(
        f"A step takes {scale.of(answer.step_time_s)} {scale.unit} ({bars} by the error seen on measured runs), "
        f"bound by {answer.bound_by}",
        STRONG,
    )
    out.say(
        f"{scale.of(answer.lower_s)} {scale.unit} if compute hid all communication that it can, "
        f"{scale.of(answer.upper_s)} {scale.unit} if it hid none."
    )
    out.say("")
    parts = segments(answer.terms)
    out.add(bar(parts, None, out.width))
    out.add(*legend(parts, scale, out.width))


def segments(terms: Sequence[TimeTerm]) -> list[Segment]:
    """The parts of a time bar, each the sum of the exposed seconds under its name; slivers are left out."""
    found = []
    least = LEAST * sum(t.seconds for t in terms)
    for letter, name, colour, prefixes in _BAR:
        total = sum(t.seconds for t in terms if t.path.startswith(prefixes))
        if total > least:
            found.append(Segment(letter, name, total, colour))
    return found


def _share(seconds: float, answer: StepAnswer) -> str:
    return f"{100 * seconds / answer.step_time_s:.1f} %"


def _terms(out: Screen, answer: StepAnswer, scale: Scale, explain: bool) -> None:
    out.head("Where the time goes", f"{scale.unit}; hidden runs behind compute and adds nothing")
    rows: list[tuple[Cell, ...]] = []
    notes: list[list[str]] = []
    for group in dict.fromkeys(t.path.partition("/")[0] for t in answer.terms):
        members = [t for t in answer.terms if t.path.startswith(f"{group}/")]
        shown = [t for t in members if t.seconds + t.hidden_s > LEAST * answer.step_time_s]
        total = sum(t.seconds for t in members)
        if not shown:
            continue
        rows.append(tuple(Span(c, STRONG) for c in (group, scale.of(total), "", _share(total, answer))))
        notes.append([])
        for term in shown:
            hidden = scale.of(term.hidden_s) if term.hidden_s > LEAST * answer.step_time_s else ""
            rows.append(
                (f"  {term.path.partition('/')[2]}", scale.of(term.seconds), hidden, _share(term.seconds, answer))
            )
            notes.append(_explained(term, out.width - 4) if explain else [])
    rows.append(tuple(Span(c, STRONG) for c in ("step", scale.of(answer.step_time_s), "", "100 %")))
    notes.append([])
    table = grid((("", "left"), (scale.unit, "right"), ("hidden", "right"), ("share", "right")), rows, out.width)
    for lines, below in zip(table, [[], *notes], strict=True):
        out.add(*lines)
        for text in below:
            out.add([Span(f"    {text}", QUIET)])


def _explained(term: TimeTerm, width: int) -> list[str]:
    lines = [f"= {term.formula}", f"source {term.source}"]
    return [part for text in lines for part in wrap(text, width=max(40, width), subsequent_indent="  ")]


def _rates(out: Screen, answer: StepAnswer) -> None:
    memory = answer.memory
    of = f" of {format_bytes(memory.usable_bytes)} usable" if memory.usable_bytes is not None else ""
    fits = {True: Span("fits", GOOD), False: Span("does not fit", BAD), None: Span("")}[memory.fits]
    rows: list[tuple[Cell, ...]] = [
        ("tokens/s", f"{format_count(answer.tokens_per_s)}", f"{answer.tokens_per_s_per_gpu:,.0f} a GPU"),
        ("sequences/s", f"{answer.samples_per_s:,.2f}", f"{answer.case.layout.spec.global_batch:,} a step"),
        (
            "MFU",
            f"{answer.mfu:.1%}",
            f"convention {answer.mfu_convention}, {format_flop_rate(answer.model_flop_per_s_per_gpu)} a GPU",
        ),
        ("HFU", f"{answer.hfu:.1%}", "with what is computed again, attention as executed"),
    ]
    if answer.bubble_over_ideal > 0.0:
        rows.append(
            ("bubble", f"{answer.bubble_share:.1%}", f"of the pipeline; {answer.bubble_over_ideal:.1%} over its ideal")
        )
    out.head("Rates")
    out.table((("", "left"), ("", "right"), ("", "fill")), rows, header=False)
    out.head("Memory", "of the fullest GPU; `dscalc memory` splits it")
    out.table((("", "left"), ("", "left")), [(f"{format_bytes(memory.total_bytes)}{of}", fits)], header=False)


def _measured(out: Screen, answer: StepAnswer, scale: Scale) -> None:
    if answer.measured_s is None:
        return
    good = not answer.explanations and answer.verdict.startswith("agrees")
    out.head("Measured")
    words = (
        f"{scale.of(answer.measured_s)} {scale.unit} measured, {scale.of(answer.step_time_s)} {scale.unit} predicted: "
    )
    out.say(words + answer.verdict, GOOD if good else BAD)
    if good:
        return
    rows = [(e.what, scale.of(e.step_time_s), e.next_step) for e in answer.explanations[:SHOWN]]
    if not rows:
        out.say("Nothing that the model knows would explain it. Next: profile one step.", hang=2)
        return
    out.say("What could explain it, nearest first, each tried alone:")
    out.table((("if", "fill"), (f"then {scale.unit}", "right"), ("find out", "fill")), rows)


def _assumed(out: Screen, answer: StepAnswer) -> None:
    told = [a for a in answer.assumptions if a.name.startswith("step.") and a.name.split(".")[-1] in _TOLD]
    others = [
        (
            a.name.removeprefix("step."),
            f"{a.value:.3g} {a.unit}" if isinstance(a.value, float) else f"{a.value} {a.unit}",
            a,
        )
        for a in told
        if not a.name.startswith("step.error.")
    ]
    assumed(out, defaults_of(answer.assumptions), others)


_TOLD = ("gemm_fraction", "flash_fraction", "linear_gain", "host_layer_s", "elementwise", "error_fraction", "jitter")


def _markdown(answer: StepAnswer, explain: bool) -> str:
    scale = scale_of(answer.step_time_s)
    header = ["term", scale.unit, "hidden", "share", *(["formula", "source"] if explain else [])]
    rows = [
        [
            t.path,
            scale.of(t.seconds),
            scale.of(t.hidden_s),
            _share(t.seconds, answer),
            *([t.formula, t.source] if explain else []),
        ]
        for t in answer.terms
        if t.seconds + t.hidden_s > LEAST * answer.step_time_s
    ]
    rows.append(["**step**", scale.of(answer.step_time_s), "", "100 %", *(["", ""] if explain else [])])
    return f"{line(answer)}\n\n" + to_markdown(rows, header, right=(1, 2, 3))
