"""What spares a service: each part by itself, on a clock that the test turns."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from async_op import (
    AdaptiveConcurrency,
    AsyncBatchFunction,
    AsyncTimeoutError,
    Cache,
    CircuitBreaker,
    CircuitOpen,
    DeadLetter,
    FixedDelayRetry,
    RateLimit,
    Resilience,
    ResilienceStatistics,
    SingleFlight,
)
from async_op.resilience.line import Line
from keygroups import ConfigError, ValueState
from tests.operator.kit import Bench, Instant, ManualClock, Service, commit, opened, settle


def first(value: str) -> str:
    """The key of these tests: "a1" and "a2" are the same call."""
    return value[0]


SHARED = Resilience(single_flight=SingleFlight(first))


@asynccontextmanager
async def bench_of(service: Any, resilience: Resilience, **options: Any) -> AsyncIterator[Bench]:
    async with opened(service, resilience=resilience, **options) as bench:
        yield bench


def seen(bench: Bench) -> ResilienceStatistics:
    found = bench.operator.statistics().resilience
    assert found is not None
    return found


# -- rate limit


async def test_calls_begin_at_the_rate_and_a_burst_has_to_be_saved_up() -> None:
    function = Instant()
    async with bench_of(function, Resilience(rate_limit=RateLimit(2, burst=3))) as bench:
        await bench.feed(*"abcd")
        assert function.called == ["a"]
        await bench.clock.advance(0.5)
        assert function.called == ["a", "b"]
        await bench.clock.advance(1)
        assert function.called == ["a", "b", "c", "d"]
        await bench.clock.advance(60)
        await bench.feed(*"efghi")
        assert function.called == list("abcdefg")
        assert (seen(bench).waiting, seen(bench).rate_limited) == (2, 5)
        assert seen(bench).wait_seconds == pytest.approx(0.5 + 1 + 1.5)


@pytest.mark.parametrize(("parallelism", "shares"), [(1, [3]), (2, [2, 1]), (3, [1, 1, 1]), (5, [1, 1, 1, 1, 1])])
def test_subtasks_share_a_rate(parallelism: int, shares: list[int]) -> None:
    found = [RateLimit(10, burst=3).share(index, parallelism) for index in range(parallelism)]

    assert sum(share.per_second for share in found) == pytest.approx(10)
    assert [share.burst for share in found] == shares


async def test_a_rescaled_operator_has_another_share() -> None:
    resilience = Resilience(rate_limit=RateLimit(4, burst=1))
    async with bench_of(Instant(), resilience, mode="ordered", max_parallelism=4) as bench:
        await bench.feed(*"abc")
        snapshot = await commit(await bench.operator.snapshot())

    function = Instant()
    place: dict[str, Any] = {"parallelism": 2, "subtask_index": 0, "max_parallelism": 4}
    async with bench_of(function, resilience, mode="ordered", restore=snapshot.restore(0, 2), **place) as bench:
        await bench.feed("d", "e")
        begun = len(function.called)
        await bench.clock.advance(1)

    assert begun == 1
    assert len(function.called) == 3


async def test_what_waits_for_the_rate_times_out_and_leaves_its_turn_to_the_next() -> None:
    function = Service(fallback=lambda value: [f"late {value}"])
    async with bench_of(function, Resilience(rate_limit=RateLimit(0.25, burst=1)), timeout=3) as bench:
        await bench.feed("a", "b")
        await bench.clock.advance(2)
        await bench.feed("c")
        await bench.clock.advance(2)

    assert bench.shown == ["late a", "late b"]
    assert function.called == ["a", "c"]


async def test_what_waits_is_pending_in_a_snapshot() -> None:
    async with bench_of(Instant(), Resilience(rate_limit=RateLimit(1, burst=1)), timeout=10) as bench:
        await bench.feed("a", "b", "c")
        await bench.clock.advance(0.5)
        cut = await bench.operator.snapshot()

    assert [(element.value, element.attempt, element.remaining) for element in cut.in_flight] == [
        ("b", 1, 9.5),
        ("c", 1, 9.5),
    ]


# -- single flight


async def test_identical_calls_under_way_are_one() -> None:
    service = Service()
    async with bench_of(service, SHARED, mode="ordered") as bench:
        await bench.feed("a1", "b1", "a2", "a3")
        assert service.called == ["a1", "b1"]
        await service.answer("a1", outputs=iter(["one"]))
        await service.answer("b1")
        await bench.feed("a4")
        statistics = bench.operator.statistics()

    assert bench.shown == ["one", "b1", "one", "one"]
    assert service.called == ["a1", "b1", "a4"]
    assert (statistics.calls, seen(bench).shared) == (3, 2)


async def test_a_failure_is_shared_and_each_element_has_its_own_retries() -> None:
    service = Service()
    async with bench_of(service, SHARED, retry=FixedDelayRetry(2, 1)) as bench:
        await bench.feed("a1", "a2")
        await service.fail("a1", ValueError())
        await bench.clock.advance(1)
        assert service.called == ["a1", "a1"]
        await service.answer("a1", outputs=["one"])

    assert bench.shown == ["one", "one"]


@pytest.mark.parametrize("stubborn", [False, True])
async def test_when_the_leader_runs_out_of_time_a_follower_calls_itself(stubborn: bool) -> None:
    service = Service(fallback=lambda value: [f"late {value}"], stubborn=stubborn)
    async with bench_of(service, SHARED, timeout=10) as bench:
        await bench.feed("a1")
        await bench.clock.advance(5)
        await bench.feed("a2", "a3")
        await bench.clock.advance(5)
        if stubborn:  # the call goes on, and those that wait for it have time to
            await service.answer("a1", outputs=["one"])
        else:
            assert service.called == ["a1", "a2"]
            await service.answer("a2", outputs=["one"])

    assert bench.shown == ["late a1", "one", "one"]


async def test_followers_run_out_of_time_too() -> None:
    service = Service(fallback=lambda value: [f"late {value}"])
    async with bench_of(service, SHARED, timeout=10) as bench:
        await bench.feed("a1", "a2")
        await bench.clock.advance(10)

    assert sorted(bench.shown) == ["late a1", "late a2"]
    assert service.called == ["a1"]


class Stateful(Service):
    states = (ValueState("seen"),)


class Doubles(AsyncBatchFunction):
    max_batch_size = 2

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []

    async def async_invoke_batch(self, values: Sequence[Any], ctxs: Any) -> list[Any]:
        self.batches.append(list(values))
        return [[2 * value] for value in values]


class Arrows(Doubles):
    arrow = True


@pytest.mark.parametrize(
    ("function", "resilience"),
    [
        (Stateful(), SHARED),
        (Stateful(), Resilience(cache=Cache(key=first, max_entries=1))),
        (Doubles(), SHARED),
        (Arrows(), Resilience(cache=Cache(key=first, max_entries=1))),
    ],
)
def test_sharing_that_makes_no_sense_is_refused(function: Any, resilience: Resilience) -> None:
    with pytest.raises(ConfigError):
        Bench(function, resilience=resilience, key_by=str)


# -- cache


def cached(**options: Any) -> Resilience:
    return Resilience(cache=Cache(**{"key": first, "max_entries": 2, **options}))


@pytest.mark.parametrize("mode", ["ordered", "unordered"])
async def test_what_is_cached_is_not_called_for_and_keeps_its_place(mode: str) -> None:
    service = Service()
    async with bench_of(service, cached(), mode=mode) as bench:
        await bench.feed("a1")
        await service.answer("a1")
        await bench.feed("b1", "a2")
        before = list(bench.shown)
        await service.answer("b1")
        statistics = bench.operator.statistics()

    assert before == (["a1"] if mode == "ordered" else ["a1", "a1"])
    assert sorted(bench.shown) == ["a1", "a1", "b1"]
    assert service.called == ["a1", "b1"]
    assert (statistics.calls, seen(bench).cache_hits, seen(bench).cache_misses, seen(bench).cache_entries) == (
        2,
        1,
        2,
        2,
    )


async def test_what_is_cached_completes_at_once_in_a_snapshot() -> None:
    service = Service()
    async with bench_of(service, cached(), mode="ordered") as bench:
        await bench.feed("a1")
        await service.answer("a1")
        await bench.feed("b1", "a2")
        cut = await bench.operator.snapshot()

    assert [(element.value, element.outputs) for element in cut.in_flight] == [("b1", None), ("a2", ("a1",))]


async def test_entries_expire_and_the_one_asked_for_longest_ago_goes_first() -> None:
    function = Instant()
    async with bench_of(function, cached(ttl_seconds=10)) as bench:
        for value in ("a1", "b1", "a2", "c1", "a3", "b2"):
            await bench.feed(value)
        assert function.called == ["a1", "b1", "c1", "b2"]
        await bench.clock.advance(11)
        await bench.feed("b3")

    assert function.called == ["a1", "b1", "c1", "b2", "b3"]


@pytest.mark.parametrize(("empty", "called"), [(False, ["a1", "a2"]), (True, ["a1"])])
async def test_no_output_is_kept_only_if_asked_for(empty: bool, called: list[str]) -> None:
    function = Instant(lambda _: [])
    async with bench_of(function, cached(empty=empty)) as bench:
        await bench.feed("a1")
        await bench.feed("a2")

    assert function.called == called


async def test_errors_and_fallbacks_are_not_kept() -> None:
    service = Service(fallback=lambda value: [f"late {value}"])
    async with bench_of(service, cached(), timeout=10, on_error="skip") as bench:
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
    async with bench_of(function, cached(key=len)) as bench:
        await bench.feed(["one"])
        await bench.feed(["two"])

    assert bench.shown == ["one", "one"]
    assert len(function.called) == 1


async def test_many_of_one_key_that_are_cached_leave_in_their_order() -> None:
    service = Service()
    cache = Resilience(cache=Cache(key=lambda _: "same", max_entries=1))
    async with bench_of(service, cache, mode="key_ordered", key_by=lambda _: "key", capacity=2000) as bench:
        await bench.feed(*range(1500))
        await service.answer(0)

    assert bench.shown == [0] * 1500
    assert service.called == [0]


async def test_a_full_operator_takes_in_all_that_is_cached() -> None:
    service = Service()
    async with bench_of(service, cached(), capacity=2) as bench:
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
    async with bench_of(function, Resilience(cache=Cache(key=abs, max_entries=9)), mode="ordered") as bench:
        await bench.feed(1, 2)
        await bench.feed(2, 3, 1, 4)
        await bench.operator.finish()

    assert function.batches == [[1, 2], [3, 4]]
    assert bench.shown == [2, 4, 4, 6, 2, 8]


async def test_a_key_that_cannot_be_made_ends_the_operator() -> None:
    async with bench_of(Instant(), cached()) as bench:
        await bench.operator.process("")
        with pytest.raises(IndexError):
            await bench.operator.finish()


# -- adaptive concurrency


async def test_the_limit_doubles_until_a_call_fails_then_it_is_cut_once_and_creeps() -> None:
    service = Service()
    limited = Resilience(concurrency=AdaptiveConcurrency(minimum=2, maximum=20, decrease=0.5))
    async with bench_of(service, limited, on_error="skip") as bench:
        await bench.feed(*range(100))
        limits = []
        for _ in range(3):
            limits.append(len(service.running))
            await bench.clock.advance(1)
            await service.answer(*service.running)
        assert limits == [2, 4, 8]
        await bench.clock.advance(1)
        running = service.running
        assert len(running) == 16
        for value in running:
            await service.fail(value, OSError())
        assert seen(bench).concurrency_limit == 8
        for expected in (9, 10):
            await bench.clock.advance(1)
            await service.answer(*service.running)
            assert seen(bench).concurrency_limit == expected
        assert seen(bench).running == len(service.running) == 10


async def test_the_limit_stays_within_its_bounds() -> None:
    service = Service()
    limited = Resilience(concurrency=AdaptiveConcurrency(minimum=2, maximum=5, slow_seconds=10))
    async with bench_of(service, limited) as bench:
        await bench.feed(*range(100))
        for _ in range(5):
            await service.answer(*service.running)
        assert seen(bench).concurrency_limit == len(service.running) == 5
        for _ in range(8):
            await bench.clock.advance(11)
            await service.answer(*service.running)
        assert seen(bench).concurrency_limit == len(service.running) == 2


async def test_errors_that_say_nothing_about_the_service_do_not_count() -> None:
    service = Service()
    careful = Resilience(
        concurrency=AdaptiveConcurrency(), circuit_breaker=CircuitBreaker(window=1), failure_on=OSError
    )
    async with bench_of(service, careful, on_error="skip") as bench:
        await bench.feed("a", "b")
        await service.fail("a", ValueError())
        assert (seen(bench).concurrency_limit, seen(bench).circuit) == (2, "closed")
        await service.fail("b", ConnectionError())

    assert (seen(bench).concurrency_limit, seen(bench).circuit) == (1, "open")


# -- circuit breaker


def broken(**options: Any) -> Resilience:
    return Resilience(circuit_breaker=CircuitBreaker(**{"window": 2, "open_seconds": 10, **options}))


async def test_an_open_breaker_makes_no_calls_then_a_few_then_all() -> None:
    service = Service()
    async with bench_of(service, broken(probes=2), on_error="skip", capacity=20) as bench:
        await bench.feed("a", "b", "c")
        await service.fail("a", OSError())
        await service.answer("b")
        assert seen(bench).circuit == "open"
        await service.answer("c")  # began before; says nothing
        await bench.feed(*"defg")
        await bench.clock.advance(9)
        assert service.running == []
        await bench.clock.advance(1)
        assert (service.running, seen(bench).circuit, seen(bench).waiting) == (["d", "e"], "half_open", 2)
        await service.answer("d")
        assert service.running == ["e"]
        await service.answer("e")
        assert (service.running, seen(bench).circuit, seen(bench).waiting) == (["f", "g"], "closed", 0)


async def test_a_probe_that_fails_or_runs_out_of_time_opens_it_again() -> None:
    service = Service(fallback=lambda value: [f"late {value}"])
    async with bench_of(service, broken(window=1), on_error="skip", timeout=25) as bench:
        await bench.feed("a", "b", "c", "d")
        for value in "abcd":
            await service.fail(value, OSError())
        await bench.feed("e", "f", "g")
        await bench.clock.advance(10)
        await service.fail("e", OSError())
        await bench.clock.advance(10)
        assert service.running == ["f"]
        await bench.clock.advance(5)
        assert bench.shown == ["late f", "late g"]
        assert (seen(bench).circuit, seen(bench).circuit_opened) == ("open", 3)


async def test_elements_fail_while_it_is_open_if_that_is_asked_for() -> None:
    letters: list[DeadLetter] = []
    service = Service()
    options: dict[str, Any] = {"on_error": "dead_letter", "dead_letters": letters.append}
    async with bench_of(service, broken(window=1, when_open="fail"), **options) as bench:
        await bench.feed("a")
        await service.fail("a", OSError())
        await bench.clock.advance(4)
        await bench.feed("b")
        statistics = bench.operator.statistics()

    error = letters[1].error
    assert isinstance(error, CircuitOpen)
    assert error.seconds == pytest.approx(6)
    assert isinstance(error, ConnectionError)
    assert (statistics.calls, seen(bench).circuit_refused) == (1, 1)
    assert str(pickle.loads(pickle.dumps(error))) == str(error)


async def test_a_refused_element_is_tried_again_like_a_failed_one() -> None:
    service = Service()
    retry = FixedDelayRetry(3, 6, retry_on=CircuitOpen)
    async with bench_of(service, broken(window=1, when_open="fail"), retry=retry, on_error="skip") as bench:
        await bench.feed("a")
        await service.fail("a", OSError())
        await bench.feed("b")
        await bench.clock.advance(12)
        await service.answer("b")

    assert bench.shown == ["b"]


async def test_a_breaker_that_opens_while_a_call_waits_for_the_rate_stops_it() -> None:
    service = Service()
    both = Resilience(circuit_breaker=CircuitBreaker(window=1, open_seconds=10), rate_limit=RateLimit(1, burst=1))
    async with bench_of(service, both, on_error="skip") as bench:
        await bench.feed("a", "b", "c", "d")
        await service.fail("a", OSError())
        await bench.clock.advance(9)
        assert service.called == ["a"]
        await bench.clock.advance(1)
        assert service.running == ["b"]
        await service.answer("b")
        await bench.clock.advance(1)
        assert service.running == ["c"]


async def test_a_permit_of_a_call_that_is_given_up_goes_to_the_next() -> None:
    service = Service(fallback=lambda value: [f"late {value}"])
    both = Resilience(circuit_breaker=CircuitBreaker(window=1, open_seconds=10), rate_limit=RateLimit(0.05, burst=1))
    async with bench_of(service, both, on_error="skip", timeout=15) as bench:
        await bench.feed("a")
        await service.fail("a", OSError())
        await bench.feed("b")  # half-open at 10, a right to call at 20, out of time at 15
        await bench.clock.advance(6)
        await bench.feed("c")
        await bench.clock.advance(14)

    assert service.called == ["a", "c"]
    assert bench.shown == ["late b"]


# -- all


async def test_a_batch_is_one_call_and_loses_elements_that_run_out_of_time() -> None:
    class Slow(Doubles):
        max_batch_delay = 2.0

        async def timeout(self, value: Any, ctx: Any) -> list[Any]:
            return [f"late {value}"]

    function = Slow()
    async with bench_of(function, Resilience(rate_limit=RateLimit(0.2, burst=1)), timeout=3.5) as bench:
        await bench.feed(1, 2)
        await bench.clock.advance(1)
        await bench.feed(3)
        await bench.clock.advance(1)
        await bench.feed(4)
        await bench.clock.advance(3)
        statistics = bench.operator.statistics()

    assert function.batches == [[1, 2], [4]]
    assert bench.shown == [2, 4, "late 3", 8]
    assert statistics.calls == 3


async def test_without_limits_the_function_itself_is_called() -> None:
    function = Instant()
    async with opened(function) as bench:
        await bench.feed("a")
        assert bench.operator.statistics().resilience is None
        assert bench.operator._invoker._workers.invoke == function.async_invoke


async def test_a_failed_operator_begins_no_call_that_waited() -> None:
    service = Service()
    async with bench_of(service, Resilience(rate_limit=RateLimit(1, burst=1))) as bench:
        await bench.feed("a", "b")
        await service.fail("a", ValueError())
        await bench.clock.advance(60)

    assert service.called == ["a"]


@pytest.mark.parametrize(
    ("part", "settings"),
    [
        (RateLimit, {"per_second": 0}),
        (RateLimit, {"per_second": float("inf")}),
        (RateLimit, {"per_second": 1, "burst": 0}),
        (Cache, {"key": first, "max_entries": 0}),
        (Cache, {"key": first, "max_entries": 1, "ttl_seconds": 0}),
        (AdaptiveConcurrency, {"minimum": 0}),
        (AdaptiveConcurrency, {"minimum": 3, "maximum": 2}),
        (AdaptiveConcurrency, {"slow_seconds": 0}),
        (AdaptiveConcurrency, {"decrease": 1.0}),
        (CircuitBreaker, {"failure_rate": 0}),
        (CircuitBreaker, {"window": 0}),
        (CircuitBreaker, {"open_seconds": float("inf")}),
        (CircuitBreaker, {"probes": 0}),
        (CircuitBreaker, {"when_open": "explode"}),
    ],
    ids=str,
)
def test_settings_that_can_never_work_are_refused(part: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        part(**settings)


def test_settings_travel_to_workers() -> None:
    settings = Resilience(
        cache=Cache(key=first, max_entries=1),
        single_flight=SingleFlight(first),
        concurrency=AdaptiveConcurrency(),
        circuit_breaker=CircuitBreaker(),
        rate_limit=RateLimit(1),
        failure_on=(OSError, AsyncTimeoutError),
    )

    assert pickle.loads(pickle.dumps(settings)) == settings


async def test_a_turn_that_comes_too_late_goes_to_the_next() -> None:
    line, lost = Line(ManualClock()), []
    first_one, second = (asyncio.create_task(line.wait(lambda: lost.append(line.admit()))) for _ in range(2))
    await settle()
    line.admit()
    first_one.cancel()
    await settle()

    assert lost == [True]
    assert first_one.cancelled()
    assert second.done()
    assert len(line) == 0
