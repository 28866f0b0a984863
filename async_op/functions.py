"""What users write: functions that are invoked once per element."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from async_op.context import InvocationContext
from async_op.errors import AsyncTimeoutError
from keygroups.descriptors import ValueState
from keygroups.ranges import KeyGroupRange


@dataclass(frozen=True, slots=True)
class Runtime:
    """Where a function runs.

    Attributes
    ----------
    subtask_index, parallelism, max_parallelism : int
        Which subtask it is, of how many, over how many key groups.
    key_groups : KeyGroupRange
        The key groups that the subtask owns.
    """

    subtask_index: int
    parallelism: int
    max_parallelism: int
    key_groups: KeyGroupRange


class AsyncFunction:
    """A function whose calls wait for something slow; subclass it.

    All methods run on the event loop of the operator, so they must not block. Many invocations run at once;
    with keyed state, at most one per key.

    Examples
    --------
    >>> class Double(AsyncFunction):
    ...     async def async_invoke(self, value, ctx):
    ...         return [2 * value]
    """

    states: tuple[ValueState, ...] = ()
    """The keyed states that the function uses."""

    async def open(self, runtime: Runtime) -> None:
        """Acquire clients and connections; called once per subtask, before the first element."""

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> Iterable[Any]:
        """Return the outputs for one element: none, one or several.

        Parameters
        ----------
        value : object
            The element.
        ctx : InvocationContext
            Its key, timestamp, attempt, idempotency key and state.
        """
        raise NotImplementedError(f"{type(self).__name__} must define async_invoke")

    async def timeout(self, value: Any, ctx: InvocationContext) -> Iterable[Any]:
        """Return the outputs for an element whose calls took too long; by default the element fails.

        Raises
        ------
        AsyncTimeoutError
            Unless overridden.
        """
        raise AsyncTimeoutError(value, ctx.timeout)

    async def close(self) -> None:
        """Release what `open` acquired; called once, also after a failure."""
