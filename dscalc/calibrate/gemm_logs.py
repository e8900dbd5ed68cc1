"""Benchmarks of matrix products: EleutherAI cookbook mm_flops and transformer_flops, ml-engineering mamf-finder."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from dscalc.calibrate.log_text import Log
from dscalc.calibrate.measurements import Compute, Read
from dscalc.calibrate.table_checks import NOTHING_STATED, Stated
from dscalc.calibrate.torch_logs import GPU_NAME
from dscalc.units import TERA

DTYPES = {
    "bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float8_e4m3fn": "fp8",
    "float8_e4m3fnuz": "fp8", "float8_e5m2": "fp8", "tf32": "tf32",
}  # fmt: skip
MAX_SIDE = 10**9  # rows or columns of a matrix
SAME = 0.02  # by which a printed time may miss the one of the printed rate, over its rounding

_SHAPE = r"(\d{1,10})x(\d{1,10})x(\d{1,10})"
_RATE = re.compile(
    r"Throughput \(in TFLOP/s\) for (?:(\w[\w ]*) )?\(?(?:(\d{1,10})x)?" + _SHAPE + r"(?:, b=(\d{1,10}))?\)?: "
    r"(\d+\.\d{3})(?!\d)"
)
_ELAPSED = re.compile(r"Elapsed time for (.*): (\d+\.\d{1,9})\s*$")
_CUT = re.compile(r"Throughput \(in TFLOP/s\) for ")
_MAMF = re.compile(r"(?<![\w.])(\d+)\s+\|\s*([^|@]*?)(?:\s*TFLOPS)?\s*@\s*" + _SHAPE + r"(?=\s)(.*)$")
_SCOUT = re.compile(r"(?<![\w.])\d+\s+" + _SHAPE + r"\s+(\d+\.\d)\s+(\d+\.\d)\s+(\d+\.\d)\s+\d+\.\d(?=\s|$)")
_BEST = re.compile(r"best outcome was (\d+\.\d)\s*TFLOPS @ " + _SHAPE)
_BEST_MEDIAN = re.compile(r"(?<!\w)(?:median|MAMF[^:]*):\s+(\d+\.\d) TFLOPS @ " + _SHAPE)
_DTYPE = re.compile(r"\*\* Dtype: (?:torch\.)?(\w+)")
_MXKXN = "(MxKxN)"


class Product(NamedTuple):
    """One product as a log reports it."""

    line: int
    batch: int  # 1, or how many products of this shape at once
    m: int
    n: int
    k: int
    flop_per_s: float


def sniff_mm_flops(text: str) -> bool:
    """Whether a text has rates of the cookbook's mm_flops or transformer_flops."""
    return "Throughput (in TFLOP/s) for" in text


def read_mm_flops(log: Log, stated: Stated = NOTHING_STATED) -> Read:
    """Read the cookbook's mm_flops or transformer_flops: rates as printed, for its times are rounded to milliseconds.

    Args:
        log: the file.
        stated: nothing of it applies.

    Returns:
        Its products; those of attention's batched scores apart.
    """
    del stated
    products: list[Product] = []
    elapsed: dict[str, tuple[float, float]] = {}
    notes: list[str] = []
    for line in log.lines:
        if (found := _RATE.search(line.text)) is not None and (line.ended or found.end() < len(line.text)):
            outer, first, second, third, batch = (int(found[i] or 1) for i in (2, 3, 4, 5, 6))
            # printed as rows x shared x columns
            product = Product(line.number, outer, first * batch, third, second, float(found[7]) * TERA)
            if not _possible(product):
                continue
            products.append(product)
            label = found[0].partition(" for ")[2].rpartition(": ")[0]
            if label in elapsed and not _agrees(product, *elapsed[label]):
                notes.append(f"line {line.number}: FLOP over time is not the printed rate")
        elif (found := _ELAPSED.search(line.text)) is not None:
            elapsed[found[1]] = float(found[2]), 0.5 * 10.0 ** -len(found[2].partition(".")[2])
        elif _CUT.search(line.text):
            notes.append(f"line {line.number} is torn and left out")
    plain = [p for p in products if p.batch == 1]
    batched = [p for p in products if p.batch > 1]
    compute = [
        _compute(log.name, "cookbook-mm-flops", kind, "", "", some)
        for kind, some in (("gemm", plain), ("batched_gemm", batched))
        if some
    ]
    return Read(log.name, "cookbook-mm-flops", (), tuple(compute), tuple(notes[:20]))


