"""H9: a committed epoch is delivered before another one begins."""

from __future__ import annotations

from collections.abc import Callable


class Delivery:
    """Remembers the committed epoch from which the sink has not returned yet. One thread at a time may call it.

    Parameters
    ----------
    deliver : callable
        Gives an epoch to the sink; may raise, and is then called again with the same epoch.
    """

    def __init__(self, deliver: Callable[[int], object]) -> None:
        self._deliver = deliver
        self._owed: int | None = None

    def commit(self, epoch: int) -> None:
        """Note that an epoch is committed; the sink has not had it yet."""
        assert self._owed is None, "each epoch is delivered before the next is committed"
        self._owed = epoch

    def settle(self) -> None:
        """Deliver the committed epoch, if the sink has not had it; call it after each commit and before each epoch."""
        if self._owed is not None:
            self._deliver(self._owed)
            self._owed = None
