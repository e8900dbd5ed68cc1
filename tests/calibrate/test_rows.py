"""Raw rows of ``dscalc bench``: written whole, read strictly, tolerant of the line a killed run tears."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dscalc.calibrate.rows import RowWriter, parse_rows, read_rows, rows_path, sniff_rows
from dscalc.errors import InputError

RUN = {
    "kind": "run",
    "schema": "dscalc-rows/1",
    "version": "0.1.0",
    "torch": "2.14.1",
    "backend": "nccl",
    "library": "nccl 2.30.7",
    "device": "NVIDIA H200",
    "memory_bytes": 150_000_000_000,
    "ranks": 16,
    "nodes": 2,
    "ranks_per_node": 8,
    "hosts": ["a", "b"],
}
SPREAD = {"time_s": 2e-3, "low_s": 1.9e-3, "high_s": 2.3e-3, "calls": 20}


def collective(**given: Any) -> dict[str, Any]:
    row = {
        "kind": "collective",
        "op": "all_reduce",
        "scope": "all",
        "ranks": 16,
        "nodes": 2,
        "groups": 1,
        "size_bytes": 1 << 20,
        "dtype": "fp32",
        **SPREAD,
        "group_time_s": [2e-3],
        "wrong": 0,
    }
    return row | given


GEMM = {
    "kind": "gemm",
    "dtype": "bf16",
    "m": 4096,
    "n": 8192,
    "k": 2048,
    **SPREAD,
    "rank_time_s": [2e-3] * 16,
    "rank_low_s": [1.9e-3] * 16,
}
END = {"kind": "end", "elapsed_s": 12.0, "measured": 3, "left_out": 0}


def text(*rows: dict[str, Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def test_rows_become_the_columns_of_every_reader() -> None:
    rows = [RUN, collective(size_bytes=4096), collective(), collective(op="all_gather", groups=8, ranks=2), GEMM, END]
    found = read_rows(text(*rows), "lab.rows.jsonl")
    reduce, gather = found.tables
    assert (reduce.op, reduce.ranks, reduce.nodes, reduce.gpu, reduce.groups) == ("all_reduce", 16, 2, "NVIDIA H200", 1)
    assert (reduce.first_line, reduce.last_line, list(reduce.line)) == (2, 3, [2, 3])
    assert np.isnan(reduce.time_s[0]).all()  # out of place: an all-reduce of torch works in place
    # by the definitions of nccl-tests: 1 MiB in 2 ms is 524.288 MB/s, and an all-reduce of 16 counts 2 * 15 / 16 of it
    assert reduce.algbw_bytes_per_s[1, 1] == pytest.approx(524_288_000)
    assert reduce.busbw_bytes_per_s[1, 1] == pytest.approx(983_040_000)
    assert (gather.groups, gather.ranks) == (8, 2)
    assert gather.busbw_bytes_per_s[0, 0] == pytest.approx(262_144_000)
    assert found.compute[0].rate[0] == pytest.approx(2 * 4096 * 8192 * 2048 / 2e-3)
    assert reduce.checks[0].ok


@given(keep=st.integers(min_value=1))
def test_any_cut_keeps_every_whole_line(keep: int) -> None:
    rows = [RUN, collective(), GEMM, END]
    whole = text(*rows)
    first = len(text(RUN))
    cut = whole[: first + keep % (len(whole) - first + 1)]
    found, notes = parse_rows(cut, "x")
    intact = cut.count(b"\n")
    assert [row for _, row in found][:intact] == rows[:intact]
    assert len(found) - intact in (0, 1)  # a last line may lack nothing but its end
    assert len(notes) == (1 if not cut.endswith(b"\n") and len(found) == intact else 0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"op": "all_reduces"}, "x:2: op: must be one of all_reduce"),
        ({"size_bytes": 0}, "x:2: size_bytes: must be a whole number from 1"),
        ({"size_bytes": True}, "x:2: size_bytes: must be"),
        ({"time_s": float("nan")}, "x:2: time_s: must be seconds above 0"),
        ({"time_s": -1}, "x:2: time_s: must be seconds above 0"),
        ({"time_s": 1.0}, "x:2: time_s: must lie between low_s and high_s"),
        ({"group_time_s": "2e-3"}, "x:2: group_time_s: must be a list of seconds"),
        ({"busbw": 1}, "x:2: 'busbw': is not a key of a row of kind collective"),
        ({"kind": "collect"}, "x:2: kind: is not one of run, collective"),
        ({"kind": ["run"]}, "x:2: kind: is not one of"),
    ],
)
def test_a_bad_row_is_named_by_its_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match="x:2") as caught:
        parse_rows(text(RUN, collective(**change), END), "x")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "x: holds no row"),
        (text(collective()), 'x:1: the first row must be {"kind": "run"'),
        (text(RUN) + b"[1]\n", "x:2: is not an object"),
        (text(RUN) + b'{"kind": "collec\n' + text(END), "x:2: is not a row: Unterminated string"),
        (text(RUN) + b"[" * 100_000 + b"\n", "x:2: is not a row: nested too deeply"),
        (text({k: v for k, v in RUN.items() if k != "hosts"}), "x:1: hosts: is missing from a row of kind run"),
        (text(RUN | {"schema": "dscalc-rows/2"}), "x:1: schema: must be 'dscalc-rows/1'"),
        (b"\xff\xfe\n", "x:1: is not a row"),
    ],
)
def test_what_is_no_file_of_rows_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_rows(data, "x")
    assert str(caught.value).startswith(message)


def test_a_missing_key_is_named() -> None:
    row = collective()
    del row["dtype"]
    with pytest.raises(InputError, match="x:2: dtype: is missing from a row of kind collective"):
        parse_rows(text(RUN, row), "x")


def test_writing_then_reading_gives_the_same(tmp_path: Path) -> None:
    path = tmp_path / "lab.rows.jsonl"
    writer = RowWriter(str(path))
    for row in (RUN, collective(), GEMM):
        writer.write(row)
        assert path.read_bytes().endswith(b"\n")  # on disk before the next measurement
    writer.close()
    assert [row for _, row in parse_rows(path.read_bytes(), "x")[0]] == [RUN, collective(), GEMM]


def test_a_file_is_replaced_only_when_told(tmp_path: Path) -> None:
    path = tmp_path / "lab.rows.jsonl"
    path.write_bytes(text(RUN))
    with pytest.raises(InputError, match="exists; --resume goes on with it, --force replaces it"):
        RowWriter(str(path))
    assert path.read_bytes() == text(RUN)
    RowWriter(str(path), force=True).close()
    assert path.read_bytes() == b""


def test_resume_cuts_a_torn_line_and_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "lab.rows.jsonl"
    path.write_bytes(text(RUN, collective()) + b'{"kind":"ge')
    writer = RowWriter(str(path), resume=True)
    writer.write(RUN)
    writer.close()
    assert path.read_bytes().startswith(text(RUN, collective()))
    assert [row["kind"] for _, row in parse_rows(path.read_bytes(), "x")[0]] == ["run", "collective", "run"]


def test_a_row_that_breaks_the_rules_is_never_written(tmp_path: Path) -> None:
    writer = RowWriter(str(tmp_path / "rows"))
    with pytest.raises(ValueError, match="ranks: must be"):
        writer.write(collective(ranks=0))
    writer.close()
    assert (tmp_path / "rows").read_bytes() == b""


def test_names() -> None:
    assert rows_path("lab") == "lab.rows.jsonl"
    assert sniff_rows(text(RUN).decode())
    assert not sniff_rows('{"schema": "other"}')
