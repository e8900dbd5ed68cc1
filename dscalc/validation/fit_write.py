"""Writes what a fit found where it is read: ``pace.toml``, and rows predicted without their group."""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np

from dscalc.validation.fit_model import UNKNOWN, family, record_at, tables
from dscalc.validation.step import POOLED_UNDER

if TYPE_CHECKING:
    from dscalc.validation.fit_step import Fit

LEFT_OUT_COLUMNS = ("id", "left_out_s", "known_stack_s", "unknown_stack")


def rewritten(text: str, found: Fit) -> str:
    """``pace.toml`` with fitted values, standard errors, how far they move when a group leaves, and their rows."""
    data = tables(found.log_values, found.asked)
    for constant, stderr, move, counts in zip(
        found.constants, found.stderr, found.jackknife, found.counts, strict=True
    ):
        of = ", ".join(f"{name} {n}" for name, n in sorted(counts.items(), key=lambda item: -item[1]))
        for path in constant.paths:
            shown = record_at(data, path)["value"]
            text = _replaced(text, path.split("."), f"{shown:.4g}", f"{stderr:.2g}", f"{move:.2g}", of)
    rows = Counter(family(row.row.layout.stack) for row, ok in zip(found.rows, found.healthy, strict=True) if ok)
    names = sorted(name for name, n in rows.items() if n >= POOLED_UNDER and name != UNKNOWN)
    listed = ", ".join(f'"{name}"' for name in names)
    text = re.sub(r"(\n\[measured\][^\n]*\nstacks = )[^\n]*", rf"\g<1>[{listed}]", text)
    return _unknown(text, found)


_NUMBER = r"[-+0-9.e]+"


def _replaced(text: str, keys: list[str], value: str, stderr: str, spread: str, rows: str) -> str:
    """One record of the file with other numbers; its section is the longest header among the keys."""
    for cut in range(len(keys) - 1, 0, -1):
        header = f"[{'.'.join(keys[:cut])}]"
        if f"\n{header}" in text:
            start = text.index(f"\n{header}") + len(header) + 1
            end = text.find("\n[", start)
            section, rest = (text[start:end], text[end:]) if end >= 0 else (text[start:], "")
            names = keys[cut:]
            pattern = r"((?:^|[\s{,])\"?" + re.escape(names[0]) + r"\"? = \{"
            pattern += "".join(r"[^\n]*?\b" + re.escape(name) + r" = \{" for name in names[1:])
            pattern += rf" value = ){_NUMBER}(, unit = \"\w+\", kind = \"\w+\")(?:, stderr = {_NUMBER})?"
            pattern += rf"(?:, spread = {_NUMBER})?(?:, rows = \"[^\"]*\")?"
            changed, count = re.subn(
                pattern,
                lambda m: f'{m[1]}{value}{m[2]}, stderr = {stderr}, spread = {spread}, rows = "{rows}"',
                section,
                count=1,
                flags=re.MULTILINE,
            )
            if count:
                return text[:start] + changed + rest
    raise KeyError(".".join(keys))


def _unknown(text: str, found: Fit) -> str:
    """The section of the unknown stack: the centre of what the measured ones have, with their spread."""
    data = tables(found.log_values, found.asked)
    lines, kernels = [], []
    for column, paths in found.asked.items():
        name, _, kind = column.partition(".")
        values = [float(record_at(data, path)["value"]) for path in paths]
        record = data["stack"][UNKNOWN][name]
        line = _centred(record[kind] if kind else record, values, paths)
        kernels += [f"{kind} = {line}"] if kind else []
        lines += [] if kind else [f"{name} = {line}"]
    if kernels:
        lines.append(f"flash_fraction = {{ {', '.join(kernels)} }}")
    header = f"\n[stack.{UNKNOWN}]"
    start = text.index("\n", text.index(header) + 1) + 1
    end = text.index("\n\n[", start)
    return text[:start] + "\n".join(lines) + text[end:]


def _centred(record: dict[str, Any], values: list[float], paths: tuple[str, ...]) -> str:
    spread = float(np.std(np.log(values), ddof=1)) if len(values) > 1 else math.nan
    of = ", ".join(f"{path} {value:.3g}" for path, value in zip(paths, values, strict=True))
    apart = f", spread = {spread:.2g}" if spread > 0.0 else ""
    number = f'value = {record["value"]:.4g}, unit = "{record["unit"]}", kind = "assumed"{apart}'
    return f'{{ {number}, source = "median of the measured stacks: {of}" }}'


def left_out_rows(found: Fit) -> list[tuple[str, str, str, str]]:
    """Healthy rows as a fit without their group predicts them, columns ``LEFT_OUT_COLUMNS``."""
    return [
        (row.row.id, f"{left:.5g}", f"{known:.5g}", str(int(unknown)))
        for row, healthy, left, known, unknown in zip(
            found.rows, found.healthy, found.left_out_s, found.known_stack_s, found.unknown, strict=True
        )
        if healthy
    ]
