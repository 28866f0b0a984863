"""Elements: records and watermarks outside of the operator, entries inside of it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from keygroups.state.timers import Timer
from snapshots import InFlightElement

if TYPE_CHECKING:
    from async_op.context import InvocationContext
    from async_op.keys import KeyAssignment
    from async_op.queues import Segment


class Record(NamedTuple):
    """An output with the timestamp of the input that it comes from (milliseconds since the epoch, or None)."""

    value: Any
    timestamp: int | None


class Watermark(NamedTuple):
    """A promise that no record with a timestamp up to this one follows (milliseconds since the epoch)."""

    timestamp: int


class Call(Protocol):
    """What runs an invocation."""

    def interrupt(self) -> None:
        """Tell that the result for one of its elements is not wanted any more."""
        ...


class Entry:
    """An in-flight element. It is pending while `outputs` is None.

    `key_group` is None until something asks for it, because hashing costs as much as queueing. `invocation` is
    the one whose result counts, `call` what runs it, `due` the time of the next attempt during a backoff;
    `expired` means that the timeout has passed.
    """

    __slots__ = (
        "attempt",
        "call",
        "deadline",
        "due",
        "element_id",
        "expired",
        "invocation",
        "key",
        "key_group",
        "outputs",
        "segment",
        "sequence",
        "timestamp",
        "value",
    )

    def __init__(self, sequence: int, value: Any, timestamp: int | None, element_id: str | None) -> None:
        self.sequence = sequence
        self.value = value
        self.timestamp = timestamp
        self.element_id = element_id
        self.key: Hashable = None
        self.key_group: int | None = None
        self.attempt = 1
        self.deadline: float | None = None
        self.due: float | None = None
        self.expired = False
        self.outputs: Sequence[Any] | None = None
        self.invocation: InvocationContext | None = None
        self.call: Call | None = None
        self.segment: Segment | None = None

    def capture(self, keys: KeyAssignment, now: float) -> InFlightElement:
        """Return the element as a snapshot holds it."""
        deadline, due, outputs = self.deadline, self.due, self.outputs
        # By position, which takes half the time of keywords: the operator stands still meanwhile.
        return InFlightElement(
            keys.subtask_index,
            self.sequence,
            False,
            outputs is not None,
            self.value,
            self.timestamp,
            self.key,
            keys.key_group_of(self),
            self.element_id or keys.element_id_of(self),
            self.attempt,
            None if deadline is None else max(0.0, deadline - now),
            None if due is None else max(0.0, due - now),
            None if outputs is None else tuple(outputs),
        )


def is_timer(entry: object) -> bool:
    """Tell whether something in the queue is a timer that has fired."""
    return type(entry) is Entry and type(entry.value) is Timer


class WatermarkEntry:
    """A watermark in the queue: complete from the start."""

    __slots__ = ("sequence", "timestamp")

    outputs: Sequence[Any] = ()

    def __init__(self, sequence: int, timestamp: int) -> None:
        self.sequence = sequence
        self.timestamp = timestamp

    def capture(self, keys: KeyAssignment, now: float) -> InFlightElement:
        """Return the watermark as a snapshot holds it."""
        return InFlightElement(
            channel=keys.subtask_index, sequence=self.sequence, is_watermark=True, timestamp=self.timestamp
        )
