"""The credit of a rate, used up by charges that may be corrected later."""

from __future__ import annotations

import math

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
