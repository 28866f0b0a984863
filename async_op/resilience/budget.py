"""A budget: a sum that all calls together may spend; and what one call costs, from its estimate to what it spent."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from async_op.call_costs import BudgetSpent, Spending, check_amount
from async_op.clock import Clock
from async_op.resilience.cost_limits import CostLimiter, Demand
from async_op.resilience.lending import Allowed, Holding
from async_op.resilience.waiting_line import Guest, Line, Share, share_of
from keygroups.arguments import check_callable, check_number
from keygroups.descriptors import OperatorListState
from keygroups.errors import ConfigError
from keygroups.names import STATE_NAME
from keygroups.representation import counts_repr
from keygroups.state import OperatorListHandle

_log = logging.getLogger(__name__)

_FREE_CALLS = 10
_NOTHING_SPENT = (
    "%d calls have spent nothing of the budget of %s %s, so it limits nothing: have the function call ctx.spent(%s=…), "
    "or pass cost=, for example cost=lambda element: 1 to count calls"
)


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits what all calls together spend, in a unit such as tokens or cents.

    A call for which not enough is left is not made: it fails with `BudgetSpent`, which is never retried. So with
    `on_error="fail"` the operator stops, and with "dead_letter" or "skip" the elements for which nothing is left go
    that way. A call that fits only if calls under way spend less than their estimates waits for these. So the sum is
    exact: if no call spends more than its estimate, the limit is never exceeded, and no call is refused that would have
    fitted.

    The subtasks of a job spend from one sum. The processes of a job, and the hosts of a pipeline on Spark, begin with
    equal shares of what is left, and lend each other the rest. Operators that you create yourself have equal shares
    each. What is spent is an operator state, and so part of each snapshot: restarts and rescales continue to count.
    Calls since the newest snapshot are not in it. A crash repeats them, and the service charges for both.

    Parameters
    ----------
    limit : float
        What all subtasks together may spend. Sums of integers are exact, so count in small units.
    unit : str
        What is counted: the name under which `ctx.spent` reports it.
    cost : callable, optional
        Estimates what the call for an element will spend; should be an upper bound. Without it, calls are made until
        the limit is reached, and then those under way may exceed it.

    Raises
    ------
    ConfigError
        An argument is invalid.

    Examples
    --------
    >>> Budget(5_000_000, "microdollars", cost=lambda prompt: 30 * len(prompt))
    Budget(limit=5000000, unit='microdollars', cost=<lambda>)
    """

    limit: float
    unit: str
    cost: Callable[[Any], float] | None = None

    __repr__ = counts_repr

    def __post_init__(self) -> None:
        if check_number("limit", self.limit, reason="what may be spent, more than zero") <= 0:
            raise ConfigError("limit", self.limit, "what may be spent, more than zero")
        STATE_NAME.check("unit", self.unit)
        if self.cost is not None:
            check_callable("cost", self.cost, 1, reason="it estimates what the call for an element spends")

    @property
    def state(self) -> OperatorListState:
        """The operator state that holds what is spent."""
        return OperatorListState(f"keygroups_budget_{self.unit}", mode="union")


class BudgetShare:
    """What the subtasks in this process may spend of a budget. Only the thread of the event loop may call it.

    Parameters
    ----------
    budget : Budget
        The budget of all subtasks together.
    share : (int, int)
        Which part of what is left this process has, of how many equal ones.
    spent_by_all : float
        What the snapshot says that all subtasks have spent.
    clock : Clock
        The source of time.

    Attributes
    ----------
    budget : Budget
        The budget.
    spent : float
        What calls have spent since the snapshot.
    line : Line
        The calls that wait for the outcome of others, or for what other processes lend.
    may_wait : bool
        Whether calls wait for what other processes lend; if not, the share of this process is all that there is.
    """

    __slots__ = ("_before", "_free", "_most", "_open", "_reserved", "_share", "budget", "line", "may_wait", "spent")

    def __init__(self, budget: Budget, share: Share, spent_by_all: float, clock: Clock) -> None:
        self.budget = budget
        self._before: float = 0
        self._most = max(0, budget.limit - spent_by_all)
        self._share = share_of(self._most, *share)
        self.may_wait = False
        self._open = self._free = 0
        self._reserved: float = 0
        self.spent: float = 0
        self.line = Line(clock)

    def join(self, spent: float) -> None:
        """Take in a subtask; `spent` is what the snapshot says that it has spent."""
        self._before += spent

    async def reserve(self, amount: float, guest: Guest) -> None:
        """Set an amount aside for a call.

        Raises
        ------
        BudgetSpent
            So much is not left.
        """
        while True:
            most = self._most if self.may_wait else self._share
            if self.spent >= most or self.spent + amount > most:
                raise BudgetSpent(self.budget.unit, self.budget.limit, most, self.spent, amount)
            if self.spent < self._share and self.spent + self._reserved + amount <= self._share:
                self._open += 1
                self._reserved += amount
                return
            await self.line.wait(self.look_again, guest)

    def settle(self, amount: float, spent: float) -> None:
        """Note what a call has spent for which an amount was set aside."""
        self._open -= 1
        # Without open calls nothing is set aside, not even a rounding error, for which a call would wait for ever.
        self._reserved = self._reserved - amount if self._open else 0
        self.spent += spent
        self.look_again()

    def notice(self, spent: float) -> None:
        """Warn once if nothing is ever spent, because such a budget limits nothing, and nothing else shows it."""
        self._free += not spent
        if self._free == _FREE_CALLS and not self.spent + self._before and self.budget.cost is None:
            _log.warning(_NOTHING_SPENT, _FREE_CALLS, self.budget.limit, self.budget.unit, self.budget.unit)

    def change(self, allowed: Allowed | None, *, may_wait: bool) -> None:
        """Go on with another share, but with no less than what is spent or set aside."""
        if allowed is not None:
            self._share = max(allowed.amount - self._before, self.spent + self._reserved)
            self._most = max(allowed.most - self._before, self._share)
        self.may_wait = may_wait
        self.look_again()

    @property
    def left(self) -> float:
        """What is left of the budget, as far as this process knows; negative if calls have spent more than it."""
        return self._most - self.spent

    @property
    def is_short(self) -> bool:
        """Whether calls wait, and other processes may have something left."""
        return self.may_wait and self._share < self._most and len(self.line) > 0

    @property
    def waits_for_loans(self) -> bool:
        """Whether calls wait, and not for the outcome of calls under way."""
        return not self._open and self.is_short

    def holding(self) -> Holding:
        """Return what it holds of the budget, with what its subtasks had spent before."""
        before, spent = self._before, self._before + self.spent
        return Holding(before + self._share, spent + self._reserved, self.is_short, spent)

    def look_again(self) -> None:
        """Let all calls that wait look again; those that come too late wait again."""
        while self.line.admit():
            pass


