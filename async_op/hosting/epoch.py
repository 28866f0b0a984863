"""One epoch of one subtask, as its task runs it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

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


def run(ways: Ways, epoch: Epoch) -> Waiting[tuple[Part, Address | None]]:
    """Run an epoch; returns the part, and the address of the host that lives on (None if there is none).

    Raises
    ------
    FeederFenced
        A newer attempt has claimed the host.
    HostLost
        The host ended during the epoch, which must be run again.
    Exception
        What the operator failed with.
    """
    feeder, address = yield from claim(ways, epoch.hello)
    try:
        if epoch.watermark is not None:
            yield from feeder.watermark(epoch.watermark)
        yield from feeder.feed(epoch.batches)
        yield from feeder.settle()
        part = yield from feeder.cut(epoch.cut)
    finally:
        feeder.close()
    return part, None if epoch.cut.final else address
