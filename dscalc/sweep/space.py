"""The space of layouts: one axis a row of a table, a layout a number. Nothing of the size of the space is stored.

A layout's number is written in mixed radix, the first axis outermost. Prefixes of it are checked as soon as an axis
decides a rule, so that one illegal prefix rejects everything behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf, prod
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dscalc import codes
from dscalc.cost.axes import Groups, Rule, groups, rules
from dscalc.cost.factors import alike, some_rows
from dscalc.cost.placement import stage_kinds
from dscalc.frozen import dataclass
from dscalc.records import Array, Layouts, Mask, ModelShape

Ids = NDArray[np.int64]
FULL = codes.RECOMPUTES.index("full")
INTERLEAVED = codes.SCHEDULES.index("interleaved")
PLAIN = codes.SCHEDULES.index("1f1b")
CODED = ("schedule", "recompute", "cp_comm")  # integer columns

# The axes, outermost first: what legality reads comes early, what only memory and time read comes last.
ORDER = (
    "pp",
    "tp",
    "cp",
    "dp_replicate",
    "schedule",
    "vpp",
    "micro_batch",
    "ep",
    "etp",
    "sequence_parallel",
    "cp_comm",
    "zero",
    "recompute",
    "recompute_layers",
)
_GRID_AXES = ("pp", "tp", "cp", "dp_replicate")
STATE_AXES = "zero"  # with it, everything that the state in memory depends on is decided


@dataclass(frozen=True, slots=True, eq=False)
class Space:
    """All layouts of one job size.

    Attributes:
        gpus: GPUs of the job [GPUs].
        global_batch: sequences of a step [sequences].
        shape: the model.
        base: columns of length one for everything that no axis sets.
        values: values of each axis of ``ORDER``, simplest first.
        asked: axes whose values the user gave: they are taken as meant.
        allowed_dp: data-parallel degrees to try; empty: any.
        most_dp: largest of them.
    """

    gpus: int
    global_batch: int
    shape: ModelShape
    base: Layouts
    values: Mapping[str, tuple[float, ...]]
    asked: frozenset[str] = frozenset()
    allowed_dp: tuple[float, ...] = ()
    most_dp: float = inf

    @property
    def radices(self) -> tuple[int, ...]:
        """Values of each axis."""
        return tuple(len(self.values[name]) for name in ORDER)

    @property
    def size(self) -> int:
        """Numbers there are, those of no layout of this job size among them."""
        return prod(self.radices)

    @property
    def holes(self) -> frozenset[str]:
        """Checks that tell which numbers stand for no layout at all: its degrees do not multiply to the GPUs."""
        return frozenset({"gpus", "dp"} if "dp_replicate" in self.asked else {"gpus", "dp", "dp_replicate"})

    @property
    def candidates(self) -> int:
        """Layouts there are, legal or not."""
        model_parallel = np.ones(1)
        for name in ("pp", "tp", "cp"):
            model_parallel = np.multiply.outer(model_parallel, column(name, self.values[name])).reshape(-1)
        dp, count = np.unique(self.gpus / model_parallel, return_counts=True)
        whole = (np.floor(dp) == dp) & (dp <= self.most_dp)
        whole &= np.isin(dp, self.allowed_dp) if self.allowed_dp else True
        replicas = column("dp_replicate", self.values["dp_replicate"])
        each = np.full(dp.shape, len(replicas))
        if "dp_replicate" not in self.asked:
            each = (np.floor(dp[:, None] / replicas) * replicas == dp[:, None]).sum(axis=1)
        grids = int((count * each * whole).sum())
        return grids * prod(len(v) for name, v in self.values.items() if name not in _GRID_AXES)

    def layouts(self, ids: Ids, upto: int = len(ORDER), read: Collection[str] = ORDER) -> Layouts:
        """Layouts by their number among prefixes of ``upto`` axes; later axes have their first value.

        Args:
            ids: numbers from 0.
            upto: axes that the number counts.
            read: axes that somebody looks at; the others have their first value too.

        Returns:
            Columns of shape (n,), or (1,) where an axis has one value.
        """
        columns: dict[str, Any] = {name: column(name, self.values[name][:1]) for name in ORDER}
        rest, behind = ids, 1  # ``behind``: values of the axes inside that nobody looks at
        for name in reversed(ORDER[:upto]):
            count = len(self.values[name])
            if count == 1 or name not in read:
                behind *= count
                continue
            inner = rest // behind if behind > 1 else rest
            rest, behind = inner // count, 1  # several times as fast as divmod
            columns[name] = column(name, self.values[name]).take(inner - rest * count)
        dp = self.gpus / (columns["tp"] * columns["pp"] * columns["cp"])
        n_micro = self.global_batch / (dp * columns["micro_batch"])
        return replace(self.base, **columns, dp=dp, n_micro=n_micro)


def column(name: str, values: Sequence[float]) -> Any:
    """Values of an axis as a column."""
    return np.asarray(values, dtype=np.intp if name in CODED else np.float64)


@dataclass(frozen=True, slots=True)
class Check:
    """Where a prefix is rejected: ``rejects(layouts, groups)`` is a mask.

    Attributes:
        name, message: as in a rule.
        level: axes that are decided by then.
        reads: axes that it looks at.
        rejects: the mask.
    """

    name: str
    message: str
    level: int
    reads: frozenset[str]
    rejects: Callable[[Layouts, Groups], Mask]


def _fraction(values: Array) -> Mask:
    return np.asarray(np.floor(values) != values)


def _own(space: Space) -> Iterator[tuple[str, str, tuple[str, ...], Callable[[Layouts, Groups], Mask]]]:
    """What a sweep adds to the rules of the axes: name, message, axes that it reads, and the mask."""
    first = {name: values[0] for name, values in space.values.items()}
    yield (
        "gpus",
        "--tp x --pp x --cp must divide the number of GPUs",
        ("tp", "pp", "cp"),
        lambda lay, _: _fraction(lay.dp),
    )
    if space.allowed_dp or space.most_dp < inf:
        allowed = np.asarray(space.allowed_dp)

        def other(lay: Layouts, _: Groups) -> Mask:
            outside = lay.dp > space.most_dp
            return outside | ~np.isin(lay.dp, allowed) if allowed.size else outside

        yield "dp", "--dp is none of those asked for", ("tp", "pp", "cp"), other
    if "vpp" not in space.asked:
        layers = float(space.shape.layers)
        yield (
            "vpp_layers",
            "chunks of an interleaved schedule have the same number of layers unless --vpp says otherwise",
            ("pp", "vpp"),
            lambda lay, _: (lay.vpp > 1.0) & _fraction(layers / (lay.pp * lay.vpp)),
        )
    yield (
        "global_batch",
        "--dp x --micro-batch must divide --global-batch",
        ("tp", "pp", "cp", "micro_batch"),
        lambda lay, _: _fraction(lay.n_micro),
    )
    if space.shape.experts and "etp" not in space.asked:
        yield (
            "expert_tensor",
            "experts are divided as the other layers or not at all unless --etp says otherwise",
            ("tp", "etp"),
            lambda lay, _: (lay.etp != 1.0) & (lay.etp != lay.tp),
        )
    if "dp_replicate" not in space.asked:
        yield (
            "hybrid_sharding",
            "--dp-replicate above 1 belongs to ZeRO-3 that shards something, unless it is asked for",
            ("tp", "pp", "cp", "dp_replicate", "zero"),
            lambda lay, grp: (lay.dp_replicate > 1.0) & ((lay.zero < 3.0) | (grp.shard == 1.0)),
        )

    def same_schedule(lay: Layouts, _: Groups) -> Mask:
        alone: Mask = (lay.pp == 1.0) & (lay.schedule != first["schedule"])
        if PLAIN in space.values["schedule"]:
            return np.asarray(alone | ((lay.schedule == INTERLEAVED) & (lay.vpp == 1.0)))
        return alone

    def same_layers(lay: Layouts, _: Groups) -> Mask:
        last = space.values["recompute_layers"][-1]
        fewer = lay.recompute_layers != last
        same: Mask = np.asarray((lay.recompute != FULL) & fewer)  # nobody reads how many layers
        rows = np.flatnonzero((lay.recompute == FULL) & fewer)
        if last < inf or not rows.size:
            return same
        some = some_rows(lay, rows)
        stages = alike(some, ("pp", "schedule", "vpp"))
        most = stages.spread(np.max(stage_kinds(space.shape, stages.rows(some)).layers, axis=0))
        same[rows] = some.recompute_layers >= most  # all of them, however many are said
        return same

    twins: tuple[tuple[tuple[str, ...], Callable[[Layouts, Groups], Mask]], ...] = (
        (("pp", "schedule", "vpp"), same_schedule),
        (
            ("tp", "sequence_parallel"),
            lambda lay, _: (lay.tp == 1.0) & (lay.sequence_parallel != first["sequence_parallel"]),
        ),
        (("cp", "cp_comm"), lambda lay, _: (lay.cp == 1.0) & (lay.cp_comm != first["cp_comm"])),
        (
            ("dp_replicate", "zero"),
            lambda lay, _: (lay.zero == 0.0) & (lay.dp_replicate != first["dp_replicate"]),
        ),
        (
            ("tp", "pp", "cp", "dp_replicate", "ep", "etp", "zero"),
            lambda lay, grp: (grp.dp_cp == 1.0) & (grp.expert_shard == 1.0) & (lay.zero != first["zero"]),
        ),
        (("pp", "vpp", "schedule", "recompute", "recompute_layers"), same_layers),
    )
    for read, mask in twins:
        yield SAME, "is the same job as another layout of the sweep", read, mask


SAME = "same_as_another"
_GRID = {"dp": ("tp", "pp", "cp"), "n_micro": ("tp", "pp", "cp", "micro_batch")}
_OF_GROUPS = {"edp": ("ep", "etp"), "expert_shard": ("ep", "etp", "dp_replicate"), "dp_shard": ("dp_replicate",)}


class _Watched:
    """Stands for a record and notes which fields are read."""

    def __init__(self, record: object, seen: set[str], prefix: str = "") -> None:
        self._record, self._seen, self._prefix = record, seen, prefix

    def __getattr__(self, name: str) -> Any:
        self._seen.add(self._prefix + name)
        return getattr(self._record, name)


def axes_read(rule: Rule, space: Space) -> frozenset[str]:
    """The axes that a rule reads, found by watching it."""
    layouts = space.layouts(np.zeros(1, dtype=np.int64))
    seen: set[str] = set()
    rule.illegal(
        cast(Layouts, _Watched(layouts, seen)), cast(Groups, _Watched(groups(layouts), seen, "groups.")), space.shape
    )
    found: set[str] = set()
    for name in seen:
        if name.startswith("groups."):
            found |= {"tp", "pp", "cp", *_OF_GROUPS.get(name.removeprefix("groups."), ("dp_replicate",))}
        else:
            found |= {*_GRID.get(name, (name,))}
    return frozenset(found & set(ORDER))


def checks(space: Space) -> tuple[Check, ...]:
    """Every check in the written order: by the axis that decides it, a sweep's own before the rules of the axes."""

    def level(read: Iterable[str]) -> int:
        return max((ORDER.index(name) + 1 for name in read), default=0)

    found = [Check(name, message, level(read), frozenset(read), mask) for name, message, read, mask in _own(space)]
    for rule in rules():

        def rejects(layouts: Layouts, derived: Groups, rule: Rule = rule) -> Mask:
            return rule.illegal(layouts, derived, space.shape)

        read = axes_read(rule, space)
        found.append(Check(rule.name, rule.message, level(read), read, rejects))
    # what stands for no layout goes first, so that every other rejection counts layouts
    grid = max(check.level for check in found if check.name in space.holes)
    found = [c if c.name in space.holes else replace(c, level=max(c.level, grid)) for c in found]
    return tuple(sorted(found, key=lambda check: (check.level, check.name not in space.holes)))


def legal_values(space: Space, name: str, values: Sequence[float]) -> tuple[float, ...]:
    """Values of an axis that no rule forbids by themselves, whatever the other axes say."""
    one = replace(space, values={**space.values, name: tuple(values)})
    whole = replace(space.base, **{n: column(n, v[:1]) for n, v in space.values.items()})
    layouts = replace(whole, **{name: column(name, values)})
    ok = np.ones(len(values), dtype=bool)
    for rule in rules():
        if axes_read(rule, one) == {name}:
            ok &= ~rule.illegal(layouts, groups(layouts), space.shape)
    return tuple(value for value, good in zip(values, ok.tolist(), strict=True) if good)
