"""H9: what is committed is delivered before anything else begins."""

from __future__ import annotations

from collections.abc import Callable


class Delivery:
    """Knows the one epoch that is committed and that the sink has not returned from. One thread at a time may call it.

    Parameters
    ----------
    deliver : callable
        Gives an epoch to the sink; may raise, and is then called again with the same epoch.
    """

    def __init__(self, deliver: Callable[[int], object]) -> None:
        self._deliver = deliver
        self._owed: int | None = None

    def commit(self, epoch: int) -> None:
        """Note that an epoch exists, which the sink has not seen."""
        assert self._owed is None, "no epoch is committed before the one before it is delivered"
        self._owed = epoch

    def settle(self) -> None:
        """Deliver what is owed; to be called after each commit, and before an epoch begins."""
        if self._owed is not None:
            self._deliver(self._owed)
            self._owed = None
