"""``dscalc fit`` as a command: keys, forms, what is said of logs that hold nothing, and the Python twin."""

from __future__ import annotations

import csv
import gzip
import io
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import dscalc
from dscalc.cli import main
from tests.calibrate.written import OTHERS, nccl_tests, times_of

Within = Callable[..., tuple[int, str, str]]
SIZES = [1 << k for k in range(3, 33, 2)]
LOG = nccl_tests("all_reduce", 16, SIZES, times_of(SIZES, 30.0, 90.0), hosts=2, wrong={6: 48})
TABLE = {
    *("op", "ranks", "nodes", "gpu", "rows_read", "rows_torn", "size_min_bytes", "size_max_bytes"),
    *("max_busbw_bytes_per_s", "mean_busbw_bytes_per_s", "checks"),
}


@pytest.fixture
def within(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Within:
    """The command inside this process, beside two logs: exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    Path("ar.log").write_text(LOG.text, encoding="utf-8")
    Path("mm.log").write_text(OTHERS["mm_flops"], encoding="utf-8")
    Path("dead.log").write_text("\n".join(LOG.lines[:9]) + "\nTest NCCL failure common.cu:1012\n", encoding="utf-8")

    def run(*words: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main.run(list(words))
        out = capsys.readouterr()
        return int(left.value.code or 0), out.out, out.err

    return run


def test_json_has_the_keys_of_the_interface(within: Within) -> None:
    code, out, _ = within("fit", "ar.log", "mm.log", "--rows", "--format", "json")
    assert code == 0
    answer = json.loads(out)
    assert (answer["schema"], answer["command"]) == ("dscalc/1", "fit")
    log, products = answer["result"]["logs"]
    assert (log["file"], log["format"]) == ("ar.log", "nccl-tests")
    (table,) = log["tables"]
    assert set(table) >= TABLE | {"rows"}
    assert (table["op"], table["ranks"], table["nodes"], table["gpu"]) == ("all_reduce", 16, 2, "NVIDIA H100")
    assert (table["rows_read"], table["rows_torn"]) == (len(SIZES), 0)
    assert (table["size_min_bytes"], table["size_max_bytes"]) == (SIZES[0], SIZES[-1])
    printed = [truth.cells for truth in LOG.rows.values()]
    assert table["max_busbw_bytes_per_s"] == pytest.approx(max(c[0][2] for c in printed) * 1e9)
    assert table["mean_busbw_bytes_per_s"] == pytest.approx(
        sum(half[2] for c in printed for half in c if half) / (2 * len(printed)) * 1e9
    )
    assert {c["name"]: c["ok"] for c in table["checks"]} == {
        "size_over_time": True, "op": True, "ranks": True, "average": True, "out_of_bounds": False,
    }  # fmt: skip
    assert [row["size_bytes"] for row in table["rows"]] == SIZES
    assert [row["line"] for row in table["rows"]] == [index + 1 for index in LOG.rows]
    assert table["rows"][6]["in_place_wrong"] == 48
    assert table["rows"][6]["time_s"] == pytest.approx(printed[6][0][0] * 1e-6)
    assert [one["kind"] for one in products["compute"]] == ["gemm"]
    assert [w["code"] for w in answer["warnings"]][:1] == ["check_out_of_bounds"]


def test_rows_only_when_asked(within: Within) -> None:
    _, out, _ = within("fit", "ar.log", "--format", "json")
    assert "rows" not in json.loads(out)["result"]["logs"][0]["tables"][0]


def test_csv_holds_the_rows_in_base_units(within: Within) -> None:
    _, out, _ = within("fit", "ar.log", "--rows", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(out)))
    assert [int(float(row["size_bytes"])) for row in rows] == SIZES
    assert float(rows[-1]["time_s"]) == pytest.approx(next(reversed(LOG.rows.values())).cells[0][0] * 1e-6)


@pytest.mark.parametrize("columns", [80, 140])
def test_screen_names_what_failed_and_fits(within: Within, monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, _ = within("fit", "ar.log", "mm.log", "--rows")
    assert code == 0
    assert max(map(len, out.splitlines())) <= columns
    lines = out.splitlines()
    head = next(line for line in lines if line.startswith("operation"))
    assert head.split()[:6] == ["operation", "ranks", "nodes", "rows", "sizes", "busbw"]
    row = lines[lines.index(head) + 1]
    assert row.split()[:4] == ["all-reduce", "16", "2", "15"]
    assert "1 failed" in row
    assert "8 B to 2 GiB" in row
    assert "matrix product" in out
    assert "1 value out of bounds" in out
    assert out.count("GiB") >= 2


def test_markdown_and_one_line(within: Within) -> None:
    _, out, _ = within("fit", "ar.log", "mm.log", "--format", "markdown")
    assert out.startswith("| file")
    assert "| matrix product" in out
    _, quiet, _ = within("fit", "ar.log", "mm.log", "--quiet")
    assert quiet.splitlines()[0].startswith("ar.log all-reduce 16 ranks 15 rows ")


def test_a_file_without_rows_is_said_and_the_others_are_read(within: Within) -> None:
    code, out, _ = within("fit", "ar.log", "dead.log", "--format", "json")
    assert code == 0
    answer = json.loads(out)
    assert [log["file"] for log in answer["result"]["logs"]] == ["ar.log"]
    warning = next(w for w in answer["warnings"] if w["code"] == "no_usable_row")
    assert "dead.log" in warning["message"]
    assert "line 10 says 'Test NCCL failure common.cu:1012'" in warning["message"]


def test_the_standard_input(run_dscalc: Any) -> None:
    ran = run_dscalc("fit", "-", "--format", "json", stdin=LOG.text)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout)["result"]["logs"][0]["file"] == "standard input"


BAD = {
    "empty.log": (b"", "is empty"),
    "blank.log": (b" \n\r\n\x00\n", "is empty"),
    "noise.log": (bytes(range(256)) * 64, "no usable row|is not text"),
    "zeros.log": (b"a" + b"\x00" * 5000, "is not text|no usable row|is empty"),
    "run.log.gz": (gzip.compress(b"x" * 100), "gzip"),
    "page.html": (b"<!DOCTYPE html><html><body>log</body></html>", "web page"),
    "prose.txt": (b"The quick brown fox.\n" * 50, "no reader knows the format"),
    "hang.log": (
        b"[rank0]:[E ProcessGroupNCCL.cpp:1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=4)\n",
        "no usable row",
    ),
    "cut.json": (b'{"results": [{"size": 1024, "count": 25', "no object in it is whole"),
    "deep.json": (b'{"results": ' + b"[" * 200_000, "no usable row|no object|nested"),
    "header.log": ("\n".join(LOG.lines[: min(LOG.rows)]).encode(), r"the header is on line 24, and no row follows"),
    "fake.log": (
        "".join(
            f"{size:>12d}  {size // 4:>12d}     float     sum      -1{half}{half}\n"
            for size, half in (
                (1 << 20, "    50.00   99.00  185.00      0"),
                (1 << 21, "    60.00   99.00  185.00      0"),
            )
        ).encode(),
        r"every row is torn \(first: line 1\)",
    ),
    "renamed.log": (  # a header, and times that are not those of the speeds
        ("\n".join(LOG.lines[: min(LOG.rows)]) + "\n").encode()
        + b"     1048576        262144     float     sum      -1"
        + b"    50.00   99.00  185.00       0" * 2
        + b"\n",
        r"size / time is not the printed speed in any of 1 rows \(first: line 25\)",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_hopeless_files_are_refused_in_one_line(within: Within, name: str) -> None:
    Path(name).write_bytes(BAD[name][0])
    code, out, error = within("fit", name)
    assert (code, out) == (1, "")
    assert error.count("\n") == 1
    assert error.startswith(f"Error: {name}: ")
    with pytest.raises(dscalc.DscalcError, match=BAD[name][1]):
        dscalc.fit(name)


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (("none.log",), 1, "none.log: cannot be read (No such file"),
        ((".",), 1, "not a regular file"),
        (("dead.log", "none.log"), 1, "no file has a usable row"),
        ((), 2, "FILE... is missing"),
        (("ar.log", "--op", "allreduce3"), 2, "is no operation; there are all_reduce"),
        (("ar.log", "--ranks", "0"), 2, "--ranks"),
        (("ar.log", "--nodes", "many"), 2, "--nodes"),
    ],
)
def test_faults_are_one_line(within: Within, words: tuple[str, ...], code: int, says: str) -> None:
    left, out, error = within("fit", *words)
    assert (left, out) == (code, "")
    assert says in error
    assert "Traceback" not in error


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_without_a_writer_does_not_hang(within: Within) -> None:
    os.mkfifo("pipe")
    code, _, error = within("fit", "pipe")
    assert code == 1
    assert "not a regular file" in error


def test_what_the_log_does_not_say_can_be_said(within: Within) -> None:
    rows = "\n".join(LOG.lines[index] for index in LOG.rows) + "\n"
    Path("rows.log").write_text(rows.replace("sum", "max"), encoding="utf-8")
    answer = dscalc.fit("rows.log", op="all-reduce", nodes=4)
    (table,) = answer.logs[0].tables
    assert (table.op, table.ranks, table.nodes) == ("all_reduce", 16, 4)
    refuted = dscalc.fit("ar.log", ranks=64)
    failed = {c.name: c.detail for t in refuted.logs[0].tables for c in t.checks if not c.ok}
    assert "--ranks says 64, but the list of ranks" in failed["stated"]
    assert "means 16 ranks" in failed["ranks"]
    assert refuted.logs[0].tables[0].ranks == 16


def test_the_twin_gives_the_same(within: Within) -> None:
    _, out, _ = within("fit", "ar.log", "mm.log", "--rows", "--format", "json")
    assert dscalc.fit("ar.log", "mm.log", rows=True).to_json() == json.loads(out)


def test_logs_of_several_gpus_are_read_and_make_no_profile(within: Within) -> None:
    Path("a100.log").write_text(LOG.text.replace("NVIDIA H100", "NVIDIA A100-SXM4-80GB"), encoding="utf-8")
    code, out, _ = within("fit", "ar.log", "a100.log", "--format", "json")
    assert code == 0
    answer = json.loads(out)
    assert len(answer["result"]["logs"]) == 2
    assert answer["result"]["fits"] == []
    assert "several_gpus" in [w["code"] for w in answer["warnings"]]
    code, _, error = within("fit", "ar.log", "a100.log", "--output", "both.json")
    assert code == 1
    assert "one kind of GPU at a time" in error
    assert not Path("both.json").exists()
