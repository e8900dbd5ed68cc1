"""Read and write quantities at the edge; inside, everything is in base units.

Base units: bytes, seconds, FLOP, bytes/s, FLOP/s. Bits and bytes, GB and GiB stay different things: ``b`` is a
bit, ``B`` a byte, ``G`` is 1000**3, ``Gi`` is 1024**3. Arithmetic is decimal, so ``1.1B`` is exactly 1 100 000 000.
"""

from __future__ import annotations

import math
import re
from decimal import Context, Decimal

from dscalc.errors import UnitError

_LETTERS = "kMGTPE"  # ascending powers
_SI = {letter: 1000**power for power, letter in enumerate(_LETTERS, start=1)}
_IEC = {letter: 1024**power for power, letter in enumerate(_LETTERS, start=1)}

KILO, MEGA, GIGA, TERA, PETA, EXA = _SI.values()
KB, MB, GB, TB, PB = KILO, MEGA, GIGA, TERA, PETA
KIB, MIB, GIB, TIB, PIB, _EIB = _IEC.values()
BITS_PER_BYTE = 8
MILLI, MICRO, NANO = 1 / KILO, 1 / MEGA, 1 / GIGA
MINUTE, HOUR, DAY = 60, 60 * 60, 24 * 60 * 60  # [s]

_CONTEXT = Context(prec=60)
_MAX_TEXT = 64  # characters; longer is not a number somebody typed
_MAX_DIGITS = 30  # largest decimal exponent of any quantity, either sign
_MAX_COUNT_DIGITS = 18
_NUMBER = re.compile(
    r"([+-]?)((?:\d+(?:_\d+)*)?(?:\.(?:\d+(?:_\d+)*)?)?(?:[eE][+-]?\d+)?)\s*(.*)", re.ASCII | re.DOTALL
)


# --------------------------------------------------------------------------------------------------------------- units
def _prefixes(*, binary: bool) -> dict[str, int]:
    """Prefix spellings with their factor; case is free (no byte, bit or FLOP comes in thousandths)."""
    table = {"": 1}
    for letter, factor in _SI.items():
        table[letter.upper()] = table[letter.lower()] = factor
    if binary:
        for letter, factor in _IEC.items():
            table[f"{letter.upper()}i"] = table[f"{letter.lower()}i"] = factor
    return table


def _build_units() -> dict[str, tuple[str, Decimal]]:
    """Every unit spelling: (dimension, factor to the base unit)."""
    units: dict[str, tuple[str, Decimal]] = {"": ("count", Decimal(1)), "count": ("count", Decimal(1))}
    bit = Decimal(1) / BITS_PER_BYTE
    for prefix, factor in _prefixes(binary=True).items():
        for name in ("B", "byte", "bytes"):
            units[prefix + name] = ("bytes", Decimal(factor))
            units[f"{prefix}{name}/s"] = ("bandwidth", Decimal(factor))
        units[f"{prefix}Bps"] = ("bandwidth", Decimal(factor))
        for name in ("b", "bit", "bits"):
            units[prefix + name] = ("bits", factor * bit)
            units[f"{prefix}{name}/s"] = ("bandwidth", factor * bit)
        units[f"{prefix}bps"] = ("bandwidth", factor * bit)
    for prefix, factor in _prefixes(binary=False).items():
        if prefix.islower() and prefix != "k":
            continue  # "tf" is read case-insensitively in parse_flop_rate; a profile spells it properly
        for name in ("F", "F/s", "FLOP/s", "FLOPS", "FLOPs"):
            units[prefix + name] = ("flop_rate", Decimal(factor))
    for names, seconds in (
        (("s", "sec", "second", "seconds"), Decimal(1)),
        (("ms",), Decimal(1) / KILO),
        (("us", "µs", "μs"), Decimal(1) / MEGA),
        (("ns",), Decimal(1) / GIGA),
        (("m", "min", "minute", "minutes"), Decimal(MINUTE)),
        (("h", "hour", "hours"), Decimal(HOUR)),
        (("d", "day", "days"), Decimal(DAY)),
    ):
        units.update(dict.fromkeys(names, ("time", seconds)))
    units["%"] = ("fraction", Decimal("0.01"))
    units["W"] = ("power", Decimal(1))
    units["kW"] = ("power", Decimal(KILO))
    units["USD/h"] = ("price", Decimal(1))
    return units


