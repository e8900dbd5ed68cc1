"""Which stack a printed framework name means."""

from __future__ import annotations

import pytest

from dscalc.specs.stack import framework_stack


@pytest.mark.parametrize(
    ("printed", "stack"),
    [
        ("Megatron-Core 0.12", "megatron"),
        ("nemo", "nemo"),
        ("NVIDIA NeMo Framework Release 25.04", "nemo"),
        ("FlagPerf (Megatron-DeepSpeed)", "megatron-deepspeed"),  # a name that is contained
        ("Megatron-LM + DeepSpeed", "megatron-deepspeed"),  # the longest of several
        ("Megatron-LM (DeepSpeed)", "megatron-lm"),  # a name in front wins over one that is contained
        ("Trainer on PyTorch FSDP2", "fsdp2"),
        ("NeMoX", None),  # a part of a longer word is none
        ("", None),
    ],
)
def test_framework_names(printed: str, stack: str | None) -> None:
    assert framework_stack(printed) == stack
