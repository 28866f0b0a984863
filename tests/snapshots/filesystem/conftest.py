from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.s3_server import S3Server, s3_server

pytest.register_assert_rewrite("snapshots.testing.contract")


@pytest.fixture(scope="session")
def running_s3() -> Iterator[S3Server]:
    with s3_server() as server:
        yield server


@pytest.fixture
def s3(running_s3: S3Server) -> S3Server:
    running_s3.reset()
    return running_s3
