"""Starts the process of a host, and gives the starting thread the chance to show signs of life meanwhile."""

from __future__ import annotations

import logging
import os
import pickle
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from async_op.hosting.errors import HostFailed, HostUnreachable
from async_op.hosting.feeder import Waiting
from async_op.hosting.lease import OPEN_SECONDS
from async_op.hosting.messages import Address
from async_op.hosting.process import fork_server
from async_op.hosting.process.host_process import InOpen, Instructions
from async_op.hosting.wire.sockets import TICK_SECONDS
from keygroups.safe_text import described

COMMON_MODULES = (
    *("async_op.hosting.process.host_process", "snapshots.commit.part_writer"),
    *("fsspec.core", "pyarrow.compute", "pyarrow.parquet"),  # `snapshots` loads them on first use
)
"""What every host needs, whatever runs in it."""

_log = logging.getLogger(__package__)


def launch(instructions: Instructions, modules: Sequence[str] = COMMON_MODULES) -> Waiting[Address]:
    """Start a host on this machine; it inherits this process's group, limits and environment.

    On Linux a fork server forks it, which starts with the first host of an executor. Elsewhere, and where no server can
    be started, the host is a fresh interpreter.

    Parameters
    ----------
    instructions : Instructions
        What the host is told.
    modules : sequence of str
        What a fork server loads before it forks: modules that start no thread, and that all hosts of the executor need.

    Raises
    ------
    HostUnreachable
        The process cannot be started, or ends before its function is open, or that takes longer than `OPEN_SECONDS`.
    """
    try:
        started = _Start(instructions, modules)
    except OSError as error:
        raise HostUnreachable(f"the host's process does not start: {error}") from error
    while not started.is_over(TICK_SECONDS):
        yield
    return started.address()


class _Start:
    """A host while it starts. One thread may call it, another one talks to the process."""

    def __init__(self, instructions: Instructions, modules: Sequence[str]) -> None:
        self._log = instructions.place.open_log()
        self._watched = None if instructions.watched is None else os.dup(instructions.watched)
        self._instructions = pickle.dumps(replace(instructions, watched=None))
        self._modules = modules
        self._answer: object = None
        self._subtask = instructions.settings.subtask_index
        self._until = time.monotonic() + OPEN_SECONDS
        self._error: Exception | None = None
        self._talking = threading.Thread(target=self._talk, name="keygroups launch", daemon=True)
        self._talking.start()

    def is_over(self, seconds: float) -> bool:
        self._talking.join(seconds)
        return not self._talking.is_alive()

    def address(self) -> Address:
        log = self._log.name
        if isinstance(self._error, TimeoutError):
            raise HostUnreachable(f"open() of the function has not returned after {OPEN_SECONDS:g} s, see {log}")
        if self._error is not None:
            raise HostUnreachable(f"the host's process does not start: {self._error}") from self._error
        answer = self._answer
        if answer is None:
            raise HostUnreachable(f"the host's process ended before its function was open, see {log}")
        if isinstance(answer, HostUnreachable):
            raise answer
        if isinstance(answer, Exception):
            failed = HostFailed(described(answer))
            raise HostUnreachable(f"{failed} (its log is {log})") from answer
        assert isinstance(answer, Address), "a host reports an address or an error"
        return answer

    def _talk(self) -> None:
        """Start the process, tell it what to do, and hear where it listens; no other thread touches its descriptors.

        If one closed them here, this thread would read from whatever gets their numbers next.
        """
        try:
            if sys.platform != "linux" or not self._is_forked():
                self._start_fresh()
        except Exception as error:  # noqa: BLE001 - raised by `address`
            self._error = error
        finally:
            self._log.close()
            if self._watched is not None:
                os.close(self._watched)

    def _is_forked(self) -> bool:
        """Hear a host that a fork server forks; returns False if no fork server does."""
        owner = self._owner()
        if owner is None:
            return False
        descriptors = [self._log.fileno(), self._log.fileno(), *self._watched_descriptors()]
        try:
            forked = fork_server.fork(
                owner, self._modules, fork_server.Order.of(self._instructions), descriptors, self._until
            )
        except (HostUnreachable, FileNotFoundError) as error:
            _log.debug("hosts of this process are not forked from a fork server: %s", error)
            return False
        finally:
            os.close(owner)
        if forked is None:
            return False
        with forked.connection:
            self._hear(forked.connection)
        return True

    def _watched_descriptors(self) -> list[int]:
        return [] if self._watched is None else [self._watched]

    def _owner(self) -> int | None:
        """Return a descriptor of the process that the fork server must not outlive: what the host watches, or this."""
        return fork_server.watch(os.getpid()) if self._watched is None else os.dup(self._watched)

    def _start_fresh(self) -> None:
        """Hear a host in an interpreter of its own."""
        watched = self._watched_descriptors()
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                started = subprocess.Popen(
                    [*fork_server.python_command(), "-m", "async_op.hosting.process"],
                    stdin=theirs.fileno(),
                    stdout=theirs.fileno(),
                    stderr=self._log,
                    pass_fds=watched,
                    env=fork_server.environment(),
                )
            ours.settimeout(OPEN_SECONDS)
            ours.sendall(pickle.dumps((sys.path, self._instructions, watched)))
            ours.shutdown(socket.SHUT_WR)
            self._hear(ours)
        with suppress(subprocess.TimeoutExpired):
            started.wait(TICK_SECONDS)  # it has detached at once

    def _hear(self, connected: socket.socket) -> None:
        """Hear a host until its function is open; meanwhile it says what `open` does."""
        for said in fork_server.heard(connected, self._until):
            if not isinstance(said, InOpen):
                self._answer = said
                return
            _log.warning(
                "the host of subtask %d is still in open() of its function after %.0f s%s; it has %.0f s in all, and "
                "its log is %s",
                self._subtask,
                said.seconds,
                said.at,
                OPEN_SECONDS,
                self._log.name,
            )
