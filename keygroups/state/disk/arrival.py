"""A restored key group on its way into the store."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping
from typing import Any, Protocol

from keygroups.state.backend import LazyGroup

_Group = dict[Hashable, object]


class Destination(Protocol):
    """The table into which key groups are loaded."""

    def write_loaded(self, key_group: int, group: Mapping[Hashable, Any]) -> None:
        """Write what was restored. Any thread may call it."""
        ...


class Arrival:
    """One key group. Any thread may load it; what comes second finds it done.

    Parameters
    ----------
    table : Destination
        Where it goes.
    key_group : int
        Its number.
    group : LazyGroup or dict
        What was restored.
    """

    __slots__ = ("_is_loaded", "_key_group", "_lock", "_table", "group")

    def __init__(self, table: Destination, key_group: int, group: LazyGroup | _Group) -> None:
        self.group = group
        self._table = table
        self._key_group = key_group
        self._lock = threading.Lock()
        self._is_loaded = False

    def load(self) -> _Group:
        """Read it and write it into the store; nothing of it stays in memory."""
        self.write(None)
        return {}

    def write(self, loaded: _Group | None) -> None:
        """Write it into the store, as it was loaded elsewhere or as it is read now."""
        with self._lock:
            if self._is_loaded:
                return
            if loaded is None:
                loaded = self.group if isinstance(self.group, dict) else self.group.load()
            self._table.write_loaded(self._key_group, loaded)
            self._is_loaded = True
