"""Hosts are forked by a fork server: one for each owner, which ends with it, and is replaced when it is lost."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from async_op.hosting.diagnostics import how_ended
from async_op.hosting.messages import Address
from async_op.hosting.process import fork_server
from async_op.hosting.process import launch as launching
from async_op.hosting.process.fork_server import watch
from async_op.hosting.process.host_files import files_of
from async_op.hosting.process.host_process import Instructions
from async_op.hosting.process.launch import launch
from async_op.hosting.wire.sockets import connect
from tests.hosting.kit import (
    GENERATION,
    SECRET,
    Machine,
    OperatorFactory,
    driven,
    epoch,
    hello,
    is_running,
    rows,
    settings,
    wait_until,
)
from tests.quick import first_is_quick

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere each host is a fresh interpreter")


class Owner:
    """A process that fork servers and hosts must not outlive, and the hosts that are started under it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        watched = watch(self.process.pid)
        assert watched is not None
        self.watched = watched

    def instructions(self, subtask: int = 0, **changes: Any) -> Instructions:
        made = Instructions(
            place=files_of("run", GENERATION, subtask, str(self.folder)),
            secret=SECRET,
            factory=pickle.dumps(OperatorFactory()),
            settings=settings(),
            watched=self.watched,
        )
        return replace(made, **changes)

    def start(self, subtask: int = 0, **changes: Any) -> int:
        return process_of(driven(launch(self.instructions(subtask, **changes))))

    def end(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdin is not None
        self.process.stdin.close()


@pytest.fixture
def owner(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owner]:
    made = Owner(tmp_path_factory.mktemp("h"))
    yield made
    made.end()
    os.close(made.watched)


def process_of(address: Address) -> int:
    return int(address.process.rpartition(":")[2])


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[1])


def fork_servers_of(owner: Owner) -> list[int]:
    """Return the fork servers of an owner: one of their arguments is their folder."""
    folder = str(files_of(fork_server._name_of(owner.watched, launching.COMMON_MODULES), "", 0).folder)
    found = []
    for one in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if folder in one.read_text().split("\0"):
                found.append(int(one.parent.name))
    return found


def note(path: str) -> None:
    """Write down, in a host, what it has of the process that started it."""
    facts = {
        "environment": dict(os.environ),
        "folder": str(Path.cwd()),
        "path": sys.path,
        "descriptors": sorted(str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()),
        "random": (random.random(), float(np.random.random())),
        "threads": threading.active_count(),
        "modules": set(sys.modules),
    }
    Path(path).write_bytes(pickle.dumps(facts))


def noted(path: Path) -> dict[str, Any]:
    return pickle.loads(path.read_bytes())


def test_the_hosts_of_one_owner_have_one_fork_server_and_those_of_another_have_another(
    owner: Owner, machine: Machine
) -> None:
    first, second = owner.start(0), owner.start(1)
    stranger = process_of(machine.start())

    assert parent_of(first) == parent_of(second)
    assert parent_of(first) not in (os.getpid(), parent_of(stranger), 1)


def test_a_fork_server_that_was_begun_early_forks_the_first_host(owner: Owner) -> None:
    fork_server.begin(owner.watched, launching.COMMON_MODULES)
    fork_server.begin(owner.watched, launching.COMMON_MODULES)
    (begun,) = fork_servers_of(owner)

    assert parent_of(owner.start(0)) == begun


def test_a_worker_starts_the_fork_server_before_it_imports_what_its_task_needs() -> None:
    looked = "import sys, async_op.hosting.process.fork_server; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", looked], capture_output=True, text=True, check=True)
    assert not {"numpy", "pyarrow", "asyncio", "pyspark"} & set(ran.stdout.split())


def test_a_fork_server_ends_with_its_owner_and_so_do_its_hosts(owner: Owner) -> None:
    hosts = [owner.start(0), owner.start(1)]
    parent = parent_of(hosts[0])

    owner.end()

    for process in (*hosts, parent):
        wait_until(lambda process=process: not is_running(process))


def test_hosts_outlive_a_fork_server_that_is_killed_and_the_next_host_gets_another(owner: Owner) -> None:
    address = driven(launch(owner.instructions(0)))
    lost = parent_of(process_of(address))

    os.kill(lost, signal.SIGKILL)
    wait_until(lambda: not is_running(lost))

    assert epoch(connect(address, SECRET), hello(), [rows("a")])[1] == [("a", 1)]
    assert parent_of(owner.start(1)) not in (lost, os.getpid(), 1)


def test_signals_to_the_whole_group_end_no_fork_server_for_it_notes_how_its_hosts_end(owner: Owner) -> None:
    address = driven(launch(owner.instructions(0)))
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(parent_of(process_of(address)), number)
    os.kill(process_of(address), signal.SIGKILL)

    assert how_ended(address) == " by SIGKILL"


@pytest.mark.parametrize(
    "hindrance",
    [
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()",
        "import os\ndef fork():\n    raise BlockingIOError('too many processes')\nos.fork = fork",
    ],
    ids=["thread", "error"],
)
def test_a_fork_server_that_cannot_fork_lives_and_the_host_is_a_fresh_interpreter(
    owner: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hindrance: str
) -> None:
    (tmp_path / "hindering.py").write_text(hindrance)
    monkeypatch.syspath_prepend(str(tmp_path))
    address = driven(launch(owner.instructions(0), ("hindering",)))

    assert Path(f"/proc/{process_of(address)}/cmdline").read_bytes()[-25:] == b"async_op.hosting.process\0"
    with fork_server.socket.socket(fork_server.socket.AF_UNIX) as asked:  # the fork server is still there
        asked.connect(str(fork_server.files_of(fork_server._name_of(owner.watched, ["hindering"]), "", 0).socket))
    os.kill(process_of(address), signal.SIGTERM)


