"""Read the log of any benchmark that the readers know; every format becomes the same columns."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from dscalc.calibrate import gemm_logs, nccl_tests, record_logs, rows, torch_logs
from dscalc.calibrate.log_network import network_named
from dscalc.calibrate.log_text import Log, load
from dscalc.calibrate.measurements import Read
from dscalc.calibrate.table_checks import NOTHING_STATED, Stated
from dscalc.errors import InputError


class Format(NamedTuple):
    """A benchmark whose output can be read."""

    name: str
    sniff: Callable[[str], bool]
    read: Callable[[Log, Stated], Read]
    alone: bool = False  # a file of it holds nothing else


def _rows(log: Log, stated: Stated) -> Read:
    del stated  # rows of dscalc bench say everything
    return rows.read_rows(log.data, log.name)


def _nccl(log: Log, stated: Stated) -> Read:
    reader = nccl_tests.reader_of(log, stated)
    found = reader.finish()
    return found if found.tables else found._replace(notes=(reader.why_nothing(),))


FORMATS = (
    Format("dscalc-bench", rows.sniff_rows, _rows, alone=True),
    Format("json", record_logs.sniff_json, record_logs.read_json),
    Format("csv", record_logs.sniff_csv, record_logs.read_csv),
    Format("cookbook-communication", torch_logs.sniff_cookbook, torch_logs.read_cookbook),
    Format("all_reduce_bench", torch_logs.sniff_ml_engineering, torch_logs.read_ml_engineering),
    Format("ibm", torch_logs.sniff_ibm, torch_logs.read_ibm),
    Format("cookbook-mm-flops", gemm_logs.sniff_mm_flops, gemm_logs.read_mm_flops),
    Format("mamf-finder", gemm_logs.sniff_mamf, gemm_logs.read_mamf),
    Format("nccl-tests", nccl_tests.sniff, _nccl),
)


def read_log(path: str | os.PathLike[str], stated: Stated = NOTHING_STATED) -> Read:
    """Read one log file.

    Args:
        path: the file, of any format that a reader knows, in any encoding.
        stated: what the user says of it where the log does not.

    Returns:
        Its tables and kernels, with the checks that the log itself allows.

    Raises:
        InputError: the file cannot be read, or no row of it is usable; says why, with line numbers.
    """
    return read_text(load(path), stated)


def read_text(log: Log, stated: Stated = NOTHING_STATED) -> Read:
    """Read a log that is already in memory, as ``read_log`` does."""
    found: list[Read] = []
    for form in FORMATS:
        if form.sniff(log.text):
            found.append(form.read(log, stated))
            if form.alone:
                break
    useful = [one for one in _each_line_once(found) if one.tables or one.compute]
    if not useful:
        raise InputError(_why(log, found), where=log.name)
    network = network_named(log.text)
    if len(useful) == 1:
        return useful[0]._replace(network=network)
    return Read(
        log.name,
        " + ".join(one.format for one in useful),
        tuple(table for one in useful for table in one.tables),
        tuple(kernel for one in useful for kernel in one.compute),
        tuple(note for one in useful for note in one.notes),
        network,
    )


def _each_line_once(found: Sequence[Read]) -> Iterator[Read]:
    """What readers found, less tables whose every line an earlier reader took."""
    taken: set[int] = set()
    for one in found:
        tables = tuple(table for table in one.tables if not taken.issuperset(table.line.tolist()))
        taken.update(line for table in tables for line in table.line.tolist())
        yield one if len(tables) == len(one.tables) else one._replace(tables=tables, notes=())


def _why(log: Log, found: Sequence[Read]) -> str:
    """Why a file has no usable row."""
    reasons = [note for one in found for note in one.notes]
    if reasons:
        return f"no usable row: {reasons[0]}"
    if found:
        return f"no usable row: it looks like {found[0].format}, but no line of it has a size and a time or a speed"
    if nccl_tests.TROUBLE.search(log.text):
        return f"no usable row: {nccl_tests.reader_of(log).why_nothing()}"
    if log.text[:200].lstrip().lower().startswith(("<!doctype", "<html")):
        return "no usable row: this is a web page; give the text of the log itself"
    known = ", ".join(form.name for form in FORMATS)
    count = log.text.count("\n") + 1
    lines = "1 line" if count == 1 else f"{count:,} lines"
    return f"no usable row in {lines}: no reader knows the format (there are {known})"
