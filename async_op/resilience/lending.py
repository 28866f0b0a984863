"""How processes lend each other what they do not use of a limit: the driver or the job's first process moves shares.

It is described for hosts on Spark, which hear of their shares with the epochs. The children of a job hear of them in
turns of question and answer. For them, a turn in which all have answered is a whole epoch.

Hosts are processes on several machines, so they cannot share one object. Each holds an amount of each limit. The sum of
these amounts never exceeds the limit, because an amount only moves in two epochs: in the first one a host is told to
hold less, and its part of the snapshot says what it holds now. Only the next epoch tells another host to hold
more, and only what the hosts were heard to have given up. A host that dies is replaced by one that holds the same.
Messages that are lost or doubled change nothing: an epoch without all its parts moves nothing, and amounts are
absolute.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from async_op.resilience.waiting_line import share_of

_FLOOR = 0.1
"""The least part of its equal share of a rate that an idle host keeps, so that its next call need not wait for long."""

_HEADROOM = 1.5
"""A host that does not wait for a limit keeps so much more than it has used, to take up more work at once."""


@dataclass(frozen=True, slots=True)
class Holding:
    """What one host holds of one limit.

    Attributes
    ----------
    amount : float
        What it may use: a fraction of a rate, a number of calls, or the sum that it may have spent of a budget.
    used : float
        What it uses of that: on average since its last cut, or now, or the sum that is spent or set aside.
    is_short : bool
        Whether calls wait for more.
    spent : float
        What its calls that have ended have spent of a budget.
    """

    amount: float
    used: float
    is_short: bool
    spent: float = 0


class Allowed(NamedTuple):
    """What one host is allowed to use of one limit.

    Attributes
    ----------
    amount : float
        What it may use until it hears of another amount.
    most : float
        What it may get of a budget at most. A call that needs more will never be made.
    """

    amount: float
    most: float = math.inf


Allowance: TypeAlias = Mapping[str, Allowed]
"""What a host is allowed of each limit; what is missing begins with an equal share."""

Holdings: TypeAlias = Mapping[str, Holding]
"""What a host holds of each limit."""


class Lender:
    """Decides what the hosts of one generation hold. One thread may call it.

    Parameters
    ----------
    limits : mapping of str to float
        The whole of each limit, by the names that holdings have.
    hosts : int
        The number of hosts.
    """

    def __init__(self, limits: Mapping[str, float], hosts: int) -> None:
        self._limits = dict(limits)
        self._hosts = hosts
        self._heard: list[Holdings] | None = None
        self._spent_before: dict[str, list[float]] = {}
        self._planned: Sequence[Allowance] | None = None

    def plan(self) -> Sequence[Allowance]:
        """Return what each host is allowed in an attempt at an epoch: equal shares before any epoch was heard of.

        All attempts at an epoch have the same plan: after one that was not whole, some hosts hold what it said, and the
        others what they held before.
        """
        if self._heard is None:
            return [{}] * self._hosts
        if self._planned is None:
            amounts = {name: self._amounts(name, self._heard) for name in self._limits}
            self._planned = [
                {name: Allowed(amounts[name][host], self._most(name, host)) for name in self._limits}
                for host in range(self._hosts)
            ]
        return self._planned

    def note(self, holdings: Sequence[Holdings]) -> None:
        """Take over what all hosts held when they were cut for an epoch that is whole."""
        before = self._heard or holdings
        self._spent_before = {name: [one[name].used for one in before] for name in self._limits}
        self._heard = list(holdings)
        self._planned = None

    @property
    def is_budget_short(self) -> bool:
        """Whether calls waited for more of a budget in the newest epoch."""
        heard = self._heard or ()
        return any(one[name].is_short for one in heard for name in self._limits if is_budget(name))

    def can_help(self, holdings: Sequence[Holdings]) -> bool:
        """Tell whether an epoch would move something to a host that waits for it, or end its wait for a budget."""
        return any(self._can_help([one[name] for one in holdings if name in one], name) for name in self._limits)

    def _can_help(self, held: Sequence[Holding], name: str) -> bool:
        if not any(one.is_short for one in held):
            return False
        enough = self._limits[name] / self._hosts * _FLOOR
        return is_budget(name) or any(not one.is_short and one.amount - one.used > 2 * enough for one in held)

    def _amounts(self, name: str, heard: Sequence[Holdings]) -> list[float]:
        """Return what each host is to hold; what is given up now can only be given away in the next epoch."""
        held = [one[name].amount for one in heard]
        wanted = self._wanted(name, [one[name] for one in heard])
        free = max(0, self._limits[name] - sum(held))
        amounts = []
        for now, want in zip(held, wanted, strict=True):
            more = min(max(0, want - now), free)
            free -= more
            amounts.append(min(now, want) if want < now else now + more)
        return amounts

    def _wanted(self, name: str, held: Sequence[Holding]) -> list[float]:
        if is_budget(name):
            return self._wanted_of_budget(name, held)
        whole = self._limits[name]
        equal = [share_of(whole, host, self._hosts) for host in range(self._hosts)]
        short = [host for host, one in enumerate(held) if one.is_short]
        if not short:
            return equal
        least = 1 if isinstance(whole, int) else whole / self._hosts * _FLOOR
        kept = [max(least, _rounded(_HEADROOM * one.used, whole)) for one in held]
        if _rest(whole, kept, short) < len(short) * equal[-1]:
            kept = list(map(min, kept, equal))
        rest = _rest(whole, kept, short)
        for number, host in enumerate(short):
            kept[host] = share_of(rest, number, len(short))
        return kept

    def _wanted_of_budget(self, name: str, held: Sequence[Holding]) -> list[float]:
        """Return what hosts are to hold of a budget: the first one that waits for more gets all that is to spare.

        If several got a part of the rest, each part might be too little for one call, and all would wait for ever.
        """
        chosen = next((host for host, one in enumerate(held) if one.is_short), None)
        if chosen is None:
            return [one.amount for one in held]
        wanted = []
        for host, one in enumerate(held):
            recent = max(0, one.used - self._spent_before[name][host])
            wanted.append(min(one.amount, one.used + (0 if one.is_short else 2 * recent)))
        wanted[chosen] = self._limits[name]
        return wanted

    def _most(self, name: str, host: int) -> float:
        if not is_budget(name):
            return math.inf
        return self._limits[name] - sum(self._least_spent(name, other) for other in range(self._hosts) if other != host)

    def _least_spent(self, name: str, host: int) -> float:
        assert self._heard is not None, "most is known after the first epoch"
        return self._heard[host][name].spent


def is_budget(name: str) -> bool:
    """Tell whether a limit is spent, and not only used."""
    return name.startswith("budget ")


def _rest(whole: float, kept: Sequence[float], short: Iterable[int]) -> float:
    waiting = set(short)
    return whole - sum(amount for host, amount in enumerate(kept) if host not in waiting)


def _rounded(amount: float, whole: float) -> float:
    return math.ceil(amount) if isinstance(whole, int) else amount
