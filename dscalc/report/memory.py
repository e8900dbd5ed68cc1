"""The memory answer on a screen, as a table of terms, and in one line."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby
from textwrap import wrap
from typing import TYPE_CHECKING

from dscalc.report.asides import assumed, defaults_of, option_words, value_words, warned
from dscalc.report.screen import (
    BAD,
    GOOD,
    QUIET,
    STRONG,
    Cell,
    Scale,
    Screen,
    Segment,
    Span,
    bar,
    grid,
    legend,
    scale_of,
)
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


_PLAIN = ("one", "gradient_bytes", "gathered_bytes", "reduced_bytes")  # quantities that are the term itself
_QUANTITIES = {
    "dense": "dense parameters",
    "matrix": "parameters of matrices",
    "other": "of embeddings, norms and biases",
    "expert": "expert parameters",
    "head": "of an untied head",
    "frozen_matrix": "frozen parameters of matrices",
    "frozen_other": "frozen, of embeddings, norms and biases",
    "frozen_expert": "frozen expert parameters",
    "step_dense": "dense parameters",
    "step_expert": "expert parameters",
    "live_layers": "layers in flight",
    "live_dense_layers": "dense layers in flight",
    "live_moe_layers": "expert layers in flight",
    "live_inputs": "layers in flight",
}


def render(
    answer: MemoryAnswer, form: str, *, explain: bool = False, quiet: bool = False, colour: bool | None = None
) -> str:
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
    if form != "table":
        return _file(answer, form, explain)
    return line(answer) + "\n" if quiet else screen(answer, explain=explain, colour=colour)


def _file(answer: MemoryAnswer, form: str, explain: bool) -> str:
    from dscalc.report.export import to_csv, to_json  # loaded where used: start-up counts

    if form == "json":
        return to_json(answer.to_json())
    if form == "csv":
        rows = [{"path": t.path, "bytes": t.bytes, "formula": t.formula, "source": t.source} for t in answer.terms]
        return to_csv(rows, COLUMNS)
    return _markdown(answer, explain)


def verdict(answer: MemoryAnswer) -> str:
    """Fits, does not fit, or cannot be said."""
    return {True: "fits", False: "does not fit", None: "needs"}[answer.fits]


def line(answer: MemoryAnswer) -> str:
    """The answer in one line."""
    of = f" of {format_bytes(answer.usable_bytes)}" if answer.usable_bytes is not None else ""
    on = f" on {answer.case.machine.gpu.id}" if answer.case.machine.gpu else " on one GPU"
    words = f"{verdict(answer)}: " if answer.fits is not None else "needs "
    best = answer.next_knob
    return f"{words}{format_bytes(answer.total_bytes)}{of}{on}" + (f"; next: {best.option}" if best else "")


def screen(answer: MemoryAnswer, *, explain: bool = False, colour: bool | None = None) -> str:
    """The whole screen."""
    out = Screen(colour=colour)
    scale = scale_of(max(answer.total_bytes, answer.usable_bytes or 0.0))
    _headline(out, answer, scale)
    _terms(out, answer, scale, explain)
    _totals(out, answer, scale, explain)
    _activations(out, answer, scale)
    _knobs(out, answer, scale)
    _minimum(out, answer)
    _assumed(out, answer)
    warned(out, answer.warnings)
    return out.text()


def _headline(out: Screen, answer: MemoryAnswer, scale: Scale) -> None:
    case, gpu = answer.case, answer.case.machine.gpu
    out.say(f"{format_count(case.counts.main)} parameters ({case.model.shape.name}), {_layout_words(answer)}")
    lead = {True: "Fits:", False: "Does not fit:", None: "One GPU holds"}[answer.fits]
    size = f"{lead} {scale.of(answer.total_bytes)}"
    if answer.usable_bytes is not None and answer.headroom_bytes is not None and gpu is not None:
        room = "to spare" if answer.headroom_bytes >= 0 else "too much"
        size += f" of {scale.of(answer.usable_bytes)} {scale.unit} "
        size += f"({format_bytes(answer.usable_bytes, binary=True)}) usable on {gpu.id},"
        size += f" {scale.of(abs(answer.headroom_bytes))} {scale.unit} {room}"
    else:
        size += f" {scale.unit} ({format_bytes(answer.total_bytes, binary=True)})"
        size += "" if gpu or case.only_params else "; add --gpu to learn whether that fits"
    out.say(size, {True: f"bold {GOOD}", False: f"bold {BAD}", None: STRONG}[answer.fits])
    if case.only_params:
        each = answer.state_bytes / case.counts.main
        out.say(
            f"State: {each:g} bytes x {format_count(case.counts.main)} = {scale.of(answer.state_bytes)} {scale.unit}; "
            f"the rest is for one sequence of {case.layout.spec.seq_len} tokens."
        )
    out.say("")
    parts = segments(answer.terms)
    out.add(bar(parts, answer.usable_bytes, out.width))
    out.add(*legend(parts, scale, out.width, capacity=answer.usable_bytes))


def _layout_words(answer: MemoryAnswer) -> str:
    spec = answer.case.layout.spec
    degrees = [f"{name} {getattr(spec, name)}" for name in ("tp", "pp", "cp", "ep", "dp") if getattr(spec, name) > 1]
    zero = [f"ZeRO-{spec.zero}"] if spec.zero else []
    gpus = f"{spec.gpus} GPU" + ("s" if spec.gpus > 1 else "")
    adapters = answer.case.adapters
    lora = ""
    if adapters is not None:
        base = answer.case.given.get("base_precision", "bf16")
        lora = f", rank-{adapters.rank} adapters on a frozen {base} base"
    return gpus + (f" ({', '.join(degrees + zero)})" if degrees or zero else "") + lora


def segments(terms: Sequence[Term]) -> list[Segment]:
    """The parts of a memory bar, each the sum of the terms under its name."""
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
    out.head("What it is made of", f"{scale.unit}, decimal")
    rows: list[tuple[Cell, ...]] = []
    notes: list[list[str]] = []  # lines below each row
    order = list(dict.fromkeys(_group(t) for t in answer.terms))
    for group, members in groupby(sorted(answer.terms, key=lambda t: order.index(_group(t))), key=_group):
        shown = [t for t in members if t.bytes > 0]
        if not shown:
            continue
        total = sum(t.bytes for t in shown)
        rows.append(tuple(Span(cell, STRONG) for cell in (group, scale.of(total), _share(total, answer))))
        notes.append([])
        for term in shown:
            rows.append((f"  {term.path.partition('/')[2]}", scale.of(term.bytes), _share(term.bytes, answer)))
            notes.append(explained(term, out.width - 4) if explain else [])
    rows.append(tuple(Span(cell, STRONG) for cell in ("total", scale.of(answer.total_bytes), "100 %")))
    notes.append([])
    table = grid((("", "left"), (scale.unit, "right"), ("share", "right")), rows, out.width)
    for lines, below in zip(table, [[], *notes], strict=True):
        out.add(*lines)
        for text in below:
            out.add([Span(f"    {text}", QUIET)])


def _group(term: Term) -> str:
    return term.path.partition("/")[0]


def _share(size: float, answer: MemoryAnswer) -> str:
    return f"{100 * size / answer.total_bytes:.1f} %"


def explained(term: Term, width: int) -> list[str]:
    """Formula, the numbers put in, and the source, wrapped."""
    said = set(re.findall(r"[A-Za-z]\w*", re.sub(r"\ba (?=[a-z]{2})", "", term.formula)))  # "a" is also a word
    numbers = ", ".join(f"{symbol} = {_number(value)}" for symbol, value in term.inputs.items() if symbol in said)
    lines = [f"= {term.formula}", *([f"with {numbers}"] if numbers else []), *_sum(term), f"source {term.source}"]
    return [part for text in lines for part in wrap(text, width=max(40, width), subsequent_indent="  ")]


def _sum(term: Term) -> list[str]:
    """What the term is the sum of, where its numbers say more than the term itself."""
    parts = [(each, name, count) for each, name, count in term.parts if each * count and name not in _PLAIN]
    if not parts:
        return []
    return [
        "that is " + " + ".join(f"{_number(each)} x {_number(count)} {_words(name)}" for each, name, count in parts)
    ]


def _words(name: str) -> str:
    return _QUANTITIES.get(name, name.replace("_", " "))


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:.6g}"


def _totals(out: Screen, answer: MemoryAnswer, scale: Scale, explain: bool) -> None:
    stages = answer.case.layout.spec.pp
    where = f"stage {answer.peak_stage} of {stages}, " if stages > 1 else ""
    between = f"{scale.of(answer.low_bytes)} - {scale.of(answer.high_bytes)}"
    rows = [
        ("allocated", scale.of(answer.allocated_bytes), "tensors alive at the peak (torch.cuda.max_memory_allocated)"),
        ("reserved", scale.of(answer.reserved_bytes), "with what the caching allocator keeps (max_memory_reserved)"),
        ("device", scale.of(answer.device_bytes), "with CUDA context and communicators (nvidia-smi)"),
        ("must fit", scale.of(answer.total_bytes), f"the total; {between} by the error seen on measured runs"),
    ]
    if answer.pending_bytes > 0:
        waiting = "of reserved: freed buffers that wait for the GPU; TORCH_NCCL_AVOID_RECORD_STREAMS=1 spares them"
        rows.append(("waiting", scale.of(answer.pending_bytes), waiting))
    if answer.host_bytes_per_node:
        rows.append(
            ("host", scale.of(answer.host_bytes_per_node), "memory of one host, with what is offloaded or loaded")
        )
    out.head("Totals", f"{scale.unit}; what each tool reports")
    out.table((("", "left"), ("", "right"), ("", "fill")), rows, header=False)
    if len(answer.stages) > 1:
        each = ", ".join(f"stage\u00a0{s.stage} {scale.of(s.bytes)}".replace(" ", "\u00a0") for s in answer.stages)
        out.say(f"By stage: {each}.", hang=2)
    out.say(f"Peak: {where}{_MOMENTS.get(answer.peak_moment, answer.peak_moment)}.")
    out.say(f"Regime: {answer.remedy}.", hang=2)
    if explain:
        for term in (t for t in answer.host_terms if t.bytes > 0):
            out.add([Span(f"{term.path} {scale.of(term.bytes)}")])
            out.add(*([Span(f"    {text}", QUIET)] for text in explained(term, out.width - 4)))


def _activations(out: Screen, answer: MemoryAnswer, scale: Scale) -> None:
    if answer.case.machine.gpu is not None:
        return
    names = {
        "none": "all activations kept",
        "selective": "attention computed again",
        "full": "checkpointing: one input a layer kept",
    }
    rows = [(names[a.recompute], scale.of(a.bytes), scale.of(a.total_bytes)) for a in answer.activations]
    spec = answer.case.layout.spec
    out.head("Activations", f"{scale.unit}; one sequence of {spec.seq_len} tokens")
    out.table((("", "left"), ("activations", "right"), ("with all else", "right")), rows)


def _knobs(out: Screen, answer: MemoryAnswer, scale: Scale) -> None:
    if not answer.knobs:
        return
    known = answer.fits is not None
    rows: list[tuple[Cell, ...]] = []
    shown = answer.knobs if len(answer.knobs) <= SHOWN_KNOBS else (*answer.knobs[: SHOWN_KNOBS - 1], answer.knobs[-1])
    for knob in shown:
        fits = Span("fits" if knob.fits else "no", GOOD if knob.fits else QUIET)
        rows.append(
            (knob.option, scale.of(knob.saves_bytes), scale.of(knob.total_bytes), *([fits] if known else []), knob.cost)
        )
    out.head("What would free memory", f"{scale.unit}, each tried on this layout")
    columns = [
        ("option", "fill"),
        ("saves", "right"),
        ("then", "right"),
        *([("", "left")] if known else []),
        ("costs", "fill"),
    ]
    out.table(columns, rows)


LARGEST_SAID = 10_000  # GPUs


def _minimum(out: Screen, answer: MemoryAnswer) -> None:
    if not answer.minimum_gpus:
        return
    stages = sorted({m.zero_stage for m in answer.minimum_gpus})
    spec = answer.case.layout.spec
    rows = []
    for name, group in groupby(answer.minimum_gpus, key=lambda m: m.gpu):
        entries = {m.zero_stage: m for m in group}
        usable = next(iter(entries.values())).usable_bytes
        counts = [_fewest(entries[s].gpus) for s in stages]
        why = [_alone(answer, usable)] if answer.case.only_params else []
        rows.append((name, format_bytes(usable), *counts, *why))
    kept = f"micro-batch {spec.micro_batch}, {spec.seq_len} tokens, recompute {spec.recompute}"
    out.head("Fewest GPUs that hold it", kept)
    last = [("on one GPU", "left")] if answer.case.only_params else []
    out.table([("GPU", "left"), ("usable", "right"), *((f"ZeRO-{s}", "right") for s in stages), *last], rows)
    for m in answer.minimum_gpus:
        if m.gpus is None and m.zero_stage == max(stages):
            out.say(f"{m.gpu} with ZeRO-{m.zero_stage}: {m.reason}.", hang=2)


def _fewest(gpus: int | None) -> str:
    """A count as the table says it; beyond the bound the number itself tells nothing."""
    if gpus is None:
        return "never"
    return f"{gpus:,}" if gpus <= LARGEST_SAID else f"> {LARGEST_SAID:,}"


def _alone(answer: MemoryAnswer, usable: float) -> str:
    """Why one GPU of this kind does or does not hold the model."""
    if answer.total_bytes <= usable:
        return "fits"
    return "state too big" if answer.state_bytes > usable else "activations too big"


def _assumed(out: Screen, answer: MemoryAnswer) -> None:
    told = [a for a in answer.assumptions if a.kind != "default"]
    assumed(out, defaults_of(answer.assumptions), [(option_words(a.name), _quantity(a.value, a.unit), a) for a in told])


def _quantity(value: object, unit: str) -> str:
    if unit == "bytes" and isinstance(value, (int, float)):
        return format_bytes(float(value))
    return f"{value:g} {unit}".rstrip() if isinstance(value, float) else f"{value_words(value)} {unit}".rstrip()


def _markdown(answer: MemoryAnswer, explain: bool) -> str:
    from dscalc.report.export import to_markdown

    scale = scale_of(answer.total_bytes)
    header = ["term", scale.unit, "share", *(["formula", "source"] if explain else [])]
    rows = [
        [t.path, scale.of(t.bytes), _share(t.bytes, answer), *([t.formula, t.source] if explain else [])]
        for t in answer.terms
        if t.bytes > 0
    ]
    rows.append(["**total**", scale.of(answer.total_bytes), "100 %", *(["", ""] if explain else [])])
    return f"{line(answer)}\n\n" + to_markdown(rows, header, right=(1, 2))
