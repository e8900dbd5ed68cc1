"""``dscalc batch``: keys, the paper's numbers, schedules, pictures, layouts beside their own commands, bad input."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dscalc
from dscalc.answers.batch_rules import LONGEST_SCHEDULE
from dscalc.answers.sweep import sweep
from dscalc.codes import BATCH_LAWS, LR_RULES
from dscalc.errors import DscalcError, InputError
from dscalc.report.schedule_chart import schedule_chart
from dscalc.specs.options import Span, read_span
from dscalc.specs.sgd_facts import sgd_facts
from dscalc.specs.stack import entries
from tests.cli.helpers import LAYOUT
from tests.cli.test_bad_input import assert_refused

PAPER = {"workers": 256, "local_batch": 32, "base_batch": 256, "base_lr": 0.1}
WORDS = ["batch", "--workers", "256", "--local-batch", "32", "--base-batch", "256", "--base-lr", "0.1"]
MODEL = {"model": "llama-3-8b", "cluster": "dgx-h100", "gpus": 64, "tp": 2, "grad_accum": 4, "stack": "megatron"}
KEYS = {"effective_batch", "effective_batch_tokens", "lr", "rule", "warmup", "critical_batch", "straggler", "notes"}


def codes(answer: Any) -> set[str]:
    return {w.code for w in answer.warnings}


# --- the paper's numbers ---


def test_the_papers_command_needs_no_model(run_dscalc: Any) -> None:
    ran = run_dscalc(*WORDS, "--format", "json")
    assert ran.returncode == 0, ran.stderr
    whole = json.loads(ran.stdout)
    result = whole["result"]
    assert set(result) >= KEYS
    assert whole["command"] == "batch"
    assert whole["inputs"]["model"]["params"] is None
    assert result["effective_batch"] == 8192
    assert result["effective_batch_tokens"] is None
    assert (result["lr"], result["rule"]) == (3.2, "linear")
    assert result["warmup"]["start_lr"] == 0.1
    assert result["warmup"]["peak_lr"] == 3.2
    assert result["warmup"]["epochs"] == 5
    assert {r["rule"]: r["lr"] for r in result["rules"]}["sqrt"] == pytest.approx(0.1 * math.sqrt(32.0), rel=1e-15)
    assert result["accumulation_layouts"] == result["parallelism"] == []
    assert whole["warnings"] == []  # 8,192 is within what the paper saw
    json.loads(ran.stdout, parse_constant=pytest.fail)  # no NaN, no infinity


def test_published_points_draw_the_range_of_the_linear_rule() -> None:
    """Where the error stays within twice its spread of that at 256 the rule holds; the shipped range says the same."""
    points = sgd_facts().points
    (base,) = (p for p in points if p.batch == 256)
    assert (base.error, base.lr) == (23.60, 0.1)
    scaled = {p.batch: p for p in points if p.rule == "linear" and p.warmup in ("gradual", "none needed")}
    assert scaled[8192].error == 23.74
    held = [batch for batch, p in scaled.items() if p.error <= base.error + 2.0 * max(p.spread, base.spread)]
    assert max(held) == sgd_facts().rules["linear"].high == 8192
    assert all(p.error > base.error + 2.0 * p.spread for batch, p in scaled.items() if batch > 8192)
    (without,) = (p for p in points if p.warmup == "none")
    assert without.error == 24.84
    assert without.error > scaled[8192].error + 2.0 * without.spread  # so the answer warns without warmup
    for p in points:
        assert p.lr == pytest.approx(dict(zip(LR_RULES, _rates(p.batch), strict=True))[p.rule], rel=1e-3)
    assert all(p.source.startswith("[Goyal2017]") for p in points)


def _rates(batch: int) -> list[float]:
    answer = dscalc.batch(global_batch=batch, base_batch=256, base_lr=0.1)
    found = {scaled.rule: scaled.lr for scaled in answer.rates.rules}
    return [found[rule] or 0.0 for rule in LR_RULES]


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, None),
        ({"workers": 512}, "beyond_evidence"),
        ({"warmup": "none"}, "no_warmup"),
        ({"workers": 1, "local_batch": 256, "warmup": "none"}, None),  # nothing was scaled
        ({"rule": "none"}, "not_scaled"),
        ({"optimizer": "adamw"}, "beta_out_of_range"),  # 32 times the batch: beta1 would be below 0
        ({"optimizer": "adamw", "workers": 64}, None),
        ({"optimizer": "adamw", "rule": "linear"}, "rule_of_another_optimizer"),
        ({"optimizer": "momentum", "rule": "sqrt", "workers": 32}, "rule_of_another_optimizer"),
        ({"rule": "lamb", "workers": 2048}, "beyond_evidence"),
        ({"beta1": 0.95}, "unused_option"),  # of a linear rule
        ({"tokens": 1_000_000, "seq_len": 1024}, "warmup_longer_than_training"),
    ],
)
def test_outside_what_was_seen_there_is_a_warning(changes: dict[str, Any], code: str | None) -> None:
    more = {"dataset_samples": 1_281_167} if code == "warmup_longer_than_training" else {}
    answer = dscalc.batch(**{**PAPER, **changes, **more})
    if code is None:
        assert not answer.warnings
    else:
        assert code in codes(answer)
    assert all(w.next_step for w in answer.warnings)


def test_the_rule_follows_the_optimizer() -> None:
    for name, entry in entries("optimizers").items():
        rule = entry.values["lr_rule"]
        assert rule == {"sgd": "linear", "momentum": "linear", "lamb": "lamb"}.get(name, "sqrt")
        assert dscalc.batch(**PAPER, optimizer=name).rates.rule == rule
    assumed = {a.name: a for a in dscalc.batch(**PAPER).assumptions}
    assert "SGD" in assumed["rule"].source
    assert dscalc.batch(model="llama-3-8b", base_batch=1, base_lr=1e-4).rates.rule == "sqrt"


def test_k_workers_do_not_make_k_times_the_updates() -> None:
    found = dscalc.batch(**PAPER, dataset_samples=1_281_167, epochs=90).updates
    assert (found.per_epoch, found.per_epoch_alone) == (157, 40_037)
    assert found.total == math.ceil(1_281_167 * 90 / 8192)
    tokens = dscalc.batch(workers=8, local_batch=4, grad_accum=2, seq_len="2k", tokens="1B")
    assert tokens.batch_tokens == 8 * 4 * 2 * 2048
    assert tokens.updates.total == math.ceil(1e9 / tokens.batch_tokens)


def test_a_layout_gives_the_workers() -> None:
    answer = dscalc.batch(gpus=64, tp=4, pp=2, cp=2, micro_batch=3, grad_accum=5, seq_len=1024)
    assert (answer.workers, answer.batch) == (4, 60)
    assert answer.waiting.gpus == 64


# --- the schedule ---


class LambdaLR:
    """What PyTorch's scheduler of that name does with the factor: the initial rate times it, step by step."""

    def __init__(self, initial_lr: float, factor: Any) -> None:
        self.initial_lr, self.factor, self.last_epoch = initial_lr, factor, 0

    @property
    def lr(self) -> float:
        return self.initial_lr * float(self.factor(self.last_epoch))

    def step(self) -> None:
        self.last_epoch += 1


