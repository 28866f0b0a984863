"""Operators that are fed with a list of items, and what must hold for all that leaves them."""

from __future__ import annotations

import asyncio
import random
import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from async_op import AsyncWaitOperator, FixedDelayRetry, InvocationContext, Record, Watermark
from async_op.options import StateBackend
from async_op.testing import VirtualLoop
from keygroups import key_group_of, subtask_of
from keygroups.state import original_of
from keygroups.state.timers import EVENT_TIME, Timer
from snapshots import SubtaskRestore, SubtaskSnapshot
from snapshots.format.in_flight_elements import RestoredQueue
from tests.simulation.histories import STATES, BatchHistorian, Event, Historian, Times
from tests.simulation.payments import Payments
from tests.simulation.wild import key_of, name_of

NAMESPACE = "simulated"
CALL_ATTEMPTS_MAX = 4


class Place(NamedTuple):
    """Where an element stood: in which queue, at which place, behind which watermark."""

    subtask: int
    number: int
    watermark: int | None


Places = dict[tuple[Any, str | None], Place]
"""By the key and the id of the element."""


def places_of(cuts: Iterable[SubtaskSnapshot]) -> Places:
    """Return the places of all elements."""
    places = {}
    for cut in cuts:
        watermark = cut.watermark
        for number, element in enumerate(cut.in_flight):
            if element.is_watermark:
                watermark = element.timestamp
            else:
                places[name_of(element.key), element.element_id] = Place(cut.subtask_index, number, watermark)
    return places


def check_places(queue: RestoredQueue, places: Places) -> None:
    """Object where elements of one old subtask, or a watermark and what stood before it, have changed places."""
    watermark, last = queue.watermark, dict[int, int]()
    for element in queue.elements:
        if element.is_watermark:
            watermark = element.timestamp
            continue
        place = places[name_of(element.key), element.element_id]
        assert place.number > last.get(place.subtask, -1), f"{element} is restored out of order"
        last[place.subtask] = place.number
        is_before = watermark is None or (place.watermark is not None and watermark <= place.watermark)
        assert is_before, f"{element} is restored behind the watermark {watermark}, not {place.watermark}"


class FedRun:
    """What a seed stands for, and what its operators share.

    Parameters
    ----------
    draw : random.Random
        Decides the settings.
    seed : int
        Decides all else.
    loop : VirtualLoop
        Where the operators run.

    Attributes
    ----------
    states : tuple of StateDescriptor
        The keyed states of the function.
    lineage : str
        What the idempotency keys of all subtasks begin with.
    accepted : set of int
        The numbers of the records that the newest snapshot has, in the state or in flight.
    places : Places
        Where the newest snapshot has its elements.
    violations : list of AssertionError
        What went wrong in calls.
    """

    def __init__(self, draw: random.Random, seed: int, loop: VirtualLoop) -> None:
        self.seed = seed
        self.loop = loop
        self.mode = draw.choice(("ordered", "unordered", "key_ordered"))
        self.states = STATES
        self.function: type[Any] = BatchHistorian if draw.random() < 0.2 else Historian
        self.capacity = draw.choice((1, 2, 3, 10, 100))
        self.groups, self.hash = draw.choice((1, 2, 5, 16)), "xxhash64"
        keys = [f"k{number}" for number in range(draw.choice((1, 2, 5, 12)))]
        self.items: list[Any] = []
        for number in range(draw.randrange(5, 40)):
            self.items.append((number, draw.choice(keys)))
            if draw.random() < 0.2:
                self.items.append(Watermark(number))
        self.items.append(Watermark(10_000))
        self.is_named = draw.random() < 0.5
        self.ids: dict[tuple[str, Event], str] = {}
        self.lineage = NAMESPACE
        self.payments = Payments()
        self.numbers = iter(range(sys.maxsize))
        self.accepted: set[int] = set()
        self.places: Places = {}
        self.violations: list[AssertionError] = []
        self.latest_time = 0
        self.is_finishing = False

    def begin_life(self) -> None:
        """Forget the ids of records, of which only those keep theirs that are in a snapshot or have a name."""
        self.ids = {place: id_ for place, id_ in self.ids.items() if place[1][0] != "record"}

    def owner(self, key: str, parallelism: int) -> int:
        """Return the subtask of a key."""
        return subtask_of(key_group_of(key_of(key), self.groups, self.hash), parallelism, self.groups)

    def times(self) -> Times:
        """Look at the wall clock."""
        now = self.loop.wall_time()
        self.latest_time = max(self.latest_time, now)
        return Times(now, self.latest_time)

    def call_begins(self, key: str, event: Event, ctx: InvocationContext) -> None:
        """Check that an element keeps its id, and that a service which honours it answers with its own result."""
        paid = self.payments.pay(ctx.idempotency_key, (key, event))
        assert paid == (key, event), self.payments.mistakes[-1]
        known = self.ids.setdefault((key, event), ctx.idempotency_key)
        assert known == ctx.idempotency_key, f"{event} of {key} has changed its id"
        if event[0] == "record" and self.is_named:
            assert known == f"{self.lineage}/row-{event[1]}", f"{event} has lost its id"

    def check_heard(self) -> None:
        """Object if a call went wrong."""
        if self.violations:
            raise self.violations[0]


