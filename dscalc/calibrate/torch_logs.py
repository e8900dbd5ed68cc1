"""Benchmarks of collectives written with PyTorch: EleutherAI cookbook, DeepSpeed ds_bench, ml-engineering, IBM."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from dscalc.calibrate.log_text import Log, untagged
from dscalc.calibrate.measurements import Read, Table
from dscalc.calibrate.nccl_rows import NO_HALF, NOTHING, Cell, Half, Row, number
from dscalc.calibrate.table_checks import NOTHING_STATED, Claims, Stated, make_table, verify
from dscalc.units import BITS_PER_BYTE, GIGA, KIB, MB, MICRO, MILLI

BINARY = {"": 1, "K": KIB, "M": KIB**2, "G": KIB**3, "T": KIB**4}
TIMES = {"us": 1.0, "ms": MILLI / MICRO, "s": 1 / MICRO}
DECIMALS = 3  # of every number of the cookbook
GPU_NAME = re.compile(r"DeviceProperties\(name='([^']{1,80})'")

# ------------------------------------------------------------------------------------ EleutherAI cookbook, ds_bench
_PERFORMANCE = re.compile(r"----\s*Performance of (\w+) on (\d{1,7}) devices")
_UNITS = re.compile(r"Size \(Bytes\)\s+Description\s+Duration\s*(\(us\))?.*Throughput \((G[Bb]ps)\).*BusBW")
_COOKBOOK = re.compile(
    r"(?<![\w.])(\d+(?:\.\d+)?)\s?([KMGTP]?B)?\s+(\d{1,15})x(\d{1,2})\s+"
    r"(\d+(?:\.\d+)?)\s*(us|ms|s)?\s+(\d+\.\d+|nan|inf)\s+(\d+\.\d+)(?=\s|$)"
)
_COOKBOOK_START = re.compile(r"(?<![\w.])\d+(?:\.\d+)?\s?(?:[KMGTP]?B)?\s+\d{1,15}x\d{1,2}(?=\s|$)")
_NNODES = re.compile(r"\bnnodes=(\d{1,6})\b")
COOKBOOK_OPS = {
    "all_reduce": "all_reduce", "all_gather": "all_gather", "all_to_all": "all_to_all", "broadcast": "broadcast",
    "reduce_scatter": "reduce_scatter", "pt2pt": "send_recv",
}  # fmt: skip


def sniff_cookbook(text: str) -> bool:
    """Whether a text has a title of the cookbook's or DeepSpeed's communication benchmarks."""
    return _PERFORMANCE.search(text) is not None


def read_cookbook(log: Log, stated: Stated = NOTHING_STATED) -> Read:
    """Read the tables of the cookbook's or DeepSpeed's communication benchmarks.

    Their throughput of an all-reduce counts the bytes twice, and sizes of an all-gather are one rank's share: both
    become those of nccl-tests.

    Args:
        log: the file.
        stated: what the user says of it.

    Returns:
        Its tables.
    """
    form = "ds_bench" if "deepspeed" in log.text.lower() else "cookbook-communication"
    tables: list[Table] = []
    rows: list[Row] = []
    op, ranks, nodes, torn, title = "", None, None, 0, 0
    bits, microseconds = True, False

    def close() -> None:
        nonlocal rows, torn
        found = verify(rows)
        if found.rows:
            claims = Claims(
                log.name,
                form,
                op=op,
                op_from=f"line {title}",
                ranks=ranks,
                ranks_from=f"line {title}",
                nodes=nodes,
                rows_torn=torn,
            )
            tables.append(make_table(found, claims, stated))
        rows, torn = [], 0

    for line in log.lines:
        if (start := _PERFORMANCE.search(line.text)) is not None:
            close()
            op, ranks, title = COOKBOOK_OPS.get(start[1], ""), int(start[2]), line.number
        elif (units := _UNITS.search(line.text)) is not None:
            microseconds, bits = units[1] is not None, units[2] == "Gbps"
        elif op and (found := _COOKBOOK.search(line.text)) is not None:
            row = _cookbook_row(found, line.number, op, ranks or 1, bits, microseconds, line.ended)
            if row is not None:
                rows.append(row)
            else:
                torn += 1
        elif op and _COOKBOOK_START.search(line.text):
            torn += 1
        elif (found := _NNODES.search(line.text)) is not None:
            nodes = int(found[1])
    close()
    return Read(log.name, form, tuple(tables), (), ())


def _cookbook_row(
    found: re.Match[str], line: int, op: str, ranks: int, bits: bool, microseconds: bool, ended: bool
) -> Row | None:
    size = int(found[3]) * int(found[4])
    printed = number(found[1])
    if printed is None or size <= 0:
        return None
    unit = BINARY[(found[2] or "B")[:-1].replace("P", "T")] if found[2] else 1
    if found[2] and not found[2].startswith("P") and abs(printed.value * unit - size) > 0.011 * unit + 0.5:
        return None  # a digit is lost
    if not found[2] and printed.value != size:
        return None
    time, tput, busbw = number(found[5]), number(found[7]), number(found[8])
    if time is None or tput is None or busbw is None or not (found[6] or microseconds):
        return None
    if op == "all_gather":
        size *= ranks
    speed = (1 / BITS_PER_BYTE) if bits else 1.0
    once = 0.5 if op == "all_reduce" else 1.0
    half = Half(
        _scaled(time, TIMES[found[6] or "us"]),
        _scaled(tput, speed * once),
        _scaled(busbw, speed) if ended and len(found[8].partition(".")[2]) == DECIMALS else NOTHING,
        NOTHING,
    )
    return Row(line, size, 0, "", "", None, (half, NO_HALF))


def _scaled(cell: Cell, factor: float) -> Cell:
    return Cell(cell.value * factor, cell.half * factor, cell.text)


# -------------------------------------------------------------------------------------------------- ml-engineering
_PAYLOAD = re.compile(r"\|\s*payload\s*\|(.*)$", re.IGNORECASE)
_PAYLOAD_ROW = re.compile(r"^\s*\|\s*(\d{1,6})\s?([KMGT]?)iB\s*\|(.*)$")
_SPEED = re.compile(r"^\s*(\d+(?:\.\d+)?)\s?(GBps|GB/s)\s*$")
_OVER = re.compile(r"bandwidth of all_reduce over (\d{1,7}) ranks")
_WITH = re.compile(r"bandwidth of all_reduce with a (\d+(?:\.\d+)?)\s?GB payload \(\d+ trials, (\d{1,7}) ranks\)")
_ALGBW = re.compile(r"\balgbw:\s*(\d+(?:\.\d+)?) GBps")
_BUSBW = re.compile(r"\bbusbw:\s*(\d+(?:\.\d+)?) GBps")
_COUNTED = re.compile(r"^\s*(\d{1,7})\s*(node|rank|gpu)s?\s*$", re.IGNORECASE)


_ALL_REDUCE_BENCH = re.compile(
    r"\|\s*payload\s*\||bandwidth of all_reduce (?:over|with)|\|\s*\d+\s?[KMG]iB\s*\|\s*[\d.]+\s?GBps", re.IGNORECASE
)
USUAL_HEADS = ["busbw", "algbw"]  # as the benchmark writes them


def sniff_ml_engineering(text: str) -> bool:
    """Whether a text has a table or a title of ml-engineering's all_reduce_bench."""
    return _ALL_REDUCE_BENCH.search(text) is not None


