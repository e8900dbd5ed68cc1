"""Known faults, recognised from how measured steps differ from predicted ones; no prediction contains them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from dscalc.frozen import dataclass
from dscalc.specs.pace import faults, pace_table, with_faults
from dscalc.validation.step import Batch, StepPrediction

STALL_WITHIN = 0.2  # of a step: so close to the formula of a stall, a run with a pipeline counts as stalled
FLOOR_WITHIN = 0.25  # of a step: so close to what a floor a layer makes of it
SLOWER = 1.5  # times the prediction: what no error bar covers
RETRY_SEQUENCES = 16  # of the one micro-batch of a step, which holds all of its activations at once
FABRIC_ROWS, FABRIC_SLOWER = 3, 2.0  # rows that agree on a network this much slower
TALKS = 0.05  # of a step in communication between nodes: enough to judge the network by
OUTER = ("communication/dp", "communication/fsdp", "communication/ep")


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A known fault, the rows that look like it, and what to do next."""

    code: str
    ids: tuple[str, ...]
    message: str
    next_step: str


def stalled(p: StepPrediction) -> bool:
    """Whether a run obeys the formula of the known stall: a fixed time a micro-batch, whatever the model."""
    layout, known = p.row.row.layout, faults()
    seconds = known["stall_s"].value * layout.grad_accum + known["stall_stage_s"].value * (layout.pp - 1)
    over_nodes = layout.gpus > p.row.domain.gpus
    return layout.pp > 1 and over_nodes and abs(seconds / p.row.measured_s - 1.0) < STALL_WITHIN


def with_floor(batches: Sequence[Batch], count: int) -> list[float]:
    """Seconds of every row on a cluster that has the floor a layer; nan where it has no pipeline."""
    table = with_faults(pace_table(), ("floor",))
    found = [float("nan")] * count
    for batch in batches:
        if float(np.max(batch.layouts.pp)) > 1.0:
            for number, seconds in zip(batch.numbers, batch.step(table).step_time_s.tolist(), strict=True):
                found[number] = seconds
    return found


def _floored(p: StepPrediction, seconds: float) -> bool:
    layout, measured = p.row.row.layout, p.row.measured_s
    over_nodes = layout.pp > 1 and layout.gpus > p.row.domain.gpus
    raised = seconds > SLOWER * p.predicted_s and measured > SLOWER * p.predicted_s
    return over_nodes and raised and abs(seconds / measured - 1.0) < FLOOR_WITHIN


def retried(p: StepPrediction) -> bool:
    """Whether a run looks like one whose allocator gave memory back and asked again: one large micro-batch, slow."""
    layout = p.row.row.layout
    slow = p.row.measured_s > SLOWER * p.predicted_s
    return slow and layout.pp == 1 and layout.grad_accum == 1 and layout.micro_batch >= RETRY_SEQUENCES


def _slow_fabrics(rows: Sequence[StepPrediction]) -> dict[str, tuple[float, list[str]]]:
    """Sources of which runs that talk between nodes are slow by one factor of that time, and others are not slow."""
    found = {}
    by_source: dict[str, list[StepPrediction]] = defaultdict(list)
    for p in rows:
        by_source[p.row.row.source].append(p)
    for source, members in by_source.items():
        factors, ids, quiet = [], [], []
        for p in members:
            talked = sum(s for path, s in p.terms if path in OUTER)
            excess = p.row.measured_s - p.predicted_s
            if p.row.row.layout.gpus > p.row.domain.gpus and talked > TALKS * p.predicted_s:
                factors.append(1.0 + excess / talked)
                ids.append(p.row.row.id)
            else:
                quiet.append(excess / p.predicted_s)
        if len(factors) < FABRIC_ROWS:
            continue
        middle, low = float(np.median(factors)), float(np.quantile(factors, 0.25))
        fine = not quiet or abs(float(np.median(quiet))) < TALKS * 2.0
        if middle >= FABRIC_SLOWER and low >= 0.5 * (1.0 + FABRIC_SLOWER) and fine:
            found[source] = (middle, ids)
    return found


def diagnoses(rows: Sequence[StepPrediction], floored_s: Sequence[float]) -> tuple[Diagnosis, ...]:
    """Known faults that rows look like.

    Args:
        rows: predictions beside measurements.
        floored_s: each row's time with a floor a layer, see ``with_floor``.

    Returns:
        One entry a fault that is seen.
    """
    stalls = [p.row.row.id for p in rows if stalled(p) and p.row.measured_s > SLOWER * p.predicted_s]
    floors = [
        p.row.row.id
        for p, s in zip(rows, floored_s, strict=True)
        if s == s and p.row.row.id not in set(stalls) and _floored(p, s)
    ]
    retries = [p.row.row.id for p in rows if retried(p)]
    taken = {*stalls, *floors, *retries}
    found = [
        Diagnosis(
            "stalled_runs",
            tuple(stalls),
            f"{_runs(stalls)} with a pipeline over nodes took about 1.2 s a micro-batch, whatever the model: a stall",
            "look for retries and time-outs of pipeline messages with NCCL_DEBUG=INFO; try another NCCL network plugin",
        ),
        Diagnosis(
            "layer_floor",
            tuple(floors),
            f"{_runs(floors)} with a pipeline over nodes took about 4.5 + 2 t ms a layer, whatever the work: a floor",
            "halve the micro-batch: if the time of one stays, it is a floor; the cluster's profile can name it",
        ),
        Diagnosis(
            "allocator_retries",
            tuple(retries),
            f"{_runs(retries)} of one large micro-batch took over 1.5 times as long as predicted: allocator retries?",
            "read torch.cuda.memory_stats()['num_alloc_retries']; set expandable_segments or halve the micro-batch",
        ),
    ]
    for source, (factor, ids) in _slow_fabrics([p for p in rows if p.row.row.id not in taken]).items():
        found.append(
            Diagnosis(
                "slow_fabric",
                tuple(ids),
                f"{source}: {_runs(ids)} fit a network between nodes {factor:.1f} times slower than its profile",
                "run all_reduce_perf of nccl-tests on these nodes and put what it gives into the cluster's profile",
            )
        )
    return tuple(d for d in found if d.ids)


def _runs(ids: Sequence[str]) -> str:
    return f"{len(ids)} run{'s' if len(ids) != 1 else ''}"
