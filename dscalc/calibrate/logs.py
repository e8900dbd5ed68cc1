"""Read the log of any benchmark that the readers know; every format becomes the same columns."""

from __future__ import annotations

import os

from dscalc.calibrate import nccl_tests
from dscalc.calibrate.log_text import read_lines
from dscalc.calibrate.measurements import Read
from dscalc.errors import InputError


def read_log(path: str | os.PathLike[str]) -> Read:
    """Read one log file.

    Args:
        path: the file, of any format that a reader knows, in any encoding.

    Returns:
        Its tables and kernels, with the checks that the log itself allows.

    Raises:
        InputError: the file cannot be read, or no row of it is usable; says why, with line numbers.
    """
    name = os.fspath(path)
    lines = read_lines(path)
    found, reader = nccl_tests.read(name, lines)
    if not found.tables:
        raise InputError("no usable row", where=name)
    return found
