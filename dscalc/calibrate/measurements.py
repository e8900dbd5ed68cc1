"""What benchmarks measured: one table an operation, group of ranks and file; every log reader yields these columns."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dscalc.frozen import dataclass
from dscalc.records import Array

HALVES = ("out_of_place", "in_place")  # the leading axis of times and speeds


class Check(NamedTuple):
    """One thing that a log says twice, and whether both agree."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """One collective at one group size as a log reports it; NaN where a cell is not there.

    Attributes:
        file: the file, as the user named it.
        format: name of the reader.
        op: ``all_reduce``, ``all_gather``, ``reduce_scatter``, ``all_to_all``, ``broadcast``, ``reduce``, ``gather``,
            ``scatter``, ``send_recv``, ``hypercube``; empty where the log does not say.
        ranks, nodes: members of the group and the nodes they lie on; None where unknown.
        gpu: the GPU as the log names it, or empty.
        first_line, last_line: where the rows stand, from 1.
        size_bytes: size of the operation by the convention of nccl-tests [bytes, (n,)].
        time_s: time of a call [s, (2, n)], rows as in ``HALVES``.
        algbw_bytes_per_s: size over time as printed [bytes/s, (2, n)].
        busbw_bytes_per_s: as printed [bytes/s, (2, n)].
        wrong: results found wrong [count, (2, n)].
        line: line of each row, from 1 [line, (n,)].
        rows_torn: rows of which a part was lost and that are not reported.
        rows_zero: rows of no bytes, not reported.
        checks: what the log says twice.
        groups: groups of ``ranks`` members that ran the same call at the same time; they share the links they cross.
        mean_busbw_bytes_per_s: mean of all cells, rows of no bytes included, as the tools print it [bytes/s].
        printed_mean_busbw_bytes_per_s: as the log prints it; NaN where it does not [bytes/s].
    """

    file: str
    format: str
    op: str
    ranks: int | None
    nodes: int | None
    gpu: str
    first_line: int
    last_line: int
    size_bytes: Array
    time_s: Array
    algbw_bytes_per_s: Array
    busbw_bytes_per_s: Array
    wrong: Array
    line: NDArray[np.intp]
    rows_torn: int
    rows_zero: int
    checks: tuple[Check, ...]
    groups: int = 1
    mean_busbw_bytes_per_s: float = math.nan
    printed_mean_busbw_bytes_per_s: float = math.nan


@dataclass(frozen=True, slots=True, eq=False)
class Compute:
    """Kernels that one GPU ran as a log reports them; NaN where a cell is not there.

    Attributes:
        file, format, gpu, first_line, last_line, line: as in ``Table``.
        kind: ``gemm``, ``batched_gemm`` (m counts the rows of all of them), ``memory_copy`` or ``launch``.
        dtype: ``bf16``, ``fp16``, ``fp8``, ``fp32``, ``tf32``; empty where the log does not say.
        m, n, k: sizes of a product [elements, (rows,)]; for ``memory_copy`` n is the size [bytes, (rows,)].
        time_s: time of a call [s, (rows,)].
        rate: FLOP/s of a product, bytes/s of a copy (read and write counted), launches/s [1/s, (rows,)].
    """

    file: str
    format: str
    gpu: str
    first_line: int
    last_line: int
    kind: str
    dtype: str
    m: Array
    n: Array
    k: Array
    time_s: Array
    rate: Array
    line: NDArray[np.intp]


class Read(NamedTuple):
    """Everything found in one file."""

    file: str
    format: str
    tables: tuple[Table, ...]
    compute: tuple[Compute, ...]
    notes: tuple[str, ...]
    network: str = ""  # over which traffic between nodes went, where the log names it
