"""The cache: what is kept, for how long, and how it leaves without a call."""

from __future__ import annotations

import asyncio
import gc
import weakref
from typing import Any

import pytest

from async_op import AsyncFunction, Cache, ElementFailed, FixedDelayRetry, RateLimit, Resilience
from tests.async_op.batches import Doubles
from tests.async_op.kit import BOTH, Instant, Service, first, opened, settle


def cached(**options: Any) -> Resilience:
    return Resilience(cache=Cache(**{"key": first, "max_entries": 2, **options}))


@BOTH
async def test_what_is_cached_is_not_called_for_and_keeps_its_place(mode: str) -> None:
    service = Service()
    async with opened(service, resilience=cached(), mode=mode) as bench:
        await bench.feed("a1")
        await service.answer("a1")
        await bench.feed("b1", "a2")
        before = list(bench.shown)
        await service.answer("b1")
        statistics = bench.operator.statistics()

    assert before == (["a1"] if mode == "ordered" else ["a1", "a1"])
    assert sorted(bench.shown) == ["a1", "a1", "b1"]
    assert service.called == ["a1", "b1"]
    counted = bench.resilience
    assert statistics.calls == 2
    assert (counted.cache_hits, counted.cache_misses, counted.cache_entries) == (1, 2, 2)


async def test_what_is_cached_completes_at_once_in_a_snapshot() -> None:
    service = Service()
    async with opened(service, resilience=cached(), mode="ordered") as bench:
        await bench.feed("a1")
        await service.answer("a1")
        await bench.feed("b1", "a2")
        cut = await bench.operator.snapshot()

    assert [(element.value, element.outputs) for element in cut.in_flight] == [("b1", None), ("a2", ("a1",))]


async def test_entries_expire_and_the_one_asked_for_longest_ago_goes_first() -> None:
    function = Instant()
    async with opened(function, resilience=cached(ttl_seconds=10)) as bench:
        for value in ("a1", "b1", "a2", "c1", "a3", "b2"):
            await bench.feed(value)
        assert function.called == ["a1", "b1", "c1", "b2"]
        await bench.clock.advance(11)
        await bench.feed("b3")

    assert function.called == ["a1", "b1", "c1", "b2", "b3"]


@pytest.mark.parametrize(("empty", "called"), [(False, ["a1", "a2"]), (True, ["a1"])])
async def test_no_output_is_kept_only_if_asked_for(empty: bool, called: list[str]) -> None:
    function = Instant(lambda _: [])
    async with opened(function, resilience=cached(empty=empty)) as bench:
        await bench.feed("a1")
        await bench.feed("a2")

    assert function.called == called


async def test_errors_and_fallbacks_are_not_kept() -> None:
    service = Service(fallback=lambda value: [f"late {value}"])
    async with opened(service, resilience=cached(), timeout=10, on_error="skip") as bench:
        await bench.feed("a1")
        await service.fail("a1", ValueError())
        await bench.feed("b1")
        await bench.clock.advance(10)
        await bench.feed("a2", "b2")

    assert service.called == ["a1", "b1", "a2", "b2"]


async def test_a_function_that_changes_its_value_does_not_change_its_key() -> None:
    def pop(value: list[str]) -> list[str]:
        return [value.pop()]

    function = Instant(pop)
    async with opened(function, resilience=cached(key=len)) as bench:
        await bench.feed(["one"])
        await bench.feed(["two"])

    assert bench.shown == ["one", "one"]
    assert len(function.called) == 1


async def test_many_of_one_key_that_are_cached_leave_in_their_order() -> None:
    service = Service()
    cache = Resilience(cache=Cache(key=lambda _: "same", max_entries=1))
    async with opened(service, resilience=cache, mode="key_ordered", key_by=lambda _: "key", capacity=2000) as bench:
        await bench.feed(*range(1500))
        await service.answer(0)

    assert bench.shown == [0] * 1500
    assert service.called == [0]


