"""Interconnects, tiers and libraries: every file lowers, and the usual mistakes of planners are not made."""

from __future__ import annotations

import csv
import json
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dscalc.codes import LIBRARY_ALGORITHMS, LINKS, PROTOCOLS
from dscalc.errors import InputError, ProfileError, UnknownNameError
from dscalc.specs import network, store
from dscalc.specs.cluster import ClusterSpec
from dscalc.units import unit_dimension

INTERCONNECTS = store.interconnect_ids()
CLUSTERS = store.cluster_ids()
GB = 1e9


def cluster(name: str) -> ClusterSpec:
    return store.load_cluster(name).spec


def lowered(name: str) -> network.Lowered:
    return network.lower_network(cluster(name))


# --- every file ---


@pytest.mark.parametrize("name", INTERCONNECTS)
def test_interconnect_file_is_complete(name: str) -> None:
    found = store.load_interconnect(name)
    spec = found.spec
    assert spec.id == name == found.path.stem
    assert 1 * GB < spec.bytes_per_s <= 1800 * GB
    assert 1e-7 < spec.latency.base < 1e-3
    least = 0.1 if spec.efficiency.kind == "fitted" else 0.4  # a training run may get far less than a benchmark
    assert least < spec.efficiency.base <= 1.0
    assert (spec.per == "GPU") == (spec.scope == "scale-up")
    if spec.peer_bandwidth is not None:
        assert spec.peer_bandwidth.base < spec.bytes_per_s
    for gpu in spec.gpus:
        part = store.load_gpu(gpu).spec
        assert part.id == gpu, "an interconnect names GPUs by exact id"
        if part.scaleup_bytes_per_s is not None and name != "neuronlink-v3":
            assert part.scaleup_bytes_per_s == spec.bytes_per_s


def test_no_gpu_has_two_scale_up_links_and_no_name_two_owners() -> None:
    gpus = [gpu for name in INTERCONNECTS for gpu in store.load_interconnect(name).spec.gpus]
    assert len(set(gpus)) == len(gpus)
    names = [
        store.fold_name(text)
        for name in INTERCONNECTS
        for spec in [store.load_interconnect(name).spec]
        for text in (spec.id, *(alias.name for alias in spec.aliases))
    ]
    assert len(set(names)) == len(names)


def test_every_gpu_with_a_scale_up_link_has_an_interconnect() -> None:
    owned = {gpu for name in INTERCONNECTS for gpu in store.load_interconnect(name).spec.gpus}
    for gpu in store.gpu_ids():
        if store.load_gpu(gpu).spec.scaleup_bytes_per_s is not None:
            assert gpu in owned, gpu


def test_the_names_people_type_exist() -> None:
    wanted = (
        "nvlink2 nvlink3 nvlink4 nvlink5 nvlink3-bridge pcie3 pcie4 pcie5 pcie6 xgmi-mi250x xgmi-mi300x xgmi-mi350x"
    )
    wanted += " ib-edr ib-hdr ib-ndr ib-xdr roce-100g roce-200g roce-400g efa-v1 efa-v2 efa-v3 efa-v4 ethernet-10g"
    wanted += " ethernet-25g ethernet-40g ethernet-100g ethernet-400g slingshot-200g tpu-ici-v5p gaudi2 gaudi3"
    assert set(wanted.split()) <= set(INTERCONNECTS)
    assert store.load_interconnect("NDR").spec.id == "ib-ndr"
    assert store.load_interconnect("roce_400g").spec.id == "roce-400g"


