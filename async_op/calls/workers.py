"""A pool of persistent tasks that call the function for one entry after the other.

Starting a task per element would cost more than the rest of the operator. `Worker._work` is the hot path; it is
deliberately one flat function.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextvars import Context
from gc import is_tracked
from typing import Any, Protocol

from async_op.calls.checked_outputs import OutputChecks
from async_op.calls.completion import Completion
from async_op.calls.isolation import UNCHANGING, CallContexts, are_different
from async_op.cancellation import absorb_cancellations, cancel_all, tasks_if_all_are_cancelled
from async_op.functions.context import InvocationContext, Invoke, Scope
from async_op.in_flight.entries import Entry
from async_op.statistics import LatencyHistogram
from async_op.threads.watchdog import Turn
from keygroups.context_managers import contextmanager
from keygroups.state import commit
from keygroups.state.detached import are_immutable, own_copy

_WAKE_AT_ONCE = 2
"""How many sleeping workers a woken one wakes: enough to start n calls in log n turns of the loop, but few enough
for the first worker to make all calls that return at once."""

_MEASURED_EVERY = 16
"""A worker measures only every 16th of its calls: reading the clock twice costs as much as queueing."""

_TELLS_MUTABLE = not is_tracked({})
"""Whether the collector of garbage leaves dicts alone that can be in no cycle: no longer from Python 3.14 on."""

_MEASURED_MAX = 64
"""After this many measured calls, a worker lets other tasks run, in case all of its calls returned at once."""


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
    completion : Completion
        Takes the outcomes of the calls.
    checks : OutputChecks
        Checks what the calls return.
    turn : Turn
        Says when calls that block have kept the event loop for too long.
    are_decoded : bool
        Whether decoders of this package have made the elements; see `Vet`.

    Attributes
    ----------
    fallbacks : int
        How often the fallback was asked.
    """

    __slots__ = (
        "_feed",
        "_idle",
        "_is_separate",
        "_received",
        "_running",
        "_waking",
        "are_decoded",
        "checks",
        "completed",
        "completion",
        "contexts",
        "fallback",
        "fallbacks",
        "invoke",
        "latency",
        "limit",
        "scope",
        "stopped",
        "todo",
        "turn",
    )

    def __init__(
        self,
        invoke: Invoke,
        fallback: Invoke,
        scope: Scope,
        contexts: CallContexts,
        concurrency: int,
        latency: LatencyHistogram,
        completion: Completion,
        checks: OutputChecks,
        turn: Turn,
        *,
        are_decoded: bool,
    ) -> None:
        self.invoke = invoke
        self.fallback = fallback
        self.scope = scope
        self.contexts = contexts
        self._is_separate = False
        self.limit = concurrency
        self.completion = completion
        self.completed = completion.shortcut
        self.checks = checks
        self.turn = turn
        self.are_decoded = are_decoded and _TELLS_MUTABLE
        self.todo = deque[Entry]()
        self._feed: ElementFeed | None = None
        self.stopped = False
        self._received = self.fallbacks = 0
        self.latency = latency
        self._idle: list[asyncio.Future[None]] = []
        self._running: set[asyncio.Task[None]] = set()
        self._waking = 0

    @property
    def calls(self) -> int:
        """How many calls have been made: counted by what was received, so that the hot path counts nothing."""
        return self._received - len(self.todo) - self.fallbacks

    def add(self, entries: Iterable[Entry]) -> None:
        """Queue calls for entries; workers make them as they become free."""
        if self.stopped:
            return
        before = len(self.todo)
        self.todo.extend(entries)
        self._received += len(self.todo) - before
        if self.todo and not self._waking:
            self._wake_one()

    def add_first(self, entry: Entry) -> None:
        """Queue the call for an entry before all others."""
        self.todo.appendleft(entry)
        self._received += 1
        if not self._waking:
            self._wake_one()

    def stop(self) -> None:
        """Begin no more calls."""
        self.stopped = True
        self._received -= len(self.todo)
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
        while self._idle:
            sleep = self._idle.pop()
            if not sleep.done():  # as it is once its worker was cancelled
                self._waking += 1
                sleep.set_result(None)
                return
        if len(self._running) < self.limit:
            self._begin_one()

    def _begin_one(self) -> None:
        self._waking += 1
        if self.contexts.are_costly:
            self.separate()
        worker = Worker(self, len(self._running))
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
        """Wait for work, or until the loop has had its turn; returns False if there are too many workers."""
        if worker.task.cancelling():  # by the last call: the next one must not notice
            await absorb_cancellations()
            return True
        if self.turn.is_due:
            await self.turn.given()
            return True
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
                self._received += 1
                return entry
            self.wake(len(self.todo) - 1)
        return self.todo.popleft() if self.todo else None


