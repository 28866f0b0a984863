"""The driver's side of hosts: leases, questions to all of them, and hosts that do not answer."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from async_op import ElementFailed
from async_op.hosting import messages as say
from async_op.hosting import supervisor as supervisor_module
from async_op.hosting.errors import HostFailed, HostUnreachable
from async_op.hosting.feeder import Feeder
from async_op.hosting.messages import Address
from async_op.hosting.process.host_files import files_of
from async_op.hosting.process.launch import launch
from async_op.hosting.supervisor import HostSupervisor
from async_op.hosting.wire.sockets import SocketChannel, connect
from async_op.threads.wait_strategies import WaitSituation
from keygroups import KeyGroupsError
from tests.hosting.kit import (
    GENERATION,
    SECRET,
    Counting,
    Machine,
    OperatorFactory,
    driven,
    epoch,
    hello,
    is_running,
    left,
    pid,
    rows,
    task,
    wait_until,
)


def test_a_failure_between_two_epochs_fails_the_next_one(machine: Machine, tmp_path: Path) -> None:
    released = tmp_path / "released"
    address = machine.start(factory=OperatorFactory(capacity=1))
    greeting = hello(timeout=0.0)
    cut_id, *_ = epoch(connect(address, SECRET), greeting, [rows("a", action=str(released)), rows("b", action="fail")])
    released.touch()
    with HostSupervisor(GENERATION, SECRET) as supervisor:
        supervisor.report(0, address)
        wait_until(lambda: supervisor.poll()[0].failure is not None)

    with pytest.raises(ElementFailed, match="ValueError: b"):
        task(machine.ways([address]), hello(1, 2, cut_id=cut_id))


def test_a_host_that_is_told_to_stop_leaves_nothing_behind(machine: Machine) -> None:
    address = machine.start()
    stopped = pid(machine)

    with HostSupervisor(GENERATION, SECRET) as supervisor:
        supervisor.report(0, address)
        supervisor.stop(0)

    wait_until(lambda: not is_running(stopped))
    assert left(machine) == []


@pytest.mark.thorough
def test_a_driver_that_lives_keeps_its_hosts(machine: Machine) -> None:
    lease_seconds = 16.0  # a busy machine may hold up a renewal for ten
    address = machine.start(lease_seconds=lease_seconds)
    with HostSupervisor(GENERATION, SECRET, lease_seconds) as supervisor:
        supervisor.report(0, address)
        channel = connect(address, SECRET)
        feeder = Feeder(channel)
        assert driven(feeder.hello(hello(timeout=1.25 * lease_seconds))) is None
        # Whatever a function does to its output, the host goes on.
        driven(feeder.feed([rows("b", action="redirect"), rows("a", seconds=600.0)]))
        driven(feeder.settle())
        feeder.close()
        assert supervisor.poll()[0].in_flight == 1


def test_hosts_that_do_not_answer_hold_up_neither_the_others_nor_reports(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = machine.start()
    silent = [Address(f"/nowhere/{number}.sock") for number in range(5)]
    trying, given_up = threading.Barrier(len(silent) + 1), threading.Event()

    def connect_or_wait(address: Address, *options: Any) -> SocketChannel:
        if address not in silent:
            return connect(address, *options)
        trying.wait()  # all of them at once, or never
        given_up.wait()
        raise HostUnreachable("nobody is there")

    monkeypatch.setattr(supervisor_module, "connect", connect_or_wait)
    with HostSupervisor(GENERATION, SECRET) as supervisor, ThreadPoolExecutor(1) as pool:
        for subtask, one in enumerate([address, *silent]):
            supervisor.report(subtask, one)
        polled = pool.submit(supervisor.poll)
        trying.wait()
        supervisor.report(1, None)
        given_up.set()

        assert list(polled.result()) == [0]
        assert list(supervisor.poll()) == [0]


def test_a_host_that_moves_is_asked_where_it_is_now(machine: Machine) -> None:
    address = machine.start()
    with HostSupervisor(GENERATION, SECRET) as supervisor:
        supervisor.report(0, Address("/nowhere.sock"))
        assert supervisor.poll() == {}
        supervisor.report(0, address)
        assert list(supervisor.poll()) == [0]
        supervisor.report(0, None)
        assert supervisor.poll() == {}


class OnHostsOnly(KeyGroupsError):
    """Can be unpickled in hosts, as if the driver did not have its module. An error of the library is sent as it is."""

    def __reduce__(self) -> tuple[Any, ...]:
        return _on_hosts_only, (os.getpid(),)


def _on_hosts_only(pickled_in: int) -> OnHostsOnly:
    if os.getpid() != pickled_in:
        raise ModuleNotFoundError("No module named 'on_hosts_only'")
    return OnHostsOnly()


class FailingElsewhere(Counting):
    async def open(self, runtime: Any) -> None:
        raise OnHostsOnly


def test_an_error_that_is_unknown_here_is_told_as_text_and_leaves_the_replies_of_others_in_place(
    machine: Machine,
) -> None:
    failing = machine.start(factory=OperatorFactory(FailingElsewhere))
    good = replace(machine.instructions(), place=files_of("run", GENERATION, 1, str(machine.folder)))
    with HostSupervisor(GENERATION, SECRET) as supervisor:
        supervisor.report(0, failing)
        supervisor.report(1, driven(launch(good)))
        wait_until(lambda: list(supervisor.poll()) == [1])
        for version in range(3):
            supervisor.committed(version)
            assert list(supervisor.poll()) == [1]
        supervisor.report(0, None)
        assert list(supervisor.poll()) == [1]
        supervisor.stop(0)

    channel = connect(failing, SECRET)
    feeder = Feeder(channel)
    for attempt in (1, 2):
        with pytest.raises(HostFailed, match="cannot be read here .ModuleNotFoundError"):
            driven(feeder.hello(hello(attempt=attempt)))
    feeder.close()


@pytest.mark.parametrize("raised", [RuntimeError, KeyboardInterrupt])
def test_a_reply_that_is_not_read_is_not_taken_for_the_next_one(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, raised: type[BaseException]
) -> None:
    address = machine.start()
    receive, failures = SocketChannel.receive, [raised]

    def receive_or_fail(channel: SocketChannel, situation: WaitSituation = WaitSituation.CONSUME) -> say.Reply | None:
        if failures and threading.current_thread() is threading.main_thread():
            raise failures.pop()
        return receive(channel, situation)

    monkeypatch.setattr(SocketChannel, "receive", receive_or_fail)
    with HostSupervisor(GENERATION, SECRET) as supervisor:
        supervisor.report(0, address)
        with pytest.raises(KeyboardInterrupt) if raised is KeyboardInterrupt else nullcontext():
            supervisor.committed(1)
        assert isinstance(supervisor.poll()[0], say.Status)
