"""The parts that every profile is made of: a number with unit, kind and source, its dimension checked on loading."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from dscalc import units
from dscalc.errors import UnitError
from dscalc.specs.checked import Checked, Limit

Name = Annotated[str, Limit(min_length=1, max_length=80, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
Text = Annotated[str, Limit(min_length=1, max_length=2000, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
Finite = Annotated[float, Limit(ge=0, allow_inf_nan=False, strict=True)]


class Profile(Checked):
    """Base of every model here: frozen, and a misspelt field is an error."""


class Quantity(Profile):
    """One number of a profile with where it comes from.

    ``kind``: ``datasheet`` (the maker or operator prints it), ``measured`` (read or timed on the part), ``fitted``
    (estimated from many measurements), ``assumed`` (derived, copied from a sister part, disputed or unverified).
    """

    value: Finite
    unit: Name
    kind: Literal["datasheet", "measured", "fitted", "assumed"]
    source: Text
    stderr: Finite | None = None  # same unit as value
    n: Annotated[int, Limit(ge=1, strict=True)] | None = None  # measurements behind the value
    note: Text | None = None

    @property
    def base(self) -> float:
        """The value [base unit of its dimension]."""
        return units.to_base(self.value, self.unit, units.unit_dimension(self.unit))

    @property
    def base_stderr(self) -> float | None:
        """The standard error [base unit of its dimension], None where not given."""
        if self.stderr is None:
            return None
        return units.to_base(self.stderr, self.unit, units.unit_dimension(self.unit))


class Measures:
    """Check of a :class:`Quantity` field, which must have a unit of ``dimension``."""

    __slots__ = ("dimension", "whole")

    def __init__(self, dimension: str, *, whole: bool = False) -> None:
        self.dimension, self.whole = dimension, whole

    def check(self, quantity: Quantity) -> Quantity:
        """The same record.

        Raises:
            ValueError: its unit measures something else, or its value is not a count of things.
        """
        try:
            base = units.to_base(quantity.value, quantity.unit, self.dimension)
        except UnitError as error:
            raise ValueError(error.message) from None
        if self.whole and (base < 1 or base != int(base)):
            raise ValueError(f"{quantity.value:g} is not a whole number of 1 or more")
        return quantity

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Called by pydantic when it compiles a field."""
        from pydantic import AfterValidator

        return AfterValidator(self.check).__get_pydantic_core_schema__(source, handler)


Bytes = Annotated[Quantity, Measures("bytes")]
Bandwidth = Annotated[Quantity, Measures("bandwidth")]
FlopRate = Annotated[Quantity, Measures("flop_rate")]
Time = Annotated[Quantity, Measures("time")]
Power = Annotated[Quantity, Measures("power")]
PricePerHour = Annotated[Quantity, Measures("price")]
Count = Annotated[Quantity, Measures("count", whole=True)]
Number = Annotated[Quantity, Measures("count")]
Fraction = Annotated[Quantity, Measures("fraction")]


def base_of(quantity: Quantity | None) -> float | None:
    """The value of an optional record.

    Args:
        quantity: the record, None where a profile does not say [profile].

    Returns:
        The value [base unit of its dimension], None where not given.
    """
    return None if quantity is None else quantity.base


class Alias(Profile):
    """Another name of a profile, with what is taken for granted by using it."""

    name: Name
    assumption: Text
