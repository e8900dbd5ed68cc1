"""The documentation holds: links lead somewhere, commands run and print what the page shows, examples execute.

In README.md and docs/**/*.md, one page at a time and in one scratch folder a page:

- a line ``$ dscalc ...`` in a ``console`` or ``bash`` block is run and must exit with 0, or with N where
  ``<!-- exit N -->`` stands before the block. A line that ends in a backslash goes on in the next.
- in a ``console`` block the lines after a command are its output; ``...`` stands for any text in a line, and alone on a
  line for any number of lines. A command followed by no line is only run.
- ``<!-- file: NAME -->`` before a block writes the block to NAME first, for commands that read a file.
- a ``python`` block after ``<!-- test -->`` is run; the blocks of a page share their names.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
PAGES = [REPOSITORY / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
PAGES += sorted((REPOSITORY / "docs").rglob("*.md"))
COLUMNS = 100

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<language>[\w+-]*)[^`\n]*$")
NOTE = re.compile(r"^\s*<!--\s*(?P<note>.*?)\s*-->\s*$")
LINK = re.compile(r"(?<!!)\[(?:[^\]\[]|\[[^\]]*\])*\]\(\s*<?(?P<target>[^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
IMAGE = re.compile(r"!\[[^\]]*\]\(\s*(?P<target>[^)\s]+)")
HEADING = re.compile(r"^#{1,6}\s+(?P<title>.*?)\s*#*$", re.MULTILINE)
SHELL_ONLY = {"|", ">", ">>", "<", "&&", "||", ";", "&"}


class Block(NamedTuple):
    language: str
    text: str
    line: int
    notes: tuple[str, ...]


class Command(NamedTuple):
    words: list[str]
    shown: str | None  # the output the page shows; None: it shows none
    exit_code: int
    line: int


def blocks(text: str) -> Iterator[Block]:
    """The fenced blocks of a page, each with the comments that stand directly before it."""
    lines = text.splitlines()
    notes: list[str] = []
    number = 0
    while number < len(lines):
        line = lines[number]
        if match := FENCE.match(line):
            start, indent, body = number + 1, len(match["indent"]), []
            number += 1
            while number < len(lines) and not lines[number].strip().startswith(match["fence"]):
                body.append(lines[number][min(indent, len(lines[number]) - len(lines[number].lstrip())) :])
                number += 1
            if number == len(lines):
                raise ValueError(f"the block that starts on line {start} is never closed")
            yield Block(match["language"], "\n".join(body), start, tuple(notes))
            notes = []
        elif match := NOTE.match(line):
            notes.append(match["note"])
        elif line.strip():
            notes = []
        number += 1


def commands(block: Block) -> Iterator[Command]:
    """The ``$ dscalc`` lines of a block, each with the output shown under it."""
    if block.language not in ("console", "bash"):
        return
    code = next((int(n.split()[1]) for n in block.notes if re.fullmatch(r"exit \d+", n)), 0)
    lines = block.text.splitlines()
    starts = [i for i, line in enumerate(lines) if line.startswith("$ ")]
    for start, after in zip(starts, [*starts, len(lines)][1:], strict=True):
        end = start
        while lines[end].endswith("\\") and end + 1 < after:
            end += 1
        typed = "\n".join(lines[start : end + 1])[2:].replace("\\\n", " ")
        words = shlex.split(typed, comments=True)
        if not words or words[0] != "dscalc":
            continue
        if unsupported := SHELL_ONLY & set(words):
            raise ValueError(f"line {block.line + start + 1}: no shell here, {unsupported} cannot be tested")
        shown = "\n".join(lines[end + 1 : after]).strip("\n")
        yield Command(
            words[1:], shown if block.language == "console" and shown.strip() else None, code, block.line + start + 1
        )


def matches(shown: str, printed: str) -> bool:
    """Whether the printed text is what the page shows; ``...`` stands for what may vary."""
    pattern = ""
    for line in shown.splitlines():
        if line.strip() == "...":
            pattern += r"(?:[^\n]*\n)*?"
        else:
            pattern += r"[^\n]*?".join(re.escape(part) for part in line.rstrip().split("...")) + r"[ \t]*\n"
    tidy = "\n".join(line.rstrip() for line in printed.strip("\n").splitlines()) + "\n"
    return re.fullmatch(pattern, tidy) is not None


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as the usual renderers make them."""
    outside = re.sub(r"^(`{3,}|~{3,}).*?^\1", "", text, flags=re.MULTILINE | re.DOTALL)
    titles = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", m["title"]) for m in HEADING.finditer(outside)]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def dead_links(page: Path, text: str) -> list[str]:
    """Relative links of a page that lead nowhere."""
    prose = re.sub(r"^( *)(`{3,}|~{3,}).*?^\1\2", "", text, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"`[^`\n]*`", "", prose)
    found = []
    for target in [m["target"] for pattern in (LINK, IMAGE) for m in pattern.finditer(prose)]:
        if re.match(r"^[a-z][a-z0-9+.-]*:", target):
            continue
        name, _, anchor = target.partition("#")
        place = (page.parent / name) if name else page
        if not place.exists():
            found.append(f"{target}: no such file")
        elif anchor and place.suffix == ".md" and anchor not in anchors(place.read_text(encoding="utf-8")):
            found.append(f"{target}: no such heading")
    return found


