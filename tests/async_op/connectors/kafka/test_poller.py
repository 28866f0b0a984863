"""What a reader hears when the consumer fails, or seems to."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from async_op.connectors import KafkaRefused
from async_op.connectors.kafka import source
from async_op.connectors.kafka.source import PartitionInbox, Poller


class Note:
    """An error, as a consumer hands it over."""

    def __init__(self, code: int) -> None:
        self.code = code

    def error(self) -> KafkaError:
        return KafkaError(self.code)

    def partition(self) -> int:
        return -1


class Notes:
    """A consumer that gives one error after the other."""

    def __init__(self, *codes: int, answers: bool = True) -> None:
        self.codes = list(codes)
        self.answers = answers
        self.asked = 0

    def incremental_assign(self, partitions: Any) -> None:
        return None

    def consume(self, count: int, seconds: float) -> list[Note]:
        return [Note(self.codes.pop(0))] if self.codes else []

    def get_watermark_offsets(self, partition: Any, timeout: float = 0.0, *, cached: bool = False) -> tuple[int, int]:
        if cached:
            return -1001, -1001
        self.asked += 1
        if not self.answers:
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT))
        return 0, 0


class Broken(Notes):
    def consume(self, count: int, seconds: float) -> list[Note]:
        raise RuntimeError("the client is broken")


async def test_a_partition_that_is_assigned_after_the_end_of_the_thread_fails() -> None:
    polled = Poller(Broken(), "topic")
    polled._thread.join()
    polled.assign(channel := PartitionInbox(0, 0))
    with pytest.raises(KafkaRefused, match="broken"):
        await asyncio.wait_for(channel.take(), 60)


async def test_a_partition_that_waits_for_its_turn_fails_too() -> None:
    polled = Poller(Notes(), "topic")
    await polled.close()
    polled.assign(channel := PartitionInbox(0, 0))
    polled._fail_all(KafkaRefused("topic", "the end"))
    with pytest.raises(KafkaRefused, match="the end"):
        await asyncio.wait_for(channel.take(), 60)


@pytest.mark.parametrize("name", ["LEADER_NOT_AVAILABLE", "_TRANSPORT", "_ALL_BROKERS_DOWN"])
@pytest.mark.parametrize("seconds", [60.0, 0.0], ids=["at once", "after a minute"])
async def test_errors_that_pass_end_nothing(name: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_SILENT_SECONDS_MAX", seconds)
    polled = Poller(consumer := Notes(), "topic")
    polled.assign(PartitionInbox(0, 0))
    while not polled._channels:
        await asyncio.sleep(0.001)
    consumer.codes = [getattr(KafkaError, name)] * 3
    while consumer.codes:
        await asyncio.sleep(0.001)
    await polled.close()
    assert polled._failure is None
    assert consumer.asked == (0 if seconds else 3)


@pytest.mark.parametrize("name", ["_TRANSPORT", "TOPIC_AUTHORIZATION_FAILED"])
async def test_errors_that_do_not_pass_end_the_partitions(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_SILENT_SECONDS_MAX", 0.0)
    polled = Poller(consumer := Notes(answers=False), "topic")
    polled.assign(channel := PartitionInbox(0, 0))
    while not polled._channels:
        await asyncio.sleep(0.001)
    consumer.codes = [getattr(KafkaError, name)]
    with pytest.raises(KafkaRefused):
        await asyncio.wait_for(channel.take(), 60)
    await polled.close()