def read_ml_engineering(log: Log, stated: Stated = NOTHING_STATED) -> Read:
    """Read the tables of ml-engineering's all_reduce_bench: payloads in KiB to GiB, speeds in 1e9 bytes/s.

    Args:
        log: the file.
        stated: what the user says of it.

    Returns:
        Its tables; one for each column where columns are numbers of nodes.
    """
    tables: list[Table] = []
    ranks, ranks_line, gpu = None, 0, ""
    heads = USUAL_HEADS
    cells: list[tuple[int, int, list[Cell]]] = []
    torn = 0
    size, algbw = 0, NOTHING

    def close() -> None:
        nonlocal cells, heads, torn
        tables.extend(_payload_tables(log.name, heads, cells, (ranks, ranks_line), gpu, torn, stated))
        cells, heads, torn = [], USUAL_HEADS, 0

    for line in log.lines:
        if (found := _PAYLOAD.search(line.text)) is not None:
            close()
            heads = [head.strip() for head in found[1].strip().rstrip("|").split("|")]
        elif (found := _PAYLOAD_ROW.match(untagged(line.text))) is not None:
            texts = found[3].split("|")
            whole = [_speed(text) for text, _ in zip(texts, heads, strict=False)]
            # the last cell counts only where a bar closes it
            if len(texts) != len(heads) + 1 or None in whole[: _speeds(heads)]:
                torn += 1
            else:
                row = [cell or NOTHING for cell in whole]
                cells.append((line.number, int(found[1]) * BINARY[found[2].upper()], row))
        elif (found := _OVER.search(line.text)) is not None:
            close()
            ranks, ranks_line = int(found[1]), line.number
        elif (found := _WITH.search(line.text)) is not None:
            close()
            size, ranks, ranks_line, algbw = round(float(found[1]) * GIGA), int(found[2]), line.number, NOTHING
        elif (found := GPU_NAME.search(line.text)) is not None:
            gpu = found[1]
        if size:
            if (found := _ALGBW.search(line.text)) is not None:
                algbw = number(found[1]) or NOTHING
            if (found := _BUSBW.search(line.text)) is not None:
                cells, heads = [(line.number, size, [number(found[1]) or NOTHING, algbw])], USUAL_HEADS
                close()
                size = 0
    close()
    return Read(log.name, "all_reduce_bench", tuple(tables), (), _notes(tables))


