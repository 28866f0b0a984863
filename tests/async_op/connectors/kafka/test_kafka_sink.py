"""A topic as a sink: each epoch is one transaction, once."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import pickle
import subprocess
import sys
import tempfile
import time
from typing import Any

import confluent_kafka
import pyarrow as pa
import pytest
from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient

from async_op import FixedDelayRetry, Job, LetterWithoutValue, Step, letter_value
from async_op.connectors import (
    EpochsBehind,
    KafkaRefused,
    KafkaSink,
    SinkFenced,
    TargetAhead,
    TargetBehind,
    TargetReplaced,
    TargetTaken,
    UnwritableValue,
    epoch_gaps,
)
from async_op.connectors.kafka import client
from keygroups import ConfigError
from tests.async_op.connectors.kafka import brokers
from tests.async_op.connectors.kafka.brokers import make_topic, read_all
from tests.async_op.job.kit import AT_ITS_END, Epochs, Log, new_job, running, same
from tests.quick import first_is_quick


def sink_into(server: str, topic: str, name: str | None = None) -> KafkaSink:
    return KafkaSink(topic, name or f"job-of-{topic}", {"bootstrap.servers": server, "log_level": 0})


async def test_epochs_are_written_in_order(server: str, served_topic: str) -> None:
    sink = sink_into(server, served_topic)
    await sink.open()
    await sink.write([b"1", "é", {"value": b"3", "key": "k", "headers": [("h", b"x")]}], 1)
    await sink.write([{"value": None, "key": b"k"}], 9)
    await sink.close()

    assert read_all(server, served_topic) == [b"1", "é".encode(), b"3", None]


async def test_an_epoch_that_comes_again_is_there_once(server: str, served_topic: str) -> None:
    for _ in range(2):
        sink = sink_into(server, served_topic)
        for epoch in (1, 1, 2, 1, 5):
            await sink.write([b"%d" % epoch], epoch)
        await sink.close()

    assert read_all(server, served_topic) == [b"1", b"2", b"5"]


async def test_a_job_that_begins_anew_is_told(
    server: str, served_topic: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(epoch_gaps, "_REPEATS_MAX", 2)
    sink = sink_into(server, served_topic)
    await sink.write([b"100"], 100)
    with caplog.at_level(logging.WARNING, epoch_gaps.__name__):
        for epoch in (1, 2, 100, 1, 2):
            await sink.write([b"%d" % epoch], epoch)
    assert [record.args[0] for record in caplog.records if record.name == epoch_gaps.__name__] == [1, 2, 1, 2]
    with pytest.raises(EpochsBehind, match="another name"):
        await sink.write([b"3"], 3)
    await sink.close()

    assert read_all(server, served_topic) == [b"100"]


async def test_a_consumer_that_cannot_be_created_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    sink = KafkaSink("topic", "job", {"bootstrap.servers": "127.0.0.1:1", "log_level": 0})
    wrong = {"group.id": "g", "security.protocol": "no such"}
    monkeypatch.setattr(sink, "_consumer_config", lambda: wrong)
    with pytest.raises(KafkaRefused, match=r"security\.protocol"):
        await sink.open()
    await sink.close()


async def test_two_jobs_may_write_into_one_topic(server: str, served_topic: str) -> None:
    for name in (f"{served_topic}-a", f"{served_topic}-b"):
        sink = sink_into(server, served_topic, name)
        await sink.write([b"1"], 1)
        await sink.close()

    assert read_all(server, served_topic) == [b"1", b"1"]


async def test_a_newer_sink_of_the_job_fences_the_older_one(server: str, served_topic: str) -> None:
    older, newer = sink_into(server, served_topic), sink_into(server, served_topic)
    await older.write([b"1"], 1)
    await newer.write([b"2"], 2)
    with pytest.raises(SinkFenced, match="taken over") as raised:
        await older.write([b"2"], 2)
    await older.close()
    await newer.close()

    assert pickle.loads(pickle.dumps(raised.value)).name == f"job-of-{served_topic}"
    assert read_all(server, served_topic) == [b"1", b"2"]


KILLED = """
import asyncio, os, sys
from async_op.connectors import KafkaSink
server, topic, step = sys.argv[1:]
sink = KafkaSink(topic, f"job-of-{topic}", {"bootstrap.servers": server, "log_level": 0})
if step == "before the commit":
    sink._noted_before = sink._noted
    sink._noted = lambda epoch: os.kill(os.getpid(), 9) if epoch == 2 else sink._noted_before(epoch)
