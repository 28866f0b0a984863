"""Hosts as real processes: they are killed at every phase, hang, eat, are not reachable, and leave nothing behind."""

from __future__ import annotations

import fcntl
import itertools
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path

import pytest

from async_op import ElementFailed
from async_op.errors import OpenFailed
from async_op.hosting import messages as say
from async_op.hosting import supervisor
from async_op.hosting.diagnostics import noted_blocking
from async_op.hosting.errors import FeederFenced, HostLost, HostSilent, HostUnreachable
from async_op.hosting.feeder import Feeder
from async_op.hosting.fencing import NewestManifest
from async_op.hosting.messages import Address
from async_op.hosting.process import fork_server, host_files, host_process, local_hosts
from async_op.hosting.process.fork_server import watch
from async_op.hosting.process.host_files import files_of, sweep
from async_op.hosting.process.launch import launch
from async_op.hosting.supervisor import HostSupervisor
from async_op.hosting.wire import frames, socket_paths
from async_op.hosting.wire.socket_paths import PATH_BYTES_MAX
from async_op.hosting.wire.sockets import SocketChannel, connect, connecting
from async_op.threads.wait_strategies import ParkWait, ProgressiveWait, WaitSituation, WaitStrategies, WaitStrategy
from async_op.threads.waits import Waits
from snapshots import SnapshotStore
from tests.hosting import kit
from tests.hosting.kit import (
    GENERATION,
    IMPATIENT,
    SECRET,
    BlockingOpen,
    FailingOpen,
    Machine,
    OperatorFactory,
    Releasing,
    StuckClose,
    driven,
    epoch,
    hello,
    is_running,
    left,
    pid,
    rows,
    task,
    tell_soon,
    wait_for,
    wait_until,
)
from tests.left_processes import LeavesProcesses
from tests.quick import first_is_quick
from tests.threads import threads_since


def test_an_operator_continues_from_epoch_to_epoch(machine: Machine) -> None:
    address = machine.start()

    cut_id, outputs, _ = epoch(connect(address, SECRET), hello(), [rows("a", "b")])
    assert outputs == [("a", 1), ("b", 1)]
    _, outputs, _ = epoch(connect(address, SECRET), hello(1, 2, cut_id=cut_id), [rows("a")])
    assert outputs == [("a", 2)]


@pytest.mark.parametrize("strategy", [ParkWait(60), ParkWait(0), ProgressiveWait()], ids=str)
def test_a_feeder_waits_as_it_is_told(machine: Machine, strategy: WaitStrategy, tmp_path: Path) -> None:
    released = tmp_path / "released"
    waits = Waits(WaitStrategies(consume=Releasing(strategy, released), back_pressure=strategy))
    slow = rows("slow", action=str(released))
    _, outputs, _ = epoch(connect(machine.start(), SECRET, waits=waits), hello(), [slow])
    assert outputs == [("slow", 1)]
    assert waits.seconds[WaitSituation.CONSUME] > 0


def test_a_call_outlives_its_epoch_and_is_delivered_with_the_next(machine: Machine, tmp_path: Path) -> None:
    address = machine.start()
    released = tmp_path / "released"

    slow = rows("slow", action=str(released))
    cut_id, outputs, in_flight = epoch(connect(address, SECRET), hello(timeout=0.0), [slow])
    assert (outputs, in_flight) == ([], ["slow"])
    released.touch()
    _, outputs, in_flight = epoch(connect(address, SECRET), hello(1, 2, cut_id=cut_id))
    assert (outputs, in_flight) == ([("slow", 1)], [])


