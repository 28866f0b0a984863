"""One life of the operators: from a restore to a crash, a lost commit or the end of the input."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from typing import TYPE_CHECKING, Any, NoReturn

from async_op import Watermark
from keygroups.state.timers import Timer
from snapshots import Claim, Snapshot, SnapshotStore, SubtaskSnapshot
from snapshots.lineage import lineage_of
from snapshots.testing import Crash
from tests.backends import ON_DISK
from tests.simulation.fed import (
    FedSubtask,
    firing_in,
    pending_records,
    places_of,
    records_of,
    tables_of,
)
from tests.simulation.histories import check_tables, numbers_of
from tests.simulation.wild import name_of
from tests.simulation.world.impatience import Impatient
from tests.simulation.world.oracle import Truth, attempt_of, in_flight_of
from tests.simulation.world.upkeep import Sleeper

if TYPE_CHECKING:
    from tests.simulation.world.world import World

STALL_SECONDS = 30.0


class Life:
    """The operators of one process, their coordinator, and what it commits."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.is_calm = world.is_calm
        self.draw = random.Random(f"{world.seed}/life/{number}")
        self.process = world.storage.process(frozenset() if self.is_calm else world.kinds, 0.7)
        self.store = SnapshotStore.on(self.process)
        self.claim: Claim | None = None
        self.pinned: int | None = None
        self.subtasks: list[FedSubtask] = []
        self.feeders: list[asyncio.Task[None]] = []

    async def run(self) -> bool:
        """Live, and tell whether the input has come to its end."""
        try:
            await self._begin()
            return await self._play()
        except Crash:
            self.world.storage.met["crash"] += 1
            return False
        except Exception as error:  # noqa: BLE001 - judged there
            self._excuse(error)
            return False
        finally:
            await self._end()

    async def _begin(self) -> None:
        world, draw = self.world, self.draw
        snapshot = self._newest()
        is_empty = snapshot is None or attempt_of(snapshot.manifest) is None
        if snapshot is not None:
            # Key groups are read when they are touched, and others may compact and expire the version meanwhile.
            self._pin(snapshot.version)
            world.groups, world.hash = snapshot.max_parallelism, snapshot.manifest.hash
        # Durable before the first call, so that it is the same after a crash before the first commit.
        world.call_as(lineage_of(self.store.folder, None if snapshot is None else snapshot.manifest))
        world.begin(Truth() if snapshot is None else world.oracle.truth_of(snapshot), is_restored=not is_empty)
        parallelism = draw.randint(1, min(4, world.groups))
        for index in range(parallelism):
            share = None if snapshot is None or is_empty else snapshot.restore(index, parallelism)
            backend: Any = ON_DISK if draw.random() < 0.15 else "memory"
            subtask = FedSubtask(world, index, parallelism, share, backend)
            self.subtasks.append(subtask)
            if "cancellation" in world.kinds:
                subtask.operator = Impatient(subtask.operator, draw, world.storage.met)  # type: ignore[assignment]
        for subtask in self.subtasks:
            await subtask.operator.open(subtask.restore, preload=draw.random() < 0.5)
        found = Counter(item for subtask in self.subtasks for item in subtask.function.found_seen)
        assert found == world.truth.seen, f"the subtasks have seen {found}, not {world.truth.seen}"
        for subtask in self.subtasks:
            assert tuple(subtask.function.found_marks) == world.truth.marks, "the marks are not those of the edits"
        world.check_heard()
        self.feeders += [asyncio.create_task(subtask.feed(parallelism, draw)) for subtask in self.subtasks]

    def _pin(self, version: int) -> None:
        self.world.restored_from = version
        if version not in self.world.oracle.pinned:
            self.world.clean.pin(version)
            self.world.oracle.pinned.add(version)
            self.pinned = version

    def _newest(self) -> Snapshot | None:
        world = self.world
        if self.draw.random() < 0.5:
            groups = None if self.store.newest_version() else world.groups
            self.claim = self.store.claim(parallelism=1, max_parallelism=groups)
            world.oracle.acknowledge(self.claim.snapshot)
            world.disturbances += 1
            return self.claim.snapshot
        return self.store.latest()

    async def _play(self) -> bool:
        world, draw = self.world, self.draw
        for _ in range(draw.randrange(1, 6)):
            await asyncio.sleep(draw.choice((0.0, 0.1, 1.0, 5.0)))
            self._check_fed()
            await self._commit()
            self._take_turns()
            if "neighbours" in world.kinds and draw.random() < 0.5:
                await world.neighbours.step()
        if not self.is_calm and draw.random() < 0.7:
            await asyncio.sleep(draw.random())
            return False
        await asyncio.gather(*self.feeders)
        await asyncio.sleep(draw.choice((0.0, 0.5, 5.0)))
        world.is_finishing = True
        await asyncio.gather(*[subtask.operator.finish() for subtask in self.subtasks])
        truth = await self._commit()
        return truth is not None and world.is_complete(truth)

    def _take_turns(self) -> None:
        """Let others do something to the snapshots, and look at what there is."""
        if self.is_calm:
            self.world.oracle.check()
            return
        for _ in range(self.draw.choice((0, 1, 1, 3))):
            self.world.step()

    def _check_fed(self) -> None:
        """Raise what a feeder has failed with."""
        for feeder in self.feeders:
            if feeder.done():
                feeder.result()
        self.world.check_heard()

    async def _commit(self) -> Truth | None:
        """Cut the subtasks, each at a moment of its own, and commit; None if that had no effect, as far as known."""
        world, draw = self.world, self.draw
        cuts = []
        for subtask in self.subtasks:
            if draw.random() < 0.2:
                await asyncio.sleep(0.2 * draw.random())
            cuts.append(await self._cut(subtask))
        truth = self._truth_of(cuts)
        attempt = world.begin_attempt(truth)
        try:
            pending = self.store.begin() if self.claim is None else self.claim.begin()
            handles = []
            for cut in cuts:
                handles.append(pending.write_subtask(cut))
                if "stall" in world.kinds and not self.is_calm and draw.random() < 0.1:
                    world.storage.met["stall"] += 1
                    await asyncio.sleep(STALL_SECONDS)
            if "pause" in world.kinds and not self.is_calm and draw.random() < 0.1:
                self._fall_asleep(Sleeper(pending, handles, attempt, world.storage.shared.now))
            snapshot = pending.commit(handles, source_position={"attempt": attempt})
        except Exception as error:
            world.refuse(attempt, error, self.process)
            if self.claim is not None or draw.random() < 0.5:
                raise
            return None
        world.oracle.acknowledge(snapshot)
        return truth

    async def _cut(self, subtask: FedSubtask) -> SubtaskSnapshot:
        """Cut a subtask, and check the cut before anybody else has a turn."""
        operator: Any = subtask.operator

        async def checked() -> SubtaskSnapshot:
            cut: SubtaskSnapshot = await operator.snapshot()
            self._check_cut(subtask, cut)
            return cut

        return await (operator.until_done(checked, "snapshot") if isinstance(operator, Impatient) else checked())

    def _fall_asleep(self, sleeper: Sleeper) -> NoReturn:
        """Be paused for so long that others take over."""
        self.world.upkeep.sleepers.append(sleeper)
        raise Crash

    def _check_cut(self, subtask: FedSubtask, cut: SubtaskSnapshot) -> None:
        world = self.world
        check_tables(world.seed, world.states, tables_of([cut]), firing_in(cut.in_flight), world.times())
        world.check_heard()
        assert cut.watermark == subtask.watermark, f"the watermark is {cut.watermark}, not {subtask.watermark}"
        assert cut.emitted == len(subtask.outputs), f"{cut.emitted} have left, not {len(subtask.outputs)}"
        function = subtask.function
        (seen,) = [[tuple(item) for item in state.items] for state in cut.operator_states if state.name == "seen"]
        expected = [*function.found_seen, *function.begun]
        assert seen == expected, f"seen were {seen}, not {expected}"
        for element in cut.in_flight:
            if not element.is_watermark and not element.completed:
                allowed = world.may_be_at(name_of(element.key), event_of(element))
                assert element.attempt in allowed, f"{element} is at its attempt {element.attempt}, not at {allowed}"

    def _truth_of(self, cuts: list[SubtaskSnapshot]) -> Truth:
        """Return what a snapshot of these cuts must hold, by what was there before and what was called for since."""
        base, tables = self.world.truth, tables_of(cuts)
        histories = {key: [list(event) for event in history] for key, history in tables["history"].items()}
        elements = [element for cut in cuts for element in cut.in_flight if not element.is_watermark]
        self._check_order(histories, pending_records(elements))
        left = [
            tuple(value)
            for subtask, cut in zip(self.subtasks, cuts, strict=True)
            for value in records_of(subtask.outputs[: cut.emitted])
        ]
        seen = base.seen + Counter(item for subtask in self.subtasks for item in subtask.function.begun)
        truth = Truth(
            histories=histories,
            notes={key: self.world.note(key, len(history)) for key, history in histories.items()},
            seen=self._seen_in(cuts),
            marks=base.marks,
            rules={"rule": self.world.seed},
            places=places_of(cuts),
            in_flight={(name_of(element.key), element.element_id): in_flight_of(element) for element in elements},
            accepted=self.world.accepted_by(histories, pending_records(elements)),
            attempts={
                (name_of(element.key), event_of(element)): element.attempt - 1
                for element in elements
                if not element.completed
            },
            outputs=(*base.outputs, *left),
        )
        assert truth.seen <= seen, "something was seen that nobody was called for"
        self._check_outputs(truth, histories)
        return truth

    def _seen_in(self, cuts: list[SubtaskSnapshot]) -> Counter[Any]:
        states = [state for cut in cuts for state in cut.operator_states if state.name == "seen"]
        return Counter(tuple(item) for state in states for item in state.items)  # type: ignore[call-overload]

    def _check_order(self, histories: dict[str, list[Any]], pending: set[int]) -> None:
        """Of each key, the history has the first records, and then come those in flight."""
        came: dict[str, list[int]] = {}
        for item in self.world.items:
            if not isinstance(item, Watermark):
                came.setdefault(item[1], []).append(item[0])
        for key, numbers in came.items():
            done = numbers_of(histories.get(key, []))
            after = [number for number in numbers if number in pending]
            assert [*done, *after] == numbers[: len(done) + len(after)], f"{key} has {done}, then {after}, of {numbers}"
            before = [list(event) for event in self.world.truth.histories.get(key, [])]
            assert histories.get(key, [])[: len(before)] == before, f"the history of {key} has changed since {before}"

    def _check_outputs(self, truth: Truth, histories: dict[str, list[Any]]) -> None:
        """Each event in a history has left, or waits to leave, once."""
        events = Counter((key, kind, number) for key, history in histories.items() for kind, number, _ in history)
        kept = [output for _, _, _, outputs in truth.in_flight.values() for output in outputs or ()]
        found = Counter(truth.outputs) + Counter(kept)
        assert found == events, f"the outputs are {found}, not {events}"

    async def _end(self) -> None:
        """Give everything up, as a process does when it dies."""
        for feeder in self.feeders:
            feeder.cancel()
        ends = await asyncio.gather(*self.feeders, return_exceptions=True)
        for subtask in self.subtasks:
            await subtask.operator.close()
        self.world.restored_from = None
        if self.pinned in self.world.oracle.pinned:
            self.world.oracle.pinned.discard(self.pinned)
            self.world.clean.unpin(self.pinned)
        self.world.check_heard()
        for error in ends:
            if isinstance(error, Exception):
                self._excuse(error)

    def _excuse(self, error: Exception) -> None:
        # An operator that reads from a storage may be where the process dies.
        if not isinstance(error.__cause__, Crash):
            self.world.excuse(error, self.process)


def event_of(element: Any) -> tuple[str, int]:
    """Return the event that an element is."""
    if isinstance(element.value, Timer):
        return ("event" if element.value.event_time else "processing", element.value.timestamp)
    return ("record", element.value[0])
