"""A topic as a source: offsets are positions."""

from __future__ import annotations

import asyncio
import pickle
import sys
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from async_op import Job, Step, letter_value
from async_op.connectors import (
    ConnectorNotInstalled,
    KafkaRefused,
    KafkaSource,
    MalformedMessage,
    OffsetUnavailable,
    Reached,
    TopicReplaced,
    Undecodable,
)
from async_op.connectors.kafka import client
from async_op.connectors.kafka import source as kafka_source
from keygroups import ConfigError
from tests.async_op.connectors.kafka.brokers import produce
from tests.async_op.connectors.kit import cuts_of, everything_of, first_items, items_of, listed, next_items
from tests.async_op.job.kit import Epochs, new_job, running
from tests.async_op.kit import eventually


@asynccontextmanager
async def opened(cluster: str, topic: str, **options):
    source = KafkaSource(topic, {"bootstrap.servers": cluster}, **options)
    await source.open()
    try:
        yield source
    finally:
        await source.close()


class EndOfPartition:
    """The note that a client gives at the end of a partition."""

    def __init__(self, offset: int) -> None:
        self.at = offset

    def offset(self) -> int:
        return self.at

    def error(self) -> str:
        return "the end of the partition"


def numbered(first: int, last: int, partition: int = 0) -> list[dict]:
    return [
        {"key": b"k", "value": b"%d" % n, "partition": partition, "timestamp": 1000 + n} for n in range(first, last)
    ]


async def test_a_bounded_source_ends_where_the_partitions_end(cluster: str, topic: str) -> None:
    produce(cluster, topic, [*numbered(0, 50), *numbered(0, 3, partition=2)])
    async with opened(cluster, topic, bounded=True) as source:
        assert list(await source.partitions()) == [0, 1, 2, 3]
        items = await items_of(source, 0)
        assert [(value["value"], timestamp, offset) for value, timestamp, offset in items] == [
            (b"%d" % n, 1000 + n, n + 1) for n in range(50)
        ]
        assert items[0][0] == {"key": b"k", "value": b"0", "headers": []}
        assert await items_of(source, 1) == []
        assert len(await items_of(source, 2)) == 3


async def test_a_record_without_a_value_is_an_element_like_any_other(cluster: str, topic: str, tmp_path: Path) -> None:
    tombstones = [{"key": key, "value": None, "partition": 0} for key in (b"k", None, b"\xff")]
    produce(cluster, topic, [*numbered(0, 1), *tombstones])

    async def number_of(record: Any) -> int:
        return int(record["value"])

    async def run(snapshots: str) -> tuple[list[Any], list[Any]]:
        outputs: list[Any] = []
        letters: list[Any] = []
        source = KafkaSource(topic, {"bootstrap.servers": cluster}, bounded=True)
        step = Step(number_of, on_error="dead_letter")
        to_letters = {"dead_letters": lambda values, _: letters.extend(values)}
        options = {"snapshots": tmp_path / snapshots, "job_id": "job"} | to_letters
        await Job(source, step, lambda values, _: outputs.extend(values), **options).run()
        return outputs, list(map(letter_value, letters))

    assert await run("a") == ([0], [{"key": one["key"], "value": None, "headers": []} for one in tombstones])
    produce(cluster, topic, numbered(1, 2))  # the newest record that was read is a tombstone
    assert await run("a") == ([1], [])


async def test_reading_continues_from_an_offset(cluster: str, topic: str) -> None:
    produce(cluster, topic, numbered(0, 20))
    async with opened(cluster, topic, bounded=True) as source:
        items = await items_of(source, 0)
        for position in (0, 1, 19, 20):
            assert await items_of(source, 0, position) == items[position:]


async def test_partitions_are_read_side_by_side(cluster: str, topic: str) -> None:
    produce(cluster, topic, [record for n in range(4) for record in numbered(0, 500, partition=n)])
    async with opened(cluster, topic, bounded=True) as source:
        found = await asyncio.gather(*(items_of(source, partition) for partition in await source.partitions()))
    assert [len(items) for items in found] == [500] * 4


