"""A job in virtual time: two steps, with cuts, rescales, stops and crashes at any moment, and what must come out."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any
from unittest import mock

from fsspec.implementations.memory import MemoryFileSystem

from async_op import AsyncFunction, ElementFailed, FixedDelayRetry, InvocationContext, Job, Step
from async_op.connectors import Sink, Source
from async_op.job.committing import Committer, Part
from async_op.job.counters import Counts
from async_op.job.outputs import EpochOutputs
from keygroups import ListState, ValueState
from snapshots import PendingSnapshot, SnapshotStore
from tests.async_op.job.virtual_job_loop import VirtualJobLoop

GROUPS = 8
KEYS = 5
COUNT = ValueState("count", default=0)
SEEN = ListState("seen")
HALF_A_PAIR = "\ud83d"
"""Half of a surrogate pair, which no snapshot and no key can hold."""
RUN_SECONDS = 2000
"""Far above the longest run, in virtual time."""


class Fault(Exception):
    """The storage has failed."""


class Poison(Exception):
    """A call has failed for good, and so has the job; the next run can make it."""


class Scenario:
    """What follows from a seed: the input, the steps, and what goes wrong."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        draw = self.random("scenario")
        self.keyed_first = draw.random() < 0.5
        self.first_mode = draw.choice(["ordered", "key_ordered"] if self.keyed_first else ["ordered", "unordered"])
        self.second_mode = draw.choice(["key_ordered", "ordered", "unordered"])
        self.capacities = [draw.choice([1, 3, 20]) for _ in range(2)]
        self.crashes = draw.choice([0, 0, 1, 3])
        self.has_faults = self.crashes > 0 and draw.random() < 0.5
        self.actions = draw.randrange(6)
        self.failures = self.random("failures").choice([0, 0, 1, 2])
        self.input: dict[str, list[tuple[str, int, int]]] = {}
        for number in range(draw.randint(1, 3)):
            keys = [key for key in range(KEYS) if key % 3 == number] or [number]
            self.input[f"p{number}"] = [
                (f"p{number}", place, draw.choice(keys)) for place in range(draw.choice([0, 5, 40]))
            ]

    def random(self, *names: object) -> random.Random:
        return random.Random(f"{self.seed} {names}")

    def outputs_of(self, value: tuple[str, int, int]) -> list[tuple[str, int, int, int]]:
        """What the first step makes of a value: none, one or two outputs of its key."""
        return [(*value, number) for number in range((value[1] + value[2]) % 3)]

    def expected_ids(self) -> list[str]:
        """The ids of all elements of the second step."""
        values = [value for values in self.input.values() for value in values if not self.is_bad(value)]
        return [
            f"seed-{self.seed}/second/{one[0]}@{one[1] + 1}/{n}"
            for one in values
            for n in range(len(self.outputs_of(one)))
        ]

    def is_bad(self, value: tuple[str, int, int]) -> bool:
        """Whether the first step cannot do anything with a value."""
        return value[1] % 7 == 6

    def badness(self, value: tuple[str, int, int]) -> str:
        """What is wrong with a bad value: its call fails, its output cannot be stored, or it has no usable key."""
        return ("call", "output", "key")[value[1] // 7 % 3]

    def key_of(self, value: Any) -> Any:
        """Return the key of a value; for some bad values a text that no key can be."""
        is_bad = self.is_bad(value) and self.badness(value) == "key"
        return HALF_A_PAIR if is_bad else value[2]

    def expected_letters(self) -> list[str]:
        """The ids of all dead letters."""
        bad = [one for values in self.input.values() for one in values if self.is_bad(one)]
        return [f"seed-{self.seed}/first/{one[0]}@{one[1] + 1}" for one in bad]


class World:
    """What outlives a crash of the job."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.draw = scenario.random("world")
        self.finished: Counter[tuple[int, str]] = Counter()
        self.store = SnapshotStore(f"memory://job-{scenario.seed}", "job")
        self.epochs: dict[int, list[Any]] = {}
        self.letters: dict[int, list[Any]] = {}
        self.writes: Counter[int] = Counter()
        self.crashes = self.failures = 0
        self.draw_failures = scenario.random("calls that fail")
        self.loop = VirtualJobLoop(self._storage_seconds)
        self.trace: list[tuple[Any, ...]] = []

    def _storage_seconds(self) -> float:
        return self.draw.choice([0.0, 0.05, 1.0]) * self.draw.random()

    def note(self, *event: Any) -> None:
        """Add what has happened to the trace."""
        self.trace.append((self.loop.time(), *event))

    def has_poison(self) -> bool:
        """Whether a call fails for good, and the job with it."""
        return self.failures < self.scenario.failures and self.draw_failures.random() < 0.1

    def check(self, condition: object, problem: str) -> None:
        if not condition:
            raise AssertionError(f"seed {self.scenario.seed}: {problem}")


class Input(Source[Any]):
    bounded = True

    def __init__(self, world: World) -> None:
        self.world = world

    def partitions(self) -> list[str]:
        return list(self.world.scenario.input)

    async def read(self, partition: Any, position: Any) -> AsyncIterator[Any]:
        draw = self.world.draw
        for place, value in enumerate(self.world.scenario.input[partition][position or 0 :], (position or 0) + 1):
            if draw.random() < 0.3:
                await asyncio.sleep(draw.random() / 5)
            item = (value, 1000 * place, place)
            yield [item] if draw.random() < 0.5 else item


class Letters(Sink[Any]):
    def __init__(self, world: World) -> None:
        self.world = world

    async def write(self, values: Sequence[Any], epoch: int) -> None:
        self.world.note("dead letters", epoch, values)
        known = self.world.letters.setdefault(epoch, list(values))
        self.world.check(known == list(values), f"the dead letters of epoch {epoch} have changed")


class Output(Sink[Any]):
    def __init__(self, world: World) -> None:
        self.world = world

    async def write(self, values: Sequence[Any], epoch: int) -> None:
        world = self.world
        world.check((world.store.newest_version() or 0) >= epoch, f"epoch {epoch} was delivered before its commit")
        world.writes[epoch] += 1
        world.note("outputs", epoch, values)
        if world.draw.random() < 0.3:
            await asyncio.sleep(3 * world.draw.random())
        world.check(world.epochs.setdefault(epoch, list(values)) == list(values), f"epoch {epoch} has changed")
        world.note("delivered", epoch)


class Call(AsyncFunction[Any, Any]):
    """A call that takes a while, and sometimes fails at first."""

    def __init__(self, world: World, step: int) -> None:
        self.world = world
        self.step = step

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        draw = self.world.draw
        self.world.note("call", self.step, ctx.idempotency_key, ctx.attempt)
        await asyncio.sleep(draw.choice([0.0, 0.01, 0.1, 1.0]) * draw.random())
        if draw.random() < 0.05:
            raise OSError("try again")
        if self.step == 2 and self.world.has_poison():
            self.world.note("poison", ctx.idempotency_key)
            raise Poison
        self.world.note("result", self.step, ctx.idempotency_key)
        self.world.finished[self.step, ctx.idempotency_key] += 1
        if self.step == 1 and self.world.scenario.is_bad(tuple(value)):
            if self.world.scenario.badness(tuple(value)) == "output":
                return [HALF_A_PAIR]
            raise ValueError("of no use")
        return self.outputs(value, ctx)

    def outputs(self, value: Any, ctx: InvocationContext) -> list[Any]:
        return list(self.world.scenario.outputs_of(tuple(value)))


class Counting(Call):
    states = (COUNT, SEEN)

    def outputs(self, value: Any, ctx: InvocationContext) -> list[Any]:
        count, seen = ctx.state(COUNT), ctx.state(SEEN)
        count.update(count.value() + 1)
        seen.add(ctx.idempotency_key)
        return [(ctx.key, count.value(), len(seen.get()), ctx.idempotency_key)]


def simulate(seed: int) -> World:
    """Run a scenario to its end; raises what goes wrong."""
    scenario = Scenario(seed)
    world = World(scenario)
    loop = world.loop
    errors: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    try:
        loop.run_until_complete(_Simulation(world).go())
        world.check(not errors, f"the loop heard of {errors}")
    finally:
        loop.close()
        MemoryFileSystem.store.clear()
    return world


def _content(part: Part) -> tuple[Any, ...]:
    """Return what is in a part without any state, but for names that are made up."""
    name, cut = part
    in_flight = [(one.element_id or one.timestamp, one.outputs) for one in cut.in_flight]
    return name, cut.subtask_index, cut.operator_states, in_flight


class _Simulation:
    def __init__(self, world: World) -> None:
        self.world = world
        self.scenario = world.scenario
        self.store = world.store

    async def go(self) -> None:
        for _ in range(50):
            job = self._new_job()
            if await self._run(job):
                break
        else:
            raise AssertionError(f"seed {self.scenario.seed}: the job never ends")
        self._check_outputs()
        self._check_counters()

    def _new_job(self) -> Job:
        scenario, draw = self.scenario, self.world.draw
        if self.store.newest_version() and draw.random() < 0.2:
            self.store.repartition(draw.randint(1, 3))
        retry = FixedDelayRetry(20, 0.01, retry_on=OSError)
        first: dict[str, Any] = {"key_by": scenario.key_of} if scenario.keyed_first else {}
        steps = [
            Step(
                Call(self.world, 1),
                "first",
                mode=scenario.first_mode,
                capacity=scenario.capacities[0],
                retry=retry,
                on_error="dead_letter",
                **first,
            ),  # type: ignore[arg-type]
            Step(
                Counting(self.world, 2),
                "second",
                key_by=lambda value: value[2],
                mode=scenario.second_mode,  # type: ignore[arg-type]
                capacity=scenario.capacities[1],
                retry=retry,
            ),
        ]
        return Job(
            Input(self.world),
            steps,
            Output(self.world),
            snapshots=f"memory://job-{scenario.seed}",
            job_id="job",
            idempotency_namespace=f"seed-{scenario.seed}",
            max_parallelism=GROUPS,
            parallelism=None,
            snapshot_interval=draw.choice([0.1, 1.0, 100.0]),
            watermark_delay=draw.choice([None, 1.0]),
            dead_letters=Letters(self.world),
            retention=None,
        )

    async def _run(self, job: Job) -> bool:
        """Run the job with what happens to it; returns whether it has come to its end."""
        draw, scenario = self.world.draw, self.scenario
        is_crash = self.world.crashes < scenario.crashes
        fault = draw.choice([None, "before", "after"]) if is_crash and scenario.has_faults else None
        with mock.patch.object(Committer, "commit", self._commit(fault, draw.randint(1, 4))):
            task = asyncio.create_task(job.run())
            is_stopped = False
            for _ in range(scenario.actions):
                await asyncio.wait({task}, timeout=draw.choice([0.0, 0.1, 1.0]) * draw.random())
                if task.done() or is_stopped:
                    break
                is_stopped = await self._act(job)
            if is_crash and not is_stopped:
                await asyncio.wait({task}, timeout=draw.choice([0.1, 1.0, 5.0]) * draw.random())
                if not task.done():
                    task.cancel()
            _, late = await asyncio.wait({task}, timeout=RUN_SECONDS)
            if late:
                task.cancel()
                await asyncio.wait(late)
            self.world.check(not late, "a run never ends")
        left = asyncio.all_tasks() - {asyncio.current_task()}
        self.world.check(not left, f"tasks are left: {left}")
        error = None if task.cancelled() else task.exception()
        if isinstance(error, ElementFailed) and error.__context__ is None:
            self.world.note("failure")
            self.world.failures += 1
            return False
        if task.cancelled() or isinstance(error, Fault | ElementFailed):
            self.world.note("crash")
            self.world.crashes += 1
            return False
        task.result()
        return not is_stopped

    def _commit(self, fault: str | None, at: int) -> Any:
        """Return a commit that is noted and fails once, before or after it has taken effect."""
        commit, commits = Committer.commit, itertools.count(1)

        def run(
            committer: Committer, pending: PendingSnapshot, parts: Sequence[Part], outputs: EpochOutputs, counts: Counts
        ) -> Any:
            fails = fault if next(commits) == at else None
            self.world.note("commit", fails, pending.version, *map(_content, parts))
            if fails == "before":
                raise Fault
            epoch = commit(committer, pending, parts, outputs, counts)
            if fails == "after":
                raise Fault
            return epoch

        return run

    async def _act(self, job: Job) -> bool:
        """Do something to the job; returns whether that stops it."""
        draw = self.world.draw
        action = draw.choice(["snapshot", "snapshot", "rescale", "rescale", "rescale", "stop"])
        self.world.note(action)
        if action == "rescale":
            job.rescale(draw.randint(1, 3))
        elif action == "stop":
            job.stop(drain=draw.random() < 0.5)
            return True
        elif job.progress().state == "running":
            with suppress(Exception):  # what fails the job comes out of `run`
                await job.snapshot()
        return False

    def _check_outputs(self) -> None:
        world = self.world
        values = [value for epoch in sorted(world.epochs) for value in world.epochs[epoch]]
        ids = [value[3] for value in values]
        world.check(sorted(ids) == sorted(self.scenario.expected_ids()), "outputs are missing, or came twice")
        counts = defaultdict(list)
        for key, count, seen, _ in values:
            counts[key].append(count)
            world.check(count == seen, "two states of a key disagree")
        for key, found in counts.items():
            world.check(sorted(found) == list(range(1, len(found) + 1)), f"the state of {key} is wrong: {found}")
            is_ordered = self.scenario.second_mode != "unordered"
            world.check(not is_ordered or found == sorted(found), f"outputs of {key} are out of order: {found}")
        self._check_order(values)
        stored = self.store.load().to_arrow("second.count")
        world.check(stored.num_rows == len(counts), "the last snapshot has other keys")
        letters = [letter["idempotency_key"] for found in world.letters.values() for letter in found]
        world.check(
            sorted(letters) == sorted(self.scenario.expected_letters()), "dead letters are missing, or came twice"
        )
        for epoch, times in world.writes.items():
            world.check(times <= 1 + world.crashes, f"epoch {epoch} was delivered {times} times")
        for call, times in world.finished.items():
            world.check(times <= 1 + world.crashes, f"call {call} was made {times} times, with {world.crashes} crashes")

    def _check_counters(self) -> None:
        """What the cuts have counted together is what has happened; what a crash has undone was not counted."""
        world, counted = self.world, Counter[str]()
        for version in self.store.versions():
            counted.update(self.store.load(version).manifest.metrics)
        rows, letters, values = (
            sum(map(len, found.values())) for found in (self.scenario.input, world.letters, world.epochs)
        )
        world.check(counted["rows"] == rows, f"{counted['rows']} rows were counted")
        world.check(counted["outputs"] == values + letters, f"{counted['outputs']} outputs were counted")
        world.check(counted["dead_letters"] == letters, f"{counted['dead_letters']} dead letters were counted")
        calls = sum(kind == "call" for _, kind, *_ in world.trace)
        is_whole = counted["calls"] == calls if not world.crashes else counted["calls"] <= calls
        world.check(is_whole, f"{counted['calls']} of {calls} calls were counted, with {world.crashes} crashes")

    def _check_order(self, values: Sequence[Any]) -> None:
        """Where both steps have the same key, each key's elements keep their order, also over rescales and crashes."""
        if not self.scenario.keyed_first or self.scenario.second_mode == "unordered":
            return
        order = defaultdict(list)
        for key, _, _, name in values:
            place, number = name.partition("@")[2].split("/")
            order[key].append((int(place), int(number)))
        for key, found in order.items():
            self.world.check(found == sorted(found), f"the elements of {key} are out of order: {found}")
