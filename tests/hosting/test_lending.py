"""Hosts lend each other what they do not use of a limit, and together never use more than the limit."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from async_op import AdaptiveConcurrency, AsyncFunction, Budget, RateLimit, Resilience
from async_op.dead_letters import DeadLetter
from async_op.hosting import messages as say
from async_op.operator.subtask_info import SubtaskInfo
from async_op.options import OperatorOptions
from async_op.resilience.lending import Allowed, Holding, Holdings, Lender
from async_op.subtask.operator import ResidentOperator
from async_op.testing import run
from snapshots import Snapshot
from tests.async_op.kit import new_store
from tests.hosting.virtual_host import Calls, Kit, Run, hosted
from tests.quick import first_is_quick

HOSTS_MAX = 8
RATE, BURST, LIMIT, CALLS = 20.0, 10, 400, 12
EPSILON = 1e-6

RESILIENCE = Resilience(
    rate_limit=RateLimit(RATE, BURST),
    budget=Budget(LIMIT, "cents", cost=lambda value: value % 7),
    concurrency=AdaptiveConcurrency(minimum=CALLS, maximum=CALLS),
)
WITH_COSTS = Resilience(rate_limit=[RateLimit(RATE, BURST, cost=lambda value: 1.0, unit="calls_made")])


class Broken(AssertionError):
    """The hosts together have used more than a limit."""


class Cluster(AsyncFunction[int, int]):
    """Hosts of one operator, their driver, and the service, which sees all of their calls."""

    def __init__(self, resilience: Resilience, hosts: int, lender: type[Lender] = Lender, seed: int = 0) -> None:
        self.resilience = resilience
        self.lender_class = lender
        self.draw = random.Random(seed)
        self.hosts: list[ResidentOperator] = []
        self.store = new_store()
        self.latest: Snapshot | None = None
        self.begun: list[float] = []
        self.running = 0
        self.letters: list[DeadLetter] = []
        self.seconds = 0.5
        self.broken: list[str] = []
        self.begin_generation(hosts)

    # The service.

    async def async_invoke(self, value: int, ctx: Any) -> list[int]:
        now = asyncio.get_running_loop().time()
        self.begun.append(now)
        self.running += 1
        self.look(now)
        try:
            await asyncio.sleep(self.seconds)
            return [value]
        finally:
            self.running -= 1

    def look(self, now: float) -> None:
        """Look at all limits in the moment in which a call begins."""
        count = len(self.hosts)
        for number, began in enumerate(reversed(self.begun), 1):
            if self.resilience.rate_limits and number > max(BURST, count) + RATE * (now - began + EPSILON):
                self.broken.append(f"{number} calls began within {now - began} s")
        if self.resilience.concurrency is not None and self.running > max(CALLS, count):
            self.broken.append(f"{self.running} calls are under way")
        if self.resilience.budgets:
            limits = [host._parts.limits for host in self.hosts if host._parts is not None]
            pools = [pool for one in limits if one is not None for pool in one.lent._pools.values()]
            spent = sum(pool.holding().used for pool in pools)
            if spent > LIMIT:
                self.broken.append(f"{spent} are spent or set aside")

    # The driver.

    def begin_generation(self, count: int) -> None:
        self.lender = self.lender_class(self.resilience.lendable(count), count)
        self.begun.clear()  # hosts that begin have a credit of one call each, as after any start
        self.count = count

    def new_host(self, index: int, allowance: Any) -> ResidentOperator:
        options = OperatorOptions(
            function=self,
            mode="unordered",
            capacity=50,
            timeout=None,
            retry=None,
            key_by=None,
            on_error="dead_letter",
            dead_letters=self.letters.append,
            hash="xxhash64",
            resilience=self.resilience,
            state_backend="memory",
        )
        subtask_info = SubtaskInfo(parallelism=self.count, subtask_index=index, max_parallelism=HOSTS_MAX)
        host = ResidentOperator.of(options, lambda output: None, subtask_info=subtask_info)
        host.allow(allowance, may_wait=True)
        return host

    async def replace(self, index: int, allowance: Any) -> None:
        """Put a host in the place of one that has ended."""
        if index < len(self.hosts):
            await self.hosts[index].close()
        host = self.new_host(index, allowance)
        self.hosts[index : index + 1] = [host]
        await host.open(None if self.latest is None else self.latest.restore(index, self.count))

    async def epoch(self, *rows: Sequence[int], seconds: float = 1.0, fails: bool = False, dies: float = 0.0) -> bool:
        """Run an epoch; messages may be doubled, hosts may die, and an attempt may fail at any host."""
        plan = self.lender.plan()
        heard = list(range(self.count))
        self.draw.shuffle(heard)
        for index in heard[: self.draw.randrange(self.count) if fails else self.count]:
            if index >= len(self.hosts) or self.is_dirty or self.draw.random() < dies:
                while len(self.hosts) < index:
                    await self.replace(len(self.hosts), plan[len(self.hosts)])
                await self.replace(index, plan[index])
            for _ in range(self.draw.choice((1, 1, 2))):
                self.hosts[index].allow(plan[index], may_wait=True)
            self.hosts[index].offer(iter([(value, None, None) for value in (rows[index] if index < len(rows) else ())]))
            await asyncio.sleep(self.draw.random() * 0.3)
        await asyncio.sleep(seconds)
        if fails:
            self.is_dirty = True
            return False
        holdings = [host.holdings(since_last=True) for host in self.hosts]
        parts = [await host.snapshot() for host in self.hosts]
        self.latest = self.store.load(self.store.write(parts).version)
        self.lender.note(holdings)
        self.is_dirty = False
        self.check_sums(holdings)
        return True

    is_dirty = False

    def check_sums(self, holdings: Sequence[Holdings]) -> None:
        for name, whole in self.resilience.lendable(self.count).items():
            held = sum(one[name].amount for one in holdings)
            if held > whole + EPSILON:
                self.broken.append(f"{held} of {whole} are held of {name}")

    async def rescale(self, count: int) -> None:
        hosts, self.hosts = self.hosts, []
        for host in hosts:
            await host.close()
        self.begin_generation(count)

    async def end(self) -> None:
        for host in self.hosts:
            await host.close()


async def world(seed: int, resilience: Resilience, lender: type[Lender] = Lender) -> list[str]:
    """Run a cluster through epochs in which anything may happen; returns what was broken."""
    draw = random.Random(seed)
    cluster = Cluster(resilience, draw.randint(1, HOSTS_MAX), lender, seed)
    try:
        for _ in range(draw.randint(5, 15)):
            busy = {draw.randrange(cluster.count) for _ in range(draw.choice((1, 1, 2, 8)))}
            rows = [range(draw.randrange(40)) if index in busy else () for index in range(cluster.count)]
            cluster.seconds = draw.choice((0.0, 0.1, 1.0))
            fails = bool(cluster.hosts) and not cluster.is_dirty and draw.random() < 0.2
            await cluster.epoch(*rows, seconds=draw.choice((0.1, 1.0, 3.0)), fails=fails, dies=draw.choice((0, 0.2)))
            if draw.random() < 0.1 and not cluster.is_dirty:
                await cluster.rescale(draw.randint(1, HOSTS_MAX))
    finally:
        await cluster.end()
    return cluster.broken


@pytest.mark.parametrize("resilience", first_is_quick([RESILIENCE, WITH_COSTS]), ids=["calls", "costs"])
def test_hosts_together_never_use_more_than_a_limit(resilience: Resilience, pytestconfig: pytest.Config) -> None:
    for seed in range(3 if pytestconfig.getoption("quick") else 10):
        assert run(world(seed, resilience)) == [], f"seed {seed}"


class LendsTwice(Lender):
    """Gives each host all that is free."""

    def _amounts(self, name: str, heard: Sequence[Holdings]) -> list[float]:
        held, wanted = [one[name].amount for one in heard], self._wanted(name, [one[name] for one in heard])
        free = max(0, self._limits[name] - sum(held))
        return [want if want < now else now + min(want - now, free) for now, want in zip(held, wanted, strict=True)]


class LendsAtOnce(Lender):
    """Gives away what a host was only told to give up."""

    def _amounts(self, name: str, heard: Sequence[Holdings]) -> list[float]:
        return self._wanted(name, [one[name] for one in heard])


class Believes(Lender):
    """Believes that hosts hold what they were told, also if they had spent more before they heard of it."""

    def note(self, holdings: Sequence[Holdings]) -> None:
        told = self._planned or [{}] * len(holdings)
        super().note(
            [
                {name: replace(one, amount=plan[name].amount if plan else one.amount) for name, one in host.items()}
                for plan, host in zip(told, holdings, strict=True)
            ]
        )


@pytest.mark.thorough
@pytest.mark.parametrize("mutant", [LendsTwice, LendsAtOnce, Believes])
def test_a_driver_that_lends_twice_is_caught(mutant: type[Lender]) -> None:
    assert any(run(world(seed, RESILIENCE, mutant)) for seed in range(60))


async def one_busy_host(resilience: Resilience, rows: int, epochs: int, seconds: float) -> Cluster:
    cluster = Cluster(resilience, 4)
    cluster.seconds = seconds
    for number in range(epochs):
        await cluster.epoch(range(7, 7 + rows) if number == 0 else ())
    await cluster.end()
    return cluster


def test_a_busy_host_gets_most_of_the_rate_and_gives_it_back() -> None:
    async def lend() -> None:
        cluster = Cluster(Resilience(rate_limit=RateLimit(RATE, 1)), 4)
        cluster.seconds = 0.0
        held = []
        for number in range(12):
            await cluster.epoch(range(40) if number < 6 else ())
            held.append([round(host.holdings()["rate 0"].amount, 2) for host in cluster.hosts])
        await cluster.end()
        assert held[0] == [0.25] * 4
        assert held[3][0] > 0.9
        assert held[-1] == [0.25] * 4

    run(lend())


def test_the_whole_budget_is_spent_by_one_busy_host_and_no_call_is_refused_that_would_have_fitted() -> None:
    async def spend() -> Cluster:
        cluster = Cluster(Resilience(budget=Budget(80, "calls_made", cost=lambda value: 1)), 4)
        for _ in range(30):
            await cluster.epoch(range(10))
        await cluster.end()
        return cluster

    cluster = run(spend())
    assert (len(cluster.begun), cluster.broken) == (80, [])
    assert len(cluster.letters) > 0


def test_the_whole_concurrency_goes_to_a_busy_host() -> None:
    async def lend() -> int:
        cluster = Cluster(Resilience(concurrency=AdaptiveConcurrency(minimum=8, maximum=8)), 4)
        cluster.seconds, most = 2.0, 0
        for _ in range(8):
            await cluster.epoch(range(20))
            most = max(most, cluster.running)
        await cluster.end()
        return most

    assert run(lend()) == 5  # each of the other three keeps one, for its next element


BUDGET = Resilience(budget=Budget(80, "calls_made", cost=lambda value: 1))
QUARTER = {"parallelism": 4, "max_parallelism": 4, "key_by": None, "on_error": "skip", "resilience": BUDGET}


def of_a_quarter() -> Kit:
    return Kit(Plain(), QUARTER)


class Plain(Calls):
    states = ()

    async def async_invoke(self, value: float, ctx: Any) -> list[float]:
        self.made.append(value)
        return [value]


def test_a_hello_brings_what_a_host_may_use_and_its_part_says_what_it_holds() -> None:
    async def test(task: Run) -> None:
        await task.hello(1.0, allowance={"budget calls_made": Allowed(30, 60)})
        await task.feed(*range(40))
        await task.settle()
        reply = await task.host.answer(task.feeder, say.Cut(1))
        assert isinstance(reply, say.Part)
        assert reply.holdings == {"budget calls_made": Holding(30, 30, is_short=True, spent=30)}
        assert (await task.status()).holdings == reply.holdings
        assert reply.metrics["in_flight"] == 10

    hosted(test, of_a_quarter(), allowance={})


@pytest.mark.parametrize(
    "lives", [{"allowance": None}, {"allowance": {}, "is_resident": False}], ids=["fixed shares", "in a task"]
)
def test_no_call_waits_for_what_no_later_epoch_could_bring(lives: dict[str, Any]) -> None:
    async def test(task: Run) -> None:
        await task.hello(allowance=lives["allowance"])
        await task.feed(*range(40))
        await task.settle()
        await task.cut()
        assert (task.metrics["budget_refused"], task.metrics["in_flight"]) == (20, 0)

    hosted(test, of_a_quarter(), **lives)


def test_an_epoch_that_waits_for_all_calls_does_not_wait_for_the_next_epoch() -> None:
    async def test(task: Run) -> None:
        await task.hello(allowance={})
        await task.feed(*range(2000))
        await task.settle()
        await task.cut()
        assert (task.metrics["calls"], task.metrics["budget_refused"], task.metrics["in_flight"]) == (20, 0, 1980)

    hosted(test, of_a_quarter(), allowance={})


def test_a_host_that_takes_the_place_of_another_one_has_its_share_and_no_credit() -> None:
    async def begin() -> None:
        cluster = Cluster(Resilience(rate_limit=RateLimit(RATE, BURST)), 4)
        await cluster.replace(0, {"rate 0": Allowed(0.5)})
        cluster.hosts[0].offer(iter([(value, None, None) for value in range(21)]))
        await asyncio.sleep(1.0)
        assert len(cluster.begun) == 10  # at half of the rate, and none at once
        await cluster.end()

    run(begin())
