"""From logs to a profile: sources and errors in it, conflicts shown, and predictions that follow what was measured."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dscalc
from dscalc.answers.fit import fit
from dscalc.calibrate.compare import compare_gpu
from dscalc.calibrate.fit import Fit, fit_logs
from dscalc.calibrate.fit_compute import fit_compute
from dscalc.calibrate.logs import read_log
from dscalc.calibrate.measurements import Compute
from dscalc.calibrate.profile import Base, cluster_record, curve_record, profile_text, spec_of
from dscalc.calibrate.tier_rates import placed
from dscalc.cost.collectives import collective
from dscalc.errors import InputError
from dscalc.specs.cluster import ClusterSpec
from dscalc.specs.measured import CurveSpec, lower_curves
from dscalc.specs.network import lower_network
from dscalc.specs.store import load_cluster, load_gpu, load_profile_file
from tests.calibrate.benchmark_logs import VOLUMES, log_text, noisy, sizes

RATE = 100e9  # of a 16-rank all-reduce on two nodes
LATENCY = 40e-6


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """One node, and two nodes at less than half of what such nodes reach."""
    rng, size = np.random.default_rng(3), sizes(10, 33)
    inside, across = 20e-6 + size / 270e9, LATENCY + size / RATE
    (tmp_path / "one.log").write_text(log_text("all_reduce", 8, 1, size, noisy(inside, rng, 0.004)))
    (tmp_path / "two.log").write_text(log_text("all_reduce", 16, 2, size, noisy(across, rng, 0.004)))
    return tmp_path


def written(folder: Path, *names: str, **options: Any) -> Path:
    """The profile of some logs as a file."""
    found = fit(*(folder / name for name in names), output=folder / "mine.json", **options)
    (folder / "mine.json").write_text(found.profiled.text, encoding="utf-8")
    return folder / "mine.json"


def test_every_number_has_a_source_with_lines_an_error_and_a_count(logs: Path) -> None:
    spec = load_profile_file(written(logs, "one.log", "two.log", cluster="dgx-h100")).spec
    assert isinstance(spec, ClusterSpec)
    assert (spec.id, spec.gpu) == ("mine", "H100-SXM5-80GB")
    assert {(c.op, c.ranks, c.nodes, c.kind) for c in spec.collectives} == {
        ("all-reduce", 8, 1, "measured"),
        ("all-reduce", 16, 2, "measured"),
    }
    for curve, file in zip(spec.collectives, ("one.log", "two.log"), strict=True):
        first, last = curve.source.rpartition(":")[2].split("-")
        assert file in curve.source
        assert int(last) - int(first) == 23  # lines of 24 sizes
        assert curve.n == 24
        assert curve.pieces
        assert all(0.0 < e < 0.2 for e in curve.error_fractions)
    shipped = load_cluster("dgx-h100").spec.tiers[-1].reduction
    assert spec.tiers[-1].reduction == shipped  # SHARP has to be asked for: these logs did not measure it
    for tier in spec.tiers:
        assert tier.efficiency is not None
        assert tier.efficiency.kind == "fitted"
        assert tier.efficiency.stderr is not None
        assert tier.efficiency.n == 1


def test_a_profile_of_nothing_but_logs_gets_its_tiers_from_them(logs: Path) -> None:
    spec = load_profile_file(written(logs, "one.log", "two.log")).spec
    assert isinstance(spec, ClusterSpec)
    assert spec.gpu == "H100-SXM5-80GB"  # as the log's device lines name it
    outer = spec.tiers[-1].bandwidth
    assert outer.base == pytest.approx(RATE / 8.0, rel=0.03)  # a GPU's share while eight send
    assert outer.kind == "fitted"
    assert "two.log" in outer.source


def test_comm_and_step_take_what_was_measured(logs: Path) -> None:
    profile = str(written(logs, "one.log", "two.log", cluster="dgx-h100"))
    size = sizes(10, 33)
    row = next(r for r in dscalc.comm(profile=profile, model="llama-3-8b", gpus=16).rows if r.axis == "dp")
    expected = LATENCY + row.bytes / RATE
    assert size[0] <= row.bytes <= size[-1]
    assert row.algorithm == "measured"
    assert "two.log" in row.measured
    assert row.time_s / row.count == pytest.approx(expected, rel=0.03)
    assert row.low_s < row.time_s < row.high_s
    mine, shipped = (
        dscalc.step(**{k: v}, model="llama-3-8b", gpus=16) for k, v in (("profile", profile), ("cluster", "dgx-h100"))
    )
    assert mine.step_time_s > shipped.step_time_s  # half the rate
    assert mine.high_s / mine.step_time_s > shipped.high_s / shipped.step_time_s  # the curve's error is in the bar
    assert mine.memory.total_bytes == shipped.memory.total_bytes


def test_a_faster_log_makes_a_faster_step(logs: Path) -> None:
    size = sizes(10, 33)
    (logs / "fast.log").write_text(log_text("all_reduce", 16, 2, size, LATENCY + size / (2.0 * RATE)))
    slow = dscalc.step(profile=str(written(logs, "two.log", cluster="dgx-h100")), model="llama-3-8b", gpus=16)
    fast = dscalc.step(profile=str(written(logs, "fast.log", cluster="dgx-h100")), model="llama-3-8b", gpus=16)
    assert fast.step_time_s < slow.step_time_s


def test_a_group_that_no_log_has_is_bracketed_and_said(logs: Path) -> None:
    profile = str(written(logs, "one.log", "two.log", cluster="dgx-h100"))
    found = dscalc.comm(profile=profile, model="llama-3-8b", gpus=64)
    row = next(r for r in found.rows if r.axis == "dp")
    assert row.extrapolated
    assert row.high_s > 1.5 * row.low_s
    assert "no log has this group" in next(w.message for w in found.warnings if w.code == "extrapolated")
    assert "extrapolated" in {w.code for w in dscalc.step(profile=profile, model="llama-3-8b", gpus=64).warnings}


def test_runs_that_disagree_are_shown_and_the_slower_is_kept(logs: Path) -> None:
    size = sizes(10, 33)
    (logs / "again.log").write_text(log_text("all_reduce", 16, 2, size, 2.0 * (LATENCY + size / RATE)))
    found = fit(logs / "two.log", logs / "again.log", cluster="dgx-h100").profiled
    (conflict,) = found.found.conflicts
    assert "again.log" in conflict.kept
    assert conflict.ratio == pytest.approx(2.0, rel=0.05)
    assert len(found.fits) == 1
    assert "again.log" in found.fits[0]["source"]
    assert "two.log" not in found.fits[0]["source"]
    assert "conflict" in {w.code for w in found.warnings}


def test_runs_that_agree_are_samples_of_one(logs: Path) -> None:
    size = sizes(10, 33)
    (logs / "again.log").write_text(log_text("all_reduce", 16, 2, size, LATENCY + size / RATE))
    (fitted,) = fit(logs / "two.log", logs / "again.log", cluster="dgx-h100").profiled.fits
    assert fitted["n"] == 48
    assert {"two.log", "again.log"} <= {Path(s.rpartition(":")[0]).name for s in fitted["source"].split(", ")}


def test_wrong_results_are_not_fitted(logs: Path) -> None:
    size = sizes(20, 33)
    time = LATENCY + size / RATE
    time[5] *= 0.1  # a wrong answer is quick
    (logs / "wrong.log").write_text(log_text("all_reduce", 16, 2, size, time, wrong=(5,)))
    found = fit(logs / "wrong.log", cluster="dgx-h100").profiled
    assert size[5] not in found.fits[0]["sizes_bytes"]
    assert "wrong_results" in {w.code for w in found.warnings}


def test_a_slow_link_is_said_with_its_causes_and_its_cost(logs: Path) -> None:
    size = sizes(10, 33)
    (logs / "ipoib.log").write_text(log_text("all_reduce", 16, 2, size, 80e-6 + size / 1.7e9))
    found = fit(logs / "one.log", logs / "ipoib.log", cluster="dgx-h100", compare=True).profiled
    assert found.beside is not None
    good, bad = found.beside.groups
    assert (good.verdict, bad.verdict) == ("usual", "slow")
    assert bad.fraction < 0.05
    assert "sockets" in bad.causes[0]
    assert "slow_link" in {w.code for w in found.warnings}
    effect = found.beside.effect
    assert not isinstance(effect, str)
    assert effect.measured_s > 5.0 * effect.usual_s
    assert found.beside.cluster.id == "dgx-h100"


def test_the_profile_of_another_gpu_or_cluster_is_refused(logs: Path) -> None:
    profile = str(written(logs, "one.log", "two.log", cluster="dgx-h100"))
    with pytest.raises(InputError, match="is not the GPU of mine"):
        dscalc.step(profile=profile, gpu="A100-SXM4-80GB", model="llama-3-8b", gpus=16)
    with pytest.raises(InputError, match="leave --cluster"):
        dscalc.step(profile=profile, cluster="dgx-a100-80g", model="llama-3-8b", gpus=16)
    assert "log_of_another_gpu" in {w.code for w in fit(logs / "one.log", cluster="dgx-b200").profiled.warnings}


def test_a_profile_can_be_fitted_again(logs: Path) -> None:
    """What was measured before makes room; what the cluster is stays."""
    profile = written(logs, "one.log", "two.log", cluster="dgx-h100")
    found = fit(logs / "two.log", profile=profile, output=logs / "again.json").profiled
    assert found.record is not None
    assert [c["ranks"] for c in found.record["collectives"]] == [16]
    assert found.record["gpus_per_node"]["value"] == 8
    assert found.record["id"] == "again"


def test_options_win_over_a_profile(logs: Path) -> None:
    """By hand: the network that was measured is not the one that is asked about."""
    profile = str(written(logs, "one.log", "two.log", cluster="dgx-h100"))
    given = {"profile": profile, "model": "llama-3-8b", "gpus": 16}
    assert not any(r.measured for r in dscalc.comm(**given, bandwidth="50GB/s").rows)
    assert not any(r.measured for r in dscalc.comm(**given, interconnect="400Gb/s").rows)
    forced = dscalc.comm(**given, algorithm="all-reduce=ring").rows
    assert {r.algorithm for r in forced if r.op == "all-reduce"} == {"ring"}


# -------------------------------------------------------------------------------------------------------------- compute
def gemms(rate: float, ramp: float, noise: float = 0.02) -> Compute:
    rng = np.random.default_rng(1)
    m, n, k = (2.0 ** rng.integers(8, 14, 60) for _ in range(3))
    speed = rate / (1.0 + ramp * (1 / m + 1 / n + 1 / k)) * np.exp(rng.normal(0.0, noise, 60))
    return Compute(
        file="mm.log", format="x", gpu="NVIDIA H100 80GB HBM3", first_line=1, last_line=60, kind="gemm", dtype="bf16",
        m=m, n=n, k=k, time_s=2 * m * n * k / speed, rate=speed, line=np.arange(60),
    )  # fmt: skip


def copies(rate: float) -> Compute:
    nan, size = np.full(5, np.nan), 2.0 ** np.arange(26, 31)
    return Compute(
        file="copy.log", format="x", gpu="NVIDIA H100 80GB HBM3", first_line=1, last_line=5,
        kind="memory_copy", dtype="",
        m=nan, n=size, k=nan, time_s=size / rate, rate=np.full(5, rate), line=np.arange(5),
    )  # fmt: skip


def test_products_give_rate_ramp_and_spread() -> None:
    (found,), _, _ = fit_compute([gemms(700e12, 150.0)])
    assert found.flop_per_s == pytest.approx(700e12, rel=0.02)
    assert found.ramp == pytest.approx(150.0, rel=0.1)
    assert found.stderr_flop_per_s < 0.02 * found.flop_per_s
    rates = [c.median_flop_per_s for c in found.classes]
    assert rates == sorted(rates)
    assert all(c.low_flop_per_s <= c.median_flop_per_s <= c.high_flop_per_s for c in found.classes)


def test_a_slower_gpu_makes_a_slower_step(tmp_path: Path) -> None:
    """A matrix product at 0.8 of the best known one: linear layers of a step take 1 / 0.8 of the time."""
    base = Base(load_gpu("H100").spec, 8, load_cluster("dgx-h100").spec)
    times = {}
    for name, rate in (("usual", 794.5e12), ("slow", 0.8 * 794.5e12)):
        found = fit_logs([])
        computed = fit_compute([gemms(rate, 100.0, 0.0), copies(3.0e12)])
        found = type(found)((), *computed, (), (), ())
        file = tmp_path / f"{name}.json"
        file.write_text(profile_text(cluster_record(found, base, name)))
        answer = dscalc.step(profile=str(file), model="llama-3-8b", gpus=8)
        times[name] = next(t.seconds for t in answer.terms if t.path == "compute/linear_layers")
        sources = {a.name: a for a in answer.assumptions}
        assert sources["step.H100-SXM5-80GB.gemm_fraction"].kind == "fitted"
        assert "mm.log:1-60" in sources["step.H100-SXM5-80GB.gemm_fraction"].source
        assert sources["step.H100-SXM5-80GB.memory_fraction"].value == pytest.approx(3.0 / 3.35, rel=1e-3)
    assert times["slow"] / times["usual"] == pytest.approx(1.0 / 0.8, rel=0.01)


# --------------------------------------------------------------------------------------------------------- real layouts
@pytest.mark.shared
def test_every_public_log_makes_fits_or_says_why_not(shared_data: Path) -> None:
    for file in sorted((shared_data / "nccl_logs").glob("*.txt"))[::6]:
        try:
            read = read_log(file)
        except InputError:
            continue
        found = fit_logs([read])
        assert len(found.fits) + len(found.refused) + len(found.gemms) + len(found.copies) > 0, file.name
        for fitted in found.fits:
            one = type(found)((fitted,), (), (), (), (), (), ())
            record = cluster_record(one, Base(load_gpu("H100").spec, 8, None), "x")
            json.loads(profile_text(record))


# one cluster in one configuration: its smaller runs, its larger ones
RUNS = (
    ("alps-gh200", ("002",), ("004",)),
    ("alps-gh200", ("006",), ("007",)),
    ("polaris-a100", ("012",), ("013",)),
    ("abci-v100", ("038",), ("039",)),
    ("dgx-h100", ("076",), ("109",)),
    ("dgx-h100", ("109",), ("018",)),
    ("hgx-mi300x-roce", ("082",), ("082",)),
)


@pytest.mark.shared
def test_the_bracket_holds_larger_runs_than_were_fitted(shared_data: Path) -> None:
    """Rank counts that no log has: 80 % of the sizes of the larger runs within the bracket."""
    inside: list[bool] = []
    for name, smaller, larger in RUNS:
        cluster = load_cluster(name).spec
        node = cluster.gpus_in_node

        def fits(numbers: tuple[str, ...], node: int = node) -> list[Fit]:
            files = [f for n in numbers for f in (shared_data / "nccl_logs").glob(f"{n}-*")]
            found = fit_logs([read_log(f) for f in files], gpus_per_node=node).fits
            return [f for f in found if f.series.key.op == "all-reduce"]

        known = fits(smaller)[:2]  # of four runs in one file, the two smaller
        asked = [f for f in fits(larger) if f.series.key.ranks > max(k.series.key.ranks for k in known)]
        found = replace(fit_logs([]), fits=tuple(known))
        spec = ClusterSpec.model_validate(cluster_record(found, Base(load_gpu(cluster.gpu).spec, node, cluster), "x"))
        network = lower_network(spec).network
        for each in asked:
            sizes_, count = each.series.size_bytes, len(each.series.size_bytes)
            lowered = lower_curves([CurveSpec.model_validate(curve_record(each))], network.tiers, node)[0]
            group, held, domains, _ = placed(lowered, network)
            ends = [
                collective(
                    "all-reduce",
                    sizes_,
                    np.repeat(group, count),
                    np.repeat(held, count, 1),
                    np.repeat(domains, count, 1),
                    replace(network, edge=edge),
                ).time_s
                for edge in (-1.0, 1.0)
            ]
            inside += ((ends[0] <= each.series.time_s) & (each.series.time_s <= ends[1])).tolist()
    assert len(inside) > 100
    assert np.mean(inside) >= 0.80


def test_small_products_say_nothing_of_large_ones(tmp_path: Path) -> None:
    small = gemms(700e12, 150.0, 0.0)
    few = replace(small, m=np.full(60, 1024.0), n=np.full(60, 1024.0), k=np.full(60, 1024.0))
    computed = fit_compute([few])
    record = cluster_record(
        replace(fit_logs([]), gemms=computed[0]), Base(load_gpu("H100").spec, 8, load_cluster("dgx-h100").spec), "x"
    )
    assert "sustained" not in record


def test_a_slow_gpu_is_said(tmp_path: Path) -> None:
    gpu = load_gpu("H100").spec
    slow, fine = (fit_compute([gemms(rate, 100.0, 0.0), copies(3.1e12)]) for rate in (500e12, 790e12))
    assert [k.verdict for k in compare_gpu(slow[0], slow[1], gpu)] == ["slow", "usual"]
    assert [k.verdict for k in compare_gpu(fine[0], fine[1], gpu)] == ["usual", "usual"]
    assert "clocks" in compare_gpu(slow[0], slow[1], gpu)[0].causes[0]


def _network(folder: Path, *tests: tuple[str, int, int, float]) -> tuple[float, float, list[str]]:
    """Rate between nodes [bytes/s], its relative error and the warnings, of logs at a bus bandwidth each."""
    size, names = sizes(12, 34), []
    for op, ranks, nodes, busbw in tests:
        names.append(str(folder / f"{op}-{nodes}.log"))
        times = 50e-6 + size * VOLUMES[op](ranks) / busbw
        Path(names[-1]).write_text(log_text(op, ranks, nodes, size, times))
    found = dscalc.fit(*names, gpu="H100-SXM5-80GB", output="x.json")
    tier = spec_of(json.loads(found.profiled.text)).tiers[-1]
    assert tier.efficiency is not None
    assert tier.efficiency.base == 1.0
    return tier.bandwidth.base, tier.efficiency.base_stderr or 0.0, [w.code for w in found.warnings()]


def test_the_rate_of_a_network_that_nobody_described_is_the_one_that_predicts_the_log(tmp_path: Path) -> None:
    """A ring of eight a node sends busbw / 8 over each GPU's link; the model's largest messages reach it within 5 %."""
    rate, _, codes = _network(tmp_path, ("all_gather", 32, 4, 320e9))
    assert rate == pytest.approx(40e9, rel=0.05)
    assert "rate_of_two_nodes" not in codes
    ring, _, codes = _network(tmp_path, ("all_reduce", 32, 4, 320e9))
    assert ring == pytest.approx(40e9, rel=0.10)
    assert "rate_of_two_nodes" not in codes
    pair, _, codes = _network(tmp_path, ("all_reduce", 16, 2, 320e9))
    assert 20e9 <= pair <= 40e9  # by a tree, by a ring
    assert "rate_of_two_nodes" in codes


def test_one_odd_operation_is_no_error_of_the_link(tmp_path: Path) -> None:
    even = (("all_gather", 32, 4, 320e9), ("all_to_all", 32, 4, 44e9), ("broadcast", 32, 4, 325e9))
    rate, error, _ = _network(tmp_path, *even)
    odd, wider, _ = _network(tmp_path, *even, ("send_recv", 32, 4, 15e9))
    assert odd == pytest.approx(rate, rel=0.1)
    assert wider < 0.3
    assert error < 0.2


def a_log(logs: Path, name: str, gpu: str, rate: float, nodes: int = 2, each: int = 8, head: str = "") -> Path:
    size = sizes(10, 33)
    (logs / name).write_text(head + log_text("all_reduce", each * nodes, nodes, size, 30e-6 + size / rate, gpu=gpu))
    return logs / name


EFA = "ip-10-0-0-1:100:100 [0] NCCL INFO NET/OFI Selected Provider is efa (found 4 nics)\n"
HDR = "n1:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>\n"
SXM40 = "NVIDIA A100-SXM4-40GB"


@pytest.mark.parametrize(
    ("gpu", "rate", "each", "head", "options", "cluster", "why"),
    [
        (SXM40, 40e9, 8, EFA, {}, "aws-p4d.24xlarge", "only .* on EFA, which the log names"),
        (SXM40, 40e9, 8, HDR, {}, "abci-a100", "slowest network, of 2 .* on InfiniBand.*; others: azure"),
        (SXM40, 40e9, 8, "", {}, "aws-p4d.24xlarge", "of 3 .*no log names its network; others: abci-a100 .*azure"),
        (SXM40, 130e9, 8, "", {}, "azure-nd96asr_v4", "fast enough .* which abci-a100 .*aws-p4d.* are not"),
        (SXM40, 30e9, 4, "", {}, "polaris-a100", "nodes of 4"),
        (SXM40, 40e9, 8, "", {"compare_with": "abci-a100"}, "abci-a100", "--compare-with"),
        (SXM40, 40e9, 8, "", {"interconnect": "ib-hdr"}, "abci-a100", "on ib-hdr, as --interconnect says"),
        ("NVIDIA H100 80GB HBM3", 250e9, 8, "", {}, "dgx-h100", "nobody's cloud, of 7 .*others: aws-p5"),
    ],
)  # fmt: skip
def test_the_cluster_beside_is_of_the_same_node_and_network_and_why_is_said(
    tmp_path: Path, gpu: str, rate: float, each: int, head: str, options: dict[str, str], cluster: str, why: str
) -> None:
    log = a_log(tmp_path, "run.log", gpu, rate, each=each, head=head)
    found = fit(log, compare=True, **options).profiled.beside  # type: ignore[arg-type]
    assert found is not None
    assert found.cluster.id == cluster
    assert re.search(why, found.why), found.why
    assert not isinstance(found.effect, str)


def test_a_link_that_would_be_usual_elsewhere_says_where(tmp_path: Path) -> None:
    log = a_log(tmp_path, "run.log", "NVIDIA A100-SXM4-80GB", 40e9)  # as AWS gives it: 75 GB/s of bus bandwidth
    found = fit(log, compare=True).profiled
    (slow,) = [w for w in found.warnings if w.code == "slow_link"]
    assert "of what dgx-a100-80g gives" in slow.message
    assert re.search(r"it would be \d+% for aws-p4de.24xlarge", slow.message)
    assert "--compare-with aws-p4de.24xlarge" in slow.next_step


def test_no_cluster_of_another_kind_is_taken_in_its_place(tmp_path: Path) -> None:
    log = a_log(tmp_path, "run.log", "Tesla V100-SXM2-32GB", 5e9, head=EFA)
    with pytest.raises(InputError, match=r"no shipped cluster has nodes of 8 V100-SXM2-32GB on EFA.*azure-nd40rs_v2"):
        fit(log, compare=True)
    with pytest.raises(InputError, match=r"dgx-h100 has H100-SXM5-80GB"):
        fit(log, compare_with="dgx-h100")
    sockets = EFA.replace("NET/OFI Selected Provider is efa", "NET/Socket : Using [0]eth0:10.0.0.1<0>")
    log = a_log(tmp_path, "run.log", "Tesla V100-SXM2-32GB", 0.3e9, head=sockets)
    assert "over_sockets" in {w.code for w in fit(log, compare=True).profiled.warnings}


def mamf(dtype: str, tflop_per_s: float) -> str:
    """A log of mamf-finder: three shapes, the largest at this rate."""
    rows = [(2048, 0.97), (4096, 0.99), (8192, 1.0)]
    lines = [f"** Dtype: torch.{dtype}", "- _CudaDeviceProperties(name='NVIDIA H100 80GB HBM3', major=9)", ""]
    for number, (side, share) in enumerate(rows, start=1):
        rate = f"{share * tflop_per_s:.1f} TFLOPS @ {side}x{side}x8192"
        lines.append(f"     {number} |  {rate}      | best:  {rate} (MxNxK)")
    return "\n".join(lines) + "\n"


def test_products_of_8_bits_speed_the_linear_layers_of_that_precision_alone(logs: Path) -> None:
    """H100: the best product published is 1,402.6 TFLOP/s in fp8 and 794.5 in bf16; a tenth less is a tenth less."""
    (logs / "8.log").write_text(mamf("float8_e4m3fn", 0.9 * 1402.6))
    (logs / "16.log").write_text(mamf("bfloat16", 0.8 * 794.5))
    ours = {
        "both": written(logs, "8.log", "16.log", cluster="dgx-h100").rename(logs / "both.json"),
        "fp8": written(logs, "8.log", cluster="dgx-h100").rename(logs / "fp8.json"),
        "none": None,
    }

    def linear(which: str, precision: str) -> tuple[float, dict[str, tuple[float, str]]]:
        hold: dict[str, Any] = {"cluster": "dgx-h100"} if ours[which] is None else {"profile": str(ours[which])}
        found = dscalc.step(model="llama-3-8b", gpus=8, precision=precision, stack="megatron", **hold)
        rates = {a.name: (a.value, a.source) for a in found.assumptions}
        return next(t.seconds for t in found.terms if t.path == "compute/linear_layers"), rates

    gain_of = "step.H100-SXM5-80GB.linear_gain"
    usual = linear("none", "fp8")[1][gain_of][0]
    for which, precision, share in (
        ("both", "fp8", 0.9),
        ("both", "bf16", 0.8),
        ("fp8", "fp8", 0.9),
        ("fp8", "bf16", 1.0),
    ):
        mine, rates = linear(which, precision)
        # short products lose a little more of a faster unit
        assert linear("none", precision)[0] / mine == pytest.approx(share, rel=0.03), (which, precision)
        gain = rates.get(gain_of)
        assert (gain is not None) == (precision == "fp8")
        if gain is not None:
            assert "8.log" in gain[1]
            assert gain[0] == pytest.approx(usual * share / (0.8 if which == "both" else 1.0), rel=0.01)


def test_slow_products_of_8_bits_are_no_gain_and_impossible_ones_are_left_out(logs: Path) -> None:
    (logs / "slow.log").write_text(mamf("float8_e4m3fn", 300.0))
    profile = str(written(logs, "slow.log", cluster="dgx-h100"))
    step = {"model": "llama-3-8b", "gpus": 8, "stack": "megatron"}
    slow, plain = (dscalc.step(**step, profile=profile, precision=p) for p in ("fp8", "bf16"))
    assert slow.step_time_s >= plain.step_time_s
    (logs / "fast.log").write_text(mamf("float8_e4m3fn", 2500.0))
    assert "faster_than_peak" in {w.code for w in fit(logs / "fast.log", cluster="dgx-h100").profiled.warnings}
