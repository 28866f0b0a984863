"""Machines, processes and the network between them; everything that can go wrong with them."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, deque
from collections.abc import Sequence
from typing import Any

from async_op.hosting import messages as say
from async_op.hosting.errors import HostLost, HostSilent, HostUnreachable
from async_op.hosting.feeder import HostChannel, Waiting
from async_op.hosting.fencing import Fence, NewestManifest
from async_op.hosting.host import Host
from async_op.hosting.host_settings import HostSettings
from async_op.hosting.messages import Address
from async_op.hosting.wire.sockets import is_proof, new_nonce, proof_of
from async_op.threads.wait_strategies import WaitSituation
from snapshots import Snapshot
from tests.hosting.simulation.scenario import Row, Scenario
from tests.hosting.simulation.service import OperatorFactory, Service
from tests.hosting.simulation.sink import Target
from tests.hosting.simulation.storage import Storage, named, restored
from tests.simulation.payments import Payments

LEASE_SECONDS = 240.0
PATIENCE_SECONDS = 10.0
_START_PATIENCE_SECONDS = 5.0
_SECRET = b"of the run"
_HANDSHAKE = proof_of(_SECRET, "feeder", b"", b"")


class Process:
    """A host's process, or the operator within a task."""

    def __init__(self, cluster: Cluster, place: tuple[Any, ...], parallelism: int, newest: Snapshot | None) -> None:
        self.cluster = cluster
        self.place = place
        machine, generation, subtask = place
        self.is_resident = machine is not None
        self.address = Address(f"{machine}/{generation}/{subtask}/{len(cluster.processes)}")
        self.is_alive = True
        self.is_hung = False
        self.is_missed = False
        self.began_at = asyncio.get_running_loop().time()
        self.parallelism = parallelism
        self.lineage = cluster.lineage
        self.version = 0 if newest is None else newest.version
        self.done = cluster.oracle.done_in(newest)
        self.connections: list[Connection] = []
        self.folder = cluster.storage.of_host(fails=cluster.draw.random() < 0.05 and cluster.may_break())
        self.host = Host(
            OperatorFactory(cluster.service, self, parallelism),
            HostSettings(
                generation=generation,
                subtask_index=subtask,
                restore=restored(newest, self.folder, subtask, parallelism),
                manifest_id=None if newest is None else newest.manifest.snapshot_id,
                lease_seconds=LEASE_SECONDS,
                patience_seconds=PATIENCE_SECONDS,
                outputs_max=cluster.scenario.outputs_max,
                reserve_max=cluster.scenario.reserve_max,
            ),
        )
        cluster.processes.append(self)
        self._life = cluster.spawn(self._live())

    @property
    def is_truth(self) -> bool:
        """Whether it is between two epochs, with what the newest manifest holds."""
        _, _, subtask = self.place
        newest = self.cluster.latest
        if newest is None or not self.is_resident or self.is_hung or not self.host.subtask.outbox.is_bounded:
            return False
        return self.host._fencing.is_content_of(named(newest, subtask, self.parallelism))

    async def _live(self) -> None:
        try:
            await self.host.open()
            await self.host.ended.wait()
        except asyncio.CancelledError:
            if self.is_alive:  # nobody has killed it: the whole run is given up
                await self.host.close()
            raise
        await self.host.close()
        self._vanish()

    def kill(self) -> None:
        """End it as `kill -9` does: nothing of it is seen afterwards."""
        if not self.is_alive:
            return
        self._life.cancel()
        for connection in self.connections:
            connection.serving.cancel()
        self._vanish()
        self.cluster.spawn(self.host.close())

    def _vanish(self) -> None:
        self.is_alive = False
        for connection in self.connections:
            connection.break_off()

    async def step(self, what: str, seconds: float) -> None:
        """Do something that takes a while, in the middle of which the process may be killed."""
        await asyncio.sleep(seconds)
        self.cluster.happens(what, self)
        await asyncio.sleep(0)


