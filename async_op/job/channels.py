"""What is between two steps: elements that have left one operator and have not come into the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from heapq import heapify, heappop, heappush

from async_op.elements import Element, Watermark
from async_op.job.routing import Route
from async_op.subtask.inbox import Inbox

FINAL = 2**63 - 1
"""The watermark at the end of a bounded source. It goes into no channel and no snapshot."""

_SPARE = 64
"""So many more marks than channels may be in the heap before those that were passed are removed."""


class ChannelWatermarks:
    """The smallest watermark of the channels that are not idle; if all are idle, the largest of all.

    This is Flink's `StatusWatermarkValve`. As there, a heap holds the marks. Hundreds of subtasks that send to hundreds
    of others would keep a processor busy if each change scanned all channels.

    Parameters
    ----------
    channels : iterable of int
        The channels; none has a watermark, and none is idle.

    Attributes
    ----------
    idle : set of int
        The channels that hold back nothing. Only `set_idle` changes it.

    Examples
    --------
    >>> marks = ChannelWatermarks([0, 1])
    >>> marks.rise(0, 7), marks.current()
    (True, None)
    >>> marks.rise(1, 5), marks.current()
    (True, 5)
    >>> marks.set_idle(1, True), marks.current()
    (True, 7)
    """

    __slots__ = ("_heap", "_largest", "_marks", "_unknown", "idle")

    def __init__(self, channels: Iterable[int]) -> None:
        self._marks = dict[int, int | None].fromkeys(channels)
        self.idle = set[int]()
        self._unknown = len(self._marks)
        """How many channels are not idle and have no watermark."""
        self._largest: int | None = None
        self._heap: list[tuple[int, int]] = []
        """The mark and the channel of all that are not idle, and of some that are idle or have a later mark by now."""

    @property
    def are_idle(self) -> bool:
        """Whether all channels are idle."""
        return len(self.idle) == len(self._marks)

    def rise(self, channel: int, mark: int) -> bool:
        """Raise the watermark of a channel; returns whether it has risen."""
        before = self._marks[channel]
        if before is not None and mark <= before:
            return False
        self._marks[channel] = mark
        if self._largest is None or mark > self._largest:
            self._largest = mark
        if channel not in self.idle:
            self._unknown -= before is None
            self._hold(channel, mark)
        return True

    def set_idle(self, channel: int, is_idle: bool) -> bool:
        """Let a channel hold back nothing, or again something; returns whether that is new."""
        if is_idle == (channel in self.idle):
            return False
        mark = self._marks[channel]
        if is_idle:
            self.idle.add(channel)
            self._unknown -= mark is None
        else:
            self.idle.discard(channel)
            self._unknown += mark is None
            if mark is not None:
                self._hold(channel, mark)
        return True

    def current(self) -> int | None:
        """Return the watermark of all channels together; None while it is unknown."""
        if self.are_idle:
            return self._largest
        if self._unknown:
            return None
        heap = self._heap
        while not self._holds(*heap[0]):
            heappop(heap)
        return heap[0][0]

    def _hold(self, channel: int, mark: int) -> None:
        heappush(self._heap, (mark, channel))
        if len(self._heap) > 2 * len(self._marks) + _SPARE:
            # The same channel may be there twice with one mark, when it was idle meanwhile.
            self._heap = [*{one for one in self._heap if self._holds(*one)}]
            heapify(self._heap)

    def _holds(self, mark: int, channel: int) -> bool:
        return channel not in self.idle and self._marks[channel] == mark


class Inlet(Inbox):
    """The elements on their way into one operator, in the order in which they came.

    Each subtask of the step before is a channel with a watermark of its own; see `ChannelWatermarks`. Only the thread
    of the event loop may call it.

    Parameters
    ----------
    channels : iterable of int
        The subtasks from which elements come.
    limit : int
        With this many elements it is full. Its senders then stop taking in elements; those that they have taken in
        already still come.

    Attributes
    ----------
    straight : callable or None
        Takes a number of elements into the operator at once; returns False, and takes none, where they have to wait
        here. None while the operator takes nothing.
    """

    __slots__ = ("_limit", "_marks", "_newest", "senders", "straight")

    def __init__(self, channels: Iterable[int], limit: int) -> None:
        super().__init__()
        self.senders: list[Callable[[], None]] = []
        self.straight: Callable[[Iterator[Element], int], bool] | None = None
        self._limit = limit
        self._marks = ChannelWatermarks(channels)
        self._newest: int | None = None

    @property
    def has_plenty_of_room(self) -> bool:
        """Whether senders that wait may go on: a wake-up for each element would cost as much as the element."""
        return self.is_at_most(self._limit // 2)

    @property
    def is_idle(self) -> bool:
        """Whether nothing can come through any channel for now."""
        return self._marks.are_idle and not self.elements

    def begin_at(self, watermark: int | None) -> None:
        """Begin with the newest watermark that has come in."""
        self._newest = watermark

    @property
    def room(self) -> int:
        """How many elements may come before it is full."""
        return self._limit - len(self.elements)

    def put(self, channel: int, elements: Sequence[Element]) -> None:
        """Add elements."""
        if self._marks.idle:
            self._marks.set_idle(channel, False)
        before = len(self.elements)
        self.elements += elements
        self._grown(before)

    def put_run(self, channel: int, elements: Iterator[Element], count: int) -> None:
        """Hand on a number of elements that are made as they are taken, as a rule straight into the operator.

        To keep a tuple for each of them until the operator has its turn would cost a tenth of a call that returns at
        once, much of it in the garbage collector, which visits them.
        """
        if self.elements or self.straight is None or not self.straight(elements, count):
            self.put(channel, list(elements))
        elif self._marks.idle:
            self._marks.set_idle(channel, False)

    def put_one(self, channel: int, element: Element) -> None:
        """Add an element."""
        if self._marks.idle:
            self._marks.set_idle(channel, False)
        self.elements.append(element)
        if self.changed.waiting or len(self.elements) == self._limit:
            self._grown(len(self.elements) - 1)

    def put_watermark(self, channel: int, timestamp: int) -> None:
        """Raise the watermark of a channel."""
        if self._marks.rise(channel, timestamp):
            self.advance()

    def set_idle(self, channel: int, is_idle: bool) -> None:
        """Let a channel hold back nothing as long as nothing comes through it."""
        if self._marks.set_idle(channel, is_idle):
            self.advance()

    def advance(self) -> None:
        """Add a watermark, if the channels' watermark has risen; it replaces one that is right before it."""
        watermark = self._marks.current()
        if watermark is None or (self._newest is not None and watermark <= self._newest):
            return
        self._newest = watermark
        before = len(self.elements)
        self.append_watermark(Watermark(watermark))
        self._grown(before)

    def shrunk(self, before: int) -> None:
        """Tell all who wait that elements have been taken; there were so many before."""
        if before >= self._limit > len(self.elements):
            for sender in self.senders:
                sender()
        if len(self.elements) <= self.awaited:
            super().shrunk(before)

    def clear(self) -> None:
        """Drop everything, so that nothing waits for room in a chain that is over."""
        self.elements.clear()
        self.changed.wake()

    def _grown(self, before: int) -> None:
        if before < self._limit <= len(self.elements):
            for sender in self.senders:
                sender()
        if self.changed.waiting:
            self.changed.wake()


