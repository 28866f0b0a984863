"""Work that any thread may hand to the one thread that owns something (Flink's task mailbox).

`Mailbox` keeps the mail, `MailboxProcessor` runs it between the steps of a default action, and `MailboxExecutor` is
how others hand it in.
"""

from __future__ import annotations

import enum
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from async_op.errors import MailboxClosed

MIN_PRIORITY = -1
"""The priority of deferrable mail, and that at which the main loop reads: everything."""


@dataclass(frozen=True, slots=True)
class Mail:
    """A piece of work.

    Attributes
    ----------
    run : callable
        The work.
    priority : int
        Who may run it: only those that read at this priority or below. It is no order of execution.
    description : str
        For people.
    urgent : bool
        Runs before everything else, also before the rest of a batch.
    deferrable : bool
        Runs only in the main loop, never in a yield.
    cancel : callable, optional
        Called instead of `run` if the mailbox closes first.
    """

    run: Callable[[], object]
    priority: int = 0
    description: str = "mail"
    urgent: bool = False
    deferrable: bool = False
    cancel: Callable[[], object] | None = None

    def is_for(self, priority: int) -> bool:
        """Tell whether a reader at this priority may run it."""
        return (MIN_PRIORITY if self.deferrable else self.priority) >= priority


class MailboxState(enum.Enum):
    """OPEN takes and gives mail, QUIESCED only gives, CLOSED does neither."""

    OPEN = "open"
    QUIESCED = "quiesced"
    CLOSED = "closed"


class Mailbox:
    """Mail for one owner.

    Any thread may call `put`, `quiesce`, `run_exclusively` and read `state`; the rest is for the owner's thread only.

    Parameters
    ----------
    arrived : callable, optional
        Called by the putting thread, once until the owner makes its next batch, when there is mail.

    Attributes
    ----------
    arrival : threading.Event
        Set while there is mail outside of the batch, or the mailbox is not open.
    """

    def __init__(self, arrived: Callable[[], object] | None = None) -> None:
        self.arrival = threading.Event()
        self._arrived = arrived
        self._lock = threading.RLock()
        self._queue = deque[Mail]()
        self._batch = deque[Mail]()
        self._state = MailboxState.OPEN

    @property
    def state(self) -> MailboxState:
        """Where in its life the mailbox is."""
        return self._state

    def put(self, mail: Mail) -> None:
        """Add mail at the end, or at the head if it is urgent.

        Raises
        ------
        MailboxClosed
            The mailbox is not open.
        """
        with self._lock:
            self._check(MailboxState.OPEN)
            first = not self.arrival.is_set()
            if mail.urgent:
                self._queue.appendleft(mail)
            else:
                self._queue.append(mail)
            self.arrival.set()
        if first and self._arrived is not None:
            self._arrived()

    def has_mail(self) -> bool:
        """Tell whether there is mail, in the batch or outside."""
        return bool(self._batch or self._queue)

    def __len__(self) -> int:
        return len(self._batch) + len(self._queue)

    def create_batch(self) -> bool:
        """Move all mail into the batch; what comes later waits for the next one. Tells whether the batch has mail."""
        with self._lock:
            self._batch.extend(self._queue)
            self._queue.clear()
            if self._state is MailboxState.OPEN:
                self.arrival.clear()
        return bool(self._batch)

    def try_take_from_batch(self) -> Mail | None:
        """Take urgent mail, else the next of the batch; None if there is neither."""
        self._check(MailboxState.OPEN, MailboxState.QUIESCED)
        return self._take_urgent(MIN_PRIORITY) or (self._batch.popleft() if self._batch else None)

    def try_take(self, priority: int = MIN_PRIORITY) -> Mail | None:
        """Take the oldest mail that a reader at this priority may run; None if there is none."""
        self._check(MailboxState.OPEN, MailboxState.QUIESCED)
        with self._lock:
            return (
                self._take_urgent(priority) or _take_first(self._batch, priority) or _take_first(self._queue, priority)
            )

    def take(self, priority: int = MIN_PRIORITY) -> Mail:
        """Take the oldest mail that a reader at this priority may run; waits for it.

        Raises
        ------
        MailboxClosed
            The mailbox is closed, or quiesced without such mail.
        """
        while (mail := self.try_take(priority)) is None:
            self._check(MailboxState.OPEN)
            self.arrival.wait()
            with self._lock:
                # Mail of a lower priority may stay; only what comes from now on can help.
                if not any(mail.is_for(priority) for mail in self._queue) and self._state is MailboxState.OPEN:
                    self.arrival.clear()
        return mail

    def drain(self) -> list[Mail]:
        """Take everything, the batch first."""
        with self._lock:
            left = [*self._batch, *self._queue]
            self._batch.clear()
            self._queue.clear()
        return left

    def quiesce(self) -> None:
        """Accept no more mail; what is there can still be taken."""
        with self._lock:
            if self._state is MailboxState.OPEN:
                self._state = MailboxState.QUIESCED
            self.arrival.set()

    def close(self) -> list[Mail]:
        """Accept and give no more mail; returns what was left."""
        with self._lock:
            left = self.drain()
            self._state = MailboxState.CLOSED
            self.arrival.set()
        return left

    @contextmanager
    def exclusively(self) -> Iterator[None]:
        """Let no other thread put, quiesce or close in between."""
        with self._lock:
            yield

    def _take_urgent(self, priority: int) -> Mail | None:
        with self._lock:
            if self._queue and self._queue[0].urgent and self._queue[0].is_for(priority):
                return self._queue.popleft()
        return None

    def _check(self, *allowed: MailboxState) -> None:
        if self._state not in allowed:
            raise MailboxClosed(self._state.value)


def _take_first(mails: deque[Mail], priority: int) -> Mail | None:
    for index, mail in enumerate(mails):
        if mail.is_for(priority):
            del mails[index]
            return mail
    return None
