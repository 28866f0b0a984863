"""Where the outputs of a job go, epoch by epoch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

T = TypeVar("T")


class Sink(ABC, Generic[T]):
    """Where the outputs of a job go: one call for each epoch, in the order of the epochs.

    After a crash, epochs that have been written come again, with the same values. So a sink replaces what it wrote for
    the epoch, or sees that it is there already. A write that was interrupted leaves nothing, or is replaced as well.
    Then every output arrives exactly once.

    All methods are called on the event loop of the job, so they must not block it, and one after the other. A sink may
    be opened again after it was closed.

    Examples
    --------
    >>> class Latest(Sink[dict]):
    ...     def __init__(self):
    ...         self.epochs = {}
    ...
    ...     async def write(self, values, epoch):
    ...         self.epochs[epoch] = list(values)
    """

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    async def open(self) -> None:
        """Get ready to be written to, for example connect. Called once before any epoch; does nothing by default."""
        return

    @abstractmethod
    async def write(self, values: list[T], epoch: int) -> None:
        """Write the outputs of an epoch durably; the same epoch again replaces what was written before.

        Parameters
        ----------
        values : list
            The outputs, at least one, in the order in which they left the last step.
        epoch : int
            The number of the epoch: it grows, and numbers may be left out, because empty epochs are not written.
        """

    async def close(self) -> None:
        """Release what `open` has acquired. Called once after the last write, if `open` has returned."""
        return
