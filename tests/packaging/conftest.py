"""Wheel and sdist, built once; and the Pythons that they are tried on."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUPPORTED = ("3.11", "3.12", "3.13")


def run(command: Sequence[str | Path], **options: object) -> str:
    """Run a command that has to succeed; return what it wrote to stdout."""
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1000, **options)
    assert ended.returncode == 0, f"{command} failed\n{ended.stdout[-6000:]}\n{ended.stderr[-6000:]}"
    return ended.stdout


def interpreter(version: str) -> Path:
    """Return a Python of this version: from the PATH, or from pyenv."""
    found = shutil.which(f"python{version}")
    if found and subprocess.run([found, "-c", ""], check=False, capture_output=True).returncode == 0:
        return Path(found)
    kept = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/python"))
    assert kept, f"there is no python{version} on the PATH, nor among pyenv's: install it, or run without --matrix"
    return kept[-1]


def pinned(*tools: str) -> list[str]:
    """Return tools with the versions that the tests are run with here."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["dependency-groups"]
    pins = {pin.partition("==")[0]: pin for pin in groups["dev"] if isinstance(pin, str)}
    return [pins[tool] for tool in tools]


@pytest.fixture
def asked_for(request: pytest.FixtureRequest) -> None:
    matrix = request.config.getoption("matrix")
    is_in_sample = request.node.get_closest_marker("sample") is not None
    if matrix != "all" and not (matrix == "sample" and is_in_sample):
        pytest.skip("every Python is a matter of minutes and of an index: make packaging")


@pytest.fixture(scope="session")
def artefacts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the sdist, and from it the wheel, as an index would get them."""
    folder = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT])
    return folder


@pytest.fixture(scope="session")
def wheel(artefacts: Path) -> Path:
    (path,) = artefacts.glob("*.whl")
    return path


@pytest.fixture(scope="session")
def sdist(artefacts: Path) -> Path:
    (path,) = artefacts.glob("*.tar.gz")
    return path


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Copy the tests and the pages that they look at, without the packages: only what is installed can be imported."""
    folder = tmp_path / "checkout"
    for pages in ("dashboards", "docs"):
        shutil.copytree(ROOT / pages, folder / pages)
    shutil.copytree(ROOT / "tests", folder / "tests", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder
