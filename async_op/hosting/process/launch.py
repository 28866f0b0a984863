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
from pathlib import Path

from async_op.hosting.errors import HostFailed, HostUnreachable
from async_op.hosting.feeder import Waiting
from async_op.hosting.messages import Address
from async_op.hosting.process import template
from async_op.hosting.process.resident import Instructions
from async_op.hosting.wire.sockets import TICK_SECONDS
from keygroups.safe_text import described

START_SECONDS = 60.0
"""A host that does not listen after this time is given up."""

COMMON_MODULES = ("async_op.hosting.process.resident", "pyarrow.parquet", "snapshots.commit.writer")
"""What every host needs, whatever runs in it."""

_TEMPLATES_MAX = 3
"""So many templates in a row may end at the moment at which they are asked for a host."""

_log = logging.getLogger(__package__)


def launch(instructions: Instructions, modules: Sequence[str] = COMMON_MODULES) -> Waiting[Address]:
    """Start a host on this machine; it inherits this process's group, limits and environment.

    On Linux a template forks it, which starts with the first host of an executor. Elsewhere, and where no template can
    be started, the host is a fresh interpreter.

    Parameters
    ----------
    instructions : Instructions
        What the host is told.
    modules : sequence of str
        What a template loads before it forks: modules that start no thread, and that all hosts of the executor need.

    Raises
    ------
    HostUnreachable
        The process cannot be started, ends before it listens, or does not listen in time.
    """
    try:
        started = _Start(instructions, modules)
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
    """A host while it starts. One thread may call it, another one talks to the process."""

    def __init__(self, instructions: Instructions, modules: Sequence[str]) -> None:
        self._log = instructions.place.open_log()
        self._watched = None if instructions.watched is None else os.dup(instructions.watched)
        self._instructions = pickle.dumps(replace(instructions, watched=None))
        self._modules = modules
        self._answer = b""
        self._error: Exception | None = None
        self._talking = threading.Thread(target=self._talk, name="keygroups launch", daemon=True)
        self._talking.start()

    def is_over(self, seconds: float) -> bool:
        self._talking.join(seconds)
        return not self._talking.is_alive()

    def address(self) -> Address:
        log = self._log.name
        if isinstance(self._error, TimeoutError | subprocess.TimeoutExpired):
            raise HostUnreachable(f"the host does not listen after {START_SECONDS:.0f} s, see {log}")
        if self._error is not None:
            raise HostUnreachable(f"the host's process does not start: {self._error}") from self._error
        if not self._answer:
            raise HostUnreachable(f"the host's process ended before it listened, see {log}")
        answer = pickle.loads(self._answer)  # noqa: S301 - from the process that was started here
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
            forked = self._forked() if sys.platform == "linux" else None
            self._answer = self._fresh() if forked is None else forked
        except Exception as error:  # noqa: BLE001 - raised by `address`
            self._error = error
        finally:
            self._log.close()
            if self._watched is not None:
                os.close(self._watched)

    def _forked(self) -> bytes | None:
        """Return the answer of a host that a template has forked; None if no template does."""
        owner = self._owner()
        if owner is None:
            return None
        order = template.Order(template.environment(), str(Path.cwd()), sys.path, self._instructions)
        try:
            return self._told_to_templates(owner, order)
        except (HostUnreachable, FileNotFoundError) as error:
            _log.debug("hosts of this process are not forked from a template: %s", error)
            return None
        finally:
            os.close(owner)

    def _told_to_templates(self, owner: int, order: template.Order) -> bytes | None:
        until, pause = time.monotonic() + START_SECONDS, threading.Event()
        for _ in range(_TEMPLATES_MAX):
            while (connected := template.connect(owner, self._modules)) is None:
                if time.monotonic() > until:
                    return None
                pause.wait(0.01)
            with connected, suppress(ConnectionError):  # it was about to end
                connected.settimeout(max(0.01, until - time.monotonic()))
                template.send(connected, order, self._log.fileno(), self._watched)
                if connected.recv(1) == template.FORKED:
                    return _all_of(connected)
        return None

    def _owner(self) -> int | None:
        """Return a descriptor of the process that the template must not outlive: what the host watches, or this one."""
        return watch(os.getpid()) if self._watched is None else os.dup(self._watched)

    def _fresh(self) -> bytes:
        """Return the answer of a host in an interpreter of its own."""
        watched = () if self._watched is None else (self._watched,)
        with subprocess.Popen(
            [sys.executable, "-P", "-m", "async_op.hosting.process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            pass_fds=watched,
            env=template.environment(),
        ) as process:  # leaving it closes the pipes: a host ends when it cannot report its address
            told = pickle.dumps((sys.path, self._instructions, self._watched))
            return process.communicate(told, START_SECONDS)[0]


def _all_of(connected: socket.socket) -> bytes:
    with connected.makefile("rb") as answer:
        return answer.read()
