"""The async operator: one subtask's queue, calls, timeouts and keyed state, owned by the thread of the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

from async_op.clock import Clock, LoopClock
from async_op.context import Scope
from async_op.dead_letters import DeadLetter, ErrorPolicy, OnError
from async_op.elements import Element, Record, Watermark
from async_op.errors import OperatorClosed
from async_op.feed import Feed
from async_op.functions import Function
from async_op.gate import gate_of
from async_op.in_flight import InFlight
from async_op.intake import Intake
from async_op.invoker import Invoker
from async_op.keys import KeyAssignment
from async_op.recovery import Recovery
from async_op.resilience import Resilience
from async_op.retry import RetryPolicy
from async_op.settings import Mode, OperatorSettings, StateBackend
from async_op.statistics import OperatorStatistics, Times
from async_op.timers import TimerService
from async_op.waiters import Waiters
from snapshots import SubtaskRestore, SubtaskSnapshot

_TURN = 1024
"""After so many elements without a wait, `process` lets the calls begin."""

_TURN_MASK = _TURN - 1


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
    resilience : Resilience, optional
        How the service is spared: a cache, and limits of rate and concurrency.
    state_backend : {"memory"} or DiskStateBackend
        Where keyed state is while the operator runs: a `DiskStateBackend()` for more of it than fits into memory.
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
        "_batches",
        "_clock",
        "_errors",
        "_failure",
        "_gate",
        "_in_flight",
        "_intake",
        "_invoker",
        "_keys",
        "_limit",
        "_now",
        "_recovery",
        "_runtime",
        "_scope",
        "_settings",
        "_timeout",
        "_times",
        "_waiters",
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
        resilience: Resilience | None = None,
        state_backend: StateBackend = "memory",
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
            resilience=resilience,
            state_backend=state_backend,
        )
        self._timeout = timeout
        self._clock = clock
        self._failure: BaseException | None = OperatorClosed("new")
        self._limit = 0
        self._waiters = Waiters(self._check_usable)
        self._in_flight = InFlight(mode, output, self._waiters)

    async def open(self, restore: SubtaskRestore | None = None, *, preload: bool = True) -> None:
        """Open the function and take over what a snapshot holds for this subtask.

        Completed elements of the snapshot are emitted, pending ones are invoked again.

        Parameters
        ----------
        restore : SubtaskRestore, optional
            What `Snapshot.restore` returned.
        preload : bool
            Bring all restored state into memory while elements are taken in, not only what they ask for.

        Raises
        ------
        IncompatibleSnapshot
            The snapshot does not fit this operator or its function.
        SnapshotCorrupted
            A file is damaged.
        """
        if not isinstance(self._failure, OperatorClosed) or self._failure.state != "new":
            raise OperatorClosed("closed" if self._failure else "open")
        await self._prepare(restore, preload)
        self._failure = None
        self._limit = self._settings.capacity
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
        in_flight = self._in_flight
        if in_flight.accepted - in_flight.departed >= self._limit:
            await self._wait_for_room()
        elif not ~in_flight.accepted & _TURN_MASK:
            await asyncio.sleep(0)
        self._intake.accept(value, timestamp, element_id)

    async def process_all(self, elements: Iterable[Element]) -> None:
        """Accept many records as `process` does, at less cost for each.

        For a batch function, as many elements are taken from the iterable at once as fit into the next batch.

        Parameters
        ----------
        elements : iterable of (value, timestamp, element id)
            As the arguments of `process`.
        """
        source = iter(elements)
        feed = self._feed_of(source)
        with self._invoker.fed_by(feed):
            while True:
                room = min(self._room(), _TURN)
                if room <= 0:
                    if (following := next(source, None)) is None:
                        return
                    await self._wait_with(following, feed)
                elif self._intake.take(source, room):
                    await (asyncio.sleep(0) if feed is None else feed.give_way())
                else:
                    return

    async def process_watermark(self, timestamp: int) -> None:
        """Accept a watermark (milliseconds since the epoch); it leaves after every record before it."""
        await self._wait_for_room()
        if self._batches is not None:
            self._batches.end_block()
        self._in_flight.put_watermark(timestamp)

    async def snapshot(self) -> SubtaskSnapshot:
        """Return the state and the in-flight elements as they are now; never waits for a call.

        Its `emitted` tells how many times `output` was called before the cut.
        """
        self._check_usable()
        settings, clock = self._settings, self._scope.clock
        return SubtaskSnapshot(
            subtask_index=settings.subtask_index,
            parallelism=settings.parallelism,
            max_parallelism=self._runtime.max_parallelism,
            hash=settings.hash,
            states=self._scope.backend.cut(),
            in_flight=self._in_flight.capture(self._keys, clock.time()),
            watermark=self._in_flight.watermark,
            emitted=self._in_flight.emitted,
            wall_time=clock.wall_time(),
        )

    async def settle(self, timeout: float) -> bool:
        """Wait until nothing is in flight, but no longer than `timeout` seconds; tell whether nothing is.

        Batches that are not full are called for at once; unlike with `finish`, elements in a backoff keep their delays.
        """
        self._check_usable()
        self._invoker.flush()
        await self._waiters.wait_at_most(timeout, self._scope.clock, lambda: not self._in_flight)
        return not self._in_flight

    async def finish(self) -> None:
        """End of input: wait until everything accepted has been emitted.

        Elements in a backoff get their last attempt at once, and its outcome is final.
        """
        self._check_usable()
        self._invoker.finish()
        await self._waiters.wait_until(lambda: not self._in_flight)

    async def close(self) -> None:
        """Cancel what is in flight and close the function; may be called at any time, also twice."""
        was_open = not isinstance(self._failure, OperatorClosed)
        self._end(OperatorClosed("closed"))
        if was_open:
            await self._invoker.close()
            try:
                await self._settings.function.close()
            finally:
                await self._settings.close_state(self._scope.backend)

    def statistics(self) -> OperatorStatistics:
        """Return the counters as they are now."""
        return OperatorStatistics.of(self._in_flight, self._recovery, self._invoker, self._errors, self._times)

    def next_timer(self, event_time: bool = False) -> int | None:
        """Return when the first timer of a kind is to fire, in milliseconds since the epoch; None without one."""
        timers = self._in_flight.timers
        return None if timers is None else timers.index_of(event_time).next

    async def _prepare(self, restore: SubtaskRestore | None, preload: bool) -> None:
        settings, clock = self._settings, self._clock or LoopClock(asyncio.get_running_loop())
        self._runtime = settings.runtime(restore)
        restored = None if restore is None else restore.states(settings.states, clock.wall_time())
        since = None if restore is None else restore.snapshot_id
        backend = await settings.open_state(self._runtime.key_groups, restored, since, clock.wall_time)
        self._keys = KeyAssignment(settings.hash, self._runtime, settings.key_by)
        timers = self._in_flight.timers = TimerService.of(settings, backend, restored, clock, self._in_flight)
        self._gate = gate_of(settings, timers)
        self._scope = Scope(backend, self._keys.key_group_of, self._keys.element_id_of, clock, self._timeout, timers)
        self._now = clock.time
        self._times = Times(clock)
        self._in_flight.idle = self._times.idle
        self._errors = ErrorPolicy(settings.on_error, settings.dead_letters, self._keys.element_id_of, self._fail)
        parts = (self._scope, self._gate, self._in_flight)
        self._invoker = Invoker(settings, *parts, failed=self._errors.apply, crash=self._fail, preload=preload)
        keys = None if settings.key_by is None else self._keys
        self._batches = self._invoker.blocks
        self._intake = self._batches or Intake(self._in_flight, self._invoker, keys, self._scope)
        self._recovery = Recovery(self._in_flight, self._invoker, clock, self._timeout)

    async def _continue(self, restore: SubtaskRestore) -> None:
        queue = await asyncio.to_thread(restore.queue)
        await self._recovery.take_over(queue)

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _wait_for_room(self) -> None:
        self._check_usable()
        if self._room() <= 0:
            with self._times.back_pressured:
                await self._waiters.wait_until(lambda: self._room() > 0)

    def _feed_of(self, source: Iterator[Element]) -> Feed | None:
        """Return what workers may take elements from, if it is workers whose calls return when elements leave."""
        if self._settings.mode == "key_ordered" or self._invoker.batches is not None:
            return None
        assert isinstance(self._intake, Intake), "only batches come in otherwise"
        return Feed(source, self._in_flight, self._limit, self._intake, self._invoker)

    async def _wait_with(self, element: Element, feed: Feed | None) -> None:
        """Wait for room with the next element in hand, and take it in."""
        self._check_usable()
        following: Element | None = element
        with self._times.back_pressured:
            if feed is None:
                await self._waiters.wait_until(lambda: self._room() > 0)
            else:
                following = await feed.wait(element)
        self._check_usable()
        if following is not None:
            self._intake.accept(*following)

    def _room(self) -> int:
        """Return how many elements may come in now."""
        room = self._limit - len(self._in_flight)
        if self._gate is not None and self._settings.mode == "key_ordered":
            room = min(room + self._gate.waiting_count, self._settings.waiting_max - self._gate.waiting_count)
        return room

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._end(error)
            self._invoker.stop()

    def _end(self, reason: BaseException) -> None:
        """Let nothing in or out any more."""
        self._failure = reason
        self._limit = 0
        self._in_flight.stopped = True
        self._waiters.wake()
