"""The limits of a step are the job's: its subtasks share one object, whichever of them are busy."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from async_op import (
    AdaptiveConcurrency,
    Budget,
    CircuitBreaker,
    FixedDelayRetry,
    RateLimit,
    Resilience,
    RetryAfter,
    Step,
)
from async_op.testing import run
from snapshots import SnapshotStore
from tests.async_op.job.kit import Epochs, Log, Watched, new_job, running, same


def called(count: int, service: Any, *, parallelism: int = 8, key_by: Any = None, **parts: Any) -> Sequence[Any]:
    """Run a job over some numbers, and return its outputs."""
    options: dict[str, Any] = {"key_by": key_by, "on_error": "skip", "retry": parts.pop("retry", None)}
    sink = Epochs()
    step = Step(service, resilience=Resilience(**parts), **options)
    run(new_job(list(range(count)), step, sink, parallelism=parallelism, snapshot_interval=5).run())
    return sink.values


@pytest.mark.parametrize("key_by", [None, str], ids=["one busy subtask", "keys"])
class TestOneLimitForAllSubtasks:
    def test_the_whole_budget_is_spent_and_no_more(self, key_by: Any) -> None:
        budget = Budget(80, "calls_made", cost=lambda _: 1)

        assert len(called(200, Watched(1.0), key_by=key_by, budget=budget)) == 80

    @pytest.mark.parametrize("cost", [None, lambda _: 1], ids=["calls", "costs"])
    def test_the_whole_rate_is_used_and_no_more(self, key_by: Any, cost: Any) -> None:
        service = Watched()
        rate = RateLimit(8, burst=8, cost=cost, unit=None if cost is None else "units")
        called(33, service, key_by=key_by, rate_limit=rate)

        assert service.begun[-1] - service.begun[0] == pytest.approx(32 / 8)
        assert service.within(1.0) <= 16

    def test_the_whole_concurrency_is_used_and_no_more(self, key_by: Any) -> None:
        service = Watched(1.0)
        called(100, service, key_by=key_by, concurrency=AdaptiveConcurrency(minimum=8, maximum=8))

        assert service.running_max == 8

    def test_what_the_service_asks_of_one_subtask_holds_all(self, key_by: Any) -> None:
        class Busy(Watched):
            def answer(self, value: Any) -> Any:
                if value == 0 and len(self.begun) <= 8:
                    raise RetryAfter(60)
                return value

        service = Busy(0.01)
        called(64, service, key_by=key_by, rate_limit=RateLimit(100, burst=1), retry=FixedDelayRetry(3, 1.0))

        first, *others = service.begun
        assert all(began <= first + 0.011 or began >= first + 60 for began in others)

    def test_the_circuit_opens_for_all(self, key_by: Any) -> None:
        class Down(Watched):
            def answer(self, value: Any) -> Any:
                raise ConnectionError("down")

        service = Down()
        called(64, service, key_by=key_by, circuit_breaker=CircuitBreaker(window=4, open_seconds=60, when_open="fail"))

        assert len(service.begun) < 64
        assert len(service.begun) <= 4 + 8  # those that were under way when it opened


def test_by_default_concurrency_is_bounded_by_the_capacity_of_all_subtasks() -> None:
    service = Watched(1.0)
    step = Step(service, key_by=str, capacity=5, resilience=Resilience(concurrency=AdaptiveConcurrency(minimum=50)))
    run(new_job(list(range(400)), step, Epochs(), parallelism=4, snapshot_interval=5).run())

    assert service.running_max == 20


def test_a_rescale_keeps_the_rate_and_what_is_spent() -> None:
    async def spend() -> None:
        service, source, sink = Watched(), Log(range(200)), Epochs()
        parts = Resilience(rate_limit=RateLimit(1, burst=1), budget=Budget(30, "calls_made", cost=lambda _: 1))
        job = new_job(
            source,
            Step(service, key_by=str, resilience=parts, on_error="skip"),
            sink,
            parallelism=2,
            snapshot_interval=5,
        )
        running = asyncio.ensure_future(job.run())
        for parallelism in (5, 1, 3, 8, 2):
            await asyncio.sleep(3.3)
            job.rescale(parallelism)
        await asyncio.sleep(60)
        job.stop()
        await running
        assert service.within(10.0) <= 11
        assert len(sink.values) == 30

    run(spend())


def test_a_stopped_subtask_says_nothing_about_the_service() -> None:
    """Calls that a rescale cancels are no failures, and leave no permit behind."""

    async def rescale() -> None:
        service, sink = Watched(10.0), Epochs()
        breaker = CircuitBreaker(window=3, failure_rate=0.1, open_seconds=1e6)
        parts = Resilience(circuit_breaker=breaker, concurrency=AdaptiveConcurrency(minimum=4, maximum=4))
        job = new_job(
            Log(range(12)), Step(service, key_by=str, resilience=parts), sink, parallelism=3, snapshot_interval=5
        )
        running = asyncio.ensure_future(job.run())
        for parallelism in (2, 4):
            await asyncio.sleep(5)
            job.rescale(parallelism)
        await asyncio.sleep(60)
        job.stop()
        await running
        assert len(sink.values) == 12
        assert service.running_max == 4

    run(rescale())


async def ended(source: Any, *steps: Any, **options: Any) -> None:
    await new_job(source, list(steps), Epochs(), **options).run()


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "get no input" in record.getMessage()]


class TestSubtasksWithoutInput:
    async def test_a_warning_names_the_numbers_once_and_says_what_to_do(self, caplog: pytest.LogCaptureFixture) -> None:
        steps = Step(same, name="look"), Step(same, name="ask"), Step(same, name="sum", key_by=str)
        await ended(Log(range(5), range(5), bounded=True), *steps, parallelism=8)

        assert warnings_in(caplog) == [
            "6 of 8 subtasks of the steps look, ask get no input: the source has 2 partitions, and without a key "
            "elements stay on the subtask of their partition; set parallelism=2 and a larger capacity=, or give step "
            "look a key_by= that spreads the elements"
        ]

    @pytest.mark.parametrize(("key_by", "partitions", "parallelism"), [(str, 1, 8), (None, 8, 8), (None, 9, 8)])
    async def test_no_warning_where_all_may_get_some(
        self, caplog: pytest.LogCaptureFixture, key_by: Any, partitions: int, parallelism: int
    ) -> None:
        source = Log(*[range(3)] * partitions, bounded=True)
        await ended(source, Step(same, key_by=key_by), Step(same), parallelism=parallelism)

        assert warnings_in(caplog) == []

    async def test_a_source_without_partitions_has_none_too_few(self, caplog: pytest.LogCaptureFixture) -> None:
        await ended(Log(bounded=True), same, parallelism=8)

        assert warnings_in(caplog) == []

    def test_a_rescale_above_the_partitions_warns(self, caplog: pytest.LogCaptureFixture) -> None:
        async def rescale() -> list[int]:
            job = new_job(Log(range(4), range(4)), same, Epochs(), parallelism=2, snapshot_interval=5)
            warned = []
            async with running(job):
                for parallelism in (2, 3, 4):
                    await asyncio.sleep(30)  # of virtual time
                    job.rescale(parallelism)
                    await asyncio.sleep(30)
                    warned.append(len(warnings_in(caplog)))
            return warned

        assert run(rescale()) == [0, 1, 1]
        assert "1 of 3 subtasks of step same" in warnings_in(caplog)[0]


def test_snapshots_say_what_calls_have_cost() -> None:
    budget = Budget(50, "calls", cost=lambda _: 1)
    limits = Resilience(budget=budget, rate_limit=RateLimit(10_000, unit="tokens", cost=lambda _: 0.5))
    place = f"memory://{uuid.uuid4().hex}"
    steps = [Step(same, name="ask", resilience=limits)]
    run(new_job(list(range(30)), steps, Epochs(), parallelism=2, snapshots=place).run())
    store = SnapshotStore(place, "job")
    metrics = [store.load(version).manifest.metrics for version in store.versions()]
    assert sum(one.get("spent_calls", 0) for one in metrics) == 30
    assert sum(one.get("spent_tokens", 0) for one in metrics) == 15


def test_progress_says_what_is_left_of_budgets_and_who_waits() -> None:
    async def scenario() -> None:
        budget = Budget(50, "calls", cost=lambda _: 1)
        limits = Resilience(budget=budget, rate_limit=RateLimit(10, burst=1))
        step = Step(Watched(1.0), name="ask", resilience=limits, key_by=lambda value: value, on_error="skip")
        job = new_job(list(range(80)), [step, same], Epochs(), parallelism=4, snapshot_interval=1)
        async with running(job):
            await asyncio.sleep(2.05)
            found = job.progress().limits
            assert list(found) == ["ask"]
            assert found["ask"].left["calls"] + found["ask"].spent["calls"] == 50
            assert (found["ask"].running, found["ask"].waiting > 0, found["ask"].rate_limited > 10) == (10, True, True)
            await job.snapshot()
            job.rescale(2)
            await asyncio.sleep(10)
            assert job.progress().limits["ask"].left == {"calls": 0}
            assert job.progress().limits["ask"].budget_refused > 0

    run(scenario())
