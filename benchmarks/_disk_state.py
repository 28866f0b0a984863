"""The cases of state on the local disk: speed beside the bare store, memory, the pause of a cut, and a rescale.

Each runs in a process of its own, because what is measured is its memory.
"""

from __future__ import annotations

import multiprocessing
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rocksdict import WriteBatch

from keygroups import ValueState, key_groups_of, range_of
from keygroups.state import DiskBackend, DiskStateBackend, Transaction
from keygroups.state.disk.encoding import CONTENT, RowEncoding
from keygroups.state.disk.store import DIRTY_ROWS_MAX, Store
from snapshots import SnapshotStore, SubtaskSnapshot

MAX_PARALLELISM = 128
PAYLOAD = ValueState("payload", pa.binary())
VALUE_BYTES = 100
CHUNK = 100_000
ACCESSES = 100_000
ROUNDS = 3
_POOL = random.Random(7).randbytes(2**20)  # noqa: S311 - content, not a secret


def payload(number: int) -> bytes:
    """Return the value of a key: random bytes, the same for the same key."""
    start = number * 7919 % (len(_POOL) - VALUE_BYTES)
    return _POOL[start : start + VALUE_BYTES]


def numbered(keys: int) -> Iterator[tuple[int, int]]:
    """Return keys with their key groups, in no order that a store could profit from."""
    for first in range(0, keys, CHUNK):
        # A bijection of the numbers.
        numbers = (np.arange(first, min(first + CHUNK, keys), dtype=np.int64) * 2654435761) % (2**61 - 1)
        yield from zip(numbers.tolist(), key_groups_of(numbers, MAX_PARALLELISM).tolist(), strict=True)


class Anonymous:
    """The memory of this process that no file backs, and the most that it has been."""

    def __init__(self) -> None:
        self.before_mb = self.most_mb = _anonymous_mb()

    def look(self) -> None:
        """Take the memory of this moment into account."""
        self.most_mb = max(self.most_mb, _anonymous_mb())


def _anonymous_mb() -> float:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return float("nan")


def filled(keys: int, subtask: int, parallelism: int, memory: Anonymous) -> DiskBackend:
    """Return a subtask's backend with its share of the keys."""
    owned = range_of(subtask, parallelism, MAX_PARALLELISM)
    backend = DiskStateBackend().open([PAYLOAD], owned)
    put = backend.tables["payload"].put
    for place, (number, key_group) in enumerate(numbered(keys)):
        if key_group in owned:
            put(key_group, number, payload(number))
        if not place % CHUNK:
            memory.look()
    return backend


def read_modify_write(keys: int) -> dict[str, Any]:
    """Read and write single values beside the bare store, batched the same way; a cut after each round."""
    memory = Anonymous()
    backend = filled(keys, 0, 1, memory)
    with tempfile.TemporaryDirectory() as directory:
        bare = Store(Path(directory), 64 * 2**20)
        _fill_bare(bare, keys)
        draw = random.Random(5)  # noqa: S311 - no secret
        everything = list(_sample(keys, draw, 2 * ROUNDS * ACCESSES))
        ours, floor, pauses = [], [], []
        for round_ in range(ROUNDS):
            some = everything[2 * round_ :: 2 * ROUNDS]
            ours.append(_micros(lambda some=some: _through_invocations(backend, some), len(some)))
            some = everything[2 * round_ + 1 :: 2 * ROUNDS]
            floor.append(_micros(lambda some=some: _through_bare(bare, some), len(some)))
            started = time.perf_counter()
            backend.cut()
            pauses.append(1000 * (time.perf_counter() - started))
            memory.look()
        bare.close()
    backend.close()
    return {
        "case": f"disk, {keys:,} keys: bare store ÷ ValueState, read and written (0.5 at least)",
        "floor_us": round(min(floor), 3),
        "us": round(min(ours), 3),
        "result": round(min(floor) / min(ours), 3),
        "cut_ms": round(max(pauses), 2),
        # The bare store's memory is in it, too.
        "anonymous_mb": round(memory.most_mb - memory.before_mb),
    }


