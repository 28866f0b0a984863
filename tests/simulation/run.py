"""Runs a scenario: subtasks in parallel, snapshots at any moment, crashes, restarts at any parallelism."""

from __future__ import annotations

import asyncio
import random
import sys
import uuid
from collections.abc import Sequence
from contextlib import nullcontext
from itertools import groupby

from async_op import AsyncTimeoutError, ElementFailed, Watermark
from async_op.testing import VirtualLoop
from keygroups import subtask_of
from snapshots import SnapshotStore
from tests.simulation.abandon import abandon
from tests.simulation.ledger import Committed, Ledger
from tests.simulation.scenario import Item, Scenario
from tests.simulation.subtask import SimulatedSubtask
from tests.simulation.virtual_threads import ThreadedLoop, Threads
from tests.snapshot_kit import forget_stores

_RESTARTS_MAX = 200
_LONGEST_CALL_SECONDS = 10.0


def simulate(scenario: Scenario) -> Ledger:
    """Run a scenario to its end; raises what goes wrong."""
    threads = Threads(scenario.random("threads"), lambda: loop.time()) if scenario.is_threaded else None
    loop = VirtualLoop() if threads is None else ThreadedLoop(threads)
    errors: list[dict[str, object]] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    if sys.version_info >= (3, 12) and scenario.seed % 2:
        loop.set_task_factory(asyncio.eager_task_factory)
    run = Run(scenario, loop, threads)
    try:
        with nullcontext() if threads is None else threads.installed():
            loop.run_until_complete(run.go())
        run.ledger.check(not errors, f"the loop heard of {errors}")
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - raised again, as what explains it
        # A broken promise explains what followed from it.
        raise next(iter(run.ledger.violations), error) from None
    finally:
        abandon(loop)
        forget_stores()
    return run.ledger


