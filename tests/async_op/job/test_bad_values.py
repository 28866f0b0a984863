"""A bad value is the fault of one element: it ends by `on_error`, wherever the job notices it, and never comes back.

Every run stops at a cut and starts again, so that what is in flight goes through a snapshot.
"""

from __future__ import annotations

import itertools
import uuid
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from async_op import AsyncBatchFunction, AsyncFunction, BlockingFunction, ElementFailed, Step
from async_op.connectors import Source
from keygroups import MapState, ValueState, codec
from keygroups.state import storable
from tests.async_op.job.kit import Epochs, new_job
from tests.doors.bad import KINDS, PLACES, Color, Level
from tests.examples import scaled
from tests.quick import few_are_quick, first_is_quick

SEEN = ValueState("seen", default=0)
NOTES = MapState("notes")


class Orders(Source[Any]):
    """Good orders around a bad one."""

    bounded = True

    def __init__(self, bad: Any) -> None:
        self.bad = bad

    def partitions(self) -> list[str]:
        return ["orders"]

    def read(self, partition: Any, position: Any = None) -> Iterator[Any]:
        for number in range(position or 0, 9):
            yield self.bad if number == 4 else {"id": number}, None, number + 1


class World:
    """What a bad value of one kind does in a job, and the calls that it makes over all runs."""

    def __init__(self, place: str, kind: str) -> None:
        self.place = place
        self.bad = PLACES[place][kind]
        self.calls = Counter[int]()
        self.source = Orders(self.bad() if place == "value" else {"id": 4})

    def answer(self, value: dict[str, Any], ctx: Any) -> Any:
        self.calls[value["id"]] += 1
        seen = ctx.state(SEEN)
        seen.update(seen.value() + 1)
        if value["id"] == 4:
            if self.place == "error":
                raise self.bad()
            if self.place == "output":
                return self.bad()
            if self.place == "state":
                ctx.state(NOTES).put("note", self.bad())
        return value["id"]

    def key_of(self, value: Any) -> Any:
        return self.bad if self.place == "key" and value.get("id") == 4 else "a"


def function_of(kind: str, world: World) -> Any:
    class Plain(AsyncFunction):
        states = (SEEN, NOTES)

        async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
            return [world.answer(value, ctx)]

    class Blocking(BlockingFunction):
        states = (SEEN, NOTES)

        def invoke(self, value: Any, ctx: Any) -> list[Any]:
            return [world.answer(value, ctx)]

    class Batched(AsyncBatchFunction):
        states = (SEEN, NOTES)
        max_batch_size = 3
        max_batch_delay = 0.0

        async def async_invoke_batch(self, values: Any, ctxs: Any) -> Any:
            def one(value: Any, ctx: Any) -> Any:
                try:
                    return [world.answer(value, ctx)]
                except Exception as error:  # noqa: BLE001
                    return error

            return [one(value, ctx) for value, ctx in zip(values, ctxs, strict=True)]

    return {"coroutine": Plain, "blocking": Blocking, "batch": Batched}[kind]()


async def same(value: Any) -> Any:
    return value


DOORS = st.tuples(st.sampled_from(["coroutine", "blocking", "batch"]), st.sampled_from(["ordered", "unordered"]))


@pytest.mark.parametrize(("place", "kind"), few_are_quick(KINDS), ids=lambda one: str(one).replace(" ", "-"))
@given(DOORS, st.sampled_from(["skip", "dead_letter"]), st.booleans())
@settings(max_examples=scaled(8), suppress_health_check=list(HealthCheck), deadline=None)
async def test_it_ends_by_on_error_and_all_others_come_out_once(
    place: str, kind: str, door: tuple[str, Any], on_error: Any, chained: bool
) -> None:
    world = World(place, kind)
    sink, letters = Epochs(), Epochs()
    where = f"memory://{uuid.uuid4().hex}"
    for _ in range(3):
        first = Step(
            function_of(door[0], world), "pay", key_by=world.key_of, mode=door[1], on_error=on_error, capacity=4
        )
        steps = [first, Step(same, "pass", on_error=on_error)] if chained else [first]
        job = new_job(world.source, steps, sink, dead_letters=letters, snapshots=where, snapshot_interval=0.001)
        await job.run()

    good = [0, 1, 2, 3, 5, 6, 7, 8]
    assert sorted(sink.values) == good
    assert {number: count for number, count in world.calls.items() if number != 4} == dict.fromkeys(good, 1)
    assert world.calls[4] == (place not in ("value", "key")), "a restart calls for it again, or no call was made"
    found = [(letter["step"], letter["idempotency_key"].endswith("@5")) for letter in letters.values]
    assert found == ([("pay", True)] if on_error == "dead_letter" else [])


