"""From option words to the records that a calculation needs, and what was assumed on the way."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dscalc.answers.envelope import Assumption, Warning
from dscalc.answers.stated import stated_model
from dscalc.answers.words import count_noun
from dscalc.cost.inventory import ParameterCounts, inventory, parameter_counts
from dscalc.errors import InputError
from dscalc.frozen import dataclass
from dscalc.records import Adapters, Books, Hardware, ModelShape
from dscalc.specs.hardware import GpuSpec
from dscalc.specs.layout import Resolved, resolve
from dscalc.specs.layout_spec import LayoutSpec
from dscalc.specs.model import apply_overrides, load_model
from dscalc.specs.overlap import overlapped_books
from dscalc.specs.stack import constant_records, entries, load_books, stack_choice
from dscalc.specs.store import load_cluster, load_gpu, load_profile_file
from dscalc.units import parse_bytes

if TYPE_CHECKING:
    from dscalc.specs.cluster import ClusterSpec

DEFAULT_STACK = "generic"
NF4_BYTES = 0.516  # per element: half a byte and its block constants, [Dettmers2023]
BF16_BYTES = 2.0
SHAPE_WORDS = (
    "layers",
    "hidden",
    "heads",
    "kv_heads",
    "head_dim",
    "ffn_hidden",
    "vocab",
    "gated_mlp",
    "tie_embeddings",
    "experts",
    "top_k",
    "moe_ffn_hidden",
    "shared_experts",
)
TRAINING_WORDS = (
    "seq_len",
    "micro_batch",
    "grad_accum",
    "global_batch",
    "tokens_per_rank",
    "recompute",
    "recompute_layers",
    "precision",
    "recipe",
    "stack",
    "optimizer",
    "attention",
    "loss",
    "capacity_factor",
    "offload",
    "optimizer_in_backward",
)


@dataclass(frozen=True, slots=True)
class Machine:
    """The hardware as found: profiles, and the record that formulas read."""

    gpu: GpuSpec | None
    cluster: ClusterSpec | None
    record: Hardware


@dataclass(frozen=True, slots=True)
class Model:
    """The model as found: its shape, and where each of its sizes comes from."""

    shape: ModelShape
    source: str
    origin: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Case:
    """Everything one question needs, with the origin of each value."""

    given: Mapping[str, Any]
    model: Model
    counts: ParameterCounts
    layout: Resolved
    machine: Machine
    adapters: Adapters | None
    books: Books
    assumptions: tuple[Assumption, ...]
    warnings: tuple[Warning, ...]

    @property
    def only_params(self) -> bool:
        """Nothing but a number of parameters was given."""
        return set(self.given) == {"params"}


def build_case(given: Mapping[str, Any]) -> Case:
    """Resolve parsed options into records.

    Args:
        given: canonical option names to parsed values.

    Returns:
        The case.

    Raises:
        DscalcError: unknown names, unreadable files, contradictions.
    """
    model, assumed, warnings = _model(given)
    machine, found = _machine(given)
    layout = layout_of(given, model.shape, machine.record)
    return Case(
        given=dict(given),
        model=model,
        counts=parameter_counts(model.shape),
        layout=layout,
        machine=machine,
        adapters=_adapters(given, model.shape),
        books=overlapped_books(load_books(), given["overlap"]) if "overlap" in given else load_books(),
        assumptions=(*assumed, *found, *_defaults(layout), *_constants(layout.spec, machine.record)),
        warnings=tuple(warnings),
    )


def layout_of(given: Mapping[str, Any], shape: ModelShape, record: Hardware) -> Resolved:
    """The layout that options make of a model on a machine.

    Raises:
        InputError: options that contradict each other.
    """
    inside = float(record.gpus_per_node[0])
    stack, defaults = _stack(given)
    return resolve(
        given,
        experts=shape.experts,
        longest=shape.learned_positions or None,
        gpus_per_node=int(inside) if inside == inside else None,
        stack_defaults=defaults,
        default_stack=stack,
    )


def _stack(given: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The stack and the options it sets."""
    stack = str(given.get("stack", DEFAULT_STACK))
    choice = stack_choice(stack)
    more = entries("stacks")[choice.name].values
    defaults: dict[str, Any] = {
        name: more[name] for name in ("zero", "optimizer", "reshard", "no_sync") if name in more
    }
    defaults["recipe"] = choice.recipe[given.get("precision", "bf16")]
    return choice.name, defaults | {
        "loss": choice.loss,
        "attention": choice.attention,
        "sequence_parallel": choice.sequence_parallel,
    }


