"""What the operator's tests are made of: time, calls and outputs that the test holds in its hand."""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from async_op import AsyncFunction, AsyncWaitOperator, InvocationContext, Record, ResilienceStatistics, Watermark
from async_op.threads import watchdog
from snapshots import InFlightElement, Snapshot, SnapshotStore, SubtaskRestore, SubtaskSnapshot

BOTH = pytest.mark.parametrize("mode", ["ordered", "unordered"])

LOOPS_THREADS = ("asyncio_", "uvloop_", "ThreadPoolExecutor-")
"""How the names of the threads of a loop's own executor begin; before 0.23, uvloop gives them no name of its own."""

_TURNS = 50
"""Turns of a loop that does not tell whether it is idle, after which nothing moves any more."""


_settling = 0


async def settle() -> None:
    """Let the loop run everything that can run without time passing, and restored state come into memory."""
    global _settling
    ready = getattr(asyncio.get_running_loop(), "_ready", None)
    _settling += 1
    try:
        for turn in range(10_000):
            await asyncio.sleep(0)
            # What is ready besides those that settle too, each of which has one handle there?
            if turn > _TURNS if ready is None else len(ready) < _settling:
                if not any(task.get_name() == "keygroups loading" for task in asyncio.all_tasks()):
                    return
                await asyncio.sleep(0.001)
        raise AssertionError("something keeps the loop busy for ever")
    finally:
        _settling -= 1


