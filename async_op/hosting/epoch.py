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
    """What a task does in an epoch.

    Attributes
    ----------
    hello : Hello
        The claim.
    cut : Cut
        The end.
    batches : iterable
        The rows.
    watermark : int or None
        Stands before the rows.
    """

    hello: Hello
    cut: Cut
    batches: Iterable[Any] = field(default=())
    watermark: int | None = None


class Ran(NamedTuple):
    """What has come of an epoch.

    Attributes
    ----------
    part : Part
        Written, not committed.
    address : Address or None
        Where the host goes on; None if there is none.
    fallback : str or None
        Why the operator ran in the task.
    """

    part: Part
    address: Address | None
    fallback: str | None


def run(ways: Ways, epoch: Epoch) -> Waiting[Ran]:
    """Run an epoch.

    Raises
    ------
    FeederFenced
        A newer attempt is at work.
    HostLost
        The host ended meanwhile: the epoch has to be run again.
    KeyGroupsError
        The operator has failed.
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
    return Ran(part, None if epoch.cut.final else address, fallback)
