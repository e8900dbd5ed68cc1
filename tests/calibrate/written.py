"""Logs written for the tests in the layouts of the real programs, with the rows that a correct reader must find."""

from __future__ import annotations

from typing import NamedTuple

GENERATIONS = ("old", "no-root", "usual", "per-iteration")
FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "alltoall": lambda n: (n - 1) / n,
    "broadcast": lambda _: 1.0,
    "sendrecv": lambda _: 1.0,
}
SCALED = ("all_gather", "reduce_scatter", "alltoall")


class Truth(NamedTuple):
    """A row as it is printed: size and the cells of both halves (us, GB/s); None where N/A."""

    size: int
    cells: tuple[tuple[float, float, float], tuple[float, float, float] | None]


class Written(NamedTuple):
    """A log: its lines, and for each line the row that it prints."""

    lines: list[str]
    rows: dict[int, Truth]  # by index of line

    @property
    def text(self) -> str:
        return "".join(f"{line}\n" for line in self.lines)


def _time(us: float) -> str:
    return f"{us:.2f}" if us < 1e4 else f"{us:.1f}" if us < 1e5 else f"{us:.0f}"


def _old_time(us: float) -> str:
    return f"{us:.2f}" if us < 100 else f"{us:.1f}" if us < 1e4 else f"{us:.0f}"


def times_of(sizes: list[int], latency_us: float, gb_per_s: float, twin: float = 1.03) -> list[tuple[float, float]]:
    """Times of a plain line in both halves."""
    return [(latency_us + s / gb_per_s / 1e3, (latency_us + s / gb_per_s / 1e3) * twin) for s in sizes]


