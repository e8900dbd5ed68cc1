"""From the options a person gave to one resolved layout: what follows, what is a default, what contradicts."""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd
from typing import Any, Literal

from dscalc.codes import RANK_ORDERS
from dscalc.errors import InputError
from dscalc.frozen import dataclass
from dscalc.specs.layout_spec import LARGEST_TOTAL, LayoutSpec, lower

__all__ = ["LayoutSpec", "Resolved", "lower", "resolve"]

Mark = Literal["given", "derived", "default"]

LONGEST_DEFAULT = 4096  # tokens of a sequence where nothing says otherwise
DEGREES = ("tp", "pp", "cp")  # with dp they multiply to the GPUs of the job


@dataclass(frozen=True, slots=True)
class Resolved:
    """A layout with the origin of each value; ``why`` explains the values that nobody typed."""

    spec: LayoutSpec
    marks: Mapping[str, Mark]
    why: Mapping[str, str]


class _Sheet:
    """Values decided so far, each with its origin."""

    __slots__ = ("given", "marks", "values", "why")

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = given
        self.values: dict[str, Any] = {}
        self.marks: dict[str, Mark] = {}
        self.why: dict[str, str] = {}

    def put(self, name: str, value: Any, mark: Mark, why: str = "") -> Any:
        self.values[name], self.marks[name] = value, mark
        if mark != "given":
            self.why[name] = why
        return value

    def take(self, name: str, default: Any, why: str = "") -> Any:
        """The given value, or the default."""
        if name in self.given:
            return self.put(name, self.given[name], "given")
        return self.put(name, default, "default", why)

    def has(self, *names: str) -> bool:
        return all(name in self.given for name in names)


def resolve(
    given: Mapping[str, Any],
    *,
    experts: int = 0,
    longest: int | None = None,
    gpus_per_node: int | None = None,
    stack_defaults: Mapping[str, Any] | None = None,
    default_stack: str = "",
) -> Resolved:
    """Decide every value of a layout.

    Args:
        given: canonical option names to parsed values, as ``options.gather`` returns them.
        experts: experts in a layer of the model; 0 for a dense model.
        longest: longest sequence the model was made for [tokens].
        gpus_per_node: GPUs of one node where the hardware says so; turns ``nodes`` into GPUs.
        stack_defaults: option names to the values the chosen stack sets.
        default_stack: the stack whose defaults these are.

    Returns:
        The layout, with a mark and a reason for each value.

    Raises:
        InputError: options that contradict each other; names them and what would be right.
    """
    sheet = _Sheet(
        {name: value for name, value in given.items() if name in LayoutSpec.model_fields or name in _INDIRECT}
    )
    _framework(sheet, dict(stack_defaults or {}), default_stack)
    _degrees(sheet, gpus_per_node)
    _batch(sheet, longest)
    _ranks(sheet, given)
    _experts(sheet, experts)
    _kernels(sheet)
    for name in ("gpus", "global_batch", "tokens_per_rank"):
        if sheet.values[name] > LARGEST_TOTAL:
            raise InputError(f"{sheet.values[name]:.3g} is out of range; lower one of its factors", where=_flag(name))
    return Resolved(LayoutSpec.trusted(sheet.values), dict(sheet.marks), dict(sheet.why))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


_INDIRECT = ("nodes", "gpus_per_node")


def _framework(sheet: _Sheet, defaults: dict[str, Any], stack: str) -> None:
    """What a stack sets; the more specific option wins."""
    sheet.take("stack", stack, "the plain books of the ZeRO paper, not one framework's")
    for name, fallback in (
        ("precision", "bf16"),
        ("recipe", ""),
        ("optimizer", "adamw"),
        ("attention", "flash"),
        ("loss", ""),
    ):
        sheet.take(
            name, defaults.get(name, fallback), f"set by --stack {sheet.values['stack']}" if name in defaults else ""
        )
    sheet.values["_stack"] = defaults


