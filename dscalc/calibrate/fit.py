"""Fits of everything that some logs measured: one a collective and group, one a data type, and where runs disagree."""

from __future__ import annotations

from collections.abc import Sequence

from dscalc.calibrate.fit_compute import Gemm, Launch, Memory, fit_compute
from dscalc.calibrate.fit_curve import error_bars
from dscalc.calibrate.fit_line import Lines, fit_lines
from dscalc.calibrate.measurements import Read
from dscalc.calibrate.series import Conflict, Series, merged, series_of
from dscalc.frozen import dataclass
from dscalc.records import Array


@dataclass(frozen=True, slots=True, eq=False)
class Fit:
    """One collective in one group: what was measured, its error bars, and the lines through it."""

    series: Series
    error: Array  # half-width of the 80 % bar of the logarithm of each time [1, (n,)]
    lines: Lines


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """What some logs say of a cluster.

    Attributes:
        fits: by collective and group.
        gemms, copies, launches: what one GPU sustains.
        conflicts: runs of one thing that disagree.
        refused: tables that were not fitted, by file and line, and why.
        gpus: names of the GPU as the logs have them, each once.
    """

    fits: tuple[Fit, ...]
    gemms: tuple[Gemm, ...]
    copies: tuple[Memory, ...]
    launches: tuple[Launch, ...]
    conflicts: tuple[Conflict, ...]
    refused: tuple[tuple[str, str], ...]
    gpus: tuple[str, ...]


def fit_logs(read: Sequence[Read], nodes: int | None = None, gpus_per_node: int | None = None) -> Calibration:
    """Fit what readers found.

    Args:
        read: the logs.
        nodes: nodes of each group, where a log does not say [count].
        gpus_per_node: GPUs of one node, where a log does not say [count].

    Returns:
        The fits.

    Raises:
        MissingLibraryError: scipy is not installed.
    """
    usable: list[Series] = []
    refused: list[tuple[str, str]] = []
    for file in read:
        for table in file.tables:
            found = series_of(table, nodes, gpus_per_node)
            if isinstance(found, str):
                refused.append((f"{table.file}:{table.first_line}-{table.last_line}", found))
            else:
                usable.append(found)
    kept, conflicts = merged(usable)
    gemms, copies, launches = fit_compute(c for file in read for c in file.compute)
    names = [t.gpu for file in read for t in file.tables] + [c.gpu for file in read for c in file.compute]
    return Calibration(
        fits=tuple(
            Fit(s, error_bars(s.size_bytes, s.time_s, s.noise), fit_lines(s.size_bytes, s.time_s)) for s in kept
        ),
        gemms=gemms,
        copies=copies,
        launches=launches,
        conflicts=conflicts,
        refused=tuple(refused),
        gpus=tuple(dict.fromkeys(name for name in names if name)),
    )
