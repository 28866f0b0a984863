"""A driver: epochs, tasks with their attempts, commits, the sink, leases."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal

from async_op import ElementFailed
from async_op.epochs.coordinator import Coordinator
from async_op.epochs.position import SinkEpochs
from async_op.hosting import messages as say
from async_op.hosting.epoch import Epoch, one_of_each, run
from async_op.hosting.errors import FeederFenced, HostLost, HostSilent, HostUnreachable, IncompleteEpoch
from async_op.hosting.fencing import DRIVER, Fence
from async_op.hosting.messages import Address
from keygroups import key_group_of, subtask_of
from snapshots import Claim, PendingSnapshot, Snapshot, SnapshotStore, SubtaskHandle
from snapshots.format.delivered import Delivered
from snapshots.lineage import lineage_of
from snapshots.testing import Crash
from tests.hosting.simulation.cluster import LEASE_SECONDS, Cluster, Connection, Ways
from tests.hosting.simulation.delivery import Delivery
from tests.hosting.simulation.oracle import PARALLELISM_MAX
from tests.hosting.simulation.scenario import Row
from tests.hosting.simulation.service import check
from tests.hosting.simulation.sink import SimulatedDelivery
from tests.hosting.simulation.storage import FAILURES, Version, batch_of, epoch_of, named, outputs_of

_TASK_ATTEMPTS = 3
_ROOM_SECONDS = 600.0
_EXPECTED = (HostLost, HostUnreachable, FeederFenced, IncompleteEpoch, *FAILURES)


class SinkFailed(Exception):
    """The user's sink has raised."""


