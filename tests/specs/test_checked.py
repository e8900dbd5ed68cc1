"""Records that check what a person gives and read what ships as it is."""

from __future__ import annotations

import copy
import pickle
from typing import Annotated, Any

import pytest
from pydantic import ValidationError

from dscalc.specs.checked import Checked, Limit

Share = Annotated[float, Limit(ge=0, le=1, strict=True)]


class Inner(Checked):
    share: Share
    note: str | None = None


class Outer(Checked):
    name: Annotated[str, Limit(min_length=1)]
    inner: Inner | None = None
    many: tuple[Inner, ...] = ()

    def consistent(self) -> None:
        if self.name == "empty" and self.many:
            raise ValueError("an empty one has none")


DATA = {"name": "x", "inner": {"share": 1}, "many": [{"share": 0.5, "note": "half"}, {"share": 0}]}


def test_reading_equals_checking_where_the_data_are_right() -> None:
    read, checked = Outer.read(DATA), Outer.model_validate(DATA)
    assert read == checked
    assert repr(read) == repr(checked)
    assert hash(read) == hash(checked)
    assert isinstance(read.many[0], Inner)
    assert isinstance(read.many[1].share, float)
    assert (read.inner, read.many[0].note, Outer.read({"name": "y"}).many) == (Inner(share=1.0), "half", ())


def test_a_record_may_hold_records_already_built() -> None:
    assert Outer(name="x", inner=Inner(share=1.0)).inner == Inner(share=1.0)
    assert Outer.model_validate(Outer.read(DATA)) == Outer.read(DATA)


@pytest.mark.parametrize(
    ("data", "place", "message"),
    [
        ({}, ("name",), "Field required"),
        ({"name": ""}, ("name",), "at least 1 character"),
        ({"name": "x", "colour": "red"}, ("colour",), "not permitted"),
        ({"name": "x", "inner": {"share": 2}}, ("inner", "share"), "less than or equal to 1"),
        ({"name": "x", "many": [{"share": 0}, {}]}, ("many", 1, "share"), "Field required"),
        ({"name": "x", "many": 3}, ("many",), "valid tuple"),
        ({"name": "empty", "many": [{"share": 0}]}, (), "an empty one has none"),
    ],
)
def test_what_is_wrong_is_named(data: dict[str, Any], place: tuple[str | int, ...], message: str) -> None:
    with pytest.raises(ValidationError, match="1 validation error for Outer") as caught:
        Outer.model_validate(data)
    fault = caught.value.errors()[0]
    assert fault["loc"][: len(place)] == place
    assert message in fault["msg"]


def test_frozen_and_copied() -> None:
    record: Any = Outer.read(DATA)
    with pytest.raises(AttributeError, match="frozen; name"):
        record.name = "y"
    with pytest.raises(AttributeError, match="frozen; name"):
        del record.name
    assert pickle.loads(pickle.dumps(record)) == copy.deepcopy(record) == record  # noqa: S301
    assert record.model_copy(update={"name": "y"}).model_dump() == {**record.model_dump(), "name": "y"}
