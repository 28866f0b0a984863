"""Loads a restored key group into the store."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from typing import Any, Protocol

from keygroups.state.group import KeyGroupContent

_Group = dict[Hashable, object]


class Destination(Protocol):
    """The table into which key groups are loaded."""

    def write_loaded(self, key_group: int, group: Mapping[Hashable, Any]) -> None:
        """Write the restored content of a key group. Any thread may call it."""
        ...


class ArrivingGroup:
    """One key group that has to be loaded. Any thread may load it; it is loaded only once.

    Parameters
    ----------
    table : Destination
        The table to load it into.
    key_group : int
        Its number.
    group : KeyGroupContent
        The restored content.
    """

    __slots__ = ("_is_loaded", "_key_group", "_lock", "_table", "group")

    def __init__(self, table: Destination, key_group: int, group: KeyGroupContent) -> None:
        self.group = group
        self._table = table
        self._key_group = key_group
        self._lock = threading.Lock()
        self._is_loaded = False

    def load(self) -> _Group:
        """Read the key group and write it into the store; nothing of it stays in memory."""
        self.write(None)
        return {}

    def write(self, loaded: _Group | None) -> None:
        """Write the key group into the store: the loaded content, or, without it, what is read now."""
        with self._lock:
            if self._is_loaded:
                return
            if loaded is None:
                held = self.group.in_memory()
                loaded = self.group.load() if held is None else held
            self._table.write_loaded(self._key_group, loaded)
            self._is_loaded = True