def nccl_tests(
    op: str,
    ranks: int,
    sizes: list[int],
    times: list[tuple[float, float]],
    *,
    generation: str = "usual",
    hosts: int = 1,
    in_place: bool = True,
    wrong: dict[int, int] | None = None,
    timestamps: bool = False,
) -> Written:
    """A whole log of nccl-tests, as one of its generations prints it."""
    lines: list[str] = []
    rows: dict[int, Truth] = {}
    old = generation in ("old", "no-root")
    if not old:
        lines += ["# nccl-tests version 2.17.8 nccl-headers=22902 nccl-library=22902"]
        lines += [f"# Collective test starting: {op}_perf"]
    else:
        lines += [f"mpirun -np {ranks} ./build/{op}_perf -b {sizes[0]} -e {sizes[-1]} -f 2 -g 1"]
    lines += [
        f"# nThread 1 nGpus 1 minBytes {sizes[0]} maxBytes {sizes[-1]} step: 2(factor) warmup iters: 5 iters: 20 "
        "agg iters: 1 validation: 1 graph: 0",
        "#",
        "# Using devices",
    ]
    each = -(-ranks // hosts)
    for rank in range(ranks):
        group = "" if old else " Group  0"
        host = f"gpu{rank // each + 1:02d}"
        device = f"device {rank % each:2d} [0x{rank:02x}] NVIDIA H100"
        lines.append(f"#  Rank {rank:2d}{group} Pid {4000 + rank:6d} on {host:>10s} {device}")
    lines.append("#")
    per_iteration = ["i_min", "i_max", "i_p99", "i_cv%"] if generation == "per-iteration" else []
    last = "error" if generation == "old" else "#wrong"
    half = [*["time", "algbw", "busbw", last], *per_iteration]
    words = ["size", "count", "type", *(["redop"] if op not in ("broadcast",) or not old else [])]
    words += ["root"] if generation in ("usual", "per-iteration") or op == "broadcast" else []
    widths = {"size": 10, "count": 12, "type": 8, "redop": 6, "root": 6, "time": 7, "algbw": 6, "busbw": 6}
    lines.append(f"# {'':>45s}           out-of-place                       in-place          ")
    lines.append("# " + "  ".join(f"{w:>{widths.get(w, 7)}s}" for w in [*words, *half, *half]))
    redop = {"all_reduce": "sum", "reduce_scatter": "sum", "sendrecv": "sum"}.get(op, "none")
    printed: list[float] = []
    for index, (size, both) in enumerate(zip(sizes, times, strict=True)):
        count = size // 4 // (ranks if op in SCALED else 1)
        cells = [f"{size:>12d}", f"{count:>12d}", f"{'float':>8s}"]
        if "redop" in words:
            cells.append(f"{'' if old and redop == 'none' else redop:>6s}")
        if "root" in words:
            cells.append(f"{0 if op == 'broadcast' else -1:>6d}")
        halves: list[tuple[float, float, float] | None] = []
        for where, us in enumerate(both):
            if where and not in_place:
                cells += [f"{'N/A':>7s}", f"{'N/A':>6s}", f"{'N/A':>6s}", f"{'N/A':>5s}"]
                halves.append(None)
                continue
            algbw = size / us / 1e3
            busbw = algbw * FACTORS[op](ranks)
            texts = (_old_time(us) if old else _time(us), f"{algbw:.2f}", f"{busbw:.2f}")
            halves.append((float(texts[0]), float(texts[1]), float(texts[2])))
            printed.append(float(busbw))
            bad = (wrong or {}).get(index, 0) if where else 0
            cells += [f"{texts[0]:>7s}", f"{texts[1]:>6s}", f"{texts[2]:>6s}"]
            cells.append(f"{'2e-07' if generation == 'old' else bad:>6}")
            cells += [f"{us * f:7.2f}" for f in (0.9, 1.2, 1.1)] + ["   4.20"] if per_iteration else []
        assert halves[0] is not None
        rows[len(lines)] = Truth(size, (halves[0], halves[1]))
        lines.append("  ".join(cells) + ("  2025-05-01 12:25:07" if timestamps else ""))
    bad = sum(1 for v in (wrong or {}).values() if v)
    lines.append(f"# Out of bounds values : {bad} {'FAILED' if bad else 'OK'}")
    lines.append(f"# Avg bus bandwidth    : {sum(printed) / len(printed):g} ")
    lines.append("#")
    if not old:
        lines += ["# Collective test concluded: " + op + "_perf", "#"]
    return Written(lines, rows)


NOISE = (
    "gpu01:4000:4017 [0] NCCL INFO Channel 00/16 : 0 1 2 3",
    "gpu02:4001:4018 [1] NCCL INFO AllReduce: 268435456 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..15}",
    "[2025-01-05 10:11:12] gpu02:4001:4018 [1] NCCL WARN NET/IB : Got completion with error 12",
    "[1779464407.212356] [gpu01:8738 :0]          parser.c:2305 UCX  WARN  unused environment variable",
    "srun: warning: can't run 1 processes on 2 nodes, setting nnodes to 1",
    "Warning: Permanently added 'gpu01' (ED25519) to the list of known hosts.",
    "",
)
TAGS = (
    "",
    "0: ",
    "[1,0]<stdout>:",
    "2025-05-01T12:00:01.233000000Z ",
    "\x1b[36m(worker pid=1234, ip=192.0.2.7)\x1b[0m ",
    "nccl-test-launcher-0 | ",
    "[rank0]: ",
    "> ",
)

# One short log of each other format, in the layout of the program that writes it.
OTHERS = {
    "first-years": """nThread 1 nGpus 4 minBytes 8 maxBytes 134217728 step: 2(factor) warmup iters: 5 iters: 20
# NCCL Tests compiled with NCCL 2.3
# Using devices
#   Rank  0 on       luna device  0 [0x04] Tesla P100-PCIE-16GB
#   Rank  1 on       luna device  1 [0x06] Tesla P100-PCIE-16GB
#   Rank  2 on       luna device  2 [0x07] Tesla P100-PCIE-16GB
#   Rank  3 on       luna device  3 [0x08] Tesla P100-PCIE-16GB

#                                                 out-of-place                    in-place
#      bytes             N    type      op     time  algbw  busbw      res     time  algbw  busbw      res
     1048576        262144   float     sum    0.148   7.08  10.63    0e+00    0.150   6.99  10.49    0e+00
   134217728      33554432   float     sum   13.442   9.99  14.98    2e-07   13.501   9.94  14.91    2e-07
 Out of bounds values : 0 OK
 Avg bus bandwidth    : 12.7525
""",
    "csv-semicolons": """size;count;type;redop;time;algbw;busbw
1048576;262144;float;sum;92,79;11,30;19,78
2097152;524288;float;sum;93,25;22,49;39,36
4194304;1048576;float;sum;99,10;42,32;74,07
""",
    "cookbook": """
---- Performance of all_reduce on 8 devices ---------------------------------------------------------
Size (Bytes)         Description               Duration             Throughput (Gbps)    BusBW (Gbps)
----------------------------------------------------------------------------------------------------
31.67 GB             8501054668x4              3176.620 ms          171.272              149.863
4.0 MB               1048576x4                 433.000 us           154.990              135.616
""",
    "cookbook-raw": """
---- Performance of all_gather on 4 devices ---------------------------------------------------------
Size (Bytes)         Description               Duration (us)        Throughput (GBps)    BusBW (GBps)
----------------------------------------------------------------------------------------------------
4194304              1048576x4                 172.352              97.343               73.007
""",
    "all_reduce_bench": """
The average bandwidth of all_reduce over 32 ranks (5 warmups / 20 trials):

| payload |    busbw   |    algbw   |
| ------: | ---------: | ---------: |
|   32KiB |   0.93GBps |   0.48GBps |
|  256MiB | 310.00GBps | 160.00GBps |
""",
    "ibm": """ size(MB)   tavg(usec)    tmin(usec)    tmax(usec)  avgbw(GB/sec)  maxbw(GB/sec)  minbw(GB/sec)
    0.10      344.0          304.1          662.2          0.54           0.61           0.28
 8000.00    310000.0       309000.0       312000.0         48.39          48.54          48.08
""",
    "mm_flops": """Elapsed time for 1024x2048x512: 0.000
Throughput (in TFLOP/s) for 1024x2048x512: 59.919
--------------------------------------------------------------------------------
Elapsed time for qkv_transform (4x4096x12288, b=2048): 0.0034
Throughput (in TFLOP/s) for qkv_transform (4x4096x12288, b=2048): 241.616
""",
    "mamf": """** Dtype: torch.bfloat16
     1 |  700.1 TFLOPS @ 1024x2048x4096      | best:  700.1 TFLOPS @ 1024x2048x4096 (MxNxK)
     2 |  690.2 TFLOPS @ 2048x2048x4096      | best:  700.1 TFLOPS @ 1024x2048x4096 (MxNxK)
""",
    "csv": """size(B),count,type,time(ns),busbw(GB/s),time(ns),busbw(GB/s)
1048576,262144,float,92790,19.78,92150,19.91
2097152,524288,float,93250,39.36,92970,39.47
4194304,1048576,float,95800,76.62,94030,78.06
""",
    "json": (
        '{"args": ["all_reduce_perf"], "config": {"ngpus": 8, "nthreads": 1}, "results": [{"size": 1048576, "count": '
        '262144, "type": "float", "redop": "sum", "root": "-1", "out_of_place": {"time": 92.79, "alg_bw": 11.30, '
        '"bus_bw": 19.78, "nwrong": 0}, "in_place": {"time": 92.15, "alg_bw": 11.38, "bus_bw": 19.91, "nwrong": '
        '0}}, {"size": 2097152, "count": 524288, "type": "float", "redop": "sum", "root": "-1", "out_of_place": '
        '{"time": 93.25, "alg_bw": 22.49, "bus_bw": 39.36, "nwrong": 0}, "in_place": null}]}'
    ),
}
