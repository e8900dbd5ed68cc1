"""One batch in several layouts on a screen: accumulation beside more workers, kinds of parallelism side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dscalc.report.export import to_markdown
from dscalc.report.screen import BAD, QUIET, STRONG, Cell, Screen, Span
from dscalc.units import format_bytes, format_time

if TYPE_CHECKING:
    from dscalc.answers.batch_layouts import Layouts, Parallelism, Variant

NAMES = {"dp": "data", "fsdp": "data, sharded (ZeRO-3)", "tp": "tensor", "pp": "pipeline"}
MIDDLE = 2  # stages, of which neither is between two others
WIDE = 116  # columns from which words stand in the table


def accumulation(out: Screen, layouts: Layouts) -> None:
    """The same batch from other numbers of workers and micro-batches."""
    if not layouts.accumulation:
        return
    out.head("Accumulate, or add workers", "the same batch; of one GPU")
    rows: list[tuple[Cell, ...]] = []
    for number, row in enumerate(layouts.accumulation):
        style = STRONG if number == 0 else ""
        cells = [row.what, f"{row.gpus:,}", f"{row.micro_batch:,} x {row.grad_accum:,}", _memory(row)]
        cells += [_seconds(row.step_time_s), _bubble(row), _bytes(row.data_bytes), row.reduced, _each(row)]
        rows.append(tuple(Span(cell, BAD if i == 3 and row.fits is False else style) for i, cell in enumerate(cells)))
    columns = [("", "left"), ("GPUs", "right"), ("b x a", "right"), ("memory", "right"), ("step", "right")]
    columns += [("bubble", "right"), ("dp sends", "right"), ("reduced", "left"), ("GPU time/seq", "right")]
    _shown(out, columns, rows)
    spared = "the optimizer and the network"
    if any(row.sends_each_micro_batch for row in layouts.accumulation):
        spared = "the optimizer, but not the network with this ZeRO stage"
    out.say(
        "b x a: local batch x micro-batches; dp sends: gradients, and with ZeRO weights, in a step; reduced: "
        f"gradients, once or after each micro-batch. Accumulation spares {spared}; computing stays.",
        QUIET,
    )
    if any(row.fits is False for row in layouts.accumulation):
        out.say("! does not fit; times are those that it would take if it did.", QUIET)
    if layouts.reason:
        out.say(f"Not shown: {layouts.reason}.")


def parallelism(out: Screen, layouts: Layouts) -> None:
    """Kinds of parallelism alone, on the GPUs of one node."""
    if not layouts.parallelism:
        return
    first = layouts.parallelism[0].layout
    out.head(
        "Data, tensor, pipeline side by side", f"{first.gpus} GPUs, {first.global_batch:,} sequences a step, of one GPU"
    )
    legend = "sent: by the GPU with the most parameters, as dscalc comm lists it."
    if any(kind.layout.pp > MIDDLE for kind in layouts.parallelism):
        legend += " In a pipeline the end stages send one way, those between them both."
    columns = [("", "left"), ("memory", "right"), ("sent", "right"), ("step", "right"), ("idle", "right")]
    numbers = [_numbers(kind) for kind in layouts.parallelism]
    if out.width >= WIDE:
        columns += [("divides", "fill"), ("synchronises", "fill")]
        rows = [
            (*cells, kind.divides, f"{kind.synchronises}, {kind.when}")
            for cells, kind in zip(numbers, layouts.parallelism, strict=True)
        ]
        _shown(out, columns, rows)
        out.say(legend, QUIET)
        return
    _shown(out, columns, numbers)
    out.say(legend, QUIET)
    for kind in layouts.parallelism:
        out.say(f"- {NAMES[kind.axis]}: divides {kind.divides}; synchronises {kind.synchronises}, {kind.when}", hang=2)


def markdown_tables(layouts: Layouts) -> list[str]:
    """The same two tables for a page."""
    spread = [
        [
            v.what,
            f"{v.gpus:,}",
            f"{v.micro_batch:,} x {v.grad_accum:,}",
            *map(_text, (_memory(v), _seconds(v.step_time_s))),
        ]
        for v in layouts.accumulation
    ]
    kinds = [
        [*map(_text, _numbers(kind)[:4]), kind.divides, f"{kind.synchronises}, {kind.when}"]
        for kind in layouts.parallelism
    ]
    found = []
    if spread:
        found.append(to_markdown(spread, ["layout", "GPUs", "b x a", "memory", "step"], right=(1, 2, 3, 4)))
    if kinds:
        header = ["parallelism", "memory", "sent", "step", "divides", "synchronises"]
        found.append(to_markdown(kinds, header, right=(1, 2, 3)))
    return found


def _text(cell: Cell) -> str:
    return cell.text if isinstance(cell, Span) else cell


def _numbers(kind: Parallelism) -> tuple[Cell, ...]:
    row = kind.layout
    degree = {"tp": row.tp, "pp": row.pp}.get(kind.axis, row.dp)
    rest = f" x dp {row.dp}" if kind.axis in ("tp", "pp") and row.dp > 1 else ""
    memory = Span(_memory(row), BAD if row.fits is False else "")
    return (
        f"{NAMES[kind.axis]} {degree}{rest}",
        memory,
        _bytes(row.sent_bytes),
        _seconds(row.step_time_s),
        _bubble(row),
    )


def _shown(out: Screen, columns: list[tuple[str, str]], rows: list[tuple[Cell, ...]]) -> None:
    """A table without the columns that nothing is known of."""

    kept = [i for i in range(len(columns)) if any(_text(row[i]) for row in rows)]
    out.table([columns[i] for i in kept], [[row[i] for i in kept] for row in rows])


def _memory(row: Variant) -> str:
    return format_bytes(row.memory_bytes) + (" !" if row.fits is False else "")


def _bytes(size: float | None) -> str:
    return "" if size is None else format_bytes(size) if size else "none"


def _seconds(seconds: float | None) -> str:
    return "" if seconds is None else format_time(seconds)


def _each(row: Variant) -> str:
    return "" if row.gpu_s_per_sample is None else format_time(row.gpu_s_per_sample)


def _bubble(row: Variant) -> str:
    return "" if not row.bubble_share else f"{100.0 * row.bubble_share:.1f} %"
