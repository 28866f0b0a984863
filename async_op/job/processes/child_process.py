"""A child as a process: what it is told, and its life until its parent wants an end, or has ended."""

from __future__ import annotations

import asyncio
import faulthandler
import os
import pickle
import select
import signal
import socket
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import TextIOWrapper
from multiprocessing import spawn
from typing import Any, BinaryIO

from async_op.job.errors import ProgramNotImported
from async_op.job.processes import messages
from async_op.job.processes.child_loop import ChildLoop, ChildSpec, Failure
from async_op.threads.garbage import rare_collections
from async_op.threads.loop_thread import new_event_loop
from async_op.threads.operator_process import end_process, set_up_logging
from keygroups.safe_text import described


@dataclass(frozen=True, slots=True)
class ChildInstructions:
    """What the process of a child is told when it starts.

    Attributes
    ----------
    prepared : dict
        What `multiprocessing` tells its own processes, so that functions of the main module are found.
    log_levels : mapping of str to int, or None
        The levels of the parent's loggers; None if the parent has set up no logging.
    spec : bytes
        The pickled `ChildSpec`: it can be loaded once that is done.
    """

    prepared: dict[str, Any]
    log_levels: Mapping[str, int] | None
    spec: bytes = field(repr=False)

    def live(self, descriptors: Sequence[int], answer: BinaryIO, exits: str) -> None:
        """Run the child in a forked process; the descriptors have what `run` needs."""
        del exits  # the parent knows the file
        answer.close()
        if isinstance(sys.stdout, TextIOWrapper):
            sys.stdout.reconfigure(line_buffering=True)  # the fork server's own output was a log
        self.run(*descriptors)

    def run(self, parent: int, connected: int) -> None:
        """Run the child until its parent wants an end, or has ended.

        Parameters
        ----------
        parent : int
            A descriptor that becomes readable when the parent ends.
        connected : int
            The descriptor of the connection to it.
        """
        threading.Thread(target=_end_with, args=(parent,), name="keygroups parent", daemon=True).start()
        # Ctrl-C goes to the whole group, and a service's SIGTERM to all of it; the parent decides what becomes of the
        # job.
        for number in (signal.SIGINT, signal.SIGTERM):
            # Not SIG_IGN: programs that a function starts would inherit it, and could not be terminated.
            signal.signal(number, _take_no_notice)
        faulthandler.enable()
        # The parent hears of the end of this process by the end of the connection: nothing that a function starts may
        # keep it open, neither a fork nor a program.
        os.set_inheritable(connected, False)
        os.register_at_fork(after_in_child=lambda: os.close(connected))
        with rare_collections(), asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_live(socket.socket(fileno=connected), self))


def _take_no_notice(*_: object) -> None:
    pass


def _end_with(parent: int) -> None:
    """End the process once its parent has ended; a function that blocks the event loop does not hold this up."""
    select.select([parent], [], [])
    end_process(1)


class _Held:
    """Stands for the child until it is made: nothing comes before the parent has heard that it is ready."""

    receiver: messages.Receiver | None = None

    def received(self, kind: int, payload: bytes) -> None:
        assert self.receiver is not None, "the parent waits until the child is ready"
        self.receiver.received(kind, payload)

    def lost(self) -> None:
        if self.receiver is None:
            end_process(1)
        self.receiver.lost()


async def _live(connected: socket.socket, told: ChildInstructions) -> None:
    held = _Held()
    link = messages.SocketLink(held)
    await asyncio.get_running_loop().create_connection(lambda: link, sock=connected)
    try:
        child = held.receiver = ChildLoop(_imported(told))
    except BaseException as error:
        link.send(messages.REPORT, messages.dumped(("failed", Failure.of(error))))
        link.close()
        await asyncio.sleep(1)  # it has to be sent
        raise
    end_process(0 if await child.serve(link) else 1)


def _imported(told: ChildInstructions) -> ChildSpec:
    """Import the program of the parent, and return what the child is told."""
    try:
        spawn.prepare(told.prepared)
        if told.log_levels is not None:
            set_up_logging(told.log_levels)  # after the program's own modules, which may have set it up otherwise
        return pickle.loads(told.spec)  # type: ignore[no-any-return]  # noqa: S301 - from the parent
    except BaseException as error:
        raise ProgramNotImported(described(error)) from error
