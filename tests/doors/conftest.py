from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.postgres_server import postgres_url


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with postgres_url() as url:
        yield url
