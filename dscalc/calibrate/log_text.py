"""Text of a log as it really is: any encoding, line ends, colours, tags of launchers, other lines inside."""

from __future__ import annotations

import os
import re
import sys
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

from dscalc.errors import InputError
from dscalc.specs.bounded_file import read_bounded
from dscalc.units import MIB

LIMIT_BYTES = 256 * MIB  # of one file
LIMIT_LINE = 20_000  # characters of a line that are looked at
STANDARD_INPUT = "standard input"
SNIFF_BYTES = 4096
NUL_SHARE = 0.25  # of the first bytes: beyond this the text is in two bytes a letter, or no text at all

_MAGIC = (
    (b"\x1f\x8b", "a gzip file: decompress it first"),
    (b"PK\x03\x04", "a zip archive: unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstandard file: decompress it first"),
    (b"\xfd7zXZ", "an xz file: decompress it first"),
    (b"BZh", "a bzip2 file: decompress it first"),
    (b"%PDF", "a PDF: give the text of the log"),
    (b"\x89PNG", "a picture: give the text of the log"),
    (b"\x7fELF", "a program, not the log that it wrote"),
    (b"SQLite format 3", "a database (a profiler's report?), not a log"),
)
_MARKS = (
    (b"\xff\xfe\x00\x00", "utf-32"),
    (b"\xff\xfe", "utf-16"),
    (b"\xfe\xff", "utf-16"),
    (b"\xef\xbb\xbf", "utf-8-sig"),
)


class _Printed(dict[int, str]):
    """Characters as they are kept: no command to a terminal, nothing that turns text around or cannot be seen."""

    def __missing__(self, code: int) -> str:
        letter = chr(code)
        if not letter.isprintable() and letter != "\t":
            kind = unicodedata.category(letter)
            letter = "" if kind == "Cf" else " " if kind[0] == "Z" or kind == "Cc" else "\N{REPLACEMENT CHARACTER}"
        self[code] = letter
        return letter


_PRINTED = _Printed()
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[@-Z\\-_])")
_NOISE = re.compile(  # a line of NCCL or RCCL that begins anywhere
    r"(?:\[\d{4}-\d\d-\d\d[ T][\d:.,]+\] ?)?[A-Za-z][\w.-]{0,80}:\d+:\d+ (?:\[\w+\] )?"
    r"(?:[\w./-]{1,80}:\d{1,6} )?"  # warnings name their place in the source
    r"[NR]CCL (?:INFO|WARN|TRACE|ERROR|ABORT|CALL)\b"
)
_TAG = re.compile(
    r"\s*(?:"
    r"\[\d+,\d+\](?:<std(?:out|err|diag)>)?:"  # mpirun --tag-output
    r"|(?:"
    r"\d{1,6}:(?=\s|#|\d|$)"  # srun --label
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]?:?(?=\s|$)"  # clocks
    r"|\[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?(?=\s)"
    r"|\((?:[\w.-]+ )?(?:rank=\d+ )?(?:pid|PID)=\d+(?:, ip=[\d.]+)?\)"  # actors
    r"|\[(?:default|rank|\w{0,20}:)?\d+\]:"  # torchrun --tee
    r"|[\w./-]{1,60}\s?\|(?=\s)"  # containers
    r"|>(?=\s)"  # quoted
    r"|[A-Za-z][\w.-]{0,60}:(?=\s)"  # pdsh, deepspeed
    r") ?"
    r")"
)


class Line(NamedTuple):
    """One line without colours: its number from 1, its text, and the message of NCCL that broke into it."""

    number: int
    text: str  # before that message
    noise: str  # that message, to the end of the line; empty as a rule
    ended: bool  # a line end was written


class Log:
    """A file that was read: its name, its bytes, its text; its lines when asked for."""

    def __init__(self, name: str, data: bytes) -> None:
        self.name = name
        self.data = data
        self.text = decode(data, name)

    @property
    def lines(self) -> Iterator[Line]:
        """Every line, in order; made one by one, for a log may have millions."""
        return split_lines(self.text)


def load(path: str | os.PathLike[str]) -> Log:
    """A text file of any encoding.

    Args:
        path: the file; ``-`` is the standard input.

    Returns:
        What it holds.

    Raises:
        InputError: no such file, too large, or no text.
    """
    name = printed(os.fspath(path))
    if name == "-":
        data = sys.stdin.buffer.read(LIMIT_BYTES + 1)
        if len(data) > LIMIT_BYTES:
            raise InputError(f"is too large: at most {LIMIT_BYTES:,} bytes are read", where=STANDARD_INPUT)
        return Log(STANDARD_INPUT, data)
    try:
        data = read_bounded(path, LIMIT_BYTES)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror or error})", where=name) from None
    return Log(name, data)


def decode(data: bytes, name: str) -> str:
    """Bytes to text: by byte-order mark, else by where the NULs are, else UTF-8; what cannot be read becomes a mark.

    Args:
        data: content of the file.
        name: the file, for a message.

    Returns:
        The text.

    Raises:
        InputError: empty, or not text.
    """
    if not data.strip(b" \t\r\n\x00"):
        raise InputError("is empty; give the log of a benchmark that ran", where=name)
    for magic, what in _MAGIC:
        if data.startswith(magic):
            raise InputError(f"is {what}", where=name)
    for mark, encoding in _MARKS:
        if data.startswith(mark):
            return data.decode(encoding, "replace")
    head = data[:SNIFF_BYTES]
    even, odd = head[::2].count(0), head[1::2].count(0)
    if max(even, odd) > NUL_SHARE * len(head):
        if min(even, odd) > NUL_SHARE * max(even, odd):
            raise InputError("is not text; give the log of a benchmark", where=name)
        return data.decode("utf-16-le" if odd > even else "utf-16-be", "replace")
    if even + odd > NUL_SHARE * len(head):
        raise InputError("is not text; give the log of a benchmark", where=name)
    return data.decode("utf-8", "replace").replace("\x00", "")


def printed(text: str) -> str:
    """A text that can be shown: control characters are blanks, those that cannot be seen are left out.

    >>> printed("gpu\\u202e07\\x1b[31m")
    'gpu07 [31m'
    """
    return text if text.isprintable() else text.translate(_PRINTED)


def split_lines(text: str) -> Iterator[Line]:
    """Lines without colours, without line ends, cut to a bounded length."""
    ending = "\n" if "\n" in text else "\r"  # the line ends of very old machines
    number, start, length = 0, 0, len(text)
    while start < length:
        end = text.find(ending, start)
        ended = end >= 0
        part = text[start : end if ended else length]
        number, start = number + 1, (end if ended else length) + 1
        part = part.removesuffix("\r")
        # a progress display writes over its line: several texts, one number
        for shown in part.split("\r") if "\r" in part else (part,):
            clean = shown[:LIMIT_LINE]
            if "\x1b" in clean:
                clean = _ESCAPE.sub("", clean)
            clean = printed(clean)
            noise = ""
            if "CCL " in clean:
                message = _NOISE.search(clean)
                if message:
                    clean, noise = clean[: message.start()], clean[message.start() :]
            yield Line(number, clean, noise, ended and len(shown) <= LIMIT_LINE)


def untagged(text: str) -> str:
    """The text without what a launcher, a clock or a container put before it, and without colours."""
    if "\x1b" in text:
        text = _ESCAPE.sub("", text)
    for _ in range(4):
        tag = _TAG.match(text)
        if tag is None:
            return text
        text = text[tag.end() :]
    return text
