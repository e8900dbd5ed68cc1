"""Unit factors live in ``dscalc/units.py`` and in profiles; elsewhere a bare 1e9 or 1024 is a unit error in waiting.

Numbers are found in the syntax tree, so text and comments do not count while the expressions inside f-strings do.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

DECIMAL = {10.0**power for power in (3, 6, 9, 12, 15, 18)}
BINARY = {2.0**power for power in (10, 20, 30, 40, 50)}
SHIFTS = {10, 20, 30, 40, 50}
BITS = 8  # dividing by it turns bits into bytes
HOME = "units.py"

# A number in one of these places is a count (of a model's shape), not a factor: hidden=1024.
SHAPE_FIELDS = frozenset(
    {
        *("layers", "hidden", "heads", "kv_heads", "head_dim", "value_head_dim", "ffn_hidden", "moe_ffn_hidden"),
        *("shared_ffn_hidden", "vocab", "experts", "top_k", "learned_positions", "q_lora_rank", "kv_lora_rank"),
        *("rope_head_dim", "index_heads", "index_head_dim", "seq_len"),
        "maxsize",  # of a cache
    }
)
# Bounds on what may be typed are round numbers, not factors: MAX_VOCAB = 10**9.
BOUND = re.compile(r"^_?(MAX|MIN|LARGEST|SMALLEST|LIMIT)(_|$)")


class Allowed(NamedTuple):
    path: str  # under dscalc/
    line: str  # text that the line contains
    reason: str


ALLOWED: tuple[Allowed, ...] = ()


class Found(NamedTuple):
    path: str
    number: int
    line: str
    factor: str


def _counts(tree: ast.AST) -> set[int]:
    """ids of the nodes that are whole values of a shape field or of a bound."""
    values: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg in SHAPE_FIELDS:
            values.add(id(node.value))
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            values |= {id(v) for k, v in pairs if isinstance(k, ast.Constant) and k.value in SHAPE_FIELDS}
        elif isinstance(node, ast.AnnAssign | ast.Assign):
            names = [getattr(t, "id", "") for t in (node.targets if isinstance(node, ast.Assign) else [node.target])]
            if all(name in SHAPE_FIELDS or BOUND.match(name) for name in names):
                values.add(id(node.value))
    return values


def _number(node: ast.AST) -> float | None:
    if isinstance(node, ast.Constant) and isinstance(node.value, int | float) and not isinstance(node.value, bool):
        return float(node.value)
    return None


def factors(source: str) -> Iterator[tuple[int, str]]:
    """(line number, text) of each unit factor in a piece of source."""
    tree = ast.parse(source)
    exempt = _counts(tree)
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if (value := _number(node)) is not None and id(node) not in exempt and value in DECIMAL | BINARY:
            yield line, ast.unparse(node)
        elif isinstance(node, ast.BinOp) and id(node) not in exempt:
            left, right = _number(node.left), _number(node.right)
            power = isinstance(node.op, ast.Pow) and (
                (left == 2 and right in SHIFTS) or (left == 10 and right is not None and right >= 3 and right % 3 == 0)
            )
            shift = isinstance(node.op, ast.LShift) and left == 1 and right in SHIFTS
            bits = isinstance(node.op, ast.Div | ast.FloorDiv) and right == BITS
            if power or shift or bits:
                yield line, ast.unparse(node)
        elif isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Div | ast.FloorDiv):
            yield from [(line, ast.unparse(node))] if _number(node.value) == BITS else []


def _all_found(repository: Path) -> list[Found]:
    root = repository / "dscalc"
    found: list[Found] = []
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root).as_posix()
        if name != HOME:
            source = path.read_text(encoding="utf-8")
            lines = source.splitlines()
            found.extend(Found(name, n, lines[n - 1].strip(), text) for n, text in factors(source))
    return found


def _allows(entry: Allowed, found: Found) -> bool:
    return entry.path == found.path and entry.line in found.line


def test_unit_factors_only_in_units(repository: Path) -> None:
    stray = [f for f in _all_found(repository) if not any(_allows(entry, f) for entry in ALLOWED)]
    text = "\n".join(f"dscalc/{f.path}:{f.number}: {f.factor}   in: {f.line}" for f in stray)
    assert not stray, f"use dscalc.units, or add the line to ALLOWED with a reason:\n{text}"


def test_allow_list_is_not_stale(repository: Path) -> None:
    found = _all_found(repository)
    assert all(entry.reason.strip() for entry in ALLOWED)
    stale = [entry for entry in ALLOWED if not any(_allows(entry, f) for f in found)]
    assert not stale, "no line needs these any more"


@pytest.mark.parametrize(
    "source",
    [
        "x = n / 1e9",
        "x = n / 1_000_000",
        "x = n * 1000",
        "x = n / 1024**3",
        "x = n / 2**30",
        "x = n << 3; y = 1 << 20",
        "x = 10**12",
        "MAX_BYTES = n * 1024",
        "x = rate / 8",
        "x = rate // 8.0",
        "rate /= 8",
        "x = f'{n / 1e9:.1f} GB'",
        "def f(n=1000): ...",
        "x = {'buffer': 1024}",
    ],
)
def test_finder_finds(source: str) -> None:
    assert list(factors(source))


@pytest.mark.parametrize(
    "source",
    [
        "x = '1e9 bytes'  # 1024",
        '"""Divide by 1e9."""',
        "x = 8 * u",
        "x = 2**n",
        "x = n / 16",
        "x = 5e8",
        "x = 1e-9",
        "shape(hidden=1024, layers=24)",
        "x = {'hidden': 1024}",
        "x = True",
        "MAX_VOCAB = 1_000_000_000",
        "_LARGEST = 10**9",
    ],
)
def test_finder_leaves_alone(source: str) -> None:
    assert not list(factors(source))
