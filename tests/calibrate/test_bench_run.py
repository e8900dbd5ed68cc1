"""The benchmark's own loop on simulated hardware: rows, budget, resume, what is slow, and the profile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dscalc.answers.bench import BenchAnswer, answer, words_of
from dscalc.answers.fit import fit
from dscalc.calibrate.bench import Asked, Measured
from dscalc.calibrate.bench_slow import outliers, slow_inside, slow_links, slow_ranks
from dscalc.calibrate.rows import load_rows
from dscalc.errors import InputError
from tests.calibrate.simulated import LostError, Machine, run


def asked(folder: Path, **given: Any) -> Asked:
    words: dict[str, Any] = {"budget_s": 600.0, "timeout_s": 60.0, "resume": False, "force": False, "version": "0.1.0"}
    return Asked(str(folder / "lab.json"), **(words | given))


def answered(machine: Machine, folder: Path, **given: Any) -> BenchAnswer:
    want = asked(folder, **given)
    return answer(want, run(machine, want), {})


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> BenchAnswer:
    return answered(Machine(), tmp_path_factory.mktemp("two"))


def test_every_row_is_on_disk_and_reads_back(two_nodes: BenchAnswer) -> None:
    rows = [row for _, row in load_rows(two_nodes.measured.path)[0]]
    assert rows == list(two_nodes.measured.rows)
    assert (rows[0]["kind"], rows[-1]["kind"]) == ("run", "end")
    kinds = {row["kind"] for row in rows}
    assert {"collective", "pair", "gemm", "memory_copy", "launch", "overlap"} <= kinds


def test_the_profile_is_the_one_that_fit_makes_of_the_rows(two_nodes: BenchAnswer) -> None:
    again = fit(two_nodes.measured.path, output=two_nodes.asked.output)
    assert two_nodes.profiled.text
    assert again.profiled.text == two_nodes.profiled.text


def test_fits_find_what_the_hardware_was_made_of(two_nodes: BenchAnswer) -> None:
    found = {(f["op"], f["ranks"], f["nodes"], f["groups"]): f for f in two_nodes.profiled.fits}
    inside = found["all-reduce", 8, 1, 1]
    each = found["all-reduce", 2, 2, 8]  # one group for each rank of a node, all at once
    assert inside["busbw_bytes_per_s"] == pytest.approx(360e9, rel=0.03)
    assert each["busbw_bytes_per_s"] == pytest.approx(48e9, rel=0.03)
    # a call of 8 ranks inside a node was made to take 8 us * sqrt(8), and one of two nodes 20 us * sqrt(2)
    assert inside["latency_s"] == pytest.approx(8e-6 * 8**0.5, rel=0.05)
    assert each["latency_s"] == pytest.approx(20e-6 * 2**0.5, rel=0.05)
    rate = {c["dtype"]: c["flop_per_s"] for c in two_nodes.profiled.compute if c["kind"] == "gemm"}
    assert rate["bf16"] == pytest.approx(700e12, rel=0.03)
    assert rate["fp8"] == pytest.approx(1400e12, rel=0.03)


def test_one_group_and_eight_at_once_are_two_tables(two_nodes: BenchAnswer) -> None:
    keys = [(f["op"], f["ranks"], f["nodes"], f["groups"]) for f in two_nodes.profiled.fits]
    assert len(keys) == len(set(keys)) == 5 * 5
    assert not two_nodes.profiled.found.conflicts


def test_overlap_is_reported(two_nodes: BenchAnswer) -> None:
    row = two_nodes.rows("overlap")[0]
    assert row["compute_beside_s"] / row["compute_s"] == pytest.approx(1.08)
    assert row["communication_beside_s"] / row["communication_s"] == pytest.approx(1.3, rel=0.05)


# --------------------------------------------------------------------------------------------------------------- slow
def slow(machine: Machine, folder: Path) -> list[str]:
    measured = run(machine, asked(folder, budget_s=60.0))
    found = slow_ranks(measured.rows, machine.inside, measured.hosts) + slow_links(measured.rows, measured.hosts)
    return [words_of(each) for each in found + slow_inside(measured.rows, measured.hosts)]


def test_equal_hardware_is_not_called_slow(tmp_path: Path) -> None:
    for seed in range(3):
        folder = tmp_path / str(seed)
        folder.mkdir()
        assert slow(Machine(nodes=4, inside=2, noise=0.05, seed=seed), folder) == []


def test_one_slow_gpu_is_named_with_its_host(tmp_path: Path) -> None:
    found = slow(Machine(nodes=2, inside=4, slow_ranks={5: 1.25}), tmp_path)
    assert len(found) == 1
    assert found[0].startswith("rank 5 on node 1 (gpu-01) takes 2")
    assert " % longer than the median rank: matrix products of " in found[0]
    assert ", memory copies of " in found[0]


def test_one_slow_node_is_told_from_one_slow_link(tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    (tmp_path / "link").mkdir()
    by_node = slow(Machine(nodes=5, inside=1, slow_nodes={3: 1.5}), tmp_path / "node")
    assert len(by_node) == 1
    assert by_node[0].startswith("node 3 (gpu-03) takes 4")
    by_link = slow(Machine(nodes=5, inside=1, slow_links={(1, 4): 2.0}), tmp_path / "link")
    assert len(by_link) == 1
    assert by_link[0].startswith("the link between node 1 (gpu-01) and node 4 (gpu-04) takes ")


def test_of_two_nodes_nobody_says_which_is_slow(tmp_path: Path) -> None:
    found = answered(Machine(nodes=2, inside=1, slow_nodes={1: 3.0}), tmp_path, budget_s=60.0)
    assert found.slow == ()
    assert found.compared == "fewer than 3 ranks: nothing to compare"


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ([1.0, 1.0, 1.0], []),
        ([1.0, 1.0, 2.0], [2]),
        ([1.0, 1.0, 1.09], []),  # less than a tenth
        ([1.0, 2.0], []),  # nobody can say which
        ([1.0, 0.5, 1.0, 1.0], []),  # quicker than the others is not slow
        ([1.0, 1.2, 0.8, 1.1, 0.9, 1.25], []),  # a wide spread hides a little
        ([1.0, 1.2, 0.8, 1.1, 0.9, 4.0], [5]),
        ([1.0, np.nan, 1.0, 1.0, 3.0], [4]),
    ],
)
def test_threshold(values: list[float], found: list[int]) -> None:
    assert outliers(np.array(values)) == found


# ------------------------------------------------------------------------------------------------------- budget, resume
def test_a_small_budget_still_spans_every_operation(tmp_path: Path) -> None:
    slow_net = Machine(nodes=3, inside=1, backend="gloo", device="CPU", dtypes=("fp32",), outer=(1e-3, 25e6))
    found = answered(slow_net, tmp_path, budget_s=20.0)
    largest = {each.op: each.largest_bytes for each in found.collectives()}
    assert set(largest) == {"all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"}
    # a twentieth of the budget for four calls: 0.25 s, so 25 MB/s carry some 4 MiB
    assert all(1 << 20 <= size <= 1 << 24 for size in largest.values())
    assert found.measured.out_of_budget > 0
    assert "budget" in {warning.code for warning in found.warnings()}


def test_resume_measures_the_rest_and_only_that(tmp_path: Path) -> None:
    machine = Machine(nodes=3, inside=1, fails_at=50)
    said: list[str] = []
    with pytest.raises(LostError):
        run(machine, asked(tmp_path), said)
    path = tmp_path / "lab.rows.jsonl"
    kept = [row for _, row in load_rows(str(path))[0]]
    assert kept[-1]["kind"] == "failure"
    assert "node 1 (gpu-01, rank 1) stopped answering, in: " in kept[-1]["message"]
    counted = sum("time_s" in row for row in kept)
    assert f"; {counted} measurements are kept in {path}; --resume goes on" in said[0]
    machine.fails_at = None
    whole = run(machine, asked(tmp_path, resume=True))
    rows = [row for _, row in load_rows(str(path))[0]]
    assert rows == list(whole.rows)
    assert rows[: len(kept)] == kept
    timed = [json.dumps([row.get(k) for k in KEY]) for row in rows if "time_s" in row]
    assert len(timed) == len(set(timed))  # nothing twice
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    assert set(timed) == {
        json.dumps([row.get(k) for k in KEY]) for row in run(machine, asked(fresh)).rows if "time_s" in row
    }


KEY = ("kind", "op", "scope", "size_bytes", "dtype", "m", "n", "k", "from_node", "to_node")


def test_rows_of_other_machines_are_not_gone_on_with(tmp_path: Path) -> None:
    run(Machine(nodes=2, inside=1), asked(tmp_path, budget_s=20.0))
    with pytest.raises(InputError, match="was measured with ranks 2, this run has 3; name another --output"):
        run(Machine(nodes=3, inside=1), asked(tmp_path, resume=True))


def test_one_gpu_says_that_collectives_are_skipped(tmp_path: Path) -> None:
    found = answered(Machine(nodes=1, inside=1), tmp_path)
    assert not found.rows("collective", "pair", "overlap")
    assert "one rank: no collectives; start several with torchrun --nproc-per-node N" in [
        row["message"] for row in found.rows("note")
    ]
    assert found.profile_path == str(tmp_path / "lab.json")


def test_wrong_results_are_warned_of(tmp_path: Path) -> None:
    want = asked(tmp_path, budget_s=60.0)
    measured = run(Machine(nodes=3, inside=1), want)
    rows = tuple({**row, "wrong": 3} if row.get("op") == "all_gather" else row for row in measured.rows)
    told = answer(want, Measured(measured.path, rows, measured.hosts, measured.world, 0), {}).warnings()
    assert next(w.message for w in told if w.code == "wrong_results").endswith(
        "had wrong results (all_gather): the speed of a wrong answer"
    )


def test_cpus_make_no_profile_and_say_how(tmp_path: Path) -> None:
    cpus = Machine(nodes=3, inside=1, backend="gloo", device="CPU", dtypes=("fp32", "bf16"), outer=(1e-4, 1e9))
    found = answered(cpus, tmp_path, budget_s=60.0)
    assert found.profile_path is None
    told = {w.code: w for w in found.warnings()}
    assert "no GPU profile is named 'CPU'" in told["no_profile"].message
    assert f"dscalc fit {found.measured.path} --gpu ID" in told["no_profile"].next_step


def test_cpus_that_make_a_profile_of_a_gpu_are_warned_of(tmp_path: Path) -> None:
    cpus = Machine(nodes=3, inside=1, backend="gloo", device="CPU", dtypes=("fp32", "bf16"), outer=(1e-4, 1e9))
    want = asked(tmp_path, budget_s=60.0)
    found = answer(want, run(cpus, want), {"gpu": "H200"})
    assert "CPUs and gloo were measured, the profile is made for H200-SXM5-141GB" in {
        w.message for w in found.warnings() if w.code == "not_that_gpu"
    }
