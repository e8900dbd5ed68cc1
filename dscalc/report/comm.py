"""The collectives of a layout on a screen, as a table, and in one line."""

from __future__ import annotations

import re
from textwrap import wrap
from typing import TYPE_CHECKING

from dscalc.answers.comm import ROW_KEYS
from dscalc.report.asides import assumed, defaults_of, option_words, value_words, warned
from dscalc.report.export import to_csv, to_json, to_markdown
from dscalc.report.screen import QUIET, STRONG, Cell, Screen, Span, grid
from dscalc.units import format_bytes, format_count, format_rate, format_time

if TYPE_CHECKING:
    from dscalc.answers.comm import CommAnswer, Row, Total
    from dscalc.answers.envelope import Assumption

AXES = {
    "dp": "data-parallel",
    "edp": "expert data-parallel",
    "tp": "tensor-parallel",
    "cp": "context-parallel",
    "ep": "expert-parallel",
    "etp": "expert tensor-parallel",
    "pp": "pipeline-parallel",
}
HEADINGS = (
    ("", "left"),
    ("group", "right"),
    ("tier", "left"),
    ("calls", "right"),
    ("sent", "right"),
    ("time", "right"),
    ("exposed", "right"),
    ("naive", "right"),
    ("each", "right"),
    ("by", "left"),
    ("what", "fill"),
)
MOST_DIGITS = 8  # of a call count before it is shortened


def render(
    answer: CommAnswer, form: str, *, explain: bool = False, quiet: bool = False, colour: bool | None = None
) -> str:
    """The answer in the form asked for.

    Args:
        answer: what ``comm`` returned.
        form: ``table``, ``json``, ``csv`` or ``markdown``.
        explain: formula, numbers and source under each collective.
        quiet: one line (of a table).
        colour: colour or not; None lets the terminal decide.

    Returns:
        Text that ends with a newline.
    """
    if form == "json":
        return to_json(answer.to_json())
    if form == "csv":
        return to_csv(({name: getattr(row, name) for name in ROW_KEYS} for row in answer.rows), ROW_KEYS)
    if form == "markdown":
        return _markdown(answer, explain)
    return line(answer) + "\n" if quiet else screen(answer, explain=explain, colour=colour)


def line(answer: CommAnswer) -> str:
    """The answer in one line."""
    trace = answer.trace
    if answer.case is None and trace is not None:
        sent = format_bytes(float(trace.sent_bytes.max()))
        return f"{len(trace.steps)} steps, {sent} sent by each of {len(trace.sent_bytes)} ranks"
    binding = answer.binding
    if binding is None:
        return "nothing is sent"
    total = answer.total
    return (
        f"{format_bytes(total.traffic_bytes)} sent per GPU and step in {format_time(total.time_s)}, "
        f"{format_time(total.exposed_s)} exposed; {binding.axis} takes longest ({format_time(binding.time_s)})"
    )


def screen(answer: CommAnswer, *, explain: bool = False, colour: bool | None = None) -> str:
    """The whole screen."""
    out = Screen(colour=colour)
    if answer.case is not None:
        _headline(out, answer)
        _collectives(out, answer, explain)
        _network(out, answer)
    _trace(out, answer)
    if answer.case is None:
        del out.lines[0]  # the blank before the only heading
    _assumed(out, answer)
    warned(out, answer.warnings)
    return out.text()


# ---------------------------------------------------------------------------------------------------------------- parts
def _headline(out: Screen, answer: CommAnswer) -> None:
    case = answer.case
    assert case is not None  # noqa: S101 - for the type checker
    spec = case.layout.spec
    degrees = [f"{name} {getattr(spec, name)}" for name in ("tp", "pp", "cp", "ep", "dp") if getattr(spec, name) > 1]
    degrees += [f"ZeRO-{spec.zero}"] if spec.zero else []
    gpus = f"{spec.gpus} GPU" + ("s" if spec.gpus > 1 else "") + (f" ({', '.join(degrees)})" if degrees else "")
    out.say(f"{format_count(case.counts.main)} parameters ({case.model.shape.name}), {gpus}")
    binding = answer.binding
    if binding is None:
        out.say("Nothing is sent: every group has one member", STRONG)
        return
    total = answer.total
    out.say(
        f"A GPU sends {format_bytes(total.traffic_bytes)} in a step of {_counted(spec.grad_accum, 'micro-batch')}; "
        f"the calls take {format_time(total.time_s)}, of which {format_time(total.exposed_s)} cannot hide",
        STRONG,
    )
    rows = answer.rows_of(binding.axis)
    slowest = max(rows, key=lambda r: r.time_s)
    share = f"{100 * binding.time_s / total.time_s:.0f} %"
    out.say(
        f"{AXES[binding.axis].capitalize()} groups take longest: {format_time(binding.time_s)} ({share}), chiefly "
        f"{slowest.op} over {slowest.tier} at {format_rate(slowest.traffic_bytes / slowest.time_s)} a GPU."
    )


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" + ("" if count == 1 else "es")


