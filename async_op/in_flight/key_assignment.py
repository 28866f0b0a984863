"""Assigns keys, key groups and ids to entries."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable, Hashable
from decimal import Decimal
from typing import Any

import numpy as np

from async_op.elements import looked_up
from async_op.errors import named_element
from async_op.in_flight.entries import Entry, is_timer
from async_op.in_flight.idempotency_keys import Identity
from keygroups.codec import pack
from keygroups.errors import KeyGroupOutOfRange, NullKey, UnstorableValue, UnsupportedKey
from keygroups.hashing import key_hasher
from keygroups.ranges import KeyGroupRange
from keygroups.safe_text import add_note
from keygroups.state import identity_of
from snapshots.format.subtask import NO_KEY_GROUP, RefusedValue

_KNOWN_KEYS_MAX = 65_536

_STORABLE = frozenset({str, int, bytes, bool, float, Decimal, dt.date, dt.datetime})
"""Types of keys that every snapshot can hold."""


def checked_hash(key: Any, hash_key: Callable[[Any], int], hash_name: str) -> int:
    """Return the hash of a key, if snapshots can hold it.

    Raises
    ------
    NullKey, UnstorableValue, UnsupportedKey
        The key is null, or part of it is, or it has no stable hash, or no snapshot could hold it.
    """
    if type(key) is list:
        raise UnsupportedKey("list", hash_name, "a tuple for several key columns")
    found = hash_key(key)
    if type(key) not in _STORABLE:
        _check_storable(key, hash_name)
    return found


def _check_storable(key: Any, hash_name: str) -> None:
    """Refuse keys of classes derived from text or numbers: they have a hash, and no snapshot could hold them."""
    parts = key if type(key) is tuple else (key,)
    for part in parts:
        if type(part) not in _STORABLE and not isinstance(part, np.generic | dt.datetime):
            try:
                pack(part, "a key")
            except UnstorableValue:
                advice = "its plain value, such as .value of an Enum"
                raise UnsupportedKey(type(part).__qualname__, hash_name, advice) from None


class KeyAssignment:
    """Assigns each entry its key, key group and id. Only the thread of the event loop may call it.

    Parameters
    ----------
    hash_name : str
        The hash that maps a key to its key group.
    subtask_index : int
        The index of the subtask, which is the channel of its elements in a snapshot.
    max_parallelism : int
        The number of key groups.
    owned : KeyGroupRange
        The key groups of this subtask.
    key_by : callable or None
        Returns the key of a value.
    identity : Identity
        Makes idempotency keys of ids.
    """

    __slots__ = (
        "_hash", "_hash_name", "_key_by", "_known", "_max_parallelism", "_owned", "_run_id",
        "identity", "subtask_index",
    )  # fmt: skip

    def __init__(
        self,
        hash_name: str,
        subtask_index: int,
        max_parallelism: int,
        owned: KeyGroupRange,
        key_by: Callable[[Any], Any] | None,
        identity: Identity,
    ) -> None:
        self.identity = identity
        self._key_by = key_by
        self._hash = key_hasher(hash_name)
        self._hash_name = hash_name
        self.subtask_index = subtask_index
        self._max_parallelism = max_parallelism
        self._owned = owned
        self._known: dict[Hashable, int] = {}
        self._run_id = uuid.uuid4().hex

    def set_key(self, entry: Entry) -> None:
        """Set the key of an entry from its value, with its identity and its key group.

        Raises
        ------
        NullKey, UnstorableValue, UnsupportedKey
            The key is null, or it has no stable hash.
        KeyGroupOutOfRange
            Another subtask owns the key group.
        """
        assert self._key_by is not None, "called only if there is a key_by"
        try:
            key = self._key_by(entry.value)
            # A str or int equals no key of another type in this cache, and a lookup is faster than a hash.
            kind = type(key)
            is_plain = kind is str or kind is int
            key_group = self._known.get(key) if is_plain else None
            if key_group is None:
                if type(entry.value) is RefusedValue:
                    return  # it is not the user's value, so it has no key
                key_group = self._owned_key_group(entry, key)
                if is_plain:
                    if len(self._known) >= _KNOWN_KEYS_MAX:
                        self._known.clear()
                    self._known[key] = key_group
            entry.key = key
            entry.identity = key if is_plain else identity_of(key)
            entry.key_group = key_group
        except Exception as error:
            if isinstance(entry.value, RefusedValue):
                return  # it has no key; the value itself is refused next
            note = f"raised for the key of element {self.name_of(entry)}"
            if note not in getattr(error, "__notes__", ()):
                add_note(error, note)
            raise

    def _owned_key_group(self, entry: Entry, key: Any) -> int:
        try:
            key_group = checked_hash(key, self._hash, self._hash_name) % self._max_parallelism
        except NullKey:
            raise NullKey(f"element {self.name_of(entry)}") from None
        owned = self._owned
        if not owned.start <= key_group <= owned.end:
            raise KeyGroupOutOfRange(key_group, owned.start, owned.end)
        return key_group

    def name_of(self, entry: Entry) -> str:
        """Return how messages name the element of an entry."""
        return named_element(self.idempotency_key_of(entry), entry.value)

    def key_group_of(self, entry: Entry) -> int:
        """Return the key group of an entry, `NO_KEY_GROUP` without a key."""
        return NO_KEY_GROUP if entry.key_group is None else entry.key_group

    def element_id_of(self, entry: Entry) -> str:
        """Return the id of an entry, unique in its step; if its source gave none, one is created on first use."""
        known = looked_up(entry.element_id)
        if known is None and is_timer(entry):
            known = self.identity.timer_id(entry.value, entry.key)
        elif known is None:
            known = f"{self._run_id}-{self.subtask_index}-{entry.sequence}"
        entry.element_id = known
        return known

    def idempotency_key_of(self, entry: Entry) -> str:
        """Return the key by which services recognise the calls for an entry, and messages name it."""
        return self.identity.key_of(self.element_id_of(entry))
