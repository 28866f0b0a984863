"""The mark of what was delivered last: kept beside the versions, and never believed without its attempt."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from snapshots import SnapshotStore
from snapshots.filesystem import open_folder
from snapshots.format.delivered import MARK, Delivered, last_delivered, last_mark, mark_delivered
from tests.snapshot_kit import parts


@pytest.mark.parametrize("storage", ["memory", "local"])
def test_the_last_mark_counts(storage: str, tmp_path: Path) -> None:
    folder = open_folder(str(tmp_path / "enrich") if storage == "local" else f"memory://{uuid.uuid4().hex}/enrich")
    assert last_delivered(folder) is None
    for epoch in (3, 17):
        mark_delivered(folder, Delivered(epoch, f"{epoch:016x}"))

    assert last_delivered(folder) == Delivered(17, f"{17:016x}")
    assert last_delivered(folder) != Delivered(17, f"{18:016x}")


def test_a_mark_without_an_attempt_comes_back_too(tmp_path: Path) -> None:
    folder = open_folder(str(tmp_path))
    mark_delivered(folder, Delivered(5, ""))
    assert last_delivered(folder) == Delivered(5, "")


@pytest.mark.parametrize(
    "content", [b"", b"17", b"17 a b", b"17 a b=1", b"17 a b=c=d", b"17 a b=1=2=3", b"x y", b"\xff\xfe 1", b"\0" * 300]
)
def test_a_mark_that_says_nothing_counts_for_nothing(tmp_path: Path, content: bytes) -> None:
    folder = open_folder(str(tmp_path))
    folder.replace(MARK, content)
    assert last_delivered(folder) is None


def test_a_collection_leaves_the_mark_and_a_copy_takes_it(tmp_path: Path) -> None:
    store, other = SnapshotStore(tmp_path, "enrich"), SnapshotStore(tmp_path, "other")
    for number in range(3):
        latest = store.write(parts({"count": {"a": number}}))
    mark_delivered(latest.folder, Delivered(3, "abc"))
    store.collect_garbage(keep_last=1, min_age=0, dry_run=False)

    copied = store.copy_to(other)
    assert last_delivered(latest.folder) == last_delivered(copied.folder) == Delivered(3, "abc")


def test_a_mark_names_what_was_written_to_each_sink(tmp_path: Path) -> None:
    folder = open_folder(str(tmp_path))
    assert last_mark(folder) == (None, {})
    written = {"outputs": (2**63, "a" * 32), "dead_letters": (2**63, "b" * 32)}
    mark_delivered(folder, Delivered(2**63, "f" * 64), written)
    assert last_mark(folder) == (Delivered(2**63, "f" * 64), written)
    assert last_delivered(folder) == Delivered(2**63, "f" * 64)
