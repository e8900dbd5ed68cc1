"""One layout with every value decided, and many of them as columns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Annotated, Any

import numpy as np

from dscalc.codes import ATTENTIONS, CP_COMMS, RANK_ORDERS, RECOMPUTES, SCHEDULES
from dscalc.errors import InputError
from dscalc.records import Array, Books, Layouts
from dscalc.specs.checked import Checked, Limit
from dscalc.specs.option_table import LARGEST

LARGEST_TOTAL = LARGEST**3
Whole = Annotated[int, Limit(ge=1, le=LARGEST)]
Total = Annotated[int, Limit(ge=1, le=LARGEST_TOTAL)]


class LayoutSpec(Checked):
    """One layout with every value decided. Names are those of the options; units: ranks, sequences, tokens, layers."""

    gpus: Total
    dp: Total
    dp_replicate: Total
    dp_shard: Total
    tp: Whole
    pp: Whole
    vpp: Whole
    cp: Whole
    ep: Whole
    etp: Total
    zero: Annotated[int, Limit(ge=0, le=3)]
    schedule: str
    sequence_parallel: bool
    cp_comm: str
    rank_order: str
    reshard: bool
    no_sync: bool
    seq_len: Whole
    micro_batch: Total
    grad_accum: Total
    global_batch: Total
    tokens_per_rank: Total
    recompute: str
    recompute_layers: Whole | None
    precision: str
    stack: str
    recipe: str
    optimizer: str
    attention: str
    loss: str
    capacity_factor: Annotated[float, Limit(gt=0, le=LARGEST, allow_inf_nan=False)]
    offload: tuple[str, ...]
    optimizer_in_backward: bool

    def lower(self, books: Books) -> Layouts:
        """This layout as columns of length one."""
        return lower([self], books)


# columns named as their field
_SAME: tuple[str, ...] = (
    "dp",
    "dp_replicate",
    "tp",
    "pp",
    "vpp",
    "cp",
    "ep",
    "etp",
    "zero",
    "sequence_parallel",
    "micro_batch",
)
_SAME += ("seq_len", "capacity_factor", "reshard", "no_sync", "optimizer_in_backward")


def _code(words: Sequence[str], specs: Sequence[LayoutSpec], name: str) -> Any:
    return np.array([words.index(getattr(spec, name)) for spec in specs], dtype=np.intp)


def lower(specs: Sequence[LayoutSpec], books: Books) -> Layouts:
    """Layouts as columns, one row each.

    Args:
        specs: resolved layouts, at least one.
        books: the code books that recipe, optimizer, loss and stack names index.

    Returns:
        Columns of shape (len(specs),).

    Raises:
        InputError: a name that the books do not hold.
    """

    def column(name: str) -> Array:
        return np.array([float(getattr(spec, name)) for spec in specs], dtype=np.float64)

    def offloads(what: str) -> Array:
        return np.array([float(what in spec.offload) for spec in specs], dtype=np.float64)

    for name, known in _book_names(books).items():
        missing = next((getattr(s, name) for s in specs if getattr(s, name) not in known), None)
        if missing is not None:
            raise InputError(f"{missing!r} is not among {', '.join(known)}", where="--" + name)
    columns: dict[str, Any] = {name: column(name) for name in _SAME}
    columns |= {name: _code(known, specs, name) for name, known in _book_names(books).items()}
    return Layouts(
        **columns,
        n_micro=column("grad_accum"),
        recompute_layers=np.array([inf if s.recompute_layers is None else float(s.recompute_layers) for s in specs]),
        offload_optimizer=offloads("optimizer"),
        offload_parameters=offloads("parameters"),
        offload_activations=offloads("activations"),
        schedule=_code(SCHEDULES, specs, "schedule"),
        recompute=_code(RECOMPUTES, specs, "recompute"),
        attention=_code(ATTENTIONS, specs, "attention"),
        cp_comm=_code(CP_COMMS, specs, "cp_comm"),
        rank_order=_code(RANK_ORDERS, specs, "rank_order"),
        books=books,
    )


def _book_names(books: Books) -> dict[str, tuple[str, ...]]:
    return {
        "recipe": books.recipes.names,
        "optimizer": books.optimizers.names,
        "loss": books.losses.names,
        "stack": books.stacks.names,
    }


def with_gradient_bytes(books: Books, width: float | None) -> Books:
    """Code books whose recipes put a stated number of bytes of each gradient on the wire.

    Args:
        books: the code books.
        width: bytes of an element; None: as each recipe says.

    Returns:
        The books.
    """
    if width is None:
        return books
    return replace(books, recipes=replace(books.recipes, reduce=np.full_like(books.recipes.reduce, width)))
