"""``dscalc step``: keys, a measured step, errors in one line, and the Python twin."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dscalc.answers.step import SCALARS, step
from dscalc.errors import DscalcError, InputError

CASE = {"model": "llama-3-8b", "cluster": "dgx-h100", "gpus": 8, "zero": 3, "stack": "fsdp2"}
PIPED = {"model": "llama-2-70b", "cluster": "dgx-h100", "gpus": 64, "tp": 4, "pp": 4, "gbs": 128, "stack": "nanotron"}


def test_json_has_the_stable_keys(run_dscalc: Any) -> None:
    ran = run_dscalc(
        *["step", "--model", "llama-3-8b", "--cluster", "dgx-h100", "--gpus", "8", "--zero", "3", "--format", "json"]
    )
    assert ran.returncode == 0, ran.stderr
    whole = json.loads(ran.stdout)
    result = whole["result"]
    assert whole["command"] == "step"
    assert set(SCALARS) | {"error_parts", "terms", "memory"} == set(result)
    assert sum(t["seconds"] for t in result["terms"]) == pytest.approx(result["step_time_s"], rel=1e-12)
    assert set(result["terms"][0]) == {"path", "seconds", "hidden_s", "formula", "source"}
    assert result["lower_s"] <= result["step_time_s"] <= result["upper_s"]
    assert result["low_s"] < result["step_time_s"] < result["high_s"]
    assert sum(p["fraction"] ** 2 for p in result["error_parts"]) == pytest.approx(result["error_fraction"] ** 2)
    assert result["memory"]["total_bytes"] > 0
    assert result["mfu_convention"] == "palm"
    fitted = [a for a in whole["assumptions"] if a["kind"] == "fitted"]
    assert {"name", "value", "unit", "kind", "source"} == set(fitted[0])
    assert any(a["name"].endswith("gemm_fraction") for a in fitted)


def test_python_twin_and_units() -> None:
    answer = step(**CASE)
    spec = answer.case.layout.spec
    assert answer.tokens_per_s == pytest.approx(spec.global_batch * spec.seq_len / answer.step_time_s)
    assert answer.tokens_per_s_per_gpu == pytest.approx(answer.tokens_per_s / 8)
    assert answer.mfu == pytest.approx(answer.model_flop_per_s_per_gpu / 989e12, rel=1e-3)
    assert 0.0 < answer.hfu < 1.0
    assert answer.bubble_share == 0.0
    other = step(**CASE, mfu_convention="megatron-core")
    assert other.mfu < answer.mfu


def test_the_bar_says_what_widened_it() -> None:
    unknown, known = step(**CASE), step(**CASE | {"stack": "llm-foundry"})
    assert unknown.error_fraction > known.error_fraction
    notes = {a.name: a for a in unknown.assumptions}
    assert "no published run of stack fsdp2" in notes["step.error_fraction"].source
    assert "no published run" not in {a.name: a for a in known.assumptions}["step.error_fraction"].source
    largest = max(unknown.error_parts, key=lambda p: p.fraction)
    assert largest.what in notes["step.error_fraction"].source
    assert known.low_s * known.high_s == pytest.approx(known.step_time_s**2)
    assert unknown.low_s * unknown.high_s == pytest.approx(unknown.step_time_s**2)


def test_a_profile_with_standard_errors_widens_the_bar(tmp_path: Path) -> None:
    """The same GPU, once with a matrix product that is known to a tenth only."""
    profile = json.loads(
        (Path(__file__).parents[2] / "hardware_profiles" / "gpus" / "H100-SXM5-80GB.json").read_text(encoding="utf-8")
    )
    widths = []
    for stderr in (None, 0.1):
        record = profile["matmul"]["bf16"]
        record.pop("stderr", None)
        if stderr:
            record["stderr"] = stderr * record["value"]
        path = tmp_path / f"{stderr}.json"
        path.write_text(json.dumps(profile | {"id": "my-H100", "aliases": []}), encoding="utf-8")
        widths.append(step(model="llama-3-8b", profile=str(path), gpu="my-H100", micro_batch=1).error_fraction)
    assert widths[1] > widths[0]


def test_a_bubble_is_reported_both_ways() -> None:
    answer = step(**PIPED)
    over = answer.bubble_over_ideal
    assert answer.bubble_share == pytest.approx(over / (1.0 + over))
    assert 3 / 32 * 0.8 < over < 3 / 32 * 1.05  # (p - 1)/m; the last stage has the head


def test_flops_by_hand_replace_the_fitted_rate() -> None:
    usual, fast = step(**CASE), step(**CASE, flops="900TF")
    linear = {a.terms[0].path: a.terms[0].seconds for a in (usual, fast)}
    assert list(linear) == ["compute/linear_layers"]
    assert fast.terms[0].seconds < usual.terms[0].seconds


@pytest.mark.parametrize(
    ("factor", "word"), [(1.02, "agrees"), (1.6, "slower"), (4.0, "times as long"), (0.6, "faster")]
)
def test_a_measured_step_gets_a_verdict(factor: float, word: str) -> None:
    predicted = step(**PIPED).step_time_s
    answer = step(**PIPED, measured=factor * predicted)
    assert word in answer.verdict
    if word != "agrees":
        assert answer.explanations
        slower = factor > 1.0
        assert all((e.step_time_s > predicted) == slower for e in answer.explanations)
        assert all(e.next_step for e in answer.explanations)


def test_the_jitter_named_for_a_gap_makes_up_for_it() -> None:
    measured_s = 1.3 * step(**PIPED).step_time_s
    (slow,) = (e for e in step(**PIPED, measured=measured_s).explanations if e.kind == "straggler")
    assert slow.step_time_s == pytest.approx(1.1 * step(**PIPED).step_time_s)  # as slow as [Jiang2024] found machines
    assert "one GPU 30% slower" in slow.next_step
    named = slow.next_step.rpartition("--jitter ")[2]
    assert step(**PIPED, jitter=named).step_time_s == pytest.approx(measured_s, rel=0.01)
    far = step(**PIPED, measured=20.0 * measured_s).explanations
    assert all("--jitter" not in e.next_step for e in far)  # beyond 100 % it takes a broken GPU
    alone = step(model="llama-3.2-1b", gpu="H100-SXM5-80GB", measured="9s").explanations
    assert alone
    assert all(e.kind != "straggler" for e in alone)


def test_known_faults_are_named() -> None:
    """1.17 s a micro-batch and 0.45 s a further stage, whatever the model; 4.5 + 2.15 t ms a layer."""
    accum = step(**PIPED).case.layout.spec.grad_accum
    stalled = step(**PIPED, measured=f"{1.17 * accum + 0.45 * 3}s")
    assert stalled.explanations[0].kind == "fault"
    assert "stall" in stalled.explanations[0].what
    small = {**PIPED, "model": "llama-3.2-1b", "tp": 8, "pp": 2}
    floored = step(**small, measured=(4.5 + 2.15 * 8) * 1e-3 * 8 * (step(**small).case.layout.spec.grad_accum + 1))
    assert "floor" in floored.explanations[0].what


def test_predictions_do_not_know_the_faults() -> None:
    from dscalc.specs.pace import pace_table

    table = pace_table()
    assert not table.floor_s.any()
    assert not table.floor_tp_s.any()


def test_a_profile_can_switch_a_fault_on() -> None:
    case = {**PIPED, "pp": 8, "micro_batch": 1, "model": "llama-3.2-1b", "layers": 16}
    healthy = step(**{**case, "cluster": "aws-p5.48xlarge"})
    faulty = step(**{**case, "cluster": "h100-efa-pipeline-floor"})
    assert faulty.step_time_s > 1.5 * healthy.step_time_s
    assert "faulty_cluster" in {w.code for w in faulty.warnings}


def test_warnings_have_a_next_step() -> None:
    answer = step(model="llama-3.2-1b", cluster="dgx-h100", gpus=8, tp=8, seq_len=1024)
    assert "host_bound" in {w.code for w in answer.warnings}
    assert all(w.next_step for w in answer.warnings)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("step --params 7e9", "--gpu"),
        ("step --params 7e9 --gpu H100-SXM5-80GB --gpus 16", "--interconnect"),
        ("step --params 7e9 --gpu H100-SXM5-80GB --measured never", "--measured"),
        ("step --params 7e9 --gpu H100-SXM5-80GB --measured 0s", "--measured"),
        ("step --params 7e9 --gpu H100-SXM5-80GB --mfu-convention mine", "--mfu-convention"),
        ("step --params 7e9 --gpu A100-SXM4-80GB --precision fp8", "--precision"),
        ("step --params 7e9 --gpu H100-SXM5-80GB --flops 400TF --peak-fraction 0.4", "--peak-fraction"),
    ],
)
def test_errors_name_the_option(run_dscalc: Any, words: str, message: str) -> None:
    ran = run_dscalc(*words.split())
    assert ran.returncode in (1, 2)
    assert message in ran.stderr
    assert ran.stderr.count("\n") == 1


def test_check_exits_with_three(run_dscalc: Any) -> None:
    ran = run_dscalc(*["step", "--model", "llama-2-70b", "--gpu", "H100-SXM5-80GB", "--check", "--quiet"])
    assert ran.returncode == 3


def test_measured_refuses_what_is_no_time() -> None:
    with pytest.raises(InputError, match="--measured"):
        step(**CASE, measured=-1.0)
    with pytest.raises(DscalcError):
        step(**CASE, measured="fast")


@pytest.mark.parametrize("time", ["0s", "nan", "fast", "-1s"])
def test_an_unreadable_measurement_exits_with_2(run_dscalc: Any, time: str) -> None:
    ran = run_dscalc("step", "--params", "7e9", "--gpu", "H100-SXM5-80GB", "--measured", time)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "--measured" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.parametrize("columns", [80, 140])
def test_validate_step_screen_fits(run_dscalc: Any, columns: int) -> None:
    ran = run_dscalc(*["validate", "--metric", "step"], columns=columns)
    assert ran.returncode == 0, ran.stderr
    assert max(len(line) for line in ran.stdout.splitlines()) <= columns
    assert "By stack" in ran.stdout
