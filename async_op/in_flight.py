"""What is in flight: counted between its acceptance and its emission."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from async_op.blocks import Block
from async_op.elements import Entry, Record, Watermark, WatermarkEntry
from async_op.keys import KeyAssignment
from async_op.queues import queue_of
from async_op.statistics import Stopwatch
from async_op.timers import TimerService
from async_op.waiters import Waiters
from snapshots import InFlightElement

_new_tuple = tuple.__new__  # makes a Record in half the time of its own constructor

_ONE_EACH = frozenset({1})


class InFlight:
    """The queue with its counters, and the one place from which outputs leave.

    Only the thread of the event loop may call it.

    Parameters
    ----------
    mode : str
        The operator's.
    output : callable
        Called with each `Record` and `Watermark` that leaves.
    waiters : Waiters
        Woken after something has left.

    Attributes
    ----------
    idle : Stopwatch
        Runs while nothing is in flight; to be set before anything is put.
    accepted, departed : int
        Elements that have come and gone, watermarks included; `accepted` is the sequence number of the next one.
    emitted : int
        How many times the output was called.
    watermarks : int
        How many watermarks have come.
    watermark : int or None
        The newest one that has left.
    stopped : bool
        Nothing leaves any more.
    timers : TimerService or None
        What is to fire before a watermark leaves.
    """

    __slots__ = (
        "_output",
        "_waiters",
        "_waiting",
        "accepted",
        "departed",
        "emitted",
        "idle",
        "queue",
        "stopped",
        "timers",
        "watermark",
        "watermarks",
    )

    idle: Stopwatch

    def __init__(self, mode: str, output: Callable[[Record | Watermark], object], waiters: Waiters) -> None:
        self._output = output
        self._waiters = waiters
        self._waiting = waiters.waiting
        self.queue = queue_of(mode, self)
        self.watermark: int | None = None
        self.accepted = self.departed = self.emitted = self.watermarks = 0
        self.stopped = False
        self.timers: TimerService | None = None

    def __len__(self) -> int:
        return self.accepted - self.departed

    def put(self, entries: Sequence[Entry]) -> None:
        """Take in entries whose sequence numbers go on from `accepted`."""
        if self.accepted == self.departed:
            self.idle.stop()
        self.accepted += len(entries)
        self.queue.put(entries)

    def put_block(self, block: Block) -> None:
        """Take in a block, which counts its elements itself."""
        if self.accepted == self.departed:
            self.idle.stop()
        self.queue.put_block(block)

    def put_before(self, entry: Entry, watermark: WatermarkEntry) -> None:
        """Take in an entry before a watermark that is held."""
        self.accepted += 1
        self.queue.put_before(entry, watermark)

    def is_held(self, watermark: WatermarkEntry) -> bool:
        """Tell whether timers are to fire before a watermark leaves."""
        return self.timers is not None and self.timers.fire_before(watermark)

    def put_watermark(self, timestamp: int) -> None:
        """Take in a watermark; it leaves after every record before it."""
        if self.accepted == self.departed:
            self.idle.stop()
        self.accepted += 1
        self.watermarks += 1
        self.queue.put_watermark(WatermarkEntry(self.accepted - 1, timestamp))

    def leave(self, entry: Entry) -> None:
        """Emit a completed entry."""
        if self.stopped:
            return
        outputs, timestamp, output = entry.outputs, entry.timestamp, self._output
        assert outputs is not None, "only what has completed leaves"
        self.emitted += len(outputs)
        self.departed += 1
        for value in outputs:
            output(_new_tuple(Record, (value, timestamp)))
        if self._waiting or self.accepted == self.departed:
            self._tell()

    def leave_block(self, block: Block) -> None:
        """Emit a completed block."""
        if self.stopped:
            return
        outputs, output = block.outputs, self._output
        assert outputs is not None, "only what has completed leaves"
        self.departed += len(block)
        if _ONE_EACH.issuperset(map(len, outputs)):  # as a rule: then a loop within the loop would cost a tenth more
            self.emitted += len(outputs)
            for (value,), (_, timestamp, _) in zip(outputs, block.elements, strict=True):
                output(_new_tuple(Record, (value, timestamp)))
        else:
            self.emitted += sum(map(len, outputs))
            for values, (_, timestamp, _) in zip(outputs, block.elements, strict=True):
                for value in values:
                    output(_new_tuple(Record, (value, timestamp)))
        self._tell()

    def leave_watermark(self, watermark: WatermarkEntry) -> None:
        """Emit a watermark."""
        if self.stopped:
            return
        self.watermark = watermark.timestamp
        self.emitted += 1
        self.departed += 1
        self._output(Watermark(watermark.timestamp))
        self._tell()

    def capture(self, keys: KeyAssignment, now: float) -> tuple[InFlightElement, ...]:
        """Return the elements as a snapshot holds them."""
        captured: list[InFlightElement] = []
        for entry in self.queue.entries():
            if isinstance(entry, Block):
                captured += [element.capture(keys, now) for element in entry.to_entries()]
            else:
                captured.append(entry.capture(keys, now))
        if self.timers is not None:
            # Timers are not numbered in the order of the queue.
            captured = [element._replace(sequence=number) for number, element in enumerate(captured)]
        return tuple(captured)

    def counters(self) -> dict[str, Any]:
        """Return how many elements are in flight: pending ones, completed ones and watermarks."""
        watermarks = sum(isinstance(entry, WatermarkEntry) for entry in self.queue.entries())
        pending = sum(len(entry) if isinstance(entry, Block) else 1 for entry in self.queue.pending())
        return {
            "in_flight": len(self),
            "pending": pending,
            "completed": len(self) - pending - watermarks,
            "watermarks": watermarks,
        }

    def _tell(self) -> None:
        if self.accepted == self.departed:
            self.idle.start()
        if self._waiting:
            self._waiters.wake()
