"""The step question: how long a training step takes, where the time goes, and what a measured step says beside it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from dscalc.answers.case import Case, build_case
from dscalc.answers.comm_network import network_of
from dscalc.answers.envelope import Assumption, Warning, envelope
from dscalc.answers.memory import MemoryAnswer
from dscalc.answers.memory import answer as memory_answer
from dscalc.answers.step_notes import Explanation, bracketed, explanations, step_warnings
from dscalc.cost.bar import ALWAYS, NAMES, Bar, bar
from dscalc.cost.conventions import CONVENTIONS, model_flop
from dscalc.cost.conventions import NAMES as CONVENTION_NAMES
from dscalc.cost.step import Step
from dscalc.cost.step import step as step_of
from dscalc.cost.stragglers import STRAGGLER, with_straggler
from dscalc.errors import DscalcError, InputError
from dscalc.frozen import dataclass
from dscalc.records import Engine, Layouts, PaceConstants, PaceTable, Timing
from dscalc.specs.calibrated import calibrated
from dscalc.specs.given import gather
from dscalc.specs.layout_spec import lower, with_gradient_bytes
from dscalc.specs.measured import Sustained
from dscalc.specs.network import Lowered
from dscalc.specs.option_table import OPTIONS
from dscalc.specs.overlap import COLUMNS as OVERLAPPED
from dscalc.specs.overlap import overlapped
from dscalc.specs.pace import (
    HALF,
    Noted,
    bar_notes,
    constant_notes,
    engine,
    error_bars,
    generation_of,
    is_measured,
    notes_of,
    pace_constants,
    pace_table,
    with_faults,
)
from dscalc.specs.quantity import Quantity
from dscalc.units import parse_time

KERNEL = "/flash_fraction"

DEFAULT_CONVENTION = "palm"
JITTER = (
    "a slow GPU stays slow through the step, so groups that meet in every layer (tp, cp) wait as those that meet once "
    "a step (dp); the fitted skews of collectives already hold the usual waiting of published runs"
)
BOUND_SHARE = 0.5  # of a step: above, one sort of term limits it


class TimeTerm(NamedTuple):
    """One addend of the step; ``seconds`` are exposed and add up."""

    path: str
    seconds: float
    hidden_s: float
    formula: str
    source: str


class ErrorPart(NamedTuple):
    """What one sort of term adds to the error bar; parts add in squares."""

    what: str
    fraction: float


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a prediction of this case is made from, so that it can be made again with one thing changed."""

    case: Case
    layouts: Layouts
    engine: Engine
    table: PaceTable
    constants: PaceConstants
    network: Lowered
    slower: tuple[tuple[Engine, PaceTable], ...] = ()  # each measured number once at the bad end
    jitter: float = 0.0  # spread of a step between GPUs, as a share of it

    def run(self) -> Step:
        """The step."""
        timing = Timing(self.engine, self.table, self.constants, self.network.network)
        found = step_of(self.case.model.shape, self.layouts, timing, self.case.adapters)
        if not self.jitter:
            return found
        return with_straggler(found, np.array([self.jitter]), np.array([float(self.case.layout.spec.gpus)]))

    def spread(self, seconds: float) -> tuple[float, float]:
        """What the errors of measured numbers do to a step, faster and slower: root of the sum of squares.

        Args:
            seconds: the step as predicted [s].

        Returns:
            Relative half-widths; zero where nothing was measured here.
        """
        worse = [replace(self, engine=e, table=t) for e, t in self.slower]
        own = sum((float(case.run().step_time_s[0]) / seconds - 1.0) ** 2 for case in worse)
        ends = [0.0, 0.0]
        if self.network.network.measured:
            for i, edge in enumerate((-1.0, 1.0)):
                moved = replace(self.network, network=replace(self.network.network, edge=edge))
                ends[i] = float(replace(self, network=moved).run().step_time_s[0]) / seconds - 1.0
        return float(np.sqrt(own + ends[0] ** 2)), float(np.sqrt(own + ends[1] ** 2))


