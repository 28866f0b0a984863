"""Tracks which cuts are still held, by references to a cut or to one of its key groups."""

from __future__ import annotations

import weakref

RESTORED = -1
"""The age of dicts that were restored in memory: their origin may hold them for ever."""


class Hold:
    """Tells the backend that a cut must not change.

    The cut and its key groups reference it, but the backend does not, so it ends with the last of them. So a cut cannot
    change while somebody reads it, and a forgotten cut is kept no longer than it is reachable.

    Attributes
    ----------
    number : int
        The number of the cut within its backend, from 1.
    """

    __slots__ = ("__weakref__", "number")

    def __init__(self, number: int) -> None:
        self.number = number


class Holds:
    """The cuts of a backend that are still held. Only the thread that owns the operator may call it.

    The age of a dict is the number of cuts before it was created; all later cuts contain it.

    Attributes
    ----------
    made : int
        The number of cuts so far, which is the age of a dict that is created now.
    """

    __slots__ = ("_holds", "made")

    def __init__(self) -> None:
        self.made = 0
        self._holds: list[weakref.ref[Hold]] = []

    def new(self) -> Hold:
        """Return the hold for the next cut."""
        self.made += 1
        hold = Hold(self.made)
        self._holds = [*(held for held in self._holds if held() is not None), weakref.ref(hold)]
        return hold

    def hold_what_is_of(self, age: int) -> bool:
        """Return whether a held cut contains the dicts of this age."""
        if age == RESTORED:
            return True
        while self._holds:
            newest = self._holds[-1]()
            if newest is not None:
                return newest.number > age
            self._holds.pop()
        return False
