"""A ring all-reduce that moves real chunks: what each rank sends at each step, and what everyone holds at the end."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dscalc.records import Array

REDUCE_SCATTER, ALL_GATHER = "reduce-scatter", "all-gather"


@dataclass(frozen=True, slots=True)
class RingStep:
    """One step: every rank passes one chunk to its right neighbour, all at once.

    Attributes:
        phase: ``reduce-scatter`` or ``all-gather``.
        chunks: index of the chunk that each rank sends.
        sent_bytes: bytes that each rank sends (ranks,).
        tensors: what each rank holds afterwards (ranks, elements).
    """

    phase: str
    chunks: tuple[int, ...]
    sent_bytes: Array
    tensors: Array


@dataclass(frozen=True, slots=True)
class RingTrace:
    """All steps, and the result.

    Attributes:
        steps: 2(K-1) of them.
        sent_bytes: bytes that each rank sent altogether (ranks,).
        total: the undivided sum that every rank holds at the end (elements,).
        mean: the sum over the number of ranks (elements,).
    """

    steps: tuple[RingStep, ...]
    sent_bytes: Array
    total: Array
    mean: Array


def example_gradients(ranks: int) -> Array:
    """Small gradients to watch: the two workers [0.4, -0.2] and [0.8, 0.6], and more of their kind.

    Args:
        ranks [ranks]: workers K.

    Returns:
        One row a worker, one element a chunk (two at least) [elements, (ranks, elements)].

    Raises:
        nothing.

    References:
        [Definition] worked by hand: the mean of the two is [0.6, 0.2].
    """
    pair = np.array([[0.4, -0.2], [0.8, 0.6]])
    row, column = np.arange(ranks), np.arange(max(ranks, 2))
    grown = 0.1 * (row[:, None] // 2) - 0.1 * (column[None, :] // 2)
    return np.asarray(np.round(pair[row[:, None] % 2, column[None, :] % 2] + grown, 6))


def ring_trace(gradients: Array, element_bytes: float) -> RingTrace:
    """Reduce-scatter, then all-gather, chunk by chunk around a ring.

    Args:
        gradients [elements, (ranks, elements)]: one row a rank; chunks differ by one element where ranks do not divide
            them.
        element_bytes [bytes/element]: size of one element on the wire.

    Returns:
        The steps [bytes, (ranks,)].

    Raises:
        nothing.

    References:
        [Patarasuk2009] section 3.
    """
    ranks, elements = gradients.shape
    held = np.array(gradients, dtype=np.float64)
    edges = [part * elements // ranks for part in range(ranks + 1)]
    cuts = [slice(edges[part], edges[part + 1]) for part in range(ranks)]
    sent = np.zeros(ranks)
    steps: list[RingStep] = []
    for step in range(2 * (ranks - 1)):
        adds = step < ranks - 1
        chunks = tuple((rank - step) % ranks for rank in range(ranks))
        moving = [held[rank, cuts[chunk]].copy() for rank, chunk in enumerate(chunks)]
        size = np.array([part.size * element_bytes for part in moving])
        for rank, (chunk, part) in enumerate(zip(chunks, moving, strict=True)):
            right = (rank + 1) % ranks
            held[right, cuts[chunk]] = held[right, cuts[chunk]] + part if adds else part
        sent = sent + size
        steps.append(RingStep(REDUCE_SCATTER if adds else ALL_GATHER, chunks, size, held.copy()))
    total = held[0].copy()
    return RingTrace(tuple(steps), sent, total, total / ranks)
