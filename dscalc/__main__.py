"""``python -m dscalc`` is the command ``dscalc``."""

from __future__ import annotations

import os

INTERRUPTED = 130


def run() -> None:
    """Entry point of the ``dscalc`` script; an interrupt ends it quietly, while it still loads too."""
    try:
        from dscalc.cli.main import run as command

        command()
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)


if __name__ == "__main__":
    run()
