"""Holds the house's floors: which room may import which, what may be imported where, and how large a file may grow.

The checker reads source with ``ast`` and imports nothing, so it also runs on the small made-up trees below, each with
one fault.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = "dscalc"
MAX_LINES = 440  # "about 400"
LONGER = {
    "dscalc.units": 480,  # one small grammar, read and written in one place: apart, the two could drift
    "dscalc.records": 480,  # declarations only: what every formula reads, in one place
}
FACE_NAMES = 18  # a name a command, and what they are built from

# Arrows point down only.
FLOORS = {
    "units": 1,
    "errors": 1,
    "codes": 1,
    "frozen": 1,
    "records": 1,
    "terms": 1,
    "specs": 2,
    "cost": 3,
    "validation": 4,
    "sweep": 4,
    "calibrate": 4,
    "answers": 4,
    "report": 5,
    "cli": 6,
}

# Rooms of dscalc that a room must never import, over and above "nothing from a higher floor".
ALL_ROOMS = frozenset(FLOORS)
FORBIDDEN_ROOMS = {
    "errors": ALL_ROOMS - {"errors"},
    "codes": ALL_ROOMS - {"codes"},
    "frozen": ALL_ROOMS - {"frozen"},
    "units": ALL_ROOMS - {"units", "errors"},
    "records": ALL_ROOMS - {"records", "frozen"},
    "terms": ALL_ROOMS - {"terms", "records", "frozen"},
    "specs": frozenset({"cost"}),
    "cost": ALL_ROOMS - {"cost", "records", "terms", "codes", "frozen"},
    "validation": frozenset({"answers"}),
    "sweep": frozenset({"answers", "calibrate", "validation"}),
    "calibrate": frozenset({"answers", "sweep", "validation"}),
    "answers": frozenset(),
    "report": frozenset({"specs", "cost", "sweep", "calibrate", "validation"}),
    "cli": frozenset({"cost"}),
}

# Libraries a room may import; whatever is not named here is forbidden. Standard library apart, see STANDARD_ONLY.
LIBRARIES = {
    "errors": frozenset(),
    "codes": frozenset(),
    "frozen": frozenset(),
    "units": frozenset(),
    "records": frozenset({"numpy"}),
    "terms": frozenset({"numpy"}),
    "specs": frozenset({"numpy", "pydantic"}),
    "cost": frozenset({"numpy"}),
    "validation": frozenset({"numpy", "pydantic", "pandas"}),
    "sweep": frozenset({"numpy", "pandas"}),
    "calibrate": frozenset({"numpy", "pydantic", "pandas", "scipy", "torch"}),
    "answers": frozenset({"numpy", "pydantic", "pandas"}),
    "report": frozenset({"numpy", "pandas", "rich", "click", "matplotlib"}),
    "cli": frozenset({"click", "rich"}),
}

# Formulas touch no files, clocks or randomness: only these parts of the standard library.
STANDARD_ONLY = {
    "cost": frozenset(
        [
            "__future__",
            "abc",
            "collections",
            "dataclasses",
            "enum",
            "functools",
            "itertools",
            "math",
            "operator",
            "types",
            "typing",
        ],
    ),
}
IMPURE_CALLS = frozenset({"open", "input", "print", "eval", "exec"})

# Slow to load: only ever imported inside the function that needs them.
LAZY = frozenset({"pandas", "scipy", "torch", "matplotlib"})
LAZY_FILES = {"torch": "calibrate/bench"}  # the only place that may import it at all
NO_JUNK = frozenset({"utils", "util", "helpers", "misc"})


@dataclass(frozen=True)
class Import:
    module: str  # dotted, absolute
    names: tuple[str, ...]  # of ``from module import names``
    line: int
    at_load: bool  # runs when the module is imported
    typing_only: bool


def _imports(tree: ast.Module, module: str, is_package: bool) -> Iterator[Import]:
    """Every import in a module, relative ones made absolute."""

    def walk(node: ast.AST, at_load: bool, typing_only: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(alias.name, (), child.lineno, at_load, typing_only)
            elif isinstance(child, ast.ImportFrom):
                base = module.split(".") if is_package else module.split(".")[:-1]
                base = base[: len(base) - child.level + 1] if child.level else []
                target = ".".join([*base, *([child.module] if child.module else [])])
                yield Import(target, tuple(a.name for a in child.names), child.lineno, at_load, typing_only)
            elif isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                for part in child.body:
                    yield from walk(ast.Module([part], []), False, True)
                for part in child.orelse:
                    yield from walk(ast.Module([part], []), at_load, typing_only)
            else:
                function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from walk(child, at_load and not function, typing_only)

    yield from walk(tree, True, False)


def _modules(root: Path) -> dict[str, Path]:
    """Module name -> file, for the package in ``root``."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def _room(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == PACKAGE else None


