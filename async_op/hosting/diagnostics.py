"""Files beside a host, for when it cannot answer: how its process has ended, and what blocks its event loop."""

from __future__ import annotations

import json
import threading
import time
from contextlib import suppress
from pathlib import Path

from async_op.errors import BlocksEventLoop
from async_op.hosting.messages import Address

_STATUS_SECONDS = 2.0
"""A fork server notes the end of a host within milliseconds, on a busy machine somewhat later."""


def how_ended(address: Address) -> str:
    """Return how the process of a host has ended, such as " by SIGSEGV"; empty if that is not known on this machine."""
    status = noted_exit(Path(address.exits), address.process.rpartition(":")[2]) if address.exits else ""
    return f" {status}" if status else ""


def noted_exit(exits: Path, process: str) -> str:
    """Return how a forked process has ended, such as "by SIGSEGV"; empty if its fork server does not note it.

    The fork server does so a moment after the connection has ended.
    """
    until, pause = time.monotonic() + _STATUS_SECONDS, threading.Event()
    while exits.parent.is_dir():
        with suppress(OSError):
            for line in reversed(exits.read_text(encoding="ascii").splitlines()):  # ids of processes are used again
                ended, _, status = line.partition(" ")
                if ended == process:
                    return status
        if time.monotonic() > until:
            break
        pause.wait(0.02)
    return ""


def note_blocking(path: Path, found: BlocksEventLoop) -> None:
    """Note in a file that a function blocks the event loop of a host."""
    with suppress(OSError), path.open("a", encoding="utf-8") as noted:
        noted.write(f"{json.dumps(found.args)}\n")


def noted_blocking(path: Path) -> list[BlocksEventLoop]:
    """Return what a host has noted in a file, in the order in which it was noticed."""
    with suppress(OSError, ValueError):  # a line may be half written
        return [BlocksEventLoop(*json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]
    return []


def blocking_of(address: Address) -> list[BlocksEventLoop]:
    """Return what the host at an address has noted, if it is on this machine."""
    return noted_blocking(Path(address.path).with_suffix(".blocking"))


def what_blocks(address: Address) -> str:
    """Return which function was noticed last, for a message; empty if that is not known on this machine."""
    noted = blocking_of(address)
    if not noted:
        return ""
    last = noted[-1]
    return f', and {last.module}.{last.function} has blocked its event loop, at "{last.path}", line {last.line}'
