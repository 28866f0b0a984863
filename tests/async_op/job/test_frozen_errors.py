"""Errors that are frozen dataclasses, as the clients of some services raise: wherever they come from, they are told."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from async_op import AsyncDataStream, AsyncFunction, FixedDelayRetry, RestartPolicy
from async_op.connectors import ConnectorUnavailable, SinkUnavailable, Source
from tests.async_op.job.kit import Epochs, new_job, same


@dataclass(frozen=True)
class Refused(Exception):
    status: int


@dataclass(frozen=True, slots=True)
class RefusedWithSlots(Refused):
    pass


KINDS = pytest.mark.parametrize("kind", [Refused, RefusedWithSlots])


class Failing:
    """Fails so many times in one of its methods, with an error that `retry_on` names."""

    def __init__(self, method: str, kind: type[Refused], times: int) -> None:
        super().__init__()
        self.method, self.kind, self.left = method, kind, times
        self.retry = FixedDelayRetry(3, 0.0, retry_on=kind)

    def at(self, method: str) -> None:
        if method == self.method and self.left:
            self.left -= 1
            raise self.kind(503)


class FailingSink(Failing, Epochs):
    async def open(self) -> None:
        self.at("open")

    async def write(self, values: Any, epoch: int) -> None:
        self.at("write")
        await super().write(values, epoch)

    async def close(self) -> None:
        self.at("close")


class FailingSource(Failing, Source[int]):
    bounded = True

    async def open(self) -> None:
        self.at("open")

    def partitions(self) -> list[int]:
        self.at("partitions")
        return [0]

    def read(self, partition: Any, position: Any) -> Iterator[tuple[int, None, int]]:
        for number in range(position or 0, 4):
            if number == 2:
                self.at("read")
            yield number, None, number + 1

    async def close(self) -> None:
        self.at("close")


class FailingAsyncSource(FailingSource):
    async def read(self, partition: Any, position: Any) -> AsyncIterator[tuple[int, None, int]]:  # type: ignore[override]
        for piece in super().read(partition, position):
            yield piece


class FailingFunction(Failing, AsyncFunction[Any, Any]):
    async def open(self, runtime: Any) -> None:
        self.at("open")

    async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
        return [value]

    async def close(self) -> None:
        self.at("close")


@KINDS
@pytest.mark.parametrize("method", ["open", "write"])
async def test_a_sink_is_retried_after_one_that_its_policy_names(kind: type[Refused], method: str) -> None:
    await new_job([1, 2], same, sink := FailingSink(method, kind, 2)).run()
    assert sorted(sink.values) == [1, 2]
    with pytest.raises(SinkUnavailable, match="503"):
        await new_job([1, 2], same, FailingSink(method, kind, 3)).run()


@KINDS
@pytest.mark.parametrize("source", [FailingSource, FailingAsyncSource])
@pytest.mark.parametrize("method", ["open", "partitions", "read"])
async def test_a_source_is_retried_after_one_that_its_policy_names(
    kind: type[Refused], source: type[FailingSource], method: str
) -> None:
    await new_job(source(method, kind, 2), same, sink := Epochs()).run()
    assert sorted(sink.values) == [0, 1, 2, 3]
    with pytest.raises(ConnectorUnavailable, match="503"):
        await new_job(source(method, kind, 3), same, Epochs()).run()


@KINDS
async def test_one_of_close_is_raised(kind: type[Refused]) -> None:
    with pytest.raises(kind):
        await new_job([1], same, FailingSink("close", kind, 1)).run()
    with pytest.raises(kind):
        await new_job(FailingSource("close", kind, 1), same, Epochs()).run()


@KINDS
@pytest.mark.parametrize("method", ["open", "close"])
async def test_one_of_a_function_is_raised_with_its_note(kind: type[Refused], method: str) -> None:
    with pytest.raises(kind) as raised:
        await new_job([1], FailingFunction(method, kind, 1), Epochs()).run()
    assert raised.value.__notes__ == [f"{method}() of FailingFunction raised this"]
    with pytest.raises(kind):
        _ = [value async for value in AsyncDataStream.ordered_wait([1], FailingFunction(method, kind, 1))]


@KINDS
async def test_one_that_is_left_after_all_restarts_is_raised(kind: type[Refused]) -> None:
    policy = RestartPolicy(max_restarts=1, initial_delay=0.0, max_delay=0.0, reset_after=600.0)
    job = new_job([1], FailingFunction("open", kind, 2), Epochs(), restart=policy)
    with pytest.raises(kind):
        await job.run()
    assert job.progress().restarts == 1


@KINDS
async def test_one_of_the_input_of_a_stream_is_raised(kind: type[Refused]) -> None:
    def numbers() -> Iterator[int]:
        yield 1
        raise kind(503)

    async def async_numbers() -> AsyncIterator[int]:
        yield 1
        raise kind(503)

    for stream in (numbers(), async_numbers()):
        with pytest.raises(kind):
            _ = [value async for value in AsyncDataStream.ordered_wait(stream, same)]
