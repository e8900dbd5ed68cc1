"""The search of several spaces, in one process or in many: what the pieces find is put together in order."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import replace
from math import ceil, inf, prod
from multiprocessing import get_context

from dscalc.errors import InputError
from dscalc.frozen import dataclass
from dscalc.sweep.prune import Found, Problem, Progress, merged, part
from dscalc.sweep.space import ORDER

TASKS_A_JOB = 64  # pieces of the space for each process: the last ones end together, and an interrupt loses little
PIECES = 512  # prefixes of one space that may be handed out

_problems: tuple[Problem, ...] = ()  # of a worker


@dataclass(frozen=True, slots=True)
class Piece:
    """Prefixes ``first`` to ``last`` of a level of one problem; ``size`` layouts lie behind them."""

    problem: int
    level: int
    first: int
    last: int
    size: int


def pieces_of(number: int, problem: Problem, wanted: int) -> Iterator[Piece]:
    """One problem cut along its outer axes into about as many pieces."""
    radices = problem.space.radices
    level = next((n for n in range(len(ORDER) + 1) if prod(radices[:n]) >= min(wanted, PIECES)), len(ORDER))
    prefixes, behind = prod(radices[:level]), prod(radices[level:])
    width = max(1, ceil(prefixes / wanted))
    for first in range(0, prefixes, width):
        last = min(prefixes, first + width)
        yield Piece(number, level, first, last, (last - first) * behind)


def _begin(problems: tuple[Problem, ...]) -> None:
    global _problems  # a process works for one search
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to end
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _problems = problems


def _work(piece: Piece) -> Found:
    return part(_problems[piece.problem], piece.level, piece.first, piece.last)


def search(
    problems: Sequence[Problem], jobs: int = 1, progress: Progress | None = None, every_s: float = 0.1
) -> list[Found]:
    """Search spaces one after the other.

    Args:
        problems: spaces on machines.
        jobs: processes to work with.
        progress: is told how many layouts are decided, of how many, now and then.
        every_s: least time between two tellings [s].

    Returns:
        What was found in each, incomplete after an interrupt; the same for any number of jobs.
    """
    total = sum(p.space.size for p in problems)
    last = -inf

    def tell(done: int) -> None:
        nonlocal last
        if progress is not None and (time.monotonic() - last >= every_s or done == total):
            last = time.monotonic()
            progress(done, total)

    if jobs > 1:
        return _in_processes(problems, jobs, tell)
    results: list[Found] = []
    before = 0
    for problem in problems:
        if results and not results[-1].complete:
            results.append(Found(complete=False))
            continue
        results.append(part(problem, 0, 0, 1, lambda done, _, before=before: tell(before + done)))  # type: ignore[misc]
        before += problem.space.size
        if results[-1].complete:
            tell(before)
    return results


def _in_processes(problems: Sequence[Problem], jobs: int, tell: Callable[[int], None]) -> list[Found]:
    wanted = max(1, ceil(jobs * TASKS_A_JOB / len(problems)))
    pieces = [piece for number, problem in enumerate(problems) for piece in pieces_of(number, problem, wanted)]
    results: dict[Piece, Found] = {}
    pool = ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (tuple(problems),))
    complete = False
    try:
        waiting: dict[Future[Found], Piece] = {pool.submit(_work, piece): piece for piece in pieces}
        done = 0
        while waiting:
            ended, _ = wait(waiting, return_when=FIRST_COMPLETED)
            for future in ended:
                piece = waiting.pop(future)
                results[piece] = future.result()
                done += piece.size
                tell(done)
        complete = True
    except KeyboardInterrupt:
        pass
    except BrokenProcessPool:
        raise InputError(
            'its processes could not start; in a script, call it under `if __name__ == "__main__":`', where="--jobs"
        ) from None
    finally:
        processes = list((pool._processes or {}).values())
        pool.shutdown(wait=complete, cancel_futures=True)
        if not complete:
            for process in processes:
                process.terminate()
    found = [Found() for _ in problems]
    for piece in pieces:
        if piece in results:
            found[piece.problem] = merged(found[piece.problem], results[piece], problems[piece.problem])
        else:
            found[piece.problem] = replace(found[piece.problem], complete=False)
    return found
