from __future__ import annotations

import pytest

from tests.s3_server import S3Server

pytest.register_assert_rewrite("snapshots.testing.contract")


@pytest.fixture
def s3(running_s3: S3Server) -> S3Server:
    running_s3.reset()
    return running_s3