def test_a_fork_server_notes_how_its_hosts_end_if_its_starter_has_blocked_the_signal_for_that(owner: Owner) -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    try:
        address = driven(launch(owner.instructions(0)))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    os.kill(process_of(address), signal.SIGKILL)

    assert how_ended(address) == " by SIGKILL"


def test_hosts_that_start_at_once_share_a_fork_server(owner: Owner) -> None:
    hosts: list[int] = []
    starts = [threading.Thread(target=lambda number=number: hosts.append(owner.start(number))) for number in range(6)]
    for one in starts:
        one.start()
    for one in starts:
        one.join()

    assert len({parent_of(host) for host in hosts}) == 1
    assert len(set(hosts)) == 6


def test_a_host_has_what_its_starter_has_and_no_numbers_of_another_host(
    owner: Owner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = ("numpy.random",)
    with monkeypatch.context() as before:
        before.setenv("TOKEN", "of another run")
        driven(launch(owner.instructions(0, prepare=partial(note, str(tmp_path / "first"))), modules))
    monkeypatch.setenv("SERVICE", "https://service.test")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    driven(launch(owner.instructions(1, prepare=partial(note, str(tmp_path / "second"))), modules))

    first, second = noted(tmp_path / "first"), noted(tmp_path / "second")
    assert "TOKEN" in first["environment"]
    assert second["environment"] == fork_server.environment()
    assert second["folder"] == str(tmp_path)
    assert second["path"][0] == str(tmp_path)
    assert second["threads"] == 1
    assert set(first["random"]).isdisjoint(second["random"])


def test_a_host_loads_no_package_for_its_first_epoch(owner: Owner, tmp_path: Path) -> None:
    """Pandas among them, which pyarrow loads for its first array: it took most of a host's first second."""
    driven(launch(owner.instructions(prepare=partial(note, str(tmp_path / "noted")))))

    assert {"pandas", "fsspec.core", "pyarrow.compute"} <= noted(tmp_path / "noted")["modules"]


def test_a_host_has_no_descriptor_of_its_fork_server_or_of_another_host(owner: Owner, tmp_path: Path) -> None:
    for number in range(3):
        owner.start(number, prepare=partial(note, str(tmp_path / str(number))))

    for number in range(3):
        descriptors = noted(tmp_path / str(number))["descriptors"]
        place = owner.instructions(number).place
        assert [path for path in descriptors if path.endswith(".lock")] == [str(place.lock)]
        assert {str(Path(path).parent) for path in descriptors if path.endswith(".log")} == {str(place.folder)}
        # The socket on which it listens comes later; this one is for its answer.
        assert len([path for path in descriptors if path.startswith("socket:")]) == 3
        assert len([path for path in descriptors if "pidfd" in path]) == 1


def test_where_there_is_no_fork_server_a_host_is_a_fresh_interpreter(
    owner: Owner, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = driven(launch(owner.instructions(0), ("no_such_module",)))
    monkeypatch.setattr(fork_server, "watch", lambda pid: None)
    unwatched = driven(launch(owner.instructions(1, watched=None)))

    for address in (broken, unwatched):
        assert epoch(connect(address, SECRET), hello(), [rows("a")])[1] == [("a", 1)]
        assert Path(f"/proc/{process_of(address)}/cmdline").read_bytes()[-25:] == b"async_op.hosting.process\0"
        os.kill(process_of(address), signal.SIGTERM)


@pytest.mark.parametrize("limit", first_is_quick(["OMP_NUM_THREADS", "FSSPEC_MEMORY", "limits", "umask"]))
def test_what_a_fork_cannot_change_takes_another_fork_server(
    owner: Owner, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, limit: str
) -> None:
    first = parent_of(owner.start(0))
    if limit == "limits":
        monkeypatch.setattr(fork_server.resource, "getrlimit", lambda limit: (1000, 1000))
    elif limit == "umask":
        before = os.umask(0o027)
        request.addfinalizer(lambda: os.umask(before))
    else:
        monkeypatch.setenv(limit, "{}")

    assert parent_of(owner.start(1)) != first


def test_a_fork_server_without_hosts_ends_and_leaves_nothing(owner: Owner) -> None:
    with tempfile.TemporaryDirectory() as folder:
        place = files_of("fork server", "", 0, folder)
        held = place.try_lock()
        assert held is not None
        with fork_server.socket.socket(fork_server.socket.AF_UNIX) as listening:
            listening.bind(str(place.socket))
            listening.listen()
            told = [listening.fileno(), held, owner.watched]
            program = (
                "from pathlib import Path; from async_op.hosting.process import fork_server, host_files;"
                "fork_server.IDLE_SECONDS = 0.05;"
                f"place = host_files.HostFiles(Path({str(place.folder)!r}), {place.name!r});"
                f"fork_server.serve(*{told}, place, (), None)"
            )
            ended = subprocess.run([sys.executable, "-c", program], pass_fds=told, check=False)
        os.close(held)

        assert ended.returncode == 0
        assert list(Path(folder).iterdir()) == []


def test_who_meets_a_fork_server_that_ends_asks_the_next(owner: Owner, monkeypatch: pytest.MonkeyPatch) -> None:
    connected, refused = fork_server.connect, []

    def ending(*given: Any) -> Any:
        if len(refused) < 2:
            ours, theirs = fork_server.socket.socketpair()
            theirs.close()
            refused.append(ours)
            return ours
        return connected(*given)

    monkeypatch.setattr(fork_server, "connect", ending)
    host = owner.start()

    assert len(refused) == 2
    assert parent_of(host) not in (os.getpid(), 1)
