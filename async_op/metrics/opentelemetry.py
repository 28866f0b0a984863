"""Metrics and traces for OpenTelemetry; needs the package `opentelemetry-api`, and an SDK to export anything."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from opentelemetry import metrics, trace
from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider, Observation
from opentelemetry.trace import Status, StatusCode, TracerProvider

from async_op.metrics.families import Family
from async_op.metrics.jobs import job_families
from async_op.metrics.operators import operator_families
from async_op.metrics.totals import EventTotals
from async_op.metrics.watch import Watches
from keygroups.events import Event, listen

_NAME = "keygroups"


class OpenTelemetryMetrics:
    """The metrics of this process as observable instruments. Any thread may call it.

    The instruments have the same names as in Prometheus, with dots and without units: `keygroups.operator.calls`.
    Histograms record the durations of a sample of the calls and of all events.

    Parameters
    ----------
    provider : MeterProvider, optional
        The global provider of the process by default.

    Attributes
    ----------
    watches : Watches
        What is watched; `watches.add(name, operator)` adds an operator, `watches.add_job(job)` a job.
    """

    def __init__(self, provider: MeterProvider | None = None) -> None:
        self.watches = Watches()
        self._meter = metrics.get_meter(_NAME, meter_provider=provider)
        self._durations: dict[str, Histogram] = {}
        for family in (*operator_families(()), *job_families(()), *EventTotals().families()):
            _observe(self._meter, family, self._callback(family.name))
        self._stop = listen(self._record)

    def close(self) -> None:
        """Stop recording. OpenTelemetry cannot remove the instruments, so they stay without values."""
        self.watches.close()
        self._stop()

    def _callback(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def observe(_: CallbackOptions) -> Iterable[Observation]:
            for family in self.watches.families():
                if family.name == name:
                    yield from (Observation(sample.value, dict(sample.labels)) for sample in family.samples)

        return observe

    def _record(self, event: Event) -> None:
        histogram = self._durations.get(event.name)
        if histogram is None:
            name = f"{_NAME}.{'operator.call' if event.name == 'call' else event.name}.duration"
            histogram = self._durations[event.name] = self._meter.create_histogram(name, "s")
        kept = ("operator_id", "function", "kind")
        histogram.record(
            event.seconds, {name: str(event.attributes[name]) for name in kept if name in event.attributes}
        )


class OpenTelemetryTraces:
    """Makes a span for each snapshot, write, restore, rescale and epoch, and for some calls. Any thread may call it.

    A span is created when its event has ended, so its parent is the span that is current then.

    Parameters
    ----------
    provider : TracerProvider, optional
        The global provider of the process by default.
    every_call : int
        One in this many sampled calls gets a span; 0 means none. Without limits, an operator samples one call in 16.
    """

    def __init__(self, provider: TracerProvider | None = None, *, every_call: int = 100) -> None:
        self._tracer = trace.get_tracer(_NAME, tracer_provider=provider)
        self._every_call = every_call
        self._calls = 0
        self.close = listen(self._record)

    def _record(self, event: Event) -> None:
        if event.name == "call":
            self._calls += 1
            if not self._every_call or self._calls % self._every_call:
                return
        ended = time.time_ns()
        attributes = {f"{_NAME}.{name}": value for name, value in event.attributes.items() if value is not None}
        span = self._tracer.start_span(
            f"{_NAME}.{event.name}", start_time=ended - int(event.seconds * 1e9), attributes=attributes
        )
        if event.error is not None:
            span.set_attribute("error.type", event.error)
            span.set_status(Status(StatusCode.ERROR, event.error))
        span.end(ended)


def _observe(meter: Meter, family: Family, callback: Callable[[CallbackOptions], Iterable[Observation]]) -> None:
    unit = "s" if family.name.endswith("_seconds") else "By" if family.name.endswith("bytes") else "1"
    name = family.name.removesuffix("_seconds").replace("_", ".", 2)
    if family.kind == "counter":
        meter.create_observable_counter(name, [callback], unit, family.help)
    elif family.kind == "gauge":
        meter.create_observable_gauge(name, [callback], unit, family.help)
