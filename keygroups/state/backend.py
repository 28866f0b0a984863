"""The protocols of a backend of keyed state."""

from __future__ import annotations

import enum
import threading
from _thread import get_ident
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol

from keygroups.descriptors import StateDescriptor
from keygroups.state.collections import Entries
from keygroups.state.errors import StateOfAnotherThread
from keygroups.state.group import KeyGroupContent, LazyGroup
from keygroups.state.storable import IsPlain


class _Missing(enum.Enum):
    MISSING = "missing"


MISSING: Final = _Missing.MISSING
"""The absence of a value: a read returns it if nothing is stored, and writing it removes the key."""


@dataclass(frozen=True, slots=True)
class StateCut:
    """The content of one state at a barrier.

    Attributes
    ----------
    descriptor : StateDescriptor
        The declaration of the state.
    groups : mapping of int to KeyGroupContent
        The non-empty key groups. A reference to the cut or to one of its key groups *holds* the cut: later writes go
        elsewhere, and a store on disk stays open. The hold ends with the last reference.
    cut_id : str
        A unique id, shared by all states of the same cut.
    since : str or None
        The id of the previous cut or of the restored snapshot, to which `changed` is relative. None if there is
        neither.
    changed : mapping of int to (keys or None), or None
        For each key group that has changed since then, the keys that were written or removed, or None if they were too
        many to record. `changed` itself is None if `since` is None. In a state of many entries per key, the items are
        pairs of key and entry (a position, or the identity of a map key); the entry `MISSING` means that all previous
        entries of the key are gone.
    """

    descriptor: StateDescriptor
    groups: Mapping[int, KeyGroupContent]
    cut_id: str = ""
    since: str | None = None
    changed: Mapping[int, Collection[Hashable] | None] | None = None


class StateTable(Protocol):
    """One state, for all keys of a subtask. Only the thread that owns the operator may call it.

    Keys are passed as their identities (`identity_of`).
    """

    @property
    def descriptor(self) -> StateDescriptor:
        """The declaration of the state."""
        ...

    @property
    def handle(self) -> type[Any]:
        """The class of its handles."""
        ...

    @property
    def is_plain(self) -> IsPlain:
        """The quick check of values before they are stored."""
        ...

    @property
    def is_plain_key(self) -> IsPlain:
        """The quick check of the keys of a map before they are stored."""
        ...

    @property
    def holds_mutable(self) -> bool:
        """Whether a value may be a mutable object, so that reads and writes have to copy it."""
        ...

    def get(self, key_group: int, key: Hashable) -> object:
        """Return the value of a key, or `MISSING`; for a list or map without entries, possibly an empty one.

        The result may be the object that the table itself holds, so do not modify it or pass it to users.
        """
        ...

    def load(self, key_group: int) -> object:
        """Load a restored key group, so that damage in its files shows now and not in a later call."""
        ...

    def put(self, key_group: int, key: Hashable, value: object) -> None:
        """Store the value of a key; `MISSING` removes it."""
        ...

    def unloaded(self) -> Mapping[int, LazyGroup]:
        """Return the restored key groups that are not in this table yet.

        Another thread may load them while the owner continues, and pass each result to the owner for `install`.
        """
        ...

    def install(self, key_group: int, loaded: dict[Hashable, object]) -> None:
        """Take over the loaded content of a key group, unless the table already has it."""
        ...


class EntriesStateTable(StateTable, Protocol):
    """A state of many entries per key: a list or a map. Only the thread that owns the operator may call it."""

    def put_entries(
        self, key_group: int, key: Hashable, content: Entries, changed: Iterable[Hashable], *, replaced: bool
    ) -> None:
        """Store the list or map of a key, and record which of its entries changed.

        Parameters
        ----------
        key_group, key : int, identity of a key
            The key group and the key.
        content : SharedList or Map
            All entries; if there are none, the key is removed.
        changed : iterable of entries
            The entries that were written or removed.
        replaced : bool
            Whether all previous entries of the key are gone, except those in `changed`.
        """
        ...


class KeyedStateBackend(Protocol):
    """The keyed state of one subtask. Only the thread that owns the operator may call it."""

    @property
    def tables(self) -> Mapping[str, StateTable]:
        """The states by name."""
        ...

    @property
    def wall_time(self) -> Callable[[], int]:
        """The source of processing time (milliseconds since the epoch) by which values expire."""
        ...

    def cut(self) -> tuple[StateCut, ...]:
        """Freeze the current content of all states, without copying it."""
        ...

    def close(self) -> None:
        """Release the state. Existing cuts stay readable until they are freed."""
        ...


NO_OWNER = 0
"""Stands for no thread."""


class Owned:
    """A base class for objects that belong to the first thread that uses them. Every method checks the thread."""

    __slots__ = ("_owner",)

    _owner: int

    def _check_owner(self) -> None:
        """Make the calling thread the owner if there is none, and check that it is the owner.

        Raises
        ------
        StateOfAnotherThread
            Another thread is the owner.
        """
        if self._owner == NO_OWNER:
            self._owner = get_ident()
        elif self._owner != get_ident():
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            raise StateOfAnotherThread(threading.current_thread().name, names.get(self._owner, "that has ended"))
