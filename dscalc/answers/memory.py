"""The memory question: what one GPU holds, whether it fits, and what would make it fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dscalc.answers.case import BF16_BYTES, Case, adapter_targets, build_case, inputs_of, layout_of
from dscalc.answers.cautions import cautions
from dscalc.answers.envelope import Assumption, Warning, envelope
from dscalc.answers.knobs import Variation, variations
from dscalc.answers.minimum import MinimumGpus, minimum_gpus
from dscalc.answers.notes import refuse_illegal, warnings_of
from dscalc.answers.typed import typed
from dscalc.codes import MOMENTS
from dscalc.cost.evaluate import Evaluation, evaluate
from dscalc.frozen import dataclass
from dscalc.records import Adapters, Hardware, Mask
from dscalc.specs.given import gather
from dscalc.specs.layout_spec import LayoutSpec, lower
from dscalc.specs.option_table import OPTIONS
from dscalc.specs.stack import entries
from dscalc.specs.store import load_gpu

COMMON_GPUS = (
    "RTX-4090",
    "A100-SXM4-40GB",
    "A100-SXM4-80GB",
    "H100-SXM5-80GB",
    "H200-SXM5-141GB",
    "B200-SXM6",
    "MI300X",
)
LORA_RANK = 16
LEAST_GAIN = 0.001  # of the total; what saves less is not worth a line


@dataclass(frozen=True, slots=True)
class Term:
    """One addend of the total; ``inputs`` are the numbers behind its symbols, ``parts`` what it is the sum of: bytes of
    one, of what, how many.
    """

    path: str
    bytes: float
    formula: str
    source: str
    inputs: Mapping[str, float]
    parts: tuple[tuple[float, str, float], ...] = ()


@dataclass(frozen=True, slots=True)
class Stage:
    """The peak of one pipeline stage."""

    stage: int
    moment: str
    bytes: float


@dataclass(frozen=True, slots=True)
class Knob:
    """A changed option and what it does to the total [bytes]."""

    option: str
    saves_bytes: float
    cost: str
    total_bytes: float
    fits: bool | None
    gpus: int


@dataclass(frozen=True, slots=True)
class Activations:
    """Activations at one recompute mode [bytes], for a question that gives only parameters."""

    recompute: str
    bytes: float
    total_bytes: float


@dataclass(frozen=True, slots=True)
class MemoryAnswer:
    """The answer, with everything the screen and the files show. Sizes are bytes of the fullest GPU."""

    case: Case
    total_bytes: float
    state_bytes: float
    activation_bytes: float
    allocated_bytes: float
    reserved_bytes: float
    device_bytes: float
    low_bytes: float
    high_bytes: float
    usable_bytes: float | None
    headroom_bytes: float | None
    fits: bool | None
    regime: str
    remedy: str
    peak_stage: int
    peak_moment: str
    terms: tuple[Term, ...]
    stages: tuple[Stage, ...]
    knobs: tuple[Knob, ...]
    minimum_gpus: tuple[MinimumGpus, ...]
    activations: tuple[Activations, ...]
    pending_bytes: float
    host_bytes_per_node: float | None
    host_terms: tuple[Term, ...]
    assumptions: tuple[Assumption, ...]
    warnings: tuple[Warning, ...]
    next_knob: Knob | None

    def to_json(self) -> dict[str, Any]:
        """The answer as the JSON object that the documentation freezes."""
        result = {
            name: getattr(self, name)
            for name in (
                "total_bytes",
                "state_bytes",
                "activation_bytes",
                "allocated_bytes",
                "reserved_bytes",
                "device_bytes",
                "usable_bytes",
                "headroom_bytes",
                "low_bytes",
                "high_bytes",
                "fits",
                "regime",
                "peak_stage",
                "peak_moment",
            )
        }
        result["terms"] = [
            {"path": t.path, "bytes": t.bytes, "formula": t.formula, "source": t.source} for t in self.terms
        ]
        result["stages"] = [{"stage": s.stage, "moment": s.moment, "bytes": s.bytes} for s in self.stages]
        result["knobs"] = [
            {
                "option": k.option,
                "saves_bytes": k.saves_bytes,
                "cost": k.cost,
                "total_bytes": k.total_bytes,
                "fits": k.fits,
                "gpus": k.gpus,
            }
            for k in self.knobs
        ]
        result["minimum_gpus"] = [
            {"gpu": m.gpu, "zero_stage": m.zero_stage, "gpus": m.gpus, "reason": m.reason} for m in self.minimum_gpus
        ]
        result["activations"] = [
            {"recompute": a.recompute, "bytes": a.bytes, "total_bytes": a.total_bytes} for a in self.activations
        ]
        result["pending_bytes"] = self.pending_bytes
        result["host_bytes_per_node"] = self.host_bytes_per_node
        result["host_terms"] = [
            {"path": t.path, "bytes": t.bytes, "formula": t.formula, "source": t.source} for t in self.host_terms
        ]
        return envelope("memory", inputs_of(self.case), self.assumptions, self.warnings, result)


def memory(**options: object) -> MemoryAnswer:
    """What one GPU holds, term by term; whether it fits; which knob next.

    Args:
        options: the options of ``dscalc memory`` with underscores, e.g. ``params="7B", gpu="H100-SXM5-80GB", tp=2``; in
            any accepted spelling, as numbers or text; ``scenario`` names a TOML file.

    Returns:
        The answer [bytes].

    Raises:
        DscalcError: an unknown name, an unreadable file, a value out of range, or options that contradict each other.
    """
    return answer({name: value for name, value in gather(options).items() if OPTIONS[name].group != "output"})


def answer(given: Mapping[str, Any]) -> MemoryAnswer:
    """The same from options that ``gather`` has read."""
    case = build_case(given)
    spec = case.layout.spec
    machine = case.machine.record
    node, optimizers = float(machine.gpus_per_node[0]), case.books.optimizers.names
    tried = variations(spec, case.model.shape, node, optimizers, entries("stacks")[spec.stack].values["largest_zero"])
    modes = [spec.model_copy(update={"recompute": mode, "recompute_layers": None}) for mode in ("none", "full")]
    rows = lower([spec, *modes, *(v.spec for v in tried)], case.books)
    found = evaluate(case.model.shape, rows, machine, case.adapters, keep_terms=True)
    refuse_illegal(found, case)
    m = found.memory
    usable = float(machine.usable_bytes[0])
    fits = None if np.isnan(usable) else bool(_fit(found)[0])
    knobs, mildest = _knobs(case, found, tried, 1 + len(modes))
    moments = case.books.optimizers.moments[case.books.optimizers.names.index(spec.optimizer)]
    state, activations = _at(m.state_bytes), _at(m.activation_bytes)
    regime = "state" if state >= activations else "activations"
    answered = MemoryAnswer(
        case=case,
        total_bytes=_at(m.total_bytes),
        state_bytes=state,
        activation_bytes=activations,
        allocated_bytes=_at(m.allocated_bytes),
        reserved_bytes=_at(m.reserved_bytes),
        device_bytes=_at(m.device_bytes),
        low_bytes=_at(m.low_bytes),
        high_bytes=_at(m.high_bytes),
        usable_bytes=_known(usable),
        headroom_bytes=_known(_at(m.headroom_bytes)),
        fits=fits,
        regime=regime,
        remedy=REMEDIES[regime],
        peak_stage=int(_at(m.peak_stage)),
        peak_moment=MOMENTS[int(_at(m.peak_moment))],
        terms=tuple(
            Term(
                _named(leaf.spec.path, moments),
                _at(leaf.array),
                leaf.spec.formula,
                leaf.spec.source,
                {symbol: _at(value) for symbol, value in leaf.inputs.items()},
                tuple((_at(each), name, _at(count)) for each, name, count in leaf.parts),
            )
            for leaf in m.terms
        ),
        stages=_stages(found),
        knobs=knobs,
        minimum_gpus=tuple(
            minimum_gpus(case.model.shape, lower([spec], case.books), spec, _kinds(case), case.adapters)
        ),
        activations=tuple(
            Activations(mode.recompute, _at(m.forward_activation_bytes, 1 + i), _at(m.total_bytes, 1 + i))
            for i, mode in enumerate(modes)
        ),
        pending_bytes=_at(m.pending_bytes),
        host_bytes_per_node=_known(_at(m.host_bytes_per_node)),
        host_terms=tuple(
            Term(leaf.spec.path, _at(leaf.array), leaf.spec.formula, leaf.spec.source, {}) for leaf in m.host_terms
        ),
        assumptions=case.assumptions,
        warnings=case.warnings,
        next_knob=mildest if fits is False else None,
    )
    return replace(answered, warnings=(*warnings_of(answered), *cautions(case), *case.warnings))


def _named(path: str, moments: tuple[str, ...]) -> str:
    """The path of a term under the name that the optimizer's states have."""
    own = dict(zip(("state/adam_m", "state/adam_v"), (f"state/{name}" for name in moments), strict=False))
    return own.get(path, path)


