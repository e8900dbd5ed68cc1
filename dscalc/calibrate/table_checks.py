"""What a table of a log says twice: speeds against times, busbw against algbw, means, wrong results; and its table."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from dscalc.calibrate.measurements import Check, Table
from dscalc.calibrate.nccl_rows import ELEMENT_BYTES, NO_HALF, NOTHING, Cell, Half, Row, agree, possible, proves
from dscalc.frozen import dataclass
from dscalc.records import Array
from dscalc.units import GB, GIGA, MICRO

SCALED = frozenset({"all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"})  # busbw = algbw (n - 1) / n
PLAIN = frozenset({"broadcast", "reduce", "send_recv", "hypercube"})  # busbw = algbw
REDUCTIONS = frozenset({"sum", "prod", "min", "max", "avg", "mulsum", "premulsum", "average", "mean"})
PRECISE = 0.05  # relative width of busbw / algbw that still says something about the ranks
SAME = 2e-3  # by which busbw / algbw may miss where numbers were rounded or copied by hand
ALIKE = 3  # rows whose size is no multiple of their count: from so many on it is how this log counts
STRAY = 0.3  # of a table's cells: with more off the rest, the rest is no rule
MAX_RANKS = 1_000_000
GUESSED = "a word in"  # the start of what names an operation only in passing
NAMED = 4  # lines that a message names


class Span(NamedTuple):
    """A number known to lie between two others."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, eq=False)
class Claims:
    """What a log says about a table outside its rows."""

    file: str
    format: str
    op: str = ""
    op_from: str = ""  # words: where it says so
    ranks: int | None = None
    ranks_from: str = ""
    ranks_at_least: bool = False  # the list of ranks has gaps
    nodes: int | None = None
    gpu: str = ""
    printed_mean: Cell | None = None  # GB/s
    out_of_bounds: int | None = None
    out_of_bounds_line: int = 0
    cpu_time: bool = False
    deviations: bool = False  # the last column of a half is no count
    rows_torn: int = 0
    zero_rows: tuple[Row, ...] = ()
    groups: int = 1


class Stated(NamedTuple):
    """What the user says of a log that does not say it."""

    op: str = ""
    ranks: int | None = None
    nodes: int | None = None


NOTHING_STATED = Stated()
ALONE = " (tests built without MPI=1 run so once for each process)"