_UNITS = _build_units()
_EXPECTED = {
    "bytes": "a size in bytes, e.g. 80GB or 80GiB",
    "bandwidth": "bytes or bits per second, e.g. 50GB/s or 400Gb/s",
    "flop_rate": "FLOP per second, e.g. 400TF or 0.4 PFLOP/s",
    "time": "a time, e.g. 5us, 90ms or 1.4s",
    "power": "watts, e.g. 700 W",
    "price": "dollars an hour, e.g. 55.04 USD/h",
    "count": "a plain number, e.g. 8",
    "fraction": "a fraction, e.g. 0.4 or 40%",
}


def unit_dimension(unit: str) -> str:
    """Say what a unit measures.

    Args:
        unit: spelling such as ``GB/s`` or ``MiB`` [text].

    Returns:
        ``bytes``, ``bits``, ``bandwidth``, ``flop_rate``, ``time``, ``power``, ``price``, ``count`` or ``fraction``.

    Raises:
        UnitError: nobody knows that unit.

    >>> unit_dimension("GB/s"), unit_dimension("MiB")
    ('bandwidth', 'bytes')
    """
    try:
        return _UNITS[unit][0]
    except KeyError:
        raise UnitError(
            f"unknown unit {_clip(unit)}; known are e.g. GB, MiB, GB/s, Gb/s, TFLOP/s, us, W, USD/h, count"
        ) from None


def to_base(value: float, unit: str, dimension: str) -> float:
    """Convert a value with its unit into base units.

    Args:
        value: the number as written [``unit``].
        unit: its unit [text].
        dimension: what the field must measure, one of the results of :func:`unit_dimension` [text].

    Returns:
        The value [base unit of ``dimension``], rounded once.

    Raises:
        UnitError: the unit is unknown or measures something else.

    >>> to_base(81559, "MiB", "bytes")
    85520809984.0
    """
    found = unit_dimension(unit)
    if found != dimension:
        raise UnitError(f"{_clip(unit)} measures {found.replace('_', ' ')}; expected {_EXPECTED[dimension]}")
    return float(_CONTEXT.multiply(Decimal(repr(value)), _UNITS[unit][1]))


# ------------------------------------------------------------------------------------------------------------- parsing
def _clip(text: str) -> str:
    return repr(text) if len(text) <= _MAX_TEXT else f"{text[:20]!r}... ({len(text)} characters)"


def _split(text: str, expected: str) -> tuple[Decimal, str]:
    """Split ``"50 GB/s"`` into its number (finite, >= 0) and its unit."""
    if len(text) > _MAX_TEXT:
        raise UnitError(f"{_clip(text)} is too long; expected {expected}")
    stripped = text.strip()
    match = _NUMBER.fullmatch(stripped)
    sign, digits, unit = match.groups() if match else ("", "", "")
    if not any(char.isdigit() for char in digits.lower().partition("e")[0]):
        what = "nothing was given" if not stripped else f"{_clip(text)} is not a number"
        raise UnitError(f"{what}; expected {expected}")
    value = Decimal(digits.replace("_", ""))
    if sign == "-":
        raise UnitError(f"{_clip(text)} is negative; expected {expected}")
    if value and abs(value.adjusted()) > _MAX_DIGITS:
        raise UnitError(f"{_clip(text)} is out of range; expected {expected}")
    return value, unit.strip()


def _convert(text: str, dimension: str, *, fold: bool = False, hints: dict[str, str] | None = None) -> float:
    expected = _EXPECTED[dimension]
    value, unit = _split(text, expected)
    if unit == "":
        return float(value)
    key = unit.replace(" ", "")
    if fold:
        key = _FLOP_FOLDED.get(key.lower(), key)
    known = _UNITS.get(key)
    if known is None or known[0] != dimension:
        hint = (hints or {}).get(known[0] if known else "", "")
        kind = f"a unit of {known[0].replace('_', ' ')}" if known else "not a unit"
        raise UnitError(f"{_clip(unit)} in {_clip(text)} is {kind}{hint}; expected {expected}")
    return float(_CONTEXT.multiply(value, known[1]))


_FLOP_FOLDED = {name.lower(): name for name, (dimension, _) in _UNITS.items() if dimension == "flop_rate"}
_FLOP_FOLDED |= {f"{prefix.lower()}flop": f"{prefix}F" for prefix in ("", "k", "M", "G", "T", "P", "E")}
_COUNT_SUFFIX = {"k": KILO, "m": MEGA, "b": GIGA, "bn": GIGA, "t": TERA}


