"""Errors of what calls cost; each says what to do next."""

from __future__ import annotations

from keygroups.errors import KeyGroupsError


class CallRefused(KeyGroupsError):
    """No call was made for an element, and none will be: another attempt would be refused, too, so it is not retried.

    The root of `CostAboveLimit` and `BudgetSpent`.
    """


class CostAboveLimit(CallRefused, ValueError):
    """A call costs more than a limit ever admits at once.

    Attributes
    ----------
    cost : float
        What the call is estimated to cost.
    limit : float
        The burst of the limit: the most that one call may cost.
    unit : str
        What is counted.
    """

    def __init__(self, cost: float, limit: float, unit: str) -> None:
        self.cost = cost
        self.limit = limit
        self.unit = unit
        super().__init__(
            f"the call costs {cost:,} {unit}, and its limit admits {limit:,} at once, so it would wait for ever: make "
            "the element smaller, or pass the RateLimit a larger burst if the service allows it"
        )


class BudgetSpent(CallRefused):
    """A call was not made, because a budget has not enough left for it.

    Attributes
    ----------
    unit : str
        What is counted.
    limit : float
        The budget of all subtasks together.
    share : float
        What the subtasks in this process were allowed to spend since their last start: all that was left then, or the
        part of this process if there are others.
    spent : float
        What they have spent of that.
    estimate : float
        What the call is estimated to cost.
    """

    def __init__(self, unit: str, limit: float, share: float, spent: float, estimate: float) -> None:
        self.unit = unit
        self.limit = limit
        self.share = share
        self.spent = spent
        self.estimate = estimate
        call = f", and the call is estimated at {estimate:,}" if estimate else ""
        super().__init__(
            f"of the budget of {limit:,} {unit}, {share:,} were left for this process at its last start, and {spent:,} "
            f"are spent{call}: raise the limit of the Budget and start again, which continues from the newest snapshot,"
            " or keep the rest for later with on_error='dead_letter'"
        )


class UnknownUnit(KeyGroupsError, LookupError):
    """A function has reported what it spent in a unit that no limit and no budget counts.

    Attributes
    ----------
    unit : str
        The unit that was reported.
    known : tuple of str
        The units that are counted.
    """

    def __init__(self, unit: str, known: tuple[str, ...]) -> None:
        self.unit = unit
        self.known = known
        super().__init__(
            f"nobody counts {unit!r}: report {' or '.join(map(repr, known)) or 'nothing'}, "
            f"or pass a RateLimit or a Budget with unit={unit!r}"
        )
