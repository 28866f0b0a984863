"""Combines the parts that an element passes before its call, in a fixed order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar

from async_op.clock import Clock
from async_op.context import Invoke
from async_op.functions import AsyncBatchFunction, Function
from async_op.resilience.cache import Cache, OutputCache
from async_op.resilience.circuit_breaker import Breaker, CircuitBreaker, Permit
from async_op.resilience.concurrency import AdaptiveConcurrency, ConcurrencyLimiter
from async_op.resilience.rate_limit import RateLimit, RateLimiter
from async_op.resilience.single_flight import Flights, SingleFlight
from async_op.retry import RetryOn, check_errors, is_meant
from async_op.statistics import LatencyHistogram, ResilienceStatistics
from keygroups.errors import ConfigError
from keygroups.representation import fields_repr

_PARTS: dict[str, type] = {
    "cache": Cache,
    "single_flight": SingleFlight,
    "concurrency": AdaptiveConcurrency,
    "circuit_breaker": CircuitBreaker,
    "rate_limit": RateLimit,
}


class Batch(Protocol):
    """One call for many elements."""

    @property
    def wanted(self) -> int:
        """How many elements still need their results."""
        ...


_Batch = TypeVar("_Batch", bound=Batch)
_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resilience:
    """How an operator protects its service, and itself when the service fails. Each part is off by default.

    An element passes the parts in this order: `cache` (even before it waits for a call), `single_flight`,
    `concurrency`, `circuit_breaker`, `rate_limit`. Then its call is made. A waiting element is pending like any other:
    its timeout runs, and snapshots contain it. For a batch function, a batch is one call; the cache works per element.

    Parameters
    ----------
    cache : Cache, optional
        Reuses the outputs of earlier calls.
    single_flight : SingleFlight, optional
        Combines identical calls that are under way at the same time.
    concurrency : AdaptiveConcurrency, optional
        Adapts the number of concurrent calls to the service.
    circuit_breaker : CircuitBreaker, optional
        Stops calling a failing service for a while.
    rate_limit : RateLimit, optional
        Limits the calls per second.
    failure_on : exception type, tuple of them, or predicate, optional
        The errors that count as failures of the service, for `concurrency` and `circuit_breaker`; all by default. A
        call that its element's timeout cancels always counts.

    Raises
    ------
    ConfigError
        A part has the wrong type.

    Examples
    --------
    >>> careful = Resilience(rate_limit=RateLimit(50), circuit_breaker=CircuitBreaker(), failure_on=OSError)
    """

    cache: Cache | None = None
    single_flight: SingleFlight | None = None
    concurrency: AdaptiveConcurrency | None = None
    circuit_breaker: CircuitBreaker | None = None
    rate_limit: RateLimit | None = None
    failure_on: RetryOn | None = None

    __repr__ = fields_repr

    def __post_init__(self) -> None:
        for name, kind in _PARTS.items():
            part = getattr(self, name)
            if part is not None and not isinstance(part, kind):
                raise ConfigError(name, part, f"pass a {kind.__name__}, or None")
        check_errors("failure_on", self.failure_on)

    def check_fits(self, function: Function) -> None:
        """Raise `ConfigError` if a part makes no sense for a function."""
        for name, part in (("cache", self.cache), ("single_flight", self.single_flight)):
            if part is not None and (function.states or function.operator_states):
                raise ConfigError(name, part, "calls that write state cannot be shared: each has its own writes")
        if isinstance(function, AsyncBatchFunction):
            if self.single_flight is not None:
                raise ConfigError("single_flight", self.single_flight, "let the batch function find duplicates")
            if self.cache is not None and function.arrow:
                raise ConfigError("cache", self.cache, "a record batch is one element, and hardly ever repeats")


class Limits:
    """The limits of one operator. Only the thread of the event loop may call it.

    Parameters
    ----------
    settings : Resilience
        Which parts are on.
    share : (int, int)
        The index of this subtask, and the parallelism.
    capacity : int
        The operator's capacity.
    clock : Clock
        The source of time.
    latency : LatencyHistogram
        Receives the duration of each call.

    Attributes
    ----------
    cache : OutputCache or None
        Asked before an element waits for a call.
    calls : int
        How many elements have been passed to the function.
    """

    __slots__ = (
        "_breaker",
        "_clock",
        "_concurrency",
        "_flights",
        "_latency",
        "_rate",
        "_running",
        "_settings",
        "cache",
        "calls",
    )

    def __init__(
        self, settings: Resilience, share: tuple[int, int], capacity: int, clock: Clock, latency: LatencyHistogram
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._latency = latency
        cache, concurrency = settings.cache, settings.concurrency
        breaker, rate = settings.circuit_breaker, settings.rate_limit
        self.cache = None if cache is None else OutputCache(cache, clock)
        self._flights: Flights | None = None
        self._concurrency = None if concurrency is None else ConcurrencyLimiter(concurrency, capacity, clock)
        self._breaker = None if breaker is None else Breaker(breaker, clock)
        self._rate = None if rate is None else RateLimiter(rate.share(*share), clock)
        self.calls = self._running = 0

    def protect(self, invoke: Invoke) -> Invoke:
        """Wrap a function's coroutine with the limits, for calls per element."""
        limited = self._limited(invoke, lambda _value, _ctx: 1)
        if self._settings.single_flight is None:
            return limited
        self._flights = Flights(self._settings.single_flight, limited)
        return self._flights.invoke

    def protect_batch(
        self, invoke: Callable[[_Batch], Coroutine[Any, Any, _Result]]
    ) -> Callable[[_Batch], Coroutine[Any, Any, _Result]]:
        """Wrap a batch function's coroutine with the limits, for calls per batch."""
        return self._limited(invoke, lambda batch: batch.wanted)

    def stop(self) -> None:
        """Admit no more calls."""
        for part in (self._concurrency, self._breaker, self._rate):
            if part is not None:
                part.stop()

    def statistics(self) -> ResilienceStatistics:
        """Return the current counters."""
        cache, concurrency, breaker, rate = self.cache, self._concurrency, self._breaker, self._rate
        lines = [part.line for part in (concurrency, breaker, rate) if part is not None]
        return ResilienceStatistics(
            cache_hits=0 if cache is None else cache.hits,
            cache_misses=0 if cache is None else cache.misses,
            cache_entries=0 if cache is None else len(cache),
            shared=0 if self._flights is None else self._flights.shared,
            waiting=sum(map(len, lines)),
            rate_limited=0 if rate is None else rate.line.waits,
            concurrency_limit=None if concurrency is None else concurrency.limit,
            running=self._running,
            circuit=None if breaker is None else breaker.state,
            circuit_opened=0 if breaker is None else breaker.opened,
            circuit_refused=0 if breaker is None else breaker.refused,
            wait_seconds=sum(line.seconds for line in lines),
        )

    def _limited(
        self, invoke: Callable[_Args, Coroutine[Any, Any, _Result]], elements_of: Callable[_Args, int]
    ) -> Callable[_Args, Coroutine[Any, Any, _Result]]:
        async def call(*args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
            permit = await self._permit()
            self.calls += elements_of(*args, **kwargs)
            return await self._watch(permit, invoke(*args, **kwargs))

        async def call_in_turn(*args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
            assert self._concurrency is not None, "the concurrency limit is on"
            await self._concurrency.acquire()
            try:
                return await call(*args, **kwargs)
            finally:
                self._concurrency.release()

        return call if self._concurrency is None else call_in_turn

    async def _permit(self) -> Permit:
        """Wait until a call may begin in the current step of the loop."""
        breaker, rate = self._breaker, self._rate
        while True:
            permit = 0 if breaker is None else await breaker.acquire()
            if rate is None:
                return permit
            try:
                await rate.acquire()
            except BaseException:
                if breaker is not None:
                    breaker.give_back(permit)
                raise
            if breaker is None or breaker.holds(permit):
                return permit
            rate.give_back()  # the breaker opened during the wait

    async def _watch(self, permit: Permit, call: Coroutine[Any, Any, _Result]) -> _Result:
        """Make a call, and record its result in the parts."""
        began = self._clock.time()
        failed = False
        self._running += 1
        try:
            return await call
        except asyncio.CancelledError:
            failed = True
            raise
        except Exception as error:
            failed = is_meant(self._settings.failure_on, error)
            raise
        finally:
            self._running -= 1
            self._latency.add(self._clock.time() - began)
            if self._concurrency is not None:
                self._concurrency.record(began, failed=failed)
            if self._breaker is not None:
                self._breaker.record(permit, failed=failed)
