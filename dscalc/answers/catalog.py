"""What ships: GPUs, clusters, models, recipes, stacks and more, each number with its source."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from dscalc.answers.envelope import envelope
from dscalc.errors import InputError, UnknownNameError

KINDS = ("gpus", "clusters", "interconnects", "models", "recipes", "stacks", "optimizers", "losses", "schedules")


class Listing(NamedTuple):
    """Rows of one kind; ``columns`` are names with their unit, empty for text and plain numbers."""

    kind: str
    columns: tuple[tuple[str, str], ...]
    rows: tuple[tuple[Any, ...], ...]

    def to_json(self) -> dict[str, Any]:
        """Rows as objects, in base units."""
        names = [name for name, _ in self.columns]
        rows = [dict(zip(names, row, strict=True)) for row in self.rows]
        return envelope("list", {"kind": self.kind}, (), (), {"rows": rows})


class Fact(NamedTuple):
    """One value of a shipped thing."""

    name: str
    value: Any
    unit: str = ""
    kind: str = ""
    source: str = ""


class Entry(NamedTuple):
    """A shipped thing with all its values."""

    kind: str
    id: str
    facts: tuple[Fact, ...]


class Shown(NamedTuple):
    """Everything of that name; a recipe and a stack may share one."""

    name: str
    entries: tuple[Entry, ...]

    def to_json(self) -> dict[str, Any]:
        """Entries as objects, values as their sources print them."""
        entries = [
            {
                "kind": e.kind,
                "id": e.id,
                "values": [
                    {"name": f.name, "value": f.value, "unit": f.unit, "kind": f.kind, "source": f.source}
                    for f in e.facts
                ],
            }
            for e in self.entries
        ]
        return envelope("show", {"id": self.name}, (), (), {"entries": entries})


def listing(kind: str, profiles: Sequence[str] = ()) -> Listing:
    """What ships of one kind.

    Args:
        kind: one of ``KINDS``.
        profiles: the user's profile files or folders.

    Returns:
        The rows, in base units.

    Raises:
        UnknownNameError: there is no such kind.
        ProfileError: a profile file is broken.
    """
    if kind not in KINDS:
        raise UnknownNameError("kind", kind, KINDS, where="list")
    return _LISTS[kind](tuple(profiles))


def show(name: str, profiles: Sequence[str] = ()) -> Shown:
    """Everything that has this name, each value with unit, kind and source.

    Args:
        name: id or alias of a GPU, cluster, interconnect, model, recipe, stack, optimizer, loss or schedule.
        profiles: the user's profile files or folders.

    Returns:
        One entry a kind that knows the name.

    Raises:
        UnknownNameError: nothing has that name.
        ProfileError: a profile file is broken.
    """
    entries = tuple(_found(name, tuple(profiles)))
    if not entries:
        raise UnknownNameError("id", name[:80], _all_names(tuple(profiles)), where="show")
    return Shown(name, entries)


def _gpus(profiles: tuple[str, ...]) -> Listing:
    from dscalc.specs.store import gpu_ids, load_gpu

    columns = (
        ("id", ""),
        ("vendor", ""),
        ("usable_bytes", "bytes"),
        ("bf16_flop_per_s", "FLOP/s"),
        ("memory_bytes_per_s", "bytes/s"),
        ("scaleup_bytes_per_s", "bytes/s"),
        ("gpus_per_node", ""),
    )
    rows = []
    for name in gpu_ids(profiles):
        g = load_gpu(name, profiles).spec
        bf16 = g.peak_flop_per_s("bf16") if "bf16" in g.dtypes else None
        node = int(g.gpus_per_node.base) if g.gpus_per_node else None
        rows.append((g.id, g.vendor, g.usable_bytes, bf16, g.memory_bandwidth_bytes_per_s, g.scaleup_bytes_per_s, node))
    return Listing("gpus", columns, tuple(rows))


def _clusters(profiles: tuple[str, ...]) -> Listing:
    from dscalc.specs.store import cluster_ids, load_cluster

    columns = (
        ("id", ""),
        ("provider", ""),
        ("gpu", ""),
        ("gpus_per_node", ""),
        ("intra_bytes_per_s", "bytes/s"),
        ("scaleout_bytes_per_s", "bytes/s"),
        ("host_bytes", "bytes"),
    )
    rows = []
    for name in cluster_ids(profiles):
        c = load_cluster(name, profiles).spec
        rows.append(
            (c.id, c.provider, c.gpu, c.gpus_in_node, c.intra_bytes_per_s, c.scaleout_bytes_per_s, c.host_bytes)
        )
    return Listing("clusters", columns, tuple(rows))


def _interconnects(profiles: tuple[str, ...]) -> Listing:
    from dscalc.specs.store import interconnect_ids, load_interconnect

    columns = (
        ("id", ""),
        ("family", ""),
        ("scope", ""),
        ("per", ""),
        ("one_way_bytes_per_s", "bytes/s"),
        ("latency_s", "s"),
        ("efficiency", ""),
    )
    rows = []
    for name in interconnect_ids(profiles):
        link = load_interconnect(name, profiles).spec
        latency, efficiency = link.latency.base, link.efficiency.base
        rows.append((link.id, link.family, link.scope, link.per, link.bytes_per_s, latency, efficiency))
    return Listing("interconnects", columns, tuple(rows))


def _models(_: tuple[str, ...]) -> Listing:
    from dscalc.cost.inventory import parameter_counts
    from dscalc.specs.model import load_model, preset_names

    columns = (
        ("id", ""),
        ("params", "parameters"),
        ("active_params", "parameters"),
        ("layers", ""),
        ("hidden", ""),
        ("heads", ""),
        ("kv_heads", ""),
        ("experts", ""),
        ("vocab", ""),
    )
    rows = []
    for name in preset_names():
        shape = load_model(name).spec.lower()
        counts = parameter_counts(shape)
        rows.append(
            (
                name,
                counts.main,
                counts.active,
                shape.layers,
                shape.hidden,
                shape.heads,
                shape.kv_heads,
                shape.experts,
                shape.vocab,
            )
        )
    return Listing("models", columns, tuple(rows))


def _books(kind: str) -> Callable[[tuple[str, ...]], Listing]:
    def rows(_: tuple[str, ...]) -> Listing:
        from dscalc.specs.stack import entries

        found = tuple((e.name, e.summary, e.source) for e in entries(kind).values())
        return Listing(kind, (("id", ""), ("summary", ""), ("source", "")), found)

    return rows


def _schedules(_: tuple[str, ...]) -> Listing:
    from dscalc.cost.schedule import SCHEDULES

    return Listing("schedules", (("id", ""), ("source", "")), tuple((s.name, s.source) for s in SCHEDULES))


_LISTS: dict[str, Callable[[tuple[str, ...]], Listing]] = {
    "gpus": _gpus,
    "clusters": _clusters,
    "interconnects": _interconnects,
    "models": _models,
    "recipes": _books("recipes"),
    "stacks": _books("stacks"),
    "optimizers": _books("optimizers"),
    "losses": _books("losses"),
    "schedules": _schedules,
}


def _found(name: str, profiles: tuple[str, ...]) -> Iterator[Entry]:
    from dscalc.specs.stack import entries
    from dscalc.specs.store import load_cluster, load_gpu, load_interconnect

    for kind, load in (("gpu", load_gpu), ("cluster", load_cluster), ("interconnect", load_interconnect)):
        try:
            resolved = load(name, profiles)
        except (UnknownNameError, InputError):
            continue
        note = (Fact("alias", name, "", "assumed", resolved.assumption),) if resolved.assumption else ()
        yield Entry(kind, resolved.spec.id, (*note, *_facts(resolved.spec)))
    yield from _model_entry(name)
    for kind, word in (("recipes", "recipe"), ("stacks", "stack"), ("optimizers", "optimizer"), ("losses", "loss")):
        known = {key.lower(): entry for key, entry in entries(kind).items()}
        entry = known.get(name.strip().lower().replace("_", "-"))
        if entry is not None:
            values = tuple(Fact(key, value, "", "", "") for key, value in entry.values.items())
            yield Entry(word, entry.name, (Fact("summary", entry.summary, source=entry.source), *values))
    from dscalc.cost.schedule import SCHEDULES

    for schedule in SCHEDULES:
        if schedule.name == name.strip().lower():
            yield Entry("schedule", schedule.name, (Fact("summary", "pipeline schedule", source=schedule.source),))


def _model_entry(name: str) -> Iterator[Entry]:
    from dscalc.cost.inventory import parameter_counts
    from dscalc.specs.model import load_model

    try:
        found = load_model(name)
    except UnknownNameError:
        return
    shape = found.spec.lower()
    counts = parameter_counts(shape)
    facts = [
        Fact("params", counts.main, "parameters", "derived", "inventory of every stored tensor"),
        Fact("active_params", counts.active, "parameters", "derived", "inventory of every stored tensor"),
        Fact("mtp_params", counts.mtp, "parameters", "derived", "inventory of every stored tensor"),
        Fact("vision_params", counts.vision, "parameters", "derived", "inventory of every stored tensor"),
    ]
    hidden = ("name", "extra", "moe_layer")
    facts += [
        Fact(k, getattr(found.spec, k), "", "", found.source) for k in type(found.spec).model_fields if k not in hidden
    ]
    yield Entry("model", found.spec.name, tuple(f for f in facts if f.value not in (None, 0, "", False)))


def _facts(spec: Any, prefix: str = "") -> Iterator[Fact]:
    """Every value of a profile, nested ones with a dotted name."""
    for field in type(spec).model_fields:
        value = getattr(spec, field)
        name = f"{prefix}{field}"
        if value is None or value == () or field in ("profile", "id"):
            continue
        if hasattr(value, "kind") and hasattr(value, "unit"):
            error = f" (stderr {value.stderr:g})" if value.stderr is not None else ""
            note = f"; {value.note}" if value.note else ""
            yield Fact(name, value.value, value.unit, value.kind, f"{value.source}{note}{error}")
        elif hasattr(type(value), "model_fields"):
            yield from _facts(value, f"{name}.")
        elif isinstance(value, tuple) and all(isinstance(item, float) for item in value):  # a column of a curve
            yield Fact(name, f"{len(value)} from {min(value):.6g} to {max(value):.6g}")
        elif isinstance(value, tuple):
            for i, item in enumerate(value):
                if hasattr(type(item), "model_fields"):
                    yield from _facts(item, f"{name}.{i}.")
                else:
                    yield Fact(f"{name}.{i}", item)
        else:
            yield Fact(name, value)


def _all_names(profiles: tuple[str, ...]) -> list[str]:
    return [str(row[0]) for kind in KINDS for row in _LISTS[kind](profiles).rows]