class Connection(HostChannel):
    """A stream between a feeder and a process: in order, at some speed, and it may break."""

    def __init__(self, process: Process, draw: random.Random, proof: bytes = _HANDSHAKE) -> None:
        self.process = process
        self.cluster = process.cluster
        self.draw = draw
        self.is_broken = False
        self.is_let_in = is_proof(proof, _SECRET, "feeder", b"", b"")
        self.is_half_open = False
        self.replies = deque[say.Reply]()
        self.arrived = asyncio.Event()
        self._heard_at = asyncio.get_running_loop().time()
        self._there = self._back = 0.0
        self._inbox: asyncio.Queue[say.Message] = asyncio.Queue()
        self.serving = self.cluster.spawn(self._serve())
        process.connections.append(self)
        self._beat()

    # The feeder's end.

    def send(self, message: say.Message) -> None:
        self._check()
        if isinstance(message, say.Hello):
            self.cluster.sent.append((self.process.place, message))
        loop = asyncio.get_running_loop()
        self._there = max(self._there + 1e-6, loop.time() + self._delay())
        loop.call_at(self._there, self._deliver, message)

    def receive(self, situation: WaitSituation = WaitSituation.CONSUME) -> say.Reply | None:
        if self.replies:
            self.arrived.clear()
            return self.replies.popleft()
        self._check()
        self.arrived.clear()
        now = asyncio.get_running_loop().time()
        if self.process.is_hung and now - self._heard_at >= PATIENCE_SECONDS:
            raise HostSilent("shows no sign of life", "a log")
        if not self.process.is_hung:
            self._heard_at = now
        return None

    def close(self) -> None:
        self.break_off()

    def break_off(self, *, is_seen: bool = True) -> None:
        """Break it; the host may not be told for a while, as when a machine vanishes from the network."""
        if not self.is_broken:
            self.is_broken = True
            self.is_half_open = not is_seen
            self.arrived.set()
            if is_seen:
                asyncio.get_running_loop().call_later(self._delay(), self._leave)

    def _check(self) -> None:
        if self.is_broken:
            raise HostLost("has ended", "a log")

    def _delay(self) -> float:
        return self.draw.choice((0.001, 0.001, 0.01, 0.1))

    # The host's end.

    def _leave(self) -> None:
        self.process.host.gone(self)
        self.serving.cancel()

    def _beat(self) -> None:
        if not self.is_broken and self.process.is_alive:
            self.process.host.heard(self)
            asyncio.get_running_loop().call_later(3.0, self._beat)

    def _deliver(self, message: say.Message) -> None:
        self.cluster.happens("message", self)
        if self.process.is_alive and self.is_let_in:
            self._inbox.put_nowait(message)

    async def _serve(self) -> None:
        while True:
            message = await self._inbox.get()
            while self.process.is_hung:
                await asyncio.sleep(1.0)
            reply = await self.process.host.answer(self, message)
            self._note(message, reply)
            self.cluster.happens("reply", self)
            loop = asyncio.get_running_loop()
            self._back = max(self._back + 1e-6, loop.time() + self._delay())
            loop.call_at(self._back, self._return, reply)

    def _note(self, message: say.Message, reply: say.Reply) -> None:
        met = self.cluster.met
        if isinstance(reply, say.Refused):
            met[reply.reason] += 1
        met["failed"] += isinstance(reply, say.Failed) and isinstance(message, say.Hello)
        met["in the task"] += not self.process.is_resident
        met["final"] += isinstance(reply, say.Part) and reply.version == self.process.host._final_version
        waits = isinstance(reply, say.Part) and reply.metrics["waiting"] > 0
        met["waiting"] += waits
        met["reserve"] += waits and reply.metrics["has_room"]  # type: ignore[union-attr]
        met["held"] += self.process.host.subtask.is_held

    def _return(self, reply: say.Reply) -> None:
        if not self.is_broken:
            self.replies.append(reply)
            self.arrived.set()


