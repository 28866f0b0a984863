"""When the function of a host hears that a snapshot is complete."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass, field
from pathlib import Path

from async_op.hosting import messages as say
from async_op.hosting.supervisor import HostSupervisor
from async_op.hosting.wire.sockets import connect
from tests.hosting.kit import GENERATION as RUN
from tests.hosting.kit import SECRET, Counting, Machine, OperatorFactory, epoch, hello, is_running, pid, wait_until
from tests.hosting.virtual_host import GENERATION, Calls, Kit, Run, hosted, restored


@dataclass
class Hearing(Calls):
    """Notes each version when its call begins and ends; the call takes a while."""

    heard: list[int] = field(default_factory=list)
    done: list[int] = field(default_factory=list)
    seconds: float = 0.0
    error: BaseException | None = None

    async def snapshot_complete(self, version: int) -> None:
        self.heard.append(version)
        await asyncio.sleep(self.seconds)
        if self.error is not None:
            raise self.error
        self.done.append(version)


async def renew(run: Run, cut_id: str | None) -> None:
    await run.host.answer("the driver", say.Renew(GENERATION, cut_id))
    await asyncio.sleep(0.1)


def test_the_next_hello_tells_that_the_last_cut_was_committed() -> None:
    function = Hearing()

    async def test(run: Run) -> None:
        await run.epoch(1.0)
        await asyncio.sleep(1.0)
        assert function.heard == []  # the part is only written
        await run.epoch(1.0)
        assert function.heard == [1]

    hosted(test, Kit(function))


def test_a_renewal_tells_once_and_only_of_the_cut_that_the_manifest_names() -> None:
    function = Hearing()

    async def test(run: Run) -> None:
        await run.epoch(1.0)
        await renew(run, None)
        await renew(run, "the cut of another host")
        assert function.heard == []
        await renew(run, run.cut_id)
        await renew(run, run.cut_id)
        assert function.heard == [1]
        await run.epoch(1.0)
        assert function.heard == [1]

    hosted(test, Kit(function))


def test_a_cut_that_was_replaced_is_never_told() -> None:
    function = Hearing()

    async def test(run: Run) -> None:
        await run.epoch(1.0)
        run.cut_id = "the cut of another attempt"
        assert await run.hello() == say.Refused("replace")
        await renew(run, run.cut_id)
        assert function.heard == []

    hosted(test, Kit(function))


def test_while_a_call_is_under_way_only_the_newest_version_waits() -> None:
    function = Hearing(seconds=100.0)

    async def test(run: Run) -> None:
        for _ in range(4):
            await run.epoch(1.0)
            await renew(run, run.cut_id)
        assert function.heard == [1]
        await asyncio.sleep(500.0)
        assert function.heard == function.done == [1, 4]

    hosted(test, Kit(function))


def test_its_error_is_that_of_the_next_epoch() -> None:
    function = Hearing(error=OSError("no acknowledgement"))

    async def test(run: Run) -> None:
        await run.epoch(1.0)
        await renew(run, run.cut_id)
        reply = await run.hello()
        assert isinstance(reply, say.Failed)
        assert reply.error is function.error

    hosted(test, Kit(function))


def test_what_is_due_is_told_before_the_function_is_closed() -> None:
    @dataclass
    class Closing(Hearing):
        async def close(self) -> None:
            self.done.append(-1)

    function = Closing(seconds=5.0)

    async def test(run: Run) -> None:
        await run.epoch(1.0)
        assert await run.hello(end=say.EpochEnd(is_final=True)) == say.Done()
        final = await run.cut()
        await run.host.answer("the driver", say.Committed(GENERATION, run.version, final.cut_id))
        assert run.host.ended.is_set()

    hosted(test, Kit(function))
    assert function.done == [1, 2, -1]


def test_an_operator_that_is_opened_with_a_snapshot_hears_of_it_first() -> None:
    function = Hearing()

    async def test(run: Run) -> None:
        assert function.done == [1]

    hosted(test, Kit(function), restore=restored())


class Noting(Counting):
    """Writes what it hears to its log, which is the host's."""

    async def snapshot_complete(self, version: int) -> None:
        os.write(1, f"complete: {version};".encode())


def test_a_driver_tells_hosts_without_waiting_for_the_next_epoch(machine: Machine) -> None:
    address = machine.start(factory=OperatorFactory(Noting))
    log, stopped = Path(address.log), pid(machine)
    with HostSupervisor(RUN, SECRET, 10.0**6) as supervisor:
        supervisor.report(0, address)
        first, *_ = epoch(connect(address, SECRET), hello())
        supervisor.announce({0: first})
        wait_until(lambda: "complete: 1;" in log.read_text())
        second, *_ = epoch(connect(address, SECRET), hello(1, 2, cut_id=first))
        supervisor.announce({0: second})
        wait_until(lambda: "complete: 2;" in log.read_text())
        supervisor.stop(2)
    wait_until(lambda: not is_running(stopped))
