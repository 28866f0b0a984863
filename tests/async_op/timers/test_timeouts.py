"""The time budget of an element: one clock for all attempts, one timer for all elements."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from async_op import AsyncFunction, AsyncTimeoutError, InvocationContext, Record, Watermark
from keygroups import ValueState
from tests.async_op.kit import BOTH, Service, commit, opened, settle

COUNT = ValueState("count", default=0)


@pytest.mark.behaviour("a timeout asks the function, and fails the job by default")
@BOTH
async def test_an_element_without_a_result_in_time_fails_the_operator(mode: str) -> None:
    service = Service()
    async with opened(service, mode=mode, timeout=10) as bench:
        await bench.feed("slow")
        await bench.clock.advance(5)
        await bench.feed("quick")
        await service.answer("quick")
        await bench.clock.advance(5)

        with pytest.raises(AsyncTimeoutError, match="no result within 10 s for 'slow'") as raised:
            await bench.operator.finish()
        assert (raised.value.element, raised.value.timeout) == ("'slow'", 10)
        assert service.timed_out == ["slow"]


async def test_an_element_that_fails_by_timeout_lets_no_later_one_pass_in_order() -> None:
    service = Service()
    async with opened(service, mode="ordered", timeout=10) as bench:
        await bench.feed("slow", "quick")
        await service.answer("quick")
        await bench.clock.advance(10)

        assert bench.shown == []


@pytest.mark.behaviour("a timeout asks the function, and fails the job by default")
@BOTH
async def test_timeout_may_give_a_fallback(mode: str) -> None:
    service = Service(fallback=lambda value: [3 * value])
    async with opened(service, mode=mode, timeout=10) as bench:
        await bench.feed(Record(1, 5))
        await bench.clock.advance(5)
        await bench.feed(Record(2, 6))
        await bench.clock.advance(5)
        await service.answer(2, outputs=[4])

        assert bench.outputs == [Record(3, 5), Record(4, 6)]
        assert service.timed_out == [1]
        assert bench.operator.statistics().timeouts == 1


@BOTH
async def test_a_fallback_may_be_empty(mode: str) -> None:
    async with opened(Service(fallback=lambda _: []), mode=mode, timeout=1) as bench:
        await bench.feed("slow", Watermark(3))
        await bench.clock.advance(1)

        assert bench.shown == [Watermark(3)]
        await bench.operator.finish()


@pytest.mark.behaviour("a function that never completes is ended by its timeout, and close returns")
@BOTH
async def test_a_call_that_never_ends_is_cancelled_by_its_timeout_and_close_returns(mode: str) -> None:
    service = Service()
    async with opened(service, mode=mode, timeout=10) as bench:
        await bench.feed("stuck")
        await bench.clock.advance(10)

        assert service.calls[0].cancelled
        assert service.running == []


@pytest.mark.behaviour("one timer serves all elements, and may fire once in vain after the last")
async def test_the_clock_of_an_element_starts_when_it_is_accepted() -> None:
    service = Service(fallback=lambda value: [value])
    async with opened(service, capacity=1, timeout=10) as bench:
        await bench.feed("first")
        async with bench.feeding("second") as feeding:
            await bench.clock.advance(9)
            await service.answer("first")
            await feeding

        assert service.calls[1].ctx.remaining == 10
        await bench.clock.advance(9)
        assert service.timed_out == []
        await bench.clock.advance(1)
        assert service.timed_out == ["second"]


async def test_a_completed_element_does_not_time_out() -> None:
    service = Service()
    async with opened(service, timeout=10) as bench:
        await bench.feed("quick")
        await bench.clock.advance(9.999)
        await service.answer("quick")
        await bench.clock.advance(100)

        assert (bench.shown, service.timed_out) == (["quick"], [])
        await bench.operator.finish()


async def test_an_element_that_waits_to_leave_does_not_time_out() -> None:
    service = Service(fallback=lambda value: [f"late {value}"])
    async with opened(service, mode="ordered", timeout=10) as bench:
        await bench.feed("head", "quick")
        await service.answer("quick")
        await bench.clock.advance(10)

        assert (bench.shown, service.timed_out) == (["late head", "quick"], ["head"])


@pytest.mark.behaviour("a timer that fires after the completion does nothing")
async def test_a_timer_that_fires_after_the_result_finds_nothing_to_do() -> None:
    """The result is there, but the loop reaches the timer before the task that waits for the result."""
    service = Service(fallback=lambda _: ["fallback"])
    async with opened(service, timeout=10) as bench:
        await bench.feed("close")
        await service.answer("close")
        bench.clock.jump(11)
        await bench.clock.advance(0)

        assert (bench.shown, service.timed_out) == (["close"], [])


@pytest.mark.behaviour("a timer that fires after the completion does nothing")
async def test_a_result_and_the_timeout_at_the_same_moment_give_one_output() -> None:
    service = Service(fallback=lambda value: [f"late {value}"])
    async with opened(service, timeout=10) as bench:
        await bench.feed("close")
        service.calls[0].reply.set_result(["in time"])
        bench.clock.jump(10)
        await bench.clock.advance(0)

        assert len(bench.shown) == 1
        assert bench.in_flight == 0
        await bench.operator.finish()


@pytest.mark.behaviour("one timer serves all elements, and may fire once in vain after the last")
async def test_one_timer_serves_all_elements_and_none_is_left_after_close() -> None:
    service = Service(fallback=lambda value: [value])
    async with opened(service, timeout=10) as bench:
        for value in range(20):
            await bench.feed(value)
            await bench.clock.advance(0.1)
        assert bench.clock.timers == 1

        await service.answer(*range(20))
        assert bench.clock.timers <= 1

        await bench.clock.advance(10)
        assert (bench.clock.timers, service.timed_out) == (0, [])

        await bench.feed("again")
        assert bench.clock.timers == 1
    assert bench.clock.timers == 0


@pytest.mark.behaviour("a timeout of None means none; zero or less is refused")
async def test_without_a_timeout_there_is_no_timer() -> None:
    async with opened(Service()) as bench:
        await bench.feed(1)

        assert bench.clock.timers == 0


@pytest.mark.behaviour("one timer serves all elements, and may fire once in vain after the last")
async def test_elements_time_out_one_by_one_each_at_its_own_time() -> None:
    service = Service(fallback=lambda value: [value])
    async with opened(service, timeout=10) as bench:
        for value in range(4):
            await bench.feed(value)
            await bench.clock.advance(1)
        await service.answer(1)

        assert service.timed_out == []
        for expected in ([0], [0], [0, 2], [0, 2, 3]):
            await bench.clock.advance(6 if expected == [0] and not service.timed_out else 1)
            assert service.timed_out == expected


@pytest.mark.behaviour("what comes after a timeout or a first completion is ignored")
async def test_a_result_that_comes_after_the_timeout_is_ignored() -> None:
    service = Service(fallback=lambda value: [f"late {value}"], stubborn=True)
    async with opened(service, timeout=10) as bench:
        await bench.feed("slow")
        await bench.clock.advance(10)
        assert bench.shown == ["late slow"]

        await service.answer("slow", outputs=["too late"])
        assert bench.shown == ["late slow"]
        assert bench.operator.statistics().late_results == 1


async def test_late_results_and_errors_are_counted_and_cancelled_calls_are_not() -> None:
    patient = Service(fallback=lambda value: [], stubborn=True)
    async with opened(patient, timeout=10) as bench:
        await bench.feed(*range(5))
        await bench.clock.advance(10)
        await patient.answer(0, 1)
        await patient.fail(2, ValueError())
        await patient.fail(3, ValueError())
        assert bench.operator.statistics().late_results == 4

    async with opened(Service(fallback=lambda value: []), timeout=10) as bench:
        await bench.feed("cancelled")
        await bench.clock.advance(10)
        assert bench.operator.statistics().late_results == 0


@pytest.mark.behaviour("what comes after a timeout or a first completion is ignored")
async def test_an_error_that_comes_after_the_timeout_is_ignored() -> None:
    service = Service(fallback=lambda value: [f"late {value}"], stubborn=True)
    async with opened(service, timeout=10) as bench:
        await bench.feed("slow")
        await bench.clock.advance(10)
        await service.fail("slow", ValueError("too late"))

        await bench.feed("next")
        await service.answer("next")
        assert bench.shown == ["late slow", "next"]
        await bench.operator.finish()


async def test_a_timed_out_call_that_continues_does_not_take_a_place() -> None:
    service = Service(fallback=lambda value: [f"late {value}"], stubborn=True)
    async with opened(service, timeout=10, capacity=1) as bench:
        await bench.feed("slow")
        await bench.clock.advance(10)
        await bench.feed("next")

        assert service.running == ["slow", "next"]
        await service.answer("next", "slow")
        assert bench.shown == ["late slow", "next"]


async def test_the_place_of_a_timed_out_element_is_taken_by_the_next() -> None:
    service = Service(fallback=lambda value: [f"late {value}"])
    async with opened(service, timeout=10, capacity=1) as bench, bench.feeding(1, 2, 3):
        await bench.clock.advance(10)
        assert (bench.shown, service.running) == (["late 1"], [2])
        await service.answer(2)
        await bench.clock.advance(10)
        assert bench.shown == ["late 1", 2, "late 3"]


async def test_calls_that_were_timed_out_do_not_let_more_calls_run_at_once() -> None:
    async with opened(Service(), timeout=10) as bench:
        await bench.feed(*range(10))
        snapshot = await commit(await bench.operator.snapshot())

    service = Service(fallback=lambda value: [f"late {value}"])
    async with opened(service, timeout=10, capacity=2, restore=snapshot.restore(0)) as bench:
        await bench.clock.advance(10)
        assert len(bench.shown) == 10
        async with bench.feeding(*range(100, 110)):
            assert len(service.running) == 2


async def test_an_error_of_timeout_fails_the_operator() -> None:
    def fail(value: Any) -> list[Any]:
        raise LookupError(value)

    async with opened(Service(fallback=fail), timeout=10) as bench:
        await bench.feed("slow")
        await bench.clock.advance(10)

        with pytest.raises(Exception, match="LookupError"):
            await bench.operator.finish()


@pytest.mark.behaviour("a timeout() that neither returns nor fails keeps its place for ever")
async def test_a_fallback_that_never_comes_keeps_its_place_and_blocks_no_snapshot_nor_close() -> None:
    class Stuck(Service):
        async def timeout(self, value: Any, ctx: InvocationContext) -> list[Any]:
            self.timed_out.append(value)
            await asyncio.Event().wait()
            return []

    service = Stuck()
    async with opened(service, timeout=10, capacity=2) as bench:
        await bench.feed("stuck")
        await bench.clock.advance(10)
        await bench.clock.advance(1000)

        assert (service.timed_out, bench.in_flight) == (["stuck"], 1)
        assert await bench.queue() == ["stuck"]
        await bench.feed("next")
        await service.answer("next")
        assert bench.shown == ["next"]


async def test_the_writes_of_a_timed_out_call_are_forgotten_and_those_of_the_fallback_count() -> None:
    class Counting(AsyncFunction):
        states = (COUNT,)

        async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
            ctx.state(COUNT).update(1000)
            await asyncio.Event().wait()
            return []

        async def timeout(self, value: Any, ctx: InvocationContext) -> list[Any]:
            count = ctx.state(COUNT).value() + 1
            ctx.state(COUNT).update(count)
            return [count]

    async with opened(Counting(), timeout=10, key_by=str) as bench:
        for expected in (1, 2):
            await bench.feed("a")
            await bench.clock.advance(10)
            assert bench.shown[-1] == expected


async def test_an_element_that_waits_for_its_key_keeps_its_budget_running() -> None:
    """It is never called, for its time is over before its turn; its fallback comes in the order of the key."""

    class Serial(Service):
        states = (COUNT,)

    service = Serial(fallback=lambda value: [f"late {value[1]}"])
    async with opened(service, timeout=10, key_by=lambda value: value[0]) as bench:
        await bench.feed("a1")
        await bench.clock.advance(5)
        await bench.feed("a2", "b1")
        await bench.clock.advance(5)
        assert (bench.shown, service.running) == (["late 1"], ["b1", "a2"])

        await bench.clock.advance(5)
        assert bench.shown[1:] in (["late 2", "late 1"], ["late 1", "late 2"])


async def test_a_timeout_that_ends_while_an_element_waits_for_its_key_says_so() -> None:
    def fallback(value: str) -> list[str]:
        if value == "a2":
            raise AsyncTimeoutError(value, 10)
        return ["late"]

    service = Service(fallback=fallback)
    async with opened(service, timeout=10, mode="key_ordered", key_by=lambda value: value[0]) as bench:
        await bench.feed("a1", "a2")
        await bench.clock.advance(10)

        with pytest.raises(AsyncTimeoutError) as raised:
            await bench.operator.finish()
    notes = "\n".join(raised.value.__notes__)
    assert "before the first call for element" in notes
    assert notes.endswith("the timeout includes the wait for calls of elements with the same key")


async def test_many_elements_time_out_at_once() -> None:
    service = Service(fallback=lambda value: [value])
    async with opened(service, mode="ordered", timeout=10, capacity=300) as bench:
        await bench.feed(*range(300))
        await bench.clock.advance(10)
        for _ in range(20):
            await settle()

        assert bench.shown == list(range(300))


async def test_those_that_expire_together_get_their_fallbacks_in_the_order_in_which_they_came() -> None:
    service = Service(fallback=lambda value: [f"late {value}"])
    async with opened(service, timeout=10) as bench:
        await bench.feed("a", "b", "c")
        await bench.clock.advance(10)
        assert service.timed_out == ["a", "b", "c"]
