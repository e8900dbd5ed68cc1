"""The quick decorator of frozen records does what the standard one does."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from typing import Any

import pytest

from dscalc.frozen import dataclass


@dataclass(frozen=True, slots=True)
class Quick:
    """By value."""

    a: int
    b: tuple[int, ...] = ()
    c: str = "c"


@dataclass(frozen=True, slots=True, eq=False)
class Single:
    """By identity."""

    a: int


@dataclasses.dataclass(frozen=True, slots=True)
class Standard:
    """By value."""

    a: int
    b: tuple[int, ...] = ()
    c: str = "c"


def test_like_the_standard_one() -> None:
    one, other = Quick(1, c="d"), Standard(1, c="d")
    assert repr(one) == repr(other).replace("Standard", "Quick")
    assert [(f.name, f.default) for f in dataclasses.fields(Quick)] == [
        (f.name, f.default) for f in dataclasses.fields(Standard)
    ]
    assert Quick.__slots__ == Standard.__slots__ == Quick.__match_args__
    assert dataclasses.asdict(one) == dataclasses.asdict(other)
    assert dataclasses.replace(one, b=(2,)) == Quick(a=1, b=(2,), c="d")
    assert (Quick.__doc__, Quick.__module__, Quick.__qualname__) == ("By value.", __name__, "Quick")


def test_equal_and_hashed_by_value_unless_told_otherwise() -> None:
    assert Quick(1) == Quick(1, ()) != Quick(2)
    assert hash(Quick(1)) == hash(Quick(a=1))
    assert Quick(1) != Standard(1)
    assert Single(1) != Single(1)
    assert len({Single(1), Single(1)}) == 2


@pytest.mark.parametrize("record", [Quick(1, (2, 3)), Quick(a=1)])
def test_copies(record: Quick) -> None:
    assert pickle.loads(pickle.dumps(record)) == copy.deepcopy(record) == copy.copy(record) == record  # noqa: S301


def test_frozen() -> None:
    record: Any = Quick(1)
    with pytest.raises(dataclasses.FrozenInstanceError, match="'a'"):
        record.a = 2
    with pytest.raises(dataclasses.FrozenInstanceError, match="'b'"):
        del record.b
    with pytest.raises(dataclasses.FrozenInstanceError, match="'new'"):
        record.new = 3


@pytest.mark.parametrize(
    ("values", "named", "message"),
    [
        ((), {}, "lacks a"),
        ((1, (), "c", 4), {}, "not so many"),
        ((1,), {"a": 2}, "not a"),
        ((1,), {"d": 2}, "not d"),
    ],
)
def test_wrong_calls(values: tuple[Any, ...], named: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Quick(*values, **named)


def test_what_it_does_not_do() -> None:
    unfrozen: Any = dataclass
    with pytest.raises(TypeError, match="only frozen"):
        unfrozen(frozen=False)
    with pytest.raises(TypeError, match="inherits"):

        @dataclass(frozen=True)
        class _More(Quick):
            d: int = 0
