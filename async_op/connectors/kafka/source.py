"""The records of a Kafka topic."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import ExitStack
from hashlib import blake2b
from typing import Any

from async_op.connectors.connector_threads import OwnThreads
from async_op.connectors.errors import KafkaRefused, MalformedMessage, OffsetUnavailable, TopicReplaced
from async_op.connectors.kafka import client
from async_op.connectors.kafka.poller import PartitionInbox, Poller
from async_op.connectors.retrying import RETRY
from async_op.connectors.source import PartitionId, Reached, Read, Source, Undecodable
from async_op.dead_letters import OnError
from async_op.retry import RetryPolicy
from keygroups.arguments import check_choice, check_instance, check_integer

_log = logging.getLogger(__name__)
_OURS = {"auto.offset.reset": "error", "enable.auto.commit": False, "enable.partition.eof": True}


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
        check_choice("on_error", on_error, ("fail", "skip", "dead_letter"))
        check_instance("retry", retry, (RetryPolicy, type(None)), reason="pass a RetryPolicy, or None")
        self.on_error: OnError = on_error
        self.retry = retry
        self._contents: dict[PartitionId, list[Any]] = {}
        self.bounded = bounded
        self._topic = topic
        self.origin: str = f"topic {topic}"
        # The client wants a group, though partitions are assigned by the job and nothing is committed.
        self._config = {"group.id": "keygroups"} | client.for_consumer(client.check_config(config, _OURS))
        self._begins_early = beginning == "earliest"
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
            return self._read(int(partition), check_integer("position", position, 0, reason="an offset"))
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
