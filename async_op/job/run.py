"""One run of a job, from its start to its end: what happens when, and what ends it.

ARCHITECTURE.md draws the order in which `Run._cut_now` commits a cut ("The order of a commit").
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Literal

from async_op.cancellation import to_the_end
from async_op.clock import LoopClock
from async_op.connectors.conformance import to_await
from async_op.connectors.retrying import retried
from async_op.connectors.sink import Sink
from async_op.connectors.source import Source
from async_op.epochs.position import SinkEpochs
from async_op.in_flight.idempotency_keys import Identity
from async_op.in_flight.waiters import Waiters
from async_op.job.chain import Chain, Plan, cuts_of
from async_op.job.committing import Committer, Part
from async_op.job.counters import counts_of
from async_op.job.delivery import UNDELIVERED_MAX, JobDelivery, stored_epochs
from async_op.job.errors import JobNotRunning
from async_op.job.operators import is_of_element
from async_op.job.outputs import Collector
from async_op.job.positions import Positions
from async_op.job.processes.child_handles import Children
from async_op.job.processes.distributed_chain import DistributedChain
from async_op.job.progress import JobProgress
from async_op.job.reading import Reading
from async_op.job.step import SOURCE
from async_op.job.task_group import OpenConnector, TaskGroup
from async_op.job.waiting import connector, ended, told_if_long
from async_op.statistics import JobState
from async_op.threads.own_thread import on_own_thread
from keygroups.ranges import check_parallelism

_log = logging.getLogger(__package__)

TICK_SECONDS = 0.2
"""How often watermarks are sent, and how soon a quiet partition is noticed."""

Stop = Literal["drain", "cut"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What a run is made of.

    Attributes
    ----------
    job_id : str
        The id of the job.
    source, sink, dead_letters
        Where elements come from, and where outputs and dead letters go.
    plan : Plan
        The steps.
    snapshot_interval : float
        Seconds between snapshots.
    positions : Positions
        How far the source has been read; nothing yet.
    sink_epochs : SinkEpochs
        Which epochs the sinks have.
    children : Children or None
        The processes that have the operators; None if this one has.
    """

    job_id: str
    source: Source[Any]
    sink: Sink[Any]
    dead_letters: Sink[Any] | None
    plan: Plan
    snapshot_interval: float
    positions: Positions
    sink_epochs: SinkEpochs
    children: Children | None = None


