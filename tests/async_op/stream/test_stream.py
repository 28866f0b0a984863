"""`AsyncDataStream` on streams in this process."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any

import pytest

from async_op import (
    AsyncDataStream,
    AsyncFunction,
    AsyncTimeoutError,
    ConnectorCancelled,
    ElementFailed,
    InvocationContext,
    OperatorInterrupted,
)
from async_op.threads.wait_strategies import WaitStrategies
from keygroups import ConfigError, ValueState
from tests.async_op.kit import Instant, ManualClock, Service, eventually, reading_has_ended, settle

WAITS = pytest.mark.parametrize("wait", [AsyncDataStream.ordered_wait, AsyncDataStream.unordered_wait])
COUNT = ValueState("count", default=0)


async def asynchronous(values: Any) -> AsyncIterator[Any]:
    for value in values:
        await asyncio.sleep(0)
        yield value


class Counted:
    """An iterable that tells how far it has been read."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.read = 0

    def __iter__(self) -> Iterator[int]:
        for number in range(self.count):
            self.read = number + 1
            yield number


@WAITS
@pytest.mark.parametrize("make", [list, iter, asynchronous], ids=["list", "iterator", "asynchronous"])
async def test_every_kind_of_stream_comes_out_whole(wait: Any, make: Any) -> None:
    outputs = [output async for output in wait(make(range(50)), Instant(lambda value: [value, -value]), capacity=7)]

    assert sorted(outputs) == sorted([*range(50), *(-number for number in range(50))])


@WAITS
@pytest.mark.parametrize("make", [list, asynchronous], ids=["list", "asynchronous"])
async def test_an_empty_stream_has_no_outputs(wait: Any, make: Any) -> None:
    assert [output async for output in wait(make([]), Instant())] == []


async def test_ordered_outputs_keep_the_order_of_the_stream() -> None:
    class Backwards(AsyncFunction):
        async def async_invoke(self, value: int, ctx: InvocationContext) -> list[int]:
            for _ in range(20 - value):
                await asyncio.sleep(0)
            return [value]

    ordered = [output async for output in AsyncDataStream.ordered_wait(range(20), Backwards())]
    unordered = [output async for output in AsyncDataStream.unordered_wait(range(20), Backwards())]

    assert ordered == list(range(20))
    assert sorted(unordered) == list(range(20))
    assert unordered != ordered


@pytest.mark.behaviour("operators are joined as streams, and the taker is ready before the giver")
async def test_streams_follow_each_other() -> None:
    doubled = AsyncDataStream.ordered_wait(range(5), Instant(lambda value: [2 * value]))
    incremented = (value + 1 async for value in doubled)
    outputs = [o async for o in AsyncDataStream.unordered_wait(incremented, Instant(lambda value: [2 * value]))]

    assert sorted(outputs) == [(2 * value + 1) * 2 for value in range(5)]
    await incremented.aclose()


