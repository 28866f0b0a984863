"""One simulated subtask: its operator, and the rules that its queue must follow."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator, Sequence
from typing import Any

from async_op import AsyncWaitOperator, DeadLetter, Record, Watermark
from async_op.options import StateBackend
from snapshots import InFlightElement, SubtaskRestore, SubtaskSnapshot
from tests.backends import ON_DISK
from tests.simulation.ledger import Committed, Ledger
from tests.simulation.scenario import Item
from tests.simulation.service import KINDS


class SimulatedSubtask:
    """Feeds one operator and looks at everything that leaves it."""

    def __init__(self, ledger: Ledger, index: int, parallelism: int, restore: SubtaskRestore | None) -> None:
        self.ledger = ledger
        self.scenario = ledger.scenario
        self.index = index
        self.restore = restore
        self.outputs: list[Record | Watermark] = []
        self.consumed = 0
        self._quick: set[int] = set()
        self.emitted: dict[int, list[Any]] = {}
        self.fed: list[Item | Watermark] = []
        self._in_hand: Item | None = None
        self.restored: dict[int, InFlightElement] = {}
        self.restored_size = 0
        self.closed = False
        self.watermark: int | None = None
        self.newest: int | None = None
        self._segments: dict[int, int] = {}
        self._left_watermarks = 0
        self._last: int | None = None
        self._rank: dict[int, tuple[int, int]] = {}
        self._last_rank: dict[int, int] = {}
        self._bounds: dict[int, int] = {}
        self._known_watermarks: set[int] = set()
        ledger.limit(index, parallelism)
        self.operator = AsyncWaitOperator(
            KINDS[self.scenario.kind](ledger),
            self._hand_over,
            mode=self.scenario.mode,  # type: ignore[arg-type]
            capacity=self.scenario.capacity,
            timeout=self.scenario.timeout,
            retry=self.scenario.retry,
            key_by=(lambda value: value[1]) if self.scenario.keyed else None,
            parallelism=parallelism,
            subtask_index=index,
            max_parallelism=self.scenario.groups,
            on_error=self.scenario.on_error,  # type: ignore[arg-type]
            dead_letters=self._bury if self.scenario.on_error == "dead_letter" else None,
            resilience=self.scenario.resilience,
            state_backend=self._draw_backend(),
        )

    def _draw_backend(self) -> StateBackend:
        """Return another backend after each restart, perhaps; state moves from one to the other."""
        draw = self.scenario.random("backend", self.ledger.restarts, self.index)
        return ON_DISK if self.scenario.stateful and draw.random() < 0.3 else "memory"

    # -- in

    async def open(self) -> None:
        """Open the operator; what it takes over is read here too, to know what to expect."""
        if self.restore is not None:
            queue = self.restore.queue()
            self.watermark = self.newest = queue.watermark
            self.restored_size = len(queue.elements)
            self._expect(queue.elements)
        await self.operator.open(self.restore)

    def _expect(self, elements: tuple[InFlightElement, ...]) -> None:
        now = self.ledger.now()
        committed = self.ledger.committed
        for place, element in enumerate(elements):
            if element.is_watermark:
                assert element.timestamp is not None
                self.newest = element.timestamp
                self._known_watermarks.add(element.timestamp)
                continue
            assert isinstance(element.value, tuple)
            index = element.value[0]
            self.restored[index] = element
            self.ledger.owners[index] = self.index
            known = committed.pending.get(index) or committed.stored[index]
            # Of all elements of one old subtask, in the order of its queue.
            self._rank[index] = (element.channel, place)
            if element.completed:
                continue
            self.ledger.check(element.remaining == known.remaining, f"{index} has another budget after a restart")
            if self.scenario.timeout is not None:
                self.ledger.deadlines[index] = now + (
                    self.scenario.timeout if element.remaining is None else element.remaining
                )
            self.ledger.not_before[index] = now + (element.delay or 0.0)

    async def feed(self, item: Item | Watermark) -> None:
        """Hand one element of the input to the operator."""
        if isinstance(item, Watermark):
            self._known_watermarks.add(item.timestamp)
            self.fed.append(item)
            await self.operator.process_watermark(item.timestamp)
        else:
            await self._feed_record(item)

    async def feed_all(self, items: Sequence[Item]) -> None:
        """Hand a run of records to the operator, which takes each when it has room."""
        await self.operator.process_all(self._offered(items))

    def _offered(self, items: Sequence[Item]) -> Iterator[tuple[Any, int | None, str | None]]:
        for item in items:
            element_id = self._offer(item)
            self._in_hand = item
            yield item.value, item.timestamp, element_id
            self._in_hand = None
            self._accepted(item)

    def _look_at_hand(self) -> None:
        """Note the record that was taken last if it has been accepted; the operator may hold one in its hand."""
        known = sum(isinstance(item, Item) for item in self.fed)
        if self._in_hand is not None and self.operator.statistics().accepted > known:
            self._accepted(self._in_hand)

    async def _feed_record(self, item: Item) -> None:
        element_id = self._offer(item)
        await self.operator.process(item.value, item.timestamp, element_id)
        self._accepted(item)
        if self.scenario.mode != "key_ordered":
            counts = self.operator.statistics()
            inside = counts.in_flight + counts.awaited_outputs
            self.ledger.check(inside <= self.scenario.capacity, f"{item.index} came in as one of {inside}")

    def _offer(self, item: Item) -> str | None:
        ledger, index = self.ledger, item.index
        ledger.owners[index] = self.index
        ledger.offered[index] = ledger.now()
        self._segments[index] = sum(isinstance(before, Watermark) for before in self.fed)
        self._rank[index] = (-1, len(self.fed))
        return f"row-{index}" if self.scenario.named else None

    def _accepted(self, item: Item) -> None:
        if self.fed[-1:] == [item]:
            return
        self.ledger.start_clock(item.index)
        self.fed.append(item)

    # -- out

    def _hand_over(self, element: Record | Watermark) -> Awaitable[None] | None:
        """Take an output; its consumer may be slow, or as quick as a plain function."""
        self._take(element)
        number = len(self.outputs)
        seconds = self.scenario.consumes_for(self.ledger.restarts, self.index, number)
        if seconds is not None:
            return self._consume(number, seconds)
        # Nobody waits for what is done at once.
        self._quick.add(number)
        return None

    async def _consume(self, number: int, seconds: float) -> None:
        begun = self._count_quick(number - 1)
        self.ledger.check(begun == number - 1, f"output {number} is consumed after {begun}")
        await asyncio.sleep(seconds)
        self.ledger.check(not self.closed, "something is consumed after close")
        self.consumed = number

    def _count_quick(self, until: int) -> int:
        """Return how many outputs in a row have been consumed, up to a number."""
        while self.consumed < until and self.consumed + 1 in self._quick:
            self.consumed += 1
        return self.consumed

    def _take(self, element: Record | Watermark) -> None:
        self.ledger.check(not self.closed, "something leaves after close")
        self.outputs.append(element)
        if isinstance(element, Watermark):
            self._watermark_leaves(element.timestamp)
        else:
            self._record_leaves(element)

    def _record_leaves(self, record: Record) -> None:
        ledger = self.ledger
        index, number, ending, place = record.value
        ledger.check(record.timestamp == ledger.items[index].timestamp, f"{index} leaves with another timestamp")
        ledger.check(index not in ledger.committed.departed, f"{index} leaves although it had left before the restart")
        ledger.check(index in ledger.offered and ledger.owners[index] == self.index, f"{index} leaves elsewhere")
        group = self.emitted.setdefault(index, [])
        ledger.check(number == len(group), f"output {number} of {index} leaves in the place of {len(group)}")
        ledger.check(number == 0 or self._last == index, f"the outputs of {index} are torn apart")
        group.append((index, number, ending, place))
        if number == 0:
            self._check_watermarks(index)
            self._check_order(index)
        self._last = index

    def _check_watermarks(self, index: int) -> None:
        """No record passes a watermark, in either direction."""
        ledger, timestamp = self.ledger, self.ledger.items[index].timestamp
        late = self.watermark is not None and timestamp <= self.watermark
        ledger.check(not late, f"{index} at {timestamp} leaves after the watermark {self.watermark}")
        segment = self._segments.get(index)
        ledger.check(
            self._left_watermarks == (segment or 0),
            f"{index} leaves beyond {self._left_watermarks} new watermarks, not {segment or 0}",
        )

    def _check_order(self, index: int) -> None:
        """Elements of one old subtask, and the new ones after them, keep the order that the mode promises."""
        ledger, scenario = self.ledger, self.scenario
        channel, place = self._rank[index]
        if scenario.mode == "ordered":
            ledger.check(self._last_rank.get(channel, -1) < place, f"{index} leaves out of order")
            ledger.check(channel == -1 or -1 not in self._last_rank, f"{index} leaves after new elements")
            self._last_rank[channel] = place
        key = ledger.items[index].key
        if key is not None and (scenario.stateful or scenario.mode in ("ordered", "key_ordered")):
            group = [other for other in self.emitted if ledger.items[other].key == key and other != index]
            ledger.check(all(other < index for other in group), f"{index} leaves after a later one of its key")

    def _watermark_leaves(self, timestamp: int) -> None:
        ledger = self.ledger
        ledger.check(self.watermark is None or timestamp > self.watermark, f"the watermark falls to {timestamp}")
        ledger.check(timestamp in self._known_watermarks, f"nobody has sent the watermark {timestamp}")
        self.watermark = timestamp
        self._last = None
        if Watermark(timestamp) in self.fed:
            self._left_watermarks += 1

    def _bury(self, letter: DeadLetter) -> None:
        ledger = self.ledger
        index = letter.value[0]
        ledger.check(index not in ledger.committed.done, f"{index} dies twice")
        ledger.check(index not in ledger.dead, f"{index} dies twice in one run")
        ledger.check(letter.error is ledger.outcomes[index], f"{index} dies of {letter.error!r}")
        ran = ledger.attempts.get(index, 0)
        # An element that waits for its batch, a thread or a limit, or was restored in the middle of a call, is at an
        # attempt that the service has not seen in this run.
        waited = self.scenario.kind in ("batch", "blocking") or self.scenario.resilience is not None
        begun = waited or index in self.restored
        as_many = letter.attempts == ran or (begun and letter.attempts == ran + 1)
        ledger.check(as_many, f"{index} dies after {letter.attempts} attempts, not {ran}")
        ledger.check(letter.timestamp == ledger.items[index].timestamp, f"{index} dies at another time")
        ledger.dead.add(index)

    # -- snapshots

    @property
    def accepted(self) -> set[int]:
        """The records that are in flight or have left since the operator was opened."""
        return set(self.restored) | {item.index for item in self.fed if isinstance(item, Item)}

    async def cut(self) -> tuple[SubtaskSnapshot, Committed]:
        """Take a snapshot, compare it with what is known, and return what it says about this subtask's elements."""
        ledger = self.ledger
        cut = await self.operator.snapshot()
        self._look_at_hand()
        ledger.check(cut.emitted == len(self.outputs), f"{cut.emitted} outputs are counted, not {len(self.outputs)}")
        ledger.check(cut.watermark == self.watermark, f"the watermark is {cut.watermark}, not {self.watermark}")
        records = [element for element in cut.in_flight if not element.is_watermark]
        indices = [element.value[0] for element in records]  # type: ignore[index]
        ledger.check(len(indices) == len(set(indices)), f"in flight twice: {indices}")
        ledger.check(set(indices) <= self.accepted, f"in flight, but never accepted: {set(indices) - self.accepted}")
        ledger.check(not set(indices) & set(self.emitted), f"in flight, but gone: {set(indices) & set(self.emitted)}")
        facts = Committed(accepted=self.accepted, departed=self.accepted - set(indices))
        for index in facts.departed:
            self._check_departed(index)
        for index, element in zip(indices, records, strict=True):
            self._check_in_flight(index, element)
            (facts.stored if element.completed else facts.pending)[index] = element
        # Those restored beyond the capacity wait for a worker, also with their fallbacks.
        if self.scenario.timeout is not None and len(facts.pending) <= self.scenario.capacity:
            for index in facts.pending:
                ledger.check_in_time(index)
        facts.done = facts.accepted - set(facts.pending)
        for index in facts.done:
            owed = ledger.outputs_of(index)
            if owed is None:
                facts.dropped.add(index)
            else:
                facts.outputs[index] = owed
        self._check_places(cut)
        if self.scenario.stateful:
            self._check_state(cut, facts)
        return cut, facts

    def _check_state(self, cut: SubtaskSnapshot, facts: Committed) -> None:
        ledger = self.ledger
        owned = cut.key_groups
        before = {index for index in ledger.committed.accepted if ledger.items[index].key_group in owned}
        dropped = facts.dropped | (ledger.committed.dropped & before)
        ledger.check_state([cut], before | facts.accepted, set(facts.pending), dropped)

    def _check_departed(self, index: int) -> None:
        owed = self.ledger.outputs_of(index)
        self.ledger.check(
            self.emitted.get(index, []) == (owed or []), f"{index} left with {self.emitted.get(index)}, not {owed}"
        )

    def _check_in_flight(self, index: int, element: InFlightElement) -> None:
        ledger = self.ledger
        before = ledger.ids.setdefault(index, element.element_id)
        ledger.check(element.element_id == before, f"{index} has changed its id")
        if element.completed:
            owed = ledger.outputs_of(index)
            ledger.check(list(element.outputs or ()) == (owed or []), f"{index} is kept with {element.outputs}")
            return
        ledger.check(index not in ledger.committed.done, f"{index} is pending, but was done before the restart")
        ran = ledger.attempts.get(index, 0)
        ledger.check(element.attempt in (ran, ran + 1), f"{index} is kept at attempt {element.attempt}, after {ran}")
        if self.scenario.timeout is not None:
            left = max(0.0, ledger.deadlines[index] - self.ledger.now())
            ledger.check(abs((element.remaining or 0.0) - left) < 1e-6, f"{index} is kept with {element.remaining} s")

    def _check_places(self, cut: SubtaskSnapshot) -> None:
        """The queue is in the order in which the elements came, watermarks between them."""
        came: list[Any] = [item if isinstance(item, Watermark) else item.index for item in self.fed]
        queue = [Watermark(e.timestamp) if e.is_watermark else e.value[0] for e in cut.in_flight]  # type: ignore[index,arg-type]
        new = [element for element in queue if element in came]
        self.ledger.check(new == [e for e in came if e in new], f"the queue is {new}")
        limit = max(self.scenario.capacity, self.restored_size)
        if self.scenario.mode != "key_ordered":
            self.ledger.check(len(queue) <= limit, f"{len(queue)} elements are in flight")
        statistics = self.operator.statistics()
        self.ledger.check(statistics.in_flight == len(queue), "the statistics count something else")
        self.ledger.check(statistics.emitted == len(self.outputs), "the statistics count other outputs")
        left = sum(number not in self._quick for number in range(self.consumed + 1, len(self.outputs) + 1))
        self.ledger.check(statistics.awaited_outputs == left, f"{left} outputs are awaited")