class FedSubtask:
    """One operator, and what it has emitted."""

    def __init__(
        self,
        run: FedRun,
        index: int,
        parallelism: int,
        restore: SubtaskRestore | None,
        backend: StateBackend = "memory",
    ) -> None:
        self.index, self.run = index, run
        self.restore = restore
        self.outputs: list[Record | Watermark] = []
        self.committed = 0
        self.watermark: int | None = None
        self.newest: int | None = None
        if restore is not None:
            queue = restore.queue()
            check_places(queue, run.places)
            for element in queue.elements:
                if not element.is_watermark and not isinstance(element.value, Timer) and not element.completed:
                    run.ids[name_of(element.key), ("record", element.value[0])] = f"{run.lineage}/{element.element_id}"
            self.watermark = queue.watermark
            watermarks = [element.timestamp for element in queue.elements if element.is_watermark]
            self.newest = (watermarks or [queue.watermark])[-1]
        self.function = run.function(run)
        self.operator = AsyncWaitOperator(
            self.function,
            self._take,
            mode=run.mode,  # type: ignore[arg-type]
            capacity=run.capacity,
            timeout=100.0,
            retry=FixedDelayRetry(CALL_ATTEMPTS_MAX, 0.3),
            key_by=lambda value: key_of(value[1]),
            parallelism=parallelism,
            subtask_index=index,
            max_parallelism=run.groups,
            hash=run.hash,
            state_backend=backend,
            # Subtasks begin without a snapshot, at different times, so nothing else gives them one lineage.
            idempotency_namespace=run.lineage,
        )

    def _take(self, output: Record | Watermark) -> None:
        try:
            self._check(output)
        except AssertionError as broken:
            self.run.violations.append(broken)
            raise
        self.outputs.append(output)

    def _check(self, output: Record | Watermark) -> None:
        if isinstance(output, Record):
            _, kind, number = output.value
            is_late = kind == "record" and self.watermark is not None and number <= self.watermark
            assert not is_late, f"record {number} leaves after the watermark {self.watermark}"
            return
        assert self.watermark is None or output.timestamp > self.watermark, f"the watermark falls to {output}"
        self.watermark = output.timestamp
        parts: Any = self.operator._parts
        table = parts.scope.backend.tables[EVENT_TIME.name]
        # Where a group is no dict, on disk or while a cut holds it, what a timer finds when it fires has to do.
        groups = [group for number in parts.runtime.key_groups if isinstance(group := table.load(number), dict)]
        kept = [(key, timestamp) for group in groups for key, held in group.items() for timestamp in held]
        assert all(timestamp > output.timestamp for _, timestamp in kept), f"{output} leaves before {sorted(kept)}"

    async def feed(self, parallelism: int, draw: random.Random) -> None:
        """Feed the items that are this subtask's and that the snapshot does not have."""
        for item in self.run.items:
            if isinstance(item, Watermark):
                if self.newest is None or item.timestamp > self.newest:
                    await self.operator.process_watermark(item.timestamp)
            elif item[0] not in self.run.accepted and self.run.owner(item[1], parallelism) == self.index:
                await self.operator.process(item, item[0], f"row-{item[0]}" if self.run.is_named else None)
            if draw.random() < 0.2:
                await asyncio.sleep(draw.random())


def tables_of(cuts: Iterable[SubtaskSnapshot]) -> dict[str, dict[Any, Any]]:
    """Return what the cuts have of each state, by key."""
    tables: dict[str, dict[Any, Any]] = {}
    for cut in cuts:
        for state in cut.states:
            table = tables.setdefault(state.descriptor.name, {})
            for group in state.groups.values():
                table |= {name_of(original_of(identity)): held for identity, held in group.load().items()}
    return tables


def firing_in(elements: Iterable[Any]) -> set[tuple[Any, bool, int]]:
    """Return the timers that are elements whose call has not ended."""
    pending = [element for element in elements if isinstance(element.value, Timer) and not element.completed]
    return {(name_of(element.key), element.value.event_time, element.value.timestamp) for element in pending}


def pending_records(elements: Iterable[Any]) -> set[int]:
    """Return the numbers of the records whose call has not ended."""
    values = [element.value for element in elements if not element.completed]
    return {value[0] for value in values if isinstance(value, tuple) and not isinstance(value, Timer)}


def records_of(outputs: Sequence[Record | Watermark]) -> list[Any]:
    """Return the values of the records among some outputs."""
    return [output.value for output in outputs if isinstance(output, Record)]
