"""Several limits side by side, with costs: the credit of each is used up by charges that may be corrected later."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from async_op.call_costs import CostAboveLimit, Spending, check_amount
from async_op.clock import Clock
from async_op.resilience.rate_limit import RateLimit
from async_op.resilience.waiting_line import Alarm, Guest, Line, Share

_SIZE_MIN = 16

_Step = tuple[float, float]
"""What charges do to the moment `x` at which the credit would be complete: it becomes ``max(x + first, second)``."""

_NOTHING: _Step = (0.0, -math.inf)


class Charge:
    """One use of the credit.

    Attributes
    ----------
    seconds : float
        How long the rate takes to restore it.
    """

    __slots__ = ("is_final", "place", "seconds", "until")

    def __init__(self, at: float, seconds: float) -> None:
        self.place = 0
        self.seconds = seconds
        self.until = at + seconds
        self.is_final = False


class Charges:
    """Charges against one credit, in the order in which they were made. Only one thread may call it.

    A charge at time `t`, restored in `c` seconds, makes the credit complete at ``max(full_at, t) + c``. A correction
    acts as if the charge had been right from the beginning. It cannot simply move the moment: if the
    credit would have been complete in between, a part of the difference would have been lost. So the charges are the
    leaves of a tree whose nodes say what the charges below them do together, and a correction changes one path. Charges
    that are final are folded together, so the tree is no larger than the open charges need.

    Why not simply add up: the tests compare the tree with a loop over all charges after each correction, which gives
    the same in time that is linear in the open charges. A model's tokens are known seconds after the call, and a
    thousand calls may be open, so that each answer would cost a thousand steps; here it is ten.

    Why a tree may do that: a charge of `c` at `t` maps the moment `x` at which the credit is complete to
    ``max(x, t) + c``, which is ``max(x + a, b)`` with ``a = c`` and ``b = t + c``. Such maps are closed under
    composition: ``max(max(x + a1, b1) + a2, b2)`` is ``max(x + a1 + a2, max(b1 + a2, b2))``. Composition is
    associative, so each node may hold the map of all charges below it, in their order, and the root holds the map of
    all. ``(0, -inf)`` changes nothing, and stands for leaves without a charge. Times and amounts may be in any unit
    that both share; limits that are lent count in units of cost, on a clock that the rate drives.

    Parameters
    ----------
    full_at : float
        When the credit would be complete without any charge.

    Attributes
    ----------
    full_at : float
        When the credit will be complete.

    Examples
    --------
    >>> charges = Charges(0.0)
    >>> first, second = charges.add(0.0, 10.0), charges.add(5.0, 4.0)
    >>> charges.full_at
    14.0
    >>> charges.correct(first, 1.0)  # the credit would have been complete from 1 to 5
    >>> charges.full_at
    9.0
    """

    __slots__ = ("_base", "_charges", "_nodes", "_size", "full_at")

    def __init__(self, full_at: float) -> None:
        self._base = self.full_at = full_at
        self._size = _SIZE_MIN
        self._charges: list[Charge] = []
        self._nodes = [_NOTHING] * (2 * self._size)

    def __len__(self) -> int:
        return len(self._charges)

    def add(self, at: float, seconds: float) -> Charge:
        """Make a charge, not before the last one."""
        if len(self._charges) == self._size:
            self._fold()
        charge = Charge(at, seconds)
        charge.place = len(self._charges)
        self._charges.append(charge)
        self._climb(charge)
        return charge

    def correct(self, charge: Charge, seconds: float) -> None:
        """Give a charge, once, the size that it should have had; then it is final."""
        charge.until += seconds - charge.seconds
        charge.seconds = seconds
        charge.is_final = True
        self._climb(charge)

    def _climb(self, charge: Charge) -> None:
        nodes, node = self._nodes, self._size + charge.place
        nodes[node] = charge.seconds, charge.until
        while node > 1:
            node >>= 1
            nodes[node] = _after(nodes[2 * node], nodes[2 * node + 1])
        seconds, until = nodes[1]
        self.full_at = max(self._base + seconds, until)

    def _fold(self) -> None:
        """Make room: final charges at the beginning become part of the base, and neighbours become one."""
        kept: list[Charge] = []
        for charge in self._charges:
            if not charge.is_final:
                kept.append(charge)
            elif not kept:
                self._base = max(self._base + charge.seconds, charge.until)
            elif kept[-1].is_final:
                last = kept[-1]
                last.seconds, last.until = _after((last.seconds, last.until), (charge.seconds, charge.until))
            else:
                kept.append(charge)
        while 2 * len(kept) > self._size:
            self._size *= 2
        self._charges = kept
        self._nodes = [_NOTHING] * (2 * self._size)
        for place, charge in enumerate(kept):
            charge.place = place
            self._nodes[self._size + place] = charge.seconds, charge.until
        for node in range(self._size - 1, 0, -1):
            self._nodes[node] = _after(self._nodes[2 * node], self._nodes[2 * node + 1])


def _after(first: _Step, second: _Step) -> _Step:
    return first[0] + second[0], max(first[1] + second[0], second[1])


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
    meters : list of Meter
        What is known of each limit.
    """

    __slots__ = ("_alarm", "_clock", "_held_until", "_rings_at", "line", "meters", "units")

    def __init__(self, limits: Sequence[RateLimit], share: Share, clock: Clock) -> None:
        self._clock = clock
        self.meters = [Meter(limit, share, clock.time()) for limit in limits]
        self._alarm = Alarm(clock, self._ring)
        self._rings_at = 0.0
        self._held_until = -math.inf
        self.line = Line(clock)
        self.units = [limit.unit for limit in limits]

    def claim(self, values: Sequence[Any]) -> Demand:
        """Return the claim of a call for some elements.

        Raises
        ------
        CostAboveLimit
            It can never be admitted.
        ConfigError
            A cost is no number, or a negative one.
        """
        return Demand(self, [meter.cost_of(values) for meter in self.meters])

    def rest(self) -> None:
        """Set no timer while there is no operator."""
        self._alarm.unset()

    async def acquire(self, claim: Demand, guest: Guest) -> None:
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

    def settle(self, claim: Demand, amounts: Sequence[float]) -> None:
        """Correct what a call was charged, and admit the calls that now may begin."""
        for meter, charge, amount in zip(self.meters, claim.charges, amounts, strict=True):
            meter.correct(charge, amount)
        self.look_again()

    def change(self, number: int, share: RateLimit) -> None:
        """Go on with another share of one limit."""
        self.meters[number].change(share, self._clock.time())
        self.look_again()

    def spend_credit(self) -> None:
        """Begin without the credit of one unit."""
        for meter in self.meters:
            meter.correct(meter.take(self._clock.time(), 1.0), 1.0)

    def is_short(self, number: int) -> bool:
        """Return whether the first call waits for one limit, and not only because the service has asked to wait."""
        claim, now = self.line.first, self._clock.time()
        return claim is not None and self._held_until <= now < self.meters[number].ready_at(claim.costs[number])

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

    def _ready_at(self, claim: Demand) -> float:
        return max([self._held_until, *map(Meter.ready_at, self.meters, claim.costs)])

    def _take(self, claim: Demand, now: float) -> None:
        claim.charges = [meter.take(now, cost) for meter, cost in zip(self.meters, claim.costs, strict=True)]


