"""A pool of persistent tasks that call the function for one entry after the other.

Starting a task per element would cost more than the rest of the operator. `Worker._work` is the hot path; it is
deliberately one flat function.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context
from typing import Any, Protocol

from async_op.calls.isolation import UNCHANGING, CallContexts
from async_op.cancellation import cancel_all
from async_op.context import InvocationContext, Invoke, Scope
from async_op.in_flight.entries import Entry
from async_op.outputs import PLAIN, UNAWAITED, checked
from async_op.statistics import LatencyHistogram
from keygroups.state import commit
from keygroups.state.detached import IMMUTABLE, own_copy

_WAKE_AT_ONCE = 2
"""How many sleeping workers a woken one wakes: enough to start n calls in log n turns of the loop, but few enough
for the first worker to make all calls that return at once."""

_MEASURED_EVERY = 16
"""Only the latency of every 16th call is measured: reading the clock twice costs as much as queueing."""

_MEASURED_MAX = 64
"""After this many measured calls, a worker lets other tasks run, in case all of its calls returned at once."""


class Outcomes(Protocol):
    """Receives the outcomes of calls."""

    def complete(self, entry: Entry, invocation: InvocationContext, outputs: Sequence[Any]) -> None:
        """Take the outputs of a call."""
        ...

    def end(self, entry: Entry, invocation: InvocationContext, error: BaseException) -> None:
        """Take the error of a call."""
        ...

    def crash(self, error: BaseException) -> None:
        """Take an error of a callback; it ends the operator."""
        ...


class ElementFeed(Protocol):
    """The source from which an idle worker takes the next element."""

    def take(self) -> Entry | None:
        """Accept elements in place of those that have left; returns a single element if its call may begin at once."""
        ...

    def stop(self) -> None:
        """Give workers no more elements."""
        ...


class Workers:
    """Calls the function for entries, on a pool of tasks. Only the thread of the event loop may use it.

    Parameters
    ----------
    invoke : coroutine function
        Called with the value and the context of an entry.
    fallback : coroutine function
        Called in its place once the entry's time budget has run out.
    scope : Scope
        What all invocations share.
    contexts : CallContexts
        The context variables that calls see.
    concurrency : int
        The most calls that run at once.
    latency : LatencyHistogram
        Receives the durations of a sample of the calls.
    outcomes : Outcomes
        Receives the outcomes of the calls.
    completed : callable or None
        A shortcut for entries whose outputs are set and need no further check, and whose writes are applied; None if
        `outcomes` has to see every call.

    Attributes
    ----------
    unmeasured : int
        How many calls may still be made before one is measured.
    """

    __slots__ = (
        "_calls",
        "_feed",
        "_granted",
        "_idle",
        "_is_separate",
        "_measured",
        "_measured_by",
        "_running",
        "_waking",
        "completed",
        "contexts",
        "fallback",
        "invoke",
        "latency",
        "limit",
        "outcomes",
        "scope",
        "stopped",
        "todo",
        "unmeasured",
    )

    def __init__(
        self,
        invoke: Invoke,
        fallback: Invoke,
        scope: Scope,
        contexts: CallContexts,
        concurrency: int,
        latency: LatencyHistogram,
        outcomes: Outcomes,
        completed: Callable[[Entry], None] | None,
    ) -> None:
        self.invoke = invoke
        self.fallback = fallback
        self.scope = scope
        self.contexts = contexts
        self._is_separate = False
        self.limit = concurrency
        self.outcomes = outcomes
        self.completed = completed
        self.todo = deque[Entry]()
        self._feed: ElementFeed | None = None
        self.stopped = False
        self._calls = 0
        self._granted = self.unmeasured = 0
        self.latency = latency
        self._measured_by: Worker | None = None
        self._measured = 0
        self._idle: list[asyncio.Future[None]] = []
        self._running: set[asyncio.Task[None]] = set()
        self._waking = 0

    @property
    def calls(self) -> int:
        """How many calls have been made."""
        return self._calls + self._granted - self.unmeasured

    def add(self, entries: Iterable[Entry]) -> None:
        """Queue calls for entries; workers make them as they become free."""
        if self.stopped:
            return
        self.todo.extend(entries)
        if self.todo and not self._waking:
            self._wake_one()

    def add_first(self, entry: Entry) -> None:
        """Queue the call for an entry before all others."""
        self.todo.appendleft(entry)
        if not self._waking:
            self._wake_one()

    def stop(self) -> None:
        """Begin no more calls."""
        self.stopped = True
        self.todo.clear()
        if self._feed is not None:
            self._feed.stop()

    def cancel(self) -> None:
        """Cancel all calls at once; `close` waits until they have ended."""
        for task in self._running:
            task.cancel()

    async def close(self) -> None:
        """Cancel all calls and wait until they have ended."""
        self._idle.clear()
        await cancel_all(self._running)

    @contextmanager
    def fed_by(self, feed: ElementFeed | None) -> Iterator[None]:
        """Let workers take elements from `feed` inside this context."""
        self._feed = feed
        try:
            yield
        finally:
            self._feed = None

    def wake(self, count: int) -> None:
        """Wake workers for `count` entries: two at first, which wake others in turn."""
        for _ in range(min(_WAKE_AT_ONCE, count - self._waking)):
            self._wake_one()

    def feed_on(self) -> None:
        """Take elements for which there is room although no call has returned."""
        if self._feed is not None:
            entry = self._feed.take()
            if entry is not None:
                self.add((entry,))

    def _wake_one(self) -> None:
        if self._idle:
            self._waking += 1
            self._idle.pop().set_result(None)
        elif len(self._running) < self.limit:
            self._begin_one()

    def _begin_one(self) -> None:
        self._waking += 1
        if self.contexts.are_costly:
            self.separate()
        worker = Worker(self)
        self._running.add(worker.task)
        worker.task.add_done_callback(self._running.discard)

    def separate(self) -> None:
        """Make each call of the workers that begin from now on in a context of its own."""
        if not self._is_separate:
            self._is_separate = True
            self.invoke, self.fallback = map(self.contexts.separate, (self.invoke, self.fallback))

    def replace(self, worker: Worker) -> None:
        """Begin a worker in place of one whose context a call has changed: nothing can unset its variables."""
        self.separate()
        if not self.retire(worker):
            self._running.discard(worker.task)
            self._begin_one()

    def woken(self) -> None:
        """Record that a woken worker is running."""
        self._waking -= 1
        self.wake(len(self.todo) - 1)

    async def rest(self, worker: Worker) -> bool:
        """Wait for work; returns False if there are too many workers and this one has to end."""
        if self.retire(worker):
            return False
        sleep = asyncio.get_running_loop().create_future()
        self._idle.append(sleep)
        await sleep
        self.woken()
        return True

    def retire(self, worker: Worker) -> bool:
        """Retire a worker if there are too many; returns whether it was retired."""
        if not self.stopped and len(self._running) <= self.limit:
            return False
        # Now, not when the task is done: until then it would count as a worker that is available.
        self._running.discard(worker.task)
        return True

    def take(self) -> Entry | None:
        """Return the entry to call for next, if necessary a newly accepted element; None if there is none."""
        if not self.todo and self._feed is not None:
            self._waking += 1  # the calling worker is already awake for the first element
            entry = self._feed.take()
            self._waking -= 1
            if entry is not None:
                return entry
            self.wake(len(self.todo) - 1)
        return self.todo.popleft() if self.todo else None

    async def call_apart(self, worker: Worker, value: Any, invocation: InvocationContext) -> Iterable[Any]:
        """Ask for the fallback of an entry whose time budget has run out, or make its call and measure its duration."""
        if invocation.entry.expired:
            return await self.fallback(value, invocation)
        if self._measured_by is not worker:
            self._measured_by, self._measured = worker, 0
        self._measured += 1
        if self._measured == _MEASURED_MAX:
            self._measured = 0
            await asyncio.sleep(0)
        self._calls += self._granted - self.unmeasured + 1
        self._granted = self.unmeasured = _MEASURED_EVERY - 1
        started = self.scope.clock.time()
        outputs = await self.invoke(value, invocation)
        self.latency.add(self.scope.clock.time() - started)
        return outputs


class Worker:
    """One task of the pool, which makes calls one after the other."""

    __slots__ = ("_pool", "task")

    def __init__(self, pool: Workers) -> None:
        self._pool = pool
        # Not through the loop's task factory: an eager factory would run the task before the pool knows about it.
        # In a context of its own: whoever wakes a worker may be a call.
        loop, context = asyncio.get_running_loop(), pool.contexts.fresh()
        self.task = asyncio.Task(self._work(pool, context), loop=loop, name="keygroups worker", context=context)

    def interrupt(self) -> None:
        """Cancel the call. It may ignore the cancellation, so another worker may stand in for this one."""
        self._pool.limit += 1
        self.task.cancel()

    def _stand_down(self) -> bool:
        """Clear the interruption, for which another worker stood in; returns whether there are too many workers now."""
        self.task.uncancel()
        self._pool.limit -= 1
        return self._pool.retire(self)

    def _leave(self, entry: Entry, invocation: InvocationContext, outputs: Any, failure: BaseException | None) -> None:
        """Pass on the outcome of a call that has set context variables, where nothing sees them, and end."""
        outcomes, run = self._pool.outcomes, self._pool.contexts.run
        if failure is None:
            run(outcomes.complete, entry, invocation, outputs)
        else:
            run(outcomes.end, entry, invocation, failure)
        if entry.call is self or not self._stand_down():
            self._pool.replace(self)

    def _is_cancelled(self, entry: Entry, error: BaseException) -> bool:
        """Return whether the operator has cancelled a call; if its function awaited what was cancelled, it failed."""
        return isinstance(error, asyncio.CancelledError) and entry.call is self and self.task.cancelling() > 0

    def _crash(self, error: BaseException) -> bool:
        """Tell of an error that was raised by what was called back; returns whether the task has to be cancelled.

        If it is cancelled, either the operator has ended, or the function or somebody else has cancelled the task.
        """
        self._pool.outcomes.crash(error)
        return isinstance(error, asyncio.CancelledError)

    async def _work(self, pool: Workers, context: Context) -> None:
        """Make calls until there are too many workers. Only the result of an entry's current invocation counts.

        Calls run in the context of the task: to step each in one of its own costs 0.35 µs, to compare two contexts a
        thirtieth of that, as long as no variable was set. A call that leaves one set is the last one of its worker.
        A flat dict as value and one output are the usual cases, for which calls of `own_copy` and `checked` would
        cost as much as the work.
        """
        todo, scope, invoke, completed, unchanged = pool.todo, pool.scope, pool.invoke, pool.completed, context.copy()
        outputs: Any
        pool.woken()
        try:
            while True:
                while (entry := todo.popleft() if todo else pool.take()) is None:
                    outputs = invocation = value = failure = None  # keep nothing of the last call in memory
                    if not await pool.rest(self):
                        return
                entry.call, entry.invocation = self, (invocation := InvocationContext())
                invocation.entry, invocation.scope, invocation.handles = entry, scope, None
                value, failure = entry.value, None
                try:
                    if type(value) not in UNCHANGING:
                        is_flat = type(value) is dict and IMMUTABLE.issuperset(map(type, value.values()))
                        value = value.copy() if is_flat else own_copy(value)
                    if entry.expired or not pool.unmeasured:
                        outputs = await pool.call_apart(self, value, invocation)
                    else:
                        pool.unmeasured -= 1
                        outputs = await invoke(value, invocation)
                    if type(outputs) not in PLAIN or len(outputs) != 1 or type(outputs[0]) in UNAWAITED:
                        outputs = checked(outputs)
                except BaseException as error:
                    if self._is_cancelled(entry, error):
                        raise
                    outputs, failure = (), error
                try:
                    has_changed = context != unchanged
                except Exception:  # noqa: BLE001 - a variable was set to what cannot be compared
                    has_changed = True
                if has_changed:
                    self._leave(entry, invocation, outputs, failure)
                    return
                if failure is not None:
                    pool.outcomes.end(entry, invocation, failure)
                elif completed is None or entry.invocation is not invocation:
                    pool.outcomes.complete(entry, invocation, outputs)
                elif not pool.stopped:
                    entry.invocation = None
                    if invocation.handles is not None:  # the function has set it
                        commit(invocation.handles)  # type: ignore[unreachable]
                    entry.outputs = outputs
                    completed(entry)
                if entry.call is not self and self._stand_down():
                    return
        except BaseException as error:
            if self._crash(error):
                raise
