"""Makes the calls: one per element at a time, one per key where there is keyed state, with a deadline for each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from async_op.context import InvocationContext, Scope
from async_op.deadlines import DeadlineQueue
from async_op.elements import Entry
from async_op.errors import AsyncTimeoutError, ElementFailed, InvalidFunctionResult
from async_op.functions import AsyncFunction
from async_op.gate import KeyGate
from async_op.workers import WorkerPool


class Invoker:
    """Invokes the function for entries. Only the thread of the event loop may call it.

    Parameters
    ----------
    function : AsyncFunction
        What to invoke.
    scope : Scope
        What all invocations share.
    concurrency : int
        How many calls may run at once.
    completed : callable
        Called with an entry whose `outputs` have just been set and whose writes have been applied.
    failed : callable
        Called with the error that ends the operator.
    """

    __slots__ = (
        "_completed",
        "_deadlines",
        "_failed",
        "_function",
        "_gate",
        "_scope",
        "_workers",
        "calls",
        "late_results",
        "timeouts",
    )

    def __init__(
        self,
        function: AsyncFunction,
        scope: Scope,
        concurrency: int,
        *,
        completed: Callable[[Entry], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._function = function
        self._scope = scope
        self._completed = completed
        self._failed = failed
        self._gate = KeyGate() if function.states else None
        self._deadlines = DeadlineQueue(scope.clock, self._expire)
        self._workers = WorkerPool(self._run, failed, concurrency)
        self.calls = self.timeouts = self.late_results = 0

    def start(self, entry: Entry) -> None:
        """Make the call of an entry as soon as its key and a worker are free."""
        if self._gate is None or self._gate.enter(entry):
            self._workers.add(entry)

    def watch(self, entry: Entry) -> None:
        """Ask the function for a fallback once the entry's deadline passes; entries come in order of deadline."""
        self._deadlines.add(entry)

    async def close(self) -> None:
        """Cancel all calls and wait until they have ended."""
        self._deadlines.close()
        await self._workers.close()

    async def _run(self, entry: Entry) -> None:
        """Make one call; only the invocation that is still the entry's when it returns counts."""
        invocation = entry.invocation = InvocationContext(entry, self._scope)
        if entry.expired:
            call = self._function.timeout(entry.value, invocation)
        else:
            self.calls += 1
            call = self._function.async_invoke(entry.value, invocation)
        try:
            outputs = _checked(await call)
        except asyncio.CancelledError as error:
            # Cancelled by the operator: the worker's affair. Cancelled by what the function awaited: its failure.
            if entry.invocation is not invocation or entry.task is None or entry.task.cancelling():
                raise
            self._fail(entry, invocation, error)
        except Exception as error:  # noqa: BLE001 - whatever the function raises is the element's failure
            self._fail(entry, invocation, error)
        else:
            self._complete(entry, invocation, outputs)

    def _complete(self, entry: Entry, invocation: InvocationContext, outputs: Sequence[Any]) -> None:
        if entry.invocation is not invocation:
            self.late_results += 1
            return
        invocation.commit()
        entry.outputs = outputs
        if entry.deadline is not None:
            self._deadlines.discard(entry)
        if self._gate is not None:
            following = self._gate.leave(entry)
            if following is not None:
                self._workers.add(following)
        self._completed(entry)

    def _fail(self, entry: Entry, invocation: InvocationContext, error: BaseException) -> None:
        if entry.invocation is not invocation:
            self.late_results += 1
            return
        invocation.abandon()
        if not isinstance(error, AsyncTimeoutError):
            cause, error = error, ElementFailed(entry.value, entry.key, invocation.attempt, error)
            error.__cause__ = cause
        self._failed(error)

    def _expire(self, entry: Entry) -> None:
        """Ask for a fallback in place of the call: at once if it runs, else when its turn comes."""
        self.timeouts += 1
        entry.expired = True
        if entry.invocation is not None:
            entry.invocation.abandon()
            self._workers.interrupt(entry)


def _checked(outputs: Iterable[Any]) -> Sequence[Any]:
    """Return the outputs as a sequence; a lone record is a mistake even where Python can iterate over it."""
    if type(outputs) is list or type(outputs) is tuple:
        return outputs
    if isinstance(outputs, str | bytes | dict) or not isinstance(outputs, Iterable):
        raise InvalidFunctionResult(outputs)
    return tuple(outputs)
