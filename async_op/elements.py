"""Elements: records and watermarks outside of the operator, entries inside of it."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from snapshots import InFlightElement

if TYPE_CHECKING:
    from async_op.context import InvocationContext
    from async_op.queues import Segment


class Record(NamedTuple):
    """An output with the timestamp of the input that it comes from (milliseconds since the epoch, or None)."""

    value: Any
    timestamp: int | None


class Watermark(NamedTuple):
    """A promise that no record with a timestamp up to this one follows (milliseconds since the epoch)."""

    timestamp: int


class Entry:
    """An in-flight element. It is pending while `outputs` is None.

    `key_group` is None until something asks for it, because hashing costs as much as queueing. `invocation` is
    the one whose result counts, `task` the one that runs it; `expired` means that its timeout has passed.
    """

    __slots__ = (
        "attempt",
        "deadline",
        "element_id",
        "expired",
        "invocation",
        "key",
        "key_group",
        "outputs",
        "segment",
        "sequence",
        "task",
        "timestamp",
        "value",
    )

    is_watermark = False

    def __init__(
        self,
        sequence: int,
        value: Any,
        timestamp: int | None,
        key: Hashable,
        element_id: str | None,
        deadline: float | None,
    ) -> None:
        self.sequence = sequence
        self.value = value
        self.timestamp = timestamp
        self.key = key
        self.key_group: int | None = None
        self.element_id = element_id
        self.attempt = 1
        self.deadline = deadline
        self.outputs: Sequence[Any] | None = None
        self.expired = False
        self.invocation: InvocationContext | None = None
        self.task: asyncio.Task[None] | None = None
        self.segment: Segment | None = None

    def emissions(self) -> list[Record | Watermark]:
        """Return what leaves the operator when the entry does."""
        timestamp = self.timestamp
        return [Record(output, timestamp) for output in self.outputs or ()]

    def capture(self, channel: int, key_group: int, element_id: str, remaining: float | None) -> InFlightElement:
        """Return the element as a snapshot holds it."""
        return InFlightElement(
            channel=channel,
            sequence=self.sequence,
            completed=self.outputs is not None,
            value=self.value,
            timestamp=self.timestamp,
            key=self.key,
            key_group=key_group,
            element_id=element_id,
            attempt=self.attempt,
            remaining=remaining,
            outputs=None if self.outputs is None else tuple(self.outputs),
        )


class WatermarkEntry:
    """A watermark in the queue: complete from the start."""

    __slots__ = ("sequence", "timestamp")

    is_watermark = True
    outputs: Sequence[Any] = ()

    def __init__(self, sequence: int, timestamp: int) -> None:
        self.sequence = sequence
        self.timestamp = timestamp

    def emissions(self) -> list[Record | Watermark]:
        """Return the watermark."""
        return [Watermark(self.timestamp)]

    def capture(self, channel: int) -> InFlightElement:
        """Return the watermark as a snapshot holds it."""
        return InFlightElement(channel=channel, sequence=self.sequence, is_watermark=True, timestamp=self.timestamp)
