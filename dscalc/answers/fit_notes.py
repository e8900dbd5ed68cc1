"""What a reader of fits should know: runs that disagree, links and GPUs that are slow, what a log does not say."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dscalc.answers.envelope import Warning
from dscalc.calibrate.fit import Calibration, Fit
from dscalc.calibrate.measurements import Read
from dscalc.calibrate.profile import UNSAID, Base, impossible
from dscalc.calibrate.series import LIKELY_NODE
from dscalc.errors import DscalcError
from dscalc.specs.hardware import GpuSpec
from dscalc.specs.store import load_gpu
from dscalc.units import format_flop_rate, format_size

MAKERS = ("NVIDIA ", "Tesla ", "AMD Instinct ", "AMD ")  # words that drivers put before a name
MOST_RUNS = 3  # of one thing that a warning names
JUMP = 0.30  # of bus bandwidth between two sizes: a drop that large is no noise


def known_gpu(name: str, profiles: Sequence[str]) -> GpuSpec | None:
    """The GPU that a driver calls so; None where no profile claims the name."""
    for maker in ("", *MAKERS):
        if name.startswith(maker):
            try:
                return load_gpu(name.removeprefix(maker), profiles).spec
            except DscalcError:
                continue
    return None


def notes_of(
    found: Calibration, read: Sequence[Read], nodes: int | None, gpus_per_node: int | None
) -> Iterator[Warning]:
    """What a reader should know before trusting the fits."""
    for key in dict.fromkeys(conflict.key for conflict in found.conflicts):
        ours = [conflict for conflict in found.conflicts if conflict.key == key]
        slower = ", ".join(f"{each.ratio:.2f} times as long as {each.left}" for each in ours[:MOST_RUNS])
        more = f", and longer than {len(ours) - MOST_RUNS} more" if len(ours) > MOST_RUNS else ""
        yield Warning(
            "conflict",
            f"{key.words}: {ours[-1].kept} took {slower}{more}; the slowest is kept, nothing is averaged",
            "find out what differs (plugin, nodes, settings), and fit the logs of one configuration",
        )
    doubtful = {  # whose check says why
        f"{t.file}:{t.first_line}-{t.last_line}"
        for file in read
        for t in file.tables
        if any(check.name == "ranks" and not check.ok for check in t.checks)
    }
    for table, reason in found.refused:
        if table in doubtful:
            continue
        yield Warning("not_fitted", f"{table}: not fitted, {reason}", "see the checks of that log")
    for fit in found.fits:
        for text in fit.series.dropped:
            yield Warning("wrong_results", f"{fit.series.source}: left out, {text}", "repeat that run")
    valleys = sorted((_valley(fit) for fit in found.fits), key=lambda valley: -valley[0])
    if valleys and valleys[0][0] > JUMP:
        others = sum(drop > JUMP for drop, _ in valleys[1:])
        more = f"; {others} more fall too, by less" if others else ""
        yield Warning(
            "not_monotone", valleys[0][1] + more, "repeat the run; a valley that stays is the library choosing badly"
        )
    small = ", ".join(gemm.source for gemm in found.gemms if not gemm.large)
    if small:
        text = f"{small}: no product is as large as 4,096 cubed; what large ones reach stays as it ships"
        yield Warning("products_too_small", text, "measure products of the sizes of your layers")
    for gemm in found.gemms:
        if gemm.large and not gemm.dtype:
            text = f"{gemm.source} does not say what it multiplied; taken as {UNSAID}"
            yield Warning("dtype_assumed", text, "leave the log out if it was another type")
    unsaid = [t for file in read for t in file.tables if t.nodes is None and t.ranks is not None and t.ranks > 1]
    if unsaid and nodes is None:
        guess = gpus_per_node or LIKELY_NODE
        first = unsaid[0]
        yield Warning(
            "nodes_assumed",
            f"{first.file} does not say on how many nodes its {first.ranks} ranks lay; taken as nodes of {guess}",
            "give --nodes, or --gpus-per-node",
        )


def _valley(fit: Fit) -> tuple[float, str]:
    """By how much bus bandwidth falls from a size to the next at most, and where."""
    size, seconds = fit.series.size_bytes, fit.series.time_s
    rate = size / seconds
    drops = [(1.0 - b / a, s) for a, b, s in zip(rate, rate[1:], size[1:], strict=False)]
    worst, where = max(drops, default=(0.0, 0.0))
    return worst, f"{fit.series.key.words}: bus bandwidth falls by {worst:.0%} at {format_size(where)}"


def _other_gpu(found: Calibration, gpu: GpuSpec, profiles: Sequence[str]) -> Iterator[Warning]:
    """Logs of a GPU that the profile is not made for, where some log names one that has a profile."""
    known = {name: known_gpu(name, profiles) for name in found.gpus}
    strange = [name for name, named in known.items() if named is None] if any(known.values()) else []
    others = {named.id: name for name, named in known.items() if named is not None and named.id != gpu.id}
    for other, name in [*others.items(), *(("no profile has it", name) for name in strange)]:
        yield Warning(
            "log_of_another_gpu",
            f"a log names {name} ({other}), but the profile is made for {gpu.id}",
            "leave out --gpu and --cluster, or fit the logs of one GPU alone",
        )


def notes_of_hardware(found: Calibration, base: Base, profiles: Sequence[str]) -> Iterator[Warning]:
    """Where logs do not go with the hardware that the profile is made for."""
    yield from _other_gpu(found, base.gpu, profiles)
    yield from _impossible_products(found, base.gpu)
    if base.cluster is None and base.interconnect is None:
        yield from _rate_of_two_nodes(found)


def _rate_of_two_nodes(found: Calibration) -> Iterator[Warning]:
    """Where the rate between nodes comes from all-reduces over two nodes alone, which trees send in two ways."""
    across = [fit.series for fit in found.fits if fit.series.key.nodes > 1]
    if across and all(series.key.op == "all-reduce" and series.key.nodes == 2 for series in across):
        yield Warning(
            "rate_of_two_nodes",
            "the rate between nodes comes from all-reduces over two nodes, where a tree sends half of what a ring "
            "does; taken as a tree's, so links may be up to twice as fast",
            "name the network with --interconnect or --cluster, or fit an all-gather or three nodes and more",
        )


def _impossible_products(found: Calibration, gpu: GpuSpec) -> Iterator[Warning]:
    """Rates that the GPU cannot have, which the profile leaves out."""
    for gemm in found.gemms:
        if gemm.large and impossible(gemm, gpu):
            rate = format_flop_rate(gemm.reached_flop_per_s)
            yield Warning(
                "faster_than_peak",
                f"{gemm.source}: {rate} in {gemm.dtype or UNSAID} is more than {gpu.id} has at best; left out",
                "say which GPU it was with --gpu, or give a log that says its data type",
            )
