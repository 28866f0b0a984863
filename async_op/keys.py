"""Keys, key groups and ids of entries."""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Hashable
from typing import Any

from async_op.elements import Entry, is_timer
from async_op.functions import Runtime
from keygroups.codec import pack
from keygroups.errors import KeyGroupOutOfRange, NullKey, UnsupportedKey
from keygroups.hashing import key_hasher
from keygroups.state.timers import Timer
from snapshots.subtask import NO_KEY_GROUP

_KNOWN_KEYS_MAX = 65_536


class KeyAssignment:
    """Gives entries their key, key group and id. Only the thread of the event loop may call it.

    Parameters
    ----------
    hash_name : str
        The hash from key to key group.
    runtime : Runtime
        The subtask, and the key groups that it owns.
    key_by : callable or None
        Returns the key of a value.
    """

    __slots__ = ("_hash", "_hash_name", "_key_by", "_known", "_owned", "_run_id", "_runtime")

    def __init__(self, hash_name: str, runtime: Runtime, key_by: Callable[[Any], Any] | None) -> None:
        self._key_by = key_by
        self._hash = key_hasher(hash_name)
        self._hash_name = hash_name
        self._runtime = runtime
        self._owned = runtime.key_groups
        self._known: dict[Hashable, int] = {}
        self._run_id = uuid.uuid4().hex

    @property
    def subtask_index(self) -> int:
        """The subtask: the channel of its elements in a snapshot."""
        return self._runtime.subtask_index

    def set_key(self, entry: Entry) -> None:
        """Set the key and the key group of an entry by its value.

        Raises
        ------
        NullKey, UnsupportedKey
            There is no key, or it has no stable hash.
        KeyGroupOutOfRange
            Another subtask owns the key group.
        """
        assert self._key_by is not None, "only entries that have a key are asked for it"
        key = self._key_by(entry.value)
        # Text and integers equal nothing else that could be here, and to look one up is faster than to hash it.
        is_plain = type(key) is str or type(key) is int
        key_group = self._known.get(key) if is_plain else None
        if key_group is None:
            key_group = self._owned_key_group(entry.value, key)
            if is_plain:
                if len(self._known) >= _KNOWN_KEYS_MAX:
                    self._known.clear()
                self._known[key] = key_group
        entry.key = key
        entry.key_group = key_group

    def _owned_key_group(self, value: Any, key: Any) -> int:
        if key is None:
            raise NullKey(f"element {value!r}")
        if type(key) is list:
            raise UnsupportedKey("list", self._hash_name, "a tuple for several key columns")
        key_group = self._hash(key) % self._runtime.max_parallelism
        owned = self._owned
        if not owned.start <= key_group <= owned.end:
            raise KeyGroupOutOfRange(key_group, owned.start, owned.end)
        return key_group

    def key_group_of(self, entry: Entry) -> int:
        """Return the key group of an entry, `NO_KEY_GROUP` without a key."""
        return NO_KEY_GROUP if entry.key_group is None else entry.key_group

    def element_id_of(self, entry: Entry) -> str:
        """Return the idempotency key of an entry, made up on first use if its source gave none."""
        if entry.element_id is None and is_timer(entry):
            entry.element_id = _timer_id(entry.value, entry.key)
        elif entry.element_id is None:
            entry.element_id = f"{self._run_id}-{self._runtime.subtask_index}-{entry.sequence}"
        return entry.element_id


def _timer_id(timer: Timer, key: Hashable) -> str:
    """Return an id that a timer has whenever it fires, and no other one."""
    digest = hashlib.blake2b(pack(key, "the key of a timer"), digest_size=16).hexdigest()
    return f"{'event' if timer.event_time else 'processing'}-timer-{timer.timestamp}-{digest}"
