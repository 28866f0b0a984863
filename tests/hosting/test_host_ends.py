"""A host in this loop, on virtual time: what it tells, its failures, and its end."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from async_op import ElementFailed, InvocationContext
from async_op.hosting import messages as say
from async_op.hosting.fencing import DRIVER, Fence
from async_op.hosting.host import Host
from async_op.hosting.host_settings import HostSettings
from async_op.hosting.lease import LEASE_SECONDS
from tests.hosting.virtual_host import (
    GENERATION,
    Calls,
    Kit,
    Run,
    hosted,
    outputs,
    restored,
)


def test_a_failure_between_two_epochs_is_kept_and_told() -> None:
    async def test(run: Run) -> None:
        await run.epoch(-10.0, timeout=1.0)
        await asyncio.sleep(100.0)
        assert isinstance((await run.status()).failure, ElementFailed)
        for attempt in (2, 3):
            reply = await run.hello(fence=Fence(run.version, attempt))
            assert isinstance(reply, say.Failed)
            assert isinstance(reply.error, ElementFailed)

    hosted(test)


def test_a_failure_of_what_is_nobody_s_is_not_told() -> None:
    async def test(run: Run) -> None:
        await run.hello(1.0)
        await run.feed(-10.0)
        run.host.gone(run.feeder)
        await asyncio.sleep(100.0)
        assert await run.hello(fence=Fence(0, 2)) == say.Refused("replace")

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
        fresh = Host(roomy, HostSettings(generation=GENERATION, subtask_index=0, restore=share))
        await fresh.open()
        again = Run(fresh)
        await again.hello()
        await again.settle()
        last = await again.cut()
        assert (outputs(last), last.snapshot.in_flight) == ([10.0, 11.0], ())
        assert 99.0 not in roomy.function.made
        await fresh.close()

    hosted(test, kit)


def test_a_part_that_is_not_written_leaves_the_host_dirty() -> None:
    async def test(run: Run) -> None:
        await run.hello()
        reply = await run.host.answer(run.feeder, say.Cut(1, target=OSError("full")))
        assert isinstance(reply, say.Failed)
        assert await run.host.answer(run.feeder, say.Cut(1)) == say.Refused("stale")
        assert await run.hello(fence=Fence(0, 2)) == say.Refused("replace")

    hosted(test)


def test_a_final_cut_begins_no_calls_and_the_host_goes_once_it_is_committed() -> None:
    kit = Kit(options={"capacity": 2})

    async def test(run: Run) -> None:
        await run.hello(end=say.EpochEnd(1.0, is_final=True))
        await run.feed(10.0, 10.0, 20.0)  # one waits for its key, one for room
        await run.settle()
        part = await run.cut()
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
        await run.hello(end=say.EpochEnd(is_final=True))
        await run.feed(1.0)
        await run.settle()
        part = await run.cut()
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


def test_the_oldest_call_is_reported() -> None:
    async def test(run: Run) -> None:
        await run.epoch(100.0, timeout=0.0)
        await asyncio.sleep(30.0)
        await run.epoch(timeout=0.0)
        assert run.metrics["oldest_call_seconds"] == pytest.approx(30.0, abs=1.0)
        await asyncio.sleep(100.0)
        await run.epoch(timeout=0.0)
        assert run.metrics["oldest_call_seconds"] == 0.0

    hosted(test)


def test_messages_of_another_generation_change_nothing() -> None:
    async def test(run: Run) -> None:
        for message in (
            say.Renew("another"),
            say.Committed("another", 1),
            say.Stop("another", Fence(9, DRIVER)),
        ):
            assert await run.host.answer("a stranger", message) == say.Refused("foreign")
        assert not run.host.ended.is_set()

    hosted(test)


def test_a_feeder_that_is_silent_gives_way_to_a_newer_one() -> None:
    async def test(run: Run) -> None:
        await run.hello()
        newer = replace(run.greeting(), fence=Fence(0, 2))
        assert await run.host.answer("second", newer) == say.Refused("busy")
        await asyncio.sleep(15.0)
        assert await run.host.answer("second", newer) == say.Refused("replace")

    hosted(test, patience_seconds=10.0)


def test_a_feeder_of_an_earlier_job_gives_way_at_once() -> None:
    async def test(run: Run) -> None:
        await run.hello()
        await run.feed(10.0)
        newer = replace(run.greeting(), fence=Fence(0, 2), job="another job")
        assert await run.host.answer("second", newer) == say.Refused("replace")
        assert run.host.ended.is_set(), "its calls must not go on beside those of the host that takes its place"

    hosted(test)


def test_the_signs_of_life_of_a_feeder_renew_the_lease_of_a_host_that_the_driver_does_not_know() -> None:
    async def test(run: Run) -> None:
        assert await run.hello() == say.Done()
        for _ in range(100):
            await asyncio.sleep(LEASE_SECONDS - 1.0)
            run.host.heard(run.feeder)
        assert not run.host.ended.is_set()

        await asyncio.sleep(LEASE_SECONDS)
        assert run.host.ended.is_set()
        run.host.heard(run.feeder)  # too late, and no error

    hosted(test, renews=False, patience_seconds=1e9)
