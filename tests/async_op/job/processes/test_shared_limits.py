"""The limits of a step are the job's also where its subtasks are in several processes, which lend each other the rest.

Random jobs in virtual time, with rescales and children that die. Promises: a budget is never exceeded, and no call is
refused that would have fitted, over restarts, too; no more calls are under way than the maximum; no more begin in any
period than the rate allows; and a child that is alone with its work gets nearly all of a limit.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any

import pytest

from async_op import AdaptiveConcurrency, Budget, FixedDelayRetry, RateLimit, Resilience, RestartPolicy, Step
from async_op.job.processes import distributed_chain
from async_op.resilience import SharedLimits
from async_op.resilience.lending import Lender
from async_op.testing import run
from tests.async_op.job.kit import Epochs, Log, Watched, new_job
from tests.async_op.job.simulation.children import simulated, without_checks
from tests.quick import first_is_quick, seeds_of_long_runs

EPSILON = 1e-6
MAX_PARALLELISM = 16
SECONDS = 10_000
"""A child that is stopped while it opens its functions is killed after half an hour."""

Patch = pytest.MonkeyPatch


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames and "break_it" not in metafunc.fixturenames:
        seed = metafunc.config.getoption("--seed")
        count = seeds_of_long_runs(metafunc.config, 4, fewest=10)
        metafunc.parametrize("seed", range(count) if seed is None else [seed])


def cost_of(value: Any) -> int:
    """Return what a call costs: a value is a number, a cost and a key."""
    cost: int = value[1]
    return cost


def key_of(value: Any) -> Any:
    return value[2]


class Service(Watched):
    """Its calls take more or less time, and some of them fail."""

    def __init__(self, draw: random.Random, failures: float) -> None:
        super().__init__()
        self.draw = draw
        self.failures = failures

    async def wait(self) -> None:
        await asyncio.sleep(self.draw.choice([0.0, 0.1, 1.0]) * self.draw.random())
        if self.draw.random() < self.failures:
            raise OSError("try again")


class Scenario:
    """One seed."""

    def __init__(self, seed: int) -> None:
        draw = self.draw = random.Random(f"{seed}/limits")
        self.processes = draw.choice([2, 3])
        self.parallelism = draw.randint(self.processes, 6)
        key = draw.choice([None, 0])
        self.values = [(number, draw.randint(1, 3), number % 40 if key is None else key) for number in range(150)]
        whole = sum(map(cost_of, self.values))
        self.budget = draw.choice([None, Budget(draw.randint(whole // 4, whole), "units", cost=cost_of)])
        self.rate = draw.choice([None, RateLimit(20, burst=draw.choice([1, 6]))])
        self.concurrency = draw.choice([None, AdaptiveConcurrency(minimum=4, maximum=8)])
        self.rescales = [draw.randint(1, 6) for _ in range(draw.choice([0, 0, 3]))]
        self.deaths = draw.choice([0, 0, 2])
        self.died = 0
        # A failed call has spent, too, and no output says how much.
        self.service = Service(draw, draw.choice([0.0, 0.1]) if self.budget is None else 0.0)
        self.sink = Epochs()

    def lifetime(self) -> int | None:
        """Return after how many frames the next child dies; None for never."""
        if self.died == self.deaths or self.draw.random() < 0.5:
            return None
        self.died += 1
        return self.draw.randint(20, 300)

    async def go(self) -> None:
        """Run the job to its end."""
        limits = Resilience(budget=self.budget, rate_limit=self.rate, concurrency=self.concurrency)
        step = Step(
            self.service,
            key_by=key_of,
            resilience=limits,
            on_error="skip",
            capacity=50,
            retry=FixedDelayRetry(20, 0.1, retry_on=OSError),
        )
        job = new_job(
            Log(self.values, bounded=True),
            step,
            self.sink,
            processes=self.processes,
            parallelism=self.parallelism,
            max_parallelism=MAX_PARALLELISM,
            snapshot_interval=0.5,
            restart=RestartPolicy(max_restarts=100, initial_delay=0.1, max_delay=0.1),
        )
        running = asyncio.ensure_future(job.run())
        for parallelism in self.rescales:
            await asyncio.wait([running], timeout=2)
            if not running.done() and job.progress().state == "running":
                job.rescale(parallelism)
        async with asyncio.timeout(SECONDS):
            await running
        self.check(job.progress().restarts)

    def check(self, restarts: int) -> None:
        """Compare what has happened with what the limits allow."""
        done = {number for number, *_ in self.sink.values}
        assert len(done) == len(self.sink.values)
        refused = [value for value in self.values if value[0] not in done]
        if self.budget is None:
            assert not refused, f"{refused} were refused without a budget"
        else:
            left = self.budget.limit - sum(map(cost_of, self.sink.values))
            assert left >= 0, f"{-left} more than the budget was spent"
            assert all(cost_of(value) > left for value in refused), f"{refused} were refused, and {left} is left"
        if self.concurrency is not None:
            assert self.service.running_max <= 8
        if self.rate is not None:
            # Each process may have a burst of one, and begins with as much credit.
            burst = self.rate.whole_burst + self.processes * (1 + restarts)
            self.check_rate(self.rate.per_second, burst)

    def check_rate(self, per_second: float, burst: int) -> None:
        begun = self.service.begun
        for first, start in enumerate(begun):
            for last in range(first, len(begun)):
                allowed = burst + per_second * (begun[last] - start) + EPSILON
                assert last - first + 1 <= allowed, f"{last - first + 1} calls within {begun[last] - start} s"


def simulate(seed: int) -> None:
    """Run a scenario."""
    scenario = Scenario(seed)
    with without_checks(), simulated(scenario.draw, scenario.lifetime):
        run(scenario.go())


def test_children_keep_the_limits_together(seed: int) -> None:
    simulate(seed)


def busy_alone(limits: Resilience, count: int, seconds: float) -> Service:
    """Run a job of two children with work for one of them, whose calls take so long."""
    service = Service(random.Random(0), 0.0)

    async def ask(value: Any) -> Any:
        await service(value)
        await asyncio.sleep(seconds)
        return value

    values, sink = [(number, 1, 0) for number in range(count)], Epochs()
    step = Step(ask, key_by=key_of, resilience=limits, capacity=100)
    with without_checks(), simulated(random.Random(0), lambda: None):
        run(new_job(values, step, sink, processes=2, parallelism=2, snapshot_interval=1).run())
    assert len(sink.values) == count
    return service


def test_a_child_that_is_alone_with_its_work_gets_nearly_all_of_a_rate() -> None:
    begun = busy_alone(Resilience(rate_limit=RateLimit(20, burst=1)), 400, 0).begun

    # The other one keeps a tenth of its half, and it takes a moment until it has given up the rest.
    assert begun[-1] - begun[0] <= 400 / 20 / 0.95 + 2


def test_a_child_that_is_alone_with_its_work_gets_all_of_a_budget() -> None:
    busy_alone(Resilience(budget=Budget(100, "calls", cost=cost_of)), 100, 0)


def equal_shares(patch: Patch) -> None:
    """Nothing is lent."""

    async def never(self: distributed_chain.DistributedChain) -> None:
        await asyncio.Event().wait()

    patch.setattr(distributed_chain.DistributedChain, "_lend", never)


def given_before_it_is_given_up(patch: Patch) -> None:
    """What one child is to give up is given to the other one at once."""

    def mutant(self: Lender, name: str, heard: Any) -> Any:
        return self._wanted(name, [one[name] for one in heard])

    patch.setattr(Lender, "_amounts", mutant)


def answers_are_not_awaited(patch: Patch) -> None:
    """A turn begins with what children held in the turn before."""
    note, before = Lender.note, dict[Lender, Any]()

    def mutant(self: Lender, holdings: Any) -> None:
        note(self, before.get(self, holdings))
        before[self] = holdings

    patch.setattr(Lender, "note", mutant)


def calls_do_not_wait_for_loans(patch: Patch) -> None:
    """A call for which a child has not enough is refused, whatever the others have."""
    allow = SharedLimits.allow
    patch.setattr(SharedLimits, "allow", lambda self, allowance, *, may_wait: allow(self, allowance, may_wait=False))


def a_rescale_keeps_the_allowance(patch: Patch) -> None:
    """What a child was allowed of a budget holds for the operators after a rescale, too."""
    begin = SharedLimits.begin

    def mutant(self: SharedLimits, capacity: int) -> None:
        allowance = self._allowance
        begin(self, capacity)
        self._allowance = allowance

    patch.setattr(SharedLimits, "begin", mutant)


def every_child_has_the_whole(patch: Patch) -> None:
    """Each child begins with the whole limit."""
    init = SharedLimits.__init__

    def mutant(self: SharedLimits, settings: Any, capacity: int, clock: Any, share: Any, allowance: Any) -> None:
        init(self, settings, capacity, clock, (0, 1), allowance)

    patch.setattr(SharedLimits, "__init__", mutant)


MUTANTS = [
    (given_before_it_is_given_up, 0),
    (answers_are_not_awaited, 0),
    (calls_do_not_wait_for_loans, 1),
    (a_rescale_keeps_the_allowance, 18),
    (every_child_has_the_whole, 0),
]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("break_it", "seed"), first_is_quick(MUTANTS), ids=lambda one: getattr(one, "__name__", ""))
def test_a_broken_rule_is_noticed(break_it: Callable[[Patch], None], seed: int) -> None:
    simulate(seed)
    with pytest.MonkeyPatch.context() as patch:
        break_it(patch)
        with pytest.raises(AssertionError, match="than the budget|were refused"):
            simulate(seed)


@pytest.mark.filterwarnings("ignore")
def test_it_is_noticed_if_nothing_is_lent() -> None:
    with pytest.MonkeyPatch.context() as patch:
        equal_shares(patch)
        with pytest.raises(AssertionError):
            test_a_child_that_is_alone_with_its_work_gets_nearly_all_of_a_rate()
