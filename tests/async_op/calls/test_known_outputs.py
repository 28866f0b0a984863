"""What a function knows needs no call: it waits for no limit, and keeps its place, its key's turn and its state."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import pytest

from async_op import (
    AsyncBatchFunction,
    AsyncFunction,
    AsyncWaitOperator,
    DeadLetter,
    ElementFailed,
    FixedDelayRetry,
    InvalidFunctionResult,
    InvocationContext,
    RateLimit,
    Resilience,
)
from keygroups import ConfigError, ValueState
from tests.async_op.batches import Doubles
from tests.async_op.calls.blocking import Blocking
from tests.async_op.kit import BOTH, Service, commit, first, opened

ANSWER = ValueState("answer")


class Remembers(Service):
    """Asks the service once for each key."""

    states = (ANSWER,)

    def known_outputs(self, value: Any, ctx: InvocationContext) -> Iterable[Any] | None:
        answer = ctx.state(ANSWER).value()
        return None if answer is None else [answer]

    async def async_invoke(self, value: Any, ctx: InvocationContext) -> Iterable[Any]:
        outputs = await super().async_invoke(value, ctx)
        ctx.state(ANSWER).update(value)
        return outputs


@BOTH
async def test_what_is_known_needs_no_call_and_keeps_its_place(mode: str) -> None:
    function = Remembers()
    async with opened(function, key_by=first, mode=mode) as bench:
        await bench.feed("a1", "a2", "a3", "b1", "a4")
        await function.answer("a1")
        before = list(bench.shown)
        await function.answer("b1")

    assert before == (["a1", "a1", "a1"] if mode == "ordered" else ["a1", "a1", "a1", "a1"])
    assert sorted(bench.shown) == ["a1", "a1", "a1", "a1", "b1"]
    assert function.called == ["a1", "b1"]


async def test_what_is_known_waits_for_no_limit() -> None:
    function = Remembers()
    once_an_hour = Resilience(rate_limit=RateLimit(1 / 3600, burst=1))
    async with opened(function, key_by=first, resilience=once_an_hour) as bench:
        await bench.feed("a1")
        await function.answer("a1")
        await bench.feed(*(f"a{number}" for number in range(50)))

        assert len(bench.shown) == 51
        assert bench.resilience.waiting == 0
        assert bench.operator.statistics().calls == 1


async def test_what_was_known_before_a_restart_is_known_after_it_once_its_state_is_in_memory() -> None:
    function = Remembers()
    async with opened(function, key_by=first) as bench:
        await bench.feed("a1", "b1")
        await function.answer("a1", "b1")
        snapshot = await commit(await bench.operator.snapshot())

    function = Remembers()
    async with opened(function, key_by=first, restore=snapshot.restore(0)) as bench:
        await bench.feed("a2", "b2", "c2")

        assert sorted(bench.shown) == ["a1", "b1"]
        assert function.called == ["c2"]


async def test_what_it_writes_counts_only_with_outputs() -> None:
    class Counts(Service):
        states = (ANSWER,)

        def known_outputs(self, value: Any, ctx: InvocationContext) -> Any:
            asked = ctx.state(ANSWER).value() or 0
            ctx.state(ANSWER).update(asked + 1)
            return None if value == "a-unknown" else [asked]

    function = Counts()
    async with opened(function, key_by=first) as bench:
        await bench.feed("a-known", "a-unknown")
        await function.answer("a-unknown")
        await bench.feed("a-known")

    assert bench.shown == [0, "a-unknown", 1]


async def test_it_is_asked_before_each_attempt() -> None:
    class Learns(Service):
        known: tuple[Any, ...] | None = None

        def known_outputs(self, value: Any, ctx: InvocationContext) -> Any:
            return self.known

    function = Learns()
    async with opened(function, retry=FixedDelayRetry(3, 10)) as bench:
        await bench.feed("a")
        await function.fail("a", OSError())
        function.known = ("known",)
        await bench.clock.advance(11)

    assert bench.shown == ["known"]
    assert function.called == ["a"]


@pytest.mark.parametrize("wrong", [ValueError("it fails"), "no list"])
async def test_its_failure_is_that_of_its_element(wrong: Any) -> None:
    class Fails(Service):
        def known_outputs(self, value: Any, ctx: InvocationContext) -> Any:
            if isinstance(wrong, Exception):
                raise wrong
            return wrong

    with pytest.raises(ElementFailed) as failed:
        async with opened(Fails()) as bench:
            await bench.feed("a")
            await bench.operator.finish()

    assert isinstance(failed.value.__cause__, ValueError if isinstance(wrong, Exception) else InvalidFunctionResult)

    function = Fails()
    async with opened(function, on_error="skip", key_by=first) as bench:
        await bench.feed("a", "a")
        assert bench.in_flight == 0
    assert function.called == []


@pytest.mark.parametrize("failed_before", [0, 2])
async def test_the_attempt_that_its_failure_prevents_does_not_count(failed_before: int) -> None:
    class Fails(Service):
        def known_outputs(self, value: Any, ctx: InvocationContext) -> Any:
            if len(self.calls) == failed_before:
                raise ValueError

    letters: list[DeadLetter] = []
    function = Fails()
    dead_letter: dict[str, Any] = {"on_error": "dead_letter", "dead_letters": letters.append}
    async with opened(function, retry=FixedDelayRetry(9, 1), **dead_letter) as bench:
        await bench.feed("a")
        for _ in range(failed_before):
            await function.fail("a", OSError())
            await bench.clock.advance(1)

    assert [letter.attempts for letter in letters] == [failed_before]


@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, GeneratorExit])
async def test_what_is_no_exception_ends_the_operator_with_the_element_named(raised: type[BaseException]) -> None:
    class Ends(Service):
        def known_outputs(self, value: Any, ctx: InvocationContext) -> Any:
            raise raised

    async with opened(Ends(), key_by=first, on_error="skip") as bench:
        await bench.operator.process("a1")
        with pytest.raises(ElementFailed) as failed:
            await bench.operator.finish()

    assert type(failed.value.__cause__) is raised
    assert (failed.value.element, failed.value.key, failed.value.attempt) == ("'a1'", "'a'", 1)


async def test_it_is_not_asked_about_timers_and_expired_elements() -> None:
    asked = []

    class Times(Service):
        states = (ANSWER,)

        def known_outputs(self, value: Any, ctx: InvocationContext) -> Any:
            asked.append(value)
            return None

        async def on_timer(self, timestamp: int, ctx: InvocationContext) -> Any:
            return ["timer"]

        async def async_invoke(self, value: Any, ctx: InvocationContext) -> Any:
            ctx.timers.register(ctx.timers.processing_time + 1000)
            return await super().async_invoke(value, ctx)

    function = Times(fallback=lambda value: ["late"])
    async with opened(function, key_by=first, timeout=5) as bench:
        await bench.feed("a1")
        await function.answer("a1")
        await bench.feed("b1", "b2")
        await bench.clock.advance(6)

    assert sorted(bench.shown) == ["a1", "late", "late", "timer"]
    assert asked == ["a1", "b1"]  # b2 had no turn before it expired


async def test_what_is_known_enters_no_batch() -> None:
    class KnowsOdd(Doubles):
        def known_outputs(self, value: Any, ctx: InvocationContext) -> Any:
            return ["odd"] if value % 2 else None

    function = KnowsOdd()
    async with opened(function, mode="ordered") as bench:
        await bench.feed(1, 2, 3, 4, 5, 6)
        await bench.operator.finish()

    assert bench.shown == ["odd", 4, "odd", 8, "odd", 12]
    assert function.batches == [[2, 4], [6]]


async def test_a_blocking_function_is_asked_on_the_loop() -> None:
    class Knows(Blocking):
        def known_outputs(self, value: Any, ctx: InvocationContext) -> Any:
            asyncio.get_running_loop()
            return ["known"] if value == "a" else None

    function = Knows()
    async with opened(function, mode="ordered") as bench:
        function.let_go("b")
        await bench.feed("a", "b")
        await bench.operator.finish()

    assert bench.shown == ["known", "b"]
    assert function.started == ["b"]


def test_it_is_neither_a_coroutine_nor_for_record_batches() -> None:
    class Awaits(AsyncFunction):
        async def known_outputs(self, value: Any, ctx: InvocationContext) -> Any:
            return None

        async def async_invoke(self, value: Any, ctx: InvocationContext) -> Any:
            return []

    class OfBatches(AsyncBatchFunction):
        arrow = True

        def known_outputs(self, value: Any, ctx: InvocationContext) -> Any:
            return None

        async def async_invoke_batch(self, values: Any, ctxs: Any) -> Any:
            return values

    with pytest.raises(ConfigError, match=r"known_outputs.*`def`"):
        AsyncWaitOperator(Awaits(), print)
    with pytest.raises(ConfigError, match="cannot define known_outputs"):
        AsyncWaitOperator(OfBatches(), print)
