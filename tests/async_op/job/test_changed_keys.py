"""A job whose keys have changed is refused by name before anything is claimed or called: states would be mixed."""

from __future__ import annotations

import asyncio
import datetime as dt
import enum
import uuid
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from async_op import AsyncFunction, InvocationContext, Step
from keygroups import ValueState
from snapshots import IncompatibleSnapshot, SnapshotStore
from tests.async_op.job.kit import Counting, Epochs, Gated, Log, new_job, same

ORDERS = [{"user": "ann", "item": "tea", "number": 1}, {"user": "bob", "item": "salt", "number": 2}]


def by_user(value: Any) -> Any:
    return value["user"]


def by_item(value: Any) -> Any:
    return value["item"]


def by_number(value: Any) -> Any:
    return value["number"]


class Keeping(AsyncFunction[Any, Any]):
    """Keeps a state, and returns its key."""

    states = (ValueState("last"),)

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[Any]:
        ctx.state(self.states[0]).update(value["number"])
        return [value]


def options_of(folder: str) -> dict[str, Any]:
    return {"snapshots": folder, "job_id": "job", "max_parallelism": 8}


async def refused(folder: str, key_by: Any, match: str, *, values: Any = ORDERS, on_error: Any = "fail") -> None:
    """Start a job with a key_by, which must be refused without a call or a commit."""
    store, counting = SnapshotStore(folder, "job"), Counting()
    called = []

    async def call(value: Any, ctx: InvocationContext) -> list[Any]:
        called.append(value)
        return [value]

    counting.async_invoke = call  # type: ignore[method-assign]
    version = store.newest_version()
    step = Step(counting, "count", key_by=key_by, on_error=on_error)
    with pytest.raises(IncompatibleSnapshot, match=match):
        await new_job(values, step, Epochs(), snapshot_interval=1000.0, **options_of(folder)).run()
    assert called == []
    assert store.newest_version() <= version + 1  # at most the claim


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ("user", "item", "count of the snapshot is 'user', but 'item' is needed"),
        ("user", ["user", "item"], "'user', but 'user, item'"),
        (["user", "item"], ["item", "user"], "'user, item', but 'item, user'"),
    ],
)
async def test_other_columns_are_refused(before: Any, after: Any, named: str) -> None:
    folder = f"memory://{uuid.uuid4().hex}"
    await new_job(ORDERS, Step(Counting(), "count", key_by=before), Epochs(), **options_of(folder)).run()
    version = SnapshotStore(folder, "job").newest_version()
    await refused(folder, after, named)
    assert SnapshotStore(folder, "job").newest_version() == version
    await new_job([*ORDERS, *ORDERS], Step(Counting(), "count", key_by=before), Epochs(), **options_of(folder)).run()


async def test_a_later_step_is_checked_too_and_one_with_nothing_may_change() -> None:
    folder = f"memory://{uuid.uuid4().hex}"

    async def same(value: Any) -> Any:
        return value

    def steps(first: str, second: str) -> list[Step]:
        return [Step(same, "same", key_by=first), Step(Keeping(), "keep", key_by=second)]

    await new_job(ORDERS, steps("user", "user"), Epochs(), **options_of(folder)).run()
    await new_job([*ORDERS, ORDERS[0]], steps("item", "user"), Epochs(), **options_of(folder)).run()
    with pytest.raises(IncompatibleSnapshot, match="step keep .*'user', but 'item'"):
        await new_job(ORDERS, steps("item", "item"), Epochs(), **options_of(folder)).run()


@pytest.mark.parametrize("after", [by_item, "item"])
async def test_keys_in_flight_are_computed_again(after: Any) -> None:
    folder, gated = f"memory://{uuid.uuid4().hex}", Gated()
    job = new_job(Log(ORDERS), Step(gated, "count", key_by=by_user), Epochs(), **options_of(folder))
    run = asyncio.create_task(job.run())
    await gated.arrived.wait()
    job.stop(drain=False)
    await run
    version = SnapshotStore(folder, "job").newest_version()
    await refused(folder, after, "in flight in step count .*key_by")
    assert SnapshotStore(folder, "job").newest_version() == version

    gated.gate.set()
    sink = Epochs()
    again = new_job(Log(ORDERS), Step(gated, "count", key_by="user"), sink, **options_of(folder))
    run = asyncio.create_task(again.run())
    await sink.have(2)
    again.stop()
    await run


@pytest.mark.parametrize("on_error", ["fail", "skip"])
async def test_keys_of_another_type_than_those_of_the_state_are_refused(on_error: Any) -> None:
    folder = f"memory://{uuid.uuid4().hex}"
    await new_job(ORDERS, Step(Counting(), "count", key_by=by_user), Epochs(), **options_of(folder)).run()
    more = [*ORDERS, *ORDERS]
    await refused(folder, by_number, "type of keys of step count .*'str', but 'int'", values=more, on_error=on_error)
    both = lambda value: (value["user"], value["number"])  # noqa: E731
    await refused(folder, both, r"'str', but '\(str, int\)'", values=more, on_error=on_error)
    await new_job(more, Step(Counting(), "count", key_by=by_user), Epochs(), **options_of(folder)).run()


