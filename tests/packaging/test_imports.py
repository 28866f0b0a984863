"""What an import loads. Who has Spark or an object store pays for it when it is used, and others never."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

import pytest

from tests.quick import first_are_quick

HEAVY = {
    "adlfs", "aiobotocore", "aiohttp", "boto3", "botocore", "confluent_kafka", "deltalake", "duckdb", "gcsfs",
    "google", "grpc", "hypothesis", "IPython", "matplotlib", "opentelemetry", "pandas", "polars", "prometheus_client",
    "psycopg", "py4j", "pyarrow.dataset", "pyarrow.flight", "pyiceberg", "pyspark", "pytest", "requests", "rich",
    "rocksdict", "s3fs", "sqlite3", "typer", "unittest", "uvloop", "valkey",
}  # fmt: skip
WITH_THE_FIRST_SNAPSHOT = {"email", "fsspec", "importlib.metadata", "pyarrow.compute"}
"""What every snapshot needs, and who calls a service without any does not."""
OF_FILES = {"pyarrow.fs", "pyarrow.parquet"}


def loaded_by(statement: str) -> set[str]:
    program = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    # Without `site`, which may load what the environment's .pth files ask for, but with its folders.
    folders = [path for path in sys.path if path]
    ended = subprocess.run(
        [sys.executable, "-S", "-c", f"import sys; sys.path[:] = {folders!r}; {program}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return set(json.loads(ended.stdout))


PACKAGES = pytest.mark.parametrize(
    "package", first_are_quick(3, ["async_op", "keygroups", "snapshots", "async_op.connectors", "async_op.testing"])
)


@PACKAGES
def test_an_import_loads_nothing_before_it_is_used(package: str) -> None:
    loaded = loaded_by(f"import {package}")
    assert loaded & {"asyncio", "numpy", "pyarrow"} == set()
    assert {name for name in loaded if name.startswith((f"{package}.", "keygroups.", "snapshots."))} == set()


@PACKAGES
def test_an_import_of_all_names_loads_nothing_heavy(package: str) -> None:
    assert loaded_by(f"from {package} import *") & (HEAVY | WITH_THE_FIRST_SNAPSHOT) == set()


def test_the_core_knows_nothing_of_files() -> None:
    assert loaded_by("from keygroups import *") & OF_FILES == set()


@PACKAGES
def test_every_name_is_where_the_package_says(package: str) -> None:
    module = importlib.import_module(package)
    assert dir(module) == sorted(module.__all__)
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError):
        module.nowhere  # noqa: B018


def test_what_comes_with_the_first_snapshot_is_seen() -> None:
    first = "import keygroups, snapshots; snapshots.SnapshotStore('memory://imports', 'op')"
    written = f"{first}.bootstrap({{keygroups.ValueState('seen'): [('a', 1)]}}, parallelism=1)"

    assert loaded_by(f"{written}.to_arrow('seen')") >= WITH_THE_FIRST_SNAPSHOT | OF_FILES


def test_a_local_store_loads_no_other_filesystem() -> None:
    assert loaded_by("from snapshots import SnapshotStore; SnapshotStore('/nowhere', 'op').uri") & HEAVY == set()


def test_what_is_heavy_is_seen() -> None:
    assert "sqlite3" in loaded_by("import keygroups, sqlite3") & HEAVY
