"""A method that a user has written may return anything: the job continues, or raises an error of this project."""

from __future__ import annotations

import asyncio
import numbers
from collections.abc import Callable, Coroutine, Iterator
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from async_op import AsyncFunction, ExponentialBackoffRetry, Step
from async_op.connectors import Reached, Sink, Source, Undecodable, UnwritableValue
from keygroups import ConfigError, KeyGroupsError
from tests.async_op.job.kit import Epochs, new_job, same
from tests.doors.odd import ODD
from tests.examples import scaled


class Numbers(Source[int]):
    bounded = True

    def partitions(self) -> Any:
        return ["one"]

    def read(self, partition: Any, position: Any) -> Iterator[Any]:
        for number in range(position or 0, 3):
            yield number, None, number + 1


class Refusing(Epochs):
    on_error = "skip"

    async def write(self, values: Any, epoch: int) -> None:
        if values[0] == 0:
            raise UnwritableValue(0, "it is none", index=0)
        await super().write(values, epoch)


class AwayOnce(Epochs):
    """Fails once, so that it is asked what the error means."""

    retry = ExponentialBackoffRetry(2, 0.0, 0.0)

    async def write(self, values: Any, epoch: int) -> None:
        self.writes.append(epoch)
        if len(self.writes) == 1:
            raise ConnectionError
        await super().write(values, epoch)


class Failing(AsyncFunction[int, int]):
    async def async_invoke(self, value: int, ctx: Any) -> Any:
        raise OSError


class Retry(ExponentialBackoffRetry):
    def __init__(self) -> None:
        super().__init__(3, 0.0, 0.0)


SOURCES = [
    (Numbers, name)
    for name in ("open", "close", "restore", "partitions", "read", "full_name", "lag", "for_another_run")
]
SINKS = [(kind, name) for kind in (Epochs, Refusing) for name in ("open", "close", "write", "refused")]
SINKS += [(AwayOnce, "is_transient"), (Epochs, "for_dead_letters"), (Epochs, "for_another_run")]
POLICIES = [(Retry, name) for name in ("delay_after", "delay_after_error", "delay_after_result")]


@pytest.mark.parametrize("is_awaited", [True, False], ids=["async", "plain"])
@pytest.mark.parametrize(("kind", "name"), [*SOURCES, *SINKS, *POLICIES], ids=lambda one: getattr(one, "__name__", one))
@given(st.sampled_from(ODD))
@settings(max_examples=scaled(20), suppress_health_check=list(HealthCheck), deadline=None)
def test_an_odd_result_of_a_method_is_an_error_with_a_name(kind: type, name: str, is_awaited: bool, odd: Any) -> None:
    returned = Returned(odd, is_awaited)
    made = type("Odd", (kind,), {name: lambda *_: returned()})()
    if isinstance(made, Source):
        check_job(lambda: new_job(made, same, Epochs()))
    elif isinstance(made, Sink):
        sinks = (Epochs(), made) if name == "for_dead_letters" else (made, Epochs())
        check_job(lambda: new_job(Numbers(), same, sinks[0], dead_letters=sinks[1]))
    elif not (isinstance(odd, numbers.Real | timedelta) and odd):  # a delay is waited for, and one is 10^30 seconds
        check_job(lambda: new_job(Numbers(), Step(Failing(), retry=made, on_error="skip"), Epochs()))
    returned.close()


class Returned:
    """What a method returns. Coroutines are closed at the end, because a job does not await those that it refuses."""

    def __init__(self, odd: Any, is_awaited: bool) -> None:
        self._odd = odd
        self._is_awaited = is_awaited
        self._coroutines: list[Coroutine[Any, Any, Any]] = []

    def __call__(self) -> Any:
        if not self._is_awaited:
            return self._odd
        self._coroutines.append(self._awaited())
        return self._coroutines[-1]

    async def _awaited(self) -> Any:
        return self._odd

    def close(self) -> None:
        for one in self._coroutines:
            one.close()


@pytest.mark.parametrize("make", [lambda odd: Undecodable(b"a", odd, ValueError()), Reached], ids=["record", "reached"])
@given(st.sampled_from(ODD))
@settings(max_examples=scaled(20), suppress_health_check=list(HealthCheck), deadline=None)
def test_an_odd_position_is_stored_or_refused(make: Callable[[Any], Any], odd: Any) -> None:
    source = type("Odd", (Numbers,), {"on_error": "skip", "read": lambda *_: iter([make(odd)])})()
    check_job(lambda: new_job(source, same, Epochs()))


@pytest.mark.parametrize("kind", [Numbers, Epochs])
@pytest.mark.parametrize("name", ["on_error", "retry", "bounded", "is_decoded", "look_interval", "origin"])
@given(st.sampled_from(ODD))
@settings(max_examples=scaled(20), suppress_health_check=list(HealthCheck), deadline=None)
def test_an_odd_attribute_is_an_error_with_a_name(kind: type, name: str, odd: Any) -> None:
    made = type("Odd", (kind,), {name: odd})()
    source, sink = (made, Epochs()) if isinstance(made, Source) else (Numbers(), made)
    if not (isinstance(made, Source) and odd is False):  # then it is read for ever
        check_job(lambda: new_job(source, same, sink))


def check_job(make: Callable[[], Any]) -> None:
    async def to_its_end() -> None:
        job = make()
        async with asyncio.timeout(120):
            running = asyncio.create_task(job.run())
            while not running.done():
                job.progress()
                await asyncio.sleep(0)
            await running
        job.progress()

    try:
        asyncio.run(to_its_end())
    except KeyGroupsError as error:
        assert str(error)
    except ConnectionError:
        pass  # `is_transient` has returned False


def test_an_on_error_that_is_misspelt_leaves_out_nothing_in_silence() -> None:
    for made in (type("Mine", (kind,), {"on_error": "dead-letter"})() for kind in (Numbers, Epochs)):
        source, sink = (made, Epochs()) if isinstance(made, Source) else (Numbers(), made)
        with pytest.raises(ConfigError, match="on_error='dead-letter': use one of fail, skip, dead_letter"):
            new_job(source, same, sink)


@pytest.mark.parametrize("name", ["open", "write", "close"])
async def test_a_plain_method_of_a_sink_is_named(name: str) -> None:
    sink = type("Mine", (Epochs,), {name: lambda *_: None})()
    with pytest.raises(ConfigError, match=rf"its {name}\(\) gave a value of type NoneType; write it with `async def`"):
        await new_job(Numbers(), same, sink).run()


@pytest.mark.parametrize("name", ["delay_after_error", "delay_after_result"])
async def test_no_policy_retries_more_often_than_its_most_attempts(name: str) -> None:
    called: list[int] = []

    async def call(value: int) -> int:
        called.append(value)
        if name == "delay_after_error":
            raise OSError
        return value

    policy = type("Mine", (Retry,), {name: lambda *_: 0.0})()
    await new_job(Numbers(), Step(call, retry=policy, on_error="skip"), Epochs()).run()
    assert sorted(called) == sorted([*range(3)] * 3)


async def keep(values: Any, epoch: int) -> None:
    pass


SINK = Epochs()


@pytest.mark.parametrize(
    ("sink", "letters"), [(keep, keep), (SINK, SINK), (SINK.write, SINK.write)], ids=["function", "sink", "method"]
)
def test_outputs_and_dead_letters_do_not_replace_each_other_in_one_sink(sink: Any, letters: Any) -> None:
    with pytest.raises(ConfigError, match="would replace them; pass another sink"):
        new_job(Numbers(), same, sink, dead_letters=letters)