@pytest.mark.parametrize("name", CLUSTERS)
def test_every_cluster_lowers(name: str) -> None:
    spec = cluster(name)
    found = network.lower_network(spec)
    tiers = found.network.tiers
    assert spec.tiers
    assert len(tiers) >= 2
    sizes = [float(tier.gpus[0]) for tier in tiers]
    assert sizes == sorted(sizes)
    assert sizes[-1] == np.inf
    rates = [float(tier.bandwidth_bytes_per_s[0]) for tier in tiers]
    assert rates == sorted(rates, reverse=True), "inner links are faster"
    for tier in tiers:
        assert tier.oversubscription[0] >= 1.0
        assert 0.0 < tier.efficiency[0] <= 1.0
        assert tier.latency_s[0] > 0.0
    named = spec.gpus_in_scaleup_domain
    if named is not None and named > 1:
        assert sizes[0] == named
    if spec.gpus_in_node > 1:
        assert sizes[0] > 1.0
    for note in found.notes:
        assert note.kind in {"datasheet", "measured", "fitted", "assumed"}
        assert len(note.source) > 2
        assert note.source != "assumed"


# --- traps ---

NODE_RATES = [  # (cluster, GB/s of a node, of one GPU, figures in circulation that are wrong)
    ("dgx-h100", 400.0, 50.0, (400.0, 3200.0)),  # bits for bytes, node for GPU
    ("dgx-a100-80g", 200.0, 25.0, (200.0,)),
    ("dgx-b200", 400.0, 50.0, (100.0,)),  # CX-8 is another machine
    ("aws-p4d.24xlarge", 50.0, 6.25, (12.5, 400.0)),  # two GPUs share a NIC
    ("gcp-a3-highgpu-8g", 100.0, 12.5, (15.625,)),  # 1,000 Gb/s counts the front-end NIC
    ("gcp-a3-megagpu-8g", 200.0, 25.0, (28.125,)),
    ("gb200-nvl72", 200.0, 50.0, (100.0,)),
    ("gb300-nvl72", 400.0, 100.0, (50.0,)),
]


@pytest.mark.parametrize(("name", "node", "gpu", "wrong"), NODE_RATES)
def test_network_share_of_one_gpu(name: str, node: float, gpu: float, wrong: tuple[float, ...]) -> None:
    outer = lowered(name).network.tiers[-1]
    assert outer.bandwidth_bytes_per_s[0] == gpu * GB
    assert outer.bandwidth_bytes_per_s[0] * cluster(name).gpus_in_node == node * GB
    assert outer.bandwidth_bytes_per_s[0] not in [figure * GB for figure in wrong]


@pytest.mark.parametrize(
    ("name", "right"), [("dgx-a100-80g", 300), ("dgx-h100", 450), ("dgx-b200", 900), ("hgx-mi300x-roce", 448)]
)
def test_links_inside_are_one_direction(name: str, right: float) -> None:
    assert lowered(name).network.tiers[0].bandwidth_bytes_per_s[0] == right * GB


def test_a_rack_is_not_a_node_and_gb200_is_not_b200() -> None:
    rack, board = lowered("gb200-nvl72").network, lowered("dgx-b200").network
    assert (rack.tiers[0].gpus[0], board.tiers[0].gpus[0]) == (72.0, 8.0)
    assert cluster("gb200-nvl72").gpus_in_node == 4
    assert cluster("gb200-nvl72").gpu != cluster("dgx-b200").gpu
    assert rack.tiers[0].reduction_efficiency[0] < board.tiers[0].reduction_efficiency[0]
    assert cluster("dgx-h100").rails == 8


def test_the_version_of_efa_says_nothing_of_the_rate() -> None:
    for version in ("v1", "v2", "v3", "v4"):
        spec = store.load_interconnect(f"efa-{version}").spec
        assert spec.bandwidth.kind == "assumed"
        assert any("says nothing of the rate" in note for note in spec.notes)
    totals = {
        name: cluster(name).node_scaleout_bytes_per_s for name in ("aws-p6-b200.48xlarge", "aws-p6-b300.48xlarge")
    }
    assert totals["aws-p6-b300.48xlarge"] == 2 * (totals["aws-p6-b200.48xlarge"] or 0)