def parse_count(text: str | int, *, k_is_1024: bool = False, expected: str = "e.g. 7B, 7e9 or 7_000_000_000") -> int:
    """Read a count of parameters, tokens or sequences.

    Args:
        text: ``7B``, ``7e9``, ``7_000_000_000``, ``1.5M``, ``8k`` [count].
        k_is_1024: whether ``k`` means 1024 (lengths of sequences) and not 1000 [bool].
        expected: what would be right, for errors.

    Returns:
        The whole number [count].

    Raises:
        UnitError: not a number, negative, not whole, out of range, or with a unit.

    >>> parse_count("7B"), parse_count("1.1B"), parse_count("8k", k_is_1024=True)
    (7000000000, 1100000000, 8192)
    """
    shown = str(text) if isinstance(text, int) and abs(text) < EXA else text
    if not isinstance(shown, str):
        raise UnitError(f"a number that large is out of range; expected {expected}")
    value, suffix = _split(shown, expected)
    factor = _COUNT_SUFFIX.get(suffix.lower(), 1 if suffix == "" else None)
    if factor is None:
        stem = suffix.lower().rstrip("s")
        for letter, meant in (("g", "B"), ("b", ""), ("k", "k"), ("m", "M"), ("t", "T")):
            if stem.startswith(letter):
                right = f"{value.normalize(_CONTEXT):f}{meant}"
                raise UnitError(f"{_clip(shown)} has the unit {_clip(suffix)}, a count has none; write {right}")
        raise UnitError(f"{_clip(suffix)} in {_clip(shown)} is not k, M, B or T; expected {expected}")
    if k_is_1024 and factor == KILO:
        factor = KIB
    total = _CONTEXT.multiply(value, Decimal(factor))
    if total and total.adjusted() >= _MAX_COUNT_DIGITS:
        raise UnitError(f"{_clip(shown)} is out of range; expected {expected}")
    if total != total.to_integral_value():
        raise UnitError(f"{_clip(shown)} is not a whole number; expected {expected}")
    return int(total)


def parse_bytes(text: str) -> float:
    """Read a size; a bare number is bytes.

    Args:
        text: ``80GB``, ``80GiB``, ``512 MiB``, ``80e9`` [bytes].

    Returns:
        Size [bytes].

    Raises:
        UnitError: not a size.

    >>> parse_bytes("80GB"), parse_bytes("80GiB")
    (80000000000.0, 85899345920.0)
    """
    return _convert(
        text,
        "bytes",
        hints={
            "bits": " (b is bits, B is bytes)",
            "bandwidth": " (a rate)",
            "": " (a size ends in B: GB is 1000**3, GiB 1024**3)",
        },
    )


def parse_bandwidth(text: str) -> float:
    """Read a bandwidth; ``b`` is bits, ``B`` is bytes, a bare number is bytes/s.

    Args:
        text: ``400Gb/s``, ``400Gbps``, ``50GB/s``, ``50 GiB/s`` [bytes/s or bits/s].

    Returns:
        Bandwidth [bytes/s].

    Raises:
        UnitError: not a bandwidth.

    >>> parse_bandwidth("400Gb/s"), parse_bandwidth("50GB/s")
    (50000000000.0, 50000000000.0)
    """
    return _convert(text, "bandwidth", hints={"bytes": " (per second is missing)", "bits": " (per second is missing)"})


def parse_flop_rate(text: str) -> float:
    """Read a rate of floating-point operations; a bare number is FLOP/s.

    Args:
        text: ``400TF``, ``400 TFLOP/s``, ``0.4PF``, ``989e12`` [FLOP/s].

    Returns:
        Rate [FLOP/s].

    Raises:
        UnitError: not such a rate.

    >>> parse_flop_rate("400 TFLOP/s")
    400000000000000.0
    """
    return _convert(text, "flop_rate", fold=True)


def parse_time(text: str) -> float:
    """Read a time; a bare number is seconds.

    Args:
        text: ``5us``, ``90ms``, ``1.4s``, ``5m`` (minutes), ``2h`` [s].

    Returns:
        Time [s].

    Raises:
        UnitError: not a time.

    >>> parse_time("90ms"), parse_time("2h")
    (0.09, 7200.0)
    """
    return _convert(text, "time")


def parse_fraction(text: str) -> float:
    """Read a share between 0 and 1.

    Args:
        text: ``0.4`` or ``40%`` [1].

    Returns:
        Fraction [1].

    Raises:
        UnitError: not a number, or outside 0 to 1.

    >>> parse_fraction("40%")
    0.4
    """
    value = _convert(text, "fraction")
    if value > 1:
        raise UnitError(f"{_clip(text)} is more than 1; expected {_EXPECTED['fraction']}")
    return value


