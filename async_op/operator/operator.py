"""`AsyncWaitOperator`: one subtask's queue, calls, timeouts and keyed state, owned by the event loop's thread."""

from __future__ import annotations

import asyncio
from asyncio import get_running_loop
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from typing import Any, Self, Unpack

from async_op.clock import Clock, check_clock
from async_op.dead_letters import DeadLetter, OnError
from async_op.elements import Element, Record, Watermark, check_place, check_timestamp
from async_op.errors import OperatorClosed
from async_op.functions.plain import AnyFunction, name_of
from async_op.in_flight.idempotency_keys import Identity
from async_op.in_flight.waiters import Waiters
from async_op.lifecycle import Lifecycle, State
from async_op.operator.admission import TURN
from async_op.operator.assembly import Parts, assemble
from async_op.operator.counters import statistics_of
from async_op.operator.executor import OperatorExecutor
from async_op.operator.key_columns import KeyBy, key_getter
from async_op.operator.key_compatibility import check_in_flight
from async_op.operator.open_function import OpenFunction, end_after_failure
from async_op.operator.operator_states import take_given_items
from async_op.operator.owned_state import OwnedState
from async_op.operator.subtask_info import SubtaskInfo
from async_op.options import CallOptions, Mode, OperatorOptions, StateBackend, takes_call_options
from async_op.statistics import OperatorStatistics
from async_op.threads.own_thread import on_own_thread
from keygroups.arguments import Duration, check_callable, seconds_of
from keygroups.names import LINEAGE_NAME
from snapshots import OperatorStateCut, SubtaskRestore, SubtaskSnapshot
from snapshots.format.in_flight_elements import RestoredQueue


