"""What one rank allocates and frees in training steps of a Llama-like model with reduce-scatter tensor parallelism.

The order of events of one layer, forward and backward, follows nanotron's (models/llama.py,
parallel/tensor_parallel): a column-parallel linear gathers its sharded input into a persistent buffer and its
backward reduce-scatters a full-size gradient; a row-parallel linear reduce-scatters a full-size output. Full-size
inputs of collectives are used on the communication stream. Kernels are counted as launched: gathers and products in
pieces, rotation, sequence bookkeeping.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.oracles.allocator import Allocator, Block

STREAMED = True  # a freed collective input: pending until the GPU has passed it


@dataclass(frozen=True)
class Run:
    layers: int
    hidden: int
    ffn_hidden: int
    vocab: int
    heads: int
    kv_heads: int
    seq_len: int
    micro_batch: int
    tp: int
    dp: int = 1
    micro_batches: int = 2
    steps: int = 2
    flat_gather: bool = True
    head: bool = True

    @property
    def u(self) -> int:
        """One whole 16-bit hidden tensor [bytes]."""
        return 2 * self.seq_len * self.micro_batch * self.hidden

    @property
    def matrices(self) -> dict[str, int]:
        """Elements of one layer's matrices on one rank."""
        h, kv = self.hidden, self.hidden * self.kv_heads // self.heads
        return {
            "qkv": h * (h + 2 * kv) // self.tp,
            "out": h * h // self.tp,
            "gate_up": 2 * h * self.ffn_hidden // self.tp,
            "down": h * self.ffn_hidden // self.tp,
        }

    @property
    def parameters(self) -> int:
        tables = (1 + self.head) * self.vocab * self.hidden // self.tp
        return self.layers * (sum(self.matrices.values()) + 2 * self.hidden) + tables


