"""One epoch of one subtask, as its task runs it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from async_op.hosting.feeder import Waiting
from async_op.hosting.messages import Cut, Hello, Part
from async_op.hosting.placement import Address, Ways, claim


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
        The rows, in the form that `Blueprint.decoder` accepts.
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