else:
    commit = sink._commit
    sink._commit = lambda *arguments: (commit(*arguments), os.kill(os.getpid(), 9))
asyncio.run(sink.write([b"2", b"3"], 2))
"""


@pytest.mark.parametrize("step", first_is_quick(["after the commit", "before the commit"]))
def test_a_writer_that_is_killed_leaves_all_or_nothing(server: str, served_topic: str, step: str) -> None:
    import asyncio

    async def write(epoch: int, *values: bytes) -> None:
        sink = sink_into(server, served_topic)
        await sink.write(list(values), epoch)
        await sink.close()

    asyncio.run(write(1, b"1"))
    ended = subprocess.run(
        [sys.executable, "-c", KILLED, server, served_topic, step], check=False, capture_output=True, text=True
    )
    assert ended.returncode == -9, ended.stderr
    asyncio.run(write(2, b"2", b"3"))

    assert read_all(server, served_topic) == [b"1", b"2", b"3"]


async def test_brokers_that_do_not_answer_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "REQUEST_SECONDS_MAX", 0.2)
    sink = sink_into("127.0.0.1:1", "topic")
    with pytest.raises(KafkaRefused, match="topic"):
        await sink.open()
    await sink.close()


@pytest.mark.parametrize(
    "value",
    [7, {"key": b"k"}, {"value": 7}, {"value": b"", "other": 1}, "\ud800", {"value": b"", "key": "\ud800"}],
    ids=["number", "no value", "value", "field", "no Unicode", "no Unicode in the key"],
)
async def test_what_is_no_record_is_named(value) -> None:
    with pytest.raises(UnwritableValue):
        await sink_into("127.0.0.1:1", "topic").write([b"1", value], 1)


@pytest.mark.parametrize(
    "headers",
    [
        3,
        "h",
        (("h", b"x"),),
        [["h", b"x"]],
        [("h", b"x", b"y")],
        [("h", 1)],
        [("h", bytearray(b"x"))],
        [(b"h", b"x")],
        [("\ud800", b"x")],
        [("h", "\ud800")],
        {1: b"x"},
        {"h": {}},
    ],
    ids=ascii,
)
async def test_headers_that_the_client_refuses_are_named(headers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "REQUEST_SECONDS_MAX", 0.2)
    with pytest.raises(UnwritableValue, match="headers"):
        await sink_into("127.0.0.1:1", "topic").write([{"value": b"1", "headers": headers}], 1)


async def test_headers_that_the_client_takes_are_written(server: str, served_topic: str) -> None:
    sink = sink_into(server, served_topic)
    taken = [None, [], {}, [("h", b"x"), ("h", "é"), ("i", None)], {"h": b"x", "i": "y", "j": None}]
    await sink.write([{"value": b"%d" % number, "headers": headers} for number, headers in enumerate(taken)], 1)
    await sink.close()

    assert read_all(server, served_topic) == [b"%d" % number for number in range(len(taken))]


def with_headers(**fields: pa.DataType) -> dict[str, pa.DataType]:
    return {"value": pa.binary(), "headers": pa.list_(pa.struct(fields))}


@pytest.mark.parametrize(
    ("columns", "complaint"),
    [
        ({"key": pa.binary()}, "no column 'value'"),
        ({"Value": pa.binary()}, "no column 'value'"),
        ({"value": pa.int64()}, "column 'value' is neither binary nor string"),
        ({"value": pa.binary(), "key": pa.int32()}, "column 'key' is neither"),
        ({"value": pa.binary(), "timestamp": pa.timestamp("us", "UTC")}, "'timestamp' is none of value, key, headers"),
        ({"value": pa.binary(), "headers": pa.string()}, "column 'headers' is neither array"),
        ({"value": pa.binary(), "headers": pa.list_(pa.string())}, "'headers'"),
        (with_headers(key=pa.string()), "'headers'"),
        (with_headers(key=pa.string(), value=pa.string(), other=pa.string()), "'headers'"),
        (with_headers(key=pa.binary(), value=pa.binary()), "'headers'"),
        (with_headers(key=pa.string(), value=pa.int8()), "'headers'"),
        ({"value": pa.binary(), "headers": pa.map_(pa.string(), pa.int8())}, "'headers'"),
        ({"value": pa.binary(), "headers": pa.map_(pa.binary(), pa.binary())}, "'headers'"),
    ],
)
def test_columns_that_are_no_record_are_named(columns: dict[str, pa.DataType], complaint: str) -> None:
    with pytest.raises(UnwritableValue, match=complaint):
        sink_into("127.0.0.1:1", "topic").prepare(pa.schema(columns))


@pytest.mark.parametrize(
    "columns",
    [
        {"value": pa.string()},
        {"value": pa.binary(), "key": pa.string()},
        with_headers(key=pa.string(), value=pa.binary()),
        with_headers(value=pa.string(), key=pa.string()),
        {"key": pa.binary(), "value": pa.string(), "headers": pa.map_(pa.string(), pa.binary())},
    ],
    ids=["value", "key", "headers", "headers in another order", "map"],
)
def test_columns_that_are_records_are_taken(columns: dict[str, pa.DataType]) -> None:
    sink_into("127.0.0.1:1", "topic").prepare(pa.schema(columns))


async def test_no_error_leaves_a_transaction_open(
    server: str, served_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    sink = sink_into(server, served_topic)

    def fail(record: object, index: int) -> None:
        raise RuntimeError("of another kind")

    with monkeypatch.context() as patched, pytest.raises(RuntimeError, match="of another kind"):
        patched.setattr(sink, "_produce", fail)
        await sink.write([b"1"], 1)
    await sink.write([b"1"], 1)
    await sink.close()

    assert read_all(server, served_topic) == [b"1"]


async def test_the_consumer_beside_the_producer_has_all_settings_of_security(
    cluster: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "REQUEST_SECONDS_MAX", 0.2)
    asked: list[str] = []

    def token(_config: str) -> tuple[str, float]:
        asked.append("a token")
        return "token", time.time() + 3600

    security = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanisms": "OAUTHBEARER",
        "oauth_cb": token,
        "enable.sasl.oauthbearer.unsecure.jwt": False,
        "socket.timeout.ms": 1000,
        "acks": "all",
    }
    sink = KafkaSink("topic", "job", {"bootstrap.servers": cluster, "log_level": 0, **security})
    config = sink._consumer_config()
    assert security.items() - config.items() == {("acks", "all")}
    with pytest.raises(KafkaRefused) as raised:
        await sink.open()
    await sink.close()
    assert len(asked) >= 2, "the producer, and the consumer"
    assert sink.is_transient(raised.value)


async def test_a_recreated_topic_is_noticed_while_the_job_runs_and_at_its_next_start(
    server: str, served_topic: str
) -> None:
    running = sink_into(server, served_topic)
    await running.write([b"1"], 1)
    admin = AdminClient({"bootstrap.servers": server})
    admin.delete_topics([served_topic])[served_topic].result(60)
    make_topic(server, served_topic)
    with pytest.raises(TargetReplaced) as raised:
        await running.write([b"2"], 2)
    await running.close()
    assert pickle.loads(pickle.dumps(raised.value)).target == served_topic

    restarted = sink_into(server, served_topic)
    restarted.was_written = True  # as the job says
    with pytest.raises(TargetReplaced, match="another name"):
        await restarted.write([b"2"], 2)
    await restarted.close()

    renamed = sink_into(server, served_topic, "another name")
    await renamed.write([b"2"], 2)
    await renamed.close()
    assert read_all(server, served_topic) == [b"2"]


async def test_the_epochs_of_another_job_are_not_taken_for_those_of_this_one(server: str, served_topic: str) -> None:
    monday, tuesday = (sink_into(server, served_topic) for _ in range(2))
    monday.lineage, tuesday.lineage = "monday's", "tuesday's"
    await monday.write([b"1"], 1)
    with pytest.raises(TargetTaken, match="name of its own"):
        await tuesday.write([b"7"], 1)
    await monday.write([b"2"], 2)  # it is not fenced either
    for sink in (monday, tuesday):
        await sink.close()
    assert read_all(server, served_topic) == [b"1", b"2"]


async def test_two_jobs_with_one_sink_lose_no_output(server: str, served_topic: str) -> None:
    sink, values = sink_into(server, served_topic), {"monday": [b"1", b"2"], "tuesday": [b"7", b"8"]}

    def job(name: str, sink: KafkaSink) -> Job:
        return new_job(values[name], same, sink, snapshots=f"memory://{served_topic}", job_id=name, **AT_ITS_END)

    ended = await asyncio.gather(*(job(name, sink).run() for name in values), return_exceptions=True)
    kinds = (TargetTaken, SinkFenced)
    refused = [name for name, error in zip(values, ended, strict=True) if isinstance(error, kinds)]
    assert ended.count(None) + len(refused) == 2
    for name in refused:
        await job(name, sink_into(server, served_topic, f"{name}-{served_topic}")).run()
    assert sorted(read_all(server, served_topic)) == [b"1", b"2", b"7", b"8"]


async def test_a_look_at_a_topic_fences_no_run(server: str, served_topic: str) -> None:
    place = f"memory://{served_topic}"
    source = Log([b"1"])
    async with running(new_job(source, same, sink_into(server, served_topic), snapshots=place)) as task:
        for value in (b"2", b"3"):
            while epoch_count(server, served_topic) < int(value) - 1:
                await asyncio.sleep(0.05)
            found = await new_job(source, same, sink_into(server, served_topic), snapshots=place).explain()
            assert not found.findings
            await source.append(0, value)
        while epoch_count(server, served_topic) < 3:
            await asyncio.sleep(0.05)
        assert not task.done()
    other = new_job(source, same, sink_into(server, served_topic), snapshots=f"{place}-else")
    (told,) = (await other.explain()).findings
    assert told.is_refusal
    assert told.advice.startswith("TargetTaken: ")


def epoch_count(server: str, topic: str) -> int:
    return len(read_all(server, topic))


async def test_a_topic_that_is_ahead_of_the_snapshots_is_told_before_the_first_epoch(
    server: str, served_topic: str
) -> None:
    first, later = (sink_into(server, served_topic) for _ in range(2))
    first.newest_known = 0
    await first.open()
    for epoch in (1, 2):
        await first.write([b"%d" % epoch], epoch)
        first.newest_known = epoch  # as the job says
    later.newest_known = 1
    with pytest.raises(TargetAhead, match="give the sink another name"):
        await later.open()
    later.newest_known = later.newest_written = 3
    with pytest.raises(TargetBehind, match="epochs up to 2, but this job has written epoch 3"):
        await later.open()
    first.newest_written = 3
    with pytest.raises(TargetBehind):
        await first.write([b"4"], 4)
    for sink in (first, later):
        await sink.close()
    assert read_all(server, served_topic) == [b"1", b"2"]


async def test_a_record_that_is_too_large_is_named(server: str, served_topic: str) -> None:
    config = {"bootstrap.servers": server, "log_level": 0, "message.max.bytes": 2000}
    sink = KafkaSink(served_topic, f"job-of-{served_topic}", config)
    values = [b"small", b"x" * 2001, {"value": "é" * 990, "headers": {"h": b"x" * 30}}]
    with pytest.raises(UnwritableValue, match=r"message\.max\.bytes") as raised:
        await sink.write(values, 1)
    assert raised.value.index == 1
    assert [error.index for error in await sink.refused(values)] == [1, 2]
    await sink.close()


class Strict(confluent_kafka.Producer):
    """A client whose brokers refuse a batch with a record of more than 1,000 bytes, like a topic with such a limit.

    Records are sent at the commit, because the broker of these tests shows what was aborted.
    """

    def __init__(self, config: dict[str, Any], **kwargs: Any) -> None:
        super().__init__(config, **kwargs)
        self._batch_max = config.get("batch.num.messages", 10_000)
        self._sent: list[dict[str, Any]] = []

    def produce(self, topic: str, **record: Any) -> None:  # type: ignore[override]
        self._sent.append({"topic": topic, **record})

    def commit_transaction(self, *args: Any) -> None:
        refused = KafkaError(KafkaError.MSG_SIZE_TOO_LARGE)
        batches = [self._sent[at : at + self._batch_max] for at in range(0, len(self._sent), self._batch_max)]
        bad = [batch for batch in batches if any(len(record["value"]) > 1000 for record in batch)]
        for record in itertools.chain.from_iterable(bad):
            record["on_delivery"](refused, None)
        if bad:
            raise KafkaException(refused)
        for record in self._sent:
            super().produce(**record)
        super().commit_transaction(*args)


async def test_a_record_that_only_the_brokers_refuse_is_named_and_left_out(
    server: str, served_topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(confluent_kafka, "Producer", Strict)
    values = [b"1", b"x" * 1001, b"2", b"y" * 1001]
    sink = sink_into(server, served_topic)
    with pytest.raises(UnwritableValue, match="too large") as raised:
        await sink.write(values, 1)
    assert (raised.value.index, raised.value.target) == (1, served_topic)
    assert [error.index for error in await sink.refused(values)] == [1, 3]
    await sink.close()

    skipping = sink_into(server, served_topic)
    skipping.on_error = "skip"
    await new_job(values, same, skipping).run()
    assert read_all(server, served_topic) == [b"1", b"2"]


async def test_a_dead_letter_that_is_too_long_for_a_message_is_cut(server: str, served_topic: str) -> None:
    async def refuse(value: str) -> None:
        raise ValueError("no")

    letters = sink_into(server, served_topic)
    step = Step(refuse, "first", on_error="dead_letter")
    await new_job(["x" * 1_100_000, "short"], step, Epochs(), dead_letters=letters).run()
    long, short = map(json.loads, read_all(server, served_topic))
    assert letter_value(short) == "short"
    assert (long["value"][:2], long["value_encoding"]) == ('"x', "cut")
    assert long["value"].endswith("x… (1,100,002 characters)")
    with pytest.raises(LetterWithoutValue, match="was cut"):
        letter_value(long)


def test_settings_are_never_shown() -> None:
    sink = KafkaSink("t", "job", {"bootstrap.servers": "b", "sasl.password": "secret"})
    assert repr(sink) == "KafkaSink('t', 'job')"


@pytest.mark.parametrize(
    ("name", "config"),
    [("", {"bootstrap.servers": "b"}), ("job", {}), ("job", {"bootstrap.servers": "b", "transactional.id": "mine"})],
    ids=["name", "brokers", "ours"],
)
def test_settings_that_can_never_work_are_refused(name, config) -> None:
    with pytest.raises(ConfigError):
        KafkaSink("t", name, config)


async def test_a_job_waits_for_brokers_that_are_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "REQUEST_SECONDS_MAX", 1.0)
    address = f"127.0.0.1:{brokers._free_port()}"
    sink = KafkaSink("late", "job", {"bootstrap.servers": address, "log_level": 0}, retry=FixedDelayRetry(600, 0.1))
    with tempfile.TemporaryFile() as log:
        job = new_job([b"1"], same, sink)
        async with running(job) as task:
            while sink._threads is None:
                await asyncio.sleep(0)
            process = await asyncio.to_thread(brokers._start, address, log)
            try:
                assert await asyncio.to_thread(brokers._answers, process, address)
                await asyncio.to_thread(make_topic, address, "late")
                await task
                assert await asyncio.to_thread(read_all, address, "late") == [b"1"]
            finally:
                process.kill()
                process.wait()
