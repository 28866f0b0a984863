"""Random runs with timers and values that expire: each key's state is that of a loop over its events.

The function keeps the history of its key as state, so every invocation, and every cut, is compared with a replay.
"""

from __future__ import annotations

import asyncio
import random
import sys
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from fsspec.implementations.memory import MemoryFileSystem

from async_op import (
    AsyncBatchFunction,
    AsyncFunction,
    AsyncWaitOperator,
    FixedDelayRetry,
    InvocationContext,
    Record,
    Watermark,
)
from async_op.testing import VirtualLoop
from keygroups import ListState, MapState, ValueState, key_group_of, subtask_of
from keygroups.state import Expiring
from keygroups.state.timers import EVENT_TIME, PROCESSING_TIME, Timer
from snapshots import SnapshotStore, SubtaskRestore, SubtaskSnapshot
from snapshots.format.in_flight_elements import RestoredQueue
from snapshots.upkeep.compaction import compact

HISTORY = ListState("history")
TTL_MS = 700
VALUE = ValueState("value", ttl=TTL_MS / 1000)
LIST = ListState("list", ttl=TTL_MS / 1000)
MAP = MapState("map", ttl=TTL_MS / 1000)

Event = tuple[str, int]
"""A record with its number, or a timer ("event" or "processing") with its timestamp."""


class Change(NamedTuple):
    """What an event does to the timers of its key."""

    registers: bool
    event_time: bool
    timestamp: int


@dataclass
class Model:
    """What a key has after some events, by a plain loop."""

    seed: int
    key: str
    timers: dict[bool, set[int]] = field(default_factory=lambda: {False: set(), True: set()})
    values: list[tuple[str, int]] = field(default_factory=list)

    def changes(self, event: Event, now: int) -> list[Change]:
        """Return what an event does: it follows from the event, the time and what there is."""
        draw = random.Random(f"{self.seed}/{self.key}/{event}")
        timers = {kind: set(timestamps) for kind, timestamps in self.timers.items()}
        changes = []
        for _ in range(draw.choice((0, 1, 1, 2, 4) if event[0] == "record" else (0, 0, 0, 1))):
            event_time = draw.random() < 0.5
            base = event[1] if event_time else now
            timestamp = base + draw.randrange(-5 if event[0] == "record" else 1, 30 if event_time else 900)
            registers = draw.random() < 0.7 or not timers[event_time]
            if not registers:
                timestamp = draw.choice(sorted(timers[event_time]))
            (timers[event_time].add if registers else timers[event_time].discard)(timestamp)
            changes.append(Change(registers, event_time, timestamp))
        return changes

    def begin(self, event: Event) -> None:
        """Take away the timer that an event is."""
        if event[0] != "record":
            self.timers[event[0] == "event"].remove(event[1])

    def apply(self, event: Event, now: int) -> None:
        """Do what an event does."""
        self.begin(event)
        for change in self.changes(event, now):
            timers = self.timers[change.event_time]
            (timers.add if change.registers else timers.discard)(change.timestamp)
        self.values.append((str(event), now + TTL_MS))

    def living(self, now: int) -> list[str]:
        return [value for value, expires_at in self.values if expires_at > now]


def replay(seed: int, key: str, history: Iterable[Sequence[Any]]) -> Model:
    model = Model(seed, key)
    for kind, number, now in history:
        model.apply((kind, number), now)
    return model


class _Alarms:
    """What all kinds of functions do."""

    states = (HISTORY, VALUE, LIST, MAP)

    def __init__(self, run: Run) -> None:
        self.run = run

    async def handle(self, event: Event, ctx: InvocationContext) -> list[Any]:
        seed, key = self.run.seed, ctx.key
        assert isinstance(key, str)
        now = ctx.timers.processing_time
        model = replay(seed, key, ctx.state(HISTORY).get())
        is_timer = event[0] != "record"
        if is_timer:
            assert event[1] in model.timers[event[0] == "event"], f"{event} fires, which is none of {model.timers}"
            earlier = [other for other in model.timers[event[0] == "event"] if other < event[1]]
            assert not earlier, f"{event} fires before {earlier}"
            assert event[0] == "event" or event[1] <= now, f"{event} fires at {now}"
            id_ = self.run.ids.setdefault((key, event), ctx.idempotency_key)
            assert id_ == ctx.idempotency_key, f"{event} has changed its id"
        model.begin(event)
        for event_time in (False, True):
            found = ctx.timers.timestamps(event_time)
            assert found == sorted(model.timers[event_time]), f"{key} has the timers {found}, not {model.timers}"
        self._compare(ctx, model.living(now))

        draw = random.Random(f"{seed}/{event}/{ctx.key}/{next(self.run.numbers)}")
        if draw.random() < 0.6:
            await asyncio.sleep(draw.choice((0.0, 0.2, 1.0)))
        if draw.random() < 0.1 and ctx.attempt < 3 and not self.run.is_finishing:
            raise OSError("the service has failed")
        now = ctx.timers.processing_time
        for change in model.changes(event, now):
            (ctx.timers.register if change.registers else ctx.timers.delete)(change.timestamp, change.event_time)
        self._compare(ctx, model.living(now))
        ctx.state(VALUE).update(str(event))
        ctx.state(LIST).add(str(event))
        ctx.state(MAP).put(str(event), str(event))
        ctx.state(HISTORY).add([*event, now])
        return [(ctx.key, *event)]

    def _compare(self, ctx: InvocationContext, living: list[str]) -> None:
        assert ctx.state(LIST).get() == living, f"{ctx.key} has {ctx.state(LIST).get()}, not {living}"
        assert sorted(ctx.state(MAP).values()) == sorted(set(living)), f"{ctx.key} has other entries than {living}"
        assert ctx.state(VALUE).value() == (living[-1] if living else None), f"{ctx.key} has another value"

    async def on_timer(self, timestamp: int, ctx: InvocationContext) -> list[Any]:
        assert ctx.timestamp == timestamp
        kind = "event" if ctx.idempotency_key.startswith("event") else "processing"
        return await self.handle((kind, timestamp), ctx)


