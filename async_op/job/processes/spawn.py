"""Starts a child as a fresh interpreter, and finds out how it has ended."""

from __future__ import annotations

import asyncio
import pickle
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing import spawn
from typing import Any

from async_op.hosting.errors import described_status
from async_op.job.errors import NotSendable
from async_op.job.processes.child import ChildSpec
from async_op.job.processes.wire import Receiver, SocketLink
from async_op.job.step import Step
from async_op.threads.own_thread import on_own_thread

SIZE = struct.Struct("!Q")

_PREPARED = ("sys_path", "sys_argv", "dir", "orig_dir", "init_main_from_name", "init_main_from_path")


class SpawnedChild:
    """A child that was started as a process of its own.

    Parameters
    ----------
    process : subprocess.Popen
        The process. It ends once its standard input does, which is with the parent at the latest.
    link : SocketLink
        The connection to it.
    """

    def __init__(self, process: subprocess.Popen[bytes], link: SocketLink) -> None:
        self.link = link
        self.pid = process.pid
        self._process = process

    async def exit_status(self) -> str:
        """Return how it has ended, once it has."""
        status = await on_own_thread(self._process.wait)
        with suppress(OSError):
            assert self._process.stdin is not None, "it was started with a pipe"
            self._process.stdin.close()
        return described_status(status)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()


async def launch(spec: ChildSpec, receiver: Receiver) -> SpawnedChild:
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
    return SpawnedChild(process, link)


def _start(spec: ChildSpec, connected: socket.socket) -> subprocess.Popen[bytes]:
    from async_op.hosting.process.template import environment  # jobs of one process need nothing of hosts

    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "async_op.job.processes", str(connected.fileno())],
        stdin=subprocess.PIPE,
        pass_fds=[connected.fileno()],
        env=environment(),
    )
    prepared: dict[str, Any] = spawn.get_preparation_data("keygroups child")
    told = pickle.dumps(({name: prepared[name] for name in _PREPARED if name in prepared}, pickle.dumps(spec)))
    assert process.stdin is not None, "it was started with a pipe"
    with suppress(BrokenPipeError):  # it has ended, as its connection tells
        process.stdin.write(SIZE.pack(len(told)) + told)
        process.stdin.flush()
    return process


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
