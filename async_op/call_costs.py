"""What calls cost: what a call has spent, as its function reports it in units such as tokens, and errors of costs."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral

from keygroups.arguments import check_number
from keygroups.errors import ConfigError, KeyGroupsError


class CallRefused(KeyGroupsError):
    """No call was made for an element, and none will be: another attempt would be refused, too, so it is not retried.

    The root of `CostAboveLimit` and `BudgetSpent`.
    """


class CostAboveLimit(CallRefused, ValueError):
    """A call costs more than a limit ever admits at once."""

    cost: float
    """What the call is estimated to cost."""
    limit: float
    """The burst of the limit: the most that one call may cost."""
    unit: str
    """What is counted."""

    _template = (
        "the call costs {cost:,} {unit}, and its limit admits {limit:,} at once, so it would wait for ever: make the "
        "element smaller, or pass the RateLimit a larger burst if the service allows it"
    )


class BudgetSpent(CallRefused):
    """A call was not made, because a budget has not enough left for it."""

    unit: str
    """What is counted."""
    limit: float
    """The budget of all subtasks together."""
    share: float
    """What the subtasks in this process were allowed to spend since their last start: all that was left then, or the
    part of this process if there are others."""
    spent: float
    """What they have spent of that."""
    estimate: float
    """What the call is estimated to cost."""

    def _message(self) -> str:
        call = f", and the call is estimated at {self.estimate:,}" if self.estimate else ""
        return (
            f"of the budget of {self.limit:,} {self.unit}, {self.share:,} were left for this process at its last "
            f"start, and {self.spent:,} are spent{call}: raise the limit of the Budget and start again, which "
            "continues from the newest snapshot, or keep the rest for later with on_error='dead_letter'"
        )


class UnknownUnit(KeyGroupsError, LookupError):
    """A function has reported what it spent in a unit that no limit and no budget counts."""

    unit: str
    """The unit that was reported."""
    known: tuple[str, ...]
    """The units that are counted."""

    def _message(self) -> str:
        return (
            f"{self.unit!r} is not counted: report {' or '.join(map(repr, self.known)) or 'nothing'}, or pass a "
            f"RateLimit or a Budget with unit={self.unit!r}"
        )


def check_amount(name: str, amount: object) -> float:
    """Return an amount of some unit, zero or more; integers stay integers, so that their sums are exact.

    Raises
    ------
    ConfigError
        It is no number, or a negative or infinite one.
    """
    reason = "an amount is zero or more"
    if check_number(name, amount, reason=reason) < 0:
        raise ConfigError(name, amount, reason)
    return int(amount) if isinstance(amount, Integral) else float(amount)  # type: ignore[arg-type]


class Spending:
    """What one call has spent. Only the thread of the event loop may call it.

    Parameters
    ----------
    units : frozenset of str
        The units that are counted.

    Attributes
    ----------
    has_ended : bool
        Whether the call has ended: later reports are ignored.
    """

    __slots__ = ("_amounts", "_units", "has_ended")

    def __init__(self, units: frozenset[str]) -> None:
        self._units = units
        self._amounts: dict[str, float] = {}
        self.has_ended = False

    def report(self, amounts: Mapping[str, float]) -> None:
        """Add amounts to what the call has spent.

        Raises
        ------
        UnknownUnit
            This unit is not counted.
        ConfigError
            An amount is no number, or a negative one.
        """
        for unit, amount in amounts.items():
            if unit not in self._units:
                raise UnknownUnit(unit, tuple(sorted(self._units)))
            check_amount(unit, amount)
        for unit, amount in amounts.items():
            self._amounts[unit] = self._amounts.get(unit, 0) + check_amount(unit, amount)

    def total(self, unit: str | None, estimate: float) -> float:
        """Return what the call has spent in a unit; the estimate if it has reported nothing."""
        return self._amounts.get(unit, estimate) if unit is not None else estimate
