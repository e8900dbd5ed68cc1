"""The batch answer on a screen, as a schedule of learning rates, and in one line."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

from dscalc.report.asides import assumed, defaults_of, option_words, warned
from dscalc.report.batch_layouts import accumulation, markdown_tables, parallelism
from dscalc.report.export import to_csv, to_json, to_markdown
from dscalc.report.screen import QUIET, STRONG, Cell, Screen, Span, grid
from dscalc.units import KILO, PETA, format_count, format_time

if TYPE_CHECKING:
    from dscalc.answers.batch import BatchAnswer
    from dscalc.answers.batch_limits import Limit
    from dscalc.answers.batch_rules import Moment, Warmup

COLUMNS = ("step", "epoch", "lr", "factor")
KINDS = {"noise_scale": "noise scale", "optimal": "best batch", "overhead20": "20 % more data"}
OPTIONS = {"train_loss": "--train-loss", "tokens": "--tokens", "params": "--params", "noise_scale": "--noise-scale"}
BAR = 24  # characters of the largest rate
FULL = 0.9995  # of a share: rounds to 100 %


def render(
    answer: BatchAnswer, form: str, *, explain: bool = False, quiet: bool = False, colour: bool | None = None
) -> str:
    """The answer in the form asked for.

    Args:
        answer: what ``batch`` returned.
        form: ``table``, ``json``, ``csv`` (the schedule, update by update) or ``markdown``.
        explain: formulas, sources, published points and two workers by hand.
        quiet: one line (of a table).
        colour: colour or not; None lets the terminal decide.

    Returns:
        Text that ends with a newline.
    """
    if form == "json":
        return to_json(answer.to_json())
    if form == "csv":
        return to_csv([moment._asdict() for moment in answer.warmup.schedule()], COLUMNS)
    if form == "markdown":
        return _markdown(answer)
    return line(answer) + "\n" if quiet else screen(answer, explain=explain, colour=colour)


def line(answer: BatchAnswer) -> str:
    """The answer in one line."""
    words = f"{_batch(answer)} an update"
    if answer.rates.chosen.factor is None:
        return words
    return f"{words}, {_rate(answer)}{_by_warmup(answer.warmup)}"


def screen(answer: BatchAnswer, *, explain: bool = False, colour: bool | None = None) -> str:
    """The whole screen."""
    out = Screen(colour=colour)
    _headline(out, answer)
    _rates(out, answer, explain)
    _warmup(out, answer)
    _limits(out, answer, explain)
    if answer.layouts is not None:
        accumulation(out, answer.layouts)
    _waiting(out, answer, explain)
    if answer.layouts is not None:
        parallelism(out, answer.layouts)
        if explain:
            out.say(
                "Memory, bytes and times are those of dscalc memory, comm and step for each layout; their --explain "
                "shows every formula.",
                QUIET,
            )
    if explain:
        _averaging(out, answer)
        _published(out, answer)
    out.head("To keep in mind")
    for note in answer.notes:
        out.say(f"- {note.words}" + (f" {note.source}" if explain else ""), hang=2)
    _assumed(out, answer)
    warned(out, answer.warnings)
    return out.text()


# ---------------------------------------------------------------------------------------------------------------- parts
def _batch(answer: BatchAnswer) -> str:
    plural = "s" if answer.batch != 1 else ""
    unit = f"image{plural} or sequence{plural}" if answer.seq_len is None else f"sequence{plural}"
    tokens = "" if answer.batch_tokens is None else f", {format_count(answer.batch_tokens)} tokens,"
    return f"{answer.batch:,} {unit}{tokens}"


def _rate(answer: BatchAnswer) -> str:
    chosen, base = answer.rates.chosen, answer.rates.base_batch
    rule = f"{chosen.rule} rule" if chosen.rule != "none" else "not scaled"
    if chosen.lr is None:
        return f"learning rate {_number(chosen.factor)} times that at {base:,} ({rule})"
    return f"learning rate {_number(chosen.lr)} ({rule}, {_number(answer.rates.base_lr)} at {base:,})"


def _by_warmup(warmup: Warmup) -> str:
    if not (warmup.steps or warmup.epochs):
        return ", without warmup"
    if warmup.epochs is not None and float(warmup.epochs).is_integer():
        length = f"{warmup.epochs:g} epoch" + ("s" if warmup.epochs != 1 else "")
    elif warmup.steps is not None:
        length = f"{warmup.steps:,} updates"
    else:
        length = f"{warmup.epochs:g} epochs"
    start = warmup.start_lr if warmup.start_lr is not None else warmup.start
    times = "" if warmup.start_lr is not None or start == 0.0 else " times"
    return f" after {length} of warmup from {_number(start)}{times}"


def _headline(out: Screen, answer: BatchAnswer) -> None:
    factors = [f"{answer.workers:,} worker" + ("s" if answer.workers > 1 else ""), f"{answer.local_batch:,} each"]
    factors += [f"{answer.accumulation:,} micro-batches"] if answer.accumulation > 1 else []
    gpus = answer.waiting.gpus
    on = "" if gpus == answer.workers else f" on {gpus:,} GPUs"
    out.say(f"{' x '.join(factors)}{on}: {_batch(answer)} behind one update of the weights")
    chosen = answer.rates.chosen
    if chosen.factor is None:
        out.say("No base batch, so no learning rate: add --base-batch 256 --base-lr 0.1", STRONG)
    else:
        words = _rate(answer)
        out.say(f"{words[0].upper()}{words[1:]}{_by_warmup(answer.warmup)}", STRONG)
    found = answer.updates
    for count, alone, span in (
        (found.per_epoch, found.per_epoch_alone, "an epoch"),
        (found.total, found.total_alone, "in total"),
    ):
        if count is not None:
            beside = f"; one worker alone would make {alone:,}" if answer.workers > 1 else ""
            out.say(f"{count:,} updates {span}{beside}.")
    if "tokens" in answer.given and answer.seq_len is None:
        out.say("Add --seq-len, and --tokens tells how many updates that are.")


def _rates(out: Screen, answer: BatchAnswer, explain: bool) -> None:
    rates = answer.rates
    starred = {a.name for a in answer.assumptions}
    if rates.base_batch is None:
        note = "each rule scales a rate that was tuned at a base batch"
    else:
        note = f"B / B0 = {answer.batch:,} / {rates.base_batch:,} = {_number(answer.batch / rates.base_batch)}"
    out.head("Learning rate", note)
    rows: list[tuple[Cell, ...]] = []
    below: list[list[str]] = []
    for scaled in rates.rules:
        style = STRONG if scaled.chosen else ""
        star = " *" if scaled.chosen and "rule" in starred else ""
        factor = "" if scaled.factor is None else f"x {_number(scaled.factor)}"
        cells = (f"{scaled.rule}{star}", _number(scaled.lr), factor, scaled.optimizers, scaled.held)
        rows.append(tuple(Span(cell, style) for cell in cells))
        below.append([f"= {scaled.formula}", f"source {scaled.source}"] if explain else [])
    columns = [("", "left"), ("lr", "right"), ("", "right"), ("for", "left"), ("seen to hold", "fill")]
    if rates.base_batch is None:
        columns, rows = [c for i, c in enumerate(columns) if i not in (1, 2)], [(r[0], *r[3:]) for r in rows]
    _with_notes(out, columns, rows, below)
    if rates.adam is not None:
        adam = rates.adam
        words = f"With it the square-root rule sets beta1 {_number(adam.beta1)}, beta2 {_number(adam.beta2)}, "
        out.say(f"{words}eps {adam.eps:.3g}.")


def _with_notes(
    out: Screen, columns: list[tuple[str, str]], rows: list[tuple[Cell, ...]], below: list[list[str]]
) -> None:
    """A table with quiet lines under its rows."""
    for lines, texts in zip(grid(columns, rows, out.width), [[], *below], strict=True):
        out.add(*lines)
        for text in texts:
            out.add(*([Span(f"    {part}", QUIET)] for part in wrap(text, max(40, out.width - 4))))


def _warmup(out: Screen, answer: BatchAnswer) -> None:
    warmup = answer.warmup
    if warmup.peak is None or not (warmup.steps or warmup.epochs):
        return
    moments = warmup.by_epoch()
    last = moments[-1]
    star = " *" if "warmup" in {a.name for a in answer.assumptions} else ""
    out.head(f"Warmup{star}", "--format csv has every update, --plot FILE.svg draws them")
    columns = [("epoch", "right"), ("update", "right"), ("lr", "right"), ("x base", "right"), ("", "left")]
    rows = [
        (
            "" if m.epoch is None else f"{m.epoch:.4g}",
            "" if m.step is None else f"{m.step:,}",
            _number(m.lr),
            _number(m.factor),
            Span(_bar(m, last), "green"),
        )
        for m in moments
    ]
    shown = [i for i in range(len(columns)) if any(row[i] for row in rows)]
    out.table([columns[i] for i in shown], [[row[i] for i in shown] for row in rows])
    if warmup.steps is None:
        out.say("Nothing says how many updates an epoch has; --dataset-samples gives the schedule update by update.")


def _bar(moment: Moment, last: Moment) -> str:
    return "#" * max(1, round(BAR * (moment.factor or 0.0) / (last.factor or 1.0))) if moment.factor else "."


def _limits(out: Screen, answer: BatchAnswer, explain: bool) -> None:
    known = [limit for limit in answer.limits if not limit.missing]
    unit = "images" if answer.seq_len is None else "tokens"
    missing = list(dict.fromkeys(OPTIONS[n] for m in answer.limits for n in m.missing if n in OPTIONS))
    out.head("Where more workers stop helping", f"{unit}; critical batch by published laws" if known else "")
    if known:
        rows: list[tuple[Cell, ...]] = []
        below = []
        for limit in known:
            mark = " !" if limit.outside else ""
            rows.append(
                (
                    f"{limit.law}{mark}",
                    _count(limit.critical_batch),
                    _count(limit.largest_batch),
                    "" if limit.largest_workers is None else f"{limit.largest_workers:,}",
                    "" if limit.batch_over_critical is None else f"x {_number(limit.batch_over_critical)}",
                    "" if limit.steps_penalty is None else f"x {_number(limit.steps_penalty)}",
                    "" if limit.data_penalty is None else f"x {_number(limit.data_penalty)}",
                    _number(limit.lr),
                    KINDS[limit.kind],
                )
            )
            below.append(_law(limit) if explain else [])
        columns = [("law", "left"), ("critical", "right"), ("largest", "right"), ("workers", "right")]
        columns += [("this is", "right"), ("steps", "right"), ("data", "right"), ("its lr", "right"), ("says", "left")]
        shown = [i for i in range(len(columns)) if i < 3 or any(row[i] for row in rows)]
        _with_notes(out, [columns[i] for i in shown], [tuple(row[i] for i in shown) for row in rows], below)
        star = "" if "extra_data" in answer.given else " *"
        outside = "; ! outside the range of its fit" if any(limit.outside for limit in known) else ""
        out.say(
            f"largest: {_share(answer.extra_data)} more data than small batches need{star}, or the best batch; steps "
            "and data: over the fewest and the least that any batch needs to the same loss, which only a noise scale "
            f"tells{outside}.",
            QUIET,
        )
    if missing:
        said = " or ".join([", ".join(missing[:-1]), missing[-1]] if len(missing) > 1 else missing)
        out.say(f"{'More laws answer' if known else 'Laws answer'} with {said}.")
    if answer.seq_len is None and any(limit.law != "given" for limit in known):
        out.say("Published laws count tokens; --seq-len sets this batch beside them.")


def _law(limit: Limit) -> list[str]:
    numbers = ", ".join(f"{name} = {value:.4g}" for name, value in limit.inputs.items())
    return [f"{limit.words}: {limit.formula}", f"with {numbers}", f"source {limit.source}"]


def _waiting(out: Screen, answer: BatchAnswer, explain: bool) -> None:
    waits = answer.waiting
    starred = {a.name for a in answer.assumptions}
    star = " *" if "jitter" in starred else ""
    slow = " *" if "slow_nodes" in starred else ""
    out.head("Waiting for the slowest", f"GPUs differ by {_share(waits.jitter)} of a step (one sigma){star}")
    k = f"{waits.gpus:,}"
    rows: list[tuple[Cell, ...]] = []
    if waits.gpus > 1:
        rows += [
            (
                Span(f"+ {_share(waits.wait)}", STRONG),
                f"slowest of {k}: {waits.normal:.2f} sigma, where they are normal",
            ),
            (
                f"+ {_share(waits.jitter * waits.exponential)}",
                f"{waits.exponential:.2f} means, where delays are exponential (H_{k})",
            ),
        ]
        if waits.saves is not None:
            words = f"without the slowest; 1/{k} = {_share(1.0 / waits.gpus)} of the GPUs leave"
            rows.append((f"- {_share(waits.saves)}", words))
    if waits.fresh is not None:
        words = f"if as much spread came anew in each of {waits.meetings:,.0f} meetings of {waits.group} GPUs (tp, cp)"
        rows.append((f"+ {_share(waits.fresh)}", f"{words}: sqrt(n) sigma a step"))
    nodes = f"{waits.nodes:,} node" + ("s" if waits.nodes > 1 else "")
    words = f"a slow node among {nodes}: probability {_share(waits.probability)}, {_share(waits.slow_nodes)} of nodes "
    rows.append(
        (f"+ {_share(waits.probability * waits.slow_by)}", f"{words}being {_share(waits.slow_by)} slower{slow}")
    )
    out.table((("", "right"), ("", "fill")), rows, header=False)
    if waits.step_time_s is not None and waits.gpus > 1:
        out.say(
            f"Of a step of {format_time(waits.step_time_s)}: {format_time(waits.wait * waits.step_time_s)}. "
            f"dscalc step --jitter {waits.jitter:.3g} adds it as a term."
        )
    if waits.gpus > 1:
        out.say(
            "A GPU that is slow through a step delays groups that meet in every layer (tp, cp) as it delays ranks that "
            "meet once a step (dp): all wait for the slowest GPU of the job."
        )
    if explain:
        for said in waits.fleet:
            out.say(f"- {said.words} {said.source}", hang=2)


def _averaging(out: Screen, answer: BatchAnswer) -> None:
    out.head("Two workers, one update", "learning rate 0.1")
    out.say("Weights [1, -2] on both; their gradients are [0.4, -0.2] and [0.8, 0.6].")
    rows = []
    for found in answer.averaging:
        for word, gradient, after in (
            ("mean", found.mean, found.after_mean),
            ("sum, division forgotten", found.total, found.after_sum),
        ):
            rows.append((found.optimizer, word, _vector(gradient), _vector(after)))
    out.table((("", "left"), ("reduced by", "left"), ("gradient", "left"), ("weights after", "left")), rows)
    for found in answer.averaging:
        out.say(f"{found.optimizer}: {found.words}.", hang=2)


def _vector(values: tuple[float, ...]) -> str:
    return "[" + ", ".join(f"{value:.11g}" for value in values) + "]"


def _published(out: Screen, answer: BatchAnswer) -> None:
    out.head("Published", "ResNet-50 on ImageNet, top-1 validation error")
    rows = [
        (f"{p.batch:,}", f"{p.lr:g}", p.rule, p.warmup, f"{p.error:.2f} +- {p.spread:.2f} %", p.source)
        for p in answer.rates.points
    ]
    columns = [("batch", "right"), ("lr", "right"), ("rule", "left"), ("warmup", "left"), ("error", "right")]
    out.table([*columns, ("", "left")], rows)


def _assumed(out: Screen, answer: BatchAnswer) -> None:
    told = [a for a in answer.assumptions if a.kind != "default" and a.name in ("jitter", "slow_nodes")]
    assumed(out, defaults_of(answer.assumptions), [(option_words(a.name), f"{a.value:.3g}", a) for a in told])


# -------------------------------------------------------------------------------------------------------------- numbers
def _number(value: float | None) -> str:
    """A plain number with up to four digits."""
    if value is None:
        return ""
    return f"{value:,.0f}" if KILO <= abs(value) < PETA else f"{value:.4g}"


def _count(value: float | None) -> str:
    return "" if value is None else format_count(round(value))


def _share(value: float) -> str:
    """A share in per cent, two digits."""
    percent = 100.0 * value
    return f"{percent:.0f}\u00a0%" if percent >= 10.0 * FULL or percent == round(percent) else f"{percent:.2g}\u00a0%"


def _markdown(answer: BatchAnswer) -> str:
    table = to_markdown(
        [[s.rule, _number(s.lr), _number(s.factor), s.optimizers, s.held, s.source] for s in answer.rates.rules],
        ["rule", "lr", "factor", "for", "seen to hold", "source"],
        right=(1, 2),
    )
    rows = [
        [
            "" if m.epoch is None else f"{m.epoch:.4g}",
            "" if m.step is None else str(m.step),
            _number(m.lr),
            _number(m.factor),
        ]
        for m in answer.warmup.by_epoch()
    ]
    tables = [table]
    if answer.warmup.peak is not None:
        tables.append(to_markdown(rows, ["epoch", "update", "lr", "x base"], right=(0, 1, 2, 3)))
    laws = [
        [m.law, _count(m.critical_batch), _count(m.largest_batch), _number(m.data_penalty), m.formula, m.source]
        for m in answer.limits
        if not m.missing
    ]
    if laws:
        tables.append(to_markdown(laws, ["law", "critical", "largest", "data", "formula", "source"], right=(1, 2, 3)))
    tables += markdown_tables(answer.layouts) if answer.layouts is not None else []
    return "\n".join([f"{line(answer)}\n", *tables])
