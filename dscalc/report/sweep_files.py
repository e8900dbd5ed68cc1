"""The files that a sweep writes beside its answer: refused before the work starts, written at its end."""

from __future__ import annotations

from collections.abc import Mapping
from os.path import realpath
from typing import TYPE_CHECKING, Any

from dscalc.errors import InputError
from dscalc.report.export import refuse_target, write_file

if TYPE_CHECKING:
    from dscalc.answers.sweep import SweepAnswer

PAGES = (".html", ".htm")


def refuse_files(output: Mapping[str, Any]) -> None:
    """Complain about a plot or a report that could not be written at the end.

    Args:
        output: the output options.

    Raises:
        InputError: a name that ends wrong or is given twice, a file that exists or cannot be written, or a library that
            is missing.
    """
    taken = {realpath(output["output"]): "--output"} if output.get("output") else {}
    for name in ("plot", "report"):
        path = output.get(name)
        if path is None:
            continue
        flag = f"--{name}"
        same = taken.setdefault(realpath(path), flag)
        if same != flag:
            raise InputError(f"names the same file as {same}", where=f"{flag} {path}")
        if name == "plot":
            from dscalc.report.sweep_plot import form_of

            form_of(path)
        elif not path.lower().endswith(PAGES):
            raise InputError("does not end in .html", where=f"{flag} {path}")
        refuse_target(path, force=bool(output.get("force", False)), option=flag)


def write_files(answer: SweepAnswer, output: Mapping[str, Any]) -> None:
    """Write the plot and the report that were asked for.

    Args:
        answer: what ``sweep`` returned.
        output: the output options.

    Raises:
        InputError: a file that cannot be written.
    """
    force = bool(output.get("force", False))
    if "report" in output:
        from dscalc.report.sweep_page import sweep_page

        write_file(output["report"], sweep_page(answer), force=force, option="--report")
    if "plot" in output:
        from dscalc.report.sweep_figure import figure_of
        from dscalc.report.sweep_page import title_of
        from dscalc.report.sweep_plot import form_of, sweep_plot

        drawing = sweep_plot(figure_of(answer), form_of(output["plot"]), title_of(answer))
        write_file(output["plot"], drawing, force=force, option="--plot")
