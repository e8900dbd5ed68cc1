"""The ratio answer on a screen, as a list of quantities, and in one line."""

from __future__ import annotations

import re
from math import floor
from textwrap import wrap
from typing import TYPE_CHECKING

from dscalc.report.asides import assumed, defaults_of, option_words, value_words, warned
from dscalc.report.export import to_csv, to_json, to_markdown
from dscalc.report.screen import BAD, GOOD, QUIET, STRONG, Cell, Screen, Span, grid
from dscalc.units import format_count, format_flop_rate, format_rate, format_time

if TYPE_CHECKING:
    from dscalc.answers.envelope import Assumption
    from dscalc.answers.ratio import RatioAnswer, Row
    from dscalc.answers.ratio_effects import Effect
    from dscalc.answers.ratio_levers import Lever

COLUMNS = ("name", "value", "corrected", "unit", "formula", "source")
WIDEST_GRADIENT = 8.0  # bytes
TINY, BRIEF = 0.01, 100.0  # below, three digits; from here on, none behind the point
LABELS = {
    "effective_flop_per_s": "computes at",
    "bandwidth_bytes_per_s": "gets from the network",
    "tokens_per_rank": "tokens a rank and step",
    "gradient_bytes": "bytes of a gradient",
    "compute_time_s": "compute",
    "communication_time_s": "communicate",
    "communication_time_exact_s": "  exactly, at K",
    "ratio": "ratio",
    "ratio_exact": "  exactly, at K",
    "break_even_tokens_per_rank": "break-even tokens a rank",
    "global_batch_tokens": "tokens of the global batch",
    "max_useful_data_parallel": "largest useful K",
    "max_useful_data_parallel_exact": "  exactly",
    "max_useful_gpus": "  in GPUs",
}
STARRED = {"effective_flop_per_s", "bandwidth_bytes_per_s", "gradient_bytes"}
LEVERS = {"D": "tokens (D)", "BW": "bandwidth (BW)", "b_r": "gradient (b_r)"}


def render(
    answer: RatioAnswer, form: str, *, explain: bool = False, quiet: bool = False, colour: bool | None = None
) -> str:
    """The answer in the form asked for.

    Args:
        answer: what ``ratio`` returned.
        form: ``table``, ``json``, ``csv`` or ``markdown``.
        explain: formula, numbers and source under each quantity.
        quiet: one line (of a table).
        colour: colour or not; None lets the terminal decide.

    Returns:
        Text that ends with a newline.
    """
    if form == "json":
        return to_json(answer.to_json())
    if form == "csv":
        return to_csv([row._asdict() for row in shown(answer)], COLUMNS)
    if form == "markdown":
        return _markdown(answer, explain)
    return line(answer) + "\n" if quiet else screen(answer, explain=explain, colour=colour)


def shown(answer: RatioAnswer) -> list[Row]:
    """The quantities that exist; times are left out where no model says of how many parameters."""
    hidden = () if answer.setting.modelled else ("compute_time_s", "communication_time_s", "communication_time_exact_s")
    return [row for row in answer.rows if row.value is not None and row.name not in hidden]


def line(answer: RatioAnswer) -> str:
    """The answer in one line."""
    if answer.deciding is None:
        return f"{answer.verdict}: one data-parallel rank"
    words = f"ratio {_number(answer.deciding)}: {answer.verdict}"
    if answer.setting.ranks is None and answer.setting.batch_known:
        words = "among up to K* ranks communication can hide"
    even = answer.corrected("break_even_tokens_per_rank") or answer.value("break_even_tokens_per_rank")
    if even is not None:
        words += f"; break-even {even:,.0f} tokens a rank"
    useful = answer.corrected("max_useful_data_parallel") or answer.value("max_useful_data_parallel")
    return words if useful is None else f"{words}, K* {_ranks(useful)}"


def screen(answer: RatioAnswer, *, explain: bool = False, colour: bool | None = None) -> str:
    """The whole screen."""
    out = Screen(colour=colour)
    _headline(out, answer)
    _paper(out, answer, explain)
    _effects(out, answer, explain)
    _levers(out, answer)
    _assumed(out, answer)
    warned(out, answer.warnings)
    return out.text()


