"""What is between two steps: elements that have left one operator and have not come into the next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

from async_op.elements import Element, Watermark
from async_op.job.routing import Route
from async_op.subtask.inbox import Inbox

FINAL = 2**63 - 1
"""The watermark at the end of a bounded source. It goes into no channel and no snapshot."""


class Inlet(Inbox):
    """The elements on their way into one operator, in the order in which they came.

    Each subtask of the step before is a channel with a watermark of its own, and the inlet's watermark is the smallest
    of those that are not idle; if all are idle, it is the largest. Only the thread of the event loop may call it.

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

    __slots__ = ("_idle", "_limit", "_newest", "_watermarks", "senders", "straight")

    def __init__(self, channels: Iterable[int], limit: int) -> None:
        super().__init__()
        self.senders: list[Callable[[], None]] = []
        self.straight: Callable[[Iterator[Element], int], bool] | None = None
        self._limit = limit
        self._watermarks = dict[int, int | None].fromkeys(channels)
        self._idle = set[int]()
        self._newest: int | None = None

    @property
    def has_plenty_of_room(self) -> bool:
        """Whether senders that wait may go on: a wake-up for each element would cost as much as the element."""
        return self.is_at_most(self._limit // 2)

    @property
    def is_idle(self) -> bool:
        """Whether nothing can come through any channel for now."""
        return len(self._idle) == len(self._watermarks) and not self.elements

    def begin_at(self, watermark: int | None) -> None:
        """Begin with the newest watermark that has come in."""
        self._newest = watermark

    @property
    def room(self) -> int:
        """How many elements may come before it is full."""
        return self._limit - len(self.elements)

    def put(self, channel: int, elements: Sequence[Element]) -> None:
        """Add elements."""
        if self._idle:
            self._idle.discard(channel)
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
        elif self._idle:
            self._idle.discard(channel)

    def put_one(self, channel: int, element: Element) -> None:
        """Add an element."""
        if self._idle:
            self._idle.discard(channel)
        self.elements.append(element)
        if self.changed.waiting or len(self.elements) == self._limit:
            self._grown(len(self.elements) - 1)

    def put_watermark(self, channel: int, timestamp: int) -> None:
        """Raise the watermark of a channel."""
        before = self._watermarks[channel]
        if before is None or timestamp > before:
            self._watermarks[channel] = timestamp
            self.advance()

    def set_idle(self, channel: int, is_idle: bool) -> None:
        """Let a channel hold back nothing as long as nothing comes through it."""
        if is_idle == (channel in self._idle):
            return
        if is_idle:
            self._idle.add(channel)
        else:
            self._idle.discard(channel)
        self.advance()

    def advance(self) -> None:
        """Add a watermark, if the channels' watermark has risen; it replaces one that is right before it."""
        watermark = self._watermark()
        if watermark is None or (self._newest is not None and watermark <= self._newest):
            return
        self._newest = watermark
        before = len(self.elements)
        self.append_watermark(Watermark(watermark))
        self._grown(before)

    def _watermark(self) -> int | None:
        """Return the smallest watermark of the channels that are not idle, or the largest if all are."""
        active = [mark for channel, mark in self._watermarks.items() if channel not in self._idle]
        if not active:
            return max((mark for mark in self._watermarks.values() if mark is not None), default=None)
        return None if None in active else min(mark for mark in active if mark is not None)

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
