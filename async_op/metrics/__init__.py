"""Metrics and traces: what operators count and what events tell, for Prometheus and OpenTelemetry.

`prometheus` and `opentelemetry` need their packages, which are the extras of these names.
"""

from __future__ import annotations

from async_op.metrics.families import Family, Kind, Sample
from async_op.metrics.watch import Watches

__all__ = ["Family", "Kind", "Sample", "Watches"]