def test_reduction_in_a_switch_needs_the_switch() -> None:
    for name, has in (("dgx-h100", True), ("dgx-a100-80g", False), ("alps-gh200", False), ("hgx-mi300x-roce", False)):
        assert bool(lowered(name).network.tiers[0].reduction_efficiency[0] > 0.0) == has
    assert lowered("coreweave-h100").network.tiers[-1].reduces[0] == 1.0
    assert lowered("dgx-h100").network.tiers[-1].reduces[0] == 0.0, "SHARP is off unless asked for"


def test_a_mesh_has_one_link_to_each_peer() -> None:
    assert lowered("hgx-mi300x-roce").network.tiers[0].peer_bytes_per_s[0] == 64 * GB
    assert lowered("dgx-h100").network.tiers[0].peer_bytes_per_s[0] == np.inf


def test_a_node_of_one_gpu_is_its_own_domain() -> None:
    tiers = lowered("lambda-gh200").network.tiers
    assert [tier.gpus[0] for tier in tiers] == [1.0, np.inf]


# --- by hand ---


def test_a_rate_by_hand() -> None:
    found = network.load_interconnect("400Gb/s")
    assert found.spec.bytes_per_s == 50 * GB
    assert found.spec.latency.kind == found.spec.efficiency.kind == "assumed"
    assert found.assumption
    assert network.load_interconnect("50 GB/s").spec.bytes_per_s == 50 * GB
    assert network.load_interconnect("ib-ndr").spec.id == "ib-ndr"
    with pytest.raises(UnknownNameError, match="did you mean ib-ndr"):
        network.load_interconnect("ib-ndx")
    with pytest.raises(InputError, match="rate of zero"):
        network.load_interconnect("0GB/s")


def test_a_node_composed_by_hand() -> None:
    h100, a100 = (store.load_gpu(name).spec for name in ("H100", "A100-SXM4-80GB"))
    ndr = network.load_interconnect("ib-ndr").spec
    made = network.compose_network(h100, 8, ndr)
    shipped = lowered("dgx-h100").network
    for mine, theirs in zip(made.network.tiers, shipped.tiers, strict=True):
        for field in ("gpus", "bandwidth_bytes_per_s", "latency_s", "efficiency", "reduction_efficiency", "link"):
            assert getattr(mine, field) == pytest.approx(getattr(theirs, field), nan_ok=True), field
    assert {note.name for note in made.notes if note.kind == "assumed"} >= {"network/bandwidth", "node/bandwidth"}
    assert any("one NIC for each GPU" in note.source for note in made.notes)
    # fewer NICs than GPUs; a cluster says how many it has
    assert network.compose_network(a100, 4, ndr, nics_per_node=2).network.tiers[-1].bandwidth_bytes_per_s[0] == 25 * GB
    p4d = cluster("aws-p4d.24xlarge")
    swapped = network.compose_network(a100, None, ndr, cluster=p4d).network.tiers
    assert swapped[-1].bandwidth_bytes_per_s[0] == 4 * 50 * GB / 8
    assert swapped[0].gpus[0] == 8.0
    # cards without a scale-up link meet over PCIe, bridged pairs too once there are more than two
    for name, count, link in (("RTX-4090", 8, "pcie"), ("H100-PCIe-80GB", 4, "pcie"), ("H100-PCIe-80GB", 2, "nvlink")):
        tier = network.compose_network(store.load_gpu(name).spec, count, ndr).network.tiers[0]
        assert LINKS[int(tier.link[0])] == link
    with pytest.raises(InputError, match="joins the GPUs of one node"):
        network.compose_network(h100, 8, network.load_interconnect("nvlink4").spec)


