"""The feeder's side of an epoch, for a thread that must show signs of life while it waits.

Methods that wait are generators. They yield None every so often, so that their caller can show a sign of life.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from typing import Any, Protocol, TypeVar

from async_op.hosting import messages as say
from async_op.hosting.errors import FeederFenced
from async_op.hosting.fencing import NO_FENCE, Reason
from async_op.threads.wait_strategies import WaitSituation

WINDOW = 4
"""How many batches a feeder sends before it waits for a reply."""

_T = TypeVar("_T")

Waiting = Generator[None, None, _T]
"""Yields while it waits, and returns what it waited for."""


class HostChannel(Protocol):
    """A connection to a host, used by one thread. Replies come in the order of the messages."""

    def send(self, message: say.Message) -> None:
        """Send a message; never waits for the reply.

        Raises
        ------
        HostLost
            The host has ended.
        """
        ...

    def receive(self, situation: WaitSituation = WaitSituation.CONSUME) -> say.Reply | None:
        """Return the next reply, or None after a short wait; `situation` is why the thread waits.

        Raises
        ------
        HostLost
            The host has ended, or has shown no sign of life for too long.
        """
        ...

    def close(self) -> None:
        """Hang up."""
        ...


class Feeder:
    """Feeds one epoch to one host. One thread may call it.

    Parameters
    ----------
    channel : HostChannel
        The connection to the host.
    """

    def __init__(self, channel: HostChannel) -> None:
        self._channel = channel
        self._open = 0
        self._fence = NO_FENCE

    def hello(self, hello: say.Hello) -> Waiting[Reason | None]:
        """Claim the host; returns why it refuses, or None if it accepts.

        Raises
        ------
        FeederFenced
            A newer attempt has claimed the host (H3).
        Exception
            What the operator failed with (H8).
        """
        self._fence = hello.fence
        reply = yield from self._ask(hello)
        if not isinstance(reply, say.Refused):
            return None
        if reply.reason == "stale":
            raise FeederFenced(*self._fence)
        return reply.reason

    def feed(self, batches: Iterable[Any]) -> Waiting[None]:
        """Feed batches of rows, at most `WINDOW` of them unanswered at once, and wait for all replies."""
        for rows in batches:
            yield from self._wait_until_open_at_most(WINDOW - 1, WaitSituation.BACK_PRESSURE)
            self._send(say.Feed(rows))
            yield
        yield from self._wait_until_open_at_most(0)

    def watermark(self, timestamp: int) -> Waiting[None]:
        """Feed a watermark (milliseconds since the Unix epoch)."""
        yield from self._ask(say.FeedWatermark(timestamp))

    def settle(self) -> Waiting[None]:
        """Wait as the hello said."""
        yield from self._ask(say.Settle())

    def cut(self, cut: say.Cut) -> Waiting[say.Part]:
        """Have the host cut its operator and write its part; returns the part."""
        reply = yield from self._ask(cut)
        assert isinstance(reply, say.Part), "all other replies are raised"
        return reply

    def close(self) -> None:
        """Hang up."""
        self._channel.close()

    def _ask(self, message: say.Message) -> Waiting[say.Reply]:
        yield from self._wait_until_open_at_most(0)
        self._send(message)
        return (yield from self._next_reply(message))

    def _send(self, message: say.Message) -> None:
        self._channel.send(message)
        self._open += 1

    def _wait_until_open_at_most(self, count: int, situation: WaitSituation = WaitSituation.CONSUME) -> Waiting[None]:
        while self._open > count:
            yield from self._next_reply(None, situation)

    def _next_reply(
        self, message: say.Message | None, situation: WaitSituation = WaitSituation.CONSUME
    ) -> Waiting[say.Reply]:
        while (reply := self._channel.receive(situation)) is None:
            yield
        self._open -= 1
        if isinstance(reply, say.Failed):
            raise reply.error
        if isinstance(reply, say.Refused) and not isinstance(message, say.Hello):
            # A newer feeder has taken over the session.
            raise FeederFenced(*self._fence)
        return reply
