"""Elements inside the operator: entries, blocks of elements that share one call, and watermarks."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Protocol

from async_op.elements import Element, ElementId
from keygroups.state.timers import Timer


class Call(Protocol):
    """The call that runs an invocation."""

    def interrupt(self) -> None:
        """Stop waiting for the result of one of its elements; the call is cancelled once no result is wanted."""
        ...


class Invocation(Protocol):
    """One attempt at an element. Its result counts unless the attempt has been abandoned.

    The protocol is all that entries know of contexts, which know entries.
    """

    def abandon(self) -> None:
        """End the invocation and discard its writes."""
        ...


class Entry:
    """An in-flight element. It is pending while `outputs` is None.

    `key_group` is None without a key; `identity`, which stands for the key in dicts, is set only with a key.
    `invocation` is the one whose result counts, and `call` runs it. `due` is the time of the next attempt during a
    backoff. `expired` means that the timeout has passed. `segment` is set by the queue that has segments.

    It has no `__init__`, because one would double the time to create an entry: see `new_entry`.
    """

    __slots__ = (
        "attempt",
        "call",
        "deadline",
        "due",
        "element_id",
        "expired",
        "identity",
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
    element_id: ElementId | None
    key: Hashable
    identity: Hashable
    key_group: int | None
    attempt: int
    deadline: float | None
    due: float | None
    expired: bool
    outputs: Sequence[Any] | None
    invocation: Invocation | None
    call: Call | None
    segment: Segment


def is_timer(entry: object) -> bool:
    """Return whether an entry is a timer that has fired."""
    return type(entry) is Entry and type(entry.value) is Timer


def new_entry(value: Any, timestamp: int | None, element_id: ElementId | None, sequence: int) -> Entry:
    """Make the entry of one element."""
    entry = Entry()
    entry.sequence = sequence
    entry.value = value
    entry.timestamp = timestamp
    entry.element_id = element_id
    entry.attempt = 1
    entry.expired = False
    entry.key = None
    entry.key_group = None
    entry.deadline = None
    entry.due = None
    entry.outputs = None
    entry.invocation = None
    entry.call = None
    return entry


def forget_attempts(entry: Entry) -> None:
    """Make a pending entry one that was never called: it has all its attempts and all its time."""
    entry.attempt = 1
    entry.expired = False
    entry.deadline = entry.due = entry.invocation = None


def add_entries(
    entries: list[Entry], elements: Iterable[Element], sequence: int, set_key: Callable[[Entry], None] | None = None
) -> None:
    """Create entries for elements and append them to a list; after an error, the list has those before it.

    This repeats the body of `new_entry` on purpose: apart from the key, no function is called per element. A chain of
    assignments in place of the single ones would be slower.

    Parameters
    ----------
    entries : list of Entry
        The list to append to.
    elements : iterable of (value, timestamp, element id)
        The elements.
    sequence : int
        The sequence number of the first element.
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
        entry.key = None
        entry.key_group = None
        entry.deadline = None
        entry.due = None
        entry.outputs = None
        entry.invocation = None
        entry.call = None
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


class Block:
    """Elements that were accepted one after the other and share one call. They are pending while `outputs` is None.

    `elements` are (value, timestamp, element id). With a timeout, `deadlines` has one deadline per element.

    A block is split into one entry per element when an element needs separate treatment: it failed or timed out, or the
    function used its context. `call` runs the block. `is_one_to_one` means that each element has exactly one output.
    """

    __slots__ = (
        "call",
        "deadlines",
        "elements",
        "entries",
        "is_one_to_one",
        "outputs",
        "segment",
        "sequence",
    )

    expired = False

    def __init__(self, sequence: int) -> None:
        self.sequence: int = sequence
        self.elements: list[Element] = []
        self.deadlines: list[float] = []
        self.outputs: Sequence[Sequence[Any]] | None = None
        self.is_one_to_one = False
        self.segment: Segment | None = None
        self.call: Call | None = None
        self.entries: list[Entry] | None = None

    def __len__(self) -> int:
        return len(self.elements)

    @property
    def deadline(self) -> float | None:
        """The deadline of the block's first element, which expires first."""
        return self.deadlines[0] if self.deadlines else None

    def split(self) -> list[Entry]:
        """Replace the block by one entry per element, and return them."""
        assert self.entries is None, "a block is split only once"
        self.entries = self.to_entries()
        return self.entries

    def to_entries(self) -> list[Entry]:
        """Return the elements as new entries, without splitting the block."""
        entries: list[Entry] = []
        add_entries(entries, self.elements, self.sequence)
        for entry, deadline in zip(entries, self.deadlines, strict=False):  # without a timeout there are no deadlines
            entry.deadline = deadline
        for entry, outputs in zip(entries, self.outputs or (), strict=False):
            entry.outputs = outputs
        return entries


class Segment:
    """The entries between two watermarks."""

    __slots__ = ("completed", "pending", "watermark")

    def __init__(self) -> None:
        self.pending: dict[CallEntry, None] = {}
        self.completed: list[CallEntry] = []
        self.watermark: WatermarkEntry | None = None


CallEntry = Entry | Block
"""What one call completes."""

QueueEntry = Entry | Block | WatermarkEntry
"""An item of a queue."""
