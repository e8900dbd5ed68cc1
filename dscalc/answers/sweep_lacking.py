"""Why a number of GPUs has no layout: not searched yet, too little memory, or a rule that none of its layouts keeps."""

from __future__ import annotations

from functools import lru_cache
from math import lcm

from dscalc.sweep.prune import FLOOR, Found
from dscalc.sweep.prune import MEMORY as MEMORY
from dscalc.sweep.space import SAME, Space, checks

NOT_SEARCHED = "not_searched"
WORDS = {
    FLOOR: "the state alone does not fit in the memory of a GPU",
    MEMORY: "does not fit in the memory of a GPU",
    NOT_SEARCHED: "was not searched before the interrupt",
    "dp": "--tp x --pp x --cp x --dp must be the number of GPUs",
}
# What keeps the sweep from trying a job twice or from odd layouts nobody asked for; each leaves a plainer layout over.
_TIDY = frozenset({SAME, "vpp_layers", "vpp_schedule", "expert_tensor", "hybrid_sharding"})


def lacking(space: Space, found: Found) -> str:
    """Why a space gave no layout.

    Args:
        space: all layouts of one job size.
        found: what its search found.

    Returns:
        ``not_searched``, ``memory``, or the name of a check: of those that plain layouts fail, the one that most fail.
    """
    if not found.complete:
        return NOT_SEARCHED
    counts = dict(found.rejected)
    if FLOOR in counts or MEMORY in counts:
        return MEMORY
    tidy = _TIDY - {"vpp_schedule"} if "vpp" in space.asked else _TIDY
    for left_out in (tidy, {SAME}):
        failed = {name: count for name, count in counts.items() if name not in left_out}
        if failed:
            return max(failed, key=lambda name: failed[name])
    return "dp" if any(check.name == "dp" for check in checks(space)) else "gpus"


@lru_cache(maxsize=8)
def reasons_of(spaces: tuple[Space, ...]) -> dict[str, str]:
    """What each name of a rejection means."""
    return {check.name: check.message for space in spaces for check in checks(space)} | WORDS


def what_would_be_legal(name: str, space: Space) -> str:
    """What to change where no layout keeps a rule."""
    if name == "global_batch":
        dp = space.gpus // lcm(*(int(space.values[axis][0]) for axis in ("tp", "pp", "cp")))
        each = dp * int(min(space.values["micro_batch"]))
        whole = -(-space.global_batch // each) * each if each else space.gpus
        return f"give a --global-batch that the data-parallel ranks divide, e.g. {whole:,}, or another number of GPUs"
    if name in ("gpus", "dp"):
        return f"give degrees that {space.gpus:,} GPUs can be divided into, or another number of GPUs"
    return "give other numbers of GPUs, another --global-batch, or fewer fixed degrees"
