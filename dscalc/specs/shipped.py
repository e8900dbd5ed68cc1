"""Data files of this package, read without ``pathlib`` and ``importlib.resources``, which load as much as a command."""

from __future__ import annotations

import os


def shipped_text(name: str) -> str:
    """The text of a file beside this one.

    Args:
        name: file name [text].

    Returns:
        Its content [text].
    """
    with open(os.path.join(os.path.dirname(__file__), name), encoding="utf-8") as file:
        return file.read()
