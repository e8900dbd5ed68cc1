"""What stands under every answer: what was assumed, and warnings with what to do next."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dscalc.report.screen import Screen

if TYPE_CHECKING:
    from dscalc.answers.envelope import Assumption, Warning


def option_words(name: str) -> str:
    """An option as it is typed, without its dashes."""
    return name.replace("_", "-")


def value_words(value: object) -> str:
    """A value as it is typed, in one piece."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, float) else str(value).replace(" ", "\u00a0")


def defaults_of(assumptions: Iterable[Assumption]) -> list[Assumption]:
    """Options that nobody gave and that do something."""
    return [a for a in assumptions if a.kind == "default" and a.value not in (None, False, "none")]


def assumed(out: Screen, defaults: Iterable[Assumption], others: Iterable[tuple[str, str, Assumption]]) -> None:
    """What was not given: options at their defaults in one paragraph, then numbers with kind and source.

    Args:
        out: the screen.
        defaults: options at their defaults.
        others: name and value in words, and the assumption.
    """
    plain, rest = list(defaults), list(others)
    if not plain and not rest:
        return
    out.head("Not given, so assumed *", "change any by its option; --format json lists all")
    if plain:
        out.say("* " + ", ".join(f"{option_words(a.name)}\u00a0{value_words(a.value)}" for a in plain), hang=2)
    for name, value, a in rest:
        out.say(f"* {f'{name} {value}'.rstrip()} ({a.kind}): {a.source}", hang=2)


def warned(out: Screen, warnings: Iterable[Warning]) -> None:
    """Warnings, each with its next step."""
    listed = list(warnings)
    if listed:
        out.head("Warnings")
    for w in listed:
        out.say(f"! {w.message}. Next: {w.next_step}.", hang=2)
