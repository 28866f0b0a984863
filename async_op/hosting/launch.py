"""Starts the process of a host, for a thread that must keep showing that it is alive."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from contextlib import suppress

from async_op.hosting.errors import HostFailed, HostUnreachable
from async_op.hosting.feeder import Waiting
from async_op.hosting.placement import Address
from async_op.hosting.resident import Instructions
from async_op.hosting.sockets import TICK_SECONDS

START_SECONDS = 60.0
"""A host that has not begun to listen by then is given up."""


def launch(instructions: Instructions) -> Waiting[Address]:
    """Start a host on this machine, in this process's group, with its limits and environment.

    Raises
    ------
    HostUnreachable
        It does not start.
    """
    try:
        started = _Start(instructions)
    except OSError as error:
        raise HostUnreachable(f"its process does not start: {error}") from error
    waited = 0.0
    while not started.is_over(TICK_SECONDS):
        waited += TICK_SECONDS
        if waited > START_SECONDS:
            started.give_up()
            raise HostUnreachable(f"its process does not listen after {START_SECONDS:.0f} s, see {started.log}")
        yield
    return started.address()


def watch(pid: int) -> int | None:
    """Return a descriptor by which a host sees that a process ends, or None where the system has no such thing."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


class _Start:
    """A process that is starting. One thread may call it."""

    def __init__(self, instructions: Instructions) -> None:
        self.log = instructions.place.log
        self._told = pickle.dumps((sys.path, pickle.dumps(instructions)))
        watched = () if instructions.watched is None else (instructions.watched,)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "async_op.hosting"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=watched,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self._answer = b""
        self._talking = threading.Thread(target=self._talk, name="keygroups launch", daemon=True)
        self._talking.start()

    def is_over(self, seconds: float) -> bool:
        self._talking.join(seconds)
        return not self._talking.is_alive()

    def give_up(self) -> None:
        """Hang up: it ends when it finds nobody to tell its address."""
        assert self._process.stdout is not None, "it is a pipe"
        self._process.stdout.close()

    def address(self) -> Address:
        if not self._answer:
            raise HostUnreachable(f"its process ended as it started, see {self.log}")
        answer = pickle.loads(self._answer)  # noqa: S301 - from the process that we have started
        if isinstance(answer, HostUnreachable):
            raise answer
        if isinstance(answer, Exception):
            raise HostUnreachable(str(HostFailed(f"{type(answer).__name__}: {answer}"))) from answer
        assert isinstance(answer, Address), "it says nothing else"
        return answer

    def _talk(self) -> None:
        with suppress(OSError, ValueError):  # it has ended, or has been given up
            self._answer = self._process.communicate(self._told)[0]