@dataclass(frozen=True, slots=True)
class StepAnswer:
    """The answer in seconds: ``low_s`` to ``high_s`` is the error bar, ``lower_s`` to ``upper_s`` the bracket."""

    case: Case
    memory: MemoryAnswer
    step_time_s: float
    lower_s: float
    upper_s: float
    low_s: float
    high_s: float
    error_fraction: float
    error_parts: tuple[ErrorPart, ...]
    tokens_per_s: float
    tokens_per_s_per_gpu: float
    samples_per_s: float
    mfu: float
    mfu_convention: str
    hfu: float
    model_flop_per_s_per_gpu: float
    bubble_share: float
    bubble_over_ideal: float
    straggler_s: float
    bound_by: str
    terms: tuple[TimeTerm, ...]
    measured_s: float | None
    explanations: tuple[Explanation, ...]
    verdict: str
    assumptions: tuple[Assumption, ...]
    warnings: tuple[Warning, ...]

    def to_json(self) -> dict[str, Any]:
        """The answer as the JSON object that the documentation freezes."""
        from dscalc.answers.case import inputs_of

        result: dict[str, Any] = {name: getattr(self, name) for name in SCALARS}
        result["error_parts"] = [p._asdict() for p in self.error_parts]
        result["terms"] = [t._asdict() for t in self.terms]
        result["memory"] = self.memory.to_json()["result"]
        if self.measured_s is not None:
            result["measured"] = {
                "measured_s": self.measured_s,
                "gap_fraction": self.measured_s / self.step_time_s - 1.0,
                "verdict": self.verdict,
                "explanations": [e._asdict() for e in self.explanations],
            }
        return envelope("step", inputs_of(self.case), self.assumptions, self.warnings, result)


SCALARS = (
    "step_time_s",
    "lower_s",
    "upper_s",
    "low_s",
    "high_s",
    "error_fraction",
    "tokens_per_s",
    "tokens_per_s_per_gpu",
    "samples_per_s",
    "mfu",
    "mfu_convention",
    "hfu",
    "model_flop_per_s_per_gpu",
    "bubble_share",
    "bubble_over_ideal",
    "straggler_s",
    "bound_by",
)


def step(*, measured: object = None, mfu_convention: str = DEFAULT_CONVENTION, **options: object) -> StepAnswer:
    """How long a training step takes, as ``dscalc step`` answers it.

    Args:
        measured: a measured step, ``"1.4s"`` or seconds, to set beside the prediction.
        mfu_convention: how model FLOP are counted, one of ``dscalc.cost.conventions.NAMES``.
        options: the words of the command line, e.g. ``model="llama-3-8b", cluster="dgx-h100", gpus=8, zero=3``; in any
            accepted spelling, as numbers or text; ``scenario`` names a TOML file.

    Returns:
        The answer [s].

    Raises:
        DscalcError: an unknown name, an unreadable file, a value out of range, or options that contradict each other.
    """
    given = {name: value for name, value in gather(options).items() if OPTIONS[name].group != "output"}
    return answer(given, read_measured(measured), mfu_convention)


def read_measured(measured: object) -> float | None:
    """A measured step in seconds.

    Raises:
        InputError: no time above 0.
    """
    if measured is None:
        return None
    try:
        seconds = float(measured) if isinstance(measured, (int, float)) else parse_time(str(measured))
    except DscalcError as error:
        raise InputError(error.message, where="--measured") from None
    if not seconds > 0.0 or seconds == np.inf:
        raise InputError(f"{measured!r} is no time above 0, e.g. 1.4s", where="--measured")
    return seconds


