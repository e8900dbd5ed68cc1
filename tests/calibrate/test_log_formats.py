"""Each format that the readers know, in the layout of the program that writes it, with numbers worked out by hand."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import numpy as np
import pytest

from dscalc.calibrate.log_text import Log
from dscalc.calibrate.logs import read_log, read_text
from dscalc.calibrate.measurements import Read, Table
from dscalc.calibrate.table_checks import NOTHING_STATED, Stated
from dscalc.errors import InputError
from tests.calibrate.written import GENERATIONS, NOISE, OTHERS, nccl_tests, times_of

SIZES = [1024 << k for k in range(0, 20, 2)]


def read(text: str, stated: Stated = NOTHING_STATED) -> Read:
    return read_text(Log("a.log", text.encode()), stated)


def table(text: str, stated: Stated = NOTHING_STATED) -> Table:
    (one,) = read(text, stated).tables
    return one


def check(one: Table, name: str) -> bool:
    return next(c.ok for c in one.checks if c.name == name)


# ------------------------------------------------------------------------------------------------------ nccl-tests
@pytest.mark.parametrize("generation", GENERATIONS)
@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("all_reduce", "all_reduce"),
        ("all_gather", "all_gather"),
        ("reduce_scatter", "reduce_scatter"),
        ("alltoall", "all_to_all"),
        ("broadcast", "broadcast"),
        ("sendrecv", "send_recv"),
    ],
)
def test_every_generation_of_nccl_tests(generation: str, op: str, name: str) -> None:
    log = nccl_tests(op, 8, SIZES, times_of(SIZES, 12.0, 180.0), generation=generation, hosts=2)
    one = table(log.text)
    assert (one.op, one.ranks, one.nodes, one.gpu) == (name, 8, 2, "NVIDIA H100")
    assert one.size_bytes.tolist() == SIZES
    truths = list(log.rows.values())
    for half in (0, 1):
        printed = np.array([truth.cells[half] for truth in truths])
        assert one.time_s[half] * 1e6 == pytest.approx(printed[:, 0])
        assert one.algbw_bytes_per_s[half] / 1e9 == pytest.approx(printed[:, 1])
        assert one.busbw_bytes_per_s[half] / 1e9 == pytest.approx(printed[:, 2])
    assert one.line.tolist() == [index + 1 for index in log.rows]
    assert all(c.ok for c in one.checks), one.checks
    assert np.isnan(one.wrong).all() == (generation == "old")  # an error of 2e-07 is no count


def test_the_format_says_which_library() -> None:
    log = nccl_tests("all_reduce", 8, SIZES, times_of(SIZES, 12.0, 180.0), generation="no-root")
    text = log.text.replace("# Using devices", "rccl-tests: Version develop:a7809b3\n# Using devices")
    assert read(text).format == "rccl-tests"
    assert read(log.text).format == "nccl-tests"


def test_the_first_years_counted_milliseconds() -> None:
    one = table(OTHERS["first-years"])
    assert (one.op, one.ranks, one.nodes, one.gpu) == ("all_reduce", 4, 1, "Tesla P100-PCIE-16GB")
    assert one.time_s == pytest.approx(np.array([[0.148e-3, 13.442e-3], [0.150e-3, 13.501e-3]]))
    assert all(c.ok for c in one.checks), one.checks


def test_a_warning_of_nccl_names_its_place_in_the_source() -> None:
    log = nccl_tests("all_reduce", 8, SIZES, times_of(SIZES, 12.0, 180.0))
    warning = "gpu01:4000:4031 [0] transport/net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer with status=12"
    with pytest.raises(InputError, match=r"line 17 says .*NCCL WARN NET/IB : Got completion from peer"):
        read("\n".join([*log.lines[: min(log.rows)], warning]) + "\n")
    at = min(log.rows) + 2
    row = log.lines[at]
    broken = "\n".join([*log.lines[:at], row[:50] + warning, row[50:], *log.lines[at + 1 :]]) + "\n"
    assert table(broken).size_bytes.tolist() == SIZES


def test_a_run_that_died_names_the_warning_of_nccl() -> None:
    log = nccl_tests("all_reduce", 8, SIZES, times_of(SIZES, 12.0, 180.0))
    with pytest.raises(InputError, match=r"line 26 says .*NCCL WARN NET/IB : Got completion with error 12"):
        read("\n".join([*log.lines[: min(log.rows)], *[NOISE[0]] * 9, NOISE[2]]) + "\n")


def test_several_tests_in_one_file() -> None:
    first = nccl_tests("all_reduce", 16, SIZES, times_of(SIZES, 20.0, 90.0), hosts=2)
    second = nccl_tests("sendrecv", 2, SIZES, times_of(SIZES, 9.0, 40.0), hosts=2, in_place=False)
    found = read(first.text + "\n" + second.text + "\n" + first.text)
    assert [(t.op, t.ranks) for t in found.tables] == [("all_reduce", 16), ("send_recv", 2), ("all_reduce", 16)]
    assert np.isnan(found.tables[1].time_s[1]).all()


def test_groups_side_by_side_are_of_their_own_size() -> None:
    """NCCL_TESTS_SPLIT: 16 ranks of two nodes as eight pairs, one a rail; or as two nodes, each for itself."""
    for ranks, nodes, groups, colour in ((2, 2, 8, lambda rank: rank % 8), (8, 1, 2, lambda rank: rank // 8)):
        log = nccl_tests("all_reduce", ranks, SIZES, times_of(SIZES, 20.0, 90.0))
        start = log.text.index("#  Rank")
        head, _, rows = log.text[:start], *log.text[start:].partition("#\n#  ")[1:]
        listed = "".join(
            f"#  Rank {r:2d} Group {colour(r):2d} Pid {4000 + r:6d} on gpu{r // 8:02d} device {r % 8:2d} [0x01] H100\n"
            for r in range(16)
        )
        one = table(head + listed + "#\n#  " + rows)
        assert (one.ranks, one.nodes, one.groups) == (ranks, nodes, groups)
        assert all(c.ok for c in one.checks), one.checks


def test_rows_without_a_header_are_parted_by_their_ranks() -> None:
    logs = [nccl_tests("all_reduce", n, SIZES[-3:], times_of(SIZES[-3:], 20.0, 90.0)) for n in (8, 16, 32)]
    text = ""
    for nodes, log in zip((1, 2, 4), logs, strict=True):
        text += f"====== {nodes}-node ======\n" + "".join(f"{log.lines[i]}\n" for i in log.rows)
    found = read(text)
    assert [(t.op, t.ranks, t.nodes) for t in found.tables] == [
        ("all_reduce", 8, 1),
        ("all_reduce", 16, 2),
        ("all_reduce", 32, 4),
    ]


@pytest.mark.parametrize("in_place", [True, False])
def test_a_row_that_messages_broke_is_put_together(in_place: bool) -> None:
    log = nccl_tests("alltoall", 8, SIZES, times_of(SIZES, 12.0, 180.0), in_place=in_place)
    lines = list(log.lines)
    at = max(log.rows)
    for cut in (8, 22, 48, 55, 63, 70, 80, 90):  # in each number
        row = lines[at]
        broken = [row[:cut] + NOISE[0], NOISE[1], NOISE[0], row[cut:]]
        found = read("\n".join([*lines[:at], *broken, *lines[at + 1 :]]) + "\n")
        (one,) = found.tables
        printed = log.rows[at].cells
        assert one.size_bytes[-1] == SIZES[-1], cut
        assert one.time_s[0, -1] * 1e6 == pytest.approx(printed[0][0]), cut
        assert one.rows_torn == 0
        if printed[1] is not None:
            assert one.busbw_bytes_per_s[1, -1] / 1e9 == pytest.approx(printed[1][2]), cut
        assert "1 row was broken by other lines" in found.notes[0]


def test_rows_of_no_bytes_are_counted_and_left_out() -> None:
    log = nccl_tests("all_gather", 4, SIZES, times_of(SIZES, 10.0, 100.0))
    at = min(log.rows)
    half = "     0.30    0.00    0.00       0"
    empty = f"           0             0     float    none      -1{half}{half}"
    one = table("\n".join([*log.lines[:at], empty, empty, *log.lines[at:]]) + "\n")
    assert one.rows_zero == 2
    assert one.size_bytes.min() == 1024
    assert not check(one, "average")  # two rows of zero speed are part of the mean that a test prints


def test_wide_cells_that_run_together_are_parted() -> None:
    line = (
        "  8589934592    2147483648     float     sum      -1   7613.31128.28 2115.53       0"
        "   7613.31128.28 2115.53       0"
    )
    one = table(line + "\n")
    assert one.time_s[:, 0] == pytest.approx([7613.3e-6] * 2)
    assert one.algbw_bytes_per_s[:, 0] == pytest.approx([1128.28e9] * 2)
    half = "    94222  182.33  319.08       0"
    glued = f"  1717986918404294967296     float     sum      -1{half}{half}"
    with pytest.raises(Exception, match="no usable row"):  # 171798691840 is not 4 x 4294967296: nothing fits
        read(glued + "\n")
    one = table(glued.replace("1717986918404294967296", "171798691844294967296") + "\n")
    assert one.size_bytes.tolist() == [17179869184.0]


def test_decimal_commas_are_points() -> None:
    log = nccl_tests("all_reduce", 8, SIZES, times_of(SIZES, 12.0, 180.0))
    text = "\n".join(line.replace(".", ",") if i in log.rows else line for i, line in enumerate(log.lines))
    one = table(text + "\n")
    assert one.time_s[0].tolist() == table(log.text).time_s[0].tolist()
    assert all(c.ok for c in one.checks), one.checks


def test_times_of_the_cpu_are_said() -> None:
    log = nccl_tests("all_reduce", 8, SIZES, times_of(SIZES, 12.0, 180.0))
    assert not check(table(log.text.replace("   time", "cputime")), "device_time")


def test_timestamps_behind_the_rows() -> None:
    log = nccl_tests("all_reduce", 8, SIZES, times_of(SIZES, 12.0, 180.0), timestamps=True)
    assert table(log.text).time_s.shape == (2, len(SIZES))


def nccl_json(cut: int | None = None) -> str:
    results = [
        {
            "size": size,
            "count": size // 4,
            "type": "float",
            "redop": "sum",
            "root": "    -1",
            "out_of_place": {"time": t, "alg_bw": size / t / 1e3, "bus_bw": size / t / 1e3 * 1.75, "nwrong": 0.0},
            "in_place": {"time": u, "alg_bw": size / u / 1e3, "bus_bw": "nan", "nwrong": None},
            "experiment_name": "all_reduce_perf",
        }
        for size, (t, u) in zip(SIZES, times_of(SIZES, 12.0, 180.0), strict=True)
    ]
    mean = sum(r["out_of_place"]["bus_bw"] for r in results) / len(results)  # type: ignore[index]
    whole = {
        "version": 3,
        "args": ["./all_reduce_perf", "-J", "out.json"],
        "config": {"nthreads": 1, "ngpus": 8},
        "devices": [{"rank": 0, "hostname": "gpu01", "device": 0, "device_info": "NVIDIA H200"}],
        "results": results,
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": mean, "okay": "unchecked"},
    }
    text = json.dumps(whole)
    return text[:cut] if cut else text


def test_json_of_nccl_tests() -> None:
    found = read(nccl_json())
    (one,) = found.tables
    assert found.format == "nccl-tests-json"
    assert (one.op, one.ranks, one.nodes, one.gpu) == ("all_reduce", 8, 1, "NVIDIA H200")
    assert one.size_bytes.tolist() == SIZES
    assert np.isnan(one.busbw_bytes_per_s[1]).all()
    assert all(c.ok for c in one.checks), one.checks
    tagged = read("[1,0]<stdout>:" + nccl_json())
    assert tagged.tables[0].size_bytes.tolist() == SIZES
    labelled = "".join(f"0: {line}\n" for line in json.dumps(json.loads(nccl_json()), indent=2).split("\n"))
    assert read(labelled).tables[0].size_bytes.tolist() == SIZES


def test_json_that_was_cut_gives_the_records_that_are_whole() -> None:
    text = nccl_json()
    end = text.index('"size": 4194304')
    found = read(text[: end + 60])
    (one,) = found.tables
    assert one.size_bytes.tolist() == [size for size in SIZES if size < 4194304]
    assert (one.op, one.ranks) == ("all_reduce", 8)
    assert "cut" in found.notes[0]


@pytest.mark.parametrize("form", ["json", "lines", "csv"])
def test_records_of_rccl_tests(form: str) -> None:
    records = [
        {
            "numCycle": 0,
            "name": "AllReduce",
            "nodes": 2,
            "ranks": 16,
            "ranksPerNode": 8,
            "gpusPerRank": 1,
            "size": size,
            "type": "float",
            "redop": "sum",
            "inPlace": in_place,
            "time": t,
            "algBw": size / t / 1e3,
            "busBw": size / t / 1e3 * 1.875,
            "wrong": "0",
        }
        for size, both in zip(SIZES, times_of(SIZES, 30.0, 180.0), strict=True)
        for in_place, t in enumerate(both)
    ]
    if form == "csv":
        text = ", ".join(records[0]) + "\n"
        text += "".join(", ".join(str(v) for v in record.values()) + "\n" for record in records)
    elif form == "lines":
        text = "".join(json.dumps(record) + "\n" for record in records)
    else:
        text = json.dumps(records, indent=1)
    one = table(text)
    assert (one.op, one.ranks, one.nodes) == ("all_reduce", 16, 2)
    assert one.size_bytes.tolist() == SIZES
    assert one.time_s * 1e6 == pytest.approx(np.array(times_of(SIZES, 30.0, 180.0)).T)


def test_csv_with_units_in_its_heading() -> None:
    text = "size(B),count,type,time(ns),busbw(GB/s),time(ns),busbw(GB/s)\n"
    text += "1048576,262144,float,92790,19.78,92150,19.91\n2097152,524288,float,93250,39.36,92970,39.47\n"
    one = table(text)
    assert one.time_s[:, 0] == pytest.approx([92.79e-6, 92.15e-6])
    assert (one.op, one.ranks) == ("all_reduce", 8)  # 19.78 GB/s x 92.79 us / 1 MiB = 1.75
    for other in (text.replace(",", "\t"), text.replace(",", ";").replace(".", ",")):
        assert table(other).time_s.tolist() == one.time_s.tolist()  # and no reader takes them a second time
    torn = table(text[:-4])
    assert torn.size_bytes.tolist() == [1048576.0]
    assert torn.rows_torn == 1


# --------------------------------------------------------------------------------------------------------- PyTorch
COOKBOOK = """
---- Performance of {op} on 8 devices ---------------------------------------------------------
Size (Bytes)         Description               Duration             Throughput ({unit})    BusBW ({unit})
----------------------------------------------------------------------------------------------------
{rows}
"""


def test_cookbook_counts_an_all_reduce_twice() -> None:
    # 8,501,054,668 floats in 3.176620 s: 10.705 GB/s, twice that in Gbps is 171.272, and 7/8 of it the bus
    row = "31.67 GB             8501054668x4              3176.620 ms          171.272              149.863"
    one = table(COOKBOOK.format(op="all_reduce", unit="Gbps", rows=row))
    assert (one.op, one.ranks) == ("all_reduce", 8)
    assert one.size_bytes.tolist() == [8501054668 * 4]
    assert one.time_s[0, 0] == pytest.approx(3.17662)
    assert one.algbw_bytes_per_s[0, 0] == pytest.approx(10.7045e9)
    assert one.busbw_bytes_per_s[0, 0] == pytest.approx(18.732875e9)
    assert all(c.ok for c in one.checks)


def test_cookbook_all_gather_is_the_whole_buffer() -> None:
    # each of 8 ranks gives 4 MiB: 32 MiB in 200 us are 167.772 GB/s, 7/8 of it on the bus
    row = "4.0 MB               1048576x4                 200.000 us           167.772              146.801"
    one = table(COOKBOOK.format(op="all_gather", unit="GBps", rows=row))
    assert one.size_bytes.tolist() == [8 * 1048576 * 4]
    assert one.busbw_bytes_per_s[0, 0] == pytest.approx(146.801e9)
    assert all(c.ok for c in one.checks)


def test_ds_bench_raw_rows_with_tags_of_its_launcher() -> None:
    rows = "4194304              1048576x4                 172.352              24.336               24.336"
    text = COOKBOOK.format(op="pt2pt", unit="GBps", rows=rows).replace("Duration ", "Duration (us) ")
    text = "".join(
        f"node01: {line}\n" for line in ["[INFO] DeepSpeed launch: nnodes=2, node_rank=0", *text.split("\n")]
    )
    found = read(text)
    assert found.format == "ds_bench"
    (one,) = found.tables
    assert (one.op, one.nodes, one.time_s[0, 0]) == ("send_recv", 2, pytest.approx(172.352e-6))
    cut = read(text.replace("24.336               24.336", "24.336               24.33"))
    assert len(cut.tables[0].size_bytes) == 1
    with pytest.raises(Exception, match="no usable row"):
        read(text.replace("4194304 ", "194304 "))  # a digit of the size is lost


def test_all_reduce_bench_of_ml_engineering() -> None:
    text = """