def factor(rows: Sequence[Row]) -> Span | None:
    """busbw over algbw of a table, as narrow as its printed digits allow.

    Args:
        rows: the table's rows.

    Returns:
        The range that all cells allow; the middle half of what they say where none does; None without such cells.
    """
    spans = [s for row in rows for half in row.halves if (s := _factor(row.size, half)) is not None]
    if not spans:
        return None
    low, high = max(s.low for s in spans), min(s.high for s in spans)
    if low <= high:
        return Span(low, high)
    spans.sort(key=lambda s: s.high - s.low)
    middles = sorted((s.low + s.high) / 2 for s in spans[: max(1, len(spans) // 2)])
    middle = middles[len(middles) // 2]
    return Span(middle * (1 - SAME), middle * (1 + SAME))


def _factor(size: int, half: Half) -> Span | None:
    busbw, algbw = half.busbw, half.algbw
    if math.isnan(algbw.value) and half.time.value > half.time.half:
        rate = size / half.time.value / (GIGA * MICRO)
        algbw = Cell(rate, rate * half.time.half / half.time.value)
    if not algbw.value > algbw.half or math.isnan(busbw.value):
        return None
    low = (busbw.value - busbw.half) / (algbw.value + algbw.half)
    high = (busbw.value + busbw.half) / (algbw.value - algbw.half)
    return Span(max(low, 0.0), high) if high - low <= PRECISE else None


def parts(row: Row) -> int:
    """How many times its count fits into a row's size: 1, or the ranks where every rank has a part; 0 if unknown."""
    each = row.elements * ELEMENT_BYTES.get(row.dtype, 0)
    return row.size // each if each and row.size % each == 0 else 0


def usual_parts(rows: Sequence[Row]) -> int:
    """The commonest ``parts`` of a table."""
    found = Counter(p for row in rows if (p := parts(row)))
    return found.most_common(1)[0][0] if found else 0


def ranks_of(op: str, span: Span | None, share: int) -> Span | None:
    """Between which numbers of ranks the rows leave a choice."""
    if op in SCALED and share > 1:
        return Span(share, share)
    if span is None or op in PLAIN or not op:
        return None
    whole = 2.0 if op == "all_reduce" else 1.0

    def count(f: float) -> float:
        return min(whole / (whole - f), MAX_RANKS) if f < whole else MAX_RANKS

    for slack in (0.0, SAME):  # numbers that were rounded twice leave no whole number between
        low, high = count(span.low * (1 - slack)), count(span.high * (1 + slack))
        found = Span(max(1.0, math.ceil(low - 1e-6)), math.floor(high + 1e-6))
        if found.low <= found.high:
            break
    return found


def infer_op(rows: Sequence[Row], span: Span | None, share: int, ranks: int | None) -> str:
    """The operation that the rows alone allow, or empty where several remain.

    Args:
        rows: the table's rows.
        span: busbw over algbw.
        share: how often the count fits into the size.
        ranks: ranks as the log says, where it does.

    Returns:
        Name of the operation.
    """
    redop = Counter(row.redop for row in rows).most_common(1)[0][0]
    rooted = any(row.root is not None and row.root >= 0 for row in rows)
    reduces = redop in REDUCTIONS
    if span and span.low > 1 + SAME:
        return "all_reduce"
    in_place_unchecked = all(math.isnan(row.halves[1].wrong.value) for row in rows)
    one_sided = in_place_unchecked and any(not math.isnan(row.halves[0].wrong.value) for row in rows)
    if share > 1:
        if rooted:
            return ""
        return "reduce_scatter" if reduces else "all_to_all" if one_sided else "all_gather"
    if rooted:
        return "reduce" if reduces else "broadcast"
    if span and span.high < SAME:
        return "all_reduce" if reduces else ""
    alone = bool(span and span.low <= 1 <= span.high + SAME)
    if alone and (one_sided or not reduces or (ranks or 0) > 2):
        return "send_recv"
    return "all_reduce" if reduces and alone else ""


class Verified(NamedTuple):
    """Rows whose halves agree with themselves."""

    rows: tuple[Row, ...]
    compared: int  # halves
    failed: tuple[int, ...]  # lines of halves that were dropped
    strayed: tuple[int, ...]  # lines whose bus bandwidth was dropped
    lost: int  # rows of which nothing was left


def verify(rows: Sequence[Row]) -> Verified:
    """Drop each half whose size over time is not its printed speed: its line was damaged, or it means something else.

    Args:
        rows: rows as read.

    Returns:
        What is left.
    """
    share = usual_parts(rows)
    kept: list[Row] = []
    failed: list[int] = []
    compared = 0
    for row in rows:
        own = parts(row)
        counted = row.elements > 0 and row.dtype in ELEMENT_BYTES
        odd = counted and (own != share if share else len(rows) < ALIKE)  # a digit of its size may be lost
        halves = []
        for half in row.halves:
            right = agree(row.size, half.time, half.algbw)
            compared += right is not None
            if right is False:
                failed.append(row.line)
            sound = right is not False and not (half.time.value <= 0) and (not odd or (right and proves(half.algbw)))
            halves.append(half if sound else NO_HALF)
        if any(half is not NO_HALF and _says_something(half) for half in halves):
            kept.append(row._replace(halves=(halves[0], halves[1])))
    kept, strayed = _same_factor(kept)
    return Verified(tuple(kept), compared, tuple(failed), tuple(strayed), len(rows) - len(kept))


def _same_factor(rows: list[Row]) -> tuple[list[Row], list[int]]:
    """Drop each bus bandwidth whose ratio to algbw is not that of most others of the table.

    A row put together from pieces must agree to the last digit: its last cell may be made of two.
    """
    spans = [s for row in rows for half in row.halves if (s := _factor(row.size, half)) is not None]
    if not spans:
        return rows, []
    precise = sorted(spans, key=lambda s: s.high - s.low)[: max(1, len(spans) // 2)]
    usual = sorted(precise, key=lambda s: s.low + s.high)[len(precise) // 2]
    loose = Span(usual.low - SAME * max(usual.low, 1.0), usual.high + SAME * max(usual.high, 1.0))
    strict = factor([row for row in rows if not row.rejoined]) or loose

    def strays(row: Row, half: Half) -> bool:
        span, allowed = _factor(row.size, half), strict if row.rejoined else loose
        off = span is not None and (span.high < allowed.low or span.low > allowed.high)
        return off or not possible(half.algbw, half.busbw)

    lines = [row.line for row in rows for half in row.halves if strays(row, half)]
    if not lines or len(lines) > STRAY * len(spans):
        return rows, []

    def kept(row: Row, half: Half) -> Half:
        return half._replace(busbw=NOTHING) if strays(row, half) else half

    return [r._replace(halves=(kept(r, r.halves[0]), kept(r, r.halves[1]))) for r in rows], lines


def _says_something(half: Half) -> bool:
    return not (math.isnan(half.time.value) and math.isnan(half.busbw.value))


def make_table(found: Verified, claims: Claims, stated: Stated = NOTHING_STATED) -> Table:
    """The columns of a table and the checks that its log allows.

    Args:
        found: rows with bytes, in the log's order; at least one.
        claims: what the log says outside them.
        stated: what the user says.

    Returns:
        The table.
    """
    rows = found.rows
    span, share = factor(rows), usual_parts(rows)
    checks = [_speeds(found)]
    if stated.op:
        claims = replace(claims, op=stated.op, op_from="--op")
    op = _op(rows, claims, span, share, checks)
    if stated.ranks is not None:
        if claims.ranks not in (None, stated.ranks):
            detail = f"--ranks says {stated.ranks}, but {claims.ranks_from} says {claims.ranks}"
            checks.append(Check("stated", ok=False, detail=detail))
        claims = replace(claims, ranks=stated.ranks, ranks_from="--ranks")
    ranks = _ranks(op, span, share, claims, checks)
    cells = [h.busbw for row in (*rows, *claims.zero_rows) for h in row.halves if not math.isnan(h.busbw.value)]
    mean = sum(c.value for c in cells) / len(cells) if cells else math.nan
    lost = claims.rows_torn + found.lost
    if found.strayed:
        detail = f"not that of the other rows in {_named(found.strayed)}, left out"
        checks.append(Check("busbw_over_algbw", ok=False, detail=f"busbw/algbw is {detail}"))
    if claims.printed_mean is not None:
        checks.append(_mean(mean, cells, claims.printed_mean, lost))
    checks += _wrong(rows, claims)
    if claims.cpu_time:
        checks.append(Check("device_time", ok=False, detail="times are of the CPU (-C), not of the operation"))
    lines = [row.line for row in (*rows, *claims.zero_rows)]

    def column(pick: str, unit: float) -> Array:
        return np.array([[getattr(row.halves[i], pick).value * unit for row in rows] for i in (0, 1)])

    size = np.array([row.size for row in rows], dtype=np.float64)
    return Table(
        file=claims.file,
        format=claims.format,
        op=op,
        ranks=ranks,
        nodes=claims.nodes if stated.nodes is None else stated.nodes,
        gpu=claims.gpu,
        first_line=min(lines),
        last_line=max(lines),
        size_bytes=size,
        time_s=_times(column("time", MICRO), size, column("algbw", GB), column("busbw", GB), op, ranks),
        algbw_bytes_per_s=column("algbw", GB),
        busbw_bytes_per_s=column("busbw", GB),
        wrong=np.full((2, len(rows)), math.nan) if claims.deviations else column("wrong", 1.0),
        line=np.array([row.line for row in rows], dtype=np.intp),
        rows_torn=lost,
        rows_zero=len(claims.zero_rows),
        checks=tuple(checks),
        groups=claims.groups,
        mean_busbw_bytes_per_s=mean * GB,
        printed_mean_busbw_bytes_per_s=claims.printed_mean.value * GB if claims.printed_mean else math.nan,
    )


def bus_factor(op: str, ranks: int) -> float:
    """busbw over algbw of an operation."""
    if op in PLAIN:
        return 1.0
    return (2.0 if op == "all_reduce" else 1.0) * (ranks - 1) / ranks


def _times(time: Array, size: Array, algbw: Array, busbw: Array, op: str, ranks: int | None) -> Array:
    """Times as printed; where a log gives speeds alone, worked out from them."""
    if op and (op in PLAIN or ranks):
        algbw = np.where(np.isnan(algbw), busbw / (bus_factor(op, ranks or 1) or math.nan), algbw)
    worked_out = size / np.where(algbw > 0.0, algbw, math.nan)
    return np.asarray(np.where(np.isnan(time), worked_out, time))


def _speeds(found: Verified) -> Check:
    if not found.compared:
        return Check("size_over_time", ok=True, detail="the log prints no speed to compare with")
    wrong = len(found.failed)
    detail = f"size / time = algbw in {found.compared - wrong} of {found.compared} cells"
    if wrong:
        detail += f"; not in {_named(found.failed)}, left out"
    return Check("size_over_time", ok=not wrong, detail=detail)


def _named(lines: Sequence[int]) -> str:
    """Lines in words, not too many."""
    each = sorted(set(lines))
    words = ", ".join(map(str, each[:NAMED])) + (f" and {len(each) - NAMED} more" if len(each) > NAMED else "")
    return f"line{'s' if len(each) > 1 else ''} {words}"


def _op(rows: Sequence[Row], claims: Claims, span: Span | None, share: int, checks: list[Check]) -> str:
    """The operation: as the log says unless the numbers refute it, else as they allow."""
    inferred = infer_op(rows, span, share, claims.ranks)
    if not claims.op:
        if inferred:
            checks.append(Check("op", ok=True, detail=f"{inferred}, from its columns and busbw/algbw"))
        else:
            checks.append(Check("op", ok=False, detail="the log does not name the operation; say it with --op"))
        return inferred
    refuted = _refuted(claims.op, span, share)
    if refuted and claims.op_from.startswith(GUESSED):
        checks.append(Check("op", ok=bool(inferred), detail=f"{inferred or 'unknown'}: {refuted}"))
        return inferred
    checks.append(Check("op", ok=not refuted, detail=refuted or f"{claims.op}, from {claims.op_from}"))
    return claims.op


def _refuted(op: str, span: Span | None, share: int) -> str:
    """Why the numbers cannot be of an operation, or empty."""
    if share > 1 and op not in SCALED:
        return f"{op} moves its count once, and size is {share} times the count"
    if span is None:
        return ""
    middle = (span.low + span.high) / 2
    if op != "all_reduce" and span.low > 1 + SAME:
        return f"busbw/algbw = {middle:.4f} is that of all_reduce, not of {op}"
    if op in PLAIN and span.high < 1 - SAME:
        return f"busbw/algbw = {middle:.4f} is not that of {op}, which is 1"
    return ""


def _ranks(op: str, span: Span | None, share: int, claims: Claims, checks: list[Check]) -> int | None:
    """Ranks by the numbers where they tell; what the log says otherwise."""
    between = ranks_of(op, span, share)
    said = claims.ranks
    ratio = f"busbw/algbw = {(span.low + span.high) / 2:.4f}" if span else f"size = {share} x count"
    if between is None or between.low > between.high:
        if said == 1:
            checks.append(Check("ranks", ok=False, detail=f"1 rank: nothing was sent, so this is no bandwidth{ALONE}"))
        elif said is None:
            checks.append(Check("ranks", ok=False, detail="neither the rows nor the log say how many ranks"))
        else:
            checks.append(Check("ranks", ok=True, detail=f"{said} from {claims.ranks_from}; the rows cannot tell"))
        return said
    low, high = int(between.low), int(between.high)
    if low == high == 1 or (said == 1 and low == 1):
        checks.append(
            Check("ranks", ok=False, detail=f"{ratio}: 1 rank, nothing was sent, so this is no bandwidth{ALONE}")
        )
        return 1
    means = f"{low}" if low == high else f"{low} to {high}"
    if said is None:
        ok, detail = True, f"{ratio} means {means} ranks; the log does not say"
    elif low <= said <= high:
        ok, detail = True, f"{said} from {claims.ranks_from}; {ratio} means {means}"
    elif claims.ranks_at_least and said < low:
        checks.append(Check("ranks", ok=True, detail=f"{ratio} means {means} ranks; {claims.ranks_from} is incomplete"))
        return low if low == high else None
    else:
        ok, detail = False, f"{ratio} means {means} ranks, but {claims.ranks_from} says {said}"
    checks.append(Check("ranks", ok=ok, detail=detail))
    if said is not None and ok:
        return said
    return low if low == high else None


def _mean(mean: float, cells: Sequence[Cell], printed: Cell, lost: int) -> Check:
    """Whether the printed average is the mean of the cells."""
    rounding = sum(c.half for c in cells) / max(len(cells), 1) + printed.half + 1e-5 * abs(printed.value)
    ok = abs(mean - printed.value) <= rounding
    detail = f"printed average {printed.text} GB/s, mean of {len(cells)} cells {mean:.6g}"
    if not ok:
        detail += (
            f"; {lost} {'rows are' if lost > 1 else 'row is'} torn"
            if lost
            else "; rows are missing, or it is of other rows"
        )
    return Check("average", ok=ok, detail=detail)


def _wrong(rows: Sequence[Row], claims: Claims) -> list[Check]:
    """Whether results were right, where the log says anything of that."""
    cells = [] if claims.deviations else [(r.line, h.wrong.value) for r in rows for h in r.halves]
    bad = [line for line, value in cells if value > 0]
    said = claims.out_of_bounds
    if said is None and all(math.isnan(value) for _, value in cells):
        return []
    if not said and not bad:
        return [Check("out_of_bounds", ok=True, detail="no result was wrong")]
    values = "value" if said == 1 else "values"
    line = f" (line {claims.out_of_bounds_line})" if claims.out_of_bounds_line else ""
    words = f"{said} {values} out of bounds{line}" if said else "wrong results"
    where = f"; wrong cells in {_named(bad)}" if bad else ""
    return [Check("out_of_bounds", ok=False, detail=f"{words}{where}: the speed of a wrong result")]