def answer(
    given: Mapping[str, Any], measured_s: float | None = None, mfu_convention: str = DEFAULT_CONVENTION
) -> StepAnswer:
    """The same from options that ``gather`` has read."""
    if mfu_convention not in CONVENTION_NAMES:
        raise InputError(f"{mfu_convention!r} is not among {', '.join(CONVENTION_NAMES)}", where="--mfu-convention")
    case = build_case(given)
    inputs, notes = step_inputs(given, case)
    held = memory_answer(given)
    found = inputs.run()
    spec, shape = case.layout.spec, case.model.shape
    seconds = float(found.step_time_s[0])
    flop = float(model_flop(mfu_convention, shape, inputs.layouts)[0])
    nominal = float(inputs.engine.nominal_flop_per_s[0])
    tokens = spec.global_batch * spec.seq_len
    terms = tuple(
        TimeTerm(
            leaf.spec.path,
            float(leaf.exposed_s[0]),
            float(leaf.busy_s[0] - leaf.exposed_s[0]),
            leaf.spec.formula,
            leaf.spec.source,
        )
        for leaf in found.terms
    )
    width, bar_notes = step_bar(inputs, found, inputs.layouts)
    half = float(width.half_width_fraction[0])
    faster, slower = (float(np.hypot(half, own)) for own in inputs.spread(seconds))
    over = float(found.bubble_over_ideal[0])
    answered = StepAnswer(
        case=case,
        memory=held,
        step_time_s=seconds,
        lower_s=float(found.lower_s[0]),
        upper_s=float(found.upper_s[0]),
        low_s=seconds * float(np.exp(-faster)),
        high_s=seconds * float(np.exp(slower)),
        error_fraction=max(faster, slower),
        error_parts=_parts(width),
        tokens_per_s=tokens / seconds,
        tokens_per_s_per_gpu=tokens / seconds / spec.gpus,
        samples_per_s=spec.global_batch / seconds,
        mfu=flop / seconds / nominal,
        mfu_convention=mfu_convention,
        hfu=float(found.executed_flop[0]) / seconds / nominal,
        model_flop_per_s_per_gpu=flop / seconds,
        bubble_share=over / (1.0 + over),
        bubble_over_ideal=over,
        straggler_s=sum(t.seconds for t in terms if t.path == STRAGGLER.path),
        bound_by=_bound(terms, seconds),
        terms=terms,
        measured_s=measured_s,
        explanations=(),
        verdict="",
        assumptions=(
            *case.assumptions,
            *rate_assumptions((*notes, *bar_notes), inputs.network),
            *jitter_assumption(inputs.jitter),
        ),
        warnings=(),
    )
    if measured_s is not None:
        verdict, reasons = explanations(inputs, answered, measured_s)
        answered = replace(answered, verdict=verdict, explanations=reasons)
    memory_warnings = [w for w in held.warnings if w not in case.warnings]
    told = (*step_warnings(answered, found), *bracketed(inputs), *memory_warnings, *case.warnings)
    return replace(answered, warnings=told)


SHOWN_PARTS = 3  # of an error bar, in words


def step_bar(inputs: Inputs, found: Step, layouts: Layouts) -> tuple[Bar, tuple[Noted, ...]]:
    """The error bar, and what it rests on: its largest parts in words first, then the widths by sort of term."""
    gpu, stack = inputs.case.machine.gpu, inputs.case.layout.spec.stack
    bars = error_bars(gpu.id if gpu else "", NAMES, _stated(inputs))
    width = bar(found, layouts, (inputs.engine.linear_gain > 1.0) * 1.0, bars)
    largest = sorted(_parts(width), key=lambda p: -p.fraction)[:SHOWN_PARTS]
    words = ", ".join(f"{p.what} {p.fraction:.0%}" for p in largest)
    why = "" if is_measured(stack) else f"; no published run of stack {stack} took part in the fit"
    why += "; nor of this GPU" if bars.unmeasured_gpu and why else "; no run of this GPU" if bars.unmeasured_gpu else ""
    source = f"half-width that holds four of five runs of left-out sources; largest parts, in squares: {words}{why}"
    first = Noted("error_fraction", float(width.half_width_fraction[0]), "fraction", "fitted", source)
    return width, (first, *bar_notes())


def _parts(width: Bar) -> tuple[ErrorPart, ...]:
    names = {ALWAYS: "software and clocks of the day"}
    return tuple(
        ErrorPart(names.get(name, name), float(value))
        for name, value in zip(width.names, width.widths[:, 0], strict=True)
        if value > 0.0
    )


def _stated(inputs: Inputs) -> dict[str, float]:
    """Relative standard errors that the profiles of this machine state, the largest of each sort."""
    machine = inputs.case.machine
    records: dict[str, list[Quantity | None]] = {"matmul": [], "memory": [], "network": []}
    if machine.gpu is not None:
        records["matmul"] = [machine.gpu.matmul.of(d) for d in HALF]
        records["memory"] = [machine.gpu.memory_bandwidth]
    if machine.cluster is not None and not inputs.network.network.measured:  # those move the step itself
        records["network"] = [machine.cluster.scaleout_bandwidth, machine.cluster.intra_bandwidth]
        records["network"] += [q for tier in machine.cluster.tiers for _, q in tier.records()]
    found = {}
    for name, stated in records.items():
        errors = [q.stderr / q.value for q in stated if q is not None and q.stderr is not None and q.value > 0.0]
        found[name] = max(errors, default=0.0)
    return found


