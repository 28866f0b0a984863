"""One consumer and one thread for all partitions of a topic."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from async_op.connectors.errors import KafkaRefused, OffsetUnavailable
from async_op.connectors.kafka import client

_MESSAGES_AT_ONCE = 500
_POLL_SECONDS = 0.1
_BUFFERED_MAX = 10_000
_BUFFERED_BYTES_MAX = 16 * 1024 * 1024
"""How much of a partition may wait for its reader; then the partition is paused until half of it has been taken."""
_SILENT_SECONDS_MAX = 60.0
"""How long errors that the client recovers from may come while nothing else does."""
_log = logging.getLogger(__name__)


class PartitionInbox:
    """What came of one partition. The poller's thread puts, the event loop takes.

    Each counter has one writer, so no lock is needed.
    """

    def __init__(self, partition: int, offset: int) -> None:
        self.partition = partition
        self.offset = offset
        self.is_paused = False
        self._loop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        self._blocks: deque[list[Any]] = deque()
        self._error: BaseException | None = None
        self._put = self._put_bytes = self._taken = self._taken_bytes = 0

    async def take(self) -> list[Any]:
        """Return the next messages (and notes of the end that was reached); raises what ended the partition."""
        while not self._blocks:
            if self._error is not None:
                raise self._error
            self._arrived.clear()
            await self._arrived.wait()
        block = self._blocks.popleft()
        self._taken += len(block)
        self._taken_bytes += sum(map(_bytes_of, block))
        return block

    def put_back(self, block: list[Any]) -> None:
        """Have a block taken again."""
        self._taken -= len(block)
        self._taken_bytes -= sum(map(_bytes_of, block))
        self._blocks.appendleft(block)

    # The methods below are called by the poller's thread.

    def put(self, block: list[Any]) -> None:
        """Hand over messages."""
        self._put += len(block)
        self._put_bytes += sum(map(_bytes_of, block))
        self._tell(lambda: self._blocks.append(block))

    def fail(self, error: BaseException) -> None:
        """End the partition with an error."""
        self._tell(lambda: setattr(self, "_error", error))

    def fill(self) -> float:
        """Return how full it is: 1.0 is the limit."""
        messages, size = self._put - self._taken, self._put_bytes - self._taken_bytes
        return max(messages / _BUFFERED_MAX, size / _BUFFERED_BYTES_MAX)

    def _tell(self, change: Callable[[], object]) -> None:
        def arrive() -> None:
            change()
            self._arrived.set()

        with suppress(RuntimeError):  # the loop has been closed, and its readers with it
            self._loop.call_soon_threadsafe(arrive)


class Poller:
    """Polls one consumer on a thread of its own. The event loop calls the public methods."""

    def __init__(self, consumer: Any, topic: str) -> None:
        self._kafka = client.load()
        self._consumer = consumer
        self._topic = topic
        self._channels: dict[int, PartitionInbox] = {}
        self.bounds: dict[int, tuple[int, int]] = {}
        """The first offset of each partition and the one after its last, as far as was heard."""
        self._commands: deque[tuple[Callable[[PartitionInbox], None], PartitionInbox]] = deque()
        self._is_closed = False
        self._failure: BaseException | None = None
        self._silent_since: float | None = None
        self._passing = {getattr(self._kafka.KafkaError, name) for name in client.PASSING}
        self._thread = threading.Thread(target=self._run, name="keygroups kafka poll", daemon=True)
        self._thread.start()

    def assign(self, channel: PartitionInbox) -> None:
        """Fetch a partition from an offset on."""
        self._commands.append((self._assign, channel))
        if self._failure is not None:  # the thread, which sets it before it looks for commands, may not look again
            channel.fail(self._failure)

    def unassign(self, channel: PartitionInbox) -> None:
        """Fetch a partition no more."""
        self._commands.append((self._unassign, channel))

    async def close(self) -> None:
        """End the thread, and wait for it; a poll takes a moment."""
        self._is_closed = True
        while self._thread.is_alive():  # noqa: ASYNC110 - joining would block the loop
            await asyncio.sleep(_POLL_SECONDS / 10)

    # The methods below run on the thread.

    def _run(self) -> None:
        try:
            while not self._is_closed:
                while self._commands:
                    command, channel = self._commands.popleft()
                    command(channel)
                self._deliver(self._consumer.consume(_MESSAGES_AT_ONCE, _POLL_SECONDS))
                self._pause_and_resume()
                self._note_bounds()
        except Exception as error:  # noqa: BLE001 - the readers raise it
            self._fail_all(KafkaRefused(self._topic, str(error)))

    def _deliver(self, messages: list[Any]) -> None:
        blocks = defaultdict(list)
        for message in messages:
            error = message.error()
            if error is None or error.code() == self._kafka.KafkaError._PARTITION_EOF:
                self._silent_since = None
                blocks[message.partition()].append(message)
            else:
                self._judge(message, error)
        for partition, block in blocks.items():
            if channel := self._channels.get(partition):
                channel.offset = block[-1].offset()
                channel.put(block)

    def _judge(self, message: Any, error: Any) -> None:
        codes = self._kafka.KafkaError
        channel = self._channels.get(message.partition())
        if error.code() in {codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE} and channel is not None:
            channel.fail(OffsetUnavailable(self._topic, channel.partition, channel.offset))
        elif error.fatal() or error.code() not in self._passing or not self._may_recover():
            refused = KafkaRefused(self._topic, error.str(), client.is_passing(error))
            for one in self._channels.values() if channel is None else (channel,):
                one.fail(refused)  # the thread lives on, because the source may be read again
        else:
            _log.warning("topic %s: %s", self._topic, error.str())

    def _may_recover(self) -> bool:
        """Return whether to wait on: after a minute without anything but errors, only if all partitions answer."""
        now = time.monotonic()
        if self._silent_since is None:
            self._silent_since = now
        if now - self._silent_since < _SILENT_SECONDS_MAX:
            return True
        self._silent_since = None
        try:  # a topic may have nothing new while its brokers are restarted one by one
            for partition in self._channels:
                wanted = self._kafka.TopicPartition(self._topic, partition)
                self._consumer.get_watermark_offsets(wanted, timeout=client.REQUEST_SECONDS_MAX)
        except self._kafka.KafkaException:
            return False
        return True

    def _fail_all(self, error: BaseException) -> None:
        self._failure = error
        while self._commands:  # a reader that waits for its partition hears of it, too
            self._commands.popleft()[1].fail(error)
        for channel in self._channels.values():
            channel.fail(error)

    def _pause_and_resume(self) -> None:
        for channel in self._channels.values():
            fill, partition = channel.fill(), [self._kafka.TopicPartition(self._topic, channel.partition)]
            if fill >= 1 and not channel.is_paused:
                self._consumer.pause(partition)
                channel.is_paused = True
            elif fill < 0.5 and channel.is_paused:
                self._consumer.resume(partition)
                channel.is_paused = False

    def _note_bounds(self) -> None:
        """Note what the brokers have sent beside the newest records; no broker is asked."""
        for partition in self._channels:
            low, high = self._consumer.get_watermark_offsets(
                self._kafka.TopicPartition(self._topic, partition), cached=True
            )
            if high >= 0:  # otherwise nothing has come yet
                self.bounds[partition] = max(low, 0), high

    def _assign(self, channel: PartitionInbox) -> None:
        self._channels[channel.partition] = channel
        start = self._kafka.TopicPartition(self._topic, channel.partition, channel.offset)
        self._consumer.incremental_assign([start])

    def _unassign(self, channel: PartitionInbox) -> None:
        if self._channels.get(channel.partition) is channel:
            del self._channels[channel.partition]
            self._consumer.incremental_unassign([self._kafka.TopicPartition(self._topic, channel.partition)])


def _bytes_of(message: Any) -> int:
    return 0 if message.error() is not None else len(message.value() or b"") + len(message.key() or b"")
