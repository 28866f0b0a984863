"""Opening, ending and giving up: no way out leaves a task, thread or timer (see `tests/async_op/conftest.py`)."""

from __future__ import annotations

import asyncio
import traceback
from typing import Any

import pytest

from async_op import (
    AsyncDataStream,
    AsyncFunction,
    AsyncWaitOperator,
    ElementFailed,
    FixedDelayRetry,
    InvocationContext,
    OperatorClosed,
    Runtime,
    Watermark,
    cancellation,
    shared,
)
from async_op.operator.assembly import Parts
from keygroups import KeyGroupsError, ValueState, key_group_of
from tests.async_op.job.kit import new_job
from tests.async_op.kit import BOTH, Bench, Instant, Service, commit, opened, settle


def uses(bench: Bench) -> list[Any]:
    operator = bench.operator
    return [
        lambda: operator.process(1),
        lambda: operator.process_watermark(1),
        operator.snapshot,
        operator.finish,
    ]


@pytest.mark.parametrize("use", range(4))
async def test_nothing_can_be_done_before_open(use: int) -> None:
    bench = Bench(Service())

    with pytest.raises(OperatorClosed, match="await open"):
        await uses(bench)[use]()


@pytest.mark.parametrize("use", range(4))
async def test_nothing_can_be_done_after_close(use: int) -> None:
    async with opened(Service()) as bench:
        pass

    with pytest.raises(OperatorClosed, match="make a new operator"):
        await uses(bench)[use]()


async def test_an_operator_is_opened_once() -> None:
    async with opened(Service()) as bench:
        with pytest.raises(OperatorClosed):
            await bench.operator.open()

    with pytest.raises(OperatorClosed):
        await bench.operator.open()


@BOTH
async def test_finish_waits_until_everything_has_left(mode: str) -> None:
    service = Service()
    async with opened(service, mode=mode) as bench:
        await bench.feed(1, Watermark(1), 2)
        finishing = asyncio.create_task(bench.operator.finish())
        await service.answer(2)
        assert not finishing.done()

        await service.answer(1)
        await finishing
        assert bench.shown == [1, Watermark(1), 2]


async def test_finish_returns_at_once_where_nothing_is_in_flight() -> None:
    async with opened(Service()) as bench:
        await bench.operator.finish()


@BOTH
async def test_close_gives_up_what_is_in_flight_and_emits_nothing(mode: str) -> None:
    service = Service()
    async with opened(service, mode=mode) as bench:
        await bench.feed(1, 2, Watermark(1))

    assert bench.shown == []
    assert [call.cancelled for call in service.calls] == [True, True]


@pytest.mark.behaviour("what completes after the end is dropped, and comes back with the restore")
@BOTH
async def test_results_that_come_after_close_go_nowhere(mode: str) -> None:
    """The calls were answered, last one first, but the operator was closed before it could look."""
    service = Service()
    async with opened(service, mode=mode) as bench:
        await bench.feed(1, 2, 3)
        for call in reversed(service.calls):
            call.reply.set_result([call.value])
        await bench.operator.close()
    await settle()

    assert bench.shown == []


