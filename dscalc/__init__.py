"""Analytical capacity planner for distributed deep-learning training."""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = [
    "DscalcError",
    "MemoryAnswer",
    "__version__",
    "batch",
    "bench",
    "comm",
    "evaluate",
    "fit",
    "load_books",
    "load_cluster",
    "load_gpu",
    "load_model",
    "memory",
    "ratio",
    "step",
    "sweep",
]

if TYPE_CHECKING:
    from dscalc.answers.batch import batch
    from dscalc.answers.bench import bench
    from dscalc.answers.comm import comm
    from dscalc.answers.fit import fit
    from dscalc.answers.memory import MemoryAnswer, memory
    from dscalc.answers.ratio import ratio
    from dscalc.answers.step import step
    from dscalc.answers.sweep import sweep
    from dscalc.cost.evaluate import evaluate
    from dscalc.errors import DscalcError
    from dscalc.specs.model import load_model
    from dscalc.specs.stack import load_books
    from dscalc.specs.store import load_cluster, load_gpu

_HOMES = {
    "DscalcError": "dscalc.errors",
    "MemoryAnswer": "dscalc.answers.memory",
    "batch": "dscalc.answers.batch",
    "bench": "dscalc.answers.bench",
    "comm": "dscalc.answers.comm",
    "evaluate": "dscalc.cost.evaluate",
    "fit": "dscalc.answers.fit",
    "load_books": "dscalc.specs.stack",
    "load_cluster": "dscalc.specs.store",
    "load_gpu": "dscalc.specs.store",
    "load_model": "dscalc.specs.model",
    "memory": "dscalc.answers.memory",
    "ratio": "dscalc.answers.ratio",
    "step": "dscalc.answers.step",
    "sweep": "dscalc.answers.sweep",
}


def __getattr__(name: str) -> Any:
    """Import a name of the face when it is first used, so that ``import dscalc`` costs nothing."""
    if name not in _HOMES:
        raise AttributeError(f"module 'dscalc' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)


class _Face(ModuleType):
    """``dscalc.sweep`` is the function, though a room is called so too and the import system would put it here."""

    @property
    def sweep(self) -> Any:
        """The function, imported when it is first used."""
        return import_module(_HOMES["sweep"]).sweep

    @sweep.setter
    def sweep(self, _room: ModuleType) -> None:
        """The room stays where imports find it."""


sys.modules[__name__].__class__ = _Face
