"""One rank's training step, collective by collective: who is in the group, and what that rank sends.

Written from Shoeybi et al. 2019 (two blocks a layer), Korthikanti et al. 2022 (sequence parallelism), Rajbhandari et
al. 2020 (ZeRO), Zhao et al. 2023 (FSDP units, hybrid sharding), Narayanan et al. 2021 (chunks), Liu et al. 2023 and
Jacobs et al. 2023 (context parallelism), Shazeer et al. 2017 (experts). Plain loops over micro-batches, chunks, layers
and the steps of each collective; no closed form.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field, replace
from fractions import Fraction

from tests.oracles.sharding import Grid, Model, held, stage_layers


@dataclass
class Wire:
    """Counts what one rank sends, by axis and operation."""

    sent: dict[tuple[str, str], Fraction] = field(default_factory=lambda: defaultdict(Fraction))

    def _add(self, axis: str, op: str, size: Fraction) -> None:
        self.sent[axis, op] += size

    def all_gather(self, axis: str, group: list[int], whole: Fraction | int) -> None:
        for _ in group[1:]:
            self._add(axis, "all-gather", Fraction(whole) / len(group))

    def reduce_scatter(self, axis: str, group: list[int], whole: Fraction | int) -> None:
        for _ in group[1:]:
            self._add(axis, "reduce-scatter", Fraction(whole) / len(group))

    def all_reduce(self, axis: str, group: list[int], whole: Fraction | int) -> None:
        for _ in range(2):  # scatter the sums, gather them
            for _ in group[1:]:
                self._add(axis, "all-reduce", Fraction(whole) / len(group))

    def all_to_all(self, axis: str, group: list[int], buffer: Fraction | int, rank: int) -> None:
        for member in group:
            if member != rank:
                self._add(axis, "all-to-all", Fraction(buffer) / len(group))

    def send(self, axis: str, size: Fraction | int) -> None:
        self._add(axis, "send-recv", Fraction(size))


@dataclass(frozen=True)
class Step:
    """What is trained and how; bytes per element b_r reduced, b_w gathered."""

    model: Model
    grid: Grid
    seq: int
    micro: int = 1
    n_micro: int = 1
    zero: int = 0
    b_r: int = 2
    b_w: int = 2
    sp: bool = False
    full_recompute: bool = False
    reshard: bool = True
    no_sync: bool = False
    units: bool = True  # FSDP: unit by unit
    reshard_in_pipeline: bool = True
    cp_comm: str = "ring"
    schedule: str = "1f1b"
    vpp: int = 1
    top_k: int = 1


def chunks_of(step: Step, stage: int) -> list[int]:
    """Chunks that a stage holds, in the order of the model."""
    p = step.grid.pp
    if step.schedule == "interleaved":
        return [stage + lap * p for lap in range(step.vpp)]
    if step.schedule == "zb-v":
        return [stage, 2 * p - 1 - stage]
    if step.schedule == "dualpipe":
        return sorted({stage, p - 1 - stage})
    return [stage]


def chunk_count(step: Step) -> int:
    """Chunks into which the model is cut."""
    p = step.grid.pp
    return {"interleaved": p * step.vpp, "zb-v": 2 * p}.get(step.schedule, p)


def held_by(step: Step, stage: int, q: int) -> tuple[Fraction, Fraction]:
    """Dense and expert elements of a rank, before data parallelism divides them; a tied table counts once a stage."""
    total = chunk_count(step)
    grid = replace(step.grid, pp=total)
    dense = expert = Fraction(0)
    chunks = chunks_of(step, stage)
    for chunk in chunks:
        d, e = held(step.model, grid, chunk, q)
        dense, expert = dense + sum(d, Fraction(0)), expert + sum(e, Fraction(0))
    if step.model.tied and len(chunks) > 1 and 0 in chunks and total - 1 in chunks:
        dense -= Fraction(step.model.vocab * step.model.h, step.grid.tp)
    return dense, expert


def traffic(step: Step, stage: int, q: int) -> dict[tuple[str, str], Fraction]:
    """What rank q of a stage sends in one step, by (axis, operation)."""
    return _Rank(step, stage, q).run()


class _Rank:
    def __init__(self, step: Step, stage: int, q: int) -> None:
        self.step, self.stage, self.q = step, stage, q
        self.wire = Wire()
        g, model = step.grid, step.model
        self.tp = g.same(q, "cp", "dp_shard", "dp_replicate")
        self.cp = g.same(q, "tp", "dp_shard", "dp_replicate")
        self.shard = g.same(q, "tp", "dp_replicate")
        self.replicas = g.same(q, "tp", "cp", "dp_shard")
        self.everyone = g.same(q, "tp")
        self.etp, self.ep = g.same(q, "ep", "edp"), g.same(q, "etp", "edp")
        self.edp_all, self.edp_shard = g.same(q, "etp", "ep"), g.same(q, "etp", "ep", "dp_replicate")
        at = self.edp_shard.index(q)  # the same place in every replica
        stride = g.stage_ranks // g.dp_replicate
        self.edp_replicas = [self.edp_shard[at] % stride + stride * i for i in range(g.dp_replicate)]
        self.tokens = Fraction(step.seq * step.micro, g.cp)
        self.hidden = 2 * model.h * self.tokens
        self.total = chunk_count(step)
        self.mine = chunks_of(step, stage)
        self.staged = g.pp > 1 and step.units and not step.reshard_in_pipeline and step.zero == 3

    # ------------------------------------------------------------------------------------------------------- the step
    def run(self) -> dict[tuple[str, str], Fraction]:
        step = self.step
        if self.staged:
            for chunk in self.mine:
                self._gather(chunk)
        for number in range(step.n_micro):
            chunks = self.mine
            if step.schedule == "dualpipe" and step.grid.pp > 1:  # even micro-batches one way, odd ones the other
                chunks = [self.stage if number % 2 == 0 else step.grid.pp - 1 - self.stage]
            for chunk in chunks:
                self._forward(chunk)
            for chunk in reversed(chunks):
                self._backward(chunk)
                if step.zero >= 2 and not step.no_sync and not self.staged:
                    self._reduce(chunk)
        self._end_of_step()
        return dict(self.wire.sent)

    def _end_of_step(self) -> None:
        step, wire = self.step, self.wire
        dense, expert = (x * step.b_r for x in held_by(step, self.stage, self.q))
        if step.zero == 0:
            wire.all_reduce("dp", self.everyone, dense)
            wire.all_reduce("edp", self.edp_all, expert)
        elif step.zero == 1 or step.no_sync or self.staged:
            wire.reduce_scatter("dp", self.shard, dense)
            wire.reduce_scatter("edp", self.edp_shard, expert)
        if step.zero in (1, 2):
            wire.all_gather("dp", self.shard, dense / step.b_r * step.b_w)
            wire.all_gather("edp", self.edp_shard, expert / step.b_r * step.b_w)
        own, own_expert = dense, expert
        if step.zero:
            own, own_expert = dense / len(self.shard), expert / len(self.edp_shard)
            if len(self.replicas) > 1:
                wire.all_reduce("dp", self.replicas, own)
                wire.all_reduce("edp", self.edp_replicas, own_expert)
        pair = [0, 1]
        if step.grid.pp > 1 and step.schedule == "dualpipe":
            wire.all_reduce("pp", pair, own + own_expert)
        first, last = 0 in self.mine, self.total - 1 in self.mine
        if step.model.tied and step.grid.pp > 1 and first != last:
            wire.all_reduce("pp", pair, Fraction(step.model.vocab * step.model.h, step.grid.tp) * step.b_r)

    # ------------------------------------------------------------------------------------------------ sharded weights
    def _elements(self, chunk: int) -> tuple[Fraction, Fraction]:
        dense, expert = held(self.step.model, replace(self.step.grid, pp=self.total), chunk, self.q)
        whole = sum(dense, Fraction(0))
        both_ends = 0 in self.mine and self.total - 1 in self.mine
        if self.step.model.tied and len(self.mine) > 1 and both_ends and chunk == self.total - 1:
            # one table for both ends: half of it is counted with each chunk
            whole -= Fraction(self.step.model.vocab * self.step.model.h, self.step.grid.tp)
        return whole, sum(expert, Fraction(0))

    def _gather(self, chunk: int) -> None:
        dense, expert = self._elements(chunk)
        self.wire.all_gather("dp", self.shard, dense * self.step.b_w)
        self.wire.all_gather("edp", self.edp_shard, expert * self.step.b_w)

    def _reduce(self, chunk: int) -> None:
        dense, expert = self._elements(chunk)
        self.wire.reduce_scatter("dp", self.shard, dense * self.step.b_r)
        self.wire.reduce_scatter("edp", self.edp_shard, expert * self.step.b_r)

    # ----------------------------------------------------------------------------------------------- passes of a chunk
    def _forward(self, chunk: int) -> None:
        step = self.step
        if step.zero == 3 and not self.staged:
            self._gather(chunk)
        if chunk == 0:
            self._sum()  # rows of the vocabulary meet
        for layer in self._layers(chunk):
            self._layer_forward(layer)
        if chunk == self.total - 1:
            if step.sp:
                self.wire.all_gather("tp", self.tp, self.hidden)
            for _ in ("maximum", "target logit", "sum"):
                self.wire.all_reduce("tp", self.tp, 4 * self.tokens)
        self._message(to=chunk + 1)

    def _backward(self, chunk: int) -> None:
        step = self.step
        if chunk == self.total - 1:  # the head is a column-parallel layer
            if step.sp:
                self.wire.all_gather("tp", self.tp, self.hidden)
            self._sum()
        if step.zero == 3 and step.reshard and not self.staged:
            self._gather(chunk)
        for layer in reversed(self._layers(chunk)):
            if step.full_recompute:
                self._layer_forward(layer)
            self._layer_backward(layer)
        if chunk == 0 and step.sp:
            self.wire.all_gather("tp", self.tp, self.hidden)
        self._message(to=chunk - 1)

    def _layers(self, chunk: int) -> list[int]:
        return stage_layers(self.step.model.layers, self.total)[chunk]

    def _message(self, to: int) -> None:
        if not 0 <= to < self.total or self.step.grid.pp == 1:
            return
        if self.step.schedule == "zb-v" and to in self.mine:
            return  # the V turns on this stage
        self.wire.send("pp", self.hidden / (self.step.grid.tp if self.step.sp else 1))

    def _sum(self) -> None:
        """Partial sums meet: all of them on everyone, or each on the rank that goes on with its tokens."""
        if self.step.sp:
            self.wire.reduce_scatter("tp", self.tp, self.hidden)
        else:
            self.wire.all_reduce("tp", self.tp, self.hidden)

    # --------------------------------------------------------------------------------------------------------- layers
    def _block_forward(self) -> None:
        if self.step.sp:
            self.wire.all_gather("tp", self.tp, self.hidden)
        self._sum()

    def _block_backward(self) -> None:
        if self.step.sp:
            self.wire.all_gather("tp", self.tp, self.hidden)  # the gradient of the scattered output
            self.wire.all_gather("tp", self.tp, self.hidden)  # the input again, for the weight gradient
        self._sum()

    def _moe(self, layer: int) -> bool:
        return bool(self.step.model.moe and self.step.model.moe[layer])

    def _divided_mlp(self, layer: int) -> bool:
        """Whether tensor-parallel ranks share an MLP of this layer over the same tokens."""
        return not self._moe(layer) or self.step.model.f_s > 0 or not self.step.sp

    def _layer_forward(self, layer: int) -> None:
        self._block_forward()
        self._attention(passes=1, scatter=False)
        if self._divided_mlp(layer):
            self._block_forward()
        if self._moe(layer):
            self._experts()

    def _layer_backward(self, layer: int) -> None:
        self._block_backward()
        self._attention(passes=2 if self.step.cp_comm == "ring" else 1, scatter=True)
        if self._divided_mlp(layer):
            self._block_backward()
        if self._moe(layer):
            self._experts()

    def _attention(self, passes: int, scatter: bool) -> None:
        model, grid, wire = self.step.model, self.step.grid, self.wire
        if grid.cp == 1:
            return
        heads = max(Fraction(model.g, grid.tp), Fraction(1))
        key = value = 2 * heads * model.d_k * self.tokens
        if self.step.cp_comm == "ring":
            for _ in range(passes):
                for _ in range(grid.cp - 1):
                    wire.send("cp", key + value)
        elif self.step.cp_comm == "all-gather":
            wire.all_gather("cp", self.cp, (key + value) * grid.cp)
            if scatter:
                wire.reduce_scatter("cp", self.cp, (key + value) * grid.cp)
        else:
            query = 2 * Fraction(model.a, grid.tp) * model.d_k * self.tokens
            for tensor in (query, key, value, query):  # the last is the output, back
                wire.all_to_all("cp", self.cp, tensor, self.q)

    def _experts(self) -> None:
        """Dispatch and combine, each pass; parts of an expert see each other's tokens."""
        model, grid = self.step.model, self.step.grid
        routed = 2 * model.h * self.step.top_k * self.tokens / grid.tp
        self.wire.all_to_all("ep", self.ep, routed, self.q)
        self.wire.all_gather("etp", self.etp, routed * grid.etp)
        self.wire.reduce_scatter("etp", self.etp, routed * grid.etp)
        self.wire.all_to_all("ep", self.ep, routed, self.q)