def _model(given: Mapping[str, Any]) -> tuple[Model, list[Assumption], list[Warning]]:
    """The model's shape; a number of parameters alone gets a typical shape, which is named."""
    changes = {name: given[name] for name in SHAPE_WORDS if name in given}
    params = given.get("params")
    assumed: list[Assumption] = []
    warnings: list[Warning] = []
    if "model" in given and params is not None:
        raise InputError("stands beside --model, and both say what the model is; give one of them", where="--params")
    if "model" in given:
        loaded = load_model(given["model"])
        spec, source = loaded.spec, loaded.source
        warnings += [Warning("model_note", text, "check it against the model's card") for text in loaded.warnings]
        assumed += [Assumption(f"model.{a.name}", a.value, a.unit, a.kind, a.source) for a in loaded.assumptions]
    elif params is not None:
        return _stated(params, changes)
    elif changes:
        made = apply_overrides(None, **changes)
        return Model(made.spec.lower(), "given", made.origin), _shape_defaults(made.spec.lower(), made.origin), []
    else:
        raise InputError(
            "says nothing about the model; add --params 7e9, --model NAME or a config.json", where="--model"
        )
    changed = apply_overrides(spec, **changes)
    return Model(changed.spec.lower(), source, changed.origin), assumed, warnings


def _stated(params: int, changes: Mapping[str, Any]) -> tuple[Model, list[Assumption], list[Warning]]:
    """A model of which the number of parameters is known, and perhaps some sizes."""
    shape, origin = stated_model(params, changes)
    sizes = f"{count_noun(shape.layers, 'layer')}, hidden {shape.hidden}, {count_noun(shape.heads, 'head')}, "
    sizes += f"MLP {shape.ffn_hidden}, vocabulary {shape.vocab}"
    sizes += f", {shape.experts} experts of {shape.moe_ffn_hidden}" if shape.experts else ""
    warnings = []
    if not {"layers", "hidden"} <= set(changes):
        warnings.append(
            Warning(
                "assumed_shape",
                f"only the number of parameters is known; activations are those of {sizes}",
                "give --model NAME, a config.json, or --layers, --hidden and --heads",
            )
        )
    return Model(shape, "assumed", origin), [Assumption("model.shape", sizes, "", "assumed", shape.name)], warnings


def _shape_defaults(shape: ModelShape, origin: Mapping[str, str]) -> list[Assumption]:
    """Sizes that nobody typed and nothing implies."""
    fields = {"tie_embeddings": "tied_embeddings"}
    return [
        Assumption(
            f"model.{name}",
            getattr(shape, fields.get(name, name), None),
            "",
            "default",
            f"default of --{name.replace('_', '-')}",
        )
        for name, kind in origin.items()
        if kind == "default"
    ]


def _machine(given: Mapping[str, Any]) -> tuple[Machine, list[Assumption]]:
    """GPU and cluster; what a program can use of the memory comes from the profile, never from the name."""
    gpu: GpuSpec | None = None
    cluster: ClusterSpec | None = None
    assumed: list[Assumption] = []
    profiles = (given["profile"],) if "profile" in given else ()
    folder = "profile" in given and os.path.isdir(given["profile"])  # noqa: PTH112 - pathlib loads slowly
    if folder and not {"gpu", "cluster"} & set(given):
        raise InputError("is a folder; name what to take from it with --gpu or --cluster", where="--profile")
    if "profile" in given and not folder:
        spec = load_profile_file(given["profile"]).spec
        if spec.profile == "cluster":
            cluster = spec
        else:
            gpu = spec
    if "cluster" in given:
        found = load_cluster(given["cluster"], profiles)
        if cluster is not None and found.spec is not cluster and found.spec.id != cluster.id:
            raise InputError(
                f"{given['profile']} is the cluster {cluster.id}, and --cluster names {found.spec.id}; leave --cluster "
                f"out, or name {cluster.id}",
                where="--profile",
            )
        cluster = found.spec
        _alias(assumed, "cluster", found.spec.id, found.assumption)
    if "gpu" in given:
        named = load_gpu(given["gpu"], profiles)
        _alias(assumed, "gpu", named.spec.id, named.assumption)
        if cluster is not None and cluster.gpu != named.spec.id:
            raise InputError(
                f"{named.spec.id} is not the GPU of {cluster.id}, which is {cluster.gpu}; name one of them",
                where="--gpu",
            )
        gpu = named.spec
    elif cluster is not None:
        gpu = load_gpu(cluster.gpu, profiles).spec
    if gpu is not None:
        field, memory = gpu.usable_record
        if memory is not None:
            assumed.append(Assumption("usable_bytes", memory.base, "bytes", memory.kind, f"{field}: {memory.source}"))
    return Machine(gpu, cluster, _record(given, gpu, cluster)), assumed


def _alias(assumed: list[Assumption], name: str, value: str, assumption: str | None) -> None:
    if assumption:
        assumed.append(Assumption(name, value, "", "assumed", assumption))


