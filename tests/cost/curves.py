"""Published curves against predictions with the shipped profiles, for docs/explanation/communication-accuracy.md.

``python -m tests.cost.curves`` writes the tables of that page anew.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from dscalc.cost.collectives import ALGORITHMS, collective
from dscalc.records import Network
from dscalc.specs import store
from dscalc.specs.network import compose_network, load_interconnect, lower_network
from dscalc.units import GB, GIB, KIB, MIB, MICRO

REPOSITORY = Path(__file__).resolve().parents[2]
CURVES = REPOSITORY / "tests" / "evidence" / "all_reduce_curves.csv"
PAGE = REPOSITORY / "docs" / "explanation" / "communication-accuracy.md"
BEGIN, END = "<!-- begin {} -->", "<!-- end {} -->"
LARGE_BYTES, SMALL_BYTES = 16 * MIB, 128


@dataclass(frozen=True)
class Point:
    """One published measurement and its prediction; times in seconds."""

    row: dict[str, str]
    message_bytes: float
    measured_s: float
    predicted_s: float
    ran: str
    traffic_factor: float

    @property
    def error(self) -> float:
        return self.predicted_s / self.measured_s - 1.0

    @property
    def ratio(self) -> float:
        return max(self.predicted_s / self.measured_s, self.measured_s / self.predicted_s)

    @property
    def calibrates(self) -> bool:
        return bool(self.row["calibrates"])

    def busbw(self, time_s: float) -> float:
        return self.message_bytes * self.traffic_factor / time_s / GB


@lru_cache(maxsize=64)
def network(name: str) -> Network:
    """A shipped cluster by id, or ``GPU xN interconnect [xNICS]`` composed by hand."""
    words = name.split()
    if len(words) == 1:
        return lower_network(store.load_cluster(name).spec).network
    nics = int(words[3][1:]) if len(words) > 3 else None
    gpu, link = store.load_gpu(words[0]).spec, load_interconnect(words[2]).spec
    return compose_network(gpu, int(words[1][1:]), link, nics_per_node=nics).network


def bus_factor(op: str, ranks: float) -> float:
    """What nccl-tests multiplies size/time by."""
    return (2.0 if op == "all-reduce" else 1.0) * (ranks - 1.0) / ranks


def points() -> Iterator[Point]:
    """Every row of the evidence, predicted."""
    with CURVES.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        wired = network(row["cluster"])
        ranks, size = float(row["ranks"]), float(row["message_bytes"])
        inside = min(ranks, float(wired.tiers[0].gpus[0]))
        found = collective(
            row["op"],
            np.array([size]),
            np.array([ranks]),
            np.array([inside]),
            np.array([np.ceil(ranks / inside)]),
            wired,
            row["algorithm"] or None,
        )
        factor = bus_factor(row["op"], ranks)
        stated = row["latency_us"]
        measured = float(stated) * MICRO if stated else size * factor / (float(row["busbw_gb_per_s"]) * GB)
        ran = ALGORITHMS[int(found.algorithm[0])].name
        yield Point(row, size, measured, float(found.time_s[0]), ran, factor)


def _size(message_bytes: float) -> str:
    for factor, unit in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if message_bytes >= factor:
            return f"{message_bytes / factor:g} {unit}"
    return f"{message_bytes:g} B"


def _summary(label: str, chosen: list[Point], small: bool = False) -> str:
    if small:
        ratios = [p.ratio for p in chosen]
        figures = (np.median(ratios), np.quantile(ratios, 0.9), max(ratios))
        return f"| {label} | {len(chosen)} | {' | '.join(f'factor {figure:.2f}' for figure in figures)} |"
    errors = np.abs([p.error for p in chosen])
    return (
        f"| {label} | {len(chosen)} | {np.median(errors):.1%} | {np.quantile(errors, 0.9):.1%} | {np.max(errors):.1%} |"
    )


def tables() -> dict[str, str]:
    """The generated parts of the page."""
    found = list(points())
    large = [p for p in found if p.message_bytes >= LARGE_BYTES]
    middle = [p for p in found if SMALL_BYTES < p.message_bytes < LARGE_BYTES]
    small = [p for p in found if p.message_bytes <= SMALL_BYTES]
    summary = [
        "| points | n | median | 90th percentile | largest |",
        "| --- | --- | --- | --- | --- |",
        _summary("16 MiB and more", large),
        _summary("of these, no constant was taken from them", [p for p in large if not p.calibrates]),
        _summary("of these, at least 1 GiB", [p for p in large if not p.calibrates and p.message_bytes >= GIB]),
        _summary("of these, 16 MiB to 256 MiB", [p for p in large if not p.calibrates and p.message_bytes < GIB]),
        _summary("1 to 8 MiB", middle),
        _summary("128 B and less", small, small=True),
        _summary("of these, no constant was taken from them", [p for p in small if not p.calibrates], small=True),
    ]
    rows = [
        "| cluster | operation | ranks (nodes) | message | measured | predicted | error | algorithm | source |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for p in found:
        stated = bool(p.row["latency_us"])
        measured = f"{p.measured_s / MICRO:.1f} us" if stated else f"{float(p.row['busbw_gb_per_s']):.1f} GB/s"
        predicted = f"{p.predicted_s / MICRO:.1f} us" if stated else f"{p.busbw(p.predicted_s):.1f} GB/s"
        forced = f"{p.ran}, stated" if p.row["algorithm"] else p.ran
        star = " \\*" if p.calibrates else ""
        place = f"{p.row['ranks']} ({p.row['nodes']})"
        cells = (
            p.row["cluster"],
            p.row["op"],
            place,
            _size(p.message_bytes),
            measured,
            predicted,
            f"{p.error:+.1%}{star}",
            forced,
            p.row["source"],
        )
        rows.append(f"| {' | '.join(cells)} |")
    return {"summary": "\n".join(summary), "points": "\n".join(rows)}


def page(text: str) -> str:
    """The page with its generated parts replaced."""
    for name, table in tables().items():
        begin, end = BEGIN.format(name), END.format(name)
        head, rest = text.split(begin)
        text = f"{head}{begin}\n\n{table}\n\n{end}{rest.split(end)[1]}"
    return text


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
