"""Every public formula of ``dscalc/cost`` says what goes in, what comes out, what it refuses and where it comes from.

The format (CONTRIBUTING.md explains it with an example): Google-style sections ``Args:``, ``Returns:``, ``Raises:`` and
``References:``. Each argument has an entry; an array's entry holds ``[unit, (shape)]``, a plain number's ``[unit]``.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import re
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

SECTIONS = ("Args", "Returns", "Yields", "Raises", "References")
HEADING = re.compile(rf"^({'|'.join([*SECTIONS, 'Attributes', 'Examples?', 'Notes?', 'Warns'])}):(.*)$")
ENTRY = re.compile(
    r"^(\*{0,2}[A-Za-z_]\w*(?:\s*,\s*\*{0,2}[A-Za-z_]\w*)*)(?:\s*\([^)]*\))?(?:\s*\[[^\n]*?\])?\s*:(?:\s|$)"
)
UNIT_AND_SHAPE = re.compile(r"\[\s*[^\[\],\s][^\[\],]*,\s*(?:\([^\[\]]*\)|scalar)\s*\]")
UNIT = re.compile(r"\[\s*[^\[\],\s][^\[\],]*(?:,\s*(?:\([^\[\]]*\)|scalar)\s*)?\]")
KEY = re.compile(r"\[([A-Za-z][A-Za-z0-9]+)\]")
CITATION = re.compile(r"\[([A-Z][A-Za-z]+(?:19|20)\d\d[A-Za-z]*)\](?!\()")
ARRAYS = re.compile(r"\b(Array|Mask|NDArray|ndarray|ArrayLike)\b")
NUMBERS = re.compile(r"\b(int|float)\b")


def sections(docstring: str) -> dict[str, str]:
    """Section name -> its text, dedented; a one-line section keeps what follows the colon."""
    found: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in inspect.cleandoc(docstring).splitlines():
        if match := HEADING.match(line):
            current = found.setdefault(match[1], [])
            if match[2].strip():
                current.append("    " + match[2].strip())
        elif current is not None and (not line.strip() or line[0].isspace()):
            current.append(line)
        else:
            current = None
    return {name: textwrap.dedent("\n".join(lines)).strip() for name, lines in found.items()}


def entries(text: str) -> dict[str, str]:
    """Argument name -> the whole text of its entry, over as many lines as it takes."""
    blocks: list[str] = []
    for line in text.splitlines():
        if line and not line[0].isspace() and (ENTRY.match(line) or not blocks):
            blocks.append(line)
        elif blocks:
            blocks[-1] += "\n" + line
    found = {}
    for block in blocks:
        if match := ENTRY.match(block):
            found.update({name.strip().lstrip("*"): block for name in match[1].split(",")})
    return found


def _without_citations(text: str, keys: frozenset[str]) -> str:
    return KEY.sub(lambda m: "" if m[1].lower() in keys or CITATION.match(m[0]) else m[0], text)


def complaints(function: Callable[..., Any], keys: frozenset[str]) -> list[str]:
    """What a function's docstring lacks, one line each."""
    docstring = function.__doc__
    if not docstring or not docstring.strip():
        return ["has no docstring"]
    found: list[str] = []
    parts = sections(docstring)
    described = entries(parts.get("Args", ""))
    signature = inspect.signature(function)
    for name, parameter in signature.parameters.items():
        kind = str(parameter.annotation)
        if name not in described:
            found.append(f"Args: does not describe {name!r}")
            continue
        text = _without_citations(described[name], keys)
        if ARRAYS.search(kind) and not UNIT_AND_SHAPE.search(text):
            found.append(f"Args: {name!r} is an array and lacks [unit, (shape)]")
        elif NUMBERS.search(kind) and not UNIT.search(text):
            found.append(f"Args: {name!r} is a number and lacks [unit]")
    found.extend(
        f"Args: describes {name!r}, which is not an argument" for name in described if name not in signature.parameters
    )
    returns = parts.get("Returns") or parts.get("Yields")
    kind = str(signature.return_annotation)
    if not returns:
        found.append("lacks Returns:")
    elif ARRAYS.search(kind) and not UNIT_AND_SHAPE.search(_without_citations(returns, keys)):
        found.append("Returns: gives an array and lacks [unit, (shape)]")
    elif NUMBERS.fullmatch(kind) and not UNIT.search(_without_citations(returns, keys)):
        found.append("Returns: gives a number and lacks [unit]")
    if not parts.get("Raises"):
        found.append('lacks Raises: (write "Raises: nothing." where it is so)')
    cited = KEY.findall(parts.get("References", ""))
    if not cited:
        found.append("lacks References: with at least one [Key] of docs/bibliography.md")
    found.extend(f"References: [{key}] is not in docs/bibliography.md" for key in cited if key.lower() not in keys)
    return found


def _public_functions() -> Iterator[tuple[str, str]]:
    root = Path(__file__).resolve().parents[1]
    for path in sorted((root / "dscalc" / "cost").rglob("*.py")):
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                yield module, node.name


FUNCTIONS = list(_public_functions())


