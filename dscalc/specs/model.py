"""Models by name or file, from a parameter count, or from sizes given one by one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from dscalc.errors import ConfigError, UnknownNameError
from dscalc.frozen import dataclass
from dscalc.specs.assumed import Overridden, apply_overrides, from_params
from dscalc.specs.shape import ModelSpec
from dscalc.specs.shipped import shipped_text

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "Assumption",
    "ModelSpec",
    "Overridden",
    "Resolved",
    "apply_overrides",
    "from_params",
    "load_model",
    "preset_names",
]


LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class Assumption:
    """A value that nobody gave: where it comes from."""

    name: str
    value: Any
    unit: str
    kind: str
    source: str


@dataclass(frozen=True, slots=True)
class Resolved:
    """A model found by name or read from a file."""

    spec: ModelSpec
    source: str
    warnings: tuple[str, ...] = ()
    assumptions: tuple[Assumption, ...] = ()


@cache
def _presets() -> dict[str, dict[str, Any]]:
    loaded: dict[str, dict[str, Any]] = json.loads(shipped_text("presets.json"))
    return loaded


def _key(name: str) -> str:
    """Case and punctuation do not matter, but for a point between digits: 1.3B is not 13B."""
    pointed = re.sub(r"(?<=\d)\.(?=\d)", "p", name.lower()[:LONGEST_NAME])
    return "".join(c for c in pointed if c.isalnum())


@cache
def _names() -> dict[str, str]:
    names: dict[str, str] = {}
    for name, row in _presets().items():
        for spelling in (name, *row.get("aliases", ())):
            names[_key(spelling)] = name
    return names


def preset_names() -> tuple[str, ...]:
    """The models that ship, by name."""
    return tuple(_presets())


def is_preset(name: str) -> bool:
    """Whether a shipped model goes by that name, in any spelling."""
    return _key(name) in _names()


def preset_source(name: str) -> str:
    """Where the shape of a shipped model comes from."""
    return str(_presets()[_names()[_key(name)]]["source"])


def _preset(name: str) -> Resolved:
    row = _presets()[name]
    shape = dict(row["shape"])
    runs = shape.pop("moe_runs", None)
    if runs is not None:
        shape["moe_layer"] = tuple(bool(kind) for kind, length in runs for _ in range(length))
    shape.setdefault("kv_heads", shape["heads"])
    shape.setdefault("head_dim", shape["hidden"] // shape["heads"])
    shape.setdefault("value_head_dim", shape["head_dim"])
    shape.setdefault("ffn_hidden", 0)
    return Resolved(ModelSpec.trusted({"name": name, **shape}), str(row["source"]), tuple(row.get("warnings", ())))


def load_model(name_or_path: str) -> Resolved:
    """A model by the name of a preset or the path of a ``config.json`` (or of a folder that holds one).

    Raises:
        UnknownNameError: neither a preset nor a path that exists; names the nearest presets.
        ConfigError: the file cannot be read or counted.
    """
    name = _names().get(_key(name_or_path))
    if name is not None:
        return _preset(name)
    from pathlib import Path

    path = Path(name_or_path)
    if name_or_path.strip() and (_exists(path) or path.suffix == ".json"):
        return _from_file(path)
    spellings = [s for preset, row in _presets().items() for s in (preset, *row.get("aliases", ()))]
    raise UnknownNameError("model", name_or_path[:200], spellings)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _from_file(path: Path) -> Resolved:
    from dscalc.specs.config_reader import read_config
    from dscalc.specs.huggingface import count_config

    config = read_config(path)
    counted = count_config(config, str(path))
    assumptions = tuple(_assumption(key, value, counted.family) for key, value in counted.assumed.items())
    return Resolved(counted.spec, str(path), counted.warnings, assumptions)


def _assumption(key: str, value: Any, family: str) -> Assumption:
    return Assumption(key, value, "", "assumed", f"class default of {family}: the configuration file leaves it out")


def model_from_config(config: Mapping[str, Any], source: str = "config") -> ModelSpec:
    """The specification of a configuration object already in memory."""
    from dscalc.specs.huggingface import spec_from_config

    if not isinstance(config, Mapping):
        raise ConfigError("expected a JSON object with the model's keys", where=source)
    return spec_from_config(config, source)[0]
