"""``python -m dscalc`` is the command ``dscalc``."""

from __future__ import annotations

from dscalc.cli.main import run

if __name__ == "__main__":
    run()
