"""Metrics and traces of operators, jobs and events, for Prometheus and OpenTelemetry.

The modules `prometheus` and `opentelemetry` need the packages of the extras with the same names.
"""

from __future__ import annotations

from async_op.metrics.families import Family, Kind, Sample
from async_op.metrics.watch import Watches

__all__ = ["Family", "Kind", "Sample", "Watches"]
