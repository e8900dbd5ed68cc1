"""Recipes, optimizers, losses and stacks: data files read once and lowered into the code books of ``records``."""

from __future__ import annotations

import tomllib
from functools import lru_cache
from typing import Any

import numpy as np

from dscalc.codes import PLACEMENTS
from dscalc.errors import UnknownNameError
from dscalc.frozen import dataclass
from dscalc.records import Array, Books, Constants, LossTable, OptimizerTable, RecipeTable, StackTable
from dscalc.specs.shipped import shipped_text
from dscalc.units import parse_bytes, parse_fraction

PRECISIONS = ("bf16", "fp16", "fp8", "fp32")

_RECIPE_DEFAULTS: dict[str, float] = {
    "gradients": 0.0,
    "main_gradients": 0.0,
    "master": 0.0,
    "moment": 4.0,
    "persistent_gradients": 0.0,
    "transient_gradients": 0.0,
    "compute_copy": 0.0,
    "activation": 2.0,
    "gather": 2.0,
    "reduce": 2.0,
    "ddp_buckets": 0.0,
    "flat_gather": 0.0,
    "step_cast": 0.0,
}
_QUANTITIES = {
    "reduce_bucket_bytes": "reduce_bucket",
    "eager_kernels_bytes": "eager_kernels",
}  # column: key with a unit
_STACK_NUMBERS = tuple(
    f for f in StackTable.__dataclass_fields__ if f not in ("names", "placement") and f not in _QUANTITIES
)


