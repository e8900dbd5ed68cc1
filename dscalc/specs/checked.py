"""Frozen records, each field declared once: checked where a person builds one, read as they are where the data ship.

``Spec(name=...)`` and ``Spec.model_validate(...)`` check everything with pydantic; the annotations are compiled for it
when that is first needed. ``Spec.read(...)`` takes a JSON object of this package, which the tests have checked, and
``Spec.trusted(...)`` values that are right by construction; both leave pydantic unloaded, which costs more than an
estimate.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self, TypeVar, dataclass_transform, get_type_hints

if TYPE_CHECKING:
    from pydantic import BaseModel


class Limit:
    """What a value of a field must satisfy, in pydantic's words: ``Annotated[int, Limit(strict=True, ge=1)]``."""

    __slots__ = ("words",)

    def __init__(self, **words: Any) -> None:
        self.words = words

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> dict[str, Any]:
        """Called by pydantic when it compiles a field."""
        return {**handler(source), **self.words}


@dataclass_transform(kw_only_default=True, frozen_default=True)
class Checked:
    """Base of the records: annotations are fields, class attributes defaults; an instance holds what was given."""

    model_fields: ClassVar[tuple[str, ...]] = ()
    _kinds: ClassVar[dict[str, Any]]

    def __init_subclass__(cls) -> None:
        own = (name for name, text in cls.__annotations__.items() if not str(text).startswith("ClassVar"))
        cls.model_fields = (*cls.model_fields, *own)
        cls._kinds = {}  # filled when asked for

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(self.model_validate(values).__dict__)

    @classmethod
    def model_validate(cls, data: object) -> Self:
        """A record from a mapping of fields, all checked.

        Raises:
            pydantic.ValidationError: a field is missing, unknown or wrong.
        """
        return data if isinstance(data, cls) else _record(cls, _model(cls).model_validate(data))

    @classmethod
    def trusted(cls, values: Mapping[str, Any]) -> Self:
        """A record from values that are right by construction; nothing is checked."""
        record = object.__new__(cls)
        record.__dict__.update(values)
        return record

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """A record from a JSON object that is known to be right: one of a shipped file, which the tests check."""
        return cls.trusted({name: _read(value, cls._kind(name)) for name, value in data.items()})

    @classmethod
    def _kind(cls, name: str) -> Any:
        """The record class that a field holds, ``float``, or None for what JSON gives as it is."""
        if name not in cls._kinds:
            found = None
            home = next(base for base in cls.__mro__ if name in base.__annotations__)
            known = vars(sys.modules[home.__module__])
            for word in re.findall(r"\w+", home.__annotations__[name]):
                value = float if word == "float" else known.get(word)
                value = getattr(value, "__origin__", value)  # of Annotated
                if value is float or (isinstance(value, type) and issubclass(value, Checked)):
                    found = value
            cls._kinds[name] = found
        return cls._kinds[name]

    def consistent(self) -> None:
        """Check fields against each other, after each has been checked alone.

        Raises:
            ValueError: fields that contradict each other.
        """

    def model_dump(self) -> dict[str, Any]:
        """Every field with its value."""
        return {name: getattr(self, name) for name in self.model_fields}

    def model_copy(self, *, update: Mapping[str, Any]) -> Self:
        """The same with some fields replaced by values that are right by construction."""
        return self.trusted({**self.__dict__, **update})

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen; {name} cannot be set")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"{type(self).__name__} is frozen; {name} cannot be removed")

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and other.model_dump() == self.model_dump()

    def __hash__(self) -> int:
        return hash((type(self), *self.model_dump().values()))

    def __repr__(self) -> str:
        shown = (f"{name}={self.__dict__[name]!r}" for name in self.model_fields if name in self.__dict__)
        return f"{type(self).__name__}({', '.join(shown)})"

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        """Called by pydantic when it compiles a field of this class."""
        from pydantic import WrapValidator

        def build(value: object, check: Any) -> Checked:
            return value if isinstance(value, cls) else _record(cls, check(value))

        return handler.generate_schema(Annotated[_model(cls), WrapValidator(build)])


def _read(value: Any, kind: Any) -> Any:
    """A JSON value in the form that a checked record has."""
    if isinstance(value, dict):
        return kind.read(value)
    if isinstance(value, list):
        return tuple(_read(item, kind) for item in value)
    return float(value) if kind is float and type(value) is int else value


# ------------------------------------------------------------------------------------------------------------ checking
Record = TypeVar("Record", bound=Checked)
_MODELS: dict[type[Checked], type[BaseModel]] = {}


def _model(kind: type[Checked]) -> type[BaseModel]:
    """The pydantic model with the fields of a record; a field that the record does not have is an error."""
    if kind not in _MODELS:
        _MODELS[kind] = _compile(kind)
    return _MODELS[kind]


def _compile(kind: type[Checked]) -> type[BaseModel]:
    from pydantic import ConfigDict, create_model, model_validator

    hints = get_type_hints(kind, include_extras=True)
    fields: dict[str, Any] = {name: (hints[name], getattr(kind, name, ...)) for name in kind.model_fields}

    def agree(model: BaseModel) -> BaseModel:
        _record(kind, model).consistent()
        return model

    whole: Any = model_validator(mode="after")(agree)
    return create_model(
        kind.__name__,
        __config__=ConfigDict(extra="forbid", frozen=True),
        __module__=kind.__module__,
        __validators__={"agree": whole},
        **fields,
    )


def _record(kind: type[Record], model: BaseModel) -> Record:
    given = model.model_fields_set
    return kind.trusted({name: getattr(model, name) for name in kind.model_fields if name in given})
