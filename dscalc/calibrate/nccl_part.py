"""What one run of nccl-tests says: its rows and everything around them, and the tables that come of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence

from dscalc.calibrate.measurements import Table
from dscalc.calibrate.nccl_rows import Cell, Layout, Row
from dscalc.calibrate.table_checks import Claims, Stated, factor, make_table, verify

MOST_GROUPS = 64  # tables that one headerless list is parted into


class Part:
    """What was read since a test began: one table, unless its rows say that they are several."""

    def __init__(self, earlier: Part | None = None) -> None:
        self.layout: Layout | None = None
        self.rows: list[Row] = []
        self.zero: list[Row] = []
        self.torn: list[int] = []
        self.mean: Cell | None = None
        self.bounds: tuple[int, int] | None = None
        self.deviations = False
        self.ended = False
        self.op, self.op_from = ("", "")
        self.highest, self.listed, self.first_listed, self.last_listed = -1, 0, 0, 0
        self.hosts: set[str] = set()
        self.members: dict[int, list[str]] = {}  # hosts of the ranks of each group (NCCL_TESTS_SPLIT)
        self.devices = 0
        self.gpus: Counter[str] = Counter()
        self.said: tuple[int, str] | None = None
        self.nodes: int | None = None
        self.counted: list[tuple[int, int]] = []  # lines that name a number of nodes
        if earlier is not None:  # a header alone: the list of ranks before it still holds
            for name in ("op", "op_from", "highest", "listed", "first_listed", "last_listed", "said", "nodes"):
                setattr(self, name, getattr(earlier, name))
            self.hosts, self.devices, self.gpus = earlier.hosts, earlier.devices, earlier.gpus
            self.members = earlier.members

    @property
    def used(self) -> bool:
        return bool(self.rows or self.zero or self.torn or self.ended)


def tables_of(part: Part, file: str, form: str, stated: Stated) -> Iterator[Table]:
    """The tables of a part whose rows agree with themselves; one as a rule.

    Args:
        part: what was read.
        file: name of the file.
        form: name of the format.
        stated: what the user says.

    Yields:
        Tables.
    """
    groups = list(_groups(part.rows)) if part.layout is None or part.highest < 0 else [part.rows]
    for index, rows in enumerate(groups):
        found = verify(rows)
        if not found.rows:
            continue
        alone = len(groups) == 1
        ranks, source = _claimed(part) if alone else (None, "")
        split = len(part.members) if alone and _evenly_split(part) else 1
        claims = Claims(
            file,
            form,
            op=part.op,
            op_from=part.op_from,
            ranks=ranks,
            ranks_from=source,
            ranks_at_least=part.listed not in (0, part.highest + 1),
            nodes=_nodes(part, ranks) if alone else _counted(part, rows[0].line),
            gpu=part.gpus.most_common(1)[0][0] if part.gpus else "",
            printed_mean=part.mean if alone else None,
            out_of_bounds=part.bounds[0] if part.bounds and alone else None,
            out_of_bounds_line=part.bounds[1] if part.bounds else 0,
            cpu_time=bool(part.layout and part.layout.cpu_time),
            deviations=part.deviations,
            rows_torn=len(part.torn) if index == 0 else 0,
            zero_rows=tuple(part.zero) if index == 0 else (),
            groups=split,
        )
        yield make_table(found, claims, stated)


def _evenly_split(part: Part) -> bool:
    """Whether a complete list of ranks has several groups of one size, which ran side by side."""
    sizes = {len(hosts) for hosts in part.members.values()}
    return len(part.members) > 1 and len(sizes) == 1 and part.listed == part.highest + 1


def _claimed(part: Part) -> tuple[int | None, str]:
    if _evenly_split(part):
        return len(part.members[min(part.members)]), f"the list of {len(part.members)} groups"
    if part.listed:
        return part.highest + 1, f"the list of ranks (lines {part.first_listed}-{part.last_listed})"
    return part.said or (None, "")


def _nodes(part: Part, ranks: int | None) -> int | None:
    """Hosts of a complete list; of an elided one, ranks over the devices of a node; else what NCCL says."""
    if _evenly_split(part):
        return max(len(set(hosts)) for hosts in part.members.values())
    if part.listed and part.listed == part.highest + 1:
        return len(part.hosts)
    if ranks and part.devices > 1 and ranks % part.devices == 0:
        return ranks // part.devices
    return part.nodes


def _counted(part: Part, line: int) -> int | None:
    """Nodes as the last title before a line names them."""
    before = [nodes for at, nodes in part.counted if at < line]
    return before[-1] if before else None


def _groups(rows: Sequence[Row]) -> Iterator[Sequence[Row]]:
    """Rows without a header, parted where busbw over algbw changes: runs with different numbers of ranks."""
    groups: list[list[Row]] = []
    low, high = 0.0, math.inf
    for row in rows:
        span = factor([row])
        fine = span is not None and span.high - span.low < 0.01
        if groups and (not fine or span is None or (span.low <= high and low <= span.high)):
            groups[-1].append(row)
        else:
            groups.append([row])
            low, high = 0.0, math.inf
        if fine and span is not None:
            low, high = max(low, span.low), min(high, span.high)
    sound = len(groups) <= MOST_GROUPS and len(rows) >= 2 * len(groups)
    yield from groups if sound else [list(rows)] if rows else []