def test_warmup_drives_a_scheduler() -> None:
    warmup = dscalc.batch(**PAPER, dataset_samples=1_281_167).warmup
    assert warmup.steps == 5 * 157
    scheduler = LambdaLR(0.1, warmup.factor)
    rates = []
    for _ in range(1000):
        rates.append(scheduler.lr)
        scheduler.step()
    assert rates[0] == pytest.approx(0.1)
    assert np.all(np.diff(rates) >= 0.0)
    assert rates[785:] == pytest.approx([3.2] * 215)
    assert rates[784] == pytest.approx(3.2 - 3.1 / 785)  # continuous at the end
    assert [m.lr for m in warmup.schedule()] == pytest.approx(rates[:786])


def test_csv_has_a_row_for_each_update(run_dscalc: Any) -> None:
    ran = run_dscalc(*WORDS, "--dataset-samples", "1281167", "--format", "csv")
    rows = list(csv.DictReader(io.StringIO(ran.stdout)))
    assert list(rows[0]) == ["step", "epoch", "lr", "factor"]
    assert [int(row["step"]) for row in rows] == list(range(786))
    assert (float(rows[0]["lr"]), float(rows[-1]["lr"])) == (0.1, 3.2)
    assert float(rows[157]["epoch"]) == 1.0
    by_epoch = run_dscalc(*WORDS, "--format", "csv").stdout.splitlines()
    assert [line.split(",")[1] for line in by_epoch[1:]] == [f"{epoch}.0" for epoch in range(6)]


