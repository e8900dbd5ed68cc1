"""``dscalc fit``: what logs of benchmarks measured."""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import numpy as np

from dscalc.answers.envelope import Warning, envelope
from dscalc.answers.fit_profile import Profiled, profiled
from dscalc.calibrate.log_text import printed
from dscalc.calibrate.logs import read_log
from dscalc.calibrate.measurements import HALVES, Check, Compute, Read, Table
from dscalc.calibrate.table_checks import PLAIN, SCALED, Stated
from dscalc.errors import InputError
from dscalc.frozen import dataclass
from dscalc.specs.given import gather

OPS = ("all_reduce", *sorted(SCALED | PLAIN))
MAX_FILES = 10_000
MAX_RANKS = 10**6
NEXT_STEPS = {
    "size_over_time": "look at the lines named: a damaged copy is the usual cause; give the log as it was written",
    "busbw_over_algbw": "look at the lines named: a damaged copy is the usual cause",
    "op": "name the operation with --op",
    "ranks": "hold it against how the test was started; --ranks says what the log does not",
    "average": "give the whole log",
    "out_of_bounds": "find out why results are wrong before using the speed",
    "device_time": "run the benchmark without -C",
    "stated": "leave --ranks out, or give the log that it belongs to",
    "complete": "run `dscalc bench` again with --resume",
}


@dataclass(frozen=True, slots=True, eq=False)
class FitAnswer:
    """What the logs hold.

    Attributes:
        logs: what was read of each.
        left_out: files without a usable row, with the reason.
        twice: files that were named more than once.
        stated: what the user says of the logs.
        with_rows: every row was asked for.
        profiled: fits and the profile made of them.
    """

    logs: tuple[Read, ...]
    left_out: tuple[tuple[str, str], ...]
    twice: tuple[str, ...]
    stated: Stated
    with_rows: bool
    profiled: Profiled

    def warnings(self) -> list[Warning]:
        """What a reader should know before using the numbers."""
        told = [
            Warning("no_usable_row", f"{file}: {reason}", "leave it out, or give the log of a run that measured")
            for file, reason in self.left_out
        ]
        told += [
            Warning("given_twice", f"{file} is named more than once; it counts once", "name another, if one was meant")
            for file in self.twice
        ]
        for log in self.logs:
            for table in log.tables:
                told += [_warning(log, table, check) for check in table.checks if not check.ok]
        return list(dict.fromkeys([*told, *self.profiled.warnings]))

    def tables(self) -> list[dict[str, Any]]:
        """Every table of every log as one row, base units."""
        return [
            {"file": log.file, "format": log.format} | {k: v for k, v in one.items() if k not in ("checks", "rows")}
            for log in self.logs
            for one in (table_json(table, with_rows=False) for table in log.tables)
        ]

    def rows(self) -> list[dict[str, Any]]:
        """Every row of every table, base units."""
        return [
            {"file": log.file, "op": table.op, "ranks": table.ranks, "nodes": table.nodes} | row
            for log in self.logs
            for table in log.tables
            for row in table_rows(table)
        ]

    def kernels(self) -> list[dict[str, Any]]:
        """Every kernel of every log, base units."""
        return [
            {"file": log.file, "kind": one.kind, "dtype": one.dtype, "gpu": one.gpu} | row
            for log in self.logs
            for one in log.compute
            for row in compute_rows(one)
        ]

    def to_json(self) -> dict[str, Any]:
        """The answer with the stable keys of the interface."""
        return envelope(
            "fit",
            {
                "files": [*(log.file for log in self.logs), *(file for file, _ in self.left_out)],
                "op": self.stated.op or None,
                "ranks": self.stated.ranks,
                "nodes": self.stated.nodes,
            },
            self.profiled.assumptions,
            self.warnings(),
            {"logs": [self._log(log) for log in self.logs], **self.profiled.to_json()},
        )

    def to_json_tables(self, log: Read) -> list[dict[str, Any]]:
        """The tables of one log with the keys of the interface."""
        return [table_json(table, with_rows=self.with_rows) for table in log.tables]

    def to_json_compute(self, log: Read) -> list[dict[str, Any]]:
        """The kernels of one log with the keys of the interface."""
        return [compute_json(one, with_rows=self.with_rows) for one in log.compute]

    def _log(self, log: Read) -> dict[str, Any]:
        return {
            "file": log.file,
            "format": log.format,
            "tables": self.to_json_tables(log),
            "compute": self.to_json_compute(log),
            "network": log.network or None,
            "notes": list(log.notes),
        }


def _warning(log: Read, table: Table, check: Check) -> Warning:
    where = f"{log.file}:{table.first_line}-{table.last_line}"
    step = NEXT_STEPS.get(check.name, "look at the lines named")
    return Warning(f"check_{check.name}", f"{where}: {check.detail}", step)


def max_busbw(table: Table) -> float:
    """Largest bus bandwidth out-of-place, in-place where there is no other [bytes/s]; NaN without any."""
    for half in table.busbw_bytes_per_s:
        if not np.isnan(half).all():
            return float(np.nanmax(half))
    return float("nan")


