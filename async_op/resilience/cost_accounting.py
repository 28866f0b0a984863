"""What a call costs: claimed before it begins, and settled when it has ended."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from async_op.call_costs import Spending
from async_op.resilience.budget import Account
from async_op.resilience.cost_limits import CostLimiter, Demand


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
