"""Snapshots against the bare floor: the same columns, written by hand.

The floor of a snapshot builds the Arrow arrays from the same dicts, writes them as one Parquet file with zstd, and
calls fsync. All figures are of one subtask on the local disk, unless they are of a rescale.

    python -m benchmarks.snapshots --json
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from async_op import AsyncFunction, AsyncWaitOperator
from keygroups import ValueState, key_groups_of, range_of
from keygroups.state import MemoryBackend
from snapshots import Snapshot, SnapshotStore, SubtaskSnapshot
from snapshots.commit.part_writer import DELTAS_MAX
from snapshots.filesystem import LocalFolder

MAX_PARALLELISM = 128
VALUE_BYTES = 100
PAYLOAD = ValueState("payload", pa.binary())
T = TypeVar("T")


@dataclass(frozen=True)
class Figure:
    """One line of the table."""

    name: str
    measured: float
    unit: str
    wanted: float | None = None


class Keys:
    """So many keys with values of 100 random bytes, which nothing can compress, and their key groups."""

    def __init__(self, count: int, max_parallelism: int = MAX_PARALLELISM) -> None:
        draw = random.Random(count)  # noqa: S311 - nothing is secret
        self.max_parallelism = max_parallelism
        self.keys = [f"user-{number}" for number in range(count)]
        self.key_groups = key_groups_of(self.keys, max_parallelism).tolist()
        self.values = [draw.randbytes(VALUE_BYTES) for _ in range(count)]

    def backends(self, parallelism: int) -> list[MemoryBackend]:
        """Return the subtasks' state."""
        made = [MemoryBackend([PAYLOAD], range_of(n, parallelism, self.max_parallelism)) for n in range(parallelism)]
        for key, key_group, value in zip(self.keys, self.key_groups, self.values, strict=True):
            made[key_group * parallelism // self.max_parallelism].tables["payload"].put(key_group, key, value)
        return made

    def change(self, backend: MemoryBackend, share: float) -> None:
        """Change some of the values."""
        for index in range(0, len(self.keys), round(1 / share)):
            value = self.values[index][::-1]
            backend.tables["payload"].put(self.key_groups[index], self.keys[index], value)


def cut(
    backend: MemoryBackend, subtask: int = 0, parallelism: int = 1, max_parallelism: int = MAX_PARALLELISM
) -> SubtaskSnapshot:
    """Cut a backend as the operator does."""
    return SubtaskSnapshot(
        subtask_index=subtask,
        parallelism=parallelism,
        max_parallelism=max_parallelism,
        hash="xxhash64",
        states=backend.cut(),
    )


def timed(run: Callable[[], T]) -> tuple[float, T]:
    """Return how many seconds a call takes, and its result."""
    started = time.perf_counter()
    result = run()
    return time.perf_counter() - started, result


def computed(run: Callable[[], T]) -> tuple[float, T]:
    """Return how many seconds of processor time a call takes, and its result."""
    started = time.process_time()
    result = run()
    return time.process_time() - started, result


def write_floor(snapshot: SubtaskSnapshot, path: Path) -> None:
    """Write the columns of a cut with nothing around it."""
    (state,) = snapshot.states
    schema = pa.schema([("key_group", pa.int32()), ("key", pa.string()), ("value", pa.binary())])
    with path.open("wb") as file:
        with pq.ParquetWriter(file, schema, compression="zstd") as writer:
            for key_group, group in state.groups.items():
                held = group.in_memory()
                assert held is not None, "the backend is in memory"
                groups = pa.repeat(pa.scalar(key_group, pa.int32()), len(held))
                keys, values = pa.array(list(held), pa.string()), pa.array(list(held.values()), pa.binary())
                writer.write_table(pa.Table.from_arrays([groups, keys, values], schema=schema))
        file.flush()
        os.fsync(file.fileno())


def whole_and_delta(count: int, folder: Path, repeats: int) -> list[Figure]:
    """Measure a whole snapshot against its floor, and one after a hundredth of the keys has changed."""
    keys = Keys(count)
    ratios, shares, seconds = [], [], []
    whole_bytes = delta_bytes = 0
    for number in range(repeats):
        (backend,) = keys.backends(1)
        store = SnapshotStore(folder / f"{count}-{number}", "bench")
        made = cut(backend)
        floor, _ = timed(lambda made=made, number=number: write_floor(made, folder / f"floor-{count}-{number}"))
        whole, first = timed(lambda store=store, made=made: store.write([made]))
        keys.change(backend, 0.01)
        delta, second = timed(lambda store=store, backend=backend: store.write([cut(backend)]))
        (file,) = second.manifest.files_of("delta")
        whole_bytes, delta_bytes = first.manifest.bytes_total, file.bytes
        ratios.append(whole / floor)
        shares.append(delta / whole)
        seconds.append(whole)
    return [
        Figure(f"whole snapshot of {count:,} keys / floor", statistics.median(ratios), "", 1.5),
        Figure(f"whole snapshot of {count:,} keys, each", statistics.median(seconds) / count * 1e9, "ns"),
        Figure(f"after 1 % of {count:,} keys changed, time / whole", statistics.median(shares), "", 0.08),
        Figure(f"after 1 % of {count:,} keys changed, bytes / whole", delta_bytes / whole_bytes, "", 0.08),
    ]


def many_key_groups(count: int, folder: Path, repeats: int) -> list[Figure]:
    """Measure the processor time of 4,096 key groups over 128: a whole snapshot, a delta that folds, and a restore."""
    found: list[list[float]] = []
    for number in range(repeats):
        few = steps_with(MAX_PARALLELISM, count, folder / f"few-groups-{count}-{number}")
        many = steps_with(4096, count, folder / f"many-groups-{count}-{number}")
        found.append([one / other for one, other in zip(many, few, strict=True)])
    whole, fold, restore = map(statistics.median, zip(*found, strict=True))
    return [
        Figure(f"whole snapshot of {count:,} keys, 4,096 key groups / 128", whole, ""),
        Figure(f"delta that folds, {count:,} keys, 4,096 key groups / 128", fold, ""),
        Figure(f"restore with deltas of {count:,} keys, 4,096 key groups / 128", restore, ""),
    ]


def steps_with(max_parallelism: int, count: int, folder: Path) -> tuple[float, float, float]:
    """Return the seconds of processor time of a whole snapshot, a delta that folds others, and a restore before it."""
    keys, store = Keys(count, max_parallelism), SnapshotStore(folder, "bench")
    (backend,) = keys.backends(1)

    def write() -> Snapshot:
        return store.write([cut(backend, max_parallelism=max_parallelism)])

    whole, snapshot = computed(write)
    for _ in range(DELTAS_MAX):
        keys.change(backend, 0.01)
        snapshot = write()
    assert len(snapshot.manifest.files_of("delta")) == DELTAS_MAX, "the next delta folds"
    restore, _ = computed(lambda: load_all(snapshot))
    keys.change(backend, 0.01)
    fold, _ = computed(write)
    return whole, fold, restore


def load_all(snapshot: Snapshot) -> int:
    """Load all state."""
    groups = snapshot.restore(0, 1).states([PAYLOAD])["payload"]
    return sum(len(group.load()) for group in groups.values())


def rescale(count: int, folder: Path, repeats: int) -> list[Figure]:
    """Measure a rescale from 2 to 3, the first element after it, and the restore of a third."""
    keys = Keys(count)
    store = SnapshotStore(folder / f"rescale-{count}", "bench")
    store.write([cut(backend, n, 2) for n, backend in enumerate(keys.backends(2))])
    seconds, firsts, loads = [], [], []
    for _ in range(repeats):
        store.repartition(2)
        seconds.append(timed(lambda: store.repartition(3))[0])
        snapshot = store.latest()
        assert snapshot is not None
        firsts.append(timed(lambda: asyncio.run(first_element(store, keys)))[0])
        loads.append(timed(lambda snapshot=snapshot: load_third(snapshot))[0])
    read = bytes_read(lambda: load_third(snapshot))
    return [
        Figure(f"rescale 2 to 3 of {count:,} keys", statistics.median(seconds) * 1e3, "ms", 50),
        Figure(f"first element at P = 3 of {count:,} keys", statistics.median(firsts) * 1e3, "ms", 200),
        Figure(f"restore of a third of {count:,} keys, each", statistics.median(loads) / count * 3 * 1e9, "ns"),
        Figure(
            f"bytes read for a third of {count:,} keys / a third", read / snapshot.manifest.bytes_total * 3, "", 1.1
        ),
    ]


class Seen(AsyncFunction):
    """Reads and writes the value of a key."""

    states = (PAYLOAD,)

    async def async_invoke(self, value: Any, ctx: Any) -> tuple[Any]:
        payload = ctx.state(PAYLOAD)
        payload.update(payload.value()[::-1])
        return (value,)


async def first_element(store: SnapshotStore, keys: Keys) -> None:
    """Open subtask 1 of 3 from the newest snapshot, and process one element."""
    snapshot = store.latest()
    assert snapshot is not None
    operator = AsyncWaitOperator(Seen(), lambda _: None, key_by=str, parallelism=3, subtask_index=1)
    await operator.open(snapshot.restore(1, 3))
    owned = range_of(1, 3, MAX_PARALLELISM)
    await operator.process(next(k for k, group in zip(keys.keys, keys.key_groups, strict=True) if group in owned))
    await operator.finish()
    await operator.close()


def load_third(snapshot: Snapshot) -> int:
    """Load all state of subtask 1 of 3."""
    groups = snapshot.restore(1, 3).states([PAYLOAD])["payload"]
    return sum(len(group.load()) for group in groups.values())


def bytes_read(run: Callable[[], object]) -> int:
    """Return how many bytes of data files are read."""
    read = 0
    original = LocalFolder.read

    def counting(self: LocalFolder, name: str, start: int | None = None, end: int | None = None) -> bytes:
        nonlocal read
        data = original(self, name, start, end)
        read += len(data)
        return data

    LocalFolder.read = counting  # type: ignore[method-assign]
    try:
        run()
    finally:
        LocalFolder.read = original  # type: ignore[method-assign]
    return read


def rewrite(count: int, folder: Path) -> list[Figure]:
    """Measure a rewrite to more key groups, in its own process, against a plain read and write of the same files."""
    store = SnapshotStore(folder / f"rewrite-{count}", "bench")
    store.write([cut(backend) for backend in Keys(count).backends(1)])
    program = [sys.executable, "-m", "benchmarks.snapshots", "--rewrite", store.uri.removeprefix("file://")]
    answer = subprocess.run(program, check=True, capture_output=True, text=True)
    floor, seconds, megabytes = json.loads(answer.stdout)
    return [
        Figure(f"rewrite 128 to 4096 of {count:,} keys / plain read and write", seconds / floor, "", 3),
        Figure(f"rewrite 128 to 4096 of {count:,} keys, each", seconds / count * 1e9, "ns"),
        Figure(f"rewrite 128 to 4096 of {count:,} keys, memory at most", megabytes, "MB", 1000),
    ]


def measure_rewrite(uri: str) -> None:
    """Rewrite a snapshot and print the seconds of the floor and of the rewrite, and the memory at most."""
    store = SnapshotStore.at(uri)
    seconds, _ = timed(lambda: store.repartition(8, max_parallelism=4096, rewrite=True))
    # Not getrusage, which counts what the process that started this one had.
    status = Path("/proc/self/status").read_text()
    megabytes = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:")) / 1024
    floor, _ = timed(lambda: copy_floor(store.load(1), Path(uri, "floor.parquet")))
    json.dump([floor, seconds, megabytes], sys.stdout)


def copy_floor(snapshot: Snapshot, path: Path) -> None:
    """Read the files of a snapshot, and write their rows as one file, with nothing around it."""
    sources = [pq.ParquetFile(snapshot.folder.path(file.path)) for file in snapshot.manifest.files]
    with path.open("wb") as file, pq.ParquetWriter(file, sources[0].schema_arrow, compression="zstd") as writer:
        for source in sources:
            for number in range(source.num_row_groups):
                writer.write_table(source.read_row_group(number))
        file.flush()
        os.fsync(file.fileno())


async def pause(count: int, folder: Path) -> list[Figure]:
    """Measure the longest gap of the event loop, while an operator works and while it is cut and written as well."""
    keys = Keys(count)
    store = SnapshotStore(folder / "pause", "bench")
    store.write([cut(backend) for backend in keys.backends(1)])
    snapshot = store.latest()
    assert snapshot is not None
    operator = AsyncWaitOperator(Seen(), lambda _: None, key_by=str, max_parallelism=MAX_PARALLELISM)
    await operator.open(snapshot.restore(0))
    for key in keys.keys:
        await operator.process(key)
    gaps: list[tuple[float, float]] = []
    watching = asyncio.create_task(watch(gaps))
    working = asyncio.create_task(work(operator, keys))
    await asyncio.sleep(1)
    alone, _ = max(gaps)
    gaps.clear()
    started = time.perf_counter()
    made = [await operator.snapshot()]
    cutting = time.perf_counter() - started
    await asyncio.to_thread(write_and_free, SnapshotStore(folder / "pause-whole", "bench"), made)
    (longest, _), busiest = max(gaps), max(computing for _, computing in gaps)
    for task in (working, watching):
        task.cancel()
    await asyncio.gather(working, watching, return_exceptions=True)
    await operator.close()
    return [
        Figure(f"cut of {count:,} keys", cutting * 1e3, "ms", 20),
        Figure(f"longest gap of the loop, cut, written and freed, {count:,} keys", longest * 1e3, "ms", 20),
        Figure(f"the most that the loop computes in one turn of that, {count:,} keys", busiest * 1e3, "ms"),
        Figure(f"longest gap of the loop without, {count:,} keys", alone * 1e3, "ms"),
    ]


def write_and_free(store: SnapshotStore, made: list[SubtaskSnapshot]) -> None:
    """Write a cut and let go of it, in the thread that calls this."""
    store.write([made.pop()])


async def watch(gaps: list[tuple[float, float]]) -> None:
    """Note how long each turn of the loop takes, and how much of that its thread computes."""
    last, last_computed = time.perf_counter(), time.thread_time()
    while True:
        await asyncio.sleep(0)
        now, computed = time.perf_counter(), time.thread_time()
        gaps.append((now - last, computed - last_computed))
        last, last_computed = now, computed


async def work(operator: AsyncWaitOperator, keys: Keys) -> None:
    """Feed the operator, with some room for others."""
    while True:
        for index, key in enumerate(keys.keys):
            await operator.process(key)
            if index % 50 == 0:
                await asyncio.sleep(0)


def main() -> None:
    """Measure everything and print it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.snapshots", description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each case (default: 3)")
    parser.add_argument("--keys", type=int, default=1_000_000, help="how many keys (default: 1,000,000)")
    parser.add_argument("--rewrite", metavar="URI", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.rewrite:
        measure_rewrite(arguments.rewrite)
        return
    keys, repeats = arguments.keys, arguments.repeats
    figures: list[Figure] = []

    def show(found: list[Figure]) -> None:
        figures.extend(found)
        for figure in [] if arguments.json else found:
            wanted = "" if figure.wanted is None else f"  (wanted: {figure.wanted})"
            print(f"{figure.name:60} {figure.measured:10.3f} {figure.unit}{wanted}", flush=True)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for count in (keys // 100, keys):
            show(rescale(count, folder, repeats))
        for count in (keys // 10, keys, keys * 5):
            show(whole_and_delta(count, folder, repeats))
        for count in (keys // 10, keys):
            show(many_key_groups(count, folder, repeats))
        show(rewrite(keys * 5, folder))
        show(asyncio.run(pause(keys, folder)))
    if arguments.json:
        json.dump([figure.__dict__ for figure in figures], sys.stdout, indent=2)


if __name__ == "__main__":
    main()
