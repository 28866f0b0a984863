"""What a feeder or the driver says to a host, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

DRIVER = 2**63 - 1
"""The attempt of the driver itself, newer than that of any of its tasks."""


class Fence(NamedTuple):
    """What orders those who claim a host.

    First the version of the manifest that they start from, then the id of their task attempt. That id is unique in its
    run and grows; the number of an attempt is neither.
    """

    version: int
    attempt: int


class Manifest(NamedTuple):
    """What the newest manifest says about one subtask.

    Attributes
    ----------
    snapshot_id : str or None
        The manifest's own id; None where there is none yet.
    cut_id : str or None
        The cut that it names for the subtask's channel, if that has the same range and parallelism.
    """

    snapshot_id: str | None
    cut_id: str | None


@dataclass(frozen=True, slots=True)
class Hello:
    """A feeder claims the host for one epoch.

    Attributes
    ----------
    generation : str
        The run, the operator, its parallelism and options.
    fence : Fence
        The feeder's.
    manifest : Manifest
        The newest one.
    job : str
        Names the attempt at the epoch, of which all parts have to come.
    epoch : object
        What makes elements of the feed's rows; handed to `Blueprint.decoder`.
    barrier_timeout : float or None
        For how many seconds from now feeding and settling may wait together; None for as long as it takes.
    """

    generation: str
    fence: Fence
    manifest: Manifest
    job: str
    epoch: Any = None
    barrier_timeout: float | None = None


@dataclass(frozen=True, slots=True)
class Feed:
    """Rows of a batch, in whatever form `Blueprint.decoder` takes."""

    rows: Any


@dataclass(frozen=True, slots=True)
class FeedWatermark:
    """A watermark (milliseconds since the epoch), behind all rows before it."""

    timestamp: int


@dataclass(frozen=True, slots=True)
class Settle:
    """Wait until nothing is in flight, or the barrier timeout is over."""


@dataclass(frozen=True, slots=True)
class Take:
    """Hand out what has left so far, for a feeder that wants no snapshot."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut a part of a version.

    Attributes
    ----------
    version : int
        What the driver is going to commit.
    final : bool
        Begin no calls afterwards.
    target : object
        Where the part goes; handed to `Blueprint.write`.
    """

    version: int
    final: bool = False
    target: Any = None


@dataclass(frozen=True, slots=True)
class Poll:
    """Ask how it is, without a cut."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Ask for the operator's counters."""


@dataclass(frozen=True, slots=True)
class Renew:
    """The driver lives."""

    generation: str


@dataclass(frozen=True, slots=True)
class Committed:
    """A version exists now; a host whose final cut it holds may go."""

    generation: str
    version: int


@dataclass(frozen=True, slots=True)
class Stop:
    """End, unless somebody newer has claimed the host meanwhile."""

    generation: str
    fence: Fence


Message: TypeAlias = Hello | Feed | FeedWatermark | Settle | Take | Cut | Poll | Statistics | Renew | Committed | Stop


@dataclass(frozen=True, slots=True)
class Done:
    """Nothing else is to be said."""


Reason: TypeAlias = Literal["stale", "busy", "replace", "foreign"]


@dataclass(frozen=True, slots=True)
class Refused:
    """The host does not do that for this feeder.

    Attributes
    ----------
    reason : {"stale", "busy", "replace", "foreign"}
        "stale": somebody newer was here, so the task fails and starts nothing. "busy": another feeder is at work, so
        the operator runs in the task. "replace": the content is not the manifest's; the host ends, and a fresh one
        restores. "foreign": it is a host of another generation.
    """

    reason: Reason


@dataclass(frozen=True, slots=True)
class Failed:
    """The operator has failed, with what is to be raised."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Settled:
    """The end of the wait; `nothing_left` if nothing is in flight or waits."""

    nothing_left: bool


@dataclass(frozen=True, slots=True)
class Outputs:
    """What has left, in the packed runs that `Blueprint.pack` made."""

    runs: list[Any]


@dataclass(frozen=True, slots=True)
class Part:
    """One subtask's part of a version, written and not committed.

    Attributes
    ----------
    job : str
        Of the hello.
    subtask_index : int
        Whose.
    version : int
        Of the cut.
    handle : object
        What `Blueprint.write` returned.
    metrics : mapping of str to number
        Since the last cut.
    """

    job: str
    subtask_index: int
    version: int
    handle: Any
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """How a host is; nothing of it is known before its operator is open.

    Attributes
    ----------
    ready : int
        Outputs since the last cut.
    in_flight, waiting : int
        Elements that the operator has, and those that have no room yet.
    oldest_call_seconds : float or None
        For how long the oldest element that has not returned is in the operator.
    next_timer, next_event_timer : int or None
        When the first timers are to fire.
    is_loaded : bool
        All restored state is here: the version that it was restored from is not read any more.
    failure : BaseException or None
        What the next hello is going to be answered with.
    """

    ready: int = 0
    in_flight: int = 0
    waiting: int = 0
    oldest_call_seconds: float | None = None
    next_timer: int | None = None
    next_event_timer: int | None = None
    is_loaded: bool = False
    failure: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Counters:
    """The operator's statistics."""

    statistics: Any


Reply: TypeAlias = Done | Refused | Failed | Settled | Outputs | Part | Status | Counters
