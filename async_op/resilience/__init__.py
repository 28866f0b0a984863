"""Protects a service, and the operator when the service fails: one module per part, combined in `limits`."""

from __future__ import annotations

from async_op.errors import CircuitOpen
from async_op.resilience.budget import Budget
from async_op.resilience.cache import Cache
from async_op.resilience.circuit_breaker import CircuitBreaker
from async_op.resilience.concurrency import AdaptiveConcurrency
from async_op.resilience.limits import Limits, Resilience, SharedLimits
from async_op.resilience.rate_limit import RateLimit
from async_op.resilience.single_flight import SingleFlight
from async_op.statistics import ResilienceStatistics

__all__ = [
    "AdaptiveConcurrency",
    "Budget",
    "Cache",
    "CircuitBreaker",
    "CircuitOpen",
    "Limits",
    "RateLimit",
    "Resilience",
    "ResilienceStatistics",
    "SharedLimits",
    "SingleFlight",
]
