"""Which host an epoch is fed to: the one that is running, a new one, or (H7) one inside the task."""

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
        The path of its Unix socket, for feeders on the same machine.
    host, port : str, int
        Its TCP address, for feeders on other machines; the port is 0 if it does not listen on TCP.
    log : str
        The path of its log file, which error messages name.
    process : str
        Its machine and process id, as ``machine:id``, which progress reports name.
    """

    path: str
    host: str = ""
    port: int = 0
    log: str = ""
    process: str = ""


class Ways(Protocol):
    """How a task reaches the host of its subtask, or starts one."""

    def known(self) -> Sequence[Address]:
        """Return the addresses at which a host of this subtask may listen, the likeliest first."""
        ...

    def connect(self, address: Address) -> Channel:
        """Connect to a host; raises `HostUnreachable` if none answers there."""
        ...

    def start(self) -> Waiting[Address]:
        """Start a host on this machine, restored from the newest manifest; raises `HostUnreachable` if it cannot."""
        ...

    def in_task(self) -> Waiting[Channel]:
        """Open the operator inside the task, restored from the newest manifest, for this epoch only."""
        ...


class Claimed(NamedTuple):
    """A host that has accepted a feeder's hello.

    Attributes
    ----------
    feeder : Feeder
        The feeder of the host.
    address : Address or None
        Where the host listens; None if it runs in the task.
    fallback : str or None
        Why it runs in the task; None if it does not.
    """

    feeder: Feeder
    address: Address | None
    fallback: str | None = None


def claim(ways: Ways, hello: Hello) -> Waiting[Claimed]:
    """Find or start a host whose content is that of the newest manifest, and claim it.

    H7: if no host can be reached or started, or if a host is busy with another attempt of the same job, the operator
    runs inside the task for this epoch. The results are the same. What is left of an earlier job gives way: the driver
    has given that up, so its calls must not go on beside those of this one.

    Raises
    ------
    FeederFenced
        A newer attempt has claimed the host; nothing is started (H3).
    Exception
        What the operator failed with (H8). Nothing is started, because a fresh host would hide the failure.
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
    """Return a feeder if the host accepts the hello, else None; and whether the host is busy with another feeder."""
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
    assert refused is None, "no other feeder knows this host"
    return Claimed(feeder, None, reason)
