"""Converts the elements in flight into the form that a snapshot stores."""

from __future__ import annotations

from collections.abc import Iterable

from async_op.in_flight.entries import Block, Entry, QueueEntry, WatermarkEntry
from async_op.in_flight.key_assignment import KeyAssignment
from async_op.outputs import own_outputs
from snapshots import InFlightElement


def capture(entries: Iterable[QueueEntry], keys: KeyAssignment, now: float) -> list[InFlightElement]:
    """Convert entries for a snapshot, in queue order.

    Parameters
    ----------
    entries : iterable of QueueEntry
        The content of the queue.
    keys : KeyAssignment
        Provides their key groups and ids.
    now : float
        The current time in seconds; remaining time budgets and delays are measured from it.
    """
    captured: list[InFlightElement] = []
    for entry in entries:
        if isinstance(entry, Entry):
            captured.append(capture_entry(entry, keys, now))
        elif isinstance(entry, Block):
            captured += [capture_entry(one, keys, now) for one in entry.to_entries()]
        else:
            captured.append(capture_watermark(entry, keys))
    return captured


def capture_entry(entry: Entry, keys: KeyAssignment, now: float) -> InFlightElement:
    """Convert one element for a snapshot."""
    deadline, due, outputs = entry.deadline, entry.due, entry.outputs
    return InFlightElement(
        channel=keys.subtask_index,
        sequence=entry.sequence,
        is_watermark=False,
        completed=outputs is not None,
        value=entry.value,
        timestamp=entry.timestamp,
        key=entry.key,
        key_group=keys.key_group_of(entry),
        element_id=keys.element_id_of(entry),
        attempt=entry.attempt,
        remaining=None if deadline is None else max(0.0, deadline - now),
        delay=None if due is None else max(0.0, due - now),
        # The snapshot is written while the outputs leave, and their receiver may change them.
        outputs=None if outputs is None else tuple(own_outputs(outputs)),
    )


def capture_watermark(watermark: WatermarkEntry, keys: KeyAssignment) -> InFlightElement:
    """Convert a watermark for a snapshot."""
    return InFlightElement(
        channel=keys.subtask_index, sequence=watermark.sequence, is_watermark=True, timestamp=watermark.timestamp
    )