async def test_two_jobs_with_one_source_read_all_of_it(cluster: str, topic: str) -> None:
    produce(cluster, topic, numbered(0, 50))
    source, sinks = KafkaSource(topic, {"bootstrap.servers": cluster, "log_level": 0}), (Epochs(), Epochs())
    jobs = [new_job(source, value_of, sink, job_id=name) for name, sink in zip("ab", sinks, strict=True)]
    async with running(jobs[0]), running(jobs[1]):
        for sink in sinks:
            await sink.have(50)
        produce(cluster, topic, numbered(50, 60))
        for sink in sinks:
            await sink.have(60)
    for sink in sinks:
        assert sorted(map(int, sink.values)) == [*range(60)]


async def value_of(record: dict) -> bytes:
    return record["value"]


async def test_what_comes_later_is_read_too(cluster: str, topic: str) -> None:
    produce(cluster, topic, numbered(0, 2))
    async with opened(cluster, topic) as source, aclosing(source.read(0, None)) as blocks:
        found = []
        while len(found) < 2:
            found += await next_items(blocks)
        produce(cluster, topic, numbered(2, 3))
        assert [value["value"] for value, _, _ in await next_items(blocks)] == [b"2"]


async def test_the_lag_is_what_the_brokers_have_beyond_a_position(cluster: str, topic: str) -> None:
    produce(cluster, topic, numbered(0, 50))
    async with opened(cluster, topic) as source:
        await source.partitions()
        assert source.lag(0, None) is None  # nothing was heard yet
        async with aclosing(source.read(0, None)) as blocks:
            await next_items(blocks)
            await eventually(lambda: source.lag(0, None) is not None)
        assert [source.lag(0, position) for position in (None, 10, 50)] == [50, 40, 0]
        assert source.lag(1, None) is None


async def test_the_beginning_may_be_the_end(cluster: str, topic: str) -> None:
    produce(cluster, topic, numbered(0, 5))
    async with opened(cluster, topic, beginning="latest", bounded=True) as source:
        await source.partitions()
        assert [block async for block in source.read(0, None)] == [Reached(5)]
        assert len(await items_of(source, 0, 3)) == 2


async def test_nothing_that_comes_after_the_first_look_is_skipped(cluster: str, topic: str) -> None:
    produce(cluster, topic, [*numbered(0, 5), *numbered(0, 5, partition=3)])
    async with opened(cluster, topic, beginning="latest") as source:
        source._list = lambda: [0, 1]
        await source.partitions()
        produce(cluster, topic, numbered(5, 7))
        source._list = lambda: [0, 1, 3]
        await source.partitions()
        assert [value["value"] for value, _, _ in await first_items(source, 0, 2)] == [b"5", b"6"]
        assert len(await first_items(source, 3, 5)) == 5


async def test_nothing_that_came_while_nobody_read_is_skipped(cluster: str, topic: str) -> None:
    produce(cluster, topic, [*numbered(0, 7), *numbered(0, 4, partition=3)])
    async with opened(cluster, topic, beginning="latest", bounded=True) as source:
        await source.partitions()
        assert len(await items_of(source, 0, 5)) == 2
        assert len(await items_of(source, 3)) == 4


async def test_the_first_positions_are_known_before_anything_is_waited_for(cluster: str, topic: str) -> None:
    produce(cluster, topic, numbered(0, 5))
    async with opened(cluster, topic, beginning="latest") as source:
        await source.partitions()
        source._bounds = None
        for partition, end in enumerate((5, 0, 0, 0)):
            async with aclosing(source.read(partition, None)) as blocks:
                assert await anext(blocks) == Reached(end)


