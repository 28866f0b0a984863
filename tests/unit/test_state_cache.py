"""What workers keep between epochs: the same state with it and without it, whatever was committed meanwhile."""

from __future__ import annotations

import random
from typing import Any

import fsspec
import pyarrow as pa
import pytest

from async_op.spark.cache import CachedRestore, StateCache
from keygroups import ValueState, key_group_of, range_of, subtask_of
from keygroups.state import MISSING, MemoryBackend
from snapshots import Snapshot, SnapshotStore, SubtaskSnapshot
from snapshots.filesystem import MemoryFolder
from tests.snapshot_kit import new_store

G = 8
KEYS = 60
STATES = (ValueState("count", pa.int64()), ValueState("profile"))


def restored(snapshot: Snapshot, index: int, parallelism: int, cache: StateCache, committed: set[str]) -> MemoryBackend:
    share = CachedRestore.on(snapshot.restore(index, parallelism), cache, frozenset(committed))
    return MemoryBackend(STATES, share.key_groups, share.states(STATES), share.snapshot_id)


def content(backends: list[MemoryBackend]) -> dict[tuple[str, Any], object]:
    found = {}
    for key in range(KEYS):
        key_group = key_group_of(key, G)
        backend = backends[subtask_of(key_group, len(backends), G)]
        for state in STATES:
            value = backend.tables[state.name].get(key_group, key)
            if value is not MISSING:
                found[state.name, key] = value
    return found


def cut_of(backend: MemoryBackend, index: int, parallelism: int) -> SubtaskSnapshot:
    return SubtaskSnapshot(
        subtask_index=index, parallelism=parallelism, max_parallelism=G, hash="xxhash64", states=backend.cut()
    )


def change(draw: random.Random, backends: list[MemoryBackend], expected: dict[tuple[str, Any], object]) -> None:
    """Write and remove some keys, as calls do."""
    for _ in range(draw.randrange(1, draw.choice([3, KEYS]))):
        key, state = draw.randrange(KEYS), draw.choice(STATES)
        key_group = key_group_of(key, G)
        value = MISSING if draw.random() < 0.2 else draw.randrange(1000)
        backends[subtask_of(key_group, len(backends), G)].tables[state.name].put(key_group, key, value)
        if value is MISSING:
            expected.pop((state.name, key), None)
        else:
            expected[state.name, key] = value


@pytest.mark.parametrize("seed", range(12))
def test_workers_that_keep_state_see_what_is_committed(seed: int) -> None:
    """Epochs on random workers, at random parallelisms; some are lost after all subtasks wrote, some run twice."""
    draw = random.Random(seed)
    store, workers = new_store(), [StateCache(draw.choice([20, 10_000])) for _ in range(3)]
    expected = dict[tuple[str, Any], object]()
    committed = set[str]()
    snapshot: Snapshot | None = None
    for _ in range(15):
        parallelism = draw.choice([1, 2, 3])
        runners = [draw.choice(workers) for _ in range(parallelism)]
        if snapshot is None:
            backends = [MemoryBackend(STATES, range_of(n, parallelism, G)) for n in range(parallelism)]
        else:
            pairs = enumerate(runners)
            backends = [restored(snapshot, index, parallelism, cache, committed) for index, cache in pairs]
        assert content(backends) == expected
        after = dict(expected)
        change(draw, backends, after)
        pending = store.begin()
        handles = []
        for index, (backend, cache) in enumerate(zip(backends, runners, strict=True)):
            cut = cut_of(backend, index, parallelism)
            handles.append(pending.write_subtask(cut))
            cache.keep(pending.folder.uri, cut.states, pending.version)
        if draw.random() < 0.25:
            continue  # the driver was lost
        snapshot, expected = pending.commit(handles), after
        committed |= {channel.cut_id for channel in snapshot.manifest.channels if channel.cut_id}
        if draw.random() < 0.1:
            snapshot = store.compact()
        if draw.random() < 0.1:
            snapshot = store.claim().snapshot


class CountedFolder(MemoryFolder):
    read_bytes = 0

    def read(self, name: str, start: int = 0, end: int | None = None) -> bytes:
        data = super().read(name, start, end)
        CountedFolder.read_bytes += len(data)
        return data


def test_an_epoch_reads_and_writes_what_it_changes() -> None:
    counts = ValueState("count", pa.int64())
    read, written = {}, {}
    for keys in (2_000, 50_000):
        store = SnapshotStore.on(CountedFolder(fsspec.filesystem("memory"), f"/read-{keys}/count"))
        backend = MemoryBackend([counts], range_of(0, 1, G))
        for key in range(keys):
            backend.tables["count"].put(key_group_of(key, G), key, key)
        cache = StateCache()
        for epoch in range(4):
            pending = store.begin()
            cut = cut_of(backend, 0, 1)
            snapshot = pending.commit([pending.write_subtask(cut)])
            # Another worker runs every second epoch, so this one has deltas to read.
            if epoch % 2 == 0:
                cache.keep(pending.folder.uri, cut.states, pending.version)
                committed = frozenset([cut.states[0].cut_id])
            CountedFolder.read_bytes = 0
            share = CachedRestore.on(snapshot.restore(0, 1), cache, committed)
            backend = MemoryBackend([counts], share.key_groups, share.states([counts]), share.snapshot_id)
            for key in range(0, 200, 10):
                backend.tables["count"].put(key_group_of(key, G), key, epoch)
        read[keys] = CountedFolder.read_bytes
        written[keys] = sum(file.bytes for file in snapshot.manifest.files if file.version == snapshot.version)
    assert 0 < read[50_000] < 1.1 * read[2_000]
    assert 0 < written[50_000] < 1.1 * written[2_000]


def test_what_was_used_longest_ago_is_dropped() -> None:
    cache = StateCache(keys_max=50)
    for index in range(4):
        backend = MemoryBackend(STATES, range_of(0, 1, G))
        for key in range(30):
            backend.tables["count"].put(key_group_of(key, G), key, key)
        cache.keep(f"memory://{index}", backend.cut(), 1)
        assert len(cache) <= 50
