"""Damage never invents a row: logs cut, prefixed, interleaved and re-encoded against the rows that they printed."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dscalc.calibrate.log_text import Log
from dscalc.calibrate.logs import read_text
from dscalc.calibrate.measurements import Read
from dscalc.errors import InputError
from tests.calibrate.written import GENERATIONS, NOISE, SCALED, TAGS, Truth, Written, nccl_tests, times_of

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