class Outlet:
    """Where the outputs of one subtask go: the inlets of the next step.

    Parameters
    ----------
    inlets : list of Inlet
        The inlets of all subtasks of the next step.
    channel : int
        The subtask that sends.
    route : Route
        Chooses the inlet of an element.

    Attributes
    ----------
    put_one : callable
        Puts an element into the inlet that it belongs to; where there is only one, without another Python call.
    """

    __slots__ = ("_channel", "_inlets", "_only", "_reached", "_route", "put_one")

    def __init__(self, inlets: Sequence[Inlet], channel: int, route: Route) -> None:
        self._inlets = inlets
        self._channel = channel
        self._route = route
        self._reached = [inlets[target] for target in route.reached_from(channel)]
        self._only = self._reached[0] if len(self._reached) == 1 else None
        self.put_one: Callable[[Element], None] = (
            self._put_routed if self._only is None else partial(self._only.put_one, channel)
        )

    def put_run(self, elements: Iterator[Element], count: int) -> None:
        """Hand on a number of elements that are made as they are taken; see `Inlet.put_run`."""
        if self._only is not None:
            self._only.put_run(self._channel, elements, count)
        else:
            self.put(list(elements))

    def put(self, elements: Sequence[Element]) -> None:
        """Put elements into the inlets that they belong to."""
        if self._only is not None:
            self._only.put(self._channel, elements)
        else:
            dealt: dict[int, list[Element]] = {}
            for element in elements:
                dealt.setdefault(self._route.target(element[0], self._channel), []).append(element)
            for target, some in dealt.items():
                self._inlets[target].put(self._channel, some)

    def _put_routed(self, element: Element) -> None:
        self._inlets[self._route.target(element[0], self._channel)].put_one(self._channel, element)

    def put_watermark(self, timestamp: int) -> None:
        """Raise the watermark of this channel."""
        for inlet in self._reached:
            inlet.put_watermark(self._channel, timestamp)

    def set_idle(self, is_idle: bool) -> None:
        """Tell the receivers whether to wait for this channel's watermark."""
        for inlet in self._reached:
            inlet.set_idle(self._channel, is_idle)

    def on_change(self, sender: Callable[[], None]) -> None:
        """Have something called whenever `has_room` may have changed."""
        for inlet in self._reached:
            inlet.senders.append(sender)

    @property
    def free(self) -> int:
        """How many elements may come before the first receiver is full."""
        return min(inlet.room for inlet in self._reached)

    @property
    def has_room(self) -> bool:
        """Whether no receiver is full."""
        return self.free > 0

    async def room(self) -> None:
        """Wait until no receiver is full; if one is, until all have plenty of room."""
        while not self.has_room:
            for inlet in self._reached:
                await inlet.changed.wait_until(lambda inlet=inlet: inlet.has_plenty_of_room)  # type: ignore[misc]