# ---------------------------------------------------------------------------------------------------------------- parts
def _headline(out: Screen, answer: RatioAnswer) -> None:
    setting = answer.setting
    spec = setting.case.layout.spec
    if setting.modelled:
        who = f"{format_count(setting.case.counts.main)} parameters ({setting.case.model.shape.name})"
    else:
        who = "Any number of parameters"
    if setting.ranks is None:
        group = "many data-parallel ranks"
    else:
        group = f"{spec.dp} data-parallel rank" + ("s" if spec.dp > 1 else "")
        degrees = [f"{name} {getattr(spec, name)}" for name in ("tp", "pp", "cp", "ep") if getattr(spec, name) > 1]
        degrees += [f"ZeRO-{spec.zero}"] if spec.zero else []
        group += f" ({', '.join([f'{spec.gpus} GPUs', *degrees])})" if spec.gpus > 1 else ""
    out.say(f"{who}, {group}")
    if answer.deciding is None:
        out.say("One data-parallel rank: nothing is communicated", STRONG)
        return
    good = answer.deciding >= 1.0
    useful = answer.corrected("max_useful_data_parallel") or answer.value("max_useful_data_parallel")
    if setting.ranks is None and useful is not None:  # a batch, and nobody said among how many ranks
        out.say(f"Communication can hide among up to {_ranks(useful)} data-parallel ranks of this batch", STRONG)
        return
    where = "above 1" if good else "below 1"
    tail = (
        "communication can hide behind computing"
        if good
        else "GPUs wait for the network, and more ranks only make each wait longer"
    )
    out.say(f"Ratio {_number(answer.deciding)}, {where}: {tail}", f"bold {GOOD if good else BAD}")


def _paper(out: Screen, answer: RatioAnswer, explain: bool) -> None:
    corrected = any(row.corrected is not None for row in answer.rows)
    starred = {a.name for a in answer.assumptions} & STARRED
    rows: list[tuple[Cell, ...]] = []
    notes: list[list[str]] = []
    for row in shown(answer):
        strong = STRONG if row.name == "ratio" else ""
        label = LABELS[row.name] + (" *" if row.name in starred else "")
        cells = [Span(label, strong), *(Span(_cell(answer, row, v), strong) for v in (row.value, row.corrected))]
        del cells[2 if not corrected else len(cells) :]
        made = (
            answer.setting.bandwidth.words if answer.setting.bandwidth and row.name == "bandwidth_bytes_per_s" else ""
        )
        rows.append((*cells, f"{row.formula}, {made}" if made.startswith("ring") else row.formula))
        notes.append(_explained(row, out.width - 4) if explain else [])
    out.head("On paper", _paper_note(answer))
    columns = [("", "left"), ("closed form", "right"), *([("this layout", "right")] if corrected else []), ("", "fill")]
    for lines, below in zip(grid(columns, rows, out.width), [[], *notes], strict=True):
        out.add(*lines)
        out.add(*([Span(f"    {text}", QUIET)] for text in below))
    if not answer.setting.modelled and answer.deciding is not None:
        times = {row.name: row.value for row in answer.rows}
        compute, send = times["compute_time_s"], times["communication_time_s"]
        if compute is not None and send is not None:
            out.say(
                f"For each {format_count(1.0 * answer.setting.case.counts.main)} parameters: "
                f"compute {format_time(compute)}, communicate {format_time(send)}; add --params for the model's own."
            )


def _cell(answer: RatioAnswer, row: Row, value: float | None) -> str:
    """A quantity; GPUs are whole ranks times the GPUs of a rank."""
    spec = answer.setting.case.layout.spec
    each = spec.tp * spec.pp * spec.cp
    if row.unit == "GPUs" and value is not None and value >= each:
        return f"{floor(value / each) * each:,}"
    return _quantity(value / each if row.unit == "GPUs" and value is not None else value, row.unit)


def _paper_note(answer: RatioAnswer) -> str:
    ranks = answer.setting.ranks
    return "K = " + ("infinity" if ranks is None else f"{ranks:,}") + ", ranks that reduce a gradient"


def _effects(out: Screen, answer: RatioAnswer, explain: bool) -> None:
    if not answer.effects or answer.deciding is None:
        return
    out.head("Where N does not cancel", "factor on the ratio, above 1 helps")
    rows: list[tuple[Cell, ...]] = []
    notes: list[list[str]] = []
    for effect in answer.effects:
        style = "" if effect.applies else QUIET
        factor = "" if effect.factor is None else f"x {_number(effect.factor)}"
        rows.append((Span(factor, style), Span("" if effect.applies else "if", style), Span(effect.words, style)))
        formula = effect.formula if "=" in effect.formula else f"= {effect.formula}"
        texts = [formula, f"source {effect.source}"] if explain else []
        notes.append([part for text in texts for part in wrap(text, out.width - 8, subsequent_indent="  ")])
    columns = [("", "right"), ("", "left"), ("", "fill")]
    for lines, below in zip(grid(columns, rows, out.width, header=False), notes, strict=True):
        out.add(*lines)
        out.add(*([Span(f"        {text}", QUIET)] for text in below))


