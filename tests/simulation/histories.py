"""A function that keeps the history of its key as state, and a plain loop that says what all its states must be.

Everything that an invocation does follows from the seed, its event, the time and what the history says. So what a key
has, in a call, in a cut or in a snapshot, is compared with a replay of its history.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa

from async_op import AsyncBatchFunction, AsyncFunction, InvocationContext
from keygroups import AggregatingState, ListState, MapState, ReducingState, ValueState
from keygroups.descriptors import StateDescriptor
from keygroups.state import Expiring
from keygroups.state.timers import EVENT_TIME, PROCESSING_TIME
from tests.simulation.plain import content_of, plain
from tests.simulation.wild import ERRORS, name_of

TTL_MS = 700
HISTORY = ListState("history")
VALUE = ValueState("value", ttl=TTL_MS / 1000)
LIST = ListState("list", ttl=TTL_MS / 1000)
MAP = MapState("map", ttl=TTL_MS / 1000)
PLACES = MapState("places", pa.map_(pa.string(), pa.int64()))
SUM = ReducingState("sum", lambda one, other: one + other, pa.int64())
COUNT = AggregatingState("count", lambda: [0], lambda held, number: [held[0] + number], lambda held: held[0])
STATES: tuple[StateDescriptor, ...] = (HISTORY, VALUE, LIST, MAP, PLACES, SUM, COUNT)
"""All kinds of states. A run may have some of them, but always the history: all others follow from it."""

Event = tuple[str, int]
"""A record with its number, or a timer ("event" or "processing") with its timestamp."""


class Change(NamedTuple):
    """What an event does to the timers of its key."""

    registers: bool
    event_time: bool
    timestamp: int


@dataclass
class Model:
    """What a key has after some events, by a plain loop."""

    seed: int
    key: str
    timers: dict[bool, set[int]] = field(default_factory=lambda: {False: set(), True: set()})
    values: list[tuple[str, int]] = field(default_factory=list)

    def changes(self, event: Event, now: int) -> list[Change]:
        """Return what an event does: it follows from the event, the time and what there is."""
        draw = random.Random(f"{self.seed}/{self.key}/{event}")
        timers = {kind: set(timestamps) for kind, timestamps in self.timers.items()}
        changes = []
        for _ in range(draw.choice((0, 1, 1, 2, 4) if event[0] == "record" else (0, 0, 0, 1))):
            event_time = draw.random() < 0.5
            base = event[1] if event_time else now
            timestamp = base + draw.randrange(-5 if event[0] == "record" else 1, 30 if event_time else 900)
            registers = draw.random() < 0.7 or not timers[event_time]
            if not registers:
                timestamp = draw.choice(sorted(timers[event_time]))
            (timers[event_time].add if registers else timers[event_time].discard)(timestamp)
            changes.append(Change(registers, event_time, timestamp))
        return changes

    def begin(self, event: Event) -> None:
        """Take away the timer that an event is."""
        if event[0] != "record":
            self.timers[event[0] == "event"].remove(event[1])

    def apply(self, event: Event, now: int) -> None:
        """Do what an event does."""
        self.begin(event)
        for change in self.changes(event, now):
            timers = self.timers[change.event_time]
            (timers.add if change.registers else timers.discard)(change.timestamp)
        self.values.append((str(event), now + TTL_MS))

    def living(self, now: int) -> list[str]:
        """Return the values that have not expired, in the order in which they were written."""
        return [value for value, expires_at in self.values if expires_at > now]

    def check_living(self, found: Sequence[str], times: Times) -> None:
        """Compare a list whose elements expire.

        What had expired before the clock was set back may be there again, or not.
        """
        must, may = self.living(times.latest), self.living(times.now)
        fits = found == may if must == may else Counter(must) <= Counter(found) <= Counter(may)
        assert fits, f"{self.key} has the elements {found}, not {may}"

    def check_entries(self, found: Iterable[str], times: Times) -> None:
        """Compare a map whose values expire."""
        last = dict(self.values)
        must = {value for value, expires_at in last.items() if expires_at > times.latest}
        may = {value for value, expires_at in last.items() if expires_at > times.now}
        assert must <= set(found) <= may, f"{self.key} has the entries {sorted(found)}, not {sorted(may)}"

    def check_value(self, found: str | None, times: Times) -> None:
        """Compare a value that expires."""
        value, expires_at = self.values[-1] if self.values else (None, times.now)
        may_be = {value} if expires_at > times.latest else {None} if expires_at <= times.now else {value, None}
        assert found in may_be, f"{self.key} has the value {found}, not one of {may_be}"


class Times(NamedTuple):
    """The wall clock in milliseconds: what it shows, and the latest time that it has ever shown."""

    now: int
    latest: int


def replay(seed: int, key: str, history: Iterable[Sequence[Any]]) -> Model:
    """Return what a key has after the events of its history."""
    model = Model(seed, key)
    for kind, number, now in history:
        model.apply((kind, number), now)
    return model


def numbers_of(history: Iterable[Sequence[Any]]) -> list[int]:
    """Return the numbers of the records in a history."""
    return [number for kind, number, _ in history if kind == "record"]


Tables = Mapping[str, Mapping[Any, Any]]
"""What each state holds for each key, as a backend holds it."""


def check_tables(
    seed: int, states: Sequence[StateDescriptor], tables: Tables, firing: set[tuple[Any, bool, int]], times: Times
) -> None:
    """Compare the states of a run with a replay of the histories; `firing` are the timers that are elements by now."""
    histories = tables["history"]
    for state in states:
        assert set(tables[state.name]) <= set(histories), f"{state.name} has keys without a history"
    for key, history in histories.items():
        model = replay(seed, key, history)
        for state, event_time in ((PROCESSING_TIME, False), (EVENT_TIME, True)):
            kept = set(tables[state.name].get(key, ()))
            fired = {timestamp for other, kind, timestamp in firing if (other, kind) == (key, event_time)}
            assert not kept & fired, f"{kept & fired} of {key} are in the queue and in the state"
            assert kept | fired == model.timers[event_time], f"{key} keeps {kept}, {fired}, not {model.timers}"
        held = {state.name: tables[state.name].get(key) for state in states}
        _check_expiring(model, held, times)
        expected = {name: value for name, value in counted(history).items() if name in held}
        found = {name: content_of(held[name], _COUNTED[name]) for name in expected}
        assert found == expected, f"{key} has {found}, of {history}"


def _check_expiring(model: Model, held: Mapping[str, Any], times: Times) -> None:
    """Compare what a key has of the states whose values expire."""
    if LIST.name in held:
        model.check_living([one.value for one in held[LIST.name] or () if is_living(one, times)], times)
    if MAP.name in held:
        entries: Mapping[str, Expiring] = held[MAP.name] or {}
        model.check_entries([name for name, one in entries.items() if is_living(one, times)], times)
    if VALUE.name in held:
        value: Expiring | None = held[VALUE.name]
        model.check_value(value.value if value is not None and is_living(value, times) else None, times)


def is_living(held: Expiring, times: Times) -> bool:
    """Return whether a value would be returned."""
    return held.expires_at > times.now


def counted(history: Iterable[Sequence[Any]]) -> dict[str, Any]:
    """Return what the states hold that only depend on how many events there were, and in which order."""
    handles = {name: plain(state) for name, state in _COUNTED.items()}
    for place, (kind, number, _) in enumerate(history, 1):
        for name, handle in handles.items():
            _WRITES[name](handle, (kind, number), place)
    return {name: handle.held for name, handle in handles.items()}


_COUNTED: dict[str, StateDescriptor] = {state.name: state for state in (PLACES, SUM, COUNT)}


def _write_places(places: Any, event: Event, place: int) -> None:
    """Write entries, again and again the same few; some are removed, and sometimes all."""
    if place % 9 == 0:
        places.clear()
    if place % 4 == 0:
        places.remove(f"place {(place - 1) % 5}")
    else:
        places.put(f"place {place % 5}", place)


_WRITES: dict[str, Callable[[Any, Event, int], None]] = {
    VALUE.name: lambda handle, event, place: handle.update(str(event)),
    LIST.name: lambda handle, event, place: handle.add(str(event)),
    MAP.name: lambda handle, event, place: handle.put(str(event), str(event)),
    PLACES.name: _write_places,
    SUM.name: lambda handle, event, place: handle.add(place),
    COUNT.name: lambda handle, event, place: handle.add(1),
}
"""What an event, which is so manieth of its key, does to a state."""


class _Historian:
    """What all kinds of functions do."""

    def __init__(self, run: Any) -> None:
        self.run = run
        self.states: tuple[StateDescriptor, ...] = run.states

    async def handle(self, event: Event, ctx: InvocationContext) -> list[Any]:
        """Do what an event does, and compare all that there is before and afterwards."""
        try:
            return await self._handle(event, ctx)
        except AssertionError as broken:
            # The operator would take it for an error of the element, and try again.
            self.run.violations.append(broken)
            raise

    async def _handle(self, event: Event, ctx: InvocationContext) -> list[Any]:
        seed, key = self.run.seed, name_of(ctx.key)
        self.run.call_begins(key, event, ctx)
        times = self.run.times()
        history = ctx.state(HISTORY).get()
        model = replay(seed, key, history)
        self._check_event(event, model, times.now)
        model.begin(event)
        for event_time in (False, True):
            found = ctx.timers.timestamps(event_time)
            assert found == sorted(model.timers[event_time]), f"{key} has the timers {found}, not {model.timers}"
        self._compare(ctx, model, history, times)

        draw = random.Random(f"{seed}/{event}/{key}/{next(self.run.numbers)}")
        if draw.random() < 0.6:
            await asyncio.sleep(draw.choice((0.0, 0.2, 1.0)))
        if draw.random() < 0.1 and ctx.attempt < 3 and not self.run.is_finishing:
            raise copy(draw.choice(ERRORS))
        times = self.run.times()
        for change in model.changes(event, times.now):
            (ctx.timers.register if change.registers else ctx.timers.delete)(change.timestamp, change.event_time)
        self._compare(ctx, model, history, times)
        self._write(event, ctx, len(history) + 1, times.now)
        return [(key, *event)]

    def _check_event(self, event: Event, model: Model, now: int) -> None:
        if event[0] == "record":
            return
        timers = model.timers[event[0] == "event"]
        assert event[1] in timers, f"{event} fires, which is none of {model.timers}"
        earlier = [other for other in timers if other < event[1]]
        assert not earlier, f"{event} fires before {earlier}"
        # At the end of the input the time counts that a clock which was set back would have reached.
        is_due = event[0] == "event" or event[1] <= self.run.latest_time or self.run.is_finishing
        assert is_due, f"{event} fires at {now}"

    def _compare(self, ctx: InvocationContext, model: Model, history: Sequence[Any], times: Times) -> None:
        if LIST in self.states:
            model.check_living(ctx.state(LIST).get(), times)
        if MAP in self.states:
            model.check_entries(ctx.state(MAP).values(), times)
        if VALUE in self.states:
            model.check_value(ctx.state(VALUE).value(), times)
        found = self._counted(ctx)
        expected = {name: value for name, value in counted(history).items() if name in found}
        assert found == expected, f"{name_of(ctx.key)} has {found}, not {expected}"

    def _counted(self, ctx: InvocationContext) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if PLACES in self.states:
            found[PLACES.name] = dict(ctx.state(PLACES).items()) or None
        if SUM in self.states:
            found[SUM.name] = ctx.state(SUM).get()
        if COUNT in self.states:
            found[COUNT.name] = None if (count := ctx.state(COUNT).get()) is None else [count]
        return found

    def _write(self, event: Event, ctx: InvocationContext, place: int, now: int) -> None:
        for state in self.states:
            if state.name in _WRITES:
                _WRITES[state.name](ctx.state(state), event, place)
        ctx.state(HISTORY).add([*event, now])

    async def on_timer(self, timestamp: int, ctx: InvocationContext) -> list[Any]:
        assert ctx.timestamp == timestamp
        kind = "event" if ctx.idempotency_key.rpartition("/")[2].startswith("event") else "processing"
        return await self.handle((kind, timestamp), ctx)


class Historian(_Historian, AsyncFunction):
    """Calls for each element."""

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        return await self.handle(("record", value[0]), ctx)


class BatchHistorian(_Historian, AsyncBatchFunction):
    """Calls for several elements at once."""

    max_batch_size = 3

    async def async_invoke_batch(self, values: Sequence[Any], ctxs: Sequence[InvocationContext]) -> list[Any]:
        calls = [self.handle(("record", value[0]), ctx) for value, ctx in zip(values, ctxs, strict=True)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        assert all(not isinstance(result, AssertionError) for result in results), results
        return results
