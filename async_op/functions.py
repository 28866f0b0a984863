"""What users write: functions that are invoked once per element, or once per batch of elements."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from async_op.context import InvocationContext
from async_op.errors import AsyncTimeoutError, TimersUnavailable
from keygroups.descriptors import StateDescriptor
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


class Function:
    """What all kinds of functions share. Its methods run on the event loop of the operator, so they must not block.

    `open` and `close` are called once per subtask. To share one client among the subtasks of a process, keep it in a
    module global that is made on first use, and count its users in `open` and `close`.
    """

    states: tuple[StateDescriptor, ...] = ()
    """The keyed states that the function uses; then at most one invocation per key runs at a time."""

    async def open(self, runtime: Runtime) -> None:
        """Acquire clients and connections; called once, before the first element."""

    async def timeout(self, value: Any, ctx: InvocationContext) -> Iterable[Any]:
        """Return the outputs for an element whose calls took too long; by default the element fails.

        Raises
        ------
        AsyncTimeoutError
            Unless overridden.
        """
        raise AsyncTimeoutError(value, ctx.timeout)

    @property
    def has_timers(self) -> bool:
        """Whether the function defines `on_timer`."""
        return type(self).on_timer is not Function.on_timer

    async def on_timer(self, timestamp: int, ctx: InvocationContext) -> Iterable[Any]:
        """Return the outputs for a timer that fires; a function that defines it may use `ctx.timers`.

        It is invoked as for an element, and retried, timed out and stored as one: where an element's value is passed
        on (`timeout`, a dead letter), that of a timer is a `Timer`. Its outputs have the timer's timestamp if it is one
        of event time, else none.

        Parameters
        ----------
        timestamp : int
            As it was registered.
        ctx : InvocationContext
            The key's state and timers; `ctx.idempotency_key` follows from the key, the kind and the timestamp.

        Raises
        ------
        TimersUnavailable
            Unless overridden.
        """
        raise TimersUnavailable(ctx.key)

    async def close(self) -> None:
        """Release what `open` acquired; called once, also after a failure."""


class AsyncFunction(Function, ABC):
    """A coroutine per element; subclass it.

    Examples
    --------
    >>> class Double(AsyncFunction):
    ...     async def async_invoke(self, value, ctx):
    ...         return [2 * value]
    """

    @abstractmethod
    async def async_invoke(self, value: Any, ctx: InvocationContext) -> Iterable[Any]:
        """Return the outputs for one element: none, one or several.

        Parameters
        ----------
        value : object
            The element.
        ctx : InvocationContext
            Its key, timestamp, attempt, idempotency key and state.
        """


class AsyncBatchFunction(AsyncFunction):
    """A coroutine per batch of elements, for services that take many at once; subclass it.

    A batch is invoked when it has `max_batch_size` elements, or `max_batch_delay` seconds after its first one.

    On a Spark DataFrame without keys, a function with `arrow = True` gets each batch as one `pyarrow.RecordBatch` of at
    most `max_batch_size` rows, and in place of `ctxs` the one `InvocationContext` of the whole batch. It returns one
    record batch that fits `output_schema`, of as many rows as it likes. The batch is then the element: it is retried,
    timed out and put in order as a whole, and only what is left of a partition makes it smaller (`max_batch_delay`
    does not apply).

    Examples
    --------
    >>> class DoubleAll(AsyncBatchFunction):
    ...     max_batch_size = 500
    ...     async def async_invoke_batch(self, values, ctxs):
    ...         return [[2 * value] for value in values]
    """

    max_batch_size: int = 100
    max_batch_delay: float = 0.01
    arrow: bool = False

    @abstractmethod
    async def async_invoke_batch(
        self, values: Sequence[Any], ctxs: Sequence[InvocationContext]
    ) -> Sequence[Iterable[Any] | BaseException]:
        """Return, for each value and in their order, its outputs, or the exception with which it failed.

        Parameters
        ----------
        values : sequence
            The elements.
        ctxs : sequence of InvocationContext
            One for each.
        """

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> Iterable[Any]:
        """Return the outputs for one element, as a batch of one; the operator itself always calls for batches."""
        (result,) = await self.async_invoke_batch([value], [ctx])
        if isinstance(result, BaseException):
            raise result
        return result


class BlockingFunction(Function, ABC):
    """A blocking call per element, on a pool of threads; subclass it.

    `invoke` runs on a thread of the pool: it may block, and must be safe to run in several threads at once. It may
    read and write its state, which waits for the operator's own thread.

    Examples
    --------
    >>> class Fetch(BlockingFunction):
    ...     max_threads = 8
    ...     def invoke(self, value, ctx):
    ...         return [len(value)]
    """

    max_threads: int = 32

    @abstractmethod
    def invoke(self, value: Any, ctx: InvocationContext) -> Iterable[Any]:
        """Return the outputs for one element: none, one or several."""


class CallbackFunction(Function, ABC):
    """A call per element whose result comes through a callback, from any thread; subclass it.

    Examples
    --------
    >>> class Fetch(CallbackFunction):
    ...     def async_invoke(self, value, result_future):
    ...         threading.Thread(target=lambda: result_future.complete([value])).start()
    """

    @abstractmethod
    def async_invoke(self, value: Any, result_future: ResultFuture) -> None:
        """Start the call; complete the future when it ends. One that is never completed ends by the timeout."""


class ResultFuture:
    """The result of one call of a `CallbackFunction`. Any thread may complete it; the first completion counts.

    Attributes
    ----------
    ctx : InvocationContext
        The element's key, timestamp, attempt, idempotency key and state.
    """

    __slots__ = ("_deliver", "_lock", "ctx")

    def __init__(
        self, ctx: InvocationContext, deliver: Callable[[Iterable[Any] | None, BaseException | None], None]
    ) -> None:
        self.ctx: InvocationContext = ctx
        self._deliver: Callable[[Iterable[Any] | None, BaseException | None], None] | None = deliver
        self._lock = threading.Lock()

    def complete(self, outputs: Iterable[Any]) -> None:
        """End the call with its outputs."""
        self._end(outputs, None)

    def complete_exceptionally(self, error: BaseException) -> None:
        """End the call with an error."""
        self._end(None, error)

    def _end(self, outputs: Iterable[Any] | None, error: BaseException | None) -> None:
        with self._lock:
            deliver, self._deliver = self._deliver, None
        if deliver is not None:
            deliver(outputs, error)
