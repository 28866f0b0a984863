"""Several limits side by side, to which calls come with a cost."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from async_op.clock import Clock
from async_op.cost_errors import CostAboveLimit
from async_op.resilience.charges import Charge, Charges
from async_op.resilience.line import Alarm, Guest, Line, Share
from async_op.resilience.rate_limit import RateLimit
from async_op.spending import Spending, check_amount


class CostLimiter:
    """Admits calls at the pace of all its limits, first come, first served. Only the event loop's thread may call it.

    A call is admitted once all limits have the credit for it, and is charged to all of them in that moment. So no limit
    is charged for a call that still waits for another one, and a cheap call does not overtake an expensive one.

    Parameters
    ----------
    limits : sequence of RateLimit
        The limits of all subtasks together.
    share : (int, int)
        Which part of the limits this process has, of how many equal ones.
    clock : Clock
        The source of time.

    Attributes
    ----------
    line : Line
        The calls that wait.
    units : list of str or None
        The unit of each limit; None for calls.
    """

    __slots__ = ("_alarm", "_clock", "_held_until", "_meters", "_rings_at", "line", "units")

    def __init__(self, limits: Sequence[RateLimit], share: Share, clock: Clock) -> None:
        self._clock = clock
        self._meters = [_Meter(limit, share, clock.time()) for limit in limits]
        self._alarm = Alarm(clock, self._ring)
        self._rings_at = 0.0
        self._held_until = -math.inf
        self.line = Line(clock)
        self.units = [limit.unit for limit in limits]

    def claim(self, values: Sequence[Any]) -> Claim:
        """Return the claim of a call for some elements.

        Raises
        ------
        CostAboveLimit
            It can never be admitted.
        ConfigError
            A cost is no number, or a negative one.
        """
        return Claim(self, [meter.cost_of(values) for meter in self._meters])

    def rest(self) -> None:
        """Set no timer while there is no operator."""
        self._alarm.unset()

    async def acquire(self, claim: Claim, guest: Guest) -> None:
        """Wait until the call of a claim may begin."""
        while True:
            now = self._clock.time()
            ready = self._ready_at(claim)
            if not len(self.line):
                if ready <= now:
                    self._take(claim, now)
                    return
                self._wake_at(ready)
            try:
                await self.line.wait(claim.give_back, guest, claim)
            except BaseException:
                self.look_again()  # the next in line may be cheaper
                raise
            if self._held_until <= self._clock.time():
                return
            claim.give_back()  # calls were held between this turn of the line and this step of the loop

    def hold(self, seconds: float) -> None:
        """Let no call begin for so long, or longer if an earlier hold lasts longer."""
        self._held_until = max(self._held_until, self._clock.time() + seconds)

    def settle(self, claim: Claim, amounts: Sequence[float]) -> None:
        """Correct what a call was charged, and admit the calls that now may begin."""
        for meter, charge, amount in zip(self._meters, claim.charges, amounts, strict=True):
            meter.correct(charge, amount)
        self.look_again()

    def look_again(self) -> None:
        """Admit the calls that may begin now, and find out when the next one may."""
        self._admit(self._clock.time())

    def _ring(self) -> None:
        # A timer may ring too early by a rounding error.
        self._admit(max(self._clock.time(), self._rings_at))

    def _admit(self, now: float) -> None:
        while (claim := self.line.first) is not None:
            ready = self._ready_at(claim)
            if ready > now:
                self._wake_at(ready)
                return
            self._held_until = -math.inf
            self._take(claim, now)
            self.line.admit()

    def _wake_at(self, when: float) -> None:
        self._rings_at = when
        self._alarm.set(when)

    def _ready_at(self, claim: Claim) -> float:
        return max([self._held_until, *map(_Meter.ready_at, self._meters, claim.costs)])

    def _take(self, claim: Claim, now: float) -> None:
        claim.charges = [meter.take(now, cost) for meter, cost in zip(self._meters, claim.costs, strict=True)]


class Claim:
    """What one call needs of each limit."""

    __slots__ = ("_limiter", "charges", "costs")

    def __init__(self, limiter: CostLimiter, costs: list[float]) -> None:
        self._limiter = limiter
        self.costs = costs
        self.charges: list[Charge] = []

    async def acquire(self, guest: Guest) -> None:
        """Wait until the call may begin."""
        await self._limiter.acquire(self, guest)

    def give_back(self) -> None:
        """Restore the credit of a call that was not made."""
        self._limiter.settle(self, [0.0] * len(self.costs))

    def settle(self, spending: Spending) -> None:
        """Note what the call has spent after all."""
        self._limiter.settle(self, list(map(spending.total, self._limiter.units, self.costs)))


class _Meter:
    """One limit: generic cell rate, with costs and corrections."""

    __slots__ = ("_burst", "_charges", "_cost", "_interval", "_unit", "_whole")

    def __init__(self, limit: RateLimit, share: Share, now: float) -> None:
        own = limit.share(*share)
        assert own.burst is not None, "a share has a burst"
        self._cost = limit.cost
        self._whole = limit.whole_burst
        self._interval = 1 / own.per_second
        self._burst = own.burst
        self._charges = Charges(now + (self._burst - 1) * self._interval)
        self._unit = limit.unit or "calls"

    def cost_of(self, values: Sequence[Any]) -> float:
        if self._cost is None:
            return 1.0
        cost = sum(check_amount("cost", self._cost(value)) for value in values)
        if cost > self._whole:
            raise CostAboveLimit(cost, self._whole, self._unit)
        return cost

    def ready_at(self, cost: float) -> float:
        # What costs more than this process's share of the burst needs all of it, and is paid off afterwards.
        return self._charges.full_at - max(0.0, self._burst - cost) * self._interval

    def take(self, now: float, cost: float) -> Charge:
        return self._charges.add(now, cost * self._interval)

    def correct(self, charge: Charge, amount: float) -> None:
        self._charges.correct(charge, amount * self._interval)
