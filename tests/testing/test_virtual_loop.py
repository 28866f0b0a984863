"""The virtual loop: time jumps, blocking work happens at once, and what never ends is an error."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Iterator

import pytest

from async_op import AsyncDataStream, Job
from async_op.clock import LoopClock
from async_op.testing import InsideEventLoop, Stalled, VirtualLoop, run, virtual_loop
from async_op.threads.own_thread import on_own_thread


def test_years_pass_at_once_and_timers_fire_in_their_order() -> None:
    async def main() -> list[tuple[int, float]]:
        seen = []

        async def note(days: int) -> None:
            await asyncio.sleep(86_400 * days)
            seen.append((days, asyncio.get_running_loop().time() / 86_400))

        await asyncio.gather(*(note(days) for days in (900, 1, 30)))
        return seen

    assert run(main()) == [(1, 1.0), (30, 30.0), (900, 900.0)]


def test_the_processing_time_is_that_of_the_loop() -> None:
    async def main() -> int:
        await asyncio.sleep(1.5)
        return LoopClock(asyncio.get_running_loop()).wall_time()

    assert run(main(), start=1000) == 2500


def test_a_loop_says_how_much_time_has_passed() -> None:
    async def main() -> str:
        await asyncio.sleep(1.5)
        return repr(asyncio.get_running_loop())

    assert run(main()) == "VirtualLoop(seconds=1.5, is_running=True)"


def test_what_blocks_runs_at_once_on_the_thread_of_the_loop() -> None:
    async def main() -> set[int]:
        default = await asyncio.get_running_loop().run_in_executor(None, threading.get_ident)
        return {default, await asyncio.to_thread(threading.get_ident), await on_own_thread(threading.get_ident)}

    assert run(main()) == {threading.get_ident()}


def test_what_blocks_may_run_a_loop_of_its_own() -> None:
    def ask(value: int) -> int:
        return asyncio.run(asyncio.sleep(0, -value))

    async def main() -> list[int]:
        return [output async for output in AsyncDataStream.ordered_wait([1, 2], ask)]

    assert run(main()) == [-1, -2]


def test_errors_of_what_blocks_come_back() -> None:
    with pytest.raises(ZeroDivisionError):
        run(asyncio.to_thread(divmod, 1, 0))


def test_an_iterable_that_may_block_is_read_at_once() -> None:
    readers = set()

    def numbers() -> Iterator[int]:
        for number in range(300):
            readers.add(threading.get_ident())
            yield number

    async def main() -> list[int]:
        return [output async for output in AsyncDataStream.ordered_wait(numbers(), lambda number: number)]

    assert run(main()) == list(range(300))
    assert readers == {threading.get_ident()}


def test_a_job_runs_in_virtual_time() -> None:
    async def slow(value: int) -> int:
        await asyncio.sleep(7)
        return -value

    outputs: dict[int, list[int]] = {}
    write = lambda values, epoch: outputs.update({epoch: list(values)})  # noqa: E731
    job = Job(
        [1, 2, 3], slow, write, snapshots="memory://virtual-job", job_id="job", snapshot_interval=5, retention=None
    )
    run(job.run())

    assert sorted(value for values in outputs.values() for value in values) == [-3, -2, -1]


@pytest.mark.filterwarnings("error")
def test_inside_of_an_event_loop_nothing_is_left_unawaited() -> None:
    inner = asyncio.sleep(1)

    async def main() -> None:
        with pytest.raises(InsideEventLoop):
            run(inner)

    asyncio.run(main())

    assert inspect.getcoroutinestate(inner) == inspect.CORO_CLOSED


def test_timers_that_never_end_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_loop, "_WAITS_MAX", 1000)

    async def main() -> None:
        while True:
            await asyncio.sleep(1)

    with pytest.raises(Stalled, match="only timers run, for ever"):
        run(main())


def test_a_loop_that_is_always_busy_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(virtual_loop, "_TURNS_MAX", 1000)
    loop = VirtualLoop()

    def again() -> None:
        loop.call_soon(again)

    again()
    with pytest.raises(Stalled, match="busy"):
        loop.run_ready()
    loop.close()
