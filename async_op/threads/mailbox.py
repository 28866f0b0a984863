"""A mailbox: any thread may hand work to the one thread that owns the mailbox (Flink's task mailbox).

A `LoopMailbox` has an event loop for its owner, a `MailboxReader` a thread without one.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mail:
    """A unit of work for the owner's thread.

    Attributes
    ----------
    run : callable
        The work.
    urgent : bool
        If true, the mail runs before everything else, even before the rest of a batch.
    cancel : callable, optional
        Called in place of `run` if the mailbox is closed first.
    """

    run: Callable[[], object]
    urgent: bool = False
    cancel: Callable[[], object] | None = None


class Mailbox:
    """Holds mail for one owner.

    Any thread may call `put` and `has_mail`, ask for the length and read `is_open`; the rest is for the owner's thread
    only.

    Parameters
    ----------
    arrived : callable, optional
        Called when mail arrives, by the thread that puts it, but only once until the owner creates its next batch.

    Attributes
    ----------
    arrival : threading.Event
        Set while there is mail outside the batch, or once the mailbox is closed.
    """

    def __init__(self, arrived: Callable[[], object] | None = None) -> None:
        self.arrival = threading.Event()
        self._arrived = arrived
        self._lock = threading.RLock()
        self._queue = deque[Mail]()
        self._batch = deque[Mail]()
        self._is_open = True

    @property
    def is_open(self) -> bool:
        """Whether mail can be put."""
        return self._is_open

    def put(self, mail: Mail) -> bool:
        """Add mail at the end, or at the head if it is urgent; return False if the mailbox is closed and takes none."""
        with self._lock:
            if not self._is_open:
                return False
            first = not self.arrival.is_set()
            if mail.urgent:
                self._queue.appendleft(mail)
            else:
                self._queue.append(mail)
            self.arrival.set()
        if first and self._arrived is not None:
            self._arrived()
        return True

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
            if self._is_open:
                self.arrival.clear()
        return bool(self._batch)

    def take(self) -> Mail | None:
        """Take urgent mail, or else the next mail of the batch; None if there is neither."""
        with self._lock:
            if self._queue and self._queue[0].urgent:
                return self._queue.popleft()
            return self._batch.popleft() if self._batch else None

    def close(self) -> None:
        """Accept no more mail, and cancel what is left; raises the first error of a cancellation."""
        with self._lock:
            self._is_open = False
            left = [*self._batch, *self._queue]
            self._batch.clear()
            self._queue.clear()
            self.arrival.set()
        errors = []
        for mail in left:
            try:
                if mail.cancel is not None:
                    mail.cancel()
            except Exception as error:  # noqa: BLE001 - every mail is cancelled, whatever the others raise
                errors.append(error)
        if errors:
            raise errors[0]
