"""Starts the children of a job: how many it has, whether it can have them, and how one has ended.

On Linux a fork server forks them, as hosts: the first one waits for the server's imports, all others take milliseconds.
Elsewhere, and where no fork server can be started, a child is a fresh interpreter.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import pickle
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import weakref
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import takewhile
from multiprocessing import spawn
from pathlib import Path
from typing import Any, Protocol

from async_op.hosting.errors import HostUnreachable, described_status
from async_op.job.chain import Plan
from async_op.job.errors import NotSendable
from async_op.job.processes.child_handles import Children
from async_op.job.processes.child_loop import ChildSpec
from async_op.job.processes.child_process import ChildInstructions
from async_op.job.processes.messages import Receiver, SocketLink
from async_op.job.step import Step
from async_op.threads.operator_process import log_levels
from async_op.threads.own_thread import on_own_thread
from keygroups.arguments import check_integer
from keygroups.errors import ConfigError

SIZE = struct.Struct("!Q")

MODULES = (
    *("async_op.job.processes.child_process", "snapshots.commit.part_writer"),
    *("fsspec.core", "pyarrow.compute", "pyarrow.parquet"),  # `snapshots` loads them on first use
)
"""What every child needs, whatever runs in it."""

_log = logging.getLogger(__package__)

_PREPARED = ("sys_path", "sys_argv", "dir", "orig_dir", "init_main_from_name", "init_main_from_path")


class _Process(Protocol):
    @property
    def pid(self) -> int: ...

    def wait(self) -> str:
        """Wait until it has ended, and return how."""
        ...

    def kill(self) -> None: ...


class _Forked:
    """A child of the fork server, which alone gets its exit status and notes it.

    Parameters
    ----------
    pid : int
        Its process.
    exits : Path
        The file in which the fork server notes how it ends.
    """

    def __init__(self, pid: int, exits: Path) -> None:
        self.pid = pid
        self._exits = exits
        self._ended: int | None = None
        with suppress(ProcessLookupError):  # it has ended already
            self._ended = os.pidfd_open(pid)
            weakref.finalize(self, os.close, self._ended)

    def wait(self) -> str:
        from async_op.hosting.diagnostics import noted_exit

        if self._ended is not None:
            waiting = select.poll()
            waiting.register(self._ended, select.POLLIN)
            waiting.poll()
        return noted_exit(self._exits, str(self.pid)) or "with an unknown status"

    def kill(self) -> None:
        if self._ended is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._ended, signal.SIGKILL)


class _Fresh:
    """A child that is an interpreter of its own. It ends once its standard input does: with its parent at the latest.

    Parameters
    ----------
    told : ChildInstructions
        What it is told.
    connected : socket
        Its end of the connection.
    """

    def __init__(self, told: ChildInstructions, connected: socket.socket) -> None:
        from async_op.hosting.process.fork_server import environment, python_command

        self._process = subprocess.Popen(
            [*python_command(), "-m", "async_op.job.processes", str(connected.fileno())],
            stdin=subprocess.PIPE,
            pass_fds=[connected.fileno()],
            env=environment(),
        )
        self.pid = self._process.pid
        pickled = pickle.dumps(told)
        assert self._process.stdin is not None, "it was started with a pipe"
        with suppress(BrokenPipeError):  # it has ended, as its connection tells
            self._process.stdin.write(SIZE.pack(len(pickled)) + pickled)
            self._process.stdin.flush()

    def wait(self) -> str:
        status = self._process.wait()
        with suppress(OSError):
            assert self._process.stdin is not None, "it was started with a pipe"
            self._process.stdin.close()
        return described_status(status)

    def kill(self) -> None:
        self._process.kill()


class StartedChild:
    """A child that was started as a process of its own.

    Parameters
    ----------
    process
        The process, in whatever way it was started.
    link : SocketLink
        The connection to it.
    """

    def __init__(self, process: _Process, link: SocketLink) -> None:
        self.link = link
        self.pid = process.pid
        self._process = process

    async def exit_status(self) -> str:
        """Return how it has ended, once it has."""
        return await on_own_thread(self._process.wait)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()


async def launch(spec: ChildSpec, receiver: Receiver) -> StartedChild:
    """Start a child, and connect to it."""
    own, others = socket.socketpair()
    link = SocketLink(receiver)
    try:
        process = await on_own_thread(_start, spec, others)
    except BaseException:
        own.close()
        raise
    finally:
        others.close()
    await asyncio.get_running_loop().create_connection(lambda: link, sock=own)
    return StartedChild(process, link)


def _start(spec: ChildSpec, connected: socket.socket) -> _Process:
    prepared: dict[str, Any] = spawn.get_preparation_data("keygroups child")
    told = ChildInstructions(
        {name: prepared[name] for name in _PREPARED if name in prepared},
        log_levels() if logging.root.handlers else None,
        pickle.dumps(spec),
    )
    return _forked(told, connected) or _Fresh(told, connected)


def _forked(told: ChildInstructions, connected: socket.socket) -> _Forked | None:
    """Have a fork server fork a child; None if none does."""
    from async_op.hosting.lease import OPEN_SECONDS  # jobs of one process need nothing of hosts
    from async_op.hosting.process import fork_server

    may_fork = sys.platform == "linux" and not _is_debugged()
    owner = fork_server.watch(os.getpid()) if may_fork else None
    if owner is None:
        return None
    nothing = os.open(os.devnull, os.O_WRONLY)
    try:
        order, until = fork_server.Order.of(pickle.dumps(told)), time.monotonic() + OPEN_SECONDS
        streams = [stream if _is_inherited(stream) else nothing for stream in (1, 2)]
        forked = fork_server.fork(owner, MODULES, order, [*streams, owner, connected.fileno()], until)
    except (HostUnreachable, OSError) as error:
        _log.debug("children of this process are not forked from a fork server: %s", error)
        return None
    finally:
        os.close(nothing)
        os.close(owner)
    if forked is None:
        return None
    forked.connection.close()  # all that it has to say comes through its own
    return _Forked(forked.pid, forked.exits)


def _is_debugged() -> bool:
    """Return whether debugpy controls this process: a fork stops until a debugger attaches, and at each breakpoint."""
    pydevd = sys.modules.get("pydevd")
    return pydevd is not None and pydevd.get_global_debugger() is not None


def _is_inherited(stream: int) -> bool:
    """Return whether a program would inherit a stream: a closed one may have left its number to another file."""
    try:
        return os.get_inheritable(stream)
    except OSError:
        return False


def check_sendable(steps: Mapping[str, Step]) -> None:
    """Check that the steps can be sent to children.

    Raises
    ------
    NotSendable
        A step, or something that it has, cannot be pickled.
    """
    for name, step in steps.items():
        for field in Step.__dataclass_fields__:
            try:
                pickle.dumps(getattr(step, field))
            except Exception as error:
                raise NotSendable(name, field, str(error)) from error


PROCESSES_MAX = 256

_OWN_GROUPS = Path("/proc/self/cgroup")
_GROUPS = Path("/sys/fs/cgroup")


def processes_of(processes: object, parallelism: int | None) -> int | None:
    """Return how many worker processes a job has; None if its steps run on the event loop of `run`.

    Raises
    ------
    ConfigError
        It is neither None, "auto" nor a number between 1 and the parallelism.
    """
    if processes is None:
        return None
    if isinstance(processes, str) and processes == "auto":
        found = _processors()
        count = min(found, parallelism or found, PROCESSES_MAX)
        return count if count > 1 else None
    count = check_integer("processes", processes, 1, PROCESSES_MAX, reason="or pass 'auto' or None")
    if parallelism is not None and count > parallelism:
        raise ConfigError("processes", processes, f"with parallelism={parallelism}, some of them would have nothing")
    return count


def _processors() -> int:
    """Return how many processors this process may use.

    The machine may have more: an affinity names some of them, and the limit of a container or of a systemd unit is the
    quota of a control group, which Python does not look at.
    """
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min([found, *map(math.ceil, _quotas())]))


def _quotas() -> Iterator[float]:
    """Yield how many processors the control groups of this process allow, of version 1 or 2, where there are any."""
    with suppress(OSError, ValueError):
        for line in _OWN_GROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers or "cpu" in controllers.split(","):
                root = _GROUPS / "cpu" if controllers else _GROUPS
                # Each group limits those that are in it. In a container, the path may be one that exists only outside.
                group = root / path.strip("/")
                for one in takewhile(lambda folder: folder != _GROUPS.parent, (group, *group.parents)):
                    yield from _quota_of(one)


def _quota_of(group: Path) -> Iterator[float]:
    with suppress(OSError, ValueError):
        files = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
        one = group / "cpu.max"
        quota, period = one.read_text().split() if one.exists() else [(group / name).read_text() for name in files]
        if float(quota) > 0:  # -1, or the word "max", is no limit
            yield float(quota) / float(period)


def check_spread(steps: Mapping[str, Step], uri: str) -> None:
    """Check that the steps of a job can run in other processes.

    Raises
    ------
    ConfigError
        The snapshots are in the memory of this process.
    NotSendable
        A step cannot be pickled.
    """
    if uri.startswith("memory:"):
        raise ConfigError("snapshots", uri, "other processes cannot read the memory of this one: pass a folder")
    check_sendable(steps)


def children_of(plan: Plan, steps: Mapping[str, Step], count: int) -> Children:
    """Return the children of a run, not started yet."""
    spec = ChildSpec(
        number=0,
        count=count,
        steps=dict(steps),
        hash=plan.hash,
        max_parallelism=plan.max_parallelism,
        lineage=plan.lineage,
        are_decoded=plan.are_decoded,
    )
    return Children(spec, launch, may_pause=_is_debugged())