class Ways:
    """How a simulated task gets at hosts."""

    def __init__(
        self,
        cluster: Cluster,
        place: tuple[Any, ...],
        parallelism: int,
        newest: Snapshot | None,
        known: list[Address],
        given_up: set[Address],
    ) -> None:
        self.cluster = cluster
        self.place = place
        self.parallelism = parallelism
        self.newest = newest
        self._known = known
        self._given_up = given_up
        self.connections: list[Connection] = []
        self.own: Process | None = None

    def known(self) -> Sequence[Address]:
        here = [process.address for process in self.cluster.alive() if process.place == self.place]
        return [address for address in dict.fromkeys([*self._known, *here]) if address not in self._given_up]

    def connect(self, address: Address) -> Waiting[HostChannel]:
        yield from ()
        process = self.cluster.at(address)
        unlucky = self.cluster.draw.random() < 0.02 and self.cluster.may_break()
        if process is None:
            raise HostUnreachable("nobody listens")
        if unlucky or not self.cluster.is_reachable(self.place[0], process):
            process.is_missed = True
            raise HostUnreachable("nobody listens")
        return self._connected(process)

    def give_up(self, address: Address) -> None:
        self._given_up.add(address)

    def start(self) -> Waiting[Address]:
        loop = asyncio.get_running_loop()
        until = loop.time() + _START_PATIENCE_SECONDS
        cluster = self.cluster
        if not cluster.is_startable:
            raise HostUnreachable("no host may be started here")
        for process in cluster.alive():
            if process.place == self.place and process.address in self._given_up:
                cluster.met["given up"] += 1
                process.kill()
        while any(process.place == self.place for process in cluster.alive()):
            if loop.time() >= until:
                raise HostUnreachable("another host has the place")
            yield
        return Process(cluster, self.place, self.parallelism, self.newest).address

    def in_task(self) -> Waiting[HostChannel]:
        _, generation, subtask = self.place
        yield
        self.own = Process(self.cluster, (None, generation, subtask), self.parallelism, self.newest)
        return self._connected(self.own)

    def end(self) -> None:
        """Give up what belongs to the task."""
        for connection in self.connections:
            connection.break_off()
        if self.own is not None:
            self.own.kill()

    def _connected(self, process: Process) -> Connection:
        connection = Connection(process, self.cluster.draw)
        self.connections.append(connection)
        return connection

    async def drive(self, steps: Waiting[Any]) -> Any:
        """Run a feeder's generator, and let time pass where it yields."""
        while True:
            try:
                next(steps)
            except StopIteration as end:
                return end.value
            waiting = [connection for connection in self.connections if not connection.is_broken]
            if waiting:
                await wait_for(waiting[-1].arrived, 2.0)
            else:
                await asyncio.sleep(0.5)