# ---------------------------------------------------------------------------------------------------------- formatting
def _three(value: float) -> str:
    """Three significant digits of a value in [0, 1000)."""
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def _scaled(value: float, scale: list[tuple[float, str]]) -> str:
    """Write ``value`` with the largest step of ``scale`` (ascending) that leaves it at 1 or more."""
    if math.isnan(value):
        return "unknown"
    if math.isinf(value):
        return "-inf" if value < 0 else "inf"
    size = abs(value)
    at = max((i for i, (factor, _) in enumerate(scale) if size >= factor), default=0)
    # rounding may carry into the next step: 999.7 GB is written 1.00 TB
    if at + 1 < len(scale) and _three(size / scale[at][0]) == _three(scale[at + 1][0] / scale[at][0]):
        at += 1
    factor, unit = scale[at]
    return f"{'-' if value < 0 else ''}{_three(size / factor)} {unit}".rstrip()


def _ladder(unit: str, *, binary: bool = False) -> list[tuple[float, str]]:
    steps = {f"{letter.upper()}i": f for letter, f in _IEC.items()} if binary else _SI
    return [(1.0, unit), *((float(factor), prefix + unit) for prefix, factor in steps.items())]


_DECIMAL_BYTES, _BINARY_BYTES = _ladder("B"), _ladder("B", binary=True)
_RATE, _FLOP_RATE = _ladder("B/s"), _ladder("FLOP/s")
_COUNTS = [(1.0, ""), (float(KILO), "k"), (float(MEGA), "M"), (float(GIGA), "B"), (float(TERA), "T")]
_TIMES = [(NANO, "ns"), (MICRO, "us"), (MILLI, "ms"), (1.0, "s")]
_TIMES += [(float(MINUTE), "min"), (float(HOUR), "h"), (float(DAY), "d")]


def format_bytes(size_bytes: float, *, binary: bool = False) -> str:
    """Write a size with three significant digits.

    Args:
        size_bytes: size [bytes]; nan is written ``unknown``.
        binary: GiB and not GB [bool].

    Returns:
        Text such as ``14.0 GB``.

    >>> format_bytes(14e9), format_bytes(85520809984, binary=True)
    ('14.0 GB', '79.6 GiB')
    """
    return _scaled(size_bytes, _BINARY_BYTES if binary else _DECIMAL_BYTES)


def format_size(size_bytes: float) -> str:
    """Write the size of a message in binary units, without a fraction where it is whole.

    Args:
        size_bytes: size [bytes].

    Returns:
        Text such as ``64 KiB``.

    >>> format_size(65536), format_size(8), format_size(1.5 * 2**20)
    ('64 KiB', '8 B', '1.50 MiB')
    """
    return re.sub(r"\.0+ ", " ", format_bytes(size_bytes, binary=True))


def format_count(count: float) -> str:
    """Write a count with three significant digits; below a thousand whole numbers stay whole.

    Args:
        count: number of things [count].

    Returns:
        Text such as ``6.74 B``.

    >>> format_count(6738415616), format_count(512)
    ('6.74 B', '512')
    """
    if math.isfinite(count) and count == int(count) and abs(count) < KILO:
        return str(int(count))
    return _scaled(count, _COUNTS)


def format_time(time_s: float) -> str:
    """Write a time with three significant digits.

    Args:
        time_s: time [s].

    Returns:
        Text such as ``90.0 ms``.

    >>> format_time(0.09), format_time(5e-6), format_time(7200)
    ('90.0 ms', '5.00 us', '2.00 h')
    """
    return "0 s" if time_s == 0 else _scaled(time_s, _TIMES)


def format_energy(energy_j: float) -> str:
    """Write an energy as electricity is billed, with three significant digits.

    >>> format_energy(7.2e9)
    '2.00 MWh'
    """
    return _scaled(energy_j / HOUR / KILO, [(1.0, "kWh"), (KILO, "MWh"), (MEGA, "GWh")])


def format_rate(rate_bytes_per_s: float) -> str:
    """Write a bandwidth with three significant digits.

    Args:
        rate_bytes_per_s: bandwidth [bytes/s].

    Returns:
        Text such as ``50.0 GB/s``.

    >>> format_rate(50e9)
    '50.0 GB/s'
    """
    return _scaled(rate_bytes_per_s, _RATE)


def format_flop_rate(rate_flop_per_s: float) -> str:
    """Write a compute rate with three significant digits.

    Args:
        rate_flop_per_s: rate [FLOP/s].

    Returns:
        Text such as ``400 TFLOP/s``.

    >>> format_flop_rate(400e12)
    '400 TFLOP/s'
    """
    return _scaled(rate_flop_per_s, _FLOP_RATE)