Environment:
- software: torch=2.9.0, cuda=13.0, nccl=(2, 27, 7)
- hardware: _CudaDeviceProperties(name='NVIDIA H200', major=9, minor=0, total_memory=143156MB)

The average bandwidth of all_reduce over 32 ranks (5 warmups / 20 trials):

| payload |    busbw   |    algbw   |
| ------: | ---------: | ---------: |
|   32KiB |   0.93GBps |   0.48GBps |
|    1GiB | 348.75GBps | 180.00GBps |
"""
    found = read(text)
    (one,) = found.tables
    assert (one.op, one.ranks, one.gpu) == ("all_reduce", 32, "NVIDIA H200")
    assert one.size_bytes.tolist() == [32 * 1024, 1024**3]
    assert one.time_s[0, 1] == pytest.approx(1024**3 / 180e9)
    assert found.notes == ("times are worked out from the printed speeds",)
    assert all(c.ok for c in one.checks), one.checks
    assert not check(table(text.replace("over 32", "over 64")), "ranks")  # 348.75/180 = 1.9375 is 32


def test_all_reduce_bench_beside_each_other() -> None:
    text = "| payload | 1 node     | 4 nodes    | slowdown |\n| 1GiB | 700.00GBps | 350.00GBps | 2.0x |\n"
    found = read(text)
    assert [(t.nodes, t.ranks) for t in found.tables] == [(1, None), (4, None)]
    assert np.isnan(found.tables[0].time_s).all()  # without ranks a bus bandwidth gives no time
    told = table(text.replace("| 4 nodes    ", "| other      "), Stated(ranks=8))
    assert told.time_s[0, 0] == pytest.approx(1024**3 / (700e9 / 1.75))


def test_all_reduce_bench_of_one_payload() -> None:
    text = (
        "The average bandwidth of all_reduce with a 4.0GB payload (5 trials, 8 ranks):\n"
        " algbw: 200.000 GBps (1600.0 Gbps)\n busbw: 350.000 GBps (2800.0 Gbps)\n"
    )
    one = table(text)
    assert (one.size_bytes[0], one.ranks) == (4e9, 8)
    assert one.time_s[0, 0] == pytest.approx(0.02)


IBM_TIMES = """NCCL version :  (2, 21, 5)
 size(MB)   tavg(usec)    tmin(usec)    tmax(usec)  avgbw(GB/sec)  maxbw(GB/sec)  minbw(GB/sec)
    0.10      344.0          304.1          662.2          0.54           0.61           0.28
 8000.00    310000.0       309000.0       312000.0         48.39          48.54          48.08
