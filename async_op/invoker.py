"""Makes the calls, each in one of a pool of persistent tasks, and decides what becomes of their outcomes.

Starting a task per element would cost more than the rest of the operator together, so workers live on and take one
entry after the other. This loop is the hot path: it is written flat on purpose.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from async_op.calls import Calls
from async_op.cancellation import cancel_all
from async_op.context import InvocationContext, Scope
from async_op.deadlines import Deadlines
from async_op.elements import Entry
from async_op.errors import InvalidFunctionResult
from async_op.functions import Function
from async_op.gate import KeyGate
from async_op.retry import Backoff, RetryPolicy
from async_op.statistics import LatencyHistogram

_WAKE_AT_ONCE = 2
"""How many sleeping workers a woken one wakes: enough to start n calls in log n turns of the loop, and few enough
that calls which return at once are all made by the first."""

_SAMPLE_MASK = 15
"""The latency of every 16th call is measured: reading the clock twice costs as much as queueing."""


class Invoker:
    """Invokes the function for entries. Only the thread of the event loop may call it.

    Parameters
    ----------
    function : Function
        Whose `timeout` gives fallbacks.
    calls : Calls
        How it is called.
    scope : Scope
        What all invocations share.
    concurrency : int
        How many calls may run at once.
    gate : KeyGate or None
        Keeps the entries of one key apart.
    retry : RetryPolicy or None
        Which outcomes are tried again.
    pending : callable
        Returns the entries that have not completed, oldest first.
    completed : callable
        Called with an entry whose `outputs` have just been set and whose writes have been applied.
    failed : callable
        Called with an entry whose call has failed for good, and the error; returns its outputs, or None to end all.
    crashed : callable
        Called with an error of what was called back, which ends the operator.
    """

    __slots__ = (
        "_backoff",
        "_call_kind",
        "_completed",
        "_crashed",
        "_failed",
        "_function",
        "_gate",
        "_idle",
        "_limit",
        "_retry",
        "_scope",
        "_stopped",
        "_todo",
        "_waking",
        "_workers",
        "calls",
        "deadlines",
        "late_results",
        "latency",
        "retries",
        "timeouts",
    )

    def __init__(
        self,
        function: Function,
        calls: Calls,
        scope: Scope,
        concurrency: int,
        *,
        gate: KeyGate | None,
        retry: RetryPolicy | None,
        pending: Callable[[], Iterator[Entry]],
        completed: Callable[[Entry], None],
        failed: Callable[[Entry, BaseException], Sequence[Any] | None],
        crashed: Callable[[BaseException], None],
    ) -> None:
        self._function = function
        self._call_kind = calls
        self._scope = scope
        self._limit = concurrency
        self._gate = gate
        self._retry = retry
        self._completed = completed
        self._failed = failed
        self._crashed = crashed
        self._backoff = Backoff(scope.clock, self._ready)
        self.deadlines = Deadlines(scope.clock, pending, self._expire)
        self._todo = deque[Entry]()
        self._idle: list[asyncio.Future[None]] = []
        self._workers: set[asyncio.Task[None]] = set()
        self._waking = 0
        self._stopped = False
        self.calls = self.retries = self.timeouts = self.late_results = 0
        self.latency = LatencyHistogram()

    def start(self, entry: Entry) -> None:
        """Make the call of an entry as soon as its key and a worker are free."""
        if self._gate is None or self._gate.enter(entry):
            self._todo.append(entry)
            if not self._waking:
                self._wake()

    def start_after(self, entry: Entry, delay: float) -> None:
        """Make the call of a restored entry once its backoff has passed."""
        if self._gate is None or self._gate.enter(entry):
            self._backoff.add(entry, delay)

    def finish(self) -> None:
        """End of input: make the last attempts now, and take their outcomes as they are."""
        self._retry = None
        self._backoff.release_all()
        self._call_kind.flush()

    def counters(self) -> dict[str, Any]:
        """Return what the operator's statistics say of calls."""
        return {
            "calls": self.calls,
            "retries": self.retries,
            "timeouts": self.timeouts,
            "late_results": self.late_results,
            "latency": self.latency.freeze(),
        }

    def stop(self) -> None:
        """Begin no more calls; those that run go on, and their outcomes do not count."""
        self._stopped = True
        self.deadlines.close()
        self._backoff.close()
        self._todo.clear()

    async def close(self) -> None:
        """Cancel all calls and wait until they have ended."""
        self.stop()
        self._idle.clear()
        await self._call_kind.close()
        await cancel_all(self._workers)

    # -- workers

    def _ready(self, entry: Entry) -> None:
        self._todo.append(entry)
        if not self._waking:
            self._wake()

    def _wake(self) -> None:
        if self._idle:
            self._waking += 1
            self._idle.pop().set_result(None)
        elif len(self._workers) < self._limit:
            self._waking += 1
            worker = asyncio.get_running_loop().create_task(self._work(), name="keygroups worker")
            self._workers.add(worker)
            worker.add_done_callback(self._workers.discard)

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None, "workers are tasks"
        loop = asyncio.get_running_loop()
        todo = self._todo
        while True:
            self._waking -= 1
            for _ in range(min(_WAKE_AT_ONCE, len(todo) - 1)):
                self._wake()
            try:
                await self._take_turns(task)
            except Exception as error:  # noqa: BLE001 - raised by the output; a worker outlives it
                self._crashed(error)
            if self._stopped or len(self._workers) > self._limit:
                # At once, not when the task is done: until then it would stand in for one that is needed.
                self._workers.discard(task)
                return
            sleep = loop.create_future()
            self._idle.append(sleep)
            await sleep

    async def _take_turns(self, task: asyncio.Task[None]) -> None:
        """Make one call after the other while there are any; only an entry's current invocation counts."""
        todo, scope, invoke, completed = self._todo, self._scope, self._call_kind.invoke, self._completed
        plain = self._gate is None and self._retry is None
        while todo:
            entry = todo.popleft()
            entry.task = task
            entry.invocation = invocation = InvocationContext(entry, scope)
            try:
                if entry.expired:
                    outputs = await self._function.timeout(entry.value, invocation)
                elif entry.sequence & _SAMPLE_MASK:
                    self.calls += 1
                    outputs = await invoke(entry.value, invocation)
                else:
                    self.calls += 1
                    started = scope.clock.time()
                    outputs = await invoke(entry.value, invocation)
                    self.latency.add(scope.clock.time() - started)
                if type(outputs) is not list and type(outputs) is not tuple:
                    outputs = _checked(outputs)
            except asyncio.CancelledError as error:
                # Cancelled by the operator, or by what the function awaited: then it is the function's failure.
                if task.cancelling() and entry.task is task:
                    raise
                self._end(entry, invocation, error)
            except Exception as error:  # noqa: BLE001 - whatever the function raises is the element's failure
                self._end(entry, invocation, error)
            else:
                if self._stopped:
                    return
                if entry.invocation is not invocation:
                    self.late_results += 1
                elif plain and invocation.transaction is None:
                    entry.invocation = None
                    entry.outputs = outputs
                    completed(entry)
                else:
                    self._complete(entry, invocation, outputs)
            if entry.task is not task:
                task.uncancel()
                self._limit -= 1

    # -- outcomes

    def _complete(self, entry: Entry, invocation: InvocationContext, outputs: Sequence[Any]) -> None:
        if self._retry is not None and not entry.expired:
            delay = self._retry.delay_after_result(entry.attempt, outputs)
            if delay is not None:
                self._try_again(entry, invocation, delay)
                return
        entry.invocation = None
        if invocation.transaction is not None:
            invocation.transaction.commit()
        entry.outputs = outputs
        if self._gate is not None:
            self._let_next_pass(self._gate, entry)
        self._completed(entry)

    def _end(self, entry: Entry, invocation: InvocationContext, error: BaseException) -> None:
        """Try a failed call again, or let its element fail for good."""
        if self._stopped:
            return
        if entry.invocation is not invocation:
            self.late_results += not isinstance(error, asyncio.CancelledError)
            return
        delay = None
        if self._retry is not None and not entry.expired:
            delay = self._retry.delay_after_error(entry.attempt, error)
        if delay is not None:
            self._try_again(entry, invocation, delay)
            return
        invocation.abandon()
        outputs = self._failed(entry, error)
        if outputs is not None:
            entry.outputs = outputs
            if self._gate is not None:
                self._let_next_pass(self._gate, entry)
            self._completed(entry)

    def _try_again(self, entry: Entry, invocation: InvocationContext, delay: float) -> None:
        invocation.abandon()
        self.retries += 1
        entry.attempt += 1
        self._backoff.add(entry, delay)

    def _let_next_pass(self, gate: KeyGate, entry: Entry) -> None:
        following = gate.leave(entry)
        if following is not None:
            self._ready(following)

    def _expire(self, entry: Entry) -> None:
        """Ask for a fallback in place of the call: at once if it runs or waits to be retried, else in its turn."""
        self.timeouts += 1
        entry.expired = True
        if entry.invocation is not None:
            self._interrupt(entry)
            return
        entry.attempt -= 1  # the one that was due is never made
        if entry.due is not None:
            self._backoff.release(entry)

    def _interrupt(self, entry: Entry) -> None:
        """Cancel a call; its task may ignore that, so another one may take its place meanwhile."""
        assert entry.invocation is not None, "only what runs can be interrupted"
        entry.invocation.abandon()
        task, entry.task = entry.task, None
        if task is not None:
            self._limit += 1
            task.cancel()
        self._todo.appendleft(entry)
        if not self._waking:
            self._wake()


def _checked(outputs: Iterable[Any]) -> Sequence[Any]:
    """Return the outputs as a sequence; a lone record is a mistake even where Python can iterate over it."""
    if isinstance(outputs, str | bytes | dict) or not isinstance(outputs, Iterable):
        raise InvalidFunctionResult(outputs)
    return tuple(outputs)
