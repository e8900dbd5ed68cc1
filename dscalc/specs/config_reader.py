"""Reads untrusted model configuration files: bounded size, plain JSON only, each value checked where it is taken."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from dscalc.errors import ConfigError
from dscalc.specs.bounded_file import fault, read_bounded
from dscalc.specs.shape import MAX_WIDTH

MAX_FILE_BYTES = 10_000_000
MAX_DEPTH = 32
_MISSING = object()


def read_config(path: Path) -> dict[str, Any]:
    """The object in a ``config.json``; ``path`` may also be the folder that holds one.

    Raises:
        ConfigError: no such file, too large, not UTF-8, not JSON, repeated keys, NaN, nested too deeply, not an object.
    """
    where = str(path)
    try:
        if path.is_dir():
            path = path / "config.json"
            where = str(path)
        if not path.exists():
            raise ConfigError("no such file; expected a config.json or a folder that holds one", where=where)
        data = read_bounded(path, MAX_FILE_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a usable path"
        raise ConfigError(f"cannot be read as a model configuration: {reason}", where=where) from None
    return parse_config(data, where)


def parse_config(data: bytes, where: str) -> dict[str, Any]:
    """The object in the bytes of a configuration file; see `read_config` for what is refused."""
    try:
        value = json.loads(data.decode("utf-8-sig"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except UnicodeDecodeError:
        raise ConfigError("not a text file in UTF-8; expected JSON", where=where) from None
    except json.JSONDecodeError as error:
        raise ConfigError(f"not JSON: {error.msg} at column {error.colno}", where=f"{where}:{error.lineno}") from None
    except ValueError as error:
        raise ConfigError(fault(error), where=where) from None
    except RecursionError:
        raise ConfigError("nested too deeply for a model configuration", where=where) from None
    if not isinstance(value, dict):
        raise ConfigError(f"expected a JSON object with the model's keys, found {_kind(value)}", where=where)
    if _deeper_than(value, MAX_DEPTH):
        raise ConfigError("nested too deeply for a model configuration", where=where)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise ValueError(f"key {key[:80]!r} appears twice")
            seen.add(key)
    return result


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _deeper_than(value: object, limit: int) -> bool:
    level: list[object] = [value]
    for _ in range(limit):
        level = [item for outer in level for item in _items(outer)]
        if not level:
            return False
    return True


def _items(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def _kind(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f"the text {value[:40]!r}"
    if isinstance(value, dict):
        return "an object"
    return "a list" if isinstance(value, list) else f"the number {str(value)[:40]}"


class Reader:
    """Typed access to one configuration object, with the class defaults of its family behind it.

    ``strict`` (the outer object of a file): the sizes that make a model must be in the file. Otherwise (a nested
    ``text_config``, which published files often leave nearly empty) the class default stands in and is recorded.
    """

    def __init__(
        self, config: Mapping[str, Any], where: str, defaults: Mapping[str, Any] | None = None, *, strict: bool = True
    ) -> None:
        self.config = config
        self.where = where
        self.defaults = defaults or {}
        self.strict = strict
        self.assumed: dict[str, Any] = {}
        self.warnings: list[str] = []

    def fail(self, message: str) -> NoReturn:
        """Raise the one-line error for this file."""
        raise ConfigError(message, where=self.where)

    def given(self, *keys: str) -> bool:
        """Whether the file gives one of the keys a value other than null."""
        return any(self.config.get(key) is not None for key in keys)

    def _find(self, keys: tuple[str, ...], default: Any, *, use_class: bool = True) -> tuple[str, Any]:
        for key in keys:
            if self.config.get(key) is not None:
                return key, self.config[key]
        if use_class and not any(key in self.config for key in keys):  # an explicit null is not a missing key
            for key in keys:
                if self.defaults.get(key) is not None:
                    self.assumed[key] = self.defaults[key]
                    return key, self.defaults[key]
        return keys[0], default

    def size(self, *keys: str, maximum: int = MAX_WIDTH) -> int:
        """A whole number of at least 1 that the model cannot do without."""
        key, value = self._find(keys, _MISSING, use_class=not self.strict)
        if value is _MISSING:
            others = f" (or {', '.join(keys[1:])})" if keys[1:] else ""
            self.fail(f"key {keys[0]!r}{others} is missing")
        return self._whole(key, value, 1, maximum)

    def size_or_class(self, *keys: str, maximum: int = MAX_WIDTH) -> int:
        """A whole number of at least 1; the class default of the family stands in where the file leaves it out."""
        key, value = self._find(keys, _MISSING)
        if value is _MISSING:
            self.fail(f"key {key!r} is missing")
        return self._whole(key, value, 1, maximum)

    def count(self, *keys: str, default: int = 0, minimum: int = 0, maximum: int = MAX_WIDTH) -> int:
        """A whole number that has a default."""
        key, value = self._find(keys, _MISSING)
        return default if value is _MISSING else self._whole(key, value, minimum, maximum)

    def _whole(self, key: str, value: Any, minimum: int, maximum: int) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            self.fail(f"key {key!r} must be a whole number from {minimum} to {maximum}, found {_kind(value)}")
        return value

    def flag(self, *keys: str, default: bool = False) -> bool:
        """True or false, with a default."""
        key, value = self._find(keys, default)
        if not isinstance(value, bool):
            self.fail(f"key {key!r} must be true or false, found {_kind(value)}")
        return value

    def text(self, key: str, default: str = "") -> str:
        """A string, with a default."""
        _, value = self._find((key,), default)
        if not isinstance(value, str):
            self.fail(f"key {key!r} must be a text, found {_kind(value)}")
        return value

    def listed(self, key: str, kind: type) -> list[Any] | None:
        """A list of strings or whole numbers, or None where the file gives none."""
        value = self.config.get(key)
        if value is None:
            return None
        if not isinstance(value, list) or any(isinstance(v, bool) or not isinstance(v, kind) for v in value):
            self.fail(
                f"key {key!r} must be a list of {'texts' if kind is str else 'whole numbers'}, found {_kind(value)}"
            )
        return value

    def nested(self, key: str) -> Reader | None:
        """A reader of the object under a key, or None where the file gives none."""
        value = self.config.get(key)
        if value is None:
            return None
        if not isinstance(value, dict):
            self.fail(f"key {key!r} must be an object, found {_kind(value)}")
        defaults = self.defaults.get(key)
        return Reader(value, f"{self.where} {key}", defaults if isinstance(defaults, dict) else None, strict=False)
