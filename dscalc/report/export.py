"""Answers as JSON, CSV and Markdown, and as files that are never half written."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from dscalc.errors import InputError


def to_json(answer: Mapping[str, Any]) -> str:
    """The answer in base units and full precision; no NaN."""
    return json.dumps(answer, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def to_csv(rows: Iterable[Mapping[str, Any]], columns: Sequence[str]) -> str:
    """Rows as RFC 4180 text with ``\\n`` line ends, full precision."""
    import csv  # loaded where used: start-up counts
    import io

    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_cell(row.get(name)) for name in columns])
    return text.getvalue()


def _cell(value: Any) -> Any:
    return "" if value is None else repr(value) if isinstance(value, float) else value


def to_markdown(rows: Iterable[Sequence[str]], header: Sequence[str], right: Sequence[int] = ()) -> str:
    """A GitHub table, padded so that it also reads as text; ``right`` lists right-aligned columns."""
    cells = [[_escape(cell) for cell in row] for row in rows]
    widths = [
        max(len(header[i]), 4, *(len(row[i]) for row in cells)) if cells else len(header[i]) for i in range(len(header))
    ]

    def line(parts: Sequence[str]) -> str:
        return (
            "| "
            + " | ".join(
                p.rjust(w) if i in right else p.ljust(w) for i, (p, w) in enumerate(zip(parts, widths, strict=True))
            )
            + " |"
        )

    rule = ["-" * (w - 1) + ":" if i in right else "-" * w for i, w in enumerate(widths)]
    return "\n".join([line(header), line(rule), *(line(row) for row in cells)]) + "\n"


def _escape(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def write_file(path: str, content: str | bytes, *, force: bool, option: str = "--output") -> None:
    """Write a whole file or nothing: a temporary file beside it takes its name at the end.

    Args:
        path: where.
        content: text, or the bytes of a picture.
        force: replace a file that exists.
        option: what a complaint names.

    Raises:
        InputError: the file exists and ``force`` is not set, or it cannot be written.
    """
    target = refuse_target(path, force=force, option=option)
    try:
        _write(target.resolve(), content, force)  # a link keeps pointing at its file
    except FileExistsError:
        raise InputError(EXISTS, where=f"{option} {path}") from None
    except (OSError, ValueError) as error:
        raise InputError(
            f"cannot be written ({getattr(error, 'strerror', None) or error})", where=f"{option} {path}"
        ) from None


EXISTS = "exists; add --force to replace it"


def refuse_target(path: str, *, force: bool, option: str = "--output") -> Path:
    """Refuse a file that cannot be written, before the work that would fill it.

    Args:
        path: where.
        force: replace a file that exists.
        option: what a complaint names.

    Returns:
        The path.

    Raises:
        InputError: the file exists and ``force`` is not set, or nothing can be written there.
    """
    target, where = Path(path).expanduser(), f"{option} {path}"
    try:
        if target.is_dir():
            raise InputError("is a folder; name a file", where=where)
        if target.exists() and not target.is_file():  # a pipe would wait for its reader
            raise InputError("is not a regular file; name a file, or - for the screen", where=where)
        if target.exists() and not force:
            raise InputError(EXISTS, where=where)
        folder = target.resolve().parent
        if not folder.is_dir():
            raise InputError(f"cannot be written (there is no folder {folder})", where=where)
        if not os.access(folder, os.W_OK):
            raise InputError(f"cannot be written (no right to write in {folder})", where=where)
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be written ({getattr(error, 'strerror', None) or error})", where=where) from None
    return target


def _write(final: Path, content: str | bytes, force: bool) -> None:
    import tempfile

    handle, name = tempfile.mkstemp(dir=final.parent, prefix=f".{final.name[:40]}.", suffix=".part")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content.encode("utf-8") if isinstance(content, str) else content)
            stream.flush()
            os.fsync(stream.fileno())
        mode = final.stat().st_mode & 0o777 if final.exists() else 0o666 & ~_umask()
        os.chmod(name, mode)  # noqa: PTH101 - a name, not a path object
        if not force:
            _claim(name, final)
        os.replace(name, final)  # noqa: PTH105
    finally:
        Path(name).unlink(missing_ok=True)


def _claim(name: str, final: Path) -> None:
    """Take a name that nobody has; of several who try at once, one gets it.

    Raises:
        FileExistsError: another has it.
    """
    try:
        os.link(name, final)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        os.close(os.open(final, os.O_CREAT | os.O_EXCL | os.O_WRONLY))


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
