"""An ordered key-value store on the local disk: RocksDB, without a log because snapshots are the durable copy."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import tempfile
import threading
import weakref
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keygroups.errors import KeyGroupsError
from keygroups.state.backend import NO_OWNER, Owned
from keygroups.state.errors import (
    StateDirectoryNotLocked,
    StateDirectoryRefused,
    StateDiskFull,
    StateStoreFailed,
    StoreNotInstalled,
)

if TYPE_CHECKING:
    from rocksdict import Rdict, RdictIter

DIRTY_ROWS_MAX = 4096
DIRTY_BYTES_MAX = 2**20
"""How many bytes of writes are kept in memory before they are passed to RocksDB in one batch."""

WRITE_BUFFER_BYTES = 16 * 2**20
WRITE_BUFFERS_MAX = 3
"""The number of write buffers from which RocksDB makes sorted files."""

CHUNK_ROWS = 1024
CHUNK_BYTES = 2**20
"""How many bytes are read from a view at once, unless a single row has more."""

_BLOOM_BITS = 10
_FILTER_PART_BYTES = 4096
_OPEN_FILES_MAX = 512

_FULL = ("No space left", "Disk quota exceeded", "File too large")
"""The operating system's messages for a full disk."""

_UNKNOWN = object()

Row = tuple[bytes, bytes]