class Run:
    """All restarts of one scenario."""

    def __init__(self, scenario: Scenario, loop: VirtualLoop, threads: Threads | None) -> None:
        self.scenario = scenario
        self.ledger = Ledger(scenario, loop, threads)
        self.store = SnapshotStore(f"memory://{uuid.uuid4().hex}", "operator")

    async def go(self) -> None:
        """Start again and again until the input has come to its end."""
        while not await self._run_once():
            self.ledger.check(self.ledger.restarts < _RESTARTS_MAX, "the run never ends")
            self.ledger.begin_run()
        everything = set(self.ledger.items)
        self.ledger.check(self.ledger.committed.departed == everything, "something never left")
        dropped = self.ledger.committed.dropped
        self.ledger.check(self.scenario.on_error != "fail" or not dropped, f"{dropped} were dropped")

    async def _run_once(self) -> bool:
        draw = self.scenario.random("run", self.ledger.restarts)
        subtasks = self._start(draw)
        feeders: list[asyncio.Task[None]] = []
        try:
            for subtask in subtasks:
                await subtask.open()
            self._check_heard()
            self.ledger.check_restored([index for subtask in subtasks for index in subtask.restored])
            feeders += [asyncio.create_task(self._feed(subtask, len(subtasks))) for subtask in subtasks]
            return await self._play(subtasks, feeders, draw)
        except (ElementFailed, AsyncTimeoutError):
            self.ledger.check(self.scenario.on_error == "fail", "an element has failed the operator")
            return False
        finally:
            await self._stop(subtasks, feeders, draw)

    def _start(self, draw: random.Random) -> list[SimulatedSubtask]:
        parallelism = draw.randint(1, min(4, self.scenario.groups))
        snapshot = self.store.latest()
        if snapshot is not None and draw.random() < 0.2:
            snapshot = self.store.repartition(parallelism)
        shares = [None if snapshot is None else snapshot.restore(index, parallelism) for index in range(parallelism)]
        return [SimulatedSubtask(self.ledger, index, parallelism, share) for index, share in enumerate(shares)]

    async def _play(
        self, subtasks: list[SimulatedSubtask], feeders: list[asyncio.Task[None]], draw: random.Random
    ) -> bool:
        """Take snapshots until the input ends or the run crashes; tells whether it has ended."""
        crash = self.ledger.restarts < 3 and draw.random() < 0.7
        for _ in range(draw.randrange(4)):
            await self._wait(feeders, draw.choice((0.0, 0.1, 1.0, 3.0)))
            await self._snapshot(subtasks, draw)
        if crash:
            await self._wait(feeders, 2 * draw.random())
            return False
        await asyncio.gather(*feeders)
        self.ledger.finishing = True
        finishing = [asyncio.create_task(subtask.operator.finish()) for subtask in subtasks]
        feeders += finishing
        if draw.random() < 0.5:
            await self._wait(finishing, draw.random())
            await self._snapshot(subtasks, draw)
        await asyncio.gather(*finishing)
        await self._snapshot(subtasks, draw)
        watermarks = [item.timestamp for item in self.scenario.items if isinstance(item, Watermark)]
        for subtask in subtasks:
            self.ledger.check(subtask.watermark == (watermarks or [None])[-1], "the last watermark never left")
            counts = subtask.operator.statistics()
            self.ledger.check(counts.in_flight == 0, "something is in flight after the end")
            self.ledger.check(counts.awaited_outputs == 0, "an output is awaited after the end")
        return True

    async def _wait(self, tasks: Sequence[asyncio.Task[None]], seconds: float) -> None:
        """Let time pass; what a feeder raises comes out here."""
        until = asyncio.get_running_loop().time() + seconds
        while (left := until - asyncio.get_running_loop().time()) > 0:
            pending = [task for task in tasks if not task.done()]
            if not pending:
                await asyncio.sleep(left)
                break
            done, _ = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        self._check_heard()

    async def _feed(self, subtask: SimulatedSubtask, parallelism: int) -> None:
        draw = self.scenario.random("feed", self.ledger.restarts, subtask.index)
        due = [item for item in self.scenario.items if self._is_due(item, subtask, parallelism)]
        for is_watermark, run in groupby(due, lambda item: isinstance(item, Watermark)):
            if not is_watermark and draw.random() < 0.4:
                await subtask.feed_all([item for item in run if isinstance(item, Item)])
                continue
            for item in run:
                if draw.random() < 0.3:
                    await asyncio.sleep(draw.random())
                await subtask.feed(item)

    def _is_due(self, item: Item | Watermark, subtask: SimulatedSubtask, parallelism: int) -> bool:
        if isinstance(item, Watermark):
            return subtask.newest is None or item.timestamp > subtask.newest
        owner = subtask_of(item.key_group, parallelism, self.scenario.groups)
        return owner == subtask.index and item.index not in self.ledger.committed.accepted

    async def _snapshot(self, subtasks: list[SimulatedSubtask], draw: random.Random) -> None:
        """Cut every subtask at a moment of its own, and commit."""
        parts: dict[int, tuple[object, Committed]] = {}
        for subtask in draw.sample(subtasks, len(subtasks)):
            if draw.random() < 0.1:
                settled = await subtask.operator.settle(draw.random())
                counts = subtask.operator.statistics()
                self.ledger.check(settled == (not counts.in_flight + counts.awaited_outputs), "it settled, or did not")
            if draw.random() < 0.2:
                await asyncio.sleep(0.2 * draw.random())
            parts[subtask.index] = await subtask.cut()
            self._check_heard()
        if draw.random() < 0.9 or self.ledger.finishing:
            self.store.write([parts[index][0] for index in sorted(parts)])  # type: ignore[misc]
            self.ledger.commit([facts for _, facts in parts.values()])

    async def _stop(
        self, subtasks: list[SimulatedSubtask], feeders: list[asyncio.Task[None]], draw: random.Random
    ) -> None:
        """Give everything up, as a process does when it dies; nothing may stay behind."""
        self.ledger.stopping = True
        for feeder in feeders:
            feeder.cancel()
        await asyncio.gather(*feeders, return_exceptions=True)
        for subtask in subtasks:
            await subtask.operator.close()
            subtask.closed = True
        self.ledger.crashed = True
        for task in list(self.ledger.foreign):
            if draw.random() < 0.5:
                task.cancel()
        left = asyncio.all_tasks() - {asyncio.current_task()} - self.ledger.foreign
        self.ledger.check(self.scenario.stubborn or not left, f"tasks are left: {left}")
        await asyncio.sleep(_LONGEST_CALL_SECONDS)
        self._check_heard()
        left = asyncio.all_tasks() - {asyncio.current_task()} - self.ledger.foreign
        self.ledger.check(not left, f"tasks are left: {left}")

    def _check_heard(self) -> None:
        if self.ledger.violations:
            raise self.ledger.violations[0]
