"""What a sweep goes over: every machine asked for, the numbers of GPUs, and the values of each axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import inf, isqrt, prod
from typing import Any

import numpy as np

from dscalc import codes
from dscalc.answers.case import Case, build_case
from dscalc.answers.step import Inputs, step_inputs
from dscalc.errors import InputError
from dscalc.frozen import dataclass
from dscalc.records import Timing
from dscalc.specs.layout_spec import LayoutSpec, lower
from dscalc.specs.pace import Noted
from dscalc.specs.stack import entries
from dscalc.specs.sweep_options import CHOICES, DEGREES, MACHINES, OF_BATCH, OWN
from dscalc.sweep.prune import Machine
from dscalc.sweep.space import ORDER, Space, legal_values
from dscalc.units import MIB, TERA, format_count

DEFAULT_BATCH_TOKENS = 4 * MIB  # of a step, where nothing says otherwise
MOST_CANDIDATES = int(TERA)
PLAIN_SCHEDULES = ("1f1b", "interleaved")  # those that every pipeline has
OWN_WORDS = frozenset({*(option.name for option in OWN), *OF_BATCH})
ON, OFF = 1.0, 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Setup:
    """One machine of the comparison: GPU and network, the model on it, and what its layouts share."""

    name: str
    words: Mapping[str, Any]  # the options that name it
    case: Case
    inputs: Inputs
    notes: tuple[Noted, ...]
    machine: Machine
    gpus: tuple[int, ...]
    batches: tuple[int, ...]  # sequences of a step at each number of GPUs
    usd_per_gpu_hour: float | None  # as given

    @property
    def spec(self) -> LayoutSpec:
        """What no axis changes."""
        return self.case.layout.spec


def build_setups(given: Mapping[str, Any]) -> tuple[Setup, ...]:
    """Every machine that the options name, with the model and the numbers of GPUs.

    Args:
        given: parsed options; those that take lists as tuples.

    Returns:
        One setup for each combination of cluster or GPU and interconnect.

    Raises:
        DscalcError: unknown names, contradictions, or numbers of GPUs that nobody gave.
    """
    if "gpus" not in given:
        raise InputError("says nothing of how many GPUs; write e.g. --gpus 8..1024 or --gpus 64", where="--gpus")
    counts = tuple(sorted(given["gpus"]))
    lists = {name: given[name] for name in MACHINES if name in given}
    found = []
    many = prod(map(len, lists.values()))
    prices = _prices(given, many)
    for values, price in zip(product(*lists.values()), prices, strict=True):
        words = dict(zip(lists, values, strict=True))
        found.append(_setup(given, words, counts, price, many > 1))
    names = [setup.name for setup in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise InputError(f"{twice} is named twice; name each machine once", where=f"--{next(iter(lists))}")
    return tuple(found)


def _prices(given: Mapping[str, Any], machines: int) -> Sequence[float | None]:
    """The price given of a GPU-hour of each machine."""
    prices: tuple[float, ...] = given.get("price", ())
    if len(prices) <= 1:
        return (*prices, None)[:1] * machines
    if len(prices) != machines:
        raise InputError(
            f"gives {len(prices)} prices for {machines} machines; give one for all, or one for each in their order",
            where="--price",
        )
    return prices


def _setup(
    given: Mapping[str, Any], words: Mapping[str, Any], counts: tuple[int, ...], price: float | None, many: bool
) -> Setup:
    base = base_words(given, words) | {"gpus": counts[-1]}
    case = build_case(base)
    inputs, notes = step_inputs(base, case)
    spec = case.layout.spec
    timing = Timing(inputs.engine, inputs.table, inputs.constants, inputs.network.network)
    machine = Machine(case.machine.record, timing, case.adapters, inputs.jitter)
    gpu = case.machine.gpu.id if case.machine.gpu else ""
    return Setup(
        name=_name(case, words) if many else (case.machine.cluster.id if case.machine.cluster else gpu),
        words=words,
        case=case,
        inputs=inputs,
        notes=notes,
        machine=machine,
        gpus=counts,
        batches=_batches(given, spec.seq_len, counts),
        usd_per_gpu_hour=price,
    )


def base_words(given: Mapping[str, Any], words: Mapping[str, Any]) -> dict[str, Any]:
    """The options that every layout of a machine shares: those of ``words`` and those that no axis sets."""
    swept = {*DEGREES, *CHOICES, "global_batch", "gpus", "sequence_parallel", *MACHINES} | OWN_WORDS
    return {name: value for name, value in given.items() if name not in swept} | dict(words)


def _name(case: Case, words: Mapping[str, Any]) -> str:
    first = case.machine.cluster.id if case.machine.cluster else case.machine.gpu.id if case.machine.gpu else "?"
    return f"{first} + {words['interconnect']}" if "interconnect" in words else first


def _batches(given: Mapping[str, Any], seq_len: int, counts: Sequence[int]) -> tuple[int, ...]:
    """Sequences of a step at each number of GPUs."""
    batch: int = given.get("global_batch") or default_batch(seq_len)
    if given.get("scaling") != "weak":
        return (int(batch),) * len(counts)
    found = []
    for count in counts:
        if batch * count % counts[0]:
            raise InputError(
                f"{batch} sequences on {counts[0]} GPUs are no whole number on {count}; "
                f"a multiple of {counts[0]} would be",
                where="--global-batch",
            )
        found.append(int(batch * count // counts[0]))
    return tuple(found)


def default_batch(seq_len: int) -> int:
    """Sequences of a step of 4 Mi tokens, as Llama 2 trained with [Touvron2023]."""
    return max(1, int(DEFAULT_BATCH_TOKENS) // seq_len)


def doubled(setup: Setup) -> Setup:
    """The same with twice the batch."""
    return replace(setup, batches=tuple(2 * batch for batch in setup.batches))


def divisors(number: int) -> tuple[int, ...]:
    """Divisors in ascending order.

    >>> divisors(12)
    (1, 2, 3, 4, 6, 12)
    """
    low = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    return tuple(dict.fromkeys([*low, *(number // d for d in reversed(low))]))


def spaces_of(setup: Setup, given: Mapping[str, Any]) -> tuple[Space, ...]:
    """The space of each number of GPUs.

    Args:
        setup: the machine and the model.
        given: parsed options.

    Returns:
        Spaces in the order of ``setup.gpus``.

    Raises:
        InputError: an axis without any value, or more layouts than can be tried.
    """
    return tuple(_space(setup, given, gpus, batch) for gpus, batch in zip(setup.gpus, setup.batches, strict=True))


def refuse_too_many(spaces: Sequence[Space]) -> None:
    """Refuse what would take hours, before it begins, with how to narrow it.

    Raises:
        InputError: names the axes with the most values.
    """
    total = sum(space.candidates for space in spaces)
    if total < MOST_CANDIDATES:
        return
    widest = max(spaces, key=lambda space: space.candidates)
    most = sorted(widest.values.items(), key=lambda item: -len(item[1]))[:3]
    axes = ", ".join(f"{name.replace('_', '-')} has {len(values)} values" for name, values in most)
    first = most[0][0]
    right = f"--max-{first.replace('_', '-')}" if first in DEGREES else f"--{first.replace('_', '-')}"
    raise InputError(
        f"{format_count(total)} candidates, more than {format_count(MOST_CANDIDATES)}: {axes}; narrow them, e.g. with "
        f"{right}, or give fewer numbers of GPUs",
        where="--gpus",
    )


def _space(setup: Setup, given: Mapping[str, Any], gpus: int, batch: int) -> Space:
    case, spec = setup.case, setup.spec
    shape, layers = case.model.shape, case.model.shape.layers
    every = divisors(gpus)
    stack = entries("stacks")[spec.stack].values
    most_zero = int(stack.get("largest_zero", 3))
    experts = [d for d in every if shape.experts and shape.experts % d == 0] or [1]
    parallel = bool(stack.get("sequence_parallel", True))
    usual: dict[str, Sequence[float]] = {
        "pp": [d for d in every if d <= layers],
        "tp": every,
        "cp": every,
        "dp_replicate": every,
        "schedule": [codes.SCHEDULES.index(name) for name in PLAIN_SCHEDULES],
        "vpp": divisors(layers),
        "micro_batch": divisors(batch),
        "ep": experts,
        "etp": every if shape.experts else [1],
        "sequence_parallel": [OFF, ON] if parallel else [OFF],
        "cp_comm": [codes.CP_COMMS.index(spec.cp_comm)],
        "zero": [float(stack["zero"])] if "zero" in stack else [float(z) for z in range(most_zero + 1)],
        "recompute": range(len(codes.RECOMPUTES)),
        "recompute_layers": [*_doubling(layers), inf],
    }
    asked = {name for name in ORDER if name in given}
    values = {name: _asked(name, given) if name in asked else usual[name] for name in ORDER}
    if "recompute_layers" in asked and "recompute" not in asked:
        values["recompute"] = [codes.RECOMPUTES.index("full")]
    for name in DEGREES:
        most = given.get(f"max_{name}")
        if most is not None and name in values:
            values[name] = [v for v in values[name] if v <= most]
            if not values[name]:
                raise InputError(f"{most} leaves no value of it", where=f"--max-{name.replace('_', '-')}")
    space = Space(
        gpus=gpus,
        global_batch=batch,
        shape=shape,
        base=lower([spec], case.books),
        values={name: tuple(float(v) for v in found) for name, found in values.items()},
        asked=frozenset(asked),
        allowed_dp=tuple(float(v) for v in given.get("dp", ())),
        most_dp=float(given.get("max_dp", inf)),
    )
    legal = {
        name: found if name in asked else legal_values(space, name, found) or found[:1]
        for name, found in space.values.items()
    }
    return replace(space, values=legal)


def _doubling(layers: int) -> list[float]:
    found, layer = [], 1
    while layer < layers:
        found.append(float(layer))
        layer *= 2
    return found


def _asked(name: str, given: Mapping[str, Any]) -> Sequence[float]:
    """Values of an axis that the user gave, simplest first."""
    value = given[name]
    if name == "sequence_parallel":
        return [float(value)]
    books = {"schedule": codes.SCHEDULES, "recompute": codes.RECOMPUTES, "cp_comm": codes.CP_COMMS}
    if name in books:
        return sorted(books[name].index(word) for word in value)
    return sorted(float(v) for v in value)


def spec_of(setup: Setup, space: Space, number: int) -> LayoutSpec:
    """One layout of a space with every value decided."""
    row = space.layouts(np.asarray([number], dtype=np.int64))
    of = {name: float(np.asarray(getattr(row, name)).reshape(-1)[0]) for name in (*ORDER, "dp", "n_micro")}
    again = of["recompute_layers"]
    values = setup.spec.model_dump() | {
        name: int(of[name])
        for name in ("pp", "tp", "cp", "dp_replicate", "vpp", "micro_batch", "ep", "etp", "zero", "dp")
    }
    return LayoutSpec.trusted(
        values
        | {
            "gpus": space.gpus,
            "dp_shard": int(of["dp"] / of["dp_replicate"]),
            "schedule": codes.SCHEDULES[int(of["schedule"])],
            "sequence_parallel": bool(of["sequence_parallel"]),
            "cp_comm": codes.CP_COMMS[int(of["cp_comm"])],
            "grad_accum": int(of["n_micro"]),
            "global_batch": space.global_batch,
            "tokens_per_rank": int(of["micro_batch"] * of["n_micro"]) * setup.spec.seq_len,
            "recompute": codes.RECOMPUTES[int(of["recompute"])],
            "recompute_layers": None if again == inf else int(again),
        }
    )
