"""Manifests that are stored as gzip: the same manifests, damage is found, and memory is bounded."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from snapshots import IncompleteSnapshot, SnapshotCorrupted, SnapshotStore
from snapshots.commit import manifest_creation as commit
from snapshots.format import compression, manifest_head
from snapshots.format.compression import compressed, decompressed, plain_bytes
from snapshots.format.manifest import manifest_name
from snapshots.format.manifest_head import Head
from tests.snapshot_kit import content_of, new_store, parts, words
from tests.snapshots.format.golden import generate
from tests.snapshots.format.test_manifest import PATH, SAMPLE

CONTENT = {"count": {key: len(key) for key in words(50)}, "profile": {}}


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "COMPRESSED_FROM_BYTES", 0)


def test_only_a_large_manifest_is_compressed_and_much() -> None:
    data = b'{"path":"data/0123456789abcdef"}' * 2**15
    assert len(compressed(data)) < len(data) / 5
    assert decompressed(compressed(data), len(data)) == data
    assert plain_bytes(compressed(data)) == len(data)
    assert compressed(data[:-1]) == data[:-1]
    assert Head(SAMPLE).to_bytes().startswith(b"{")


@pytest.mark.usefixtures("always")
def test_a_store_works_as_usual_and_others_can_read_it() -> None:
    store = new_store()
    store.write(parts(CONTENT))
    snapshot = store.repartition(5)
    stored = snapshot.folder.read(manifest_name(2))

    assert stored.startswith(b"\x1f\x8b")
    assert json.loads(gzip.decompress(stored))["manifest"]["parallelism"] == 5
    assert content_of(store.load(2)) == CONTENT
    assert store.verify().ok
    assert store.collect_garbage(keep_last=1, min_age=0.0, dry_run=False).expired == (1,)


@pytest.mark.usefixtures("always")
def test_every_changed_byte_gives_the_same_manifest_or_an_error() -> None:
    data = Head(SAMPLE).to_bytes()
    choose = random.Random(1)
    unnoticed = 0
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 << choose.randrange(8)
        try:
            found = Head.from_bytes(bytes(changed), PATH).manifest
        except SnapshotCorrupted:
            continue
        assert found == SAMPLE
        assert gzip.decompress(changed) == gzip.decompress(data)
        unnoticed += 1
    # The time, the level and the system in the header mean nothing, nor do bits that fill the last byte; and what is
    # repeated may be copied from another place where it stands.
    assert unnoticed <= len(data) / 50


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    "change",
    [
        lambda data: data[:-1],
        lambda data: data[: len(data) // 2],
        lambda data: data[:2],
        lambda data: data + b"\n",
        lambda data: data + data,
        lambda data: data[:-8] + bytes(8),
    ],
    ids=["cut", "half", "magic only", "more", "twice", "without its size"],
)
def test_a_damaged_one_is_refused(change: Callable[[bytes], bytes]) -> None:
    with pytest.raises(SnapshotCorrupted):
        Head.from_bytes(change(Head(SAMPLE).to_bytes()), PATH)


def test_one_that_would_fill_the_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest_head, "MANIFEST_BYTES_MAX", 10_000)
    bomb = gzip.compress(b" " * 10_000_000)
    assert len(bomb) <= 10_000
    with pytest.raises(SnapshotCorrupted, match="more than a manifest may have"):
        Head.from_bytes(bomb, PATH)


@pytest.mark.usefixtures("always")
def test_one_that_could_not_be_read_is_not_committed(monkeypatch: pytest.MonkeyPatch) -> None:
    store = new_store()
    plain = plain_bytes(Head(store.write(parts(CONTENT)).manifest).to_bytes())
    monkeypatch.setattr(commit, "MANIFEST_BYTES_MAX", plain - 1)
    with pytest.raises(IncompleteSnapshot, match="at most can be read"):
        store.write(parts(CONTENT))
    assert store.versions() == [1]


def test_the_golden_one_is_read() -> None:
    folder = generate.FOLDER / "compressed-v1"
    assert Path(folder, generate.OPERATOR_ID, manifest_name(2)).read_bytes().startswith(b"\x1f\x8b")
    snapshot = SnapshotStore(folder, generate.OPERATOR_ID).load(2)

    assert snapshot.to_arrow("count").num_rows == len(generate.FIRST["count"])
    assert SnapshotStore(folder, generate.OPERATOR_ID).verify(2).ok
