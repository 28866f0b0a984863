"""What the tests of snapshots are made of: subtasks with content, and the content that a snapshot gives back."""

from __future__ import annotations

import uuid
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
from fsspec.implementations.memory import MemoryFileSystem

from keygroups import ValueState, key_group_of, range_of, subtask_of
from keygroups.state import KeyedStateBackend, LazyGroup, identity_of, original_of
from snapshots import InFlightElement, Snapshot, SnapshotStore, SubtaskSnapshot
from snapshots.format.subtask import NO_KEY_GROUP
from tests.backends import new_backend

G = 16
"""Key groups: few, so that some of them have several keys and some none."""

COUNT = ValueState("count", pa.int64())
PROFILE = ValueState("profile")

Content: TypeAlias = dict[str, dict[Any, object]]


def new_store(uri: str | None = None) -> SnapshotStore:
    """Return an empty store; in memory, unless told otherwise."""
    return SnapshotStore(uri or f"memory://{uuid.uuid4().hex}", "enrich")


def forget_stores() -> None:
    """Remove the stores in memory: fsspec keeps all of their files in one dict, and each listing goes through it."""
    MemoryFileSystem.store.clear()
    MemoryFileSystem.pseudo_dirs[:] = [""]


def words(count: int) -> list[str]:
    return [f"key {number}" for number in range(count)]


def record(key: Hashable, sequence: int, channel: int | None = None, **fields: Any) -> InFlightElement:
    """Return a pending record, in the queue of its key's owner of two unless told otherwise.

    Without a key it is in no key group.
    """
    key_group = NO_KEY_GROUP if key is None else key_group_of(key, G)
    if channel is None:
        channel = subtask_of(key_group, 2, G)
    settings: dict[str, Any] = {"value": {"key": key}, "element_id": f"{channel}-{sequence}", "timestamp": sequence}
    return InFlightElement(channel=channel, sequence=sequence, key=key, key_group=key_group, **(settings | fields))


def watermark(timestamp: int, sequence: int, channel: int = 0) -> InFlightElement:
    return InFlightElement(channel=channel, sequence=sequence, is_watermark=True, timestamp=timestamp)


def part(
    backend: KeyedStateBackend,
    subtask_index: int,
    parallelism: int,
    in_flight: Iterable[InFlightElement] = (),
    watermark: int | None = None,
    max_parallelism: int = G,
    hash_: str = "xxhash64",
) -> SubtaskSnapshot:
    """Cut a backend as the operator does."""
    return SubtaskSnapshot(
        subtask_index=subtask_index,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        hash=hash_,
        states=backend.cut(),
        in_flight=tuple(in_flight),
        watermark=watermark,
    )


def parts(
    content: Mapping[str, Mapping[Any, object]],
    descriptors: Sequence[ValueState] = (COUNT, PROFILE),
    parallelism: int = 2,
    in_flight: Iterable[InFlightElement] = (),
    watermarks: Mapping[int, int] | None = None,
) -> list[SubtaskSnapshot]:
    """Deal content to subtasks by the key group of each key, and in-flight elements by their channel."""
    elements = list(in_flight)
    rows = [
        (state, key_group_of(key, G), identity_of(key), value)
        for state, values in content.items()
        for key, value in values.items()
    ]
    made = []
    for subtask in range(parallelism):
        owned = range_of(subtask, parallelism, G)
        backend = new_backend(descriptors, owned)
        for state, key_group, key, value in rows:
            if key_group in owned:
                backend.tables[state].put(key_group, key, value)
        queue = [element for element in elements if element.channel == subtask]
        made.append(part(backend, subtask, parallelism, queue, (watermarks or {}).get(subtask)))
    return made


def restored(
    snapshot: Snapshot,
    subtask_index: int,
    parallelism: int | None = None,
    descriptors: Sequence[ValueState] = (COUNT, PROFILE),
) -> KeyedStateBackend:
    """Return a subtask's backend as the operator restores it: nothing is loaded yet."""
    restore = snapshot.restore(subtask_index, parallelism)
    return new_backend(descriptors, restore.key_groups, restore.states(descriptors), restore.snapshot_id)


def loaded(group: LazyGroup) -> dict[Any, object]:
    """Return the values of a key group by key."""
    return {original_of(identity): value for identity, value in group.load().items()}


def content_of(
    snapshot: Snapshot, parallelism: int | None = None, descriptors: Sequence[ValueState] = (COUNT, PROFILE)
) -> Content:
    """Restore all subtasks and unite what they hold; each key must be in its key group, and there only."""
    content: Content = {descriptor.name: {} for descriptor in descriptors}
    for subtask in range(snapshot.parallelism if parallelism is None else parallelism):
        restore = snapshot.restore(subtask, parallelism)
        for name, groups in restore.states(descriptors).items():
            for key_group, group in groups.items():
                assert key_group in restore.key_groups
                for key, value in loaded(group).items():
                    assert key_group_of(key, snapshot.max_parallelism, snapshot.manifest.hash) == key_group
                    assert key not in content[name], f"{key!r} has two owners"
                    content[name][key] = value
    return content