@pytest.mark.parametrize(
    ("change", "rate", "efficiency", "starred"),
    [
        ({}, 450, 0.824, False),  # a copy under another name
        ({"scaleup_bandwidth": 400}, 400, 0.824, False),  # its own rate, the sister's efficiency
        ({"scaleup_link": "NVLink3", "scaleup_bandwidth": 300}, 300, 0.8, False),  # the generation it names
        ({"scaleup_link": "NVLink4 x8 of ours", "scaleup_bandwidth": 200}, 200, 0.824, False),
        ({"scaleup_link": "Wires", "scaleup_bandwidth": 123}, 123, 0.824, True),  # nothing known of it
        ({"scaleup_link": "nvlink3", "scaleup_bandwidth": None}, 300, 0.8, False),  # a name, no rate
        ({"scaleup_link": "none", "scaleup_bandwidth": None}, 63, None, False),  # PCIe
        ({"id": "H100-SXM5-80GB", "scaleup_bandwidth": 225}, 225, 0.824, False),  # a shipped id, another rate
    ],
)
def test_a_profile_of_the_user_keeps_its_scale_up_link(
    tmp_path: Path, change: dict[str, Any], rate: float, efficiency: float | None, starred: bool
) -> None:
    """A GPU that no interconnect file lists was given PCIe inside a node, whatever its profile said."""
    data = json.loads((store.profile_root() / "gpus" / "H100-SXM5-80GB.json").read_text(encoding="utf-8"))
    data |= {"id": "Mine", "aliases": []} | {name: change[name] for name in change if name != "scaleup_bandwidth"}
    if "scaleup_bandwidth" in change:
        data["scaleup_bandwidth"] = {**data["scaleup_bandwidth"], "value": change["scaleup_bandwidth"]}
        if change["scaleup_bandwidth"] is None:
            del data["scaleup_bandwidth"]
    file = tmp_path / "mine.json"
    file.write_text(json.dumps(data), encoding="utf-8")
    mine = store.load_gpu(data["id"], [file]).spec
    made = network.compose_network(mine, 8, network.load_interconnect("ib-ndr").spec, profiles=[file])
    inner = made.network.tiers[0]
    assert inner.bandwidth_bytes_per_s[0] == rate * GB
    assert efficiency is None or inner.efficiency[0] == pytest.approx(efficiency)
    kinds = {note.name: note.kind for note in made.notes}
    assert (kinds["node/efficiency"] == "assumed") == starred


# --- libraries ---


def test_constants_of_libraries_follow_the_maker() -> None:
    def of(gpu: str) -> Any:
        return network.protocols_of(store.load_gpu(gpu).spec)[0]

    assert of("H100").algorithms == ("ring", "tree", "nvls", "nvls-tree", "sharp")
    assert of("MI300X").algorithms == ("ring", "tree")
    assert of("TPU-v5p").name == "plain"
    ll = PROTOCOLS.index("LL")
    ceilings = [of(name).ceiling_bytes_per_s[ll, 0] / GB for name in ("V100", "A100", "H100", "B200-SXM6")]
    assert ceilings == [39.0, 87.7, 141.0, 282.0]
    assert (of("V100").plateau, of("A100").plateau) == (1.9, 1.4)
    pcie = network.compose_network(store.load_gpu("L40S").spec, 8, network.load_interconnect("ib-ndr").spec)
    assert not pcie.network.protocols.bus[:, PROTOCOLS.index("LL128")].any(), "LL128 is for NVLink"
    tree, ring = LIBRARY_ALGORITHMS.index("tree"), LIBRARY_ALGORITHMS.index("ring")
    net = of("H100").hop_s[LINKS.index("network")]
    assert net[tree].tolist() == pytest.approx([5e-6, 8.5e-6, 14e-6])
    assert net[ring].tolist() == pytest.approx([2.7e-6, 4e-6, 14e-6])


def _records(node: Any) -> list[dict[str, Any]]:
    if isinstance(node, dict):
        return [node] if "value" in node else [record for value in node.values() for record in _records(value)]
    return []


def test_every_constant_has_unit_kind_and_source(repository: Path) -> None:
    table = tomllib.loads((repository / "dscalc" / "specs" / "nccl.toml").read_text(encoding="utf-8"))
    records = _records(table)
    assert len(records) > 40
    for record in records:
        assert unit_dimension(record["unit"])
        assert record["kind"] in {"datasheet", "measured", "fitted", "assumed"}
        assert len(record["source"]) > 4
        assert (record["kind"] == "fitted") == ("n" in record)


