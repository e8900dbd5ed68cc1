"""A user's own steps: factors that made them come back, what they do not tell of stays, and a bad file is one line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dscalc.answers.case import build_case
from dscalc.answers.fit import fit
from dscalc.answers.fit_steps import fit_step_file
from dscalc.answers.step import step_inputs
from dscalc.calibrate.fit import fit_logs
from dscalc.calibrate.fit_factors import FACTORS, fit_factors
from dscalc.calibrate.profile import Base, cluster_record, profile_text
from dscalc.errors import InputError
from dscalc.specs.calibrated import calibrated
from dscalc.specs.given import gather
from dscalc.specs.measured import NORMAL_80, Sustained
from dscalc.specs.store import load_cluster, load_gpu
from tests.calibrate.benchmark_logs import log_text, sizes

TRUTH = {"compute_factor": 1.12, "host_factor": 1.6}
LAYOUTS = ((8, 1, 1, 2048), (8, 1, 2, 4096), (8, 2, 1, 1024), (16, 1, 1, 8192), (16, 4, 1, 512), (16, 2, 4, 2048))


@pytest.fixture(scope="module")
def record() -> dict[str, Any]:
    return cluster_record(fit_logs([]), Base(load_gpu("H100").spec, 8, load_cluster("dgx-h100").spec), "ours")


def steps(folder: Path, record: dict[str, Any], truth: dict[str, float], noise: float = 0.01) -> Path:
    """A file of steps that a stack with these factors would take."""
    profile = folder / "ours.json"
    profile.write_text(profile_text(record))
    rng = np.random.default_rng(5)
    lines = ["model,gpus,tp,micro_batch,seq_len,zero,stack,step_time_s"]
    made = {name: {"value": v, "unit": "count", "kind": "fitted", "source": "the truth"} for name, v in truth.items()}
    for gpus, tp, micro_batch, seq_len in LAYOUTS:
        given = gather(
            {"profile": str(profile), "model": "llama-3-8b", "gpus": gpus, "tp": tp, "micro_batch": micro_batch}
            | {"seq_len": seq_len, "zero": 1, "stack": "megatron"}
        )
        inputs = step_inputs(given, build_case(given))[0]
        gpu = inputs.case.machine.gpu
        assert gpu is not None
        c = calibrated(gpu, Sustained.model_validate(made), "megatron", "bf16", inputs.engine, inputs.table)
        took = float(replace(inputs, engine=c.engine, table=c.table).run().step_time_s[0])
        seconds = took * np.exp(rng.normal(0.0, noise))
        lines.append(f"llama-3-8b,{gpus},{tp},{micro_batch},{seq_len},1,megatron,{seconds:.6g}")
    file = folder / "steps.csv"
    file.write_text("\n".join(lines) + "\n")
    return file


def test_the_factors_come_back_with_errors_that_hold_them(tmp_path: Path, record: dict[str, Any]) -> None:
    found = fit_step_file(str(steps(tmp_path, record, TRUTH)), record)
    for name, truth in TRUTH.items():
        value = found.fit.values[name]
        assert abs(value.value - truth) <= 3.0 * value.stderr
        assert value.stderr < 0.1 * truth
    assert "attention_factor" in found.fit.unknown  # six steps do not tell it from the rest
    assert found.error("left_out_s") < 0.03 < found.error("before_s")


def test_steps_as_predicted_change_nothing(tmp_path: Path, record: dict[str, Any]) -> None:
    found = fit_step_file(str(steps(tmp_path, record, {}, 0.0)), record)
    assert all(value.value == pytest.approx(1.0, abs=1e-3) for value in found.fit.values.values())


def test_one_step_identifies_one_factor_at_most(tmp_path: Path, record: dict[str, Any]) -> None:
    file = steps(tmp_path, record, TRUTH)
    file.write_text("\n".join(file.read_text().splitlines()[:2]) + "\n")
    assert len(fit_step_file(str(file), record).fit.values) <= 1


def test_the_profile_holds_them_for_that_stack_alone(tmp_path: Path, record: dict[str, Any]) -> None:
    import dscalc

    file = steps(tmp_path, record, TRUTH)
    size = sizes(20, 30)
    (tmp_path / "a.log").write_text(log_text("all_reduce", 8, 1, size, 20e-6 + size / 270e9))
    found = fit(tmp_path / "a.log", cluster="dgx-h100", step=file, output=tmp_path / "ours.json").profiled
    assert found.steps is not None
    (tmp_path / "ours.json").write_text(found.text)
    given: dict[str, Any] = {"model": "llama-3-8b", "gpus": 8}
    hold = {"profile": str(tmp_path / "ours.json")}
    for stack, changed in (("megatron", True), ("fsdp2", False)):
        mine = dscalc.step(**given, **hold, stack=stack)
        linear = [t.seconds for t in mine.terms if t.path == "compute/linear_layers"][0]  # noqa: RUF015
        usual = dscalc.step(**given, cluster="dgx-h100", stack=stack)
        shipped = [t.seconds for t in usual.terms if t.path == "compute/linear_layers"][0]  # noqa: RUF015
        assert (linear / shipped == pytest.approx(1.12, rel=0.1)) is changed
        assert (linear == pytest.approx(shipped, rel=1e-12)) is not changed


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model,gpus\nllama-3-8b,8\n", "has no column step_time_s"),
        ("model,gpsu,step_time_s\nllama-3-8b,8,1\n", r"no column 'gpsu' is known.*gpus"),
        ("model,gpus,step_time_s\nllama-3-8b,8\n", r":2: has 2 cells under 3 columns"),
        ("model,gpus,step_time_s\nllama-3-8b,8,soon\n", r":2: .*soon"),
        ("model,gpus,step_time_s\nllama-3-8b,8,-1\n", r":2: .*above 0"),
        ("model,gpus,step_time_s\nllama-9000,8,1\n", r":2: .*llama-9000"),
        ("model,gpus,tp,step_time_s\nllama-3-8b,8,3,1\n", r":2: "),
        ("model,gpu,gpus,step_time_s\nllama-3-8b,A100,8,1\n", r":2: a column gpu"),
        ("model,gpus,stack,step_time_s\nllama-3-8b,8,fsdp2,1\nllama-3-8b,8,megatron,1\n", "several stacks"),
        ("model,gpus,step_time_s\n", "has 0 rows"),
        ('model,gpus,step_time_s\n"llama\n', "is not CSV"),
    ],
)
def test_a_bad_file_is_one_line_that_names_it(tmp_path: Path, record: dict[str, Any], text: str, message: str) -> None:
    file = tmp_path / "steps.csv"
    file.write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        fit_step_file(str(file), record)
    assert "steps.csv" in str(caught.value)


def drawn(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Seconds of computing, of attention in it, of launches and of communication, of steps that nobody measured."""
    share = rng.uniform((0.5, 0.02, 0.0, 0.0), (1.0, 0.4, 0.3, 0.5), (count, 4))
    share[:, 1:] *= share[:, :1]
    return share, np.exp(rng.normal(0.0, 1.0, count))