def test_a_warmup_in_epochs_needs_the_updates_of_one() -> None:
    warmup = dscalc.batch(**PAPER).warmup
    with pytest.raises(InputError, match="dataset_samples"):
        warmup.factor(3)
    with pytest.raises(InputError, match="base_batch"):
        dscalc.batch(workers=2, warmup="3steps").warmup.factor(1)
    assert dscalc.batch(workers=2, base_batch=1, warmup="3steps").warmup.factor(3) == 2.0
    with pytest.raises(InputError, match="base_lr"):
        dscalc.batch(workers=2, base_batch=1, warmup="3steps").warmup.lr(3)


def test_a_long_warmup_is_listed_in_strides() -> None:
    rows = dscalc.batch(**PAPER, warmup="1B steps").warmup.schedule()
    assert LONGEST_SCHEDULE / 2 < len(rows) <= LONGEST_SCHEDULE + 1
    assert (rows[0].step, rows[-1].step) == (0, 10**9)


def test_adam_warms_up_from_zero_and_sgd_from_the_base() -> None:
    adam = dscalc.batch(**{**PAPER, "workers": 16}, optimizer="adamw").warmup
    assert (adam.start_lr, adam.steps) == (0.0, 2000)
    down = dscalc.batch(workers=1, local_batch=64, base_batch=256, base_lr=0.1)
    assert down.lr == pytest.approx(0.025)
    assert down.warmup.steps == 0