class Demand:
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


class Meter:
    """One limit: generic cell rate, with costs and corrections.

    It counts in units, on a clock that advances by one when the rate has restored one unit: so a change of the rate
    changes only how that clock goes on.
    """

    __slots__ = ("_at", "_burst", "_charges", "_cost", "_rate", "_unit", "_units", "limit", "taken")

    def __init__(self, limit: RateLimit, share: Share, now: float) -> None:
        own = limit.share(*share)
        self.limit = limit
        self.taken = 0.0
        self._cost = limit.cost
        self._rate = own.per_second
        self._burst = own.whole_burst
        self._at, self._units = now, 0.0
        self._charges = Charges(self._burst - 1.0)
        self._unit = limit.unit or "calls"

    def cost_of(self, values: Sequence[Any]) -> float:
        """Return what a call for some elements costs; raises `CostAboveLimit` if it can never be admitted."""
        if self._cost is None:
            return 1.0
        cost = sum(check_amount("cost", self._cost(value)) for value in values)
        if cost > self.limit.whole_burst:
            raise CostAboveLimit(cost, self.limit.whole_burst, self._unit)
        return cost

    def ready_at(self, cost: float) -> float:
        """Return when there is enough credit for a call."""
        # What costs more than this process's share of the burst needs all of it, and is paid off afterwards.
        units = self._charges.full_at - max(0.0, self._burst - cost)
        return self._at + (units - self._units) / self._rate

    def take(self, now: float, cost: float) -> Charge:
        """Charge a call that begins."""
        self.taken += cost
        return self._charges.add(self._units_at(now), cost)

    def correct(self, charge: Charge, amount: float) -> None:
        """Charge a call what it has cost after all."""
        self._charges.correct(charge, amount)

    def change(self, share: RateLimit, now: float) -> None:
        """Go on with another share. The credit stays the same, as far as the new burst can hold it."""
        self._at, self._units = now, self._units_at(now)
        more = share.whole_burst - self._burst
        self._rate, self._burst = share.per_second, share.whole_burst
        # Room for more credit that is not there yet is like a charge for it.
        self._charges.correct(self._charges.add(self._units, more), more)

    def _units_at(self, now: float) -> float:
        return self._units + (now - self._at) * self._rate