class Driver:
    """One run of the query."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.scenario = cluster.scenario
        self.run_id = f"run {number}"
        self.draw = self.scenario.random("driver", number)
        self.draw_ends = self.scenario.random("epochs that are concluded", number)
        self.parallelism = self.draw.randint(1, min(PARALLELISM_MAX, self.scenario.max_parallelism))
        self.directory: dict[int, Address] = {}
        self.given_up: set[Address] = set()
        """The hosts that were silent for too long, as tasks have told."""
        self.has_room: bool | None = None
        """Whether all hosts had room at their last cut; None if they are to be restored."""
        self.delivery = Delivery(self._give)
        self.parts: list[say.Part] = []
        self.jobs = self.attempts = 0
        fails = self.draw.random() < 0.5 and cluster.may_break()
        self.store = SnapshotStore.on(cluster.storage.of_driver(fails=fails))
        self.claim: Claim | None = None
        self.latest = cluster.latest = self._take_over()
        # Durable before the first call, so that it is the same after a crash before the first commit.
        lineage = lineage_of(self.store.folder, None if self.latest is None else self.latest.manifest)
        check(cluster.lineage in (None, lineage), f"the lineage is {lineage}, and calls were made as {cluster.lineage}")
        cluster.lineage = lineage
        epoch = epoch_of(self.latest)
        epochs = SinkEpochs.of(self.latest)
        self._sink = SimulatedDelivery(Coordinator(self.store), lineage, cluster.target, self._in_sink, epochs)
        self._sink.open()
        if epoch is not None:
            self.delivery.commit(epoch)

    def _take_over(self) -> Snapshot | None:
        """Claim what there is, so that no driver before this one commits any more."""
        try:
            if self.store.latest() is not None:
                self.claim = self.store.claim()
        finally:
            self.cluster.look()
        return None if self.claim is None else self.claim.snapshot

    @property
    def generation(self) -> str:
        return f"{self.run_id}, {self.parallelism}"

    async def go(self) -> None:
        """Run the query to its end."""
        renewing = self.cluster.spawn(self._renew())
        try:
            self.delivery.settle()
            for number in range(batch_of(self.latest) + 1, len(self.scenario.batches)):
                await self._between()
                await self._until_committed(number)
            while self._is_anything_left():
                await self._epoch(None, final=True, timeout=None)
            self.delivery.settle()
        finally:
            renewing.cancel()
            if not isinstance(sys.exception(), Crash):  # who is dead tells nobody
                await self._tell_all(say.Stop(self.generation, Fence(self._version, DRIVER)))

    @property
    def _version(self) -> int:
        return 0 if self.latest is None else self.latest.version

    async def _until_committed(self, number: int) -> None:
        for _ in range(8):
            try:
                await self._wait_for_room()
                await self._epoch(number)
            except (*_EXPECTED, SinkFailed) as error:
                self.cluster.met[f"epoch: {type(error).__name__}"] += 1
                if self.draw.random() < 0.5:
                    await self._deliver_without_input()
            if batch_of(self.latest) == number:
                return
        raise HostLost("was lost too often", "a log")

    async def _wait_for_room(self) -> None:
        """Run epochs without input until no more rows wait than hosts keep as a reserve."""
        while not (self._has_room() or self._answers_that_there_is_room()):
            await self._epoch(None, timeout=_ROOM_SECONDS, waits_for="room")

    def _has_room(self) -> bool:
        if self.has_room is None and self.latest is not None:
            return self.latest.in_flight_count <= 2 * self.scenario.capacity * self.parallelism
        return self.has_room is not False

    def _answers_that_there_is_room(self) -> bool:
        """Ask all hosts, as long as none can be lost between its answer and the feed."""
        if not self.scenario.is_calm or self.draw.random() < 0.5:
            return False
        found = [self.cluster.at(self.directory[index]) for index in self.directory]
        processes = [process for process in found if process is not None]
        return len(processes) == self.parallelism and all(one.host._status().has_room for one in processes)

    async def _between(self) -> None:
        """Time passes between two batches; what is ready may be delivered without input, and P may change."""
        await asyncio.sleep(self.draw.choice((0.0, 0.5, 5.0, 40.0, 3700.0 if self.draw.random() < 0.1 else 0.0)))
        if self.draw.random() < 0.4:
            await self._deliver_without_input()
        if self.draw.random() < 0.2 and not self.scenario.is_calm:
            self._rescale()

    def _rescale(self) -> None:
        """Change the parallelism; the directory may name hosts of the old generation for a while."""
        self.parallelism = self.draw.randint(1, min(PARALLELISM_MAX, self.scenario.max_parallelism))
        self.has_room = None
        # Without a final cut before it, which would have told, nobody asks the hosts of the old generation.
        self.cluster.service.owed.clear()
        if self.draw.random() < 0.5:
            self.directory.clear()

    async def _deliver_without_input(self) -> None:
        with suppress(*_EXPECTED, SinkFailed):
            if self.latest is not None:
                await self._epoch(None, timeout=0.0)

    def _is_anything_left(self) -> bool:
        if self.latest is None:
            return bool(self.scenario.batches)
        return self.latest.in_flight_count > 0 or bool(self._content().timers)

    def _content(self) -> Version:
        """Return what the version holds that this driver goes on from."""
        versions = self.cluster.storage.versions
        check(self._version <= len(versions), f"a driver goes on from version {self._version}, which is not there")
        return versions[self._version - 1]

    # An epoch.

    async def _epoch(
        self,
        number: int | None,
        *,
        final: bool = False,
        timeout: float | None = -1.0,
        waits_for: Literal["calls", "room"] = "calls",
    ) -> None:
        self.delivery.settle()
        if self.cluster.driver_must_die:
            self.cluster.driver_must_die = False
            raise Crash
        rescale = not final and not self.scenario.is_calm and self.draw.random() < 0.15
        self.jobs += 1
        job = f"{self.run_id}, job {self.jobs}"
        pending = self._begin()
        cut = say.Cut(pending.version, pending)
        end = say.EpochEnd(self.scenario.barrier_timeout if timeout == -1.0 else timeout, waits_for, rescale)
        rows: Sequence[Row] = () if number is None else self.scenario.batches[number]
        if final and self.latest is not None and self._content().timers:
            # They do not fire in an epoch that waits for what is in flight; time must pass.
            await asyncio.sleep(2.0)
        self.cluster.generation = self.generation
        subtasks = [self.cluster.spawn(self._subtask(index, job, cut, end, rows)) for index in range(self.parallelism)]
        if self.draw_ends.random() < 0.1:
            self.cluster.spawn(self._conclude())
        results = await asyncio.gather(*subtasks, return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        for failure in failures:
            if isinstance(failure, ElementFailed):
                self.cluster.service.told.add(int(failure.element[1:].split(",")[0]))
        if failures:
            raise next((one for one in failures if isinstance(one, ElementFailed)), failures[0])
        self._commit(job, pending, number)
        if rescale:
            await self._tell_all(say.Committed(self.generation, cut.version))
            self._rescale()
        await self._deliver_soon()

    async def _conclude(self) -> None:
        """Tell the hosts, some time in an epoch or after it, to wait no longer."""
        await asyncio.sleep(self.draw_ends.choice((0.0, 1.0, 30.0)) * self.draw_ends.random())
        self.cluster.met["concluded"] += 1
        await self._tell_all(say.Conclude(self.generation))

    def _begin(self) -> PendingSnapshot:
        """Begin the version after the one that the hosts start from, as `EpochRunner` does."""
        if self.claim is None:
            return PendingSnapshot.first(self.store.folder, self.store.operator_id)
        return self.claim.begin()

    async def _deliver_soon(self) -> None:
        if self.scenario.is_calm or self.draw.random() < 0.8:
            if self.draw.random() < 0.05:
                await asyncio.sleep(3600.0)  # a sink that takes an hour
            self.delivery.settle()

    def _give(self, epoch: int) -> None:
        assert self.latest is not None, "an epoch is in a version"
        self._sink.give(outputs_of(self.latest), Delivered(epoch, "simulated"))

    def _in_sink(self, point: str) -> None:
        """Die here, perhaps, or let the sink fail."""
        if self.draw.random() < 0.05 and self.cluster.may_break():
            self.cluster.met[f"sink: {point}"] += 1
            raise self.draw.choice((SinkFailed, SinkFailed, Crash))(point)

    async def _subtask(self, index: int, job: str, cut: say.Cut, end: say.EpochEnd, rows: Sequence[Row]) -> None:
        groups = self.scenario.max_parallelism
        own = [row for row in rows if subtask_of(key_group_of(row.key, groups), self.parallelism, groups) == index]
        copies = 2 if self.draw.random() < 0.1 and not self.scenario.is_calm else 1
        for attempt in range(_TASK_ATTEMPTS):
            tasks = [self._start(index, job, cut, end, own) for _ in range(copies)]
            done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                if self.draw.random() < 0.5:
                    task.cancel()
            ended = [(task, _failure_of(task)) for task in tasks if task in done]
            for task, failure in ended:
                if failure is None:
                    part, address, _ = task.result()
                    self.parts.append(part)
                    if address is not None:
                        self.directory[index] = address
                    return
            _, error = ended[0]
            assert error is not None, "returned above"
            if isinstance(error, ElementFailed) or attempt == _TASK_ATTEMPTS - 1:
                raise error

    def _start(self, index: int, job: str, cut: say.Cut, end: say.EpochEnd, rows: Sequence[Row]) -> asyncio.Task[Any]:
        self.attempts += 1
        cluster = self.cluster
        known = [self.directory[index]] if index in self.directory else []
        machine = self.draw.randrange(cluster.machines)
        ways = Ways(
            cluster, (machine, self.generation, index), self.parallelism, self.latest, known, set(self.given_up)
        )
        fence = Fence(cut.version - 1, self.attempts)
        named_by = named(self.latest, index, self.parallelism)
        hello = say.Hello(self.generation, fence, named_by, job, None, end)
        batches = [rows[start : start + 2] for start in range(0, len(rows), 2)]
        task = cluster.spawn(self._attempt(ways, Epoch(hello=hello, cut=cut, batches=batches)))
        cluster.attempts.append((task, ways))
        return task

    async def _attempt(self, ways: Ways, epoch: Epoch) -> Any:
        try:
            return await ways.drive(run(ways, epoch))
        except HostSilent:
            self.given_up.add(ways.connections[-1].process.address)
            raise
        except asyncio.CancelledError:
            msg = "was killed with its task"
            raise HostLost(msg, "") from None
        finally:
            ways.end()
            self.cluster.attempts[:] = [one for one in self.cluster.attempts if one[1] is not ways]

    def _commit(self, job: str, pending: PendingSnapshot, number: int | None) -> None:
        parts = one_of_each(self.parts, job, self.parallelism)
        handles: list[SubtaskHandle] = [part.handle for part in parts]
        batch = batch_of(self.latest) if number is None else number
        try:
            written = {sink: [*one] for sink, one in self._sink.written_epochs.items()}
            position = {"batch": batch, "epoch": pending.version, "written": written}
            self.latest = self.cluster.latest = pending.commit(handles, source_position=position)
        finally:
            self.cluster.look()
        self.claim = self.claim or Claim(self.latest)
        newest = self.cluster.storage.newest
        check(newest is not None and newest.manifest == self.latest.manifest, "what was committed is not the newest")
        self.has_room = all(part.metrics["has_room"] for part in parts)
        self.delivery.commit(pending.version)

    # Hosts.

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(LEASE_SECONDS / 3)
            await self._tell_all(say.Renew(self.generation))
            await self._tell_all(say.Poll())

    async def _tell_all(self, message: Any) -> None:
        for address in list(self.directory.values()):
            process = self.cluster.at(address)
            if process is None or not self.cluster.is_reachable(0, process):
                continue
            connection = Connection(process, self.draw)
            for _ in range(self.draw.choice((1, 1, 1, 2))):
                connection.send(message)
            asyncio.get_running_loop().call_later(1.0, connection.break_off)
        await asyncio.sleep(0.2)


def _failure_of(attempt: asyncio.Task[Any]) -> BaseException | None:
    """Return why an attempt has failed; one that is killed before its first step has raised nothing."""
    return HostLost("was killed with its task", "") if attempt.cancelled() else attempt.exception()
