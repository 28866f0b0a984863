"""Restricts the use of a state to one thread."""

from __future__ import annotations

import threading
from _thread import get_ident

from keygroups.state.errors import StateOfAnotherThread

NOBODY = 0
"""Stands for no thread."""


class Owned:
    """A base class for objects that belong to the first thread that uses them. Every method checks the thread."""

    __slots__ = ("_owner",)

    _owner: int

    def _check_owner(self) -> None:
        """Make the calling thread the owner if there is none, and check that it is the owner.

        Raises
        ------
        StateOfAnotherThread
            Another thread is the owner.
        """
        if self._owner == NOBODY:
            self._owner = get_ident()
        elif self._owner != get_ident():
            names = {thread.ident: thread.name for thread in threading.enumerate()}
            raise StateOfAnotherThread(threading.current_thread().name, names.get(self._owner, "that has ended"))
