"""The user's function from `open` to `close`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from async_op.functions import Function
from async_op.sharing import Leases


class OpenFunction:
    """Opens and closes a function, and releases the resources that it shares. Only the event loop's thread may call it.

    Parameters
    ----------
    function : Function
        The function.

    Attributes
    ----------
    is_open : bool
        Whether the function's `open` has begun and its `close` has not.
    """

    __slots__ = ("_function", "_leases", "is_open")

    def __init__(self, function: Function) -> None:
        self._function = function
        self._leases = Leases()
        self.is_open = False

    async def open(self, begin: Callable[[], Awaitable[None]]) -> None:
        """Await `begin`, which opens the function; what it shares then belongs to the function."""
        self.is_open = True
        with self._leases.collecting():
            await begin()

    async def close(self) -> None:
        """Close the function, if it is open, and then release what it shares; may be called again."""
        try:
            if self.is_open:
                self.is_open = False
                await self._function.close()
        finally:
            await self._leases.release()
