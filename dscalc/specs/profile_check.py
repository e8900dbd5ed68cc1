"""What is wrong with a user's profile, in one line; shipped ones, which the tests have checked, load none of this."""

from __future__ import annotations


def check_depth(data: object, most: int) -> None:
    """Refuse objects inside objects inside objects.

    Raises:
        ValueError: nested deeper than ``most``.
    """
    level: list[object] = [data]
    for _ in range(most):
        inner: list[object] = []
        for item in level:
            if isinstance(item, dict):
                inner += item.values()
            elif isinstance(item, list):
                inner += item
        level = inner
        if not level:
            return
    raise ValueError(f"nested more than {most} deep; a profile is one object of records")


def _where(location: tuple[int | str, ...], most: int) -> str:
    parts = [str(part) if str(part).isidentifier() or isinstance(part, int) else repr(part) for part in location]
    return ".".join(part[:most] for part in parts)


def first_fault(error: Exception, most: int) -> str:
    """One line for the first fault that was found; names are cut at ``most`` characters."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return str(error)[:300]
    details = error.errors(include_url=False, include_context=False, include_input=False)
    first = details[0]
    what = {
        "extra_forbidden": "is not a field of a profile; remove it or correct its spelling",
        "missing": "is missing",
    }.get(first["type"], first["msg"].removeprefix("Value error, "))
    location = _where(first["loc"], most)
    more = f" (and {len(details) - 1} more)" if len(details) > 1 else ""
    return f"{location}: {what}{more}" if location else f"{what}{more}"