class Store(Owned):
    """Rows in key order, in their own directory.

    Only the first thread that uses the store may call it; any thread may call `write` and `close`. The directory is
    removed once the store is closed and all its views are freed, or at the end of the program.

    Parameters
    ----------
    parent : Path
        The parent of its directory.
    cache_bytes : int
        The size of the cache of file blocks in memory.
    """

    __slots__ = (
        "__weakref__",
        "_batch",
        "_database",
        "_dirty",
        "_dirty_bytes",
        "_end",
        "_is_closed",
        "_lock",
        "_options",
        "_views",
        "path",
    )

    def __init__(self, parent: Path, cache_bytes: int) -> None:
        try:
            import rocksdict
        except ImportError as error:
            raise StoreNotInstalled("rocksdict") from error
        self._owner = NO_OWNER
        directory = StoreDirectory(parent)
        self.path = str(directory.path)
        try:
            self._database = rocksdict.Rdict(str(directory.path / "rows"), _options(cache_bytes))
        except Exception as error:
            directory.remove()
            raise self._named(error) from error
        self._batch = rocksdict.WriteBatch
        self._options = rocksdict.WriteOptions()
        # It is a property, although the type stubs say otherwise.
        self._options.disable_wal = True  # type: ignore[method-assign,assignment]
        self._dirty: dict[bytes, bytes | None] = {}
        self._dirty_bytes = 0
        self._views = 0
        self._is_closed = False
        # Reentrant, because a thread that holds it may free a view.
        self._lock = threading.RLock()
        self._end = weakref.finalize(self, _close, self._database, directory)

    def get(self, row: bytes) -> bytes | None:
        """Return the data of a row, or None if there is no such row."""
        self._check_owner()
        data: Any = self._dirty.get(row, _UNKNOWN)
        if data is not _UNKNOWN:
            return data  # type: ignore[no-any-return]
        try:
            return self._database.get(row)
        except Exception as error:
            raise self._named(error) from error

    def put(self, row: bytes, data: bytes | None) -> None:
        """Set the data of a row; None removes the row."""
        self._check_owner()
        self._dirty[row] = data
        self._dirty_bytes += len(row) + (0 if data is None else len(data))
        if len(self._dirty) >= DIRTY_ROWS_MAX or self._dirty_bytes >= DIRTY_BYTES_MAX:
            self.flush()

    def flush(self) -> None:
        """Pass the writes that are still in memory to RocksDB."""
        self._check_owner()
        if self._dirty:
            self.write(self._dirty.items())
            self._dirty = {}
            self._dirty_bytes = 0

    def write(self, rows: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Write rows in one batch, directly to RocksDB."""
        batch = self._batch(raw_mode=True)
        put, delete = batch.put, batch.delete
        for row, data in rows:
            if data is None:
                delete(row)
            else:
                put(row, data)
        try:
            self._database.write(batch, self._options)
        except Exception as error:
            raise self._named(error) from error

    def remove_range(self, start: bytes, end: bytes) -> None:
        """Remove all rows from `start` up to, but not including, `end`."""
        self._check_owner()
        try:
            self._database.delete_range(start, end, self._options)
        except Exception as error:
            raise self._named(error) from error

    def scan(self, prefix: bytes) -> Iterator[Row]:
        """Return the current rows with a prefix."""
        for chunk in self.view().chunks(prefix):
            yield from chunk

    def view(self) -> View:
        """Return a view of all current rows; nothing is copied."""
        self.flush()
        with self._lock:
            self._views += 1
        return View(self, self._database.iter())

    def close(self) -> None:
        """Close the store; existing views stay readable. Writes that are still in memory are dropped."""
        with self._lock:
            self._is_closed = True
            self._end_unless_viewed()

    def release(self) -> None:
        """Count a view that has been freed. Any thread may call it."""
        with self._lock:
            self._views -= 1
            self._end_unless_viewed()

    def _end_unless_viewed(self) -> None:
        if self._is_closed and not self._views:
            self._end()

    def _named(self, error: Exception) -> KeyGroupsError:
        if any(words in str(error) for words in _FULL):
            return StateDiskFull(self.path)
        return StateStoreFailed(self.path, str(error))


class View:
    """The rows of a store at one moment. Any thread may call it; freeing the last reference releases it.

    It uses an iterator, because only an iterator of RocksDB keeps all its reads at one moment. (Iterators of
    rocksdict's `Snapshot` also return rows that were written after it.)
    """

    __slots__ = ("_iterator", "_lock", "_store")

    def __init__(self, store: Store, iterator: RdictIter) -> None:
        self._store = store
        self._iterator = iterator
        self._lock = threading.Lock()

    def __del__(self) -> None:
        del self._iterator
        self._store.release()

    def first(self, start: bytes) -> bytes | None:
        """Return the key of the first row at or after `start`, or None."""
        with self._lock:
            self._seek(start)
            return self._iterator.key() if self._iterator.valid() else None

    def get(self, row: bytes) -> bytes | None:
        """Return the data of a row, or None if there was no such row."""
        with self._lock:
            self._seek(row)
            iterator = self._iterator
            return iterator.value() if iterator.valid() and iterator.key() == row else None

    def chunks(self, prefix: bytes) -> Iterator[list[Row]]:
        """Yield the rows with a prefix, in bounded lists."""
        start: bytes | None = prefix
        while start is not None:
            chunk, start = self._chunk(start, prefix)
            if chunk:
                yield chunk

    def _chunk(self, start: bytes, prefix: bytes) -> tuple[list[Row], bytes | None]:
        """Read rows from `start` on; returns them and where to continue, None at the end."""
        rows: list[Row] = []
        left = CHUNK_BYTES
        with self._lock:
            self._seek(start)
            iterator = self._iterator
            valid, key_of, value_of, advance = iterator.valid, iterator.key, iterator.value, iterator.next
            while valid():
                key = key_of()
                if not key.startswith(prefix):
                    return rows, None
                if len(rows) >= CHUNK_ROWS or left <= 0:
                    return rows, key
                data = value_of()
                rows.append((key, data))
                left -= len(key) + len(data)
                advance()
            self._check()
        return rows, None

    def _seek(self, start: bytes) -> None:
        self._iterator.seek(start)
        if not self._iterator.valid():
            self._check()

    def _check(self) -> None:
        """Raise if the iterator has stopped because of a failure and not at the end of the rows."""
        try:
            self._iterator.status()
        except Exception as error:
            raise self._store._named(error) from error


def _options(cache_bytes: int) -> Any:
    import rocksdict

    table = rocksdict.BlockBasedOptions()
    table.set_block_cache(rocksdict.Cache(cache_bytes))
    # The cache bounds everything that is read, including indexes and filters. These are partitioned, because the cache
    # has many shards, and every `get` would read a filter again that is larger than a shard.
    table.set_cache_index_and_filter_blocks(True)
    table.set_index_type(rocksdict.BlockBasedIndexType.two_level_index_search())
    table.set_partition_filters(True)
    table.set_metadata_block_size(_FILTER_PART_BYTES)
    table.set_pin_top_level_index_and_filter(True)
    table.set_pin_l0_filter_and_index_blocks_in_cache(True)
    table.set_bloom_filter(_BLOOM_BITS, False)
    options = rocksdict.Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_block_based_table_factory(table)
    options.set_compression_type(rocksdict.DBCompressionType.lz4())
    options.set_write_buffer_size(WRITE_BUFFER_BYTES)
    options.set_max_write_buffer_number(WRITE_BUFFERS_MAX)
    options.set_level_compaction_dynamic_level_bytes(True)
    options.set_max_open_files(_OPEN_FILES_MAX)
    options.set_max_background_jobs(2)
    options.set_keep_log_file_num(1)
    return options


def _close(database: Rdict, directory: StoreDirectory) -> None:
    """Close RocksDB and remove the directory; pending writes are not needed any more."""
    with suppress(Exception):
        database.cancel_all_background(wait=True)
    with suppress(Exception):
        database.close()
    directory.remove()


_PREFIX = "keygroups-state-"
_LOCK = "in_use"
_ATTEMPTS_MAX = 100


class StoreDirectory:
    """Creates an empty directory beside the directories of other subtasks and processes. Any thread may call it.

    A lock, which ends with its process, shows which directories are in use. Directories of dead processes are removed.

    Parameters
    ----------
    parent : Path
        The directory in which it is created.

    Raises
    ------
    StateDirectoryNotLocked
        No new directory could be locked.
    StateDirectoryRefused
        No new directory could be made.
    """

    __slots__ = ("_lock", "path")

    def __init__(self, parent: Path) -> None:
        _remove_left_over(parent)
        for _ in range(_ATTEMPTS_MAX):
            self.path = _made_in(parent)
            lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC)
            # Another process may have taken it for a left-over directory.
            if _is_locked_by_us(lock) and (self.path / _LOCK).exists():
                self._lock = lock
                return
            os.close(lock)
            shutil.rmtree(self.path, ignore_errors=True)
        raise StateDirectoryNotLocked(str(parent))

    def remove(self) -> None:
        """Remove the directory with its content; call it at most once."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def _made_in(parent: Path) -> Path:
    try:
        parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=_PREFIX, dir=parent))
    except OSError as error:
        raise StateDirectoryRefused(str(parent), error.strerror or str(error)) from error


def _remove_left_over(parent: Path) -> None:
    for path in parent.glob(f"{_PREFIX}*"):
        # Another process has just removed it, or it is not what this class has made: a link, or another user's.
        with suppress(OSError):
            found = path.lstat()
            if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
                continue
            lock = os.open(path / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                if _is_locked_by_us(lock):
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


def _is_locked_by_us(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
