"""The ratio question: does computing cover communicating, from which batch on, and among how many ranks."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from dscalc.answers.envelope import Assumption, Warning, envelope
from dscalc.answers.ratio_effects import Effect, effects, times
from dscalc.answers.ratio_levers import Lever, levers
from dscalc.answers.ratio_setting import Setting, build_setting, inputs_of_setting
from dscalc.cost import ratio as formulas
from dscalc.frozen import dataclass
from dscalc.specs.given import gather

ONE_RANK, HIDES, WAITS = "nothing to communicate", "communication can hide", "GPUs wait"
PAPER, RING = "[Kaplan2020] section 2.1", "[Patarasuk2009] section 3"
CLOSED = f"{PAPER}; {RING}"
NOTES = (
    "A lower P only flatters the ratio: the step gets slower, not the network faster.",
    "Only gradients and sharded weights are counted; tensor, pipeline, context and expert parallelism add their own "
    "traffic.",
)


class Row(NamedTuple):
    """One quantity: by the closed form, and with the effects of this layout; None where it does not exist."""

    name: str
    value: float | None
    corrected: float | None
    unit: str
    formula: str
    source: str
    inputs: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RatioAnswer:
    """The answer. Plain names are the closed form; ``corrected`` ones hold the effects of the layout."""

    setting: Setting
    given: Mapping[str, Any]
    rows: tuple[Row, ...]
    effects: tuple[Effect, ...]
    levers: tuple[Lever, ...]
    verdict: str
    deciding: float | None  # the ratio that the verdict is about
    assumptions: tuple[Assumption, ...]
    warnings: tuple[Warning, ...]
    notes: tuple[str, ...] = NOTES

    def value(self, name: str) -> float | None:
        """A quantity by the closed form."""
        return next(row.value for row in self.rows if row.name == name)

    def corrected(self, name: str) -> float | None:
        """A quantity with the effects of the layout."""
        return next(row.corrected for row in self.rows if row.name == name)

    @property
    def ratio(self) -> float | None:
        """Computing over communicating by the closed form, for many ranks."""
        return self.value("ratio")

    @property
    def ratio_exact(self) -> float | None:
        """The same at the given number of ranks; None without one."""
        return self.value("ratio_exact")

    def to_json(self) -> dict[str, Any]:
        """The answer as the JSON object that the documentation freezes."""
        seconds = ("compute_time_s", "communication_time_s", "communication_time_exact_s")
        result: dict[str, Any] = {
            row.name: row.value if self.setting.modelled or row.name not in seconds else None for row in self.rows
        }
        for row in self.rows:
            if row.corrected is not None:
                hidden = row.name in seconds and not self.setting.modelled
                result[f"{row.name}_corrected"] = None if hidden else row.corrected
        spec = self.setting.case.layout.spec
        result |= {
            "data_parallel": spec.dp if self.setting.ranks is not None else None,
            "reducing_ranks": self.setting.ranks,
            "verdict": self.verdict,
            "effects": [e._asdict() for e in self.effects],
            "levers": [lever._asdict() for lever in self.levers],
            "notes": list(self.notes),
        }
        inputs = inputs_of_setting(self.setting, self.given)
        return envelope("ratio", inputs, self.assumptions, self.warnings, result)


def ratio(**options: object) -> RatioAnswer:
    """Whether computing covers communicating: 6ND/P against 2Nb/BW.

    Args:
        options: the options of ``dscalc ratio`` with underscores, e.g. ``flops="400TF", bandwidth="50GB/s",
            tokens_per_rank="8k"``, or ``model="llama-3-8b", cluster="dgx-h100", gpus=64``; ``scenario`` names a TOML
            file.

    Returns:
        The answer.

    Raises:
        DscalcError: an unknown name, an unreadable file, a value out of range, options that contradict each other, or
            nothing that says how fast a GPU or the network is.
    """
    return answer(gather(options))


def answer(given: Mapping[str, Any]) -> RatioAnswer:
    """The same from options that ``gather`` has read."""
    setting = build_setting(given)
    rows = tuple(_rows(setting))
    by_name = {row.name: row for row in rows}
    exact = by_name["ratio_exact"] if setting.ranks else by_name["ratio"]
    deciding = exact.corrected if exact.corrected is not None else exact.value
    if setting.ranks == 1:
        verdict, deciding = ONE_RANK, None
    elif deciding is None:  # experts alone would be reduced, and nobody shares them
        verdict = ONE_RANK
    else:
        verdict = HIDES if deciding >= 1.0 else WAITS
    return RatioAnswer(
        setting=setting,
        given=dict(given),
        rows=rows,
        effects=tuple(effects(setting)),
        levers=tuple(levers(setting)) if deciding is not None else (),
        verdict=verdict,
        deciding=deciding,
        assumptions=setting.assumptions,
        warnings=setting.warnings,
    )


def _scalar(value: Any) -> float | None:
    number = float(np.asarray(value, dtype=np.float64).reshape(-1)[0])
    return number if isfinite(number) else None


def _rows(setting: Setting) -> list[Row]:
    """Every quantity, by the closed form and with the effects of the layout."""
    spec, work, traffic = setting.case.layout.spec, setting.work, setting.traffic
    group = 1 if setting.ranks == 1 else None  # one rank sends nothing
    rate, link, wire = work.flop_per_s, traffic.bandwidth_bytes_per_s, traffic.gradient_bytes
    local = work.tokens / spec.cp  # tokens one GPU computes on
    here, many = times(setting, exact=True), times(setting, exact=False)
    shared = float(spec.tp * spec.pp)
    alone = _scalar(formulas.ratio(local, rate, link, wire)) if group is None else None
    known = setting.ranks and alone
    exact = _scalar(formulas.exact_ratio(np.array([alone]), traffic.ranks)) if known else None
    break_even = spec.cp * formulas.break_even_tokens(rate, link, wire)
    batch = float(spec.global_batch) * spec.seq_len if setting.batch_known else None
    tokens = float(spec.tokens_per_rank)
    changed = any(e.applies and e.factor not in (None, 1.0) for e in effects(setting)) and group is None

    def corrected(value: Any) -> float | None:
        return _scalar(value) if changed else None

    later = tokens / many.ratio if many.ratio else None
    inputs = {
        "P": setting.rate.value,
        "BW": _scalar(link) or 0.0,
        "D": tokens,
        "b_r": setting.gradient_bytes,
        "N": float(work.params[0]),
        "K": float(setting.ranks or 0),
        "G": batch or 0.0,
        "c": float(spec.cp),
        "t": float(spec.tp),
        "p": float(spec.pp),
        "D*": _scalar(break_even) or 0.0,
    }
    per = "" if shared * spec.cp == 1 else " / (t p c)"
    held = "" if shared == 1 else " / (t p)"
    over = "" if spec.cp == 1 else " / c"
    times_c = "" if spec.cp == 1 else "c "
    useful = None if batch is None else _scalar(formulas.max_useful_ranks(np.array([batch]), break_even))
    inputs["K*"] = useful or 0.0
    exactly = (
        None
        if batch is None
        else _scalar(formulas.exact_max_useful_ranks(np.array([batch]), break_even, np.array([float(spec.cp)])))
    )
    useful_later = corrected(batch / later) if batch is not None and later else None
    degree = float(spec.tp * spec.pp * spec.cp)
    sent = 0.0 if group else _scalar(many.paper_s)

    def row(
        name: str, value: float | None, later: float | None, unit: str, formula: str = "", source: str = CLOSED
    ) -> Row:
        return Row(name, value, later, unit, formula, source, inputs)

    return [
        row("effective_flop_per_s", setting.rate.value, None, "FLOP/s", "P", setting.rate.source),
        row(
            "bandwidth_bytes_per_s",
            None if setting.bandwidth is None else setting.bandwidth.value,
            None,
            "bytes/s",
            "BW",
            "" if setting.bandwidth is None else setting.bandwidth.source,
        ),
        row("tokens_per_rank", tokens, None, "tokens", "D", "[Definition]"),
        row("gradient_bytes", setting.gradient_bytes, None, "bytes", "b_r", "[Definition]"),
        row("compute_time_s", _scalar(here.paper_compute_s), corrected(here.compute_s), "s", f"6 N D / P{per}", PAPER),
        row("communication_time_s", sent, corrected(many.s), "s", f"2 N b_r / BW{held}", RING),
        row(
            "communication_time_exact_s",
            _scalar(here.paper_s) if setting.ranks else None,
            corrected(here.s) if setting.ranks else None,
            "s",
            f"2 (K - 1)/K N b_r / BW{held}",
            RING,
        ),
        row("ratio", alone, corrected(many.ratio) if many.ratio else None, "", f"3 D BW / (P b_r){over}"),
        row(
            "ratio_exact",
            exact,
            corrected(here.ratio) if setting.ranks and here.ratio else None,
            "",
            "ratio K / (K - 1)",
            RING,
        ),
        row(
            "break_even_tokens_per_rank",
            _scalar(break_even),
            corrected(later) if later else None,
            "tokens",
            f"D* = {times_c}P b_r / (3 BW)",
        ),
        row("global_batch_tokens", batch, None, "tokens", "G", "[Definition]"),
        row("max_useful_data_parallel", useful, useful_later, "ranks", "K* = G / D*"),
        row("max_useful_data_parallel_exact", exactly, None, "ranks", f"K* = 1{over} + G / D*"),
        row(
            "max_useful_gpus",
            None if useful is None else useful * degree,
            None if useful_later is None else useful_later * degree,
            "GPUs",
            "K* t p c",
        ),
    ]
