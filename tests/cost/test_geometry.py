"""Members inside a domain, against enumeration of every rank's group."""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import lcm

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from dscalc.codes import RANK_ORDERS
from dscalc.cost.axes import groups, strides
from dscalc.cost.geometry import place, place_in_blocks
from tests.cost.helpers import layouts
from tests.oracles.sharding import Grid

DEGREES = st.sampled_from([1, 2, 3, 4, 5, 6, 8, 12, 16])
DOMAINS = st.sampled_from([1, 2, 3, 4, 6, 8, 9, 12, 16, 18, 24, 32, 36, 64, 72])


def placed(group: int, stride: int, domain: float) -> tuple[int, int, bool]:
    found = place(np.array([float(group)]), np.array([float(stride)]), np.array([float(domain)]))
    return int(found.inside[0]), int(found.domains[0]), bool(found.misaligned[0])


def counted(all_groups: list[list[int]], domain: int) -> tuple[int, int]:
    """Fewest members of a group in a domain that it touches, and most domains that a group touches."""
    spread = [Counter(rank // domain for rank in members) for members in all_groups]
    return min(min(c.values()) for c in spread), max(len(c) for c in spread)


def strided(group: int, stride: int, ranks: int) -> list[list[int]]:
    """Every group of ranks r, r + q, ..., r + (k-1) q."""
    found: dict[tuple[int, int], list[int]] = {}
    for rank in range(ranks):
        found.setdefault((rank // (group * stride), rank % stride), []).append(rank)
    return list(found.values())


@settings(max_examples=600, deadline=None)
@given(group=DEGREES, stride=DEGREES, domain=DOMAINS)
def test_the_worst_placed_group_of_a_line_of_ranks(group: int, stride: int, domain: int) -> None:
    everyone = strided(group, stride, lcm(domain, group * stride))
    inside, domains, misaligned = placed(group, stride, domain)
    fewest, most = counted(everyone, domain)
    assert inside == fewest
    assert (domains == 1) == (most == 1)
    assert domains >= most  # as if every domain held as few as the worst
    if domain % stride == 0 and not misaligned:
        assert domains == most
    sizes = {tuple(sorted(Counter(r // domain for r in members).values())) for members in everyone}
    if domain % stride == 0 or stride % domain == 0:
        uneven = len(sizes) > 1 or len(set(next(iter(sizes)))) > 1
        assert misaligned >= uneven  # warned wherever groups differ


@settings(max_examples=300, deadline=None)
@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    cp=st.sampled_from([1, 2, 3]),
    shard=st.sampled_from([1, 2, 4, 6]),
    replicate=st.sampled_from([1, 2, 3]),
    pp=st.sampled_from([1, 2, 3, 4]),
    order=st.sampled_from(RANK_ORDERS),
    domain=DOMAINS,
)
def test_groups_in_either_order_of_ranks(
    tp: int, cp: int, shard: int, replicate: int, pp: int, order: str, domain: int
) -> None:
    """Every rank is placed by its coordinates, innermost axis first, and each group of each kind is counted."""
    sizes = {"tp": tp, "cp": cp, "shard": shard, "replicate": replicate, "pp": pp}
    names = order.replace("dp", "shard-replicate").split("-")
    where: dict[tuple[int, ...], int] = {}
    for rank, outer_first in enumerate(product(*(range(sizes[name]) for name in reversed(names)))):
        place_of = dict(zip(reversed(names), outer_first, strict=True))
        where[tuple(place_of[name] for name in sizes)] = rank

    def members(*axes: str) -> list[list[int]]:
        fixed = [n for n, name in enumerate(sizes) if name not in axes]
        found: dict[tuple[int, ...], list[int]] = {}
        for coordinates, rank in where.items():
            found.setdefault(tuple(coordinates[n] for n in fixed), []).append(rank)
        return [sorted(each) for each in found.values()]

    lay = layouts(tp=tp, cp=cp, dp=shard * replicate, dp_replicate=replicate, pp=pp, rank_order=order)
    lie = strides(lay)
    stage = members("pp")[0]
    assert pp == 1 or stage[1] - stage[0] == lie.stage[0]
    if len(where) % domain:
        return
    wide = np.array([float(domain)])
    block = np.array([float(tp)]), lie.near, lie.far
    for axes, count in ((("cp", "shard", "replicate"), cp * shard * replicate), (("cp", "shard"), cp * shard)):
        fewest, most = counted(members(*axes), domain)
        found = place_in_blocks(np.array([float(count)]), *block, wide)
        even = all(domain % q == 0 or q % domain == 0 for q in (tp, lie.far[0]))
        if even and not found.misaligned[0]:
            assert (found.inside[0], found.domains[0]) == (fewest, most)
        assert found.inside[0] <= fewest
        assert found.domains[0] >= most


@settings(max_examples=300, deadline=None)
@given(
    tp=st.sampled_from([1, 2, 4, 8]),
    cp=st.sampled_from([1, 2, 3]),
    shard=st.sampled_from([1, 2, 3, 4, 6]),
    replicate=st.sampled_from([1, 2, 3]),
    pp=st.sampled_from([1, 2, 4]),
    etp=st.sampled_from([1, 2]),
    ep=st.sampled_from([1, 2, 3, 4, 8]),
    domain=DOMAINS,
)
def test_groups_of_both_grids(
    tp: int, cp: int, shard: int, replicate: int, pp: int, etp: int, ep: int, domain: int
) -> None:
    """Groups by coordinates of every rank of the job, dense and expert; strides and degrees as the library has them."""
    grid = Grid(tp, pp, cp, shard, replicate, etp, ep)
    assume(tp * cp * shard % (etp * ep) == 0)
    stage, gpus = grid.stage_ranks, grid.stage_ranks * pp
    columns = layouts(tp=tp, cp=cp, dp=shard * replicate, dp_replicate=replicate, pp=pp, ep=ep, etp=etp)
    derived = groups(columns)
    edp = int(derived.edp[0])
    coordinates = [{**grid.dense(q), **grid.expert(q)} for q in range(stage)]
    wanted: dict[str, tuple[int, int, tuple[str, ...]]] = {
        "tp": (tp, 1, ("cp", "dp_shard", "dp_replicate")),
        "cp": (cp, tp, ("tp", "dp_shard", "dp_replicate")),
        "dp_shard_cp": (int(derived.shard[0]), tp, ("tp", "dp_replicate")),
        "dp_cp": (int(derived.dp_cp[0]), tp, ("tp",)),
        "dp_replicate": (replicate, tp * cp * shard, ("tp", "cp", "dp_shard")),
        "etp": (etp, 1, ("ep", "edp")),
        "ep": (ep, etp, ("etp", "edp")),
        "edp": (edp, etp * ep, ("etp", "ep")),
        "expert_shard": (int(derived.expert_shard[0]), etp * ep, ("etp", "ep", "dp_replicate")),
    }
    for name, (group, stride, alike) in wanted.items():
        one_stage: dict[tuple[int, ...], list[int]] = {}
        for q, at in enumerate(coordinates):
            one_stage.setdefault(tuple(at[n] for n in alike), []).append(q)
        everyone = [[r + stage * i for r in members] for members in one_stage.values() for i in range(pp)]
        for members in everyone:
            assert members == [members[0] + stride * i for i in range(group)], name
        check(group, stride, domain, gpus, everyone)
    pipelines = [[q + stage * i for i in range(pp)] for q in range(stage)]
    check(pp, stage, domain, gpus, pipelines)


def check(group: int, stride: int, domain: int, gpus: int, everyone: list[list[int]]) -> None:
    """Exact where the job repeats the pattern of domains; never too hopeful where it is shorter."""
    inside, domains, _ = placed(group, stride, np.inf if gpus <= domain else domain)
    fewest, most = counted(everyone, domain)
    assert inside <= fewest
    assert domains >= most
    if gpus <= domain or gpus % lcm(domain, group * stride) == 0:
        assert inside == fewest
        assert (domains == 1) == (most == 1)


@pytest.mark.parametrize(
    ("group", "stride", "domain", "inside", "domains", "misaligned"),
    [
        (8, 1, 8, 8, 1, False),  # a node
        (64, 1, 8, 8, 8, False),  # whole nodes
        (8, 8, 8, 1, 8, False),  # one GPU of every node
        (8, 4, 8, 2, 4, False),
        (12, 1, 8, 4, 3, True),  # 8 + 4, 4 + 8
        (16, 1, 72, 8, 2, True),  # 72 is no multiple of 16
        (1, 1, 8, 1, 1, False),
        (4, 10**9, 8, 1, 4, False),
        (10**9, 10**9, 72, 1, 10**9, True),  # larger than any integer of 64 bits holds
    ],
)
def test_by_hand(group: int, stride: int, domain: int, inside: int, domains: int, misaligned: bool) -> None:
    assert placed(group, stride, domain)[:2] == (inside, domains)
    assert placed(group, stride, domain)[2] == misaligned
