"""A caching allocator like PyTorch's, for replays of what a training step allocates and frees.

Rules, from the documentation and source of PyTorch's CUDACachingAllocator: sizes are rounded up to 512 bytes;
requests up to 1 MiB come from 2 MiB segments (small pool), below 10 MiB from 20 MiB segments, larger ones from a
segment of their own rounded up to 2 MiB (large pool); the smallest free block that fits is taken and split where at
least 512 bytes (small) or more than 1 MiB (large) would be left; a freed block merges with free neighbours of its
segment. A block used on another stream stays pending after its free until the GPU has passed it. When the device is
full, pending blocks are waited for and wholly free segments go back before the request is tried again.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

KIB = 2**10
MIB = 2**20
SMALL, LARGE = 0, 1


class OutOfMemoryError(Exception):
    """The device has no room even after everything free went back."""


@dataclass(eq=False, slots=True)
class Block:
    size: int
    pool: int
    number: int
    free: bool = False
    before: Block | None = None
    after: Block | None = None

    @property
    def whole_segment(self) -> bool:
        return self.before is None and self.after is None


@dataclass
class Allocator:
    """``capacity``: bytes the device has. ``lag``: launches the GPU is behind the host."""

    capacity: float = float("inf")
    lag: int = 0
    launched: int = 0
    allocated: int = 0
    pending: int = 0
    reserved: int = 0
    peak_allocated: int = 0
    peak_pending: int = 0
    peak_reserved: int = 0
    retries: int = 0
    _free: tuple[list[tuple[int, int]], list[tuple[int, int]]] = field(default_factory=lambda: ([], []))
    _blocks: dict[int, Block] = field(default_factory=dict)
    _waiting: list[tuple[int, Block]] = field(default_factory=list)
    _next: int = 0

    def launch(self, kernels: int = 1) -> None:
        """The host queues kernels."""
        self.launched += kernels

    def alloc(self, size: int) -> Block:
        """Take a block for ``size`` bytes."""
        size = max(512, -(-size // 512) * 512)
        pool = SMALL if size <= MIB else LARGE
        self._pass(self.launched - self.lag)
        block = self._best_fit(size, pool) or self._segment(size, pool)
        rest = block.size - size
        if rest >= 512 if pool == SMALL else rest > MIB:
            self._split(block, size)
        self.allocated += block.size
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        return block

    def free(self, block: Block, other_stream: bool = False) -> None:
        """Give a block back; one that another stream used waits until the GPU has passed the last launch."""
        self.allocated -= block.size
        if other_stream and self.lag:
            self._waiting.append((self.launched, block))
            self.pending += block.size
            self.peak_pending = max(self.peak_pending, self.pending)
        else:
            self._release(block)

    def synchronize(self) -> None:
        """Wait for the GPU: nothing is pending afterwards."""
        self._pass(self.launched)

    def _pass(self, launch: int) -> None:
        done = 0
        while done < len(self._waiting) and self._waiting[done][0] <= launch:
            self.pending -= self._waiting[done][1].size
            self._release(self._waiting[done][1])
            done += 1
        del self._waiting[:done]

    def _best_fit(self, size: int, pool: int) -> Block | None:
        free = self._free[pool]
        at = bisect_left(free, (size, -1))
        if at == len(free):
            return None
        block = self._blocks[free.pop(at)[1]]
        block.free = False
        return block

    def _segment(self, size: int, pool: int) -> Block:
        whole = 2 * MIB if pool == SMALL else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        if self.reserved + whole > self.capacity:
            self.retries += 1
            self.synchronize()
            found = self._best_fit(size, pool)
            if found:
                return found
            self._empty_cache()
            if self.reserved + whole > self.capacity:
                raise OutOfMemoryError(f"{size} bytes: {self.reserved} of {self.capacity} reserved")
        self.reserved += whole
        self.peak_reserved = max(self.peak_reserved, self.reserved)
        return self._block(whole, pool)

    def _block(self, size: int, pool: int) -> Block:
        self._next += 1
        self._blocks[self._next] = block = Block(size, pool, self._next)
        return block

    def _split(self, block: Block, size: int) -> None:
        rest = self._block(block.size - size, block.pool)
        block.size = size
        rest.before, rest.after = block, block.after
        if block.after:
            block.after.before = rest
        block.after = rest
        self._add(rest)

    def _add(self, block: Block) -> None:
        block.free = True
        insort(self._free[block.pool], (block.size, block.number))

    def _take(self, block: Block) -> None:
        free = self._free[block.pool]
        del free[bisect_left(free, (block.size, block.number))]

    def _release(self, block: Block) -> None:
        for other in (block.before, block.after):
            if other is None or not other.free:
                continue
            self._take(other)
            if other is block.before:
                block.before = other.before
                if other.before:
                    other.before.after = block
            else:
                block.after = other.after
                if other.after:
                    other.after.before = block
            block.size += other.size
            del self._blocks[other.number]
        self._add(block)

    def _empty_cache(self) -> None:
        for free in self._free:
            for entry in [e for e in free if self._blocks[e[1]].whole_segment]:
                free.remove(entry)
                self.reserved -= self._blocks.pop(entry[1]).size
