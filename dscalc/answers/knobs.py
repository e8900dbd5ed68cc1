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
    """A changed layout: the options to type, what it costs in words, and whether it is a pair of knobs."""

    option: str
    cost: str
    spec: LayoutSpec
    pair: bool = False
    grows: bool = False  # a degree that does not fit into the present number of GPUs


def changed(spec: LayoutSpec, **changes: Any) -> LayoutSpec:
    """The layout with some values replaced and the dependent ones worked out again.

    GPUs stay where the degrees divide them and grow otherwise; the global batch stays where it divides.

    Args:
        spec: the present layout.
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
        values["etp"] = values["tp"] if values["dp"] * values["cp"] % values["ep"] == 0 else 1
    rows = values["micro_batch"] * values["dp"]
    if "grad_accum" not in changes:
        values["grad_accum"] = max(1, spec.global_batch // rows)
    values["global_batch"] = rows * values["grad_accum"]
    values["tokens_per_rank"] = values["micro_batch"] * values["grad_accum"] * values["seq_len"]
    return LayoutSpec.trusted(values)


def variations(
    spec: LayoutSpec, shape: ModelShape, gpus_per_node: float, optimizers: tuple[str, ...]
) -> list[Variation]:
    """Everything worth trying on this layout; legality and gain are for the evaluation to say.

    Args:
        spec: the present layout.
        shape: the model.
        gpus_per_node: GPUs of one node [count], nan where unknown.
        optimizers: known optimizer names.

    Returns:
        Variations, single knobs first, then pairs.
    """
    single = [
        *_sharding(spec),
        *_activations(spec),
        *_degrees(spec, shape, gpus_per_node),
        *_more_ranks(spec),
        *_numbers(spec, optimizers),
    ]
    return [*single, *_pairs(spec)]


def _sharding(spec: LayoutSpec) -> Iterator[Variation]:
    ranks = spec.dp_shard * spec.cp
    costs = {
        1: "no more traffic than plain data parallelism",
        2: "no more traffic while gradients are reduced once a step",
        3: "about 1.5 times the traffic of plain data parallelism",
    }
    for stage in range(spec.zero + 1, 4):
        if ranks > 1:
            yield Variation(f"--zero {stage}", costs[stage], changed(spec, zero=stage))
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


def _activations(spec: LayoutSpec) -> Iterator[Variation]:
    if spec.recompute == "none":
        yield Variation(
            "--recompute selective", "parts of each layer are computed twice", changed(spec, recompute="selective")
        )
    if spec.recompute != "full" or spec.recompute_layers is not None:
        yield Variation(
            "--recompute full",
            "one more forward pass: about a third more compute",
            changed(spec, recompute="full", recompute_layers=None),
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
        yield _degree(spec, "tp", "collectives in every layer, inside a node")
    if 2 * spec.pp <= shape.layers:
        yield _degree(spec, "pp", "a pipeline bubble")
    yield _degree(spec, "cp", "keys and values travel in every layer")
    if shape.experts:
        yield _degree(spec, "ep", "tokens travel to experts further away")


def _degree(spec: LayoutSpec, name: str, cost: str) -> Variation:
    value = 2 * getattr(spec, name)
    new = changed(spec, **{name: value})
    if name == "pp" and new.grad_accum < value:  # a pipeline wants a micro-batch for each stage
        new = changed(spec, pp=value, grad_accum=value)
    grown = f"; {new.gpus} GPUs where there were {spec.gpus}" if new.gpus != spec.gpus else ""
    words = f"--{name} {value}"
    words += f" --dp {new.dp}" if new.dp != spec.dp else ""
    words += f" --grad-accum {new.grad_accum}" if new.global_batch != spec.global_batch else ""
    return Variation(words, cost + grown, new, grows=bool(grown))


def _more_ranks(spec: LayoutSpec) -> Iterator[Variation]:
    ranks = spec.dp_shard * spec.cp
    if spec.zero > 0 or ranks == 1:
        stage = max(spec.zero, 1 if spec.zero else 3)
        words = f"--dp {2 * spec.dp}" if spec.zero else f"--dp {2 * spec.dp} --zero 3"
        yield Variation(
            words,
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


def _pairs(spec: LayoutSpec) -> Iterator[Variation]:
    """A few pairs, shown only where no single knob suffices."""
    if spec.dp_shard * spec.cp > 1 and spec.zero < 3 and spec.recompute != "full":
        yield Variation(
            "--zero 3 --recompute full",
            "1.5 times the traffic and a third more compute",
            changed(spec, zero=3, recompute="full", recompute_layers=None),
            True,
        )
    for times in (4, 8, 16, 32, 64):
        grown = changed(
            spec, dp=times * spec.dp, zero=3, recompute="full", recompute_layers=None, grad_accum=spec.grad_accum
        )
        more = " --recompute full" if spec.recompute != "full" else ""
        yield Variation(
            f"--dp {grown.dp} --zero 3{more}", f"{grown.gpus} GPUs where there were {spec.gpus}", grown, True
        )