async def test_marks_of_transactions_are_passed(cluster: str, topic: str) -> None:
    produce(cluster, topic, numbered(0, 2))
    async with opened(cluster, topic) as source, aclosing(source.read(0, None)) as blocks:
        while (await next_items(blocks))[-1][2] < 2:
            pass
        assert (await anext(blocks)).position == 2
        source._poller._channels[0].put([EndOfPartition(2), EndOfPartition(4)])
        assert await anext(blocks) == Reached(4)


@pytest.mark.thorough
async def test_a_slow_reader_pauses_its_partition(cluster: str, topic: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_source, "_BUFFERED_MAX", 20)
    monkeypatch.setattr(kafka_source, "_MESSAGES_AT_ONCE", 10)
    produce(cluster, topic, [*numbered(0, 400), *numbered(0, 5, partition=1)])
    async with opened(cluster, topic, bounded=True) as source, aclosing(source.read(0, None)) as blocks:
        found = await next_items(blocks)
        channel = source._poller._channels[0]
        while not channel.is_paused:
            await asyncio.sleep(0.001)
        assert channel._put - channel._taken < 100
        assert len(await items_of(source, 1)) == 5
        async for block in blocks:
            found += listed(block)
    assert [value["value"] for value, _, _ in found] == [b"%d" % n for n in range(400)]


async def test_a_recreated_topic_is_detected(cluster: str, topic: str) -> None:
    produce(cluster, topic, numbered(0, 5))
    async with opened(cluster, topic) as source:
        with pytest.raises(OffsetUnavailable, match="created again") as raised:
            await first_items(source, 0, 1, position=6)
    error = pickle.loads(pickle.dumps(raised.value))
    assert (error.topic, error.partition, error.offset, error.low, error.high) == (topic, 0, 6, 0, 5)


async def test_records_that_are_removed_while_they_are_read_are_reported(cluster: str, topic: str) -> None:
    produce(cluster, topic, numbered(0, 5))
    async with opened(cluster, topic) as source:
        source._bounds = lambda partition: (0, 100)  # as they were a moment ago
        with pytest.raises(OffsetUnavailable):
            await first_items(source, 0, 1, position=50)


async def test_transactions_are_read_when_they_are_committed(cluster: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": cluster, "transactional.id": topic, "log_level": 0})
    producer.init_transactions(60)
    producer.begin_transaction()
    for record in numbered(0, 10):
        producer.produce(topic, **record)
    producer.commit_transaction(60)
    async with opened(cluster, topic, bounded=True) as source:
        assert len(await items_of(source, 0)) == 10


async def test_brokers_that_do_not_answer_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "REQUEST_SECONDS_MAX", 0.2)
    async with opened("127.0.0.1:1", "topic") as source:
        with pytest.raises(KafkaRefused, match="topic"):
            await source.partitions()
        with pytest.raises(KafkaRefused) as raised:
            await first_items(source, 0, 1)
    assert isinstance(pickle.loads(pickle.dumps(raised.value)), ConnectionError)


def test_settings_are_never_shown() -> None:
    config = {"bootstrap.servers": "b", "sasl.password": "secret"}
    assert repr(KafkaSource("orders", config)) == "KafkaSource('orders')"
    with pytest.raises(ConfigError) as raised:
        KafkaSource("orders", config | {"enable.auto.commit": True})
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    ("config", "options"),
    [
        ({}, {}),
        ({"bootstrap.servers": "b", "auto.offset.reset": "latest"}, {}),
        ({"bootstrap.servers": "b"}, {"beginning": 7}),
    ],
    ids=["brokers", "ours", "beginning"],
)
def test_settings_that_can_never_work_are_refused(config, options) -> None:
    with pytest.raises(ConfigError):
        KafkaSource("orders", config, **options)


async def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "confluent_kafka", None)
    with pytest.raises(ConnectorNotInstalled, match=r"keygroups\[kafka\]"):
        await KafkaSource("orders", {"bootstrap.servers": "b"}).open()


