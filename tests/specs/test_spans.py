"""Lists and ranges of an option, as a sweep takes them."""

from __future__ import annotations

import pytest

from dscalc.errors import DscalcError
from dscalc.specs.given import gather
from dscalc.specs.sweep_options import TABLE


def read(**words: object) -> dict[str, object]:
    return gather(words, TABLE)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("8", (8,)),
        (8, (8,)),
        ("1,2,4", (1, 2, 4)),
        ([1, 2, "4"], (1, 2, 4)),
        ("8..64", (8, 16, 32, 64)),
        ("8..100", (8, 16, 32, 64)),
        ("8..8", (8,)),
        ("8..64:8", (8, 16, 24, 32, 40, 48, 56, 64)),
        ("1k..4k", (1000, 2000, 4000)),
        ("4,1..4,16", (4, 1, 2, 16)),
        (range(2, 8, 2), (2, 4, 6)),
    ],
)
def test_values(text: object, values: tuple[int, ...]) -> None:
    assert read(gpus=text)["gpus"] == values


def test_words_and_aliases_are_lists_too() -> None:
    found = read(zero="1,3", schedule=["1f1b", "zb-h1"], tensor_model_parallel_size="2,4", fsdp=None, recompute="full")
    assert found["zero"] == (1, 3)
    assert found["schedule"] == ("1f1b", "zb-h1")
    assert found["tp"] == (2, 4)
    assert found["recompute"] == ("full",)
    assert read(fsdp=True)["zero"] == (3,)
    assert read(cluster="dgx-h100, dgx-h200")["cluster"] == ("dgx-h100", "dgx-h200")
    assert read(seq_len="8k")["seq_len"] == 8192  # one value, as ever


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"gpus": "64..8"}, "holds no value"),
        ({"gpus": "..8"}, "is no range"),
        ({"gpus": "8..64:"}, "is no range"),
        ({"gpus": "8..64:0"}, "out of range"),
        ({"gpus": "1..1e9:1"}, "more than 10,000"),
        ({"gpus": []}, "holds no value"),
        ({"tp": "1,two"}, "two"),
        ({"schedule": "1f1b..zb-h1"}, "not one of its words"),
        ({"grad_accum": 2}, "no such option"),
    ],
)
def test_faults_name_option_and_text(words: dict[str, object], message: str) -> None:
    with pytest.raises(DscalcError, match=message) as error:
        read(**words)
    assert f"--{next(iter(words)).replace('_', '-')}" in str(error.value)
