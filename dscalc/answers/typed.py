"""What to type after the given options to get another layout, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from dscalc.errors import InputError
from dscalc.specs.layout_spec import LayoutSpec
from dscalc.specs.option_table import OPTIONS

Resolve = Callable[[Mapping[str, Any]], LayoutSpec]

# Values that usually follow from the others, in the order in which it is tried whether they need to be typed.
FOLLOWING = (
    *("tokens_per_rank", "global_batch", "nodes", "dp_shard", "dp_replicate", "gpus", "dp", "grad_accum"),
    *("sequence_parallel", "etp", "schedule", "zero"),
)
ROUNDS = 4  # what is typed may change what else follows


def typed(given: Mapping[str, Any], old: LayoutSpec, new: LayoutSpec, resolve: Resolve, first: str) -> str | None:
    """Options that, typed after those given (the last one counts), make ``new`` of ``old``.

    Args:
        given: canonical option names to parsed values.
        old: the layout of those.
        new: the layout wanted.
        resolve: given options to their layout.
        first: words of options that stand first, in their order.

    Returns:
        The options as typed, e.g. ``--pp 2 --dp 32 --grad-accum 8``; None where no options make that layout.
    """
    base = dict(given)
    dropped = "no_sync" in base and old.no_sync and not new.no_sync  # a flag cannot be taken back by another
    if dropped:
        del base["no_sync"]
    changes = {name: getattr(new, name) for name in LayoutSpec.model_fields if getattr(new, name) != getattr(old, name)}
    if dropped:
        del changes["no_sync"]
    if any(value is None for value in changes.values()) or ("offload" in changes and base.get("offload") == ("none",)):
        return None
    if "nodes" in base and new.gpus != old.gpus:
        changes["nodes"], rest = divmod(base["nodes"] * new.gpus, old.gpus)
        if rest:
            return None
    if not _completed(base, changes, new, resolve):
        return None
    for name in FOLLOWING:
        if name in changes:
            fewer = {other: value for other, value in changes.items() if other != name}
            if _found(base, fewer, resolve) == new:
                changes = fewer
    if changes.get("no_sync") is False:
        return None
    leading = [word[2:].replace("-", "_") for word in first.split() if word.startswith("--")]
    names = [*(name for name in leading if name in changes), *(name for name in changes if name not in leading)]
    return " ".join([*(["drop --no-sync"] if dropped else []), *(_words(name, changes[name]) for name in names)])


def _found(base: Mapping[str, Any], changes: Mapping[str, Any], resolve: Resolve) -> LayoutSpec | None:
    try:
        return resolve({**base, **changes})
    except InputError:
        return None


def _completed(base: Mapping[str, Any], changes: dict[str, Any], new: LayoutSpec, resolve: Resolve) -> bool:
    """Add to the changes what would otherwise follow differently; whether they then make the layout."""
    for _ in range(ROUNDS):
        found = _found(base, changes, resolve)
        if found is None or found == new:
            return found is not None
        more = {n: getattr(new, n) for n in LayoutSpec.model_fields if getattr(found, n) != getattr(new, n)}
        if any(value is None for value in more.values()):
            return False
        changes |= more
    return False


def _words(name: str, value: Any) -> str:
    flag = OPTIONS[name].flag
    if isinstance(value, bool):
        return flag if value else f"--no-{flag[2:]}"
    return f"{flag} {','.join(value) if isinstance(value, tuple) else value}"
