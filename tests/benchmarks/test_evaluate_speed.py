"""How fast memory, and memory with the step, are evaluated over a space with all axes.

Run with ``pytest -s tests/benchmarks``. The figures are printed; what is asserted is generous, because machines differ
and share their caches.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import fields
from math import prod

import numpy as np
import pytest
from numpy.typing import NDArray

from dscalc import codes
from dscalc.cost.evaluate import CHUNK_ROWS, TIMED_ROWS, evaluate
from dscalc.cost.memory import Memory
from dscalc.records import Hardware, Layouts, ModelShape, Timing
from dscalc.specs.network import compose_network, load_interconnect
from dscalc.specs.pace import engine, pace_constants, pace_table
from dscalc.specs.stack import load_books
from dscalc.specs.store import load_gpu

BOOKS = load_books()
SECONDS = 2.0  # of measuring, each
CHUNKS = 12
MOST_OVER_MEMORY = 4.0  # an evaluation with the step, over memory alone; generous
MOST_MULTIPLICATIONS = {"ordered": 6000.0, "shuffled": 10000.0}  # a row may cost; generous
DENSE = ModelShape("dense", 96, 12288, 96, 8, 128, 128, 49152, 128256)
EXPERTS = ModelShape(
    name="experts",
    layers=60,
    hidden=5120,
    heads=128,
    kv_heads=128,
    head_dim=192,
    value_head_dim=128,
    ffn_hidden=12288,
    vocab=102400,
    mla=True,
    q_lora_rank=1536,
    kv_lora_rank=512,
    rope_head_dim=64,
    experts=160,
    top_k=6,
    moe_ffn_hidden=1536,
    shared_ffn_hidden=3072,
    moe_layer=(False,) + (True,) * 59,
)
GPU = Hardware(np.asarray([85.5e9]), np.asarray([8.0]), np.asarray([np.nan]))

# Every axis, outer first; a sweep steps through the last ones fastest.
AXES: dict[str, Sequence[float]] = {
    "pp": (1, 2, 4, 8, 16, 32, 64),
    "schedule": range(len(codes.SCHEDULES)),
    "vpp": (1, 2, 4),
    "stack": range(len(BOOKS.stacks.names)),
    "tp": (1, 2, 4, 8),
    "cp": (1, 2, 4),
    "ep": (1, 2, 4, 8),
    "etp": (1, 2),
    "dp": (1, 2, 4, 8, 16, 32, 64),
    "dp_replicate": (1, 2),
    "sequence_parallel": (0, 1),
    "attention": range(len(codes.ATTENTIONS)),
    "cp_comm": range(len(codes.CP_COMMS)),
    "rank_order": (0,),
    "loss": range(len(BOOKS.losses.names)),
    "seq_len": (4096, 8192, 32768),
    "capacity_factor": (1.0, 1.25),
    "recompute_layers": (1, 4, np.inf),
    "reshard": (0, 1),
    "no_sync": (0, 1),
    "offload_optimizer": (0, 1),
    "offload_parameters": (0, 1),
    "offload_activations": (0, 1),
    "optimizer_in_backward": (0, 1),
    "recipe": range(len(BOOKS.recipes.names)),
    "optimizer": range(len(BOOKS.optimizers.names)),
    "recompute": range(len(codes.RECOMPUTES)),
    "zero": (0, 1, 2, 3),
    "micro_batch": (1, 2, 4, 8),
    "n_micro": (1, 8, 64, 128),
}
SIZE = prod(len(values) for values in AXES.values())
CODES = {field.name for field in fields(Layouts) if "intp" in str(field.type)}


def layouts(index: NDArray[np.int64]) -> Layouts:
    """Layouts by their number in the space (mixed radix)."""
    columns, rest = {}, index
    for name in reversed(AXES):
        values = np.asarray(AXES[name], dtype=np.intp if name in CODES else np.float64)
        rest, digit = np.divmod(rest, len(values))
        columns[name] = values[digit]
    return Layouts(books=BOOKS, **columns)


def chunks(order: str, rows: int = CHUNK_ROWS) -> list[Layouts]:
    """Chunks of neighbours, or of layouts from all over the space."""
    rng = np.random.default_rng(7)
    if order == "shuffled":
        return [layouts(rng.integers(0, SIZE, rows)) for _ in range(CHUNKS)]
    return [layouts(first + np.arange(rows)) for first in rng.integers(0, SIZE - rows, CHUNKS)]


def ns_a_row(model: ModelShape, parts: list[Layouts], timing: Timing | None = None) -> float:
    """Time of a row: the fastest of the rounds for each chunk, the mean over chunks."""
    fastest = [float("inf")] * len(parts)
    until = time.perf_counter() + SECONDS
    while time.perf_counter() < until:
        for number, part in enumerate(parts):
            start = time.process_time()  # of this process alone, whatever else runs
            evaluate(model, part, GPU, keep_terms=False, timing=timing)
            fastest[number] = min(fastest[number], time.process_time() - start)
    return sum(fastest) / len(parts) / len(parts[0].tp) * 1e9


def unit_ns() -> float:
    """Time of one multiplication in a column that stays in the cache."""
    column, fastest = np.random.default_rng(0).random(4096), float("inf")
    for _ in range(50):
        start = time.perf_counter()
        for _ in range(20):
            _ = column * column
        fastest = min(fastest, (time.perf_counter() - start) / 20)
    return fastest / len(column) * 1e9


@pytest.mark.parametrize("model", [DENSE, EXPERTS], ids=lambda model: model.name)
@pytest.mark.parametrize("order", ["ordered", "shuffled"])
def test_rows_a_second(model: ModelShape, order: str) -> None:
    row, unit = ns_a_row(model, chunks(order)), unit_ns()
    print(
        f"\n{model.name:8} {order:9} {1e3 / row:5.2f} million evaluations a second on one core, "
        f"{row:5.0f} ns a row, {row / unit:5.0f} multiplications ({unit:.2f} ns each)"
    )
    assert row < MOST_MULTIPLICATIONS[order] * unit


@pytest.mark.parametrize("model", [DENSE, EXPERTS], ids=lambda model: model.name)
def test_rows_a_second_with_the_step(model: ModelShape) -> None:
    gpu = load_gpu("H100-SXM5-80GB").spec
    network = compose_network(gpu, 8, load_interconnect("ib-ndr").spec, nics_per_node=8).network
    timing = Timing(engine(gpu, "bf16")[0], pace_table(), pace_constants(), network)
    row, memory = ns_a_row(model, chunks("ordered", TIMED_ROWS), timing), ns_a_row(model, chunks("ordered"))
    print(
        f"\n{model.name:8} with the step {1e3 / row:5.2f} million evaluations a second on one core, "
        f"{row:5.0f} ns a row, {row / memory:.2f} times memory alone"
    )
    assert row < MOST_OVER_MEMORY * memory


@pytest.mark.parametrize("model", [DENSE, EXPERTS], ids=lambda model: model.name)
@pytest.mark.parametrize("order", ["ordered", "shuffled"])
def test_same_bits_with_leaves(model: ModelShape, order: str) -> None:
    part = chunks(order)[0]
    swept, shown = (evaluate(model, part, GPU, keep_terms=keep) for keep in (False, True))
    total = np.zeros(CHUNK_ROWS)
    for leaf in shown.memory.terms:
        total = total + leaf.array
    assert np.array_equal(total, swept.memory.total_bytes)
    for field in fields(Memory):
        value = getattr(swept.memory, field.name)
        if isinstance(value, np.ndarray):
            assert np.array_equal(value, getattr(shown.memory, field.name), equal_nan=True), field.name
    assert np.array_equal(swept.reasons.first, shown.reasons.first)