class Alarms(_Alarms, AsyncFunction):
    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        return await self.handle(("record", value[0]), ctx)


class BatchAlarms(_Alarms, AsyncBatchFunction):
    max_batch_size = 3

    async def async_invoke_batch(self, values: Sequence[Any], ctxs: Sequence[InvocationContext]) -> list[Any]:
        calls = [self.handle(("record", value[0]), ctx) for value, ctx in zip(values, ctxs, strict=True)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(not isinstance(result, AssertionError) for result in results), results
        return results


class Subtask:
    """One operator, and what it has emitted."""

    def __init__(self, run: Run, index: int, parallelism: int, restore: SubtaskRestore | None) -> None:
        self.index, self.run = index, run
        self.restore = restore
        self.outputs: list[Any] = []
        self.committed = 0
        self.newest: int | None = None
        if restore is not None:
            queue = restore.queue()
            run.check_places(queue)
            watermarks = [element.timestamp for element in queue.elements if element.is_watermark]
            self.newest = (watermarks or [queue.watermark])[-1]
        self.operator = AsyncWaitOperator(
            (BatchAlarms if run.is_batch else Alarms)(run),
            self._take,
            mode=run.mode,  # type: ignore[arg-type]
            capacity=run.capacity,
            timeout=100.0,
            retry=FixedDelayRetry(4, 0.3),
            key_by=lambda value: value[1],
            parallelism=parallelism,
            subtask_index=index,
            max_parallelism=run.groups,
        )

    def _take(self, output: Record | Watermark) -> None:
        self.outputs.append(output)
        if isinstance(output, Watermark):
            parts: Any = self.operator._parts
            table = parts.scope.backend.tables[EVENT_TIME.name]
            kept = {key: set(times) for group in parts.runtime.key_groups for key, times in table.load(group).items()}
            late = [(key, timestamp) for key, timestamps in kept.items() for timestamp in timestamps]
            assert all(timestamp > output.timestamp for _, timestamp in late), f"{output} leaves before {sorted(late)}"

    async def feed(self, parallelism: int, draw: random.Random) -> None:
        for item in self.run.items:
            if isinstance(item, Watermark):
                if self.newest is None or item.timestamp > self.newest:
                    await self.operator.process_watermark(item.timestamp)
            elif item[0] not in self.run.accepted and self.run.owner(item[1], parallelism) == self.index:
                await self.operator.process(item, item[0])
            if draw.random() < 0.2:
                await asyncio.sleep(draw.random())


def timers_of(tables: Iterable[Any]) -> dict[Any, set[int]]:
    """Return the timers, by key, of groups as they are cut."""
    groups = [group.load() for table in tables for group in table.values()]
    return {key: set(timestamps) for group in groups for key, timestamps in group.items()}


class Place(NamedTuple):
    """Where an element stood: in which queue, at which place, behind which watermark."""

    subtask: int
    number: int
    watermark: int | None


def places_of(cuts: Iterable[SubtaskSnapshot]) -> dict[tuple[Any, str | None], Place]:
    """Return the places of all elements by key and id."""
    places = {}
    for cut in cuts:
        watermark = cut.watermark
        for number, element in enumerate(cut.in_flight):
            if element.is_watermark:
                watermark = element.timestamp
            else:
                places[element.key, element.element_id] = Place(cut.subtask_index, number, watermark)
    return places


class Run:
    """All restarts of one seed."""

    def __init__(self, seed: int) -> None:
        draw = random.Random(f"{seed}/alarms")
        self.seed = seed
        self.loop = VirtualLoop()
        self.mode = draw.choice(("ordered", "unordered", "key_ordered"))
        self.is_batch = draw.random() < 0.2
        self.capacity = draw.choice((1, 2, 3, 10, 100))
        self.groups = draw.choice((1, 2, 5, 16))
        keys = [f"k{number}" for number in range(draw.choice((1, 2, 5, 12)))]
        self.items: list[Any] = []
        for number in range(draw.randrange(5, 40)):
            self.items.append((number, draw.choice(keys)))
            if draw.random() < 0.2:
                self.items.append(Watermark(number))
        self.items.append(Watermark(10_000))
        self.store = SnapshotStore(f"memory://{uuid.uuid4().hex}", "alarms")
        self.ids: dict[tuple[str, Event], str] = {}
        self.numbers = iter(range(sys.maxsize))
        self.accepted: set[int] = set()
        self.outputs: list[Any] = []
        self.places: dict[tuple[Any, str | None], Place] = {}
        self.restarts = 0
        self.is_finishing = False

    def owner(self, key: str, parallelism: int) -> int:
        return subtask_of(key_group_of(key, self.groups), parallelism, self.groups)

    def check_places(self, queue: RestoredQueue) -> None:
        """Object where elements of one old subtask, or a watermark and what stood before it, have changed places."""
        watermark, last = queue.watermark, dict[int, int]()
        for element in queue.elements:
            if element.is_watermark:
                watermark = element.timestamp
                continue
            place = self.places[element.key, element.element_id]
            assert place.number > last.get(place.subtask, -1), f"{element} is restored out of order"
            last[place.subtask] = place.number
            is_before = watermark is None or (place.watermark is not None and watermark <= place.watermark)
            assert is_before, f"{element} is restored behind the watermark {watermark}, not {place.watermark}"

    async def go(self) -> None:
        while not await self._run_once():
            self.restarts += 1
            assert self.restarts < 20, "the run never ends"

    async def _run_once(self) -> bool:
        draw = random.Random(f"{self.seed}/run/{self.restarts}")
        parallelism = draw.randint(1, min(4, self.groups))
        snapshot = self.store.latest()
        if snapshot is not None and draw.random() < 0.2:
            snapshot = compact(self.store.folder, snapshot, self.loop.wall_time())
        shares = [None if snapshot is None else snapshot.restore(index, parallelism) for index in range(parallelism)]
        subtasks = [Subtask(self, index, parallelism, share) for index, share in enumerate(shares)]
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

    async def _snapshot(self, subtasks: list[Subtask]) -> dict[str, list[list[Any]]]:
        """Cut all subtasks, compare each with the replay of its histories, and commit."""
        cuts = [await subtask.operator.snapshot() for subtask in subtasks]
        histories: dict[str, list[list[Any]]] = {}
        for cut in cuts:
            histories |= self._check(cut)
        self.store.write(cuts)
        self.places = places_of(cuts)
        values = [element.value for cut in cuts for element in cut.in_flight if not element.completed]
        pending = {value[0] for value in values if isinstance(value, tuple) and not isinstance(value, Timer)}
        done = {number for history in histories.values() for kind, number, _ in history if kind == "record"}
        self.accepted = done | pending
        for subtask, cut in zip(subtasks, cuts, strict=True):
            self.outputs += subtask.outputs[subtask.committed : cut.emitted]
            subtask.committed = cut.emitted
        return histories

    def _check(self, cut: SubtaskSnapshot) -> dict[str, list[list[Any]]]:
        tables: dict[str, dict[Any, Any]] = {}
        for state in cut.states:
            groups = [group.load() for group in state.groups.values()]
            tables[state.descriptor.name] = {key: content for group in groups for key, content in group.items()}
        histories = {key: list(history) for key, history in tables["history"].items()}
        in_flight = {
            (element.key, element.value)
            for element in cut.in_flight
            if isinstance(element.value, Timer) and not element.completed
        }
        for key, history in histories.items():
            model = replay(self.seed, key, history)
            for state, event_time in ((PROCESSING_TIME, False), (EVENT_TIME, True)):
                kept = set(tables[state.name].get(key, ()))
                fired = {
                    timer.timestamp for other, timer in in_flight if other == key and timer.event_time == event_time
                }
                assert not kept & fired, f"{kept & fired} of {key} are in the queue and in the state"
                assert kept | fired == model.timers[event_time], f"{key} keeps {kept}, {fired}, not {model.timers}"
            held: list[Expiring] = list(tables["list"].get(key, ()))
            found = [value.value for value in held if value.expires_at > cut.wall_time]
            assert found == model.living(cut.wall_time), f"{key} keeps {found}, not {model.living(cut.wall_time)}"
        return histories

    def _check_end(self, histories: dict[str, list[list[Any]]], finished_at: int) -> None:
        events = Counter((key, kind, number) for key, history in histories.items() for kind, number, _ in history)
        left = Counter(output.value for output in self.outputs if isinstance(output, Record))
        assert left == events, f"the outputs are {left}, not {events}"
        numbers = [number for _, kind, number in events.elements() if kind == "record"]
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
        assert not errors, errors
    finally:
        run.loop.close()
        MemoryFileSystem.store.clear()
    return run
