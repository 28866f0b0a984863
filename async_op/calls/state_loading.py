"""Loads restored key groups into memory on a thread: first those that elements wait for, then the rest."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Hashable, Iterable
from typing import TypeAlias

from async_op.in_flight.entries import Entry
from async_op.lifecycle import Lifecycle
from async_op.threads.own_thread import on_own_thread
from keygroups.state import StateTable
from keygroups.state.group import LazyGroup

# A thread takes so many at most. One for each would take longer to start than to load a small key group.
_KEY_GROUPS_OF_A_THREAD = 100

_Unread: TypeAlias = tuple[int, list[tuple[StateTable, LazyGroup]]]
"""A key group, with its content in each table that lacks it."""


class Loading:
    """Loads key groups one after the other on a thread. Only the thread of the event loop may call it.

    An element is held back until its key group is in memory, so that no call reads a file on the event loop.

    Parameters
    ----------
    tables : iterable of StateTable
        The restored states.
    ready : callable
        Called with each entry that was held back, once its key group is in memory.
    lifecycle : Lifecycle
        Ends the operator with the error of a key group that cannot be read.
    """

    __slots__ = ("_asked", "_everything", "_fail", "_held", "_ready", "_tables", "_task", "_urgent")

    def __init__(
        self,
        tables: Iterable[StateTable],
        ready: Callable[[Entry], None],
        lifecycle: Lifecycle,
    ) -> None:
        self._tables = tuple(tables)
        self._ready = ready
        self._fail = lifecycle.fail
        missing = sorted({key_group for table in self._tables for key_group in table.unloaded()})
        self._held: dict[int, list[Entry]] = {key_group: [] for key_group in missing}
        self._urgent: list[int] = []
        self._everything = False
        self._asked = asyncio.Event()
        # Not through the loop's task factory: an eager factory would start the task before the operator is open.
        self._task = asyncio.Task(self._load_all(), loop=asyncio.get_running_loop(), name="keygroups loading")

    def holds(self, entry: Entry) -> bool:
        """Hold an entry back if its key group is not in memory yet; returns whether it is held back."""
        assert entry.key_group is not None, "with state, every entry has a key"
        held = self._held.get(entry.key_group)
        if held is None:
            return False
        if not held:
            self._urgent.append(entry.key_group)
            self._asked.set()
        held.append(entry)
        return True

    def preload(self) -> None:
        """Load also the key groups that no element waits for, from now on.

        Call it when the restored elements have been offered. Otherwise, one of them whose key group happens to be in
        memory already would be called before earlier ones that are held back.
        """
        self._everything = True
        self._asked.set()

    @property
    def is_done(self) -> bool:
        """Whether all restored key groups are in memory."""
        return not self._held

    def stop(self) -> None:
        """Load no more; entries that are held back stay held back."""
        self._held.clear()
        self._urgent.clear()
        self._task.cancel()

    async def close(self) -> None:
        """Wait until the thread has ended."""
        self.stop()
        await asyncio.wait([self._task])

    async def _load_all(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._held:
                if self._urgent:
                    await on_own_thread(self._load, self._unread(self._urgent), loop)
                    self._urgent = [key_group for key_group in self._urgent if key_group in self._held]
                elif self._everything:
                    await on_own_thread(self._load_unless_asked, self._unread(self._held), loop)
                else:
                    self._asked.clear()
                    await self._asked.wait()
        except asyncio.CancelledError as error:
            self._fail(error)  # has no effect once the operator has ended
            raise
        except BaseException as error:  # noqa: BLE001 - it ends the operator, as it would end a call
            self._fail(error)

    def _unread(self, key_groups: Iterable[int]) -> list[_Unread]:
        found = []
        for key_group in itertools.islice(key_groups, _KEY_GROUPS_OF_A_THREAD):
            groups = ((table, table.unloaded().get(key_group)) for table in self._tables)
            found.append((key_group, [(table, group) for table, group in groups if group is not None]))
        return found

    # On the thread. Each key group is handed over as soon as it is loaded, because the next one may take long.

    def _load_unless_asked(self, unread: Iterable[_Unread], loop: asyncio.AbstractEventLoop) -> None:
        self._load(itertools.takewhile(lambda _: not self._urgent, unread), loop)

    def _load(self, unread: Iterable[_Unread], loop: asyncio.AbstractEventLoop) -> None:
        for key_group, groups in unread:
            if key_group not in self._held:  # stopped
                return
            loaded = [(table, group.load()) for table, group in groups]
            loop.call_soon_threadsafe(self._take, key_group, loaded)

    # On the event loop again.

    def _take(self, key_group: int, loaded: list[tuple[StateTable, dict[Hashable, object]]]) -> None:
        if key_group not in self._held:  # stopped
            return
        try:
            for table, content in loaded:
                table.install(key_group, content)
            for entry in self._held.pop(key_group):
                self._ready(entry)
        except BaseException as error:  # noqa: BLE001 - it ends the operator, as it would end a call
            self._fail(error)
