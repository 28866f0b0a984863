"""The operators of one step in virtual time, in the hands of a test."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Hashable, Iterable
from contextlib import suppress
from copy import copy
from dataclasses import replace
from itertools import count
from typing import Any, Self, TypeVar

from async_op.clock import LoopClock
from async_op.dead_letters import DeadLetter
from async_op.elements import TIMESTAMP_MAX, Record, Watermark
from async_op.functions.plain import AnyFunction, name_of
from async_op.in_flight.idempotency_keys import Identity
from async_op.job.routing import Route
from async_op.job.step import Step
from async_op.operator.operator import AsyncWaitOperator
from async_op.operator.subtask_info import SubtaskInfo
from async_op.resilience import SharedLimits
from async_op.testing.errors import HarnessNotEntered, InsideEventLoop, Stalled
from async_op.testing.virtual_loop import START_MILLISECONDS, VirtualLoop
from async_op.threads.own_thread import running_loop
from keygroups.arguments import Duration, check_duration, check_elements, check_integer
from keygroups.descriptors import StateDescriptor
from keygroups.hashing import key_hasher
from keygroups.ranges import check_parallelism, default_max_parallelism, subtask_of
from keygroups.representation import representation
from keygroups.state import MapHandle, Transaction, ValueHandle
from snapshots import InFlightElement, Snapshot, SnapshotStore

_T = TypeVar("_T")


class OperatorHarness:
    """Runs all subtasks of one step in virtual time, and stands still between two calls of its methods.

    Use it with `with`, in a test that is no coroutine. Time passes only in `advance`, `finish` and, while an operator
    is full, in `process`. After each method everything has run that can run without time passing. So retries, timeouts
    and timers take no time, and each run of a test is the same. Blocking functions run on the thread of the test. Only
    the thread that has entered the harness may call it.

    Every method raises what has failed the operators, such as `ElementFailed`.

    Parameters
    ----------
    step : Step or function
        What to test; a `Step` also says how it is called: keys, timeout, retries and so on.
    parallelism : int
        The number of subtasks. Elements go to the subtask that owns their key; without keys they take turns.
    max_parallelism : int, optional
        The number of key groups; by default one derived from the parallelism.
    hash : {"xxhash64", "flink"}
        The hash that maps a key to its key group.
    start : int
        The processing time at the beginning, in milliseconds since the epoch.

    Attributes
    ----------
    emitted : list of Record and Watermark
        What has left all subtasks, in this order. The test may clear it.
    dead_letters : list of DeadLetter
        Elements that have failed for good, if the step has ``on_error="dead_letter"``.

    Raises
    ------
    ConfigError
        An argument is invalid.
    InsideEventLoop
        An event loop runs already in this thread.

    Examples
    --------
    >>> import asyncio
    >>> from async_op.testing import OperatorHarness
    >>> async def slow(value):
    ...     await asyncio.sleep(3600)
    ...     return 2 * value
    >>> with OperatorHarness(slow) as harness:
    ...     harness.process(21)
    ...     harness.advance(3599)
    ...     before = harness.outputs
    ...     harness.advance(1)
    ...     before, harness.outputs
    ([], [42])
    """

    def __init__(
        self,
        step: Step | AnyFunction,
        *,
        parallelism: int = 1,
        max_parallelism: int | None = None,
        hash: str = "xxhash64",
        start: int = START_MILLISECONDS,
    ) -> None:
        self.emitted: list[Record | Watermark] = []
        self.dead_letters: list[DeadLetter] = []
        step = step if isinstance(step, Step) else Step(step)
        self._options = step.options(hash, self.dead_letters.append)
        self._parallelism = parallelism
        self._max_parallelism = default_max_parallelism(parallelism) if max_parallelism is None else max_parallelism
        check_parallelism(parallelism, self._max_parallelism)
        self._store = SnapshotStore(f"memory://{uuid.uuid4().hex}", "operator")
        self._start = check_integer("start", start, 0, TIMESTAMP_MAX, reason="it is milliseconds since the epoch")
        self._numbers = count()
        self._operators: list[_Subtask] = []
        self._runner: asyncio.Runner | None = None

    def __repr__(self) -> str:
        facts = {"function": name_of(self._options.function), "parallelism": self._parallelism}
        return representation(self, facts | {"emitted": len(self.emitted), "dead_letters": len(self.dead_letters)})

    def __enter__(self) -> Self:
        """Open the function in all subtasks."""
        if running_loop() is not None:
            raise InsideEventLoop
        self._runner = asyncio.Runner(loop_factory=lambda: VirtualLoop(self._start))
        try:
            self._open(None)
        except BaseException:
            with suppress(Exception):  # what fails to close must not hide what failed to open
                self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        """Give up what is in flight, and close the function in all subtasks."""
        try:
            self._close()
        finally:
            runner, self._runner = self._runner, None
            if runner is not None:
                runner.close()

    @property
    def outputs(self) -> list[Any]:
        """The values of all records that have left, in this order."""
        return [element.value for element in self.emitted if isinstance(element, Record)]

    @property
    def in_flight(self) -> list[InFlightElement]:
        """The elements that have come in and have not left, subtask by subtask and in the order of their queues."""
        cuts = self._do(self._cut())
        return [element for cut in cuts for element in cut.in_flight if not element.is_watermark]

    @property
    def seconds(self) -> float:
        """The virtual seconds since the beginning."""
        return self._loop.time()

    @property
    def wall_time(self) -> int:
        """The processing time in milliseconds since the epoch."""
        return self._loop.wall_time()

    def process(self, value: Any, timestamp: int | None = None, element_id: str | None = None) -> None:
        """Feed an element; while its subtask is full, time passes.

        Parameters
        ----------
        value : object
            The element.
        timestamp : int, optional
            Milliseconds since the epoch.
        element_id : str, optional
            The source's id of the element, which becomes the idempotency key; by default its number.
        """
        operators, number = self._entered, next(self._numbers)
        subtask = self._route.target(value, number % self._parallelism)
        self._do(
            operators[subtask].process(value, timestamp, f"element-{number}" if element_id is None else element_id)
        )

    def process_all(self, values: Iterable[Any]) -> None:
        """Feed elements, one after the other."""
        check_elements("values", values)
        for value in values:
            self.process(value)

    def watermark(self, timestamp: int) -> None:
        """Feed a watermark (milliseconds since the epoch) to all subtasks."""
        for operator in self._entered:
            self._do(operator.process_watermark(timestamp))

    def advance(self, seconds: Duration) -> None:
        """Let virtual time pass, with everything that happens meanwhile."""
        self._do(asyncio.sleep(check_duration("seconds", seconds)))

    def finish(self) -> None:
        """End the input: let time pass until nothing is in flight."""
        for operator in self._entered:
            self._do(operator.finish())

    def state(self, descriptor: StateDescriptor, key: Hashable) -> Any:
        """Return what a key has in a state: a value, or a list or dict of values. Elements in flight change nothing.

        Parameters
        ----------
        descriptor : ValueState, ListState, MapState, ReducingState or AggregatingState
            The state, which the function declares.
        key : object
            The key.
        """
        key_group = key_hasher(self._options.hash)(key) % self._max_parallelism
        owner = subtask_of(key_group, self._parallelism, self._max_parallelism)
        return self._do(self._entered[owner].state_of(descriptor, key, key_group))

    def snapshot(self) -> Snapshot:
        """Cut all subtasks and commit a snapshot, which waits for no call. It is kept in the memory of the process."""
        cuts = self._do(self._cut())
        snapshot = self._store.write(cuts)
        for operator in self._operators:
            self._do(operator.snapshot_complete(snapshot.version))
        return snapshot

    def restore(self, snapshot: Snapshot, parallelism: int | None = None) -> None:
        """Close all subtasks as a crash would, and open new ones from a snapshot.

        Calls that were in flight at the time of the snapshot are repeated; everything after it is forgotten.

        Parameters
        ----------
        snapshot : Snapshot
            One of this harness, of another one or of a `SnapshotStore`.
        parallelism : int, optional
            The new number of subtasks; by default it does not change.
        """
        parallelism = self._parallelism if parallelism is None else parallelism
        check_parallelism(parallelism, snapshot.max_parallelism)
        self._close()
        self._parallelism, self._max_parallelism = parallelism, snapshot.max_parallelism
        self._open(snapshot)

    @property
    def _entered(self) -> list[_Subtask]:
        if self._runner is None:
            raise HarnessNotEntered
        return self._operators

    @property
    def _loop(self) -> VirtualLoop:
        if self._runner is None:
            raise HarnessNotEntered
        loop = self._runner.get_loop()
        assert isinstance(loop, VirtualLoop), "the runner makes no others"
        return loop

    def _open(self, snapshot: Snapshot | None) -> None:
        self._route = Route(self._options, self._parallelism, self._max_parallelism)
        resilience, capacity = self._options.resilience, self._parallelism * self._options.capacity
        limits = None if resilience is None else SharedLimits(resilience, capacity, LoopClock(self._loop))
        for index in range(self._parallelism):
            options = replace(self._options, function=copy(self._options.function))
            subtask_info = SubtaskInfo(
                parallelism=self._parallelism,
                subtask_index=index,
                max_parallelism=self._max_parallelism,
                limits=limits,
                identity=Identity("harness", is_named_by_caller=True),
            )
            self._operators.append(_Subtask.of(options, self.emitted.append, subtask_info=subtask_info))
        for index, operator in enumerate(self._operators):
            self._do(operator.open(None if snapshot is None else snapshot.restore(index, self._parallelism)))

    def _close(self) -> None:
        operators, self._operators = self._operators, []
        for operator in operators:
            self._do(operator.close())

    async def _cut(self) -> list[Any]:
        return [await operator.snapshot() for operator in self._operators]

    def _do(self, work: Coroutine[Any, Any, _T]) -> _T:
        try:
            loop = self._loop
        except HarnessNotEntered:
            work.close()  # otherwise Python would warn that it was never awaited
            raise
        task = loop.create_task(work)
        try:
            done = loop.run_until_complete(task)
        except Stalled:
            task.cancel()
            loop.run_ready()
            raise
        loop.run_ready()
        for operator in self._operators:
            operator.check()
        return done


class _Subtask(AsyncWaitOperator):
    """An operator into which a test can look."""

    __slots__ = ()

    def check(self) -> None:
        """Raise what has failed the operator."""
        failure = self._lifecycle.failure
        if failure is not None:
            raise failure

    async def state_of(self, descriptor: StateDescriptor, key: Hashable, key_group: int) -> Any:
        """Return what a key has in a state."""
        handle = Transaction(self._check().scope.backend, key, key_group).state(descriptor)
        if isinstance(handle, ValueHandle):
            return handle.value()
        return dict(handle.items()) if isinstance(handle, MapHandle) else handle.get()
