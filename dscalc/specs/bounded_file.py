"""The one way a user's file is opened: a regular file, read no further than a limit; a pipe or device never hangs."""

from __future__ import annotations

import errno
import os
import stat


def read_bounded(path: str | os.PathLike[str], limit_bytes: int) -> bytes:
    """The bytes of a regular file.

    Args:
        path: the file.
        limit_bytes: the largest size that is read.

    Returns:
        Its content.

    Raises:
        OSError: no regular file, larger than the limit, unreadable, or no path at all; ``strerror`` says which.
    """
    name = os.fspath(path)
    try:
        # a pipe without a writer would block in open, so it does not wait
        handle = os.open(name, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except ValueError:  # a NUL, or letters the file system's encoding lacks
        raise OSError(errno.EINVAL, "not a usable path") from None
    try:
        found = os.fstat(handle)
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if found.st_size > limit_bytes:
            raise OSError(errno.EFBIG, f"too large: {found.st_size:,} bytes, at most {limit_bytes:,} are read")
        with os.fdopen(handle, "rb", closefd=False) as file:
            data = file.read(limit_bytes + 1)
    finally:
        os.close(handle)
    if len(data) > limit_bytes:  # it grew meanwhile
        raise OSError(errno.EFBIG, f"too large: at most {limit_bytes:,} bytes are read")
    return data


def fault(error: ArithmeticError | ValueError | RecursionError) -> str:
    """What a parser complains of, in words that help a user: how deep and how long is all Python says of some files."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    text = str(error)
    return "a number has too many digits" if "digits" in text and "set_int_max_str" in text else text[:300]
