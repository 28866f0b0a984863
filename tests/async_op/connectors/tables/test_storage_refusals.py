"""The storage of a table refuses access, is busy or is away: libraries of tables say it in a text of their own."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from async_op.connectors import DeltaSink, IcebergSink, SinkRefused, SinkUnavailable
from async_op.connectors.epoch_rows import OutputRows
from async_op.connectors.tables.table_sink import TableSink
from keygroups import ConfigError
from snapshots import StorageUnavailable
from tests.async_op.job.kit import new_job, same
from tests.loopback import serving
from tests.quick import first_is_quick, in_turn
from tests.s3_server import KEY, SECRET, S3Server

AWAY = "http://127.0.0.1:1"
ROWS = OutputRows([{"n": 1}])

DELTAS = {
    "aws_access_key_id": KEY,
    "aws_secret_access_key": SECRET,
    "aws_region": "us-east-1",
    "allow_http": "true",
    "aws_conditional_put": "etag",
    "max_retries": "0",
    "retry_timeout": "1s",
}
ICEBERGS = {"s3.access-key-id": KEY, "s3.secret-access-key": SECRET, "s3.region": "us-east-1"}

_catalogs = itertools.count()


class ReadOnly(S3Server):
    """Credentials that may read: each write is refused, once `is_read_only`."""

    is_read_only = False

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Any:
        is_write = environ["REQUEST_METHOD"] in {"PUT", "POST"}
        self.refuses = (403, "AccessDenied") if self.is_read_only and is_write else None
        return super().__call__(environ, start_response)


def delta(s3: S3Server, folder: Path, **options: Any) -> TableSink:
    return DeltaSink(f"{s3.new_root()}/t", "job", storage_options={**DELTAS, "aws_endpoint_url": s3.url, **options})


def iceberg(s3: S3Server, folder: Path, file_io: str, **properties: Any) -> TableSink:
    catalog = {
        "name": f"catalog-{next(_catalogs)}",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": s3.new_root(),
        "py-io-impl": file_io,
        "s3.endpoint": s3.url,
    }
    return IcebergSink("sales.t", "job", catalog={**catalog, **ICEBERGS, **properties})


def iceberg_by_arrow(s3: S3Server, folder: Path, **properties: Any) -> TableSink:
    return iceberg(s3, folder, "pyiceberg.io.pyarrow.PyArrowFileIO", **properties)


def iceberg_by_fsspec(s3: S3Server, folder: Path, **properties: Any) -> TableSink:
    return iceberg(s3, folder, "pyiceberg.io.fsspec.FsspecFileIO", **properties)


SINKS = pytest.mark.parametrize("new_sink", in_turn([delta, iceberg_by_arrow, iceberg_by_fsspec]))


@SINKS
@pytest.mark.parametrize("status", first_is_quick([403, 401, 404]))
def test_what_a_storage_refuses_is_not_tried_again(s3: S3Server, tmp_path: Path, new_sink: Any, status: int) -> None:
    sink = new_sink(s3, tmp_path)
    s3.refuses = (status, HTTPStatus(status).phrase)

    with pytest.raises(SinkRefused) as refused:
        sink.write_rows(ROWS, 1)
    assert refused.value.target == sink._table
    assert str(refused.value).count(sink._table) == 1
    assert not sink.is_transient(refused.value)


@SINKS
@pytest.mark.parametrize("status", first_is_quick([503, 429, 500, 502, 504]))
def test_a_busy_storage_is_tried_again(s3: S3Server, tmp_path: Path, new_sink: Any, status: int) -> None:
    sink = new_sink(s3, tmp_path)
    s3.refuses = (status, HTTPStatus(status).phrase)

    with pytest.raises(StorageUnavailable) as failed:
        sink.write_rows(ROWS, 1)
    assert sink.is_transient(failed.value)


@pytest.mark.parametrize(
    ("new_sink", "endpoint"),
    [(delta, "aws_endpoint_url"), (iceberg_by_arrow, "s3.endpoint"), (iceberg_by_fsspec, "s3.endpoint")],
)
def test_a_storage_that_is_away_is_tried_again_and_told_in_one_line(
    s3: S3Server, tmp_path: Path, new_sink: Any, endpoint: str
) -> None:
    sink = new_sink(s3, tmp_path, **{endpoint: AWAY})

    with pytest.raises(StorageUnavailable) as failed:
        sink.write_rows(ROWS, 1)
    assert sink.is_transient(failed.value)
    assert str(failed.value).isprintable()


@SINKS
def test_a_bucket_that_does_not_exist_is_not_waited_for(
    s3: S3Server, tmp_path: Path, new_sink: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "new_root", lambda: "s3://no-such-bucket/x")
    sink = new_sink(s3, tmp_path)

    with pytest.raises(SinkRefused, match="(?i)bucket"):
        sink.write_rows(ROWS, 1)


def test_credentials_that_may_only_read_are_refused(tmp_path: Path) -> None:
    with serving(ReadOnly()) as s3:
        sink = delta(s3, tmp_path)
        sink.write_rows(ROWS, 1)
        s3.is_read_only = True

        with pytest.raises(SinkRefused, match="privileges"):
            sink.write_rows(ROWS, 2)


@pytest.mark.parametrize(
    ("options", "said"),
    [({"timeout": "soon"}, "soon"), ({"allow_http": "false"}, "URL scheme is not allowed")],
    ids=["duration", "scheme"],
)
def test_options_with_which_deltalake_cannot_ask_are_told(
    s3: S3Server, tmp_path: Path, options: dict[str, str], said: str
) -> None:
    with pytest.raises(SinkRefused, match=said):
        delta(s3, tmp_path, **options).write_rows(ROWS, 1)


def test_the_options_of_fsspec_are_none_of_deltalake(s3: S3Server) -> None:
    with pytest.raises(ConfigError, match="'client_kwargs' is no text"):
        DeltaSink("s3://lake/orders", "job", storage_options=s3.options)


def test_a_catalog_that_pyiceberg_cannot_write_to_is_named() -> None:
    sink = IcebergSink(
        "sales.orders", "job", catalog={"name": "none", "py-catalog-impl": "pyiceberg.catalog.noop.NoopCatalog"}
    )
    with pytest.raises(SinkRefused, match="pyiceberg's NoopCatalog cannot do that"):
        sink.check_target()


async def test_the_error_about_a_storage_that_is_away_names_the_cause() -> None:
    sink = DeltaSink("s3://bucket/t", "job", storage_options={**DELTAS, "aws_endpoint_url": AWAY}, retry=None)
    with pytest.raises(SinkUnavailable, match="Generic S3 error.*[Cc]onnect"):
        await new_job([{"n": 1}], same, sink).run()
