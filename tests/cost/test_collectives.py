"""Collectives: bytes against a ring that moves chunks, times against closed forms and published curves, properties."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dscalc.codes import LIBRARY_ALGORITHMS
from dscalc.cost.algorithms import ALGORITHMS, OPS, placement
from dscalc.cost.collectives import CollectiveTime, algorithm_names, collective
from dscalc.records import Network
from dscalc.specs import store
from dscalc.specs.network import lower_network, plain_network, plain_protocols
from tests.cost import curves
from tests.oracles.ring import Ring

GB, MIB, GIB = 1e9, 2.0**20, 2.0**30


def cluster(name: str) -> Network:
    return lower_network(store.load_cluster(name).spec).network


def call(
    op: str,
    size: float,
    ranks: float,
    inside: float,
    domains: float,
    network: Network,
    algorithm: str | None = None,
) -> CollectiveTime:
    return collective(
        op, np.array([size]), np.array([ranks]), np.array([inside]), np.array([domains]), network, algorithm
    )


def ideal(inner: float, outer: float, gpus: float = 8.0) -> Network:
    """Two tiers without latency, efficiency 1, and no library."""
    two = cluster("dgx-a100-80g").tiers
    perfect = {"latency_s": np.zeros(1), "efficiency": np.ones(1), "oversubscription": np.ones(1)}
    rates = (np.array([inner]), np.array([outer]))
    sizes = (np.array([gpus]), np.array([np.inf]))
    tiers = tuple(
        replace(tier, bandwidth_bytes_per_s=rate, gpus=size, peer_bytes_per_s=np.array([np.inf]), **perfect)
        for tier, rate, size in zip(two, rates, sizes, strict=True)
    )
    return Network("ideal", tiers, plain_protocols())


def name_of(found: CollectiveTime) -> str:
    return ALGORITHMS[int(found.algorithm[0])].name


# --- bytes, counted by moving ---
@pytest.mark.parametrize("ranks", range(2, 65))
@pytest.mark.parametrize("spare", [0, 1, 7])
def test_a_ring_that_moves_chunks_sends_what_the_formula_says(ranks: int, spare: int) -> None:
    elements = 4 * ranks + spare
    ring = Ring([np.full(elements, float(rank)) for rank in range(ranks)])
    results = ring.all_reduce(mean=False)
    assert all(np.array_equal(result, np.full(elements, ranks * (ranks - 1) / 2)) for result in results)
    assert ring.steps == 2 * (ranks - 1)
    size = float(elements * 8)
    found = call("all-reduce", size, ranks, ranks, 1, plain_network(GB))
    # all ranks together exactly; each exactly where the chunks are equal
    assert sum(ring.sent_bytes) == 2 * (ranks - 1) * elements * 8
    assert found.traffic_bytes[0] * ranks == pytest.approx(sum(ring.sent_bytes), rel=1e-14)
    if elements % ranks == 0:
        assert set(ring.sent_bytes) == {2 * (ranks - 1) * elements * 8 // ranks}
        assert found.traffic_bytes[0] == pytest.approx(ring.sent_bytes[0], rel=1e-15)
    else:
        assert max(ring.sent_bytes) - min(ring.sent_bytes) <= 2 * 8


def test_the_mean_of_two_workers_and_not_their_sum() -> None:
    gradients = [np.array([0.4, -0.2]), np.array([0.8, 0.6])]
    for result in Ring(gradients).all_reduce(mean=True):
        assert result == pytest.approx([0.6, 0.2])
    for result in Ring(gradients).all_reduce(mean=False):
        assert result != pytest.approx([0.6, 0.2])
        assert result == pytest.approx([1.2, 0.4])


@pytest.mark.parametrize(
    ("op", "ranks", "share"),
    [
        ("all-reduce", 2, 1.0),
        ("all-reduce", 32, 1.9375),
        ("all-gather", 8, 7 / 8),
        ("reduce-scatter", 8, 7 / 8),
        ("all-to-all", 8, 7 / 8),
        ("broadcast", 8, 1.0),
        ("send-recv", 2, 1.0),
    ],
)
def test_traffic_of_one_rank(op: str, ranks: int, share: float) -> None:
    found = call(op, 14e9, ranks, ranks, 1, plain_network(50 * GB))
    assert found.traffic_bytes[0] == 14e9 * share
    assert found.time_s[0] == pytest.approx(14e9 * share / (50 * GB), rel=1e-15)


# --- closed forms ---
@pytest.mark.parametrize("ranks", [2, 3, 8, 32, 100, 4096])
def test_one_tier_is_the_closed_form(ranks: int) -> None:
    size, rate, alpha = 14e9, 50 * GB, 5e-6
    ring = 2 * (ranks - 1) / ranks * size / rate
    assert call("all-reduce", size, ranks, ranks, 1, plain_network(rate)).time_s[0] == pytest.approx(ring, rel=1e-15)
    timed = plain_network(rate, alpha)
    assert call("all-reduce", size, ranks, ranks, 1, timed).time_s[0] == pytest.approx(
        2 * (ranks - 1) * alpha + ring, rel=1e-14
    )
    assert call("all-gather", size, ranks, ranks, 1, timed).time_s[0] == pytest.approx(
        (ranks - 1) * alpha + ring / 2, rel=1e-14
    )
    tree = call("all-reduce", size, ranks, ranks, 1, timed, "tree").time_s[0]
    assert tree == pytest.approx(2 * np.log2(ranks) * alpha + 2 * size / rate, rel=1e-12)
    naive = call("all-reduce", size, ranks, ranks, 1, plain_network(rate), "naive").time_s[0]
    assert naive == pytest.approx(2 * (ranks - 1) * size / rate, rel=1e-15)
    assert naive == pytest.approx(ranks * ring, rel=1e-14)
    if ranks & (ranks - 1) == 0:
        halving = call("all-reduce", size, ranks, ranks, 1, timed, "halving-doubling").time_s[0]
        assert halving == pytest.approx(2 * np.log2(ranks) * alpha + ring, rel=1e-12)


def test_a_ring_over_domains_uses_every_gpus_share_of_the_network() -> None:
    # 64 GPUs in 8 domains of 8, 300 GB/s inside, 25 GB/s a GPU outside: the node's 200 GB/s bind, not one GPU's 25
    size, wired = 1e9, ideal(300 * GB, 25 * GB)
    found = call("all-reduce", size, 64, 8, 8, wired, "ring")
    assert found.time_s[0] == pytest.approx(2 * 63 / 64 * size / (200 * GB), rel=1e-14)
    assert found.tier[0] == 1
    # with one member a domain there is nobody to help
    alone = call("all-reduce", size, 8, 1, 8, wired, "ring").time_s[0]
    assert alone == pytest.approx(2 * 7 / 8 * size / (25 * GB), rel=1e-14)
    # the inside binds: a ring that leaves has one hop in eight outside
    slow = call("all-reduce", size, 64, 8, 8, ideal(100 * GB, 25 * GB), "ring").time_s[0]
    assert slow == pytest.approx(2 * 63 / 64 * size * 7 / 8 / (100 * GB), rel=1e-14)


def test_hierarchical_and_halving_doubling_over_domains() -> None:
    size, wired = 1e9, ideal(300 * GB, 25 * GB)
    inside, outside = 2 * 7 / 8 * size / (300 * GB), 2 * 7 / 8 * (size / 8) / (25 * GB)
    hierarchical = call("all-reduce", size, 64, 8, 8, wired, "hierarchical")
    assert hierarchical.time_s[0] == pytest.approx(max(inside, outside), rel=1e-14)
    assert hierarchical.traffic_bytes[0] == pytest.approx(2 * 63 / 64 * size, rel=1e-15)
    halving = call("all-reduce", size, 64, 8, 8, wired, "halving-doubling")
    assert halving.time_s[0] == pytest.approx(inside + outside, rel=1e-14)
    tree = {n: call("all-reduce", size, 8 * n, 8, n, wired, "tree").time_s[0] for n in (2, 4, 64)}
    assert tree[2] == pytest.approx(max(2 * size / (300 * GB), size / (200 * GB)), rel=1e-14)
    assert tree[4] == tree[64] == pytest.approx(2 * size / (200 * GB), rel=1e-14)


def test_all_to_all_and_messages_get_no_help_from_the_node() -> None:
    size, wired = 1e9, ideal(300 * GB, 25 * GB)
    exchange = call("all-to-all", size, 64, 8, 8, wired)
    assert exchange.time_s[0] == pytest.approx(56 / 64 * size / (25 * GB), rel=1e-14)
    assert exchange.traffic_bytes[0] == 63 / 64 * size
    inner = call("all-to-all", size, 8, 8, 1, wired)
    assert inner.time_s[0] == pytest.approx(7 / 8 * size / (300 * GB), rel=1e-14)
    assert call("send-recv", size, 2, 2, 1, wired).time_s[0] == pytest.approx(size / (300 * GB), rel=1e-15)
    assert call("send-recv", size, 2, 1, 2, wired).time_s[0] == pytest.approx(size / (25 * GB), rel=1e-15)


def test_a_mesh_gives_one_link_to_each_peer() -> None:
    board = cluster("hgx-mi300x-roce")
    size = 4 * GIB
    rates = [
        2 * (m - 1) / m * size / call("all-reduce", size, m, m, 1, board, "ring").time_s[0] / GB for m in (2, 4, 8)
    ]
    assert rates == pytest.approx([64 * 0.705, 3 * 64 * 0.705, 448 * 0.705], rel=0.01)
    assert call("send-recv", size, 2, 2, 1, board).time_s[0] > size / (64 * GB)


def test_three_tiers() -> None:
    box = cluster("a100-pcie-8x")
    assert [tier.name for tier in box.tiers] == ["bridge", "node", "network"]
    size = 1e9

    def timed(op: str, ranks: float, inside: list[float], domains: list[float]) -> CollectiveTime:
        rows = [np.array([[x] for x in row]) for row in (inside, domains)]
        return collective(op, np.array([size]), np.array([ranks]), rows[0], rows[1], box)

    pair, node, two = (
        timed("all-gather", 2, [2, 2], [1, 1]),
        timed("all-gather", 8, [2, 8], [4, 1]),
        timed("all-gather", 16, [2, 8], [8, 2]),
    )
    assert [int(found.tier[0]) for found in (pair, node, two)] == [0, 1, 2]
    assert pair.time_s[0] < node.time_s[0] < two.time_s[0]
    # in the node each pair has two PCIe links to the next one, and every second hop stays on the bridge
    assert node.time_s[0] == pytest.approx(7 / 8 * size / (2 * 31.5 * GB * 0.762), rel=0.01)
    with pytest.raises(ValueError, match="3 tiers need 2 rows"):
        call("all-gather", size, 8, 8, 1, box)


def test_placement_of_a_group_over_tiers() -> None:
    place = placement(np.array([16.0]), np.array([[2.0], [8.0]]), np.array([[8.0], [2.0]]), 3)
    assert [x.tolist() for x in place.fan] == [[2.0], [4.0], [2.0]]
    assert [x.tolist() for x in place.below] == [[1.0], [2.0], [8.0]]
    assert place.last.tolist() == [2]
    steps = ALGORITHMS[0].steps(place, plain_protocols())
    assert [x.tolist() for x in steps] == [[16.0], [12.0], [2.0]]  # of 30


# --- reduction in the switch ---
def test_nvls_moves_the_message_once_and_sharp_is_asked_for() -> None:
    board = cluster("dgx-h100")
    big = call("all-reduce", 8 * GIB, 8, 8, 1, board)
    assert name_of(big) == "nvls"
    assert big.traffic_bytes[0] == 8 * GIB * (1 + 1 / 8)
    assert name_of(call("all-reduce", 8 * GIB, 16, 8, 2, board)) == "nvls-tree"
    assert name_of(call("all-reduce", 8 * GIB, 64, 8, 8, board)) == "ring"
    assert name_of(call("all-reduce", 8 * GIB, 64, 8, 8, board, "sharp")) == "sharp"
    assert name_of(call("all-reduce", 8 * GIB, 64, 8, 8, cluster("coreweave-h100"))) == "sharp"
    assert name_of(call("all-reduce", 8 * GIB, 8, 8, 1, cluster("dgx-a100-80g"))) == "ring"
    assert name_of(call("all-gather", 8 * GIB, 8, 8, 1, board)) == "ring"
    assert name_of(call("all-reduce", 8.0, 64, 8, 8, board)) == "tree"


def test_a_forced_algorithm_that_cannot_run_gives_way_and_says_so() -> None:
    board = cluster("dgx-a100-80g")
    assert name_of(call("all-reduce", 1e9, 8, 8, 1, board, "nvls")) == "ring"
    assert name_of(call("all-reduce", 1e9, 12, 6, 2, board, "halving-doubling")) in ("ring", "tree")
    assert name_of(call("all-reduce", 1e9, 16, 8, 2, board, "naive")) == "naive"
    assert (
        call("all-reduce", 1e9, 16, 8, 2, board, "naive").time_s[0]
        > 4 * call("all-reduce", 1e9, 16, 8, 2, board).time_s[0]
    )


def test_names_and_refusals() -> None:
    assert algorithm_names("all-reduce")[0] == "ring"
    assert {row.op for row in ALGORITHMS} == set(OPS)
    assert {row.constants for row in ALGORITHMS} <= set(LIBRARY_ALGORITHMS)
    assert len({(row.op, row.name) for row in ALGORITHMS}) == len(ALGORITHMS)
    with pytest.raises(ValueError, match="no collective 'allreduce'"):
        call("allreduce", 1.0, 2, 2, 1, plain_network(GB))
    with pytest.raises(ValueError, match="no algorithm 'tree' for all-gather"):
        call("all-gather", 1.0, 2, 2, 1, plain_network(GB), "tree")


def test_outside_the_measured_range_is_said() -> None:
    board = cluster("dgx-h100")
    assert not call("all-reduce", GIB, 64, 8, 8, board).extrapolated[0]
    assert call("all-reduce", 64 * GIB, 64, 8, 8, board).extrapolated[0]
    assert call("all-reduce", GIB, 16384, 8, 2048, board).extrapolated[0]
    assert not call("all-reduce", 64 * GIB, 16384, 8, 2048, plain_network(GB)).extrapolated[0]


# --- published curves ---
def test_large_messages_are_within_the_promise() -> None:
    large = [p for p in curves.points() if p.message_bytes >= curves.LARGE_BYTES]
    assert len(large) > 150
    for chosen in (large, [p for p in large if not p.calibrates]):
        errors = np.abs([p.error for p in chosen])
        assert np.median(errors) < 0.10
        assert np.quantile(errors, 0.9) < 0.25


def test_small_messages_are_within_the_promise() -> None:
    small = [p for p in curves.points() if p.message_bytes <= curves.SMALL_BYTES]
    assert len(small) > 25
    assert np.median([p.ratio for p in small if not p.calibrates]) < 1.5


def test_each_table_of_many_nodes_keeps_its_shape() -> None:
    b200 = [p for p in curves.points() if p.row["source"].startswith("B200 cluster report")]
    assert len(b200) > 40
    assert np.median(np.abs([p.error for p in b200])) < 0.05
    for p in b200:
        assert p.ran == p.row["algorithm"]


def test_latency_grows_by_ten_microseconds_a_doubling() -> None:
    wired = cluster("alps-gh200")
    times = [call("all-reduce", 8.0, 4 * n, 4, n, wired).time_s[0] for n in (4, 8, 16, 32, 64)]
    assert np.diff(times) == pytest.approx([10e-6] * 4, rel=1e-6)


def test_the_page_shows_what_the_model_gives() -> None:
    text = curves.PAGE.read_text(encoding="utf-8")
    assert curves.page(text) == text, "run python -m tests.cost.curves"


# --- properties ---
NETWORKS = ["dgx-a100-80g", "dgx-h100", "gb200-nvl72", "alps-gh200", "hgx-mi300x-roce", "gcp-tpu-v4", "azure-nd40rs_v2"]
SIZES = st.floats(1.0, 2.0**36)


@given(op=st.sampled_from(OPS), name=st.sampled_from(NETWORKS), sizes=st.tuples(SIZES, SIZES), data=st.data())
def test_time_grows_with_the_message_and_never_beats_the_wire(
    op: str, name: str, sizes: tuple[float, float], data: st.DataObject
) -> None:
    wired = curves.network(name)
    inside = data.draw(st.sampled_from([1.0, 2.0, 4.0]))
    domains = data.draw(st.integers(1, 300))
    ranks = inside * domains
    algorithm = data.draw(st.sampled_from([None, *algorithm_names(op)]))
    small, large = (call(op, size, ranks, inside, domains, wired, algorithm) for size in sorted(sizes))
    if ranks == 1.0:
        assert small.time_s[0] == small.traffic_bytes[0] == 0.0
        assert small.algorithm[0] == -1
        return
    assert 0.0 < small.time_s[0] <= large.time_s[0]
    assert np.isfinite(large.time_s[0])
    # whatever crosses a domain's edge must cross it: the members' shares together, at the wire rate
    outer = float(wired.tiers[1].bandwidth_bytes_per_s[0]) * inside
    least = {"all-to-all": inside * (ranks - inside) / ranks, "send-recv": 1.0}.get(op, (domains - 1.0) / domains)
    if domains > 1.0 and op != "send-recv":
        assert large.time_s[0] >= max(sizes) * least / outer * (1 - 1e-12)
    assert large.traffic_bytes[0] > 0.0


@given(
    op=st.sampled_from(OPS),
    name=st.sampled_from(NETWORKS),
    rows=st.lists(st.tuples(SIZES, st.sampled_from([1.0, 2.0, 4.0]), st.integers(1, 300)), min_size=1, max_size=19),
)
def test_a_column_is_its_rows_to_the_bit(op: str, name: str, rows: list[tuple[float, float, int]]) -> None:
    wired = curves.network(name)
    sizes, inside, domains = (np.array(x, dtype=np.float64) for x in zip(*rows, strict=True))
    together = collective(op, sizes, inside * domains, inside, domains, wired)
    for i, (size, held, spread) in enumerate(rows):
        one = call(op, size, held * spread, held, spread, wired)
        assert together.time_s[i] == one.time_s[0]
        assert together.traffic_bytes[i] == one.traffic_bytes[0]
        assert together.algorithm[i] == one.algorithm[0]
        assert together.tier[i] == one.tier[0]


def test_networks_as_rows() -> None:
    """Elasticities are rows of one network: its arrays may be as long as the groups."""
    board = cluster("dgx-h100")
    outer = replace(board.tiers[1], bandwidth_bytes_per_s=np.array([50.0, 100.0]) * GB)
    rows = replace(board, tiers=(board.tiers[0], outer))
    found = collective("all-reduce", np.full(2, GIB), np.full(2, 64.0), np.full(2, 8.0), np.full(2, 8.0), rows, "ring")
    single = [
        call(
            "all-reduce",
            GIB,
            64,
            8,
            8,
            replace(board, tiers=(board.tiers[0], replace(outer, bandwidth_bytes_per_s=np.array([rate * GB])))),
            "ring",
        )
        for rate in (50.0, 100.0)
    ]
    assert found.time_s.tolist() == [float(x.time_s[0]) for x in single]
