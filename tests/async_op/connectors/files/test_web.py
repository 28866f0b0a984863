"""A file on a web server: fsspec's client says of every failed request that there is no such file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any

import fsspec
import pytest

from async_op import ExponentialBackoffRetry, Job, Step
from async_op.connectors import FileMissing, FileRefused, FileSource
from async_op.connectors.errors import ConnectorUnavailable
from keygroups import ConfigError
from tests.loopback import serving

ROWS = 2000
CONTENT = b"n\n" + b"".join(b"%d\n" % number for number in range(ROWS))


class WebServer:
    """The server of one file.

    Attributes
    ----------
    status : int
        What it answers to the next requests.
    failures : int or None
        How many of them; None for all.
    has_length : bool
        Whether it says how long the file is.
    """

    url: str

    def __init__(self) -> None:
        self.status = int(HTTPStatus.OK)
        self.failures: int | None = 0
        self.has_length = True

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if self.failures != 0:
            if self.failures is not None:
                self.failures -= 1
            start_response(f"{self.status} -", [("Content-Length", "0")])
            return []
        part, headers, status = CONTENT, [("Accept-Ranges", "bytes")], HTTPStatus.OK
        if asked := environ.get("HTTP_RANGE", "").removeprefix("bytes="):
            start, _, end = asked.partition("-")
            part = CONTENT[int(start) : int(end) + 1]
            status = HTTPStatus.PARTIAL_CONTENT
            headers.append(("Content-Range", f"bytes {start}-{int(start) + len(part) - 1}/{len(CONTENT)}"))
        if self.has_length:
            headers.append(("Content-Length", str(len(part))))
        start_response(f"{int(status)} -", headers)
        return [part] if environ["REQUEST_METHOD"] == "GET" else []

    def fail(self, status: int, failures: int | None = None) -> None:
        self.status, self.failures = status, failures


@pytest.fixture
def web() -> Iterator[WebServer]:
    with serving(WebServer()) as server:
        yield server
    fsspec.filesystem("http").clear_instance_cache()


def read(url: str, folder: Path, attempts: int = 1) -> Job:
    retry = ExponentialBackoffRetry(attempts, 0.01, 0.02)
    source = FileSource(url, "csv", retry=retry, storage_options={"skip_instance_cache": True})
    return Job(source, Step(_same, name="same"), _nowhere, snapshots=folder, job_id="job")


async def _same(row: dict[str, str]) -> dict[str, str]:
    return row


def _nowhere(values: Any, epoch: int) -> None:
    pass


async def test_it_is_read_once(web: WebServer, tmp_path: Path) -> None:
    job = read(f"{web.url}/f.csv", tmp_path)
    await job.run()
    assert job.progress().records == ROWS

    again = read(f"{web.url}/f.csv", tmp_path)
    await again.run()
    assert again.progress().records == 0


async def test_a_server_that_fails_for_a_while_is_asked_again(web: WebServer, tmp_path: Path) -> None:
    web.fail(503, failures=4)
    job = read(f"{web.url}/f.csv", tmp_path, attempts=10)
    await job.run()

    assert job.progress().records == ROWS


@pytest.mark.parametrize(
    ("status", "error"),
    [(404, FileMissing), (403, FileRefused), (401, FileRefused), (503, ConnectorUnavailable)],
)
async def test_what_a_server_answers_is_told(
    web: WebServer, tmp_path: Path, status: int, error: type[Exception]
) -> None:
    web.fail(status)
    with pytest.raises(error, match="f.csv"):
        await read(f"{web.url}/f.csv", tmp_path).run()


async def test_a_server_that_is_away_is_no_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConnectorUnavailable, match="Cannot connect to host 127.0.0.1:1"):
        await read("http://127.0.0.1:1/f.csv", tmp_path).run()


async def test_a_file_without_a_length_is_refused(web: WebServer, tmp_path: Path) -> None:
    web.has_length = False
    with pytest.raises(ConfigError, match="no length"):
        await read(f"{web.url}/f.csv", tmp_path).run()
