"""Converts in-flight elements to Arrow rows and back, and merges them into the queue of a restored subtask."""

from __future__ import annotations

import reprlib
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from keygroups.codec import pack, unpack
from keygroups.ranges import KeyGroupRange
from keygroups.safe_text import described, printable, repr_of
from keygroups.state.timers import Timer
from snapshots.format.parquet import KEY_GROUP
from snapshots.format.subtask import NO_KEY_GROUP, InFlightElement, RefusedValue

_PACKED = {b"keygroups.encoding": b"msgpack"}

_TIMERS = ("processing_time_timer", "event_time_timer")
"""The kinds of timers; the index is whether they are in event time."""

_REFUSED = "refused"
"""The kind of a record without a usable value; in place of the value it has a text and the reason."""

_shortener = reprlib.Repr()

IN_FLIGHT_SCHEMA = pa.schema(
    [
        pa.field(KEY_GROUP, pa.int32(), False),
        pa.field("channel", pa.int32(), False),
        pa.field("sequence", pa.int64(), False),
        pa.field("kind", pa.string(), False),
        pa.field("completed", pa.bool_(), False),
        pa.field("element_id", pa.string(), False),
        pa.field("attempt", pa.int32(), False),
        pa.field("remaining", pa.float64()),
        pa.field("delay", pa.float64()),
        pa.field("timestamp", pa.int64()),
        pa.field("key", pa.binary(), metadata=_PACKED),
        pa.field("value", pa.binary(), metadata=_PACKED),
        pa.field("outputs", pa.binary(), metadata=_PACKED),
    ]
)


def in_flight_table(elements: Iterable[InFlightElement]) -> pa.Table:
    """Encode elements as rows, sorted by key group and, within a key group, in queue order.

    An element whose value or outputs cannot be stored is stored with a `RefusedValue`, so a restore fails it by its
    error policy, and calls for the others. One such element must not stop each snapshot of all others.
    """
    ordered = sorted(elements, key=lambda element: (element.key_group, element.channel, element.sequence))
    rows = [_storable_row(element) for element in ordered]
    # The user's values are msgpack by now; numbers and ids were checked when the element came in.
    return pa.Table.from_pylist(rows, schema=IN_FLIGHT_SCHEMA)


def in_flight_elements(table: pa.Table) -> list[InFlightElement]:
    """Decode the rows of `in_flight_table`."""
    return [_from_row(row) for row in table.to_pylist()]


def _storable_row(element: InFlightElement) -> dict[str, Any]:
    try:
        return _to_row(element)
    except Exception as error:  # noqa: BLE001 - a codec of the user's may fail in any way
        what = "value" if element.outputs is None else "outputs"
        text = repr_of(element.value if element.outputs is None else element.outputs, _shortener.repr)
        refused = RefusedValue(text, f"its {what} could not be stored: {described(error)}")
        return _to_row(element._replace(value=refused, completed=False, outputs=None))


def _to_row(element: InFlightElement) -> dict[str, Any]:
    where = f"the in-flight element {element.element_id!r}"
    timer = element.value if isinstance(element.value, Timer) else None
    return {
        KEY_GROUP: element.key_group,
        "channel": element.channel,
        "sequence": element.sequence,
        "kind": _kind_of(element),
        "completed": element.completed,
        "element_id": element.element_id,
        "attempt": element.attempt,
        "remaining": element.remaining,
        "delay": element.delay,
        "timestamp": timer.timestamp if timer else element.timestamp,
        "key": pack(element.key, where),
        "value": pack(_stored_value(element.value), where),
        "outputs": None if element.outputs is None else pack(list(element.outputs), where),
    }


def _stored_value(value: Any) -> Any:
    if isinstance(value, RefusedValue):
        return [printable(value.text), printable(value.reason)]
    return None if isinstance(value, Timer) else value


def _kind_of(element: InFlightElement) -> str:
    if isinstance(element.value, RefusedValue):
        return _REFUSED
    if isinstance(element.value, Timer):
        return _TIMERS[element.value.event_time]
    return "watermark" if element.is_watermark else "record"


