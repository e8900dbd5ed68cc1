"""The memory answer on a screen, as a table of terms, and in one line."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from rich.text import Text

from dscalc.report.export import to_csv, to_json, to_markdown
from dscalc.report.screen import BAD, GOOD, QUIET, STRONG, Scale, Screen, Segment, bar, grid, legend, scale_of
from dscalc.units import format_bytes, format_count

if TYPE_CHECKING:
    from dscalc.answers.memory import MemoryAnswer, Term

COLUMNS = ("path", "bytes", "formula", "source")
_BAR = (
    ("W", "weights", "blue", ("state/weights",)),
    ("G", "gradients", "cyan", ("state/gradients", "state/main_gradients")),
    ("O", "optimizer", "magenta", ("state/",)),
    ("A", "activations", "yellow", ("activations/",)),
    ("T", "transient", "green", ("transient/",)),
    ("F", "fixed", "white", ("fixed/",)),
    ("X", "other", "red", ("",)),
)
_MOMENTS = {
    "forward_end": "at the end of forward",
    "loss": "while the loss is computed",
    "backward_last_layer": "in backward of the last layer",
    "backward_first_layer": "in backward of the first layer",
    "optimizer_step": "in the optimizer step",
}
SHOWN_KNOBS = 9


def render(answer: MemoryAnswer, form: str, *, explain: bool = False, quiet: bool = False, colour: bool | None = None) -> str:
    """The answer in the form asked for.

    Args:
        answer: what ``memory`` returned.
        form: ``table``, ``json``, ``csv`` or ``markdown``.
        explain: formula, numbers and source under each term.
        quiet: one line (of a table).
        colour: colour or not; None lets the terminal decide.

    Returns:
        Text that ends with a newline.
    """
    if form == "json":
        return to_json(answer.to_json())
    if form == "csv":
        rows = [{"path": t.path, "bytes": t.bytes, "formula": t.formula, "source": t.source} for t in answer.terms]
        return to_csv(rows, COLUMNS)
    if form == "markdown":
        return _markdown(answer, explain)
    return line(answer) + "\n" if quiet else screen(answer, explain=explain, colour=colour)


def verdict(answer: MemoryAnswer) -> str:
    """Fits, does not fit, or cannot be said."""
    return {True: "fits", False: "does not fit", None: "needs"}[answer.fits]


def line(answer: MemoryAnswer) -> str:
    """The answer in one line."""
    of = f" of {format_bytes(answer.usable_bytes)}" if answer.usable_bytes is not None else ""
    on = f" on {answer.case.machine.gpu.id}" if answer.case.machine.gpu else " on one GPU"
    words = f"{verdict(answer)}: " if answer.fits is not None else "needs "
    best = next((k for k in answer.knobs if k.fits), None) if answer.fits is False else None
    return f"{words}{format_bytes(answer.total_bytes)}{of}{on}" + (f"; next: {best.option}" if best else "")


def screen(answer: MemoryAnswer, *, explain: bool = False, colour: bool | None = None) -> str:
    """The whole screen."""
    out = Screen(colour=colour)
    scale = scale_of(max(answer.total_bytes, answer.usable_bytes or 0.0))
    _headline(out, answer, scale)
    _terms(out, answer, scale, explain)
    _totals(out, answer, scale)
    _activations(out, answer, scale)
    _knobs(out, answer, scale)
    _minimum(out, answer)
    _assumed(out, answer)
    _warnings(out, answer)
    return out.text()


def _headline(out: Screen, answer: MemoryAnswer, scale: Scale) -> None:
    case, spec = answer.case, answer.case.layout.spec
    out.add(Text(f"{case.model.shape.name}, {format_count(case.counts.main)} parameters, {_layout_words(answer)}", style=STRONG))
    word = Text({True: "Fits.", False: "Does not fit.", None: "One GPU holds"}[answer.fits], style={True: GOOD, False: BAD}.get(answer.fits, STRONG))
    size = f" {scale.of(answer.total_bytes)} {scale.unit}"
    if answer.usable_bytes is not None and answer.headroom_bytes is not None and case.machine.gpu is not None:
        size += f" of {scale.of(answer.usable_bytes)} {scale.unit} ({format_bytes(answer.usable_bytes, binary=True)}) usable on {case.machine.gpu.id}; "
        room = abs(answer.headroom_bytes)
        size += f"{scale.of(room)} {scale.unit} {'to spare' if answer.headroom_bytes >= 0 else 'too much'}."
    else:
        size += f" ({format_bytes(answer.total_bytes, binary=True)})."
        size += "" if case.only_params else " Add --gpu to learn whether that fits."
    out.add(word + Text(size, style=STRONG))
    parts = _segments(answer.terms)
    out.add(Text(""))
    out.add(bar(parts, answer.usable_bytes, out.width - 2), indent=0)
    out.add(legend(parts, scale))
    del spec


def _layout_words(answer: MemoryAnswer) -> str:
    spec = answer.case.layout.spec
    degrees = [f"{name} {getattr(spec, name)}" for name in ("tp", "pp", "cp", "ep", "dp") if getattr(spec, name) > 1]
    zero = [f"ZeRO-{spec.zero}"] if spec.zero else []
    gpus = f"{spec.gpus} GPU" + ("s" if spec.gpus > 1 else "")
    return gpus + (f" ({', '.join(degrees + zero)})" if degrees or zero else "")


def _segments(terms: Sequence[Term]) -> list[Segment]:
    left = list(terms)
    parts: list[Segment] = []
    for letter, name, colour, prefixes in _BAR:
        mine = [t for t in left if t.path.startswith(prefixes)]
        left = [t for t in left if t not in mine]
        total = sum(t.bytes for t in mine)
        if total > 0:
            parts.append(Segment(letter, name, total, colour))
    return parts


def _terms(out: Screen, answer: MemoryAnswer, scale: Scale, explain: bool) -> None:
    out.head("What it is made of", f"{scale.unit} = {int(scale.factor):.0e} bytes".replace("e+0", "e"))
    rows: list[tuple[str | Text, ...]] = []
    order = list(dict.fromkeys(t.path.partition("/")[0] for t in answer.terms))
    ranked = sorted(answer.terms, key=lambda t: order.index(t.path.partition("/")[0]))
    for group, members in groupby(ranked, key=lambda t: t.path.partition("/")[0]):
        shown = [t for t in members if t.bytes > 0]
        if not shown:
            continue
        total = sum(t.bytes for t in shown)
        rows.append((Text(group, style=STRONG), Text(scale.of(total), style=STRONG), Text(_share(total, answer), style=STRONG)))
        for term in shown:
            rows.append((f"  {term.path.partition('/')[2]}", scale.of(term.bytes), _share(term.bytes, answer)))
            if explain:
                rows.extend((Text(f"      {text}", style=QUIET), "", "") for text in explained(term, out.width - 30))
    rows.append((Text("total", style=STRONG), Text(scale.of(answer.total_bytes), style=STRONG), Text("100 %", style=STRONG)))
    out.add(grid((("term", "fill"), (scale.unit, "right"), ("share", "right")), rows))


def _share(size: float, answer: MemoryAnswer) -> str:
    return f"{100 * size / answer.total_bytes:.1f} %"


def explained(term: Term, width: int) -> list[str]:
    """Formula, the numbers put in, and the source, wrapped."""
    import textwrap

    numbers = ", ".join(f"{symbol} = {value:,.6g}" for symbol, value in term.inputs.items())
    lines = [f"= {term.formula}", *([f"with {numbers}"] if numbers else []), f"source {term.source}"]
    return [part for text in lines for part in textwrap.wrap(text, width=max(40, width), subsequent_indent="  ")]


def _totals(out: Screen, answer: MemoryAnswer, scale: Scale) -> None:
    stages = answer.case.layout.spec.pp
    where = f"stage {answer.peak_stage} of {stages}, " if stages > 1 else ""
    rows = [
        ("allocated", scale.of(answer.allocated_bytes), "tensors alive at the peak (torch.cuda.max_memory_allocated)"),
        ("reserved", scale.of(answer.reserved_bytes), "with what the caching allocator keeps (max_memory_reserved)"),
        ("device", scale.of(answer.device_bytes), "with CUDA context and communicators (nvidia-smi)"),
        ("range", f"{scale.of(answer.low_bytes)} - {scale.of(answer.high_bytes)}", "of the total, by the error seen on measured runs"),
    ]
    if answer.host_bytes_per_node:
        rows.append(("host", scale.of(answer.host_bytes_per_node), "host memory of one node, for what is offloaded"))
    out.head("Three totals", scale.unit)
    out.add(grid((("", "left"), ("", "right"), ("", "fill")), rows, header=False))
    if len(answer.stages) > 1:
        stages_text = ", ".join(f"{s.stage}: {scale.of(s.bytes)}" for s in answer.stages)
        out.add(Text(f"By stage: {stages_text} {scale.unit}."))
    out.add(Text(f"Peak: {where}{_MOMENTS.get(answer.peak_moment, answer.peak_moment)}."))
    out.add(Text(f"Regime: {answer.remedy}."))


def _activations(out: Screen, answer: MemoryAnswer, scale: Scale) -> None:
    if not answer.case.only_params:
        return
    names = {"none": "all activations kept", "selective": "attention computed again", "full": "checkpointing: one input a layer kept"}
    rows = [(names[a.recompute], scale.of(a.bytes), scale.of(a.total_bytes)) for a in answer.activations]
    spec = answer.case.layout.spec
    out.head("Activations", f"{scale.unit}; one sequence of {spec.seq_len} tokens, {answer.case.model.shape.name}")
    out.add(grid((("", "left"), ("activations", "right"), ("total", "right")), rows))


def _knobs(out: Screen, answer: MemoryAnswer, scale: Scale) -> None:
    if not answer.knobs:
        return
    known = answer.fits is not None
    rows = []
    shown = answer.knobs if len(answer.knobs) <= SHOWN_KNOBS else (*answer.knobs[: SHOWN_KNOBS - 1], answer.knobs[-1])
    for knob in shown:
        fits = Text("fits" if knob.fits else "no", style=GOOD if knob.fits else QUIET)
        rows.append((knob.option, scale.of(knob.saves_bytes), scale.of(knob.total_bytes), *([fits] if known else []), knob.cost))
    out.head("What would help", f"{scale.unit}, each tried on this layout")
    columns = [("option", "left"), ("saves", "right"), ("then", "right"), *([("", "left")] if known else []), ("costs", "fill")]
    out.add(grid(columns, rows))


def _minimum(out: Screen, answer: MemoryAnswer) -> None:
    if not answer.minimum_gpus:
        return
    stages = sorted({m.zero_stage for m in answer.minimum_gpus})
    spec = answer.case.layout.spec
    rows = []
    for name, group in groupby(answer.minimum_gpus, key=lambda m: m.gpu):
        entries = {m.zero_stage: m for m in group}
        usable = next(iter(entries.values())).usable_bytes
        counts = [f"{entries[s].gpus:,}" if entries[s].gpus is not None else "never" for s in stages]
        rows.append((name, format_bytes(usable), *counts))
    kept = f"micro-batch {spec.micro_batch}, {spec.seq_len} tokens, recompute {spec.recompute}"
    out.head("Fewest GPUs that hold it", kept)
    out.add(grid((("GPU", "left"), ("usable", "right"), *((f"ZeRO-{s}", "right") for s in stages)), rows))


def _assumed(out: Screen, answer: MemoryAnswer) -> None:
    plain = [a for a in answer.assumptions if a.kind == "default"]
    other = [a for a in answer.assumptions if a.kind != "default"]
    out.head("Not given, so assumed", "change any by its option")
    if plain:
        values = [f"{_option(a.name)}\u00a0{_value(a.value)}" for a in plain if a.value is not None]
        out.add(Text("* " + ", ".join(values)))
    rows = [("*", a.name, _quantity(a.value, a.unit), f"{a.kind}: {a.source}") for a in other]
    out.add(grid((("", "left"), ("", "left"), ("", "left"), ("", "fill")), rows, header=False))


def _option(name: str) -> str:
    return name.replace("_", "-")


def _value(value: object) -> str:
    return {True: "on", False: "off"}.get(value, str(value)) if isinstance(value, bool) else str(value)


def _quantity(value: object, unit: str) -> str:
    if unit == "bytes" and isinstance(value, (int, float)):
        return format_bytes(float(value))
    return f"{value:g} {unit}".rstrip() if isinstance(value, float) else f"{_value(value)} {unit}".rstrip()


def _warnings(out: Screen, answer: MemoryAnswer) -> None:
    if not answer.warnings:
        return
    out.head("Warnings")
    out.add(grid((("", "left"), ("", "fill")), [("!", f"{w.message}. Next: {w.next_step}.") for w in answer.warnings], header=False))


def _markdown(answer: MemoryAnswer, explain: bool) -> str:
    scale = scale_of(answer.total_bytes)
    header = ["term", scale.unit, "share", *(["formula", "source"] if explain else [])]
    rows = [
        [t.path, scale.of(t.bytes), _share(t.bytes, answer), *([t.formula, t.source] if explain else [])]
        for t in answer.terms
        if t.bytes > 0
    ]
    rows.append(["**total**", scale.of(answer.total_bytes), "100 %", *(["", ""] if explain else [])])
    return f"{line(answer)}\n\n" + to_markdown(rows, header, right=(1, 2))