def told(rng: np.random.Generator, count: int, noise: float) -> list[tuple[str, bool]]:
    """Which factors some steps identify, and whether the stated 80 % bar holds the truth."""
    share, size = drawn(rng, count)

    def predict(factors: dict[str, float]) -> np.ndarray:
        computing, host, talking, attention = (factors.get(f.name, 1.0) for f in FACTORS)
        total = computing * (share[:, 0] + share[:, 1] * attention) + host * share[:, 2] + talking * share[:, 3]
        return np.asarray(size * total)

    truth = {f.name: float(np.exp(rng.normal(0.0, f.width))) for f in FACTORS}
    measured = predict(truth) * np.exp(rng.normal(0.0, noise, count))
    found = fit_factors(predict, measured).values
    return [(name, abs(np.log(v.value / truth[name])) <= NORMAL_80 * v.stderr / v.value) for name, v in found.items()]


@pytest.mark.parametrize(
    ("count", "trials", "least", "most"),  # factors a trial that must be identified, and may be
    [(1, 150, 0.0, 0.1), (2, 150, 0.0, 0.3), (3, 150, 0.05, 1.0), (5, 120, 0.4, 2.0), (10, 60, 1.5, 4.0)],
)
def test_few_steps_claim_no_more_than_they_know(count: int, trials: int, least: float, most: float) -> None:
    """Simulation: whatever is called identified lies within the stated bar in 80 % of the cases, however few the steps.

    Steps are sums of four times that hold different shares; a step's own error is a little less or more than believed.
    """
    rng = np.random.default_rng(count)
    found = [inside for trial in range(trials) for _, inside in told(rng, count, (0.04, 0.06)[trial % 2])]
    assert least <= len(found) / trials <= most
    if len(found) > 20:
        assert np.mean(found) == pytest.approx(0.85, abs=0.1)
