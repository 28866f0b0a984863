from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.utils.concurrent import ExecutorFactory

from tests.async_op.connectors.tables.targets import Delta, Iceberg, Postgres, Target
from tests.postgres_server import postgres_url
from tests.quick import in_turn


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with postgres_url() as url:
        yield url


@pytest.fixture(scope="session", autouse=True)
def threads_of_pyiceberg() -> None:
    """Start the one thread that pyiceberg keeps for all its work, before a test counts what it has left behind."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYICEBERG_MAX_WORKERS", "1")
        ExecutorFactory._instance = None  # a page of the documentation may have made one with more threads
        ExecutorFactory.get_or_create().submit(int).result()


@pytest.fixture(params=in_turn(["delta", "iceberg", "postgres"]))
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Target:
    match request.param:
        case "delta":
            return Delta(tmp_path)
        case "iceberg":
            return Iceberg(tmp_path)
        case _:
            return Postgres(request.getfixturevalue("server"))
