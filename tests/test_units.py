"""Units: what is read is what was meant, what is refused says why, what is written can be read back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dscalc import units
from dscalc.errors import UnitError


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("7B", 7_000_000_000),
        ("7b", 7_000_000_000),
        ("7 B", 7_000_000_000),
        ("7e9", 7_000_000_000),
        ("7_000_000_000", 7_000_000_000),
        ("1T", 1_000_000_000_000),
        ("1.1B", 1_100_000_000),  # 1.1 * 1e9 in binary floating point is 1100000000.0000001
        ("0.3B", 300_000_000),
        ("1.5M", 1_500_000),
        ("8k", 8_000),
        ("512", 512),
        (" 0 ", 0),
        (4096, 4096),
    ],
)
def test_counts(text: str | int, count: int) -> None:
    assert units.parse_count(text) == count


def test_k_is_1024_only_where_asked() -> None:
    assert units.parse_count("8k", k_is_1024=True) == 8192
    assert units.parse_count("8k") == 8000
    assert units.parse_count("1M", k_is_1024=True) == 1_000_000


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "nan",
        "inf",
        "-inf",
        "-7B",
        "1e400",
        "1e999999999",
        "1.5",
        "7,000",
        "seven",
        "_7",
        "0x10",
        "7BB",
        "٧",
        "9" * 70,
        "9" * 10_000,
        "1e-3",
        "7\n8",
        "7\x00",
    ],
)
def test_counts_refused(text: str) -> None:
    with pytest.raises(UnitError) as error:
        units.parse_count(text)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 250


def test_count_with_a_unit_says_what_is_right() -> None:
    with pytest.raises(UnitError, match=r"'7Gb' has the unit 'Gb', a count has none; write 7B"):
        units.parse_count("7Gb")
    with pytest.raises(UnitError):
        units.parse_count(10**30)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("80GB", 80e9),
        ("80GiB", 80 * 2**30),
        ("512 MiB", 512 * 2**20),
        ("80e9", 80e9),
        ("1kB", 1e3),
        ("1KiB", 1024),
        ("81559MiB", 85_520_809_984),
        (".5TB", 5e11),
    ],
)
def test_bytes(text: str, size: float) -> None:
    assert units.parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("400Gb/s", 50e9),
        ("400Gbps", 50e9),
        ("400gbps", 50e9),
        ("400 Gbit/s", 50e9),
        ("50GB/s", 50e9),
        ("50 GiB/s", 50 * 2**30),
        ("50e9", 50e9),
    ],
)
def test_bandwidth(text: str, rate: float) -> None:
    assert units.parse_bandwidth(text) == rate


@pytest.mark.parametrize("text", ["400TF", "400 TFLOP/s", "400tflops", "0.4PF", "400e12", "400 TFLOPs"])
def test_flop_rate(text: str) -> None:
    assert units.parse_flop_rate(text) == 400e12


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("5us", 5e-6),
        ("5µs", 5e-6),
        ("1.4s", 1.4),
        ("90ms", 0.09),
        ("2h", 7200),
        ("5m", 300),
        ("1.4", 1.4),
        ("3 days", 259_200),
    ],
)
def test_time(text: str, seconds: float) -> None:
    assert units.parse_time(text) == seconds


def test_fraction() -> None:
    assert units.parse_fraction("0.4") == units.parse_fraction("40%") == 0.4
    for text in ("40", "101%", "-1", "half"):
        with pytest.raises(UnitError):
            units.parse_fraction(text)


@pytest.mark.parametrize(
    ("parse", "text", "why"),
    [
        (units.parse_bytes, "80Gb", "b is bits"),
        (units.parse_bytes, "80G", "ends in B"),
        (units.parse_bytes, "50GB/s", "a rate"),
        (units.parse_bandwidth, "50GB", "per second is missing"),
        (units.parse_bandwidth, "400Gb", "per second is missing"),
        (units.parse_flop_rate, "400GB/s", "unit of bandwidth"),
        (units.parse_time, "5GB", "unit of bytes"),
        (units.parse_time, "5 fortnights", "not a unit"),
        (units.parse_bytes, "nan", "not a number"),
        (units.parse_bytes, "-1GB", "negative"),
        (units.parse_bytes, "1e99GB", "out of range"),
    ],
)
def test_refusals_say_why(parse: object, text: str, why: str) -> None:
    with pytest.raises(UnitError, match=why) as error:
        parse(text)  # type: ignore[operator]
    assert "e.g." in str(error.value)


def test_conversion_checks_the_dimension() -> None:
    assert units.to_base(989, "TFLOP/s", "flop_rate") == 989e12
    assert units.to_base(1307.4, "TFLOP/s", "flop_rate") == 1307.4e12
    assert units.to_base(400, "Gb/s", "bandwidth") == 50e9
    with pytest.raises(UnitError, match="expected a size in bytes"):
        units.to_base(80, "GB/s", "bytes")
    with pytest.raises(UnitError, match="unknown unit"):
        units.to_base(80, "furlongs", "bytes")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.format_bytes(14e9), "14.0 GB"),
        (units.format_bytes(112e9), "112 GB"),
        (units.format_bytes(999.7e9), "1.00 TB"),
        (units.format_bytes(999.4e9), "999 GB"),
        (units.format_bytes(80 * 2**30, binary=True), "80.0 GiB"),
        (units.format_bytes(float("nan")), "unknown"),
        (units.format_bytes(-5e9), "-5.00 GB"),
        (units.format_count(7e9), "7.00 B"),
        (units.format_count(6_738_415_616), "6.74 B"),
        (units.format_count(999), "999"),
        (units.format_count(1e12), "1.00 T"),
        (units.format_time(0), "0 s"),
        (units.format_time(1.4), "1.40 s"),
        (units.format_time(59.999), "1.00 min"),
        (units.format_time(float("inf")), "inf"),
        (units.format_rate(50e9), "50.0 GB/s"),
        (units.format_flop_rate(989e12), "989 TFLOP/s"),
    ],
)
def test_formats(text: str, expected: str) -> None:
    assert text == expected


sizes = st.floats(min_value=1e-3, max_value=1e20, allow_nan=False)


@given(sizes, st.booleans())
def test_bytes_round_trip(size: float, binary: bool) -> None:
    assert units.parse_bytes(units.format_bytes(max(size, 1), binary=binary)) == pytest.approx(max(size, 1), rel=0.006)


@given(sizes)
def test_rates_round_trip(rate: float) -> None:
    rate = max(rate, 1)
    assert units.parse_bandwidth(units.format_rate(rate)) == pytest.approx(rate, rel=0.006)
    assert units.parse_flop_rate(units.format_flop_rate(rate)) == pytest.approx(rate, rel=0.006)


@given(st.floats(min_value=1e-9, max_value=1e9))
def test_time_round_trip(seconds: float) -> None:
    assert units.parse_time(units.format_time(seconds)) == pytest.approx(seconds, rel=0.006)


@given(st.integers(min_value=0, max_value=10**17))
def test_count_round_trip(count: int) -> None:
    assert units.parse_count(str(count)) == units.parse_count(f"{count:_}") == count
    assert units.parse_count(units.format_count(count)) == pytest.approx(count, rel=0.006)


@given(st.integers(min_value=1, max_value=10**6), st.sampled_from(["kB", "MB", "GB", "KiB", "MiB", "GiB"]))
def test_base_of_a_unit_is_what_parsing_gives(value: int, unit: str) -> None:
    assert units.to_base(value, unit, "bytes") == units.parse_bytes(f"{value} {unit}")


@given(st.text(max_size=80))
def test_any_text_gives_a_number_or_one_line(text: str) -> None:
    parsers = (
        units.parse_count,
        units.parse_bytes,
        units.parse_bandwidth,
        units.parse_flop_rate,
        units.parse_time,
        units.parse_fraction,
    )
    for parse in parsers:
        try:
            value = parse(text)
        except UnitError as error:
            message = str(error)
            assert "\n" not in message
        else:
            assert math.isfinite(value)
            assert value >= 0
