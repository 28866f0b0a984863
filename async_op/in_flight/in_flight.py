"""The elements in flight, counted from acceptance to emission."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from inspect import isawaitable
from itertools import chain
from typing import Any

from async_op.cancellation import cancel_all
from async_op.elements import ElementId, Record, Watermark
from async_op.errors import SnapshotInsideOutput
from async_op.in_flight.capture import capture
from async_op.in_flight.entries import Block, Entry, WatermarkEntry
from async_op.in_flight.idempotency_keys import timer_id
from async_op.in_flight.key_assignment import KeyAssignment
from async_op.in_flight.queues import queue_of
from async_op.in_flight.waiters import Waiters
from async_op.lifecycle import Lifecycle
from async_op.statistics import Stopwatch
from snapshots import InFlightElement

_new_tuple = tuple.__new__  # creates a Record in half the time of its constructor


class ValueOutput(ABC):
    """A consumer of outputs that needs no timestamps.

    Passed as `output`, it gets the values of all outputs of an element at once: a record, and a call for each output,
    would cost a seventh of all that an element costs whose call returns at once.
    """

    __slots__ = ()

    @abstractmethod
    def extend(self, values: Iterable[Any], /) -> None:
        """Take the values of outputs that leave together."""

    def __call__(self, output: Record | Watermark) -> None:
        """Take one output; a watermark has no value."""
        if isinstance(output, Record):
            self.extend((output.value,))


class OutputValues(deque[Any], ValueOutput):
    """The values of outputs, kept for a consumer that needs neither timestamps nor watermarks."""


class InFlight:
    """The queue with its counters; all outputs leave through this class.

    An output that is awaited counts like an element until its consumer is done, so a slow consumer holds up the input.
    Only the thread of the event loop may call it.

    Parameters
    ----------
    mode : str
        The operator's mode.
    output : callable
        Called with each `Record` and `Watermark` that leaves; a `ValueOutput` and a `NamedOutput` get the outputs of an
        element together. If it returns an awaitable, that is awaited later, after
        the awaitables of earlier outputs.
    idle : Stopwatch
        Runs while nothing is in flight.
    waiters : Waiters
        Woken after something has left.
    lifecycle : Lifecycle
        Ends the operator with an error that `output` raised.
    fire_before : callable or None
        Called with a watermark before it leaves: puts due timers before it, and returns whether the watermark has to
        wait for them. None for a function without timers.
    made_room : callable
        Called when the consumer of an awaited output is done.

    Attributes
    ----------
    accepted, departed : int
        Elements that have entered and left, watermarks included; `accepted` is the sequence number of the next one.
        Awaited outputs are subtracted from `departed`.
    deliveries : Deliveries
        The awaited outputs.
    emitted : int
        How many times `output` has been called.
    low : int
        With at most so many elements in flight, waiters are woken when one leaves, also the patient ones.
    watermarks : int
        How many watermarks have entered.
    watermark : int or None
        The newest watermark that has left.
    """

    __slots__ = (
        "_fail",
        "_fire_before",
        "_idle",
        "_keep",
        "_keep_named",
        "_made_room",
        "_output",
        "_patient",
        "_stopped",
        "_waiters",
        "_waiting",
        "accepted",
        "deliveries",
        "departed",
        "emitted",
        "low",
        "queue",
        "watermark",
        "watermarks",
    )

    def __init__(
        self,
        mode: str,
        output: Callable[[Record | Watermark], object],
        idle: Stopwatch,
        waiters: Waiters,
        lifecycle: Lifecycle,
        fire_before: Callable[[WatermarkEntry], bool] | None,
        made_room: Callable[[], None],
    ) -> None:
        self._output = output
        self._keep = output.extend if isinstance(output, ValueOutput) else None
        self._keep_named = output.take if isinstance(output, NamedOutput) else None
        self.deliveries = Deliveries(self, lifecycle)
        self._idle = idle
        self._made_room = made_room
        self._fire_before = fire_before
        self._fail = lifecycle.fail
        self._waiters = waiters
        self._waiting, self._patient = waiters.waiting, waiters.patient
        self.queue = queue_of(mode, self)
        self.watermark: int | None = None
        self.accepted = self.departed = self.emitted = self.watermarks = 0
        self.low = 0
        self._stopped = False

    def __len__(self) -> int:
        return self.accepted - self.departed

    def put(self, entries: Sequence[Entry]) -> None:
        """Add entries whose sequence numbers continue from `accepted`."""
        if self.accepted == self.departed:
            self._idle.stop()
        self.accepted += len(entries)
        self.queue.put(entries)

    def put_block(self, block: Block) -> None:
        """Add a block; `grow` counts its elements as they join it."""
        if self.accepted == self.departed:
            self._idle.stop()
        self.queue.put_block(block)

    def grow(self, count: int) -> None:
        """Count elements that have joined the newest block."""
        self.accepted += count

    def put_before(self, entry: Entry, watermark: WatermarkEntry) -> None:
        """Add an entry before a watermark that is held back."""
        self.accepted += 1
        self.queue.put_before(entry, watermark)

    def is_held(self, watermark: WatermarkEntry) -> bool:
        """Return whether timers have to fire before a watermark may leave."""
        return self._fire_before is not None and self._fire_before(watermark)

    def put_watermark(self, timestamp: int) -> None:
        """Add a watermark; it leaves after every record before it."""
        if self.accepted == self.departed:
            self._idle.stop()
        self.accepted += 1
        self.watermarks += 1
        self.queue.put_watermark(WatermarkEntry(self.accepted - 1, timestamp))

    def begin_at(self, watermark: int | None) -> None:
        """Start with the newest watermark that had left before the restored snapshot."""
        self.watermark = watermark

    def stop(self) -> None:
        """Emit nothing from now on."""
        self._stopped = True

    def leave(self, entry: Entry) -> None:
        """Emit a completed entry."""
        if self._stopped:
            return
        outputs: Any = entry.outputs  # set: only completed entries leave; to assert it would cost as much as `len`
        count = len(outputs)
        try:
            if self._keep is not None:
                self._keep(outputs)
            elif self._keep_named is not None:
                self._keep_named(outputs, entry.timestamp, entry.element_id or timer_id(entry.value, entry.key))
            elif count == 1:  # the usual case: an iterator would cost 1 % of an element whose call returns at once
                if (awaited := self._output(_new_tuple(Record, (outputs[0], entry.timestamp)))) is not None:
                    self._await(awaited)
            else:
                for value in outputs:
                    if (awaited := self._output(_new_tuple(Record, (value, entry.timestamp)))) is not None:
                        self._await(awaited)
        except BaseException as error:  # noqa: BLE001 - the consumer of the outputs has failed
            self._fail(error)
            return
        self.emitted += count
        self.departed += 1
        if self._waiting or self.accepted - self.departed <= self.low:
            self._tell()

    def leave_block(self, block: Block) -> None:
        """Emit a completed block."""
        if self._stopped:
            return
        outputs = block.outputs
        assert outputs is not None, "only completed entries leave"
        try:
            emitted = self._emit(block, outputs)
        except BaseException as error:  # noqa: BLE001 - as in `leave`
            self._fail(error)
            return
        self.emitted += emitted
        self.departed += len(block)
        self._tell()

    def leave_watermark(self, watermark: WatermarkEntry) -> None:
        """Emit a watermark."""
        if self._stopped:
            return
        try:
            if (awaited := self._output(Watermark(watermark.timestamp))) is not None:
                self._await(awaited)
        except BaseException as error:  # noqa: BLE001 - as in `leave`
            self._fail(error)
            return
        self.watermark = watermark.timestamp
        self.emitted += 1
        self.departed += 1
        self._tell()

    def delivered(self) -> None:
        """Count an awaited output as one that has left."""
        self.departed += 1
        self._tell()
        self._made_room()

    def capture(self, keys: KeyAssignment, now: float) -> tuple[InFlightElement, ...]:
        """Return the elements in the form that a snapshot stores.

        Raises
        ------
        SnapshotInsideOutput
            An element is leaving. It counts as in flight until all its outputs are out, but is no longer in the queue.
        """
        captured = capture(self.queue.entries(), keys, now)
        if len(captured) < len(self) - len(self.deliveries):
            raise SnapshotInsideOutput
        if self._fire_before is not None:
            # The sequence numbers of timers do not follow the order of the queue.
            captured = [element._replace(sequence=number) for number, element in enumerate(captured)]
        return tuple(captured)

    def counters(self) -> dict[str, Any]:
        """Return how many elements are in flight (pending, completed and watermarks), and how many outputs awaited."""
        in_flight = len(self) - len(self.deliveries)
        watermarks = sum(isinstance(entry, WatermarkEntry) for entry in self.queue.entries())
        pending = sum(len(entry) if isinstance(entry, Block) else 1 for entry in self.queue.pending())
        return {
            "in_flight": in_flight,
            "pending": pending,
            "completed": in_flight - pending - watermarks,
            "watermarks": watermarks,
            "awaited_outputs": len(self.deliveries),
        }

    def _emit(self, block: Block, outputs: Sequence[Sequence[Any]]) -> int:
        if self._keep is not None:
            self._keep(chain.from_iterable(outputs))
            return sum(map(len, outputs))
        if self._keep_named is not None:
            for values, (_, timestamp, element_id) in zip(outputs, block.elements, strict=True):
                assert element_id is not None, "the elements of a chain have ids"
                self._keep_named(values, timestamp, element_id)
            return sum(map(len, outputs))
        output = self._output
        if block.is_one_to_one:  # the usual case: a nested loop would cost 10 % more
            for (value,), (_, timestamp, _) in zip(outputs, block.elements, strict=True):
                if (awaited := output(_new_tuple(Record, (value, timestamp)))) is not None:
                    self._await(awaited)
            return len(outputs)
        for values, (_, timestamp, _) in zip(outputs, block.elements, strict=True):
            for value in values:
                if (awaited := output(_new_tuple(Record, (value, timestamp)))) is not None:
                    self._await(awaited)
        return sum(map(len, outputs))

    def _await(self, awaited: Any) -> None:
        if isawaitable(awaited):
            self.departed -= 1
            self.deliveries.add(awaited)

    def _tell(self) -> None:
        if self.accepted == self.departed:
            self._idle.start()
        if self._waiting or self._patient:
            self._waiters.wake()


class NamedOutput(ABC):
    """A consumer of outputs that needs their ids, see `output_id`; it gets all outputs of an element at once."""

    __slots__ = ()

    @abstractmethod
    def take(self, values: Sequence[Any], timestamp: int | None, parent: ElementId) -> None:
        """Take the outputs of the element with an id."""

    @abstractmethod
    def __call__(self, output: Watermark) -> None:
        """Take a watermark."""


class Deliveries:
    """Awaits what `output` has returned, one after the other, in the order of the calls.

    An error of an output ends the operator; the outputs after it are given up.

    Parameters
    ----------
    in_flight : InFlight
        Counts the outputs that are awaited.
    lifecycle : Lifecycle
        Ends the operator.
    """

    __slots__ = ("_in_flight", "_is_closed", "_lifecycle", "_task", "_waiting")

    def __init__(self, in_flight: InFlight, lifecycle: Lifecycle) -> None:
        self._in_flight = in_flight
        self._lifecycle = lifecycle
        self._waiting = deque[Awaitable[object]]()
        self._task: asyncio.Task[None] | None = None
        self._is_closed = False

    def __len__(self) -> int:
        """Return how many outputs are awaited."""
        return len(self._waiting)

    def add(self, awaitable: Awaitable[object]) -> None:
        """Await an output after those before it."""
        self._waiting.append(awaitable)
        if self._task is None:
            # Not through the loop's task factory: an eager one would run the consumer while an element is leaving.
            loop = asyncio.get_running_loop()
            self._task = asyncio.Task(self._deliver(), loop=loop, name="keygroups outputs")

    async def close(self) -> None:
        """Cancel the output that is being awaited, and give up the others."""
        self._is_closed = True
        if self._task is not None:
            await cancel_all([self._task])
        self._give_up()

    async def _deliver(self) -> None:
        waiting = self._waiting
        try:
            while waiting:
                await waiting[0]
                waiting.popleft()
                self._in_flight.delivered()
        except BaseException as error:  # noqa: BLE001 - the consumer of the outputs has failed
            if waiting:
                waiting.popleft()
            self._give_up()
            if not self._is_closed:
                self._lifecycle.fail(error)
        self._task = None

    def _give_up(self) -> None:
        """Forget the outputs that will not be awaited; a coroutine that never began would warn of it."""
        while self._waiting:
            one: Any = self._waiting.popleft()
            if isinstance(one, Coroutine):
                one.close()
            elif isinstance(one, asyncio.Future):
                one.cancel()
