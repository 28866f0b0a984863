"""Right and wrong uses of what is public, for the type checker alone: nobody runs this.

Each wrong use carries the code of its error. If it is no error any more, the ignore is unused, and that is one.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing, asynccontextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, assert_type

import pyarrow as pa

from async_op import (
    AdaptiveConcurrency,
    AsyncBatchFunction,
    AsyncDataStream,
    AsyncFunction,
    AsyncWaitOperator,
    BlockingFunction,
    Cache,
    CircuitBreaker,
    ExponentialBackoffRetry,
    InvocationContext,
    Job,
    OperatorStatistics,
    RateLimit,
    Resilience,
    ResilienceStatistics,
    SingleFlight,
    function,
    shared,
)
from async_op.connectors import Sink
from keygroups import KeyGroupRange, MapState, ValueState, range_of
from keygroups.state import MapHandle, ValueHandle
from snapshots import Snapshot, SnapshotStore, SubtaskRestore, SubtaskSnapshot

COUNT = ValueState("count", pa.int64(), default=0)
SEEN = MapState("seen")


class Enrich(AsyncFunction):
    states = (COUNT, SEEN)

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> list[str]:
        assert_type(ctx.state(COUNT), ValueHandle)
        assert_type(ctx.state(SEEN), MapHandle)
        assert_type(ctx.remaining, float | None)
        ctx.state("count")  # type: ignore[call-overload]
        ctx.state(COUNT).put("a", 1)  # type: ignore[attr-defined]
        ctx.attempt = 2  # type: ignore[misc]
        return [ctx.idempotency_key]


class NotAwaited(AsyncFunction):
    def async_invoke(self, value: Any, ctx: InvocationContext) -> Iterable[Any]:  # type: ignore[override]
        return [value]


class Length(AsyncFunction[str, int]):
    async def async_invoke(self, value: str, ctx: InvocationContext) -> list[int]:
        return [len(value)]


async def length(value: str) -> int:
    return len(value)


@function(states=(COUNT,))
async def counted(value: str, ctx: InvocationContext) -> tuple[str, int]:
    return value, ctx.state(COUNT).value()


@function(max_threads=4)
def halves(value: str) -> Iterator[str]:
    yield value


@function()
async def letters(value: str) -> AsyncIterator[bytes]:
    yield value.encode()


@function(on="loop")
def size(value: str) -> float:
    return len(value) / 2


async def pieces(value: str) -> AsyncIterator[int]:
    yield len(value)


def parts(value: str, ctx: InvocationContext) -> Iterator[int]:
    yield ctx.attempt


def half(value: int) -> float:
    return value / 2


class Callables:
    async def __call__(self, value: str) -> bytes:
        return value.encode()


class Fetch(BlockingFunction[str, bytes]):
    def invoke(self, value: str, ctx: InvocationContext) -> list[bytes]:
        return [value.encode()]


async def operate(operator: AsyncWaitOperator, store: SnapshotStore) -> None:
    cut = await operator.snapshot()
    assert_type(cut, SubtaskSnapshot)
    assert_type(store.write([cut]), Snapshot)
    assert_type(store.latest(), Snapshot | None)
    store.latest().version  # type: ignore[union-attr]  # noqa: B018
    store.write(cut)  # type: ignore[arg-type]
    statistics = operator.statistics()
    assert_type(statistics, OperatorStatistics)
    assert_type(statistics.resilience, ResilienceStatistics | None)
    statistics.calls = 0  # type: ignore[misc]
    await operator.process(1, timestamp="now")  # type: ignore[arg-type]
    await operator.process_watermark(1.5)  # type: ignore[arg-type]
    operator.process(1)  # type: ignore[unused-coroutine]


def construct(restore: SubtaskRestore) -> None:
    AsyncWaitOperator(Enrich(), print, mode="ordered", key_by=str)
    AsyncWaitOperator(Enrich(), print, mode="sorted")  # type: ignore[arg-type]
    AsyncWaitOperator(Enrich(), print, on_error="ignore")  # type: ignore[arg-type]
    AsyncWaitOperator(Enrich, print)  # type: ignore[arg-type]
    AsyncWaitOperator(Enrich(), print, "ordered")  # type: ignore[call-arg]
    AsyncWaitOperator(Enrich(), print, retry=3)  # type: ignore[arg-type]
    AsyncWaitOperator(Enrich(), print, resilience=RateLimit(5))  # type: ignore[arg-type]
    ExponentialBackoffRetry(3, 0.1, 1.0, retry_on="OSError")  # type: ignore[arg-type]


def spare() -> Resilience:
    Cache(max_entries=10)  # type: ignore[call-arg]
    CircuitBreaker(when_open="queue")  # type: ignore[arg-type]
    CircuitBreaker(0.5)  # type: ignore[call-arg]
    RateLimit("fast")  # type: ignore[arg-type]
    SingleFlight(key="id")  # type: ignore[arg-type]
    Resilience(RateLimit(5))  # type: ignore[call-arg, arg-type]
    limit = RateLimit(5)
    limit.per_second = 6  # type: ignore[misc]
    return Resilience(rate_limit=limit, concurrency=AdaptiveConcurrency(minimum=2), failure_on=(OSError, TimeoutError))


def stream() -> None:
    outputs = AsyncDataStream.ordered_wait(range(3), Enrich(), key_by=str, resilience=spare())
    assert_type(outputs, AsyncGenerator[Any, None])
    AsyncDataStream.ordered_wait(range(3), Enrich(), capacities=5)  # type: ignore[call-overload]
    AsyncDataStream.ordered_wait(3, Enrich())  # type: ignore[call-overload]
    assert_type(AsyncDataStream.ordered_wait(["a"], Length()), AsyncGenerator[int, None])
    assert_type(AsyncDataStream.unordered_wait(["a"], length, timeout=timedelta(minutes=1)), AsyncGenerator[int, None])
    assert_type(AsyncDataStream.key_ordered_wait(["a"], counted, key_by=str), AsyncGenerator[tuple[str, int], None])
    assert_type(AsyncDataStream.ordered_wait(["a"], halves), AsyncGenerator[str, None])
    AsyncDataStream.ordered_wait([1], lambda value: value, key_by="user")
    AsyncDataStream.ordered_wait([1], Length())  # type: ignore[misc]
    assert_type(AsyncDataStream.ordered_wait(pa.table({}), lambda row, ctx: ctx.key), AsyncGenerator[Any, None])
    AsyncDataStream.ordered_wait([1], 5)  # type: ignore[call-overload]
    function(on="process")  # type: ignore[arg-type]
    function(length)  # type: ignore[arg-type]
    for output in outputs:  # type: ignore[attr-defined]
        print(output)  # noqa: T201


def stream_of_plain_functions(texts: list[str], later: AsyncIterator[str]) -> None:
    assert_type(AsyncDataStream.ordered_wait(texts, pieces), AsyncGenerator[int, None])
    assert_type(AsyncDataStream.unordered_wait(later, parts), AsyncGenerator[int, None])
    assert_type(AsyncDataStream.key_ordered_wait([1], half, key_by=str), AsyncGenerator[float, None])
    assert_type(AsyncDataStream.ordered_wait(texts, Callables()), AsyncGenerator[bytes, None])
    assert_type(AsyncDataStream.ordered_wait(texts, Fetch()), AsyncGenerator[bytes, None])
    assert_type(AsyncDataStream.ordered_wait(texts, partial(length)), AsyncGenerator[int, None])
    assert_type(AsyncDataStream.ordered_wait(texts, letters), AsyncGenerator[bytes, None])
    assert_type(AsyncDataStream.unordered_wait(texts, size), AsyncGenerator[float, None])
    twice = AsyncDataStream.ordered_wait(AsyncDataStream.unordered_wait(texts, length), half)
    assert_type(twice, AsyncGenerator[float, None])
    halves("still callable")
    AsyncDataStream.unordered_wait(texts, length, timestamps=len, watermark_delay=timedelta(seconds=1))
    AsyncDataStream.unordered_wait(texts, length, timestamps="at", watermark_delay=2)
    AsyncDataStream.unordered_wait(texts, length, timestamps=5)  # type: ignore[call-overload]
    AsyncDataStream.unordered_wait(texts, length, snapshots=Path("snapshots"), job_id="lengths")
    AsyncDataStream.unordered_wait([1], length)  # type: ignore[arg-type]
    AsyncDataStream.unordered_wait([1], pieces)  # type: ignore[arg-type]


async def leave_early() -> None:
    async with aclosing(AsyncDataStream.ordered_wait(["a"], length)) as outputs:
        async for output in outputs:
            assert_type(output, int)
            break


class Listed(Sink[int]):
    async def write(self, values: list[int], epoch: int) -> None: ...


class Sequenced(Sink[int]):
    async def write(self, values: Sequence[int], epoch: int) -> None: ...


class ListedBatch(AsyncBatchFunction[str, int]):
    async def async_invoke_batch(self, values: list[str], ctxs: Sequence[InvocationContext]) -> list[list[int]]:
        return [[len(value)] for value in values]


class SequencedBatch(AsyncBatchFunction[str, int]):
    async def async_invoke_batch(self, values: Sequence[str], ctxs: Sequence[InvocationContext]) -> list[list[int]]:
        return [[len(value)] for value in values]


def listed(values: list[int], epoch: int) -> None: ...


async def sequenced(values: Sequence[int], epoch: int) -> None: ...


def texts_only(values: str, epoch: int) -> None: ...


def sinks() -> None:
    Job(["a"], [ListedBatch(), SequencedBatch()], listed, snapshots="snapshots", job_id="job")
    Job(["a"], length, sequenced, snapshots="snapshots", job_id="job", dead_letters=listed)
    Job(["a"], length, Listed(), snapshots="snapshots", job_id="job", dead_letters=Sequenced())
    Job(["a"], length, texts_only, snapshots="snapshots", job_id="job")  # type: ignore[arg-type]


async def share() -> None:
    class Client:
        async def __aenter__(self) -> Client:
            return self

        async def __aexit__(self, *_: object) -> None: ...

    async def connect() -> Client:
        return Client()

    @asynccontextmanager
    async def connected() -> AsyncIterator[Client]:
        yield Client()

    assert_type(await shared("http", connect), Client)
    assert_type(await shared(("http", 1), connected), Client)
    assert_type(await shared("sizes", lambda: {"a": 1}), dict[str, int])
    async with shared("http", connect) as client:
        assert_type(client, Client)
    shared("http", 5)  # type: ignore[call-overload]
    shared([], connect)  # type: ignore[call-overload]


def place() -> None:
    assert_type(range_of(0, 2, 8), KeyGroupRange)
    range_of("0", 2, 8)  # type: ignore[arg-type]
    ValueState(3)  # type: ignore[arg-type]