def test_a_part_is_a_snapshot_s_and_a_new_host_restores_it(machine: Machine, tmp_path: Path) -> None:
    store = SnapshotStore(str(tmp_path), "operator")
    pending = store.begin()
    address = machine.start()
    feeder = Feeder(connect(address, SECRET))
    assert driven(feeder.hello(replace(hello(), end=say.EpochEnd(is_final=True)))) is None
    driven(feeder.feed([rows("a", "a", "b")]))
    driven(feeder.settle())
    ((handle, _),) = [driven(feeder.cut(say.Cut(1, target=pending))).handle]
    feeder.close()
    snapshot = pending.commit([handle])
    with HostSupervisor(GENERATION, SECRET) as supervisor:
        supervisor.report(0, address)
        supervisor.committed(1)
    assert sorted(snapshot.to_arrow("count").column("value").to_pylist()) == [1, 2]

    place = machine.instructions().place
    wait_until(lambda: not place.lock.exists())
    address = machine.start(restore=snapshot.restore(0), manifest_id=snapshot.manifest.snapshot_id)
    greeting = replace(hello(1, 5), manifest=NewestManifest(snapshot.manifest.snapshot_id, None))
    assert epoch(connect(address, SECRET), greeting, [rows("a")])[1] == [("a", 3)]


def kill(machine: Machine) -> None:
    killed = pid(machine)
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: not is_running(killed))


def step_nothing(feeder: Feeder) -> None:
    """Killed while idle."""


def step_hello(feeder: Feeder) -> None:
    assert driven(feeder.hello(hello())) is None


def step_feed(feeder: Feeder) -> None:
    step_hello(feeder)
    driven(feeder.feed([rows("a", seconds=60.0)]))


def step_cut(feeder: Feeder) -> None:
    assert driven(feeder.hello(hello(timeout=0.0))) is None
    driven(feeder.feed([rows("a", seconds=60.0)]))
    driven(feeder.cut(say.Cut(1)))


@pytest.mark.parametrize("before", [step_nothing, step_hello, step_feed, step_cut])
def test_a_host_that_is_killed_at_any_phase_is_noticed_and_replaced(
    machine: Machine, before: Callable[[Feeder], None]
) -> None:
    feeder = Feeder(connect(machine.start(), SECRET))
    before(feeder)

    kill(machine)
    with pytest.raises(HostLost):
        driven(feeder.settle())
    feeder.close()

    (_, outputs, _), _ = task(machine.ways(), hello(0, 2), [rows("a")])
    assert outputs == [("a", 1)]


def test_a_task_that_left_half_way_has_its_host_replaced(machine: Machine) -> None:
    address = machine.start()
    first = pid(machine)
    feeder = Feeder(connect(address, SECRET))
    step_feed(feeder)
    feeder.close()
    attempts = count(2)

    def refused() -> str | None:
        second = Feeder(connect(address, SECRET))
        reason: str | None = driven(second.hello(hello(0, next(attempts))))
        second.close()
        return reason

    wait_until(lambda: refused() == "replace")  # "busy" until the host has seen the first one go
    (_, outputs, _), _ = task(machine.ways([address]), hello(0, next(attempts)), [rows("a")])

    assert outputs == [("a", 1)]
    assert pid(machine) != first


def test_an_older_attempt_is_fenced_and_a_second_one_kept_out(machine: Machine) -> None:
    address = machine.start()
    feeder = Feeder(connect(address, SECRET))
    assert driven(feeder.hello(hello(0, 7))) is None

    with pytest.raises(FeederFenced):
        task(machine.ways([address]), hello(0, 6))
    second = Feeder(connect(address, SECRET))
    assert driven(second.hello(replace(hello(0, 8), job=hello(0, 7).job))) == "busy"
    second.close()
    driven(feeder.settle())
    feeder.close()


@pytest.mark.parametrize("action", first_is_quick(["block", "hold the interpreter"]))
def test_a_function_that_blocks_the_loop_is_an_error_that_names_the_log(machine: Machine, action: str) -> None:
    address = machine.start(**IMPATIENT)
    hanging = pid(machine)
    channel = connect(address, SECRET)
    feeder = Feeder(channel)
    step_hello(feeder)
    channel._patience_seconds = IMPATIENT["patience_seconds"]  # not before: a busy host may be as silent
    with pytest.raises(HostSilent, match="no sign of life") as lost:
        driven(feeder.feed([rows("a", seconds=600.0, action=action)]))
        driven(feeder.settle())
    feeder.close()

    assert lost.value.log == address.log
    line = "has blocked its event loop, at" in str(lost.value)
    assert line is (action == "block"), "nothing else runs in a process whose interpreter is held"
    wait_until(lambda: "async_invoke" in Path(address.log).read_text())
    wait_until(lambda: not is_running(hanging))