async def test_a_full_operator_takes_in_all_that_is_cached() -> None:
    service = Service()
    async with opened(service, resilience=cached(), capacity=2) as bench:
        await bench.feed("a1")
        await service.answer("a1")
        feeding = asyncio.create_task(
            bench.operator.process_all((value, None, None) for value in ["b1", "c1", *["a2"] * 5000, "d1"])
        )
        await settle()
        await service.answer("b1")
        while service.running != ["c1", "d1"]:  # as many turns of the loop as it takes
            await asyncio.sleep(0)
        await service.answer("c1", "d1")
        await feeding

    assert len(bench.shown) == 5004
    assert service.called == ["a1", "b1", "c1", "d1"]


async def test_the_cache_of_a_batch_function_works_per_element() -> None:
    function = Doubles()
    async with opened(function, resilience=Resilience(cache=Cache(key=abs, max_entries=9)), mode="ordered") as bench:
        await bench.feed(1, 2)
        await bench.feed(2, 3, 1, 4)
        await bench.operator.finish()

    assert function.batches == [[1, 2], [3, 4]]
    assert bench.shown == [2, 4, 4, 6, 2, 8]


async def test_a_key_that_cannot_be_made_fails_its_element_before_any_call() -> None:
    function = Instant()
    async with opened(function, resilience=cached()) as bench:
        await bench.operator.process("")
        with pytest.raises(ElementFailed, match="IndexError"):
            await bench.operator.finish()

    assert function.called == []


@pytest.mark.parametrize("mode", ["ordered", "unordered", "key_ordered"])
async def test_a_key_that_cannot_be_made_fails_only_its_element(mode: Any) -> None:
    function, letters = Instant(), list[Any]()
    options: dict[str, Any] = {"on_error": "dead_letter", "dead_letters": letters.append, "key_by": len, "mode": mode}
    async with opened(function, resilience=cached(), retry=FixedDelayRetry(3, 0), **options) as bench:
        await bench.feed("a1", "", "", "b1")
        await bench.operator.finish()
        assert bench.shown == ["a1", "b1"]

    assert function.called == ["a1", "b1"]
    assert [(letter.value, letter.attempts, type(letter.error)) for letter in letters] == [("", 0, IndexError)] * 2


async def test_a_key_that_cannot_be_looked_up_fails_only_its_element() -> None:
    cache = Resilience(cache=Cache(key=lambda value: [] if value == "bad" else value, max_entries=9))
    async with opened(Instant(), resilience=cache, on_error="skip") as bench:
        await bench.feed("a1", "bad", "b1")
        assert bench.shown == ["a1", "b1"]


async def test_an_element_that_has_failed_is_not_held() -> None:
    class Value:
        pass

    class Fails(AsyncFunction):
        async def async_invoke(self, value: Any, ctx: Any) -> Any:
            raise ValueError

    async with opened(Fails(), resilience=cached(key=id), on_error="skip") as bench:
        value = Value()
        held = weakref.ref(value)
        await bench.feed(value)
        del value
        gc.collect()

        assert bench.operator.statistics().skipped == 1
        assert held() is None


async def test_an_element_that_the_function_knows_is_not_held() -> None:
    class Value:
        pass

    class Knows(AsyncFunction):
        def known_outputs(self, value: Any, ctx: Any) -> Any:
            return [None]

        async def async_invoke(self, value: Any, ctx: Any) -> Any:
            raise AssertionError("it is known")

    async with opened(Knows(), resilience=cached(key=id)) as bench:
        value = Value()
        held = weakref.ref(value)
        await bench.feed(value)
        del value
        gc.collect()

        assert bench.shown == [None]
        assert held() is None


async def test_an_element_for_which_no_call_is_ever_admitted_is_not_held() -> None:
    class Value:
        pass

    limits = Resilience(
        cache=Cache(key=id, max_entries=2), rate_limit=RateLimit.per_minute(1, cost=lambda _: 2, unit="tokens")
    )
    async with opened(Instant(), resilience=limits, on_error="skip") as bench:
        value = Value()
        held = weakref.ref(value)
        await bench.feed(value)
        del value
        gc.collect()

        assert bench.operator.statistics().skipped == 1
        assert held() is None
