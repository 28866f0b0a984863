"""An operator whose snapshots build on each other, and what became of each of them."""

from __future__ import annotations

from typing import Any

from keygroups import key_group_of, subtask_of
from keygroups.state import MISSING, KeyedStateBackend, identity_of
from snapshots import Snapshot, SnapshotStore, SubtaskSnapshot
from tests.snapshot_kit import G, content_of, new_store, part, parts, restored, words

KEYS = words(200)
CONTENT: dict[str, dict[Any, object]] = {"count": {key: n for n, key in enumerate(KEYS)}, "profile": {}}


def kinds(snapshot: Snapshot, state: str = "count") -> list[tuple[str, int]]:
    """Return kind and version of a state's files, of subtask 0."""
    return [(f.kind, f.version) for f in snapshot.manifest.files if f.state == state and f.subtask == 0]


def put(backends: list[KeyedStateBackend], key: Any, value: object, state: str = "count") -> None:
    key_group = key_group_of(key, G)
    backends[subtask_of(key_group, len(backends), G)].tables[state].put(key_group, identity_of(key), value)


def cut(backends: list[KeyedStateBackend]) -> list[SubtaskSnapshot]:
    return [part(backend, n, len(backends)) for n, backend in enumerate(backends)]


class Run:
    """An operator with one subtask that has been restored from its first snapshot."""

    def __init__(self, parallelism: int = 1) -> None:
        self.store = new_store()
        self.first = self.store.write(parts(CONTENT, parallelism=parallelism))
        self.backends = [restored(self.first, n, parallelism) for n in range(parallelism)]
        self.expected = dict(CONTENT["count"])

    def change(self, key: str, value: object) -> None:
        put(self.backends, key, value)
        self.expected[key] = value

    def remove(self, key: str) -> None:
        put(self.backends, key, MISSING)
        self.expected.pop(key, None)

    def write(self, store: SnapshotStore | None = None) -> Snapshot:
        snapshot = (store or self.store).write(cut(self.backends))
        assert content_of(snapshot)["count"] == self.expected
        assert (store or self.store).verify().ok
        return snapshot
