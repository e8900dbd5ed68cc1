"""What could be turned next: variations of one layout, each of them a row of the same evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import Any

from dscalc.frozen import dataclass
from dscalc.records import ModelShape
from dscalc.specs.layout_spec import LayoutSpec


@dataclass(frozen=True, slots=True)
class Variation:
    """A changed layout: the options it is about, what it costs in words, and whether it is a pair of knobs."""

    option: str
    cost: str
    spec: LayoutSpec
    pair: bool = False
    grows: bool = False  # a degree that does not fit into the present number of GPUs


def changed(spec: LayoutSpec, *, experts: bool = False, **changes: Any) -> LayoutSpec:
    """The layout with some values replaced and the dependent ones worked out again.

    GPUs stay where the degrees divide them and grow otherwise; the global batch stays where it divides.

    Args:
        spec: the present layout.
        experts: the model has experts.
        changes: values by field; ``dp`` may be among them.

    Returns:
        A consistent layout.
    """
    values = spec.model_dump() | changes
    model_parallel = values["tp"] * values["pp"] * values["cp"]
    if "dp" not in changes:
        values["dp"] = max(1, spec.gpus // model_parallel)
    values["gpus"] = values["dp"] * model_parallel
    values["dp_replicate"] = gcd(spec.dp_replicate, values["dp"])
    values["dp_shard"] = values["dp"] // values["dp_replicate"]
    if spec.tp == 1 and values["tp"] > 1 and "sequence_parallel" not in changes:
        values["sequence_parallel"] = True
    if spec.etp == spec.tp and "etp" not in changes:
        fits = experts and values["dp"] * values["cp"] % values["ep"] == 0
        values["etp"] = values["tp"] if fits else 1
    rows = values["micro_batch"] * values["dp"]
    if "grad_accum" not in changes:
        values["grad_accum"] = max(1, spec.global_batch // rows)
    values["global_batch"] = rows * values["grad_accum"]
    values["tokens_per_rank"] = values["micro_batch"] * values["grad_accum"] * values["seq_len"]
    return LayoutSpec.trusted(values)


def variations(
    spec: LayoutSpec, shape: ModelShape, gpus_per_node: float, optimizers: tuple[str, ...], largest_zero: int = 3
) -> list[Variation]:
    """Everything worth trying on this layout; legality and gain are for the evaluation to say.

    Args:
        spec: the present layout.
        shape: the model.
        gpus_per_node: GPUs of one node [count], nan where unknown.
        optimizers: known optimizer names.
        largest_zero: the last ZeRO stage that the stack has.

    Returns:
        Variations, single knobs first, then pairs.
    """
    single = [
        *_sharding(spec, largest_zero),
        *_activations(spec, shape),
        *_degrees(spec, shape, gpus_per_node),
        *_more_ranks(spec, largest_zero),
        *_numbers(spec, optimizers),
    ]
    return [*single, *_pairs(spec, shape, largest_zero)]


def _sharding(spec: LayoutSpec, largest: int) -> Iterator[Variation]:
    ranks = spec.dp_shard * spec.cp
    for stage in range(spec.zero + 1, largest + 1):
        if ranks > 1:
            yield Variation(f"--zero {stage}", _traffic(stage, spec), changed(spec, zero=stage))
    if spec.zero == 3 and not spec.reshard:
        yield Variation("--reshard", "weights are gathered again in backward", changed(spec, reshard=True))
    if spec.zero == 3 and spec.dp_replicate > 1:
        yield Variation(
            f"--dp-replicate 1 --dp-shard {spec.dp}",
            "weights are gathered across all nodes",
            changed(spec).model_copy(update={"dp_replicate": 1, "dp_shard": spec.dp}),
        )
    if spec.no_sync:
        yield Variation("drop --no-sync", "gradients are reduced for every micro-batch", changed(spec, no_sync=False))


def _traffic(stage: int, spec: LayoutSpec) -> str:
    """What a ZeRO stage sends, beside plain data parallelism that reduces gradients once a step."""
    times = spec.grad_accum
    if stage == 1 or (stage == 2 and (times == 1 or spec.no_sync)):
        return "no more traffic than plain data parallelism"
    if stage == 2:
        return f"gradients are reduced for each of {times} micro-batches: {(times + 1) / 2:g} times the traffic"
    if times == 1:
        return "about 1.5 times the traffic of plain data parallelism"
    return f"weights are gathered for each of {times} micro-batches: about {_zero3_times(spec):g} times the traffic"


def _zero3_times(spec: LayoutSpec) -> float:
    """Traffic of ZeRO-3 over that of plain data parallelism, which is two passes of the parameters."""
    gathers = 2.0 * spec.grad_accum if spec.reshard else 1.0 * spec.grad_accum
    return (gathers + (1.0 if spec.no_sync else spec.grad_accum)) / 2.0


def _every_layer(spec: LayoutSpec, shape: ModelShape) -> int | None:
    """Layers to recompute in full: all of a stage, said by their number where one was given."""
    return None if spec.recompute_layers is None else -(-shape.layers // spec.pp)


def _activations(spec: LayoutSpec, shape: ModelShape) -> Iterator[Variation]:
    if spec.recompute == "none":
        yield Variation(
            "--recompute selective", "parts of each layer are computed twice", changed(spec, recompute="selective")
        )
    if spec.recompute != "full" or spec.recompute_layers != _every_layer(spec, shape):
        yield Variation(
            "--recompute full",
            "one more forward pass: about a third more compute",
            changed(spec, recompute="full", recompute_layers=_every_layer(spec, shape)),
        )
    if spec.tp > 1 and not spec.sequence_parallel:
        yield Variation(
            "--sequence-parallel",
            "the same traffic volume, in other collectives",
            changed(spec, sequence_parallel=True),
        )
    if spec.micro_batch > 1 and spec.micro_batch % 2 == 0:
        half, twice = spec.micro_batch // 2, spec.grad_accum * 2
        yield Variation(
            f"--micro-batch {half} --grad-accum {twice}",
            "smaller matrix products; the same global batch",
            changed(spec, micro_batch=half, grad_accum=twice),
        )
    if spec.attention == "unfused":
        yield Variation("--attention flash", "nothing, where the kernel exists", changed(spec, attention="flash"))
    if spec.loss not in ("chunked", "fused"):
        words = "the loss runs in chunks" + ("; gathers a vocabulary-parallel head" if spec.tp > 1 else "")
        yield Variation("--loss chunked", words, changed(spec, loss="chunked"))
    if "activations" not in spec.offload and spec.recompute == "full":
        yield Variation(
            "--offload activations",
            "layer inputs cross the host link twice a step; needs host memory",
            changed(spec, offload=(*spec.offload, "activations")),
        )


def _degrees(spec: LayoutSpec, shape: ModelShape, gpus_per_node: float) -> Iterator[Variation]:
    node = gpus_per_node if gpus_per_node == gpus_per_node else 8
    if 2 * spec.tp <= node:
        yield _degree(spec, shape, "tp", "collectives in every layer, inside a node")
    if 2 * spec.pp <= shape.layers:
        yield _degree(spec, shape, "pp", "a pipeline bubble")
    yield _degree(spec, shape, "cp", "keys and values travel in every layer")
    if shape.experts:
        yield _degree(spec, shape, "ep", "tokens travel to experts further away")


def _degree(spec: LayoutSpec, shape: ModelShape, name: str, cost: str) -> Variation:
    value, experts = 2 * getattr(spec, name), bool(shape.experts)
    new = changed(spec, experts=experts, **{name: value})
    if name == "pp" and new.grad_accum < value:  # a pipeline wants a micro-batch for each stage
        new = changed(spec, experts=experts, pp=value, grad_accum=value)
    grown = f"; {new.gpus} GPUs where there were {spec.gpus}" if new.gpus != spec.gpus else ""
    return Variation(f"--{name}", cost + grown, new, grows=bool(grown))


def _more_ranks(spec: LayoutSpec, largest: int) -> Iterator[Variation]:
    ranks = spec.dp_shard * spec.cp
    if spec.zero > 0 or ranks == 1:
        stage = spec.zero or largest
        yield Variation(
            "--gpus --nodes --dp --zero",
            f"{2 * spec.gpus} GPUs where there were {spec.gpus}",
            changed(spec, dp=2 * spec.dp, zero=stage, grad_accum=spec.grad_accum),
        )


def _numbers(spec: LayoutSpec, optimizers: tuple[str, ...]) -> Iterator[Variation]:
    if spec.optimizer == "adamw" and "adamw-8bit" in optimizers:
        yield Variation(
            "--optimizer adamw-8bit", "quantised moments; check convergence", changed(spec, optimizer="adamw-8bit")
        )
    if "optimizer" not in spec.offload:
        yield Variation(
            "--offload optimizer",
            "the step waits for the host; needs host memory",
            changed(spec, offload=(*spec.offload, "optimizer")),
        )
    if spec.recipe != "bf16-pure":
        yield Variation(
            "--recipe bf16-pure", "no fp32 master weights: small updates are lost", changed(spec, recipe="bf16-pure")
        )
    if not spec.optimizer_in_backward and spec.grad_accum == 1:
        yield Variation(
            "--optimizer-in-backward",
            "no gradient clipping by global norm, no accumulation",
            changed(spec, optimizer_in_backward=True),
        )


def _pairs(spec: LayoutSpec, shape: ModelShape, largest: int) -> Iterator[Variation]:
    """A few pairs, shown only where no single knob suffices."""
    stage = max(spec.zero, largest)
    full: dict[str, Any] = {"zero": stage, "recompute": "full", "recompute_layers": _every_layer(spec, shape)}
    if spec.dp_shard * spec.cp > 1 and spec.zero < stage and spec.recompute != "full":
        yield Variation(
            "--zero --recompute", f"{_traffic(stage, spec)}; a third more compute", changed(spec, **full), True
        )
    for times in (4, 8, 16, 32, 64):
        grown = changed(spec, dp=times * spec.dp, grad_accum=spec.grad_accum, **full)
        yield Variation(
            "--gpus --nodes --dp --zero --recompute", f"{grown.gpus} GPUs where there were {spec.gpus}", grown, True
        )