def _collectives(out: Screen, answer: CommAnswer, explain: bool) -> None:
    case = answer.case
    if not answer.rows or case is None:
        return
    where = f"stage {answer.stage} of {case.layout.spec.pp}; " if case.layout.spec.pp > 1 else ""
    out.head("What one GPU sends in a step", f"{where}calls one after the other")
    rows: list[tuple[Cell, ...]] = []
    listed: list[Row | None] = []
    for total in answer.totals:
        rows.append(_total_cells(total, f"{total.axis}"))
        rows += [_cells(row) for row in answer.rows_of(total.axis)]
        listed += [None, *answer.rows_of(total.axis)]
    rows.append(_total_cells(answer.total, "total"))
    listed.append(None)
    notes = [_explained(row, out.width - 4) if explain and row is not None else [] for row in listed]
    drawn = grid(HEADINGS, rows, out.width)
    if not explain and not any(span.text.strip() == "what" for span in drawn[0][0]):  # too narrow: then under each row
        said = [("" if row is None else row.what) for row in listed]
        notes = [wrap(text, out.width - 4) for text in said]
    for lines, below in zip(drawn, [[], *notes], strict=True):
        out.add(*lines)
        out.add(*([Span(f"    {text}", QUIET)] for text in below))
    straddles = " (! straddles domains)" if any(row.misaligned for row in answer.rows) else ""
    out.say(
        f"group: members / worst-placed in one domain{straddles}; exposed: what no computing can hide; naive: gathered "
        "at one root and broadcast.",
        QUIET,
    )


def _cells(row: Row) -> tuple[Cell, ...]:
    mark = "!" if row.misaligned else ""
    return (
        f"  {row.op}",
        f"{mark}{row.group}/{row.members_inside}",
        row.tier,
        _calls(row.count),
        format_bytes(row.traffic_bytes),
        format_time(row.time_s),
        format_time(row.exposed_s),
        format_time(row.naive_time_s) if row.naive_time_s != row.time_s else "",
        format_bytes(row.bytes),
        row.algorithm,
        row.what,
    )


def _total_cells(total: Total, label: str) -> tuple[Cell, ...]:
    sums = (format_bytes(total.traffic_bytes), format_time(total.time_s), format_time(total.exposed_s))
    return tuple(Span(cell, STRONG) for cell in (label, "", "", "", *sums, "", "", "", AXES.get(label, "")))


def _calls(count: float) -> str:
    return f"{count:,.0f}" if len(f"{count:,.0f}") <= MOST_DIGITS else format_count(count)


def _network(out: Screen, answer: CommAnswer) -> None:
    if answer.network is None or not answer.rows:
        return
    used = {row.tier for row in answer.rows} | {answer.network.network.tiers[0].name}
    parts = []
    for tier in answer.network.network.tiers:
        if tier.name not in used or float(tier.gpus[0]) <= 1.0:
            continue
        held = f" of {tier.gpus[0]:.0f} GPUs" if float(tier.gpus[0]) < float("inf") else ""
        over = f", oversubscribed {tier.oversubscription[0]:g} times" if float(tier.oversubscription[0]) > 1 else ""
        parts.append(
            f"{tier.name}{held}: {format_rate(float(tier.bandwidth_bytes_per_s[0]))} a GPU one way, "
            f"{100 * float(tier.efficiency[0]):.0f} % of it in large rings{over}, "
            f"{format_time(float(tier.latency_s[0]))} a step"
        )
    out.head("Network", answer.network.network.name)
    for part in parts:
        out.say(part, hang=2)


def _trace(out: Screen, answer: CommAnswer) -> None:
    trace = answer.trace
    if trace is None:
        return
    ranks, elements = trace.steps[0].tensors.shape if trace.steps else (1, len(trace.total))
    size = elements * answer.trace_bytes
    note = f"{elements} elements of {answer.trace_bytes:g} bytes; each rank sends one chunk to the next"
    out.head(f"A ring of {ranks}", note)
    rows: list[tuple[Cell, ...]] = []
    for number, step in enumerate(trace.steps, start=1):
        sends = " ".join(str(chunk) for chunk in step.chunks)
        held = " ".join(_element(x) for x in step.tensors[0])
        rows.append((str(number), step.phase, sends, _bytes(step.sent_bytes), held))
    heads = [("step", "right"), ("", "left"), ("chunk sent by rank 0, 1, ...", "left"), ("bytes", "right")]
    out.table([*heads, ("rank 0 then holds", "fill")], rows)
    factor = f"2(K-1)/K n = 2 x {ranks - 1}/{ranks} x {size:g}"
    out.say(f"Each rank sent {_bytes(trace.sent_bytes)} bytes in {len(trace.steps)} steps: {factor}.", hang=2)
    out.say(f"Mean, the gradient to step with: [{', '.join(_element(x) for x in trace.mean)}].", hang=2)
    out.say(
        f"Undivided sum: [{', '.join(_element(x) for x in trace.total)}], which multiplies the learning rate of SGD by "
        f"{ranks}.",
        hang=2,
    )


