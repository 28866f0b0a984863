"""The keyed state of a subtask on the local disk."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from keygroups.descriptors import StateDescriptor
from keygroups.errors import ConfigError
from keygroups.ranges import KeyGroupRange
from keygroups.state.backend import LazyGroup, StateCut
from keygroups.state.disk.entries import EntriesTable
from keygroups.state.disk.rows import CHANGED, ENTRY_KINDS
from keygroups.state.disk.store import Store
from keygroups.state.disk.table import DiskTable
from keygroups.ttl import wall_time

CACHE_BYTES = 64 * 2**20
_CACHE_BYTES_MIN = 2**20


@dataclass(frozen=True, slots=True)
class DiskStateBackend:
    """Keeps the keyed state of each subtask on the local disk, in RocksDB: for state that is larger than memory.

    The disk is a place to work, never the durable copy: every subtask makes a directory of its own, fills it from the
    snapshot that is restored, and removes it when it is closed. A value is read and written as msgpack, so a read
    returns a new object each time, and costs about ten times as much as in memory. Snapshots are the same as of state
    in memory: an operator may be restored with either.

    Memory does not grow with the state. A subtask takes `cache_bytes`, up to 48 MiB for what is being written, 1 MiB
    for writes that are not handed over yet, and while a key group is restored, that key group. A cut that is not
    written yet may hold another 48 MiB.

    Parameters
    ----------
    directory : str or Path, optional
        Where subtasks make their directories; the one for temporary files unless given. It may be shared by subtasks
        and processes; what dead processes have left in it is removed.
    cache_bytes : int
        What is kept in memory of the files.

    Raises
    ------
    ConfigError
        The cache is smaller than 1 MiB.

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
        if self.cache_bytes < _CACHE_BYTES_MIN:
            raise ConfigError("cache_bytes", self.cache_bytes, f"use at least {_CACHE_BYTES_MIN}")

    def open(
        self,
        descriptors: Iterable[StateDescriptor],
        owned: KeyGroupRange,
        restored: Mapping[str, Mapping[int, LazyGroup | dict[Hashable, object]]] | None = None,
        since: str | None = None,
        wall_time: Callable[[], int] = wall_time,
    ) -> DiskBackend:
        """Return the state of a subtask; parameters as of `MemoryBackend`.

        Raises
        ------
        StoreNotInstalled
            `pip install 'keygroups[disk]'` has not been run.
        StateDiskFull, StateStoreFailed
            The directory cannot be used.
        """
        store = Store(Path(self.directory or tempfile.gettempdir()), self.cache_bytes)
        return DiskBackend(store, descriptors, owned, restored, since, wall_time)


class DiskBackend:
    """The keyed state of one subtask, on disk. Only the thread that owns the operator may call it.

    Parameters
    ----------
    store : Store
        An empty one.
    descriptors, owned, restored, since, wall_time
        As of `MemoryBackend`.
    """

    __slots__ = ("_since", "_store", "tables", "wall_time")

    def __init__(
        self,
        store: Store,
        descriptors: Iterable[StateDescriptor],
        owned: KeyGroupRange,
        restored: Mapping[str, Mapping[int, LazyGroup | dict[Hashable, object]]] | None = None,
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
                raise ConfigError("states", descriptor.name, "two states have this name; each needs one of its own")
            content = contents.get(descriptor.name)
            make = EntriesTable if descriptor.kind in ENTRY_KINDS else DiskTable
            self.tables[descriptor.name] = make(store, number, descriptor, owned, content, tracks=since is not None)

    def cut(self) -> tuple[StateCut, ...]:
        """Freeze the content of all states as it is now, without copying it: one view of the store."""
        cut_id = uuid.uuid4().hex
        for table in self.tables.values():
            table.write_notes()
        view = self._store.view()
        cuts = tuple(table.cut(view, cut_id, self._since) for table in self.tables.values())
        # The view has the notes; the next ones are relative to this cut.
        self._store.remove_range(CHANGED, bytes([CHANGED[0] + 1]))
        self._since = cut_id
        return cuts

    def close(self) -> None:
        """Give up the state; its directory is removed once the last cut is freed, too."""
        self._store.close()
