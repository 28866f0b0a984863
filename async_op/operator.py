"""The async operator: one subtask's queue, calls, timeouts and keyed state, owned by the thread of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable
from typing import Any

from async_op.calls import calls_of
from async_op.clock import Clock, LoopClock
from async_op.context import Scope
from async_op.dead_letters import DeadLetter, ErrorPolicy, OnError
from async_op.elements import Entry, Record, Watermark, WatermarkEntry
from async_op.errors import OperatorClosed
from async_op.functions import Function
from async_op.gate import KeyGate
from async_op.invoker import Invoker
from async_op.keys import KeyAssignment
from async_op.queues import count_entries, queue_of
from async_op.recovery import Recovery
from async_op.retry import RetryPolicy
from async_op.settings import Mode, OperatorSettings
from async_op.statistics import OperatorStatistics, Times
from async_op.waiters import Waiters
from keygroups.state import MemoryBackend
from snapshots import SubtaskRestore, SubtaskSnapshot

_TURN_MASK = 1023
"""After so many elements without a wait, `process` lets the calls begin."""

_new_tuple = tuple.__new__  # makes a Record in half the time of its own constructor


class AsyncWaitOperator:
    """Invokes a function for each element and emits its outputs, with many calls under way at once.

    Every method must be called on the event loop on which `open` was awaited; the function's methods and `output`
    run there too. `process` and `process_watermark` are to be awaited one after the other, by one task.

    Parameters
    ----------
    function : AsyncFunction, AsyncBatchFunction, BlockingFunction or CallbackFunction
        What to invoke.
    output : callable
        Called with each `Record` and `Watermark` that leaves; must not block.
    mode : {"unordered", "ordered", "key_ordered"}
        "ordered": outputs leave in the order of the inputs. "unordered": as calls return, but never across a watermark.
        "key_ordered": in the order of the inputs of the same key, one call per key at a time.
    capacity : int
        In-flight elements, watermarks included, before `process` waits. In mode "key_ordered", elements that wait for
        their key are not counted, so that a busy key does not hold up the others; they have a limit of their own.
    timeout : float, optional
        Seconds from the acceptance of an element, over all attempts, until `function.timeout` is asked for a fallback.
    retry : RetryPolicy, optional
        Which outcomes are tried again, and when.
    key_by : callable, optional
        Returns the key of a value. Needed by a function that declares states; then at most one call per key runs.
    parallelism, subtask_index : int
        Which subtask this is, of how many.
    max_parallelism : int, optional
        The number of key groups; the restored snapshot's, or a default from the parallelism.
    on_error : {"fail", "skip", "dead_letter"}
        What becomes of an element that fails for good: it fails the operator, is dropped, or is passed as a
        `DeadLetter` to `dead_letters`, a callable.
    hash : {"xxhash64", "flink"}
        From key to key group.
    clock : Clock, optional
        For tests; the event loop's unless given.

    Raises
    ------
    ConfigError
        An argument can never work.

    Examples
    --------
    >>> import asyncio
    >>> class Double(AsyncFunction):
    ...     async def async_invoke(self, value, ctx):
    ...         return [2 * value]
    >>> async def main():
    ...     outputs = []
    ...     operator = AsyncWaitOperator(Double(), outputs.append, mode="ordered")
    ...     await operator.open()
    ...     for value in (1, 2, 3):
    ...         await operator.process(value)
    ...     await operator.finish()
    ...     await operator.close()
    ...     return [record.value for record in outputs]
    >>> asyncio.run(main())
    [2, 4, 6]
    """

    __slots__ = (
        "_capacity",
        "_clock",
        "_emitted",
        "_errors",
        "_failure",
        "_gate",
        "_invoker",
        "_key_by",
        "_keys",
        "_now",
        "_others",
        "_output",
        "_queue",
        "_recovery",
        "_runtime",
        "_scope",
        "_sequence",
        "_settings",
        "_size",
        "_start",
        "_timeout",
        "_times",
        "_waiters",
        "_watermark",
    )

    def __init__(
        self,
        function: Function,
        output: Callable[[Record | Watermark], object],
        *,
        mode: Mode = "unordered",
        capacity: int = 100,
        timeout: float | None = None,
        retry: RetryPolicy | None = None,
        key_by: Callable[[Any], Hashable] | None = None,
        parallelism: int = 1,
        subtask_index: int = 0,
        max_parallelism: int | None = None,
        clock: Clock | None = None,
        on_error: OnError = "fail",
        dead_letters: Callable[[DeadLetter], object] | None = None,
        hash: str = "xxhash64",
    ) -> None:
        self._settings = OperatorSettings(
            function=function,
            mode=mode,
            capacity=capacity,
            timeout=timeout,
            retry=retry,
            key_by=key_by,
            parallelism=parallelism,
            subtask_index=subtask_index,
            max_parallelism=max_parallelism,
            on_error=on_error,
            dead_letters=dead_letters,
            hash=hash,
        )
        self._output = output
        self._capacity = capacity
        self._timeout = timeout
        self._key_by = key_by
        self._clock = clock
        self._queue = queue_of(mode, self._depart, self._depart_watermark)
        self._gate = KeyGate() if function.states or mode == "key_ordered" else None
        self._failure: BaseException | None = OperatorClosed("new")
        self._waiters = Waiters(self._check_usable)
        self._watermark: int | None = None
        self._size = self._sequence = self._emitted = self._others = 0

    async def open(self, restore: SubtaskRestore | None = None) -> None:
        """Open the function and take over what a snapshot holds for this subtask.

        Completed elements of the snapshot are emitted, pending ones are invoked again.

        Parameters
        ----------
        restore : SubtaskRestore, optional
            What `Snapshot.restore` returned.

        Raises
        ------
        IncompatibleSnapshot
            The snapshot does not fit this operator or its function.
        SnapshotCorrupted
            A file is damaged.
        """
        if not isinstance(self._failure, OperatorClosed) or self._failure.state != "new":
            raise OperatorClosed("closed" if self._failure else "open")
        self._prepare(restore)
        self._failure = None
        try:
            await self._settings.function.open(self._runtime)
            if restore is not None:
                await self._continue(restore)
        except BaseException:
            await self.close()
            raise

    async def process(self, value: Any, timestamp: int | None = None, element_id: str | None = None) -> None:
        """Accept a record; waits while the operator is full.

        Parameters
        ----------
        value : object
            The record.
        timestamp : int, optional
            Milliseconds since the epoch; its outputs take it over.
        element_id : str, optional
            The source's own id of the record, as idempotency key. Without one the operator makes one up, which is
            stable only from the first snapshot on.

        Raises
        ------
        ElementFailed, AsyncTimeoutError
            An earlier element failed the operator.
        NullKey, UnsupportedKey, KeyGroupOutOfRange
            The record's key belongs to no key group of this subtask; the record was not accepted.
        """
        if self._size >= self._capacity or self._failure is not None:
            await self._wait_for_room()
        elif not ~self._sequence & _TURN_MASK:
            await asyncio.sleep(0)
        self._accept(value, timestamp, element_id)

    async def process_all(self, elements: Iterable[tuple[Any, int | None, str | None]]) -> None:
        """Accept many records as `process` does, at less cost for each.

        Parameters
        ----------
        elements : iterable of (value, timestamp, element id)
            As the arguments of `process`.
        """
        accept = self._accept
        for value, timestamp, element_id in elements:
            if self._size >= self._capacity or self._failure is not None:
                await self._wait_for_room()
            elif not ~self._sequence & _TURN_MASK:
                await asyncio.sleep(0)
            accept(value, timestamp, element_id)

    async def process_watermark(self, timestamp: int) -> None:
        """Accept a watermark (milliseconds since the epoch); it leaves after every record before it."""
        await self._wait_for_room()
        self._put_watermark(timestamp)

    async def snapshot(self) -> SubtaskSnapshot:
        """Return the state and the in-flight elements as they are now; never waits for a call.

        Its `emitted` tells how many times `output` was called before the cut.
        """
        self._check_usable()
        settings, now = self._settings, self._now()
        return SubtaskSnapshot(
            subtask_index=settings.subtask_index,
            parallelism=settings.parallelism,
            max_parallelism=self._runtime.max_parallelism,
            hash=settings.hash,
            states=self._scope.backend.cut(),
            in_flight=tuple([entry.capture(self._keys, now) for entry in self._queue.entries()]),
            watermark=self._watermark,
            emitted=self._emitted,
        )

    async def settle(self, timeout: float) -> bool:
        """Wait until nothing is in flight, but no longer than `timeout` seconds; tell whether nothing is."""
        await self._waiters.wait_at_most(timeout, self._scope.clock, lambda: self._size == 0)
        return self._size == 0

    async def finish(self) -> None:
        """End of input: wait until everything accepted has been emitted.

        Elements in a backoff get their last attempt at once, and its outcome is final.
        """
        self._check_usable()
        self._invoker.finish()
        await self._waiters.wait_until(lambda: self._size == 0)

    async def close(self) -> None:
        """Cancel what is in flight and close the function; may be called at any time, also twice."""
        was_open = not isinstance(self._failure, OperatorClosed)
        self._failure = OperatorClosed("closed")
        if was_open:
            self._waiters.wake()
            await self._invoker.close()
            await self._settings.function.close()

    def statistics(self) -> OperatorStatistics:
        """Return the counters as they are now."""
        return OperatorStatistics(
            in_flight=self._size,
            **count_entries(self._queue),
            accepted=self._sequence - self._others,
            **self._invoker.counters(),
            reinvoked=self._recovery.reinvoked,
            reemitted=self._recovery.reemitted,
            emitted=self._emitted,
            skipped=self._errors.skipped,
            dead_letters=self._errors.dead_letters,
            **self._times.seconds(),
        )

    def _prepare(self, restore: SubtaskRestore | None) -> None:
        settings, clock = self._settings, self._clock or LoopClock(asyncio.get_running_loop())
        function = settings.function
        self._runtime = settings.runtime(restore)
        states, since = (None, None) if restore is None else (restore.states(function.states), restore.snapshot_id)
        backend = MemoryBackend(function.states, self._runtime.key_groups, states, since)
        self._keys = KeyAssignment(settings.hash, self._runtime)
        self._scope = Scope(backend, self._keys.key_group_of, self._keys.element_id_of, clock, self._timeout)
        self._now = clock.time
        self._times = Times(clock)
        self._errors = ErrorPolicy(settings.on_error, settings.dead_letters, self._keys.element_id_of, self._fail)
        self._invoker = Invoker(
            function,
            calls_of(function, clock, self._capacity),
            self._scope,
            self._capacity,
            gate=self._gate,
            retry=settings.retry,
            pending=self._queue.pending,
            completed=self._queue.complete,
            failed=self._errors.apply,
            crashed=self._fail,
        )
        self._start = self._invoker.start
        self._recovery = Recovery(self._queue, self._invoker, clock, self._timeout, self._next_sequence)

    async def _continue(self, restore: SubtaskRestore) -> None:
        queue = await asyncio.to_thread(restore.queue)
        self._watermark = queue.watermark
        self._recovery.take_over(queue.elements, self._put_watermark)

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _wait_for_room(self) -> None:
        self._check_usable()
        if not self._has_room():
            with self._times.back_pressured:
                await self._waiters.wait_until(self._has_room)

    def _has_room(self) -> bool:
        if self._gate is None or self._settings.mode != "key_ordered":
            return self._size < self._capacity
        waiting = self._gate.waiting_count
        return self._size - waiting < self._capacity and waiting < self._settings.waiting_max

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
            self._invoker.stop()
            self._waiters.wake()

    def _next_sequence(self) -> int:
        """Count in an element that `process` did not accept."""
        if not self._size:
            self._times.idle.stop()
        self._sequence += 1
        self._others += 1
        self._size += 1
        return self._sequence - 1

    def _accept(self, value: Any, timestamp: int | None, element_id: str | None) -> None:
        entry = Entry(self._sequence, value, timestamp, element_id)
        if self._key_by is not None:
            self._keys.set_key(entry, self._key_by(value))
        if self._timeout is not None:
            entry.deadline = deadline = self._now() + self._timeout
            if not self._invoker.deadlines.armed:
                self._invoker.deadlines.arm(deadline)
        if not self._size:
            self._times.idle.stop()
        self._sequence += 1
        self._size += 1
        self._queue.put(entry)
        self._start(entry)

    def _put_watermark(self, timestamp: int) -> None:
        self._queue.put_watermark(WatermarkEntry(self._next_sequence(), timestamp))

    def _depart(self, entry: Entry) -> None:
        if self._failure is not None:
            return
        outputs, timestamp, output = entry.outputs, entry.timestamp, self._output
        assert outputs is not None, "only what has completed leaves"
        self._emitted += len(outputs)
        self._size -= 1
        for value in outputs:
            output(_new_tuple(Record, (value, timestamp)))
        if not self._size:
            self._times.idle.start()
        if self._waiters.waiting:
            self._waiters.wake()

    def _depart_watermark(self, watermark: WatermarkEntry) -> None:
        if self._failure is not None:
            return
        self._watermark = watermark.timestamp
        self._emitted += 1
        self._size -= 1
        self._output(Watermark(watermark.timestamp))
        if not self._size:
            self._times.idle.start()
        self._waiters.wake()
