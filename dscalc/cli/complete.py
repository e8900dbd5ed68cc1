"""What the tab key offers for a value; imported only when a shell asks."""

from __future__ import annotations

from click.shell_completion import CompletionItem

from dscalc.specs.option_table import Option
from dscalc.specs.options import words


def completions(option: Option, typed: str) -> list[CompletionItem]:
    """Values of an option that begin as typed, in any case; behind a comma the next one of a list.

    Args:
        option: the option.
        typed: what stands there already.

    Returns:
        The values; files where the option takes a file, or a model has no such name.
    """
    if option.kind == "path":
        return [CompletionItem(typed, type="file")]
    before, comma, last = typed.rpartition(",") if option.many or option.kind == "names" else ("", "", typed)
    taken = [*before.split(","), "none"] if before else []  # none stands alone
    found = [f"{before}{comma}{word}" for word in starting(names_of(option), last) if word not in taken]
    if not found and option.name == "model":
        return [CompletionItem(typed, type="file")]
    return [CompletionItem(word) for word in found]


def starting(names: tuple[str, ...], typed: str) -> list[str]:
    """Names that begin as typed, in any case."""
    return [name for name in names if name.lower().startswith(typed.lower())]


def names_of(option: Option) -> tuple[str, ...]:
    """Names that an option knows; empty for numbers and free text."""
    if option.name == "model":
        from dscalc.specs.model import preset_names

        return preset_names()
    if option.name in ("gpu", "cluster", "interconnect"):
        from dscalc.specs import store

        return {"gpu": store.gpu_ids, "cluster": store.cluster_ids, "interconnect": store.interconnect_ids}[
            option.name
        ]()
    return words(option)


def every_name() -> tuple[str, ...]:
    """Names of everything that ``dscalc show`` knows."""
    from dscalc.specs import stack, store
    from dscalc.specs.model import preset_names

    books = (stack.recipe_names(), stack.stack_names(), stack.optimizer_names(), stack.loss_names())
    found = (store.gpu_ids(), store.cluster_ids(), store.interconnect_ids(), preset_names(), *books)
    return tuple(name for names in found for name in names)
