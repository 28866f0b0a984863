"""Event time in a stream of this process: timestamps, watermarks, and timers that wait for them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pytest

from async_op import AsyncBatchFunction, AsyncDataStream, AsyncFunction, ElementFailed, InvocationContext
from keygroups import ConfigError, ValueState
from tests.async_op.kit import Instant, Service, settle

WAITS = {
    "ordered": AsyncDataStream.ordered_wait,
    "unordered": AsyncDataStream.unordered_wait,
    "key_ordered": AsyncDataStream.key_ordered_wait,
}
EACH = pytest.mark.parametrize("mode", WAITS)
CLICKS = ValueState("clicks", default=0)

Click = tuple[str, int]


async def asynchronous(values: Iterable[Any]) -> AsyncIterator[Any]:
    for value in values:
        await asyncio.sleep(0)
        yield value


def at(click: Any) -> Any:
    return click[1]


def user(click: Click) -> str:
    return click[0]


class Sessions(AsyncFunction):
    """Counts the clicks of a user until none has come for ten milliseconds."""

    states = (CLICKS,)

    async def async_invoke(self, value: Click, ctx: InvocationContext) -> list[Any]:
        assert ctx.timestamp is not None
        for before in ctx.timers.timestamps(event_time=True):
            ctx.timers.delete(before, event_time=True)
        ctx.timers.register(ctx.timestamp + 10, event_time=True)
        ctx.state(CLICKS).update(ctx.state(CLICKS).value() + 1)
        return []

    async def on_timer(self, timestamp: int, ctx: InvocationContext) -> list[Any]:
        clicks = ctx.state(CLICKS).value()
        ctx.state(CLICKS).clear()
        return [(ctx.key, timestamp - 10, clicks)]


def sessions_of(clicks: list[Click]) -> list[tuple[str, int, int]]:
    """Return the sessions: user, last click, number of clicks."""
    found: list[tuple[str, int, int]] = []
    last: dict[str, tuple[int, int]] = {}
    for name, time in sorted(clicks, key=at):
        before, count = last.get(name, (time, 0))
        if time > before + 10:
            found.append((name, before, count))
            count = 0
        last[name] = time, count + 1
    return sorted(found + [(name, time, count) for name, (time, count) in last.items()])


@EACH
@pytest.mark.parametrize("make", [list, iter, asynchronous])
@pytest.mark.parametrize("seed", range(3))
async def test_timers_of_event_time_fire_between_the_elements_where_they_belong(
    mode: str, make: Any, seed: int
) -> None:
    chance = random.Random(seed)
    clicks = [(chance.choice("abc"), 5 * time) for time in range(60) if chance.random() < 0.5]
    wait = WAITS[mode](make(clicks), Sessions(), key_by=user, timestamps=at, capacity=1)

    assert sorted([session async for session in wait]) == sessions_of(clicks)


@EACH
@pytest.mark.parametrize("seed", range(5))
async def test_no_timer_fires_before_an_element_within_the_delay(mode: str, seed: int) -> None:
    chance = random.Random(seed)
    clicks = [(chance.choice("ab"), time) for time in range(300) if chance.random() < 0.1]
    shuffled = sorted(clicks, key=lambda click: click[1] + chance.randint(0, 20))
    fired: list[tuple[int, int | None]] = []

    class Alarms(AsyncFunction):
        async def async_invoke(self, value: Click, ctx: InvocationContext) -> list[Any]:
            ctx.timers.register(value[1], event_time=True)
            return []

        async def on_timer(self, timestamp: int, ctx: InvocationContext) -> list[Any]:
            fired.append((timestamp, ctx.timers.watermark))
            return [(ctx.key, timestamp)]

    wait = WAITS[mode](
        shuffled, Alarms(), key_by=user, timestamps=at, watermark_delay=timedelta(milliseconds=20), capacity=3
    )
    outputs = [output async for output in wait]

    assert sorted(outputs) == sorted(set(clicks))
    assert all(watermark is None or watermark < timestamp for timestamp, watermark in fired)


async def test_an_element_exactly_as_late_as_the_delay_allows_comes_before_its_timer() -> None:
    seen = []

    class Watching(AsyncFunction):
        async def async_invoke(self, value: Click, ctx: InvocationContext) -> list[Any]:
            seen.append(value)
            if value[0] == "set":
                ctx.timers.register(100, event_time=True)
            return []

        async def on_timer(self, timestamp: int, ctx: InvocationContext) -> list[Any]:
            seen.append(timestamp)
            return []

    clicks = [("set", 90), ("a", 150), ("b", 100), ("c", 151), ("d", 101)]
    wait = AsyncDataStream.ordered_wait(
        clicks, Watching(), key_by=lambda click: "one", timestamps=at, watermark_delay=0.05, capacity=1
    )
    assert [output async for output in wait] == []
    assert seen == [("set", 90), ("a", 150), ("b", 100), 100, ("c", 151), ("d", 101)]


@pytest.mark.parametrize("mode", ["unordered", "key_ordered"])
@pytest.mark.parametrize("make", [list, asynchronous])
async def test_no_output_passes_a_watermark(mode: str, make: Any) -> None:
    service = Service()
    values = [("a", 1), ("b", 1), ("c", None), ("d", 2), ("e", 3)]
    taken = []

    async def take() -> None:
        async for output in WAITS[mode](make(values), service, key_by=user, timestamps=at):
            taken.append(output[0])

    taking = asyncio.create_task(take())
    await settle()
    assert len(service.running) == 5
    await service.answer(("e", 3), ("d", 2))
    assert taken == []
    await service.answer(("c", None), ("a", 1))
    assert taken == ["c", "a"]
    await service.answer(("b", 1))
    await taking
    assert taken == ["c", "a", "b", "d", "e"]


async def test_without_timestamps_outputs_leave_as_calls_return() -> None:
    service = Service()
    async with aclosing(AsyncDataStream.unordered_wait([("a", 1), ("b", 2)], service)) as outputs:  # type: ignore[type-var]
        first = asyncio.create_task(anext(outputs))
        await settle()
        await service.answer(("b", 2))
        assert await first == ("b", 2)


async def test_watermarks_take_no_room_where_nothing_waits_for_them() -> None:
    service = Service()
    stream = [("a", time) for time in range(20)]
    async with aclosing(  # type: ignore[type-var]
        AsyncDataStream.ordered_wait(stream, service, timestamps=at, capacity=10)
    ) as outputs:
        first = asyncio.create_task(anext(outputs))
        await settle()
        assert len(service.running) == 10
        first.cancel()
        await asyncio.wait([first])


async def test_batches_and_timestamps_go_together() -> None:
    class Doubling(AsyncBatchFunction):
        max_batch_size = 4

        async def async_invoke_batch(self, values: Any, ctxs: Any) -> list[Any]:
            return [[(value[0], ctx.timestamp)] for value, ctx in zip(values, ctxs, strict=True)]

    values = [("a", time // 3) for time in range(30)]
    outputs = [output async for output in AsyncDataStream.unordered_wait(values, Doubling(), timestamps=at)]
    assert outputs == values


@EACH
async def test_a_column_name_and_datetimes_are_timestamps_too(mode: str) -> None:
    seen: list[int | None] = []

    class Seeing(Instant):
        async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
            seen.append(ctx.timestamp)
            return []

    east = timezone(timedelta(hours=1))
    times = [
        5,
        datetime(1970, 1, 1, 0, 0, 1),
        datetime(1970, 1, 1, 2, tzinfo=east),
        None,
        datetime(1969, 12, 31, tzinfo=UTC),
        np.int64(6),
        np.datetime64("1970-01-01T00:00:02"),
        "1970-01-01T00:00:03.999999Z",
    ]
    rows = [{"at": time, "id": number} for number, time in enumerate(times)]
    wait = WAITS[mode](rows, Seeing(), timestamps="at", key_by="id")
    assert [output async for output in wait] == []
    assert seen == [5, 1000, 3_600_000, None, -86_400_000, 6, 2000, 3999]


@pytest.mark.parametrize("make", [list, iter, asynchronous])
@pytest.mark.parametrize("time", [1.5, "now", True, 2**63, {}])
async def test_what_is_no_timestamp_fails_its_element(make: Any, time: Any) -> None:
    with pytest.raises(ElementFailed) as caught:
        async for _ in AsyncDataStream.ordered_wait(make([("a", time)]), Instant(), timestamps=at):
            pass
    assert "UnusableTimestamp" in str(caught.value)


async def test_a_missing_column_is_named() -> None:
    with pytest.raises(ElementFailed, match="no column 'at'"):
        async for _ in AsyncDataStream.ordered_wait([{"time": 1}], Instant(), timestamps="at"):
            pass


@pytest.mark.parametrize("mode", WAITS)
@pytest.mark.parametrize("policy", ["skip", "dead_letter"])
@pytest.mark.parametrize("bad", [{"id": 9}, {"id": 9, "at": "now"}, {"id": 9, "at": 2**63}, 5])
async def test_a_bad_timestamp_costs_no_other_element(mode: str, policy: Any, bad: Any) -> None:
    letters: list[Any] = []
    rows = [{"id": 1, "at": 1}, bad, {"id": 2, "at": 2}]
    options: dict[str, Any] = {"dead_letters": letters.append} if policy == "dead_letter" else {}
    wait = WAITS[mode](rows, Instant(), timestamps="at", key_by="id", on_error=policy, **options)
    assert len([output async for output in wait]) == 2
    assert ["UnusableTimestamp" in str(letter.error) for letter in letters] == [True] * (policy == "dead_letter")


async def test_a_function_for_timestamps_that_raises_costs_no_other_element() -> None:
    wait = AsyncDataStream.ordered_wait([("a", 1), (), ("b", 2)], Instant(), timestamps=at, on_error="skip")
    assert len([output async for output in wait]) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timestamps": 5}, "timestamps=5"),
        ({"watermark_delay": 1}, "pass `timestamps`, too"),
        ({"timestamps": at, "watermark_delay": -1}, "watermark_delay=-1"),
        ({"timestamps": at, "watermark_delay": "1s"}, "watermark_delay"),
    ],
)
def test_arguments_that_cannot_be_meant_are_refused_at_once(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        AsyncDataStream.ordered_wait([1], Instant(), **options)
