"""The harness: virtual time, all subtasks of a step, snapshots and what a test can see."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from async_op import (
    AsyncBatchFunction,
    AsyncFunction,
    BlockingFunction,
    ElementFailed,
    ExponentialBackoffRetry,
    Record,
    Step,
    Watermark,
    function,
)
from async_op.testing import HarnessNotEntered, InsideEventLoop, OperatorHarness, Stalled
from keygroups import AggregatingState, ListState, MapState, ReducingState, ValueState
from tests.examples import scaled

VALUE, LIST, MAP = ValueState("value", default=0), ListState("list"), MapState("map")
SUM = ReducingState("sum", lambda one, other: one + other)
MEAN = AggregatingState("mean", lambda: [0, 0], lambda kept, one: [kept[0] + one, kept[1] + 1], lambda kept: kept)
STATES = (VALUE, LIST, MAP, SUM, MEAN)


class Sums(AsyncFunction[Any, Any]):
    """Adds numbers up by key, after as many seconds as the number says."""

    states = STATES

    async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
        key, number = value
        await asyncio.sleep(number)
        ctx.state(VALUE).update(ctx.state(VALUE).value() + number)
        ctx.state(LIST).add(number)
        ctx.state(MAP).put(number, ctx.idempotency_key)
        ctx.state(SUM).add(number)
        ctx.state(MEAN).add(number)
        return [(key, ctx.state(VALUE).value())]


def first(value: Any) -> Any:
    return value[0]


def test_time_passes_only_when_it_is_told_to() -> None:
    with OperatorHarness(Step(Sums(), key_by=first)) as harness:
        harness.process(("a", 3))
        assert (harness.seconds, harness.outputs) == (0.0, [])
        harness.advance(2.5)
        assert [element.value for element in harness.in_flight] == [("a", 3)]
        harness.advance(0.5)
        assert (harness.seconds, harness.outputs, harness.in_flight) == (3.0, [("a", 3)], [])


def test_a_full_operator_lets_time_pass_until_there_is_room() -> None:
    with OperatorHarness(Step(Sums(), key_by=first, capacity=1)) as harness:
        harness.process_all([("a", 3), ("b", 1)])
        assert (harness.seconds, harness.outputs) == (3.0, [("a", 3)])


def test_the_state_of_a_key_is_seen_in_each_kind() -> None:
    with OperatorHarness(Step(Sums(), key_by=first), parallelism=3) as harness:
        harness.process_all([("a", 1), ("a", 2), ("b", 5)])
        harness.advance(3)
        seen = [harness.state(state, "a") for state in STATES]
        assert seen == [3, [1, 2], {1: "element-0", 2: "element-1"}, 3, [3, 2]]
        assert harness.state(VALUE, "b") == 0  # in flight, so none of its writes count


@pytest.mark.parametrize("kind", ["blocking", "batch", "generator"])
def test_every_kind_of_function_runs(kind: str) -> None:
    class Blocking(BlockingFunction[Any, Any]):
        states = (VALUE,)

        def invoke(self, value: Any, ctx: Any) -> list[Any]:
            ctx.state(VALUE).update(value)
            return [ctx.state(VALUE).value() + 1]

    class Batch(AsyncBatchFunction[Any, Any]):
        async def async_invoke_batch(self, values: Any, ctxs: Any) -> list[Any]:
            return [[value + 1] for value in values]

    def generator(value: Any) -> Any:
        yield value + 1

    made: Any = {"blocking": Blocking(), "batch": Batch(), "generator": generator}[kind]
    with OperatorHarness(Step(made, key_by=abs)) as harness:
        harness.process_all([1, 2, 3])
        harness.finish()
        assert sorted(harness.outputs) == [2, 3, 4]


def test_timers_of_both_kinds_fire() -> None:
    class Alarms(AsyncFunction[Any, Any]):
        async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
            ctx.timers.register(value, event_time=ctx.timestamp is not None)
            return []

        async def on_timer(self, timestamp: int, ctx: Any) -> list[Any]:
            return [timestamp]

    with OperatorHarness(Step(Alarms(), key_by=lambda value: "a"), start=50_000) as harness:
        harness.process(60_000)
        harness.process(7, timestamp=5)
        harness.watermark(6)
        harness.advance(9)
        assert harness.outputs == []
        harness.watermark(7)
        assert harness.emitted == [Watermark(6), Record(7, 7), Watermark(7)]
        harness.advance(1)
        assert (harness.outputs, harness.wall_time) == ([7, 60_000], 60_000)


@given(
    st.lists(st.tuples(st.sampled_from("abcde"), st.integers(1, 9)), max_size=20),
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 4)), max_size=3),
)
@settings(max_examples=scaled(20))
def test_crashes_and_rescales_change_no_outcome(values: list[Any], restores: list[tuple[int, int]]) -> None:
    with OperatorHarness(Step(Sums(), key_by=first), parallelism=2, max_parallelism=8) as harness:
        harness.process_all(values)
        for seconds, parallelism in restores:
            harness.advance(seconds)
            snapshot = harness.snapshot()
            harness.advance(1)  # lost with the crash, and with what has left meanwhile
            harness.restore(snapshot, parallelism)
        harness.finish()
        for key in "abcde":
            assert harness.state(LIST, key) == [number for name, number in values if name == key]


def test_a_run_is_the_same_again() -> None:
    def seen() -> list[Any]:
        @function(states=(VALUE,))
        async def flaky(value: Any, ctx: Any) -> Any:
            await asyncio.sleep(1 / (1 + value))
            if ctx.attempt < 3:
                raise OSError
            return value, ctx.idempotency_key, asyncio.get_running_loop().time()

        retry = ExponentialBackoffRetry(5, 1.0, 60.0, jitter=False)
        with OperatorHarness(Step(flaky, key_by=abs, retry=retry), parallelism=2) as harness:
            harness.process_all(range(9))
            harness.finish()
            return harness.emitted

    assert seen() == seen() != []


def test_what_fails_an_operator_is_raised() -> None:
    async def fails(value: Any) -> Any:
        await asyncio.sleep(1)
        raise ValueError(value)

    with OperatorHarness(fails) as harness:
        harness.process(1)
        with pytest.raises(ElementFailed):
            harness.advance(1)


def test_what_never_ends_is_named_and_leaves_nothing_behind() -> None:
    async def never(value: Any) -> Any:
        await asyncio.Event().wait()

    with OperatorHarness(never) as harness:
        harness.process(1)
        harness.advance(60)
        with pytest.raises(Stalled, match="no timer is set, 60 s after the start"):
            harness.finish()


def test_an_open_that_fails_closes_what_was_opened() -> None:
    closed = []

    class Half(AsyncFunction[Any, Any]):
        async def open(self, runtime: Any) -> None:
            if runtime.subtask_index == 1:
                raise OSError("no client")

        async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
            return []

        async def close(self) -> None:
            closed.append(1)

    with pytest.raises(OSError, match="no client"), OperatorHarness(Half(), parallelism=2):
        pass
    assert len(closed) == 2


def test_an_open_that_fails_is_raised_even_if_what_was_opened_does_not_close() -> None:
    class Half(AsyncFunction[Any, Any]):
        async def open(self, runtime: Any) -> None:
            if runtime.subtask_index == 1:
                raise OSError("no client")

        async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
            return []

        async def close(self) -> None:
            raise AttributeError("client")

    with pytest.raises(OSError, match="no client"), OperatorHarness(Half(), parallelism=2):
        pass


def test_inside_of_an_event_loop_it_says_what_to_do() -> None:
    async def main() -> None:
        with pytest.raises(InsideEventLoop), OperatorHarness(lambda value: value):
            pass

    asyncio.run(main())


def test_each_subtask_has_a_function_of_its_own_which_hears_of_snapshots() -> None:
    heard = []

    class Places(AsyncFunction[Any, Any]):
        async def open(self, runtime: Any) -> None:
            self.subtask = runtime.subtask_index

        async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
            return [self.subtask]

        async def snapshot_complete(self, version: int) -> None:
            heard.append((self.subtask, version))

    with OperatorHarness(Places(), parallelism=3) as harness:
        harness.process_all(["a", "b", "c"])
        harness.snapshot()
        assert harness.outputs == [0, 1, 2]
        assert heard == [(0, 1), (1, 1), (2, 1)]


@pytest.mark.parametrize(
    "use",
    [
        lambda harness: harness.process(1),
        lambda harness: harness.watermark(1),
        lambda harness: harness.advance(1),
        lambda harness: harness.finish(),
        lambda harness: harness.snapshot(),
        lambda harness: harness.in_flight,
        lambda harness: harness.seconds,
    ],
    ids=["process", "watermark", "advance", "finish", "snapshot", "in_flight", "seconds"],
)
def test_a_harness_outside_of_its_block_says_so(use: Callable[[OperatorHarness], object]) -> None:
    async def same(value: Any) -> Any:
        return value

    harness = OperatorHarness(same)
    with pytest.raises(HarnessNotEntered, match="with OperatorHarness"):
        use(harness)
    with harness:
        harness.process(1)
    with pytest.raises(HarnessNotEntered):
        use(harness)


def test_a_test_that_stalls_leaves_no_error_unheard(caplog: pytest.LogCaptureFixture) -> None:
    async def never(value: Any) -> Any:
        await asyncio.Event().wait()

    with pytest.raises(Stalled), OperatorHarness(never) as harness:
        harness.process(1)
        harness.finish()
    gc.collect()
    assert caplog.records == []
