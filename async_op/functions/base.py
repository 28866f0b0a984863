"""Base classes for users' functions, which are invoked once per element or once per batch of elements."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic

from async_op.errors import AsyncTimeoutError, TimersUnavailable
from async_op.functions.context import InvocationContext
from async_op.functions.runtime import Runtime
from keygroups.arguments import Duration
from keygroups.descriptors import OperatorListState, OperatorStateDescriptor, StateDescriptor
from keygroups.errors import ConfigError
from keygroups.representation import representation

if TYPE_CHECKING:
    # With defaults, so that a subclass need not name its types; before Python 3.13 only type checkers support these.
    from typing_extensions import TypeVar

    In = TypeVar("In", contravariant=True, default=Any)
    Out = TypeVar("Out", covariant=True, default=Any)
else:
    from typing import TypeVar

    In = TypeVar("In", contravariant=True)
    Out = TypeVar("Out", covariant=True)


class Function(Generic[In, Out]):
    """The base of all kinds of functions. Its methods run on the operator's event loop, so they must not block.

    Its type parameters are the types of elements and outputs, as in `AsyncFunction[str, dict[str, int]]`.

    `open` and `close` are called once per operator, in one task on its own event loop. On Spark an operator of an
    `AsyncPipeline` lives as long as the query (with `resident=False`, for one epoch), and one of `AsyncDataStream` for
    one partition.
    An asyncio client belongs to the loop on which it was created: create it in `open` and close it in `close`, or share
    it with the other functions on the loop through `shared`. In a module global it would outlive its loop.
    """

    states: tuple[StateDescriptor, ...] = ()
    """The keyed states that the function uses. With any state, at most one invocation per key runs at a time."""

    operator_states: tuple[OperatorStateDescriptor, ...] = ()
    """The states without a key that the function uses, through `runtime.operator_state` or `ctx.operator_state`."""

    async def open(self, runtime: Runtime) -> None:
        """Acquire clients and connections, also shared ones (`shared`); called once, before the first element."""

    @property
    def hears_of_snapshots(self) -> bool:
        """Whether the function defines `snapshot_complete`."""
        return type(self).snapshot_complete is not Function.snapshot_complete

    async def snapshot_complete(self, version: int) -> None:
        """Act on a snapshot that was committed, such as by acknowledging the messages that it holds.

        It runs beside the calls for elements, once at a time. The `in_snapshot()` of an operator list is what the
        snapshot holds of it. Versions may be left out, as the newest one stands for all before it, and a version may
        come again after a restart. An error ends the operator. A job cancels what takes longer than a minute, with a
        warning in the log.

        Parameters
        ----------
        version : int
            The version of the snapshot.
        """

    @property
    def gives_items(self) -> bool:
        """Whether the function defines `snapshot_state`."""
        return type(self).snapshot_state is not Function.snapshot_state

    def snapshot_state(self, descriptor: OperatorListState) -> list[Any] | None:
        """Return the items of an operator list, of this subtask, for a snapshot that is being cut.

        They take the place of what was written through the handle, so a function that keeps its items anyway, such as
        the offsets of a consumer, need not write them at each element. None stands for what the handle has. The method
        is called for each `OperatorListState` in the turn of the event loop in which all else is cut. So it must not
        block.

        Parameters
        ----------
        descriptor : OperatorListState
            The declaration, one of `operator_states`.

        Examples
        --------
        >>> OFFSETS = OperatorListState("offsets")
        >>> class Consume(AsyncFunction):
        ...     operator_states = (OFFSETS,)
        ...     async def open(self, runtime):
        ...         self.offsets = dict(runtime.operator_state(OFFSETS).get())
        ...     async def async_invoke(self, message, ctx):
        ...         self.offsets[message.partition] = message.offset
        ...         return [message]
        ...     def snapshot_state(self, descriptor):
        ...         return list(self.offsets.items())
        """
        return None

    @property
    def knows_outputs(self) -> bool:
        """Whether the function defines `known_outputs`."""
        return type(self).known_outputs is not Function.known_outputs

    def known_outputs(self, value: In, ctx: InvocationContext) -> Iterable[Out] | None:
        """Return the outputs for an element that needs no call, such as an answer in state; None if it needs one.

        The operator asks before each attempt, when the element holds its key. Outputs that are known wait for no limit,
        cost nothing, and enter no batch. What the method writes to state counts only if it returns outputs. It runs on
        the event loop, also for a blocking function, so it must not block. It is not asked about timers.

        Parameters
        ----------
        value : object
            The element.
        ctx : InvocationContext
            Its key, timestamp, attempt and state.

        Examples
        --------
        >>> ANSWER = ValueState("answer", ttl=30 * 86_400)  # a month
        >>> class Ask(AsyncFunction):
        ...     states = (ANSWER,)
        ...     def known_outputs(self, question, ctx):
        ...         answer = ctx.state(ANSWER).value()
        ...         return None if answer is None else [answer]
        ...     async def async_invoke(self, question, ctx):
        ...         answer = await ask(question)
        ...         ctx.state(ANSWER).update(answer)
        ...         return [answer]
        """
        return None

    async def timeout(self, value: In, ctx: InvocationContext) -> Iterable[Out]:
        """Return fallback outputs for an element whose time budget has run out; by default the element fails.

        Raises
        ------
        AsyncTimeoutError
            Unless overridden.
        """
        raise AsyncTimeoutError(value, ctx.timeout, ctx.idempotency_key)

    @property
    def has_timers(self) -> bool:
        """Whether the function defines `on_timer`."""
        return type(self).on_timer is not Function.on_timer

    async def on_timer(self, timestamp: int, ctx: InvocationContext) -> Iterable[Out]:
        """Return the outputs for a timer that fires; only a function that overrides this method may use `ctx.timers`.

        A timer is invoked, retried, timed out and stored like an element. Where an element's value is passed on (to
        `timeout`, in a dead letter), a timer passes a `Timer`. Outputs have the timer's timestamp if it is an
        event-time timer, else none.

        Parameters
        ----------
        timestamp : int
            The timestamp that was registered, in milliseconds since the epoch.
        ctx : InvocationContext
            The key's state and timers; `ctx.idempotency_key` is derived from the key, the kind and the timestamp.

        Raises
        ------
        TimersUnavailable
            Unless overridden.
        """
        raise TimersUnavailable(ctx.key)

    async def close(self) -> None:
        """Release what `open` acquired; called once, even after a failure."""


class AsyncFunction(Function[In, Out], ABC):
    """A function with a coroutine per element; subclass it.

    Examples
    --------
    >>> class Double(AsyncFunction):
    ...     async def async_invoke(self, value, ctx):
    ...         return [2 * value]
    """

    @abstractmethod
    async def async_invoke(self, value: In, ctx: InvocationContext) -> Iterable[Out]:
        """Return the outputs for one element: none, one or several.

        Parameters
        ----------
        value : object
            The element.
        ctx : InvocationContext
            Its key, timestamp, attempt, idempotency key and state.
        """


class AsyncBatchFunction(AsyncFunction[In, Out]):
    """A function with a coroutine per batch, for services that take many elements in one request; subclass it.

    A batch is invoked when it has `max_batch_size` elements, or `max_batch_delay` seconds after its first element.

    On a Spark DataFrame without keys, a function with `arrow = True` gets each batch as one `pyarrow.RecordBatch` of at
    most `max_batch_size` rows, and one `InvocationContext` for the whole batch in place of `ctxs`. It returns one
    record batch with the columns of `output_schema` and any number of rows. The batch is then the element: it is
    retried, timed out and ordered as a whole. Only the last batch of a partition may be smaller (`max_batch_delay` does
    not apply).

    Examples
    --------
    >>> class DoubleAll(AsyncBatchFunction):
    ...     max_batch_size = 500
    ...     async def async_invoke_batch(self, values, ctxs):
    ...         return [[2 * value] for value in values]
    """

    max_batch_size: int = 100
    max_batch_delay: Duration = 0.01
    arrow: bool = False

    @abstractmethod
    async def async_invoke_batch(
        self, values: list[In], ctxs: Sequence[InvocationContext]
    ) -> Sequence[Iterable[Out] | BaseException]:
        """Return one item per value, in the same order: its outputs, or the exception with which it failed.

        Parameters
        ----------
        values : list
            The elements of the batch.
        ctxs : sequence of InvocationContext
            One for each element.
        """

    async def async_invoke(self, value: In, ctx: InvocationContext) -> Iterable[Out]:
        """Return the outputs for a single element, as a batch of one. The operator itself never calls this."""
        (result,) = await self.async_invoke_batch([value], [ctx])
        if isinstance(result, BaseException):
            raise result
        return result


class BlockingFunction(Function[In, Out], ABC):
    """A function with a blocking call per element, on a thread pool; subclass it.

    `invoke` runs on a thread of the pool: it may block, and it must be thread-safe. It reads and writes state as a
    coroutine does: the operator's own thread performs each read and write while the call waits. The functions of a
    `ReducingState` or `AggregatingState` also run on the operator's thread, so they must not block.

    Examples
    --------
    >>> class Fetch(BlockingFunction):
    ...     max_threads = 8
    ...     def invoke(self, value, ctx):
    ...         return [len(value)]
    """

    max_threads: int = 32

    @abstractmethod
    def invoke(self, value: In, ctx: InvocationContext) -> Iterable[Out]:
        """Return the outputs for one element: none, one or several."""


class CallbackFunction(Function[In, Out], ABC):
    """A function whose result arrives through a callback, from any thread; subclass it.

    Any thread may use `result_future.ctx` until the future is completed. The operator's own thread performs each read
    and write of state while the calling thread waits, so never make the operator's thread wait for that thread.

    Examples
    --------
    >>> class Fetch(CallbackFunction):
    ...     def async_invoke(self, value, result_future):
    ...         threading.Thread(target=lambda: result_future.complete([value])).start()
    """

    @abstractmethod
    def async_invoke(self, value: In, result_future: ResultFuture) -> None:
        """Start the call, and complete the future when it ends. A future that is never completed times out."""


class ResultFuture:
    """The result of one call of a `CallbackFunction`. Any thread may complete it; only the first completion counts.

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

    def __repr__(self) -> str:
        return representation(self, {"is_complete": self._deliver is None, "ctx": self.ctx})

    def complete(self, outputs: Iterable[Any]) -> None:
        """End the call with its outputs."""
        self._end(outputs, None)

    def complete_exceptionally(self, error: BaseException) -> None:
        """End the call with an error; what is none ends it with a `ConfigError`."""
        self._end(None, _exception(error))

    def _end(self, outputs: Iterable[Any] | None, error: BaseException | None) -> None:
        with self._lock:
            deliver, self._deliver = self._deliver, None
        if deliver is not None:
            deliver(outputs, error)


def _exception(error: object) -> BaseException:
    if isinstance(error, BaseException):
        return error
    return ConfigError("error", error, "pass an exception to complete_exceptionally, not a text and not a class")