@pytest.mark.parametrize(
    ("place", "kind"),
    [case for place in PLACES for case in first_is_quick(one for one in KINDS if one[0] == place)],
    ids=lambda one: str(one).replace(" ", "-"),
)
async def test_with_fail_the_error_names_it_at_each_start_and_no_finished_call_is_repeated(
    place: str, kind: str
) -> None:
    world = World(place, kind)
    sink, where = Epochs(), f"memory://{uuid.uuid4().hex}"
    for _ in range(3):
        step = Step(function_of("coroutine", world), "pay", key_by=world.key_of, mode="ordered", capacity=4)
        with pytest.raises(ElementFailed, match=r"\(id .*@5\)") as failed:
            await new_job(world.source, step, sink, snapshots=where).run()
        str(failed.value).encode()
    assert all(count == 1 for number, count in world.calls.items() if number < 4)

    step = Step(function_of("coroutine", world), "pay", key_by=world.key_of, on_error="skip")
    job = new_job(world.source, step, sink, snapshots=where)
    await job.run()
    assert sorted(sink.values) == [0, 1, 2, 3, 5, 6, 7, 8]
    assert job.progress().skipped == 1


async def test_a_state_that_did_not_take_a_value_keeps_no_write_of_its_call() -> None:
    counts: list[int] = []

    class Count(AsyncFunction):
        states = (SEEN,)

        async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
            seen = ctx.state(SEEN)
            seen.update(seen.value() + 1)
            counts.append(seen.value())
            return [object() if value == 1 else value]

    sink = Epochs()
    await new_job(range(4), Step(Count(), key_by=lambda value: "a", on_error="skip"), sink).run()
    assert sorted(sink.values) == [0, 2, 3]
    assert counts == [1, 2, 2, 3], "the call of the bad output has counted"


@pytest.mark.parametrize("key", [2**63, -(2**63) - 1, Color.RED, Level.HIGH, "\ud83d"], ids=repr)
async def test_a_map_key_that_no_column_holds_fails_the_call_that_put_it(key: Any) -> None:
    class Put(AsyncFunction):
        states = (NOTES,)

        async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
            ctx.state(NOTES).put(key if value == 1 else value, 1)
            return [value]

    sink = Epochs()
    await new_job(range(3), Step(Put(), key_by=lambda value: "a", on_error="skip"), sink).run()
    assert sorted(sink.values) == [0, 2]


LONG = {"bytes": b"x" * 70_000, "text": "x" * 70_000, "text with accents": "é" * 40_000, "a list": ["x" * 70_000]}


@pytest.mark.parametrize(("place", "kind"), few_are_quick(itertools.product(["value", "output", "state"], LONG)))
async def test_a_value_that_is_longer_than_files_can_hold_is_one_elements_fault(
    place: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec, "VALUE_BYTES_MAX", 66_000)  # in place of 2 GiB
    monkeypatch.setattr(storable, "VALUE_BYTES_MAX", 66_000)
    monkeypatch.setattr(storable, "_LENGTH_MAX", 30_000)
    long = LONG[kind]

    class Keep(AsyncFunction):
        states = (NOTES,)

        async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
            if value == 4 and place == "state":
                ctx.state(NOTES).put("note", long)
            return [long if value == 4 and place == "output" else value]

    source = [*range(4), long if place == "value" else 4, *range(5, 9)]
    sink = Epochs()
    await new_job(source, Step(Keep(), key_by=lambda value: "a", on_error="skip"), sink).run()
    assert sorted(sink.values) == [0, 1, 2, 3, 5, 6, 7, 8]
