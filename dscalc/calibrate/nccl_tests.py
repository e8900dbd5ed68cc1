"""Reader of the text of nccl-tests and rccl-tests: any generation, any launcher, whole or torn."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

from dscalc.calibrate.log_text import Line, Log, untagged
from dscalc.calibrate.measurements import Read
from dscalc.calibrate.nccl_part import Part, tables_of
from dscalc.calibrate.nccl_rows import (
    ELEMENT_BYTES,
    NO_HALF,
    NOTHING,
    OPS,
    Half,
    Piece,
    Row,
    agree,
    find_piece,
    halves_of,
    number,
    possible,
    proves,
    read_header,
    tokens,
)
from dscalc.calibrate.table_checks import GUESSED, NOTHING_STATED, Stated, parts

FORMAT = "nccl-tests"
LONGEST_PIECE = 300  # characters of a row that was broken
MOST_PIECES = 12
TIME, SPEED = 2, 3  # digits before the point up to which a number always has EXACT decimals
EXACT = 2
LONG_NUMBER = 5  # digits from which on a number may have none
SHORT = 60  # characters of a title between runs

_PROGRAM = re.compile(r"\b(" + "|".join(sorted(OPS, key=len, reverse=True)) + r")_perf(?:_mpi)?\b")
_WORDS = re.compile(
    r"(?<![A-Za-z])(all[_ -]?reduce|all[_ -]?gather|reduce[_ -]?scatter|all[_ -]?to[_ -]?all|send[_ -]?recv|broadcast)"
    r"(?![A-Za-z])",
    re.IGNORECASE,
)
_RANK = re.compile(
    r"Rank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?(?:Pid\s+\d+\s+)?on\s+(\S+)\s+device\s+(\d+)\s+\[[^\]]*\]\s*(.*)"
)
_STARTS = re.compile(
    r"nThread\s+\d+\s+nGpus\s+\d+|Collective test starting|Using devices|(?:nccl|rccl)-tests[: ]+version",
    re.IGNORECASE,
)
_MEAN = re.compile(r"Avg bus bandwidth\s*:\s*([^\s`]+)")
_BOUNDS = re.compile(r"Out of bounds values\s*:\s*(\d+)")
_NRANKS = re.compile(r"\bnranks (\d+)\b", re.IGNORECASE)
_NNODES = re.compile(r"\bnRanks \d+ nNodes (\d+)\b")
_TASKS = re.compile(r"\bSLURM_(?:NTASKS|NPROCS)=(\d+)\b")
_TAIL = re.compile(r"(?:(?<!\S)\d[\d.e+]*\s+\d+\.\d+\s+\d+\.\d+\s+\S+(?:\s+|$)){2}$")
_BROKEN = re.compile(  # numbers; the end of a word and numbers; the end of a count, a type, a reduction and numbers
    r"[\d.eE+/NA \t-]+|\s*[A-Za-z]{1,8}[\d.eE+/NA \t-]*|"
    r"\s*\d{0,15}\s*(?:" + "|".join(ELEMENT_BYTES) + r")\s+(?:[a-z]{1,8}\s)?[\d.eE+/NA \t-]*"
)
_STARTED = re.compile(r"\s*\d{1,15}(?:\s+(?:\d{1,15}(?:\s+\w{0,10})?)?)?")
_SIGN = re.compile(
    r"nThread\s+\d+\s+nGpus|redop|Avg bus bandwidth|Collective test starting|"
    r"(?:\d\s+\d{1,15}|\d{14})\s+(?:" + "|".join(ELEMENT_BYTES) + r")\s"
)
_COUNTED = re.compile(r"\b(\d{1,5})[ -]nodes?\b", re.IGNORECASE)
_SAID = re.compile(r"nThread|bus|[Rr]ank|_perf|-tests|sing devices|bounds|SLURM_|Collective test")
TROUBLE = re.compile(
    r"test failure|nccl failure|cuda failure|unhandled|segmentation|killed|cancelled|aborted|out of memory|"
    r"no route to host|connection refused|remote process exited|non-zero|error",
    re.IGNORECASE,
)


class Trouble(NamedTuple):
    """A line that says why a run ended."""

    line: int
    text: str


class Reader:
    """Goes over the lines once and collects tables."""

    def __init__(self, file: str, *, format: str = FORMAT, stated: Stated = NOTHING_STATED) -> None:
        self.file = file
        self.stated = stated
        self.format = format
        self.part = Part()
        self.parts = [self.part]
        self.pending: list[Line] = []
        self.hint: tuple[str, str] = ("", "")
        self.trouble: list[Trouble] = []
        self.headers: list[int] = []
        self.seen_ranks: list[int] = []
        self.starts: list[int] = []

    # ------------------------------------------------------------------------------------------------------- lines
    def feed(self, line: Line) -> None:
        """Take one line."""
        text = line.text
        if "|" in text:  # tables set in bars
            text = untagged(text).replace("|", " ")
        if line.noise:
            self._message(line.noise, line.number)
            if not text.strip():
                return
        piece = find_piece(text)
        if piece is not None:
            if not (self.pending and _headless(piece) and self._continue(text, line)):
                self._flush()
                self._row(piece, line, text)
        elif self._said(text, line):
            pass
        elif self.pending:
            self._continue(text, line)
        elif self.part.layout is not None and not self.part.ended and text.strip():
            if _STARTED.fullmatch(untagged(text)) and (line.noise or not line.ended):
                self.pending = [line._replace(text=untagged(text))]
            elif _TAIL.search(text):
                self.part.torn.append(line.number)
            else:
                self._word(text, line)
        elif text.strip():
            self._word(text, line)

    def _fresh(self, *, keep: bool = False) -> None:
        """Begin another table where this one has something."""
        self._flush()
        if self.part.used:
            self.part = Part(self.part if keep and not self.part.ended else None)
            self.parts.append(self.part)

    def _said(self, text: str, line: Line) -> bool:
        """Lines of the test that are no rows."""
        if _SAID.search(text) is None:
            return False
        found = _RANK.search(text)
        if found:
            self._rank(found, line)
        elif _STARTS.search(text):
            self._fresh()
            self.starts.append(line.number)
            program = _PROGRAM.search(text)
            if program:
                self.part.op, self.part.op_from = OPS[program[1]], f"line {line.number}"
        elif (found := _MEAN.search(text)) is not None:
            self._flush()
            self.part.mean = number(found[1]) or self.part.mean
            self.part.ended = True
        elif (found := _BOUNDS.search(text)) is not None:
            self._flush()
            self.part.bounds = (int(found[1]), line.number)
        elif (layout := read_header(text)) is not None:
            self._fresh(keep=True)
            self.part.layout = layout
            self.headers.append(line.number)
        elif "_perf" in text:
            self._command(text, line)
        elif (found := _TASKS.search(text)) is not None:
            self.part.said = self.part.said or (int(found[1]), f"SLURM_NTASKS (line {line.number})")
        else:
            return False
        return True

    def _rank(self, found: re.Match[str], line: Line) -> None:
        if self.part.rows or self.part.ended:
            self._fresh()
        part = self.part
        part.highest = max(part.highest, int(found[1]))
        part.listed += 1
        part.first_listed = part.first_listed or line.number
        part.last_listed = line.number
        part.hosts.add(found[3])
        part.members.setdefault(int(found[2] or 0), []).append(found[3])
        part.devices = max(part.devices, int(found[4]) + 1)
        if gpu := " ".join(found[5].split())[:80]:
            part.gpus[gpu] += 1
        self.seen_ranks.append(line.number)

    def _command(self, text: str, line: Line) -> None:
        named = {OPS[m] for m in _PROGRAM.findall(text)}
        if len(named) == 1 and "concluded" not in text:
            op = named.pop()
            if self.part.used:
                self.hint = (op, f"line {line.number}")
            elif not self.part.op:
                self.part.op, self.part.op_from = op, f"{GUESSED} line {line.number}"
                self.hint = (op, f"{GUESSED} line {line.number}")

    def _word(self, text: str, line: Line) -> None:
        """Words of other lines: an operation named in passing, or why the run ended."""
        if TROUBLE.search(text) and len(self.trouble) < MOST_PIECES:
            self.trouble.append(Trouble(line.number, " ".join(text.split())[:160]))
        counted = _COUNTED.search(text) if len(text) < SHORT else None
        if counted:
            self.part.counted.append((line.number, int(counted[1])))
        if not self.part.op and len(text) < LONGEST_PIECE:
            named = {re.sub(r"[_ -]", "", m.lower()) for m in _WORDS.findall(text)}
            if len(named) == 1:
                self.hint = (OPS[named.pop()], f"{GUESSED} line {line.number}")

    def _message(self, noise: str, line: int) -> None:
        """A message of NCCL: how many ranks its communicator has, or a warning."""
        if "CCL WARN" in noise and len(self.trouble) < MOST_PIECES:
            self.trouble.append(Trouble(line, " ".join(noise.split())[:160]))
        if "anks" in noise:
            found = _NRANKS.search(noise)
            if found:
                ranks = int(found[1])
                if self.part.said is None or self.part.said[0] < ranks:
                    self.part.said = (ranks, "NCCL's messages")
                nodes = _NNODES.search(noise)
                if nodes:
                    self.part.nodes = int(nodes[1])

    # -------------------------------------------------------------------------------------------------------- rows
    def _row(self, piece: Piece, line: Line, text: str) -> None:
        """A row, and others that broke into it on the same line."""
        for _ in range(MOST_PIECES):
            later = None
            if not self._whole(piece, line):
                later = find_piece(piece.rest)
                end = len(text) if later is None else len(text) - len(piece.rest) + later.start
                self.pending = [line._replace(text=text[piece.start : end])]
            if later is None:
                return
            self._flush()
            text, piece = piece.rest, later

    def _whole(self, piece: Piece, line: Line) -> bool:
        """Keep a row if all of its cells are there."""
        redop, cells = tokens(piece.rest, piece.size)
        if not line.ended and piece.rest == piece.rest.rstrip(" \t") and not line.noise and cells:
            cells[-1] = cells[-1]._replace(value=math.nan)  # the end of the file may have cut its last digit
        found = halves_of(piece, cells, self.part.layout, all_there=True)
        if found is None:
            return False
        root, halves, deviations = found
        self._keep(Row(line.number, piece.size, piece.elements, piece.dtype, redop, root, halves), deviations)
        return True

    def _keep(self, row: Row, deviations: bool) -> None:
        part = self.part
        if part.ended and part.layout is not None:  # rows after a summary, without a header of their own
            self._fresh()
            part = self.part
        if not part.op and self.hint[0]:
            part.op, part.op_from = self.hint
        part.deviations |= deviations
        (part.rows if row.size else part.zero).append(row)

    def _continue(self, text: str, line: Line) -> bool:
        """Take a further piece of a broken row; whether that row is whole now."""
        body = untagged(text)
        if not body.strip() or len(body) > LONGEST_PIECE:
            return False
        if _BROKEN.fullmatch(body) is None and find_piece(body) is None:  # something else between the pieces
            return False
        self.pending.append(line._replace(text=body))
        row = self._joined()
        if row is not None:
            self.pending = []
            self._keep(*row)
        elif len(self.pending) > MOST_PIECES:
            self._flush()
        return row is not None

    def _joined(self) -> tuple[Row, bool] | None:
        """The row that the pieces make: complete, and every cell from a later piece proved by size over time."""
        texts = [line.text for line in self.pending]
        ways = ["".join(texts)]
        ways += [  # a cell may have gone under in the message that broke the row
            "".join(texts[:joint]) + " N/A " + "".join(texts[joint:])
            for joint in range(1, len(texts))
            if self.pending[joint - 1].noise and texts[joint - 1][-1:].isspace()
        ]
        for way in ways:
            piece = find_piece(way)
            if piece is None or piece.size == 0:
                continue
            redop, cells = tokens(piece.rest, piece.size)
            found = halves_of(piece, cells, self.part.layout, all_there=True)
            if found is None or parts(Row(0, piece.size, piece.elements, piece.dtype, redop, None, found[1])) == 0:
                continue
            root, halves, deviations = found
            if _proved(piece.size, halves[0]) and (_absent(halves[1]) or _proved(piece.size, halves[1])):
                line = self.pending[0].number
                row = Row(line, piece.size, piece.elements, piece.dtype, redop, root, halves, rejoined=True)
                return row, deviations
        return None

    def _flush(self) -> None:
        """Give up waiting for the rest of a row: report the halves of it that are whole and agree."""
        if not self.pending:
            return
        start, self.pending = self.pending[0], []
        piece = find_piece(start.text)
        if piece is None:
            self.part.torn.append(start.number)
            return
        redop, cells = tokens(piece.rest, piece.size)
        if cells and piece.rest.rstrip(" \t") == piece.rest and piece.rest.endswith(cells[-1].text):
            cells[-1] = NOTHING  # the cut may have gone through it
        found = halves_of(piece, cells, self.part.layout, all_there=False)
        halves = [_trusted(piece.size, half) for half in found[1]] if found else [NO_HALF, NO_HALF]
        if found is None or piece.size == 0 or all(half is NO_HALF for half in halves):
            self.part.torn.append(start.number)
            return
        both = (halves[0], halves[1])
        row = Row(start.number, piece.size, piece.elements, piece.dtype, redop, found[0], both, cut=True)
        self._keep(row, found[2])

    # ------------------------------------------------------------------------------------------------------ tables
    def why_nothing(self) -> str:
        """Why there is no table, with the lines that say so."""
        dropped = [row.line for part in self.parts for row in part.rows]
        torn = [line for part in self.parts for line in part.torn]
        zero = [row.line for part in self.parts for row in part.zero]
        if dropped:
            return f"size / time is not the printed speed in any of {len(dropped)} rows (first: line {dropped[0]})"
        if torn:
            words = f"every row is torn (first: line {torn[0]})"
        elif zero:
            words = f"every row moves 0 bytes (first: line {zero[0]})"
        elif self.headers:
            words = f"the header is on line {self.headers[-1]}, and no row follows"
        elif self.seen_ranks:
            words = f"the list of ranks ends on line {self.seen_ranks[-1]}, and no table follows"
        elif self.starts:
            words = f"a test starts on line {self.starts[-1]}, and no table follows"
        else:
            words = "there is no table"
        cause = self.trouble[0] if self.trouble else None
        return f"{words}; line {cause.line} says {cause.text!r}" if cause else words

    def finish(self) -> Read:
        """The tables of all lines fed."""
        self._flush()
        tables = tuple(table for part in self.parts for table in tables_of(part, self.file, self.format, self.stated))
        return Read(self.file, self.format, tables, (), tuple(self._notes()))

    def _notes(self) -> Iterator[str]:
        """Rows that did not stand whole in one line."""
        rows = [row for part in self.parts for row in part.rows]
        joined = [row.line for row in rows if row.rejoined]
        halved = [row.line for row in rows if row.cut]
        for lines, what in (
            (joined, "broken by other lines and put together again"),
            (halved, "cut and given in part"),
        ):
            if lines:
                count = "1 row was" if len(lines) == 1 else f"{len(lines)} rows were"
                yield f"{count} {what} ({'first: ' if len(lines) > 1 else ''}line {lines[0]})"


def _headless(piece: Piece) -> bool:
    """Whether the size of a row is no multiple of its count: digits of it may stand on an earlier line."""
    row = Row(0, piece.size, piece.elements, piece.dtype, "", None, (NO_HALF, NO_HALF))
    return piece.dtype in ELEMENT_BYTES and parts(row) == 0


def _absent(half: Half) -> bool:
    """Whether the test did not run this half, and says so in every cell."""
    return {half.time.text, half.algbw.text, half.busbw.text} == {"N/A"}


def _proved(size: int, half: Half) -> bool:
    """Whether a half put together from pieces is there and shown right."""
    fits = bool(agree(size, half.time, half.algbw)) and proves(half.algbw) and possible(half.algbw, half.busbw)
    speeds = all(_well_printed(cell.text, SPEED) for cell in (half.algbw, half.busbw))
    return fits and speeds and _well_printed(half.time.text, TIME)


def _well_printed(text: str, exact: int) -> bool:
    """Whether a cell has the decimals that the tests print.

    Two where it has no more than ``exact`` digits before the point, at least one below 10,000.
    """
    whole, _, decimals = text.partition(".")
    return len(decimals) == EXACT if len(whole) <= exact else bool(decimals) or len(whole) >= LONG_NUMBER


def _trusted(size: int, half: Half) -> Half:
    """A half read from one unbroken stretch, if its time and speed are there and agree."""
    if not agree(size, half.time, half.algbw):
        return NO_HALF
    sound = _well_printed(half.busbw.text, SPEED) and possible(half.algbw, half.busbw)
    return half if sound else Half(half.time, half.algbw, NOTHING, NOTHING)


def sniff(text: str) -> bool:
    """Whether a text has a row, a header or the first lines of such a test."""
    return _SIGN.search(text) is not None


def reader_of(log: Log, stated: Stated = NOTHING_STATED) -> Reader:
    """A reader that has read a log as nccl-tests prints it, and knows why there is nothing where there is nothing.

    Args:
        log: the file.
        stated: what the user says of it.

    Returns:
        The reader.
    """
    reader = Reader(log.name, format="rccl-tests" if "rccl-tests" in log.text else FORMAT, stated=stated)
    for line in log.lines:
        reader.feed(line)
    return reader
