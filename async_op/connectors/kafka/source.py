"""The records of a Kafka topic."""

from __future__ import annotations

import asyncio
import copy
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from hashlib import blake2b
from typing import Any

from async_op.connectors.connector_threads import OwnThreads
from async_op.connectors.errors import KafkaRefused, MalformedMessage, OffsetUnavailable, TopicReplaced
from async_op.connectors.kafka import client
from async_op.connectors.retrying import RETRY
from async_op.connectors.source import PartitionId, Reached, Read, Source, Undecodable
from async_op.dead_letters import OnError, check_on_error
from async_op.retry import RetryPolicy
from keygroups.arguments import check_choice, check_flag, check_instance, check_integer

_log = logging.getLogger(__name__)
_OURS = {"auto.offset.reset": "error", "enable.auto.commit": False, "enable.partition.eof": True}

_MESSAGES_AT_ONCE = 500
_POLL_SECONDS = 0.1
_BUFFERED_MAX = 10_000
_BUFFERED_BYTES_MAX = 16 * 1024 * 1024
"""How much of a partition may wait for its reader; then the partition is paused until half of it has been taken."""
_SILENT_SECONDS_MAX = 60.0
"""How long errors that the client recovers from may come while nothing else does."""


class KafkaSource(Source[dict[str, Any]]):
    """The records of a topic, as dicts of ``key``, ``value`` (both bytes or None) and ``headers`` (name and bytes).

    It needs the extra ``kafka``. Partitions are the topic's, positions are offsets, and timestamps come from
    the records. Positions are in the job's snapshots only: nothing is committed to a consumer group. Records of
    transactions that were not committed are not read.

    Parameters
    ----------
    topic : str
        The topic.
    config : mapping
        Settings of librdkafka: ``bootstrap.servers``, and what security needs. They are passed on, and never shown.
    beginning : {"earliest", "latest"}
        Where the partitions begin that a new job finds at its start. Those that are found later begin at the earliest
        record. A position that the topic does not have is an error in any case.
    bounded : bool
        Whether to end where the partitions end when they are first read.
    on_error : {"fail", "skip", "dead_letter"}
        What to do about a record that cannot be decoded, named by topic, partition and offset. Keys and values are not
        decoded, so that is one whose headers have names that are no UTF-8, or a record without a usable timestamp.
    retry : RetryPolicy or None
        How often the brokers are asked again after a transient error; by default for about 75 seconds.

    Raises
    ------
    ConfigError
        An argument is invalid, or a setting belongs to the connector.
    ConnectorNotInstalled
        confluent-kafka is missing.

    Notes
    -----
    Reading raises `OffsetUnavailable` if the topic does not have a position (it was deleted by retention, or the topic
    was recreated), and `KafkaRefused` if the brokers refuse or do not answer. Beside each position stands a digest of
    the record before it. A restarted job reads that record again and raises `TopicReplaced` if it is another one: the
    topic was recreated and is longer than the position. Where retention has removed the record, this cannot be noticed.

    Examples
    --------
    >>> source = KafkaSource("orders", {"bootstrap.servers": "broker:9092"})
    >>> source
    KafkaSource('orders')
    """

    def __init__(
        self,
        topic: str,
        config: Mapping[str, Any],
        *,
        beginning: str = "earliest",
        bounded: bool = False,
        on_error: OnError = "fail",
        retry: RetryPolicy | None = RETRY,
    ) -> None:
        check_choice("beginning", beginning, ("earliest", "latest"))
        check_on_error(on_error)
        check_instance("retry", retry, (RetryPolicy, type(None)), reason="pass a RetryPolicy, or None")
        self.on_error: OnError = on_error
        self.retry = retry
        check_flag("bounded", bounded)
        self.bounded = bounded
        self._topic = client.check_topic(topic)
        self.origin: str = f"topic {topic}"
        # The client wants a group, though partitions are assigned by the job and nothing is committed.
        self._config = {"group.id": "keygroups"} | client.for_consumer(client.check_config(config, _OURS))
        self._begins_early = beginning == "earliest"
        self._forget()

    def _forget(self) -> None:
        """Be as before the first run."""
        self._contents: dict[PartitionId, list[Any]] = {}
        self._poller: Poller | None = None
        self._ends: dict[PartitionId, int] | None = None
        self._goes_on = False

    def __repr__(self) -> str:
        """Show the topic, and no setting."""
        return f"KafkaSource({self._topic!r})"

    async def open(self) -> None:
        """Make the consumers, which connect when they are first used."""
        self._kafka = client.load()
        self._threads = OwnThreads("keygroups kafka", 1)
        with ExitStack() as if_it_fails:
            # One for questions: those to a consumer that another thread polls wait for that thread.
            self._asked = self._kafka.Consumer(self._config, logger=_log)
            if_it_fails.callback(self._asked.close)
            self._polled = self._kafka.Consumer(self._config, logger=_log)
            if_it_fails.callback(self._polled.close)
            self._poller = Poller(self._polled, self._topic)
            if_it_fails.pop_all()
        self._ends, self._goes_on = None, False
        self._contents.clear()

    async def restore(self, known: Mapping[PartitionId, Reached]) -> None:
        """Take what identifies the last record of each partition."""
        self._contents = {name: one.content for name, one in known.items() if one.content is not None}

    async def partitions(self) -> Iterable[PartitionId]:
        """Return the numbers of the topic's partitions."""
        return await self._threads.run(self._look)

    def read(self, partition: PartitionId, position: Any) -> AsyncIterator[list[Read[dict[str, Any]]] | Reached]:
        """Return an iterator of lists of records, from an offset on."""
        if position is not None:
            self._goes_on = True
            return self._read(int(partition), check_integer("position", position, 0, reason="it is an offset"))
        # A partition gets a higher number than those before it, so it is read after them: if they have positions and
        # it has none, it was made between reads.
        start = None if self._goes_on else (self._ends or {}).get(partition)
        return self._read(int(partition), start)

    def full_name(self, partition: PartitionId) -> str:
        """Return the topic and the number."""
        return f"{self._topic}/{partition}"

    def lag(self, partition: PartitionId, position: Any) -> int | None:
        """Return how many offsets lie behind a position, by what the brokers have sent last."""
        bounds = None if self._poller is None else self._poller.bounds.get(int(partition))
        return None if bounds is None else max(0, bounds[1] - (bounds[0] if position is None else position))

    def for_another_run(self) -> KafkaSource:
        """Return a copy, which has the options only."""
        source = copy.copy(self)
        source._forget()
        return source

    async def close(self) -> None:
        """End the threads, and close the consumers."""
        if self._poller is not None:
            poller, self._poller = self._poller, None
            await poller.close()
            for consumer in (self._polled, self._asked):
                await self._threads.run(consumer.close)
            await self._threads.close()

    async def _read(self, partition: int, position: int | None) -> AsyncIterator[list[Read[dict[str, Any]]] | Reached]:
        assert self._poller is not None, "a source is opened before it is read"
        poller = self._poller
        if position is not None:
            yield Reached(position)  # before anything is waited for: a snapshot has all first positions, or none
        low, high = await self._threads.run(lambda: self._bounds(partition))
        reached = position = low if position is None else position
        if not low <= position <= high:
            raise OffsetUnavailable(self._topic, partition, position, low, high)
        end = high if self.bounded else None
        known = self._contents.get(partition)
        if known is not None and not low <= known[0] < position:
            known = None  # retention has removed the record
        channel = PartitionInbox(partition, position if known is None else known[0])
        poller.assign(channel)
        try:
            if known is not None:
                await self._check(channel, known, position)
            while end is None or position < end:
                block = await channel.take()
                items, position = self._items(block, position, end)
                if items:
                    if known is None:  # a snapshot may be cut in the middle of the first block
                        known = _content_of(_record_of(items[0], block))
                        yield Reached(reached, known)
                    yield items
                    reached = _end_of(items[-1])
                    self._contents[partition] = _content_of(_record_of(items[-1], block))
                    yield Reached(reached, self._contents[partition])
                if position > reached:  # or a restart looks for marks of transactions that retention has removed
                    yield Reached(position)
                    reached = position
        finally:
            poller.unassign(channel)

    async def _check(self, channel: PartitionInbox, known: list[Any], position: int) -> None:
        """Compare the last record that was read; what comes after it stays in the channel."""
        while True:
            block = await channel.take()
            records = [message for message in block if message.error() is None]
            if records or any(message.offset() >= position for message in block):
                break
        if records and records[0].offset() == known[0] and _content_of(records[0]) != known:
            raise TopicReplaced(self._topic, channel.partition, position)
        channel.put_back(block)

    def _items(self, block: list[Any], position: int, end: int | None) -> tuple[list[Read[dict[str, Any]]], int]:
        items: list[Read[dict[str, Any]]] = []
        for message in block:
            offset = message.offset()
            if end is not None and offset >= end:
                return items, offset
            if message.error() is not None:  # the end, for now; what lies before it may be marks of transactions
                position = max(position, offset)
                continue
            if offset < position:
                continue  # it was read before the restart
            position = offset + 1
            items.append(self._item(message, position))
        return items, position

    def _item(self, message: Any, position: int) -> Read[dict[str, Any]]:
        kind, timestamp = message.timestamp()
        known = None if kind == self._kafka.TIMESTAMP_NOT_AVAILABLE else timestamp
        value = {"key": message.key(), "value": message.value()}
        try:
            return value | {"headers": message.headers() or []}, known, position
        except ValueError as error:
            reason = f"a header has a name that is no UTF-8: {error}"
            return Undecodable(
                value, position, MalformedMessage(self._topic, message.partition(), position - 1, reason)
            )

    def _look(self) -> list[PartitionId]:
        found = self._list()
        if self._ends is None:
            self._ends = {} if self._begins_early else {one: self._bounds(one)[1] for one in found}
        return found

    def _list(self) -> list[PartitionId]:
        try:
            found = self._asked.list_topics(self._topic, timeout=client.REQUEST_SECONDS_MAX).topics[self._topic]
        except self._kafka.KafkaException as error:
            raise KafkaRefused(self._topic, error.args[0].str(), client.is_passing(error.args[0])) from error
        if found.error is not None:
            raise KafkaRefused(self._topic, found.error.str(), client.is_passing(found.error))
        return sorted(found.partitions)

    def _bounds(self, partition: PartitionId) -> tuple[int, int]:
        wanted = self._kafka.TopicPartition(self._topic, partition)
        try:
            low, high = self._asked.get_watermark_offsets(wanted, timeout=client.REQUEST_SECONDS_MAX)
        except self._kafka.KafkaException as error:
            raise KafkaRefused(self._topic, error.args[0].str(), client.is_passing(error.args[0])) from error
        return low, high


def _record_of(item: Read[Any], block: list[Any]) -> Any:
    offset = _end_of(item) - 1
    return next(one for one in block if one.offset() == offset and one.error() is None)


def _content_of(message: Any) -> list[Any]:
    """Return what identifies a record: its offset, its time and a digest."""
    packed = [part or b"" for part in (message.key(), message.value())]
    digest = blake2b(len(packed[0]).to_bytes(8, "big") + packed[0] + packed[1], digest_size=8).digest()
    return [message.offset(), message.timestamp()[1], digest]


def _end_of(item: Read[Any]) -> Any:
    return item.position if isinstance(item, Undecodable) else item[2]


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
