"""Files on an object store that is busy or away for a while, so that the job asks again, or that refuses access."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NoReturn

import fsspec.asyn
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from async_op import ExponentialBackoffRetry, Job, RestartPolicy, Step
from async_op.connectors import FileRefused, FileSink, FileSource, SinkUnavailable
from async_op.connectors.errors import ConnectorUnavailable
from async_op.connectors.files.compression import content_of
from async_op.connectors.retrying import is_transient
from keygroups import ConfigError
from snapshots.filesystem import ClientFile, StorageClient
from tests.loopback import ObjectStore
from tests.quick import first_is_quick
from tests.s3_server import S3Server, s3_server
from tests.snapshots.filesystem.azure_server import AzureServer, azure_server
from tests.snapshots.filesystem.gcs_server import gcs_server


def options(s3: S3Server) -> dict[str, Any]:
    """Return the options of a client that asks once."""
    return {**s3.options, "config_kwargs": {"retries": {"max_attempts": 0}}, "skip_instance_cache": True}


def job(s3: S3Server, root: str, tmp_path: Path, *, busy_for: int, in_call: bool, attempts: int) -> Job:
    """Return a job from S3 to S3, which finds the store busy once it starts, or once its function is called."""

    async def upper(value: dict[str, str]) -> dict[str, str]:
        s3.busy = busy_for if in_call else 0
        return {"name": value["name"].upper()}

    retry = ExponentialBackoffRetry(attempts, 0.01, 0.02)
    source = FileSource(f"{root}/in/*.csv", "csv", retry=retry, storage_options=options(s3))
    sink = FileSink(f"{root}/out", "json", storage_options=options(s3), retry=retry)
    return Job(source, Step(upper, name="upper"), sink, snapshots=tmp_path, job_id="busy")


def root_with_input(s3: S3Server) -> str:
    root = s3.new_root()
    fsspec.filesystem("s3", **options(s3)).pipe(f"{root}/in/x.csv", b"name\nada\n")
    return root


@pytest.mark.thorough
@pytest.mark.parametrize("in_call", [False, True])
async def test_a_store_that_answers_slow_down_is_asked_again(s3: S3Server, tmp_path: Path, in_call: bool) -> None:
    root = root_with_input(s3)
    s3.busy = 0 if in_call else 6

    await job(s3, root, tmp_path, busy_for=6, in_call=in_call, attempts=10).run()

    assert s3.busy == 0
    files = fsspec.filesystem("s3", **options(s3))
    assert [files.cat(path) for path in files.glob(f"{root}/out/*.jsonl")] == [b'{"name": "ADA"}\n']


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("in_call", "error", "names"), [(False, ConnectorUnavailable, "FileSource"), (True, SinkUnavailable, "FileSink")]
)
async def test_a_store_that_stays_busy_ends_the_job_with_the_name_of_the_connector(
    s3: S3Server, tmp_path: Path, in_call: bool, error: type[Exception], names: str
) -> None:
    root = root_with_input(s3)
    s3.busy = 0 if in_call else 50
    stuck = job(s3, root, tmp_path, busy_for=50, in_call=in_call, attempts=3)
    if not in_call:
        stuck._sink = FileSink(tmp_path / "out", "json")

    with pytest.raises(error, match=names):
        await stuck.run()


async def test_a_store_of_snapshots_that_is_busy_is_survived_by_restarts(s3: S3Server) -> None:
    """Its client gives up, which ends a run; with `restart` the next run continues from the newest snapshot."""
    delivered: dict[int, list[int]] = {}
    called: list[int] = []

    async def number(value: int) -> int:
        called.append(value)
        if value == 50 and called.count(value) == 1:
            s3.busy = 10
        return value

    async def keep(values: list[int], epoch: int) -> None:
        delivered[epoch] = values

    job = Job(
        range(51),
        Step(number, name="number", capacity=1),
        keep,
        snapshots=f"{s3.new_root()}/snapshots",
        job_id="busy",
        storage_options=options(s3),
        restart=RestartPolicy(max_restarts=10, initial_delay=0.0, max_delay=0.0),
    )
    await job.run()

    assert s3.busy == 0
    assert [value for epoch in sorted(delivered) for value in delivered[epoch]] == [*range(51)]
    assert called.count(50) > 1


async def test_a_store_that_cannot_be_reached_is_asked_again(s3: S3Server) -> None:
    unreachable = options(s3) | {"endpoint_url": "http://127.0.0.1:9"}
    source = FileSource("s3://bucket/in/*.csv", "csv", storage_options=unreachable)

    with pytest.raises(OSError, match="127.0.0.1:9") as failed:
        await source.partitions()
    await source.close()
    assert is_transient(failed.value)


@pytest.mark.parametrize(
    "wrong",
    first_is_quick([{"colour": 1}, {"client_kwargs": {"colour": 1}}, {"endpoint_url": "nonsense"}, {"key": 5}]),
    ids=str,
)
async def test_wrong_options_of_a_source_are_named(s3: S3Server, wrong: dict[str, object]) -> None:
    source = FileSource(f"{s3.new_root()}/in/*.csv", "csv", storage_options=options(s3) | wrong)

    with pytest.raises(ConfigError, match="storage_options") as refused:
        await source.partitions()
    await source.close()
    assert all(name in str(refused.value) for name in wrong)


SERVERS: dict[str, Callable[[], AbstractContextManager[ObjectStore]]] = {
    "s3": s3_server,
    "gcs": gcs_server,
    "azure": azure_server,
}


@pytest.fixture(scope="module", params=SERVERS)
def cloud(request: pytest.FixtureRequest) -> Iterator[ObjectStore]:
    with SERVERS[request.param]() as server:
        root = server.new_root()
        files = fsspec.filesystem(root.partition(":")[0], **server.options)
        files.pipe_file(f"{root}/x", b"")
        files.open(f"{root}/x").close()  # threads of gcsfs and fsspec stay, so they must not begin within a test
        yield server


@pytest.mark.parametrize("status", first_is_quick([403, 401]))
async def test_what_a_source_may_not_list_or_read_is_named(cloud: ObjectStore, status: int) -> None:
    root = cloud.new_root()
    fsspec.filesystem(root.partition(":")[0], **cloud.options).pipe_file(f"{root}/in/x.csv", b"name\nada\n")
    source = FileSource(f"{root}/in/*.csv", "csv", storage_options=cloud.options)
    (partition,) = await source.partitions()

    cloud.refuses = (status, "AccessDenied")
    with pytest.raises(FileRefused) as refused:
        await anext(source.read(partition, None))
    assert refused.value.path == partition
    await source.close()

    with pytest.raises(FileRefused) as refused:
        await source.partitions()
    assert refused.value.path == f"{root}/in/*.csv"
    await source.close()
    cloud.reset()


async def test_a_bucket_that_is_missing_has_no_files_and_the_log_says_so(
    cloud: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    source = FileSource(f"{cloud.new_root()}/in/*.csv", "csv", storage_options=cloud.options)
    cloud.refuses = (404, "ContainerNotFound" if isinstance(cloud, AzureServer) else "NoSuchBucket")

    assert await source.partitions() == []
    assert "no file matches" in caplog.text
    await source.close()
    cloud.reset()


def test_a_refusal_in_the_middle_of_a_compressed_file_is_no_damage() -> None:
    """It would be if gcsfs's plain OSError came through: then the rest of the file was given up."""

    class Refused(io.BytesIO):
        def read(self, *_: Any) -> NoReturn:
            raise OSError("Forbidden: b/bucket/o/in/x.csv.gz")

    file = Refused(gzip.compress(b"name\nada\n"))
    with pytest.raises(PermissionError):
        content_of(ClientFile(file, StorageClient(MemoryFileSystem()), "x.csv.gz"), "x.csv.gz").read(10)
