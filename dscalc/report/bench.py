"""The answer of ``dscalc bench`` on a screen and as files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dscalc.report.export import to_csv, to_json, to_markdown
from dscalc.report.screen import Screen

if TYPE_CHECKING:
    from dscalc.answers.bench import BenchAnswer

COLUMNS = ("op", "scope", "ranks", "nodes", "groups", "size_bytes", "dtype", "time_s", "low_s", "high_s", "calls")
HEADINGS = ("where", "operation", "ranks", "smallest", "largest", "time", "bus bandwidth")
RIGHT = range(2, 7)


def render(found: BenchAnswer, form: str, *, colour: bool | None = None, quiet: bool = False) -> str:
    """The answer in the form asked for."""
    if form == "json":
        return to_json(found.to_json())
    if form == "csv":
        return to_csv(found.rows("collective"), COLUMNS)
    if quiet:
        return f"{found.counted} measurements in {found.measured.path}; {len(found.slow)} slow\n"
    if form == "markdown":
        return to_markdown(found.collectives(), HEADINGS, right=RIGHT)
    out = Screen(colour=colour)
    return out.text()
