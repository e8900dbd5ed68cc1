"""What a user installs holds what the program needs, and all ways of running it find the profiles."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

ASSETS = {".json", ".toml", ".csv", ".typed"}


def _profiles(repository: Path) -> set[str]:
    folder = repository / "hardware_profiles"
    return {p.relative_to(repository).as_posix() for p in folder.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built here without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    ran = subprocess.run(command, cwd=repository, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def unpacked(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files, as an installation lays them out."""
    folder = tmp_path_factory.mktemp("site")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


@pytest.mark.slow
def test_wheel_holds_profiles_data_types_and_licence(repository: Path, wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    profiles = _profiles(repository)
    assert profiles, "hardware_profiles/ is empty"
    assert {f"dscalc/{name}" for name in profiles} <= names
    package = repository / "dscalc"
    sources = {p.relative_to(repository).as_posix() for p in package.rglob("*") if p.suffix in ASSETS | {".py"}}
    assert sources <= names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    strays = {n for n in names if not n.startswith("dscalc/") and ".dist-info/" not in n}
    assert not strays
    assert not {n for n in names if "__pycache__" in n or n.endswith(".pyc")}


@pytest.mark.slow
def test_wheel_declares_the_command_and_its_version(repository: Path, unpacked: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (meta,) = unpacked.glob("*.dist-info")
    assert (meta / "entry_points.txt").read_text(encoding="utf-8").split() == [
        "[console_scripts]",
        *("dscalc", "=", project["scripts"]["dscalc"]),
    ]
    assert f"\nVersion: {project['version']}\n" in (meta / "METADATA").read_text(encoding="utf-8")


def test_version_is_stated_alike(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    face = (repository / "dscalc" / "__init__.py").read_text(encoding="utf-8")
    assert f'__version__ = "{project["version"]}"' in face


def _lists_profiles(ran: subprocess.CompletedProcess[str], repository: Path) -> None:
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert not ran.stderr
    expected = {Path(name).stem for name in _profiles(repository) if "/gpus/" in name}
    assert expected
    assert all(name.lower() in ran.stdout.lower() for name in expected)


@pytest.mark.slow
def test_bare_checkout_finds_profiles(
    repository: Path, run_dscalc: Callable[..., subprocess.CompletedProcess[str]], tmp_path: Path
) -> None:
    if not (repository / "dscalc" / "cli" / "main.py").exists():
        pytest.skip("no command line yet")
    _lists_profiles(run_dscalc("list", "gpus", "--format", "json", cwd=tmp_path), repository)


@pytest.mark.slow
def test_unpacked_wheel_finds_profiles(repository: Path, unpacked: Path, tmp_path: Path) -> None:
    if not (repository / "dscalc" / "cli" / "main.py").exists():
        pytest.skip("no command line yet")
    env = {k: v for k, v in os.environ.items() if k != "DSCALC_PROFILES"} | {"PYTHONPATH": str(unpacked)}
    where = [sys.executable, "-c", "import dscalc; print(dscalc.__file__)"]
    loaded = subprocess.run(where, cwd=tmp_path, env=env, capture_output=True, text=True, check=True).stdout
    assert Path(loaded.strip()).is_relative_to(unpacked)
    command = [sys.executable, "-m", "dscalc", "list", "gpus", "--format", "json"]
    _lists_profiles(
        subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False), repository
    )
