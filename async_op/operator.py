"""The async operator: one subtask's queue, calls, timeouts and keyed state, owned by the thread of the event loop."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Hashable
from typing import Any, Literal

from async_op.clock import Clock, LoopClock
from async_op.context import Scope
from async_op.elements import Entry, Record, Watermark, WatermarkEntry
from async_op.errors import OperatorClosed
from async_op.functions import AsyncFunction, Runtime
from async_op.invoker import Invoker
from async_op.queues import ElementQueue, OrderedQueue, UnorderedQueue
from async_op.statistics import OperatorStatistics
from keygroups.errors import ConfigError, KeyGroupOutOfRange, NullKey
from keygroups.hashing import key_hasher
from keygroups.ranges import KeyGroupRange, check_parallelism, default_max_parallelism, range_of
from keygroups.state import MemoryBackend
from snapshots import InFlightElement, SubtaskRestore, SubtaskSnapshot
from snapshots.subtask import NO_KEY_GROUP

Mode = Literal["ordered", "unordered"]

_QUEUES: dict[str, Callable[[], ElementQueue]] = {"ordered": OrderedQueue, "unordered": UnorderedQueue}


class AsyncWaitOperator:
    """Invokes a function for each element and emits its outputs, with many calls under way at once.

    Every method must be called on the event loop on which `open` was awaited; the function's methods and `output`
    run there too. `process` and `process_watermark` are to be awaited one after the other, by one task.

    Parameters
    ----------
    function : AsyncFunction
        What to invoke.
    output : callable
        Called with each `Record` and `Watermark` that leaves; must not block.
    mode : {"unordered", "ordered"}
        "ordered": outputs leave in the order of the inputs. "unordered": as calls return, but never across a watermark.
    capacity : int
        In-flight elements, watermarks included, before `process` waits.
    timeout : float, optional
        Seconds from the acceptance of an element until `function.timeout` is asked for a fallback.
    key_by : callable, optional
        Returns the key of a value. Needed by a function that declares states; then at most one call per key runs.
    parallelism, subtask_index : int
        Which subtask this is, of how many.
    max_parallelism : int, optional
        The number of key groups; the restored snapshot's, or a default from the parallelism.
    hash : str
        The hash from key to key group: "xxhash64" or "flink".
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

    def __init__(
        self,
        function: AsyncFunction,
        output: Callable[[Record | Watermark], object],
        *,
        mode: Mode = "unordered",
        capacity: int = 100,
        timeout: float | None = None,
        key_by: Callable[[Any], Hashable] | None = None,
        parallelism: int = 1,
        subtask_index: int = 0,
        max_parallelism: int | None = None,
        hash: str = "xxhash64",
        clock: Clock | None = None,
    ) -> None:
        _check_arguments(function, mode, capacity, timeout, key_by)
        check_parallelism(parallelism, max_parallelism or default_max_parallelism(parallelism))
        if not 0 <= subtask_index < parallelism:
            raise ConfigError("subtask_index", subtask_index, f"there are subtasks 0 to {parallelism - 1}")
        self._function = function
        self._output = output
        self._capacity = capacity
        self._timeout = timeout
        self._key_by = key_by
        self._parallelism = parallelism
        self._subtask_index = subtask_index
        self._max_parallelism = max_parallelism
        self._hash_name = hash
        self._hash = key_hasher(hash)
        self._clock = clock
        self._queue: ElementQueue = _QUEUES[mode]()
        self._lifecycle: Literal["new", "open", "closed"] = "new"
        self._failure: BaseException | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._run_id = uuid.uuid4().hex
        self._watermark: int | None = None
        self._size = self._sequence = 0
        self._accepted = self._emitted = self._reinvoked = self._reemitted = 0

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
        if self._lifecycle != "new":
            raise OperatorClosed(self._lifecycle)
        self._prepare(restore)
        self._lifecycle = "open"
        try:
            await self._function.open(self._runtime)
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
        if self._size >= self._capacity or self._failure is not None or self._lifecycle != "open":
            await self._wait_until(lambda: self._size < self._capacity)
        key = None if self._key_by is None else self._key_by(value)
        timeout = self._timeout
        deadline = None if timeout is None else self._scope.clock.time() + timeout
        entry = Entry(self._sequence, value, timestamp, key, element_id, deadline)
        if self._key_by is not None:
            self._check_key(entry)
        self._accepted += 1
        if deadline is not None:
            self._invoker.watch(entry)
        self._admit(entry)

    async def process_watermark(self, timestamp: int) -> None:
        """Accept a watermark (milliseconds since the epoch); it leaves after every record before it."""
        await self._wait_until(lambda: self._size < self._capacity)
        self._put_watermark(timestamp)

    async def snapshot(self) -> SubtaskSnapshot:
        """Return the state and the in-flight elements as they are now; never waits for a call."""
        self._check_usable()
        return SubtaskSnapshot(
            subtask_index=self._subtask_index,
            parallelism=self._parallelism,
            max_parallelism=self._runtime.max_parallelism,
            hash=self._hash_name,
            states=self._scope.backend.cut(),
            in_flight=tuple(self._capture(entry) for entry in self._queue.entries()),
            watermark=self._watermark,
            emitted=self._emitted,
        )

    async def settle(self, timeout: float) -> bool:
        """Wait until nothing is in flight, but no longer than `timeout` seconds; tell whether nothing is."""
        expired = False

        def expire() -> None:
            nonlocal expired
            expired = True
            self._wake_waiters()

        timer = self._scope.clock.call_at(self._scope.clock.time() + timeout, expire)
        try:
            await self._wait_until(lambda: self._size == 0 or expired)
        finally:
            timer.cancel()
        return self._size == 0

    async def finish(self) -> None:
        """Wait until everything accepted has been emitted."""
        await self._wait_until(lambda: self._size == 0)

    async def close(self) -> None:
        """Cancel what is in flight and close the function; may be called at any time, also twice."""
        if self._lifecycle != "open":
            self._lifecycle = "closed"
            return
        self._lifecycle = "closed"
        self._fail(OperatorClosed("closed"))
        await self._invoker.close()
        await self._function.close()

    def statistics(self) -> OperatorStatistics:
        """Return the counters as they are now."""
        return OperatorStatistics(
            in_flight=self._size,
            accepted=self._accepted,
            calls=self._invoker.calls,
            reinvoked=self._reinvoked,
            reemitted=self._reemitted,
            emitted=self._emitted,
            timeouts=self._invoker.timeouts,
            late_results=self._invoker.late_results,
        )

    # -- life cycle

    def _prepare(self, restore: SubtaskRestore | None) -> None:
        clock = self._clock or LoopClock(asyncio.get_running_loop())
        self._runtime = self._make_runtime(restore)
        states = None if restore is None else restore.states(self._function.states)
        backend = MemoryBackend(self._function.states, self._runtime.key_groups, states)
        self._scope = Scope(backend, self._key_group_of, self._element_id_of, clock, self._timeout)
        self._invoker = Invoker(
            self._function, self._scope, self._capacity, completed=self._on_completed, failed=self._fail
        )

    async def _continue(self, restore: SubtaskRestore) -> None:
        queue = await asyncio.to_thread(restore.queue)
        self._watermark = queue.watermark
        entries = [self._take_over(element) for element in queue.elements]
        for entry in sorted((entry for entry in entries if entry is not None), key=_deadline):
            if entry.deadline is not None:
                self._invoker.watch(entry)

    def _make_runtime(self, restore: SubtaskRestore | None) -> Runtime:
        groups = self._max_parallelism
        if groups is None:
            groups = default_max_parallelism(self._parallelism) if restore is None else restore.manifest.max_parallelism
        if restore is not None:
            restore.check_fits(self._subtask_index, self._parallelism, groups, self._hash_name)
        owned: KeyGroupRange = range_of(self._subtask_index, self._parallelism, groups)
        return Runtime(self._subtask_index, self._parallelism, groups, owned)

    def _check_usable(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._lifecycle != "open":
            raise OperatorClosed(self._lifecycle)

    async def _wait_until(self, condition: Callable[[], bool]) -> None:
        self._check_usable()
        while not condition():
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
            self._check_usable()

    def _wake_waiters(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    def _fail(self, error: BaseException) -> None:
        if self._failure is None:
            self._failure = error
        self._wake_waiters()

    # -- elements in

    def _admit(self, entry: Entry) -> None:
        self._sequence += 1
        self._size += 1
        self._queue.put(entry)
        self._invoker.start(entry)

    def _put_watermark(self, timestamp: int) -> None:
        entry = WatermarkEntry(self._sequence, timestamp)
        self._sequence += 1
        self._size += 1
        self._queue.put(entry)
        self._emit(entry)

    def _take_over(self, element: InFlightElement) -> Entry | None:
        """Continue an element of the restored snapshot, beyond the capacity if need be; returns a pending entry."""
        if element.is_watermark:
            assert element.timestamp is not None, "a watermark has a timestamp"
            self._put_watermark(element.timestamp)
            return None
        deadline = None if element.remaining is None else self._scope.clock.time() + element.remaining
        entry = Entry(self._sequence, element.value, element.timestamp, element.key, element.element_id, deadline)
        entry.key_group = element.key_group
        entry.attempt = element.attempt
        if element.outputs is None:
            self._reinvoked += 1
            self._admit(entry)
            return entry
        self._reemitted += 1
        self._sequence += 1
        self._size += 1
        self._queue.put(entry)
        entry.outputs = element.outputs
        self._emit(entry)
        return None

    def _check_key(self, entry: Entry) -> None:
        if entry.key is None:
            raise NullKey(f"element {entry.value!r}")
        key_group = self._key_group_of(entry)
        owned = self._runtime.key_groups
        if not owned.start <= key_group <= owned.end:
            raise KeyGroupOutOfRange(key_group, owned.start, owned.end)

    def _key_group_of(self, entry: Entry) -> int:
        if entry.key_group is None:
            no_key = self._key_by is None
            entry.key_group = NO_KEY_GROUP if no_key else self._hash(entry.key) % self._runtime.max_parallelism
        return entry.key_group

    def _element_id_of(self, entry: Entry) -> str:
        if entry.element_id is None:
            entry.element_id = f"{self._run_id}-{self._subtask_index}-{entry.sequence}"
        return entry.element_id

    # -- elements out

    def _on_completed(self, entry: Entry) -> None:
        if self._failure is None:
            self._emit(entry)

    def _emit(self, completed: Entry | WatermarkEntry) -> None:
        for entry in self._queue.pop_completed(completed):
            self._size -= 1
            for element in entry.emissions():
                self._emitted += 1
                self._output(element)
            if entry.is_watermark:
                self._watermark = entry.timestamp
        if self._waiters:
            self._wake_waiters()

    def _capture(self, entry: Entry | WatermarkEntry) -> InFlightElement:
        if isinstance(entry, WatermarkEntry):
            return entry.capture(self._subtask_index)
        remaining = None if entry.deadline is None else max(0.0, entry.deadline - self._scope.clock.time())
        return entry.capture(self._subtask_index, self._key_group_of(entry), self._element_id_of(entry), remaining)


def _deadline(entry: Entry) -> float:
    return float("inf") if entry.deadline is None else entry.deadline


def _check_arguments(
    function: AsyncFunction,
    mode: str,
    capacity: int,
    timeout: float | None,
    key_by: Callable[[Any], Hashable] | None,
) -> None:
    if mode not in _QUEUES:
        raise ConfigError("mode", mode, f"use one of {sorted(_QUEUES)}")
    if capacity < 1:
        raise ConfigError("capacity", capacity, "at least one element must fit")
    if timeout is not None and timeout <= 0:
        raise ConfigError("timeout", timeout, "use None for no timeout")
    if function.states and key_by is None:
        raise ConfigError("key_by", None, f"{type(function).__name__} declares keyed state, so its elements need a key")
