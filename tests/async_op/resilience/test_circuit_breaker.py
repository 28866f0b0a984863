"""The circuit breaker: when it opens, what becomes of elements meanwhile, and how it closes again."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from async_op import CircuitBreaker, CircuitOpen, DeadLetter, FixedDelayRetry, RateLimit, Resilience
from tests.async_op.kit import Service, opened


def broken(**options: Any) -> Resilience:
    return Resilience(circuit_breaker=CircuitBreaker(**{"window": 2, "open_seconds": 10, **options}))


async def test_an_open_breaker_makes_no_calls_then_a_few_then_all() -> None:
    service = Service()
    async with opened(service, resilience=broken(probes=2), on_error="skip", capacity=20) as bench:
        await bench.feed("a", "b", "c")
        await service.fail("a", OSError())
        await service.answer("b")
        assert bench.resilience.circuit == "open"
        await service.answer("c")  # began before; says nothing
        await bench.feed(*"defg")
        await bench.clock.advance(9)
        assert service.running == []
        await bench.clock.advance(1)
        assert (service.running, bench.resilience.circuit, bench.resilience.waiting) == (["d", "e"], "half_open", 2)
        await service.answer("d")
        assert service.running == ["e"]
        await service.answer("e")
        assert (service.running, bench.resilience.circuit, bench.resilience.waiting) == (["f", "g"], "closed", 0)


async def test_a_probe_that_fails_or_runs_out_of_time_opens_it_again() -> None:
    service = Service(fallback=lambda value: [f"late {value}"])
    async with opened(service, resilience=broken(window=1), on_error="skip", timeout=25) as bench:
        await bench.feed("a", "b", "c", "d")
        for value in "abcd":
            await service.fail(value, OSError())
        await bench.feed("e", "f", "g")
        await bench.clock.advance(10)
        await service.fail("e", OSError())
        await bench.clock.advance(10)
        assert service.running == ["f"]
        await bench.clock.advance(5)
        assert bench.shown == ["late f", "late g"]
        assert (bench.resilience.circuit, bench.resilience.circuit_opened) == ("open", 3)


async def test_elements_fail_while_it_is_open_if_that_is_asked_for() -> None:
    letters: list[DeadLetter] = []
    service = Service()
    options: dict[str, Any] = {"on_error": "dead_letter", "dead_letters": letters.append}
    async with opened(service, resilience=broken(window=1, when_open="fail"), **options) as bench:
        await bench.feed("a")
        await service.fail("a", OSError())
        await bench.clock.advance(4)
        await bench.feed("b")
        statistics = bench.operator.statistics()

    error = letters[1].error
    assert isinstance(error, CircuitOpen)
    assert error.seconds == pytest.approx(6)
    assert isinstance(error, ConnectionError)
    assert (statistics.calls, bench.resilience.circuit_refused) == (1, 1)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


async def test_a_refused_element_is_retried_like_a_failed_one() -> None:
    service = Service()
    retry = FixedDelayRetry(3, 6, retry_on=CircuitOpen)
    async with opened(service, resilience=broken(window=1, when_open="fail"), retry=retry, on_error="skip") as bench:
        await bench.feed("a")
        await service.fail("a", OSError())
        await bench.feed("b")
        await bench.clock.advance(12)
        await service.answer("b")

    assert bench.shown == ["b"]


async def test_a_breaker_that_opens_while_a_call_waits_for_the_rate_stops_it() -> None:
    service = Service()
    both = Resilience(circuit_breaker=CircuitBreaker(window=1, open_seconds=10), rate_limit=RateLimit(1, burst=1))
    async with opened(service, resilience=both, on_error="skip") as bench:
        await bench.feed("a", "b", "c", "d")
        await service.fail("a", OSError())
        await bench.clock.advance(9)
        assert service.called == ["a"]
        await bench.clock.advance(1)
        assert service.running == ["b"]
        await service.answer("b")
        await bench.clock.advance(1)
        assert service.running == ["c"]


async def test_a_permit_of_a_call_that_is_given_up_goes_to_the_next() -> None:
    service = Service(fallback=lambda value: [f"late {value}"])
    both = Resilience(circuit_breaker=CircuitBreaker(window=1, open_seconds=10), rate_limit=RateLimit(0.05, burst=1))
    async with opened(service, resilience=both, on_error="skip", timeout=15) as bench:
        await bench.feed("a")
        await service.fail("a", OSError())
        await bench.feed("b")  # half-open at 10, a right to call at 20, out of time at 15
        await bench.clock.advance(6)
        await bench.feed("c")
        await bench.clock.advance(14)

    assert service.called == ["a", "c"]
    assert bench.shown == ["late b"]
