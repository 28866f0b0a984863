"""Starts the process of a host, and gives the starting thread the chance to show signs of life meanwhile."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading

from async_op.hosting.errors import HostFailed, HostUnreachable
from async_op.hosting.feeder import Waiting
from async_op.hosting.placement import Address
from async_op.hosting.process.resident import Instructions
from async_op.hosting.wire.sockets import TICK_SECONDS
from keygroups.safe_text import described

START_SECONDS = 60.0
"""A host that does not listen after this time is given up."""


def launch(instructions: Instructions) -> Waiting[Address]:
    """Start a host on this machine; it inherits this process's group, limits and environment.

    Raises
    ------
    HostUnreachable
        The process cannot be started, ends before it listens, or does not listen in time.
    """
    try:
        started = _Start(instructions)
    except OSError as error:
        raise HostUnreachable(f"the host's process does not start: {error}") from error
    while not started.is_over(TICK_SECONDS):
        yield
    return started.address()


def watch(pid: int) -> int | None:
    """Return a descriptor that becomes readable when a process ends, or None where the system cannot provide one."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None


class _Start:
    """The process of a host while it starts. One thread may call it."""

    def __init__(self, instructions: Instructions) -> None:
        self.log = instructions.place.log
        self._told = pickle.dumps((sys.path, pickle.dumps(instructions)))
        watched = () if instructions.watched is None else (instructions.watched,)
        with instructions.place.open_log() as log:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "async_op.hosting.process"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                pass_fds=watched,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
        self._answer = b""
        self._is_given_up = False
        self._talking = threading.Thread(target=self._talk, name="keygroups launch", daemon=True)
        self._talking.start()

    def is_over(self, seconds: float) -> bool:
        self._talking.join(seconds)
        return not self._talking.is_alive()

    def address(self) -> Address:
        if self._is_given_up:
            raise HostUnreachable(f"the host does not listen after {START_SECONDS:.0f} s, see {self.log}")
        if not self._answer:
            raise HostUnreachable(f"the host's process ended before it listened, see {self.log}")
        answer = pickle.loads(self._answer)  # noqa: S301 - from the process that was started here
        if isinstance(answer, HostUnreachable):
            raise answer
        if isinstance(answer, Exception):
            failed = HostFailed(described(answer))
            raise HostUnreachable(f"{failed} (its log is {self.log})") from answer
        assert isinstance(answer, Address), "a host reports an address or an error"
        return answer

    def _talk(self) -> None:
        """Tell the process what to do, and hear where it listens; no other thread touches the pipes.

        If one closed them here, this thread would read from whatever gets their descriptors next.
        """
        try:
            self._answer = self._process.communicate(self._told, START_SECONDS)[0]
        except subprocess.TimeoutExpired:
            self._is_given_up = True
            self._hang_up()

    def _hang_up(self) -> None:
        """Close the pipes: the host ends when it cannot report its address."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None, "both are pipes"
            pipe.close()
        self._process.poll()  # the process that has started the host has ended long ago
