"""Two embedded stores beside each other, used as keyed state would use them: rocksdict (RocksDB) and lmdb.

python -m benchmarks.embedded_stores [--keys N] [--store NAME] [--repeats N] [--json]

Every store runs in a process of its own. Times are the processor's, of all threads, so that compaction is counted too.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Protocol

VALUE_BYTES = 100
BATCH = 4096
GROUPS = 128
PROCESSES = 2
CACHE_BYTES = 64 * 2**20


class Store(Protocol):
    """What both can do; a batch is written at once."""

    def get(self, key: bytes) -> bytes | None: ...
    def write(self, rows: list[tuple[bytes, bytes]]) -> None: ...
    def view(self) -> Any: ...
    def scan(self, view: Any, prefix: bytes) -> Iterator[tuple[bytes, bytes]]: ...
    def close(self) -> None: ...


class RocksStore:
    """RocksDB without a write-ahead log: the state's durable copy is elsewhere."""

    def __init__(self, directory: str) -> None:
        import rocksdict as rd

        self._rd = rd
        table = rd.BlockBasedOptions()
        table.set_block_cache(rd.Cache(CACHE_BYTES))
        table.set_cache_index_and_filter_blocks(True)
        table.set_index_type(rd.BlockBasedIndexType.two_level_index_search())
        table.set_partition_filters(True)
        table.set_bloom_filter(10, False)
        options = rd.Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_block_based_table_factory(table)
        options.set_write_buffer_size(16 * 2**20)
        options.set_compression_type(rd.DBCompressionType.lz4())
        self._db = rd.Rdict(directory, options)
        writes = rd.WriteOptions()
        writes.disable_wal = True
        self._writes = writes

    def get(self, key: bytes) -> bytes | None:
        return self._db.get(key)

    def write(self, rows: list[tuple[bytes, bytes]]) -> None:
        batch = self._rd.WriteBatch(raw_mode=True)
        put = batch.put
        for key, value in rows:
            put(key, value)
        self._db.write(batch, self._writes)

    def view(self) -> Any:
        return self._db.snapshot()

    def scan(self, view: Any, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        options = self._rd.ReadOptions()
        options.set_iterate_upper_bound(prefix[:-1] + bytes([prefix[-1] + 1]))
        return view.items(from_key=prefix, read_opt=options)

    def close(self) -> None:
        self._db.close()


class LmdbStore:
    """LMDB without fsync, with one write transaction a batch and its reads through the same transaction."""

    def __init__(self, directory: str) -> None:
        import lmdb

        self._env = lmdb.open(directory, map_size=2**36, sync=False, metasync=False, writemap=False, readahead=False)
        self._write = self._env.begin(write=True, buffers=False)

    def get(self, key: bytes) -> bytes | None:
        return self._write.get(key)

    def write(self, rows: list[tuple[bytes, bytes]]) -> None:
        put = self._write.put
        for key, value in rows:
            put(key, value)
        self._write.commit()
        self._write = self._env.begin(write=True, buffers=False)

    def view(self) -> Any:
        return self._env.begin()

    def scan(self, view: Any, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        cursor = view.cursor()
        cursor.set_range(prefix)
        for key, value in cursor.iternext():
            if not key.startswith(prefix):
                return
            yield key, value

    def close(self) -> None:
        self._write.commit()
        self._env.close()


STORES: dict[str, Callable[[str], Store]] = {"rocksdict": RocksStore, "lmdb": LmdbStore}


def key_of(number: int) -> bytes:
    """Return a row's key: a state, a key group, a key."""
    return b"\x00" + (number % GROUPS).to_bytes(2, "big") + b"\xaeuser %09d" % number


def anonymous_mb() -> float:
    """Return the memory of this process that no file backs."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return float("nan")


def micros(work: Callable[[], object], count: int) -> float:
    """Return the processor's microseconds for one of `count`."""
    started = time.process_time()
    work()
    return (time.process_time() - started) / count * 1e6


class Workload:
    """What a store is asked for: every method is one measured piece of work over the same keys."""

    def __init__(self, store: Store, keys: int) -> None:
        draw = random.Random(7)  # noqa: S311 - content, not a secret
        self.store = store
        self.keys = keys
        self.some = [key_of(draw.randrange(keys)) for _ in range(min(keys, 200_000))]
        self._pool = draw.randbytes(2**20)

    def value_of(self, number: int) -> bytes:
        start = number * 7919 % (len(self._pool) - VALUE_BYTES)
        return self._pool[start : start + VALUE_BYTES]

    def fill(self) -> None:
        for first in range(0, self.keys, BATCH):
            numbers = range(first, min(first + BATCH, self.keys))
            self.store.write([(key_of(number), self.value_of(number)) for number in numbers])

    def read(self) -> None:
        for key in self.some:
            self.store.get(key)

    def read_modify_write(self) -> None:
        for first in range(0, len(self.some), BATCH):
            batch = self.some[first : first + BATCH]
            self.store.write([(key, self.store.get(key) or b"") for key in batch])

    def write_one_by_one(self) -> None:
        for key in self.some[:20_000]:
            self.store.write([(key, self.value_of(0))])

    def scan(self) -> None:
        view = self.store.view()
        prefixes = (b"\x00" + group.to_bytes(2, "big") for group in range(GROUPS))
        found = sum(1 for prefix in prefixes for _ in self.store.scan(view, prefix))
        assert found == self.keys, "all rows are found"


def measure(name: str, keys: int) -> dict[str, Any]:
    """Fill a store and use it."""
    before_mb = anonymous_mb()
    with tempfile.TemporaryDirectory() as directory:
        started = time.perf_counter()
        store = STORES[name](directory)
        row: dict[str, Any] = {"store": name, "keys": keys, "open_ms": (time.perf_counter() - started) * 1000}
        work = Workload(store, keys)
        row["batch_write_us"] = micros(work.fill, keys)
        row["point_read_us"] = micros(work.read, len(work.some))
        row["point_write_us"] = micros(work.write_one_by_one, 20_000)
        row["read_modify_write_us"] = micros(work.read_modify_write, len(work.some))
        row["scan_us"] = micros(work.scan, keys)
        row["disk_mb"] = disk_mb(directory)
        view = store.view()
        for _ in range(3):
            work.read_modify_write()
        row["disk_mb_with_a_view_held"] = disk_mb(directory)
        row["anonymous_mb"] = anonymous_mb() - before_mb
        del view
        store.close()
    return row


def disk_mb(directory: str) -> float:
    """Return what a directory takes on disk."""
    return sum(path.stat().st_blocks * 512 for path in Path(directory).iterdir()) / 2**20


def side_by_side(name: str, keys: int) -> float:
    """Return how much longer one of several processes takes than one alone, each with a directory of its own."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(PROCESSES, spawn) as pool:
        alone = pool.submit(measure, name, keys).result()["read_modify_write_us"]
        both = list(pool.map(measure, [name] * PROCESSES, [keys] * PROCESSES))
    return max(row["read_modify_write_us"] for row in both) / float(alone)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.embedded_stores", description=__doc__)
    parser.add_argument("--json", action="store_true", help="machine-readable")
    parser.add_argument("--keys", type=int, default=200_000, help="rows in a store (default: 200,000)")
    parser.add_argument("--repeats", type=int, default=1, help="runs, of which the least counts (default: 1)")
    parser.add_argument("--store", choices=STORES, action="append", help="only this one")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.store or STORES:
        runs = []
        for _ in range(arguments.repeats):
            with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                runs.append(pool.submit(measure, name, arguments.keys).result())
        row = {column: min(run[column] for run in runs) for column in runs[0]}
        row["processes_side_by_side"] = side_by_side(name, min(arguments.keys, 200_000))
        rows.append({name: value if isinstance(value, str) else round(value, 2) for name, value in row.items()})
        if not arguments.json:
            print("\n".join(f"{name:26} {value}" for name, value in rows[-1].items()), flush=True)
    if arguments.json:
        json.dump(rows, sys.stdout, indent=2)


if __name__ == "__main__":
    main()
