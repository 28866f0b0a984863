"""The two ends of a way between processes: what is sent to a subtask elsewhere, and an inlet that returns credits."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from async_op.elements import Element
from async_op.job.channels import Inlet
from async_op.job.processes.messages import CREDIT, ELEMENTS, IDLE, WATERMARK, Destination, Link, payload_for

FLUSH_SECONDS = 0.001
"""How long elements wait for others, to be sent together: a frame costs as much as twenty elements."""

RUN = 256
"""With so many elements, a frame is sent at once."""


class Sender:
    """Sends what a process has for the others, many elements at a time. Only the loop's thread may call it.

    Parameters
    ----------
    number : int
        The number of this process; see `Destination`.
    link_of : callable
        Returns the connection to the process that has, or passes on to, a subtask.
    """

    def __init__(self, number: int, link_of: Callable[[int], Link]) -> None:
        self.number = number
        self._link_of = link_of
        self._waiting: dict[Any, Callable[[], None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def wait(self, who: object, flush: Callable[[], None]) -> None:
        """Have something called soon, with all others that wait."""
        self._waiting[who] = flush
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self.flush)

    def send(self, kind: int, place: Destination, elements: list[Element] | None = None) -> None:
        """Send something to a subtask."""
        self._link_of(place.target).send(kind, payload_for(place, elements))

    def flush(self) -> None:
        """Send all that waits, now."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        waiting, self._waiting = self._waiting, {}
        for flush in waiting.values():
            flush()

    def forget(self) -> None:
        """Drop all that waits: the chain is over."""
        self._waiting.clear()
        self.flush()


class RemoteInlet(Inlet):
    """The way into a subtask of another process. It is full while too much of what was sent has not been let in there.

    Parameters
    ----------
    step, target : int
        The number of the step, and the subtask.
    channels, limit
        As for `Inlet`.
    sender : Sender
        Sends the elements.
    """

    __slots__ = ("_runs", "_sender", "_step", "_target", "_unconfirmed")

    def __init__(self, step: int, target: int, channels: Iterable[int], limit: int, sender: Sender) -> None:
        super().__init__(channels, limit)
        self._step, self._target = step, target
        self._sender = sender
        self._runs: dict[int, list[Element]] = {}
        self._unconfirmed = 0

    @property
    def has_plenty_of_room(self) -> bool:
        """Whether senders that wait may go on."""
        return self._unconfirmed <= self._limit // 2

    @property
    def room(self) -> int:
        """How many elements may be sent before it is full."""
        return self._limit - self._unconfirmed

    def put(self, channel: int, elements: Sequence[Element]) -> None:
        """Send elements, soon."""
        self._marks.set_idle(channel, False)
        run = self._runs.setdefault(channel, [])
        run += elements
        before, self._unconfirmed = self._unconfirmed, self._unconfirmed + len(elements)
        if before < self._limit <= self._unconfirmed:
            self._tell()
        if len(run) >= RUN:
            self._send_run(channel)
        else:
            self._sender.wait((self._step, self._target), self._flush)

    def put_one(self, channel: int, element: Element) -> None:
        """Send an element, soon."""
        self.put(channel, (element,))

    def put_watermark(self, channel: int, timestamp: int) -> None:
        """Send a watermark behind the elements of its channel."""
        if self._marks.rise(channel, timestamp):
            self._send_run(channel)
            self._sender.send(WATERMARK, self._place(channel, timestamp))

    def set_idle(self, channel: int, is_idle: bool) -> None:
        """Tell the subtask whether to wait for a channel's watermark."""
        if self._marks.set_idle(channel, is_idle):
            self._send_run(channel)
            self._sender.send(IDLE, self._place(channel, int(is_idle)))

    def credited(self, count: int) -> None:
        """Note that elements were let in."""
        before, self._unconfirmed = self._unconfirmed, self._unconfirmed - count
        if before >= self._limit > self._unconfirmed:
            self._tell()
        self.changed.wake()

    def clear(self) -> None:
        """Drop what was not sent, so that nothing waits for room in a chain that is over."""
        self._runs.clear()
        self._unconfirmed = 0
        super().clear()

    def _flush(self) -> None:
        for channel in list(self._runs):
            self._send_run(channel)

    def _send_run(self, channel: int) -> None:
        run = self._runs.pop(channel, None)
        if run:
            self._sender.send(ELEMENTS, self._place(channel, len(run)), run)

    def _place(self, channel: int, number: int) -> Destination:
        return Destination(False, self._sender.number, self._step, self._target, channel, number)

    def _tell(self) -> None:
        for sender in self.senders:
            sender()


class CreditedInlet(Inlet):
    """An inlet that tells other processes when their elements have been let in.

    Parameters
    ----------
    step, target : int
        The number of the step, and the subtask.
    channels, limit
        As for `Inlet`.
    sender : Sender
        Sends the credits.
    """

    __slots__ = ("_credits", "_lent", "_sender", "_step", "_taken", "_target")

    def __init__(self, step: int, target: int, channels: Iterable[int], limit: int, sender: Sender) -> None:
        super().__init__(channels, limit)
        self._step, self._target = step, target
        self._sender = sender
        self._taken = 0
        self._lent = deque[tuple[int, int, int]]()
        """How much had been taken once a run was taken, who has sent it, and how many elements it had."""
        self._credits: dict[int, int] = {}

    def receive(self, place: Destination, elements: Sequence[Element]) -> None:
        """Add elements that another process has sent."""
        self.put(place.channel, elements)
        self._lent.append((self._taken + len(self.elements), place.sender, place.number))

    def shrunk(self, before: int) -> None:
        """Return credits for what has been taken."""
        self._taken += before - len(self.elements)
        while self._lent and self._lent[0][0] <= self._taken:
            _, sender, count = self._lent.popleft()
            self._credits[sender] = self._credits.get(sender, 0) + count
            self._sender.wait((self._step, self._target), self._flush)
        super().shrunk(before)

    def _flush(self) -> None:
        for sender, count in self._credits.items():
            self._sender.send(CREDIT, Destination(False, sender, self._step, self._target, 0, count))
        self._credits.clear()
