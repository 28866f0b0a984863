"""A driver: epochs, tasks with their attempts, commits, the sink, leases; and the oracle that looks at each version."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from async_op import ElementFailed
from async_op.hosting import messages as say
from async_op.hosting.epoch import Epoch, run
from async_op.hosting.errors import FeederFenced, HostLost, HostUnreachable, IncompleteEpoch
from async_op.hosting.parts import one_of_each
from async_op.hosting.placement import Address
from keygroups import key_group_of, subtask_of
from tests.hosting.simulation.cluster import LEASE_SECONDS, Cluster, Connection, Ways
from tests.hosting.simulation.delivery import Delivery
from tests.hosting.simulation.scenario import Row
from tests.hosting.simulation.service import check
from tests.hosting.simulation.storage import CommitFailed, Manifest, OutcomeUnknown, StoredPart, is_row

_TASK_ATTEMPTS = 3
_ROOM_SECONDS = 600.0
PARALLELISM_MAX = 3
_EXPECTED = (HostLost, HostUnreachable, FeederFenced, IncompleteEpoch, CommitFailed, OutcomeUnknown)


class SinkFailed(Exception):
    """The user's sink has raised."""


class Driver:
    """One run of the query."""

    def __init__(self, cluster: Cluster, number: int) -> None:
        self.cluster = cluster
        self.scenario = cluster.scenario
        self.storage = cluster.storage
        self.run_id = f"run {number}"
        self.draw = self.scenario.random("driver", number)
        self.parallelism = self.draw.randint(1, min(PARALLELISM_MAX, self.scenario.max_parallelism))
        self.directory: dict[int, Address] = {}
        self.has_room: bool | None = None
        """Whether all hosts had room at their last cut; None if they are to be restored."""
        self.delivery = Delivery(self._give)
        self.parts: list[say.Part] = []
        self.jobs = self.attempts = 0
        self.storage.owner = self.run_id
        if self.storage.newest is not None:
            self.delivery.commit(self.storage.version)

    @property
    def generation(self) -> str:
        return f"{self.run_id}, {self.parallelism}"

    async def go(self) -> None:
        """Run the query to its end."""
        renewing = self.cluster.spawn(self._renew())
        try:
            self.delivery.settle()
            newest = self.storage.newest
            for number in range(newest.batch + 1 if newest else 0, len(self.scenario.batches)):
                await self._between()
                await self._until_committed(number)
            while self._is_anything_left():
                await self._epoch(None, final=True, timeout=None)
            self.delivery.settle()
        finally:
            renewing.cancel()
            await self._tell_all(say.Stop(self.generation, say.Fence(self.storage.version, say.DRIVER)))

    async def _until_committed(self, number: int) -> None:
        for _ in range(8):
            try:
                await self._wait_for_room()
                await self._epoch(number)
            except (*_EXPECTED, SinkFailed):
                if self.draw.random() < 0.5:
                    await self._deliver_without_input()
            newest = self.storage.newest
            if newest is not None and newest.batch == number:
                return
        raise HostLost("was lost too often", "a log")

    async def _wait_for_room(self) -> None:
        """Run epochs without input until no more rows wait than hosts keep as a reserve."""
        while not (self._has_room() or self._answers_that_there_is_room()):
            await self._epoch(None, timeout=_ROOM_SECONDS, for_room=True)

    def _has_room(self) -> bool:
        newest = self.storage.newest
        if self.has_room is None and newest is not None:
            return len(newest.in_flight) <= 2 * self.scenario.capacity * self.parallelism
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
            if self.storage.newest is not None:
                await self._epoch(None, timeout=0.0)

    def _is_anything_left(self) -> bool:
        newest = self.storage.newest
        if newest is None:
            return bool(self.scenario.batches)
        loop = asyncio.get_running_loop()
        armed = [when for when, _ in timers_of(newest)]
        return bool(newest.in_flight) or bool(armed) or loop.time() < 0

    # An epoch.

    async def _epoch(
        self, number: int | None, *, final: bool = False, timeout: float | None = -1.0, for_room: bool = False
    ) -> None:
        self.delivery.settle()
        if self.cluster.driver_must_die:
            self.cluster.driver_must_die = False
            raise HostLost("went with its driver", "a log")
        newest = self.storage.newest
        rescale = not final and not self.scenario.is_calm and self.draw.random() < 0.15
        self.jobs += 1
        job = f"{self.run_id}, job {self.jobs}"
        cut = say.Cut(self.storage.version + 1, rescale)
        barrier_timeout = self.scenario.barrier_timeout if timeout == -1.0 else timeout
        rows: Sequence[Row] = () if number is None else self.scenario.batches[number]
        if final and newest is not None:
            await self._wait_for_timers(newest)
        self.cluster.generation = self.generation
        subtasks = [
            self.cluster.spawn(self._subtask(index, job, cut, barrier_timeout, rows, for_room))
            for index in range(self.parallelism)
        ]
        results = await asyncio.gather(*subtasks, return_exceptions=True)
        failures = [result for result in results if isinstance(result, BaseException)]
        for failure in failures:
            if isinstance(failure, ElementFailed):
                self.cluster.service.told.add(int(failure.element[1:].split(",")[0]))
        if failures:
            raise next((one for one in failures if isinstance(one, ElementFailed)), failures[0])
        self._commit(job, cut.version, number)
        if rescale:
            await self._tell_all(say.Committed(self.generation, cut.version))
            self._rescale()
        await self._deliver_soon()

    async def _deliver_soon(self) -> None:
        if self.scenario.is_calm or self.draw.random() < 0.8:
            if self.draw.random() < 0.05:
                await asyncio.sleep(3600.0)  # a sink that takes an hour
            self.delivery.settle()

    def _give(self, epoch: int) -> None:
        if self.draw.random() < 0.1 and self.cluster.may_break():
            raise SinkFailed(epoch)
        self.cluster.delivered[epoch] = self.storage.manifests[epoch - 1].outputs

    async def _wait_for_timers(self, newest: Manifest) -> None:
        """Timers do not fire in an epoch that waits for what is in flight; time must pass."""
        await asyncio.sleep(2.0 if timers_of(newest) else 0.0)

    async def _subtask(
        self, index: int, job: str, cut: say.Cut, barrier_timeout: float | None, rows: Sequence[Row], for_room: bool
    ) -> None:
        groups = self.scenario.max_parallelism
        own = [row for row in rows if subtask_of(key_group_of(row.key, groups), self.parallelism, groups) == index]
        copies = 2 if self.draw.random() < 0.1 and not self.scenario.is_calm else 1
        for attempt in range(_TASK_ATTEMPTS):
            tasks = [self._start(index, job, cut, barrier_timeout, own, for_room) for _ in range(copies)]
            done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                if self.draw.random() < 0.5:
                    task.cancel()
            error: BaseException = next(iter(done)).exception() or HostLost("x", "")
            for task in done:
                if task.exception() is None:
                    part, address, _ = task.result()
                    self.parts.append(part)
                    if address is not None:
                        self.directory[index] = address
                    return
            if isinstance(error, ElementFailed) or attempt == _TASK_ATTEMPTS - 1:
                raise error

    def _start(
        self, index: int, job: str, cut: say.Cut, barrier_timeout: float | None, rows: Sequence[Row], for_room: bool
    ) -> asyncio.Task[Any]:
        self.attempts += 1
        cluster, newest = self.cluster, self.storage.newest
        known = [self.directory[index]] if index in self.directory else []
        machine = self.draw.randrange(cluster.machines)
        ways = Ways(cluster, machine, self.generation, index, self.parallelism, known)
        named = say.Manifest(None, None) if newest is None else newest.names(index, self.parallelism)
        fence = say.Fence(cut.version - 1, self.attempts)
        hello = say.Hello(self.generation, fence, named, job, None, barrier_timeout)
        batches = [rows[start : start + 2] for start in range(0, len(rows), 2)]
        task = cluster.spawn(self._attempt(ways, Epoch(hello=hello, cut=cut, batches=batches, for_room=for_room)))
        cluster.attempts.append((task, ways))
        return task

    async def _attempt(self, ways: Ways, epoch: Epoch) -> Any:
        try:
            return await ways.drive(run(ways, epoch))
        except asyncio.CancelledError:
            msg = "was killed with its task"
            raise HostLost(msg, "") from None
        finally:
            ways.end()
            self.cluster.attempts[:] = [one for one in self.cluster.attempts if one[1] is not ways]

    def _commit(self, job: str, version: int, number: int | None) -> None:
        parts = one_of_each(self.parts, job, self.parallelism)
        contents: list[StoredPart] = [part.handle for part in parts]
        newest = self.storage.newest
        batch = number if number is not None else (-1 if newest is None else newest.batch)
        manifest = Manifest(
            version, f"{job}, {version}", self.parallelism, self.scenario.max_parallelism, tuple(contents), batch
        )
        fault = self.draw.random()
        if fault < 0.05 and self.cluster.may_break():
            raise CommitFailed(version)
        if fault > 0.97 and self.cluster.may_break():
            raise OutcomeUnknown(version)
        self.storage.commit(self.run_id, manifest)
        self.cluster.oracle.look(manifest)
        self.has_room = all(part.metrics["has_room"] for part in parts)
        self.delivery.commit(version)
        if 0.05 < fault < 0.1 and self.cluster.may_break():
            # The answer is lost; reading back finds our own.
            check(self.storage.newest is manifest, "what was read back is another's")

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


