"""Arguments of sources and sinks that can never work are refused where they are passed, and no secret is shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from async_op import Job
from async_op.connectors import DeltaSink, FileSink, FileSource, IcebergSink, KafkaSink, KafkaSource, PostgresSink
from keygroups import ConfigError

BROKERS = {"bootstrap.servers": "localhost:1"}


def job(sink: Any) -> Job:
    return Job([1], lambda element: element, sink, snapshots="memory://arguments", job_id="sink")


def yielding(values: list[Any], epoch: int) -> Any:
    yield values


async def yielding_too(values: list[Any], epoch: int) -> Any:
    yield values


REFUSED: list[tuple[Callable[[], object], str]] = [
    (lambda: FileSource("*", "json", timestamp=5), "timestamp=5: .*name the column"),  # type: ignore[arg-type]
    (lambda: FileSink("out", "parquet", schema="n int"), "schema='n int': .*pass a pyarrow.Schema"),
    (lambda: DeltaSink("out", "a", schema={"n": int}), "schema=.*: .*pass a pyarrow.Schema"),  # type: ignore[arg-type]
    (lambda: IcebergSink("a.b", "a", catalog="secret"), "catalog='<str>': pass a dict"),  # type: ignore[arg-type]
    (lambda: IcebergSink("a.b", "a", catalog={}, schema=5), "schema=5: .*pass a pyarrow.Schema"),  # type: ignore[arg-type]
    (lambda: PostgresSink(b"secret", "t", "a"), "url='bytes': pass the address"),  # type: ignore[arg-type]
    (lambda: PostgresSink("", 5, "a"), "table=5: .*name a table"),  # type: ignore[arg-type]
    (lambda: KafkaSource("", BROKERS), "topic='': it is empty; name a topic"),
    (lambda: KafkaSource("t", "secret"), "config='<str>': pass a dict"),  # type: ignore[arg-type]
    (lambda: KafkaSink("t", "a", ["secret"]), "config='<list>': pass a dict"),  # type: ignore[arg-type]
    (lambda: KafkaSink(None, "a", BROKERS), "topic=None: pass text, .*; name a topic"),  # type: ignore[arg-type]
    (lambda: job(FileSink), "sink=.*: pass a Sink"),
    (lambda: job(yielding), "use `return` instead of `yield`; pass a Sink"),
    (lambda: job(yielding_too), "use `await` instead of `yield`; pass a Sink"),
    (lambda: job(lambda values: None), r"called with 2 arguments, and is defined with \(values\); pass a Sink"),
]


@pytest.mark.parametrize(("make", "said"), REFUSED, ids=range(len(REFUSED)))
def test_it_is_refused_by_name(make: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        make()
    assert "secret" not in str(refused.value)
