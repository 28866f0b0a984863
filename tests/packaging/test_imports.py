"""What an import loads. Who has Spark or an object store pays for it when it is used, and others never."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {
    "IPython", "adlfs", "aiobotocore", "aiohttp", "boto3", "botocore", "duckdb", "gcsfs", "google", "grpc",
    "hypothesis", "matplotlib", "opentelemetry", "pandas", "polars", "prometheus_client", "py4j", "pyarrow.dataset",
    "pyarrow.flight", "pyspark", "pytest", "requests", "rich", "rocksdict", "s3fs", "sqlite3", "typer", "unittest",
    "uvloop", "valkey",
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
        check=True,
    )
    return set(json.loads(ended.stdout))


@pytest.mark.parametrize("package", ["keygroups", "snapshots", "async_op"])
def test_an_import_loads_nothing_heavy(package: str) -> None:
    assert loaded_by(f"import {package}") & (HEAVY | WITH_THE_FIRST_SNAPSHOT) == set()


def test_the_core_knows_nothing_of_files() -> None:
    assert loaded_by("import keygroups") & OF_FILES == set()


def test_what_comes_with_the_first_snapshot_is_seen() -> None:
    first = "import keygroups, snapshots; snapshots.SnapshotStore('memory://imports', 'op')"
    written = f"{first}.bootstrap({{keygroups.ValueState('seen'): [('a', 1)]}}, parallelism=1)"

    assert loaded_by(f"{written}.to_arrow('seen')") >= WITH_THE_FIRST_SNAPSHOT | OF_FILES


def test_a_local_store_loads_no_other_filesystem() -> None:
    assert loaded_by("from snapshots import SnapshotStore; SnapshotStore('/nowhere', 'op').uri") & HEAVY == set()


def test_what_is_heavy_is_seen() -> None:
    assert "sqlite3" in loaded_by("import keygroups, sqlite3") & HEAVY
