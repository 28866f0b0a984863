"""Decides which entries are called for, and what becomes of the outcomes of their calls."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from async_op.batches import Batches
from async_op.blocks import Block
from async_op.calls import calls_of
from async_op.clock import Clock
from async_op.context import InvocationContext, Scope
from async_op.deadlines import Deadlines
from async_op.elements import Entry, is_timer
from async_op.feed import Feed
from async_op.functions import AsyncBatchFunction
from async_op.gate import KeyGate
from async_op.in_flight import InFlight
from async_op.loading import Loading
from async_op.resilience import Limits
from async_op.retry import Backoff
from async_op.settings import OperatorSettings
from async_op.statistics import LatencyHistogram, ObservedLatency
from async_op.timers import with_timers
from async_op.workers import Workers
from keygroups.state.timers import TIMER_STATES


class Invoker:
    """Invokes the function for entries. Only the thread of the event loop may call it.

    Parameters
    ----------
    settings : OperatorSettings
        The function, and how it is retried and limited.
    scope : Scope
        What all invocations share.
    gate : KeyGate or None
        Keeps the entries of one key apart.
    in_flight : InFlight
        Where entries go that have completed.
    failed : callable
        Called with an entry whose call has failed for good, and the error; returns its outputs, or None to end all.
    crash : callable
        Called with an error of what was called back, which ends the operator.
    preload : bool
        Bring restored state into memory also where no element asks for it.

    Attributes
    ----------
    start : callable
        Makes the calls of entries as soon as their keys and workers are free.
    is_direct : bool
        Any worker may call for an entry that has come in, without `start`.
    wake : callable
        Wakes workers for a number of elements; whoever is awake for one of them counts.
    completed : callable or None
        Takes entries of which nothing else has to be looked at; None if all have to be.
    batches : Batches or None
        Makes the calls of a batch function.
    blocks : Batches or None
        The same, where it may gather new elements without a look at each.
    """

    __slots__ = (
        "_backoff",
        "_cache",
        "_calls",
        "_failed",
        "_gate",
        "_latency",
        "_limits",
        "_loading",
        "_queue",
        "_retry",
        "_stopped",
        "_timers",
        "_workers",
        "batches",
        "blocks",
        "completed",
        "crash",
        "deadlines",
        "is_direct",
        "late_results",
        "retries",
        "start",
        "timeouts",
        "wake",
    )

    def __init__(
        self,
        settings: OperatorSettings,
        scope: Scope,
        gate: KeyGate | None,
        in_flight: InFlight,
        *,
        failed: Callable[[Entry, BaseException], Sequence[Any] | None],
        crash: Callable[[BaseException], None],
        preload: bool,
    ) -> None:
        function = settings.function
        self._gate = gate
        self._retry = settings.retry
        self._queue = in_flight.queue
        self._failed = failed
        self.crash = crash
        self._backoff = Backoff(scope.clock, self._ready)
        self.deadlines = Deadlines(scope.clock, in_flight.queue.pending, self._expire)
        self._latency = ObservedLatency(function=type(function).__name__, subtask_index=settings.subtask_index)
        self._limits = _limits_of(settings, scope.clock, self._latency)
        self._cache = None if self._limits is None else self._limits.cache
        looks_at_all = gate is not None or self._cache is not None
        self.completed = None if looks_at_all or settings.retry is not None else in_flight.queue.complete
        self._calls = calls_of(function)
        self._timers = timers = scope.timers
        # Limits measure the calls themselves, without what these wait for.
        latency = self._latency if self._limits is None else LatencyHistogram()
        invoke = self._calls.invoke if timers is None else with_timers(function.on_timer, self._calls.invoke)
        if self._limits is not None:
            invoke = self._limits.protect(invoke)
        self._workers = Workers(invoke, function.timeout, scope, settings.capacity, latency, outcomes=self)
        self.batches: Batches | None = None
        if isinstance(function, AsyncBatchFunction):
            parts = (in_flight, self.deadlines, latency)
            self.batches = Batches(function, scope, settings.capacity, *parts, outcomes=self, limits=self._limits)
        self.blocks = None if looks_at_all or settings.key_by is not None else self.batches
        self.is_direct = not looks_at_all and self.batches is None
        self.start = self._workers.add if self.is_direct else self._enter
        self.wake = self._workers.wake
        if timers is not None:
            timers.start, timers.deadlines = self.start, self.deadlines
        # Timers are read before anything else.
        tables = [table for table in scope.backend.tables.values() if table.descriptor.name not in TIMER_STATES]
        is_loaded = not any(table.unloaded() for table in tables)
        self._loading = None if is_loaded else Loading(tables, self._ready, crash, everything=preload)
        self._stopped = False
        self.retries = self.timeouts = self.late_results = 0

    def start_after(self, entry: Entry, delay: float) -> None:
        """Make the call of a restored entry once its backoff has passed."""
        if self._gate is None or self._gate.enter([entry]):
            self._backoff.add(entry, delay)

    def finish(self) -> None:
        """End of input: make the last attempts now, and take their outcomes as they are."""
        self._retry = None
        self._backoff.release_all()
        self.flush()
        if self._timers is not None:
            self._timers.finish()

    def flush(self) -> None:
        """Make the calls that wait for company."""
        if self.batches is not None:
            self.batches.flush()

    @contextmanager
    def fed_by(self, feed: Feed | None) -> Iterator[None]:
        """Let workers take elements in meanwhile."""
        self._workers.feed = feed
        try:
            yield
        finally:
            self._workers.feed = None

    def counters(self) -> dict[str, Any]:
        """Return what the operator's statistics say of calls."""
        calls = self._workers.calls + (0 if self.batches is None else self.batches.calls)
        return {
            "calls": calls if self._limits is None else self._limits.calls,
            "retries": self.retries,
            "timeouts": self.timeouts,
            "late_results": self.late_results,
            "latency": self._latency.freeze(),
            "resilience": None if self._limits is None else self._limits.statistics(),
        }

    def stop(self) -> None:
        """Begin no more calls; those that run go on, and their outcomes do not count."""
        self._stopped = True
        if self._timers is not None:
            self._timers.stop()
        self.deadlines.close()
        self._backoff.close()
        self._workers.stop()
        if self._limits is not None:
            self._limits.stop()
        if self._workers.feed is not None:
            self._workers.feed.stop()
        if self.batches is not None:
            self.batches.stop()
        if self._loading is not None:
            self._loading.stop()

    async def close(self) -> None:
        """Cancel all calls and wait until they have ended."""
        self.stop()
        if self._loading is not None:
            await self._loading.close()
        await self._calls.close()
        if self.batches is not None:
            await self.batches.close()
        await self._workers.close()

    def complete(self, entry: Entry, invocation: InvocationContext, outputs: Sequence[Any]) -> None:
        """Take the outputs of a call, unless its element is to be tried again or has been given up."""
        if self._stopped:
            return
        if entry.invocation is not invocation:
            self.late_results += 1
            return
        if self._retry is not None and not entry.expired:
            delay = self._retry.delay_after_result(entry.attempt, outputs)
            if delay is not None:
                self._try_again(entry, invocation, delay)
                return
        entry.invocation = None
        if invocation.transaction is not None:
            invocation.transaction.commit()
        if self._cache is not None:
            self._cache.put(entry, outputs)
        self._finish_entry(entry, outputs)

    def complete_block(self, block: Block, outputs: Sequence[Sequence[Any]]) -> bool:
        """Take the outputs of a whole block, and tell whether that is possible without a look at each element."""
        if self._stopped:
            return True
        if self._retry is not None:
            delay_after = self._retry.delay_after_result
            if any(delay_after(1, outputs_of_one) is not None for outputs_of_one in outputs):
                return False
        block.outputs = outputs
        self._queue.complete_block(block)
        return True

    def end(self, entry: Entry, invocation: InvocationContext, error: BaseException) -> None:
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
        if self._cache is not None:
            self._cache.forget(entry)
        outputs = self._failed(entry, error)
        if outputs is not None:
            self._finish_entry(entry, outputs)

    def _enter(self, entries: Iterable[Entry]) -> None:
        if self._gate is not None:
            entries = self._gate.enter(entries)
        if self._loading is None and self.batches is None and self._cache is None:
            self._workers.add(entries)
        else:
            for entry in entries:
                self._ready(entry)

    def _ready(self, entry: Entry) -> None:
        outputs = self._known(entry)
        if outputs is None:
            self._call(entry)
        else:
            self._finish_entry(entry, outputs)

    def _known(self, entry: Entry) -> Sequence[Any] | None:
        """Return the outputs of an entry that need no call."""
        if self._cache is None or entry.expired:
            return None
        try:
            return self._cache.get(entry)
        except Exception as error:  # noqa: BLE001 - raised by the user's key, or it cannot be looked up
            self.crash(error)
            return None

    def _call(self, entry: Entry) -> None:
        if self._loading is not None and self._loading.holds(entry):
            return
        if self.batches is None or entry.expired or is_timer(entry):
            self._workers.add((entry,))
        else:
            self.batches.add(entry)

    def _finish_entry(self, entry: Entry, outputs: Sequence[Any]) -> None:
        """Let an entry go, and after it those of its key that need no call either."""
        while True:
            entry.outputs = outputs
            following = None if self._gate is None else self._gate.leave(entry)
            self._queue.complete(entry)
            if following is None:
                return
            known = self._known(following)
            if known is None:
                self._call(following)
                return
            entry, outputs = following, known

    def _try_again(self, entry: Entry, invocation: InvocationContext, delay: float) -> None:
        invocation.abandon()
        self.retries += 1
        entry.attempt += 1
        self._backoff.add(entry, delay)

    def _expire(self, entry: Entry | Block) -> None:
        """Ask for a fallback in place of the call: at once if it runs or waits to be retried, else in its turn."""
        if isinstance(entry, Block):
            assert self.batches is not None, "blocks are made for batch functions"
            self.batches.split(entry)
            return
        self.timeouts += 1
        entry.expired = True
        if entry.invocation is not None:
            self._interrupt(entry)
            return
        entry.attempt -= 1  # the one that was due is never made
        if entry.due is not None:
            self._backoff.release(entry)
        elif self.batches is not None and self.batches.remove(entry):
            self._workers.add((entry,))

    def _interrupt(self, entry: Entry) -> None:
        assert entry.invocation is not None, "only what runs can be interrupted"
        entry.invocation.abandon()
        call, entry.call = entry.call, None
        if call is not None:
            call.interrupt()
        self._workers.add_first(entry)


def _limits_of(settings: OperatorSettings, clock: Clock, latency: LatencyHistogram) -> Limits | None:
    if settings.resilience is None:
        return None
    share = settings.subtask_index, settings.parallelism
    return Limits(settings.resilience, share, settings.capacity, clock, latency)
