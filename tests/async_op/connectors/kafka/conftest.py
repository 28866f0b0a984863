from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest

from tests.async_op.connectors.kafka.brokers import broker, make_topic, mock_cluster

_numbers = itertools.count()


@pytest.fixture(scope="session")
def cluster() -> Iterator[str]:
    with mock_cluster() as servers:
        yield servers


@pytest.fixture(scope="session")
def server() -> Iterator[str]:
    with broker() as address:
        yield address


@pytest.fixture
def topic() -> str:
    return f"topic-{next(_numbers)}"


@pytest.fixture
def served_topic(server: str, topic: str) -> str:
    make_topic(server, topic)
    return topic
