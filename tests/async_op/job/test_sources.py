"""What a job takes as a source, and what it refuses."""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from async_op import RestartPolicy, StreamAlreadyRead
from async_op.connectors import FileSource, InputReplaced, Reached, Source
from async_op.job.adapters import source_of
from keygroups import ConfigError, UnstorableValue
from tests.async_op.connectors.kit import cuts_of, everywhere
from tests.async_op.job.kit import Epochs, new_job, same
from tests.async_op.kit import eventually
from tests.doors.bad import Level
from tests.quick import first_is_quick

TABLE = pa.table({"user": ["ann", "bob", "cid"], "n": [1, 2, 3]})
FRAMES: list[Callable[[], Any]] = [lambda: TABLE, TABLE.to_pandas, TABLE.to_reader]


@pytest.mark.parametrize("make", FRAMES, ids=["table", "pandas", "reader"])
async def test_the_rows_of_frames_and_tables_are_the_elements(make: Callable[[], Any]) -> None:
    sink = Epochs()
    await new_job(make(), same, sink).run()
    assert sink.values == TABLE.to_pylist()


class Generators:
    """Makes generators that note the thread in which they are closed, and wait for a test after so many elements."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.closed_on: list[str] = []
        self.wanted = threading.Event()

    def plain(self) -> Iterator[int]:
        try:
            yield from range(self.count)
            self.wanted.wait(60)
            yield from range(self.count, 2 * self.count)
        finally:
            self.closed_on.append(threading.current_thread().name)

    async def asynchronous(self) -> AsyncIterator[int]:
        try:
            for number in range(2 * self.count):
                yield number
                if number == self.count - 1:
                    await asyncio.to_thread(self.wanted.wait, 60)
        finally:
            self.closed_on.append(threading.current_thread().name)


@pytest.mark.parametrize("end", ["end", "failure", "stop", "cancellation"])
async def test_a_generator_is_closed_in_its_thread_whatever_ends_the_job(end: str) -> None:
    async def step(value: int) -> int:
        if end == "failure":
            raise ValueError
        return value

    generators, sink = Generators(1500), Epochs()
    if end in ("end", "failure"):
        generators.wanted.set()
    job = new_job(generators.plain(), step, sink)
    run = asyncio.create_task(job.run())
    if end in ("stop", "cancellation"):
        await sink.have(1000)
        run.cancel() if end == "cancellation" else job.stop(drain=False)
        generators.wanted.set()
    await asyncio.gather(run, return_exceptions=True)
    # A read that is under way cannot be interrupted, so the job does not wait for it.
    await eventually(lambda: generators.closed_on == ["keygroups reader"])


@pytest.mark.parametrize("kind", ["plain", "asynchronous"])
async def test_a_restart_over_a_generator_that_was_closed_is_refused(kind: str) -> None:
    """All that was taken is in the snapshot, so the closed generator would look like one that has ended."""

    class AwayOnce(Epochs):
        async def write(self, values: Any, epoch: int) -> None:
            if self.writes:
                generators.wanted.set()
                return await super().write(values, epoch)
            self.writes.append(epoch)
            raise ZeroDivisionError

    generators, sink = Generators(5), AwayOnce()
    policy = RestartPolicy(max_restarts=3, initial_delay=0.0, max_delay=0.0)
    job = new_job(getattr(generators, kind)(), same, sink, restart=policy)
    with pytest.raises(StreamAlreadyRead, match="ended before its end"):
        await job.run()


async def test_a_frame_is_read_on_where_the_snapshot_says() -> None:
    sink, place = Epochs(), f"memory://{uuid.uuid4().hex}"
    await new_job(TABLE.slice(0, 2), same, sink, snapshots=place).run()
    await new_job(TABLE.to_pandas(), same, sink, snapshots=place).run()
    assert sink.values == TABLE.to_pylist()


def rows() -> Iterator[dict[str, Any]]:
    yield {"a": 1}


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        ({"a": 1}, "pass a list"),
        ({"b", "a"}, "sorted"),
        (frozenset("ab"), "sorted"),
        ({"a": 1}.keys(), "sorted"),
        (bytearray(b"ab"), "pass a list"),
        (memoryview(b"ab"), "pass a list"),
        ("orders/*.csv", "pass a Source"),
        (rows, r"; call the function: rows\(\)"),
    ],
    ids=["dict", "set", "frozenset", "keys", "bytearray", "memoryview", "text", "function"],
)
def test_what_would_be_read_by_its_parts_or_in_no_order_is_refused(source: Any, hint: str) -> None:
    with pytest.raises(ConfigError, match=hint) as caught:
        new_job(source, same, Epochs())
    assert caught.value.name == "source"


async def test_the_values_of_a_dict_have_an_order() -> None:
    sink = Epochs()
    await new_job({"a": 1, "b": 2}.values(), same, sink).run()
    assert sink.values == [1, 2]


class Given(Source[Any]):
    """Returns what a test gives it."""

    bounded = True

    def __init__(self, ids: Any, items: Any) -> None:
        self._ids = ids
        self._items = items

    def partitions(self) -> Any:
        return self._ids

    def read(self, partition: Any, position: Any) -> Any:
        return self._items


async def asynchronous(items: list[Any]) -> AsyncIterator[Any]:
    for item in items:
        yield item


@pytest.mark.parametrize("item", [1, None, (1, 2), (1, 2, 3, 4), [1], [(1, None, 1), 2]], ids=str)
@pytest.mark.parametrize("iterate", [iter, asynchronous])
async def test_what_is_no_item_names_the_source(item: Any, iterate: Callable[[Any], Any]) -> None:
    with pytest.raises(ConfigError, match=r"source=Given\(\).* yield \(value, timestamp, position\)"):
        await new_job(Given(["a"], iterate([item])), same, Epochs()).run()


@pytest.mark.parametrize(
    "timestamp", [1.5, True, "now", datetime(2026, 3, 1, tzinfo=UTC), 2**70, -(2**63) - 1], ids=str
)
async def test_a_wrong_timestamp_is_refused_and_names_the_source(timestamp: Any) -> None:
    with pytest.raises(ConfigError, match="milliseconds since the epoch") as caught:
        await new_job(Given(["a"], iter([("x", timestamp, 1)])), same, Epochs()).run()
    assert "Given() yielded it in partition 'a', before position 1" in caught.value.__notes__[0]


@pytest.mark.parametrize("name", ["half an emoji: \ud83d", None, True, 1.5], ids=ascii)
async def test_an_id_of_a_partition_that_cannot_be_stored_is_refused_before_a_call(name: Any) -> None:
    source = Given([name], iter([("x", None, 1)]))
    with pytest.raises(ConfigError, match=r"partitions=.*the id of a partition"):
        await new_job(source, same, Epochs()).run()


@pytest.mark.parametrize("positions", [[1, 1, 2], [1, "2", "2"], [None], [[3], [3]]], ids=str)
@pytest.mark.parametrize("iterate", [iter, asynchronous])
async def test_two_elements_with_one_position_would_share_a_key(positions: list[Any], iterate: Any) -> None:
    items = [(number, None, position) for number, position in enumerate(positions)]
    with pytest.raises(ConfigError, match=r"source=Given\(\): its read\(\) gave two elements of partition 'a'"):
        await new_job(Given(["a"], iterate([items])), same, Epochs()).run()


class ChangesItsPosition(Source[int]):
    """Yields one object as all of its positions, and changes it before it waits for its 5th element."""

    bounded = True

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.waits = threading.Event()
        self.may_go_on = threading.Event()

    def partitions(self) -> list[str]:
        return ["one"]

    def read(self, partition: Any, position: Any) -> Any:
        counted = {"next": 0} if position is None else position
        return self.awaited(counted) if self.kind == "awaited" else self.blocking(counted)

    async def awaited(self, position: dict[str, int]) -> AsyncIterator[Any]:
        while (number := position["next"]) < 8:
            position["next"] += 1
            if number == 4:
                self.waits.set()
                await asyncio.to_thread(self.may_go_on.wait, 60)
            yield number, None, position

    def blocking(self, position: dict[str, int]) -> Iterator[Any]:
        while (number := position["next"]) < 8:
            position["next"] += 1
            if number == 4:
                self.waits.set()
                self.may_go_on.wait(60)
            item = number, None, position
            yield [item] if self.kind == "blocking, in lists" else item


@pytest.mark.parametrize("kind", ["awaited", "blocking", "blocking, in lists"])
async def test_a_source_may_change_a_position_after_it_has_yielded_it(kind: str) -> None:
    source, sink, place = ChangesItsPosition(kind), Epochs(), f"memory://{uuid.uuid4().hex}"
    run = asyncio.create_task((job := new_job(source, same, sink, snapshots=place)).run())
    await sink.have(4)
    await asyncio.to_thread(source.waits.wait, 60)
    job.stop(drain=False)  # its cut comes when the position is ahead of the elements
    await run
    source.may_go_on.set()

    await new_job(source, same, sink, snapshots=place).run()
    assert sink.values == list(range(8))


@pytest.mark.parametrize(
    "position", [object(), Level.HIGH, [object()], np.array([1, 2])], ids=["object", "int-enum", "inside", "array"]
)
async def test_a_position_that_no_snapshot_can_hold_is_refused_before_a_call(position: Any) -> None:
    called: list[int] = []

    async def call(value: int) -> int:
        called.append(value)
        return value

    with pytest.raises(UnstorableValue, match="a position of the source"):
        await new_job(Given(["a"], iter([(1, None, position)])), call, Epochs()).run()
    assert called == []


async def test_a_timestamp_may_be_before_the_epoch_or_of_numpy() -> None:
    sink = Epochs()
    items = [("x", -(2**63), 1), ("y", np.int64(5), 2), ("z", None, 3)]
    await new_job(Given(["a"], iter(items)), same, sink).run()
    assert sink.values == ["x", "y", "z"]


@pytest.mark.parametrize(
    ("ids", "items", "method"),
    [(None, iter([]), "partitions"), ("ab", iter([]), "partitions"), (["a"], None, "read"), (["a"], "xyz", "read")],
    ids=["no ids", "text for ids", "no items", "text for items"],
)
async def test_a_source_that_returns_nothing_to_iterate_is_named(ids: Any, items: Any, method: str) -> None:
    with pytest.raises(ConfigError, match=rf"source=Given\(\).*{method}\(\)"):
        await new_job(Given(ids, items), same, Epochs()).run()


async def stream(values: list[Any]) -> AsyncIterator[Any]:
    for value in values:
        yield value


class Again:
    """An async iterable that can be iterated again, of unknown length."""

    def __init__(self, values: list[Any]) -> None:
        self._values = values

    def __aiter__(self) -> AsyncIterator[Any]:
        return stream(self._values)


SHAPES: list[Callable[[list[Any]], Any]] = [
    lambda values: values,
    iter,
    stream,
    Again,
    lambda values: pa.table({"n": values}),
    lambda values: pa.table({"n": values}).to_pandas(),
    lambda values: pa.table({"n": values}).to_reader(),
]
IDS = ["list", "iterator", "async iterator", "async iterable", "table", "frame", "reader"]


@pytest.mark.parametrize("shape", first_is_quick(SHAPES), ids=IDS)
@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        (list(range(100)), list(range(50)), "has 50 elements now"),
        (list(range(100)), [], "has 0 elements now"),
        (list(range(100)), list(range(1000, 1100)), "has other elements now"),
        (list(range(2000)), [*range(1023), -1, *range(1024, 3000)], "has other elements now"),
        (list(range(100)), [*range(70), -1, *range(71, 100)], "has other elements now"),
        (list(range(100)), [*range(70), *range(71, 101)], "has other elements now"),
        (list(range(2000)), [*range(1500), *range(1501, 2001)], "has other elements now"),
        (list(range(2000)), [*range(1999), -1], "has other elements now"),
    ],
    ids=["shorter", "empty", "other", "changed", "one of few", "one was removed", "one of many was removed", "last"],
)
async def test_another_iterable_under_the_id_of_a_job_is_refused(
    shape: Any, before: list[int], after: list[int], problem: str
) -> None:
    place = f"memory://{uuid.uuid4().hex}"
    await new_job(shape(before), same, sink := Epochs(), snapshots=place).run()
    with pytest.raises(InputReplaced, match=f"{problem}.*restore it.*append the new.*new job_id"):
        await new_job(shape(after), same, Epochs(), snapshots=place).run()
    if after:
        await new_job(shape([*before, -5]), same, sink, snapshots=place).run()
        assert len(sink.values) == len(before) + 1


@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
async def test_what_is_stored_of_an_iterable_does_not_depend_on_how_often_it_was_read(shape: Any) -> None:
    async def content(*counts: int) -> Any:
        """Read in several runs of a job, each with more elements, and return what is stored at the end."""
        known, found = None, []
        for count in counts:
            source = source_of(shape(list(range(count))))
            if known is not None:
                await source.restore({0: known})
            reader = source.read(0, None if known is None else known.position)
            found = [piece async for piece in reader if isinstance(piece, Reached)]
            known = found[-1]
        return known

    assert await content(3, 100, 1030, 5000) == await content(5000)


SOURCES: list[Callable[[Path], Any]] = [
    lambda folder: [1, 2, 3],
    lambda folder: FileSource(folder / "*.log", "lines"),
    lambda folder: Given([0], iter([(n, None, n + 1) for n in range(3)])),
]


@pytest.mark.parametrize("after", [0, 1, 2])
@pytest.mark.parametrize("before", [0, 1, 2])
async def test_positions_of_another_kind_of_source_are_refused(before: int, after: int, tmp_path: Path) -> None:
    (tmp_path / "a.log").write_text("a\nb\n")
    place = f"memory://{uuid.uuid4().hex}"
    await new_job(SOURCES[before](tmp_path), same, Epochs(), snapshots=place).run()
    again = new_job(SOURCES[after](tmp_path), same, sink := Epochs(), snapshots=place)
    if before == after:
        await again.run()
        assert sink.values == [] or after == 2  # the last one does not look at its positions
        return
    with pytest.raises(InputReplaced, match=r"the job's source .* now, and was .* before.*new job_id"):
        await again.run()


@pytest.mark.parametrize("shape", SHAPES, ids=IDS)
async def test_wherever_a_snapshot_was_cut_other_elements_are_refused(shape: Any) -> None:
    """Up to the eighth element; far beyond, a sample may still have to come."""
    for cut in await cuts_of(source_of(shape(list(range(8)))), 0):
        source = source_of(shape(list(range(100, 150))))
        await source.restore({0: cut})
        with pytest.raises(InputReplaced):
            [piece async for piece in everywhere(source.read(0, cut.position))]


@pytest.mark.parametrize("shape", SHAPES[:4], ids=IDS[:4])
async def test_elements_that_cannot_be_compared_are_read_on(shape: Any) -> None:
    place, values = f"memory://{uuid.uuid4().hex}", [float("nan"), [[]], {2, 1}, 2**70]

    async def text(value: Any) -> str:
        return type(value).__name__

    for _ in range(2):
        await new_job(shape(values), text, sink := Epochs(), snapshots=place).run()
    assert sink.values == []


async def test_a_wrong_timestamp_costs_its_element_only_where_the_source_says_so() -> None:
    source = Given(["a"], iter([("x", 1, 1), ("y", 2**70, 2), ("z", 3, 3)]))
    source.on_error = "skip"
    await new_job(source, same, sink := Epochs()).run()
    assert sink.values == ["x", "z"]
