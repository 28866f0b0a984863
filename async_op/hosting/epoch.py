"""One epoch of one subtask, as its task runs it: in the host that is there, a new one, or (H7) one inside the task."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from async_op.hosting.errors import HostLost, HostSilent, HostUnreachable, IncompleteEpoch
from async_op.hosting.feeder import Feeder, HostChannel, Waiting
from async_op.hosting.messages import Address, Cut, Hello, Part


class Ways(Protocol):
    """How a task reaches the host of its subtask, or starts one."""

    def known(self) -> Sequence[Address]:
        """Return the addresses at which a host of this subtask may listen, the likeliest first."""
        ...

    def connect(self, address: Address) -> Waiting[HostChannel]:
        """Connect to a host; raises `HostUnreachable` if none answers there."""
        ...

    def give_up(self, address: Address) -> None:
        """Note that a host was silent for too long: `start` ends it at once, so that it costs this time once."""
        ...

    def start(self) -> Waiting[Address]:
        """Start a host on this machine, restored from the newest manifest; raises `HostUnreachable` if it cannot."""
        ...

    def in_task(self) -> Waiting[HostChannel]:
        """Open the operator inside the task, restored from the newest manifest, for this epoch only."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Epoch:
    """What a task sends to a host in one epoch.

    Attributes
    ----------
    hello : Hello
        Claims the host.
    cut : Cut
        Ends the epoch.
    batches : iterable
        The rows, in the form that `OperatorFactory.decoder` accepts.
    watermark : int or None
        The watermark before the rows, in milliseconds since the Unix epoch; None if there is no new one.
    """

    hello: Hello
    cut: Cut
    batches: Iterable[Any] = field(default=())
    watermark: int | None = None


class Ran(NamedTuple):
    """The result of an epoch for its task.

    Attributes
    ----------
    part : Part
        The part that the host wrote, not committed yet.
    address : Address or None
        Where the host listens; None if it does not live on.
    fallback : str or None
        Why the operator ran in the task; None if it did not.
    """

    part: Part
    address: Address | None
    fallback: str | None


def run(ways: Ways, epoch: Epoch) -> Waiting[Ran]:
    """Run an epoch: claim a host, feed it, wait for calls, and have it cut.

    Raises
    ------
    FeederFenced
        A newer attempt has claimed the host.
    HostLost
        The host ended during the epoch, which must be run again.
    Exception
        What the operator failed with.
    """
    feeder, address, fallback = yield from claim(ways, epoch.hello)
    try:
        if epoch.watermark is not None:
            yield from feeder.watermark(epoch.watermark)
        yield from feeder.feed(epoch.batches)
        yield from feeder.settle()
        part = yield from feeder.cut(epoch.cut)
    finally:
        feeder.close()
    return Ran(part, None if epoch.hello.end.is_final else address, fallback)


def one_of_each(parts: Iterable[Part], job: str, parallelism: int) -> list[Part]:
    """H4: Pick one part for each subtask, all of one job, which is one attempt at an epoch.

    Parts of an earlier job start from the same manifest and may look complete, but were made of other rows.

    Raises
    ------
    IncompleteEpoch
        A subtask has no part, because its host was lost; the epoch must be run again.
    """
    picked: dict[int, Part] = {}
    for part in parts:
        if part.job == job:
            picked.setdefault(part.subtask_index, part)
    missing = sorted(set(range(parallelism)) - picked.keys())
    if missing:
        raise IncompleteEpoch(job, missing)
    return [picked[index] for index in range(parallelism)]


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
    """Find or start a host whose content equals the newest manifest, and claim it.

    H7: if no host can be reached or started, or if a host is busy with another attempt of the same job, the operator
    runs inside the task for this epoch. The results are the same. What is left of an earlier job gives way: the driver
    has given that up, so its calls must not continue beside this one's.

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
        feeder = Feeder((yield from ways.connect(address)))
    except HostUnreachable:
        return None, False
    try:
        refused = yield from feeder.hello(hello)
    except HostLost as lost:
        if isinstance(lost, HostSilent):
            ways.give_up(address)
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