class Replay:
    """Plays ``run`` on ``memory``; ``gathered_gradients``: gradients gathered in backward are streamed tensors too."""

    def __init__(self, run: Run, memory: Allocator, gathered_gradients: bool = False) -> None:
        self.run, self.memory, self.gathered_gradients = run, memory, gathered_gradients
        r = run
        self.tokens = r.seq_len * r.micro_batch
        self.shard = r.u // r.tp  # a 16-bit hidden tensor of this rank
        self.kv = self.shard * r.kv_heads // r.heads
        self.wide = 2 * self.tokens * r.ffn_hidden // r.tp
        self.logits = self.tokens * r.vocab // r.tp if r.head else 0

    def play(self) -> None:
        m, r = self.memory, self.run
        for size in [*self.run.matrices.values(), r.hidden, r.hidden] * r.layers:
            m.alloc(2 * size)
        tables = [r.vocab * r.hidden // r.tp] * (1 + r.head)
        for size in tables:
            m.alloc(2 * size)
        m.alloc(4 * r.parameters)  # fp32 gradients, one block
        m.alloc(4 * r.parameters // r.dp)  # fp32 master, one block
        if r.tp > 1:
            m.alloc(r.u)  # persistent gather buffers
            m.alloc(r.u)
        for step in range(r.steps):
            for _ in range(r.micro_batches):
                self.micro_batch()
            if step == 0:  # optimizer states, created when first used
                for size in [*self.run.matrices.values(), r.hidden, r.hidden] * r.layers + tables:
                    for _ in range(2):
                        m.alloc(4 * size // r.dp)
            m.launch(4 * r.layers)
            m.synchronize()  # the gradient norm is read by the host
            if r.dp > 1 and r.flat_gather:
                m.free(m.alloc(2 * r.parameters))
                m.synchronize()

    def full(self, launches: int) -> None:
        """A full-size tensor is made and reduce-scattered; then nothing but the communication stream uses it."""
        m = self.memory
        tensor = m.alloc(self.run.u)
        m.launch(launches)
        m.free(tensor, STREAMED and self.run.tp > 1)

    def micro_batch(self) -> None:
        m, r = self.memory, self.run
        self.full(2)
        embedded = m.alloc(self.shard)  # reduce-scattered; kept as the first layer's input
        backwards = [self.layer() for _ in range(r.layers)]
        grads: list[Block] = []
        gradient = self.head(grads) if r.head else m.alloc(self.shard)
        for backward in reversed(backwards):
            gradient = backward(gradient)
            grads += [m.alloc(2 * size) for size in r.matrices.values()]
        m.free(gradient)
        m.free(embedded)
        grads.append(m.alloc(2 * r.vocab * r.hidden // r.tp))
        for tensor in grads:  # added to the fp32 gradients
            m.launch(1)
            m.free(tensor)

    def layer(self) -> Callable[[Block], Block]:
        """Forward of one layer: about 30 launches, two full-size tensors. Returns its backward."""
        m, shard = self.memory, self.shard
        norm_1, rms_1 = m.alloc(shard), m.alloc(4 * self.tokens // self.run.tp)
        packed = m.alloc(shard + 2 * self.kv)
        m.launch(1 + 4)  # norm; gather and three pieces of the product
        qkv = m.alloc(shard + 2 * self.kv)  # contiguous copy, rotated in place
        m.launch(3)
        m.free(packed)
        rotated = m.alloc(2 * self.kv)
        m.launch(3)
        m.launch(6)  # sequence lengths
        out, lse = m.alloc(shard), m.alloc(4 * self.tokens * self.run.heads // self.run.tp)
        m.launch(2)
        self.full(2)  # out projection and its reduce-scatter
        partial = m.alloc(shard)
        y = m.alloc(shard)
        m.launch(1)
        m.free(partial)
        norm_2, rms_2 = m.alloc(shard), m.alloc(4 * self.tokens // self.run.tp)
        merged = m.alloc(2 * self.wide)
        m.launch(1 + 4)
        silu = m.alloc(self.wide)
        product = m.alloc(self.wide)
        m.launch(2)
        self.full(2)  # down projection and its reduce-scatter
        partial = m.alloc(shard)
        z = m.alloc(shard)
        m.launch(1)
        m.free(partial)

        def backward(gradient: Block) -> Block:
            self.gathered(3)  # gradient gathered, two products
            d_product = m.alloc(self.wide)
            m.free(product)
            d_silu, d_up = m.alloc(self.wide), m.alloc(self.wide)
            m.launch(2)
            m.free(d_product)
            m.free(silu)
            d_gate = m.alloc(self.wide)
            m.launch(1)
            m.free(d_silu)
            d_merged = m.alloc(2 * self.wide)
            m.launch(1)
            for tensor in (d_gate, d_up, merged):
                m.free(tensor)
            self.full(4)  # input gathered again, input gradient, reduce-scatter, weight gradient
            d_norm = m.alloc(shard)
            m.free(d_merged)
            m.free(norm_2)
            d_y = m.alloc(shard)
            m.launch(3)
            for tensor in (d_norm, rms_2, z):
                m.free(tensor)
            total = m.alloc(shard)
            m.launch(1)
            m.free(d_y)
            m.free(gradient)
            self.gathered(3)
            d_out = m.alloc(shard)
            d_q, d_kv = m.alloc(shard), m.alloc(2 * self.kv)
            m.launch(6)  # flash backward in three kernels, transposes
            for tensor in (d_out, out, lse, rotated, qkv):
                m.free(tensor)
            d_qkv, d_packed = m.alloc(shard + 2 * self.kv), m.alloc(shard + 2 * self.kv)
            m.launch(5)
            for tensor in (d_q, d_kv, d_qkv):
                m.free(tensor)
            self.full(4)
            d_norm = m.alloc(shard)
            m.free(d_packed)
            m.free(norm_1)
            d_x = m.alloc(shard)
            m.launch(3)
            for tensor in (d_norm, rms_1, y):
                m.free(tensor)
            result = m.alloc(shard)
            m.launch(1)
            m.free(d_x)
            m.free(total)
            m.launch(4)  # hooks of the weight gradients
            return result

        return backward

    def gathered(self, launches: int) -> None:
        """A gradient is gathered to full size before the products of a row-parallel linear layer."""
        m = self.memory
        tensor = m.alloc(self.run.u)
        m.launch(launches)
        m.free(tensor, self.gathered_gradients and self.run.tp > 1)

    def head(self, grads: list[Block]) -> Block:
        """Final norm, logits, cross-entropy and their backward."""
        m = self.memory
        norm = m.alloc(self.shard)
        half = m.alloc(2 * self.logits)
        m.launch(5)
        single = m.alloc(4 * self.logits)
        m.launch(1)
        m.free(half)
        shifted = m.alloc(4 * self.logits)
        m.launch(15)
        m.free(single)
        d_half = m.alloc(2 * self.logits)
        m.launch(4)
        m.free(shifted)
        self.full(4)
        grads.append(m.alloc(2 * self.run.vocab * self.run.hidden // self.run.tp))
        m.free(d_half)
        m.free(norm)
        d_x = m.alloc(self.shard)
        m.launch(3)
        return d_x