@pytest.mark.parametrize(
    ("module", "name"), FUNCTIONS, ids=[f"{m}.{n}".removeprefix("dscalc.cost.") for m, n in FUNCTIONS]
)
def test_public_formula_is_documented(module: str, name: str, bibliography_keys: frozenset[str]) -> None:
    function = inspect.unwrap(getattr(importlib.import_module(module), name))
    found = complaints(function, bibliography_keys)
    assert not found, f"{module}.{name}:\n  " + "\n  ".join(found)


def test_bibliography_has_each_key_once(repository: Path) -> None:
    text = (repository / "docs" / "bibliography.md").read_text(encoding="utf-8")
    listed = [line for line in text.splitlines() if line.startswith("- ")]
    keys = [m[1] for line in listed if (m := re.match(r"- \*\*\[([A-Za-z0-9]+)\]\*\* \S.*\.$", line))]
    assert len(keys) == len(listed), "an entry reads: - **[Key]** Authors, *Title*, where."
    assert len({key.lower() for key in keys}) == len(keys)


def test_every_citation_in_code_and_docs_resolves(repository: Path, bibliography_keys: frozenset[str]) -> None:
    kinds = {".py", ".toml", ".json", ".md", ".csv"}
    folders = [repository / name for name in ("dscalc", "hardware_profiles", "docs", "tests/evidence")]
    files = [p for folder in folders for p in folder.rglob("*") if p.suffix in kinds]
    lost = [
        f"{path.relative_to(repository)}: [{key}]"
        for path in sorted(files)
        for key in CITATION.findall(path.read_text(encoding="utf-8"))
        if key.lower() not in bibliography_keys
    ]
    assert not lost, "\n".join(lost)


def _sources(node: Any) -> Iterator[str]:
    """Every text under a field named ``source`` in parsed TOML or JSON."""
    if isinstance(node, dict):
        for name, value in node.items():
            if name == "source" and isinstance(value, str):
                yield value
            else:
                yield from _sources(value)
    elif isinstance(node, list):
        for value in node:
            yield from _sources(value)


def test_every_key_in_a_source_field_resolves(repository: Path, bibliography_keys: frozenset[str]) -> None:
    files = [p for folder in ("dscalc", "hardware_profiles") for p in sorted((repository / folder).rglob("*"))]
    lost = []
    for path in files:
        if path.suffix in (".toml", ".json"):
            text = path.read_text(encoding="utf-8")
            parsed = tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
            keys = {key for source in _sources(parsed) for key in KEY.findall(source)}
            lost.extend(f"{path.name}: [{key}]" for key in sorted(keys) if key.lower() not in bibliography_keys)
    assert not lost, "\n".join(lost)


# --- the checker checked ---

KNOWN = frozenset({"korthikanti2022"})


def _documented(hidden: Array, layers: int, mode: str) -> Array:  # type: ignore[name-defined]  # noqa: F821
    """Bytes of something.

    Args:
        hidden: width, a text that
            runs on [elements, (n,)].
        layers [layers]: depth.
        mode: which way.
    Returns: bytes [bytes, (n,)].
    Raises: nothing.
    References: [Korthikanti2022] eq. 2.
    """


def _numpy_names(a: Array, b: Array) -> int:  # type: ignore[empty-body,name-defined]  # noqa: F821
    """Two names share an entry.

    Args:
        a, b [bytes, (k, n)]: both.

    Returns:
        A count [parameters].

    Raises:
        ValueError: when a
            is odd.

    References:
        [Korthikanti2022]
    """


@pytest.mark.parametrize("function", [_documented, _numpy_names])
def test_checker_accepts_the_format(function: Callable[..., Any]) -> None:
    assert complaints(function, KNOWN) == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("[elements, (n,)]", "[elements]", "'hidden' is an array and lacks"),
        ("[elements, (n,)]", "[Korthikanti2022]", "'hidden' is an array and lacks"),
        ("layers [layers]:", "layers:", "'layers' is a number and lacks"),
        ("mode: which", "way: which", "does not describe 'mode'"),
        ("mode: which", "way: which", "describes 'way', which is not"),
        ("Returns: bytes [bytes, (n,)].", "", "lacks Returns"),
        ("[bytes, (n,)]", "", "Returns: gives an array"),
        ("Raises: nothing.", "", "lacks Raises"),
        ("References: [Korthikanti2022] eq. 2.", "", "lacks References"),
        ("[Korthikanti2022] eq. 2.", "[Nobody1999]", "[Nobody1999] is not in"),
        ("[Korthikanti2022] eq. 2.", "a paper.", "lacks References"),
    ],
)
def test_checker_reports_what_is_missing(monkeypatch: pytest.MonkeyPatch, old: str, new: str, message: str) -> None:
    text = _documented.__doc__ or ""
    assert old in text
    monkeypatch.setattr(_documented, "__doc__", text.replace(old, new))
    assert any(message in c for c in complaints(_documented, KNOWN))


def test_checker_wants_a_docstring() -> None:
    assert complaints(lambda: None, KNOWN) == ["has no docstring"]