def _record(given: Mapping[str, Any], gpu: GpuSpec | None, cluster: ClusterSpec | None) -> Hardware:
    inside = given.get("gpus_per_node")
    unknown = np.array([np.nan])
    if gpu is None:
        return Hardware(unknown, unknown if inside is None else np.array([float(inside)]), unknown)
    if cluster is not None and inside is None:
        return cluster.lower(gpu)
    return gpu.lower(gpus_per_node=inside, host_bytes=cluster.host_bytes if cluster else None)


def _adapters(given: Mapping[str, Any], shape: ModelShape) -> Adapters | None:
    rank = given.get("lora_rank")
    if rank is None:
        for name in ("lora_targets", "base_precision"):
            if name in given:
                raise InputError(
                    "belongs to adapters; add --lora-rank 16 or leave it out", where="--" + name.replace("_", "-")
                )
        return None
    known = adapter_targets(shape)
    targets = tuple(given.get("lora_targets", known))
    unknown = next((t for t in targets if t not in known), None)
    if unknown is not None:
        raise InputError(f"{unknown!r} is no matrix of {shape.name}; it has {', '.join(known)}", where="--lora-targets")
    return Adapters(rank, targets, NF4_BYTES if given.get("base_precision") == "nf4" else BF16_BYTES)


def adapter_targets(shape: ModelShape) -> tuple[str, ...]:
    """Names of the matrices that take an adapter: every linear layer but the head."""
    return tuple(sorted({t.target for t in inventory(shape) if t.target and t.target != "lm_head"}))


def _defaults(layout: Resolved) -> list[Assumption]:
    """One assumption for each value of the layout that is neither typed nor implied."""
    values = layout.spec.model_dump()
    return [
        Assumption(
            name,
            _shown(values[name]),
            _UNITS.get(name, ""),
            "default",
            layout.why.get(name) or f"default of --{name.replace('_', '-')}",
        )
        for name, mark in layout.marks.items()
        if mark == "default"
    ]


_UNITS = {
    "seq_len": "tokens",
    "micro_batch": "sequences",
    "grad_accum": "micro-batches",
    "dp": "ranks",
    "tp": "ranks",
    "pp": "stages",
    "cp": "ranks",
}


def _shown(value: Any) -> Any:
    return (", ".join(value) or "none") if isinstance(value, tuple) else value


def _constants(spec: LayoutSpec, record: Hardware) -> list[Assumption]:
    """Fixed costs of a process that this layout has, which the user can measure and replace."""
    found = []
    unused = {
        "communicator_bytes": spec.gpus == 1,
        "launch_queue": spec.tp == 1,
        "gpus_per_node": spec.gpus == 1 or not np.isnan(record.gpus_per_node[0]),
    }
    for name, entry in constant_records().items():
        if unused.get(name):
            continue
        size = parse_bytes(f"{entry['value']} {entry['unit']}") if name.endswith("_bytes") else entry["value"]
        found.append(
            Assumption(
                name, size, "bytes" if name.endswith("_bytes") else entry["unit"], entry["kind"], entry["source"]
            )
        )
    return found


def inputs_of(case: Case) -> dict[str, Any]:
    """The resolved inputs by group, with the origin of each value under ``marks``."""
    shape, spec, counts = case.model.shape, case.layout.spec.model_dump(), case.counts
    given = case.given
    hides = list(given["overlap"]) if "overlap" in given else None
    gpu, cluster, record = case.machine.gpu, case.machine.cluster, case.machine.record
    marks: dict[str, str] = {
        **case.layout.marks,
        **{name: "given" for name in ("gpu", "cluster", "params", "model") if name in given},
        **case.model.origin,
    }
    return {
        "model": {
            "name": shape.name,
            "params": counts.main,
            "active_params": counts.active,
            "mtp_params": counts.mtp,
            "vision_params": counts.vision,
            "layers": shape.layers,
            "hidden": shape.hidden,
            "heads": shape.heads,
            "kv_heads": shape.kv_heads,
            "head_dim": shape.head_dim,
            "ffn_hidden": shape.ffn_hidden,
            "vocab": shape.vocab,
            "experts": shape.experts,
            "top_k": shape.top_k,
            "source": case.model.source,
            "lora_rank": case.adapters.rank if case.adapters else None,
            "lora_targets": list(case.adapters.targets) if case.adapters else None,
            "base_precision": given.get("base_precision", "bf16") if case.adapters else None,
        },
        "hardware": {
            "gpu": gpu.id if gpu else None,
            "cluster": cluster.id if cluster else None,
            "usable_bytes": float(record.usable_bytes[0]),
            "gpus_per_node": float(record.gpus_per_node[0]),
            "host_bytes": float(record.host_bytes[0]),
        },
        "layout": {name: spec[name] for name in spec if name not in TRAINING_WORDS},
        "training": {name: spec[name] for name in TRAINING_WORDS} | {"overlap": hides},
        "marks": marks,
    }