def _targets(imported: Import, modules: dict[str, Path]) -> set[str]:
    """The modules of the package that one import statement reaches."""
    if imported.module.split(".")[0] != PACKAGE:
        return set()
    children = {f"{imported.module}.{n}" for n in imported.names}
    known = {c for c in children if c in modules}
    folders = {c for c in children - known if any(m.startswith(c + ".") for m in modules)}
    if imported.names and len(known | folders) == len(children):
        return known | folders
    return known | folders | {imported.module}


def _circle(edges: dict[str, set[str]]) -> list[str] | None:
    """One import circle, or None."""
    state: dict[str, int] = {}

    def visit(node: str, trail: list[str]) -> list[str] | None:
        state[node] = 1
        for after in sorted(edges.get(node, ())):
            if state.get(after) == 1:
                return [*trail[trail.index(after) :], after]
            if after not in state and (found := visit(after, [*trail, after])):
                return found
        state[node] = 2
        return None

    for node in sorted(edges):
        if node not in state and (found := visit(node, [node])):
            return found
    return None


def _import_faults(module: str, imported: Import, modules: dict[str, Path]) -> Iterator[str]:
    """What one import statement breaks."""
    room = _room(module)
    top = imported.module.split(".")[0]
    here = f"{modules[module].name}:{imported.line} ({module})"
    if top in LAZY and imported.at_load:
        yield f"{here}: {top} is slow to load; import it inside the function that needs it"
    if top in LAZY_FILES and not module.replace(".", "/").startswith(f"{PACKAGE}/{LAZY_FILES[top]}"):
        yield f"{here}: {top} may be imported only in {PACKAGE}/{LAZY_FILES[top]}*"
    if room is None or room == "__main__":
        return
    if room not in FLOORS:
        yield f"{here}: room {room!r} is not in the house's table"
        return
    for target in _targets(imported, modules):
        other = _room(target)
        if other is None:
            if room in ("cli", "report") or target != PACKAGE:
                continue
            yield f"{here}: {room} must not import the package's face"
        elif other not in FLOORS:
            yield f"{here}: imports {target}, a room that is not in the house's table"
        elif FLOORS[other] > FLOORS[room]:
            yield f"{here}: {room} (floor {FLOORS[room]}) must not look up to {target} (floor {FLOORS[other]})"
        elif other in FORBIDDEN_ROOMS[room]:
            yield f"{here}: {room} must never import {target}"
    if top == PACKAGE:
        return
    if top in sys.stdlib_module_names:
        if room in STANDARD_ONLY and top not in STANDARD_ONLY[room]:
            yield f"{here}: {room} must not import {top} (no files, clocks or randomness)"
    elif top not in LIBRARIES[room]:
        yield f"{here}: {room} must not import {top}"