class Worker:
    """One task of the pool, which makes calls one after the other."""

    __slots__ = ("_measured", "_pool", "task")

    def __init__(self, pool: Workers, number: int) -> None:
        self._pool = pool
        self._measured = 0
        # Not through the loop's task factory: an eager factory would run the task before the pool knows about it.
        # In a context of its own: the waking code may be a call.
        loop, context = asyncio.get_running_loop(), pool.contexts.fresh()
        # Workers measure their first calls in turn: with many calls under way all would measure at the same time.
        work = self._work(pool, context, unmeasured=number % _MEASURED_EVERY)
        self.task = asyncio.Task(work, loop=loop, name="keygroups worker", context=context)

    def interrupt(self) -> None:
        """Cancel the call. It may ignore the cancellation, so another worker may stand in for this one."""
        self._pool.limit += 1
        self.task.cancel()

    def _stand_down(self) -> bool:
        """Clear the interruption, for which another worker stood in; returns whether there are too many workers now."""
        self.task.uncancel()
        self._pool.limit -= 1
        return self._pool.retire(self)

    async def _call_apart(self, value: Any, invocation: InvocationContext) -> Iterable[Any]:
        """Ask for the fallback of an element whose time budget has run out, or make its call and measure its duration.

        Before every 64th measured call other tasks run.
        """
        pool = self._pool
        if invocation.entry.expired:
            pool.fallbacks += 1
            return await pool.fallback(value, invocation)
        self._measured += 1
        if self._measured % _MEASURED_MAX == 0:
            await asyncio.sleep(0)
        started = pool.scope.clock.time()
        outputs = await pool.invoke(value, invocation)
        pool.latency.add(pool.scope.clock.time() - started)
        return outputs

    def _fail(self, entry: Entry, invocation: InvocationContext, error: BaseException, has_changed: bool) -> bool:
        """Pass on the error of a call; returns whether this worker has to end.

        It never raises the error: what raises its own variable is in a cycle of references with it. So would be the
        task, and a cancelled worker would stay in memory until a full garbage collection.
        """
        if self._is_cancelled(entry, error):
            self._pool.completion.crash(error)
            return True
        if has_changed:
            self._leave(self._pool.completion.end, entry, invocation, error)
            return True
        self._pool.completion.end(entry, invocation, error)
        return entry.call is not self and self._stand_down()

    def _leave(self, tell: Callable[..., None], entry: Entry, invocation: InvocationContext, outcome: Any) -> None:
        """Pass on the outcome of a call that has set context variables, where nothing sees them, and end."""
        self._pool.contexts.run(tell, entry, invocation, outcome)
        if entry.call is self or not self._stand_down():
            self._pool.replace(self)

    def _is_cancelled(self, entry: Entry, error: BaseException) -> bool:
        """Return whether the operator has cancelled a call, or the end of the program has.

        If its function awaited what was cancelled, or has cancelled the task that it runs in, the call has failed.
        """
        if not isinstance(error, asyncio.CancelledError) or entry.call is not self or not self.task.cancelling():
            return False
        return self._pool.stopped or tasks_if_all_are_cancelled() is not None

    async def _work(self, pool: Workers, context: Context, unmeasured: int, outputs: Any = ()) -> None:
        """Make calls until there are too many workers. Only the result of an entry's current invocation counts.

        Calls run in the context of the task: to step each in its own costs 0.35 µs, to compare two contexts a thirtieth
        of that. A call that leaves a variable set is the last one of its worker. Comparing with the last type, of the
        element (`shared`), the outputs (`form`) or their only one (`kind`), takes a third of a set lookup.
        """
        todo, scope, invoke, completed, unchanged = pool.todo, pool.scope, pool.invoke, pool.completed, context.copy()
        shared, form, kind, turn, cancelling = int, type(outputs), None, pool.turn, self.task.cancelling
        pool.woken()
        try:
            while True:
                while cancelling() or turn.is_due or (entry := todo.popleft() if todo else pool.take()) is None:
                    outputs = invocation = value = None  # keep nothing of the last call in memory
                    if not await pool.rest(self):
                        return
                entry.call, entry.invocation, value = self, (invocation := InvocationContext()), entry.value
                invocation.entry, invocation.scope, invocation.handles = entry, scope, None
                try:
                    if type(value) is not shared:
                        if type(value) is dict and (  # without a call, which would cost as much
                            (pool.are_decoded and not is_tracked(value)) or are_immutable(map(type, value.values()))
                        ):
                            value = value.copy()
                        elif type(value) in UNCHANGING:
                            shared = type(value)
                        else:
                            value = own_copy(value)
                    if unmeasured and not entry.expired:
                        unmeasured -= 1
                        outputs = await invoke(value, invocation)
                    else:
                        unmeasured = _MEASURED_EVERY - 1
                        outputs = await self._call_apart(value, invocation)
                    if type(outputs) is not form or len(outputs) != 1 or type(outputs[0]) is not kind:
                        outputs, form, kind = pool.checks.of(outputs)
                except BaseException as error:  # noqa: BLE001 - every error of the function is an outcome
                    if self._fail(entry, invocation, error, are_different(context, unchanged)):
                        return
                    continue
                try:
                    if context != unchanged:
                        break
                except Exception:  # noqa: BLE001 - a variable was set to what cannot be compared
                    break
                if completed is None or entry.invocation is not invocation:
                    pool.completion.complete(entry, invocation, outputs)
                    if entry.call is not self and self._stand_down():
                        return
                elif not pool.stopped:
                    entry.invocation, entry.outputs = None, outputs
                    if invocation.handles is not None:  # the function has set it
                        commit(invocation.handles)  # type: ignore[unreachable]
                    completed(entry)
            self._leave(pool.completion.complete, entry, invocation, outputs)
        except BaseException as error:  # noqa: BLE001 - it ends the operator: see `_fail`
            pool.completion.crash(error)