def step_inputs(given: Mapping[str, Any], case: Case) -> tuple[Inputs, tuple[Noted, ...]]:
    """What a step of this case is predicted from, and each number with its source.

    Raises:
        InputError: nothing says which GPU computes or how GPUs are joined, or options that contradict each other.
    """
    gpu, spec = case.machine.gpu, case.layout.spec
    if gpu is None:
        raise InputError(
            "nothing says which GPU computes; add --gpu H100-SXM5-80GB or --cluster dgx-h100", where="--gpu"
        )
    record, notes = engine(gpu, spec.precision)
    if "flops" in given and "peak_fraction" in given:
        raise InputError(
            "is a share of a GPU's peak, but --flops is what it sustains; give one", where="--peak-fraction"
        )
    cluster = case.machine.cluster
    table, constants = with_faults(pace_table(), cluster.faults if cluster else ()), pace_constants()
    slower: tuple[tuple[Engine, PaceTable], ...] = ()
    if cluster is not None and cluster.sustained.model_dump() != Sustained.trusted({}).model_dump():
        found = calibrated(gpu, cluster.sustained, spec.stack, spec.precision, record, table)
        record, table, slower = found.engine, found.table, found.slower
        replaced = {n.name for n in found.notes}
        notes = (*(n for n in notes if n.name not in replaced), *found.notes)
    if "flops" in given or "peak_fraction" in given:
        name = "flops" if "flops" in given else "peak_fraction"
        share = given["flops"] / float(record.peak_flop_per_s[0]) if name == "flops" else given["peak_fraction"]
        if not share > 0.0:
            raise InputError("0 is out of range; a value above 0 is right", where="--" + name.replace("_", "-"))
        by_hand = np.asarray([share])
        record = replace(record, gemm_fraction=by_hand)
        slower = tuple((replace(e, gemm_fraction=by_hand), t) for e, t in slower)
        notes = tuple(n for n in notes if not n.name.endswith("gemm_fraction"))
    stacked = notes_of(spec.stack, generation_of(gpu))
    if any(n.name.endswith(KERNEL) for n in stacked):  # the stack's attention kernel, not the GPU's default one
        notes = tuple(n for n in notes if not n.name.endswith(KERNEL))
    if "overlap" in given:
        table = overlapped(table, given["overlap"])
        slower = tuple((e, overlapped(t, given["overlap"])) for e, t in slower)
        notes = tuple(n for n in notes if n.name.split("/")[-1] not in OVERLAPPED)
        stacked = tuple(n for n in stacked if n.name.split("/")[-1] not in OVERLAPPED)
    return (
        Inputs(
            case,
            lower([spec], with_gradient_bytes(case.books, given.get("gradient_bytes"))),
            record,
            table,
            constants,
            network_of(given, case),
            slower,
            given.get("jitter", 0.0),
        ),
        (*notes, *stacked, *constant_notes()),
    )


def rate_assumptions(notes: tuple[Noted, ...], network: Lowered) -> list[Assumption]:
    """The numbers that a step rests on, each with its kind and source."""
    found = [Assumption(f"step.{n.name.replace('/', '.')}", n.value, n.unit, n.kind, _sure(n)) for n in notes]
    found += [
        Assumption(f"network.{n.name.replace('/', '.')}", n.value, n.unit, n.kind, n.source) for n in network.notes
    ]
    return found


def jitter_assumption(jitter: float) -> list[Assumption]:
    """How a spread between GPUs is read."""
    if not jitter:
        return []
    return [Assumption("step.jitter", jitter, "of a GPU's whole step", "given", JITTER)]


def _sure(note: Noted) -> str:
    """The source, with the standard error where there is one."""
    return note.source if note.stderr is None else f"{note.source}; standard error {note.stderr:.0%}"


KINDS = (
    ("compute", ("compute/",)),
    ("host", ("overhead/host",)),
    ("communication", ("communication/",)),
    ("bubble", ("pipeline/",)),
    ("stragglers", (STRAGGLER.path,)),
    ("optimizer", ("optimizer/", "overhead/step")),
)


def _bound(terms: tuple[TimeTerm, ...], seconds: float) -> str:
    """What limits the step: the sort of term that takes most of it, with the largest of its terms."""
    sums = {name: sum(t.seconds for t in terms if t.path.startswith(prefixes)) for name, prefixes in KINDS}
    name = max(sums, key=lambda k: sums[k])
    prefixes = dict(KINDS)[name]
    largest = max((t for t in terms if t.path.startswith(prefixes)), key=lambda t: t.seconds)
    part = largest.path.partition("/")[2]
    return name if name in ("host", "bubble", "stragglers") or sums[name] < BOUND_SHARE * seconds else f"{name}/{part}"


def convention_words(name: str) -> str:
    """What a convention counts."""
    return next(c.words for c in CONVENTIONS if c.name == name)
