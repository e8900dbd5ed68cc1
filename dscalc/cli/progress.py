"""A progress line on stderr, on a terminal only; a request to end becomes an interrupt, so that nothing is lost."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from dscalc.units import format_count

Progress = Callable[[int, int], None]


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


@contextmanager
def watched() -> Iterator[Progress | None]:
    """A function to tell how much of how much is done; None where stderr is no terminal."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        if not sys.stderr.isatty():
            yield None
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

        with Progress(
            TextColumn("{task.percentage:3.0f} %"),
            BarColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        ) as shown:
            task = shown.add_task("", total=None, rate="")

            def tell(done: int, total: int) -> None:
                took = shown.tasks[task].elapsed or 0.0
                rate = f"{format_count(done / took)} candidates/s" if took > 0.0 else ""
                shown.update(task, completed=done, total=total, rate=rate)

            yield tell
    finally:
        signal.signal(signal.SIGTERM, before)