def timers_of(manifest: Manifest) -> list[tuple[int, Any]]:
    """Return the timers that are armed and have not fired."""
    armed: list[tuple[int, Any]] = []
    for part in manifest.parts:
        fired = {when for group in part.states.get("fired", {}).values() for whens in group.values() for when in whens}
        for group in part.states.get("armed", {}).values():
            armed += [(when, key) for key, whens in group.items() for when in whens if when not in fired]
    return armed


class Oracle:
    """Compares each version with a loop over the rows, one after the other."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.out: set[int] = set()
        self.timers: set[Any] = set()

    def look(self, manifest: Manifest) -> None:
        """Check a version that has just been committed."""
        fed = [row for batch in self.cluster.scenario.batches[: manifest.batch + 1] for row in batch]
        for kind, subject, place in manifest.outputs:
            gone, name = (self.out, subject) if kind == "row" else (self.timers, (subject, place))
            check(name not in gone, f"{kind} {name} leaves twice")
            gone.add(name)
        kept = [element for element in manifest.in_flight if is_row(element)]
        self._check_bound(manifest, [element.value[0] for element in kept])
        names = [element.value[0] for element in kept]
        check(len(names) == len(set(names)), f"in flight twice: {names}")
        check(not self.out & set(names), f"in flight and gone: {self.out & set(names)}")
        check(self.out | set(names) == {row.number for row in fed}, f"of {fed}, {self.out} are gone, {names} in flight")
        for element in kept:
            check(element.element_id == f"row-{element.value[0]}", f"{element.value} has lost its id")
        done = self.out | {element.value[0] for element in kept if element.completed}
        if self.cluster.scenario.stateful:
            self._check_histories(manifest, fed, done)

    def _check_bound(self, manifest: Manifest, in_flight: Sequence[int]) -> None:
        """Check that rows of earlier batches are no more than hosts have room for: calls, and those in reserve.

        Hosts that are restored may have taken over calls of others. Rows that wait for their key have a bound of their
        own, which these runs do not reach.
        """
        scenario = self.cluster.scenario
        newest = {row.number for row in scenario.batches[manifest.batch]} if manifest.batch >= 0 else set()
        earlier = [number for number in in_flight if number not in newest]
        bound = PARALLELISM_MAX * (scenario.capacity + max(scenario.capacity, scenario.reserve_max))
        check(scenario.mode == "key_ordered" or len(earlier) <= bound, f"{len(earlier)} rows wait, at most {bound} may")

    def _check_histories(self, manifest: Manifest, fed: Sequence[Row], done: set[int]) -> None:
        expected: dict[str, list[int]] = defaultdict(list)
        for row in fed:
            if row.number in done:
                expected[row.key].append(row.number)
        found: dict[str, list[int]] = {}
        for part in manifest.parts:
            for group in part.states["history"].values():
                found |= {str(key): list(history) for key, history in group.items()}
        check(found == dict(expected), f"the histories are {found}, not {dict(expected)}")
        for row in fed:
            later = [other for other in fed if other.key == row.key and other.number > row.number]
            early = [other.number for other in later if other.number in done and row.number not in done]
            check(not early, f"{early} have overtaken {row}")