class Run:
    """One run of a job. Only the thread of the event loop may call it.

    Parameters
    ----------
    setting : Setting
        What it is made of.
    committer : Committer
        Commits its snapshots.
    collector : Collector
        Collects its outputs.
    parallelism : int
        The number of subtasks to start with.
    """

    def __init__(self, setting: Setting, committer: Committer, collector: Collector, parallelism: int) -> None:
        self._setting = setting
        self._committer = committer
        self._collector = collector
        self._parallelism = parallelism
        self._wanted = parallelism
        self._clock = LoopClock(asyncio.get_running_loop())
        self._tasks = TaskGroup()
        self._delivery = JobDelivery(
            committer,
            setting.plan.lineage,
            setting.sink,
            setting.dead_letters,
            setting.sink_epochs,
        )
        self._news = Waiters()
        self._reading = Reading(
            setting.source,
            setting.positions,
            self._clock,
            self._tasks,
            self._news,
            Identity(setting.plan.lineage, SOURCE),
            collector,
            setting.plan.forwarded,
        )
        self._chain = self._new_chain()
        self._pumps: list[asyncio.Task[None]] = []
        self._cutting = asyncio.Lock()
        self._committed = Waiters()
        self._telling = asyncio.Lock()
        self._told = self._version
        self._stop: Stop | None = None
        self._failed: BaseException | None = None
        self._committed_work: object = None
        self._totals = Counter[str]()
        self._opened: list[OpenConnector] = []
        self._state: JobState = "opening"
        self._oldest_call_seconds = 0.0
        """Looked up from time to time: other threads ask for the progress, and must not walk the queues."""

    @property
    def max_parallelism(self) -> int:
        """The number of key groups."""
        return self._setting.plan.max_parallelism

    # What others ask for.

    def stop(self, how: Stop) -> None:
        """End the run soon; a stop at a cut overtakes a drain, and stays."""
        if self._stop != "cut":
            self._stop = how
        if how == "cut":
            self._delivery.hurry()
        self._news.wake()

    def rescale(self, parallelism: int) -> None:
        """Change the parallelism at the next cut, which comes at once; raises `ConfigError` if it is out of range."""
        check_parallelism(parallelism, self.max_parallelism)
        self._wanted = parallelism
        self._news.wake()

    async def snapshot(self) -> int:
        """Commit a snapshot now, and return its version. It goes on if its caller is cancelled."""
        outcome: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        cut = self._tasks.spawn(self._cut_for(outcome))
        # Also if the job ends before the task has made its first step.
        cut.add_done_callback(lambda _: self._refuse(outcome))
        return await self._tasks.run(_outcome_of(outcome))

    def progress(self) -> JobProgress:
        """Return what the run has done."""
        children = () if self._setting.children is None else self._setting.children.progress()
        return JobProgress(
            job_id=self._setting.job_id,
            state=self._state,
            version=self._version,
            parallelism=self._parallelism,
            records=self._reading.records,
            outputs=self._collector.outputs + sum(child.outputs for child in children),
            dead_letters=self._collector.dead_letters + sum(child.dead_letters for child in children),
            calls=int(self._totals["calls"]),
            retries=int(self._totals["retries"]),
            timeouts=int(self._totals["timeouts"]),
            skipped=int(self._totals["skipped"]),
            in_flight=self._chain.in_flight(),
            limits=self._chain.limits(),
            undelivered=len(self._delivery),
            refused=self._delivery.refused,
            partitions=len(self._setting.positions.partitions),
            lag=self._setting.positions.lag(self._setting.source),
            oldest_call_seconds=self._oldest_call_seconds,
            back_pressured_seconds=self._totals["back_pressured_milliseconds"] / 1000,
            undelivered_seconds=self._reading.paused.seconds,
            mails=int(self._totals["mails"]),
            mailbox_wait_seconds=self._totals["mailbox_wait_milliseconds"] / 1000,
            children=children,
        )

    # The run.

    async def go(self) -> None:
        """Run until a bounded source has ended, or until the job is stopped."""
        try:
            await self._tasks.run(self._live())
        except BaseException:
            self._state = "failed"
            try:
                await to_the_end(asyncio.ensure_future(self._close()))
            except Exception:  # noqa: BLE001 - told in the log: it must not hide what has ended the run
                _log.exception("job %s did not close well after its failure", self._setting.job_id)
            raise
        try:
            await to_the_end(asyncio.ensure_future(self._close()))
        except BaseException:
            self._state = "failed"
            raise
        self._state = "ended"

    async def _live(self) -> None:
        await self._open()
        self._state = "running"
        while not await self._is_over_now():
            await self._rescale()
        self._state = "stopping" if self._stop == "cut" else "draining"
        self._reading.pause(True)
        if self._stop != "cut":
            await self._drain()
        try:
            async with self._cutting:
                await self._cut_now(is_final=True)
            await self._delivery.all_delivered()
        finally:
            if self._failed is not None:
                raise self._failed

    async def _open(self) -> None:
        setting, snapshot = self._setting, self._committer.snapshot
        for one in (setting.sink, setting.dead_letters, setting.source):
            if one is not None:
                opened = OpenConnector(one, self._tasks)
                await (self._delivery.open(one, opened.open) if isinstance(one, Sink) else self._open_source(opened))
                self._opened.append(opened)
        if snapshot is not None:
            for epoch in await on_own_thread(stored_epochs, snapshot):
                self._delivery.add(epoch)
        self._tasks.spawn(self._delivery.run())
        await on_own_thread(setting.positions.restore, snapshot, self._parallelism)
        await self._restore_source()
        self._tasks.spawn(self._pause_when_behind())  # before the steps: epochs may be delivered while they open
        if setting.children is not None:
            self._tasks.spawn(setting.children.watch())
        await self._open_chain()
        for task in (self._reading.look(), self._tick()):
            self._tasks.spawn(task)
        self._tasks.spawn(self._cut_from_time_to_time())
        self._tasks.spawn(self._cut_full_epochs())
        self._tasks.spawn(self._tell_of_commits())
        self._tasks.spawn(self._collector.spill())

    async def _open_source(self, source: OpenConnector) -> None:
        what = f"opening {type(source.connector).__name__}"
        with told_if_long(what), connector(what):
            await retried(source.connector.retry, what, source.open)

    async def _restore_source(self) -> None:
        source, known = self._setting.source, self._setting.positions.known()
        if known:
            what = f"restoring the positions of {type(source).__name__}"
            with told_if_long(what), connector(what):
                await retried(source.retry, what, lambda: to_await(source, "restore", source.restore(known)))

    def _new_chain(self) -> Chain | DistributedChain:
        setting = self._setting
        if setting.children is None:
            return Chain(setting.plan, self._parallelism, self._collector, self)
        return DistributedChain(setting.children, setting.plan, self._parallelism, self._collector, self)

    async def _open_chain(self) -> None:
        self._chain.hold_timers(self._is_behind)
        with told_if_long(f"opening the steps of job {self._setting.job_id}"):
            await self._chain.open(self._committer.snapshot)
        self._pumps = [self._tasks.spawn(task) for task in self._chain.tasks()]
        self._reading.connect(self._chain.entrances)

    async def _is_over_now(self) -> bool:
        """Wait for the next thing to do; returns False if that is to rescale."""
        await self._news.wait_until(
            lambda: self._stop is not None or self._reading.has_ended or self._wanted != self._parallelism
        )
        return self._stop is not None or self._reading.has_ended

    async def _drain(self) -> None:
        """Wait until nothing is in flight, unless a stop at a cut is requested."""
        draining = asyncio.ensure_future(self._chain.drain(is_final=self._stop is None))
        draining.add_done_callback(lambda _: self._news.wake())
        try:
            await self._news.wait_until(lambda: draining.done() or self._stop == "cut")
            if draining.done():
                draining.result()
        finally:
            await ended([draining])

    async def _rescale(self) -> None:
        async with self._cutting:
            self._state = "rescaling"
            await self._cut_now(is_final=True)
            await self._chain.close()
            self._collector.forget_senders()
            self._parallelism = self._wanted
            self._setting.positions.deal_out(self._parallelism)
            self._chain = self._new_chain()
            await self._open_chain()
            self._committed_work = None  # the next snapshot has the new parallelism
            self._state = "running"

    def failed(self, error: BaseException) -> None:
        """End the run after the failure of an element with a cut, so that no finished call is made again."""
        if not is_of_element(error):
            self._tasks.fail(error)
        elif self._failed is None:
            self._failed = error
            self.stop("cut")

    # Cuts.

    async def _cut_for(self, outcome: asyncio.Future[int]) -> None:
        """Cut for a caller that waits for the version; a failure is raised from `run`."""
        async with self._cutting:
            version = await self._cut_now() if self._pumps else None
        if version is not None and not outcome.done():
            outcome.set_result(version)

    def _refuse(self, outcome: asyncio.Future[int]) -> None:
        if not outcome.done():
            outcome.set_exception(JobNotRunning(self._setting.job_id))
            outcome.exception()  # perhaps the caller has gone

    async def _cut_now(self, *, is_final: bool = False) -> int:
        """Cut, commit, and have the outputs delivered; after a final cut the operators do nothing more."""
        if is_final and self._chain.knows_its_work and not self._has_changed():
            self._chain.stop()  # the newest snapshot has all of it
            await self._end_calls()
            return self._version
        pending = await on_own_thread(self._committer.begin)
        # From here to the next `await` nothing else runs: all steps are cut at the same moment.
        steps, counted = self._chain.cut(is_final=is_final)
        parts = [*self._source_parts(), *steps]
        outputs, work = self._collector.cut(), self._own_work()
        counts = counts_of(self._reading.count(), outputs.count, (cut for _, cut in steps), counted)
        with ExitStack() as undo:
            undo.callback(outputs.close)
            if is_final:
                await self._end_calls()
            with told_if_long(f"committing version {pending.version} of job {self._setting.job_id}"):
                others = await self._chain.written(pending, outputs)
                written = dict(self._delivery.written_epochs)
                commit = on_own_thread(self._committer.commit_cut, pending, parts, outputs, counts, others, written)
                epoch = await to_the_end(asyncio.ensure_future(commit))
            undo.pop_all()
        self._committed_work = work, self._chain.work_at_cut
        if (snapshot := self._committer.snapshot) is not None:
            self._totals.update(snapshot.manifest.metrics)
        if epoch is not None:
            self._delivery.add(epoch)
        self._committed.wake()
        if is_final:
            await self._tell_functions()
        self._committer.ended()
        return pending.version

    async def _end_calls(self) -> None:
        self._reading.connect(())
        pumps, self._pumps = self._pumps, []
        self._tasks.release(pumps)
        await ended(pumps)
        await self._chain.end_calls()

    def _source_parts(self) -> Sequence[Part]:
        plan = self._setting.plan
        return [
            (SOURCE, self._setting.positions.cut(subtask, plan.max_parallelism, plan.hash))
            for subtask in range(self._parallelism)
        ]

    def _has_changed(self) -> bool:
        """Return whether a snapshot would differ from the newest one; attempts at elements in flight count, too."""
        return self._committed_work != self._work() or any(self._chain.in_flight().values())

    def _work(self) -> object:
        """Return what changes whenever something happens that the next snapshot would store."""
        return self._own_work(), self._chain.work()

    def _own_work(self) -> object:
        reading, collector = self._reading, self._collector
        return reading.records, reading.moves, collector.outputs, collector.dead_letters

    # What goes on beside.

    async def _cut_from_time_to_time(self) -> None:
        while True:
            await asyncio.sleep(self._setting.snapshot_interval)
            await self._cut_if(self._has_changed)

    async def _cut_full_epochs(self) -> None:
        while True:
            await self._collector.changed.wait_until(self._is_epoch_full)
            await self._cut_if(self._is_epoch_full)
            await asyncio.sleep(0)

    def _is_epoch_full(self) -> bool:
        return not (self._collector.has_room and self._chain.has_room)

    async def _cut_if(self, is_needed: Callable[[], bool]) -> None:
        async with self._cutting:
            if self._pumps and is_needed():
                await self._cut_now()

    async def _tell_functions(self) -> None:
        """Tell the functions of the newest commit, beside everything else: they may take their time."""
        async with self._telling:
            snapshot = self._committer.snapshot
            if snapshot is not None and self._told < snapshot.version:
                self._told = snapshot.version
                await self._chain.committed(snapshot.version, cuts_of(snapshot))

    async def _tell_of_commits(self) -> None:
        while True:
            await self._committed.wait_until(lambda: self._told < self._version)
            await self._tell_functions()

    @property
    def _version(self) -> int:
        return self._committer.version

    @property
    def _is_behind(self) -> bool:
        """Whether nothing new may begin, because the sinks have not had what there is."""
        return len(self._delivery) >= UNDELIVERED_MAX

    async def _pause_when_behind(self) -> None:
        while True:
            is_behind = self._is_behind
            if is_behind or self._state in ("opening", "running", "rescaling"):
                self._reading.pause(is_behind)
            self._chain.hold_timers(is_behind)
            await self._delivery.changed.wait_until(lambda: self._is_behind != is_behind)  # noqa: B023 - awaited here

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_SECONDS)
            self._reading.advance()
            if self._pumps:
                self._chain.notice_idleness()
            self._oldest_call_seconds = self._chain.oldest_call_seconds()

    # The end.

    async def _close(self) -> None:
        """Give up what is left, all of it in spite of errors, and raise the first of them."""
        self._pumps = []  # who asks for a snapshot from now on is told that the job has ended
        errors = []
        children = self._setting.children
        processes = () if children is None else (("the processes", children.end),)
        steps = (f"job {self._setting.job_id}", self._tasks.end), ("the steps", self._chain.close), *processes
        connectors = ((type(one.connector).__name__, one.close) for one in reversed(self._opened))
        for name, close in (*steps, *connectors):
            try:
                with connector(f"closing {name}"):
                    await close()
            except Exception as error:  # noqa: BLE001 - raised below
                errors.append(error)
        await on_own_thread(self._release)
        if errors:
            raise errors[0]

    def _release(self) -> None:
        self._delivery.close()
        self._collector.epoch.close()
        self._committer.close()


async def _outcome_of(work: asyncio.Future[int]) -> int:
    return await work
