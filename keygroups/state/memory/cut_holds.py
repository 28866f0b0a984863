"""Tracks which cuts are still held, by references to a cut or to one of its key groups.

A cut is not a copy: it has the dicts of the state themselves, and writing it to storage may take minutes. So
the state has to know whether a cut may still be read. Readers do not tell when they have finished, since one that
failed would never do so; they hold a reference instead, and the garbage collector tells.

- **Why a held cut cannot change.** A `Hold` lives as long as the cut, or any key group of it, can be reached. A weak
  reference to a reachable object is alive on every Python. So `hold_what_is_of` is true as long as a reader can read,
  and then a table writes to a layer (`layered`) in place of the dict.
- **What would break it.** A reader that keeps an iterator over a dict, and drops the key group that it got it from:
  the dict would change under the iterator. This is why `MemoryGroup.rows` returns methods bound to the group.
- **What reference counts are for.** Only for how soon it ends. CPython notices the last reference at once, unless it
  is in a cycle. Later is not wrong, but each write to the group goes to its layer until then.
"""

from __future__ import annotations

import weakref

RESTORED = -1
"""The age of dicts that were restored in memory: their origin may hold them for ever."""


class Hold:
    """Tells the backend that a cut must not change.

    The cut and its key groups reference it, but the backend does not, so it ends with the last of them. So a cut cannot
    change during a read, and a forgotten cut is kept no longer than it is reachable.

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
