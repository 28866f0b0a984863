"""A full disk of temporary files is named, and costs nothing that is committed."""

from __future__ import annotations

import errno
import os
import pickle
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from async_op import Step
from async_op.job import outputs
from keygroups import DiskStateBackend, KeyGroupRange
from keygroups.state.errors import StateDirectoryRefused
from snapshots import NoTemporaryDirectory, TemporaryDiskFull
from snapshots.temporary_files import full_disk_named, temporary_directory
from snapshots.upkeep import buckets
from tests.async_op.job.kit import Epochs, new_job
from tests.snapshot_kit import G, content_of, new_store, parts, words

FULL = "/dev/full"
"""To write to this device fails as on a full disk."""

pytestmark = pytest.mark.skipif(not Path(FULL).exists(), reason="there is no device that is always full")


def test_a_rewrite_that_finds_the_disk_full_commits_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    content = {"count": {key: len(key) for key in words(50)}, "profile": {}}
    store = new_store()
    written = store.write(parts(content))
    with monkeypatch.context() as patch:
        patch.setattr(buckets, "FLUSH_BYTES", 1)
        patch.setattr(buckets, "pa", SimpleNamespace(**vars(pa) | {"OSFile": lambda path, mode: pa.OSFile(FULL, mode)}))
        with pytest.raises(TemporaryDiskFull, match=rf"{tempfile.gettempdir()} \(.*TMPDIR"):
            store.repartition(2, max_parallelism=2 * G, rewrite=True)
    assert store.load().version == written.version

    assert content_of(store.repartition(2, max_parallelism=2 * G, rewrite=True)) == content


async def test_a_job_that_finds_the_disk_full_continues_where_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    async def same(value: Any) -> Any:
        return value

    def run() -> Any:
        return new_job(range(100), Step(same, "same"), sink, snapshots=str(tmp_path)).run()

    sink = Epochs()
    with monkeypatch.context() as patch:
        patch.setattr(outputs, "MEMORY_BYTES", 10)
        full = lambda **_: Path(FULL).open("r+b", buffering=0)  # noqa: SIM115, E731 - as `TemporaryFile`, which is closed
        patch.setattr(tempfile, "TemporaryFile", full)
        with pytest.raises(TemporaryDiskFull):
            await run()
    await run()
    assert sorted(sink.values) == list(range(100))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_the_error_is_one_of_the_system_and_survives_pickling(number: int) -> None:
    with pytest.raises(OSError, match=os.strerror(number)) as raised, temporary_directory("test"):
        raise OSError(number, os.strerror(number))
    sent = pickle.loads(pickle.dumps(raised.value))
    assert (type(sent), str(sent), sent.errno) == (TemporaryDiskFull, str(raised.value), errno.ENOSPC)


def test_other_errors_stay_as_they_are() -> None:
    with pytest.raises(FileNotFoundError, match="a file of the user's"), full_disk_named():
        raise FileNotFoundError(errno.ENOENT, "a file of the user's")


def test_a_process_that_may_write_nowhere_is_told_to_name_a_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    with pytest.raises(NoTemporaryDirectory, match=r"found in \['/tmp'\]\): .* TMPDIR"), temporary_directory("test"):
        pass
    with pytest.raises(StateDirectoryRefused, match="No usable temporary directory"):
        DiskStateBackend().open([], KeyGroupRange(0, 0))