def rescale(keys: int) -> dict[str, Any]:
    """Snapshot two subtasks, restore them as five, and look at every value."""
    memory = Anonymous()
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as directory:
        store = SnapshotStore(directory, "disk")
        backends = [filled(keys, subtask, 2, memory) for subtask in range(2)]
        parts = [_part(backend, subtask, 2) for subtask, backend in enumerate(backends)]
        pending = store.begin()
        handles = []
        for part in parts:
            handles.append(pending.write_subtask(part))
            memory.look()
        snapshot = pending.commit(handles)
        for backend in backends:
            backend.close()
        del parts, part, backends, backend
        snapshot = store.repartition(5)
        right = sum(_right_after_restore(snapshot, subtask, keys, memory) for subtask in range(5))
    assert right == keys, f"{keys - right} values are lost"
    return {
        "case": f"disk, {keys:,} keys: snapshot of 2, restore of 5, every value right (MB of anonymous memory)",
        "seconds": round(time.perf_counter() - started, 1),
        "result": round(memory.most_mb - memory.before_mb),
    }


def _right_after_restore(snapshot: Any, subtask: int, keys: int, memory: Anonymous) -> int:
    share = snapshot.restore(subtask)
    backend = DiskStateBackend().open([PAYLOAD], share.key_groups, share.states([PAYLOAD]), share.snapshot_id)
    table = backend.tables["payload"]
    for key_group in share.key_groups:
        table.load(key_group)
        memory.look()
    right = 0
    for number, key_group in numbered(keys):
        if key_group in share.key_groups:
            assert table.get(key_group, number) == payload(number), f"{number} has another value"
            right += 1
    backend.close()
    return right


def _part(backend: DiskBackend, subtask: int, parallelism: int) -> SubtaskSnapshot:
    return SubtaskSnapshot(
        subtask_index=subtask,
        parallelism=parallelism,
        max_parallelism=MAX_PARALLELISM,
        hash="xxhash64",
        states=backend.cut(),
    )


def _fill_bare(bare: Store, keys: int) -> None:
    format_ = RowEncoding(0, PAYLOAD)
    for number, key_group in numbered(keys):
        bare.put(format_.prefix(CONTENT, key_group) + format_.key(number), payload(number))
    bare.flush()


def _sample(keys: int, draw: random.Random, count: int) -> Iterator[tuple[int, int]]:
    numbers = np.array([draw.randrange(keys) for _ in range(count)], np.int64) * 2654435761 % (2**61 - 1)
    return zip(numbers.tolist(), key_groups_of(numbers, MAX_PARALLELISM).tolist(), strict=True)


def _through_invocations(backend: DiskBackend, some: list[tuple[int, int]]) -> None:
    for number, key_group in some:
        invocation = Transaction(backend, number, key_group)
        handle = invocation.state(PAYLOAD)
        handle.update(handle.value())
        invocation.commit()


def _through_bare(bare: Store, some: list[tuple[int, int]]) -> None:
    format_, database, options = RowEncoding(0, PAYLOAD), bare._database, bare._options
    rows = [format_.prefix(CONTENT, key_group) + format_.key(number) for number, key_group in some]
    for first in range(0, len(rows), DIRTY_ROWS_MAX):
        batch = WriteBatch(raw_mode=True)
        for row in rows[first : first + DIRTY_ROWS_MAX]:
            batch.put(row, database.get(row))
        database.write(batch, options)


def _micros(work: Callable[[], object], count: int) -> float:
    """Return the microseconds of this thread for one of `count`; compaction is not in it."""
    started = time.thread_time()
    work()
    return (time.thread_time() - started) / count * 1e6


CASES: tuple[Callable[[int], dict[str, Any]], ...] = (read_modify_write, rescale)


def measure(keys: int) -> Iterator[dict[str, Any]]:
    """Run every case in a process of its own."""
    for case in CASES:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            yield pool.submit(case, keys).result()