@pytest.mark.skipif(sys.platform != "linux", reason="only a fork server sees how its hosts end")
@pytest.mark.parametrize(
    ("action", "how"), [("die", "by SIGKILL"), ("segfault", "by SIGSEGV"), ("exit", "with status 3")]
)
def test_a_function_that_dies_is_an_error_that_names_the_log_and_how(machine: Machine, action: str, how: str) -> None:
    address = machine.start()
    feeder = Feeder(connect(address, SECRET))
    step_hello(feeder)
    with pytest.raises(HostLost, match="has ended") as lost:
        driven(feeder.feed([rows("a", action=action)]))
        driven(feeder.settle())
    feeder.close()

    assert lost.value.log == address.log
    assert lost.value.what == f"has ended {how}"


def test_what_a_function_prints_is_in_the_log_at_once(machine: Machine) -> None:
    address = machine.start()
    epoch(connect(address, SECRET), hello(timeout=0.0), [rows("a", action="print"), rows("b", seconds=600.0)])
    wait_until(lambda: "printed by the function" in Path(address.log).read_text())


def test_a_segfault_leaves_its_stack_in_the_log(machine: Machine) -> None:
    address = machine.start()
    feeder = Feeder(connect(address, SECRET))
    step_hello(feeder)
    with pytest.raises(HostLost, match="has ended"):
        driven(feeder.feed([rows("a", action="segfault")]))
        driven(feeder.settle())
    feeder.close()

    told = Path(address.log).read_text()
    assert "Segmentation fault" in told
    assert "async_invoke" in told


@pytest.mark.thorough
def test_a_host_that_is_stopped_is_told_of_and_replaced_for_good(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "_ANSWER_SECONDS", 0.2)
    address = machine.start()
    stopped = pid(machine)
    with HostSupervisor(GENERATION, SECRET) as watching:
        watching.report(3, address)
        assert watching.poll()
        os.kill(stopped, signal.SIGSTOP)
        watching.report(3, address)
        for _ in "twice":
            assert not watching.poll()
    [told] = [record.getMessage() for record in caplog.records if "has not answered" in record.getMessage()]
    assert "subtask 3" in told
    assert address.process in told
    assert address.log in told

    (_, outputs, _), _ = task(machine.ways(), hello(0, 2), [rows("a")])
    assert outputs == [("a", 1)]
    wait_until(lambda: not is_running(stopped))


def test_a_host_that_was_given_up_is_killed_at_once(machine: Machine) -> None:
    given_up = machine.start()
    before = pid(machine)
    address = machine.start(given_up=given_up.process)
    assert address.process != given_up.process
    wait_until(lambda: not is_running(before))


def test_a_host_that_cannot_answer_tells_what_blocks_it_and_its_successor_does_not(machine: Machine) -> None:
    address = machine.start()
    notes = machine.instructions().place.blocking
    feeder = Feeder(connect(address, SECRET))
    step_hello(feeder)
    driven(feeder.feed([rows("a", seconds=5.0, action="block")]))
    driven(feeder.settle())
    [noted] = noted_blocking(notes)
    assert (noted.module, noted.function) == ("tests.hosting.kit", "Counting.async_invoke")
    found = local_hosts.found_at(Path(address.path))
    assert (found.process, found.log) == (address.process, address.log)
    feeder.close()

    machine.start(given_up=address.process)
    assert noted_blocking(notes) == []