async def test_a_consumer_that_cannot_be_made_leaves_none_open(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Consumer] = []

    class Consumer:
        is_closed = False

        def __init__(self, config: object, logger: object) -> None:
            if made:
                raise MemoryError
            made.append(self)

        def close(self) -> None:
            self.is_closed = True

    monkeypatch.setattr("confluent_kafka.Consumer", Consumer)
    source = KafkaSource("orders", {"bootstrap.servers": "b"})
    with pytest.raises(MemoryError):
        await source.open()
    assert [consumer.is_closed for consumer in made] == [True]


@pytest.mark.thorough
async def test_a_recreated_topic_that_is_longer_is_detected(cluster: str, topic: str) -> None:
    produce(cluster, topic, numbered(0, 20))
    produce(cluster, f"{topic}-anew", numbered(100, 150))
    async with opened(cluster, topic, bounded=True) as source:
        blocks = [block async for block in source.read(0, None)]
    [*_, reached] = [block for block in blocks if isinstance(block, Reached)]
    assert reached.position == 20
    assert reached.content is not None
    async with opened(cluster, topic, bounded=True) as source:
        cuts = await cuts_of(source, 0)
    assert len(cuts) >= 20
    for cut in (
        cuts[0],
        cuts[1],
        cuts[len(cuts) // 2],
        cuts[-1],
    ):  # each needs a consumer, which takes a second to start
        async with opened(cluster, f"{topic}-anew", bounded=True) as source:
            await source.restore({0: cut})
            with pytest.raises(TopicReplaced):
                await items_of(source, 0, cut.position)
    async with opened(cluster, f"{topic}-anew", bounded=True) as source:
        await source.restore({0: reached})
        with pytest.raises(TopicReplaced, match=r"partition 0.*another name.*new job") as raised:
            await items_of(source, 0, 20)
    assert pickle.loads(pickle.dumps(raised.value)).position == 20
    produce(cluster, topic, numbered(20, 23))
    async with opened(cluster, topic, bounded=True) as source:
        await source.restore({0: reached})
        assert [value["value"] for value, _, _ in await items_of(source, 0, 20)] == [b"20", b"21", b"22"]
        assert await items_of(source, 0, 23) == []


class OddHeaders:
    """A record that the client cannot decode."""

    def __init__(self, message) -> None:
        self._message = message

    def __getattr__(self, name: str):
        return getattr(self._message, name)

    def headers(self):
        return b"\xff".decode()


async def test_a_record_that_cannot_be_decoded_is_named(
    cluster: str, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    produce(cluster, topic, numbered(0, 3))
    put = kafka_source.PartitionInbox.put
    odd = lambda self, block: put(self, [OddHeaders(one) if one.offset() == 1 else one for one in block])  # noqa: E731
    monkeypatch.setattr(kafka_source.PartitionInbox, "put", odd)
    async with opened(cluster, topic, bounded=True) as source:
        _, bad, _ = await everything_of(source, 0)
    assert isinstance(bad, Undecodable)
    assert (bad.raw, bad.position) == ({"key": b"k", "value": b"1"}, 2)
    assert isinstance(bad.error, MalformedMessage)
    error = pickle.loads(pickle.dumps(bad.error))
    assert (error.topic, error.partition, error.offset) == (topic, 0, 1)


async def test_a_source_whose_brokers_were_away_is_read_again(cluster: str, topic: str) -> None:
    produce(cluster, topic, numbered(0, 5))

    class Gone:
        def __init__(self, consumer) -> None:
            self._consumer = consumer
            self.failures = 1

        def __getattr__(self, name: str):
            return getattr(self._consumer, name)

        def get_watermark_offsets(self, *arguments, **options):
            if self.failures:
                self.failures -= 1
                raise source._kafka.KafkaException(source._kafka.KafkaError(source._kafka.KafkaError._TRANSPORT))
            return self._consumer.get_watermark_offsets(*arguments, **options)

    async with opened(cluster, topic, bounded=True) as source:
        source._asked = Gone(source._asked)
        with pytest.raises(KafkaRefused) as raised:
            await items_of(source, 0)
        assert raised.value.is_transient
        assert len(await items_of(source, 0)) == 5
