"""`python -m async_op.job.processes`: a child of a job; see `spawn`."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import spawn
from typing import Any, NoReturn

from async_op.job.processes import wire
from async_op.job.processes.child import ChildLoop, ChildSpec, Failure
from async_op.job.processes.spawn import SIZE
from async_op.threads.loop_thread import new_event_loop, rare_collections


def main() -> None:
    """Run a child until its parent wants an end, or has ended."""
    told = _told()
    # Ctrl-C goes to the whole group, and a service's SIGTERM to all of it; the parent decides what becomes of the job.
    for number in (signal.SIGINT, signal.SIGTERM):
        # Not SIG_IGN: programs that a function starts would inherit it, and could not be terminated.
        signal.signal(number, _take_no_notice)
    faulthandler.enable()
    with rare_collections(), asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_live(socket.socket(fileno=int(sys.argv[1])), *told))


def _take_no_notice(*_: object) -> None:
    pass


def _told() -> tuple[dict[str, Any], bytes]:
    """Return what the parent has to say, and leave a thread that ends the process when the parent does."""
    pipe = os.fdopen(os.dup(0), "rb", buffering=0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    (size,) = SIZE.unpack(_exactly(pipe.read, SIZE.size))
    told: tuple[dict[str, Any], bytes] = pickle.loads(_exactly(pipe.read, size))  # noqa: S301 - from the parent
    threading.Thread(target=_end_with, args=(pipe.read,), name="keygroups parent", daemon=True).start()
    return told


def _exactly(read: Callable[[int], bytes], size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = read(size - len(data))
        if not part:
            os._exit(1)
        data += part
    return data


def _end_with(read: Callable[[int], bytes]) -> None:
    """End the process once its parent has ended; a function that blocks the event loop does not hold this up."""
    while read(1):
        pass
    os._exit(1)


class _Held:
    """Stands for the child until it is made: nothing comes before the parent has heard that it is ready."""

    receiver: wire.Receiver | None = None

    def received(self, kind: int, payload: bytes) -> None:
        assert self.receiver is not None, "the parent waits until the child is ready"
        self.receiver.received(kind, payload)

    def lost(self) -> None:
        if self.receiver is None:
            os._exit(1)
        self.receiver.lost()


async def _live(connected: socket.socket, prepared: dict[str, Any], spec: bytes) -> None:
    held = _Held()
    link = wire.SocketLink(held)
    await asyncio.get_running_loop().create_connection(lambda: link, sock=connected)
    try:
        spawn.prepare(prepared)
        told: ChildSpec = pickle.loads(spec)  # noqa: S301 - from the parent
        child = held.receiver = ChildLoop(told)
    except BaseException as error:
        link.send(wire.REPORT, wire.dumped(("failed", Failure.of(error, 0))))
        link.close()
        await asyncio.sleep(1)  # it has to be sent
        raise
    _exit(0 if await child.serve(link) else 1)


def _exit(status: int) -> NoReturn:
    """End the process at once: a thread that a function has left behind must not keep it alive."""
    if (made := sys.modules.get("multiprocessing")) is not None:
        for process in made.active_children():
            if process.daemon:
                process.terminate()  # as Python does at the end of its own processes
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(status)


if __name__ == "__main__":
    main()
