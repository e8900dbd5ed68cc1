"""From logs to a profile: fits with their errors, the cluster they describe, and what it is beside the shipped one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dscalc.answers.envelope import Assumption, Warning
from dscalc.answers.fit_compare import Beside, beside
from dscalc.answers.fit_notes import known_gpu, notes_of, notes_of_hardware
from dscalc.answers.fit_steps import StepFactors, fit_step_file
from dscalc.calibrate.fit import Calibration, Fit, fit_logs
from dscalc.calibrate.fit_line import piecewise_time_s
from dscalc.calibrate.measurements import Read
from dscalc.calibrate.profile import Base, cluster_record, profile_text
from dscalc.calibrate.series import LIKELY_NODE
from dscalc.cost.measured import bus_volume
from dscalc.errors import InputError, MissingLibraryError
from dscalc.frozen import dataclass
from dscalc.specs.cluster import ClusterSpec
from dscalc.specs.hardware import GpuSpec
from dscalc.specs.network import load_interconnect
from dscalc.specs.store import load_cluster, load_gpu, load_profile_file

CHART_POINTS = 200


class Drawn(NamedTuple):
    """What a chart of one fit shows: bus bandwidth by message size, measured with its bar, and as the pieces say."""

    title: str
    size_bytes: list[float]
    measured_bytes_per_s: list[float]
    low_bytes_per_s: list[float]
    high_bytes_per_s: list[float]
    fitted_size_bytes: list[float]
    fitted_bytes_per_s: list[float]


class SeveralGpusError(InputError):
    """Logs of different GPUs, which make no one profile."""


@dataclass(frozen=True, slots=True, eq=False)
class Profiled:
    """What logs say of a cluster, and the profile made of it."""

    found: Calibration
    base: Base | None
    record: Mapping[str, Any] | None
    profile_path: str | None
    beside: Beside | None
    steps: StepFactors | None
    assumptions: tuple[Assumption, ...]
    warnings: tuple[Warning, ...]
    unfitted: MissingLibraryError | None = None

    @property
    def text(self) -> str:
        """The profile as a file holds it; empty without one."""
        return profile_text(self.record) if self.record is not None else ""

    @property
    def fits(self) -> list[dict[str, Any]]:
        """The fits with the keys of the interface, and more."""
        return [_fit_json(fit) for fit in self.found.fits]

    @property
    def compute(self) -> list[dict[str, Any]]:
        """What a GPU sustains, likewise."""
        return _compute_json(self.found)

    @property
    def charts(self) -> list[Drawn]:
        """Measured against fitted, one chart a fit with two sizes or more."""
        return [_drawn(fit) for fit in self.found.fits if len(fit.series.size_bytes) > 1]

    def drawn(self) -> list[Drawn]:
        """The charts, for a file that cannot do without.

        Raises:
            MissingLibraryError: there are none because scipy is not installed.
        """
        if self.unfitted is not None:
            raise self.unfitted
        return self.charts

    def to_json(self) -> dict[str, Any]:
        """The keys that fits add to the result."""
        return {
            "fits": self.fits,
            "compute": self.compute,
            "conflicts": [
                {**c.key._asdict(), "kept": c.kept, "left": c.left, "time_ratio": c.ratio} for c in self.found.conflicts
            ],
            "refused": [{"table": table, "reason": reason} for table, reason in self.found.refused],
            **_beside_json(self.beside),
            "steps": self.steps.to_json() if self.steps else None,
            "profile_path": self.profile_path,
        }


def profiled(
    read: Sequence[Read],
    given: Mapping[str, Any],
    *,
    nodes: int | None = None,
    comparing: bool | str = False,
    step_file: str | None = None,
    output: str | None = None,
) -> Profiled:
    """Fit logs and make a profile of them.

    Args:
        read: the logs as readers found them.
        given: parsed options; reads ``gpu``, ``cluster``, ``gpus_per_node``, ``interconnect`` and ``profile``.
        nodes: nodes of each group, where a log does not say [count].
        comparing: set the shipped profile of that kind of node beside it, or the one of this name.
        step_file: a CSV file of the user's own steps.
        output: where the profile will be written; None: nowhere.

    Returns:
        The fits and the profile.

    Raises:
        InputError: options that contradict each other, or a GPU that nobody knows.
        MissingLibraryError: something else than the fits is asked for, and scipy is not installed.
    """
    profiles = (given["profile"],) if "profile" in given else ()
    cluster, own = _started_from(given, profiles)
    stated = given.get("gpus_per_node") or (cluster.gpus_in_node if cluster else None)
    needed = bool(output or comparing or step_file)
    try:
        found = fit_logs(read, nodes, stated)
    except MissingLibraryError as error:
        if needed:
            raise
        return _unfitted(error)  # what was read, and its checks, need no fit
    warnings = list(notes_of(found, read, nodes, stated))
    try:
        gpu = own or _gpu(given, cluster, found, profiles)
    except SeveralGpusError as error:
        if needed:
            raise
        gpu, found = None, fit_logs((), nodes, stated)  # runs of different hardware are no repetitions of one another
        warnings = [Warning("several_gpus", f"no fits: {error.message}", "give the logs of one at a time")]
    base: Base | None = None
    assumptions: list[Assumption] = []
    if gpu is not None:
        base, assumptions = _base(given, gpu, cluster, found, profiles)
        warnings += notes_of_hardware(found, base, profiles)
    elif needed:
        names = ", ".join(found.gpus)
        seen = f"the logs name {names}, which no profile has" if names else "no log names its GPU"
        raise InputError(f"{seen}; add --gpu H100-SXM5-80GB or --cluster ID", where="--gpu")
    steps, record = None, None
    if base is not None:
        name = Path(output).stem[:80] if output and output != "-" else f"{(cluster or base.gpu).id[:60]}-fitted"
        record = cluster_record(found, base, name)
        if step_file is not None:
            steps = fit_step_file(step_file, record)
            record = cluster_record(found, base, name, steps.record())
            warnings += steps.warnings
    compared: Beside | None = None
    if comparing and base is not None and record is not None:
        compared = beside(found, read, base, record, given, comparing if isinstance(comparing, str) else "")
        warnings += compared.warnings
    return Profiled(
        found=found,
        base=base,
        record=record,
        profile_path=output,
        beside=compared,
        steps=steps,
        assumptions=tuple(assumptions),
        warnings=tuple(warnings),
    )


def _unfitted(error: MissingLibraryError) -> Profiled:
    """The answer without the library that fits."""
    missing, how = error.message.split(": ", 1)
    return Profiled(
        found=fit_logs(()),
        base=None,
        record=None,
        profile_path=None,
        beside=None,
        steps=None,
        assumptions=(),
        warnings=(Warning("no_fits", f"no fits: {missing}", how),),
        unfitted=error,
    )


# ------------------------------------------------------------------------------------------------- what was measured on
def _started_from(given: Mapping[str, Any], profiles: Sequence[str]) -> tuple[ClusterSpec | None, GpuSpec | None]:
    """The cluster that the options name, or the cluster or GPU of a profile's file that stands alone."""
    if "cluster" in given:
        return load_cluster(given["cluster"], profiles).spec, None
    if "profile" in given and "gpu" not in given and not Path(given["profile"]).is_dir():
        spec = load_profile_file(given["profile"]).spec
        return (spec, None) if isinstance(spec, ClusterSpec) else (None, spec)
    return None, None


