"""A server of S3, whose clients ask once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import fsspec.asyn
import pytest

if TYPE_CHECKING:
    from tests.s3_server import S3Server


@pytest.fixture
def s3(running_s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    import s3fs.core

    # The clients' own attempts, with seconds between them, are not what is shown here.
    monkeypatch.setattr(s3fs.core.S3FileSystem, "retries", 1)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    running_s3.reset()
    yield running_s3
    fsspec.filesystem("s3").clear_instance_cache()


@pytest.fixture(scope="module", autouse=True)
def loop_of_fsspec() -> None:
    """Start the thread that fsspec keeps before the first test, or the test seems to leave it behind."""
    fsspec.asyn.get_loop()
