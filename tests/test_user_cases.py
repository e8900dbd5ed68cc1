"""Questions that users asked in public threads, answered by the memory command and by its Python twin.

A row of ``tests/evidence/user_cases.csv`` is one question; a thread may have several. Columns:

- ``answered``: ``yes``, or ``no`` with the reason and the command that will answer under ``reason_not``.
- ``command``: ``dscalc memory ...`` lines joined by `` ; `` (run as processes, read as JSON), or keyword arguments of
  ``dscalc.memory`` as a JSON object or a list of them. The answers are called a, b, c in this order.
- ``quantity``: an expression over the answers' JSON. ``term(a, PATH, ...)`` adds terms of the total, ``minimum(a, GPU,
  STAGE)`` is the fewest GPUs at a ZeRO stage, ``warns(a, CODE)`` a warning, ``size(TEXT)`` a number of bytes,
  ``a.refused`` the option that a refusal names.
- ``expected``: a number with its unit, or true or false; ``tolerance``: relative.
- ``basis``: ``exact`` where the value is arithmetic, ``measured`` where somebody observed it. ``source`` says which.
"""

from __future__ import annotations

import ast
import csv
import json
import operator
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import dscalc
from dscalc.errors import InputError
from dscalc.units import parse_bytes

FILE = Path(__file__).parent / "evidence" / "user_cases.csv"
LARGEST_TOLERANCE = {"exact": 0.01, "measured": 0.05}
LEAST_ANSWERED = 35

Answer = dict[str, Any]


class Case(NamedTuple):
    id: str
    url: str
    question: str
    answered: str
    reason_not: str
    command: str
    quantity: str
    expected: str
    tolerance: str
    basis: str
    source: str


def read() -> list[Case]:
    """The rows of the file."""
    with FILE.open(encoding="utf-8", newline="") as handle:
        header, *rows = csv.reader(handle)
    assert tuple(header) == Case._fields
    return [Case(*row) for row in rows]


CASES = read()
ANSWERED = [case for case in CASES if case.answered == "yes"]


# --- expressions over answers ---

OPERATORS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
}


def term(answer: Answer, *paths: str) -> float:
    """Bytes of the named terms together; a path that does not exist is an error, not zero."""
    terms = {row["path"]: row["bytes"] for row in answer["result"]["terms"]}
    return sum(terms[path] for path in paths)


def minimum(answer: Answer, gpu: str, stage: int) -> int | None:
    """Fewest GPUs of a kind at a ZeRO stage; None where no number is enough."""
    (row,) = (r for r in answer["result"]["minimum_gpus"] if (r["gpu"], r["zero_stage"]) == (gpu, stage))
    return row["gpus"]


def warns(answer: Answer, code: str) -> bool:
    """Whether the answer carries this warning."""
    return code in {row["code"] for row in answer["warnings"]}


FUNCTIONS: dict[str, Callable[..., Any]] = {"term": term, "minimum": minimum, "warns": warns, "size": parse_bytes}


def evaluate(text: str, answers: dict[str, Answer]) -> Any:
    """The value of an expression: names, attributes as JSON keys, the functions above, arithmetic, comparisons."""

    def value(node: ast.AST) -> Any:
        match node:
            case ast.Constant(value=constant):
                return constant
            case ast.Name(id="none"):
                return None
            case ast.Name(id=name):
                return answers[name]
            case ast.Attribute(value=inner, attr=key):
                return value(inner)[key]
            case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]):
                return FUNCTIONS[name](*(value(argument) for argument in arguments))
            case ast.BinOp(left=left, op=op, right=right):
                return OPERATORS[type(op)](value(left), value(right))
            case ast.Compare(left=left, ops=ops, comparators=others):
                sides = [value(left), *(value(other) for other in others)]
                return all(OPERATORS[type(op)](*sides[i : i + 2]) for i, op in enumerate(ops))
        raise ValueError(f"{ast.unparse(node)!r} is no part of a quantity")

    return value(ast.parse(text, mode="eval").body)


