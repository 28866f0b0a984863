"""A host on an event loop of its own, in a thread beside the one that feeds it."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from contextlib import suppress

from async_op.hosting.errors import HostLost
from async_op.hosting.host import Conversation, Host, OperatorFactory
from async_op.hosting.host_settings import HostSettings
from async_op.hosting.lease import CLOSE_SECONDS
from async_op.hosting.messages import Message, Reply
from async_op.hosting.wire.frames import BEAT_SECONDS
from async_op.hosting.wire.sockets import TICK_SECONDS
from async_op.threads.loop_thread import LoopThread
from async_op.threads.wait_strategies import WaitSituation, WaitStrategies
from async_op.threads.waits import Waits

_log = logging.getLogger(__package__)

_NO_LOG = "this task's own"


class HostThread:
    """Runs a host on an event loop of its own, as a context manager. Only the feeding thread may call it.

    Parameters
    ----------
    factory : OperatorFactory
        Makes the operator.
    settings : HostSettings
        Which subtask it is for. No driver renews its lease, so the lease must be as long as an epoch may take.
    """

    def __init__(self, factory: OperatorFactory, settings: HostSettings) -> None:
        self._factory = factory
        self._settings = settings
        self._thread = LoopThread(self._stray)

    def __enter__(self) -> HostThread:
        self._thread.start()
        try:
            self._thread.call(self._make())
        except BaseException:  # what was not entered is not left
            with suppress(TimeoutError):  # the factory blocks the loop: the thread ends with the process
                self._thread.stop(CLOSE_SECONDS)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._thread.call(_closed(self._host), 2 * CLOSE_SECONDS)
            self._thread.stop(CLOSE_SECONDS)
        except TimeoutError:
            # A function blocks the loop, so the thread cannot be ended; it ends with the process.
            _log.warning("close() of the function of subtask %d blocks its event loop", self._settings.subtask_index)

    def channel(self, waits: Waits | None = None) -> ThreadChannel:
        """Return a channel to the host, for the feeding thread, which waits as `waits` says."""
        waits = waits or Waits(WaitStrategies())
        return ThreadChannel(self._thread.loop, self._host, self._settings.patience_seconds, waits)

    async def _make(self) -> None:
        self._host = Host(self._factory, self._settings)
        self._opening = asyncio.get_running_loop().create_task(self._host.open())

    def _stray(self, error: Exception) -> None:
        # Not called here, because `fail` needs the loop to be running.
        self._thread.loop.call_soon(self._host.subtask.fail, error)


async def _closed(host: Host) -> None:
    """Close a host as its own process does: a function that does not close is given up."""
    try:
        await asyncio.wait_for(host.close(), CLOSE_SECONDS)
    except TimeoutError:
        _log.warning("close() of the function was given up after %g s", CLOSE_SECONDS)


class ThreadChannel:
    """A channel to a host on another thread's loop. One thread may call it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, host: Host, patience_seconds: float, waits: Waits) -> None:
        self._loop = loop
        self._host = host
        self._patience_seconds = patience_seconds
        self._replies = deque[Reply]()
        self._arrived = threading.Event()
        self._waits = waits
        self._heard_at = time.monotonic()
        self._conversation: Conversation | None = None
        loop.call_soon_threadsafe(self._begin)

    def send(self, message: Message) -> None:
        """Send a message; never waits for the reply."""
        asyncio.run_coroutine_threadsafe(self._hear(message), self._loop)

    def receive(self, situation: WaitSituation = WaitSituation.CONSUME) -> Reply | None:
        """Return the next reply, or None after `TICK_SECONDS`."""
        self._arrived.clear()
        self._waits.until(lambda: self._replies, self._arrived, lambda: situation, TICK_SECONDS)
        if self._replies:
            return self._replies.popleft()
        if self._conversation is not None and self._conversation.answering.done():
            raise HostLost("answers no more", _NO_LOG)
        silent = time.monotonic() - self._heard_at
        if silent > self._patience_seconds:
            raise HostLost(f"has shown no sign of life for {silent:.0f} s", _NO_LOG)
        return None

    def close(self) -> None:
        """Hang up."""
        self._loop.call_soon_threadsafe(self._end)

    # Called on the thread of the loop.

    def _begin(self) -> None:
        self._conversation = _Conversation(self._host, self)
        self._beat()

    def replied(self, reply: Reply) -> None:
        """Take a reply of the host, on the thread of the loop."""
        self._replies.append(reply)
        self._arrived.set()

    async def _hear(self, message: Message) -> None:
        assert self._conversation is not None, "the loop runs `_begin` before"
        await self._conversation.hear(message)

    def _beat(self) -> None:
        self._heard_at = time.monotonic()
        if self._conversation is not None:
            self._conversation.heard()
            self._loop.call_later(BEAT_SECONDS, self._beat)

    def _end(self) -> None:
        if self._conversation is not None:
            self._conversation.end()
            self._conversation = None


class _Conversation(Conversation):
    """A conversation with a feeder on another thread of the process."""

    def __init__(self, host: Host, channel: ThreadChannel) -> None:
        super().__init__(host)
        self._channel = channel

    def reply(self, reply: Reply) -> None:
        self._channel.replied(reply)
