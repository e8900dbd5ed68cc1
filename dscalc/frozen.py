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
            if not args and len(given) == len(names) and cls._known.issuperset(given):  # each one by its name
                for name, value in given.items():
                    _put(self, name, value)
                return
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

    class _Fields:
        """The fields as the standard module describes them, worked out when ``fields`` or ``replace`` asks."""

        def __get__(self, _record, cls):
            body = {"__annotations__": cls.__annotations__, "__doc__": cls.__doc__, **cls._defaults}
            twin = dataclasses.dataclass(init=False, repr=False, eq=False)(type(cls.__name__, (), body))
            cls.__dataclass_fields__ = twin.__dataclass_fields__
            return twin.__dataclass_fields__

    _BY_VALUE = ("__eq__", "__hash__")
    _METHODS = {name: method for name, method in vars(_Methods).items() if callable(method)}
    _BY_IDENTITY = {name: method for name, method in _METHODS.items() if name not in _BY_VALUE}

    def dataclass(*, frozen, slots=False, eq=True):
        """Decorator of a class whose annotations are its fields; it may not inherit any."""
        if not frozen:
            raise TypeError("only frozen classes; take the standard decorator for others")

        def define(cls):
            if any("__match_args__" in vars(base) for base in cls.__mro__[1:]):
                raise TypeError(f"{cls.__name__} inherits fields; take the standard decorator")
            names = tuple(cls.__annotations__)
            body = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
            body["_defaults"] = {name: body.pop(name) for name in names if name in body}
            body |= _METHODS if eq else _BY_IDENTITY
            body |= {"_values": attrgetter(*names), "__match_args__": names, "__dataclass_fields__": _Fields()}
            body["_known"] = frozenset(names)
            body["__doc__"] = cls.__doc__ or cls.__name__  # else the standard module works out a signature
            if slots:
                body["__slots__"] = names
            made = type(cls)(cls.__name__, cls.__bases__, body)
            made.__qualname__ = cls.__qualname__
            return made

        return define
