"""Lists and ranges of one option: ``1,2,4``, ``8..4096`` (doubling), ``8..64:8`` (in steps)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from dscalc.errors import InputError

MOST_VALUES = 10_000  # of one option; more is a typing error
SPAN = ".."
One = Callable[[object], Any]


def read_many(value: object, one: One, *, ranges: bool, once: bool = True) -> tuple[Any, ...]:
    """The values of an option that takes several, in the order given.

    Args:
        value: text with commas and ranges, one value, or a list of either.
        one: reads a single value.
        ranges: whether the values are whole numbers, of which there are ranges.
        once: leave out values that were there before.

    Returns:
        The values.

    Raises:
        InputError: a value that the option does not take, or a range that holds none.

    >>> read_many("8..64", int, ranges=True)
    (8, 16, 32, 64)
    >>> read_many("8..32:8,64", int, ranges=True)
    (8, 16, 24, 32, 64)
    """
    parts = list(value) if isinstance(value, list | tuple | range) else [value]
    found = tuple(single for part in parts for single in _values(part, one, ranges))
    found = tuple(dict.fromkeys(found)) if once else found
    if not found:
        raise InputError("holds no value; write e.g. 1,2,4")
    if len(found) > MOST_VALUES:
        raise InputError(
            f"holds {len(found):,} values, more than {MOST_VALUES:,}; write a doubling range such as 8..4096"
        )
    return found


def _values(part: object, one: One, ranges: bool) -> Iterator[Any]:
    if not isinstance(part, str):
        yield one(part)
        return
    for piece in part.split(","):
        text = piece.strip()
        if SPAN in text and ranges:
            yield from _span(text, one)
        else:
            yield one(text)


def _span(text: str, one: One) -> Iterator[int]:
    first, _, rest = text.partition(SPAN)
    last, colon, step = rest.partition(":")
    if not first.strip() or not last.strip() or (colon and not step.strip()):
        raise InputError(f"{text!r} is no range; write e.g. 8..4096 (doubling) or 8..64:8")
    low, high = (_bound(end, one) for end in (first, last))
    if high < low:
        raise InputError(f"{text} holds no value: {high} is below {low}; write the smaller one first")
    if colon:
        stride = _bound(step, one)
        if (high - low) // stride >= MOST_VALUES:
            raise InputError(f"{text} holds more than {MOST_VALUES:,} values; take a larger step, or {low}..{high}")
        yield from range(low, high + 1, stride)
    else:
        while low <= high:
            yield low
            low *= 2


def _bound(text: str, one: One) -> int:
    found = one(text.strip())
    if not isinstance(found, int) or found < 1:
        raise InputError(f"{text.strip()} cannot begin, end or step a range; a whole number from 1 on is right")
    return found