class Opening(Instant):
    """Is opened when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.go = asyncio.Event()

    async def open(self, runtime: Runtime) -> None:
        await self.go.wait()


@BOTH
async def test_nothing_that_was_restored_leaves_an_operator_that_was_closed_meanwhile(mode: str) -> None:
    """A completed record, and a watermark that no record of this subtask stands before."""
    service, keyed = Service(), {"key_by": lambda value: value, "max_parallelism": 2}
    async with opened(service, mode="ordered", **keyed) as bench:
        keys = sorted(range(8), key=lambda key: key_group_of(key, 2))
        await bench.feed(keys[0], keys[-1], Watermark(1))
        await service.answer(keys[-1])
        snapshot = await commit(await bench.operator.snapshot())

    function = Opening()
    bench = Bench(function, mode=mode, parallelism=2, subtask_index=1, **keyed)
    opening = asyncio.create_task(bench.operator.open(snapshot.restore(1, 2)))
    await settle()
    closing = asyncio.create_task(bench.operator.close())
    await settle()
    function.go.set()
    await asyncio.gather(opening, closing, return_exceptions=True)
    await settle()
    assert (bench.shown, function.called) == ([], [])


async def test_close_wakes_who_waits_for_a_place() -> None:
    async with opened(Service(), capacity=1) as bench:
        await bench.feed(1)
        async with bench.feeding(2) as feeding:
            await bench.operator.close()

            with pytest.raises(OperatorClosed):
                await feeding


async def test_close_wakes_who_waits_for_the_end() -> None:
    async with opened(Service()) as bench:
        await bench.feed(1)
        finishing = asyncio.create_task(bench.operator.finish())
        await settle()
        await bench.operator.close()

        with pytest.raises(OperatorClosed):
            await finishing


async def test_close_may_be_called_twice_and_closes_the_function_once() -> None:
    closed = []

    class Closing(Service):
        async def close(self) -> None:
            closed.append(True)

    async with opened(Closing()) as bench:
        await bench.operator.close()
        await bench.operator.close()

    assert closed == [True]


async def test_an_operator_that_was_never_opened_closes_without_a_sound() -> None:
    bench = Bench(Service())

    await bench.operator.close()

    with pytest.raises(OperatorClosed):
        await bench.operator.open()


class HalfOpen(AsyncFunction[Any, Any]):
    """Cannot be opened, and fails to close what is not there."""

    def __init__(self, *, closing: type[BaseException] = AttributeError) -> None:
        self.closing = closing

    async def open(self, runtime: Runtime) -> None:
        raise OSError("no pool")

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        return [value]

    async def close(self) -> None:
        raise self.closing("pool")


async def open_operator(function: Any) -> None:
    await Bench(function).operator.open()


async def open_stream(function: Any) -> None:
    async for _ in AsyncDataStream.unordered_wait([1], function):
        pass


async def open_job(function: Any) -> None:
    await new_job([1], function, lambda values, epoch: None).run()


OPENINGS = (open_operator, open_stream, open_job)


class Staying(AsyncFunction[Any, Any]):
    """Never closes, and shares a client that never closes."""

    async def open(self, runtime: Runtime) -> None:
        await shared("client", Staying)

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        return [value]

    async def close(self) -> None:
        await asyncio.Event().wait()


async def close_operator(function: Any) -> None:
    async with Bench(function).operator:
        pass


@pytest.mark.parametrize("run", [close_operator, open_stream, open_job])
async def test_what_never_closes_is_given_up_and_named(
    run: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(cancellation, "CLOSE_SECONDS", 0.01)
    for _ in range(2):  # the second one gets a client of its own
        caplog.clear()
        await run(Staying())
        assert "close() of Staying was given up after 0.01 s" in caplog.text
        assert "the end of a shared Staying was given up after 0.01 s" in caplog.text


@pytest.mark.parametrize("closing", [AttributeError, asyncio.CancelledError])
@pytest.mark.parametrize("open_it", OPENINGS)
async def test_if_close_fails_after_open_has_failed_the_error_of_open_is_raised(
    open_it: Any, closing: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(OSError, match="no pool"):
        await open_it(HalfOpen(closing=closing))

    (record,) = caplog.records
    assert "HalfOpen did not close well" in record.message
    assert record.exc_info is not None
    assert record.exc_info[0] is closing


async def test_a_cancelled_open_stays_cancelled_if_close_fails() -> None:
    class Slow(HalfOpen):
        async def open(self, runtime: Runtime) -> None:
            await asyncio.Event().wait()

    opening = asyncio.create_task(Bench(Slow()).operator.open())
    await settle()
    opening.cancel()

    with pytest.raises(asyncio.CancelledError):
        await opening


async def test_a_stream_raises_what_has_failed_it_and_not_the_error_of_close(caplog: pytest.LogCaptureFixture) -> None:
    class Failing(HalfOpen):
        async def open(self, runtime: Runtime) -> None:
            pass

        async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
            raise ValueError("no")

    with pytest.raises(ElementFailed):
        await open_stream(Failing())
    assert "Failing did not close well" in caplog.text


async def test_a_stream_that_ends_well_raises_the_error_of_close() -> None:
    class Unclosable(HalfOpen):
        async def open(self, runtime: Runtime) -> None:
            pass

    with pytest.raises(AttributeError, match="pool"):
        await open_stream(Unclosable())


async def test_close_waits_for_a_call_that_takes_its_cancellation_slowly() -> None:
    ended = []

    class Careful(AsyncFunction):
        async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
            try:
                await asyncio.Event().wait()
            finally:
                await settle()
                ended.append(value)
            return []

    async with opened(Careful()) as bench:
        await bench.feed(1, 2)
        await bench.operator.close()

        assert sorted(ended) == [1, 2]


async def test_a_call_that_swallows_its_cancellation_lets_no_other_begin() -> None:
    class Stubborn(Service):
        states = (ValueState("state"),)

    service = Stubborn(stubborn=True)
    async with opened(service, key_by=lambda value: value[0]) as bench:
        await bench.feed("a1", "a2")
        closing = asyncio.create_task(bench.operator.close())
        await settle()
        await service.answer("a1")
        await closing

    assert (service.called, bench.shown) == (["a1"], [])


@pytest.mark.behaviour("a call that fails after the end is not tried again")
async def test_a_call_that_fails_after_close_is_not_retried() -> None:
    service = Service(stubborn=True)
    async with opened(service, retry=FixedDelayRetry(3, 1.0)) as bench:
        await bench.feed(1)
        closing = asyncio.create_task(bench.operator.close())
        await settle()
        await service.fail(1, ValueError("no"))
        await closing
        await bench.clock.advance(10)

    assert (service.called, bench.clock.timers) == ([1], 0)


async def test_no_call_begins_after_a_failure() -> None:
    service = Service()
    async with opened(service, capacity=10) as bench:
        await bench.feed(*range(10))
        snapshot = await commit(await bench.operator.snapshot())
    service = Service()
    async with opened(service, capacity=2, restore=snapshot.restore(0)) as bench:
        await service.fail(0, ValueError("no"))
        await service.answer(1)

        assert service.called == [0, 1]


async def test_the_failure_of_an_operator_has_the_frames_of_one_caller_however_often_it_is_raised() -> None:
    def output(_: Any) -> None:
        raise ValueError("no room")

    lengths = set()
    async with AsyncWaitOperator(Instant(), output) as operator:
        await operator.process(1)
        await settle()
        for _ in range(9):
            with pytest.raises(ValueError, match="no room") as raised:
                await operator.process(2)
            frames = traceback.extract_tb(raised.value.__traceback__)
            lengths.add(len(frames))
            assert frames[-1].name == "output"
    assert len(lengths) == 1


async def test_who_waits_for_a_place_may_be_cancelled_and_come_again() -> None:
    service = Service()
    async with opened(service, capacity=1) as bench:
        await bench.feed(1)
        async with bench.feeding(2):
            pass
        await service.answer(1)
        await bench.feed(3)
        await service.answer(3)

        assert bench.shown == [1, 3]
        assert service.called == [1, 3]


async def test_an_element_whose_feeder_is_cancelled_is_wholly_in_or_wholly_out() -> None:
    service = Service()
    async with opened(service, capacity=1) as bench:
        await bench.feed(1)
        feeding = asyncio.create_task(bench.operator.process(2))
        await settle()
        service.calls[0].reply.set_result([1])
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
        await settle()

        accepted = bench.operator.statistics().accepted
        assert service.called == [1, 2][:accepted]
        assert bench.in_flight == accepted - 1


async def test_operators_share_nothing() -> None:
    first, second = Service(), Service()
    async with opened(first) as one, opened(second) as other:
        await one.feed(1)
        await other.feed(2)
        await one.operator.close()
        await second.answer(2)

        assert (one.shown, other.shown) == ([], [2])


async def test_statistics_count_what_has_happened() -> None:
    service = Service(fallback=lambda value: [value])
    async with opened(service, timeout=10) as bench:
        await bench.feed(1, 2, Watermark(5), 3)
        await service.answer(1, 3)
        before = bench.operator.statistics()
        await bench.clock.advance(10)
        after = bench.operator.statistics()

    assert (before.accepted, before.in_flight, before.calls, before.emitted, before.timeouts) == (3, 3, 3, 1, 0)
    assert (after.accepted, after.in_flight, after.calls, after.emitted, after.timeouts) == (3, 0, 3, 4, 1)


async def test_functions_that_return_at_once_need_no_second_turn_of_the_loop_each() -> None:
    """A thousand elements are through after few turns, not after a thousand."""
    async with opened(Instant(), mode="ordered", capacity=1000) as bench:
        for value in range(1000):
            await bench.operator.process(value)
        await settle()

        assert bench.shown == list(range(1000))


class Exits(AsyncFunction):
    """Ends the program in one of its methods."""

    def __init__(self, method: str) -> None:
        self.method = method

    def end_in(self, method: str) -> None:
        if self.method == method:
            raise SystemExit(3)

    async def open(self, runtime: Runtime) -> None:
        self.end_in("open")

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        self.end_in("async_invoke")
        return [value]

    async def close(self) -> None:
        self.end_in("close")


@pytest.mark.parametrize("method", ["open", "async_invoke", "close"])
@pytest.mark.parametrize("door", ["stream", "job"])
async def test_an_exit_in_a_function_is_an_error_that_names_it(door: str, method: str) -> None:
    with pytest.raises(KeyGroupsError, match="SystemExit: 3") as raised:
        if door == "job":
            await new_job(range(3), Exits(method), lambda values, epoch: None).run()
        else:
            _ = [output async for output in AsyncDataStream.ordered_wait(range(3), Exits(method))]
    told = "".join(traceback.format_exception(raised.value))
    assert "raise SystemExit(3)" in told
    assert (f"{method}() of Exits raised this" in told) is (method != "async_invoke")


async def test_a_drain_does_not_look_for_its_end_whenever_an_element_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, is_finished = 0, Parts.is_finished

    def looked(parts: Parts) -> bool:
        nonlocal looks
        looks += 1
        return is_finished(parts)

    monkeypatch.setattr(Parts, "is_finished", looked)
    service = Service()
    async with opened(service, capacity=100) as bench:
        await bench.feed(*range(100))
        draining = asyncio.ensure_future(bench.operator.finish())
        await settle()
        for call in service.calls:
            call.reply.set_result([call.value])
        await draining
    assert looks < 10
