"""`AsyncDataStream` with snapshots: a stream that goes on where it was left."""

from __future__ import annotations

import asyncio
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any

import pytest

from async_op import AsyncDataStream, AsyncFunction, ElementFailed, InvocationContext
from async_op.job import outputs as job_outputs
from async_op.job.committing import Committer
from keygroups import ConfigError, ValueState
from tests.async_op.job.kit import Epochs, Log
from tests.async_op.kit import ManualClock, eventually, settle

WAITS = pytest.mark.parametrize("wait", [AsyncDataStream.ordered_wait, AsyncDataStream.unordered_wait])
COUNT = ValueState("count", default=0)


@pytest.fixture
def place() -> dict[str, Any]:
    return {"snapshots": f"memory://{uuid.uuid4().hex}", "job_id": "stream"}


async def double(value: int) -> int:
    return 2 * value


class Asynchronous:
    """An async iterable that can be iterated again."""

    def __init__(self, values: Any) -> None:
        self.values = values

    async def __aiter__(self) -> AsyncIterator[Any]:
        for value in self.values:
            yield value


class Held:
    """Returns values below a limit at once, and the others when the gate is open."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.calls: list[int] = []
        self.gate = asyncio.Event()

    async def call(self, value: int) -> int:
        self.calls.append(value)
        if value >= self.limit:
            await self.gate.wait()
        return value


@WAITS
@pytest.mark.parametrize("make", [list, Asynchronous, lambda values: Log(values, bounded=True)])
async def test_all_outputs_of_a_stream_with_snapshots_come_once(
    wait: Any, make: Callable[[Any], Any], place: dict[str, Any]
) -> None:
    outputs = [output async for output in wait(make(range(500)), double, capacity=7, **place)]
    again = [output async for output in wait(make(range(500)), double, capacity=7, **place)]

    assert sorted(outputs) == [2 * value for value in range(500)]
    assert again == []


@WAITS
async def test_a_stream_with_snapshots_continues_where_it_was_left(wait: Any, place: dict[str, Any]) -> None:
    function, taken = Held(5), []
    tasks = asyncio.all_tasks()
    async with aclosing(wait(range(10), function.call, **place)) as outputs:
        async for output in outputs:
            taken.append(output)
            await eventually(lambda: len(function.calls) == 10)
            if len(taken) == 2:
                break
    assert asyncio.all_tasks() == tasks

    function.gate.set()
    rest = [output async for output in wait(range(10), function.call, **place)]

    assert len(rest) == len(set(rest))
    assert taken[-1] in rest, "the epoch was not taken whole"
    assert {*taken, *rest} == set(range(10))
    assert Counter(function.calls) == Counter([*range(5), *range(5, 10), *range(5, 10)])


async def test_a_call_that_finished_before_the_taker_left_is_not_repeated(place: dict[str, Any]) -> None:
    function = Held(1)
    async with aclosing(AsyncDataStream.ordered_wait(Log(range(5)), function.call, **place)) as outputs:
        assert await anext(outputs) == 0
        await eventually(lambda: len(function.calls) == 5)
        function.gate.set()
        await settle()

    again = Log(range(5), bounded=True)
    rest = [output async for output in AsyncDataStream.ordered_wait(again, function.call, **place)]

    assert rest == list(range(5))
    assert Counter(function.calls) == Counter(range(5))


async def test_a_stream_with_snapshots_keeps_state_and_order(place: dict[str, Any]) -> None:
    class Numbered(AsyncFunction[str, tuple[str, int]]):
        states = (COUNT,)

        async def async_invoke(self, value: str, ctx: InvocationContext) -> list[tuple[str, int]]:
            count = ctx.state(COUNT)
            count.update(count.value() + 1)
            return [(value, count.value())]

    def outputs(words: str) -> Any:
        return AsyncDataStream.key_ordered_wait(list(words), Numbered(), key_by=str, **place)

    assert [output async for output in outputs("aab")] == [("a", 1), ("a", 2), ("b", 1)]
    assert [output async for output in outputs("aabab")] == [("a", 3), ("b", 2)]


async def test_a_failing_element_of_a_stream_with_snapshots_reaches_the_taker(place: dict[str, Any]) -> None:
    wrong, taken = {3}, []

    async def call(value: int) -> int:
        if value in wrong:
            raise ValueError("wrong")
        return value

    with pytest.raises(ElementFailed) as failed:
        async for output in AsyncDataStream.ordered_wait(range(6), call, **place):
            taken.append(output)
    assert isinstance(failed.value.__cause__, ValueError)
    assert taken == [0, 1, 2]

    wrong.clear()
    assert [output async for output in AsyncDataStream.ordered_wait(range(6), call, **place)] == [3, 4, 5]


async def test_a_job_that_cannot_stop_at_a_cut_says_so_in_the_log(
    place: dict[str, Any], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def commit(*_: Any) -> None:
        raise OSError("no space left")

    function = Held(1)
    async with aclosing(AsyncDataStream.ordered_wait(range(2), function.call, **place)) as outputs:
        assert await anext(outputs) == 0
        monkeypatch.setattr(Committer, "commit_cut", commit)
    assert "no space left" in caplog.text

    monkeypatch.undo()
    function.gate.set()
    assert [output async for output in AsyncDataStream.ordered_wait(range(2), function.call, **place)] == [0, 1]


async def test_a_failure_that_comes_as_the_taker_leaves_comes_again(place: dict[str, Any]) -> None:
    failing = asyncio.Event()

    async def call(value: int) -> int:
        if value == 1:
            await failing.wait()
            raise ValueError("wrong")
        return value

    async with aclosing(AsyncDataStream.ordered_wait(range(2), call, **place)) as outputs:
        assert await anext(outputs) == 0
        failing.set()
        await settle()
    with pytest.raises(ElementFailed):
        _ = [output async for output in AsyncDataStream.ordered_wait(range(2), call, **place)]


async def test_a_cancelled_taker_stops_the_job_at_a_cut(place: dict[str, Any]) -> None:
    function, tasks = Held(0), asyncio.all_tasks()

    async def take() -> None:
        async for _ in AsyncDataStream.ordered_wait(range(3), function.call, **place):
            raise AssertionError("nothing has returned")

    taker = asyncio.create_task(take())
    await eventually(lambda: len(function.calls) == 3)
    taker.cancel()
    with pytest.raises(asyncio.CancelledError):
        await taker
    assert asyncio.all_tasks() == tasks

    function.gate.set()
    assert [output async for output in AsyncDataStream.ordered_wait(range(3), function.call, **place)] == [0, 1, 2]


async def test_the_job_of_a_stream_waits_for_a_slow_taker(
    place: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_outputs, "EPOCH_OUTPUTS", 10)
    function = Held(10_000)
    async with aclosing(AsyncDataStream.ordered_wait(Asynchronous(range(2000)), function.call, **place)) as outputs:
        await anext(outputs)
        await asyncio.sleep(1.0)  # time enough for all of it, if it did not wait

        assert len(function.calls) < 1000


async def test_dead_letters_of_a_stream_with_snapshots_go_to_a_sink(place: dict[str, Any]) -> None:
    letters = Epochs()

    async def call(value: int) -> int:
        if value == 1:
            raise ValueError("wrong")
        return value

    stream = AsyncDataStream.ordered_wait(range(3), call, on_error="dead_letter", dead_letters=letters, **place)

    assert [output async for output in stream] == [0, 2]
    assert [letter["value"] for letter in letters.values] == ["1"]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("job_id", {"job_id": None}),
        ("snapshots", {"snapshots": None}),
        ("timestamps", {"watermark_delay": 1.0}),
        ("watermark_delay", {"timestamps": len, "watermark_delay": -1.0}),
        ("clock", {"clock": ManualClock()}),
        ("dead_letters", {"on_error": "dead_letter", "dead_letters": print}),
        ("capacity", {"capacity": 0}),
    ],
)
@WAITS
def test_what_a_stream_with_snapshots_has_no_use_for_is_refused(
    wait: Any, name: str, options: dict[str, Any], place: dict[str, Any]
) -> None:
    with pytest.raises(ConfigError, match=name):
        wait([1], double, **place | options)


@WAITS
def test_a_source_gives_its_timestamps_itself(wait: Any, place: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="a Source gives its elements their timestamps"):
        wait(Log([1], bounded=True), double, timestamps=len, **place)


class Alarms(AsyncFunction[Any, Any]):
    """Registers a timer for each element, half a second later; the timer's output is the number of its elements."""

    states = (COUNT,)

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        ctx.state(COUNT).update(ctx.state(COUNT).value() + 1)
        ctx.timers.register(ctx.timestamp + 500, event_time=True)
        return []

    async def on_timer(self, timestamp: int, ctx: InvocationContext) -> list[Any]:
        return [(ctx.key, timestamp, ctx.state(COUNT).value())]


