"""A pool of persistent tasks that call the function for one entry after the other.

Starting a task per element would cost more than the rest of the operator together. `Worker._work` is the hot path:
it is written flat on purpose.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Protocol

from async_op.cancellation import cancel_all
from async_op.context import InvocationContext, Scope
from async_op.elements import Entry
from async_op.errors import InvalidFunctionResult
from async_op.feed import Feed
from async_op.statistics import LatencyHistogram

_WAKE_AT_ONCE = 2
"""How many sleeping workers a woken one wakes: enough to start n calls in log n turns of the loop, and few enough
that calls which return at once are all made by the first."""

_SAMPLE_MASK = 15
"""The latency of every 16th call is measured: reading the clock twice costs as much as queueing."""

_MEASURED_MAX = 64
"""After so many measured calls of one worker alone, others have their turn: all of them may have returned at once."""

Invoke = Callable[[Any, InvocationContext], Coroutine[Any, Any, Iterable[Any]]]


class Outcomes(Protocol):
    """What becomes of calls that have ended."""

    @property
    def completed(self) -> Callable[[Entry], None] | None:
        """Takes entries whose outputs have been set; None if every outcome has to be looked at."""
        ...

    def complete(self, entry: Entry, invocation: InvocationContext, outputs: Sequence[Any]) -> None:
        """Take the outputs of a call."""
        ...

    def end(self, entry: Entry, invocation: InvocationContext, error: BaseException) -> None:
        """Take the error of a call."""
        ...

    def crash(self, error: BaseException) -> None:
        """Take an error of what was called back."""
        ...


class Workers:
    """Calls the function for the entries that are given to it. Only the thread of the event loop may use it.

    Parameters
    ----------
    invoke : coroutine function
        Called with the value and the context of an entry.
    fallback : coroutine function
        Called in its place once the entry's time is over.
    scope : Scope
        What all invocations share.
    concurrency : int
        How many calls may run at once.
    latency : LatencyHistogram
        Gets the duration of a sample of them.
    outcomes : Outcomes
        Decides what becomes of them.

    Attributes
    ----------
    calls : int
        How many have been made.
    feed : Feed or None
        Where a worker finds the next element when it has nothing else to do.
    """

    __slots__ = (
        "_idle",
        "_measured",
        "_measured_by",
        "_running",
        "_waking",
        "calls",
        "fallback",
        "feed",
        "invoke",
        "latency",
        "limit",
        "outcomes",
        "scope",
        "stopped",
        "todo",
    )

    def __init__(
        self,
        invoke: Invoke,
        fallback: Invoke,
        scope: Scope,
        concurrency: int,
        latency: LatencyHistogram,
        outcomes: Outcomes,
    ) -> None:
        self.invoke = invoke
        self.fallback = fallback
        self.scope = scope
        self.limit = concurrency
        self.outcomes = outcomes
        self.todo = deque[Entry]()
        self.feed: Feed | None = None
        self.stopped = False
        self.calls = 0
        self.latency = latency
        self._measured_by: Worker | None = None
        self._measured = 0
        self._idle: list[asyncio.Future[None]] = []
        self._running: set[asyncio.Task[None]] = set()
        self._waking = 0

    def add(self, entries: Iterable[Entry]) -> None:
        """Call for entries as soon as workers are free."""
        self.todo.extend(entries)
        if self.todo and not self._waking:
            self._wake_one()

    def add_first(self, entry: Entry) -> None:
        """Call for an entry before all others."""
        self.todo.appendleft(entry)
        if not self._waking:
            self._wake_one()

    def stop(self) -> None:
        """Begin no more calls."""
        self.stopped = True
        self.todo.clear()

    async def close(self) -> None:
        """Cancel all calls and wait until they have ended."""
        self._idle.clear()
        await cancel_all(self._running)

    def wake(self, count: int) -> None:
        """Wake workers for so many entries: two of them, which wake others."""
        for _ in range(min(_WAKE_AT_ONCE, count - self._waking)):
            self._wake_one()

    def _wake_one(self) -> None:
        if self._idle:
            self._waking += 1
            self._idle.pop().set_result(None)
        elif len(self._running) < self.limit:
            self._waking += 1
            worker = Worker(self)
            self._running.add(worker.task)
            worker.task.add_done_callback(self._running.discard)

    def woken(self) -> None:
        """Tell that a worker that was woken runs."""
        self._waking -= 1
        self.wake(len(self.todo) - 1)

    async def rest(self, worker: Worker) -> bool:
        """Wait until there is something to do; False if there are too many workers for this one to go on."""
        if self.retire(worker):
            return False
        sleep = asyncio.get_running_loop().create_future()
        self._idle.append(sleep)
        await sleep
        self.woken()
        return True

    def retire(self, worker: Worker) -> bool:
        """Let a worker go if there are too many, and tell so."""
        if not self.stopped and len(self._running) <= self.limit:
            return False
        # At once, not when the task is done: until then it would stand in for one that is needed.
        self._running.discard(worker.task)
        return True

    def take(self) -> Entry | None:
        """Return what is to be called for now, if need be an element that comes in for it."""
        if not self.todo and self.feed is not None:
            self._waking += 1  # the one that asks is awake for the first element
            entry = self.feed.take()
            self._waking -= 1
            if entry is not None:
                return entry
            self.wake(len(self.todo) - 1)
        return self.todo.popleft() if self.todo else None

    async def measure(self, worker: Worker, entry: Entry, invocation: InvocationContext) -> Iterable[Any]:
        """Call for an entry, and take note of how long that takes."""
        if self._measured_by is not worker:
            self._measured_by, self._measured = worker, 0
        self._measured += 1
        if self._measured == _MEASURED_MAX:
            self._measured = 0
            await asyncio.sleep(0)
        self.calls += 1
        started = self.scope.clock.time()
        outputs = await self.invoke(entry.value, invocation)
        self.latency.add(self.scope.clock.time() - started)
        return outputs


class Worker:
    """One task of the pool, and the calls that it makes."""

    __slots__ = ("_pool", "task")

    def __init__(self, pool: Workers) -> None:
        self._pool = pool
        # Not by a task factory: an eager one would run it before the pool knows about it.
        self.task = asyncio.Task(self._work(pool), loop=asyncio.get_running_loop(), name="keygroups worker")

    def interrupt(self) -> None:
        """Cancel the call; it may ignore that, so another worker may stand in meanwhile."""
        self._pool.limit += 1
        self.task.cancel()

    def _stand_down(self) -> bool:
        """Forget the interruption: another worker has stood in. Tells whether there are too many now."""
        self.task.uncancel()
        self._pool.limit -= 1
        return self._pool.retire(self)

    async def _work(self, pool: Workers) -> None:
        """Make one call after the other until there are too many workers; only an entry's current invocation counts."""
        todo, scope, invoke, completed = pool.todo, pool.scope, pool.invoke, pool.outcomes.completed
        outputs: Iterable[Any]
        invocation: InvocationContext | None
        pool.woken()
        try:
            while True:
                entry = todo.popleft() if todo else pool.take()
                if entry is None:
                    outputs, invocation = (), None  # nothing of the last call stays in memory
                    if await pool.rest(self):
                        continue
                    return
                entry.call = self
                entry.invocation = invocation = InvocationContext()
                invocation.entry, invocation.scope, invocation.transaction = entry, scope, None
                try:
                    if entry.expired:
                        outputs = await pool.fallback(entry.value, invocation)
                    elif entry.sequence & _SAMPLE_MASK:
                        pool.calls += 1
                        outputs = await invoke(entry.value, invocation)
                    else:
                        outputs = await pool.measure(self, entry, invocation)
                    if type(outputs) is not tuple and type(outputs) is not list:
                        outputs = checked(outputs)
                except asyncio.CancelledError as error:
                    # Cancelled by the operator, or by what the function awaited: then it is the function's failure.
                    if entry.call is self and self.task.cancelling():
                        raise
                    pool.outcomes.end(entry, invocation, error)
                except Exception as error:  # noqa: BLE001 - whatever the function raises is the element's failure
                    pool.outcomes.end(entry, invocation, error)
                else:
                    if completed is None or entry.invocation is not invocation or invocation.transaction is not None:
                        pool.outcomes.complete(entry, invocation, outputs)
                    elif not pool.stopped:
                        entry.invocation = None
                        entry.outputs = outputs
                        completed(entry)
                if entry.call is not self and self._stand_down():
                    return
        except Exception as error:  # noqa: BLE001 - raised by the output
            pool.outcomes.crash(error)


def checked(outputs: Iterable[Any]) -> Sequence[Any]:
    """Return the outputs as a sequence.

    Raises
    ------
    InvalidFunctionResult
        They are a lone record, which is a mistake even where Python can iterate over it.
    """
    if isinstance(outputs, str | bytes | dict) or not isinstance(outputs, Iterable):
        raise InvalidFunctionResult(outputs)
    return tuple(outputs)
