"""What every test may ask for: the repository, the bibliography, the shared data folder, dscalc run as a process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
from hypothesis import settings

REPOSITORY = Path(__file__).resolve().parents[1]
BIBLIOGRAPHY_ENTRY = re.compile(r"^- \*\*\[([A-Za-z0-9]+)\]\*\* \S", re.MULTILINE)

# A slow machine must not fail a property, and CI must give the same answer twice.
settings.register_profile("dscalc", deadline=None, derandomize=bool(os.environ.get("CI")))
settings.load_profile("dscalc")

RunDscalc = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout."""
    return REPOSITORY


@pytest.fixture(scope="session")
def bibliography_keys() -> frozenset[str]:
    """Every key that docs/bibliography.md defines, in lower case: capitals do not matter in a citation."""
    text = (REPOSITORY / "docs" / "bibliography.md").read_text(encoding="utf-8")
    return frozenset(key.lower() for key in BIBLIOGRAPHY_ENTRY.findall(text))


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Public data too large or not ours to ship: ``DSCALC_SHARED``, or ``shared/data`` beside the checkout."""
    stated = os.environ.get("DSCALC_SHARED")
    folder = Path(stated) if stated else REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip("no shared data folder here; set DSCALC_SHARED to one to run this test")
    return folder


@pytest.fixture(scope="session")
def run_dscalc() -> RunDscalc:
    """Run ``python -m dscalc`` from this checkout as a process, with a fixed width and no terminal."""

    def run(
        *args: str,
        columns: int = 100,
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        merge: bool = False,
        timeout: float = 120.0,
    ) -> subprocess.CompletedProcess[str]:
        scrubbed = {k: v for k, v in os.environ.items() if k not in ("FORCE_COLOR", "DSCALC_PROFILES", "LINES")}
        path = os.pathsep.join(p for p in (str(REPOSITORY), scrubbed.get("PYTHONPATH", "")) if p)
        fixed = {"COLUMNS": str(columns), "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "PYTHONIOENCODING": "utf-8"}
        return subprocess.run(
            [sys.executable, "-m", "dscalc", *args],
            env={**scrubbed, **fixed, **(env or {})},
            input="" if stdin is None else stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merge else subprocess.PIPE,
            text=True,
            encoding="utf-8",
            cwd=cwd,
            timeout=timeout,
            check=False,
        )

    return run
