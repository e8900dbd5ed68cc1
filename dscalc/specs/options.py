"""Reading options: any spelling, text or number, into canonical names and values.

The command line, the Python calls and scenario files all come through here, so that a word means the same in each.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from dscalc.errors import DscalcError, InputError
from dscalc.specs.option_table import CONSTANTS, LARGEST, OPTIONS, REFUSED, TABLE, Option
from dscalc.units import MEGA, format_time, parse_bandwidth, parse_count, parse_flop_rate, parse_fraction, parse_time

_LARGEST_NUMBER = 10**30  # above any range; more digits than Python writes out would be a fault of its own
_ALIASES: Mapping[str, str] = {alias: o.name for o in TABLE for alias in o.aliases}


def canonical(name: str) -> str:
    """The canonical name behind any spelling, or the name itself with underscores.

    >>> canonical("mbs"), canonical("tensor-model-parallel-size"), canonical("seq")
    ('micro_batch', 'tp', 'seq_len')
    """
    folded = name.strip().lstrip("-").replace("-", "_").lower()
    return _ALIASES.get(folded, folded)


def nearest(name: str, known: Iterable[str]) -> str:
    """``; did you mean --x?`` for the nearest known spelling, or nothing."""
    from difflib import get_close_matches  # only faults need it

    found = get_close_matches(name, dict.fromkeys(known), n=3, cutoff=0.6)
    return f"; did you mean {' or '.join('--' + n.replace('_', '-') for n in found)}?" if found else ""


def spellings() -> tuple[str, ...]:
    """Every accepted word, with underscores."""
    return (*OPTIONS, *_ALIASES, *CONSTANTS)


def words(option: Option) -> tuple[str, ...]:
    """The words an option accepts; read from the shipped data where they live there."""
    if not option.catalog:
        return option.choices
    from dscalc.specs import stack

    return tuple(stack.entries(option.catalog))


def parse(option: Option, value: object) -> object:
    """Read one value of an option: the text a person types, or the Python value that means the same.

    Args:
        option: the option.
        value: text, number, bool, or a list for ``names``.

    Returns:
        int, float, bool, str or a tuple of str, by the option's kind.

    Raises:
        InputError: the value is not what the option takes; names the option and what would be right.
    """
    try:
        if option.many:
            from dscalc.specs.spans import read_many  # only a sweep takes lists

            ranges = option.kind in ("whole", "length")
            once = option.kind != "number"  # the same number twice is meant, as one for each of several machines
            return read_many(value, lambda one: _READERS[option.kind](option, one), ranges=ranges, once=once)
        found = _READERS[option.kind](option, value)
        if option.least is not None and isinstance(found, float) and found < option.least:
            raise InputError(f"{value} is out of range; at least {_least(option)} is right")
        return found
    except DscalcError as error:
        raise InputError(error.message, where=error.where or option.flag) from None


def _least(option: Option) -> str:
    assert option.least is not None  # noqa: S101 - of options that have one
    return format_time(option.least) if option.kind == "time" else f"{option.least:g}"


def _text(value: object) -> str:
    if isinstance(value, bool) or value is None:
        raise InputError(f"{value!r} is not a value of it")
    if isinstance(value, float):
        if not math.isfinite(value):
            raise InputError(f"{value} is not a finite number")
        return repr(int(value)) if value == int(value) else repr(value)
    if isinstance(value, int) and abs(value) > _LARGEST_NUMBER:
        raise InputError("a number that large is out of range")
    return str(value).strip()


def _whole(option: Option, value: object, *, k_is_1024: bool = False) -> int:
    right = "e.g. 4096 or 8k" if k_is_1024 else "e.g. 8 or 1,2,4 or 8..64" if option.many else "e.g. 8"
    expected = {"expected": right} if option.maximum <= LARGEST else {}
    number = parse_count(_text(value), k_is_1024=k_is_1024, **expected)
    if not option.minimum <= number <= option.maximum:
        raise InputError(
            f"{number} is out of range; a whole number from {option.minimum} to {option.maximum:,} is right"
        )
    return number


def _length(option: Option, value: object) -> int:
    return _whole(option, value, k_is_1024=True)


def _number(_: Option, value: object) -> float:
    text = _text(value)
    try:
        number = float(text if text.isascii() else "")
    except ValueError:
        raise InputError(f"{text!r} is not a number") from None
    if not math.isfinite(number) or not 0 < number <= LARGEST:
        raise InputError(f"{text} is out of range; a number above 0, up to {LARGEST:,.0f}, is right, e.g. 1.25")
    return number


def _choice(option: Option, value: object) -> object:
    text = _text(value)
    known = words(option)
    folded = {word.lower(): word for word in known}
    word = folded.get(text.lower()) or folded.get(text.lower().replace("_", "-"))
    if word is None:
        from difflib import get_close_matches

        close = get_close_matches(text.lower(), list(folded), n=1, cutoff=0.5)
        hint = f"did you mean {folded[close[0]]}? " if close else ""
        raise InputError(f"{text!r} is not one of its words; {hint}it takes {', '.join(known)}")
    return int(word) if option.name == "zero" else word


def _switch(_: Option, value: object) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in ("true", "yes", "on", "1"):
        return True
    if text in ("false", "no", "off", "0"):
        return False
    raise InputError(f"{value!r} is neither true nor false")


def _word(option: Option, value: object) -> str:
    text = _text(value)
    if not text:
        raise InputError("is empty")
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise InputError("holds bytes that are no letters in this locale; set LC_ALL=C.UTF-8 or PYTHONUTF8=1")
    if option.name in ("gpu", "cluster") and text.isdecimal():
        raise InputError(f"--{option.name} takes an id; did you mean --gpus {text}?", where="--" + option.name)
    return text


def _names(option: Option, value: object) -> tuple[str, ...]:
    parts = [value] if isinstance(value, str) else list(value) if isinstance(value, (list, tuple)) else [_text(value)]
    names = tuple(dict.fromkeys(word.strip() for part in parts for word in str(part).split(",") if word.strip()))
    if not names:
        raise InputError("is empty")
    unknown = [n for n in names if option.choices and n not in option.choices]
    if unknown:
        raise InputError(f"{unknown[0]!r} is not one of its words; it takes {', '.join(option.choices)}")
    if "none" in names and len(names) > 1 and "none" in option.choices:
        raise InputError(f"says none and {', '.join(n for n in names if n != 'none')}; only one can be meant")
    return names


class BitRate(float):
    """A rate written in bits in small letters only, as ``50gb/s``: answers say how it was read."""

    text = ""


class Span(NamedTuple):
    """A length of training: so many ``steps`` or ``epochs``; 0 for none."""

    amount: float
    unit: str

    def __str__(self) -> str:
        if not self.amount:
            return "none"
        return f"{self.amount:g} {self.unit if self.amount != 1 else self.unit[:-1]}"


_SPANS = {"step": "steps", "steps": "steps", "epoch": "epochs", "epochs": "epochs"}
_SPAN = re.compile(r"([^a-z\s]+(?:e\d+)?[kmbt]?)\s*([a-z]+)", re.ASCII)


def read_span(text: str) -> Span:
    """Read a length of training.

    Args:
        text: ``5epochs``, ``2000 steps``, ``none``.

    Returns:
        The span.

    Raises:
        InputError: anything else.

    >>> read_span("5epochs"), str(read_span("2k steps")), str(read_span("none"))
    (Span(amount=5.0, unit='epochs'), '2000 steps', 'none')
    """
    folded = text.strip().lower()
    if folded in ("none", "0"):
        return Span(0.0, "steps")
    found = _SPAN.fullmatch(folded)
    unit = _SPANS.get(found[2]) if found else None
    if found is None or unit is None:
        raise InputError(f"{text!r} is no length of training; write e.g. 5epochs, 2000steps or none")
    if unit == "steps":
        return Span(float(_bounded(float(parse_count(found[1])), text)), unit)
    try:
        return Span(_bounded(float(found[1]), text), unit)
    except ValueError:
        raise InputError(f"{found[1]!r} is not a number of epochs") from None


def _bounded(amount: float, text: str) -> float:
    if not 0.0 <= amount <= LARGEST:
        raise InputError(f"{text} is out of range; up to {LARGEST:,} is right")
    return amount


def _span(_: Option, value: object) -> Span:
    return value if isinstance(value, Span) else read_span(_text(value))


def _bandwidth(_: Option, value: object) -> float:
    if isinstance(value, BitRate):
        return value
    text = _text(value)
    rate = _with_unit(text, parse_bandwidth(text), "50GB/s or 400Gb/s", "bytes/s")
    if text == text.lower() and "b" in text and "byte" not in text and "bit" not in text:
        rate = BitRate(rate)
        rate.text = text
    return rate


def _flop_rate(_: Option, value: object) -> float:
    text = _text(value)
    return _with_unit(text, parse_flop_rate(text), "400TF", "FLOP/s")


def _with_unit(text: str, rate: float, right: str, unit: str) -> float:
    """The rate; a small bare number was meant in some other unit."""
    if 0 < rate < MEGA and not any(letter.isalpha() for letter in text.lower().replace("e", "")):
        raise InputError(f"{text} has no unit; write e.g. {right} (a number without one is {unit}, from 1e6 on)")
    return rate


_READERS: Mapping[str, Callable[[Option, Any], object]] = {
    "whole": _whole,
    "length": _length,
    "number": _number,
    "fraction": lambda _, value: parse_fraction(_text(value)),
    "choice": _choice,
    "switch": _switch,
    "flag": _switch,
    "text": _word,
    "path": _word,
    "rate": _bandwidth,
    "flop_rate": _flop_rate,
    "time": lambda _, value: parse_time(_text(value)),
    "names": _names,
    "span": _span,
}


def read_word(word: str, value: object, table: Mapping[str, Option] = OPTIONS) -> tuple[str, object]:
    """Canonical name and parsed value of one option in any spelling.

    Args:
        word: the option.
        value: text, number, bool or list.
        table: the options there are, by canonical name.

    Returns:
        Name and value.

    Raises:
        InputError: an unknown or ambiguous word, or a bad value.
    """
    name = canonical(word)
    if name in REFUSED:
        raise InputError(REFUSED[name], where="--" + name.replace("_", "-"))
    if name in CONSTANTS:
        target, constant = CONSTANTS[name]
        if not _switch(OPTIONS[target], value):
            raise InputError(
                f"only stands for {OPTIONS[target].flag} {constant}; leave it out or say what is meant",
                where="--" + name.replace("_", "-"),
            )
        return target, (constant,) if table[target].many else constant
    if name not in table:
        known = (*spellings(), *table)
        raise InputError(f"there is no such option{nearest(name, known)}", where="--" + name.replace("_", "-"))
    return name, parse(table[name], value)