def _levers(out: Screen, answer: RatioAnswer) -> None:
    if not answer.levers:
        return
    good = answer.deciding is not None and answer.deciding >= 1.0
    out.head("Levers", "each alone; how far it could go" if good else "each alone; what ratio 1 needs")
    rows = [
        (
            LEVERS[lever.lever],
            _lever(lever, lever.now),
            "never" if lever.needed is None else _lever(lever, lever.needed),
            "" if not lever.option or lever.ratio_then is None else _number(lever.ratio_then),
            lever.words,
        )
        for lever in answer.levers
    ]
    columns = [("", "left"), ("now", "right"), ("at ratio 1", "right"), ("then", "right"), ("", "fill")]
    out.table(columns, rows)
    for note in answer.notes:
        out.say(note, hang=2)


def _lever(lever: Lever, value: float) -> str:
    if lever.unit in ("sequences", "micro-batches"):
        return f"{value:,.0f} {'seq' if lever.unit == 'sequences' else 'micro'}"
    if lever.lever == "b_r" and value > WIDEST_GRADIENT:
        return "any"
    return _quantity(value, lever.unit)


def _assumed(out: Screen, answer: RatioAnswer) -> None:
    told = [a for a in answer.assumptions if a.kind != "default"]
    assumed(out, defaults_of(answer.assumptions), [(option_words(a.name), _stated(a), a) for a in told])


# -------------------------------------------------------------------------------------------------------------- numbers
def _number(value: float) -> str:
    """A plain number with about three digits."""
    if value >= BRIEF:
        return f"{value:,.0f}"
    return f"{value:.2f}" if value >= TINY else f"{value:.2g}"


def _ranks(value: float) -> str:
    """Ranks, rounded down: half a rank computes nothing."""
    return f"{floor(value):,}" if value >= 1.0 else f"{value:.2g}, less than one"


def _quantity(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    if unit == "s":
        return format_time(value)
    if unit == "bytes/s":
        return format_rate(value)
    if unit == "FLOP/s":
        return format_flop_rate(value)
    if unit in ("ranks", "GPUs"):
        return _ranks(value)
    if unit == "tokens":
        return f"{value:,.0f}" if value >= 1.0 else f"{value:.2g}"
    return f"{value:.3g}" if unit == "bytes" else _number(value)


def _stated(a: Assumption) -> str:
    number = isinstance(a.value, (int, float)) and not isinstance(a.value, bool)
    if number and a.unit in ("FLOP/s", "bytes/s"):
        return _quantity(float(a.value), a.unit)
    return f"{value_words(a.value)} {a.unit}".rstrip()


def _explained(row: Row, width: int) -> list[str]:
    """Formula, the numbers put in, and the source, wrapped."""
    formula = row.formula if "=" in row.formula else f"= {row.formula}"
    used = re.findall(r"[DK]\*|[A-Za-z]\w*", row.formula.rpartition("= ")[2])
    numbers = ", ".join(
        f"{symbol} = {_put_in(value)}"
        for symbol, value in row.inputs.items()
        if symbol in used and symbol != row.formula
    )
    texts = [formula if numbers else "", f"with {numbers}" if numbers else "", f"source {row.source}"]
    return [part for text in texts if text for part in wrap(text, max(40, width), subsequent_indent="  ")]


def _put_in(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) and value < 1e7 else f"{value:.6g}"


def _markdown(answer: RatioAnswer, explain: bool) -> str:
    corrected = any(row.corrected is not None for row in answer.rows)
    more = ["this layout"] if corrected else []
    last = ["formula", "source"] if explain else ["formula"]
    rows = []
    for row in shown(answer):
        cells = [row.name, _quantity(row.value, row.unit)]
        cells += [_quantity(row.corrected, row.unit)] if corrected else []
        rows.append([*cells, row.formula, *([row.source] if explain else [])])
    table = to_markdown(rows, ["quantity", "closed form", *more, *last], right=range(1, 2 + len(more)))
    effects = "".join(f"- {_effect(e)}\n" for e in answer.effects)
    return f"{line(answer)}\n\n{table}" + (f"\n{effects}" if effects else "")


def _effect(effect: Effect) -> str:
    factor = "" if effect.factor is None else f"x {_number(effect.factor)}: "
    return f"{factor}{effect.words}"
