"""What is published: its files and metadata, and that it runs without the tree that it was built from."""

from __future__ import annotations

import email
import os
import sys
import tarfile
import zipfile
from email.message import Message
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT, run

PACKAGES = ("keygroups", "snapshots", "async_op")
SMOKE = (
    "tests/keygroups/test_ranges.py",
    "tests/snapshots/format/test_golden.py",
    "tests/async_op/stream",
)


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


@pytest.fixture(scope="module")
def metadata(wheel: Path, names: set[str]) -> Message:
    (name,) = [name for name in names if name.endswith(".dist-info/METADATA")]
    return email.message_from_bytes(zipfile.ZipFile(wheel).read(name))


def test_the_wheel_has_the_packages_and_nothing_else(names: set[str]) -> None:
    info = {name for name in names if ".dist-info/" in name}
    sources = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }

    assert names - info == sources
    assert {f"{package}/py.typed" for package in PACKAGES} <= names
    assert any(name.endswith("licenses/LICENSE") for name in info)


@pytest.mark.thorough
def test_the_sdist_has_what_a_packager_needs(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}

    needed = {
        "pyproject.toml",
        "README.md",
        "LICENSE",
        "CHANGELOG.md",
        "Makefile",
        "tests/conftest.py",
        "docs/index.md",
    }
    assert needed <= names
    assert {name for name in names if name.startswith((".git/", ".venv/", "build/"))} == set()


def test_the_metadata_says_what_is_needed(metadata: Message) -> None:
    assert metadata["Name"] == "keygroups"
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert {"spark", "s3", "gcs", "azure", "cli", "disk"} <= set(metadata.get_all("Provides-Extra"))
    needed_always = [name for name in metadata.get_all("Requires-Dist") if "extra ==" not in name]
    assert [name for name in needed_always if name.startswith(("pyspark", "pandas", "typer"))] == []


def test_the_version_is_in_the_changelog(metadata: Message) -> None:
    version = metadata["Version"]
    _, found, section = (ROOT / "CHANGELOG.md").read_text().partition(f"\n## {version}")
    section = section.partition("\n## ")[0]

    assert found, f"CHANGELOG.md has no section for {version}"
    assert "### Snapshot format" in section


@pytest.mark.thorough
def test_what_is_installed_passes_a_part_of_the_tests(wheel: Path, checkout: Path, tmp_path: Path) -> None:
    """With the packages of this environment; `--matrix all` installs everything anew."""
    installed = tmp_path / "installed"
    run([sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", installed, wheel])
    settings = os.environ | {"PYTHONPATH": str(installed)}

    where = run([sys.executable, "-c", "import async_op; print(async_op.__file__)"], cwd=checkout, env=settings)
    assert Path(where.strip()).is_relative_to(installed)
    passed = run([sys.executable, "-m", "pytest", "-q", *SMOKE], cwd=checkout, env=settings)
    assert " passed" in passed