class Account:
    """What one subtask spends from a pool, kept in its operator state. Only the thread of the event loop may call it.

    The sum of the subtasks' states is what all of them have spent, so their cuts add up however the pool is shared.

    Parameters
    ----------
    pool : BudgetShare
        What the subtasks in this process may spend.
    handle : OperatorListHandle
        What is spent: one sum for each subtask of the restored snapshot.

    Attributes
    ----------
    guest : Guest
        What the subtask's calls have waited for the outcome of others.
    refused : int
        How many calls have failed with `BudgetSpent`.
    """

    __slots__ = ("_handle", "_pool", "_spent", "guest", "refused")

    def __init__(self, pool: BudgetShare, handle: OperatorListHandle) -> None:
        self._pool = pool
        self._handle = handle
        self._spent = sum(handle.in_snapshot())
        self.refused = 0
        self.guest = Guest()

    @property
    def unit(self) -> str:
        """What is counted."""
        return self._pool.budget.unit

    @property
    def left(self) -> float:
        """What is left of the budget, for all."""
        return self._pool.left

    def estimate(self, values: Sequence[Any]) -> float:
        """Return what the call for some elements will spend, as far as is known."""
        cost = self._pool.budget.cost
        return 0 if cost is None else sum(check_amount("cost", cost(value)) for value in values)

    async def reserve(self, amount: float) -> None:
        """Set an amount aside for a call.

        Raises
        ------
        BudgetSpent
            So much is not left.
        """
        try:
            await self._pool.reserve(amount, self.guest)
        except BudgetSpent:
            self.refused += 1
            raise

    def settle(self, amount: float, spending: Spending | None) -> None:
        """Note what a call has spent for which an amount was set aside; None if it was not made."""
        spent: float = 0
        if spending is not None:
            spent = spending.total(self.unit, amount)
            self._spent += spent
            self._handle.update([self._spent])
            self._pool.notice(spent)
        self._pool.settle(amount, spent)


class Payer(Protocol):
    """What has the function's reports: the context of a call, or a batch."""

    spending: Any


class Costs:
    """What the calls of one operator cost. Only the thread of the event loop may call it.

    Parameters
    ----------
    rate : CostLimiter
        The limits, with and without costs, which other operators may share.
    accounts : sequence of Account
        What the operator spends of the budgets.

    Attributes
    ----------
    rate, accounts
        The parameters.
    spent : dict of str to float
        What the calls that have ended have cost, by unit.
    """

    __slots__ = ("accounts", "rate", "spent", "units")

    def __init__(self, rate: CostLimiter, accounts: Sequence[Account]) -> None:
        self.rate = rate
        self.accounts = accounts
        units = [unit for unit in self.rate.units if unit is not None] + [account.unit for account in accounts]
        self.spent: dict[str, float] = dict.fromkeys(units, 0)
        self.units = frozenset(units)

    def bill(self, values: Sequence[Any]) -> Bill:
        """Return the bill of a call for some elements; raises if the call can never be made, or what `cost` raises."""
        return Bill(self, self.rate.claim(values), [account.estimate(values) for account in self.accounts])

    def note(self, spending: Spending, claim: Demand, amounts: Sequence[float]) -> None:
        """Add up what a call has cost."""
        estimates = dict(zip(self.rate.units, claim.costs, strict=True))
        for account, amount in zip(self.accounts, amounts, strict=True):
            estimates.setdefault(account.unit, amount)
        for unit in self.units:
            self.spent[unit] += spending.total(unit, estimates[unit])


class Bill:
    """The costs of one call, from the moment at which there is enough left for it to its end; use it with `async with`.

    Attributes
    ----------
    claim : Demand
        What the call needs of the limits.
    """

    __slots__ = ("_amounts", "_costs", "_reserved", "_spending", "claim")

    def __init__(self, costs: Costs, claim: Demand, amounts: list[float]) -> None:
        self._costs = costs
        self._amounts = amounts
        self._reserved: list[tuple[Account, float]] = []
        self._spending: Spending | None = None
        self.claim = claim

    async def __aenter__(self) -> Bill:
        try:
            for account, amount in zip(self._costs.accounts, self._amounts, strict=True):
                await account.reserve(amount)
                self._reserved.append((account, amount))
        except BaseException:
            self._settle()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._settle()

    def begin(self, payer: Payer) -> None:
        """Note that the call begins, and who has its reports."""
        payer.spending = self._spending = Spending(self._costs.units)

    def _settle(self) -> None:
        spending = self._spending
        if spending is not None:
            spending.has_ended = True
            self.claim.settle(spending)
            self._costs.note(spending, self.claim, self._amounts)
        for account, amount in self._reserved:
            account.settle(amount, spending)