async def wait_for(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event, or some time has passed."""
    timer = asyncio.get_running_loop().call_later(seconds, event.set)
    await event.wait()
    timer.cancel()


class Cluster:
    """Everything that is shared by all drivers."""

    def __init__(self, scenario: Scenario, payments: Payments) -> None:
        self.scenario = scenario
        self.draw = scenario.random("cluster")
        self.storage = Storage(scenario)
        self.service = Service(scenario, payments)
        self.processes: list[Process] = []
        self.tasks: set[asyncio.Task[Any]] = set()
        self.is_startable = scenario.is_calm or self.draw.random() > 0.1
        self.machines = self.draw.choice((1, 1, 2))
        self.cut_off: set[int] = set()
        self.faults = 0
        self.steps = 0
        self.attempts: list[tuple[asyncio.Task[Any], Ways]] = []
        self.driver_must_die = False
        self.target = Target(self)
        self.ends = Counter[str]()
        self.met = Counter[str]()
        self.oracle: Any = None
        self.generation = ""
        self.lineage: str | None = None
        self.latest: Snapshot | None = None
        """The newest version as the driver knows it: it may have been told that the outcome of a commit is unknown."""
        self.sent: list[tuple[tuple[Any, ...], say.Hello]] = []

    def spawn(self, work: Any) -> asyncio.Task[Any]:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        """Forget a task; what it raised is whoever waits for it to judge, and nobody waits for a zombie's."""
        self.tasks.discard(task)
        if not task.cancelled():
            task.exception()

    def look(self) -> None:
        """Check the versions that have come."""
        for version in self.storage.look():
            self.oracle.look(version)

    def alive(self) -> list[Process]:
        return [process for process in self.processes if process.is_alive and process.is_resident]

    def at(self, address: Address) -> Process | None:
        return next((process for process in self.alive() if process.address == address), None)

    def is_reachable(self, machine: int, process: Process) -> bool:
        other = process.place[0]
        return other == machine or not {machine, other} & self.cut_off

    def may_break(self) -> bool:
        """Tell whether storage, a sink or a connection may fail, and count it."""
        return not self.scenario.is_calm and self.may_fail()

    def may_fail(self) -> bool:
        """Tell whether one more thing may go wrong, and count it."""
        if self.scenario.fault_rate == 0 or self.faults >= self.scenario.faults_max:
            return False
        self.faults += 1
        return True

    def happens(self, what: str, where: Process | Connection) -> None:
        """Note a step of the protocol, at which something may go wrong."""
        self.steps += 1
        if self.scenario.fault_at is not None and self.scenario.fault_at[0] == self.steps:
            self._go_wrong(self.scenario.fault_at[1], where)
        elif self.draw.random() < self.scenario.fault_rate and self.may_fail():
            self._go_wrong(self.draw.choice(self.scenario.faults), where)

    def _go_wrong(self, fault: str, where: Process | Connection) -> None:
        process = where if isinstance(where, Process) else where.process
        if fault == "kill host":
            process.kill()
        elif fault == "kill any host" and self.alive():
            self.draw.choice(self.alive()).kill()
        elif fault == "hang" and process.is_resident:
            process.is_hung = True
        elif fault == "break" and isinstance(where, Connection):
            where.break_off(is_seen=self.draw.random() < 0.5)
        elif fault == "kill task" and self.attempts:
            self.draw.choice(self.attempts)[0].cancel()
        elif fault == "kill driver":
            self.driver_must_die = True
        elif fault == "cut off":
            machine = self.draw.randrange(self.machines)
            self.cut_off.add(machine)
            asyncio.get_running_loop().call_later(self.draw.choice((5.0, 360.0)), self.cut_off.discard, machine)
            for each in process.connections:
                each.break_off(is_seen=False)
        elif fault == "replay":
            self._replay(process)
        elif fault == "stranger":
            self._strange(process)

    def _replay(self, process: Process) -> None:
        """What the network delivers twice, or late: a hello, or the stop of somebody who has been overtaken."""
        sent = [message for place, message in self.sent if place[1:] == process.place[1:]]
        if not sent:
            return
        message: say.Message = self.draw.choice(sent)
        if self.draw.random() < 0.5 and len(sent) > 1:
            hello = self.draw.choice(sent[:-1])
            message = say.Stop(hello.generation, hello.fence)
        ghost = Connection(process, self.draw)
        loop = asyncio.get_running_loop()
        loop.call_later(self.draw.choice((0.0, 3.0, 30.0)), ghost._deliver, message)
        loop.call_later(31.0, ghost.break_off)

    def _strange(self, process: Process) -> None:
        """Somebody who does not know the secret tries everything."""
        stranger = Connection(process, self.draw, proof=new_nonce())
        generation = process.place[1]
        hello = say.Hello(
            generation, Fence(10**6, 1), NewestManifest(None, None), "a stranger's", None, say.EpochEnd(0.0)
        )
        for message in (hello, say.Feed([Row(-1, "key 0")]), say.Stop(generation, Fence(10**6, 1))):
            stranger._deliver(message)

    async def close(self) -> None:
        """Give everything up."""
        for process in self.processes:
            process.kill()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*list(self.tasks), return_exceptions=True)