def test_a_picture(run_dscalc: Any, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    ran = run_dscalc(*WORDS, "--quiet", "--plot", "a.svg", cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    answer = dscalc.batch(**PAPER)
    drawn = schedule_chart(answer, "svg")
    assert drawn.startswith(b"<?xml")
    assert (tmp_path / "a.svg").read_bytes() == drawn  # the same picture each time
    assert schedule_chart(answer, "png").startswith(b"\x89PNG")
    ran = run_dscalc(*WORDS, "--plot", "a.svg", cwd=tmp_path)
    assert_refused(ran, 1, ["--plot a.svg", "--force"])
    assert {p.name for p in tmp_path.iterdir()} == {"a.svg"}  # nothing half-written


def test_without_matplotlib_one_line_says_what_to_install(run_dscalc: Any, tmp_path: Path) -> None:
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "matplotlib.py").write_text("raise ImportError('hidden')\n", encoding="utf-8")
    ran = run_dscalc(*WORDS, "--plot", "a.svg", cwd=tmp_path, env={"PYTHONPATH": _path(tmp_path / "hidden")})
    assert_refused(ran, 1, ["--plot", "pip install 'dscalc[plot]'"])
    assert not (tmp_path / "a.svg").exists()


def _path(first: Path) -> str:
    import os

    return os.pathsep.join((str(first), str(Path(dscalc.__file__).parents[1])))


def test_two_workers_as_numpy_has_them() -> None:
    gradients, weights = np.array([[0.4, -0.2], [0.8, 0.6]]), np.array([1.0, -2.0])
    sgd, adam = dscalc.batch().averaging
    mean, total = gradients.sum(axis=0) / 2, gradients.sum(axis=0)
    assert sgd.mean == adam.mean == tuple(mean)
    assert sgd.total == tuple(total)
    assert sgd.after_mean == tuple(weights - 0.1 * mean)
    assert sgd.after_sum == tuple(weights - 0.1 * total)
    first = weights - 0.1 * mean / (np.abs(mean) + 1e-8)  # Adam's first step is the rate, whatever the gradient
    assert adam.after_mean == pytest.approx(tuple(first), abs=1e-12)
    assert adam.after_sum == pytest.approx(adam.after_mean, abs=1e-8)
    assert sgd.after_sum != pytest.approx(sgd.after_mean, abs=1e-3)


# --- where it stops ---


def test_laws_answer_where_their_inputs_are_known() -> None:
    answer = dscalc.batch(model="llama-3-8b", dp=64, tokens="1T", noise_scale="2M", train_loss=2.0)
    found = {limit.law: limit for limit in answer.limits}
    assert tuple(found) == BATCH_LAWS
    given_, step = found["given"], found["step"]
    assert given_.critical_batch == 2e6
    assert given_.largest_workers == int(0.2 * 2e6 // 4096)
    assert given_.data_penalty == pytest.approx(1.0 + 64 * 4096 / 2e6)
    assert given_.steps_penalty == pytest.approx(1.0 + 2e6 / (64 * 4096))
    assert step.steps_penalty is step.data_penalty is None  # no noise scale
    assert "params" in step.outside
    outside = " ".join(w.message for w in answer.warnings if w.code == "outside_law")
    assert all(f"law {name} " in outside for name in ("kaplan", "deepseek", "step", "zhang"))
    assert found["deepseek"].inputs["training_flop"] == pytest.approx(6.0 * 8.03e9 * 1e12, rel=1e-3)


def test_laws_count_parameters_without_vocabulary() -> None:
    """The sizes of [Zhang2024]: 24 layers of 12 x 1024^2 are 302 million, whatever the vocabulary; 1,365 sequences."""
    plain = {"layers": 24, "hidden": 1024, "heads": 16, "ffn_hidden": 4096, "gated_mlp": False}
    for vocab in (1000, 250_000):
        found = dscalc.batch(**plain, vocab=vocab, tokens="6B").limits
        laws = {limit.law: limit for limit in found}
        assert laws["zhang"].law_batch == pytest.approx(1365 * 512, rel=0.02)
        assert laws["step"].lr == pytest.approx(1.79 * 302e6**-0.713 * 6e9**0.307, rel=0.02)
        assert laws["zhang"].outside == ()
    llama = {limit.law: limit for limit in dscalc.batch(model="llama-3-8b", tokens="1T").limits}
    assert llama["zhang"].inputs["params"] == 8_030_261_248 - 2 * 128_256 * 4096


def test_within_their_range_laws_do_not_warn() -> None:
    answer = dscalc.batch(params=300e6, dp=16, tokens="5B", train_loss=3.0, seq_len=1024)
    assert {w.message.split()[1] for w in answer.warnings if w.code == "outside_law"} == set()
    beyond = dscalc.batch(params=300e6, dp=512, micro_batch=8, tokens="5B", train_loss=3.0, seq_len=1024)
    assert {"beyond_critical_batch", "beyond_optimal_batch"} <= codes(beyond)


def test_the_accepted_data_moves_the_largest_batch() -> None:
    less, more = (
        dscalc.batch(workers=8, seq_len=1000, noise_scale="1M", extra_data=share).limits[0] for share in ("10%", "50%")
    )
    assert (less.largest_workers, more.largest_workers) == (100, 500)


def test_images_have_a_noise_scale_too() -> None:
    answer = dscalc.batch(**PAPER, noise_scale=8192)
    assert answer.limits[0].data_penalty == 2.0
    assert "beyond_critical_batch" in codes(answer)


# --- waiting ---


def test_waiting_in_the_batch_and_in_the_step_is_the_same() -> None:
    answer = dscalc.batch(**MODEL, jitter="2%")
    step = dscalc.step(**MODEL, jitter=0.02)
    plain = dscalc.step(**MODEL)
    wait = answer.to_json()["result"]["straggler"]["straggler_s"]
    assert step.straggler_s == pytest.approx(wait)
    assert step.step_time_s == pytest.approx(plain.step_time_s + wait)
    assert step.terms[-1].path == "overhead/straggler"
    assert sum(t.seconds for t in step.terms) == pytest.approx(step.step_time_s, rel=1e-12)
    assert plain.straggler_s == 0.0
    assert [t.path for t in plain.terms] == [t.path for t in step.terms[:-1]]
    assert step.lower_s <= step.step_time_s <= step.upper_s
    assert wait == pytest.approx(0.02 * 2.3437 * plain.step_time_s, rel=1e-3)  # c(64)
    assert any(a.name == "step.jitter" for a in step.assumptions)


def test_straggler_figures() -> None:
    waits = dscalc.batch(workers=1024, jitter=0.02, gpus_per_node=8).to_json()["result"]["straggler"]
    assert waits["normal_wait_fraction"] == pytest.approx(0.065, rel=0.01)
    assert waits["exponential_factor"] == pytest.approx(7.509, rel=1e-3)
    assert waits["nodes"] == 128
    assert waits["slow_node_probability"] == pytest.approx(0.47, rel=0.01)
    assert waits["slow_node_wait_fraction"] == pytest.approx(0.047, rel=0.01)
    assert waits["without_slowest_saves_fraction"] < waits["normal_wait_fraction"]
    assert len(waits["fleet"]) == 3
    alone = dscalc.batch(workers=1).waiting
    assert (alone.wait, alone.saves, alone.fresh) == (0.0, None, None)


def test_a_sweep_waits_as_a_step_does() -> None:
    """The best layouts asked again by ``step``; the waiting grows with the GPUs and so lowers the ceiling."""
    words = {"model": "llama-3-8b", "cluster": "dgx-h100", "gpus": "8,64", "stack": "megatron", "global_batch": 64}
    most = {"max_tp": 8, "max_pp": 2, "max_cp": 1, "recompute": "none", "max_micro_batch": 2, "top": 2}
    plain, waiting = (sweep(**words, **most, **more) for more in ({}, {"jitter": "5%"}))
    assert all(row.straggler_s == 0.0 for row in plain.rows)
    assert [row.layout for row in plain.rows if row.rank] == [row.layout for row in waiting.rows if row.rank]
    for row, factor in ((waiting.rows[0], 1.42), (waiting.rows[-1], 2.34)):  # c(8), c(64)
        spec = row.layout
        axes = {name: getattr(spec, name) for name in ("gpus", "tp", "pp", "vpp", "zero", "schedule", "micro_batch")}
        same = {**axes, "sequence_parallel": spec.sequence_parallel, "recompute": spec.recompute}
        step = dscalc.step(**{**words, **same}, jitter=0.05)
        assert row.step_time_s == pytest.approx(step.step_time_s, rel=1e-12)
        assert row.straggler_s == pytest.approx(step.straggler_s, rel=1e-12)
        assert row.straggler_s == pytest.approx(0.05 * factor * (row.step_time_s - row.straggler_s), rel=0.01)
        parts = row.compute_s + row.host_s + row.communication_s + row.bubble_s + row.optimizer_s + row.straggler_s
        assert parts == pytest.approx(row.step_time_s, rel=1e-9)
    ceilings = plain.ceiling.limits["marginal_gain"].gpus, waiting.ceiling.limits["marginal_gain"].gpus
    assert ceilings[1] < ceilings[0]
    assert any(a.name == "step.jitter" for a in waiting.assumptions)


# --- layouts ---


def test_layouts_are_what_their_own_commands_say() -> None:
    """Each variant asked again by its own options, of ``memory``, ``step`` and ``comm``."""
    found = dscalc.batch(**MODEL).layouts
    assert found is not None
    assert found.reason == ""
    assert [v.what for v in found.accumulation][:3] == ["this layout", "4 x the workers", "4 x local batch"]
    base = {k: v for k, v in MODEL.items() if k not in ("gpus", "grad_accum", "tp")}
    for v in (*found.accumulation, *(p.layout for p in found.parallelism)):
        more = {"tp": v.tp, "pp": v.pp, "dp": v.dp, "zero": v.zero, "mbs": v.micro_batch, "ga": v.grad_accum}
        step = dscalc.step(**base, **more)
        assert v.step_time_s == pytest.approx(step.step_time_s, rel=1e-12)
        assert v.memory_bytes == pytest.approx(step.memory.total_bytes, rel=1e-12)
        assert v.fits == step.memory.fits
        assert v.bubble_share == pytest.approx(step.bubble_share, abs=1e-12)
        assert v.sent_bytes == pytest.approx(dscalc.comm(**base, **more).total.traffic_bytes, rel=1e-12)
    assert len({v.global_batch for v in found.accumulation}) == 1
    assert [p.axis for p in found.parallelism] == ["dp", "fsdp", "tp", "pp"]
    assert len({p.layout.global_batch for p in found.parallelism}) == 1


def test_bytes_of_each_parallelism_by_hand() -> None:
    """8 GPUs of a node, 32 sequences of 4,096 tokens, Llama-3-8B in bf16, gradients of 2 bytes; physics 6 on paper."""
    found = dscalc.batch(model="llama-3-8b", cluster="dgx-h100", gpus=8, grad_accum=4).layouts
    assert found is not None
    sent = {p.axis: p.layout.sent_bytes or 0.0 for p in found.parallelism}
    n, message = 8.03e9, 4096 * 4096 * 2  # parameters; s b h in bf16
    assert sent["dp"] == pytest.approx(9 / 8 * 2 * n, rel=0.01)  # NVLink SHARP sends (K + 1)/K n, a ring 2 (K - 1)/K n
    assert sent["fsdp"] == pytest.approx(7 / 8 * 4 * (2 + 2 + 2) * n, rel=0.01)  # two gathers, one scatter a micro
    layers = 10 * 7 / 8 * message * 32 * 32  # sequence parallel: 10 u a layer and micro-batch
    assert layers < sent["tp"] < 1.05 * layers  # embedding and head are the rest
    assert sent["pp"] == 32 * message  # an end stage: one way


def test_accumulation_spares_the_network_and_zero2_does_not() -> None:
    def gradients(zero: int, **more: Any) -> list[float]:
        layouts = dscalc.batch(**{**MODEL, "zero": zero}, **more).layouts
        assert layouts is not None
        return [v.data_bytes or 0.0 for v in layouts.accumulation[:2]]

    once, spread = gradients(1)
    assert once == pytest.approx(spread, rel=0.05)  # a step's gradients, however many micro-batches
    often, less = gradients(2)
    assert often > 2.0 * less
    assert gradients(2, no_sync=True)[0] < 0.6 * often
    gathered, less = gradients(3, no_sync=True)  # weights, for each micro-batch
    assert gathered > 2.0 * less
    said = [dscalc.batch(**{**MODEL, "zero": zero}).layouts for zero in (0, 1, 2, 3)]
    assert [layouts is not None and layouts.accumulation[0].sends_each_micro_batch for layouts in said] == [
        False,
        False,
        True,
        True,
    ]


def test_what_is_missing_for_more_is_said() -> None:
    only = dscalc.batch(params=7e9, dp=4, grad_accum=4).layouts
    assert only is not None
    assert only.accumulation[0].step_time_s is only.accumulation[0].sent_bytes is None
    assert only.accumulation[0].memory_bytes > 16 * 7e9
    assert "--cluster" in only.reason
    node = dscalc.batch(params=7e9, gpu="H100-SXM5-80GB", gpus=8, grad_accum=4).layouts
    assert node is not None
    assert node.accumulation[0].step_time_s
    assert all(v.gpus <= 8 for v in node.accumulation)
    assert "--interconnect" in node.reason


# --- bad input ---


@pytest.mark.parametrize(
    ("words", "code", "parts"),
    [
        (("--warmup", "5"), 2, ["--warmup", "5epochs"]),
        (("--warmup", "nan epochs"), 2, ["--warmup"]),
        (("--warmup", "1.5 steps"), 2, ["--warmup", "whole"]),
        (("--warmup", "1e30 epochs"), 2, ["--warmup", "range"]),
        (("--base-batch", "0"), 2, ["--base-batch"]),
        (("--base-lr", "-1", "--base-batch", "2"), 2, ["--base-lr"]),
        (("--base-lr", "inf", "--base-batch", "2"), 2, ["--base-lr"]),
        (("--base-lr", "1e300", "--base-batch", "2"), 2, ["--base-lr", "up to 1,000,000,000"]),
        (("--rule", "cubic"), 2, ["--rule", "linear, sqrt"]),
        (("--batch-law", "moore"), 2, ["--batch-law", "kaplan"]),
        (("--jitter", "300%"), 2, ["--jitter"]),
        (("--noise-scale", "0"), 2, ["--noise-scale"]),
        (("--train-loss", "low"), 2, ["--train-loss"]),
        (("--plot", "warmup.gif"), 2, ["--plot", ".svg"]),
        (("--bathc-law", "kaplan"), 2, ["did you mean --batch-law"]),
        (("--base-lr", "0.1"), 1, ["--base-lr", "--base-batch"]),
        (("--batch-law", "kaplan"), 1, ["--batch-law", "--train-loss"]),
        (("--batch-law", "step"), 1, ["--tokens"]),
        (("--epochs", "3"), 1, ["--epochs", "--dataset-samples"]),
        (("--tokens", "1B", "--seq-len", "1k", "--epochs", "3", "--dataset-samples", "9"), 1, ["--epochs", "--tokens"]),
        (("--workers", "8", "--gpus", "16"), 1, ["--dp 8", "--gpus is 16"]),
        (("--lora-rank", "4"), 1, ["--lora-rank", "--model"]),
        (("--plot", "w.svg"), 1, ["--plot", "--base-batch"]),
        (("--model", "llama-3-8b", "--tp", "3"), 1, ["--tp", "attention heads: 32"]),
        (("--scenario", "nowhere.toml"), 1, ["nowhere.toml"]),
    ],
)
def test_one_clear_line(run_dscalc: Any, tmp_path: Path, words: tuple[str, ...], code: int, parts: list[str]) -> None:
    ran = run_dscalc("batch", *words, cwd=tmp_path)
    assert_refused(ran, code, parts)
    assert not list(tmp_path.iterdir())


def test_a_scenario_holds_the_options(run_dscalc: Any, tmp_path: Path) -> None:
    text = 'workers = 256\nlocal_batch = 32\nbase_batch = 256\nbase_lr = 0.1\nwarmup = "5 epochs"\njitter = 0.02\n'
    (tmp_path / "run.toml").write_text(text, encoding="utf-8")
    ran = run_dscalc("batch", "--scenario", "run.toml", "--quiet", cwd=tmp_path)
    assert ran.stdout == run_dscalc(*WORDS, "--quiet").stdout


def test_a_missing_sequence_length_is_asked_for(run_dscalc: Any) -> None:
    assert "Add --seq-len" in run_dscalc("batch", "--workers", "8", "--tokens", "1T").stdout
    assert "Add --seq-len" not in run_dscalc("batch", "--workers", "8", "--tokens", "1T", "--seq-len", "1k").stdout


def test_a_file_of_csv_is_the_schedule(run_dscalc: Any, tmp_path: Path) -> None:
    ran = run_dscalc(*WORDS, "--output", "a.csv", "--dataset-samples", "1M", cwd=tmp_path)
    assert (ran.returncode, ran.stdout) == (0, "")
    assert (tmp_path / "a.csv").read_text(encoding="utf-8").startswith("step,epoch,lr,factor\n0,0.0,0.1,1.0\n")


@given(st.floats(0.0, 1e6), st.integers(0, 10**6))
def test_spans_are_read_as_they_are_written(epochs: float, steps: int) -> None:
    assert read_span(f"{steps}steps") == Span(float(steps), "steps")
    assert read_span(f"{epochs:.3f} epochs").amount == pytest.approx(epochs, abs=1e-3)
    assert read_span(str(Span(float(steps % 1000), "steps"))).amount == steps % 1000


OWN: dict[str, st.SearchStrategy[Any]] = {
    "base_batch": st.sampled_from([1, 256, 10**9]),
    "base_lr": st.sampled_from([1e-9, 0.1, 1e9]),
    "rule": st.sampled_from(LR_RULES),
    "warmup": st.sampled_from(["none", "1epoch", "0.3 epochs", "7steps", "1B steps", "1e9 epochs"]),
    "dataset_samples": st.sampled_from([1, 1000, 10**17]),
    "epochs": st.sampled_from([0.5, 90, 1e9]),
    "tokens": st.sampled_from([1, "2T", 10**17]),
    "train_loss": st.sampled_from([1e-9, 2.0, 11.0, 1e9]),
    "noise_scale": st.sampled_from([1, "2M", 10**17]),
    "extra_data": st.sampled_from([0.0, 0.2, 1.0]),
    "jitter": st.sampled_from([0.0, 0.02, 1.0]),
    "slow_nodes": st.sampled_from([0.0, 0.005, 1.0]),
    "beta1": st.sampled_from([0.0, 0.9, 1.0]),
    "optimizer": st.sampled_from(["adamw", "momentum"]),
    "params": st.sampled_from([1000, 7e9]),
    "gpu": st.sampled_from(["H100-SXM5-80GB"]),
    "interconnect": st.sampled_from(["400Gb/s"]),
}


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(st.fixed_dictionaries({}, optional={**OWN, **{k: v for k, v in LAYOUT.items() if not k.startswith("lora")}}))
def test_any_options_give_an_answer_or_one_clear_refusal(options: dict[str, Any]) -> None:
    from dscalc.report.batch import render

    try:
        answer = dscalc.batch(**options)
    except DscalcError:
        return
    json.dumps(answer.to_json(), allow_nan=False)
    for form in ("table", "csv", "markdown"):
        assert render(answer, form, explain=True, colour=False).endswith("\n")
    assert answer.batch == answer.case.layout.spec.global_batch or answer.batch > 2**53