def records_in(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return what was logged, without what asyncio and the watchdog say of a machine that is slow."""
    return [record for record in caplog.records if record.name not in {"asyncio", watchdog.__name__}]


async def eventually(condition: Callable[[], object]) -> None:
    """Wait for what another thread does; the limit is only there to end a test that fails."""
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.001)


async def reading_has_ended() -> None:
    """Wait for the thread of a stream that was left while it was in the middle of reading."""
    await eventually(lambda: all(thread.name != "keygroups reader" for thread in threading.enumerate()))


def empty(outputs: Any) -> bool:
    """Tell a retry policy that no output is no answer."""
    return not outputs


def first(value: str) -> str:
    """Return the key by which "a1" and "a2" are the same call."""
    return value[0]


class ManualTimer:
    """A timer of the `ManualClock`."""

    def __init__(self, when: float, callback: Callable[[], None]) -> None:
        self.when = when
        self.callback = callback
        self.armed = True

    def cancel(self) -> None:
        self.armed = False


class ManualClock:
    """A clock that stands still until the test moves it."""

    def __init__(self, now: float = 1000.0) -> None:
        self._now = now
        self._numbers = itertools.count()
        self._timers: list[tuple[float, int, ManualTimer]] = []

    def time(self) -> float:
        return self._now

    def wall_time(self) -> int:
        return round(1000 * self._now)

    def call_at(self, when: float, callback: Callable[[], None]) -> ManualTimer:
        timer = ManualTimer(when, callback)
        heapq.heappush(self._timers, (when, next(self._numbers), timer))
        return timer

    @property
    def timers(self) -> int:
        """How many timers are armed."""
        return sum(timer.armed for _, _, timer in self._timers)

    def jump(self, seconds: float) -> None:
        """Move on without calling anything back, as if the loop had been busy with something else."""
        self._now += seconds

    async def advance(self, seconds: float) -> None:
        """Move on, calling back what falls due, in order, each with the loop settled before and after it."""
        until = self._now + seconds
        await settle()
        while self._timers and self._timers[0][0] <= until:
            when, _, timer = heapq.heappop(self._timers)
            if timer.armed:
                self._now = max(self._now, when)
                timer.armed = False
                timer.callback()
                await settle()
        self._now = max(self._now, until)
        await settle()


class Call:
    """One call of the `Service`."""

    def __init__(self, value: Any, ctx: InvocationContext) -> None:
        self.value = value
        self.ctx = ctx
        self.attempt = ctx.attempt
        self.reply: asyncio.Future[Iterable[Any]] = asyncio.get_running_loop().create_future()
        self.running = True
        self.cancelled = False


class Service(AsyncFunction):
    """A slow service whose calls end when the test says so.

    Parameters
    ----------
    fallback : callable, optional
        Returns the outputs of `timeout()` for a value; without it the element fails.
    stubborn : bool
        A call goes on when it is cancelled.
    """

    def __init__(self, fallback: Callable[[Any], Iterable[Any]] | None = None, *, stubborn: bool = False) -> None:
        self.calls: list[Call] = []
        self.timed_out: list[Any] = []
        self._fallback = fallback
        self.stubborn = stubborn

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> Iterable[Any]:
        call = Call(value, ctx)
        self.calls.append(call)
        try:
            while True:
                try:
                    return await asyncio.shield(call.reply)
                except asyncio.CancelledError:
                    call.cancelled = True
                    if not self.stubborn:
                        raise
        finally:
            call.running = False

    async def timeout(self, value: Any, ctx: InvocationContext) -> Iterable[Any]:
        self.timed_out.append(value)
        if self._fallback is None:
            return await super().timeout(value, ctx)
        return self._fallback(value)

    @property
    def called(self) -> list[Any]:
        """The values of all calls, in the order in which they began."""
        return [call.value for call in self.calls]

    @property
    def running(self) -> list[Any]:
        """The values of the calls that have not ended, in the order in which they began."""
        return [call.value for call in self.calls if call.running]

    async def answer(self, *values: Any, outputs: Iterable[Any] | None = None) -> None:
        """End the running call of each value in turn; the output is the value itself unless given."""
        for value in values:
            self._call(value).reply.set_result([value] if outputs is None else outputs)
            await settle()

    async def fail(self, value: Any, error: BaseException) -> None:
        """End the running call of a value with an error."""
        self._call(value).reply.set_exception(error)
        await settle()

    def _call(self, value: Any) -> Call:
        return next(call for call in self.calls if call.value == value and not call.reply.done())


class Instant(AsyncFunction):
    """Returns at once, with the value itself or what `outputs` makes of it."""

    def __init__(self, outputs: Callable[[Any], Any] = lambda value: [value]) -> None:
        self.called: list[Any] = []
        self._outputs = outputs

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> Iterable[Any]:
        self.called.append(value)
        return self._outputs(value)  # type: ignore[no-any-return]


class Bench:
    """An operator on the bench, with its clock and what it has emitted."""

    def __init__(self, function: Any, *, clock: ManualClock | None = None, **options: Any) -> None:
        self.clock = clock or ManualClock()
        self.outputs: list[Record | Watermark] = []
        self.threads: set[int] = set()
        self.operator = AsyncWaitOperator(function, self._take, clock=self.clock, **options)

    def _take(self, output: Record | Watermark) -> None:
        self.outputs.append(output)
        self.threads.add(threading.get_ident())

    @property
    def shown(self) -> list[Any]:
        """The outputs: records as their values, watermarks as they are."""
        return [output.value if isinstance(output, Record) else output for output in self.outputs]

    @property
    def in_flight(self) -> int:
        return self.operator.statistics().in_flight

    @property
    def resilience(self) -> ResilienceStatistics:
        found = self.operator.statistics().resilience
        assert found is not None
        return found

    async def feed(self, *elements: Any) -> None:
        """Process values, `Record`s with a timestamp and `Watermark`s, then let the loop settle."""
        for element in elements:
            await self._process(element)
        await settle()

    @asynccontextmanager
    async def feeding(self, *elements: Any) -> AsyncIterator[asyncio.Task[None]]:
        """Feed in the background, for elements that do not fit yet."""
        task = asyncio.create_task(self.feed(*elements))
        await settle()
        try:
            yield task
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _process(self, element: Any) -> None:
        if isinstance(element, Watermark):
            await self.operator.process_watermark(element.timestamp)
        elif isinstance(element, Record):
            await self.operator.process(element.value, element.timestamp)
        else:
            await self.operator.process(element)

    async def queue(self) -> list[Any]:
        """Return what a snapshot would hold of the queue, in its order: values and watermarks."""
        cut = await self.operator.snapshot()
        return [shown_element(element) for element in cut.in_flight]


def shown_element(element: InFlightElement) -> Any:
    """Return an in-flight element as `Bench.shown` shows it once it is emitted."""
    if element.is_watermark:
        assert element.timestamp is not None
        return Watermark(element.timestamp)
    return element.value


@asynccontextmanager
async def opened(
    function: Any, *, restore: SubtaskRestore | None = None, clock: ManualClock | None = None, **options: Any
) -> AsyncIterator[Bench]:
    """Open an operator and close it afterwards."""
    bench = Bench(function, clock=clock, **options)
    await bench.operator.open(restore)
    try:
        await settle()
        yield bench
    finally:
        # A call that never gives up would keep the loop from ending.
        function.stubborn = False
        await bench.operator.close()


def new_store() -> SnapshotStore:
    """Return a store of its own, in memory."""
    return SnapshotStore(f"memory://{uuid.uuid4().hex}", "operator")


async def commit(*parts: SubtaskSnapshot, store: SnapshotStore | None = None) -> Snapshot:
    """Write a snapshot and load it again, so that what a test restores has been through the format."""
    store = store or new_store()
    return await asyncio.to_thread(lambda: store.load(store.write(parts).version))
