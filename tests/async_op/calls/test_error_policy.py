"""What becomes of an element that fails for good: it fails the operator, is dropped, or is put aside."""

from __future__ import annotations

from typing import Any

import pytest

from async_op import (
    AsyncTimeoutError,
    Cache,
    CircuitBreaker,
    DeadLetter,
    ElementFailed,
    FixedDelayRetry,
    InvalidFunctionResult,
    Record,
    Resilience,
    SingleFlight,
    Watermark,
)
from keygroups import ConfigError, ValueState
from tests.async_op.kit import BOTH, Bench, Instant, Service, commit, opened

COUNT = ValueState("count", default=0)


@BOTH
async def test_a_skipped_element_leaves_nothing_and_holds_up_nothing(mode: str) -> None:
    service = Service()
    async with opened(service, mode=mode, on_error="skip") as bench:
        await bench.feed("bad", Watermark(1), "good")
        await service.answer("good")
        await service.fail("bad", ValueError())

        assert bench.shown == [Watermark(1), "good"]
        statistics = bench.operator.statistics()
        assert (statistics.skipped, statistics.in_flight) == (1, 0)
        await bench.operator.finish()


async def test_the_log_tells_of_the_first_the_tenth_and_the_hundredth_that_was_skipped(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def refuse(value: int) -> list[int]:
        raise ValueError("of no use")

    async with opened(Instant(refuse), on_error="skip") as bench:
        for number in range(120):
            await bench.operator.process(number, None, f"row-{number}")
        await bench.operator.finish()

    told = [record.getMessage() for record in caplog.records if record.name == "async_op.calls"]
    skipped = ["1 element skipped so far", "10 elements skipped so far", "100 elements skipped so far"]
    assert [message.partition(",")[0] for message in told] == skipped
    assert "(id row-99) failed: ValueError: of no use" in told[-1]


@BOTH
async def test_a_dead_letter_tells_what_failed_and_how(mode: str) -> None:
    letters: list[DeadLetter] = []
    service = Service()
    options: dict[str, Any] = {"on_error": "dead_letter", "dead_letters": letters.append, "key_by": lambda v: v["id"]}
    async with opened(service, mode=mode, retry=FixedDelayRetry(2, 0), **options) as bench:
        await bench.operator.process({"id": 7}, 42, "row-7")
        await bench.feed(Record({"id": 8}, 43))
        error = ValueError("second time")
        await service.fail({"id": 7}, ValueError("first time"))
        await bench.clock.advance(0)
        await service.fail({"id": 7}, error)
        await service.answer({"id": 8})

        assert letters == [
            DeadLetter(value={"id": 7}, timestamp=42, key=7, idempotency_key="row-7", attempts=2, error=error)
        ]
        assert bench.shown == [{"id": 8}]
        assert bench.operator.statistics().dead_letters == 1
        await bench.operator.finish()


@pytest.mark.parametrize("on_error", ["skip", "dead_letter"])
async def test_the_policy_also_covers_timeouts_and_bad_results(on_error: str) -> None:
    letters: list[DeadLetter] = []
    options: dict[str, Any] = {"dead_letters": letters.append} if on_error == "dead_letter" else {}
    async with opened(Service(), timeout=10, on_error=on_error, **options) as bench:
        await bench.feed("slow")
        await bench.clock.advance(10)
        assert (bench.shown, bench.in_flight) == ([], 0)
    async with opened(Instant(lambda _: None), on_error=on_error, **options) as bench:
        await bench.feed("none")
        assert (bench.shown, bench.in_flight) == ([], 0)

    kinds = [type(letter.error) for letter in letters]
    assert kinds == ([AsyncTimeoutError, InvalidFunctionResult] if on_error == "dead_letter" else [])


async def test_a_dead_letter_counts_the_calls_that_were_made() -> None:
    """None for an element whose time was over before its turn came, one for one that waited to be tried again."""
    letters: list[DeadLetter] = []

    class Stateful(Service):
        states = (COUNT,)

    service = Stateful()
    options: dict[str, Any] = {"on_error": "dead_letter", "dead_letters": letters.append, "key_by": lambda v: v[0]}
    async with opened(service, timeout=10, retry=FixedDelayRetry(9, 60), **options) as bench:
        await bench.feed("a1", "a2", "b1")
        await service.fail("b1", ValueError())
        await bench.clock.advance(10)

        assert {letter.value: letter.attempts for letter in letters} == {"a1": 1, "a2": 0, "b1": 1}


async def test_what_a_dropped_element_has_written_is_not_applied() -> None:
    class Counting(Service):
        states = (COUNT,)

        async def async_invoke(self, value: Any, ctx: Any) -> Any:
            ctx.state(COUNT).update(ctx.state(COUNT).value() + 1)
            await super().async_invoke(value, ctx)
            return [ctx.state(COUNT).value()]

    service = Counting()
    async with opened(service, on_error="skip", key_by=lambda _: "key") as bench:
        await bench.feed(1, 2, 3)
        await service.answer(1)
        await service.fail(2, ValueError())
        await service.answer(3)

        assert bench.shown == [1, 2]


async def test_a_dropped_element_is_not_called_again_after_a_restart() -> None:
    service = Service()
    async with opened(service, mode="ordered", on_error="skip") as bench:
        await bench.feed("head", "bad")
        await service.fail("bad", ValueError())
        snapshot = await commit(await bench.operator.snapshot())

    service = Service()
    async with opened(service, mode="ordered", on_error="skip", restore=snapshot.restore(0)) as bench:
        assert service.called == ["head"]
        await service.answer("head")
        assert (bench.shown, bench.in_flight) == (["head"], 0)


async def test_an_error_of_the_collector_fails_the_operator() -> None:
    """A dead letter that nobody took would be a lost element."""

    def refuse(_: DeadLetter) -> None:
        raise OSError("disk full")

    service = Service()
    async with opened(service, on_error="dead_letter", dead_letters=refuse) as bench:
        await bench.feed("bad")
        await service.fail("bad", ValueError())

        with pytest.raises(OSError, match="disk full"):
            await bench.operator.finish()


async def test_to_fail_is_the_default() -> None:
    service = Service()
    async with opened(service) as bench:
        await bench.feed("bad")
        await service.fail("bad", ValueError())

        with pytest.raises(ElementFailed):
            await bench.operator.finish()


@pytest.mark.parametrize(
    "options",
    [
        {"on_error": "ignore"},
        {"on_error": "dead_letter"},
        {"on_error": "skip", "dead_letters": print},
        {"dead_letters": print},
    ],
)
def test_a_policy_that_can_never_work_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="on_error|dead_letters"):
        Bench(Service(), **options)


