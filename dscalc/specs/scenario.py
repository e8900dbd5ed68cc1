"""Scenario files: a TOML file that holds any shared option by name, flat or in tables named after the option groups."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path

from dscalc.errors import DscalcError, InputError
from dscalc.specs.bounded_file import fault, read_bounded
from dscalc.specs.option_table import GROUPS, OPTIONS, Option
from dscalc.specs.options import read_word
from dscalc.units import MIB

MAX_FILE_BYTES = 1 * MIB  # nobody types more


def load_scenario(path: str, table: Mapping[str, Option] = OPTIONS) -> dict[str, object]:
    """Read a scenario file into canonical option names and parsed values.

    Args:
        path: a TOML file, e.g. ``tp = 4`` and ``model = "llama-3.1-8b"``.
        table: the options there are, by canonical name.

    Returns:
        Canonical names to parsed values.

    Raises:
        InputError: the file cannot be read, is not TOML, or holds an unknown word or a bad value; names file and line.
    """
    file = Path(path)
    try:
        raw = read_bounded(file, MAX_FILE_BYTES)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror or error})", where=f"--scenario {path}") from None
    try:
        text = raw.decode("utf-8-sig")
        data = tomllib.loads(text)
    except UnicodeDecodeError:
        raise InputError("is not UTF-8 text", where=f"--scenario {path}") from None
    except tomllib.TOMLDecodeError as error:
        at = re.search(r"line (\d+)", str(error))
        raise InputError(f"is not TOML: {error}", where=f"{path}:{at[1]}" if at else path) from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"cannot be read as TOML: {fault(error)}", where=f"--scenario {path}") from None
    flat: list[tuple[str, object]] = []
    for key, value in data.items():
        flat.extend(value.items() if isinstance(value, dict) and key in GROUPS else [(key, value)])
    given: dict[str, object] = {}
    for word, value in flat:
        where = f"{path}:{_line(text, word)}"
        if isinstance(value, dict):
            raise InputError(f"[{word}] is not a table of options; tables are {', '.join(GROUPS)}", where=where)
        try:
            name, parsed = read_word(word, value, table)
        except DscalcError as error:
            raise InputError(str(error), where=where) from None
        except (OverflowError, ValueError, RecursionError) as error:
            raise InputError(f"{word}: {fault(error)}", where=where) from None
        parsed = _beside(file, name, parsed)
        if name in given and given[name] != parsed:
            raise InputError(f"{word} says {parsed}, another line says {given[name]}", where=where)
        given[name] = parsed
    return given


def _beside(file: Path, name: str, value: object) -> object:
    """A relative path of a file, as seen from the scenario where it lies there; the name of a shipped model stays."""
    if name not in ("model", "profile") or not isinstance(value, str):
        return value
    from dscalc.specs.model import is_preset

    there = file.parent / value
    try:
        return str(there) if not (name == "model" and is_preset(value)) and there.exists() else value
    except (OSError, ValueError):
        return value


def _line(text: str, word: str) -> int:
    """Line of a key, counted from 1."""
    found = re.search(rf"^\s*\[?[\"']?{re.escape(word)}[\"']?\s*[=\]]", text, re.MULTILINE)
    return text.count("\n", 0, found.start() + len(found[0]) - len(found[0].lstrip())) + 1 if found else 1