def test_a_host_that_was_stopped_before_it_was_asked_is_told_of(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(supervisor, "_ANSWER_SECONDS", 0.2)
    address = machine.start()
    stopped = pid(machine)
    os.kill(stopped, signal.SIGSTOP)
    with HostSupervisor(GENERATION, SECRET) as watching:
        watching.report(3, address)
        watching.report(4, Address("/nowhere.sock", log="no log", process="nobody"))
        assert not watching.poll()
    os.kill(stopped, signal.SIGCONT)
    [told] = [record.getMessage() for record in caplog.records if "has not answered" in record.getMessage()]
    assert f"subtask 3 (process {address.process})" in told


def test_a_host_that_is_told_to_end_within_an_epoch_is_lost_and_has_not_failed(machine: Machine) -> None:
    feeder = Feeder(connect(machine.start(), SECRET))
    step_hello(feeder)
    driven(feeder.feed([rows("a", seconds=600.0)]))

    os.kill(pid(machine), signal.SIGTERM)
    with pytest.raises(HostLost):
        driven(feeder.settle())
    feeder.close()


def test_the_log_of_a_host_that_does_not_start_says_why(machine: Machine) -> None:
    with pytest.raises(HostUnreachable, match="ZeroDivisionError.*its log is") as refused:
        driven(launch(replace(machine.instructions(), prepare=partial(divmod, 1, 0))))

    assert "ZeroDivisionError" in Path(refused.value.reason.rpartition("its log is ")[2].rstrip(")")).read_text()


def test_a_host_that_does_not_listen_in_time_is_let_go_of_and_ends(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = fork_server.heard  # it is heard for a second from its fork on, however long its fork server takes to start
    monkeypatch.setattr(fork_server, "heard", lambda connected, until: heard(connected, time.monotonic() + 1))
    before, released = set(threading.enumerate()), tmp_path / "released"
    late = replace(machine.instructions(), prepare=partial(wait_for, str(released)))
    with pytest.raises(HostUnreachable, match=r"open\(\) of the function has not returned after"):
        driven(launch(late))

    # Nobody is left who could read from a descriptor that has come to be somebody else's.
    assert threads_since(before) == []
    released.touch()
    wait_until(lambda: "the task that has started this host has ended" in late.place.log.read_text())
    wait_until(lambda: not late.place.lock.exists())


def test_a_function_that_eats_its_memory_fails_its_element(machine: Machine) -> None:
    feeder = Feeder(connect(machine.start(), SECRET))
    step_hello(feeder)

    with pytest.raises(ElementFailed, match="MemoryError"):
        driven(feeder.feed([rows("a", action="eat")]))
        driven(feeder.settle())
    feeder.close()


def test_an_error_of_open_fails_the_first_epoch(machine: Machine) -> None:
    address = machine.start(factory=OperatorFactory(FailingOpen))

    with pytest.raises(OpenFailed, match=r'open\(\) of FailingOpen has failed at ".*kit.py", line') as failed:
        task(machine.ways([address]), hello())
    assert failed.value.cause == "ConnectionError: no service"
    assert 'raise ConnectionError("no service")' in "".join(failed.value.__notes__)


def test_an_open_may_block_for_longer_than_a_host_may_be_silent_and_the_log_says_where_it_is(
    machine: Machine, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    released = tmp_path / "released"
    factory = OperatorFactory(partial(BlockingOpen, str(released)))
    impatient = machine.instructions(factory, lease_seconds=0.5, patience_seconds=0.5)
    starting = launch(replace(impatient, prepare=tell_soon))

    def started() -> Address | None:
        try:
            next(starting)
        except StopIteration as end:
            return end.value
        if caplog.text.count("is still in open()") > 3:  # after 0.1, 0.3, 0.7 and 1.5 seconds
            released.touch()
        return None

    wait_until(lambda: started() is not None)
    assert "the host of subtask 0 is still in open() of its function after" in caplog.text
    # Not caplog.text: PySpark may have given its handler a formatter that writes JSON.
    assert f'at "{kit.__file__}", line' in "".join(caplog.messages)


def test_a_host_whose_driver_is_silent_ends_with_its_lease(machine: Machine) -> None:
    machine.start(**IMPATIENT)
    silent = pid(machine)

    wait_until(lambda: not is_running(silent))
    assert left(machine) == []


def test_a_host_ends_with_what_it_watches(machine: Machine) -> None:
    parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    watched = watch(parent.pid)
    assert watched is not None
    machine.start(watched=watched)
    os.close(watched)
    orphan = pid(machine)

    parent.kill()
    parent.wait()
    assert parent.stdin is not None
    parent.stdin.close()

    wait_until(lambda: not is_running(orphan))
    assert left(machine) == []


@pytest.mark.thorough
def test_a_function_that_does_not_close_is_not_waited_for(machine: Machine) -> None:
    machine.start(factory=OperatorFactory(StuckClose))
    stuck = pid(machine)

    os.kill(stuck, signal.SIGTERM)

    wait_until(lambda: not is_running(stuck), seconds=60.0)
    assert left(machine) == []


def test_the_processes_of_a_function_end_with_its_host(machine: Machine) -> None:
    address = machine.start(factory=OperatorFactory(LeavesProcesses))
    _, outputs, _ = epoch(connect(address, SECRET), hello(), [rows("a")])
    assert all(map(is_running, outputs))

    os.kill(pid(machine), signal.SIGTERM)

    wait_until(lambda: not any(map(is_running, outputs)))


def test_a_host_stays_in_the_group_and_is_nobody_s_child(machine: Machine) -> None:
    machine.start()
    group, parent = (int(field) for field in _stat(pid(machine))[2:0:-1])

    assert group == os.getpgrp()
    assert parent != os.getpid()


def test_no_connection_of_a_host_gets_the_descriptor_of_a_standard_stream(machine: Machine) -> None:
    address = machine.start()
    connected = [connect(address, SECRET) for _ in range(3)]
    own = Path(f"/proc/{pid(machine)}/fd")
    streams = [str((own / str(number)).readlink()) for number in range(3)]
    for channel in connected:
        channel.close()
    assert streams == [os.devnull, address.log, address.log]


@pytest.mark.thorough
def test_there_is_one_host_of_a_subtask_on_a_machine(machine: Machine) -> None:
    machine.start()

    with pytest.raises(HostUnreachable, match="another host"):
        machine.start()


def test_what_killed_hosts_have_left_is_removed_by_the_next(machine: Machine) -> None:
    machine.start()
    kill(machine)
    assert left(machine) != []

    (_, outputs, _), _ = task(machine.ways(), hello(), [rows("a")])
    assert outputs == [("a", 1)]


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Give a folder in which a socket may be: the path of one is limited, and `tmp_path` is long."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_logs_of_hosts_that_were_killed_and_replaced_go_once_their_run_is_over(short_path: Path) -> None:
    ours = short_path / "ours"
    ours.mkdir()
    logs = {}
    for content, age in itertools.product(("", "a traceback"), (0, 3600)):
        place = files_of(f"run {content} {age}", GENERATION, 0, str(short_path))
        place.open_log().close()
        place.log.write_text(content)
        at = ours.stat().st_mtime - age
        os.utime(place.log, (at, at))
        logs[content, age] = place.log
    place = files_of("run that lives", GENERATION, 0, str(short_path))
    place.open_log().close()
    os.utime(place.log, (0, 0))
    held = place.try_lock()

    sweep(ours)

    assert {which for which, log in logs.items() if not log.exists()} == {("", 3600)}
    assert not logs["", 3600].parent.exists()
    assert place.log.exists()
    assert held is not None
    os.close(held)


def test_the_newest_logs_of_all_runs_are_kept_and_those_in_use(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(host_files, "LOGS_MAX", 2)
    logs = []
    for age in range(6):
        place = files_of(f"run {age % 2}", GENERATION, 0, str(short_path))
        with place.open_log() as log:
            log.write(b"a traceback")
        os.utime(place.log, (1e9 - age, 1e9 - age))
        logs.append(place.log)
    with logs[3].open("ab") as elsewhere, files_of("run 1", GENERATION, 1, str(short_path)).open_log():
        fcntl.flock(elsewhere, fcntl.LOCK_EX)
        sweep(logs[0].parent)

    assert [log.exists() for log in logs] == [True, True, False, True, False, False]


def test_the_log_of_a_host_that_lives_is_kept(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_files, "LOGS_MAX", 0)
    log = Path(machine.start().log)
    log.write_text("printed")

    def is_kept() -> bool:
        sweep(log.parent)
        return log.exists()

    assert is_kept()
    kill(machine)
    wait_until(lambda: not is_kept())  # once the last of its threads has ended


@pytest.mark.parametrize("trap", ["a folder that others can open", "a link to a folder", "a link as lock"])
def test_what_others_have_laid_out_as_a_trap_is_not_touched(tmp_path: Path, trap: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    laid = tmp_path / f"keygroups-{os.getuid()}-trap"
    if trap == "a link to a folder":
        (elsewhere / "x.lock").touch()
        laid.symlink_to(elsewhere)
    else:
        laid.mkdir(mode=0o755 if trap == "a folder that others can open" else 0o700)
        (laid / "x.lock").symlink_to(elsewhere / "made")
    (tmp_path / "ours").mkdir()
    before = {str(path) for path in tmp_path.rglob("*")}

    sweep(tmp_path / "ours")

    assert {str(path) for path in tmp_path.rglob("*")} == before


def test_a_log_that_has_grown_too_long_is_truncated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_process, "LOG_BYTES_MAX", 100)
    path = tmp_path / "log"
    with path.open("ab", buffering=0) as log:
        log.write(b"x" * 100)
        host_process._bound_log(log.fileno())
        assert path.stat().st_size == 100
        log.write(b"y")
        host_process._bound_log(log.fileno())
        log.write(b"and so on")

    assert path.read_bytes() == b"(over 0 MiB of output were removed here)\nand so on"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere an open folder has no short name")
def test_hosts_and_their_fork_server_live_in_a_folder_with_a_long_path(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ("x" * PATH_BYTES_MAX)
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    place = files_of("run", GENERATION, 0, str(folder))

    address = driven(launch(replace(machine.instructions(), place=place)))

    assert epoch(connect(address, SECRET), hello(), [rows("a")])[1] == [("a", 1)]
    assert len(list(folder.glob("*/*.sock"))) == 2
    host = int(address.process.rpartition(":")[2])
    os.kill(host, signal.SIGTERM)
    wait_until(lambda: not is_running(host))
    assert not place.socket.exists()


def test_a_path_that_is_too_long_is_refused_where_no_shorter_one_can_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket_paths, "_OPEN_FILES", tmp_path / "none")
    folder = tmp_path / ("x" * PATH_BYTES_MAX)
    folder.mkdir()

    with pytest.raises(HostUnreachable, match="over 107 bytes"):
        files_of("run", GENERATION, 0, str(folder))


def test_a_folder_that_cannot_be_made_is_refused(machine: Machine) -> None:
    file = machine.folder / "f"
    file.touch()

    with pytest.raises(HostUnreachable, match="cannot be made"):
        files_of("run", GENERATION, 0, str(file))
    file.unlink()


def test_a_folder_that_is_open_to_others_is_refused(machine: Machine) -> None:
    parent = str(machine.folder)
    files_of("another run", GENERATION, 0, parent).folder.chmod(0o755)

    with pytest.raises(HostUnreachable, match="open to others"):
        files_of("another run", GENERATION, 0, parent)


def test_a_host_is_reached_by_tcp_where_its_socket_is_not_there(machine: Machine) -> None:
    address = machine.start(interface="127.0.0.1")
    elsewhere = address._replace(path="/nowhere")

    assert epoch(connect(elsewhere, SECRET), hello(), [rows("a")])[1] == [("a", 1)]


def test_what_a_host_has_is_for_its_user_and_shows_no_secret(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("API_TOKEN", "hunter2")
    address = machine.start()
    place, pid = Path(address.path).parent, int(address.process.rpartition(":")[2])
    shown = [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
    with pytest.raises(HostLost):
        epoch(connect(address, SECRET), hello(), [rows("a", action="die")])
    log = Path(address.log).read_bytes()

    assert place.stat().st_mode & 0o777 == 0o700
    assert not any(SECRET in one for one in (*shown, log))
    assert b"hunter2" not in log
    assert "secret" not in repr(machine.instructions())


def test_a_client_without_the_secret_is_not_let_in(machine: Machine) -> None:
    address = machine.start(interface="127.0.0.1")

    with pytest.raises(HostUnreachable):
        connect(address, b"another")
    stranger = socket.create_connection((address.host, address.port))
    stranger.sendall(b"x" * 64 + b"\x80\x04.")
    wait_until(lambda: _is_hung_up(stranger))
    stranger.close()
    assert epoch(connect(address, SECRET), hello(), [rows("a")])[1] == [("a", 1)]


@pytest.mark.parametrize(
    ("greeting", "proof", "reason"),
    [
        (b"keygroups-host-1" + b"n" * 32, b"p" * 32, "the host's proof is wrong"),
        (b"keygroups-host-1" + b"n" * 32, b"p" * 31, "it closed the connection"),
        (b"keygroups-host-1", b"", "it closed the connection"),
        (b"HTTP/1.1 400 Bad Request" + b" " * 24, b"", "it is not a host"),
    ],
)
def test_a_feeder_does_not_believe_a_stranger(greeting: bytes, proof: bytes, reason: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        def lie() -> None:
            accepted, _ = server.accept()
            with accepted:
                accepted.sendall(greeting)
                if proof:
                    accepted.recv(64)
                    accepted.sendall(proof)
                accepted.shutdown(socket.SHUT_WR)
                while accepted.recv(64):
                    pass

        lying = threading.Thread(target=lie)
        lying.start()
        with pytest.raises(HostUnreachable, match=reason):
            connect(Address("/nowhere", "127.0.0.1", port), SECRET)
        lying.join()


def test_a_task_that_waits_for_a_greeting_has_its_turn_meanwhile_and_may_leave(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "s"))
        silent.listen()
        steps = connecting(Address(str(tmp_path / "s")), SECRET)
        next(steps)
        next(steps)
        accepted, _ = silent.accept()
        with accepted:
            steps.close()
            assert accepted.recv(1) == b""


def test_how_long_a_host_has_been_silent_is_known_while_it_is_waited_for() -> None:
    ours, theirs = socket.socketpair()
    channel = SocketChannel(ours, Address("", log="the log"))
    with theirs:
        wait_until(lambda: channel.receive() is not None or channel.silent_seconds > 0.2)
        theirs.sendall(frames.alive())
        channel.wait(60)
        assert channel.silent_seconds == 0
    channel.close()


def test_a_host_that_sends_what_is_no_reply_is_lost() -> None:
    ours, theirs = socket.socketpair()
    channel = SocketChannel(ours, Address("", log="the log"))
    with theirs:
        theirs.sendall(b"\xff" * frames.HEADER_BYTES)
        with pytest.raises(HostLost, match="no reply .* bytes"):
            wait_until(lambda: channel.receive() is not None)
    channel.close()


def test_a_host_has_the_limits_of_who_starts_it(machine: Machine) -> None:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (777, limits[1]))
    try:
        machine.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)

    assert "777" in Path(f"/proc/{pid(machine)}/limits").read_text()


def test_a_thousand_epochs_leave_files_and_sockets_level(machine: Machine) -> None:
    address = machine.start()
    open_files = Path(f"/proc/{pid(machine)}/fd")
    cut_id = epoch(connect(address, SECRET), hello())[0]
    before = len(list(open_files.iterdir()))
    for version in range(1, 200):
        cut_id = epoch(connect(address, SECRET), hello(version, version + 1, cut_id=cut_id), [rows("a")])[0]

    wait_until(lambda: len(list(open_files.iterdir())) <= before)


def _stat(process: int) -> list[str]:
    return Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()


def _is_hung_up(connected: socket.socket) -> bool:
    connected.settimeout(0.01)
    try:
        return connected.recv(1000) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True
