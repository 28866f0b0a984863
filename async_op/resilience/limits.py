"""Combines the parts that an element passes before its call, in a fixed order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar

from async_op.clock import Clock
from async_op.errors import CircuitOpen
from async_op.functions.base import AsyncBatchFunction, Function
from async_op.functions.context import Invoke
from async_op.functions.runtime import Runtime
from async_op.resilience.budget import Account, Budget, BudgetShare, Costs, Payer
from async_op.resilience.cache import Cache, OutputCache
from async_op.resilience.circuit_breaker import Breaker, CircuitBreaker, Permit
from async_op.resilience.concurrency import AdaptiveConcurrency, ConcurrencyLimiter
from async_op.resilience.cost_limits import CostLimiter
from async_op.resilience.lending import Allowance, Holding, Holdings
from async_op.resilience.rate_limit import RateLimit, RateLimiter
from async_op.resilience.single_flight import Flights, SingleFlight
from async_op.resilience.waiting_line import WHOLE, Guest, Share
from async_op.retry import RetryOn, check_errors, is_meant, seconds_asked
from async_op.statistics import LatencyHistogram, ResilienceStatistics
from keygroups.errors import ConfigError
from keygroups.representation import fields_repr
from keygroups.state import OperatorListHandle

_PARTS: dict[str, type] = {
    "cache": Cache,
    "single_flight": SingleFlight,
    "concurrency": AdaptiveConcurrency,
    "circuit_breaker": CircuitBreaker,
}
_LISTS: dict[str, type] = {"budget": Budget, "rate_limit": RateLimit}
"""The parts of which there may be several."""

_LEAST_SECONDS = 0.001
"""What is used within a shorter time says nothing about a rate."""


class Batch(Protocol):
    """One call for many elements."""

    @property
    def wanted(self) -> int:
        """How many elements still need their results."""
        ...

    def values(self) -> Sequence[Any]:
        """Return the values of all elements."""
        ...


class Pacer(Protocol):
    """Says when calls may begin."""

    async def acquire(self, guest: Guest) -> None:
        """Wait until the call may begin."""
        ...

    def give_back(self) -> None:
        """Take back a call that was not made."""
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

    def lendable(self, hosts: int) -> dict[str, float]:
        """Return the whole of each limit that hosts lend each other, by name; the whole of a rate is 1."""
        found: dict[str, float] = {f"rate {number}": 1.0 for number in range(len(self.rate_limits))}
        found |= {f"budget {budget.unit}": budget.limit for budget in self.budgets}
        if self.concurrency is not None and self.concurrency.maximum is not None:
            found["concurrency"] = max(self.concurrency.maximum, hosts)  # each host has at least one call
        return found

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


class SharedLimits:
    """The limits that all operators of a step in this process share. Only the thread of the event loop may call it.

    A job keeps them over its rescales, which forget neither the credit of a rate nor a hold nor an open circuit.

    Parameters
    ----------
    settings : Resilience
        Which parts are on.
    clock : Clock
        The source of time.
    share : (int, int)
        Which part of each limit this process has at first, of how many equal ones.
    allowance : mapping of str to Allowed, optional
        What the driver allows this process of each limit. None if it keeps its first share.

    Attributes
    ----------
    settings, clock
        The parameters.
    concurrency : ConcurrencyLimiter or None
        The limit of concurrent calls.
    breaker : Breaker or None
        The circuit breaker.
    rate : RateLimiter or CostLimiter or None
        The limits of rate.
    """

    __slots__ = (
        "_allowance",
        "_guests",
        "_pools",
        "_seen",
        "_share",
        "_shares",
        "breaker",
        "clock",
        "concurrency",
        "rate",
        "settings",
    )

    def __init__(
        self,
        settings: Resilience,
        capacity: int,
        clock: Clock,
        share: Share = WHOLE,
        allowance: Allowance | None = None,
    ) -> None:
        self.settings = settings
        self.clock = clock
        self._share = share
        self._guests = 0
        self._pools: dict[str, BudgetShare] = {}
        concurrency, breaker = settings.concurrency, settings.circuit_breaker
        self.concurrency = None if concurrency is None else ConcurrencyLimiter(concurrency, share, capacity, clock)
        self.breaker = None if breaker is None else Breaker(breaker, clock)
        self.rate = self._new_rate()
        self._shares = [1 / share[1]] * len(settings.rate_limits)
        self._seen = [(clock.time(), 0.0)] * len(settings.rate_limits)
        self._allowance: Allowance | None = None
        self.allow(allowance, may_wait=True)
        if allowance and self.rate is not None:
            self.rate.spend_credit()  # it takes the place of a host that may have used its own

    def _new_rate(self) -> RateLimiter | CostLimiter | None:
        limits, budgets = self.settings.rate_limits, self.settings.budgets
        if budgets or len(limits) > 1 or any(limit.cost is not None for limit in limits):
            return CostLimiter(limits, self._share, self.clock)
        # A single rate of calls is cheaper to count.
        return RateLimiter(limits[0].share(*self._share), self.clock) if limits else None

    def begin(self, capacity: int) -> None:
        """Begin with other operators, restored from a snapshot that says what is spent, of so much capacity in all."""
        self._pools.clear()
        if self._allowance is not None:
            self._allowance = {}  # what it allows of budgets counts what other operators have spent
        if self.concurrency is not None:
            self.concurrency.fit(capacity)

    def join(self, runtime: Runtime) -> list[Account]:
        """Note that an operator begins; returns what it spends of the budgets."""
        self._guests += 1
        return [self._account(budget, runtime.operator_state(budget.state)) for budget in self.settings.budgets]

    def leave(self) -> None:
        """Note that an operator has ended: others may be next in its place."""
        self._guests -= 1
        for part in self._parts():
            if self._guests:
                part.look_again()
            else:
                part.rest()

    def _account(self, budget: Budget, handle: OperatorListHandle) -> Account:
        pool = self._pools.get(budget.unit)
        if pool is None:
            pool = self._pools[budget.unit] = BudgetShare(budget, self._share, sum(handle.get()), self.clock)
        pool.join(sum(handle.in_snapshot()))
        if self._allowance is not None:
            pool.change(self._allowance.get(f"budget {budget.unit}"), may_wait=True)
        return Account(pool, handle)

    def _parts(self) -> Sequence[ConcurrencyLimiter | Breaker | RateLimiter | CostLimiter]:
        return [part for part in (self.concurrency, self.breaker, self.rate) if part is not None]

    # What the driver lends.

    def allow(self, allowance: Allowance | None, *, may_wait: bool) -> None:
        """Go on with what the driver allows this process; None changes nothing.

        Parameters
        ----------
        allowance : mapping of str to Allowed or None
            What it may use of each limit.
        may_wait : bool
            Whether calls may wait for a later allowance of a budget. Not where the epoch waits for all calls.
        """
        self._allowance = allowance
        for number, limit in enumerate(self.settings.rate_limits):
            allowed = None if allowance is None else allowance.get(f"rate {number}")
            if allowed is not None and allowed.amount != self._shares[number]:
                self._shares[number] = allowed.amount
                self._change_rate(number, limit.fraction(allowed.amount))
        if allowance is not None and self.concurrency is not None and "concurrency" in allowance:
            self.concurrency.change(int(allowance["concurrency"].amount))
        for unit, pool in self._pools.items():
            allowed = None if allowance is None else allowance.get(f"budget {unit}")
            pool.change(allowed, may_wait=may_wait and allowance is not None)

    def _change_rate(self, number: int, share: RateLimit) -> None:
        if isinstance(self.rate, CostLimiter):
            self.rate.change(number, share)
        elif self.rate is not None:
            self.rate.change(share)

    def holdings(self, *, since_last: bool = False) -> Holdings:
        """Return what this process holds of each limit that can be lent, and what it uses.

        Of a rate, that is the average since the last call with `since_last`.
        """
        found = {f"rate {number}": self._rate_holding(number) for number in range(len(self._shares))}
        if since_last:
            self._seen = [(self.clock.time(), self._taken(number)) for number in range(len(self._shares))]
        for budget in self.settings.budgets:
            pool = self._pools.get(budget.unit)  # none in a process without operators
            found[f"budget {budget.unit}"] = Holding(0, 0, False) if pool is None else pool.holding()
        if self.concurrency is not None and self.settings.concurrency and self.settings.concurrency.maximum:
            found["concurrency"] = self.concurrency.holding()
        return found

    @property
    def waits_for_loans(self) -> bool:
        """Whether no call is under way, because all wait for what other processes give up of a budget."""
        return any(pool.waits_for_loans for pool in self._pools.values())

    def _rate_holding(self, number: int) -> Holding:
        rate, now, (before, taken) = self.rate, self.clock.time(), self._seen[number]
        assert rate is not None, "there is a limit of rate"
        restored = max(now - before, _LEAST_SECONDS) * self.settings.rate_limits[number].per_second
        is_short = rate.is_short(number) if isinstance(rate, CostLimiter) else rate.is_short()
        return Holding(self._shares[number], (self._taken(number) - taken) / restored, is_short)

    def _taken(self, number: int) -> float:
        rate = self.rate
        assert rate is not None, "there is a limit of rate"
        return rate.meters[number].taken if isinstance(rate, CostLimiter) else rate.taken


class Limits:
    """What one operator does with its limits. Only the thread of the event loop may call it.

    Parameters
    ----------
    shared : SharedLimits
        The limits, which other operators in this process may share.
    runtime : Runtime
        The subtask, with the states that hold what it has spent of budgets.
    latency : LatencyHistogram
        Receives the duration of each call.

    Attributes
    ----------
    cache : OutputCache or None
        Asked before an element waits for a call.
    calls : int
        How many elements have been passed to the function.
    hold : callable or None
        Lets no call begin for some seconds, because the service has asked for that. None without a rate limit: only
        that says that all calls share a limit of the service.
    """

    __slots__ = (
        "_breaker",
        "_circuit_opened",
        "_circuit_refused",
        "_clock",
        "_concurrency",
        "_costs",
        "_flights",
        "_guest",
        "_is_judged",
        "_is_stopped",
        "_latency",
        "_rate",
        "_rate_guest",
        "_running",
        "_settings",
        "_shared",
        "cache",
        "calls",
        "hold",
    )

    def __init__(self, shared: SharedLimits, runtime: Runtime, latency: LatencyHistogram) -> None:
        self._shared = shared
        self._settings = settings = shared.settings
        self._clock = shared.clock
        self._latency = latency
        self.cache = None if settings.cache is None else OutputCache(settings.cache, shared.clock)
        self._flights: Flights | None = None
        self._concurrency, self._breaker, self._rate = shared.concurrency, shared.breaker, shared.rate
        accounts = shared.join(runtime)
        self._costs = Costs(shared.rate, accounts) if isinstance(shared.rate, CostLimiter) else None
        self.hold = None if shared.rate is None or not settings.rate_limits else shared.rate.hold
        self._guest, self._rate_guest = Guest(), Guest()
        self._is_stopped = False
        self._is_judged = shared.concurrency is not None or shared.breaker is not None
        self.calls = self._running = self._circuit_opened = self._circuit_refused = 0

    @property
    def lent(self) -> SharedLimits:
        """The limits, for the driver that lends and takes back."""
        return self._shared

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
        """Admit no more calls of this operator; the others that share its limits continue."""
        if not self._is_stopped:
            self._is_stopped = True
            for guest in self._guests():
                guest.is_stopped = True
            self._shared.leave()

    def statistics(self) -> ResilienceStatistics:
        """Return the current counters of this operator, and where the shared limits stand."""
        cache, concurrency, breaker, costs = self.cache, self._concurrency, self._breaker, self._costs
        guests = self._guests()
        return ResilienceStatistics(
            cache_hits=0 if cache is None else cache.hits,
            cache_misses=0 if cache is None else cache.misses,
            cache_entries=0 if cache is None else len(cache),
            shared=0 if self._flights is None else self._flights.shared,
            waiting=sum(guest.waiting for guest in guests),
            rate_limited=self._rate_guest.waits,
            concurrency_limit=None if concurrency is None else concurrency.limit,
            running=self._running,
            circuit=None if breaker is None else breaker.state,
            circuit_opened=self._circuit_opened,
            circuit_refused=self._circuit_refused,
            budget_refused=0 if costs is None else sum(account.refused for account in costs.accounts),
            spent={} if costs is None else dict(costs.spent),
            left={} if costs is None else {account.unit: account.left for account in costs.accounts},
            wait_seconds=sum(guest.seconds for guest in guests),
        )

    def _guests(self) -> Sequence[Guest]:
        accounts = () if self._costs is None else self._costs.accounts
        return [self._guest, self._rate_guest, *(account.guest for account in accounts)]

    def _limited(
        self,
        invoke: Callable[_Args, Coroutine[Any, Any, _Result]],
        elements_of: Callable[_Args, int],
        payment_of: Callable[_Args, tuple[Sequence[Any], Payer]],
    ) -> Callable[_Args, Coroutine[Any, Any, _Result]]:
        rate = self._rate if isinstance(self._rate, RateLimiter) else None
        breaker, guest = self._breaker, self._rate_guest

        async def call(*args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
            permit = 0
            if breaker is not None:
                permit = await self._permit(breaker, rate)
            elif rate is not None:
                await rate.acquire(guest)
            self.calls += elements_of(*args, **kwargs)
            return await self._watch(permit, invoke(*args, **kwargs))

        async def call_and_pay(*args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
            assert self._costs is not None, "costs are counted"
            values, payer = payment_of(*args, **kwargs)
            async with self._costs.bill(values) as bill:
                permit = 0
                if breaker is not None:
                    permit = await self._permit(breaker, bill.claim)
                else:
                    await bill.claim.acquire(guest)
                bill.begin(payer)
                self.calls += elements_of(*args, **kwargs)
                return await self._watch(permit, invoke(*args, **kwargs))

        begin = call if self._costs is None else call_and_pay

        async def call_in_turn(*args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
            assert self._concurrency is not None, "the concurrency limit is on"
            await self._concurrency.acquire(self._guest)
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
            if self.hold is not None and (seconds := seconds_asked(error)) is not None:
                self.hold(seconds)
            failed = is_meant("failure_on", self._settings.failure_on, error)
            raise
        finally:
            self._running -= 1
            self._latency.add(self._clock.time() - began)
            if self._is_judged:
                self._record(permit, began, failed=failed)

    def _record(self, permit: Permit, began: float, *, failed: bool) -> None:
        if self._is_stopped:
            # Its calls are cancelled, which says nothing about the service to the operators that share its limits.
            if self._breaker is not None:
                self._breaker.give_back(permit)
            return
        if self._concurrency is not None:
            self._concurrency.record(began, failed=failed)
        if self._breaker is not None:
            self._circuit_opened += self._breaker.record(permit, failed=failed)

    async def _permit(self, breaker: Breaker, pace: Pacer | None) -> Permit:
        """Wait until a call may begin in the current step of the loop."""
        while True:
            permit = await self._permit_of(breaker)
            if pace is None:
                return permit
            try:
                await pace.acquire(self._rate_guest)
            except BaseException:
                breaker.give_back(permit)
                raise
            if breaker.holds(permit):
                return permit
            pace.give_back()  # the breaker opened during the wait

    async def _permit_of(self, breaker: Breaker) -> Permit:
        try:
            return await breaker.acquire(self._guest)
        except CircuitOpen:
            self._circuit_refused += 1
            raise


def _list_of(part: Any) -> tuple[Any, ...]:
    """Return the parts where one, several or none may be passed."""
    return tuple(part) if isinstance(part, list | tuple) else () if part is None else (part,)