def _from_row(row: Mapping[str, Any]) -> InFlightElement:
    kind = row["kind"]
    timer = Timer(row["timestamp"], kind == _TIMERS[True]) if kind in _TIMERS else None
    return InFlightElement(
        channel=row["channel"],
        sequence=row["sequence"],
        is_watermark=kind == "watermark",
        completed=row["completed"],
        value=timer or (RefusedValue(*unpack(row["value"])) if kind == _REFUSED else unpack(row["value"])),
        timestamp=None if timer and not timer.event_time else row["timestamp"],
        key=unpack(row["key"]),
        key_group=row[KEY_GROUP],
        element_id=row["element_id"],
        attempt=row["attempt"],
        remaining=row["remaining"],
        delay=row["delay"],
        outputs=None if row["outputs"] is None else tuple(unpack(row["outputs"])),
    )


@dataclass(frozen=True, slots=True)
class RestoredQueue:
    """The queue with which a restored subtask starts.

    Attributes
    ----------
    elements : tuple of InFlightElement
        The elements, in an order that keeps the order of each channel; watermarks belong to the merged channels.
    watermark : int or None
        The watermark that the subtask has already emitted: the minimum over its channels.
    """

    elements: tuple[InFlightElement, ...]
    watermark: int | None


def merge_channels(elements: Iterable[InFlightElement], watermarks: Mapping[int, int | None]) -> RestoredQueue:
    """Merge the queues of old subtasks into one, as if each of them were an input channel.

    The channel with the lowest watermark advances first, because only it can raise the minimum.

    Parameters
    ----------
    elements : iterable of InFlightElement
        The elements of all channels, in any order.
    watermarks : mapping of int to (int or None)
        The newest emitted watermark by channel, for every channel that feeds this subtask.
    """
    queues = {channel: deque[InFlightElement]() for channel in watermarks}
    for element in sorted(elements, key=lambda element: (element.channel, element.sequence)):
        queues[element.channel].append(element)
    current = dict(watermarks)
    start = newest = _minimum(current.values())
    merged: list[InFlightElement] = []
    while open_channels := [channel for channel in sorted(queues) if queues[channel]]:
        channel = min(open_channels, key=lambda channel: _order(current[channel]))
        _move_to_watermark(channel, queues[channel], current, merged)
        minimum = _minimum(current.values())
        if _order(minimum) > _order(newest):
            newest = minimum
            merged.append(InFlightElement(channel=channel, sequence=0, is_watermark=True, timestamp=minimum))
    return RestoredQueue(tuple(element._replace(sequence=n) for n, element in enumerate(merged)), start)


def deal(counts: Sequence[int], parallelism: int, subtask_index: int) -> dict[int, tuple[int, int]]:
    """Return a subtask's share of the elements without a key: contiguous runs; the first ones are longer by one.

    Parameters
    ----------
    counts : sequence of int
        How many elements each channel has.
    parallelism, subtask_index : int
        The number of subtasks, and the index of this one.

    Returns
    -------
    dict of int to (int, int)
        For each channel, the start and the end (exclusive) of the run.

    Examples
    --------
    >>> deal([3, 4], 3, 0), deal([3, 4], 3, 2)
    ({0: (0, 3)}, {1: (2, 4)})
    """
    base, rest = divmod(sum(counts), parallelism)
    start = subtask_index * base + min(subtask_index, rest)
    end = start + base + (subtask_index < rest)
    share: dict[int, tuple[int, int]] = {}
    for channel, count in enumerate(counts):
        if start < count and end > 0 and start < end:
            share[channel] = max(start, 0), min(end, count)
        start -= count
        end -= count
    return share


def key_groups_of_elements(elements: Iterable[InFlightElement], owned: KeyGroupRange) -> KeyGroupRange:
    """Return the smallest range with the owned key groups and the key groups of all elements."""
    key_groups = {element.key_group for element in elements if element.key_group != NO_KEY_GROUP}
    return KeyGroupRange(min(key_groups | {owned.start}), max(key_groups | {owned.end}))


def _move_to_watermark(
    channel: int, queue: deque[InFlightElement], current: dict[int, int | None], merged: list[InFlightElement]
) -> None:
    while queue:
        element = queue.popleft()
        if element.is_watermark:
            current[channel] = element.timestamp
            return
        merged.append(element)


def _minimum(watermarks: Iterable[int | None]) -> int | None:
    return min(watermarks, key=_order, default=None)


def _order(watermark: int | None) -> float:
    return float("-inf") if watermark is None else watermark
