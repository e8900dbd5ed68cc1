"""The parts that every profile is made of: a number with unit, kind and source, its dimension checked on loading."""

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from dscalc import units
from dscalc.errors import UnitError

Name = Annotated[str, StringConstraints(min_length=1, max_length=80, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
Text = Annotated[str, StringConstraints(min_length=1, max_length=2000, pattern=r"^[^\x00-\x1f\x7f-\x9f]+$")]
Finite = Annotated[float, Field(ge=0, allow_inf_nan=False, strict=True)]


class Profile(BaseModel):
    """Base of every model here: frozen, and a misspelt field is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


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
    n: Annotated[int, Field(ge=1, strict=True)] | None = None  # measurements behind the value
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


def measures(dimension: str, *, whole: bool = False) -> AfterValidator:
    """Validator of a :class:`Quantity` field that must have a unit of ``dimension``."""

    def check(quantity: Quantity) -> Quantity:
        try:
            base = units.to_base(quantity.value, quantity.unit, dimension)
        except UnitError as error:
            raise ValueError(error.message) from None
        if whole and (base < 1 or base != int(base)):
            raise ValueError(f"{quantity.value:g} is not a whole number of 1 or more")
        return quantity

    return AfterValidator(check)


Bytes = Annotated[Quantity, measures("bytes")]
Bandwidth = Annotated[Quantity, measures("bandwidth")]
FlopRate = Annotated[Quantity, measures("flop_rate")]
Time = Annotated[Quantity, measures("time")]
Power = Annotated[Quantity, measures("power")]
PricePerHour = Annotated[Quantity, measures("price")]
Count = Annotated[Quantity, measures("count", whole=True)]
Number = Annotated[Quantity, measures("count")]
Fraction = Annotated[Quantity, measures("fraction")]


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