REMEDIES = {
    "state": "weights, gradients and optimizer states lead: shard them (ZeRO, FSDP, tensor or pipeline parallelism)",
    "activations": (
        "activations lead: recompute them, cut the micro-batch, or split the sequence; "
        "more data-parallel GPUs do not help"
    ),
}


def _stages(found: Evaluation) -> tuple[Stage, ...]:
    """One row a stage kind that exists, by stage index."""
    rows = {
        int(_at(row.index)): Stage(int(_at(row.index)), MOMENTS[int(_at(row.moment))], _at(row.bytes))
        for row in found.memory.stages
    }
    return tuple(rows[index] for index in sorted(rows))


def _at(array: Any, row: int = 0) -> float:
    """One row of a column that may be shared by all rows."""
    values = np.asarray(array, dtype=np.float64).reshape(-1)
    return float(values[row if values.size > row else 0])


def _known(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _fit(found: Evaluation) -> Mask:
    """Rows whose memory fits, legal or not."""
    size = np.asarray(found.feasible).size
    mask = found.reasons.masks[found.reasons.names.index("memory")]
    return ~np.broadcast_to(np.asarray(mask), (size,))


def _knobs(case: Case, found: Evaluation, tried: list[Variation], start: int) -> tuple[tuple[Knob, ...], Knob | None]:
    """The legal variations that save something, the largest saving first, pairs only where no single one fits; and of
    those that fit the one that disturbs training least: the first in the order in which they are tried.
    """
    known = not np.isnan(case.machine.record.usable_bytes[0])
    legal = _legal(found)
    fit = _fit(found)
    total = found.memory.total_bytes
    old = case.layout.spec
    knobs: list[tuple[Variation, Knob]] = []
    for i, variation in enumerate(tried, start=start):
        saved = _at(total) - _at(total, i)
        if not legal[i] or saved <= LEAST_GAIN * _at(total):
            continue
        option = typed(case.given, old, variation.spec, lambda given: _layout(case, given), variation.option)
        if option is None:
            continue
        fits = bool(fit[i]) if known else None
        knobs.append((variation, Knob(option, saved, variation.cost, _at(total, i), fits, variation.spec.gpus)))
    enough = any(k.fits for v, k in knobs if not v.pair) or bool(fit[0]) or not known
    single = sorted((k for v, k in knobs if not v.pair), key=lambda k: -k.saves_bytes)
    pairs = [(v, k) for v, k in knobs if v.pair and k.fits][:1] if not enough else []
    adapters = _lora(case, _at(total)) if not (known and fit[0]) else []
    mild = [(v, k) for v, k in knobs if k.fits and not v.pair] or pairs
    mildest = next((k for _, k in sorted(mild, key=lambda pair: pair[0].grows)), None)
    shown = (*(k for _, k in pairs), *single, *adapters)
    return shown, mildest or next((k for k in shown if k.fits), None)


def _layout(case: Case, given: Mapping[str, Any]) -> LayoutSpec:
    return layout_of(given, case.model.shape, case.machine.record).spec


def _legal(found: Evaluation) -> Mask:
    """Rows that break no rule of the layout, whether they fit or not."""
    size = np.asarray(found.feasible).size
    legal = np.ones(size, dtype=bool)
    for name, mask in zip(found.reasons.names, found.reasons.masks, strict=True):
        if name != "memory":
            legal &= ~np.broadcast_to(np.asarray(mask), (size,))
    return legal


def _lora(case: Case, total: float) -> list[Knob]:
    """Adapters on a frozen base, for who only wants to finetune."""
    if case.adapters is not None:
        return []
    targets = adapter_targets(case.model.shape)
    found = evaluate(
        case.model.shape,
        lower([case.layout.spec], case.books),
        case.machine.record,
        Adapters(LORA_RANK, targets, BF16_BYTES),
        keep_terms=False,
    )
    then = _at(found.memory.total_bytes)
    if then >= total:
        return []
    fits = None if np.isnan(case.machine.record.usable_bytes[0]) else bool(_fit(found)[0])
    cost = "finetuning only: trains adapters on a frozen base"
    return [Knob(f"--lora-rank {LORA_RANK}", total - then, cost, then, fits, case.layout.spec.gpus)]


def _kinds(case: Case) -> list[tuple[str, float, float]]:
    """The GPUs to count: the one given, else the common ones."""
    if case.machine.gpu is not None:
        usable = float(case.machine.record.usable_bytes[0])
        return [] if np.isnan(usable) else [(case.machine.gpu.id, usable, float(case.machine.record.gpus_per_node[0]))]
    found: list[tuple[str, float, float]] = []
    for name in COMMON_GPUS:
        record: Hardware = load_gpu(name).spec.lower()
        found.append((name, float(record.usable_bytes[0]), float(record.gpus_per_node[0])))
    return [entry for entry in found if not np.isnan(entry[1])]