def _notes(tables: Sequence[Table]) -> tuple[str, ...]:
    return ("times are worked out from the printed speeds",) if tables else ()


def _speeds(heads: Sequence[str]) -> int:
    """How many leading columns are speeds."""
    return sum(head.lower() in ("busbw", "algbw") or _COUNTED.match(head) is not None for head in heads)


def _speed(text: str) -> Cell | None:
    found = _SPEED.match(text)
    return number(found[1]) if found else None


def _payload_tables(
    file: str,
    heads: Sequence[str],
    cells: Sequence[tuple[int, int, list[Cell]]],
    said: tuple[int | None, int],
    gpu: str,
    torn: int,
    stated: Stated,
) -> Iterable[Table]:
    lower = [head.lower() for head in heads]
    columns: list[tuple[int, int | None, int | None, str]] = []
    if "busbw" in lower:
        columns = [(lower.index("busbw"), said[0], None, f"line {said[1]}")]
    else:
        for at, head in enumerate(heads):
            counted = _COUNTED.match(head)
            if counted:
                n = int(counted[1])
                nodes = n if counted[2].lower() == "node" else None
                columns.append((at, None if nodes else n, nodes, f"the heading {head!r}"))
    for at, ranks, nodes, source in columns:
        speed = lower.index("algbw") if "algbw" in lower else None
        rows = [
            Row(line, size, 0, "", "", None, (Half(NOTHING, _at(row, speed), _at(row, at), NOTHING), NO_HALF))
            for line, size, row in cells
        ]
        found = verify(rows)
        if found.rows:
            claims = Claims(
                file,
                "all_reduce_bench",
                op="all_reduce",
                op_from="the benchmark's name",
                ranks=ranks,
                ranks_from=source,
                nodes=nodes,
                gpu=gpu,
                rows_torn=torn,
            )
            yield make_table(found, claims, stated)


