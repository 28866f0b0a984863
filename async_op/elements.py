"""Elements: records and watermarks outside of the operator, entries inside of it."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
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


Element = tuple[Any, int | None, str | None]
"""A value that comes in, its timestamp and its id."""


class Call(Protocol):
    """What runs an invocation."""

    def interrupt(self) -> None:
        """Tell that the result for one of its elements is not wanted any more."""
        ...


class Entry:
    """An in-flight element. It is pending while `outputs` is None.

    `key_group` is None without a key. `invocation` is the one whose result counts, `call` what runs it, `due` the time
    of the next attempt during a backoff; `expired` means that the timeout has passed.

    It has no `__init__`, because that would double the time to make one: see `new_entry`.
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

    sequence: int
    value: Any
    timestamp: int | None
    element_id: str | None
    key: Hashable
    key_group: int | None
    attempt: int
    deadline: float | None
    due: float | None
    expired: bool
    outputs: Sequence[Any] | None
    invocation: InvocationContext | None
    call: Call | None
    segment: Segment | None

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


def new_entry(value: Any, timestamp: int | None, element_id: str | None, sequence: int) -> Entry:
    """Make the entry of one element."""
    entry = Entry()
    entry.sequence = sequence
    entry.value = value
    entry.timestamp = timestamp
    entry.element_id = element_id
    entry.attempt = 1
    entry.expired = False
    entry.key = entry.key_group = entry.deadline = entry.due = None
    entry.outputs = entry.invocation = entry.call = entry.segment = None
    return entry


def add_entries(
    entries: list[Entry], elements: Iterable[Element], sequence: int, set_key: Callable[[Entry], None] | None = None
) -> None:
    """Make entries of elements, and add them to a list: those before an error, too.

    It does what `new_entry` does, flat on purpose: but for the key, no function is called for an element.

    Parameters
    ----------
    entries : list of Entry
        Where they go.
    elements : iterable of (value, timestamp, element id)
        What they are made of.
    sequence : int
        The sequence number of the first.
    set_key : callable, optional
        Sets the key of an entry.
    """
    for value, timestamp, element_id in elements:
        entry = Entry()
        entry.sequence = sequence
        entry.value = value
        entry.timestamp = timestamp
        entry.element_id = element_id
        entry.attempt = 1
        entry.expired = False
        entry.key = entry.key_group = entry.deadline = entry.due = None
        entry.outputs = entry.invocation = entry.call = entry.segment = None
        if set_key is not None:
            set_key(entry)
        entries.append(entry)
        sequence += 1


class WatermarkEntry:
    """A watermark in the queue: complete from the start."""

    __slots__ = ("sequence", "timestamp")

    outputs: Sequence[Any] = ()

    def __init__(self, sequence: int, timestamp: int) -> None:
        self.sequence: int = sequence
        self.timestamp: int = timestamp

    def capture(self, keys: KeyAssignment, now: float) -> InFlightElement:
        """Return the watermark as a snapshot holds it."""
        return InFlightElement(
            channel=keys.subtask_index, sequence=self.sequence, is_watermark=True, timestamp=self.timestamp
        )
