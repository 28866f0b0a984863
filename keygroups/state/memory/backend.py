"""The state backend that keeps keyed state in memory."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping

from keygroups.descriptors import StateDescriptor
from keygroups.errors import ConfigError
from keygroups.ranges import KeyGroupRange
from keygroups.state.backend import StateCut
from keygroups.state.group import KeyGroupContent
from keygroups.state.memory.cut_holds import Holds
from keygroups.state.memory.table import MemoryTable
from keygroups.ttl import wall_time


class MemoryBackend:
    """The keyed state of one subtask, in memory. Only the thread that owns the operator may call it.

    Parameters
    ----------
    descriptors : iterable of StateDescriptor
        The states that the function declares.
    owned : KeyGroupRange
        The key groups of the subtask.
    restored : mapping of str to (mapping of int to KeyGroupContent), optional
        The restored content by state name and key group; each key group is loaded on first use.
    since : str, optional
        The id of the snapshot whose complete content `restored` is, so that the next snapshot can be a delta on it.
    wall_time : callable
        Returns the processing time (milliseconds since the epoch).

    Raises
    ------
    ConfigError
        Two states have the same name.

    Examples
    --------
    >>> from keygroups import ValueState
    >>> backend = MemoryBackend([ValueState("seen")], KeyGroupRange(0, 127))
    >>> backend.tables["seen"].put(5, "a", 1)
    >>> backend.tables["seen"].get(5, "a")
    1
    """

    __slots__ = ("_holds", "_since", "tables", "wall_time")

    def __init__(
        self,
        descriptors: Iterable[StateDescriptor],
        owned: KeyGroupRange,
        restored: Mapping[str, Mapping[int, KeyGroupContent]] | None = None,
        since: str | None = None,
        wall_time: Callable[[], int] = wall_time,
    ) -> None:
        self.wall_time = wall_time
        contents = restored or {}
        self._since = since
        self._holds = Holds()
        self.tables: dict[str, MemoryTable] = {}
        for descriptor in descriptors:
            if descriptor.name in self.tables:
                raise ConfigError("states", descriptor.name, "two states have this name; each needs its own")
            content = contents.get(descriptor.name)
            table = MemoryTable(descriptor, owned, self._holds, content, tracks=since is not None)
            self.tables[descriptor.name] = table

    def cut(self) -> tuple[StateCut, ...]:
        """Freeze the current content of all states, without copying it."""
        cut_id, hold = uuid.uuid4().hex, self._holds.new()
        cuts = tuple(table.cut(hold, cut_id, self._since) for table in self.tables.values())
        self._since = cut_id
        return cuts

    def close(self) -> None:
        """Do nothing: memory needs no closing."""
