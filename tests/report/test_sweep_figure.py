"""What the pictures of a sweep show, against the rows themselves and against counting by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dscalc.answers.sweep import SweepAnswer, sweep
from dscalc.answers.sweep_detail import in_full, paying, typed
from dscalc.report.chart import ASCII, UNICODE, Glyphs
from dscalc.report.screen import Screen
from dscalc.report.sweep_charts import curve_chart, layout_charts
from dscalc.report.sweep_figure import SLOW, ceiling_range, figure_of, linear_ticks, log_ticks
from tests.golden.test_screens import compare

HOUR_S, BILLION = 3600.0, 1e9


def test_bars_are_the_time_of_the_rows(answer: SweepAnswer) -> None:
    """GPU-hours of a billion tokens: GPUs x seconds of a step / tokens of a step."""
    bars = {(b.setup, b.gpus): b.total for b in figure_of(answer).bars}
    rows = [p.row for p in answer.curve if p.row is not None]
    assert len(bars) == len(rows) == 8
    for row in rows:
        tokens = row.layout.global_batch * row.layout.seq_len
        hours = row.gpus * row.step_time_s / tokens * BILLION / HOUR_S
        assert bars[row.setup, row.gpus] == pytest.approx(hours, rel=2e-3)  # slivers are left out


def test_one_layout_in_full_is_its_row(answer: SweepAnswer) -> None:
    for row in answer.rows:
        if row.rank == 1:
            full = in_full(answer, row)
            assert full.step_time_s == pytest.approx(row.step_time_s, rel=1e-12)
            assert full.memory.total_bytes == pytest.approx(row.total_bytes, rel=1e-12)


@pytest.mark.parametrize(
    "asked",
    [
        {"cp": "2,4", "cp_comm": "ulysses"},
        {"pp": 4, "schedule": "zb-h1,1f1b"},
        {"zero": 3, "dp_replicate": "2,4"},
        {"tp": 8, "sequence_parallel": False, "recompute": "full"},
        {"model": "deepseek-v3", "cluster": "gb200-nvl72", "gpus": 256, "global_batch": 512, "pp": 8, "ep": "8,16"},
    ],
    ids=lambda asked: " ".join(asked),
)
def test_every_axis_reaches_the_layout_in_full(asked: dict[str, Any]) -> None:
    """What a report shows term by term is the layout of the row, whatever was swept."""
    usual = {
        "model": "llama-3-8b",
        "cluster": "dgx-h100",
        "gpus": 32,
        "global_batch": 64,
        "max_tp": 8,
        "recompute": "none",
    }
    found = sweep(**{**usual, "cp": 1, "pp": 1, "top": 2, **asked})
    assert found.rows
    for row in (r for r in found.rows if r.rank):
        full = in_full(found, row)
        assert full.case.layout.spec == row.layout
        assert full.step_time_s == pytest.approx(row.step_time_s, rel=1e-12)


def test_front_is_what_no_other_layout_beats(answer: SweepAnswer) -> None:
    """Against looking at every pair."""
    front = figure_of(answer).front
    assert front is not None
    assert len(front.dots) > 5
    for dot in front.dots:
        beaten = any(
            o.step_time_s <= dot.step_time_s
            and o.headroom_bytes >= dot.headroom_bytes
            and (o.step_time_s, o.headroom_bytes) != (dot.step_time_s, dot.headroom_bytes)
            for o in front.dots
        )
        assert not (dot.front and beaten)
        assert dot.front or beaten or any(o.front and o.headroom_bytes == dot.headroom_bytes for o in front.dots)
    assert [d.headroom_bytes for d in front.dots] == sorted(d.headroom_bytes for d in front.dots)
    assert sum(d.chosen for d in front.dots) == 1
    fastest = min(d.step_time_s for d in front.dots)
    assert max(d.step_time_s for d in front.dots) <= SLOW * fastest


def test_curve_holds_the_rows_with_their_error_bars(plain: SweepAnswer) -> None:
    (curve,) = figure_of(plain).curves
    searched = [m for m in curve.marks if m.searched]
    rows = [p.row for p in plain.curve if p.row is not None]
    assert [m.gpus for m in searched] == [8, 16, 32, 64, 128]
    for mark, row in zip(searched, rows, strict=True):
        tokens = row.layout.global_batch * row.layout.seq_len
        assert mark.tokens_per_s == pytest.approx(tokens / row.step_time_s)
        assert (mark.low, mark.high) == pytest.approx((tokens / row.high_s, tokens / row.low_s))
    assert all(m.gpus > 128 for m in curve.marks if not m.searched)


def test_the_last_size_that_pays(plain: SweepAnswer) -> None:
    found = plain.ceilings["dgx-h100"]

    def last(limit: float | None) -> int | None:
        point = paying(replace(plain, ceilings={"dgx-h100": replace(found, gpus=limit)}), "dgx-h100")
        return None if point is None else point.gpus

    assert [last(limit) for limit in (None, 1000.0, 64.0, 63.0, 4.0)] == [128, 128, 64, 32, None]


def test_words_of_a_ceiling(plain: SweepAnswer) -> None:
    """Two digits where an error bar bears on it, all of them where none does."""
    (curve,) = figure_of(plain).curves

    def words(limit: str | None, gpus: float | None, low: float | None, high: float | None) -> str:
        found = replace(curve.ceiling, binding_limit=limit, gpus=gpus, low_gpus=low, high_gpus=high)
        return ceiling_range(curve._replace(ceiling=found))

    assert words("marginal_gain", 726.2, 590.6, 756.9) == "730 GPUs (590 - 760): marginal GPU"
    assert words("throughput_peak", 4096.0, 2048.0, None) == "4,100 GPUs (2,000 or more): throughput peak"
    assert words("sequences", 1024.0, 1024.0, 1024.0) == "1,024 GPUs: sequences"
    assert words(None, None, None, None) == "not reached"


def test_nothing_fits_draws_nothing(nothing: SweepAnswer) -> None:
    figure = figure_of(nothing)
    assert (figure.curves, figure.bars, figure.front) == ((), (), None)
    out = Screen(width=80, colour=False)
    curve_chart(out, figure, UNICODE)
    layout_charts(out, figure, UNICODE)
    assert out.lines == []


def test_ticks_are_round_and_within() -> None:
    assert log_ticks(0.9, 1.1, 5) == [1.0]
    assert log_ticks(1.0, 1e6, 3) == [1.0, 1e4]
    assert linear_ticks(-1.0, 1.0, 5) == [-1.0, -0.5, 0.0, 0.5, 1.0]


GIVEN = {
    "model": "it's a 'model'.json",
    "gpus": (8, 16),
    "latency": 5e-06,
    "flops": 4e14,
    "bandwidth": 5e10,
    "sequence_parallel": False,
    "fsdp_mesh": None,
    "recompute": ("none", "full"),
    "peak_fraction": 0.4,
    "tokens": 10**12,
}


def test_the_command_gives_the_same_options() -> None:
    """What is typed is read back as what was given."""
    import shlex

    from dscalc.cli.options import collect
    from dscalc.cli.sweep import command
    from dscalc.specs.sweep_options import TABLE

    given = {name: value for name, value in GIVEN.items() if name in TABLE}
    words = shlex.split(typed(given))
    assert words[:2] == ["dscalc", "sweep"]
    with command.make_context("sweep", words[2:]) as context:
        read, _ = collect(context.params, table=TABLE)
    assert read == given


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.parametrize("letters", [UNICODE, ASCII], ids=["unicode", "ascii"])
def test_pictures_on_a_terminal(answer: SweepAnswer, plain: SweepAnswer, width: int, letters: Glyphs) -> None:
    name = "ascii" if letters is ASCII else "unicode"
    for which, found in (("two", answer), ("one", plain)):
        out = Screen(width=width, colour=False)
        curve_chart(out, figure_of(found), letters)
        layout_charts(out, figure_of(found), letters)
        words = out.text()
        assert all(len(line) <= width and line == line.rstrip() for line in words.splitlines())
        assert words.isascii() == (letters is ASCII)
        compare(Path(__file__).parent / "golden" / f"sweep-{which}-{name}-{width}.txt", words)


def test_colour_only_adds_colour(plain: SweepAnswer, monkeypatch: pytest.MonkeyPatch) -> None:
    import re

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    texts = []
    for colour in (False, True):
        out = Screen(width=100, colour=colour)
        curve_chart(out, figure_of(plain), UNICODE)
        layout_charts(out, figure_of(plain), UNICODE)
        texts.append(out.text())
    assert "\x1b[" in texts[1]
    assert re.sub(r"\x1b\[[0-9;]*m", "", texts[1]) == texts[0]