def _at(row: Sequence[Cell], at: int | None) -> Cell:
    return row[at] if at is not None and at < len(row) else NOTHING


# ------------------------------------------------------------------------------------------------------------- IBM
_IBM_HEAD = re.compile(r"size\(MB\)\s+(tavg\(usec\)\s+tmin\(usec\)\s+tmax\(usec\)\s+)?avgbw\(GB/sec\)", re.IGNORECASE)
_IBM_SCRIPT = re.compile(r"\b(allreduce|allgather|reduce-scatter)(?:-loop|-stats)?(?:\.py)?\b|\bmegatron-(\w+)\.py\b")
_IBM_WORLD = re.compile(r"\b(?:world|group) size\s*=\s*(\d{1,7})\b")
_IBM_GROUPS = re.compile(r"\bgroups_per_node\s*=\s*(\d{1,4})\b")
_IBM_NRANKS = re.compile(r"\bnranks (\d{1,7})\b", re.IGNORECASE)
IBM_OPS = {"allreduce": "all_reduce", "allgather": "all_gather", "reduce-scatter": "reduce_scatter"}


def sniff_ibm(text: str) -> bool:
    """Whether a text has a heading of IBM's pytorch-communication-benchmarks."""
    return _IBM_HEAD.search(text) is not None


def read_ibm(log: Log, stated: Stated = NOTHING_STATED) -> Read:
    """Read the tables of IBM's pytorch-communication-benchmarks: sizes in MB, bus bandwidths, times where it has them.

    Args:
        log: the file.
        stated: what the user says of it.

    Returns:
        Its tables.
    """
    tables: list[Table] = []
    rows: list[Row] = []
    op, ranks, source, groups, torn, width = "", None, "", 1, 0, 0

    def close() -> None:
        nonlocal rows, torn
        found = verify(rows)
        if found.rows:
            claims = Claims(
                log.name, "ibm", op=op, op_from="the script's name", ranks=ranks, ranks_from=source, rows_torn=torn
            )
            tables.append(make_table(found, claims, stated))
        rows, torn = [], 0

    pattern = re.compile("")
    for line in log.lines:
        text = line.noise or line.text
        if (head := _IBM_HEAD.search(line.text)) is not None:
            close()
            width = 7 if head[1] else 4
            pattern = re.compile(r"(?<![\w.])" + r"\s+".join([r"(\d{1,7}\.\d{1,2})"] * width) + r"\s*$")
        elif width and (found := pattern.search(line.text)) is not None and line.ended:
            rows.append(_ibm_row([number(t) or NOTHING for t in found.groups()], line.number, groups))
        elif width and re.fullmatch(r"[\d.\s]+\.[\d.\s]*", line.text):
            torn += 1
        elif (found := _IBM_SCRIPT.search(line.text)) is not None:
            op = IBM_OPS.get((found[1] or found[2]).replace("reducescatter", "reduce-scatter"), op)
        elif (found := _IBM_WORLD.search(line.text)) is not None:
            ranks, source = int(found[1]), f"line {line.number}"
        elif (found := _IBM_GROUPS.search(line.text)) is not None:
            groups = max(1, int(found[1]))
        elif line.noise and (found := _IBM_NRANKS.search(text)) is not None and not source.startswith("line"):
            ranks, source = max(ranks or 0, int(found[1])), "NCCL's messages"
    close()
    return Read(log.name, "ibm", tuple(tables), (), _notes(tables) if width == 4 else ())


def _ibm_row(cells: Sequence[Cell], line: int, groups: int) -> Row:
    """A row; the speed of all groups of a node becomes that of one."""
    time, busbw = (cells[1], cells[4]) if len(cells) == 7 else (NOTHING, cells[1])
    size = round(cells[0].value * MB)
    return Row(line, size, 0, "", "", None, (Half(time, NOTHING, _scaled(busbw, 1 / groups), NOTHING), NO_HALF))
