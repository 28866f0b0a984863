"""A snapshot with a file of each kind, of which one is damaged, and what readers must then do."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from keygroups import key_group_of, subtask_of
from keygroups.state import MISSING
from snapshots import Snapshot, SnapshotCorrupted, SnapshotStore
from snapshots.filesystem import Folder
from snapshots.format.manifest import DataFile
from snapshots.format.parquet import ParquetReader
from tests.snapshot_kit import G, content_of, new_store, part, parts, record, restored, watermark, words

SEED = 20_260_102

KINDS = ["count", "profile", "delta", "in_flight", "output"]
OUTPUTS = pa.table({"key": words(40), "score": pa.array(range(40), pa.int64())})


class Damaged:
    """A snapshot of two subtasks, of which one file is changed."""

    def __init__(self, kind: str, shift: int = 0) -> None:
        self.store = new_store()
        self.snapshot = written(self.store, shift)
        self.file = next(file for file in self.snapshot.manifest.files if kind in (file.state, file.kind))
        self.path = self.snapshot.folder.path(self.file.path)
        self.data = self.read_bytes(self.file.path)
        self.sound = content(self.snapshot, self.file)

    def read_bytes(self, path: str) -> bytes:
        return self.snapshot.folder.read(path)

    def put(self, data: bytes) -> None:
        self.snapshot.folder.filesystem.pipe_file(self.path, data)

    def remove(self) -> None:
        self.snapshot.folder.filesystem.rm_file(self.path)

    @property
    def pages(self) -> range:
        return range(len(self.data) - self.file.footer_bytes)

    @property
    def footer(self) -> range:
        return range(len(self.data) - self.file.footer_bytes, len(self.data))


def written(store: SnapshotStore, shift: int = 0) -> Snapshot:
    """Write a snapshot that has files of every kind; another `shift` gives the same sizes and bounds.

    It is the second version: the first is what its deltas change.
    """
    keys = words(40)
    turned = keys[shift:] + keys[:shift]
    state: dict[str, dict[Any, object]] = {
        "count": {key: number for number, key in enumerate(turned)},
        "profile": {key: {"name": key, "rank": (number, None)} for number, key in enumerate(turned)},
    }
    queue = [record(key, n, completed=n % 2 == 0, outputs=(n,) if n % 2 == 0 else None) for n, key in enumerate(keys)]
    queue += [watermark(100 + channel, 1000, channel) for channel in range(2)]
    before = store.write(parts(state))
    backends = [restored(before, subtask) for subtask in range(2)]
    for number, key in enumerate(turned[:8]):
        key_group = key_group_of(key, G)
        value = MISSING if number % 4 == 0 else 1000 + number
        backends[subtask_of(key_group, 2, G)].tables["count"].put(key_group, key, value)
    pending = store.begin()
    cuts = [part(b, n, 2, [e for e in queue if e.channel == n]) for n, b in enumerate(backends)]
    return pending.commit([pending.write_subtask(cut, OUTPUTS) for cut in cuts])


def content(snapshot: Snapshot, file: DataFile) -> object:
    """Return everything that the ways of reading such a file give."""
    if file.kind == "output":
        return ParquetReader(snapshot.folder, file).read_all().to_pydict()
    if file.kind == "in_flight":
        queues = [snapshot.restore(subtask, p).queue() for p in (1, 2, 3) for subtask in range(p)]
        return snapshot.in_flight().to_pydict(), queues
    assert file.state is not None
    return snapshot.to_arrow(file.state).to_pydict(), [content_of(snapshot, p)[file.state] for p in (1, 2, 3)]


def names(folder: Folder) -> list[str]:
    return sorted(folder.filesystem.find(folder.root))


def check_refused(damaged: Damaged) -> None:
    """Every way of reading raises, and leaves the storage as it was."""
    before = names(damaged.snapshot.folder)
    with pytest.raises(SnapshotCorrupted) as refused:
        content(damaged.snapshot, damaged.file)

    assert (refused.value.path, refused.value.key_groups) == (damaged.path, damaged.file.key_groups)
    assert refused.value.damage
    assert names(damaged.snapshot.folder) == before