def _possible(p: Product) -> bool:
    return p.flop_per_s > 0 and all(0 < side <= MAX_SIDE for side in (p.batch, p.m, p.n, p.k))


def _agrees(p: Product, seconds: float, half: float) -> bool:
    """Whether a printed time, given its rounding, is that of the printed rate."""
    expected = 2.0 * p.batch * p.m * p.n * p.k / p.flop_per_s
    return abs(seconds - expected) <= half + SAME * expected


def sniff_mamf(text: str) -> bool:
    """Whether a text has rows or results of ml-engineering's mamf-finder."""
    return re.search(r"TFLOPS @ ?\d+x|\(mean\)[^\n]{0,200}@ ?\d+x|#\s+MxNxK\s+mean|best outcome was", text) is not None


def read_mamf(log: Log, stated: Stated = NOTHING_STATED) -> Read:
    """Read ml-engineering's mamf-finder: a shape and its rate a line (the median where it says that), or its result.

    Args:
        log: the file.
        stated: nothing of it applies.

    Returns:
        Its products.
    """
    del stated
    products: list[Product] = []
    results: list[Product] = []
    dtype, gpu = "", ""
    swapped = _MXKXN in log.text
    for line in log.lines:
        if (found := _MAMF.search(line.text)) is not None and "best" in found[6]:
            rate = _rate_of(found[2])
            sides = (int(found[3]), int(found[4]), int(found[5]))
        elif (found := _SCOUT.search(line.text)) is not None:
            rate, sides = float(found[5]), (int(found[1]), int(found[2]), int(found[3]))
        elif (found := _BEST.search(line.text) or _BEST_MEDIAN.search(line.text)) is not None:
            sides = (int(found[2]), int(found[3]), int(found[4]))
            results.append(_product(line.number, sides, float(found[1]), swapped))
            continue
        else:
            dtype = found[1] if (found := _DTYPE.search(line.text)) is not None else dtype
            gpu = found[1] if (found := GPU_NAME.search(line.text)) is not None else gpu
            continue
        products.append(_product(line.number, sides, rate, swapped))
    products = [p for p in products if _possible(p)] or [p for p in results if _possible(p)]
    if not products:
        return Read(log.name, "mamf-finder", (), (), ())
    compute = _compute(log.name, "mamf-finder", "gemm", DTYPES.get(dtype, dtype[:20]), gpu, products)
    return Read(log.name, "mamf-finder", (), (compute,), ())


def _rate_of(text: str) -> float:
    """The median of several rates on a line, else the mean, else the only one."""
    for word in ("median", "mean"):
        if (found := re.search(r"(\d+\.\d)\s*\(" + word + r"\)", text)) is not None:
            return float(found[1])
    found = re.search(r"\d+\.\d", text)
    return float(found[0]) if found else 0.0


def _product(line: int, sides: tuple[int, int, int], tflop_per_s: float, swapped: bool) -> Product:
    m, second, third = sides
    n, k = (third, second) if swapped else (second, third)
    return Product(line, 1, m, n, k, tflop_per_s * TERA)


def _compute(file: str, form: str, kind: str, dtype: str, gpu: str, products: Sequence[Product]) -> Compute:
    batch, m, n, k, rate = (
        np.array([getattr(p, name) for p in products], dtype=np.float64)
        for name in ("batch", "m", "n", "k", "flop_per_s")
    )
    return Compute(
        file=file,
        format=form,
        gpu=gpu,
        first_line=products[0].line,
        last_line=products[-1].line,
        kind=kind,
        dtype=dtype,
        m=batch * m,
        n=n,
        k=k,
        time_s=2.0 * batch * m * n * k / rate,
        rate=rate,
        line=np.array([p.line for p in products], dtype=np.intp),
    )