"""


def test_ibm_with_times() -> None:
    one = table(IBM_TIMES)
    assert one.size_bytes.tolist() == [1e5, 8e9]
    assert one.time_s[0] == pytest.approx([344e-6, 0.31])
    assert (one.op, one.ranks) == ("all_reduce", 16)  # 48.39 GB/s x 0.31 s / 8 GB = 1.875


def test_ibm_without_times_needs_the_ranks() -> None:
    text = "size(MB)   avgbw(GB/sec)   maxbw(GB/sec)   minbw(GB/sec)\n"
    text += "    8.0         20.0           21.0            19.0\n"
    silent = table(text)
    assert np.isnan(silent.time_s).all()
    assert not check(silent, "ranks")
    one = table("mpirun -np 8 helper.sh python allreduce-loop.py\nworld size =  8\n" + text)
    assert (one.op, one.ranks) == ("all_reduce", 8)
    assert one.time_s[0, 0] == pytest.approx(8e6 * 1.75 / 20e9)


# ------------------------------------------------------------------------------------------------------- products
def test_mm_flops_keeps_the_rate() -> None:
    text = """Elapsed time for 1024x2048x512: 0.000
Throughput (in TFLOP/s) for 1024x2048x512: 59.919
--------------------------------------------------------------------------------
Elapsed time for qkv_transform (4x4096x12288, b=2048): 0.0034
Throughput (in TFLOP/s) for qkv_transform (4x4096x12288, b=2048): 241.616
Elapsed time for attention_score (64x2048x256x2048): 0.0011
Throughput (in TFLOP/s) for attention_score (64x2048x256x2048): 130.182
Elapsed time for attention_dropout (4x16x2048x2048): 0.0012
"""
    found = read(text)
    plain, batched = found.compute
    assert (plain.m.tolist(), plain.k.tolist(), plain.n.tolist()) == ([1024, 8192], [2048, 4096], [512, 12288])
    assert plain.rate / 1e12 == pytest.approx([59.919, 241.616])
    assert plain.time_s[0] == pytest.approx(2 * 1024 * 2048 * 512 / 59.919e12)
    assert (batched.kind, batched.m[0]) == ("batched_gemm", 64 * 2048)
    assert batched.rate[0] == pytest.approx(130.182e12)
    assert found.notes == ()
    wrong = read(text.replace("b=2048): 0.0034", "b=2048): 0.0054"))
    assert "FLOP over time" in wrong.notes[0]


MAMF = """** Dtype: torch.bfloat16

