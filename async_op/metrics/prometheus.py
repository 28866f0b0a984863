"""Metrics for Prometheus; needs the package `prometheus-client`."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from async_op.metrics.families import Family
from async_op.metrics.watch import Watches


class PrometheusMetrics(Collector):
    """Collects all metrics of this process. Any thread may call it.

    Parameters
    ----------
    registry : CollectorRegistry
        The registry in which the collector registers itself.

    Attributes
    ----------
    watches : Watches
        What is watched; `watches.add(name, operator)` adds an operator, `watches.add_job(job)` a job.

    Examples
    --------
    >>> registry = CollectorRegistry()
    >>> metrics = PrometheusMetrics(registry)
    >>> [family.name for family in registry.collect()]
    []
    >>> metrics.close()
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY) -> None:
        self.watches = Watches()
        self._registry = registry
        registry.register(self)

    def collect(self) -> Iterator[Metric]:
        """Return the current metrics."""
        return map(_metric, self.watches.families())

    def close(self) -> None:
        """Unregister the collector and stop collecting."""
        self.watches.close()
        self._registry.unregister(self)


def _metric(family: Family) -> Metric:
    if family.kind == "histogram":
        histogram = HistogramMetricFamily(family.name, family.help, labels=family.label_names)
        for sample in family.samples:
            buckets = [("+Inf" if bound == float("inf") else repr(bound), count) for bound, count in sample.buckets]
            histogram.add_metric(list(sample.labels.values()), buckets, sum_value=sample.value)
        return histogram
    plain = (CounterMetricFamily if family.kind == "counter" else GaugeMetricFamily)(
        family.name, family.help, labels=family.label_names
    )
    for sample in family.samples:
        plain.add_metric(list(sample.labels.values()), sample.value)
    return plain
