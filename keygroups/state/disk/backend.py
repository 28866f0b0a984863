"""The state backend that keeps keyed state on the local disk."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from keygroups.arguments import check_count, check_location
from keygroups.descriptors import StateDescriptor
from keygroups.errors import ConfigError
from keygroups.ranges import KeyGroupRange
from keygroups.state.backend import StateCut
from keygroups.state.disk.collections import EntriesTable
from keygroups.state.disk.encoding import CHANGED
from keygroups.state.disk.store import Store
from keygroups.state.disk.table import DiskTable
from keygroups.state.errors import StateDirectoryRefused
from keygroups.state.group import ENTRY_KINDS, KeyGroupContent
from keygroups.ttl import wall_time

CACHE_BYTES = 64 * 2**20
_CACHE_BYTES_MIN = 2**20


@dataclass(frozen=True, slots=True)
class DiskStateBackend:
    """Keeps the keyed state of each subtask in RocksDB on the local disk, for state larger than memory.

    The disk is only a workspace, never the durable copy: every subtask creates its own directory, fills it from the
    restored snapshot, and removes it when it is closed. Values are read and written as msgpack, so each read returns a
    new object and costs about ten times as much as in memory. Snapshots do not depend on the backend: an operator can
    be restored with either one.

    Memory does not grow with the state. A subtask needs `cache_bytes`, up to 48 MiB for write buffers, 1 MiB for writes
    that have not reached the store yet, and during a restore one key group at a time. A cut that has not been written
    yet may hold another 48 MiB.

    Parameters
    ----------
    directory : str or Path, optional
        The parent of the subtasks' directories; by default the directory for temporary files. Subtasks and processes
        may share it. Directories of dead processes are removed.
    cache_bytes : int
        The size of the cache of file blocks in memory.

    Raises
    ------
    ConfigError
        The cache is smaller than 1 MiB, or the directory is no text or path.

    Examples
    --------
    >>> from keygroups import KeyGroupRange, ValueState
    >>> backend = DiskStateBackend(cache_bytes=2**28).open([ValueState("seen")], KeyGroupRange(0, 127))
    >>> backend.tables["seen"].put(5, "a", 1)
    >>> backend.tables["seen"].get(5, "a")
    1
    >>> backend.close()

    References
    ----------
    .. [1] S. Dong et al., "Optimizing Space Amplification in RocksDB", CIDR 2017.
    """

    directory: str | Path | None = None
    cache_bytes: int = CACHE_BYTES

    def __post_init__(self) -> None:
        check_count("cache_bytes", self.cache_bytes, _CACHE_BYTES_MIN)
        if self.directory is not None:
            check_location("directory", self.directory, reason="name a local directory, or leave it out")

    def open(
        self,
        descriptors: Iterable[StateDescriptor],
        owned: KeyGroupRange,
        restored: Mapping[str, Mapping[int, KeyGroupContent]] | None = None,
        since: str | None = None,
        wall_time: Callable[[], int] = wall_time,
    ) -> DiskBackend:
        """Open the state of a subtask; with the parameters of `MemoryBackend`.

        Raises
        ------
        StoreNotInstalled
            RocksDB is missing: run `pip install 'keygroups[disk]'`.
        StateDirectoryNotLocked, StateDirectoryRefused, StateDiskFull, StateStoreFailed
            The directory cannot be used.
        """
        store = Store(Path(self.directory or _temporary_directory()), self.cache_bytes)
        return DiskBackend(store, descriptors, owned, restored, since, wall_time)


def _temporary_directory() -> str:
    try:
        return tempfile.gettempdir()
    except OSError as error:  # as in a container whose file system is read-only
        raise StateDirectoryRefused("a directory for temporary files", error.strerror or str(error)) from error


class DiskBackend:
    """The keyed state of one subtask, on disk. Only the thread that owns the operator may call it.

    Parameters
    ----------
    store : Store
        An empty store.
    descriptors, owned, restored, since, wall_time
        The parameters of `MemoryBackend`.
    """

    __slots__ = ("_since", "_store", "tables", "wall_time")

    def __init__(
        self,
        store: Store,
        descriptors: Iterable[StateDescriptor],
        owned: KeyGroupRange,
        restored: Mapping[str, Mapping[int, KeyGroupContent]] | None = None,
        since: str | None = None,
        wall_time: Callable[[], int] = wall_time,
    ) -> None:
        self.wall_time = wall_time
        contents = restored or {}
        self._since = since
        self._store = store
        self.tables: dict[str, DiskTable] = {}
        for number, descriptor in enumerate(descriptors):
            if descriptor.name in self.tables:
                raise ConfigError("states", descriptor.name, "two states have this name; each needs its own")
            content = contents.get(descriptor.name)
            make = EntriesTable if descriptor.kind in ENTRY_KINDS else DiskTable
            self.tables[descriptor.name] = make(store, number, descriptor, owned, content, tracks=since is not None)

    def cut(self) -> tuple[StateCut, ...]:
        """Freeze the current content of all states in one view of the store, without copying it."""
        cut_id = uuid.uuid4().hex
        for table in self.tables.values():
            table.write_changes()
        view = self._store.view()
        cuts = tuple(table.cut(view, cut_id, self._since) for table in self.tables.values())
        # The view contains the notes so far; later notes are relative to this cut.
        self._store.remove_range(CHANGED, bytes([CHANGED[0] + 1]))
        self._since = cut_id
        return cuts

    def close(self) -> None:
        """Release the state; its directory is removed once the last cut is freed as well."""
        self._store.close()