OTHER_TYPES: dict[str, tuple[Any, Any]] = {
    "a number that was read from JSON, then from CSV": (7, "7"),
    "a whole number that has become a float": (7, 7.0),
    "a flag": (1, True),
    "bytes": ("ann", b"ann"),
    "a day that has become a time": (dt.date(2026, 1, 1), dt.datetime(2026, 1, 1)),
}


@pytest.mark.parametrize("key_by", ["user", ["user", "item"]])
@pytest.mark.parametrize(("before", "after"), OTHER_TYPES.values(), ids=list(OTHER_TYPES))
async def test_keys_of_another_type_in_the_same_columns_are_refused(key_by: Any, before: Any, after: Any) -> None:
    folder, counts = f"memory://{uuid.uuid4().hex}", Epochs()
    old, new = ({**ORDERS[0], "user": user} for user in (before, after))
    await new_job([old], Step(Counting(), "count", key_by=key_by), Epochs(), **options_of(folder)).run()
    await refused(folder, key_by, "type of keys of step count", values=[old, new])
    await new_job([old, old], Step(Counting(), "count", key_by=key_by), counts, **options_of(folder)).run()
    assert [count for _, count, _ in counts.values] == [2]


class Color(enum.StrEnum):
    """A text for Python, and nothing that a snapshot can hold."""

    RED = "red"


NO_KEYS: dict[str, Any] = {
    "str enum": Color.RED,
    "null": None,
    "object": object(),
    "list": ["a"],
    "too large": 2**64,
    "part of it": ("a", Color.RED),
}


@pytest.mark.parametrize("key", NO_KEYS.values(), ids=list(NO_KEYS))
async def test_a_first_key_that_can_be_no_key_is_the_fault_of_its_element(key: Any) -> None:
    folder, counts = f"memory://{uuid.uuid4().hex}", Epochs()
    for given in (ORDERS, [*ORDERS, {"user": key, "number": 0}, ORDERS[0]]):
        step = Step(Counting(), "count", key_by=by_user, on_error="skip")
        await new_job(given, step, counts, **options_of(folder)).run()
    assert len(counts.values) == len(ORDERS) + 1


KEYS: dict[str, Any] = {
    "several": lambda value: (value["user"], value["number"]),
    "dates": lambda value: dt.date(2026, 1, value["number"]),
    "booleans": lambda value: value["number"] == 1,
    "decimals": lambda value: Decimal(value["number"]),
    "floats": lambda value: value["number"] / 2,
    "bytes": lambda value: value["user"].encode(),
    "numbers of NumPy": lambda value: np.int64(value["number"]),
    "several, of NumPy": lambda value: (np.str_(value["user"]), np.float32(value["number"] / 2)),
    "of two types": lambda value: value["user"] if value["number"] == 1 else value["number"],
}


@pytest.mark.parametrize("key_by", KEYS.values(), ids=list(KEYS))
async def test_keys_of_any_type_are_known_again(key_by: Any) -> None:
    options = options_of(f"memory://{uuid.uuid4().hex}")
    counts = Epochs()
    for times in (1, 2):
        await new_job([*ORDERS] * times, Step(Counting(), "count", key_by=key_by), counts, **options).run()
    assert sorted(count for _, count, _ in counts.values) == [1, 1, 2, 2]
    with pytest.raises(IncompatibleSnapshot, match="type of keys"):
        other = Step(Counting(), "count", key_by=lambda value: (value["user"], b""))
        await new_job([*ORDERS] * 3, other, Epochs(), **options).run()


async def test_the_snapshot_names_the_columns() -> None:
    folder = f"memory://{uuid.uuid4().hex}"
    await new_job(ORDERS, Step(Counting(), "count", key_by="user"), Epochs(), **options_of(folder)).run()
    assert SnapshotStore(folder, "job").load().source_position == {
        "job": {"epoch": 1, "parallelism": 1, "keys": {"count": ["user"]}, "written": {}}
    }


async def test_another_order_of_steps_is_refused_while_elements_are_in_flight() -> None:
    """An element that has passed the first step would pass it again, behind the second."""
    options, gate, sink = options_of(f"memory://{uuid.uuid4().hex}"), Gated(), Epochs()
    steps = {"price": Step(same, "price"), "send": Step(gate, "send"), "count": Step(Counting(), "count", key_by=str)}
    job = new_job([1, 2], list(steps.values()), sink, **options)
    task = asyncio.create_task(job.run())
    while len(gate.called) < 2:
        await asyncio.sleep(0)
    job.stop(drain=False)
    await task

    swapped = [steps["send"], steps["price"], steps["count"]]
    with pytest.raises(IncompatibleSnapshot, match=r"order .* 'source, price, send, count', but 'source, send, price"):
        await new_job([1, 2], swapped, sink, **options).run()
    gate.gate.set()
    await new_job([1, 2], [*steps.values(), Step(same, "new")], sink, **options).run()
    assert len(sink.values) == 2
    await new_job([1, 2, 3], swapped, sink, **options).run()
    assert len(sink.values) == 3