@dataclass(frozen=True, slots=True)
class StackChoice:
    """The named choices of a stack: which recipe a precision takes, which loss, attention and sequence parallelism."""

    name: str
    summary: str
    source: str
    recipe: dict[str, str]
    loss: str
    attention: str
    sequence_parallel: bool


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of ``dscalc list`` and ``dscalc show``."""

    name: str
    summary: str
    source: str
    values: dict[str, Any]


@lru_cache(maxsize=1)
def _data() -> tuple[dict[str, Any], dict[str, Any]]:
    recipes = tomllib.loads(shipped_text("recipes.toml"))
    stacks = tomllib.loads(shipped_text("stacks.toml"))
    merged: dict[str, Any] = {}
    for name, own in stacks["stack"].items():
        base = {k: v for k, v in stacks["stack"][own["like"]].items() if k != "frameworks"} if "like" in own else {}
        merged[name] = {**stacks["default"], **base, **own}
    return recipes, {"constants": stacks["constants"], "stack": merged}


def _column(rows: list[dict[str, Any]], field: str, default: float | None = None) -> Array:
    return np.asarray(
        [float(row[field] if default is None else row.get(field, default)) for row in rows], dtype=np.float64
    )


@lru_cache(maxsize=1)
def load_books() -> Books:
    """The code books that layout columns index.

    Returns:
        The books [bytes, flags].
    """
    recipes, stacks = _data()
    recipe_rows = list(recipes["recipe"].values())
    optimizer_rows = list(recipes["optimizer"].values())
    loss_rows = list(recipes["loss"].values())
    stack_rows = list(stacks["stack"].values())
    recipe_table = RecipeTable(
        names=tuple(recipes["recipe"]),
        weights=_column(recipe_rows, "weights"),
        **{field: _column(recipe_rows, field, default) for field, default in _RECIPE_DEFAULTS.items()},
    )
    fixed = [row.get("fixed_width", False) for row in optimizer_rows]
    optimizer_table = OptimizerTable(
        names=tuple(recipes["optimizer"]),
        moments=tuple(tuple(row["moments"]) for row in optimizer_rows),
        first_matrix=np.asarray([float(r["matrix"][0]) for r in optimizer_rows]),
        first_other=np.asarray([float(r["other"][0]) for r in optimizer_rows]),
        second_matrix=np.asarray([float(r["matrix"][1]) for r in optimizer_rows]),
        second_other=np.asarray([float(r["other"][1]) for r in optimizer_rows]),
        factored=_column(optimizer_rows, "factored", 0.0),
        head_as_matrix=_column(optimizer_rows, "head_as_matrix", 0.0),
        fixed_width=np.asarray([float(f) for f in fixed]),
    )
    loss_table = LossTable(
        names=tuple(recipes["loss"]),
        whole=_column(loss_rows, "whole", 0.0),
        saved=_column(loss_rows, "saved", 0.0),
        chunk=_column(loss_rows, "chunk", 0.0),
        chunks=_column(loss_rows, "chunks", 1.0),
        weight_gradient=_column(loss_rows, "weight_gradient", 0.0),
        vocab_parallel=_column(loss_rows, "vocab_parallel"),
    )
    stack_table = StackTable(
        names=tuple(stacks["stack"]),
        placement=np.asarray([float(PLACEMENTS.index(row["placement"])) for row in stack_rows]),
        **{
            column: np.asarray([parse_bytes(row.get(key, "0 B")) for row in stack_rows])
            for column, key in _QUANTITIES.items()
        },
        **{field: _column(stack_rows, field, 0.0) for field in _STACK_NUMBERS},
    )
    given = stacks["constants"]
    constants = Constants(
        **{
            name: parse_bytes(f"{given[name]['value']} {given[name]['unit']}")
            for name in ("cuda_context_bytes", "communicator_bytes", "workspace_bytes")
        },
        launch_queue=float(given["launch_queue"]["value"]),
        gpus_per_node=float(given["gpus_per_node"]["value"]),
        error_fraction=parse_fraction(f"{given['error_fraction']['value']}%"),
    )
    return Books(recipe_table, optimizer_table, loss_table, stack_table, constants)


def constant_records() -> dict[str, dict[str, Any]]:
    """The fixed assumptions as records {value, unit, kind, source}, for the list of assumptions."""
    return dict(_data()[1]["constants"])


def _entries(rows: dict[str, Any]) -> dict[str, Entry]:
    hidden = {"summary", "source", "like", "frameworks"}
    return {
        name: Entry(name, row.get("summary", ""), row["source"], {k: v for k, v in row.items() if k not in hidden})
        for name, row in rows.items()
    }


@lru_cache(maxsize=8)
def entries(kind: str) -> dict[str, Entry]:
    """What ships of ``recipes``, ``optimizers``, ``losses`` or ``stacks``, by name."""
    recipes, stacks = _data()
    return _entries(
        stacks["stack"]
        if kind == "stacks"
        else recipes[{"recipes": "recipe", "optimizers": "optimizer", "losses": "loss"}[kind]]
    )


def _names(kind: str) -> tuple[str, ...]:
    return tuple(entries(kind))


def recipe_names() -> tuple[str, ...]:
    """Names for ``--recipe``."""
    return _names("recipes")


def optimizer_names() -> tuple[str, ...]:
    """Names for ``--optimizer``."""
    return _names("optimizers")


def loss_names() -> tuple[str, ...]:
    """Names for ``--loss``."""
    return _names("losses")


def stack_names() -> tuple[str, ...]:
    """Names for ``--stack``."""
    return _names("stacks")


def stack_choice(name: str, *, where: str = "--stack") -> StackChoice:
    """The named choices of a stack.

    Args:
        name: a stack, case and dashes as listed.
        where: the option to name in an error.

    Raises:
        UnknownNameError: nothing declares the name.
    """
    rows = _data()[1]["stack"]
    key = name.strip().lower().replace("_", "-")
    if key not in rows:
        raise UnknownNameError("stack", name, rows, where=where)
    row = rows[key]
    return StackChoice(
        key, row["summary"], row["source"], dict(row["recipe"]), row["loss"], row["attention"], row["sequence_parallel"]
    )


def framework_stack(framework: str) -> str | None:
    """The stack that declares a framework's printed name, else a name that it starts with, else one that it contains as
    words; the longest such name; None where nothing does.

    Args:
        framework: as a paper or log names it, e.g. ``Megatron-Core 0.12`` or ``FlagPerf (Megatron-DeepSpeed)``.
    """
    name = framework.strip().lower()
    found: list[tuple[bool, int, str]] = []
    for stack, row in _data()[1]["stack"].items():
        for declared in row.get("frameworks", ()):
            at = _word(name, declared.lower())
            if at >= 0:
                found.append((at == 0, len(declared), stack))
    return max(found)[2] if found else None


def _word(text: str, word: str) -> int:
    """Where a text contains a word, not as a part of a longer one; -1 where it does not."""
    at = text.find(word)
    while at >= 0:
        end = at + len(word)
        if not (at and text[at - 1].isalnum()) and not (end < len(text) and text[end].isalnum()):
            return at
        at = text.find(word, at + 1)
    return -1


def recipe_for(stack: str, precision: str) -> str:
    """The recipe that a stack takes for a precision."""
    return stack_choice(stack).recipe[precision]