def expected(text: str) -> float | bool:
    """``26.08 GiB`` in bytes, ``48 GPUs`` as 48, ``true`` and ``false`` as they are."""
    if text in ("true", "false"):
        return text == "true"
    number, _, unit = text.partition(" ")
    is_size = re.fullmatch(r"[kMGT]?i?B|bytes", unit)
    return parse_bytes(text) if is_size else float(number)


# --- answers ---


def _in_python(keywords: dict[str, Any]) -> Answer:
    try:
        return dscalc.memory(**keywords).to_json()
    except InputError as error:
        return {"refused": error.where}


@pytest.fixture(scope="module")
def process(run_dscalc: Callable[..., subprocess.CompletedProcess[str]]) -> Callable[[str], Answer]:
    """The answer of a command line, run once for all rows that share it."""
    seen: dict[str, Answer] = {}

    def run(line: str) -> Answer:
        if line not in seen:
            program, *words = shlex.split(line)
            assert program == "dscalc"
            ran = run_dscalc(*words, "--format", "json")
            assert ran.returncode == 0, ran.stderr
            seen[line] = json.loads(ran.stdout)
        return seen[line]

    return run


def _label(case: Case) -> str:
    return f"{case.id}-{re.sub(r'[^a-z0-9]+', '-', case.question.lower()).strip('-')}"


@pytest.mark.parametrize("case", ANSWERED, ids=_label)
def test_question_is_answered(case: Case, process: Callable[[str], Answer]) -> None:
    if case.command.startswith("dscalc "):
        found = [process(line) for line in case.command.split(" ; ")]
    else:
        calls = json.loads(case.command)
        found = [_in_python(keywords) for keywords in (calls if isinstance(calls, list) else [calls])]
    value = evaluate(case.quantity, dict(zip("abc", found, strict=False)))
    wanted = expected(case.expected)
    if isinstance(wanted, bool):
        assert value is wanted
    else:
        assert value == pytest.approx(wanted, rel=float(case.tolerance), abs=0.0)


# --- the list itself ---


@pytest.mark.parametrize("case", CASES, ids=_label)
def test_row_is_complete(case: Case) -> None:
    assert case.id
    assert case.url.startswith("https://") or case.url == "-"
    assert case.question.endswith("?")
    answer = (case.command, case.quantity, case.expected, case.basis, case.source)
    if case.answered == "no":
        assert case.reason_not
        assert not any(answer)
        return
    assert case.answered == "yes"
    assert all(answer)
    assert not case.reason_not
    largest = LARGEST_TOLERANCE[case.basis]
    if case.expected in ("true", "false"):
        assert not case.tolerance
    else:
        assert 0 < float(case.tolerance) <= largest


def test_labels_differ() -> None:
    assert len({_label(case) for case in CASES}) == len(CASES)


def test_enough_threads_are_answered() -> None:
    ids = {case.id for case in CASES if case.id.startswith("U")}
    answered = {case.id for case in ANSWERED if case.id.startswith("U")}
    unanswered = {case.id for case in CASES if case.answered == "no"}
    assert len(ids) == 66
    assert not answered & unanswered
    assert len(answered) >= LEAST_ANSWERED


@pytest.mark.shared
def test_every_determinable_thread_is_listed(shared_data: Path) -> None:
    with (shared_data / "user_cases.csv").open(encoding="utf-8", newline="") as handle:
        known = {row["id"]: row["url"] for row in csv.DictReader(handle) if row["determinable"] == "yes"}
    listed = {case.id: case.url for case in CASES if case.id.startswith("U")}
    assert listed == known


@pytest.mark.parametrize("text", ["a.result.gone", 'term(a, "state/gone")', "exec(a)", "a ** 2", "[a]"])
def test_expressions_refuse_what_is_not_there(text: str) -> None:
    answers: dict[str, Answer] = {"a": {"result": {"terms": []}}}
    with pytest.raises((KeyError, ValueError)):
        evaluate(text, answers)
