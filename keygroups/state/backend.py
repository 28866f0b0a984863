"""What a backend of keyed state must do."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, Protocol, runtime_checkable

from keygroups.descriptors import StateDescriptor
from keygroups.state.collections import Entries
from keygroups.state.storable import IsPlain


class _Sentinel(enum.Enum):
    MISSING = "missing"


MISSING: Final = _Sentinel.MISSING
"""No value is stored: as the result of a read and, as a write, the removal of the key."""


class StateRows(NamedTuple):
    """Some rows of a key group.

    Attributes
    ----------
    keys : list
        The identity of the key of each row.
    entries : list or None
        In a state of many entries per key, the position or the identity of the map key; `MISSING` in a row that says
        that all entries which the key had before are gone.
    values : list
        `MISSING` where there is none any more.
    """

    keys: list[Any]
    entries: list[Any] | None
    values: list[Any]


class LazyGroup(Protocol):
    """The rows of one key group that are not in memory yet."""

    def load(self) -> dict[Hashable, object]:
        """Read the values by the identity of their key.

        Any thread may call it, several at the same time as well: each call returns a dict of its own.
        """
        ...


@runtime_checkable
class StreamedGroup(LazyGroup, Protocol):
    """A key group of a cut that need not fit into memory. Any thread may call it."""

    def kinds(self, column: str) -> Collection[type]:
        """Return the types of all keys ("key") or map keys ("map_key")."""
        ...

    def pieces(self, changed: Collection[Any] | None = None) -> Iterable[StateRows]:
        """Return the rows, a bounded number at a time.

        Parameters
        ----------
        changed : collection, optional
            Only these, from `changed` of the same cut; with `MISSING` for what was removed.
        """
        ...


@dataclass(frozen=True, slots=True)
class StateCut:
    """The content of one state at a barrier.

    Attributes
    ----------
    descriptor : StateDescriptor
        The declaration of the state.
    groups : mapping of int to (dict or LazyGroup)
        The non-empty key groups; keys by their identity. Nobody changes them as long as somebody holds them, or this
        cut: a later write goes elsewhere. Their store, if they have one, is held until the cut is freed.
    cut_id : str
        Unique, the same for all states that were cut at once.
    since : str or None
        What `changed` is relative to: the id of the cut before this one, or of the snapshot that was restored. None
        if there was neither.
    changed : mapping of int to (keys or None), or None
        By key group, the keys that were written or removed since then; None for a group in which they were too many to
        note. A key group that is left out did not change. None if `since` is. In a state of many entries per key these
        are pairs of key and entry (a position, or the identity of a map key); the entry `MISSING` says that all
        entries that the key had before are gone.
    """

    descriptor: StateDescriptor
    groups: Mapping[int, dict[Hashable, object] | LazyGroup]
    cut_id: str = ""
    since: str | None = None
    changed: Mapping[int, Collection[Hashable] | None] | None = None


class StateTable(Protocol):
    """One state of all keys of a subtask. Only the thread that owns the operator may call it.

    Keys are passed by their identity (`identity_of`).
    """

    @property
    def descriptor(self) -> StateDescriptor:
        """The declaration of the state."""
        ...

    @property
    def is_plain(self) -> IsPlain:
        """The quick look at a value that is to be stored."""
        ...

    def get(self, key_group: int, key: Hashable) -> object:
        """Return the value of a key, or `MISSING`; of a list or map that has no entries it may be an empty one."""
        ...

    def load(self, key_group: int) -> object:
        """Bring a key group in that was restored, so that no later call can meet damage."""
        ...

    def put(self, key_group: int, key: Hashable, value: object) -> None:
        """Store the value of a key; `MISSING` removes it."""
        ...

    def put_entries(
        self, key_group: int, key: Hashable, content: Entries, changed: Iterable[Hashable], *, replaced: bool
    ) -> None:
        """Store the list or map of a key, and note which of its entries changed.

        Parameters
        ----------
        key_group, key : int, identity of a key
            Whose it is.
        content : SharedList or Map
            All entries; without any, the key is removed.
        changed : iterable of entries
            Those that were written or removed.
        replaced : bool
            Whether all entries that the key had before are gone, unless they are among the changed.
        """
        ...

    def unloaded(self) -> Mapping[int, LazyGroup]:
        """Return the key groups that are not in this table yet.

        A thread may load them while the owner goes on, and hand what each returns to the owner for `install`.
        """
        ...

    def install(self, key_group: int, loaded: dict[Hashable, object]) -> None:
        """Take over what was loaded for a key group, unless it is in this table already."""
        ...


class KeyedStateBackend(Protocol):
    """The keyed state of one subtask. Only the thread that owns the operator may call it."""

    @property
    def tables(self) -> Mapping[str, StateTable]:
        """The states by name."""
        ...

    @property
    def wall_time(self) -> Callable[[], int]:
        """Returns the processing time (milliseconds since the epoch), by which values expire."""
        ...

    def cut(self) -> tuple[StateCut, ...]:
        """Freeze the content of all states as it is now, without copying it."""
        ...

    def close(self) -> None:
        """Give up the state. Cuts stay as they are, until they are freed."""
        ...
