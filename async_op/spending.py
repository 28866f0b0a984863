"""What a call has spent, as its function reports it, in units such as tokens."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral

from async_op.cost_errors import UnknownUnit
from keygroups.arguments import check_number
from keygroups.errors import ConfigError


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