def _degrees(sheet: _Sheet, gpus_per_node: int | None) -> None:
    tp, pp, cp = (sheet.take(name, 1) for name in DEGREES)
    model_parallel = tp * pp * cp
    gpus, said = _given_gpus(sheet, gpus_per_node)
    replicate, shard = sheet.given.get("dp_replicate"), sheet.given.get("dp_shard")
    product = f"--tp {tp} x --pp {pp} x --cp {cp}"
    if sheet.has("dp"):
        dp = sheet.put("dp", sheet.given["dp"], "given")
    elif replicate and shard:
        dp = sheet.put("dp", replicate * shard, "derived", "dp_replicate x dp_shard")
    elif gpus:
        if gpus % model_parallel:
            below, above = gpus // model_parallel * model_parallel, -(-gpus // model_parallel) * model_parallel
            right = f"{above}" if not below else f"{below} or {above}"
            raise InputError(
                f"{product} = {model_parallel} does not divide {said} {gpus}; {right} GPUs would do", where=said
            )
        dp = sheet.put("dp", gpus // model_parallel, "derived", "gpus / (tp x pp x cp)")
    elif shard or replicate:
        dp = sheet.put(
            "dp", shard or replicate, "derived", f"{'dp_shard' if shard else 'dp_replicate'}, without other replicas"
        )
    elif sheet.has("global_batch", "micro_batch", "grad_accum"):
        rows = sheet.given["micro_batch"] * sheet.given["grad_accum"]
        whole = sheet.given["global_batch"]
        if whole % rows:
            raise InputError(
                f"--micro-batch {sheet.given['micro_batch']} x --grad-accum {sheet.given['grad_accum']} = {rows} "
                f"does not divide --global-batch {whole}",
                where="--global-batch",
            )
        dp = sheet.put("dp", whole // rows, "derived", "global_batch / (micro_batch x grad_accum)")
    else:
        grid = sheet.given.get("ep", 1) * sheet.given.get("etp", 1)
        dp = grid // gcd(grid, tp * cp)
        sheet.put("dp", dp, "default", "the fewest ranks that hold ep x etp experts" if dp > 1 else "")
    if gpus and dp * model_parallel != gpus:
        needed = gpus / model_parallel
        right = f"--dp {int(needed)}" if needed == int(needed) else "another degree"
        raise InputError(
            f"{product} x --dp {dp} = {dp * model_parallel} GPUs, but {said} is {gpus}; "
            f"--gpus {dp * model_parallel} or {right} would agree",
            where="--dp",
        )
    if gpus:
        sheet.put(
            "gpus",
            gpus,
            "given" if said == "--gpus" else "derived",
            "" if said == "--gpus" else "nodes x gpus_per_node",
        )
    else:
        sheet.put("gpus", dp * model_parallel, "derived", "tp x pp x cp x dp")
    _replicas(sheet, dp, replicate, shard)


def _given_gpus(sheet: _Sheet, gpus_per_node: int | None) -> tuple[int | None, str]:
    """GPUs of the job as typed, and the option that said so."""
    gpus, nodes = sheet.given.get("gpus"), sheet.given.get("nodes")
    if nodes is None:
        return gpus, "--gpus"
    inside = sheet.given.get("gpus_per_node") or gpus_per_node
    if not inside:
        raise InputError(
            "does not say how many GPUs a node has; add --gpus-per-node 8 or a --gpu or --cluster", where="--nodes"
        )
    if gpus is None:
        return nodes * inside, f"--nodes {nodes} x --gpus-per-node {inside} ="
    if gpus != nodes * inside:
        raise InputError(
            f"--nodes {nodes} x --gpus-per-node {inside} = {nodes * inside}, but --gpus is {gpus}", where="--nodes"
        )
    return gpus, "--gpus"


def _replicas(sheet: _Sheet, dp: int, replicate: int | None, shard: int | None) -> None:
    if replicate and shard and replicate * shard != dp:
        raise InputError(
            f"--dp-replicate {replicate} x --dp-shard {shard} = {replicate * shard}, but dp is {dp}", where="--dp-shard"
        )
    for name, value in (("dp_replicate", replicate), ("dp_shard", shard)):
        if value and dp % value:
            raise InputError(f"{value} does not divide dp = {dp}", where=_flag(name))
    if replicate:
        sheet.put("dp_replicate", replicate, "given")
    else:
        sheet.put("dp_replicate", dp // shard if shard else 1, "derived" if shard else "default", "dp / dp_shard")
    if shard:
        sheet.put("dp_shard", shard, "given")
    else:
        sheet.put("dp_shard", dp // sheet.values["dp_replicate"], "derived", "dp / dp_replicate")


def _batch(sheet: _Sheet, longest: int | None) -> None:
    """global_batch = micro_batch * grad_accum * dp, tokens_per_rank = micro_batch * grad_accum * seq_len."""
    short = longest is not None and longest < LONGEST_DEFAULT
    seq = sheet.take("seq_len", longest if short else LONGEST_DEFAULT, "the model's longest sequence" if short else "")
    dp = sheet.values["dp"]
    micro, accum = sheet.given.get("micro_batch"), sheet.given.get("grad_accum")
    rank = _sequences_of_a_rank(sheet, dp, seq)  # micro_batch * grad_accum, where it follows
    if micro and accum:
        if rank is not None and micro * accum != rank[0]:
            raise InputError(
                f"--micro-batch {micro} x --grad-accum {accum} = {micro * accum} sequences a rank, "
                f"but {rank[1]} = {rank[0]}",
                where="--grad-accum",
            )
        sheet.put("micro_batch", micro, "given")
        sheet.put("grad_accum", accum, "given")
    elif rank is not None:
        sequences, said = rank
        known, other = ("grad_accum", "micro_batch") if accum else ("micro_batch", "grad_accum")
        each = accum or micro or 1
        if sequences % each:
            raise InputError(f"{each} does not divide {said} = {sequences} sequences a rank", where=_flag(known))
        sheet.put(known, each, "given" if accum or micro else "default")
        sheet.put(other, sequences // each, "derived", f"{said} / {known}")
    else:
        pp = sheet.values["pp"]
        sheet.take("micro_batch", 1)
        sheet.take(
            "grad_accum", pp, "as many micro-batches as pipeline stages, so that the pipeline fills" if pp > 1 else ""
        )
    each, times = sheet.values["micro_batch"], sheet.values["grad_accum"]
    for name, value, why in (
        ("global_batch", each * times * dp, "micro_batch x grad_accum x dp"),
        ("tokens_per_rank", each * times * seq, "micro_batch x grad_accum x seq_len"),
    ):
        sheet.put(name, value, "given" if name in sheet.given else "derived", why)


def _sequences_of_a_rank(sheet: _Sheet, dp: int, seq: int) -> tuple[int, str] | None:
    """Sequences of one data-parallel rank and step that the global batch or the tokens of a rank imply."""
    found: tuple[int, str] | None = None
    if "global_batch" in sheet.given:
        whole = sheet.given["global_batch"]
        if whole % dp:
            below, above = whole // dp * dp, -(-whole // dp) * dp
            right = f"{above}" if not below else f"{below} or {above}"
            raise InputError(
                f"{whole} sequences cannot be shared by dp = {dp} ranks; {right} would do", where="--global-batch"
            )
        found = (whole // dp, f"--global-batch {whole} / dp {dp}")
    if "tokens_per_rank" in sheet.given:
        tokens = sheet.given["tokens_per_rank"]
        if tokens % seq:
            right = max(1, tokens // seq) * seq
            raise InputError(
                f"{tokens} is not a whole number of sequences of {seq} tokens; {right} would do",
                where="--tokens-per-rank",
            )
        if found and found[0] != tokens // seq:
            raise InputError(
                f"{tokens} tokens are {tokens // seq} sequences, but {found[1]} = {found[0]}", where="--tokens-per-rank"
            )
        found = found or (tokens // seq, f"--tokens-per-rank {tokens} / seq_len {seq}")
    return found


def _ranks(sheet: _Sheet, given: Mapping[str, Any]) -> None:
    """How ranks share state, residuals and the pipeline."""
    stack: dict[str, Any] = sheet.values.pop("_stack")
    by_stack = f"set by --stack {sheet.values['stack']}"
    if "zero" not in given and ("dp_shard" in given or "dp_replicate" in given):
        sheet.put("zero", 3, "derived", "--dp-shard and --dp-replicate belong to ZeRO-3 (hybrid sharding)")
    else:
        sheet.take("zero", stack.get("zero", 0), by_stack if "zero" in stack else "")
    tp, vpp = sheet.values["tp"], sheet.take("vpp", 1)
    sheet.take(
        "sequence_parallel",
        bool(stack.get("sequence_parallel", True)) and tp > 1,
        (by_stack if "sequence_parallel" in stack else "on with tensor parallelism") if tp > 1 else "",
    )
    sheet.take(
        "schedule", "interleaved" if vpp > 1 else stack.get("schedule", "1f1b"), "vpp above 1" if vpp > 1 else ""
    )
    for name, fallback in (("cp_comm", "ring"), ("reshard", True), ("no_sync", False)):
        sheet.take(name, stack.get(name, fallback), by_stack if name in stack else "")
    if "rank_order" in given or (sheet.values["pp"] > 1 and sheet.values["dp"] > 1):
        sheet.take("rank_order", RANK_ORDERS[0])
    else:
        sheet.put("rank_order", RANK_ORDERS[0], "derived", "one order, as pp or dp is 1")


def _experts(sheet: _Sheet, experts: int) -> None:
    ep = sheet.take("ep", 1)
    tp = sheet.values["tp"]
    stage = tp * sheet.values["cp"] * sheet.values["dp"]
    fits = experts > 0 and stage % (tp * ep) == 0
    sheet.take("etp", tp if fits else 1, "as tp" if fits and tp > 1 else "")
    sheet.take("capacity_factor", 1.0, "balanced routing" if experts else "")


def _kernels(sheet: _Sheet) -> None:
    if "recompute_layers" in sheet.given and sheet.given.get("recompute", "full") != "full":
        raise InputError(
            f"belongs to --recompute full, but --recompute is {sheet.given['recompute']}", where="--recompute-layers"
        )
    if "recompute_layers" in sheet.given and "recompute" not in sheet.given:
        sheet.put("recompute", "full", "derived", "--recompute-layers")
    else:
        sheet.take("recompute", "none")
    sheet.take("recompute_layers", None)
    offload = sheet.take("offload", ())
    if offload == ("none",):
        sheet.values["offload"] = ()
    sheet.take("optimizer_in_backward", False)
