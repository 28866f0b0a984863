"""A mailbox: any thread may hand work to the one thread that owns the mailbox (Flink's task mailbox).

`Mailbox` holds the mail. `MailboxProcessor` runs it between the steps of a default action. Other threads submit mail
through a `MailboxExecutor`.
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
"""The priority of deferrable mail. The main loop reads at this priority, so it runs everything."""


@dataclass(frozen=True, slots=True)
class Mail:
    """A unit of work for the owner's thread.

    Attributes
    ----------
    run : callable
        The work.
    priority : int
        Only a reader at this priority or a lower one may run the mail. The priority does not affect the order.
    description : str
        A description for humans.
    urgent : bool
        If true, the mail runs before everything else, even before the rest of a batch.
    deferrable : bool
        If true, the mail runs only in the main loop, never in a yield.
    cancel : callable, optional
        Called in place of `run` if the mailbox is closed first.
    """

    run: Callable[[], object]
    priority: int = 0
    description: str = "mail"
    urgent: bool = False
    deferrable: bool = False
    cancel: Callable[[], object] | None = None

    def is_for(self, priority: int) -> bool:
        """Return whether a reader at this priority may run the mail."""
        return (MIN_PRIORITY if self.deferrable else self.priority) >= priority


class MailboxState(enum.Enum):
    """OPEN: mail can be put and taken. QUIESCED: mail can only be taken. CLOSED: neither."""

    OPEN = "open"
    QUIESCED = "quiesced"
    CLOSED = "closed"


class Mailbox:
    """Holds mail for one owner.

    Any thread may call `put`, `quiesce`, `exclusively` and read `state`; the rest is for the owner's thread only.

    Parameters
    ----------
    arrived : callable, optional
        Called when mail arrives, by the thread that puts it, but only once until the owner creates its next batch.

    Attributes
    ----------
    arrival : threading.Event
        Set while there is mail outside the batch, or while the mailbox is not open.
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
        """The current state."""
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
        """Return whether there is mail, in the batch or outside it."""
        return bool(self._batch or self._queue)

    def __len__(self) -> int:
        return len(self._batch) + len(self._queue)

    def create_batch(self) -> bool:
        """Move all mail into the batch; later mail waits for the next batch. Returns whether the batch has mail."""
        with self._lock:
            self._batch.extend(self._queue)
            self._queue.clear()
            if self._state is MailboxState.OPEN:
                self.arrival.clear()
        return bool(self._batch)

    def try_take_from_batch(self) -> Mail | None:
        """Take urgent mail, or else the next mail of the batch; None if there is neither."""
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
        """Take the oldest mail that a reader at this priority may run, and wait for it if necessary.

        Raises
        ------
        MailboxClosed
            The mailbox is closed, or it is quiesced and has no such mail.
        """
        while (mail := self.try_take(priority)) is None:
            self._check(MailboxState.OPEN)
            self.arrival.wait()
            with self._lock:
                # Mail of a lower priority may remain; only new mail can end the wait.
                if not any(mail.is_for(priority) for mail in self._queue) and self._state is MailboxState.OPEN:
                    self.arrival.clear()
        return mail

    def drain(self) -> list[Mail]:
        """Take all mail, the batch first."""
        with self._lock:
            left = [*self._batch, *self._queue]
            self._batch.clear()
            self._queue.clear()
        return left

    def quiesce(self) -> None:
        """Accept no more mail; existing mail can still be taken."""
        with self._lock:
            if self._state is MailboxState.OPEN:
                self._state = MailboxState.QUIESCED
            self.arrival.set()

    def close(self) -> list[Mail]:
        """Close the mailbox to both sides; returns the remaining mail."""
        with self._lock:
            left = self.drain()
            self._state = MailboxState.CLOSED
            self.arrival.set()
        return left

    @contextmanager
    def exclusively(self) -> Iterator[None]:
        """Keep other threads from putting mail, quiescing or closing inside this context."""
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
