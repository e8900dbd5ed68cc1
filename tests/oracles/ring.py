"""A ring all-reduce that really moves chunks from rank to rank and counts what each rank sends. It knows no formula."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass
class Ring:
    """Ranks in a circle, each with its own copy of a tensor."""

    tensors: list[NDArray[np.float64]]

    def __post_init__(self) -> None:
        self.ranks = len(self.tensors)
        self.sent_bytes = [0] * self.ranks
        self.steps = 0
        self.chunks = [np.array_split(tensor.copy(), self.ranks) for tensor in self.tensors]

    def _step(self, first: int, add: bool) -> None:
        """Every rank passes one chunk to its right neighbour, all at once."""
        moving = []
        for rank in range(self.ranks):
            index = (first - self.steps + rank) % self.ranks
            moving.append((rank, index, self.chunks[rank][index].copy()))
        for rank, index, chunk in moving:
            self.sent_bytes[rank] += chunk.nbytes
            right = self.chunks[(rank + 1) % self.ranks]
            right[index] = right[index] + chunk if add else chunk
        self.steps += 1

    def all_reduce(self, mean: bool) -> list[NDArray[np.float64]]:
        """Reduce-scatter, divide if the mean is wanted, all-gather; the tensors of all ranks afterwards."""
        for _ in range(self.ranks - 1):
            self._step(0, add=True)
        if mean:
            for rank in range(self.ranks):
                own = (rank + 1) % self.ranks
                self.chunks[rank][own] = self.chunks[rank][own] / self.ranks
        for _ in range(self.ranks - 1):
            self._step(0, add=False)
        return [np.concatenate(chunks) for chunks in self.chunks]
