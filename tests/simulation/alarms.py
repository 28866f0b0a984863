"""Random runs with timers and values that expire: each key's state is that of a loop over its events.

The storage never fails here, and nothing else happens to the snapshots: see `world/` for that.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from typing import Any

from async_op import Watermark
from async_op.testing import VirtualLoop
from snapshots import SnapshotStore
from snapshots.upkeep.compaction import compact
from tests.simulation.abandon import abandon
from tests.simulation.fed import (
    FedRun,
    FedSubtask,
    firing_in,
    pending_records,
    places_of,
    records_of,
    tables_of,
)
from tests.simulation.histories import check_tables, numbers_of, replay
from tests.snapshot_kit import forget_stores


class Run(FedRun):
    """All restarts of one seed."""

    def __init__(self, seed: int) -> None:
        super().__init__(random.Random(f"{seed}/alarms"), seed, VirtualLoop())
        self.store = SnapshotStore(f"memory://{uuid.uuid4().hex}", "alarms")
        self.outputs: list[Any] = []
        self.restarts = 0

    async def go(self) -> None:
        while not await self._run_once():
            self.restarts += 1
            assert self.restarts < 20, "the run never ends"

    async def _run_once(self) -> bool:
        draw = random.Random(f"{self.seed}/run/{self.restarts}")
        parallelism = draw.randint(1, min(4, self.groups))
        self.begin_life()
        snapshot = self.store.latest()
        if snapshot is not None and draw.random() < 0.2:
            snapshot = compact(self.store.folder, snapshot, self.loop.wall_time())
        shares = [None if snapshot is None else snapshot.restore(index, parallelism) for index in range(parallelism)]
        subtasks = [FedSubtask(self, index, parallelism, share) for index, share in enumerate(shares)]
        feeders: list[asyncio.Task[None]] = []
        try:
            for subtask in subtasks:
                await subtask.operator.open(subtask.restore, preload=draw.random() < 0.5)
            feeders += [asyncio.create_task(subtask.feed(parallelism, draw)) for subtask in subtasks]
            for _ in range(draw.randrange(4)):
                await asyncio.sleep(draw.choice((0.0, 0.1, 1.0, 5.0)))
                await self._snapshot(subtasks)
            if self.restarts < 4 and draw.random() < 0.7:
                await asyncio.sleep(draw.random())
                return False
            await asyncio.gather(*feeders)
            await asyncio.sleep(draw.choice((0.0, 0.5, 5.0)))
            now = self.loop.wall_time()
            self.is_finishing = True
            await asyncio.gather(*[subtask.operator.finish() for subtask in subtasks])
            self._check_end(await self._snapshot(subtasks), now)
            return True
        finally:
            for feeder in feeders:
                feeder.cancel()
            failures = await asyncio.gather(*feeders, return_exceptions=True)
            for subtask in subtasks:
                await subtask.operator.close()
            for failure in failures:
                if isinstance(failure, Exception):
                    raise failure

    async def _snapshot(self, subtasks: list[FedSubtask]) -> dict[str, list[list[Any]]]:
        """Cut all subtasks, compare each with the replay of its histories, and commit."""
        cuts = []
        for subtask in subtasks:
            cuts.append(await subtask.operator.snapshot())
            tables, firing = tables_of(cuts[-1:]), firing_in(cuts[-1].in_flight)
            check_tables(self.seed, self.states, tables, firing, self.times())
        self.check_heard()
        histories: dict[str, list[list[Any]]] = tables_of(cuts)["history"]
        self.store.write(cuts)
        self.places = places_of(cuts)
        done = {number for history in histories.values() for number in numbers_of(history)}
        self.accepted = done | pending_records(element for cut in cuts for element in cut.in_flight)
        for subtask, cut in zip(subtasks, cuts, strict=True):
            self.outputs += subtask.outputs[subtask.committed : cut.emitted]
            subtask.committed = cut.emitted
        return histories

    def _check_end(self, histories: dict[str, list[list[Any]]], finished_at: int) -> None:
        events = Counter((key, kind, number) for key, history in histories.items() for kind, number, _ in history)
        left = Counter(records_of(self.outputs))
        assert left == events, f"the outputs are {left}, not {events}"
        numbers = [number for history in histories.values() for number in numbers_of(history)]
        records = [item[0] for item in self.items if not isinstance(item, Watermark)]
        assert sorted(numbers) == records, "a record is missing, or was applied twice"
        for key, history in histories.items():
            due = [timestamp for timestamp in replay(self.seed, key, history).timers[False] if timestamp <= finished_at]
            assert not due, f"{key} still has {due} at {finished_at}"


def simulate(seed: int) -> Run:
    """Run a seed to its end; raises what goes wrong."""
    run = Run(seed)
    errors: list[Any] = []
    run.loop.set_exception_handler(lambda _, context: errors.append(context))
    try:
        run.loop.run_until_complete(run.go())
        run.check_heard()
        assert not errors, errors
    finally:
        abandon(run.loop)
        forget_stores()
    return run