class WithClient(AsyncFunction):
    """Has a client from `open` to `close`."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.client: set[str] | None = None

    async def open(self, runtime: Any) -> None:
        self.client = self.client or {"connected"}

    async def async_invoke(self, value: asyncio.Event, ctx: Any) -> list[int]:
        self.begun.append(id(self))
        await value.wait()
        assert self.client, "another stream has closed it"
        return [id(self)]

    async def close(self) -> None:
        assert self.client is not None
        self.client.clear()


@WAITS
async def test_streams_at_the_same_time_may_be_given_one_function(wait: Any) -> None:
    function, ends = WithClient(), [asyncio.Event() for _ in range(3)]

    async def used(end: asyncio.Event) -> list[int]:
        return [output async for output in wait([end], function)]

    streams = [asyncio.create_task(used(end)) for end in ends]
    await eventually(lambda: len(function.begun) == len(ends))
    found = []
    for end, stream in zip(ends, streams, strict=True):
        end.set()
        found += await stream
    assert len(set(found)) == len(ends)
    assert await used(ends[0]) == [id(function)]  # the object itself, unless it is in use


@WAITS
async def test_a_slow_consumer_is_not_flooded(wait: Any) -> None:
    """What is read ahead of the taker is bounded: the in-flight elements and as many outputs."""
    stream = Counted(1000)
    outputs = wait(stream, Instant(), capacity=5)
    async with aclosing(outputs):
        async for output in outputs:
            await settle()
            assert stream.read <= output + 2 * 5 + 2
            if output == 100:
                break
    await reading_has_ended()


class Sized(Counted):
    """The same with a size, so that it is read on the event loop."""

    def __len__(self) -> int:
        return self.count

    def __contains__(self, number: object) -> bool:
        return number in range(self.count)


@WAITS
@pytest.mark.parametrize("capacity", [1, 2, 5])
async def test_an_element_is_read_only_if_there_is_room_for_it_and_its_output(wait: Any, capacity: int) -> None:
    stream = Sized(200)
    async with aclosing(wait(stream, Instant(), capacity=capacity)) as outputs:
        for taken in range(1, 101):
            await anext(outputs)
            await settle()
            # One call may have returned for each of the outputs that are kept; one more element waits for room.
            assert stream.read <= taken + 2 * capacity + 1


@WAITS
async def test_calls_that_wait_take_up_the_room_of_the_input(wait: Any) -> None:
    stream, service = Sized(100), Service()
    async with aclosing(wait(stream, service, capacity=5)) as outputs:
        first = asyncio.create_task(anext(outputs))
        await settle()
        assert (len(service.running), stream.read) == (5, 6)
        await service.answer(0)
        assert await first == 0
        await settle()
        assert (len(service.running), stream.read) == (5, 7)


async def test_nothing_is_read_before_the_first_output_is_asked_for() -> None:
    stream = Counted(10)
    outputs = AsyncDataStream.ordered_wait(stream, Instant())
    await settle()

    assert stream.read == 0
    await outputs.aclose()  # type: ignore[attr-defined]


@WAITS
async def test_leaving_early_ends_the_calls_and_closes_the_function(wait: Any) -> None:
    closed = []

    class Closing(Service):
        async def close(self) -> None:
            closed.append(True)

    service = Closing()
    outputs = wait(range(100), service, capacity=10, timeout=5)
    async with aclosing(outputs):
        first = asyncio.create_task(anext(outputs))
        await settle()
        await service.answer(0)
        assert await first == 0

    assert (service.running, closed) == ([], [True])


@WAITS
async def test_a_cancelled_taker_ends_the_calls(wait: Any) -> None:
    service = Service()

    async def take() -> None:
        async with aclosing(wait(range(100), service)) as outputs:
            async for _ in outputs:
                pass

    taker = asyncio.create_task(take())
    await settle()
    assert len(service.running) == 100
    taker.cancel()
    await asyncio.gather(taker, return_exceptions=True)

    assert service.running == []


@WAITS
async def test_a_failing_element_reaches_the_taker(wait: Any) -> None:
    def refuse(value: int) -> list[int]:
        if value == 3:
            raise ValueError("three")
        return [value]

    with pytest.raises(ElementFailed, match="three"):
        async for _ in wait(range(100), Instant(refuse), capacity=2):
            pass


@WAITS
@pytest.mark.parametrize("make", [iter, asynchronous])
async def test_a_failing_stream_reaches_the_taker(wait: Any, make: Any) -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise ConnectionError("lost")

    with pytest.raises(ConnectionError, match="lost"):
        async for _ in wait(make(broken()), Instant()):
            pass


@WAITS
async def test_outputs_before_a_failure_are_handed_out_first(wait: Any) -> None:
    def broken() -> Iterator[int]:
        yield from (1, 2)
        raise ConnectionError("lost")

    taken = []
    with pytest.raises(ConnectionError):
        async for output in wait(broken(), Instant(), capacity=1):
            taken.append(output)

    assert taken[:1] == [1]


@WAITS
async def test_a_timeout_reaches_the_taker(wait: Any) -> None:
    clock = ManualClock()
    outputs = wait(["slow"], Service(), timeout=3, clock=clock)
    first = asyncio.create_task(anext(outputs))
    await settle()
    await clock.advance(3)

    with pytest.raises(AsyncTimeoutError):
        await first
    assert clock.timers == 0


@WAITS
async def test_an_error_of_open_reaches_the_taker(wait: Any) -> None:
    class Broken(Service):
        async def open(self, runtime: Any) -> None:
            raise ConnectionError("down")

    with pytest.raises(ConnectionError, match="down"):
        await anext(wait([1], Broken()))


@WAITS
async def test_state_is_there_for_the_length_of_the_stream(wait: Any) -> None:
    class Counting(AsyncFunction):
        states = (COUNT,)

        async def async_invoke(self, value: int, ctx: InvocationContext) -> list[tuple[int, int]]:
            count = ctx.state(COUNT).value() + 1
            await asyncio.sleep(0)
            ctx.state(COUNT).update(count)
            return [(ctx.key, count)]  # type: ignore[list-item]

    outputs = [output async for output in wait(range(12), Counting(), key_by=lambda value: value % 3)]

    assert sorted(outputs) == [(key, count) for key in range(3) for count in range(1, 5)]


@WAITS
@pytest.mark.parametrize("stream", [5, None, object()])
def test_what_is_no_stream_is_refused(wait: Any, stream: Any) -> None:
    with pytest.raises(ConfigError, match="pass an iterable, an async iterable or a Spark DataFrame"):
        wait(stream, Service())


@WAITS
def test_a_function_in_place_of_what_it_returns_is_to_be_called(wait: Any) -> None:
    def numbers() -> Iterator[int]:
        yield 1

    with pytest.raises(ConfigError, match=r"; call the function: numbers\(\)"):
        wait(numbers, Service())


@WAITS
def test_a_bad_option_is_refused_at_once_not_at_the_first_output(wait: Any) -> None:
    with pytest.raises(ConfigError, match="capacity=0"):
        wait([1], Service(), capacity=0)


# -- iterables that block


class Slow:
    """An iterable of which each element comes when the test lets it."""

    def __init__(self) -> None:
        self.gates = queue.Queue[Any]()
        self.threads = set[int]()
        self.asked = 0
        self.closed = threading.Event()

    def __iter__(self) -> Iterator[Any]:
        try:
            while (value := self._next()) is not None:
                self.threads.add(threading.get_ident())
                if isinstance(value, BaseException):
                    raise value
                yield value
        finally:
            self.closed.set()

    def _next(self) -> Any:
        self.asked += 1
        return self.gates.get(timeout=30)


@WAITS
async def test_calls_continue_while_the_stream_blocks(wait: Any) -> None:
    slow = Slow()
    async with aclosing(wait(slow, Instant())) as outputs:
        for value in range(1, 4):
            slow.gates.put(value)
            assert await anext(outputs) == value  # the next element has not come yet
        slow.gates.put(None)
        assert [output async for output in outputs] == []

    assert threading.get_ident() not in slow.threads
    assert slow.closed.is_set()


@WAITS
async def test_leaving_a_stream_that_blocks_does_not_wait_for_it(wait: Any) -> None:
    slow = Slow()
    async with aclosing(wait(slow, Instant())) as outputs:
        slow.gates.put("x")
        assert await anext(outputs) == "x"
        await eventually(lambda: slow.asked == 2)
    assert not slow.closed.is_set()
    slow.gates.put("nobody takes it")
    await eventually(slow.closed.is_set)
    await eventually(lambda: not any(thread.name == "keygroups reader" for thread in threading.enumerate()))


@WAITS
async def test_a_stream_without_end_is_read_no_further_than_its_taker(wait: Any) -> None:
    read = 0

    def numbers() -> Iterator[int]:
        nonlocal read
        while True:
            read += 1
            yield read

    async with aclosing(wait(numbers(), Instant(), capacity=10)) as outputs:
        assert [await anext(outputs) for _ in range(500)] == list(range(1, 501))
        await settle()
        assert read <= 500 + 2 * 10 + 2
    await reading_has_ended()


@WAITS
async def test_a_taker_that_is_cancelled_while_the_stream_blocks_does_not_wait_for_it(wait: Any) -> None:
    slow = Slow()
    taken = []

    async def take() -> None:
        async with aclosing(wait(slow, Instant())) as outputs:
            async for output in outputs:
                taken.append(output)

    taker = asyncio.create_task(take())
    slow.gates.put("x")
    await eventually(lambda: taken == ["x"] and slow.asked == 2)
    taker.cancel()
    await asyncio.wait([taker])
    assert taker.cancelled()
    assert not slow.closed.is_set()
    slow.gates.put("nobody takes it")
    await eventually(slow.closed.is_set)
    await reading_has_ended()


async def test_a_generator_is_closed_where_it_was_read_when_the_taker_leaves() -> None:
    threads = list[int]()

    def numbers() -> Iterator[int]:
        try:
            yield from range(1000)
        finally:
            threads.append(threading.get_ident())

    async with aclosing(AsyncDataStream.ordered_wait(numbers(), Instant(), capacity=4)) as outputs:
        assert await anext(outputs) == 0
    await reading_has_ended()

    assert len(threads) == 1
    assert threads[0] != threading.get_ident()


@pytest.mark.parametrize("raised", [GeneratorExit, KeyboardInterrupt, SystemExit, asyncio.CancelledError])
async def test_what_a_blocking_stream_raises_reaches_the_taker_as_an_exception(raised: Any) -> None:
    slow = Slow()
    slow.gates.put("x")
    slow.gates.put(raised("why"))
    outputs = AsyncDataStream.ordered_wait(slow, Instant())
    with pytest.raises(OperatorInterrupted, match="why"):
        async for _ in outputs:
            pass


@pytest.mark.parametrize("of_its_own_task", [False, True])
@pytest.mark.parametrize(("where", "what"), [("read", "reading the stream"), ("open", "opening"), ("close", "closing")])
async def test_a_cancellation_by_a_client_does_not_end_the_taker_in_silence(
    where: str, what: str, of_its_own_task: bool
) -> None:
    """A task group would take it for a cancellation of its own, and go on with the outputs until then."""

    async def reach(place: str) -> None:
        task = asyncio.current_task()
        if place == where:
            if task is not None and of_its_own_task:
                task.cancel()
                await asyncio.sleep(0)
            raise asyncio.CancelledError

    class Client(AsyncFunction):
        async def open(self, runtime: Any) -> None:
            await reach("open")

        async def close(self) -> None:
            await reach("close")

        async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
            return [value]

    async def numbers() -> AsyncIterator[int]:
        yield 1
        await reach("read")
        yield 2

    async def take() -> None:
        async for _ in AsyncDataStream.ordered_wait(numbers(), Client()):
            pass

    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(take())
    assert raised.group_contains(ConnectorCancelled, match=what)


async def test_a_stream_on_a_thread_sees_the_context_of_its_taker() -> None:
    variable = contextvars.ContextVar("variable", default="none")
    variable.set("mine")

    def read() -> Iterator[str]:
        yield variable.get()

    assert [output async for output in AsyncDataStream.ordered_wait(read(), Instant())] == ["mine"]


@pytest.mark.parametrize("stream", [[1], (1,), range(1), {1}, deque([1])])
async def test_what_has_a_size_is_read_on_the_event_loop(stream: Any) -> None:
    class Names(AsyncFunction):
        async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
            return [thread.name for thread in threading.enumerate()]

    names = [output async for output in AsyncDataStream.ordered_wait(stream, Names())]

    assert "keygroups reader" not in names


async def test_a_stream_of_this_process_has_no_thread_whose_waits_could_be_chosen() -> None:
    with pytest.raises(ConfigError, match="only threads of Spark's tasks"):
        AsyncDataStream.ordered_wait([1], Instant(), wait_strategies=WaitStrategies())
