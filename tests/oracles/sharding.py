"""State of every rank, tensor by tensor: which elements it holds, which it owns, in exact fractions.

Ranks have coordinates on two grids over the same ranks of a stage (inner first): tp, cp, dp_shard, dp_replicate for
dense tensors and etp, ep, the rest for experts. Written from Shoeybi et al. 2019 (columns and rows), Rajbhandari et
al. 2020 (ZeRO), Zhao et al. 2023 (hybrid sharding), Narayanan et al. 2021 (stages); no sums over classes of tensors,
only loops.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Model:
    """A Llama-like model with optional experts and one norm vector twice a layer."""

    layers: int
    h: int
    a: int
    g: int
    d_k: int
    f: int
    vocab: int
    tied: bool = False
    experts: int = 0
    f_e: int = 0
    f_s: int = 0
    moe: tuple[bool, ...] = ()


@dataclass(frozen=True)
class Grid:
    tp: int = 1
    pp: int = 1
    cp: int = 1
    dp_shard: int = 1
    dp_replicate: int = 1
    etp: int = 1
    ep: int = 1

    @property
    def stage_ranks(self) -> int:
        return self.tp * self.cp * self.dp_shard * self.dp_replicate

    def dense(self, q: int) -> dict[str, int]:
        """Coordinates of rank q of a stage on the dense grid."""
        return {
            "tp": q % self.tp,
            "cp": q // self.tp % self.cp,
            "dp_shard": q // (self.tp * self.cp) % self.dp_shard,
            "dp_replicate": q // (self.tp * self.cp * self.dp_shard),
        }

    def expert(self, q: int) -> dict[str, int]:
        """Coordinates of rank q of a stage on the expert grid."""
        return {"etp": q % self.etp, "ep": q // self.etp % self.ep, "edp": q // (self.etp * self.ep)}

    def same(self, q: int, *names: str) -> list[int]:
        """Ranks of the stage that agree with rank q on these coordinates."""
        mine = {**self.dense(q), **self.expert(q)}
        others = range(self.stage_ranks)
        return [r for r in others if all({**self.dense(r), **self.expert(r)}[n] == mine[n] for n in names)]


def stage_layers(layers: int, pp: int) -> list[list[int]]:
    """Consecutive layers, the same number on each stage."""
    assert layers % pp == 0
    each = layers // pp
    return [list(range(i * each, (i + 1) * each)) for i in range(pp)]


def held(model: Model, grid: Grid, stage: int, q: int) -> tuple[list[Fraction], list[Fraction]]:
    """Elements of each dense and each expert tensor that rank q of a stage holds."""
    mine = grid.dense(q)
    t, r = grid.tp, mine["tp"]
    dense: list[Fraction] = []
    expert: list[Fraction] = []
    for layer in stage_layers(model.layers, grid.pp)[stage]:
        # query heads of this rank, and the key/value heads they read
        heads = [i for i in range(model.a) if i * t // model.a == r]
        per_group = model.a // model.g
        groups = sorted({i // per_group for i in heads})
        if model.g >= t:
            assert len(groups) * t == model.g
        dense.append(Fraction(model.h * len(heads) * model.d_k))  # query
        dense.append(Fraction(model.h * len(groups) * model.d_k))  # key
        dense.append(Fraction(model.h * len(groups) * model.d_k))  # value
        dense.append(Fraction(len(heads) * model.d_k * model.h))  # out, by rows
        dense += [Fraction(model.h), Fraction(model.h)]  # two norms, on every rank
        if model.moe and model.moe[layer]:
            dense.append(Fraction(model.h * model.experts))  # router, on every rank
            dense += [Fraction(model.h * model.f_s, t)] * (3 if model.f_s else 0)  # shared expert
            place = grid.expert(q)
            for e in range(model.experts):
                if e * grid.ep // model.experts == place["ep"]:
                    expert += [Fraction(model.h * model.f_e, grid.etp)] * 3
        else:
            dense += [Fraction(model.h * model.f, t)] * 3
    first, last = stage == 0, stage == grid.pp - 1
    if first:
        dense.append(Fraction(model.vocab * model.h, t))
    if last:
        dense.append(Fraction(model.h))  # final norm
        if not model.tied or not first:  # a head of its own, or the second copy of the tied table
            dense.append(Fraction(model.vocab * model.h, t))
    return dense, expert


def owned(model: Model, grid: Grid, stage: int, q: int) -> Fraction:
    """Elements of rank q after the ranks that hold the same elements divided them among themselves.

    Dense tensors: the ranks of one tensor-parallel coordinate and one replica. Experts: the ranks of one
    expert-tensor and expert-parallel coordinate within one replica.
    """
    dense, expert = held(model, grid, stage, q)
    peers = len(grid.same(q, "tp", "dp_replicate"))
    expert_peers = len(grid.same(q, "etp", "ep", "dp_replicate"))
    return sum((x / peers for x in dense), Fraction(0)) + sum((x / expert_peers for x in expert), Fraction(0))


def state(model: Model, grid: Grid, stage: int, q: int, zero: int, each: dict[str, int]) -> dict[str, Fraction]:
    """Bytes of rank q: ZeRO-1 divides what the optimizer keeps, ZeRO-2 also gradients, ZeRO-3 also weights."""
    dense, expert = held(model, grid, stage, q)
    whole, part = sum(dense, Fraction(0)) + sum(expert, Fraction(0)), owned(model, grid, stage, q)
    from_stage = {"weights": 3, "gradients": 2, "main_gradients": 2, "master_weights": 1, "adam_m": 1, "adam_v": 1}
    return {name: Fraction(size) * (part if zero >= from_stage[name] else whole) for name, size in each.items()}