def _read(page: Path) -> tuple[str, list[Block]]:
    text = page.read_text(encoding="utf-8")
    return text, list(blocks(text))


def _pages_with(wanted: Callable[[Block], bool]) -> list[Path]:
    return [page for page in PAGES if page.exists() and any(wanted(block) for block in _read(page)[1])]


def _label(page: Path) -> str:
    return page.relative_to(REPOSITORY).as_posix()


def _write_files(found: list[Block], folder: Path) -> None:
    for block in found:
        for note in block.notes:
            if note.startswith("file:"):
                place = folder / note.removeprefix("file:").strip()
                assert place.resolve().is_relative_to(folder.resolve()), "a page writes only into its scratch folder"
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(block.text + "\n", encoding="utf-8")


COMMAND_PAGES = _pages_with(lambda block: any(commands(block)))
PYTHON_PAGES = _pages_with(lambda block: block.language == "python" and "test" in block.notes)


@pytest.mark.parametrize("page", [page for page in PAGES if page.exists()], ids=_label)
def test_links_resolve(page: Path) -> None:
    dead = dead_links(page, page.read_text(encoding="utf-8"))
    assert not dead, "\n".join(dead)


@pytest.mark.parametrize("page", COMMAND_PAGES, ids=_label)
def test_commands_print_what_the_page_shows(
    page: Path, run_dscalc: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    _, found = _read(page)
    _write_files(found, tmp_path)
    wrong = []
    for command in (command for block in found for command in commands(block)):
        ran = run_dscalc(*command.words, columns=COLUMNS, cwd=tmp_path, merge=True)
        here = f"{_label(page)}:{command.line}: dscalc {shlex.join(command.words)}"
        if ran.returncode != command.exit_code:
            wrong.append(f"{here}\nexit {ran.returncode}, expected {command.exit_code}:\n{ran.stdout}")
        elif command.shown is not None and not matches(command.shown, ran.stdout):
            wrong.append(f"{here}\nprints:\n{ran.stdout}\nthe page shows:\n{command.shown}")
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.parametrize("page", PYTHON_PAGES, ids=_label)
def test_python_examples_run(page: Path, tmp_path: Path) -> None:
    _, found = _read(page)
    _write_files(found, tmp_path)
    code = "\n\n".join(b.text for b in found if b.language == "python" and "test" in b.notes)
    script = tmp_path / "example.py"
    script.write_text(f"import sys\nsys.path.insert(0, {str(REPOSITORY)!r})\n{code}\n", encoding="utf-8")
    ran = subprocess.run([sys.executable, str(script)], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr


def test_command_reference_is_current() -> None:
    command = [sys.executable, "-m", "dscalc.cli.reference", "--check"]
    ran = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


# --- the checker checked ---

PAGE = """# A page

See [the top](#a-page) and [nothing](#gone), [a file](here.md), ![a picture](lost.png), [out](https://example.org/x).

<!-- file: rates.toml -->
```toml
gpus = 8
```

<!-- exit 3 -->
```console
$ dscalc memory --params 7e9 \\
    --check
total  112 GB
...
done
$ ls
$ dscalc list gpus
```
"""


def test_reader_finds_blocks_commands_and_dead_links(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    (tmp_path / "here.md").write_text("", encoding="utf-8")
    toml, console = blocks(PAGE)
    assert (toml.language, toml.notes) == ("toml", ("file: rates.toml",))
    first, second = commands(console)
    assert first == Command(["memory", "--params", "7e9", "--check"], "total  112 GB\n...\ndone", 3, first.line)
    assert PAGE.splitlines()[first.line - 1].startswith("$ dscalc memory")
    assert second.words == ["list", "gpus"]
    assert second.shown is None
    page.write_text(PAGE, encoding="utf-8")
    assert dead_links(page, PAGE) == ["#gone: no such heading", "lost.png: no such file"]


def test_reader_refuses_a_shell_and_an_open_block() -> None:
    with pytest.raises(ValueError, match="no shell"):
        list(commands(Block("console", "$ dscalc sweep | head", 1, ())))
    with pytest.raises(ValueError, match="never closed"):
        list(blocks("```console\n$ dscalc\n"))


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a 1\nb 2", "a 1  \nb 2\n", True),
        ("a ...\nb", "a 1\nb\n", True),
        ("a\n...\nz", "a\nb\nc\nz\n", True),
        ("a\n...\nz", "a\nz\n", True),
        ("a (1)", "a 1", False),
        ("a 1", "a 1\nb 2", False),
        ("a 1\nb 2", "a 1", False),
    ],
)
def test_output_matching(shown: str, printed: str, same: bool) -> None:
    assert matches(shown, printed) is same