** Platform/Device info:
- _CudaDeviceProperties(name='NVIDIA H100 80GB HBM3', major=9)

"""


@pytest.mark.parametrize(
    ("rows", "rates"),
    [
        ("     1 |  700.1 TFLOPS @ 1024x2048x4096      | best:  700.1 TFLOPS @ 1024x2048x4096 (MxNxK)\n", [700.1]),
        (
            "     1 |  690.0(mean)  700.1(median)  720.5(max) @ 1024x2048x4096      | best:  690.0(mean)  700.1(median)"
            "  720.5(max) TFLOPS\n",
            [700.1],
        ),
        (
            "     #  MxNxK                mean median    max   best     W   MHz\n"
            "     1  1024x2048x4096      690.0  700.1  720.5  690.0   650  1980\r"
            "     2  2048x2048x4096      691.0  701.1  720.5  691.0   655  1980\r",
            [700.1, 701.1],
        ),
        ("The best outcome was 700.1TFLOPS @ 1024x2048x4096 (MxNxK) (tried 81 shapes)\n", [700.1]),
        ("Tried  81 shapes => the best outcomes were:\nmean:   690.0 TFLOPS @ 1024x2048x4096 (MxNxK)\n"
         "median: 700.1 TFLOPS @ 1024x2048x4096 (MxNxK)\n", [700.1]),
    ],
)  # fmt: skip
def test_every_generation_of_mamf_finder(rows: str, rates: list[float]) -> None:
    (one,) = read(MAMF + rows).compute
    assert (one.kind, one.dtype, one.gpu) == ("gemm", "bf16", "NVIDIA H100 80GB HBM3")
    assert one.rate / 1e12 == pytest.approx(rates)
    assert (one.m[0], one.n[0], one.k[0]) == (1024, 2048, 4096)
    tagged = "".join(f"0: {line}\n" for line in (MAMF + rows).replace("\r", "\n").split("\n"))
    assert read(tagged).compute[0].rate / 1e12 == pytest.approx(rates)


# ---------------------------------------------------------------------------------------------------------- files
def test_two_benchmarks_in_one_file() -> None:
    log = nccl_tests("all_reduce", 8, SIZES, times_of(SIZES, 12.0, 180.0))
    found = read(IBM_TIMES + log.text)
    assert found.format == "ibm + nccl-tests"
    assert [t.format for t in found.tables] == ["ibm", "nccl-tests"]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    log = nccl_tests("all_reduce", 8, SIZES, times_of(SIZES, 12.0, 180.0))
    path = tmp_path / "log.txt"
    path.write_bytes(("# Läufe\r\n" + log.text.replace("\n", "\r\n")).encode(encoding))
    (one,) = read_log(path).tables
    assert one.size_bytes.tolist() == SIZES


HIDDEN = "\u202e\u2066\u200b\x07\x9b\ufeff\u2028\x1b[31m"


@pytest.mark.parametrize("form", ["text", "json", "mamf"])
def test_names_in_a_file_cannot_command_a_terminal_or_turn_text_around(tmp_path: Path, form: str) -> None:
    log = nccl_tests("all_reduce", 8, SIZES, times_of(SIZES, 12.0, 180.0), hosts=2)
    name = f"NVIDIA {HIDDEN} H\u202e100 80GB\u202c"
    file = tmp_path / "a\u202e\x1b[31mb.log"
    if form == "mamf":
        text = MAMF.replace("NVIDIA H100 80GB HBM3", name) + "     1 |  700.1 TFLOPS @ 1024x2048x4096 | best: 700.1\n"
    elif form == "json":
        text = nccl_json().replace("NVIDIA H200", name.replace("\x1b", "\\u001b").replace("\x07", "\\u0007"))
    else:
        text = log.text.replace("NVIDIA H100", name).replace(" on node", " on \u202enode")
    file.write_text(text, encoding="utf-8")
    found = read_log(file)
    (one,) = [*found.tables, *found.compute]
    assert one.gpu.replace("[31m", "").split() == ["NVIDIA", "H100", "80GB"]
    assert one.gpu.isprintable()
    assert found.file == one.file == f"{tmp_path}/a [31mb.log"
    if form == "text":
        assert (found.tables[0].ranks, found.tables[0].nodes) == (8, 2)


def test_bare_returns_of_a_progress_display() -> None:
    log = nccl_tests("all_reduce", 8, SIZES, times_of(SIZES, 12.0, 180.0))
    assert table("progress 1\rprogress 2\r" + log.text).size_bytes.tolist() == SIZES
    assert table(log.text.replace("\n", "\r")).size_bytes.tolist() == SIZES


def test_a_time_that_cannot_be_does_not_pass() -> None:
    line = "        1024           256     float     sum      -1    -5.00    0.10    0.20       0"
    line += "     5.00    0.20    0.36       0"
    one = table(line + "\n")
    assert math.isnan(one.time_s[0, 0])
    assert one.time_s[1, 0] == pytest.approx(5e-6)


HOSTILE = {
    "starts": "1 1 float " * 2000,
    "digits": "1" * 20_000,
    "numbers": "1.1 " * 5000,
    "blanks": " " * 20_000,
    "braces": '{"size":1,' * 2000,
    "escapes": "\x1b[" * 10_000,
    "messages": "a:1:1 [0] NCCL INFO " * 1000,
    "headings": "size,time " * 2000,
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_lines_cost_no_more_than_their_length(name: str) -> None:
    log = nccl_tests("all_reduce", 8, SIZES, times_of(SIZES, 12.0, 180.0))
    at = min(log.rows) + 2
    lines = [*log.lines[:at], *[HOSTILE[name]] * 10, *log.lines[at:]]
    started = time.process_time()
    one = next(t for t in read("\n".join(lines) + "\n").tables if len(t.size_bytes) > 1)
    assert time.process_time() - started < 20  # seconds; a search that squares takes minutes
    assert one.size_bytes.tolist() == SIZES


def test_a_line_longer_than_any_log_has_is_cut() -> None:
    log = nccl_tests("all_reduce", 8, SIZES, times_of(SIZES, 12.0, 180.0))
    assert table("x" * 3_000_000 + "\n" + log.text).size_bytes.tolist() == SIZES
