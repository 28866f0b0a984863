"""Random runs in which elements share calls and outputs, under a virtual clock, with a crash in the middle.

Promises: every element ends once, with the outputs that its own call would have had, or with an error or fallback that
the service gave cause for; no two identical calls are under way; what was cached before an element came is not called
for; the limits hold as their models say, also those of what calls cost; with a rate limit, no call begins while the
service has asked to wait. `--seed 17` replays one.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections import Counter
from typing import Any

import pytest

from async_op import (
    AdaptiveConcurrency,
    AsyncFunction,
    AsyncWaitOperator,
    Cache,
    CircuitBreaker,
    CircuitOpen,
    DeadLetter,
    FixedDelayRetry,
    RateLimit,
    Record,
    Resilience,
    RetryAfter,
    SingleFlight,
)
from async_op.testing import VirtualLoop
from snapshots import SnapshotStore
from tests.simulation.abandon import abandon
from tests.simulation.limits import SubtaskLimits

_EVENTS_MAX = 60
_EPSILON = 1e-6


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    seed = metafunc.config.getoption("--seed")
    seeds = range(metafunc.config.getoption("--seeds") // 4) if seed is None else [seed]
    if "seed" in metafunc.fixturenames:
        metafunc.parametrize("seed", seeds)


class Outage(Exception):
    """The service has failed."""


def key_of(value: Any) -> int:
    return int(value[1])


def outputs_for(key: int) -> list[Any]:
    """What the service says about a key, whoever asks."""
    return [("answer", key)] * (key % 3)


def tokens_of(value: Any) -> int:
    """What a call costs at most."""
    return 1 + 4 * key_of(value)


_TOKENS = RateLimit(6.0, burst=30, cost=tokens_of, unit="tokens")


class Charge:
    """What is known of the cost of a call: its estimate, and at the end what it has spent."""

    def __init__(self, began: float, estimate: int) -> None:
        self.began = began
        self.estimate = estimate
        self.spent = estimate
        self.ended: float | None = None

    def end(self, spent: int, now: float) -> None:
        self.spent, self.ended = spent, now

    def known(self, now: float) -> int:
        """The least that may have been known of it by a call that was admitted now: maybe before this one ended."""
        return min(self.estimate, self.spent) if self.ended == now else self.spent


class Sharing(AsyncFunction):
    """A service that is asked the same again and again, and looks at who asks."""

    def __init__(self, run: Run) -> None:
        self.run = run

    async def async_invoke(self, value: Any, ctx: Any) -> list[Any]:
        run, key = self.run, key_of(value)
        assert value[0] not in run.needless, f"{value} is called for though its outputs were kept"
        assert not (run.settings.single_flight and run.running[key]), f"two calls for {key} are under way"
        run.running[key] += 1
        try:
            charge = run.charged(tokens_of(value))
            with run.limits.call():
                await asyncio.sleep(run.draw.choice((0.0, 0.1, 1.0, 5.0)))
                if run.draw.random() < run.failures:
                    raise Outage(key)
                self.ask_to_wait(charge, ctx)
                spent = run.draw.randrange(2 * tokens_of(value))
                ctx.spent(tokens=spent)
                charge.end(spent, run.now())
        finally:
            run.running[key] -= 1
        if outputs_for(key) or (run.settings.cache and run.settings.cache.empty):
            run.kept.add(key)
        return outputs_for(key)

    def ask_to_wait(self, charge: Charge, ctx: Any) -> None:
        """Sometimes ask for a wait, in place of an answer or with one."""
        run, seconds = self.run, self.run.refusals.choice((0.0, 0.5, 3.0))
        kind = run.refusals.choice(("refused", "used up", *["ok"] * 4)) if run.refuses else "ok"
        if kind == "used up":
            ctx.heed({"x-ratelimit-remaining-tokens": "0", "x-ratelimit-reset-tokens": f"{seconds}s"})
            run.limits.hold(seconds)
        elif kind == "refused":
            ctx.spent(tokens=0)
            charge.end(0, run.now())
            raise RetryAfter(seconds)

    async def timeout(self, value: Any, ctx: Any) -> list[Any]:
        assert self.run.timeout is not None
        return [("late", key_of(value))]


class Run:
    """One seed."""

    def __init__(self, seed: int) -> None:
        draw = self.draw = random.Random(f"{seed}/sharing")
        self.failures = draw.choice((0.0, 0.0, 0.3))
        self.refusals = random.Random(f"{seed}/refusals")  # its own, so that it moves no others
        self.refuses = self.refusals.random() < 0.5
        self.causes = (CircuitOpen, *[Outage] * (self.failures > 0), *[RetryAfter] * self.refuses)
        self.timeout = draw.choice((None, 4.0))
        self.capacity = draw.choice((1, 3, 10))
        self.mode: Any = draw.choice(("ordered", "unordered", "key_ordered"))
        self.retry = draw.choice((None, FixedDelayRetry(3, 1.0)))
        cache = Cache(key=key_of, max_entries=100, empty=draw.random() < 0.5)
        self.settings = Resilience(
            cache=draw.choice((None, cache)),
            single_flight=draw.choice((None, SingleFlight(key_of))),
            concurrency=draw.choice((None, AdaptiveConcurrency(slow_seconds=2.0))),
            circuit_breaker=draw.choice(
                (None, CircuitBreaker(window=3, open_seconds=2.0, when_open=draw.choice(("wait", "fail"))))
            ),
            rate_limit=draw.choice((None, RateLimit(5.0, burst=2), [RateLimit(5.0, burst=2), _TOKENS])),
        )
        self.values = [(index, draw.randrange(6)) for index in range(_EVENTS_MAX)]
        self.crash_after = draw.randrange(_EVENTS_MAX)
        self.store = SnapshotStore(f"memory://{uuid.uuid4().hex}", "operator")
        self.letters: list[DeadLetter] = []
        self.begin()

    def begin(self) -> None:
        """Forget what a crash takes along."""
        rates = self.settings.rate_limits
        share = rates[0].share(0, 1) if rates else None
        self.charges: list[Charge] = []
        self.limits = SubtaskLimits(self.settings, share, self.capacity, self.check, self.now, sees_ends=True)
        self.running = Counter[int]()
        self.kept: set[int] = set()
        self.needless: set[int] = set()

    def check(self, promise: object, broken: str) -> None:
        assert promise, broken

    def charged(self, tokens: int) -> Charge:
        """Look at a call that begins: at every period that ends now, by what is known of its calls' costs."""
        now = self.now()
        self.charges.append(Charge(now, tokens))
        if _TOKENS in self.settings.rate_limits:
            total = 0.0
            for charge in reversed(self.charges):
                total += charge.known(now)
                allowed = _TOKENS.whole_burst + _TOKENS.per_second * (now - charge.began + _EPSILON)
                assert total <= allowed, f"{total} tokens within {now - charge.began} s"
        return self.charges[-1]

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    def operator(self, outputs: list[Any]) -> AsyncWaitOperator:
        return AsyncWaitOperator(
            Sharing(self),
            outputs.append,
            mode=self.mode,
            capacity=self.capacity,
            timeout=self.timeout,
            retry=self.retry,
            key_by=key_of if self.mode == "key_ordered" else None,
            on_error="dead_letter",
            dead_letters=self.letters.append,
            resilience=self.settings,
            max_parallelism=8,
        )

    async def feed(self, operator: AsyncWaitOperator, values: list[Any]) -> None:
        for value in values:
            if self.draw.random() < 0.5:
                await asyncio.sleep(self.draw.choice((0.0, 0.1, 2.0)))
            while operator.statistics().in_flight >= self.capacity and self.mode != "key_ordered":
                await asyncio.sleep(0.1)
            if self.settings.cache is not None and key_of(value) in self.kept:
                self.needless.add(value[0])
            await operator.process(value, timestamp=value[0])

    async def go(self) -> list[Record]:
        """Run to a crash, and from the snapshot before it to the end; return what has left."""
        outputs: list[Any] = []
        operator = self.operator(outputs)
        await operator.open()
        await self.feed(operator, self.values[: self.crash_after])
        cut = await operator.snapshot()
        committed, buried = outputs[: cut.emitted], len(self.letters)
        self.store.write([cut])
        await asyncio.sleep(self.draw.choice((0.0, 1.0)))
        await operator.close()
        del self.letters[buried:]
        self.begin()
        latest = self.store.latest()
        assert latest is not None
        rest: list[Any] = []
        operator = self.operator(rest)
        await operator.open(latest.restore(0))
        await self.feed(operator, self.values[self.crash_after :])
        await operator.finish()
        self.check_counters(operator)
        await operator.close()
        return [*committed, *rest]

    def check_counters(self, operator: AsyncWaitOperator) -> None:
        found = operator.statistics().resilience
        assert found is not None
        assert (found.waiting, found.running) == (0, 0)
        shared = found.cache_hits if self.settings.cache is not None else 0
        assert shared >= len(self.needless)

    def check_outcome(self, left: list[Record]) -> None:
        """Compare with what a run without any sharing would have given."""
        by_element: dict[int, list[Any]] = {index: [] for index, _ in self.values}
        for record in left:
            assert record.timestamp is not None
            by_element[record.timestamp].append(record.value)
        died = {letter.value[0]: letter.error for letter in self.letters}
        for index, key in self.values:
            if index in died:
                assert isinstance(died[index], self.causes)
                assert by_element[index] == []
            elif by_element[index] != outputs_for(key):
                assert self.timeout is not None
                assert by_element[index] == [("late", key)]
        if self.mode == "ordered":
            order = [record.timestamp for record in left]
            assert order == sorted(order, key=lambda timestamp: timestamp or 0)
        if self.mode == "key_ordered":
            for key in range(6):
                order = [record.timestamp for record in left if record.value[1] == key]
                assert order == sorted(order, key=lambda timestamp: timestamp or 0)


def test_every_promise_holds_where_calls_are_shared(seed: int) -> None:
    loop = VirtualLoop()
    errors: list[Any] = []
    loop.set_exception_handler(lambda _, context: errors.append(context))
    run = Run(seed)
    try:
        left = loop.run_until_complete(run.go())
        run.check_outcome(left)
        assert not errors
        assert not asyncio.all_tasks(loop)
    finally:
        abandon(loop)
