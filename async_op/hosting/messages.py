"""The messages of feeders and of the driver to a host, and the host's replies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeAlias

from async_op.errors import BlocksEventLoop
from async_op.hosting.fencing import Fence, NewestManifest, Reason
from async_op.resilience.lending import Allowance, Holdings


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
    exits : str
        The path of the file on its machine that will have the exit status of its process; empty without one.
    """

    path: str
    host: str = ""
    port: int = 0
    log: str = ""
    process: str = ""
    exits: str = ""


class EpochEnd(NamedTuple):
    """What an epoch waits for, and for how long, before the cut that ends it; and what becomes of its host then.

    =========================================== ======================== ============ ==========
    epoch                                       `barrier_timeout`        `waits_for`  `is_final`
    =========================================== ======================== ============ ==========
    a micro-batch                               as the user says         "calls"
    without input, to finish what is in flight  a minute, or None        "calls"
    without input, before a micro-batch that    as the user says, but    "room"
    would find its hosts full                   at least a second
    without input, for what hosts have ready    0                        "calls"
    the last one of a generation: before a      0                        "calls"      yes
    rescale, and at the end of a query
    a drain while a caller waits for the end    as the caller says       "calls in
                                                                         time"
    =========================================== ======================== ============ ==========

    In a host, the time begins with the hello, and feeding counts. In its task, an operator ends with the epoch: cut off
    again and again, a call that is longer than the timeout would never return. So there the time begins when all rows
    are in and the calls that were restored have returned; with "calls in time", they may be cut off, too.

    Attributes
    ----------
    barrier_timeout : float or None
        Seconds that feeding and waiting may take together; None for no limit.
    waits_for : {"calls", "calls in time", "room"}
        Until nothing is in flight and nothing waits, or until there is room for the rows of another epoch.
    is_final : bool
        Whether the host begins no more calls after the cut, and ends once the cut is committed.
    """

    barrier_timeout: float | None = None
    waits_for: Literal["calls", "calls in time", "room"] = "calls"
    is_final: bool = False


@dataclass(frozen=True, slots=True)
class Hello:
    """Claim the host for one epoch.

    Attributes
    ----------
    generation : str
        The name of the generation that the host must belong to.
    fence : Fence
        The fence of the feeder.
    manifest : NewestManifest
        What the newest manifest says about the subtask.
    job : str
        Names the attempt at the epoch; all parts of a version come from one attempt.
    epoch : object
        What `OperatorFactory.decoder` needs to make elements of the rows.
    end : EpochEnd
        How the epoch ends.
    allowance : mapping of str to Allowed or None
        What the operator may use of its limits; None if it keeps its share of them.
    """

    generation: str
    fence: Fence
    manifest: NewestManifest
    job: str
    epoch: Any = None
    end: EpochEnd = field(default_factory=EpochEnd)
    allowance: Allowance | None = None


@dataclass(frozen=True, slots=True)
class Feed:
    """Take in a batch of rows, in the form that `OperatorFactory.decoder` accepts."""

    rows: Any


@dataclass(frozen=True, slots=True)
class FeedWatermark:
    """Take in a watermark (milliseconds since the Unix epoch), behind all rows that were fed before it."""

    timestamp: int


@dataclass(frozen=True, slots=True)
class Settle:
    """Wait as the hello said (`EpochEnd`): all rows are in."""


@dataclass(frozen=True, slots=True)
class Cut:
    """Cut the operator, and write its part of a version.

    Attributes
    ----------
    version : int
        The version that the driver is going to commit.
    target : object
        Where the part is written; handed to `OperatorFactory.write`.
    """

    version: int
    target: Any = None


@dataclass(frozen=True, slots=True)
class Poll:
    """Return the status of the host, without a cut."""


@dataclass(frozen=True, slots=True)
class Renew:
    """Renew the lease: the driver is alive.

    Attributes
    ----------
    generation : str
        The generation of the host.
    cut_id : str or None
        The cut of the subtask that the newest manifest names; None if the function need not know.
    """

    generation: str
    cut_id: str | None = None


@dataclass(frozen=True, slots=True)
class Committed:
    """Note that a version is committed; a host whose final cut belongs to it ends. `cut_id` is as in `Renew`."""

    generation: str
    version: int
    cut_id: str | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """End the host, unless a newer feeder has claimed it meanwhile. `cut_id` is as in `Renew`."""

    generation: str
    fence: Fence
    cut_id: str | None = None


@dataclass(frozen=True, slots=True)
class Conclude:
    """Wait no longer in the epoch under way, for calls or for room, so that its feeder cuts soon."""

    generation: str


Message: TypeAlias = Hello | Feed | FeedWatermark | Settle | Cut | Poll | Renew | Committed | Stop | Conclude


@dataclass(frozen=True, slots=True)
class Done:
    """The message was carried out, and there is nothing to return."""


@dataclass(frozen=True, slots=True)
class Refused:
    """The host refuses a message of this feeder.

    Attributes
    ----------
    reason : {"stale", "busy", "replace", "foreign"}
        "stale": a newer feeder has been let in, so the task fails and starts nothing. "busy": another attempt of the
        same job is at work, so the operator runs in the task. "replace": the host's content is not the manifest's, so
        the host ends, and a fresh one restores. "foreign": the host belongs to another generation.
    """

    reason: Reason


@dataclass(frozen=True, slots=True)
class Failed:
    """The message, or the operator, has failed; the feeder raises the error."""

    error: BaseException


@dataclass(frozen=True, slots=True)
class Part:
    """One subtask's part of a version, written and not committed.

    Attributes
    ----------
    job : str
        The attempt at the epoch, as in the hello.
    subtask_index : int
        The subtask.
    version : int
        The version, as in the cut.
    handle : object
        What `OperatorFactory.write` returned.
    metrics : mapping of str to number
        What the host has counted since its last cut, how many elements are in flight and wait for room, and whether
        there is room for the rows of another epoch.
    holdings : mapping of str to Holding
        What the operator held of its limits at the cut.
    blocking : tuple of BlocksEventLoop
        The functions that have blocked the event loop of the host.
    """

    job: str
    subtask_index: int
    version: int
    handle: Any
    metrics: Mapping[str, float] = field(default_factory=dict)
    holdings: Holdings = field(default_factory=dict)
    blocking: tuple[BlocksEventLoop, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """The status of a host; before its operator is open, only `failure` says anything.

    Attributes
    ----------
    ready : int
        Outputs since the last cut.
    in_flight, waiting : int
        Elements in the operator, and elements for which it has no room yet.
    calls : int
        Calls that it has made since it was opened.
    oldest_call_seconds : float
        The age of the oldest element in the operator.
    has_room : bool
        Whether there is room for the rows of another epoch: no more elements wait than the host keeps as a reserve.
    failure : BaseException or None
        The error with which the next hello will be answered.
    holdings : mapping of str to Holding
        What the operator holds of its limits.
    blocking : tuple of BlocksEventLoop
        The functions that have blocked the event loop of the host.
    """

    ready: int = 0
    in_flight: int = 0
    waiting: int = 0
    calls: int = 0
    oldest_call_seconds: float = 0.0
    has_room: bool = True
    failure: BaseException | None = None
    holdings: Holdings = field(default_factory=dict)
    blocking: tuple[BlocksEventLoop, ...] = ()


Reply: TypeAlias = Done | Refused | Failed | Part | Status
