"""Where a larger batch stops helping, and how long everyone waits for the slowest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import ceil, isfinite
from typing import Any, NamedTuple

import numpy as np

from dscalc.answers.envelope import Assumption, Warning
from dscalc.codes import BATCH_LAWS
from dscalc.cost.batch_laws import (
    LAWS,
    OPTIMAL,
    BatchLaw,
    LawInputs,
    critical_batch_tokens,
    largest_batch_tokens,
    law_batch_tokens,
    outside,
)
from dscalc.cost.inventory import ParameterCounts
from dscalc.cost.sgd import data_penalty, steps_penalty
from dscalc.cost.stragglers import (
    exponential_maximum_factor,
    fresh_wait_fraction,
    normal_maximum_factor,
    second_maximum_factor,
    slow_node_probability,
)
from dscalc.errors import InputError
from dscalc.frozen import dataclass
from dscalc.specs.sgd_facts import Said, sgd_facts
from dscalc.units import format_count

EXTRA_DATA = 0.2  # accepted where nobody says: what [Zhang2024] calls the critical batch
ROUNDING = 1e-9
LARGEST_COUNT = 1e16  # beyond, powers of ten read better
JITTER = 0.02  # an example where nobody measured
OPTION_OF = {
    "train_loss": "--train-loss",
    "tokens": "--tokens",
    "params": "--params or --model",
    "training_flop": "--tokens and --params or --model",
    "noise_scale": "--noise-scale",
}


class Limit(NamedTuple):
    """What one law says; sizes are tokens (images without a sequence length), None where an input is missing."""

    law: str
    kind: str
    law_batch: float | None
    critical_batch: float | None
    largest_batch: float | None
    largest_workers: int | None
    batch_over_critical: float | None
    beyond: bool  # the largest batch
    steps_penalty: float | None
    data_penalty: float | None
    lr: float | None
    missing: tuple[str, ...]
    outside: tuple[str, ...]
    words: str
    formula: str
    inputs: Mapping[str, float]
    source: str


def law_params(counts: ParameterCounts) -> tuple[float, float]:
    """Parameters as laws count them: without embedding and head (302e6 of [Zhang2024] are 12 * 24 * 1024^2); and those
    that a token uses, for 6 N D.
    """
    return float(counts.main - counts.embedding - counts.head), float(counts.active)


def limits(
    given: Mapping[str, Any],
    batch: float,
    worker: float,
    unit: str,
    params: tuple[float, float] | None,
    assumed: list[Assumption],
    warned: list[Warning],
) -> tuple[Limit, ...]:
    """Every law that was asked for, or all.

    Args:
        given: parsed options.
        batch: effective batch [unit].
        worker: of one worker in one update [unit].
        unit: ``tokens``, or ``images`` where sequences have no length: published laws count tokens.
        params: from ``law_params``; None without a model [parameters].
        assumed: gets what was taken for granted.
        warned: gets what the reader should know.

    Returns:
        One limit a law.

    Raises:
        InputError: a law was asked for by name and lacks an input.
    """
    names = given.get("batch_law", BATCH_LAWS)
    penalty = 1.0 + given.get("extra_data", EXTRA_DATA)
    known: dict[str, float | None] = {name: given.get(name) for name in ("train_loss", "tokens", "noise_scale")}
    known["params"] = params[0] if params else None
    tokens = given.get("tokens")
    known["training_flop"] = 6.0 * params[1] * tokens if params and tokens else None
    inputs = LawInputs(**{name: np.array([np.nan if v is None else float(v)]) for name, v in known.items()})
    found = []
    for law in (LAWS[name] for name in names):
        missing = tuple(name for name in law.needs if known[name] is None)
        if missing and "batch_law" in given:
            raise InputError(f"{law.name} needs {OPTION_OF[missing[0]]}", where="--batch-law")
        counts = unit == "tokens" or law.name == "given"
        limit = _limit(law, inputs, known, missing, penalty, (batch, worker) if counts else None)
        found.append(limit)
        if not missing:
            warned += _warnings(limit, law, known, penalty)
    if "extra_data" not in given and any(not limit.missing for limit in found):
        assumed.append(Assumption("extra_data", EXTRA_DATA, "fraction", "default", "[Zhang2024]"))
    return tuple(found)


def _limit(
    law: BatchLaw,
    inputs: LawInputs,
    known: Mapping[str, float | None],
    missing: tuple[str, ...],
    penalty: float,
    sizes: tuple[float, float] | None,
) -> Limit:
    named, critical = _one(law_batch_tokens(law.name, inputs)), _one(critical_batch_tokens(law.name, inputs))
    largest = _one(largest_batch_tokens(law.name, inputs, np.array([penalty])))
    batch, worker = sizes or (None, None)
    steps = data = None
    if critical is not None and batch is not None and law.kind != OPTIMAL:
        steps = float(steps_penalty(np.array(batch), np.array(critical)))
        data = float(data_penalty(np.array(batch), np.array(critical)))
    return Limit(
        law=law.name,
        kind=law.kind,
        law_batch=named,
        critical_batch=critical,
        largest_batch=largest,
        largest_workers=None if largest is None or worker is None else int(largest * (1.0 + ROUNDING) // worker),
        batch_over_critical=None if critical is None or batch is None else batch / critical,
        beyond=largest is not None and batch is not None and batch > largest * (1.0 + ROUNDING),
        steps_penalty=steps,
        data_penalty=data,
        lr=_one(law.lr(inputs)) if law.lr else None,
        missing=missing,
        outside=tuple(name for name, mask in outside(law.name, inputs).items() if mask[0]),
        words=law.words,
        formula=law.formula,
        inputs={name: float(known[name] or 0.0) for name in law.needs if known[name] is not None},
        source=law.source,
    )


def _one(values: Any) -> float | None:
    value = float(np.asarray(values).reshape(-1)[0])
    return value if isfinite(value) else None


def _warnings(limit: Limit, law: BatchLaw, known: Mapping[str, float | None], penalty: float) -> Iterator[Warning]:
    far = [within for within in law.within if within.name in limit.outside]
    if far:
        ranges = " and ".join(f"{_amount(w.low)} to {_amount(w.high)} {w.unit}" for w in far)
        values = " and ".join(_amount(float(known[w.name] or 0.0)) for w in far)
        yield Warning(
            "outside_law",
            f"law {law.name} was fitted from {ranges}; {values} {'is' if len(far) == 1 else 'are'} outside",
            "take it as a guess: measure the noise scale, or try two batches",
        )
    if not limit.beyond:
        return
    most = "a smaller local batch, or less accumulation"
    if limit.largest_workers:
        most = f"at most {limit.largest_workers:,} workers of this local batch"
    if limit.data_penalty is not None:
        yield Warning(
            "beyond_critical_batch",
            f"by law {law.name} this batch is {limit.batch_over_critical:.2g} times the critical one: it takes "
            f"{100.0 * (limit.data_penalty - 1.0):.3g} % more data than a small batch to the same loss, and "
            f"{100.0 * (penalty - 1.0):.3g} % are accepted",
            f"{most}, or accept the data with --extra-data",
        )
    else:
        yield Warning(
            "beyond_optimal_batch",
            f"this batch is {limit.batch_over_critical:.2g} times the best one by law {law.name}",
            most,
        )


def _amount(value: float) -> str:
    return f"{value:.3g}" if value < 100.0 or value >= LARGEST_COUNT else format_count(value)


@dataclass(frozen=True, slots=True)
class Waiting:
    """How long everyone waits for the slowest of K GPUs, as shares of a step of an average one."""

    jitter: float
    gpus: int
    nodes: int
    normal: float  # E[max] in standard deviations
    normal_second: float | None
    exponential: float  # E[max] in means
    probability: float
    slow_nodes: float
    slow_by: float
    group: int  # tensor- and context-parallel ranks, which meet in every layer
    meetings: float
    fresh: float | None
    step_time_s: float | None
    fleet: tuple[Said, ...]

    @property
    def wait(self) -> float:
        """Waiting for the slowest of normal GPUs."""
        return self.jitter * self.normal

    @property
    def saves(self) -> float | None:
        """What leaving the slowest out saves of a step; None for one GPU."""
        return None if self.normal_second is None else (self.normal - self.normal_second) * self.jitter

    def to_json(self) -> dict[str, Any]:
        """As the JSON object that the documentation freezes."""
        return {
            "jitter_fraction": self.jitter,
            "gpus": self.gpus,
            "nodes": self.nodes,
            "normal_factor": self.normal,
            "normal_wait_fraction": self.wait,
            "exponential_factor": self.exponential,
            "exponential_wait_fraction": self.jitter * self.exponential,
            "without_slowest_factor": self.normal_second,
            "without_slowest_saves_fraction": self.saves,
            "slow_node_fraction": self.slow_nodes,
            "slow_node_by_fraction": self.slow_by,
            "slow_node_probability": self.probability,
            "slow_node_wait_fraction": self.probability * self.slow_by,
            "layer_group": self.group,
            "layer_meetings": self.meetings,
            "fresh_layer_wait_fraction": self.fresh,
            "step_time_s": self.step_time_s,
            "straggler_s": None if self.step_time_s is None else self.wait * self.step_time_s,
            "fleet": [said._asdict() for said in self.fleet],
        }


def waiting(
    given: Mapping[str, Any],
    gpus: int,
    inside: float,
    group: int,
    meetings: float,
    step_time_s: float | None,
    assumed: list[Assumption],
) -> Waiting:
    """Waiting for the slowest.

    Args:
        given: parsed options.
        gpus: of the job [GPUs].
        inside: GPUs of a node [GPUs].
        group: tensor- and context-parallel ranks that meet in every layer [ranks].
        meetings: how often they do in a step [calls].
        step_time_s: a step of an average GPU where it is known [s].
        assumed: gets what was taken for granted.

    Returns:
        The waiting.
    """
    facts = sgd_facts()
    values = {"jitter": JITTER, "slow_nodes": facts.slow_fraction, "slow_by": facts.slow_by}
    sources = {
        "jitter": "an example, not a measurement; measure: spread between ranks of the time of a step before they meet",
        "slow_nodes": facts.slow_source,
        "slow_by": facts.slow_source,
    }
    for name, usual in values.items():
        values[name] = given.get(name, usual)
        if name not in given:
            assumed.append(Assumption(name, usual, "fraction", "assumed", sources[name]))
    count, nodes = np.array([float(gpus)]), ceil(gpus / inside)
    fresh = None
    if group > 1:
        fresh = _one(fresh_wait_fraction(np.array([values["jitter"]]), np.array([float(group)]), np.array([meetings])))
    return Waiting(
        jitter=values["jitter"],
        gpus=gpus,
        nodes=nodes,
        normal=float(normal_maximum_factor(count)[0]) if gpus > 1 else 0.0,
        normal_second=float(second_maximum_factor(count)[0]) if gpus > 1 else None,
        exponential=float(exponential_maximum_factor(count)[0]),
        probability=float(slow_node_probability(np.array([values["slow_nodes"]]), np.array([float(nodes)]))[0]),
        slow_nodes=values["slow_nodes"],
        slow_by=values["slow_by"],
        group=group,
        meetings=meetings,
        fresh=fresh,
        step_time_s=step_time_s,
        fleet=facts.fleet,
    )
