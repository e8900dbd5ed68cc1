"""Shipped hardware profiles: their numbers against hand calculations, against a public table, against known traps."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path

import pytest

from dscalc.errors import InputError
from dscalc.specs import store
from dscalc.specs.cluster import ClusterSpec
from dscalc.specs.hardware import DTYPES, GpuSpec, Quantity

GPUS = store.gpu_ids()
CLUSTERS = store.cluster_ids()
TERA, GIGA, MIB = 1e12, 1e9, 2**20

# The one part whose name in the table is not fit for a file name.
RENAMED = {"MI250X (per OAM, 2 GCDs)": "MI250X-OAM"}


def gpu(name: str) -> GpuSpec:
    return store.load_gpu(name).spec


def cluster(name: str) -> ClusterSpec:
    return store.load_cluster(name).spec


# ------------------------------------------------------------------------------------------------------- every file
@pytest.mark.parametrize("name", GPUS)
def test_gpu_file_is_complete(name: str) -> None:
    found = store.load_gpu(name)
    spec = found.spec
    assert found.assumption is None
    assert spec.id == name == found.path.stem
    assert spec.dtypes
    assert spec.memory_bandwidth_bytes_per_s is not None
    if spec.usable_bytes is None:
        assert any("fit cannot be decided" in note for note in spec.notes)
    else:
        # "80 GB" may mean GiB (7.4% more), and a part keeps some back; TPU v5p shows 95.74 GiB of its "95 GB"
        assert spec.marketing_bytes is not None
        assert 0.91 < spec.usable_bytes / spec.marketing_bytes < 1.09
    for dtype in DTYPES:
        if (measured := spec.matmul_flop_per_s(dtype)) is not None:
            assert 0.4 * spec.peak_flop_per_s(dtype) < measured < spec.peak_flop_per_s(dtype)


@pytest.mark.parametrize("name", CLUSTERS)
def test_cluster_file_is_complete(name: str) -> None:
    found = store.load_cluster(name)
    spec = found.spec
    part = gpu(spec.gpu)
    assert spec.id == name == found.path.stem
    assert part.id == spec.gpu, "a cluster names its GPU by exact id"
    if spec.scaleout_bytes_per_s and spec.intra_bytes_per_s:
        assert spec.scaleout_bytes_per_s < spec.intra_bytes_per_s
    for fact in spec.busbw:
        assert fact.busbw_bytes_per_s < 2 * (part.scaleup_bytes_per_s or 100 * GIGA)
    for price in spec.prices:
        assert price.date is not None
        assert 0.5 < spec.usd_per_gpu_hour(price) < 20


def quantities(spec: object) -> list[Quantity]:
    if isinstance(spec, Quantity):
        return [spec]
    values = spec if isinstance(spec, tuple) else vars(spec).values() if hasattr(spec, "model_fields") else ()
    return [quantity for value in values for quantity in quantities(value)]


def test_every_number_has_kind_and_source() -> None:
    records = [q for name in GPUS for q in quantities(gpu(name))] + [
        q for n in CLUSTERS for q in quantities(cluster(n))
    ]
    assert len(records) > 1000
    for record in records:
        assert record.kind in {"datasheet", "measured", "fitted", "assumed"}
        assert len(record.source) > 2
        assert math.isfinite(record.base)


def test_no_two_files_claim_one_name() -> None:
    for kind, load, ids in (("gpu", store.load_gpu, GPUS), ("cluster", store.load_cluster, CLUSTERS)):
        owner: dict[str, str] = {}
        for name in ids:
            spec = load(name).spec
            for claimed in (spec.id, *(alias.name for alias in spec.aliases)):
                other = owner.setdefault(store.fold_name(claimed), name)
                assert other == name, f"{kind} name {claimed!r} is claimed by {other} and {name}"
            assert (
                len({store.fold_name(a.name) for a in spec.aliases} | {store.fold_name(spec.id)})
                == len(spec.aliases) + 1
            )


# ------------------------------------------------------------------------------------------- peaks from units and clock
# Rate = units x fused multiply-adds per unit and clock x 2 x boost clock. Units and clocks are those of the makers'
# architecture papers; each product reproduces the sheet to its rounding.
PEAKS = [
    ("H100-SXM5-80GB", "bf16", 528, 512, 1.830),
    ("H200-SXM5-141GB", "bf16", 528, 512, 1.830),
    ("GH200-96GB", "bf16", 528, 512, 1.830),
    ("A100-SXM4-80GB", "bf16", 108, 1024, 1.410),
    ("A100-SXM4-40GB", "bf16", 108, 1024, 1.410),
    ("A800-SXM4-80GB", "bf16", 108, 1024, 1.410),
    ("A100-SXM4-80GB", "fp32", 108, 64, 1.410),
    ("V100-SXM2-32GB", "fp16", 80, 512, 1.530),
    ("T4", "fp16", 40, 512, 1.590),
    ("A10", "bf16", 72, 512, 1.695),
    ("A40", "bf16", 84, 512, 1.740),
    ("RTX-A6000", "bf16", 84, 512, 1.800),
    ("L4", "bf16", 58, 512, 2.040),
    ("L40S", "bf16", 142, 512, 2.490),
    ("L40", "bf16", 142, 256, 2.490),
    ("RTX-3090", "bf16", 82, 256, 1.695),  # GeForce: half rate when accumulating in fp32
    ("RTX-3090-Ti", "bf16", 84, 256, 1.860),
    ("RTX-4090", "bf16", 128, 256, 2.520),
    ("RTX-4090", "fp32", 128, 128, 2.520),
    ("RTX-5090", "bf16", 170, 256, 2.407),
    ("RTX-6000-Ada", "bf16", 142, 512, 2.505),
    ("RTX-PRO-6000-Blackwell-Workstation", "bf16", 188, 512, 2.617),
    ("RTX-PRO-6000-Blackwell-Server", "bf16", 188, 512, 2.430),
    ("TITAN-RTX", "fp16", 72, 512, 1.770),
    ("MI210", "bf16", 104, 512, 1.700),
    ("MI250X-OAM", "bf16", 220, 512, 1.700),
    ("MI250X-GCD", "bf16", 110, 512, 1.700),
    ("MI300X", "bf16", 304, 1024, 2.100),
    ("MI325X", "bf16", 304, 1024, 2.100),
    ("MI300X", "fp8", 304, 2048, 2.100),
    ("MI350X", "bf16", 256, 2048, 2.200),
    ("MI355X", "bf16", 256, 2048, 2.400),
    ("Gaudi3", "bf16", 8, 256 * 256, 1.600),
    ("Gaudi2", "bf16", 2, 256 * 256, 1.650),
]


@pytest.mark.parametrize(("name", "dtype", "parts", "fma_per_clock", "clock_ghz"), PEAKS)
def test_peak_follows_from_units_and_clock(
    name: str, dtype: str, parts: int, fma_per_clock: int, clock_ghz: float
) -> None:
    computed = parts * fma_per_clock * 2 * clock_ghz * GIGA
    assert gpu(name).peak_flop_per_s(dtype) == pytest.approx(computed, rel=0.004)


@pytest.mark.parametrize(("name", "mhz", "bits"), [("RTX-PRO-6000-Blackwell-Server", 12481, 512), ("A40", 7251, 384)])
def test_memory_bandwidth_follows_from_clock_and_width(name: str, mhz: int, bits: int) -> None:
    assert gpu(name).memory_bandwidth_bytes_per_s == pytest.approx(mhz * 1e6 * 2 * bits / 8, rel=0.001)


# ------------------------------------------------------------------------------------------------------------- traps
RATES = [  # (name, dtype, right [TFLOP/s], wrong figures in circulation)
    ("H100-SXM5-80GB", "bf16", 989, (1979, 1000, 1070)),
    ("H100-SXM5-80GB", "fp8", 1979, (3958,)),
    ("H200-SXM5-141GB", "bf16", 989, (1979,)),
    ("H100-PCIe-80GB", "bf16", 756, (989, 1513)),
    ("H100-PCIe-80GB", "fp8", 1513, (1979,)),
    ("H100-NVL-94GB", "bf16", 835, (989, 1671)),
    ("H20", "bf16", 148, (989, 296)),
    ("H20", "fp8", 296, (1979,)),
    ("H800-SXM5", "bf16", 989, (756,)),
    ("A10", "bf16", 125, (70,)),
    ("A10G", "bf16", 70, (125,)),
    ("L40S", "bf16", 362, (733, 181)),
    ("L40", "bf16", 181.05, (362,)),
    ("RTX-3090", "bf16", 71, (142, 285)),
    ("RTX-4090", "bf16", 165.2, (330, 660)),
    ("RTX-5090", "bf16", 209.5, (419, 838)),
    ("RTX-6000-Ada", "bf16", 364.2, (182,)),
    ("B200-SXM6", "bf16", 2250, (2500, 4500)),
    ("B200-SXM6", "fp8", 4500, (5000, 9000)),
    ("B200-SXM6", "fp4", 9000, (10000, 18000)),
    ("GB200", "bf16", 2500, (5000, 2250)),
    ("GB200", "fp8", 5000, (10000,)),
    ("GB200", "fp4", 10000, (20000,)),
    ("B300-SXM6", "bf16", 2250, (3500,)),
    ("B300-SXM6", "fp4", 13500, (15000,)),
    ("GB300", "fp4", 15000, (20000,)),
    ("Rubin", "bf16", 4000, ()),
    ("Rubin", "fp4", 35000, (50000,)),
    ("MI300X", "bf16", 1307.4, (1300, 1336)),
    ("MI325X", "fp8", 2614.9, ()),
    ("MI250X-GCD", "bf16", 191.5, (383,)),
    ("MI250X-OAM", "bf16", 383, (191.5,)),
    ("MI250X", "bf16", 191.5, (383,)),
    ("MI350X", "bf16", 2306.9, (2516.6,)),
    ("MI355X", "bf16", 2516.6, (2300,)),
    ("MI355X", "fp8", 5033.2, (10066,)),
    ("Gaudi3", "bf16", 1677, (1835,)),
    ("Gaudi3", "fp16", 459, (1677,)),
    ("TPU-v7-Ironwood", "bf16", 2307, (1153.5,)),
]


@pytest.mark.parametrize(("name", "dtype", "right", "wrong"), RATES)
def test_rate_is_the_dense_one(name: str, dtype: str, right: float, wrong: tuple[float, ...]) -> None:
    rate = gpu(name).peak_flop_per_s(dtype)
    assert rate == right * TERA
    assert rate not in [figure * TERA for figure in wrong]


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("H100-SXM5-80GB", 450),  # 900 is both directions
        ("H20", 450),
        ("H800-SXM5", 200),
        ("A800-SXM4-80GB", 200),
        ("A100-SXM4-80GB", 300),
        ("B200-SXM6", 900),
        ("Gaudi2", 262.5),  # 300 counts the ports that leave the node
        ("Gaudi3", 525),
        ("TPU-v4", 300),
        ("TPU-v5e", 200),
        ("TPU-v5p", 600),
        ("TPU-v6e", 400),
        ("TPU-v7-Ironwood", 600),
        ("Trainium2", 640),  # 1280 is both directions
        ("MI300X", 448),
    ],
)
def test_scale_up_link_is_one_direction(name: str, right: float) -> None:
    assert gpu(name).scaleup_bytes_per_s == right * GIGA


@pytest.mark.parametrize(
    ("name", "mib"),
    [
        ("H100-SXM5-80GB", 81559),
        ("H200-SXM5-141GB", 143771),
        ("B200-SXM6", 183359),  # launch slides: 192 GB
        ("GB200", 189471),
        ("B300-SXM6", 275040),
        ("GB300", 284208),
        ("A100-SXM4-80GB", 81920),
        ("L40S", 46068),
        ("T4", 15360),
        ("MI300X", 196592),
        ("MI325X", 256 * 1024 - 16),  # 256 GB, not the 288 first announced
    ],
)
def test_usable_memory_is_what_the_driver_shows(name: str, mib: int) -> None:
    spec = gpu(name)
    assert spec.usable_memory is not None
    assert spec.usable_memory.base == mib * MIB
    assert spec.torch_total_bytes is None or 0.98 * mib * MIB < spec.torch_total_bytes < mib * MIB


@pytest.mark.parametrize(
    ("name", "gib", "field"),
    [
        ("H100-SXM5-80GB", 79.1, "torch_memory"),
        ("H200-SXM5-141GB", 139.8, "torch_memory"),
        ("B200-SXM6", 178.35, "torch_memory"),
        ("GB300", 276.5, "torch_memory"),
        ("A100-SXM4-80GB", 80, "usable_memory"),
    ],
)
def test_a_fit_takes_what_a_process_can_get(name: str, gib: float, field: str) -> None:
    spec = gpu(name)
    assert spec.usable_bytes == pytest.approx(gib * 2**30, rel=1e-12)
    assert spec.usable_record[0] == field


def test_torch_memory_above_the_driver_is_not_used() -> None:
    spec = gpu("H100")
    assert spec.usable_memory is not None
    more = spec.model_copy(update={"torch_memory": spec.usable_memory.model_copy(update={"value": 90000.0})})
    assert more.usable_bytes == 81559 * MIB
    alone = spec.model_copy(update={"usable_memory": None})
    assert alone.usable_bytes is None  # as documented: without usable_memory a fit cannot be decided


def test_a_peer_of_a_mesh_gets_one_link() -> None:
    for name in ("MI300X", "MI325X"):
        assert gpu(name).p2p_bytes_per_s == 64 * GIGA == (gpu(name).scaleup_bytes_per_s or 0) / 7


def test_other_traps() -> None:
    assert gpu("RTX-PRO-6000-Blackwell-Server").memory_bandwidth_bytes_per_s == 1597 * GIGA
    assert gpu("RTX-PRO-6000-Blackwell-Workstation").memory_bandwidth_bytes_per_s == 1792 * GIGA
    assert gpu("H100-PCIe-80GB").memory_bandwidth_bytes_per_s == 2000 * GIGA
    assert gpu("H20").memory_bandwidth_bytes_per_s == 4000 * GIGA
    assert (gpu("B200-SXM6").tdp_w, gpu("GB200").tdp_w, gpu("B300-SXM6").tdp_w) == (1000, 1200, 1100)
    assert gpu("B200-SXM6").pcie_bytes_per_s == 63 * GIGA
    assert gpu("RTX-4090").scaleup_bytes_per_s is None


def test_a_missing_rate_names_those_there_are() -> None:
    with pytest.raises(InputError, match="A100-SXM4-80GB has no fp8 rate; it has fp32, tf32, fp16, bf16"):
        gpu("A100-80GB").peak_flop_per_s("fp8")
    with pytest.raises(InputError, match="no bf16 rate"):
        gpu("T4").peak_flop_per_s("bf16")
    with pytest.raises(InputError, match="no aliases rate"):
        gpu("T4").peak_flop_per_s("aliases")


def test_bare_a100_has_compute_but_no_memory() -> None:
    for name in ("A100", "V100"):
        found = store.load_gpu(name)
        assert found.spec.usable_bytes is None
        assert math.isnan(found.spec.lower().usable_bytes[0])
    for dtype in ("tf32", "fp16", "bf16"):
        assert gpu("A100").peak_flop_per_s(dtype) == gpu("A100-40GB").peak_flop_per_s(dtype)
        assert gpu("A100").peak_flop_per_s(dtype) == gpu("A100-80GB").peak_flop_per_s(dtype)


# ------------------------------------------------------------------------------------------------------------ lowering
def test_lowering_gives_arrays_of_one_row() -> None:
    row = gpu("H100").lower()
    assert row.usable_bytes.tolist() == [79.1 * 1024 * MIB]
    assert row.gpus_per_node.tolist() == [8]
    assert math.isnan(row.host_bytes[0])
    assert gpu("H100").lower(gpus_per_node=4, host_bytes=2e12).host_bytes.tolist() == [2e12]
    rack = cluster("gb200-nvl72")
    assert (rack.gpus_in_node, rack.gpus_in_scaleup_domain) == (4, 72)
    assert rack.lower(gpu(rack.gpu)).gpus_per_node.tolist() == [4]
    assert cluster("aws-p5.48xlarge").lower(gpu("H100")).host_bytes.tolist() == [2048 * 2**30]


# ---------------------------------------------------------------------------------------------- against a public table
def table(shared_data: Path, name: str) -> list[dict[str, str]]:
    path = shared_data / name
    if not path.exists():
        pytest.skip(f"no {name}")
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.shared
def test_gpus_agree_with_the_table(shared_data: Path) -> None:
    rows = table(shared_data, "accelerators.csv")
    assert len(rows) >= 48
    for row in rows:
        spec = gpu(RENAMED.get(row["name"], row["name"]))
        scaled = {f"{dtype}_tflops": spec.peak.of(dtype) for dtype in DTYPES}
        scaled["fp32_tflops_vector"] = scaled.pop("fp32_tflops")
        scaled |= {
            "mem_marketing_GB": spec.marketing_memory,
            "mem_bw_GBps": spec.memory_bandwidth,
            "scaleup_uni_GBps_per_gpu": spec.scaleup_bandwidth,
            "p2p_uni_GBps": spec.p2p_bandwidth,
            "pcie_uni_GBps_spec": spec.pcie_bandwidth,
            "tdp_W": spec.tdp,
            "measured_bf16_matmul_tflops": spec.matmul.bf16,
            "measured_fp8_matmul_tflops": spec.matmul.fp8,
        }
        for column, record in scaled.items():
            found = None if record is None else record.value
            assert found == (float(row[column]) if row[column] else None), f"{row['name']} {column}"
        if row["mem_driver_bytes"]:
            assert spec.usable_memory is not None
            assert spec.usable_memory.base == int(row["mem_driver_bytes"]), row["name"]
        assert spec.pcie_generation == (int(row["pcie_gen"]) if row["pcie_gen"] else None)
        assert (spec.compute_capability or "") == row["cc"]
        assert (spec.form or "", spec.vendor, spec.arch) == (row["form"], row["vendor"], row["arch"])
        assert (spec.scaleup_link, spec.availability, spec.checked) == (
            row["scaleup_link"],
            row["availability"],
            row["checked"],
        )


@pytest.mark.shared
def test_clusters_agree_with_the_table(shared_data: Path) -> None:
    rows = table(shared_data, "nodes.csv")
    assert len(rows) >= 58
    for row in rows:
        spec = cluster(row["name"])
        assert (spec.provider, spec.gpu) == (row["provider"], RENAMED.get(row["accelerator"], row["accelerator"]))
        columns = {
            "gpus_per_node": spec.gpus_per_node,
            "nics_per_node": spec.nics_per_node,
            "nic_Gbps_each": spec.nic_bandwidth,
            "node_scaleout_uni_GBps": spec.node_scaleout_bandwidth,
            "scaleout_uni_GBps_per_gpu": spec.scaleout_bandwidth,
            "intra_uni_GBps_per_gpu": spec.intra_bandwidth,
            "scaleup_domain_gpus": spec.scaleup_domain_gpus,
        }
        for column, record in columns.items():
            if row[column]:
                assert record is not None, f"{row['name']} {column}"
                assert record.value == float(row[column]), f"{row['name']} {column}"
        prices = [price.usd_per_hour for price in spec.prices]
        assert prices == ([float(row["price_usd_per_hour"])] if row["price_usd_per_hour"] else [])
        published = {fact.busbw.value for fact in spec.busbw}
        for column in ("allreduce_busbw_1node_GBps", "allreduce_busbw_multinode_GBps"):
            stated = re.sub(
                r"\d+ racks? |(?:pair|two|four)\b|370-380", lambda m: "370" * (m[0] == "370-380"), row[column]
            )
            assert {float(x) for x in re.findall(r"\d+(?:\.\d+)?", stated)} <= published, f"{row['name']} {column}"
        times = {fact.latency.value for fact in spec.small_messages}
        assert {float(x) for x in re.findall(r"\d+(?:\.\d+)?", row["small_allreduce_latency_us"])} == times
        assert bool(spec.topology) == bool(row["topology"])


@pytest.mark.shared
def test_every_gpu_of_the_measurements_resolves(shared_data: Path) -> None:
    names = {row["gpu"] for row in table(shared_data, "measurements.csv")} - {""}
    assert len(names) > 20
    for name in names:
        found = store.load_gpu(name)
        exact = store.fold_name(found.spec.id) == store.fold_name(name)
        assert exact == (found.assumption is None), name