def test_a_plain_network_has_no_constants() -> None:
    plain = network.plain_network(50 * GB, 5e-6)
    assert plain.protocols.base_s.any() == plain.protocols.hop_s.any() == False  # noqa: E712
    assert plain.tiers[0].latency_s[0] == 5e-6


# --- files of users ---


def _write(path: Path, change: dict[str, Any]) -> Path:
    source = json.loads((store.profile_root() / "clusters" / "dgx-h100.json").read_text(encoding="utf-8"))
    path.write_text(json.dumps({**source, "id": "mine", "aliases": [], **change}), encoding="utf-8")
    return path


def test_tiers_that_do_not_nest_are_refused(tmp_path: Path) -> None:
    inner, outer = json.loads((store.profile_root() / "clusters" / "dgx-h100.json").read_text(encoding="utf-8"))[
        "tiers"
    ]

    def number(value: float, unit: str = "count") -> dict[str, Any]:
        return {"value": value, "unit": unit, "kind": "assumed", "source": "a test"}

    pod = {**outer, "name": "pod", "gpus": number(256)}
    good = _write(tmp_path / "good.json", {"tiers": [inner, pod, {**outer, "oversubscription": number(4)}]})
    tiers = network.lower_network(store.load_cluster("mine", [good]).spec, [good]).network.tiers
    assert [tier.gpus[0] for tier in tiers] == [8.0, 256.0, np.inf]
    assert tiers[-1].oversubscription[0] == 4.0
    usable = {**inner, "gpus": number(4), "usable_of": 8}
    fewer = _write(tmp_path / "fewer.json", {"tiers": [usable, outer]})
    assert network.lower_network(store.load_cluster("mine", [fewer]).spec, [fewer]).network.tiers[0].gpus[0] == 4.0
    for change, message in (
        ([inner], "the last"),
        ([inner, inner, outer], "do not join whole domains"),
        ([inner, {**pod, "gpus": number(12)}, outer], "do not join whole domains"),
        ([{**inner, "gpus": number(4)}, outer], "scaleup_domain_gpus says 8"),
        ([{**inner, "bandwidth": number(900, "GB/s")}, outer], "is not intra_bandwidth"),
        ([inner, {**outer, "bandwidth": number(400, "GB/s")}], "is not scaleout_bandwidth"),
        ([inner, {**outer, "oversubscription": number(0.5)}], "1 or more"),
        ([{**inner, "bandwidth": number(450, "GB")}, outer], "measures bytes"),
    ):
        broken = _write(tmp_path / "broken.json", {"tiers": change})
        with pytest.raises(ProfileError, match=message):
            store.load_cluster("mine", [broken])


def test_a_cluster_without_tiers_gets_them_from_its_flat_fields(tmp_path: Path) -> None:
    mine = _write(tmp_path / "mine.json", {"tiers": []})
    tiers = network.lower_network(store.load_cluster("mine", [mine]).spec, [mine]).network.tiers
    assert [float(tier.bandwidth_bytes_per_s[0]) for tier in tiers] == [450 * GB, 50 * GB]


# --- against a public table ---


@pytest.mark.shared
def test_tiers_agree_with_the_table(shared_data: Path) -> None:
    path = shared_data / "nodes.csv"
    if not path.exists():
        pytest.skip("no nodes.csv")
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= 58
    for row in rows:
        tiers = lowered(row["name"]).network.tiers
        if row["scaleout_uni_GBps_per_gpu"]:
            assert tiers[-1].bandwidth_bytes_per_s[0] == float(row["scaleout_uni_GBps_per_gpu"]) * GB, row["name"]
        domain = float(row["scaleup_domain_gpus"] or 0)
        if domain > 1:
            assert tiers[0].gpus[0] == domain, row["name"]
            if row["intra_uni_GBps_per_gpu"] and len(tiers) == 2:
                assert tiers[0].bandwidth_bytes_per_s[0] == float(row["intra_uni_GBps_per_gpu"]) * GB, row["name"]
