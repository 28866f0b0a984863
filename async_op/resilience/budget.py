"""A budget: a sum that all calls together may spend."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from async_op.clock import Clock
from async_op.cost_errors import BudgetSpent
from async_op.resilience.line import Line
from async_op.spending import Spending, check_amount
from keygroups.arguments import check_callable, check_number
from keygroups.descriptors import OperatorListState
from keygroups.errors import ConfigError
from keygroups.names import STATE_NAME
from keygroups.representation import counts_repr
from keygroups.state import OperatorListHandle


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits what all calls together spend, in a unit such as tokens or cents.

    A call for which not enough is left is not made: it fails with `BudgetSpent`, which is never retried. So with
    `on_error="fail"` the operator stops, and with "dead_letter" or "skip" the elements for which nothing is left go
    that way. A call that fits only if calls under way spend less than their estimates waits for these. So the sum is
    exact: if no call spends more than its estimate, the limit is never exceeded, and a subtask refuses no call that
    would have fitted into its share.

    What is spent is an operator state, and so part of each snapshot: restarts and rescales go on counting, and deal out
    what is left in equal shares to the subtasks. In between, the shares are fixed. So if keys are spread unevenly, a
    busy subtask refuses calls while others have something left; with a parallelism of one there is one share. Calls
    since the newest snapshot are not in it. A crash makes them again, and the service charges for both.

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
            check_callable("cost", self.cost, reason="it estimates what the call for an element spends")

    @property
    def state(self) -> OperatorListState:
        """The operator state that holds what is spent."""
        return OperatorListState(f"keygroups_budget_{self.unit}", mode="union")


class Account:
    """A subtask's share of a budget. Only the thread of the event loop may call it.

    Parameters
    ----------
    budget : Budget
        The budget of all subtasks together.
    share : (int, int)
        The index of this subtask, and the parallelism.
    handle : OperatorListHandle
        What is spent: one sum for each subtask of the restored snapshot.
    clock : Clock
        The source of time.

    Attributes
    ----------
    spent : float
        What this subtask's calls have spent.
    refused : int
        How many calls have failed with `BudgetSpent`.
    line : Line
        The calls that wait for the outcome of others.
    """

    __slots__ = ("_budget", "_handle", "_kept", "_open", "_reserved", "_share", "line", "refused", "spent")

    def __init__(self, budget: Budget, share: tuple[int, int], handle: OperatorListHandle, clock: Clock) -> None:
        self._budget = budget
        self._handle = handle
        self._kept = sum(handle.in_snapshot())
        self._share = _share_of(max(0, budget.limit - sum(handle.get())), *share)
        self._open = 0
        self._reserved: float = 0
        self.spent: float = 0
        self.refused = 0
        self.line = Line(clock)

    @property
    def unit(self) -> str:
        """What is counted."""
        return self._budget.unit

    def estimate(self, values: Sequence[Any]) -> float:
        """Return what the call for some elements will spend, as far as is known."""
        cost = self._budget.cost
        return 0 if cost is None else sum(check_amount("cost", cost(value)) for value in values)

    async def reserve(self, amount: float) -> None:
        """Set an amount aside for a call.

        Raises
        ------
        BudgetSpent
            So much is not left.
        """
        while True:
            if self.spent >= self._share or self.spent + amount > self._share:
                self.refused += 1
                raise BudgetSpent(self._budget.unit, self._budget.limit, self._share, self.spent, amount)
            if self.spent + self._reserved + amount <= self._share:
                self._open += 1
                self._reserved += amount
                return
            await self.line.wait(self._admit)

    def settle(self, amount: float, spending: Spending | None) -> None:
        """Note what a call has spent for which an amount was set aside; None if it was not made."""
        self._open -= 1
        # Nothing is set aside for nobody, not even a rounding error, for which somebody would wait for ever.
        self._reserved = self._reserved - amount if self._open else 0
        if spending is not None:
            self.spent += spending.total(self._budget.unit, amount)
            self._handle.update([self._kept + self.spent])
        self._admit()

    def stop(self) -> None:
        """Let nobody begin any more."""
        self.line.stop()

    def _admit(self) -> None:
        """Let all that wait look again; those that come too late wait again."""
        while self.line.admit():
            pass


def _share_of(amount: float, subtask_index: int, parallelism: int) -> float:
    if isinstance(amount, int):
        whole, rest = divmod(amount, parallelism)
        return whole + (subtask_index < rest)
    return amount / parallelism
