"""The parts of a sweep's page that an answer rests on: inputs, assumptions, what is left out, how to get it again."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dscalc.answers.sweep_budget import NOT_INCLUDED, POWER
from dscalc.answers.sweep_detail import typed
from dscalc.answers.sweep_notes import command_words
from dscalc.report.html import Cell, Html, number, table, tag
from dscalc.units import format_bytes, format_time

if TYPE_CHECKING:
    from dscalc.answers.sweep import SweepAnswer
    from dscalc.answers.sweep_rows import Row

LEFT, RIGHT = "left", "right"
WORDS = (
    ("dp", "data parallel: that many copies of the model share the batch"),
    ("replicas", "data-parallel groups that hold the whole state among them; within one it is sharded"),
    ("tp", "tensor parallel: the matrices of a layer are split over that many GPUs"),
    ("pp, vpp", "pipeline parallel: layers are split over that many stages, each in vpp pieces"),
    ("cp", "context parallel: a sequence is split over that many GPUs"),
    ("ep, etp", "expert parallel: experts are spread over that many GPUs, each split over etp"),
    ("ZeRO-1, 2, 3", "shards the optimizer's states, also gradients, also weights over data-parallel GPUs"),
    ("SP", "sequence parallel: what tensor parallelism repeats is split along the sequence"),
    ("micro-batch", "sequences that a GPU works on at a time, times how often in a step"),
    ("MFU", "model FLOP utilisation: share of the GPUs' peak that the model itself uses"),
    ("goodput", "share of the time that is not lost to failures and checkpoints"),
)
ALWAYS_LEFT_OUT = (
    "loading of data, evaluation, compilation and the first steps of a run",
    "traffic of other jobs on the same network",
    "layouts that the sweep was not asked to try; see the values tried of each axis",
)


def warnings(answer: SweepAnswer) -> list[Cell]:
    """What the reader should know, with what to do next."""
    items = [
        tag("li", tag("strong", f"{w.message[:1].upper()}{w.message[1:]}."), tag("span", f"Next: {w.next_step}."))
        for w in answer.warnings
    ]
    return [tag("ul", *items, class_="warnings")] if items else []


def left_out(answer: SweepAnswer) -> list[Cell]:
    """What no number of the page holds."""
    words = list(ALWAYS_LEFT_OUT)
    if any(p.budget is not None for p in answer.curve):
        words += [
            f"in the cost: {NOT_INCLUDED}",
            f"in the energy: {POWER.partition('; ')[2].removesuffix(' are not included')}",
        ]
    else:
        words.append("failures, checkpoints and stragglers")
    return [Html(f"<ul>{''.join(tag('li', w).markup for w in words)}</ul>")]


def inputs(answer: SweepAnswer) -> list[Cell]:
    """Everything that went in, with where it comes from."""
    found: dict[str, Any] = answer.to_json()["inputs"]
    marks = {**found["marks"], **dict.fromkeys(found["axes"], "swept"), **dict.fromkeys(answer.given, "given")}
    parts: list[Cell] = []
    for group, values in found.items():
        if group == "marks" or (group == "hardware" and len(answer.setups) > 1):
            continue  # each machine has its own
        entries = enumerate(values, 1) if isinstance(values, list) else values.items()
        rows = [
            [str(name).replace("_", " "), _value(value, str(name)), _chip(marks.get(str(name), ""))]
            for name, value in entries
            if value is not None and not (group == "model" and value == 0)
        ]
        columns = (("input", LEFT), ("value", LEFT), ("from", LEFT))
        heading = {"axes": "Values tried of each axis", "setups": "Machines", "sweep": "Sweep"}.get(
            group, group.capitalize()
        )
        parts.append(tag("div", table(heading, columns, rows), class_="small")) if rows else None
    return parts


def _value(value: Any, name: str) -> Cell:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float) and name.endswith("bytes"):
        return number(format_bytes(value), value)
    if isinstance(value, int | float):
        return number(f"{value:,.4g}" if isinstance(value, float) else f"{value:,}", value)
    if isinstance(value, dict):
        return "; ".join(f"{k.replace('_', ' ')}: {_plain(v)}" for k, v in value.items() if v is not None)
    return _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, list) and len(value) > 1 and all(v == value[0] for v in value):
        return _plain(value[0])
    if isinstance(value, list):
        return ", ".join(map(_plain, value)) or "none"
    return f"{value:g}" if isinstance(value, float) else "all" if value is None else str(value)


def _chip(kind: str) -> Cell:
    return kind and tag("span", kind, class_=f"chip {kind}" if kind.isalpha() else "chip")


def assumptions(answer: SweepAnswer) -> list[Cell]:
    """What nobody typed, with kind and source."""
    rows = [
        [a.name.replace("_", " "), _assumed(a.value, a.unit), _chip(a.kind), a.source]
        for a in answer.assumptions
        if a.value not in (None, "")
    ]
    columns = (("assumption", LEFT), ("value", LEFT), ("kind", LEFT), ("source, or how to find out", LEFT))
    caption = "What nobody typed; each can be changed by its option or a profile"
    return [tag("div", table(caption, columns, rows), class_="small")] if rows else []


def _assumed(value: Any, unit: str) -> Cell:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return _value(value, "")
    words = format_bytes(value) if unit == "bytes" else format_time(value) if unit == "s" else f"{value:,.4g} {unit}"
    return number(words.strip(), value)


def words(answer: SweepAnswer) -> list[Cell]:
    """What the short words mean."""
    told = [w for w in WORDS if w[0] != "goodput" or "tokens" in answer.given]
    return [table("Words of layouts and figures", (("word", LEFT), ("meaning", LEFT)), told)]


def again(answer: SweepAnswer, row: Row | None) -> list[Cell]:
    """The commands that give the same."""
    parts: list[Cell] = [tag("p", "The whole sweep:"), tag("pre", tag("code", typed(answer.given)))]
    if row is not None:
        setup = next(s for s in answer.setups if s.name == row.setup)
        command = f"dscalc step {command_words(setup, row, answer.given)}"
        parts += [tag("p", "The best layout, term by term:"), tag("pre", tag("code", command))]
    return parts
