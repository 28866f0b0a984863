"""What an import loads. Who has Spark or an object store pays for it when it is used, and others never."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = {
    "IPython", "adlfs", "aiobotocore", "aiohttp", "boto3", "botocore", "duckdb", "gcsfs", "google", "grpc",
    "matplotlib", "opentelemetry", "pandas", "polars", "prometheus_client", "py4j", "pyarrow.dataset",
    "pyarrow.flight", "pyspark", "pytest", "requests", "rich", "s3fs", "sqlite3", "typer", "unittest", "uvloop",
    "valkey",
}  # fmt: skip


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
    assert loaded_by(f"import {package}") & HEAVY == set()


def test_a_local_store_loads_no_other_filesystem() -> None:
    assert loaded_by("from snapshots import SnapshotStore; SnapshotStore('/nowhere', 'op').uri") & HEAVY == set()


def test_what_is_heavy_is_seen() -> None:
    assert "sqlite3" in loaded_by("import keygroups, sqlite3") & HEAVY
