"""`Resilience` as a whole: settings that are refused, errors that count, and the way to the workers."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from async_op import (
    AdaptiveConcurrency,
    AsyncTimeoutError,
    Budget,
    Cache,
    CircuitBreaker,
    RateLimit,
    Resilience,
    SingleFlight,
)
from keygroups import ConfigError, ValueState
from tests.async_op.batches import Doubles
from tests.async_op.kit import Bench, Instant, Service, first, opened


async def test_errors_that_say_nothing_about_the_service_do_not_count() -> None:
    service = Service()
    careful = Resilience(
        concurrency=AdaptiveConcurrency(), circuit_breaker=CircuitBreaker(window=1), failure_on=OSError
    )
    async with opened(service, resilience=careful, on_error="skip") as bench:
        await bench.feed("a", "b")
        await service.fail("a", ValueError())
        assert (bench.resilience.concurrency_limit, bench.resilience.circuit) == (2, "closed")
        await service.fail("b", ConnectionError())

    assert (bench.resilience.concurrency_limit, bench.resilience.circuit) == (1, "open")


async def test_without_limits_the_function_itself_is_called() -> None:
    function = Instant()
    async with opened(function) as bench:
        await bench.feed("a")
        assert bench.operator.statistics().resilience is None
        assert bench.operator._parts.workers.invoke == function.async_invoke


class Stateful(Service):
    states = (ValueState("seen"),)


class Arrows(Doubles):
    arrow = True


@pytest.mark.parametrize(
    ("function", "resilience"),
    [
        (Stateful(), Resilience(single_flight=SingleFlight(first))),
        (Stateful(), Resilience(cache=Cache(key=first, max_entries=1))),
        (Doubles(), Resilience(single_flight=SingleFlight(first))),
        (Arrows(), Resilience(cache=Cache(key=first, max_entries=1))),
    ],
)
def test_sharing_that_makes_no_sense_is_refused(function: Any, resilience: Resilience) -> None:
    with pytest.raises(ConfigError):
        Bench(function, resilience=resilience, key_by=str)


def _name_of(part: Any) -> str:
    return (
        part.__name__
        if isinstance(part, type)
        else str({name: getattr(one, "__name__", one) for name, one in part.items()})
    )


@pytest.mark.parametrize(
    ("part", "settings"),
    [
        (RateLimit, {"per_second": 0}),
        (RateLimit, {"per_second": float("inf")}),
        (RateLimit, {"per_second": 1, "burst": 0}),
        (RateLimit, {"per_second": 1, "cost": len}),
        (RateLimit, {"per_second": 1, "unit": "tokens"}),
        (RateLimit, {"per_second": 1, "cost": 5, "unit": "tokens"}),
        (RateLimit, {"per_second": 1, "cost": len, "unit": "tokens a minute"}),
        (Cache, {"key": first, "max_entries": 0}),
        (Cache, {"key": first, "max_entries": 1, "ttl_seconds": 0}),
        (AdaptiveConcurrency, {"minimum": 0}),
        (AdaptiveConcurrency, {"minimum": 3, "maximum": 2}),
        (AdaptiveConcurrency, {"slow_seconds": 0}),
        (AdaptiveConcurrency, {"decrease": 1.0}),
        (CircuitBreaker, {"failure_rate": 0}),
        (CircuitBreaker, {"window": 0}),
        (CircuitBreaker, {"open_seconds": float("inf")}),
        (CircuitBreaker, {"probes": 0}),
        (CircuitBreaker, {"when_open": "explode"}),
    ],
    ids=_name_of,
)
def test_settings_that_can_never_work_are_refused(part: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        part(**settings)


def test_settings_travel_to_workers() -> None:
    settings = Resilience(
        cache=Cache(key=first, max_entries=1),
        single_flight=SingleFlight(first),
        concurrency=AdaptiveConcurrency(),
        circuit_breaker=CircuitBreaker(),
        rate_limit=[RateLimit(1), RateLimit.per_minute(90, cost=len, unit="tokens")],
        budget=Budget(1, "tokens", cost=len),
        failure_on=(OSError, AsyncTimeoutError),
    )

    assert pickle.loads(pickle.dumps(settings)) == settings
