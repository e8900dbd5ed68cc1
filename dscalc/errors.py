"""Exception types. Each message is one line that names what is at fault and what would be right."""

from __future__ import annotations

from collections.abc import Iterable


class DscalcError(Exception):
    """Anything a user can put right; the command line prints it as one line and exits with 1.

    ``where`` names the option, file or file:line at fault; ``message`` says what was wrong and what would be right.
    """

    def __init__(self, message: str, *, where: str | None = None) -> None:
        self.message = " ".join(message.split())
        self.where = where
        super().__init__(f"{where}: {self.message}" if where else self.message)


class UnitError(DscalcError):
    """A quantity that cannot be read, or that has the wrong kind of unit."""


class InputError(DscalcError):
    """Options that are out of range or contradict each other."""


class MissingLibraryError(InputError):
    """An optional library that is not installed; says how to install it."""


class ConfigError(DscalcError):
    """A model configuration file that cannot be read or counted."""


class ProfileError(DscalcError):
    """A hardware profile file that cannot be read or breaks the profile rules."""


class UnknownNameError(DscalcError):
    """A GPU, cluster, model, recipe or stack name that nothing declares; suggests the nearest ones."""

    def __init__(self, kind: str, name: str, known: Iterable[str], *, where: str | None = None) -> None:
        from difflib import get_close_matches  # only faults need it

        names = sorted(set(known))
        lowered = {n.lower(): n for n in names}
        near = [lowered[m] for m in get_close_matches(name.lower(), list(lowered), n=4, cutoff=0.4)]
        listed = "gpus" if kind in ("id", "kind") else f"{kind.lower()}s"  # `dscalc list --help` names the others
        hint = f"did you mean {', '.join(near)}?" if near else f"`dscalc list {listed}` shows what ships."
        super().__init__(f"unknown {kind} {name!r}; {hint}", where=where)
        self.nearest = tuple(near)
