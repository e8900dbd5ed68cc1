"""Damage never invents a row: logs cut, prefixed, interleaved and re-encoded against the rows that they printed."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dscalc.calibrate.log_text import Log
from dscalc.calibrate.logs import read_text
from dscalc.calibrate.measurements import Read
from dscalc.errors import InputError
from tests.calibrate.written import GENERATIONS, NOISE, OTHERS, SCALED, TAGS, Truth, Written, nccl_tests, times_of

OPS = ("all_reduce", "all_gather", "reduce_scatter", "alltoall", "broadcast", "sendrecv")
ENCODINGS = ("utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be")


class Damage:
    """Changes to a log; remembers which lines are still whole."""

    def __init__(self, log: Written) -> None:
        self.lines = [[line] for line in log.lines]  # a line may come to stand on several
        self.whole = set(log.rows)
        self.tag = ""
        self.ends = "\n"
        self.encoding = "utf-8"
        self.cut: int | None = None

    def text(self) -> tuple[bytes, set[int]]:
        """The bytes, and the rows that are whole in them."""
        out, ends = "", {}
        for index, pieces in enumerate(self.lines):
            out += "".join(self.tag + piece + self.ends for piece in pieces)
            ends[index] = len(out)
        if self.cut is not None:
            out = out[: max(1, self.cut * len(out) // 1000)]
        whole = {i for i in self.whole if ends[i] <= len(out)}
        return out.encode(self.encoding), whole


@st.composite
def damaged(draw: st.DrawFn) -> tuple[Written, bytes, set[int]]:
    """A log, its damaged bytes, and the rows that are whole in them."""
    op = draw(st.sampled_from(OPS))
    ranks = draw(st.sampled_from((2, 3, 4, 8, 16, 24)))
    first = draw(st.sampled_from((0, 3, 10, 20)))
    unit = 4 * ranks if op in SCALED else 4
    sizes = [unit << k for k in range(first, first + draw(st.integers(1, 12)))]
    times = times_of(sizes, draw(st.floats(0.5, 400)), draw(st.floats(0.01, 900)), draw(st.floats(0.7, 1.4)))
    log = nccl_tests(
        op, ranks, sizes, times, generation=draw(st.sampled_from(GENERATIONS)), in_place=draw(st.booleans())
    )
    damage = Damage(log)
    rows = sorted(log.rows)
    for _ in range(draw(st.integers(0, 3))):
        index = draw(st.sampled_from(rows))
        line = log.lines[index]
        at = draw(st.integers(1, len(line) - 1))
        kind = draw(st.sampled_from(("tail", "head", "noise", "drop", "split")))
        if kind == "drop":
            damage.lines[index] = []
        elif kind == "tail":
            damage.lines[index] = [line[:at]]
        elif kind == "head":
            damage.lines[index] = [line[at:]]
        elif kind == "noise":
            damage.lines[index] = [line[:at] + draw(st.sampled_from(NOISE[:3])), *NOISE[:1], line[at:]]
        else:
            damage.lines[index] = [line[:at], line[at:]]
        damage.whole.discard(index)
    for _ in range(draw(st.integers(0, 4))):
        damage.lines[draw(st.integers(0, len(log.lines) - 1))].append(draw(st.sampled_from(NOISE)))
    damage.tag = draw(st.sampled_from(TAGS))
    damage.ends = draw(st.sampled_from(("\n", "\r\n")))
    damage.encoding = draw(st.sampled_from(ENCODINGS))
    damage.cut = draw(st.none() | st.integers(1, 1000))
    data, whole = damage.text()
    return log, data, whole


def reported(found: Read) -> list[tuple[int, list[list[float]]]]:
    """Rows as read: size and cells in us and GB/s."""
    rows = []
    for table in found.tables:
        for i, size in enumerate(table.size_bytes):
            cells = [
                [table.time_s[h, i] * 1e6, table.algbw_bytes_per_s[h, i] / 1e9, table.busbw_bytes_per_s[h, i] / 1e9]
                for h in (0, 1)
            ]
            rows.append((int(size), cells))
    return rows


def part_of(cells: list[list[float]], truth: Truth, *, fully: bool = False) -> bool:
    """Whether each reported cell is the printed one; ``fully``: and none is left out."""
    for mine, printed in zip(cells, truth.cells, strict=True):
        expected = [math.nan] * 3 if printed is None else printed
        for a, b in zip(mine, expected, strict=True):
            if math.isnan(a):
                if fully and not math.isnan(b):
                    return False
            elif not math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12):
                return False
    return True


def agrees(size: int, cells: list[list[float]]) -> bool:
    """Whether size over time is the speed in every half, given two decimals of each."""
    for time, algbw, _ in cells:
        if math.isnan(time) or math.isnan(algbw):
            continue
        time = round(time, 6)
        half = 0.5 if time >= 1e4 else 0.05 if time >= 100 else 0.005
        low, high = size / (time + half) / 1e3, size / max(time - half, 1e-9) / 1e3
        if not low - 0.006 <= algbw <= high + 0.006:
            return False
    return True


@settings(max_examples=150)
@given(damaged())
def test_damage_never_invents_a_row(case: tuple[Written, bytes, set[int]]) -> None:
    log, data, whole = case
    try:
        found = read_text(Log("damaged.log", data))
    except InputError:
        assert not whole
        return
    rows = reported(found)
    truths = {truth.size: truth for truth in log.rows.values()}
    for size, cells in rows:
        assert size in truths, f"size {size} was never printed"
        assert part_of(cells, truths[size]), f"{cells} is not {truths[size]}"
        assert agrees(size, cells)
    sizes = [size for size, _ in rows]
    assert len(sizes) == len(set(sizes)), "a row is reported twice"
    by_size = dict(rows)
    for index in whole:
        truth = log.rows[index]
        assert truth.size in by_size, f"line {index + 1} is whole and not reported"
        assert part_of(by_size[truth.size], truth, fully=True)


def everything(text: str) -> list[tuple[float, ...]]:
    """Every number that a log gives, row by row."""
    try:
        found = read_text(Log("cut.log", text.encode()))
    except InputError:
        return []
    rows = [
        (
            float(size),
            *(float(column[h, i]) for column in (t.time_s, t.algbw_bytes_per_s, t.busbw_bytes_per_s) for h in (0, 1)),
        )
        for t in found.tables
        for i, size in enumerate(t.size_bytes)
    ]
    rows += [
        tuple(float(column[i]) for column in (c.m, c.n, c.k, c.rate)) for c in found.compute for i in range(len(c.line))
    ]
    return rows


@pytest.mark.parametrize("name", OTHERS)
def test_no_cut_anywhere_invents_a_number(name: str) -> None:
    text = OTHERS[name]
    whole = everything(text)
    assert len(whole) == {"cookbook-raw": 1, "csv": 3, "csv-semicolons": 3}.get(name, 2)

    def known(row: tuple[float, ...]) -> bool:
        return any(
            len(row) == len(full)
            and all(math.isnan(a) or math.isclose(a, b, rel_tol=1e-9) for a, b in zip(row, full, strict=True))
            for full in whole
        )

    for at in range(1, len(text)):
        for part in (text[:at], text[at:]):
            for row in everything(part):
                assert known(row), (part[-120:] if part is text[:at] else part[:120], row)
        newline = text[:at] + "\n" + text[at:].partition("\n")[2]  # the rest of one line is lost
        for row in everything(newline):
            assert known(row), (text[max(0, at - 60) : at], row)


def test_interleaving_two_ranks_reports_no_hybrid() -> None:
    sizes = [1 << k for k in range(10, 30)]
    log = nccl_tests("all_reduce", 8, sizes, times_of(sizes, 30.0, 150.0))
    other = nccl_tests("all_reduce", 8, sizes, times_of(sizes, 33.0, 140.0))
    rng = np.random.default_rng(7)
    lines = []
    for mine, theirs in zip(log.lines, other.lines, strict=True):
        at = int(rng.integers(1, max(2, len(mine))))
        lines += [mine[:at] + theirs, mine[at:]] if rng.random() < 0.3 else [mine, theirs]
    truths = [truth for one in (log, other) for truth in one.rows.values()]
    found = reported(read_text(Log("two.log", "\n".join(lines).encode())))
    assert len(found) > len(sizes)
    for size, cells in found:
        assert any(size == truth.size and part_of(cells, truth) for truth in truths), (size, cells)
