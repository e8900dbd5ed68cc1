"""The set of options is a contract: it grows, and nothing in it is renamed. Random options never break the answer."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dscalc.answers.memory import MemoryAnswer, memory
from dscalc.answers.words import axis_help
from dscalc.cli.main import COMMANDS, main
from dscalc.cli.reference import page
from dscalc.cost.axes import AXES
from dscalc.errors import DscalcError
from dscalc.specs.option_table import CONSTANTS, OPTIONS, TABLE
from dscalc.specs.options import canonical, parse
from tests.cli.helpers import LAYOUT


def test_no_flag_disappears(repository: Any) -> None:
    """Add new flags to the list; removing or renaming one breaks somebody's script."""
    known = (repository / "tests" / "golden" / "memory-flags.txt").read_text(encoding="utf-8").split()
    context = main.make_context("dscalc", ["memory", "--help"], resilient_parsing=True)
    command = main.get_command(context, "memory")
    assert command is not None
    sub = command.make_context("memory", [], parent=context, resilient_parsing=True)
    flags = {flag for p in command.get_params(sub) for flag in (*p.opts, *p.secondary_opts) if flag.startswith("-")}
    assert flags == set(known)


def test_every_axis_is_an_option_with_its_help() -> None:
    for axis in AXES:
        assert axis.name in OPTIONS
        assert axis_help(axis.name) == axis.help
    for option in TABLE:
        assert option.help or axis_help(option.name), option.name


def test_no_spelling_means_two_things() -> None:
    words = [w for o in TABLE for w in (o.name, *o.aliases)] + list(CONSTANTS)
    assert len(words) == len(set(words))
    for option in TABLE:
        for alias in option.aliases:
            assert canonical(alias) == canonical(alias.replace("_", "-")) == option.name


def test_the_reference_page_is_current(repository: Any) -> None:
    path = repository / "docs" / "reference" / "cli.md"
    assert path.read_text(encoding="utf-8") == page(), "run python -m dscalc.cli.reference"


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_quick_and_light(run_dscalc: Any, command: str) -> None:
    script = (
        "import sys; from dscalc.cli.main import run\ntry:\n    run([sys.argv[1], '--help'])\nexcept SystemExit: pass\n"
    )
    script += "print('LOADED', *sorted({'numpy', 'pydantic', 'rich', 'pandas'} & set(sys.modules)))"
    import subprocess
    import sys

    ran = subprocess.run([sys.executable, "-c", script, command], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "LOADED"


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("params", "7B", 7_000_000_000),
        ("params", 7e9, 7_000_000_000),
        ("seq_len", "8k", 8192),
        ("zero", "3", 3),
        ("zero", 3, 3),
        ("precision", "BF16", "bf16"),
        ("cp_comm", "all_gather", "all-gather"),
        ("offload", "optimizer,activations", ("optimizer", "activations")),
        ("offload", ["optimizer", "activations"], ("optimizer", "activations")),
        ("gated_mlp", "no", False),
        ("capacity_factor", "1.25", 1.25),
        ("bandwidth", "400Gb/s", 50e9),
        ("flops", "400TF", 4e14),
        ("latency", "5us", 5e-6),
    ],
)
def test_values_are_read(name: str, value: Any, expected: Any) -> None:
    assert parse(OPTIONS[name], value) == expected


def test_wrong_words_are_refused_in_python_too() -> None:
    for wrong in (
        {"tpp": 2},
        {"train_batch_size": 2},
        {"tp": "x"},
        {"zero": 7},
        {"tp": True},
        {"params": float("nan")},
    ):
        with pytest.raises(DscalcError):
            memory(**{"params": 7e9, **wrong})


OPTION = st.fixed_dictionaries(
    {
        "model": st.sampled_from(["llama-2-7b", "llama-3-8b", "deepseek-v3", "gpt2", "Mixtral-8x7B"]),
    },
    optional={
        **LAYOUT,
        "precision": st.sampled_from(OPTIONS["precision"].choices),
        "recipe": st.sampled_from(["bf16-mixed", "megatron", "fsdp", "bf16-pure", "nanotron", "fp8"]),
        "optimizer": st.sampled_from(["adamw", "adamw-8bit", "sgd", "muon", "adafactor"]),
        "attention": st.sampled_from(OPTIONS["attention"].choices),
        "loss": st.sampled_from(["megatron", "eager", "chunked", "fused"]),
        "offload": st.sets(st.sampled_from(["optimizer", "parameters", "activations"]), min_size=1).map(sorted),
        "optimizer_in_backward": st.booleans(),
        "gpu": st.sampled_from(["H100-SXM5-80GB", "A100", "MI300X"]),
    },
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(OPTION)
def test_random_options_give_an_answer_or_one_clear_line(options: dict[str, Any]) -> None:
    try:
        answer = memory(**options)
    except DscalcError as error:
        text = str(error)
    else:
        check(answer)
        return
    assert text
    assert "\n" not in text


def check(answer: MemoryAnswer) -> None:
    total = 0.0
    for term in answer.terms:
        assert math.isfinite(term.bytes), term
        assert term.bytes >= 0, term
        total += term.bytes
    assert total == answer.total_bytes
    assert answer.low_bytes <= answer.total_bytes <= answer.high_bytes
    assert answer.allocated_bytes <= answer.reserved_bytes <= answer.device_bytes
    for knob in answer.knobs:
        assert knob.saves_bytes > 0
    answer.to_json()


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=12), st.one_of(st.text(max_size=12), st.integers(), st.floats(), st.none()), max_size=4
    )
)
def test_nonsense_is_refused_politely(options: dict[str, Any]) -> None:
    options = {k: v for k, v in options.items() if k != "scenario"}
    with pytest.raises(DscalcError):
        memory(**{"params": 7e9, "tp": 0, **options})
