"""The queues against a list: what leaves, in which order, and what stays, after any operations."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from async_op.in_flight.entries import Block, Entry, QueueEntry, WatermarkEntry, new_entry
from async_op.in_flight.queues import ElementQueue, queue_of

OPERATIONS = ("put", "put block", "put watermark", "complete", "complete", "split", "hold", "release")


@dataclass(eq=False)
class Item:
    """What the model knows of an entry, a block or a watermark."""

    entry: QueueEntry
    completed_as: int | None = None
    held: bool = False


@dataclass(eq=False)
class Model:
    """A list of items, which is looked through from its beginning after every operation."""

    mode: str
    items: list[Item] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    completed: int = 0

    def pending(self) -> list[Item]:
        """Return the entries and blocks that have not completed."""
        return [one for one in self.items if not is_watermark(one) and one.completed_as is None]

    def complete(self, item: Item) -> None:
        """Note that an item has completed, and when."""
        item.completed_as = self.completed = self.completed + 1

    def let_leave(self) -> None:
        """Let everything leave that may."""
        while (item := self._next()) is not None:
            self.items.remove(item)
            self.left += names_of(item.entry)

    def _next(self) -> Item | None:
        end = next((place for place, one in enumerate(self.items) if is_watermark(one)), len(self.items))
        free = self.items[:end] if self.mode == "unordered" else self.items[: min(end, 1)]
        done = [one for one in free if one.completed_as is not None]
        if done:
            return min(done, key=lambda one: one.completed_as or 0)
        watermark = self.items[0] if end == 0 and self.items else None
        return watermark if watermark is not None and not watermark.held else None


class Case:
    """A queue and its model, which go through the same operations."""

    def __init__(self, mode: str) -> None:
        self.model = Model(mode)
        self.left: list[str] = []
        self.queue: ElementQueue = queue_of(mode, self)
        self.sequence = 0

    def leave(self, entry: Entry) -> None:
        self.left += names_of(entry)

    def leave_block(self, block: Block) -> None:
        self.left += names_of(block)

    def leave_watermark(self, watermark: WatermarkEntry) -> None:
        self.left += names_of(watermark)

    def is_held(self, watermark: WatermarkEntry) -> bool:
        return next(one.held for one in self.model.items if one.entry is watermark)

    def do(self, operation: str, number: int) -> None:
        """Change the queue and the model in one way; an operation that nothing is there for changes nothing."""
        pending = self.model.pending()
        item = pending[number % len(pending)] if pending else None
        watermarks = [one for one in self.model.items if is_watermark(one)]
        if operation == "put":
            self.add(entries := [self.entry() for _ in range(number)])
            self.queue.put([entry for entry in entries if isinstance(entry, Entry)])
        elif operation == "put block":
            self.add([block := self.block(number + 1)])
            self.queue.put_block(block)
        elif operation == "put watermark":
            self.add([watermark := WatermarkEntry(self.next(), number)])
            self.model.items[-1].held = number == 0
            self.queue.put_watermark(watermark)
        elif operation == "complete" and item is not None:
            self.complete(item)
        elif operation == "split" and item is not None and isinstance(item.entry, Block):
            place = self.model.items.index(item)
            self.model.items[place : place + 1] = [Item(entry) for entry in self.queue.split(item.entry)]
        elif operation == "hold" and watermarks and self.model.items[0] is watermarks[0]:
            self.model.items.insert(0, Item(entry := self.entry()))
            self.queue.put_before(entry, watermarks[0].entry)  # type: ignore[arg-type]
        elif operation == "release" and watermarks:
            watermarks[0].held = False
            self.queue.release()

    def complete(self, item: Item) -> None:
        self.model.complete(item)
        if isinstance(item.entry, Block):
            item.entry.outputs = [()] * len(item.entry)
            self.queue.complete_block(item.entry)
        elif isinstance(item.entry, Entry):
            item.entry.outputs = ()
            self.queue.complete(item.entry)

    def add(self, entries: list[QueueEntry]) -> None:
        self.model.items += [Item(entry) for entry in entries]

    def entry(self) -> Entry:
        return new_entry(None, None, None, self.next())

    def block(self, elements: int) -> Block:
        block = Block(self.sequence + 1)
        block.elements = [(None, None, None)] * elements
        self.sequence += elements
        return block

    def next(self) -> int:
        self.sequence += 1
        return self.sequence

    def check(self) -> None:
        """Compare what has left and what is left."""
        self.model.let_leave()
        assert self.left == self.model.left
        assert self.queue.entries() == [one.entry for one in self.model.items]
        assert list(self.queue.pending()) == [one.entry for one in self.model.pending()]


@pytest.mark.parametrize("mode", ["ordered", "unordered"])
@pytest.mark.parametrize("seed", range(10))
def test_a_queue_is_like_a_list_that_is_looked_through_after_each_operation(mode: str, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(20):
        case = Case(mode)
        for _ in range(60):
            case.do(draw.choice(OPERATIONS), draw.randrange(6))
            case.check()


def is_watermark(item: Item) -> bool:
    """Return whether an item stands for a watermark."""
    return isinstance(item.entry, WatermarkEntry)


def names_of(entry: QueueEntry) -> list[str]:
    """Return a name for each element, and one for a watermark."""
    if isinstance(entry, WatermarkEntry):
        return [f"watermark {entry.sequence}"]
    elements = len(entry) if isinstance(entry, Block) else 1
    return [str(entry.sequence + number) for number in range(elements)]