class AsyncWaitOperator:
    """Invokes a function for each element and emits the outputs, with many calls under way at once.

    Call every method on the event loop on which `open` was awaited; otherwise it raises `WrongEventLoop`. Other threads
    use `executor`. The function's methods and `output` run on that loop, too. One task must await `process` and
    `process_watermark`, one after the other. Every coroutine may be cancelled at any time: an element is then either
    accepted as a whole or not at all.

    If the function raises an `Exception`, its element fails. If it raises something else, such as `SystemExit`, the
    operator ends with `ElementFailed`, whatever `retry` and `on_error` say. An `Exception` that `output` raises ends
    the operator too and is raised unchanged; anything else from `output` is raised as `OperatorInterrupted`.

    Parameters
    ----------
    function : AsyncFunction, AsyncBatchFunction, BlockingFunction, CallbackFunction or a plain function
        What to invoke; for plain functions see `function`. Two operators that are open at the same time need an object
        each, because both open and close it.
    output : callable
        Called with each `Record` and `Watermark` that leaves; must not block. If it is async, its outputs are awaited
        one after the other, and count towards `capacity` until they are done.
    mode : {"unordered", "ordered", "key_ordered"}
        "ordered": outputs leave in input order. "unordered": outputs leave as calls return, but never pass a watermark.
        "key_ordered": outputs of the same key leave in input order, with one call per key at a time.
    capacity : int
        The most elements in flight, watermarks included; beyond it `process` waits. In mode "key_ordered", elements
        that wait for their key are not counted, so a busy key does not hold up the others; they have their own limit.
    timeout : float or timedelta, optional
        The time budget of an element in seconds, from its acceptance and over all attempts. When it has run out,
        `function.timeout` is asked for a fallback.
    retry : RetryPolicy, optional
        Which outcomes are retried, and when.
    key_by : callable, column name or list of them, optional
        How to get the key of a value; column names work for values that are dicts. A function with states needs it;
        then at most one call per key runs at a time.
    parallelism, subtask_index : int
        The number of subtasks, and which one this operator is.
    max_parallelism : int, optional
        The number of key groups. By default the restored snapshot's, or one derived from the parallelism.
    on_error : {"fail", "skip", "dead_letter"}
        What happens to an element that fails for good: it fails the operator, is dropped, or is passed as a
        `DeadLetter` to the callable `dead_letters`.
    hash : {"xxhash64", "flink"}
        The hash that maps a key to its key group.
    resilience : Resilience, optional
        Protects the service: a cache, and limits of rate and concurrency.
    state_backend : {"memory"} or DiskStateBackend
        Where keyed state lives while the operator runs; use a `DiskStateBackend()` for state larger than memory.
    idempotency_namespace : str, optional
        Makes each idempotency key of this namespace and the id that `process` gets, so that the ids need to be unique
        in the namespace only. By default the id is the key.
    clock : Clock, optional
        For tests; the event loop's clock by default.

    Raises
    ------
    ConfigError
        An argument is invalid.

    Examples
    --------
    >>> import asyncio
    >>> class Double(AsyncFunction):
    ...     async def async_invoke(self, value, ctx):
    ...         return [2 * value]
    >>> async def main():
    ...     outputs = []
    ...     async with AsyncWaitOperator(Double(), outputs.append, mode="ordered") as operator:
    ...         for value in (1, 2, 3):
    ...             await operator.process(value)
    ...         await operator.finish()
    ...     return [record.value for record in outputs]
    >>> asyncio.run(main())
    [2, 4, 6]
    """

    __slots__ = (
        "_clock",
        "_closing",
        "_executor",
        "_function",
        "_lifecycle",
        "_options",
        "_output",
        "_parts",
        "_state",
        "_subtask_info",
        "_waiters",
    )  # fmt: skip

    @takes_call_options
    def __init__(
        self,
        function: AnyFunction,
        output: Callable[[Record | Watermark], object],
        *,
        mode: Mode = "unordered",
        key_by: KeyBy | None = None,
        parallelism: int = 1,
        subtask_index: int = 0,
        max_parallelism: int | None = None,
        clock: Clock | None = None,
        on_error: OnError = "fail",
        dead_letters: Callable[[DeadLetter], object] | None = None,
        hash: str = "xxhash64",
        state_backend: StateBackend = "memory",
        idempotency_namespace: str | None = None,
        **options: Unpack[CallOptions],
    ) -> None:
        made = OperatorOptions.of(
            function,
            mode=mode,
            key_by=key_getter(key_by),
            on_error=on_error,
            dead_letters=dead_letters,
            hash=hash,
            state_backend=state_backend,
            **options,
        )
        identity = None
        if idempotency_namespace is not None:
            LINEAGE_NAME.check("idempotency_namespace", idempotency_namespace)
            identity = Identity(idempotency_namespace)
        subtask_info = SubtaskInfo(
            parallelism=parallelism, subtask_index=subtask_index, max_parallelism=max_parallelism, identity=identity
        )
        self._set_up(made, output, subtask_info, clock, Lifecycle())

    @classmethod
    def of(
        cls,
        options: OperatorOptions,
        output: Callable[[Record | Watermark], object],
        *,
        subtask_info: SubtaskInfo | None = None,
        clock: Clock | None = None,
    ) -> Self:
        """Create an operator from the options of an entry point; without `subtask_info`, it is the only subtask."""
        operator = cls.__new__(cls)
        operator._set_up(options, output, subtask_info or SubtaskInfo(), clock, Lifecycle())
        return operator

    def _set_up(
        self,
        options: OperatorOptions,
        output: Callable[[Record | Watermark], object],
        subtask_info: SubtaskInfo,
        clock: Clock | None,
        lifecycle: Lifecycle,
    ) -> None:
        check_callable("output", output, 1, reason="it gets each Record and Watermark that leaves", awaited=True)
        check_clock(clock)
        self._options = options
        self._output = output
        self._subtask_info = subtask_info
        self._clock = clock
        self._lifecycle = lifecycle
        self._waiters = Waiters()
        self._state = OwnedState(options.state_backend)
        self._parts: Parts | None = None
        self._function = OpenFunction(options.function, lifecycle)
        self._executor: OperatorExecutor | None = None
        self._closing = asyncio.Lock()

    def __repr__(self) -> str:
        name, state = name_of(self._options.function), self._lifecycle.state.name.lower()
        return f"AsyncWaitOperator({name}, subtask {self._subtask_info}, {state})"

    async def __aenter__(self) -> Self:
        """Open the operator without a snapshot; after `open(restore)` use `contextlib.aclosing` in its place."""
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the operator. What is in flight is given up: await `finish` before, at the end of the input."""
        await self.close()

    def executor(self) -> OperatorExecutor:
        """Return what runs calls for other threads on the operator's event loop; any thread may call this.

        Raises
        ------
        OperatorClosed
            The operator is not open.
        """
        if self._executor is None or self._lifecycle.state is State.CLOSED:
            raise OperatorClosed("new" if self._lifecycle.state is State.NEW else "closed")
        return self._executor

    async def open(self, restore: SubtaskRestore | None = None, *, preload: bool = True) -> None:
        """Open the function and restore this subtask's share of a snapshot.

        Completed elements of the snapshot are emitted; pending elements are invoked again.

        Parameters
        ----------
        restore : SubtaskRestore, optional
            The result of `Snapshot.restore`, no whole snapshot; without it, the operator starts empty.
        preload : bool
            If true, all restored state is loaded in the background; if false, only the key groups that elements need.

        Raises
        ------
        IncompatibleSnapshot
            The snapshot does not fit this operator or its function, or `key_by` makes other keys than it did.
        SnapshotCorrupted
            A file is damaged.
        OperatorClosed
            `close` was called, before or during this call, or the operator is already open.
        """
        with self._lifecycle.opening():
            try:
                parts = self._parts = await assemble(
                    self._options,
                    self._subtask_info,
                    restore,
                    state=self._state,
                    clock=self._clock,
                    output=self._output,
                    lifecycle=self._lifecycle,
                    waiters=self._waiters,
                )
                self._executor = OperatorExecutor(parts.mailbox, self._cut, self._begin_close)
                await self._function.open(parts.runtime, parts.contexts)
                if restore is not None:
                    await parts.recovery.take_over(self._fitting(await on_own_thread(restore.queue)))
                if preload and parts.loading is not None:
                    parts.loading.preload()
                self._lifecycle.opened()
            except BaseException:
                self._lifecycle.close()
                await end_after_failure(self._give_up(), self._options.function)
                raise

    async def process(self, value: Any, timestamp: int | None = None, element_id: str | None = None) -> None:
        """Accept a record; waits while the operator is full.

        Parameters
        ----------
        value : object
            The record.
        timestamp : int, optional
            Milliseconds since the epoch; the record's outputs get the same timestamp.
        element_id : str, optional
            The source's id of the record, which becomes the idempotency key. Without it the operator generates an id,
            which is stable only once a snapshot contains it.

        Raises
        ------
        ElementFailed, AsyncTimeoutError
            An earlier element failed the operator.
        NullKey, UnsupportedKey
            The key is null or has no stable hash, and `on_error` is "fail"; the record was not accepted.
        ConfigError, KeyGroupOutOfRange
            The timestamp or id has a wrong type, or another subtask owns the key group; the record was not accepted.
        """
        parts = self._parts
        if parts is None or get_running_loop() is not self._lifecycle.open_on:
            parts = self._check()
        in_flight = parts.in_flight
        if in_flight.accepted - in_flight.departed >= self._options.capacity:
            await parts.back_pressure.wait_for_room()
        elif in_flight.accepted % TURN == TURN - 1:
            await asyncio.sleep(0)
        if (timestamp is not None and (type(timestamp) is not int or timestamp >> 63)) or not (
            element_id is None or (type(element_id) is str and element_id.isascii())
        ):
            check_place(timestamp, element_id)
        parts.intake.accept(value, timestamp, element_id)

    async def process_all(self, elements: Iterable[Element]) -> None:
        """Accept many records as `process` does, at a lower cost per record; for a batch function, batch by batch.

        After a cancellation, the caller can continue with the same iterator: every element taken from it has been
        accepted, even if that is one more than there is room for. Only a refused element has not; its error is raised.

        Parameters
        ----------
        elements : iterable of (value, timestamp, element id)
            The arguments of `process`. The iterable is read on the event loop, so it must not block.
        """
        await self._check().back_pressure.take_all(elements)

    async def process_watermark(self, timestamp: int) -> None:
        """Accept a watermark (milliseconds since the epoch); it leaves after every record before it."""
        parts = self._check()
        await parts.back_pressure.wait_for_room()
        parts.intake.end_block()
        parts.in_flight.put_watermark(check_timestamp(timestamp))
        self._lifecycle.check()

    async def snapshot(self) -> SubtaskSnapshot:
        """Return the current state and in-flight elements; never waits for a call.

        The result's `emitted` is the number of times that `output` was called before the cut.

        Raises
        ------
        SnapshotInsideOutput
            `output` called it, while the outputs of an element were leaving.
        ItemsNotGiven
            The function's `snapshot_state` failed.
        """
        return self._cut()

    async def snapshot_complete(self, version: int, cut_id: str | None = None) -> None:
        """Tell the function that a snapshot was committed; call it after each commit, until `close`.

        `cut_id` names this operator's cut in the snapshot; by default it is the newest cut.
        """
        self._lifecycle.check_loop()
        if self._parts is not None and self._function.is_open:
            self._parts.runtime.operator_states.complete(cut_id)
            await self._parts.contexts.separately(self._options.function.snapshot_complete(version))

    async def settle(self, timeout: Duration) -> bool:
        """Wait until nothing is in flight, but no longer than `timeout`; returns whether nothing is in flight.

        Calls for partial batches are made at once. An output that is awaited is in flight until it is done. Unlike
        `finish`, this is not the end of the input: it fires no timers.
        """
        parts = self._check()
        parts.dispatch.flush()
        await self._waiters.wait_at_most(seconds_of(timeout), parts.scope.clock, lambda: not parts.in_flight)
        return not parts.in_flight

    async def settle_restored(self) -> bool:
        """Wait until the calls of all restored elements have ended, retries included; returns whether it had to."""
        parts = self._check()
        parts.dispatch.flush()
        if parts.recovery.is_over():
            return False
        await self._waiters.wait_until(parts.recovery.is_over)
        return True

    async def finish(self, *, hurry: bool = False) -> None:
        """End the input: wait for everything accepted and each timer due to be emitted and consumed, with retries.

        Parameters
        ----------
        hurry : bool
            If true, make the last attempts now: elements in a backoff are tried at once, and all outcomes are final.
        """
        parts = self._check()
        parts.finish(hurry)
        # Patiently: to look at the condition whenever an element leaves would cost a sixth of a timer that fires.
        await self._waiters.wait_patiently(parts.is_finished)

    async def close(self) -> None:
        """Cancel all calls and close the function; may be called at any time, and more than once.

        An `open` that is under way is cancelled and raises `OperatorClosed`. If `close` itself is cancelled, the next
        `close` continues where it stopped, but does not call the function's `close` a second time.
        """
        await self._begin_close()

    def statistics(self) -> OperatorStatistics:
        """Return the current counters; after `close`, any thread may call it."""
        return statistics_of(self._readable())

    def _cut(self) -> SubtaskSnapshot:
        """Take the state and what is in flight, in one step of the event loop."""
        parts = self._check()
        runtime, in_flight, clock = parts.runtime, parts.in_flight, parts.scope.clock
        take_given_items(self._options.function, runtime.operator_states)
        cut = SubtaskSnapshot(
            subtask_index=runtime.subtask_index,
            parallelism=runtime.parallelism,
            max_parallelism=runtime.max_parallelism,
            hash=self._options.hash,
            states=parts.scope.backend.cut(),
            in_flight=in_flight.capture(parts.keys, clock.time()),
            watermark=in_flight.watermark,
            emitted=in_flight.emitted,
            wall_time=clock.wall_time(),
            lineage=parts.keys.identity.lineage,
            element_types=self._subtask_info.element_types,
        )
        states = runtime.operator_states
        items = states.cut(cut.cut_id)
        operator_states = tuple(OperatorStateCut(one.name, one.mode, items[one.name]) for one in states.declared)
        return replace(cut, operator_states=operator_states)

    def _begin_close(self) -> Coroutine[Any, Any, None]:
        self._lifecycle.check_loop()
        self._lifecycle.close()
        return self._end()

    async def _end(self) -> None:
        await self._lifecycle.interrupt_opening()
        await self._give_up()

    def _fitting(self, queue: RestoredQueue) -> RestoredQueue:
        """Check the restored elements; an operator of a host overrides this to take only what fits."""
        check_in_flight(queue.elements, self._options.key_by)
        return queue

    def _check(self) -> Parts:
        """Return the parts; raises unless the operator is open and called on its event loop."""
        self._lifecycle.check()
        assert self._parts is not None, "an open operator has its parts"
        return self._parts

    def _readable(self) -> Parts:
        """Return the parts for reading counters; raises unless this thread may read them."""
        self._lifecycle.check_readable()
        return self._parts or self._check()

    async def _give_up(self) -> None:
        """Release everything; continues where an earlier, cancelled attempt stopped."""
        async with self._closing:
            if self._parts is not None:
                await self._parts.close()
            if self._executor is not None:
                await self._executor.cancel()
            try:
                await self._function.close()
            finally:
                await self._state.close()
