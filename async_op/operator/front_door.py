"""How an operator is entered and left: as a context manager on its event loop, and by an executor from elsewhere."""

from __future__ import annotations

from typing import Self

from async_op.errors import OperatorClosed
from async_op.operator.executor import OperatorExecutor
from async_op.operator.lifecycle import Lifecycle, State


class FrontDoor:
    """The part of an operator that opens it for a block of code, and lets in other threads."""

    __slots__ = ()

    _lifecycle: Lifecycle
    _executor: OperatorExecutor | None

    async def __aenter__(self) -> Self:
        """Open the operator without a snapshot; after `open(restore)` use `contextlib.aclosing` in its place."""
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the operator. What is in flight is given up: await `finish` before, at the end of the input."""
        await self.close()

    def executor(self) -> OperatorExecutor:
        """Return what runs calls for other threads on the operator's event loop; any thread may call this.

        Raises
        ------
        OperatorClosed
            The operator is not open.
        """
        if self._executor is None or self._lifecycle.state is State.CLOSED:
            raise OperatorClosed("new" if self._lifecycle.state is State.NEW else "closed")
        return self._executor

    async def open(self) -> None:
        """Open the operator."""
        raise NotImplementedError

    async def close(self) -> None:
        """Close the operator."""
        raise NotImplementedError
