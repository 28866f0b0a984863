"""The golden snapshots that must be refused: each version of one folder has a damage of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from keygroups import KeyGroupRange, ValueState, key_group_of
from keygroups.state import MemoryBackend, identity_of
from snapshots import (
    FolderMoved,
    IncompatibleSnapshot,
    Snapshot,
    SnapshotCorrupted,
    SnapshotStore,
    SubtaskSnapshot,
)
from snapshots.format.compression import compressed
from snapshots.format.sealing import canonical, sealed

OPERATOR_ID = "golden"
G = 8
COUNT = ValueState("count", pa.int64())
CONTENT = {f"key {number}": number for number in range(12)}


class Files(NamedTuple):
    """The two files of a version, and those of the first one, which is sound."""

    manifest: Path
    data: Path
    other_data: Path

    def flip(self, path: Path, offset: int) -> None:
        """Turn one bit over."""
        content = bytearray(path.read_bytes())
        content[offset] ^= 1
        path.write_bytes(content)

    def cut(self, path: Path, size: int) -> None:
        """Keep the beginning only."""
        path.write_bytes(path.read_bytes()[:size])

    def change(self, **fields: Any) -> None:
        """Change fields of the manifest, as a writer with other ideas would have written them."""
        body = json.loads(self.manifest.read_bytes())["manifest"]
        self.manifest.write_bytes(sealed(canonical(body | fields)))

    def change_file(self, **fields: Any) -> None:
        """Change what the manifest says of its one file."""
        (file,) = json.loads(self.manifest.read_bytes())["manifest"]["files"]
        self.change(files=[file | fields])


class Damage(NamedTuple):
    """A damage, and how it is refused."""

    name: str
    do: Callable[[Files], object]
    error: type[Exception]
    says: str


DAMAGES = (
    Damage("a data file is missing", lambda at: at.data.unlink(), SnapshotCorrupted, "the file is missing"),
    Damage("a data file is cut short", lambda at: at.cut(at.data, 300), SnapshotCorrupted, "is damaged"),
    Damage("a data file is empty", lambda at: at.cut(at.data, 0), SnapshotCorrupted, "is damaged"),
    Damage("a bit of the data", lambda at: at.flip(at.data, 60), SnapshotCorrupted, "is damaged"),
    Damage("a bit of a footer", lambda at: at.flip(at.data, -40), SnapshotCorrupted, "is damaged"),
    Damage(
        "the data of another version",
        lambda at: at.data.write_bytes(at.other_data.read_bytes()),
        SnapshotCorrupted,
        "is damaged",
    ),
    Damage("a bit of a manifest", lambda at: at.flip(at.manifest, 200), SnapshotCorrupted, "checksum|not a manifest"),
    Damage("a manifest is cut short", lambda at: at.cut(at.manifest, 400), SnapshotCorrupted, "not a manifest"),
    Damage("a manifest is empty", lambda at: at.cut(at.manifest, 0), SnapshotCorrupted, "not a manifest"),
    Damage("a field has another type", lambda at: at.change(parallelism=1.0), SnapshotCorrupted, "parallelism is 1.0"),
    Damage(
        "a path leads out", lambda at: at.change_file(path="data/../../x"), SnapshotCorrupted, "no part of its path"
    ),
    Damage("a file claims too much", lambda at: at.change_file(rows=2**60), SnapshotCorrupted, "rows"),
    Damage(
        "a compressed manifest is cut short",
        lambda at: at.manifest.write_bytes(compressed(at.manifest.read_bytes() + b" " * 2**20)[:-9]),
        SnapshotCorrupted,
        "ends too early",
    ),
    Damage("a newer format", lambda at: at.change(format_version=2), IncompatibleSnapshot, "format version.* is 2"),
    Damage(
        "a newer feature",
        lambda at: at.change(required_features=["delta", "telepathy"]),
        IncompatibleSnapshot,
        "required feature.*'telepathy'",
    ),
    Damage("another operator", lambda at: at.change(operator_id="other"), FolderMoved, "moved or copied by hand"),
)


def write_damaged(root: Path) -> None:
    """Write a sound version, and then one for each damage, which is its parent's content again."""
    store = SnapshotStore(root, OPERATOR_ID)
    made = [written(store) for _ in range(len(DAMAGES) + 1)]
    places = [_files_of(root / OPERATOR_ID, snapshot) for snapshot in made]
    for damage, (manifest, data) in zip(DAMAGES, places[1:], strict=True):
        damage.do(Files(manifest, data, places[0][1]))
    (root / OPERATOR_ID / "latest").unlink()


def written(store: SnapshotStore) -> Snapshot:
    """Write a whole version."""
    # A backend that knows of no parent writes a whole version.
    backend = MemoryBackend((COUNT,), KeyGroupRange(0, G - 1))
    for key, value in CONTENT.items():
        backend.tables["count"].put(key_group_of(key, G), identity_of(key), value)
    pending = store.begin()
    part = SubtaskSnapshot(
        subtask_index=0,
        parallelism=1,
        max_parallelism=G,
        hash="xxhash64",
        states=backend.cut(),
        in_flight=(),
        operator_states=(),
        watermark=None,
    )
    return pending.commit([pending.write_subtask(part)])


def _files_of(folder: Path, snapshot: Snapshot) -> tuple[Path, Path]:
    (file,) = snapshot.manifest.files
    return folder / f"manifests/{snapshot.version:020d}.json", folder / file.path
