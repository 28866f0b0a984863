"""Loads restored key groups into memory on a thread: first those that elements wait for, then the rest."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from async_op.in_flight.entries import Entry
from async_op.threads.own_thread import on_own_thread
from keygroups.state import StateTable


class Loading:
    """Loads key groups one after the other on a thread. Only the thread of the event loop may call it.

    An element is held back until its key group is in memory, so that no call reads a file on the event loop.

    Parameters
    ----------
    tables : iterable of StateTable
        The restored states.
    ready : callable
        Called with each entry that was held back, once its key group is in memory.
    crash : callable
        Called with the error of a key group that cannot be read.
    everything : bool
        Also load key groups that no element waits for.
    """

    __slots__ = ("_asked", "_crash", "_everything", "_held", "_ready", "_tables", "_task", "_urgent")

    def __init__(
        self,
        tables: Iterable[StateTable],
        ready: Callable[[Entry], None],
        crash: Callable[[BaseException], None],
        *,
        everything: bool,
    ) -> None:
        self._tables = tuple(tables)
        self._ready = ready
        self._crash = crash
        missing = sorted({key_group for table in self._tables for key_group in table.unloaded()})
        self._held: dict[int, list[Entry]] = {key_group: [] for key_group in missing}
        self._urgent: list[int] = []
        self._everything = everything
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
        try:
            while self._held:
                if self._urgent:
                    await self._load(self._urgent.pop(0))
                elif self._everything:
                    await self._load(next(iter(self._held)))
                else:
                    self._asked.clear()
                    await self._asked.wait()
        except asyncio.CancelledError as error:
            self._crash(error)  # has no effect once the operator has ended
            raise
        except BaseException as error:  # noqa: BLE001 - it ends the operator, as it would end a call
            self._crash(error)

    async def _load(self, key_group: int) -> None:
        for table in self._tables:
            group = table.unloaded().get(key_group)
            if group is not None:
                table.install(key_group, await on_own_thread(group.load))
        for entry in self._held.pop(key_group, ()):
            self._ready(entry)