@WAITS
@pytest.mark.parametrize("make", [list, Asynchronous])
async def test_event_time_of_a_stream_with_snapshots_continues_where_it_was_left(
    wait: Any, make: Any, place: dict[str, Any]
) -> None:
    rows: list[Any] = [{"key": key, "at": at} for key, at in (("a", 0), ("b", 100), ("a", 900))]
    options = {"key_by": "key", "timestamps": "at", "watermark_delay": 0.1} | place
    first = [output async for output in wait(make(rows), Alarms(), **options)]
    rows += [{"key": "b", "at": 700}, 5, {"key": "a"}, {"key": "a", "at": "now"}]
    second = [output async for output in wait(make(rows), Alarms(), on_error="skip", **options)]

    assert [output[:2] for output in first] == [("a", 500), ("b", 600), ("a", 1400)]
    assert second == [("b", 1200, 2)]


@WAITS
async def test_watermarks_of_a_stream_with_snapshots_pass_before_its_end(wait: Any, place: dict[str, Any]) -> None:
    fired = asyncio.Event()

    async def endless() -> AsyncIterator[Any]:
        yield {"key": "a", "at": 0}
        yield {"key": "a", "at": 1000}
        await fired.wait()

    async for output in wait(endless(), Alarms(), key_by="key", timestamps="at", **place):
        assert output[:2] in {("a", 500), ("a", 1500)}
        fired.set()


@WAITS
def test_a_source_needs_snapshots(wait: Any) -> None:
    with pytest.raises(ConfigError, match="a Source needs `snapshots`"):
        wait(Log([1], bounded=True), double)
