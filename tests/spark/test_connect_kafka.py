"""A topic of Kafka as the sink of a pipeline over Spark Connect. Server and client are processes of their own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.async_op.connectors.kafka.brokers import broker, make_topic, read_all
from tests.spark import connect_processes as processes
from tests.spark.connect_client import ROWS

pytest.importorskip("grpc", reason="Spark Connect needs pyspark[connect]")

pytestmark = [pytest.mark.spark, pytest.mark.thorough, pytest.mark.timeout(2400)]


def test_a_topic_has_each_epoch_once_although_the_worker_was_killed(connect_url: str, tmp_path: Path) -> None:
    with broker() as server:
        make_topic(server, "topic")
        (tmp_path / "topic").write_text(f"{server} topic")
        processes.told(processes.client("connect_client", connect_url, tmp_path, "into Kafka"))
        assert (tmp_path / "killed").exists()
        assert sorted(map(int, read_all(server, "topic"))) == list(range(ROWS))
