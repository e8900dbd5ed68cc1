"""Frozen dataclasses that are quick to define, used like the standard ones.

The standard decorator writes and compiles source for each class, about half a millisecond apiece: for all records
together that is more than an estimate takes. Here the methods are ordinary functions that go over the fields.
``fields`` and ``replace`` of the standard module work as ever, and type checkers see the standard decorator. Defaults
are plain values; there are no default factories.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    import dataclasses
    from operator import attrgetter

    _put = object.__setattr__  # past the lock below

    class _Methods:
        """What every such class gets."""

        def __init__(self, *args, **given):
            cls = type(self)
            names, defaults = cls.__match_args__, cls._defaults
            for name, value in zip(names, args, strict=False):
                _put(self, name, value)
            for name in names[len(args) :]:
                if name in given:
                    _put(self, name, given.pop(name))
                elif name in defaults:
                    _put(self, name, defaults[name])
                else:
                    raise TypeError(f"{cls.__name__}() lacks {name}")
            if given or len(args) > len(names):
                raise TypeError(f"{cls.__name__}() has not so many fields, or not {', '.join(given) or 'these'}")

        def __repr__(self):
            shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.__match_args__)
            return f"{type(self).__qualname__}({shown})"

        def __eq__(self, other):
            return self._values(self) == self._values(other) if type(other) is type(self) else NotImplemented

        def __hash__(self):
            return hash(self._values(self))

        def __setattr__(self, name, _value):
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")

        def __delattr__(self, name):
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")

        def __reduce__(self):
            return type(self), tuple(getattr(self, name) for name in self.__match_args__)

    _ALL = ("__init__", "__repr__", "__setattr__", "__delattr__", "__reduce__")
    _BY_VALUE = ("__eq__", "__hash__")

    def dataclass(*, frozen, slots=False, eq=True):
        """Decorator of a class whose annotations are its fields."""
        if not frozen:
            raise TypeError("only frozen classes; take the standard decorator for others")

        def define(cls):
            cls.__doc__ = cls.__doc__ or cls.__name__  # else the standard module works out a signature
            made = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
            fields = made.__dataclass_fields__
            made._defaults = {name: f.default for name, f in fields.items() if f.default is not dataclasses.MISSING}
            made._values = attrgetter(*fields)
            for name in (*_ALL, *(_BY_VALUE if eq else ())):
                setattr(made, name, _Methods.__dict__[name])
            return made

        return define