def _purity_faults(module: str, tree: ast.Module) -> Iterator[str]:
    """Files, clocks and randomness reached without an import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS:
            yield f"{module}:{node.lineno}: {node.func.id}() has no place in a formula"
        if isinstance(node, ast.Attribute) and ast.unparse(node) in ("np.random", "numpy.random"):
            yield f"{module}:{node.lineno}: no randomness in formulas"


def faults(root: Path) -> list[str]:
    """Everything in the package under ``root`` that the house forbids, one line each."""
    modules = _modules(root)
    found: list[str] = []
    edges: dict[str, set[str]] = {}
    for module, path in modules.items():
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        is_package = path.name == "__init__.py"
        body = tree.body[1:] if ast.get_docstring(tree) is not None else tree.body
        if is_package and module != PACKAGE and body:
            found.append(f"{module}/__init__.py: must be empty")
        if set(module.split(".")) & NO_JUNK:
            found.append(f"{module}: name a file by what it knows, not {path.name}")
        if (lines := text.count("\n")) > LONGER.get(module, MAX_LINES):
            found.append(f"{module}: {lines} lines; split it (about 400 at most)")
        if _room(module) == "cost":
            found.extend(_purity_faults(module, tree))
        edges[module] = set()
        for imported in _imports(tree, module, is_package):
            found.extend(_import_faults(module, imported, modules))
            if not imported.typing_only:
                edges[module] |= _targets(imported, modules) - {module}
    if circle := _circle(edges):
        found.append(f"import circle: {' -> '.join(circle)}")
    return found


def test_dscalc_keeps_the_house_rules(repository: Path) -> None:
    found = faults(repository)
    assert not found, "\n".join(found)


def test_every_folder_of_code_is_a_package(repository: Path) -> None:
    folders = {p.parent for p in (repository / PACKAGE).rglob("*.py")} - {repository / PACKAGE}
    bare = sorted(str(f.relative_to(repository)) for f in folders if not (f / "__init__.py").exists())
    assert not bare


def test_face_is_small(repository: Path) -> None:
    face = repository / PACKAGE / "__init__.py"
    if not face.exists():
        pytest.skip("the package has no face yet")
    scope = ast.parse(face.read_text(encoding="utf-8"))
    exported = [
        ast.literal_eval(node.value)
        for node in scope.body
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)
    ]
    assert not exported or len(exported[0]) <= FACE_NAMES


def test_start_up_loads_nothing_slow(repository: Path) -> None:
    start = [m for m in (PACKAGE, f"{PACKAGE}.cli.main") if m in _modules(repository)]
    if not start:
        pytest.skip("nothing to start yet")
    script = f"import sys; import {', '.join(start)}; print(*sorted({set(LAZY)!r} & set(sys.modules)))"
    command = [sys.executable, "-c", script]
    ran = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=True)
    assert not ran.stdout.split(), f"start-up loads {ran.stdout}"


# --- the checker checked: one made-up tree per rule ---


def _tree(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / PACKAGE / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        init = path.parent / "__init__.py"
        if not init.exists() and path.parent != root / PACKAGE:
            init.write_text("", encoding="utf-8")
    return root


LAWFUL = {
    "__init__.py": '"""Face."""\nfrom dscalc.answers.memory import f\n__all__ = ["f"]\n',
    "errors.py": "class E(Exception): ...\n",
    "units.py": "from dscalc.errors import E\n",
    "records.py": "import numpy as np\n",
    "terms.py": "import numpy as np\nfrom dscalc.records import np as _\n",
    "specs/model.py": "import pydantic\nfrom dscalc import errors, records, units\n",
    "cost/memory.py": "import math\nimport numpy\nfrom dscalc import records, terms\nfrom dscalc.cost import axes\n",
    "cost/axes.py": "from ..records import np\n",
    "answers/memory.py": "from dscalc.cost import memory\nfrom dscalc.specs import x\ndef f():\n    import pandas\n",
    "report/table.py": "import rich\nfrom dscalc.answers.memory import f\n",
    "cli/main.py": "import click\nfrom dscalc.report import table\nfrom dscalc import __version__\n",
}


def test_checker_accepts_a_lawful_tree(tmp_path: Path) -> None:
    assert faults(_tree(tmp_path, LAWFUL)) == []


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("specs/model.py", "from dscalc.cost import memory\n", "must not look up"),
        ("specs/model.py", "def f():\n    from ..cost.memory import x\n", "must not look up"),
        (
            "specs/model.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import rich\n",
            "must not import rich",
        ),
        ("cost/memory.py", "from dscalc.specs import model\n", "cost must never import dscalc.specs.model"),
        ("cost/memory.py", "import dscalc.units\n", "cost must never import dscalc.units"),
        ("cost/memory.py", "import pydantic\n", "cost must not import pydantic"),
        ("cost/memory.py", "import time\n", "no files, clocks or randomness"),
        ("cost/memory.py", "x = open('f')\n", "no place in a formula"),
        ("cost/memory.py", "import numpy as np\nx = np.random.rand()\n", "no randomness"),
        ("units.py", "import dscalc.records\n", "units must never import"),
        ("errors.py", "import numpy\n", "errors must not import numpy"),
        ("terms.py", "from dscalc import specs\n", "must not look up"),
        ("answers/memory.py", "from dscalc.report.table import x\n", "must not look up"),
        ("answers/memory.py", "import rich\n", "answers must not import rich"),
        ("answers/memory.py", "import pandas as pd\n", "slow to load"),
        ("answers/memory.py", "try:\n    import pandas\nexcept ImportError:\n    pandas = None\n", "slow to load"),
        ("answers/memory.py", "import dscalc\n", "package's face"),
        ("validation/rows.py", "from dscalc.answers import memory\n", "validation must never import"),
        ("report/table.py", "from dscalc.cost.memory import x\n", "report must never import"),
        ("report/table.py", "from dscalc.cli import main\n", "must not look up"),
        ("cli/main.py", "from dscalc.cost import memory\n", "cli must never import"),
        ("calibrate/logs.py", "def f():\n    import torch\n", "torch may be imported only in"),
        (
            "cost/axes.py",
            "def f():\n    from dscalc.cost import memory\n",
            "circle: dscalc.cost.memory -> ",
        ),
        ("cost/__init__.py", "from dscalc.cost.memory import x\n", "must be empty"),
        ("specs/utils.py", "", "name a file by what it knows"),
        ("specs/model.py", "x = 1\n" * (MAX_LINES + 1), "split it"),
        ("magic/spell.py", "import numpy\n", "not in the house's table"),
    ],
)
def test_checker_reports_a_broken_rule(tmp_path: Path, name: str, text: str, message: str) -> None:
    found = faults(_tree(tmp_path, {**LAWFUL, name: text}))
    assert any(message in f for f in found), found