async def later(_: Any) -> bool:
    raise AssertionError("it is never awaited")


HIDDEN: dict[str, dict[str, Any]] = {
    "dead_letters": {"on_error": "dead_letter", "dead_letters": lambda letter: later(letter)},
    "retry_on": {"retry": FixedDelayRetry(2, 0, retry_on=lambda error: later(error))},  # type: ignore[arg-type]
    "retry_if_result": {"retry": FixedDelayRetry(2, 0, retry_if_result=lambda outputs: later(outputs))},  # type: ignore[arg-type]
    "failure_on": {
        "resilience": Resilience(circuit_breaker=CircuitBreaker(), failure_on=lambda error: later(error))  # type: ignore[arg-type]
    },
    "cache": {"resilience": Resilience(cache=Cache(key=lambda value: later(value), max_entries=5))},
    "single_flight": {"resilience": Resilience(single_flight=SingleFlight(lambda value: later(value)))},
}


@pytest.mark.parametrize("name", HIDDEN)
async def test_what_is_never_awaited_is_not_taken_for_done_or_for_true(name: str) -> None:
    def call(value: int) -> list[int]:
        if name == "retry_if_result":
            return [value]
        raise ValueError("no")

    argument = "key" if name in ("cache", "single_flight") else name
    async with opened(Instant(call), **HIDDEN[name]) as bench:
        await bench.feed(1)
        with pytest.raises((ConfigError, ElementFailed), match=f"{argument}='<coroutine>': it returns something"):
            await bench.operator.finish()
