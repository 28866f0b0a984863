"""A host in this loop, on virtual time: what it takes, keeps, cuts and tells."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import dataclass, field, replace
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest

from async_op import AsyncFunction, ElementFailed, InvocationContext
from async_op.elements import Element
from async_op.hosting import messages as say
from async_op.hosting.blueprint import CutPart
from async_op.hosting.host import Host, Residence
from async_op.hosting.operator import ResidentOperator
from keygroups import ValueState
from snapshots import InFlightElement
from snapshots.format.in_flight_elements import RestoredQueue
from tests.simulation.virtual_loop import VirtualClock, VirtualLoop

GENERATION = "run"
SEEN = ValueState("seen", default=0)


@dataclass
class Calls(AsyncFunction):
    """Waits for as long as a value says, in seconds; a negative one fails after that."""

    made: list[float] = field(default_factory=list)
    states = (SEEN,)

    async def async_invoke(self, value: float, ctx: InvocationContext) -> list[float]:
        self.made.append(value)
        await asyncio.sleep(abs(value))
        if value < 0:
            raise ValueError(value)
        ctx.state(SEEN).update(ctx.state(SEEN).value() + 1)
        return [value]


class Ticking(Calls):
    """Arms a timer that arms itself again, every second."""

    async def async_invoke(self, value: float, ctx: InvocationContext) -> list[float]:
        ctx.timers.register(ctx.timers.processing_time + 1000)
        return []

    async def on_timer(self, timestamp: int, ctx: InvocationContext) -> list[int]:
        ctx.timers.register(timestamp + 1000)
        return [timestamp]


class Alarmed(Calls):
    """Arms a timer of event time for each value."""

    async def async_invoke(self, value: float, ctx: InvocationContext) -> list[float]:
        await asyncio.sleep(abs(value))
        ctx.timers.register(int(value), event_time=True)
        return [value]

    async def on_timer(self, timestamp: int, ctx: InvocationContext) -> list[str]:
        return [f"timer {timestamp}"]


@dataclass
class Kit:
    """Makes one operator; parts are what was cut."""

    function: Calls = field(default_factory=Calls)
    options: dict[str, Any] = field(default_factory=dict)
    write_seconds: float = 0.0

    def operator(self, subtask_index: int, output: Callable[[Any], object]) -> ResidentOperator:
        loop: Any = asyncio.get_running_loop()
        options = {"key_by": abs, "max_parallelism": 4, "clock": VirtualClock(loop)} | self.options
        return ResidentOperator(self.function, output, **options)

    def decoder(self, epoch: Any) -> Callable[[Any], Iterable[Element]]:
        numbers = count()
        return lambda rows: [(row, None, f"{epoch}-{next(numbers)}") for row in rows]

    def pack(self, outputs: list[Any]) -> list[Any]:
        return outputs

    async def write(self, part: CutPart, target: Any) -> Any:
        await asyncio.sleep(self.write_seconds)
        if isinstance(target, Exception):
            raise target
        return part


@dataclass
class Run:
    """A host, and a task that feeds it."""

    host: Host
    version: int = 0
    cut_id: str | None = None
    feeder: str = "a task"

    async def hello(self, timeout: float | None = None, **changes: Any) -> say.Reply:
        named = say.Manifest(f"m{self.version}" if self.version else None, self.cut_id)
        hello = say.Hello(GENERATION, say.Fence(self.version, 1), named, "job", self.version, timeout)
        return await self.host.answer(self.feeder, replace(hello, **changes))

    async def feed(self, *values: float) -> say.Reply:
        return await self.host.answer(self.feeder, say.Feed(values))

    async def settle(self) -> bool:
        reply = await self.host.answer(self.feeder, say.Settle())
        assert isinstance(reply, say.Settled)
        return reply.nothing_left

    async def cut(self, **options: Any) -> CutPart:
        reply = await self.host.answer(self.feeder, say.Cut(self.version + 1, **options))
        assert isinstance(reply, say.Part), reply
        self.version += 1
        self.cut_id = reply.handle.cut_id
        self.metrics = reply.metrics
        part: CutPart = reply.handle
        return part

    async def epoch(self, *values: float, timeout: float | None = None) -> CutPart:
        assert await self.hello(timeout) == say.Done()
        await self.feed(*values)
        await self.settle()
        return await self.cut()

    async def status(self) -> say.Status:
        status = await self.host.answer("the driver", say.Poll())
        assert isinstance(status, say.Status)
        return status


def outputs(part: CutPart) -> list[Any]:
    return [output for run in part.runs for output in run]


def hosted(test: Callable[[Run], Coroutine[Any, Any, None]], kit: Kit | None = None, **residence: Any) -> None:
    """Run a test beside a host, on virtual time."""

    async def live() -> None:
        host = Host(kit or Kit(), Residence(generation=GENERATION, subtask_index=0, **residence))
        await host.open()
        renewing = asyncio.create_task(renew(host))
        try:
            await test(Run(host))
        finally:
            renewing.cancel()
            await host.close()

    async def renew(host: Host) -> None:
        while True:
            await host.answer("the driver", say.Renew(GENERATION))
            await asyncio.sleep(20.0)

    loop = VirtualLoop()
    try:
        loop.run_until_complete(live())
    finally:
        loop.close()


def test_results_between_two_epochs_belong_to_the_next_part() -> None:
    async def test(run: Run) -> None:
        first = await run.epoch(1.0, 5.0, timeout=2.0)
        await asyncio.sleep(10.0)
        assert (await run.status()).ready == 1
        second = await run.epoch(timeout=0.0)

        assert (outputs(first), outputs(second)) == ([1.0], [5.0])
        assert [element.value for element in first.snapshot.in_flight] == [5.0]
        assert second.snapshot.in_flight == ()
        assert run.metrics["calls"] == 0

    hosted(test)


def test_calls_go_on_while_a_part_is_written() -> None:
    async def test(run: Run) -> None:
        part = await run.epoch(1.0, timeout=0.0)
        assert outputs(part) == []
        assert (await run.status()).ready == 1

    hosted(test, Kit(write_seconds=30.0))


def test_what_has_no_room_by_the_barrier_timeout_waits_uncalled() -> None:
    kit = Kit(options={"capacity": 2, "timeout": 50.0})

    async def test(run: Run) -> None:
        first = await run.epoch(10.0, 20.0, 11.0, 12.0, timeout=5.0)
        assert kit.function.made == [10.0, 20.0]
        assert [(one.value, one.remaining) for one in first.snapshot.in_flight] == [
            (10.0, 45.0),
            (20.0, 45.0),
            (11.0, None),
            (12.0, None),
        ]
        assert [one.element_id for one in first.snapshot.in_flight] == ["0-0", "0-1", "0-2", "0-3"]
        assert run.metrics["waiting"] == 2
        second = await run.epoch(timeout=None)
        assert sorted([*outputs(second)]) == [10.0, 11.0, 12.0, 20.0]

    hosted(test, kit)


def test_feeding_more_than_fits_waits_no_longer_than_the_barrier_timeout() -> None:
    async def test(run: Run) -> None:
        loop = asyncio.get_running_loop()
        await run.epoch(*[100.0] * 3000, timeout=7.0)
        assert loop.time() == pytest.approx(7.0)

    hosted(test, Kit(options={"capacity": 1}))


def restored(*elements: InFlightElement) -> Any:
    class Share:
        snapshot_id = "m1"
        manifest = SimpleNamespace(operator_states=())

        def check_fits(self, *_: object) -> None:
            pass

        def states(self, descriptors: Iterable[Any], now: int | None = None) -> Any:
            return {one.name: {} for one in descriptors}

        def queue(self) -> RestoredQueue:
            return RestoredQueue(elements, None)

    return Share()


def stored(value: float, **fields: Any) -> InFlightElement:
    return InFlightElement(0, 0, value=value, key=abs(value), key_group=0, element_id=f"{value}", **fields)


def test_a_restore_respects_the_capacity() -> None:
    kit = Kit(options={"capacity": 2, "timeout": 50.0})

    async def test(run: Run) -> None:
        await asyncio.sleep(1.0)
        status = await run.status()
        assert (status.in_flight, status.waiting) == (2, 2)
        assert kit.function.made == [10.0, 20.0]
        await asyncio.sleep(40.0)
        assert kit.function.made == [10.0, 20.0, 11.0, 12.0]

    hosted(test, kit, restore=restored(*[stored(value) for value in (10.0, 20.0, 11.0, 12.0)]))


@pytest.mark.parametrize(
    "begun",
    [{"remaining": 3.0}, {"attempt": 2}, {"delay": 1.0}, {"completed": True, "outputs": ()}],
)
def test_what_has_begun_is_taken_over_beyond_the_capacity(begun: dict[str, Any]) -> None:
    kit = Kit(options={"capacity": 1, "timeout": 50.0})

    async def test(run: Run) -> None:
        assert (await run.status()).waiting == 1

    hosted(test, kit, restore=restored(stored(30.0), stored(20.0), stored(10.0, **begun), stored(40.0)))


def test_watermarks_never_wait_for_room_and_adjacent_ones_merge() -> None:
    async def test(run: Run) -> None:
        await run.hello(1.0)
        await run.feed(100.0, 100.0)
        for timestamp in range(1000):
            assert await run.host.answer(run.feeder, say.FeedWatermark(timestamp)) == say.Done()
        queue = (await run.cut()).snapshot.in_flight
        assert [one.timestamp for one in queue if one.is_watermark] == [999]

    hosted(test, Kit(options={"capacity": 1}))


def test_timers_that_a_watermark_makes_due_fire_behind_the_calls_before_it() -> None:
    async def test(run: Run) -> None:
        await run.hello(None)
        await run.feed(30.0)
        await run.host.answer(run.feeder, say.FeedWatermark(100))
        await run.feed(200.0)
        await run.settle()
        assert outputs(await run.cut()) == [30.0, "timer 30", 200.0]

    hosted(test, Kit(Alarmed(), {"capacity": 1}))


def test_clock_timers_fire_when_they_are_due_but_not_without_end() -> None:
    async def test(run: Run) -> None:
        await run.epoch(0.0)
        await asyncio.sleep(3.5)
        assert (await run.status()).ready == 3
        await asyncio.sleep(1000.0)
        assert (await run.status()).ready == 5
        assert (await run.status()).next_timer is not None
        assert len(outputs(await run.epoch(timeout=0.0))) > 5
        await asyncio.sleep(1000.0)
        assert (await run.status()).ready == 5

    hosted(test, Kit(Ticking()), outputs_max=5)


def test_nothing_that_waits_is_called_for_while_outputs_pile_up() -> None:
    kit = Kit(options={"capacity": 1})

    async def test(run: Run) -> None:
        await run.epoch(10.0, 11.0, 12.0, 13.0, timeout=1.0)
        await asyncio.sleep(1000.0)
        assert (await run.status()).ready == 2
        assert outputs(await run.epoch()) == [10.0, 11.0, 12.0, 13.0]

    hosted(test, kit, outputs_max=2)


def test_an_epoch_may_have_more_outputs_than_are_kept_between_two() -> None:
    async def test(run: Run) -> None:
        assert len(outputs(await run.epoch(*[0.0] * 500))) == 500

    hosted(test, outputs_max=5)


def test_a_failure_between_two_epochs_is_kept_and_told() -> None:
    async def test(run: Run) -> None:
        await run.epoch(-10.0, timeout=1.0)
        await asyncio.sleep(100.0)
        assert isinstance((await run.status()).failure, ElementFailed)
        for attempt in (2, 3):
            reply = await run.hello(fence=say.Fence(run.version, attempt))
            assert isinstance(reply, say.Failed)
            assert isinstance(reply.error, ElementFailed)

    hosted(test)


def test_a_failure_of_what_is_nobody_s_is_not_told() -> None:
    async def test(run: Run) -> None:
        await run.hello(1.0)
        await run.feed(-10.0)
        run.host.gone(run.feeder)
        await asyncio.sleep(100.0)
        assert await run.hello(fence=say.Fence(0, 2)) == say.Refused("replace")

    hosted(test)


def test_an_element_without_a_key_fails_the_epoch() -> None:
    async def test(run: Run) -> None:
        await run.hello()
        await run.feed(1.0)
        assert isinstance(await run.host.answer(run.feeder, say.Settle()), say.Failed)

    hosted(test, Kit(options={"key_by": lambda _: None}))


def test_what_waits_with_a_wrong_key_is_for_the_error_policy_to_judge_once_it_comes_in() -> None:
    def key_of(value: float) -> float | None:
        return value if value != 99.0 else None

    kit = Kit(options={"capacity": 1, "key_by": key_of, "on_error": "skip"})

    async def test(run: Run) -> None:
        part = await run.epoch(10.0, 99.0, 11.0, timeout=1.0)
        kept = [(one.value, one.key, one.key_group == -1) for one in part.snapshot.in_flight]
        assert kept == [(10.0, 10.0, False), (99.0, None, True), (11.0, 11.0, False)]
        assert outputs(await run.epoch()) == [10.0, 11.0]
        roomy = Kit(options=kit.options | {"capacity": 10})
        share = restored(*part.snapshot.in_flight)
        fresh = Host(roomy, Residence(generation=GENERATION, subtask_index=0, restore=share))
        await fresh.open()
        again = Run(fresh)
        await again.hello()
        assert await again.settle()
        assert outputs(await again.cut()) == [10.0, 11.0]
        assert 99.0 not in roomy.function.made
        await fresh.close()

    hosted(test, kit)


def test_a_part_that_is_not_written_leaves_the_host_dirty() -> None:
    async def test(run: Run) -> None:
        await run.hello()
        reply = await run.host.answer(run.feeder, say.Cut(1, target=OSError("full")))
        assert isinstance(reply, say.Failed)
        assert await run.host.answer(run.feeder, say.Cut(1)) == say.Refused("stale")
        assert await run.hello(fence=say.Fence(0, 2)) == say.Refused("replace")

    hosted(test)


def test_a_final_cut_begins_no_calls_and_the_host_goes_once_it_is_committed() -> None:
    kit = Kit(options={"capacity": 2})

    async def test(run: Run) -> None:
        await run.hello(1.0)
        await run.feed(10.0, 10.0, 20.0)  # one waits for its key, one for room
        await run.settle()
        part = await run.cut(final=True)
        await asyncio.sleep(100.0)
        assert kit.function.made == [10.0]
        assert [element.value for element in part.snapshot.in_flight] == [10.0, 10.0, 20.0]
        assert not run.host.ended.is_set()
        await run.host.answer("the driver", say.Committed(GENERATION, 7))
        assert not run.host.ended.is_set()
        await run.host.answer("the driver", say.Committed(GENERATION, 1))
        assert run.host.ended.is_set()

    hosted(test, kit)


def test_a_final_cut_does_not_wait_for_the_function_to_close() -> None:
    class Stuck(Calls):
        async def close(self) -> None:
            await asyncio.sleep(100.0)

    async def test(run: Run) -> None:
        await run.hello()
        await run.feed(1.0)
        await run.settle()
        part = await run.cut(final=True)
        assert outputs(part) == [1.0]
        assert asyncio.get_running_loop().time() < 10.0
        assert (await run.status()).failure is None
        assert await run.hello() == say.Refused("replace")

    hosted(test, Kit(Stuck()))


def test_every_cut_has_an_id_also_without_state() -> None:
    class Stateless(Calls):
        states = ()

        async def async_invoke(self, value: float, ctx: InvocationContext) -> list[float]:
            return [value]

    async def test(run: Run) -> None:
        first, second = await run.epoch(1.0), await run.epoch(2.0)
        assert first.cut_id
        assert second.cut_id != first.cut_id

    hosted(test, Kit(Stateless()))


def test_the_oldest_call_is_told() -> None:
    async def test(run: Run) -> None:
        await run.epoch(100.0, timeout=0.0)
        await asyncio.sleep(30.0)
        assert (await run.status()).oldest_call_seconds == pytest.approx(30.0, abs=1.0)
        await asyncio.sleep(100.0)
        assert (await run.status()).oldest_call_seconds is None

    hosted(test)


def test_outputs_can_be_taken_without_a_cut() -> None:
    async def test(run: Run) -> None:
        await run.hello()
        await run.feed(1.0, 2.0)
        await run.settle()
        assert await run.host.answer(run.feeder, say.Take()) == say.Outputs([[1.0, 2.0]])
        assert await run.host.answer(run.feeder, say.Take()) == say.Outputs([])

    hosted(test)


def test_messages_of_another_generation_change_nothing() -> None:
    async def test(run: Run) -> None:
        for message in (
            say.Renew("another"),
            say.Committed("another", 1),
            say.Stop("another", say.Fence(9, say.DRIVER)),
        ):
            assert await run.host.answer("a stranger", message) == say.Refused("foreign")
        assert not run.host.ended.is_set()

    hosted(test)


def test_a_feeder_that_is_silent_gives_way_to_a_newer_one() -> None:
    async def test(run: Run) -> None:
        await run.hello()
        assert await run.host.answer(
            "second", say.Hello(GENERATION, say.Fence(0, 2), say.Manifest(None, None), "")
        ) == (say.Refused("busy"))
        await asyncio.sleep(15.0)
        assert await run.host.answer(
            "second", say.Hello(GENERATION, say.Fence(0, 3), say.Manifest(None, None), "")
        ) == (say.Refused("replace"))

    hosted(test, patience_seconds=10.0)
