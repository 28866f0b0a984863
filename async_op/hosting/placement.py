"""Which host an epoch of a subtask is fed to: the one that lives, a new one, or (H7) one in the task itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from async_op.hosting.errors import HostLost, HostUnreachable
from async_op.hosting.feeder import Channel, Feeder, Waiting
from async_op.hosting.messages import Hello


class Address(NamedTuple):
    """Where a host listens.

    Attributes
    ----------
    path : str
        Of its Unix socket; reaches it on its own machine.
    host, port : str, int
        For others; port 0 if it does not listen on TCP.
    log : str
        Its log file, for people.
    process : str
        Its machine and process id, as ``machine:id``, for people.
    """

    path: str
    host: str = ""
    port: int = 0
    log: str = ""
    process: str = ""


class Ways(Protocol):
    """How a task gets at hosts."""

    def known(self) -> Sequence[Address]:
        """Return where a host of this subtask may be, the likeliest first."""
        ...

    def connect(self, address: Address) -> Channel:
        """Connect; raises `HostUnreachable`."""
        ...

    def start(self) -> Waiting[Address]:
        """Start a host on this machine, restored from the newest manifest; raises `HostUnreachable`."""
        ...

    def in_task(self) -> Waiting[Channel]:
        """Open the operator in the task, restored from the newest manifest, for this epoch only."""
        ...


class Claimed(NamedTuple):
    """A host that goes on with this feeder.

    Attributes
    ----------
    feeder : Feeder
        Feeds it.
    address : Address or None
        Where it listens; None if it runs in the task.
    fallback : str or None
        Why it runs in the task.
    """

    feeder: Feeder
    address: Address | None
    fallback: str | None = None


def claim(ways: Ways, hello: Hello) -> Waiting[Claimed]:
    """Find or start a host that goes on from the newest manifest, and claim it.

    H7: where none can be reached or started, or one is busy with another attempt, the operator runs in the task for
    this epoch, with the same results.

    Raises
    ------
    FeederFenced
        A newer attempt was there: nothing is started (H3).
    KeyGroupsError
        The operator has failed (H8); nothing is started that would hide it.
    """
    for address in ways.known():
        feeder, is_busy = yield from _try(ways, address, hello)
        if feeder is not None:
            return Claimed(feeder, address)
        if is_busy:
            return (yield from _in_task(ways, hello, "another attempt feeds its host"))
    try:
        address = yield from ways.start()
    except HostUnreachable as error:
        return (yield from _in_task(ways, hello, error.reason))
    feeder, _ = yield from _try(ways, address, hello)
    if feeder is not None:
        return Claimed(feeder, address)
    return (yield from _in_task(ways, hello, f"the host that was started does not answer, see {address.log}"))


def _try(ways: Ways, address: Address, hello: Hello) -> Waiting[tuple[Feeder | None, bool]]:
    """Return a feeder if a host goes on, and whether it is busy with another."""
    try:
        feeder = Feeder(ways.connect(address))
    except HostUnreachable:
        return None, False
    try:
        refused = yield from feeder.hello(hello)
    except HostLost:
        refused = "replace"
    except BaseException:
        feeder.close()
        raise
    if refused is None:
        return feeder, False
    feeder.close()
    return None, refused == "busy"


def _in_task(ways: Ways, hello: Hello, reason: str) -> Waiting[Claimed]:
    feeder = Feeder((yield from ways.in_task()))
    refused = yield from feeder.hello(hello)
    assert refused is None, "nobody else knows of it"
    return Claimed(feeder, None, reason)
