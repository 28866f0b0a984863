"""A job in virtual time: two steps, with cuts, rescales, stops and crashes at any moment, and what must come out."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest import mock

from async_op import ElementFailed, FixedDelayRetry, Job, RestartPolicy, Step
from async_op.connectors import InputReplaced, SinkUnavailable, UnwritableValue
from async_op.connectors.files import access as files
from async_op.epochs.restarts import Restarts
from async_op.job.committing import Committer, Contribution, Part
from async_op.job.counters import Counts
from async_op.job.errors import ChildLost, StreamAlreadyRead
from async_op.job.outputs import EpochOutputs
from snapshots import PendingSnapshot, lineage
from snapshots.filesystem.memory import MemoryFolder
from snapshots.format.delivered import MARK
from snapshots.format.sink_notes import NOTES
from tests.async_op.job.simulation.children import simulated, without_checks
from tests.async_op.job.simulation.functions import functions_of
from tests.async_op.job.simulation.oracle import Oracle
from tests.async_op.job.simulation.scenario import GROUPS, scenarios_of
from tests.async_op.job.simulation.sinks import Letters, Output
from tests.async_op.job.simulation.sources import OnTheLoop, read_so_far, source_of
from tests.async_op.job.simulation.world import Fault, World
from tests.simulation.abandon import abandon
from tests.simulation.payments import Payments
from tests.snapshot_kit import forget_stores

RUN_SECONDS = 2000
"""Far above the longest run, in virtual time."""

_RUNS_MAX = 80


def simulate(seed: int, processes: int = 1) -> list[World]:
    """Run the jobs of a seed to their ends, one after the other; raises what goes wrong."""
    payments = Payments()
    worlds = [World(scenario, payments, processes) for scenario in scenarios_of(seed)]
    try:
        with ExitStack() as patches:
            patches.enter_context(mock.patch.object(files, "OwnThreads", OnTheLoop))
            patches.enter_context(mock.patch.object(lineage, "secrets", _Drawn(seed)))
            patches.enter_context(without_checks())
            for world in worlds:
                _simulate(world)
        payments.check(identity for world in worlds for identity in world.scenario.payments())
    finally:
        forget_stores()
    return worlds


class _Drawn:
    """Stands for the module `secrets`: a lineage follows from the seed."""

    def __init__(self, seed: int) -> None:
        self._draw = random.Random(f"{seed} lineages")

    def token_hex(self, count: int) -> str:
        return self._draw.randbytes(count).hex()


def _simulate(world: World) -> None:
    errors: list[dict[str, Any]] = []
    world.loop.set_exception_handler(lambda _, context: errors.append(context))
    try:
        world.loop.run_until_complete(_Simulation(world).go())
        world.check(not errors, f"the loop heard of {errors}")
    except AssertionError:
        world.payments.check_answers()  # another element's result explains what followed from it
        raise
    finally:
        abandon(world.loop)


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
        """Start again and again, until the job has read its whole input."""
        for _ in range(_RUNS_MAX):
            self._perhaps_replace()
            job = self._new_job()
            has_ended = await self._run(job)
            self.world.check(not (has_ended and self.world.is_replaced), "a replaced input was read in silence")
            if has_ended:
                break
            self.world.put_back()
        else:
            raise AssertionError(f"seed {self.scenario.seed}: the job never ends")
        Oracle(self.world).check()

    def _perhaps_replace(self) -> None:
        world = self.world
        read = read_so_far(world) if world.replacements < self.scenario.replacements else []
        if read and world.draw.random() < 0.5:
            world.replace(world.draw.choice(read))

    def _new_job(self) -> Job:
        scenario, world, draw = self.scenario, self.world, self.world.draw
        if self.store.newest_version() and draw.random() < 0.2:
            self.store.repartition(draw.randint(1, 3))
        retry = FixedDelayRetry(20, 0.01, retry_on=OSError)
        calling, counting = functions_of(world)
        first: dict[str, Any] = {"key_by": scenario.key_of} if scenario.keyed_first else {}
        steps = [
            Step(
                calling,
                "first",
                mode=scenario.first_mode,
                capacity=scenario.capacities[0],
                retry=retry,
                on_error="dead_letter",
                **first,
            ),  # type: ignore[arg-type]
            Step(
                counting,
                "second",
                key_by=lambda value: value[2],
                mode=scenario.second_mode,  # type: ignore[arg-type]
                capacity=scenario.capacities[1],
                retry=retry,
            ),
        ]
        return Job(
            source_of(world),
            steps,
            Output(world),
            snapshots=world.folder,
            job_id=world.job_id,
            idempotency_namespace=scenario.namespace,
            max_parallelism=GROUPS,
            parallelism=None,
            snapshot_interval=draw.choice([0.1, 1.0, 100.0]),
            watermark_delay=draw.choice([None, 1.0]),
            dead_letters=Letters(world),
            retention=None,
            restart=RestartPolicy(scenario.restarts, 0.5, 2.0, 5.0) if scenario.restarts else None,
            processes=world.processes if world.processes > 1 else None,
        )

    async def _run(self, job: Job) -> bool:
        """Run the job with what happens to it; returns whether it has come to its end."""
        draw, scenario, world = self.world.draw, self.scenario, self.world
        is_crash = world.crashes < scenario.crashes
        fault = draw.choice([None, "before", "after"]) if is_crash and scenario.has_faults else None
        world.is_fragile = is_fragile = is_crash and scenario.is_fragile and draw.random() < 0.7
        world.may_lose_a_child = world.processes > 1 and is_crash and fault is None and not is_fragile
        with self._faults(fault), simulated(world.draw_children, world.lifetime):
            task = asyncio.create_task(job.run())
            is_stopped = False
            for _ in range(scenario.actions):
                await asyncio.wait({task}, timeout=draw.choice([0.0, 0.1, 1.0]) * draw.random())
                if task.done() or is_stopped:
                    break
                is_stopped = await self._act(job)
            if is_crash and not is_fragile and not is_stopped and not world.may_lose_a_child:
                await asyncio.wait({task}, timeout=draw.choice([0.1, 1.0, 5.0]) * draw.random())
                if not task.done():
                    task.cancel()
            _, late = await asyncio.wait({task}, timeout=RUN_SECONDS)
            if late:
                task.cancel()
                await asyncio.wait(late)
            world.check(not late, "a run never ends")
        left = asyncio.all_tasks() - {asyncio.current_task()}
        world.check(not left, f"tasks are left: {left}")
        if not task.cancelled() and task.exception() is None:
            return not is_stopped
        self._note_end(None if task.cancelled() else task.exception())
        return False

    def _note_end(self, error: BaseException | None) -> None:
        """Note why a run has not come to its end, which it may do by restarting; None for a cancellation."""
        world = self.world
        if isinstance(error, ElementFailed) and error.__context__ is None:
            world.note("failure")
            world.failures += 1
        elif isinstance(error, InputReplaced):
            world.check(world.is_replaced, f"the input is what it was, and was refused: {error}")
            world.note("replacement")
            world.repairs += 1
        elif isinstance(error, UnwritableValue | SinkUnavailable):
            is_of_sink = isinstance(error, SinkUnavailable) or self.scenario.fails_with_refused
            world.check(is_of_sink, f"a refused output ended the job: {error}")
            world.note("refusal")
            world.repairs += 1
        elif isinstance(error, StreamAlreadyRead):
            world.check(self.scenario.restarts, f"the first run has a new iterator, and was refused: {error}")
            world.note("used up")
            world.crashes += 1
        elif error is None or isinstance(error, Fault | ElementFailed | ChildLost):
            world.note("crash")
            world.crashes += 1
        else:
            raise error
        world.mend()

    @contextmanager
    def _faults(self, fault: str | None) -> Iterator[None]:
        with ExitStack() as patches:
            commit = self._commit(fault, self.world.draw.randint(1, 4))
            patches.enter_context(mock.patch.object(Committer, "commit_cut", commit))
            patches.enter_context(mock.patch.object(MemoryFolder, "replace", self._replace()))
            patches.enter_context(mock.patch.object(Restarts, "delay_after", self._restart()))
            yield

    def _restart(self) -> Callable[[Restarts, Exception, float], float | None]:
        """Return what decides about restarts, and has them noted."""
        delay_after = Restarts.delay_after

        def run(restarts: Restarts, error: Exception, now: float) -> float | None:
            delay = delay_after(restarts, error, now)
            if delay is not None:
                self._note_end(error)
                self.world.note("restart", delay)
            return delay

        return run

    def _commit(self, fault: str | None, at: int) -> Any:
        """Return a commit that is noted and fails once, before or after it has taken effect."""
        commit, commits = Committer.commit_cut, itertools.count(1)

        def run(
            committer: Committer,
            pending: PendingSnapshot,
            parts: Sequence[Part],
            outputs: EpochOutputs,
            counts: Counts,
            others: Sequence[Contribution],
            written: Mapping[str, int],
        ) -> Any:
            fails = fault if next(commits) == at else None
            self.world.note("commit", fails, pending.version, *map(_content, parts))
            if fails == "before":
                raise Fault
            epoch = commit(committer, pending, parts, outputs, counts, others, written)
            if fails == "after":
                raise Fault
            return epoch

        return run

    def _replace(self) -> Callable[[MemoryFolder, str, bytes], None]:
        """Return what stores the notes of refused outputs and the marks of delivered epochs: one may be the last."""
        replace, world = MemoryFolder.replace, self.world

        def run(folder: MemoryFolder, name: str, data: bytes) -> None:
            if name not in (NOTES, MARK):
                replace(folder, name, data)
                return
            world.crash_point(f"before the object {name}")
            if name == MARK and world.draw.random() < 0.1:
                world.lost_marks += 1
                raise OSError("no room for a mark")
            replace(folder, name, data)
            world.crash_point(f"after the object {name}")

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