def table_json(table: Table, *, with_rows: bool) -> dict[str, Any]:
    """A table with the stable keys of the interface; what is unknown is null."""
    found: dict[str, Any] = {
        "op": table.op or None,
        "ranks": table.ranks,
        "nodes": table.nodes,
        "gpu": table.gpu or None,
        "groups": table.groups,
        "rows_read": len(table.size_bytes) + table.rows_zero,
        "rows_zero": table.rows_zero,
        "rows_torn": table.rows_torn,
        "size_min_bytes": float(table.size_bytes.min()),
        "size_max_bytes": float(table.size_bytes.max()),
        "max_busbw_bytes_per_s": max_busbw(table),
        "mean_busbw_bytes_per_s": table.mean_busbw_bytes_per_s,
        "printed_mean_busbw_bytes_per_s": table.printed_mean_busbw_bytes_per_s,
        "first_line": table.first_line,
        "last_line": table.last_line,
        "checks": [{"name": c.name, "ok": c.ok, "detail": c.detail} for c in table.checks],
    }
    return found | {"rows": table_rows(table)} if with_rows else found


def table_rows(table: Table) -> list[dict[str, Any]]:
    """The rows of a table, out-of-place first; null where a cell is not there."""
    columns = {
        f"{'' if half == 0 else f'{name}_'}{key}": values[half]
        for half, name in enumerate(HALVES)
        for key, values in (
            ("time_s", table.time_s),
            ("algbw_bytes_per_s", table.algbw_bytes_per_s),
            ("busbw_bytes_per_s", table.busbw_bytes_per_s),
            ("wrong", table.wrong),
        )
    }
    return [
        {"line": int(line), "size_bytes": float(size)} | {key: _number(values[i]) for key, values in columns.items()}
        for i, (line, size) in enumerate(zip(table.line, table.size_bytes, strict=True))
    ]


def compute_json(one: Compute, *, with_rows: bool) -> dict[str, Any]:
    """Kernels of one kind and data type."""
    found: dict[str, Any] = {
        "kind": one.kind,
        "dtype": one.dtype or None,
        "gpu": one.gpu or None,
        "rows_read": len(one.line),
        "max_rate": float(np.max(one.rate)),
        "median_rate": float(np.median(one.rate)),
        "first_line": one.first_line,
        "last_line": one.last_line,
    }
    return found | {"rows": compute_rows(one)} if with_rows else found


def compute_rows(one: Compute) -> list[dict[str, Any]]:
    """The kernels one by one."""
    columns = {"m": one.m, "n": one.n, "k": one.k, "time_s": one.time_s, "rate": one.rate}
    return [
        {"line": int(line)} | {key: _number(values[i]) for key, values in columns.items()}
        for i, line in enumerate(one.line)
    ]


def _number(value: float) -> float | None:
    return None if np.isnan(value) else float(value)


def fit(
    *files: str | os.PathLike[str],
    rows: bool = False,
    op: str | None = None,
    ranks: int | None = None,
    nodes: int | None = None,
    step: str | os.PathLike[str] | None = None,
    compare: bool = False,
    compare_with: str | None = None,
    output: str | os.PathLike[str] | None = None,
    **options: object,
) -> FitAnswer:
    """Read logs of benchmarks, fit them, and make a profile of what they say.

    Args:
        files: logs of nccl-tests, rccl-tests, PyTorch benchmarks or ``dscalc bench``, in any encoding; ``-`` is the
            standard input.
        rows: give every row with the answer too.
        op: the operation, where the logs do not name it.
        ranks: members of the group, where the logs do not say it.
        nodes: nodes that the group lies on, where the logs do not say it.
        step: a CSV file of measured steps: columns named as the options of ``dscalc step``, and ``step_time_s``.
        compare: set the shipped profile of that kind of node and network beside it.
        compare_with: set this shipped cluster beside it.
        output: where the profile is to be written; its text is ``profiled.text``.
        options: ``cluster``, ``gpu``, ``gpus_per_node``, ``interconnect`` and ``profile``: what was measured.

    Returns:
        The answer.

    Raises:
        InputError: no file, an unknown operation, or no file with a usable row; says why, with line numbers.
    """
    if not files:
        raise InputError("takes one or more logs", where="FILE")
    if len(files) > MAX_FILES:
        raise InputError(f"takes at most {MAX_FILES} logs", where="FILE")
    stated = Stated(_op(op), _count(ranks, "--ranks"), _count(nodes, "--nodes"))
    logs: list[Read] = []
    left_out: list[tuple[str, str]] = []
    counts = Counter(os.fspath(file) for file in files)
    for file in counts:
        try:
            logs.append(read_log(file, stated))
        except InputError as error:
            if len(counts) == 1:
                raise
            left_out.append((str(error.where or file), error.message))
    if not logs:
        listed = "; ".join(f"{file}: {reason}" for file, reason in left_out[:3])
        more = f"; and {len(left_out) - 3} more" if len(left_out) > 3 else ""
        raise InputError(f"no file has a usable row: {listed}{more}", where="FILE")
    found = profiled(
        logs,
        gather(options),
        comparing=compare_with or compare,
        step_file=None if step is None else os.fspath(step),
        output=None if output is None else os.fspath(output),
    )
    twice = tuple(printed(file) for file, count in counts.items() if count > 1)
    return FitAnswer(tuple(logs), tuple(left_out), twice, stated, rows, found)


def _op(op: str | None) -> str:
    if op is None:
        return ""
    name = op.strip().lower().replace("-", "_")
    if name not in OPS:
        raise InputError(f"{op!r} is no operation; there are {', '.join(OPS)}", where="--op")
    return name


def _count(value: int | None, where: str) -> int | None:
    if value is not None and not 1 <= value <= MAX_RANKS:
        raise InputError(f"{value} is out of range; it takes 1 to {MAX_RANKS:,}", where=where)
    return value
