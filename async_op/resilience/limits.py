"""Combines the parts that an element passes before its call, in a fixed order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar

from async_op.clock import Clock
from async_op.context import Invoke
from async_op.errors import RetryAfter
from async_op.functions import AsyncBatchFunction, Function
from async_op.resilience.budget import Account, Budget
from async_op.resilience.cache import Cache, OutputCache
from async_op.resilience.circuit_breaker import Breaker, CircuitBreaker, Permit
from async_op.resilience.concurrency import AdaptiveConcurrency, ConcurrencyLimiter
from async_op.resilience.costs import Costs, Payer
from async_op.resilience.line import Line
from async_op.resilience.rate_limit import RateLimit, RateLimiter
from async_op.resilience.single_flight import Flights, SingleFlight
from async_op.retry import RetryOn, check_errors, is_meant
from async_op.runtime import Runtime
from async_op.statistics import LatencyHistogram, ResilienceStatistics
from keygroups.errors import ConfigError
from keygroups.representation import fields_repr

_PARTS: dict[str, type] = {
    "cache": Cache,
    "single_flight": SingleFlight,
    "concurrency": AdaptiveConcurrency,
    "circuit_breaker": CircuitBreaker,
}
_LISTS: dict[str, type] = {"budget": Budget, "rate_limit": RateLimit}
"""The parts of which there may be several."""


class Batch(Protocol):
    """One call for many elements."""

    @property
    def wanted(self) -> int:
        """How many elements still need their results."""
        ...

    def values(self) -> Sequence[Any]:
        """Return the values of all elements."""
        ...


class Pace(Protocol):
    """Says when calls may begin."""

    async def acquire(self) -> None:
        """Wait until the call may begin."""
        ...

    def give_back(self) -> None:
        """Take back a call that was not made."""
        ...


class PartWithLine(Protocol):
    """A part for which calls may have to wait."""

    @property
    def line(self) -> Line:
        """The calls that wait."""
        ...

    def stop(self) -> None:
        """Admit no more calls."""
        ...


class PayingBatch(Batch, Payer, Protocol):
    """One call for many elements, with what it has spent."""


_Batch = TypeVar("_Batch", bound=PayingBatch)
_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resilience:
    """How an operator protects its service, and itself when the service fails. Each part is off by default.

    An element passes the parts in this order: `cache` (even before it waits for a call), `single_flight`,
    `concurrency`, `budget`, `circuit_breaker`, `rate_limit`. Then its call is made. A waiting element is pending like
    any other: its timeout runs, and snapshots contain it. For a batch function, a batch is one call; the cache works
    per element.

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
    rate_limit : RateLimit or list of them, optional
        Limits the calls per second, or what they cost. A call waits for all of several limits, such as calls and tokens
        a minute, and is charged to all of them when it begins.
    budget : Budget or list of them, optional
        Limits what all calls together spend. Each has a unit of its own.
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
    rate_limit: RateLimit | Sequence[RateLimit] | None = None
    failure_on: RetryOn | None = None
    budget: Budget | Sequence[Budget] | None = None

    __repr__ = fields_repr

    def __post_init__(self) -> None:
        for name, kind in _PARTS.items():
            part = getattr(self, name)
            if part is not None and not isinstance(part, kind):
                raise ConfigError(name, part, f"pass a {kind.__name__}, or None")
        for name, kind in _LISTS.items():
            part = getattr(self, name)
            if not all(isinstance(one, kind) for one in _list_of(part)):
                raise ConfigError(name, part, f"pass a {kind.__name__}, a list of them, or None")
        units = [budget.unit for budget in self.budgets]
        if len(set(units)) < len(units):
            raise ConfigError("budget", self.budget, "two budgets have the same unit: pass the smaller one")
        check_errors("failure_on", self.failure_on)

    @property
    def budgets(self) -> tuple[Budget, ...]:
        """The budgets."""
        return _list_of(self.budget)

    @property
    def rate_limits(self) -> tuple[RateLimit, ...]:
        """The rate limits."""
        return _list_of(self.rate_limit)

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
    runtime : Runtime
        The subtask, and the states that hold what budgets have spent.
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
    hold : callable or None
        Lets no call begin for some seconds, because the service has asked for that. None without a rate limit: nobody
        has said that all calls share a limit of the service.
    """

    __slots__ = (
        "_breaker",
        "_clock",
        "_concurrency",
        "_costs",
        "_flights",
        "_latency",
        "_rate",
        "_running",
        "_settings",
        "cache",
        "calls",
        "hold",
    )

    def __init__(
        self, settings: Resilience, runtime: Runtime, capacity: int, clock: Clock, latency: LatencyHistogram
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._latency = latency
        cache, concurrency = settings.cache, settings.concurrency
        breaker = settings.circuit_breaker
        self.cache = None if cache is None else OutputCache(cache, clock)
        self._flights: Flights | None = None
        self._concurrency = None if concurrency is None else ConcurrencyLimiter(concurrency, capacity, clock)
        self._breaker = None if breaker is None else Breaker(breaker, clock)
        self._costs = _costs_of(settings, runtime, clock)
        self._rate: RateLimiter | None = None
        if self._costs is None and settings.rate_limits:
            share = settings.rate_limits[0].share(runtime.subtask_index, runtime.parallelism)
            self._rate = RateLimiter(share, clock)
        rate = self._rate if self._costs is None else self._costs.rate
        self.hold = None if rate is None or not settings.rate_limits else rate.hold
        self.calls = self._running = 0

    def protect(self, invoke: Invoke) -> Invoke:
        """Wrap a function's coroutine with the limits, for calls per element."""
        limited = self._limited(invoke, lambda _value, _ctx: 1, lambda value, ctx: ([value], ctx))
        if self._settings.single_flight is None:
            return limited
        self._flights = Flights(self._settings.single_flight, limited)
        return self._flights.invoke

    def protect_batch(
        self, invoke: Callable[[_Batch], Coroutine[Any, Any, _Result]]
    ) -> Callable[[_Batch], Coroutine[Any, Any, _Result]]:
        """Wrap a batch function's coroutine with the limits, for calls per batch."""
        return self._limited(invoke, lambda batch: batch.wanted, lambda batch: (batch.values(), batch))

    def stop(self) -> None:
        """Admit no more calls."""
        for part in self._parts_with_lines():
            part.stop()

    def statistics(self) -> ResilienceStatistics:
        """Return the current counters."""
        cache, concurrency, breaker, costs = self.cache, self._concurrency, self._breaker, self._costs
        rate = self._rate if costs is None else costs.rate
        lines = [part.line for part in self._parts_with_lines()]
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
            budget_refused=0 if costs is None else sum(account.refused for account in costs.accounts),
            spent={} if costs is None else dict(costs.spent),
            wait_seconds=sum(line.seconds for line in lines),
        )

    def _parts_with_lines(self) -> Sequence[PartWithLine]:
        parts = self._concurrency, self._breaker, self._rate
        found: list[PartWithLine] = [part for part in parts if part is not None]
        return found if self._costs is None else [*found, *self._costs.accounts, self._costs.rate]

    def _limited(
        self,
        invoke: Callable[_Args, Coroutine[Any, Any, _Result]],
        elements_of: Callable[_Args, int],
        payment_of: Callable[_Args, tuple[Sequence[Any], Payer]],
    ) -> Callable[_Args, Coroutine[Any, Any, _Result]]:
        breaker, rate = self._breaker, self._rate

        async def call(*args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
            permit = await _permit(breaker, rate)
            self.calls += elements_of(*args, **kwargs)
            return await self._watch(permit, invoke(*args, **kwargs))

        async def call_and_pay(*args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
            assert self._costs is not None, "costs are counted"
            values, payer = payment_of(*args, **kwargs)
            async with self._costs.bill(values) as bill:
                permit = await _permit(breaker, bill.claim)
                bill.begin(payer)
                self.calls += elements_of(*args, **kwargs)
                return await self._watch(permit, invoke(*args, **kwargs))

        begin = call if self._costs is None else call_and_pay

        async def call_in_turn(*args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
            assert self._concurrency is not None, "the concurrency limit is on"
            await self._concurrency.acquire()
            try:
                return await begin(*args, **kwargs)
            finally:
                self._concurrency.release()

        return begin if self._concurrency is None else call_in_turn

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
            # Before anything of this call is given back, with which the next one would begin.
            if isinstance(error, RetryAfter) and self.hold is not None:
                self.hold(error.seconds)
            failed = is_meant(self._settings.failure_on, error)
            raise
        finally:
            self._running -= 1
            self._latency.add(self._clock.time() - began)
            if self._concurrency is not None:
                self._concurrency.record(began, failed=failed)
            if self._breaker is not None:
                self._breaker.record(permit, failed=failed)


async def _permit(breaker: Breaker | None, pace: Pace | None) -> Permit:
    """Wait until a call may begin in the current step of the loop."""
    while True:
        permit = 0 if breaker is None else await breaker.acquire()
        if pace is None:
            return permit
        try:
            await pace.acquire()
        except BaseException:
            if breaker is not None:
                breaker.give_back(permit)
            raise
        if breaker is None or breaker.holds(permit):
            return permit
        pace.give_back()  # the breaker opened during the wait


def _costs_of(settings: Resilience, runtime: Runtime, clock: Clock) -> Costs | None:
    """Return what counts costs; None if there is nothing but at most one rate of calls, which is cheaper."""
    limits, budgets = settings.rate_limits, settings.budgets
    if not budgets and len(limits) < 2 and all(limit.cost is None for limit in limits):
        return None
    share = runtime.subtask_index, runtime.parallelism
    accounts = [Account(budget, share, runtime.operator_state(budget.state), clock) for budget in budgets]
    return Costs(limits, accounts, share, clock)


def _list_of(part: Any) -> tuple[Any, ...]:
    """Return the parts where one, several or none may be passed."""
    return tuple(part) if isinstance(part, list | tuple) else () if part is None else (part,)