def _element(value: float) -> str:
    text = f"{value:.4f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text


def _bytes(sent: object) -> str:
    sizes = sorted({float(x) for x in sent})  # type: ignore[attr-defined]
    return f"{sizes[0]:g}" if len(sizes) == 1 else f"{sizes[0]:g} to {sizes[-1]:g}"


def _assumed(out: Screen, answer: CommAnswer) -> None:
    network = [a for a in answer.assumptions if a.kind == "default" and a.name.startswith("network.")]
    plain = [*defaults_of(a for a in answer.assumptions if a not in network), *network]
    told = [a for a in answer.assumptions if a.kind == "assumed"]
    assumed(out, plain, [(option_words(a.name), _stated(a), a) for a in told])


def _stated(a: Assumption) -> str:
    if isinstance(a.value, float) and a.unit == "bytes/s":
        return format_rate(a.value)
    if isinstance(a.value, float) and a.unit == "s":
        return format_time(a.value)
    return f"{value_words(a.value)} {a.unit}".rstrip()


def _explained(row: Row, width: int) -> list[str]:
    """What it is, how large a call is, what that sends, with the numbers put in, and the source; wrapped."""
    formula, *rest = re.split(r", (?![^(]*\))", row.formula, maxsplit=1)  # not at a comma in parentheses
    words = "".join(rest)
    said = set(re.findall(r"[A-Za-z]\w*", f"{formula} {row.sent}")) - {"n"}
    numbers = ", ".join(f"{symbol} = {_number(value)}" for symbol, value in row.inputs.items() if symbol in said)
    sent = f"{_number(row.count)} calls x {row.sent} = {_number(row.traffic_bytes)} bytes"
    where = "in every stage" if row.stage == "every" else f"in the {row.stage} stage" + "s" * (" and " in row.stage)
    by = f"by {row.algorithm}"
    if row.measured:
        by = f"measured ({row.measured}), {format_time(row.low_s)} to {format_time(row.high_s)}"
    texts = [
        f"{row.what}, {where}; {by}, {100 * row.rate_share:.0f} % of the rate of large messages",
        f"= {formula}" + (f" ({words})" if words else ""),
        f"with {numbers}",
        f"n = {_number(row.bytes)} bytes a call; {sent}",
        f"source {row.source}",
    ]
    return [part for text in texts for part in wrap(text, max(40, width), subsequent_indent="  ")]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:,.6g}"


def _markdown(answer: CommAnswer, explain: bool) -> str:
    header = ["axis", "collective", "by", "group", "tier", "calls", "each", "sent", "time", "exposed", "naive"]
    header += ["what", *(["formula", "source"] if explain else [])]
    rows = []
    for row in answer.rows:
        cells = [row.axis, row.op, row.algorithm, f"{row.group}/{row.members_inside}", row.tier, f"{row.count:,.0f}"]
        cells += [format_bytes(row.bytes), format_bytes(row.traffic_bytes)]
        cells += [format_time(x) for x in (row.time_s, row.exposed_s, row.naive_time_s)]
        rows.append([*cells, row.what, *([row.formula, row.source] if explain else [])])
    total = answer.total
    sums = [format_bytes(total.traffic_bytes), *(format_time(x) for x in (total.time_s, total.exposed_s))]
    empty = ["", "", *(["", ""] if explain else [])]
    rows.append(["**total**", "", "", "", "", "", "", *sums, *empty])
    table = to_markdown(rows, header, right=(3, 5, 6, 7, 8, 9, 10)) if answer.case is not None else ""
    if answer.trace is None:
        return f"{line(answer)}\n\n{table}"
    steps = [
        [str(i), s.phase, " ".join(map(str, s.chunks)), _bytes(s.sent_bytes), " ".join(map(_element, s.tensors[0]))]
        for i, s in enumerate(answer.trace.steps, start=1)
    ]
    steps.append(["mean", "", "", _bytes(answer.trace.sent_bytes), " ".join(map(_element, answer.trace.mean))])
    steps.append(["sum", "", "", "", " ".join(map(_element, answer.trace.total))])
    ring = to_markdown(steps, ["step", "phase", "chunk sent by each rank", "bytes", "rank 0 then holds"], right=(3,))
    return f"{line(answer)}\n\n{table}" + ("\n" if table else "") + ring
