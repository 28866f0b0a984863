"""What OpenTelemetry sees: instruments with units, and spans."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from async_op.metrics.opentelemetry import OpenTelemetryMetrics, OpenTelemetryTraces
from keygroups.events import Event, publish
from tests.async_op.job.kit import Epochs, Log, new_job, same
from tests.async_op.metrics.kit import CALLS, run_everything


@pytest.fixture
def reader() -> InMemoryMetricReader:
    return InMemoryMetricReader()


@pytest.fixture
def metrics(reader: InMemoryMetricReader) -> Iterator[OpenTelemetryMetrics]:
    provider = MeterProvider([reader], shutdown_on_exit=False)
    metrics = OpenTelemetryMetrics(provider)
    yield metrics
    metrics.close()
    provider.shutdown()


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(exporter: InMemorySpanExporter) -> Iterator[TracerProvider]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield provider
    provider.shutdown()


def seen_by(reader: InMemoryMetricReader) -> dict[str, Any]:
    data = reader.get_metrics_data()
    assert data is not None
    return {
        metric.name: metric for one in data.resource_metrics for scope in one.scope_metrics for metric in scope.metrics
    }


async def test_everything_is_an_instrument(metrics: OpenTelemetryMetrics, reader: InMemoryMetricReader) -> None:
    seen = await run_everything(metrics.watches, lambda: seen_by(reader))

    calls, waits, commits = (seen[f"keygroups.{name}"] for name in ("operator.calls", "operator.wait", "snapshots"))
    assert [point.value for point in calls.data.data_points] == [CALLS + 1]
    assert dict(calls.data.data_points[0].attributes) == {"operator": "enrich", "subtask": "0"}
    assert (waits.unit, seen["keygroups.snapshot.bytes"].unit) == ("s", "By")
    assert [point.value for point in commits.data.data_points] == [1]
    assert seen["keygroups.operator.call.duration"].data.data_points[0].count == CALLS + 1
    assert seen["keygroups.snapshot.duration"].unit == "s"


async def test_a_job_is_watched(metrics: OpenTelemetryMetrics, reader: InMemoryMetricReader) -> None:
    job = new_job(Log([1, 2], bounded=True), same, Epochs())
    metrics.watches.add_job(job)
    await job.run()

    (point,) = seen_by(reader)["keygroups.job.outputs"].data.data_points
    assert (dict(point.attributes), point.value) == ({"job": "job"}, 2)


async def test_events_are_spans(exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
    traces = OpenTelemetryTraces(provider, every_call=10)
    metrics = OpenTelemetryMetrics(MeterProvider(shutdown_on_exit=False))
    await run_everything(metrics.watches)
    publish(Event("snapshot", 2.0, {"operator_id": "enrich"}, "CommitConflict"))
    traces.close()
    publish(Event("snapshot", 2.0))
    metrics.close()

    names = [span.name for span in exporter.get_finished_spans()]
    assert names.count("keygroups.call") == CALLS // 10
    assert {
        "keygroups.write",
        "keygroups.snapshot",
        "keygroups.rescale",
        "keygroups.restore",
        "keygroups.epoch",
    } <= set(names)
    failed = exporter.get_finished_spans()[-1]
    assert failed.status.status_code == StatusCode.ERROR
    assert failed.start_time is not None
    assert failed.end_time is not None
    assert failed.end_time - failed.start_time == 2_000_000_000
    assert dict(failed.attributes or {}) == {"keygroups.operator_id": "enrich", "error.type": "CommitConflict"}


def test_calls_get_no_span_if_none_is_asked_for(exporter: InMemorySpanExporter, provider: TracerProvider) -> None:
    traces = OpenTelemetryTraces(provider, every_call=0)
    publish(Event("call", 0.1))
    traces.close()

    assert exporter.get_finished_spans() == ()