def _gpu(
    given: Mapping[str, Any], cluster: ClusterSpec | None, found: Calibration, profiles: Sequence[str]
) -> GpuSpec | None:
    """The GPU that the options name, else the logs."""
    if cluster is not None:
        spec = load_gpu(cluster.gpu, profiles).spec
        if "gpu" in given and load_gpu(given["gpu"], profiles).spec.id != spec.id:
            raise InputError(f"{cluster.id} has {spec.id}; leave this out, or name another --cluster", where="--gpu")
        return spec
    if "gpu" in given:
        return load_gpu(given["gpu"], profiles).spec
    seen = [known_gpu(name, profiles) for name in found.gpus]
    known = {each.id: each for each in seen if each is not None}
    if len(known) > 1:
        raise SeveralGpusError(
            f"the logs are of {' and '.join(known)}; fit the logs of one kind of GPU at a time", where="dscalc fit"
        )
    return next(iter(known.values()), None)


def _base(
    given: Mapping[str, Any],
    gpu: GpuSpec,
    cluster: ClusterSpec | None,
    found: Calibration,
    profiles: Sequence[str],
) -> tuple[Base, list[Assumption]]:
    """What the profile starts from, and what of it nobody said."""
    joined = load_interconnect(given["interconnect"], profiles).spec if "interconnect" in given else None
    if cluster is not None:
        if joined is not None:
            raise InputError(f"{cluster.id} says what joins its nodes; leave one out", where="--interconnect")
        return Base(gpu, cluster.gpus_in_node, cluster), []
    keys = [fit.series.key for fit in found.fits]
    inside = given.get("gpus_per_node")
    if inside is not None:
        return Base(gpu, inside, None, joined), []
    usual = int(gpu.gpus_per_node.base) if gpu.gpus_per_node is not None else LIKELY_NODE
    most = max((-(-k.ranks // k.nodes) for k in keys), default=usual)
    across = max((-(-k.ranks // k.nodes) for k in keys if k.nodes > 1), default=1)
    # a run over nodes takes all GPUs of each, or one; within a node it may take any number
    whole = across if 1 < across == most else max(most, usual)
    why = f"usual host of {gpu.id}" if whole == usual else "most ranks of a node in the logs"
    return Base(gpu, whole, None, joined), [Assumption("gpus_per_node", whole, "GPUs", "assumed", why)]


def _drawn(fit: Fit) -> Drawn:
    series = fit.series
    volume = bus_volume(series.key.op, np.array([float(series.key.ranks)]))[0]
    sizes, rate = series.size_bytes, volume * series.size_bytes / series.time_s
    grid = np.exp(np.linspace(np.log(sizes[0]), np.log(sizes[-1]), CHART_POINTS))
    fitted = volume * grid / piecewise_time_s(fit.lines.pieces, grid) if fit.lines.pieces else grid[:0]
    bar = np.exp(fit.error)
    return Drawn(
        series.key.words,
        sizes.tolist(),
        rate.tolist(),
        (rate / bar).tolist(),
        (rate * bar).tolist(),
        grid[: len(fitted)].tolist(),
        fitted.tolist(),
    )


# ----------------------------------------------------------------------------------------------------------------- JSON
def _fit_json(fit: Fit) -> dict[str, Any]:
    series, lines = fit.series, fit.lines
    volume = float(bus_volume(series.key.op, np.array([float(series.key.ranks)]))[0])
    rate = lines.bandwidth
    return {
        **series.key._asdict(),
        "pieces": [piece._asdict() for piece in lines.pieces],
        "latency_s": lines.latency_s.value if lines.latency_s else None,
        "latency_stderr_s": lines.latency_s.stderr if lines.latency_s else None,
        "bandwidth_bytes_per_s": rate.value if rate else None,
        "bandwidth_stderr_bytes_per_s": rate.stderr if rate else None,
        "busbw_bytes_per_s": volume * rate.value if rate else None,
        "sizes_bytes": series.size_bytes.tolist(),
        "times_s": series.time_s.tolist(),
        "error_fractions": fit.error.tolist(),
        "median_error_fraction": float(np.median(fit.error)),
        "n": series.cells,
        "source": series.source,
    }


def _beside_json(found: Beside | None) -> dict[str, Any]:
    if found is None:
        names = ("compared_with", "compared_why", "effect")
        return {"compared": [], "compared_kernels": [], **dict.fromkeys(names)}
    return {
        "compared": [{**c.key._asdict(), **{k: v for k, v in c._asdict().items() if k != "key"}} for c in found.groups],
        "compared_kernels": [kernel._asdict() for kernel in found.kernels],
        "compared_with": found.cluster.id,
        "compared_why": found.why,
        "effect": found.effect._asdict() if not isinstance(found.effect, str) else None,
    }


def _compute_json(found: Calibration) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = [
        {
            "kind": "gemm",
            "gpu": gemm.gpu,
            "dtype": gemm.dtype,
            "flop_per_s": gemm.flop_per_s,
            "flop_per_s_stderr": gemm.stderr_flop_per_s,
            "best_flop_per_s": gemm.best_flop_per_s,
            "ramp": gemm.ramp,
            "ramp_stderr": gemm.ramp_stderr,
            "points": gemm.points,
            "median_residual_fraction": gemm.median_residual_fraction,
            "classes": [c._asdict() for c in gemm.classes],
            "source": gemm.source,
        }
        for gemm in found.gemms
    ]
    rows += [
        {
            "kind": "memory_copy",
            "gpu": copy.gpu,
            "bytes_per_s": copy.bytes_per_s,
            "bytes_per_s_stderr": copy.stderr_bytes_per_s,
            "points": copy.points,
            "source": copy.source,
        }
        for copy in found.copies
    ]
    rows += [
        {
            "kind": "launch",
            "gpu": launch.gpu,
            "time_s": launch.time_s,
            "time_stderr_s": launch.stderr_s,
            "points": launch.points,
            "source": launch.source,
        }
        for launch in found.launches
    ]
    return rows
