"""What a layout sends: every collective on the network it runs on, what hides, and a ring to watch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from dscalc.answers.case import SHAPE_WORDS, Case, build_case, inputs_of
from dscalc.answers.comm_network import network_assumptions, network_of, tiers_of
from dscalc.answers.comm_notes import warnings_of
from dscalc.answers.envelope import Assumption, Warning, envelope
from dscalc.answers.notes import refuse_illegal
from dscalc.cost.algorithms import ALGORITHMS, OPS
from dscalc.cost.communication import Collective, communication, listed_stage, timed
from dscalc.cost.evaluate import MEMORY_REASON, evaluate
from dscalc.cost.trace import RingTrace, example_gradients, ring_trace
from dscalc.cost.transfers import Stage
from dscalc.errors import InputError
from dscalc.records import Network
from dscalc.specs.given import gather
from dscalc.specs.layout_spec import lower
from dscalc.specs.network import Lowered
from dscalc.units import GIB

MODEL_WORDS = ("model", "params", *SHAPE_WORDS)
TRACE_BYTES = 4.0  # of one element, where --gradient-bytes is silent
MEASURED = "measured"  # in place of an algorithm: a benchmark does not say which one ran
LARGE_BYTES = 16.0 * GIB  # a message that no latency slows
NO_MEMORY = ("usable_bytes", "cuda_context_bytes", "communicator_bytes", "workspace_bytes", "launch_queue")
NOT_SENT = ("optimizer", "attention", "offload", "optimizer_in_backward", "gpus_per_node", "error_fraction")
SENT = {  # what the busiest rank sends of n bytes in a group of K
    "all-reduce": "2(K-1)/K n",
    "reduce-scatter": "(K-1)/K n",
    "all-gather": "(K-1)/K n",
    "all-to-all": "(K-1)/K n",
    "send-recv": "n",
    "all-reduce nvls": "(1 + 1/K) n",
    "all-reduce nvls-tree": "(1 + 1/K_in) n",
    "all-reduce naive": "(K-1) n",
}


class Row(NamedTuple):
    """One collective of a layout: all its calls in a step."""

    axis: str
    op: str
    algorithm: str
    group: int
    members_inside: int
    tier: str
    bytes: float
    count: float  # type: ignore[assignment]  # the word of the JSON; nobody counts in a row
    traffic_bytes: float
    time_s: float
    naive_time_s: float
    exposed_s: float
    what: str
    stage: str
    domains: int
    stride: int
    misaligned: bool
    extrapolated: bool
    rate_share: float
    low_s: float  # the error bar of time_s, from what was measured; equal to it where nothing was
    high_s: float
    measured: str  # file and lines of the curve behind the time; empty: the model says it
    formula: str
    sent: str
    source: str
    inputs: Mapping[str, float]


ROW_KEYS = (
    "axis",
    "op",
    "algorithm",
    "group",
    "members_inside",
    "tier",
    "bytes",
    "count",
    "traffic_bytes",
    "time_s",
    "naive_time_s",
    "exposed_s",
    "what",
    "stage",
    "domains",
    "misaligned",
    "extrapolated",
    "rate_share",
    "low_s",
    "high_s",
    "measured",
    "formula",
    "source",
)


class Total(NamedTuple):
    """Sums over the collectives of one axis, or of all."""

    axis: str
    traffic_bytes: float
    time_s: float
    naive_time_s: float
    exposed_s: float


@dataclass(frozen=True, slots=True)
class CommAnswer:
    """The answer. Bytes and seconds of one GPU of the stage with the most parameters, in one step."""

    case: Case | None  # None: only a ring is shown
    network: Lowered | None
    given: Mapping[str, Any]
    stage: int
    rows: tuple[Row, ...]
    totals: tuple[Total, ...]
    total: Total
    trace: RingTrace | None
    trace_bytes: float
    assumptions: tuple[Assumption, ...]
    warnings: tuple[Warning, ...]

    @property
    def binding(self) -> Total | None:
        """The axis whose calls take longest; None where nothing is sent."""
        return max(self.totals, key=lambda t: t.time_s, default=None)

    def rows_of(self, axis: str) -> list[Row]:
        """The collectives of an axis."""
        return [row for row in self.rows if row.axis == axis]

    def to_json(self) -> dict[str, Any]:
        """The answer as the JSON object that the documentation freezes."""
        binding = self.binding
        result: dict[str, Any] = {
            "collectives": [{key: getattr(row, key) for key in ROW_KEYS} for row in self.rows],
            "totals": [t._asdict() for t in self.totals],
            "traffic_bytes": self.total.traffic_bytes,
            "time_s": self.total.time_s,
            "naive_time_s": self.total.naive_time_s,
            "exposed_s": self.total.exposed_s,
            "binding_axis": binding.axis if binding else None,
            "stage": self.stage,
            "tiers": tiers_of(self.network) if self.network else [],
            "trace": _trace_json(self.trace) if self.trace else None,
        }
        inputs = inputs_of(self.case) if self.case else {}
        if self.case:
            inputs["hardware"] |= {name: self.given.get(name) for name in ("interconnect", "bandwidth", "latency")}
            inputs["hardware"]["algorithms"] = forced(self.given)
            inputs["training"]["gradient_bytes"] = self.given.get("gradient_bytes")
        return envelope("comm", inputs, self.assumptions, self.warnings, result)


def comm(**options: object) -> CommAnswer:
    """Every collective of a layout: group, tier, bytes, calls, traffic and time; the naive way beside the ring.

    Args:
        options: the options of ``dscalc comm`` with underscores, e.g. ``model="llama-3-70b", cluster="dgx-h100",
            gpus=256, tp=8``; in any accepted spelling, as numbers or text; ``scenario`` names a TOML file.

    Returns:
        The answer [bytes and s].

    Raises:
        DscalcError: an unknown name, an unreadable file, a value out of range, options that contradict each other, or
            nothing that says how GPUs are joined.
    """
    return answer(gather(options))


def answer(given: Mapping[str, Any]) -> CommAnswer:
    """The same from options that ``gather`` has read."""
    algorithms = forced(given)
    width = given.get("gradient_bytes", TRACE_BYTES)
    trace = ring_trace(example_gradients(given["trace_ring"]), width) if "trace_ring" in given else None
    if trace is not None and not any(name in given for name in MODEL_WORDS):
        _refuse_layout(given)
        nothing = Total("all", 0.0, 0.0, 0.0, 0.0)
        return CommAnswer(None, None, dict(given), 0, (), (), nothing, trace, width, (), ())
    case = build_case(given)
    layouts = lower([case.layout.spec], case.books)
    fit = evaluate(case.model.shape, layouts, case.machine.record, case.adapters, keep_terms=False)
    refuse_illegal(fit, case)
    lowered = network_of(given, case)
    wire = np.array([float(given["gradient_bytes"])]) if "gradient_bytes" in given else None
    found = communication(case.model.shape, layouts, lowered.network, case.adapters, wire, algorithms)
    stage = listed_stage(case.model.shape, layouts, case.adapters)
    symbols = _symbols(case, stage, wire)
    ends = [found, found]
    if lowered.network.measured:
        moved = (replace(lowered.network, edge=edge) for edge in (-1.0, 1.0))
        ends = [communication(case.model.shape, layouts, n, case.adapters, wire, algorithms) for n in moved]
    rows = tuple(
        _row(c, (_first(low.time_s), _first(high.time_s)), case, lowered.network, symbols)
        for c, low, high in zip(found, *ends, strict=True)
        if _first(c.traffic_bytes) > 0.0
    )
    totals = tuple(_total(axis, [r for r in rows if r.axis == axis]) for axis in dict.fromkeys(r.axis for r in rows))
    answered = CommAnswer(
        case=case,
        network=lowered,
        given=dict(given),
        stage=int(_first(stage.index)),
        rows=rows,
        totals=totals,
        total=_total("all", rows),
        trace=trace,
        trace_bytes=width,
        assumptions=(*_assumptions(given, case, symbols), *network_assumptions(lowered)),
        warnings=(),
    )
    over = bool(np.any(fit.reasons.masks[fit.reasons.names.index(MEMORY_REASON)]))
    return replace(answered, warnings=(*warnings_of(answered, algorithms, over), *case.warnings))


def forced(given: Mapping[str, Any]) -> dict[str, str]:
    """Algorithms to force, by operation.

    Args:
        given: parsed options; reads ``algorithm``: ``OP=NAME``, or NAME where only one operation has it.

    Returns:
        Operation to algorithm.

    Raises:
        InputError: no such operation or algorithm, or a name that several operations have.
    """
    found: dict[str, str] = {}
    for word in given.get("algorithm", ()):
        folded = word.strip().lower().replace("_", "-")
        op, given_op, name = (folded if "=" in folded else f"={folded}").partition("=")
        name, op = name.strip(), op.strip()
        holders = [row.op for row in ALGORITHMS if row.name == name]
        if given_op and op and op not in OPS:
            raise InputError(f"there is no operation {op!r}; there are {', '.join(OPS)}", where="--algorithm")
        if not holders or (op and op not in holders):
            known = sorted({row.name for row in ALGORITHMS if not op or row.op == op})
            of = f" of {op}" if op else ""
            raise InputError(f"there is no algorithm {name!r}{of}; there are {', '.join(known)}", where="--algorithm")
        if not op and len(holders) > 1:
            raise InputError(
                f"{name} is an algorithm of {', '.join(holders)}; say which, e.g. {holders[0]}={name}",
                where="--algorithm",
            )
        op = op or holders[0]
        if found.get(op, name) != name:
            raise InputError(f"{op} is forced to {found[op]} and to {name}; only one can be meant", where="--algorithm")
        found[op] = name
    return found


def _refuse_layout(given: Mapping[str, Any]) -> None:
    """A ring to watch needs no layout; one that is given without a model is a question half asked."""
    apart = ("trace_ring", "gradient_bytes", "format", "output", "force", "explain", "quiet", "check")
    other = next((name for name in given if name not in apart), None)
    if other is not None:
        flag = "--" + other.replace("_", "-")
        raise InputError(f"belongs to a layout; add --model NAME or --params 7e9 beside {flag}", where=flag)


def _first(values: Any) -> float:
    return float(np.asarray(values, dtype=np.float64).reshape(-1)[0])


def _row(
    found: Collective, bar: tuple[float, float], case: Case, network: Network, symbols: Mapping[str, float]
) -> Row:
    transfer, spec = found.transfer, case.layout.spec
    group, size, count = _first(transfer.group), _first(transfer.message_bytes), _first(transfer.calls)
    large = timed(replace(transfer, message_bytes=np.array([LARGE_BYTES])), np.array([float(spec.gpus)]), network)
    took, best = _first(found.time_s), _first(large.time_s)
    share = (size / LARGE_BYTES) * (best / took) if took > 0.0 else 1.0
    algorithm, curve = ALGORITHMS[int(found.algorithm.reshape(-1)[0])].name, int(found.curve.reshape(-1)[0])
    parameters = symbols["N_e" if transfer.axis == "edp" else "N_d"]
    return Row(
        axis=transfer.axis,
        op=transfer.op,
        algorithm=MEASURED if curve >= 0 else algorithm,
        group=int(group),
        members_inside=int(_first(found.inside)),
        tier=network.tiers[int(found.tier.reshape(-1)[0])].name,
        bytes=size,
        count=count,
        traffic_bytes=_first(found.traffic_bytes),
        time_s=took,
        naive_time_s=_first(found.naive_time_s),
        exposed_s=_first(found.exposed_s),
        what=transfer.what,
        stage=transfer.stage,
        domains=int(_first(found.domains)),
        stride=int(_first(transfer.stride)),
        misaligned=bool(np.any(found.misaligned)),
        extrapolated=bool(np.any(found.extrapolated)),
        rate_share=min(1.0, share),
        low_s=bar[0],
        high_s=bar[1],
        measured=network.curves[curve].source if curve >= 0 else "",
        formula=transfer.formula,
        sent=SENT.get(f"{transfer.op} {algorithm}", SENT[transfer.op]),
        source=transfer.source,
        inputs={**symbols, "N_r": parameters, "K": group, "n": size, "K_in": _first(found.inside)},
    )


def _total(axis: str, rows: Iterable[Row]) -> Total:
    """Sums, left to right in the order shown."""
    sums = [0.0, 0.0, 0.0, 0.0]
    for row in rows:
        for i, value in enumerate((row.traffic_bytes, row.time_s, row.naive_time_s, row.exposed_s)):
            sums[i] += value
    return Total(axis, *sums)


def _symbols(case: Case, stage: Stage, wire: Any) -> dict[str, float]:
    """The numbers behind the letters of the formulas."""
    spec, shape, recipes = case.layout.spec, case.model.shape, case.books.recipes
    code = recipes.names.index(spec.recipe)
    reduced = float(recipes.reduce[code]) if wire is None else float(wire[0])
    tokens = spec.seq_len * spec.micro_batch / spec.cp
    return {
        "s": float(spec.seq_len),
        "b": float(spec.micro_batch),
        "h": float(shape.hidden),
        "c": float(spec.cp),
        "t": float(spec.tp),
        "R": 1.0 / spec.tp if spec.sequence_parallel else 1.0,
        "V": float(shape.vocab),
        "a": float(shape.heads),
        "g": float(shape.heads if shape.mla else shape.kv_heads),
        "d_k": float(shape.head_dim),
        "b_r": reduced,
        "b_w": float(recipes.gather[code]),
        "T": tokens / spec.tp,
        "top_k": float(shape.top_k),
        "x": float(spec.etp),
        "k_shard": float(spec.dp_shard * spec.cp),
        "N_d": _first(stage.dense_parameters),
        "N_e": _first(stage.expert_parameters),
        "m": _first(stage.runs),
        "layers": _first(stage.layers),
    }


def _assumptions(given: Mapping[str, Any], case: Case, symbols: Mapping[str, float]) -> list[Assumption]:
    """What bears on what is sent and nobody typed."""
    found = [a for a in case.assumptions if a.name not in (*NO_MEMORY, *NOT_SENT)]
    if "gradient_bytes" not in given:
        source = f"what recipe {case.layout.spec.recipe} puts on the wire"
        found.append(Assumption("gradient_bytes", symbols["b_r"], "bytes", "default", source))
    return found


def _trace_json(trace: RingTrace) -> dict[str, Any]:
    ranks = len(trace.sent_bytes)
    return {
        "ranks": ranks,
        "steps": [
            {
                "step": number,
                "phase": step.phase,
                "sends": [
                    {"rank": rank, "to": (rank + 1) % ranks, "chunk": chunk, "bytes": float(step.sent_bytes[rank])}
                    for rank, chunk in enumerate(step.chunks)
                ],
                "tensors": step.tensors.tolist(),
            }
            for number, step in enumerate(trace.steps, start=1)
        ],
        "sent_bytes": trace.sent_bytes.tolist(),
        "sum": trace.total.tolist(),
        "mean": trace.mean.tolist(),
    }
